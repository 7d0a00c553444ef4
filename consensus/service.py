"""The consensus of a running node: the replica's actions on real disks, clocks and peers (trio).

Everything is injected: the chain, the network, the vote key, the clock of the wall. What the replica says is done
in its order; while a log is synced nothing of the same step leaves, and no further event is taken in. Work on the
chain goes on beside and comes back as an event.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from consensus import core as c
from consensus import replica as r
from consensus.core import ConsensusParameters, Root
from consensus.guard import Guard
from consensus.guard_log import FileLog, VoteDirectory
from consensus.votes import Certificate, Check, Signer, verify_checks
from consensus.wire import (
    BLOCKS_MAX,
    WINDOW_BYTES_MAX,
    BlockReply,
    BlocksReply,
    decode_certificate,
    encode_certificate,
    encode_message,
)
from state.primitives.blocks import Block
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, DekubeError, InvalidBlock
from state.primitives.votes import FINALIZE, KINDS, NULLIFY

__all__ = [
    "METRICS",
    "BuildRequest",
    "ChainPort",
    "ConsensusHalted",
    "ConsensusService",
    "ConsensusStatus",
    "Metrics",
    "NetworkPort",
    "NoMetrics",
]

INBOX_MESSAGES_MAX: Final = 4_096
INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
SENDER_MESSAGES_MAX: Final = 512
"""Of the inbox, what one sender may fill."""
INLINE_BYTES_MAX: Final = 16 * 1024
"""Larger messages are decoded in a worker thread."""
INLINE_CHECKS_MAX: Final = 8
"""More signatures than this are verified in a worker thread."""
THREADS_MAX: Final = 2
SERVES_MAX: Final = 8
"""Requests for stored blocks answered at once; more are dropped, the asker tries another peer."""
SERVES_OF_ONE_MAX: Final = 2
"""Of these, one asker's: it could keep all others from catching up, at a few bytes a question."""
EARLY_MS_MAX: Final = 2_000
HELD_MS_MAX: Final = 60_000

METRICS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "epoch": ("gauge", ()),
    "view": ("gauge", ()),
    "finalized_height": ("gauge", ()),
    "finalized_view_lag": ("gauge", ()),
    "backoff_exponent": ("gauge", ()),
    "notarization_latency_seconds": ("histogram", ()),
    "finalization_latency_seconds": ("histogram", ()),
    "proposal_build_seconds": ("histogram", ()),
    "block_execute_seconds": ("histogram", ()),
    "vote_guard_fsync_seconds": ("histogram", ()),
    "view_timeouts_total": ("counter", ("reason",)),
    "nullifications_total": ("counter", ("leader",)),
    "votes_total": ("counter", ("kind", "result")),
    "seat_last_vote_view": ("gauge", ("seat",)),
    "equivocations_total": ("counter", ("type",)),
    "guard_refusals_total": ("counter", ("rule",)),
    "certificates_total": ("counter", ("kind", "source")),
    "retransmits_total": ("counter", ()),
    "blocksync_lag_blocks": ("gauge", ()),
    "messages_dropped_total": ("counter", ("reason",)),
    "state_divergence": ("gauge", ()),
}
"""Every metric set here, without its prefix ``sdbft_``: its type and its labels."""


class ConsensusHalted(DekubeError):
    """The replica stopped for good; the message says why, and what an operator has to look at."""

    code = "consensus_halted"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class BuildRequest(NamedTuple):
    """What a leader's block must carry beside its transactions. ``time_ms`` is the earliest time it may have."""

    parent_hash: bytes
    epoch: int
    view: int
    seat: int
    time_ms: int
    voters_bitmap: bytes
    committee_hash: bytes


