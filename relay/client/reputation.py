"""The reputation of relays at one node, without I/O: points for faults, and a threshold to avoid a relay.

Points decay with time. A client can observe four kinds of fault. A relay can lie (a false voucher or claim, an
impossible message), drop circuits or its connection, delay, and replay; the encryption turns a replay into a
broken circuit. The node at the other end of a circuit can cause some of these faults too. Such a fault counts
once for each of those nodes.
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
"""A relay with this many points is avoided, unless there is no other."""
RELAYS_MAX: Final = 1_024
ABOUT_MAX: Final = 64
DELAY_FACTOR: Final = 3
DELAY_S_MIN: Final = 0.1
"""A round trip is slow if it exceeds the recent minimum by this factor and by this difference."""
DELAYS_IN_A_ROW: Final = 5
SILENT_S_MIN: Final = 1.5
"""A circuit given up for its silence has stalled if it was silent for this long, ..."""
SPOKE_S_MIN: Final = 1.0
"""... and if the relay sent something this long after the silence began: else this node's line may have failed."""
_EWMA: Final = 0.25
_LEAST_GROWTH: Final = 1.01
"""The minimum round trip grows by this factor per sample, because routes change."""


class Fault(Enum):
    """What a relay did wrong."""

    PROTOCOL_VIOLATION = "protocol_violation"
    """A message that no honest relay sends."""
    STALLED = "stalled"
    """A circuit accepted bytes and delivered none."""
    BROKEN = "broken"
    """The bytes received through a circuit were not those that the other end sent."""
    OVERCHARGED = "overcharged"
    """It claims far more bytes than were counted here. A peer that sends what is never read can cause this too."""
    DELAYED = "delayed"
    """Its round trips grew far above their minimum."""
    SLOWED = "slowed"
    """A circuit became far slower than before, and than another path to the same node."""
    LOST = "lost"
    """The connection to the relay ended, or the relay fell silent."""
    UNREACHABLE = "unreachable"
    """It could not be connected to."""
    REFUSED = "refused"
    """It is full."""


POINTS: Final[Mapping[Fault, float]] = {
    Fault.PROTOCOL_VIOLATION: 100, Fault.STALLED: 20, Fault.BROKEN: 20, Fault.OVERCHARGED: 25, Fault.DELAYED: 25,
    Fault.SLOWED: 20, Fault.LOST: 15, Fault.UNREACHABLE: 15, Fault.REFUSED: 5,
}  # fmt: skip
_ONCE_EACH: Final = frozenset({Fault.STALLED, Fault.BROKEN, Fault.OVERCHARGED, Fault.SLOWED})


def has_stalled(*, silent_s: float, spoke_s: float) -> bool:
    """Tell whether the relay is to blame that a circuit delivered nothing.

    ``silent_s`` is how long the circuit delivered nothing until its other end answered on another path.
    ``spoke_s`` is how long after the start of that silence the relay itself last sent a message.
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
    """Points and round trips of each relay, by its address. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def blame(self, relay: bytes, fault: Fault, now: float, *, about: bytes = b"", among: int = 1) -> None:
        """Add the points of a fault; ``about`` is the node at the other end of the circuit that showed it.

        Any one of ``among`` relays may have caused it, so each gets that part of the points.
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
        """Record a round trip to a relay."""
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
        """Return the points of a relay now."""
        record = self._records.get(relay)
        return 0.0 if record is None else self._decayed(record, now)

    def rtt_s(self, relay: bytes) -> float | None:
        """Return the smoothed round trip to a relay; None: it was never measured."""
        record = self._records.get(relay)
        return None if record is None else record.rtt_s

    def is_avoided(self, relay: bytes, now: float) -> bool:
        """Tell whether a relay is to be avoided: it has too many points."""
        return self.points(relay, now) >= AVOID_POINTS

    def order(self, relays: Iterable[bytes], now: float) -> list[bytes]:
        """Return relays, the best first: avoided ones last, the others by round trip with unmeasured ones last."""

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
