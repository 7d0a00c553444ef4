"""The work of the shell on the chain: building, checking, executing and committing blocks (trio).

Executions, commits and drops run one after the other in the order of the core's effects. Builds and checks run
beside them. Each answer returns to the replica as an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from consensus import events as c
from consensus import replica as r
from consensus.halts import STATE_DIVERGENCE, ConsensusHalted
from consensus.metrics import Metrics, ReplicaMetrics
from consensus.notarizations import Notarizations
from consensus.ports import BuildRequest, ChainPort
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from state.primitives.blocks import Header
from state.primitives.errors import InvalidBlock

__all__ = ["ChainWork"]

WAIT_STEP_MS: Final = 1_000
"""A leader or voter that waits for a block's time checks this often whether the view is still the same."""


class ChainWork:
    """The chain work of one replica. ``put`` passes answers to the replica's loop, in order.

    ``prove`` returns the VRF proof of a view, None if the signer is unreachable. ``on_block_time`` receives a
    leader's address and how far its block's time is ahead of this clock, unless the parent's time raised it.
    """

    def __init__(
        self,
        chain: ChainPort,
        replica: r.Replica,
        *,
        put: Callable[[Callable[[], list[r.Action]]], None],
        prove: Callable[[c.Build], Awaitable[bytes | None]],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        block_interval_ms: int,
        metrics: Metrics,
        replica_metrics: ReplicaMetrics,
        on_block_time: Callable[[bytes, int], None] | None,
    ) -> None:
        self._chain = chain
        self._replica = replica
        self._put = put
        self._prove = prove
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._block_interval_ms = block_interval_ms
        self._metrics = metrics
        self._replica_metrics = replica_metrics
        self._on_block_time = on_block_time
        self._queue: deque[c.Execute | c.Commit | c.DropBlocks] = deque()
        self._wake = trio.Event()
        self._notarizations = Notarizations()

    def restore(self, certificates: tuple[Certificate, ...]) -> None:
        """Load the certificates of the last run."""
        self._notarizations = Notarizations(certificates)

    def keep(self, certificate: Certificate) -> None:
        """Keep a certificate that the core keeps."""
        self._notarizations.add(certificate)

    def request(self, effect: c.Execute | c.Commit | c.DropBlocks) -> None:
        """Run something after everything requested before."""
        self._queue.append(effect)
        self._wake.set()

    async def build(self, action: c.Build) -> None:
        """Build a block when its time has come: a leader waits for the block interval, because voters would wait
        too.
        """
        replica = self._replica
        proof = await self._prove(action)
        parent_ms, interval_ms = self._chain.time_ms(action.parent_hash), self._block_interval_ms
        core = replica.core
        is_first = core.root.height == 0 and action.parent_hash == core.root.block_hash
        wait_ms = parent_ms + interval_ms - self._wall_ms()
        if not is_first:  # for a genesis that lies ahead everybody waits, also a validator that is alone
            # No longer than the interval: a parent from a clock that is ahead must not cost this leader its view.
            wait_ms = min(wait_ms, interval_ms)
        while wait_ms > 0 and (replica.core.epoch, replica.core.view) == (action.epoch, action.view):
            await trio.sleep(min(wait_ms, WAIT_STEP_MS) / 1000)
            wait_ms -= WAIT_STEP_MS
        begun_s = trio.current_time()
        core = replica.core
        request = BuildRequest(
            action.parent_hash,
            action.epoch,
            action.view,
            action.seat,
            max(parent_ms + 1, self._wall_ms()),
            action.voters_bitmap,
            core.committee.hash,
            proof or b"",
        )
        is_current = (core.epoch, core.view) == (action.epoch, action.view)
        try:
            block = await self._chain.build(request) if is_current and proof is not None else None
        except InvalidBlock:
            block = None  # the parent's branch was dropped meanwhile
        self._metrics.observe("proposal_build_seconds", trio.current_time() - begun_s)
        self._put(lambda: replica.built(action, block, self._now_ms()))

    async def check(self, block_hash: bytes) -> None:
        """Check a proposed block, once this node's clock allows its time."""
        block = self._replica.block(block_hash)
        is_valid = block is not None
        if block is not None:
            header, core = block.header, self._replica.core
            ahead_ms = header.time_ms - self._wall_ms()
            raised_ms = self._chain.time_ms(header.parent_hash) + self._block_interval_ms
            if self._on_block_time is not None and header.epoch == core.epoch and header.time_ms > raised_ms:
                self._on_block_time(core.committee.seats[header.proposer_seat].address, ahead_ms)
            if self._early_ms(header) > 0:
                self._put(lambda: self._replica.step(c.BlockEarly(block_hash), self._now_ms()))
                await self._wait_allowed(header)
            try:
                await self._chain.check(block)
            except InvalidBlock:
                is_valid = False
        self._put(lambda: self._replica.step(c.BlockChecked(block_hash, is_valid), self._now_ms()))

    def _early_ms(self, header: Header) -> int:
        """Return in how many milliseconds this node's clock allows the time of a block; 0 or less: now."""
        return header.time_ms - self._wall_ms() - self._chain.time_ahead_ms_max()

    async def _wait_allowed(self, header: Header) -> None:
        """Wait until the clock allows a block's time, or its view ends: then it gets no more votes."""
        while (early_ms := self._early_ms(header)) > 0:
            core = self._replica.core
            if (core.epoch, core.view) > (header.epoch, header.view):
                return
            await trio.sleep(min(early_ms, WAIT_STEP_MS) / 1000)

    async def run(self) -> None:
        """Execute, commit and drop blocks one after the other, in the order of the core's effects."""
        while True:
            while self._queue:
                action = self._queue.popleft()
                match action:
                    case c.Execute(block_hash):
                        await self._execute(block_hash)
                    case c.Commit(certificate, block_hashes, height, nullified):
                        views = (*nullified, *self._notarizations.take(action))
                        await self._chain.commit(block_hashes[-1], encode_certificate(certificate), views)
                        self._metrics.set("finalized_height", height)
                        self._replica_metrics.tell_lag(trio.current_time())
                        self._put(partial(self._replica.committed, block_hashes))
                    case c.DropBlocks(block_hashes):
                        await self._chain.drop(block_hashes)
                    case _:
                        raise AssertionError(action)
            self._wake = trio.Event()
            await self._wake.wait()

    async def _execute(self, block_hash: bytes) -> None:
        replica = self._replica
        block = replica.block(block_hash)
        if block is None:
            return
        begun_s = trio.current_time()
        try:
            state_root, receipt_root = await self._chain.execute(block_hash, block)
        except InvalidBlock as error:
            if replica.core.is_held(block_hash):
                message = f"block {block.header.height} has a quorum's votes and cannot be executed here: {error}"
                self._metrics.set("state_divergence", 1)
                raise ConsensusHalted(STATE_DIVERGENCE, message) from error
            return  # its branch was dropped meanwhile
        self._metrics.observe("block_execute_seconds", trio.current_time() - begun_s)
        event = c.BlockExecuted(block_hash, state_root, receipt_root)
        self._put(lambda: replica.step(event, self._now_ms()))
