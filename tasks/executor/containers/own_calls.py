"""Calls of this node that an engine will tell of among its events."""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["OwnCalls"]

OWN_CALLS_MAX: Final = 1_024
"""Further calls take the place of the oldest ones, whose events were lost."""


class OwnCalls:
    """Calls of this node that the engine will tell of among its events: each is taken off by one event."""

    def __init__(self) -> None:
        self._expected: Counter[tuple[str, str]] = Counter()

    def expect(self, container: str, action: str) -> None:
        """Note a call before it is made."""
        if self._expected.total() >= OWN_CALLS_MAX:
            self.forget(*next(iter(self._expected)))
        self._expected[container, action] += 1

    def take(self, container: str, action: str) -> bool:
        """Tell whether an event is that of a call of this node, and take it off."""
        if self._expected[container, action] <= 0:
            return False
        self.forget(container, action)
        return True

    def forget(self, container: str, action: str) -> None:
        """Take off a call that has failed."""
        if self._expected[container, action] > 1:
            self._expected[container, action] -= 1
        else:
            del self._expected[container, action]
