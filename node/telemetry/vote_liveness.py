"""Whose votes come: what an owner asks first when no block does."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from state.primitives.address import format_address
from state.primitives.committee import Committee

__all__ = ["STILL_S", "VoteLiveness"]

STILL_S: Final = 60.0
"""A chain without a new block for so long stands still; a quiet one makes a block every few seconds."""
SETTLED_S: Final = 10.0
"""Votes of the last block still come so long after it, also of seats that are gone since."""
HEARD_S_MAX: Final = 120.0
"""A vote of an earlier view says for so long that its seat is there."""
HEARD_S_MIN: Final = 40.0
"""After less nothing can be said: this node has only just been started."""


class VoteLiveness:
    """When a new vote of each seat came last, and of which view, by the seat's address; of the seats of one epoch.

    In a view that does not end a living seat votes once; when it repeats that, nothing new has come.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._heard: dict[str, tuple[float, float]] = {}

    def note(self, seat: str, view: float) -> None:
        """Note a vote of a seat."""
        self._heard[seat] = self._now_s(), view

    def forget(self) -> None:
        """Begin anew: another epoch has other seats."""
        self._heard.clear()

    def tell(self, committee: Committee, *, own: int | None, view: int, still_s: float) -> dict[str, Any] | None:
        """Return who votes in ``view``, the present one, or did since the newest block; None while blocks come.

        ``own`` is the seat that this node votes with, ``still_s`` the age of the newest block.
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
