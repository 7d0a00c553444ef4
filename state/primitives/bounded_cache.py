"""A cache of the values used last, bounded by a total weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class BoundedCache(Generic[_K, _V]):
    """Keeps the values used last. The sum of their weights never exceeds ``weight_max``."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._items: OrderedDict[_K, tuple[_V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: _K) -> _V | None:
        """Return the value of ``key`` and count it as used, or None."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: _K, value: _V, weight: int = 1) -> None:
        """Store ``value``; a value that weighs more than half of ``weight_max`` is not stored."""
        if weight * 2 > self._weight_max:
            return
        old = self._items.pop(key, None)
        if old is not None:
            self._weight -= old[1]
        self._items[key] = (value, weight)
        self._weight += weight
        while self._weight > self._weight_max:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone

    def clear(self) -> None:
        """Remove everything."""
        self._items.clear()
        self._weight = 0
