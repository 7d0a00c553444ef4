"""A state that is read once: what the end of a block has read is kept until the block is done.

Each draw of verifiers looks at a hundred machines, and 192 draws of a block look at many of them again. Below an
overlay of changes each record would come from the database each time.
"""

from __future__ import annotations

from typing import Final

from state.view.overlay import Reader

__all__ = ["KEPT_BYTES_MAX", "Rereading"]

KEPT_BYTES_MAX: Final = 64 << 20
"""Of keys and values that are kept, with ``_ENTRY_BYTES`` for each; what is read after that is not."""
_ENTRY_BYTES: Final = 256


class Rereading:
    """``base``, whose values are read from it once. It does not change meanwhile."""

    __slots__ = ("_base", "_kept", "_room")

    def __init__(self, base: Reader) -> None:
        self._base = base
        self._kept: dict[bytes, bytes | None] = {}
        self._room = KEPT_BYTES_MAX

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None when it is absent."""
        try:
            return self._kept[key]
        except KeyError:
            value = self._base.get(key)
        if self._room > 0:
            self._kept[key] = value
            self._room -= _ENTRY_BYTES + len(key) + (len(value) if value else 0)
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop``, in the order of their keys."""
        return self._base.scan(start, stop, limit)
