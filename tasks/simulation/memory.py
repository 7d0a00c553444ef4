"""Reads of the chain that are repeated only if what they read has changed: machines ask in every block."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from state.view import Reader

__all__ = ["Memory"]

_Result = TypeVar("_Result")
_Range = tuple[bytes, bytes, int]
_Entries = list[tuple[bytes, bytes]]
ENTRIES_MAX: Final = 16_384
"""More results than this are forgotten at once; a market has some hundreds."""


class _Log:
    """A reader that notes what was read through it."""

    def __init__(self, state: Reader) -> None:
        self._state = state
        self.values: list[tuple[bytes, bytes | None]] = []
        self.scans: list[tuple[_Range, _Entries]] = []

    def get(self, key: bytes) -> bytes | None:
        value = self._state.get(key)
        self.values.append((key, value))
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> _Entries:
        found = self._state.scan(start, stop, limit)
        self.scans.append(((start, stop, limit), found))
        return list(found)

    def is_current(self) -> bool:
        """Tell whether the same reads would find the same."""
        state = self._state
        for key, value in self.values:
            found = state.get(key)
            if found is not value and found != value:
                return False
        return all(state.scan(*place) == found for place, found in self.scans)


class Memory:
    """Results of functions of a state and of hashable arguments; callers must not change what they get."""

    def __init__(self, state: Reader) -> None:
        self._state = state
        self._known: dict[Hashable, tuple[_Log, Any]] = {}

    def read(self, function: Callable[..., _Result], *arguments: Hashable) -> _Result:
        """Return ``function(state, *arguments)``, computed only if something that it read has changed."""
        place = function, arguments
        known = self._known.get(place)
        if known is not None and known[0].is_current():
            result: _Result = known[1]
            return result
        if len(self._known) >= ENTRIES_MAX:
            self._known.clear()
        log = _Log(self._state)
        result = function(log, *arguments)
        self._known[place] = log, result
        return result
