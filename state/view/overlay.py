"""Reads through layers: an overlay of changes over a reader, which is another overlay or the finalised state."""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

__all__ = ["EMPTY", "KEY_BYTES_MAX", "VALUE_BYTES_MAX", "Empty", "Overlay", "Reader"]

KEY_BYTES_MAX: Final = 128
VALUE_BYTES_MAX: Final = 64 * 1024


class Reader(Protocol):
    """A state that can be read: finalised, at an earlier height, or with changes laid over it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None when it is absent."""
        ...

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop``, in the order of their keys."""
        ...


class Empty:
    """The state before the genesis."""

    def get(self, key: bytes) -> bytes | None:
        """Return None."""
        return None

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return no entries."""
        return []


EMPTY: Final = Empty()


class Overlay:
    """Changes over ``base``; nothing below is touched. ``changes`` holds None for a deleted key.

    ``mark`` and ``revert`` undo everything since the mark, so a transaction applies wholly or not at all.
    """

    __slots__ = ("_indexed", "_journal", "_tables", "base", "changes")

    def __init__(self, base: Reader) -> None:
        self.base = base
        self.changes: dict[bytes, bytes | None] = {}
        self._journal: list[tuple[bytes, bool, bytes | None]] | None = None
        # The changed keys by table, as far as scans needed them: the first ``_indexed`` of ``changes``, which
        # keeps the order of insertion. A block changes thousands of accounts, and a scan is never of those.
        self._tables: dict[int, dict[bytes, None]] = {}
        self._indexed = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` through the changes, or None."""
        try:
            return self.changes[key]
        except KeyError:
            return self.base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set ``key`` to ``value``."""
        if self._journal is not None:
            self._journal.append((key, key in self.changes, self.changes.get(key)))
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove ``key``; removing an absent key is allowed."""
        if self._journal is not None:
            self._journal.append((key, key in self.changes, self.changes.get(key)))
        self.changes[key] = None

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop`` in order, changes merged in.

        Costs a pass over the changes of the scanned tables in this layer.
        """
        changes = self.changes
        mine = {key: changes[key] for key in self._changed(start, stop) if start <= key < stop}
        if not mine:
            return self.base.scan(start, stop, limit)
        below = self.base.scan(start, stop, limit + sum(value is None for value in mine.values()))
        merged = dict(below)
        merged.update({key: value for key, value in mine.items() if value is not None})
        for key, value in mine.items():
            if value is None:
                merged.pop(key, None)
        return sorted(merged.items())[:limit]

    def _changed(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the changed keys of the tables from that of ``start`` to that of ``stop``."""
        tables, changes = self._tables, self.changes
        if self._indexed < len(changes):
            for key in islice(changes, self._indexed, None):
                table = tables.get(key[0])
                if table is None:
                    table = tables[key[0]] = {}
                table[key] = None
            self._indexed = len(changes)
        first = start[0] if start else 0
        last = stop[0] if stop else -1
        if first == last:
            return list(tables.get(first, ()))
        return [key for number in range(first, last + 1) if number in tables for key in tuple(tables[number])]

    def mark(self) -> None:
        """Start to record how to undo; marks do not nest."""
        if self._journal is not None:
            raise AssertionError("a mark is already set")
        self._journal = []

    def keep(self) -> None:
        """Forget the mark; the changes stay."""
        self._journal = None

    def revert(self) -> None:
        """Undo every change since the mark and forget it."""
        if self._journal is None:
            raise AssertionError("no mark is set")
        for key, was_changed, value in reversed(self._journal):
            if was_changed:
                self.changes[key] = value
            else:
                del self.changes[key]
                table = self._tables.get(key[0])
                if table is not None:
                    table.pop(key, None)
        self._indexed = min(self._indexed, len(self.changes))
        self._journal = None
