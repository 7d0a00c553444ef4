"""Undo records: the changes of each height, to compute an earlier state from the newest one."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

from state.store.errors import StoreDamaged
from state.store.library_errors import reported
from state.store.records import UNDO, Undo, height_key, named

__all__ = ["Undos", "read_undo"]


def read_undo(source: Any, height: int) -> Undo:
    """Return the undo record of a height from a database or a snapshot. Raises StoreDamaged."""
    with reported():
        data = source.get(height_key(UNDO, height), verify_checksums=True)
    if data is None:
        raise StoreDamaged(f"the undo record of height {height} is absent")
    return named(height, Undo.decode, data)


class Undos:
    """The newest undo records in memory, within a limit of entries. Thread-safe."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._kept: OrderedDict[int, Undo] = OrderedDict()
        self._entries = 0
        self._lock = Lock()

    def load(self, source: Any, height: int) -> Undo:
        """Return the undo record of a height that ``source`` has. Raises StoreDamaged."""
        undo = self._kept.get(height)
        if undo is None:
            undo = read_undo(source, height)
            self.keep(height, undo)
        return undo

    def keep(self, height: int, undo: Undo) -> None:
        """Add the record of a height and drop the oldest above the limit; at least one is kept."""
        with self._lock:
            if height in self._kept:
                return
            self._kept[height] = undo
            self._entries += len(undo.keys) + 1
            while self._entries > self._entries_max and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._entries -= len(dropped.keys) + 1

    def forget(self, height: int) -> None:
        """Drop the record of a height that was rolled back."""
        with self._lock:
            undo = self._kept.pop(height, None)
            if undo is not None:
                self._entries -= len(undo.keys) + 1