class ChainPort(Protocol):
    """The chain, as consensus needs it. Long work belongs in worker threads; one call of a kind runs at a time."""

    async def build(self, request: BuildRequest) -> Block | None:
        """Return a block on an executed parent, or None when none can be built."""
        ...

    async def check(self, block: Block) -> None:
        """Check a block on an executed parent without executing it. Raises InvalidBlock."""
        ...

    async def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes]:
        """Execute a block on an executed parent; return the roots of state and receipts after it."""
        ...

    async def commit(self, block_hash: bytes, certificate: bytes) -> None:
        """Make an executed block and its executed ancestors final and durable."""
        ...

    def drop(self, block_hashes: tuple[bytes, ...]) -> None:
        """Forget blocks that can no longer become final."""
        ...

    async def block(self, block_hash: bytes) -> bytes | None:
        """Return a final block by its hash."""
        ...

    async def blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        """Return final blocks of consecutive heights: hash, bytes, and the certificate stored with each."""
        ...

    def time_ms(self, block_hash: bytes) -> int:
        """Return the time of an executed block or the tip; 0 for one that is not known."""
        ...


class NetworkPort(Protocol):
    """The peers. Neither call waits for delivery; a message that cannot be sent is lost."""

    async def send(self, address: bytes, data: bytes, is_bulk: bool) -> None:
        """Send to one address."""
        ...

    async def broadcast(self, data: bytes, is_bulk: bool) -> None:
        """Send to every other seat, and to the nodes that follow."""
        ...

    def blame(self, address: bytes, reason: str) -> None:
        """Tell that an address sent what only a faulty node sends."""
        ...


class Metrics(Protocol):
    """Where the figures of METRICS go."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram, in seconds."""
        ...


class NoMetrics:
    """Takes figures and forgets them."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Forget."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Forget."""

    def observe(self, name: str, value: float) -> None:
        """Forget."""


class ConsensusStatus(NamedTuple):
    """Where this replica stands."""

    epoch: int
    view: int
    height: int
    highest_height: int
    """The highest final block known, held or not executed yet."""
    leader: int
    seat: int | None


