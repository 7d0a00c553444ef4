"""A bounded cache of database values, coherent with commits and safe to read from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

__all__ = ["Cache"]


class Cache:
    """A cache of two generations: a full young generation becomes the old one, and the old one is dropped.

    A hit in the old generation moves the entry to the young one, so what is in use stays, at the cost of one
    dictionary look-up a hit. None is a cached absence. A reader that misses reads the database and offers what
    it read with the ``version`` it saw before; a commit in between makes the offer void, so nothing stale enters.
    """

    __slots__ = ("_limit", "_lock", "entries_max", "old", "version", "young")

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._limit = max(1, entries_max // 2)
        self._lock = Lock()
        self.young: dict[bytes, bytes | None] = {}
        self.old: dict[bytes, bytes | None] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def offer(self, key: bytes, value: bytes | None, version: int) -> None:
        """Keep what was read while ``version`` was current."""
        with self._lock:
            if version == self.version:
                self.young[key] = value
                self._turn()

    def replace(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Apply the changes of a commit."""
        with self._lock:
            self.version += 1
            self.young.update(changes)
            self._turn()

    def _turn(self) -> None:
        if len(self.young) > self._limit:
            self.old, self.young = self.young, {}
