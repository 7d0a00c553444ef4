"""Whether a peer is still there: when to ask it for a word, to look for another connection, to give it up.

Without I/O: ``p2p.peer`` says what it hears on the control connection, asks a few times a second what is to be
done, and does it. Whether a single lane of bulk has died is ``p2p.stalls``.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

from p2p.limits import NetworkLimits

__all__ = ["Act", "Pings", "Vigil"]

PINGS_MAX: Final = 8
"""Of one connection, without an answer."""


class Act(Enum):
    """What is to be done now."""

    REKEY = auto()
    """Change the key of the control connection."""
    PING = auto()
    """Ask for a word; see ``Vigil.asked``."""
    FIND_WAY = auto()
    """Bring another connection if there is one."""
    END_SILENT = auto()
    """Give the peer up: it has said nothing for too long."""
    END_LOST = auto()
    """Give the peer up: it has had no connection for too long."""


class Vigil:
    """One peer under watch; times in seconds of any one clock. Call ``tick`` a few times a second."""

    __slots__ = (
        "_attached_at",
        "_detached_at",
        "_limits",
        "_rekeyed_at",
        "_sought_at",
        "asked_at",
        "has_heard",
        "heard_at",
    )

    def __init__(self, now: float, limits: NetworkLimits) -> None:
        self._limits = limits
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

    def asked(self, now: float) -> None:
        """Note that the peer was asked for a word."""
        self.asked_at = now

    def detached(self, now: float) -> None:
        """Note that no connection carries the conversation now."""
        self._detached_at = now

    def attached(self, now: float) -> None:
        """Note that another one does from now on."""
        self._attached_at, self._detached_at = now, None

    def is_stalled(self, now: float) -> bool:
        """Whether nothing has been heard for longer than a connection that works needs."""
        return now - self.heard_at > self._limits.stall_s

    def may_ask(self, now: float) -> bool:
        """Whether the last question is old enough for one out of turn."""
        return now - self.asked_at >= self._limits.probe_s / 2

    def tick(self, now: float, *, is_owed: bool, is_finding_way: bool) -> list[Act]:
        """Return what is to be done, in this order; after an end nothing more.

        ``is_owed``: whether something was sent that the peer must answer. ``is_finding_way``: whether another
        connection is being looked for already.
        """
        limits = self._limits
        silent_s = now - self.heard_at
        if silent_s > limits.idle_timeout_s:
            return [Act.END_SILENT]
        if self._detached_at is not None:
            if now - self._detached_at > limits.resume_s:
                return [Act.END_LOST]
            return [] if is_finding_way else [Act.FIND_WAY]
        acts: list[Act] = []
        if now - self._rekeyed_at > limits.rekey_interval_s:
            self._rekeyed_at = now
            acts.append(Act.REKEY)
        asked_s = now - self.asked_at
        is_late = is_owed and silent_s > limits.probe_s
        # Where many began at once the first round trip is that of a busy moment, and much is decided by it.
        is_young = now - self._attached_at <= limits.ping_interval_s
        every_s = limits.probe_s if is_young else limits.ping_interval_s
        if asked_s > every_s or (is_late and asked_s > limits.probe_s):
            acts.append(Act.PING)
        if is_late and silent_s > limits.stall_s and now - self._sought_at > 2 * limits.stall_s:
            self._sought_at = now
            acts.append(Act.FIND_WAY)
        return acts


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

    def answered(self, token: bytes, now: float) -> None:
        """Take a pong; one that answers no ping, or one that has been answered, tells nothing.

        A shorter round trip counts at once, a longer one by and by: what is added to a way comes of load, here or
        there.
        """
        sent_at = self._asked.pop(token, None)
        if sent_at is None:
            return
        rtt_s = now - sent_at
        before_s = self.rtt_s
        self.rtt_s = rtt_s if before_s is None or rtt_s < before_s else 0.75 * before_s + 0.25 * rtt_s
