"""The interface of whatever waits for one answer of the node."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Waiter"]

_Answer = TypeVar("_Answer", contravariant=True)


class Waiter(Protocol[_Answer]):
    """Receives one answer."""

    def done(self) -> bool:
        """Return whether the answer is no longer needed."""
        ...

    def answered(self, answer: _Answer | Exception) -> None:
        """Take the answer, or the reason why there is none. Called at most once, and never when ``done``."""
        ...
