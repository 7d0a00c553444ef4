"""Detects bulk connections that died silently: no progress while the peer answers elsewhere; without I/O. See
network.md 4.7.

TCP reports nothing for many seconds about a line or a relay that drops all data. So the receiver reports a few
times a second, over the control connection, which bulk connections received data. Silence of one counts only while
the control connection is alive: a stopped or offline peer is no fault of its bulk connections.

A bulk connection is given up in three steps. First it is *suspected*, and one on another path is opened beside it.
Then it is *suspended*, and its unfinished messages are also sent on the other one. Then it is dead. Until then,
one report of progress resets all steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["StallDetector", "StallParameters", "StallTimeout", "is_held_up", "is_silent", "silence_limit_s"]

_COUNTED_S_MAX: Final = 1.0
"""Maximum silence that one record of the peer adds: it does not confirm the whole silence before it."""
_ASK_S: Final = 0.4
_ROUND_TRIPS: Final = 16
_SLOW_FACTOR: Final = 3
_SLOW_S_MIN: Final = 0.1
"""A round trip is slow above this multiple of another, and by at least this much."""


def is_silent(silent_s: float, *, rtt_s: float, limit_s: float) -> bool:
    """Whether a connection to a peer that answers elsewhere was silent for longer than packet loss explains."""
    return silent_s > silence_limit_s(rtt_s, limit_s=limit_s)


def silence_limit_s(rtt_s: float, *, limit_s: float) -> float:
    """Return the longest silence that packet loss explains."""
    return max(limit_s, _ROUND_TRIPS * rtt_s)


def is_held_up(rtt_s: float, *, least_s: float, elsewhere_s: float) -> bool:
    """Whether this path alone has become slow: slower than before, and than another path now.

    A full line at either end would slow all paths.
    """
    others_s = max(least_s, elsewhere_s)
    return rtt_s > max(_SLOW_FACTOR * others_s, others_s + _SLOW_S_MIN)


@dataclass(frozen=True, slots=True)
class StallParameters:
    """How long a bulk connection with unacknowledged data may stall; times in seconds."""

    quiet_s: float = 2.0
    round_trips: int = _ROUND_TRIPS
    """At least this many round trips: after three losses of one packet TCP itself pauses for fifteen."""
    alarms_max: int = 2
    """Each alarm doubles the next timeout, up to this many times, so that a slow bad line is soon recognised
    ..."""
    memory_s: float = 600.0
    """... and resets after this time without one."""
    suspect_s: float = 0.45
    """After this time, ..."""
    suspect_round_trips: float = 2.0
    """... plus this many round trips above the time of a report, a bulk connection is suspected, ..."""
    suspend_s: float = 0.7
    suspend_round_trips: float = 3.0
    """... and after this it is suspended; ..."""
    report_s: float = 0.3
    """... the time of a report, without the round trips."""
    far_rtt_s: float = 0.25
    """Above this round trip TCP needs over a second for a packet that was lost twice, ..."""
    far_round_trips: float = 5.5
    """... and the timeout is this many round trips."""
    pause_factor: float = 1.25
    """At least this multiple of the longest recent pause, ..."""
    pause_half_life_s: float = 120.0
    """... which decays with this half-life."""


class StallTimeout:
    """The timeouts of the bulk connections of one peer; they grow with each alarm."""

    __slots__ = ("_alarmed_at", "_alarms", "_pause_s", "_paused_at", "parameters")

    def __init__(self, parameters: StallParameters | None = None) -> None:
        self.parameters = parameters or StallParameters()
        self._alarms = 0
        self._alarmed_at = 0.0
        self._pause_s = self._paused_at = 0.0

    def alarmed(self, now: float) -> None:
        """Note that a bulk connection was given up."""
        self._alarms = min(self._alarms_at(now) + 1, self.parameters.alarms_max)
        self._alarmed_at = now

    def paused(self, pause_s: float, now: float) -> None:
        """Note that a bulk connection stalled for ``pause_s`` and then moved."""
        self._pause_s = max(pause_s, self._longest_s(now))
        self._paused_at = now

    def _longest_s(self, now: float) -> float:
        age_s = now - self._paused_at
        return float(self._pause_s * 0.5 ** (age_s / self.parameters.pause_half_life_s))

    def suspect_s(self, now: float, rtt_s: float) -> float:
        """Return the stall time after which another bulk connection is opened beside it."""
        parameters = self.parameters
        least_s = max(parameters.suspect_s, parameters.report_s + parameters.suspect_round_trips * rtt_s)
        return self._bounded(least_s, now, rtt_s)

    def suspend_s(self, now: float, rtt_s: float) -> float:
        """Return the stall time after which its messages are also sent on others."""
        parameters = self.parameters
        least_s = max(parameters.suspend_s, parameters.report_s + parameters.suspend_round_trips * rtt_s)
        return self._bounded(least_s, now, rtt_s)

    def _bounded(self, least_s: float, now: float, rtt_s: float) -> float:
        parameters = self.parameters
        if rtt_s > parameters.far_rtt_s:
            least_s = max(least_s, parameters.far_round_trips * rtt_s)
        return min(max(least_s, parameters.pause_factor * self._longest_s(now)), self.limit_s(now, rtt_s))

    def limit_s(self, now: float, rtt_s: float) -> float:
        """Return the stall time after which it is given up."""
        least_s = max(self.parameters.quiet_s, self.parameters.round_trips * rtt_s)
        return float(least_s * 2 ** self._alarms_at(now))

    def _alarms_at(self, now: float) -> int:
        return self._alarms if now - self._alarmed_at < self.parameters.memory_s else 0


class StallDetector:
    """The stall detector of one bulk connection. Call ``tick`` a few times a second."""

    __slots__ = ("_counted_at", "_heard", "_heard_at", "_is_paused", "_moved", "_since", "_timeout", "quiet_s")

    def __init__(self, patience: StallTimeout, now: float) -> None:
        self._timeout = patience
        self._moved = self._heard = -1
        self._is_paused = False
        self._since = self._counted_at = self._heard_at = now
        self.quiet_s = 0.0
        """Stall time while the peer was heard."""

    def is_quiet(self, now: float) -> bool:
        """Whether it has stalled long enough that the peer should be pinged."""
        return now - self._since > _ASK_S

    def is_suspected(self, now: float, rtt_s: float) -> bool:
        """Whether it has stalled long enough that another bulk connection should be opened."""
        return now - self._since > self._timeout.suspect_s(now, rtt_s)

    def must_suspend(self, now: float, rtt_s: float) -> bool:
        """Whether its messages should also be sent on others: the peer sends reports, but none about this one."""
        has_spoken = self._heard_at - self._since > self._timeout.parameters.report_s
        return has_spoken and now - self._since > self._timeout.suspend_s(now, rtt_s)

    def tick(self, now: float, *, is_owed: bool, moved: int, heard: int, rtt_s: float) -> bool:
        """Process the changes since the last tick; return whether to give the bulk connection up.

        ``is_owed``: whether it has unacknowledged or unsent data. ``moved`` counts its progress reports, ``heard``
        all records of the peer.
        """
        if not is_owed or moved != self._moved:
            if self._is_paused and moved != self._moved:
                self._timeout.paused(now - self._since, now)
            self._is_paused = False
            self._moved, self._heard = moved, heard
            self._since = self._counted_at = self._heard_at = now
            self.quiet_s = 0.0
            return False
        self._is_paused = True
        if heard != self._heard:
            self._heard, self._heard_at = heard, now
            self.quiet_s += min(now - self._counted_at, _COUNTED_S_MAX)
            self._counted_at = now
        return self.quiet_s > self._timeout.limit_s(now, rtt_s)
