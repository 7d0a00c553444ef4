"""The effects of the event that the core handles: all parts of the core append to one list, in order."""

from __future__ import annotations

from collections.abc import Callable

from consensus.events import Effect, Halt

__all__ = ["Outbox"]


class Outbox:
    """Collects effects. ``is_halted``: a Halt was emitted; the core does nothing from then on."""

    __slots__ = ("_effects", "emit", "is_halted")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self.emit: Callable[[Effect], None] = self._effects.append
        """Append an effect. It is the list's own method, because this is the core's most frequent call."""
        self.is_halted = False

    def take(self) -> list[Effect]:
        """Return and clear the effects since the last call."""
        if not self._effects:
            return []
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def halt(self, code: str, message: str, time_ms: int = 0) -> None:
        """Emit Halt; only the first reason is kept."""
        if not self.is_halted:
            self.is_halted = True
            self.emit(Halt(code, message, time_ms))
