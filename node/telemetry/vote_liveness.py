"""Tracks which seats' votes arrive, for the operator's status when no block is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from state.primitives.address import format_address
from state.primitives.committee import Committee

__all__ = ["STILL_S", "VoteLiveness"]

STILL_S: Final = 60.0
"""A chain without a new block for this long has stalled. An idle chain makes a block every few seconds."""
SETTLED_S: Final = 10.0
"""Votes for the last block arrive for this long, also from seats that have failed since."""
HEARD_S_MAX: Final = 120.0
"""A vote of an earlier view proves for this long that its seat is alive."""
HEARD_S_MIN: Final = 40.0
"""Time after the start during which nothing can be reported."""


class VoteLiveness:
    """Time and view of each seat's last new vote, by the seat's address, for the seats of one epoch.

    In a view that does not end, a live seat votes once; a repeated vote is not new.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._heard: dict[str, tuple[float, float]] = {}

    def note(self, seat: str, view: float) -> None:
        """Note a vote of a seat."""
        self._heard[seat] = self._now_s(), view

    def forget(self) -> None:
        """Clear all seats: a new epoch has other seats."""
        self._heard.clear()

    def tell(self, committee: Committee, *, own: int | None, view: int, still_s: float) -> dict[str, Any] | None:
        """Return the seats that vote in the current ``view`` or have voted since the newest block; None while
        blocks arrive.

        ``own`` is this node's seat, ``still_s`` the age of the newest block.
        """
        now_s = self._now_s()
        window_s = min(HEARD_S_MAX, still_s - SETTLED_S, now_s - self._since_s)
        if still_s < STILL_S or window_s < HEARD_S_MIN:
            return None
        named = [format_address(seat.address) for seat in committee.seats]
        is_heard = [
            number == own or heard_s >= now_s - window_s or voted >= view
            for number, seat in enumerate(named)
            for heard_s, voted in (self._heard.get(seat, (-inf, -inf)),)
        ]
        heard = sum(weight for weight, there in zip(committee.weights, is_heard, strict=True) if there)
        return {
            "view": view,
            "heard_percent": 1000 * heard // committee.weight / 10,
            "enough": heard >= committee.quorum,
            "silent": [seat for seat, there in zip(named, is_heard, strict=True) if not there],
        }
