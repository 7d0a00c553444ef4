"""What a node makes of its relays, without I/O: faults weigh, weigh less with time, and too many make it leave.

A relay can do four things wrong that its clients can see: lie (a voucher, a claim, a message that cannot be), drop
(circuits or itself), delay, and replay, which the encryption turns into a broken circuit. What a stranger at the
other end of a circuit could have caused as well counts once for each such stranger.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = ["AVOID_POINTS", "Fault", "RelayReputation", "has_stalled"]

HALF_LIFE_S: Final = 600.0
AVOID_POINTS: Final = 50.0
"""A relay with so many is left, unless there is no other."""
RELAYS_MAX: Final = 1_024
ABOUT_MAX: Final = 64
DELAY_FACTOR: Final = 3
DELAY_S_MIN: Final = 0.1
"""A round trip above so many times the least of late, and by so much, is slow."""
DELAYS_IN_A_ROW: Final = 5
SILENT_S_MIN: Final = 1.5
"""A circuit that was left for its silence has stalled if it was silent for so long, ..."""
SPOKE_S_MIN: Final = 1.0
"""... and the relay has spoken so long after it fell silent: else our own line may have been gone."""
_EWMA: Final = 0.25
_LEAST_GROWTH: Final = 1.01
"""The least round trip is forgotten slowly, for routes change."""


class Fault(Enum):
    """What went wrong."""

    LIED = "lied"
    """A message that no honest relay sends."""
    STALLED = "stalled"
    """A circuit took bytes and brought none."""
    BROKEN = "broken"
    """What came through a circuit was not what the other end sent."""
    OVERCHARGED = "overcharged"
    """It claims to have carried far more than was counted here; who sends what is never read can cause that."""
    DELAYED = "delayed"
    """Round trips have grown far above what they were."""
    HELD_UP = "held_up"
    """A circuit became far slower than it was, and than another way to the same node."""
    LOST = "lost"
    """The relay ended or fell silent."""
    UNREACHED = "unreached"
    """No connection to it could be had."""
    REFUSED = "refused"
    """It is full."""


POINTS: Final[Mapping[Fault, float]] = {
    Fault.LIED: 100, Fault.STALLED: 20, Fault.BROKEN: 20, Fault.OVERCHARGED: 25, Fault.DELAYED: 25,
    Fault.HELD_UP: 20, Fault.LOST: 15, Fault.UNREACHED: 15, Fault.REFUSED: 5,
}  # fmt: skip
_ONCE_EACH: Final = frozenset({Fault.STALLED, Fault.BROKEN, Fault.OVERCHARGED, Fault.HELD_UP})


def has_stalled(*, silent_s: float, spoke_s: float) -> bool:
    """Tell whether a relay is held to have swallowed what a circuit was given.

    ``silent_s`` is how long nothing had come when the circuit was left for another way on which its other end
    answered, ``spoke_s`` how long after its last answer the relay itself has last been heard.
    """
    return silent_s >= SILENT_S_MIN and spoke_s >= SPOKE_S_MIN


@dataclass(slots=True)
class _Record:
    points: float = 0.0
    at: float = 0.0
    rtt_s: float | None = None
    least_s: float = 0.0
    delays: int = 0
    about: OrderedDict[tuple[Fault, bytes], float] = field(default_factory=OrderedDict)


class RelayReputation:
    """What is held against each relay, by its address. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def blame(self, relay: bytes, fault: Fault, now: float, *, about: bytes = b"", among: int = 1) -> None:
        """Hold a fault against a relay; ``about`` is the node at the other end of the circuit that showed it.

        It may be the fault of any one of ``among`` relays.
        """
        record = self._record(relay)
        if fault in _ONCE_EACH:
            key = fault, about
            last = record.about.pop(key, None)
            record.about[key] = now
            if len(record.about) > ABOUT_MAX:
                record.about.popitem(last=False)
            if last is not None and now - last < HALF_LIFE_S:
                return
        record.points = self._decayed(record, now) + POINTS[fault] / among
        record.at = now

    def measured(self, relay: bytes, rtt_s: float, now: float) -> None:
        """Take a round trip to a relay."""
        record = self._record(relay)
        if record.rtt_s is None:
            record.rtt_s = record.least_s = rtt_s
            return
        record.rtt_s += _EWMA * (rtt_s - record.rtt_s)
        record.least_s = min(record.least_s * _LEAST_GROWTH, rtt_s)
        is_slow = rtt_s > max(DELAY_FACTOR * record.least_s, record.least_s + DELAY_S_MIN)
        record.delays = record.delays + 1 if is_slow else 0
        if record.delays >= DELAYS_IN_A_ROW:
            record.delays = 0
            self.blame(relay, Fault.DELAYED, now)

    def points(self, relay: bytes, now: float) -> float:
        """Return what is held against a relay now."""
        record = self._records.get(relay)
        return 0.0 if record is None else self._decayed(record, now)

    def rtt_s(self, relay: bytes) -> float | None:
        """Return the round trip to a relay, as far as it was measured."""
        record = self._records.get(relay)
        return None if record is None else record.rtt_s

    def is_avoided(self, relay: bytes, now: float) -> bool:
        """Tell whether a relay is to be avoided."""
        return self.points(relay, now) >= AVOID_POINTS

    def order(self, relays: Iterable[bytes], now: float) -> list[bytes]:
        """Return relays, the best first: those not to be avoided, by round trip; unknown ones after known ones."""

        def cost(relay: bytes) -> tuple[bool, float, float]:
            points, rtt_s = self.points(relay, now), self.rtt_s(relay)
            is_avoided = points >= AVOID_POINTS
            return (
                is_avoided,
                points if is_avoided else 0.0,
                float("inf") if rtt_s is None else rtt_s * (1 + points / 50),
            )

        return sorted(relays, key=cost)

    def _record(self, relay: bytes) -> _Record:
        record = self._records.get(relay)
        if record is None:
            record = self._records[relay] = _Record()
            if len(self._records) > RELAYS_MAX:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(relay)
        return record

    @staticmethod
    def _decayed(record: _Record, now: float) -> float:
        return record.points * math.exp2(-max(0.0, now - record.at) / HALF_LIFE_S)
