"""Failure detection for one peer: when to ping it, to find another connection, or to give it up; without I/O.

``p2p.session.peer`` reports the input of the control connection, calls ``tick`` a few times a second, and carries
out the actions. ``p2p.session.stall_detection`` watches single bulk connections. While votes are exchanged, a ping
travels with them, and its answer has a deadline (``AnswerDeadline``). After a missed deadline the connection is
*suspected*: another connection is dialled while this one stays. If this one is still silent when the other is
established, the conversation migrates. By then TCP has repaired a single packet loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from p2p.base.limits import NetworkLimits

__all__ = ["AnswerDeadline", "Liveness", "LivenessAction", "LivenessParameters", "Pings"]

PINGS_MAX: Final = 32
"""Unanswered pings of one connection."""


@dataclass(frozen=True, slots=True)
class LivenessParameters:
    """How soon an unanswered ping makes a connection suspected; times in seconds."""

    ping_s: float = 0.1
    """Minimum interval of pings that travel with votes; half a round trip is added."""
    quiet_s: float = 0.2
    """Time after a peer's vote when an end that sends no votes itself pings."""
    active_s: float = 1.0
    """An unanswered ping is urgent for this long after the last vote, sent or received."""
    budget_s: float = 0.65
    """The deadline of an answer is this, ..."""
    move_round_trips: float = 3.5
    """... minus the round trips that another connection takes, so that votes stop for at most a second, ..."""
    round_trips: float = 1.5
    """... but at least this many round trips ..."""
    slack_s: float = 0.1
    """... plus this."""
    far_rtt_s: float = 0.25
    """Above this round trip votes stop for over a second anyway, because a handshake takes that long. There ..."""
    far_round_trips: float = 8.0
    """... the deadline is this many round trips: TCP repairs three losses before a handshake ends."""
    round_trips_max: float = 16.0
    """Maximum deadline; it is also at most ``stall_s``."""
    late_factor: float = 1.25
    """At least this multiple of the slowest recent answer on this connection, ..."""
    late_half_life_s: float = 120.0
    """... which decays with this half-life, so that a lossy line is soon recognised."""
    own_stall_s: float = 0.1
    """A tick that is this late means that this process stalled; the deadline is then extended by the same time."""
    again_s: float = 1.0
    """Interval until another path is tried again during silence, doubled up to twice ``stall_s``."""


class AnswerDeadline:
    """The deadline for the answer to a ping on one connection."""

    __slots__ = ("_late_at", "_late_s", "_most_s", "_parameters", "rtt_s")

    def __init__(self, most_s: float, parameters: LivenessParameters | None = None) -> None:
        self._parameters = parameters or LivenessParameters()
        self._most_s = most_s
        self.rtt_s: float | None = None
        self._late_s = self._late_at = 0.0

    def answered(self, took_s: float, rtt_s: float, now: float) -> None:
        """Process the time of an answer, and the current estimate of the round trip."""
        self._late_s = max(self._late(now), took_s)
        self._late_at = now
        self.rtt_s = rtt_s

    def _late(self, now: float) -> float:
        return float(self._late_s * 0.5 ** ((now - self._late_at) / self._parameters.late_half_life_s))

    def patience_s(self, now: float) -> float:
        """Return the deadline for the answer to a ping; before the first answer, the maximum."""
        parameters, rtt_s = self._parameters, self.rtt_s
        if rtt_s is None:
            return self._most_s
        if rtt_s > parameters.far_rtt_s:
            wanted_s = parameters.far_round_trips * rtt_s
        else:
            wanted_s = max(
                parameters.budget_s - parameters.move_round_trips * rtt_s,
                parameters.round_trips * rtt_s + parameters.slack_s,
            )
        most_s = max(self._most_s, parameters.round_trips_max * rtt_s)
        return min(max(wanted_s, parameters.late_factor * self._late(now)), most_s)


