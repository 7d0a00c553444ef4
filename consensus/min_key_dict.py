"""A dict whose lowest keys can be removed without a scan of the others. Pure.

The set of things that wait for final blocks grows with the gap of a replica that catches up, and each commit
removes the lowest part. A scan of all keys for each commit would take quadratic time.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

__all__ = ["MinKeyDict"]

_K = TypeVar("_K", bound=int | tuple[int, int])
_V = TypeVar("_V")


class MinKeyDict(dict[_K, _V]):
    """A dict; ``take`` removes and returns the entries up to a key, in ascending order.

    A heap holds the keys. A key that was removed otherwise stays in the heap until it is the lowest.
    """

    __slots__ = ("_heap",)

    def __init__(self, entries: Iterable[tuple[_K, _V]] = ()) -> None:
        super().__init__(entries)
        self._heap: list[Any] = list(self)
        heapify(self._heap)

    def __setitem__(self, key: _K, value: _V) -> None:
        if key not in self:
            heappush(self._heap, key)
        super().__setitem__(key, value)

    def setdefault(self, key: _K, default: Any = None) -> Any:  # as typeshed has it: any default may be given
        """Return the value of a key, which is set if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove everything."""
        super().clear()
        self._heap.clear()

    def take(self, last: _K) -> list[tuple[_K, _V]]:
        """Remove and return the entries whose key is at most ``last``."""
        heap = self._heap
        taken: list[tuple[_K, _V]] = []
        while heap and heap[0] <= last:
            key: _K = heappop(heap)
            if key in self:
                taken.append((key, self.pop(key)))
        return taken
