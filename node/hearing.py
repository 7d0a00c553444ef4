"""Whose votes come: what an owner asks first when no block does."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from state.primitives.address import format_address
from state.primitives.committee import Committee

__all__ = ["STILL_S", "Hearing"]

STILL_S: Final = 60.0
"""A chain without a new block for so long stands still; a quiet one makes a block every few seconds."""
SETTLED_S: Final = 10.0
"""Votes of the last block still come so long after it, also of seats that are gone since."""
HEARD_S_MAX: Final = 120.0
"""A seat that is there repeats its votes, in a long outage every half minute or so."""
HEARD_S_MIN: Final = 40.0
"""After less nothing can be said: this node has only just been started."""


class Hearing:
    """When a vote of each seat came last, by the seat's address; of the seats of one epoch."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._heard_s: dict[str, float] = {}

    def note(self, seat: str) -> None:
        """Note a vote of a seat."""
        self._heard_s[seat] = self._now_s()

    def forget(self) -> None:
        """Begin anew: another epoch has other seats."""
        self._heard_s.clear()

    def tell(self, committee: Committee, *, own: int | None, still_s: float) -> dict[str, Any] | None:
        """Return whose votes came while no block did, for people; None while blocks come.

        ``own`` is the seat that this node votes with, ``still_s`` the age of the newest block.
        """
        now_s = self._now_s()
        window_s = min(HEARD_S_MAX, still_s - SETTLED_S, now_s - self._since_s)
        if still_s < STILL_S or window_s < HEARD_S_MIN:
            return None
        named = [format_address(seat.address) for seat in committee.seats]
        is_heard = [
            number == own or self._heard_s.get(seat, -inf) >= now_s - window_s for number, seat in enumerate(named)
        ]
        heard = sum(weight for weight, there in zip(committee.weights, is_heard, strict=True) if there)
        return {
            "window_s": int(window_s),
            "heard_percent": 1000 * heard // committee.weight / 10,
            "enough": heard >= committee.quorum,
            "silent": [seat for seat, there in zip(named, is_heard, strict=True) if not there],
        }
