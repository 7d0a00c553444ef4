"""One control connection under its liveness in virtual time: votes and pings over a line that delays, loses and
dies.

The line is TCP as its user sees it: in order; a lost segment is sent again after a time-out that doubles, or soon
after a later segment was acknowledged (RACK); once, after two round trips in which nothing came (tail loss probe).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from typing import Final

from p2p.base.limits import NetworkLimits
from p2p.session.liveness import Liveness, LivenessAction, Pings

TICK_S: Final = NetworkLimits().probe_s / 2
HANDSHAKE_ROUND_TRIPS: Final = 3
"""TCP, the handshake, the hello and its answer."""
_RTO_S_MIN: Final = 0.2


class _Direction:
    """Segments one way: each arrives after those before it."""

    def __init__(self, random: Random, *, rtt_s: float, jitter_s: float, loss: float) -> None:
        self._random = random
        self._rtt_s, self._jitter_s, self._loss = rtt_s, jitter_s, loss
        self._last = 0.0

    def arrives(self, now: float, *, gap_s: float) -> float:
        """Return when a segment that leaves now arrives; another one follows it after ``gap_s``."""
        at, again_s, probe_s = now, self._rtt_s + _RTO_S_MIN, 2 * self._rtt_s
        while self._random.random() < self._loss:
            at += min(again_s, 1.25 * self._rtt_s + gap_s, probe_s)
            again_s, probe_s = 2 * again_s, inf
        at += self._rtt_s / 2 + self._random.uniform(0, self._jitter_s)
        self._last = max(self._last, at)
        return self._last


class SilentWorld:
    """One end that votes, or only hears votes, and has another path of the same kind to its peer."""

    def __init__(
        self,
        *,
        seed: int,
        rtt_s: float,
        jitter_s: float = 0.0,
        loss: float = 0.0,
        votes_every_s: float = 0.02,
        is_listener: bool = False,
        dies_at: float = inf,
        stands_still: Callable[[float], float] = lambda _now: 0.0,
    ) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.moves: list[float] = []
        """When another connection took over, votes flow again half a round trip later."""
        self.tries: list[float] = []
        self.refuted = 0
        """Tries after which the first connection had spoken."""
        self._rtt_s, self._loss, self._jitter_s = rtt_s, loss, jitter_s
        self._every_s, self._is_listener = votes_every_s, is_listener
        self._dies_at = dies_at
        self._stands_still = stands_still
        self._out = _Direction(self.random, rtt_s=rtt_s, jitter_s=jitter_s, loss=loss)
        self._back = _Direction(self.random, rtt_s=rtt_s, jitter_s=jitter_s, loss=loss)
        self._liveness = Liveness(0.0, NetworkLimits())
        self._pings = Pings()
        self._number = 0
        self._is_finding = False
        self._events: list[tuple[float, int, str, bytes]] = []
        self._order = count()

    def run(self, until: float) -> SilentWorld:
        """Let time pass; a move ends it."""
        self._ping()
        self._at(self.random.uniform(0, self._every_s), "vote")
        looks_at = TICK_S
        while self.now < until and not self.moves:
            due_at = min(looks_at, max(self._liveness.due_at, self.now))
            if self._events and self._events[0][0] <= due_at:
                at, _, what, token = heapq.heappop(self._events)
                self.now = max(self.now, at)
                self._happen(what, token)
                continue
            self.now = due_at + self._stands_still(due_at)
            looks_at = self.now + TICK_S
            self._look()
        return self

    def _at(self, when: float, what: str, token: bytes = b"") -> None:
        heapq.heappush(self._events, (when, next(self._order), what, token))

    def _look(self) -> None:
        for act in self._liveness.tick(self.now, is_owed=not self._is_listener, is_finding_path=self._is_finding):
            if act is LivenessAction.PING:
                self._ping()
            elif act is LivenessAction.FIND_PATH:
                self.tries.append(self.now)
                self._is_finding = True
                at = self.now
                for _ in range(HANDSHAKE_ROUND_TRIPS):
                    for _ in range(2):
                        line = _Direction(self.random, rtt_s=self._rtt_s, jitter_s=self._jitter_s, loss=self._loss)
                        at = line.arrives(at, gap_s=inf)
                self._at(at, "found")

    def _ping(self) -> None:
        self._number += 1
        token = self._number.to_bytes(8, "big")
        self._pings.ask(token, self.now)
        self._liveness.asked(self.now)
        arrives = self._out.arrives(self.now, gap_s=inf if self._is_listener else self._every_s)
        if self.now < self._dies_at and arrives < self._dies_at:
            self._at(arrives, "asked", token)

    def _happen(self, what: str, token: bytes) -> None:
        match what:
            case "vote" if self._is_listener:  # the peer's, once it has come
                arrives = self._back.arrives(self.now, gap_s=self._every_s)
                if arrives < self._dies_at:
                    self._at(arrives, "heard vote")
                self._at(self.now + self._every_s, "vote")
            case "vote":
                if self._liveness.voted(self.now):
                    self._ping()
                self._at(self.now + self._every_s, "vote")
            case "heard vote":
                self._liveness.heard(self.now)
                self._liveness.heard_vote(self.now)
            case "asked":
                arrives = self._back.arrives(self.now, gap_s=max(self._every_s, 0.1))  # as often as pings come
                if arrives < self._dies_at:
                    self._at(arrives, "answer", token)
            case "answer":
                self._liveness.heard(self.now)
                took_s = self._pings.answered(token, self.now)
                if took_s is not None and self._pings.rtt_s is not None:
                    self._liveness.answered(took_s, self._pings.rtt_s, self.now)
            case "found":
                self._is_finding = False
                if self._liveness.is_suspected:
                    self.moves.append(self.now)
                else:
                    self.refuted += 1
            case _:
                raise AssertionError(what)
