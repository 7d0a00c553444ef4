"""When each seat was last heard: a silent leader is skipped, and the operator sees the missing weight."""

from __future__ import annotations

from collections.abc import Mapping

from consensus.core.setup import Setup

__all__ = ["SeatActivity"]


class SeatActivity:
    """Arrival times of the seats' votes. The core writes ``heard_ms`` for each accepted vote."""

    def __init__(
        self, setup: Setup, heard_ms: Mapping[int, int] | None, waited_ms: Mapping[int, int] | None
    ) -> None:
        self._committee = setup.committee
        self._seat = setup.seat
        self._silent_ms = setup.parameters.silent_ms
        self.heard_ms: dict[int, int] = dict(heard_ms or {})
        self._waited_ms: dict[int, int] = dict(waited_ms or {})
        """Since when a never heard seat is waited for."""

    def start(self, now_ms: int) -> None:
        """Start waiting for all seats that no earlier epoch waited for."""
        for seat in range(self._committee.size):
            self._waited_ms.setdefault(seat, now_ms)

    def heard(self) -> dict[int, int]:
        """Return when each seat was last heard."""
        return dict(self.heard_ms)

    def waited(self) -> dict[int, int]:
        """Return since when each never heard seat is waited for."""
        return dict(self._waited_ms)

    def is_silent(self, leader: int, now_ms: int) -> bool:
        """Tell whether the leader was silent while a quorum was not (consensus.md 11.4; local and safe).

        Without a heard quorum, silence may be a fault of this node's own connection.
        """
        since_ms = now_ms - self._silent_ms
        if leader == self._seat:
            return False
        if max(self.heard_ms.get(leader, 0), self._waited_ms.get(leader, 0)) > since_ms:
            return False
        weights = self._committee.weights
        heard = sum(weights[seat] for seat, at_ms in self.heard_ms.items() if at_ms > since_ms)
        return heard >= self._committee.quorum

    def missing_weight(self, now_ms: int) -> int:
        """Return the weight of the seats not heard for ``silent_ms``."""
        since_ms = now_ms - self._silent_ms
        heard = [seat for seat, at_ms in self.heard_ms.items() if at_ms > since_ms]
        if self._seat is not None and self._seat not in heard:
            heard.append(self._seat)
        return self._committee.weight - sum(self._committee.weights[seat] for seat in heard)
