"""Whether a peer is still there: when to ask it for a word, to look for another connection, to give it up.

Without I/O: ``p2p.session.peer`` says what it hears on the control connection, asks a few times a second what is
to be done, and does it. Whether a single bulk connection has died is ``p2p.session.stall_detection``.

While votes are exchanged a ping travels with them, and its answer has a deadline (``AnswerDeadline``). A missed
deadline is a *doubt*: another connection is dialled while this one stays. The conversation moves when the other
connection is there and this one is still silent; a packet that was only lost has been sent again by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from p2p.base.limits import NetworkLimits

__all__ = ["AnswerDeadline", "Liveness", "LivenessAction", "LivenessParameters", "Pings"]

PINGS_MAX: Final = 32
"""Of one connection, without an answer."""


@dataclass(frozen=True, slots=True)
class LivenessParameters:
    """How soon an unanswered ping makes a connection suspected; times in seconds."""

    ping_s: float = 0.1
    """Least time between two pings that travel with votes; and half a round trip."""
    quiet_s: float = 0.2
    """Silence after a vote of the peer's, after which an end that sends no votes itself asks."""
    active_s: float = 1.0
    """So long after the last vote, sent or heard, an unanswered ping is urgent."""
    budget_s: float = 0.65
    """The deadline of an answer is so much ..."""
    move_round_trips: float = 3.5
    """... less the round trips that another connection takes: votes stop for a second at most; ..."""
    round_trips: float = 1.5
    """... but at least so many round trips ..."""
    slack_s: float = 0.1
    """... and so much more."""
    far_rtt_s: float = 0.25
    """Above this round trip votes stop for over a second in any case, as a handshake takes that long. There ..."""
    far_round_trips: float = 8.0
    """... the deadline is so many round trips: before a handshake ends TCP repairs what was lost three times."""
    round_trips_max: float = 16.0
    """No deadline is longer than this, and than ``stall_s``."""
    late_factor: float = 1.25
    """At least so many times the latest answer that this connection has brought, ..."""
    late_half_life_s: float = 120.0
    """... which is forgotten by half in this time: a lossy line is soon known."""
    own_stall_s: float = 0.1
    """A look that comes so much too late tells that this process stood still: it waits as long once more."""
    again_s: float = 1.0
    """Until another path is tried again while the silence lasts, doubling up to twice ``stall_s``."""


class AnswerDeadline:
    """How long after a ping the silence of one connection says nothing."""

    __slots__ = ("_late_at", "_late_s", "_most_s", "_parameters", "rtt_s")

    def __init__(self, most_s: float, parameters: LivenessParameters | None = None) -> None:
        self._parameters = parameters or LivenessParameters()
        self._most_s = most_s
        self.rtt_s: float | None = None
        self._late_s = self._late_at = 0.0

    def answered(self, took_s: float, rtt_s: float, now: float) -> None:
        """Take how long an answer took, and the round trip as it is believed now."""
        self._late_s = max(self._late(now), took_s)
        self._late_at = now
        self.rtt_s = rtt_s

    def _late(self, now: float) -> float:
        return float(self._late_s * 0.5 ** ((now - self._late_at) / self._parameters.late_half_life_s))

    def patience_s(self, now: float) -> float:
        """Return how long after a ping its answer may take; before there was one, as long as possible."""
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
    """What is to be done now."""

    REKEY = auto()
    """Change the key of the control connection."""
    PING = auto()
    """Ask for a word; see ``Liveness.asked``."""
    FIND_PATH = auto()
    """Bring another connection if there is one."""
    END_SILENT = auto()
    """Give the peer up: it has said nothing for too long."""
    END_LOST = auto()
    """Give the peer up: it has had no connection for too long."""


