"""Requests for votes to a signer in another process, one after the other, and its floor (trio)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from consensus import events as c
from consensus import replica as r
from consensus.guard import GuardRefused
from consensus.metrics import Metrics
from consensus.signer import Voter
from state.primitives.errors import DekubeError
from state.primitives.votes import KINDS

__all__ = ["STALE_VIEWS", "VoteRequests"]

STALE_VIEWS: Final = 8
"""A vote so far below the final view is not asked for any more, so that a slow signer can catch up; nearer ones
still show that the seat is alive."""


class VoteRequests:
    """Requests the votes of ``replica`` from one ``voter``, from ``run`` until ``end``.

    ``put`` takes what becomes of them into the replica's loop, in its order.
    """

    def __init__(
        self,
        voter: Voter,
        replica: r.Replica,
        *,
        put: Callable[[Callable[[], list[r.Action]]], None],
        now_ms: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        self.voter: Final = voter
        self._replica = replica
        self._put = put
        self._now_ms = now_ms
        self._metrics = metrics
        self._requests: deque[r.RequestVote] = deque()
        self._requested = trio.Event()
        self._floor: r.RaiseFloor | None = None
        self._raised = trio.Event()
        self._seated = trio.CancelScope()

    @property
    def waiting(self) -> int:
        """How many votes have not been asked for yet."""
        return len(self._requests)

    def request(self, request: r.RequestVote) -> None:
        """Ask for a vote, after those asked for before."""
        self._requests.append(request)
        self._requested.set()

    def raise_floor(self, floor: r.RaiseFloor) -> None:
        """Tell what is final."""
        self._floor = floor
        self._raised.set()

    def end(self) -> None:
        """Vote no more."""
        self._seated.cancel()

    async def run(self) -> None:
        """Vote until ``end``."""
        with self._seated:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_floor)
                await self._cast()

    async def prove(self, action: c.Build) -> bytes | None:
        """Return the VRF proof for a view; None when the signer is away: it would not sign the proposal either."""
        try:
            return await self.voter.prove(action.epoch, action.view, action.randomness)
        except DekubeError:
            return None

    async def _cast(self) -> None:
        """One vote after the other, in the order the core cast them."""
        guard_state = await self.voter.guard_state()
        self._put(lambda: self._replica.voter_ready(guard_state.votes, guard_state.floor, self._now_ms()))
        while True:
            while self._requests:
                await self._ask(self._requests.popleft())
            self._requested = trio.Event()
            await self._requested.wait()

    async def _tell_floor(self) -> None:
        """The newest alone: while catching up, blocks become final faster than they need be told."""
        while True:
            await self._raised.wait()
            self._raised = trio.Event()
            if self._floor is not None:
                with contextlib.suppress(DekubeError):  # it hears the next one
                    await self.voter.raise_floor(*self._floor)

    async def _ask(self, request: r.RequestVote) -> None:
        core = self._replica.core
        if request.candidate.epoch != core.epoch or request.candidate.view < core.root.view - STALE_VIEWS:
            self._metrics.count("votes_total", kind=KINDS[request.kind], result="stale")
            self._put(lambda: self._replica.vote_refused(request))
            return
        try:
            vote = await self.voter.vote(*request)
        except GuardRefused as error:
            self._metrics.count("guard_refusals_total", rule=error.rule)
            self._put(lambda: self._replica.vote_refused(request))
        except DekubeError:
            self._metrics.count("votes_total", kind=KINDS[request.kind], result="unanswered")
            self._put(lambda: self._replica.vote_refused(request, is_final=False))
        else:
            self._put(lambda: self._replica.voted(request, vote, self._now_ms()))