class ConsensusService:
    """Runs one replica. ``run`` lives until it is cancelled, or ends with ConsensusHalted or a StoreError.

    ``directory`` holds guard and journal; without it, or without ``signer``, the node follows and never votes.
    ``receive`` and ``mempool_changed`` may be called from any task of the same trio run.
    """

    def __init__(
        self,
        *,
        committee: Committee,
        genesis_hash: bytes,
        epoch: int,
        root: Root,
        certificates: tuple[Certificate, ...] = (),
        parameters: ConsensusParameters,
        chain: ChainPort,
        network: NetworkPort,
        wall_ms: Callable[[], int],
        signer: Signer | None = None,
        directory: VoteDirectory | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        guard: Guard | None = None
        self._logs: dict[str, FileLog] = {}
        if directory is not None and signer is not None:
            guard = directory.load_guard(genesis_hash, signer.vote_key)
            self._logs = {r.GUARD: directory.guard, r.JOURNAL: directory.journal}
        self._committee = committee
        self._parameters = parameters
        self._chain = chain
        self._network = network
        self._wall_ms = wall_ms
        self._metrics: Metrics = metrics if metrics is not None else NoMetrics()
        self._replica = r.Replica(
            committee=committee,
            genesis_hash=genesis_hash,
            epoch=epoch,
            root=root,
            parameters=parameters,
            signer=signer,
            guard=guard,
            journal=directory.journal.read() if guard is not None and directory is not None else b"",
            certificates=certificates,
        )
        self._messages: deque[tuple[bytes, bytes]] = deque()
        self._message_bytes = 0
        self._by_sender: dict[bytes, int] = {}
        self._events: deque[Callable[[], list[r.Action]]] = deque()
        self._work: deque[c.Execute | c.Commit] = deque()
        self._wake = trio.Event()
        self._work_wake = trio.Event()
        self._timers: dict[str, float] = {}
        self._threads = trio.CapacityLimiter(THREADS_MAX)
        self._serving: Counter[bytes] = Counter()
        self._entered_s: dict[int, float] = {}

    # The node's side.

    def receive(self, sender: bytes, data: bytes) -> None:
        """Take a peer's message; when the inbox is full it is dropped and counted."""
        held = self._by_sender.get(sender, 0)
        if (
            len(self._messages) >= INBOX_MESSAGES_MAX
            or held >= SENDER_MESSAGES_MAX
            or self._message_bytes + len(data) > INBOX_BYTES_MAX
        ):
            self._metrics.count("messages_dropped_total", reason="full")
            return
        self._by_sender[sender] = held + 1
        self._message_bytes += len(data)
        self._messages.append((sender, data))
        self._wake.set()

    def mempool_changed(self, has_transactions: bool) -> None:
        """Tell whether transactions wait; a leader with none delays its empty block."""
        self._put(lambda: self._replica.step(c.MempoolChanged(has_transactions), self._now_ms()))

    def status(self) -> ConsensusStatus:
        """Return where the replica stands."""
        core = self._replica.core
        return ConsensusStatus(
            core.epoch,
            core.view,
            core.root.height,
            core.known_height,
            self._committee.leader(max(1, core.view)),
            self._replica.seat,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the replica. Raises ConsensusHalted, StoreError, and whatever the ports raise."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._work_on_chain)
            self._metrics.set("epoch", self._replica.core.epoch)
            self._metrics.set("state_divergence", 0)
            await self._perform(self._replica.start(self._now_ms()))
            task_status.started()
            await self._loop()

    # The loop.

    def _now_ms(self) -> int:
        return int(trio.current_time() * 1000)

    def _put(self, event: Callable[[], list[r.Action]]) -> None:
        self._events.append(event)
        self._wake.set()

    async def _loop(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if self._events:
                await self._perform(self._events.popleft()())
                continue
            name = self._expired_timer()
            if name is not None:
                await self._perform(self._replica.step(c.TimerFired(name), self._now_ms()))
                continue
            if self._messages:
                sender, data = self._messages.popleft()
                await self._on_message(sender, data)
                continue
            self._wake = trio.Event()
            with trio.move_on_at(min(self._timers.values(), default=float("inf"))):
                await self._wake.wait()

    def _expired_timer(self) -> str | None:
        now_s = trio.current_time()
        for name, at_s in self._timers.items():
            if at_s <= now_s:
                del self._timers[name]
                return name
        return None

    # Messages.

    def _done_with(self, sender: bytes, data: bytes) -> None:
        self._message_bytes -= len(data)
        left = self._by_sender[sender] - 1
        if left:
            self._by_sender[sender] = left
        else:
            del self._by_sender[sender]

    async def _on_message(self, sender: bytes, data: bytes) -> None:
        if len(data) > INLINE_BYTES_MAX:
            self._nursery.start_soon(self._decode_beside, sender, data)
            return
        try:
            decoded = r.decode_inbound(data)
        except DecodeError as error:
            self._blame(sender, error)
            return
        finally:
            self._done_with(sender, data)
        await self._on_decoded(sender, decoded)

    async def _decode_beside(self, sender: bytes, data: bytes) -> None:
        try:
            decoded = await trio.to_thread.run_sync(r.decode_inbound, data, limiter=self._threads)
        except DecodeError as error:
            self._blame(sender, error)
            return
        finally:
            self._done_with(sender, data)
        inbound = self._receive(sender, decoded)
        if inbound is not None:
            await self._verify_beside(inbound)

    async def _on_decoded(self, sender: bytes, decoded: r.Decoded) -> None:
        inbound = self._receive(sender, decoded)
        if inbound is None:
            return
        if len(inbound.checks) > INLINE_CHECKS_MAX:
            self._nursery.start_soon(self._verify_beside, inbound)
        elif verify_checks(inbound.checks):
            await self._admit(inbound)
        else:
            self._blame_signature(inbound)

    def _receive(self, sender: bytes, decoded: r.Decoded) -> r.Inbound | None:
        try:
            return self._replica.receive(sender, decoded)
        except DecodeError as error:
            self._blame(sender, error)
            return None

    async def _verify_beside(self, inbound: r.Inbound) -> None:
        checks: tuple[Check, ...] = inbound.checks
        if not await trio.to_thread.run_sync(verify_checks, checks, limiter=self._threads):
            self._blame_signature(inbound)
            return
        self._put(lambda: self._admitted(inbound))

    async def _admit(self, inbound: r.Inbound) -> None:
        await self._perform(self._admitted(inbound))

    def _admitted(self, inbound: r.Inbound) -> list[r.Action]:
        for event in inbound.events:
            if isinstance(event, c.VoteReceived):
                vote = event.vote
                self._metrics.count("votes_total", kind=KINDS[vote.kind], result="counted")
                self._metrics.set("seat_last_vote_view", vote.view, seat=str(vote.seat))
        return self._replica.admit(inbound, self._now_ms())

    def _blame(self, sender: bytes, error: DecodeError) -> None:
        self._metrics.count("messages_dropped_total", reason=error.code)
        self._network.blame(sender, str(error))

    def _blame_signature(self, inbound: r.Inbound) -> None:
        self._metrics.count("messages_dropped_total", reason="signature")
        self._network.blame(inbound.sender, "a signature that does not verify")

    # Actions.

    async def _perform(self, actions: list[r.Action]) -> None:
        for action in actions:
            match action:
                case r.Append(log, data):
                    if log in self._logs:
                        self._logs[log].append(data)
                case r.Sync(log):
                    if log in self._logs:
                        begun_s = trio.current_time()
                        await trio.to_thread.run_sync(self._logs[log].sync)
                        if log == r.GUARD:
                            self._metrics.observe("vote_guard_fsync_seconds", trio.current_time() - begun_s)
                case r.Replace(log, data):
                    if log in self._logs:
                        await trio.to_thread.run_sync(self._logs[log].replace, data)
                case r.Broadcast(data, is_bulk):
                    await self._network.broadcast(data, is_bulk)
                case r.Send(address, data, is_bulk):
                    await self._network.send(address, data, is_bulk)
                case c.SetTimer(name, delay_ms):
                    self._timers[name] = trio.current_time() + delay_ms / 1000
                case c.Build():
                    self._nursery.start_soon(self._build, action)
                case c.Check(block_hash):
                    self._nursery.start_soon(self._check, block_hash)
                case c.Execute() | c.Commit():
                    self._work.append(action)
                    self._work_wake.set()
                case c.DropBlocks(block_hashes):
                    self._chain.drop(block_hashes)
                case r.ServeBlock(address, block_hash):
                    self._serve(address, partial(self._serve_block, address, block_hash))
                case r.ServeBlocks(address, from_height, count_max):
                    self._serve(address, partial(self._serve_blocks, address, from_height, count_max))
                case c.Halt(code, message):
                    if code == "state_divergence":
                        self._metrics.set("state_divergence", 1)
                    raise ConsensusHalted(code, message)
                case _:
                    self._note(action)

    def _note(self, action: r.Action) -> None:
        metrics, core = self._metrics, self._replica.core
        match action:
            case c.EnterView(view, _, backoff_exponent):
                final = core.final_certificate
                metrics.set("view", view)
                metrics.set("backoff_exponent", backoff_exponent)
                metrics.set("finalized_view_lag", view - 1 - (final.view if final is not None else 0))
                self._entered_s[view] = trio.current_time()
                for old in [known for known in self._entered_s if known < view - c.EVIDENCE_VIEWS]:
                    del self._entered_s[old]
            case c.CastVote(kind, _, reason):
                metrics.count("votes_total", kind=KINDS[kind], result="cast")
                if kind == NULLIFY:
                    metrics.count("view_timeouts_total", reason=reason)
            case c.KeepCertificate(certificate, is_formed):
                metrics.count(
                    "certificates_total",
                    kind=KINDS[certificate.kind],
                    source="formed" if is_formed else "received",
                )
                entered_s = self._entered_s.get(certificate.view)
                if certificate.kind == NULLIFY:
                    metrics.count("nullifications_total", leader=str(self._committee.leader(certificate.view)))
                elif entered_s is not None:
                    name = "finalization" if certificate.kind == FINALIZE else "notarization"
                    metrics.observe(f"{name}_latency_seconds", trio.current_time() - entered_s)
                metrics.set("blocksync_lag_blocks", core.known_height - core.root.height)
            case c.FoundEquivocation(equivocation):
                metrics.count("equivocations_total", type=equivocation.type)
            case r.Refused(rule):
                metrics.count("guard_refusals_total", rule=rule)
            case c.Resend():
                metrics.count("retransmits_total")
            case _:
                pass

    # Work on the chain.

    async def _build(self, action: c.Build) -> None:
        """Build when the block's time has come: a leader waits for the interval, voters would hold it anyway."""
        replica, core = self._replica, self._replica.core
        seat = replica.seat
        assert seat is not None, "only a seat is asked to build"
        parent_ms, interval_ms = self._chain.time_ms(action.parent_hash), self._parameters.block_interval_ms
        # No longer than the interval: a parent from a clock that is ahead must not cost this leader its view.
        wait_ms = min(parent_ms + interval_ms - self._wall_ms(), interval_ms)
        if wait_ms > 0:
            await trio.sleep(wait_ms / 1000)
        begun_s = trio.current_time()
        request = BuildRequest(
            action.parent_hash,
            core.epoch,
            action.view,
            seat,
            max(parent_ms + 1, self._wall_ms()),
            action.justify.bitmap if action.justify is not None else b"",
            self._committee.hash,
        )
        try:
            block = await self._chain.build(request) if core.view == action.view else None
        except InvalidBlock:
            block = None  # the parent's branch was dropped meanwhile
        self._metrics.observe("proposal_build_seconds", trio.current_time() - begun_s)
        self._put(lambda: replica.built(action.view, block, self._now_ms()))

    async def _check(self, block_hash: bytes) -> None:
        block = self._replica.block(block_hash)
        is_valid = block is not None
        if block is not None:
            early_ms = block.header.time_ms - EARLY_MS_MAX - self._wall_ms()
            if early_ms > 0:
                await trio.sleep(min(early_ms, HELD_MS_MAX) / 1000)
            try:
                await self._chain.check(block)
            except InvalidBlock:
                is_valid = False
        self._put(lambda: self._replica.step(c.BlockChecked(block_hash, is_valid), self._now_ms()))

    async def _work_on_chain(self) -> None:
        """Executions and commits, one after the other in the order the core asked for them."""
        while True:
            while self._work:
                action = self._work.popleft()
                match action:
                    case c.Execute(block_hash):
                        await self._execute(block_hash)
                    case c.Commit(certificate, block_hashes, height):
                        await self._chain.commit(block_hashes[-1], encode_certificate(certificate))
                        self._metrics.set("finalized_height", height)
                        self._put(partial(self._replica.committed, block_hashes))
                    case _:
                        raise AssertionError(action)
            self._work_wake = trio.Event()
            await self._work_wake.wait()

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
                raise ConsensusHalted("state_divergence", message) from error
            return  # its branch was dropped meanwhile
        self._metrics.observe("block_execute_seconds", trio.current_time() - begun_s)
        event = c.BlockExecuted(block_hash, state_root, receipt_root)
        self._put(lambda: replica.step(event, self._now_ms()))

    # Serving others.

    def _serve(self, address: bytes, serve: Callable[[], Awaitable[None]]) -> None:
        if self._serving.total() >= SERVES_MAX or self._serving[address] >= SERVES_OF_ONE_MAX:
            self._metrics.count("messages_dropped_total", reason="serving")
            return
        self._serving[address] += 1
        self._nursery.start_soon(self._serve_one, address, serve)

    async def _serve_one(self, address: bytes, serve: Callable[[], Awaitable[None]]) -> None:
        try:
            await serve()
        finally:
            self._serving[address] -= 1
            if not self._serving[address]:
                del self._serving[address]

    async def _serve_block(self, address: bytes, block_hash: bytes) -> None:
        raw = await self._chain.block(block_hash)
        if raw is not None:
            await self._network.send(address, encode_message(BlockReply(raw)), True)

    async def _serve_blocks(self, address: bytes, from_height: int, count_max: int) -> None:
        """A window ends at the last block that has a certificate of its own and keeps it within the limit."""
        size, raws, end, proof = 0, list[bytes](), 0, None
        for block_hash, raw, certificate in await self._chain.blocks(from_height, min(count_max, BLOCKS_MAX)):
            size += len(raw)
            if raws and size > WINDOW_BYTES_MAX and end:
                break
            if size > 2 * WINDOW_BYTES_MAX and raws:
                break
            raws.append(raw)
            known = decode_certificate(certificate) if certificate else None
            if known is not None and known.block_hash == block_hash:
                end, proof = len(raws), known
        if proof is not None:
            message = BlocksReply(from_height, proof, tuple(raws[:end]))
            await self._network.send(address, encode_message(message), True)