class Liveness:
    """One peer under watch; times in seconds of any one clock. Call ``tick`` a few times a second."""

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
        """When the first ping left after which nothing was heard; None: all are answered."""
        self._is_urgent = False
        """Whether votes were about while that ping waited."""
        self._voted_at = self._vote_heard_at = -math.inf
        self._seeks = 0
        """How often another path was tried since something was heard."""
        self._has_grace = False
        """Whether the deadline was put off since something was heard, for this process stood still."""
        self.heard_at = now
        self.has_heard = False
        """Whether it has said anything since its first handshake."""
        self.asked_at = -math.inf
        self._attached_at = now
        self._detached_at: float | None = None
        self._rekeyed_at = self._sought_at = now

    def heard(self, now: float) -> None:
        """Note that a record of the peer's has come on the control connection."""
        self.heard_at, self.has_heard = now, True
        if self._waiting_since is not None or self._seeks:
            self._forget_ping()

    def _forget_ping(self) -> None:
        self._waiting_since, self._is_urgent, self._has_grace, self._seeks = None, False, False, 0

    def answered(self, took_s: float, rtt_s: float, now: float) -> None:
        """Note how long the answer to a ping took, and the round trip as it is believed now."""
        self._answer_deadline.answered(took_s, rtt_s, now)

    def voted(self, now: float) -> bool:
        """Note that a vote leaves; whether a ping should leave with it."""
        self._voted_at = now
        if self._waiting_since is not None:
            self._is_urgent = True
        return now - self.asked_at >= max(self._parameters.ping_s, (self._answer_deadline.rtt_s or 0.0) / 2)

    def heard_vote(self, now: float) -> None:
        """Note that the peer sends votes: it waits for nothing from us, and still must not lose its way to us."""
        self._vote_heard_at = now

    def asked(self, now: float) -> None:
        """Note that the peer was asked for a word."""
        self.asked_at = now
        if self._waiting_since is None:
            self._waiting_since = now
        self._is_urgent |= now - max(self._voted_at, self._vote_heard_at) <= self._parameters.active_s

    @property
    def due_at(self) -> float:
        """When ``tick`` should be called, if it is not before."""
        if self._detached_at is not None:
            return math.inf
        if self._waiting_since is not None:
            return self._deadline() if self._is_urgent and not self._seeks else math.inf
        return self._asks_at()

    @property
    def is_waiting(self) -> bool:
        """Whether a ping is not answered, and nothing was heard since it left."""
        return self._waiting_since is not None

    @property
    def is_suspected(self) -> bool:
        """Whether the connection has missed a deadline and has said nothing since."""
        return self._seeks > 0

    def _deadline(self) -> float:
        assert self._waiting_since is not None
        return self._waiting_since + self._answer_deadline.patience_s(self._waiting_since)

    def _asks_at(self) -> float:
        """When an end that hears votes and sends none asks for a word: once after each vote."""
        if self._vote_heard_at <= self.asked_at:
            return math.inf
        return max(self.heard_at, self._vote_heard_at) + self._parameters.quiet_s

    def detached(self, now: float) -> None:
        """Note that no connection carries the conversation now."""
        self._detached_at = now

    def attached(self, now: float) -> None:
        """Note that another one does from now on."""
        self._attached_at, self._detached_at = now, None
        self._answer_deadline = AnswerDeadline(self._limits.stall_s, self._parameters)
        self._forget_ping()

    def may_ask(self, now: float) -> bool:
        """Whether the last question is old enough for one out of turn."""
        return now - self.asked_at >= self._limits.probe_s / 2

    def tick(self, now: float, *, is_owed: bool, is_finding_path: bool) -> list[LivenessAction]:
        """Return what is to be done, in this order; after an end nothing more.

        ``is_owed``: whether something was sent that the peer must answer. ``is_finding_path``: whether another
        connection is being looked for already.
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
    """The round trip of one connection, by pings that nobody can answer who has not heard them.

    A peer that could make the token up would be as near as it likes, and the nearest have places of their own.
    """

    __slots__ = ("_asked", "rtt_s")

    def __init__(self) -> None:
        self._asked: dict[bytes, float] = {}
        self.rtt_s: float | None = None

    def ask(self, token: bytes, now: float) -> None:
        """Note a ping that leaves now; of too many without an answer the oldest is given up."""
        self._asked[token] = now
        if len(self._asked) > PINGS_MAX:
            del self._asked[next(iter(self._asked))]

    def answered(self, token: bytes, now: float) -> float | None:
        """Take a pong and return how long it took; one that answers no ping, or one that has been answered: None.

        A shorter round trip counts at once, a longer one by and by: what is added to a way comes of load, here or
        there.
        """
        sent_at = self._asked.pop(token, None)
        if sent_at is None:
            return None
        rtt_s = now - sent_at
        before_s = self.rtt_s
        self.rtt_s = rtt_s if before_s is None or rtt_s < before_s else 0.75 * before_s + 0.25 * rtt_s
        return rtt_s