class LivenessAction(Enum):
    """Actions that the caller must carry out now."""

    REKEY = auto()
    """Change the key of the control connection."""
    PING = auto()
    """Send a ping; see ``Liveness.asked``."""
    FIND_PATH = auto()
    """Open another connection if possible."""
    END_SILENT = auto()
    """Give the peer up: it was silent for too long."""
    END_LOST = auto()
    """Give the peer up: it had no connection for too long."""


class Liveness:
    """The failure detector of one peer; times in seconds of one monotonic clock. Call ``tick`` a few times a
    second.
    """

    __slots__ = (
        "_answer_deadline",
        "_attached_at",
        "_detached_at",
        "_has_grace",
        "_is_urgent",
        "_limits",
        "_parameters",
        "_rekeyed_at",
        "_seeks",
        "_sought_at",
        "_vote_heard_at",
        "_voted_at",
        "_waiting_since",
        "asked_at",
        "has_heard",
        "heard_at",
    )

    def __init__(self, now: float, limits: NetworkLimits, parameters: LivenessParameters | None = None) -> None:
        self._limits = limits
        self._parameters = parameters or LivenessParameters()
        self._answer_deadline = AnswerDeadline(limits.stall_s, self._parameters)
        self._waiting_since: float | None = None
        """Time of the first ping since the last input; None: none is unanswered."""
        self._is_urgent = False
        """Whether votes were exchanged while that ping waited."""
        self._voted_at = self._vote_heard_at = -math.inf
        self._seeks = 0
        """How often another path was tried since the last input."""
        self._has_grace = False
        """Whether the deadline was extended since the last input because this process stalled."""
        self.heard_at = now
        self.has_heard = False
        """Whether it has sent anything since its first handshake."""
        self.asked_at = -math.inf
        self._attached_at = now
        self._detached_at: float | None = None
        self._rekeyed_at = self._sought_at = now

    def heard(self, now: float) -> None:
        """Note that a record of the peer arrived on the control connection."""
        self.heard_at, self.has_heard = now, True
        if self._waiting_since is not None or self._seeks:
            self._forget_ping()

    def _forget_ping(self) -> None:
        self._waiting_since, self._is_urgent, self._has_grace, self._seeks = None, False, False, 0

    def answered(self, took_s: float, rtt_s: float, now: float) -> None:
        """Process the time of an answer to a ping, and the current estimate of the round trip."""
        self._answer_deadline.answered(took_s, rtt_s, now)

    def voted(self, now: float) -> bool:
        """Note that a vote is sent; return whether a ping should be sent with it."""
        self._voted_at = now
        if self._waiting_since is not None:
            self._is_urgent = True
        return now - self.asked_at >= max(self._parameters.ping_s, (self._answer_deadline.rtt_s or 0.0) / 2)

    def heard_vote(self, now: float) -> None:
        """Note that the peer sends votes. It expects no answer, but must not lose its connection."""
        self._vote_heard_at = now

    def asked(self, now: float) -> None:
        """Note that a ping was sent."""
        self.asked_at = now
        if self._waiting_since is None:
            self._waiting_since = now
        self._is_urgent |= now - max(self._voted_at, self._vote_heard_at) <= self._parameters.active_s

    @property
    def due_at(self) -> float:
        """When to call ``tick`` at the latest."""
        if self._detached_at is not None:
            return math.inf
        if self._waiting_since is not None:
            return self._deadline() if self._is_urgent and not self._seeks else math.inf
        return self._asks_at()

    @property
    def is_waiting(self) -> bool:
        """Whether a ping is unanswered and nothing has arrived since."""
        return self._waiting_since is not None

    @property
    def is_suspected(self) -> bool:
        """Whether the connection has missed a deadline and nothing has arrived since."""
        return self._seeks > 0

    def _deadline(self) -> float:
        assert self._waiting_since is not None
        return self._waiting_since + self._answer_deadline.patience_s(self._waiting_since)

    def _asks_at(self) -> float:
        """When a node that receives votes and sends none pings: once after each vote."""
        if self._vote_heard_at <= self.asked_at:
            return math.inf
        return max(self.heard_at, self._vote_heard_at) + self._parameters.quiet_s

    def detached(self, now: float) -> None:
        """Note that the conversation has no connection."""
        self._detached_at = now

    def attached(self, now: float) -> None:
        """Note that another connection carries the conversation from now on."""
        self._attached_at, self._detached_at = now, None
        self._answer_deadline = AnswerDeadline(self._limits.stall_s, self._parameters)
        self._forget_ping()

    def may_ask(self, now: float) -> bool:
        """Whether the last ping is old enough for an extra one."""
        return now - self.asked_at >= self._limits.probe_s / 2

    def tick(self, now: float, *, is_owed: bool, is_finding_path: bool) -> list[LivenessAction]:
        """Return the actions in order; an END action is the last one.

        ``is_owed``: whether sent data awaits an acknowledgement. ``is_finding_path``: whether another connection
        is already being opened.
        """
        limits = self._limits
        silent_s = now - self.heard_at
        if silent_s > limits.idle_timeout_s:
            return [LivenessAction.END_SILENT]
        if self._detached_at is not None:
            if now - self._detached_at > limits.resume_s:
                return [LivenessAction.END_LOST]
            return [] if is_finding_path else [LivenessAction.FIND_PATH]
        acts: list[LivenessAction] = []
        if now - self._rekeyed_at > limits.rekey_interval_s:
            self._rekeyed_at = now
            acts.append(LivenessAction.REKEY)
        asked_s = now - self.asked_at
        is_late = is_owed and silent_s > limits.probe_s
        # Where many began at once the first round trip is that of a busy moment, and much is decided by it.
        is_young = now - self._attached_at <= limits.ping_interval_s
        every_s = limits.probe_s if is_young else limits.ping_interval_s
        if asked_s > every_s or (is_late and asked_s > limits.probe_s) or now >= self._asks_at():
            acts.append(LivenessAction.PING)
        if self._must_seek(now, is_stalled=is_late and silent_s > limits.stall_s):
            self._sought_at = now
            self._seeks += 1
            if not is_finding_path:
                acts.append(LivenessAction.FIND_PATH)
        return acts

    def _must_seek(self, now: float, *, is_stalled: bool) -> bool:
        gap_s = 2 * self._limits.stall_s
        if self._is_urgent and self._waiting_since is not None:
            late_s = now - self._deadline()
            if late_s > self._parameters.own_stall_s and not (self._seeks or self._has_grace):
                self._has_grace = True  # what came in that time has perhaps not been read yet
                self._waiting_since += late_s + self._parameters.own_stall_s
                return False
            if late_s >= 0:
                again_s = self._parameters.again_s * 2 ** min(self._seeks - 1, 8)
                return not self._seeks or now - self._sought_at > min(again_s, gap_s)
        return is_stalled and now - self._sought_at > gap_s


class Pings:
    """The round trip of one connection, measured by pings with random tokens.

    A peer that could guess a token could pretend to be near, and the nearest peers are protected from eviction.
    """

    __slots__ = ("_asked", "rtt_s")

    def __init__(self) -> None:
        self._asked: dict[bytes, float] = {}
        self.rtt_s: float | None = None

    def ask(self, token: bytes, now: float) -> None:
        """Note a ping that is sent now; beyond the limit the oldest unanswered one is dropped."""
        self._asked[token] = now
        if len(self._asked) > PINGS_MAX:
            del self._asked[next(iter(self._asked))]

    def answered(self, token: bytes, now: float) -> float | None:
        """Process a pong and return its round trip; None if it answers no open ping.

        A shorter round trip counts at once, a longer one gradually, because load at either end causes the
        difference.
        """
        sent_at = self._asked.pop(token, None)
        if sent_at is None:
            return None
        rtt_s = now - sent_at
        before_s = self.rtt_s
        self.rtt_s = rtt_s if before_s is None or rtt_s < before_s else 0.75 * before_s + 0.25 * rtt_s
        return rtt_s
