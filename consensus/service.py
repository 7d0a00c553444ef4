"""The consensus of a running node: the replica's actions on real disks, clocks and peers (trio).

Everything is injected: the chain, the network, the vote key, the wall clock. The replica's actions are performed
in order. While a log is synced, no message of the same step is sent, and no further event is processed. Work on
the chain runs in parallel and returns as an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple

import structlog
import trio

from consensus import events as c
from consensus import replica as r
from consensus.block_server import BlockServer
from consensus.chain_work import ChainWork
from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard import Guard
from consensus.guard_log import Log, VoteDirectory
from consensus.halts import DOPPELGANGER, STATE_DIVERGENCE, ConsensusHalted, doppelganger_message
from consensus.inbound import FalseWindow, Inbox
from consensus.metrics import Metrics, NoMetrics, ReplicaMetrics
from consensus.ports import ChainPort, Listener, NetworkPort
from consensus.signer import Voter
from consensus.sync import Progress
from consensus.vote_requests import VoteRequests
from consensus.votes import Certificate, Check, Signer, verify_checks
from consensus.wire import (
    Proposal,
    Votes,
)
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.votes import Candidate, Equivocation, Vote, vrf_alpha

__all__ = [
    "ConsensusService",
    "ConsensusStatus",
    "VotingKey",
]

_log = structlog.get_logger("consensus")

INLINE_BYTES_MAX: Final = 16 * 1024
"""Larger messages are decoded in a worker thread."""
INLINE_CHECKS_MAX: Final = 8
"""More signatures than this are verified in a worker thread."""
THREADS_MAX: Final = 2
THREADS_OF_RELAYED_MAX: Final = 1
"""Gossiped messages are verified in separate threads."""
THREADS_OF_FETCHED_MAX: Final = 1
"""So are proposals requested for others: they are large, and no vote should wait behind a false one."""
THREADS_OF_STRANGERS_MAX: Final = 1
"""Messages of senders without a seat are decoded and verified in a separate thread, so that no proposal waits for
them."""
WAIT_STEP_MS: Final = 1_000
"""Interval at which a leader or voter that waits for a block's time checks whether the view continues."""


class VotingKey(NamedTuple):
    """A vote key of this node and the directory with its guard and journal."""

    signer: Signer
    directory: VoteDirectory


class _Message(NamedTuple):
    """A message from the inbox."""

    sender: bytes
    data: bytes
    is_seat: bool


class ConsensusStatus(NamedTuple):
    """The current state of this replica."""

    epoch: int
    view: int
    height: int
    highest_height: int
    """The highest height with a seen certificate."""
    leader: int
    seat: int | None
    is_listening: bool
    """Whether this seat casts no vote yet, to find out whether another process votes with its key."""
    last_height: int
    """The last height of the epoch."""


class ConsensusService:
    """Runs one replica. ``run`` lasts until cancelled, or ends with ConsensusHalted or a StoreError.

    ``keys`` are the node's own vote keys, of which the one with a seat votes. ``voters`` vote in another process
    instead, and ``journal`` then keeps what their votes rest on. Without both the node only follows. ``receive``,
    ``connected`` and ``mempool_changed`` may be called from any task of the same trio run. ``on_equivocation``
    gets the first proof of a seat's fault in each epoch, before anything else happens. ``on_fork`` gets a verified
    certificate of another chain, before the replica halts. ``on_block_time`` gets a leader and how far the time of
    its block is ahead of this clock, unless the parent's time raised it.
    """

    def __init__(
        self,
        *,
        epoch: Epoch,
        genesis_hash: bytes,
        root: Root,
        certificates: tuple[Certificate, ...] = (),
        parameters: ConsensusParameters,
        chain: ChainPort,
        network: NetworkPort,
        wall_ms: Callable[[], int],
        keys: Sequence[VotingKey] = (),
        voters: Sequence[Voter] = (),
        journal: Log | None = None,
        metrics: Metrics | None = None,
        on_equivocation: Callable[[Equivocation], None] | None = None,
        on_fork: Callable[[Certificate], None] | None = None,
        on_block_time: Callable[[bytes, int], None] | None = None,
    ) -> None:
        assert not voters or not keys, "the keys are in this process or in another one"
        self._genesis_hash = genesis_hash
        self._keys = tuple(keys)
        self._key = self._seated_key(epoch) or (self._keys[0] if self._keys else None)
        self._voters = tuple(voters)
        voter = self._seated_voter(epoch) or next(iter(self._voters), None)
        self._on_equivocation = on_equivocation
        self._on_fork = on_fork
        guard: Guard | None = None
        self._logs: dict[str, Log] = {} if journal is None else {r.JOURNAL: journal}
        if self._key is not None:
            guard = self._open(self._key)
        self._parameters = parameters
        self._chain = chain
        self._network = network
        self._wall_ms = wall_ms
        self._metrics: Metrics = metrics if metrics is not None else NoMetrics()
        self._replica = r.Replica(
            epoch=epoch,
            genesis_hash=genesis_hash,
            root=root,
            parameters=parameters,
            signer=self._key.signer if self._key is not None else None,
            guard=guard,
            vote_key=voter.vote_key if voter is not None else None,
            journal=self._logs[r.JOURNAL].read() if r.JOURNAL in self._logs else b"",
            certificates=certificates,
        )
        self.listener: Listener | None = None
        """Set before ``run``."""
        self._inbox = Inbox()
        self._events: deque[Callable[[], list[r.Action]]] = deque()
        self._wake = trio.Event()
        self._timers: dict[str, float] = {}
        self._threads = trio.CapacityLimiter(THREADS_MAX)
        self._threads_of_strangers = trio.CapacityLimiter(THREADS_OF_STRANGERS_MAX)
        self._threads_of_relayed = trio.CapacityLimiter(THREADS_OF_RELAYED_MAX)
        self._threads_of_fetched = trio.CapacityLimiter(THREADS_OF_FETCHED_MAX)
        self._replica_metrics = ReplicaMetrics(self._replica, self._metrics)
        self._chain_work = ChainWork(
            chain,
            self._replica,
            put=self._put,
            prove=self._prove,
            now_ms=self._now_ms,
            wall_ms=wall_ms,
            block_interval_ms=parameters.block_interval_ms,
            metrics=self._metrics,
            replica_metrics=self._replica_metrics,
            on_block_time=on_block_time,
        )
        self._block_server = BlockServer(chain, network, self._replica, now_ms=self._now_ms, metrics=self._metrics)
        self._accused: set[tuple[int, int]] = set()
        """Epoch and seat of the faults that were reported."""
        self._vote_requests = None if voter is None else self._by(voter)

    def _seated_key(self, epoch: Epoch) -> VotingKey | None:
        seated = {seat.vote_key for seat in epoch.committee.seats}
        return next((key for key in self._keys if key.signer.vote_key in seated), None)

    def _seated_voter(self, epoch: Epoch) -> Voter | None:
        seated = {seat.vote_key for seat in epoch.committee.seats}
        return next((voter for voter in self._voters if voter.vote_key in seated), None)

    def _by(self, voter: Voter) -> VoteRequests:
        return VoteRequests(voter, self._replica, put=self._put, now_ms=self._now_ms, metrics=self._metrics)

    def _open(self, key: VotingKey) -> Guard:
        guard = key.directory.load_guard(self._genesis_hash, key.signer.vote_key)
        self._logs = {r.GUARD: key.directory.guard, r.JOURNAL: key.directory.journal}
        return guard

    # The node's side.

    def receive(self, sender: bytes, data: bytes) -> None:
        """Process a peer's message; if the inbox is full it is dropped and counted."""
        if self._inbox.put(sender, data, is_seat=self._replica.is_seat(sender)):
            self._wake.set()
        else:
            self._metrics.count("messages_dropped_total", reason="full")

    def connected(self, address: bytes) -> None:
        """Send this replica's status to a peer that has connected."""
        self._put(lambda: self._replica.connected(address))

    async def verify(self, checks: Sequence[tuple[Check, ...]]) -> list[bool]:
        """Return for each of these whether its signatures are valid."""
        if sum(map(len, checks)) <= INLINE_CHECKS_MAX:
            return [verify_checks(some) for some in checks]
        return await trio.to_thread.run_sync(
            lambda: [verify_checks(some) for some in checks], limiter=self._threads_of_relayed
        )

    def take_relayed(self, sender: bytes, said: Vote | Certificate) -> None:
        """Process a vote or a certificate with verified signatures, without a sender to blame."""
        self._put(lambda: self._step_relayed(sender, said))

    def _step_relayed(self, sender: bytes, said: Vote | Certificate) -> list[r.Action]:
        core = self._replica.core
        event: c.Event
        if isinstance(said, Vote):
            final = core.final_certificate
            if said.epoch == core.epoch and core.is_over and final is not None and said.view > final.view:
                if said.seat == self._replica.seat:
                    return []
                # As where it comes directly: who votes on in an epoch that is over is told so.
                seat = core.committee.seats[said.seat].address
                answered = r.Inbound(seat, (), (), reply=Votes((said,)), epoch=core.epoch)
                return self._replica.admit(answered, self._now_ms())
            is_wanted, event = core.wants_vote(said), c.VoteReceived(said)
        else:
            is_wanted, event = core.wants_certificate(said), c.CertificateReceived(said)
        if not is_wanted:
            return []
        return self._admitted(r.Inbound(sender, (event,), (), during=core.epoch))

    async def take_proposal(self, sender: bytes, data: bytes, asked: Container[Candidate]) -> bool:
        """Process a requested proposal; return False for another or an invalid one.

        The peer is not blamed: it may not have been able to check it.
        """
        threads = self._threads_of_fetched
        try:
            decoded = await trio.to_thread.run_sync(r.decode_inbound, data, limiter=threads)
            if not isinstance(decoded.message, Proposal) or decoded.message.candidate not in asked:
                return False
            inbound = self._replica.receive(sender, decoded)
            if inbound is None:
                return True
            checks = inbound.checks
            if not await trio.to_thread.run_sync(verify_checks, checks, limiter=threads):
                return False
        except DecodeError:
            return False
        self._put(lambda: self._admitted(inbound, data))
        return True

    def mempool_changed(self, has_transactions: bool) -> None:
        """Set whether transactions wait; a leader without any delays its empty block."""
        self._put(lambda: self._replica.step(c.MempoolChanged(has_transactions), self._now_ms()))

    def status(self) -> ConsensusStatus:
        """Return the current state of the replica."""
        core, epoch = self._replica.core, self._replica.epoch
        return ConsensusStatus(
            core.epoch,
            core.view,
            core.root.height,
            self.progress().proven_height,
            epoch.committee.leader(max(1, core.view)),
            self._replica.seat,
            core.is_listening,
            epoch.last_height,
        )

    def progress(self) -> Progress:
        """Return the sync progress, for a progress bar."""
        return self._replica.progress(self._now_ms())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the replica. Raises ConsensusHalted, StoreError, and whatever the ports raise."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._chain_work.run)
            if self._vote_requests is not None:
                nursery.start_soon(self._vote_requests.run)
            self._replica_metrics.begin_epoch()
            self._metrics.set("state_divergence", 0)
            actions = self._replica.start(self._now_ms())
            self._chain_work.restore(self._replica.core.all_certificates())
            await self._perform(actions)
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
                if name == c.STATUS:
                    self._replica_metrics.tell_standing(trio.current_time())
                await self._perform(self._replica.step(c.TimerFired(name), self._now_ms()))
                continue
            message = self._inbox.take()
            if message is not None:
                await self._on_message(_Message(*message))
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

    def _done_with(self, message: _Message) -> None:
        self._inbox.done(message.sender, len(message.data), is_seat=message.is_seat)

    async def _on_message(self, message: _Message) -> None:
        if len(message.data) > INLINE_BYTES_MAX:
            self._nursery.start_soon(self._take_beside, message)
            return
        try:
            decoded = r.decode_inbound(message.data)
        except DecodeError as error:
            self._done_with(message)
            self._blame(message.sender, error)
            return
        inbound = self._receive(message.sender, decoded)
        if inbound is not None and len(inbound.checks) > INLINE_CHECKS_MAX:
            self._nursery.start_soon(self._verify_beside, inbound, message)
            return
        self._done_with(message)
        if inbound is not None:
            await self._admit_checked(inbound, message.data)

    async def _take_beside(self, message: _Message) -> None:
        """Decode and verify in a worker thread."""
        try:
            decoded = await trio.to_thread.run_sync(
                r.decode_inbound, message.data, limiter=self._limiter(message.is_seat)
            )
        except DecodeError as error:
            self._done_with(message)
            self._blame(message.sender, error)
            return
        inbound = self._receive(message.sender, decoded)
        if inbound is None:
            self._done_with(message)
        else:
            await self._verify_beside(inbound, message)

    async def _on_decoded(self, sender: bytes, decoded: r.Decoded) -> None:
        inbound = self._receive(sender, decoded)
        if inbound is None:
            return
        if len(inbound.checks) > INLINE_CHECKS_MAX:
            self._nursery.start_soon(self._verify_beside, inbound, None)
        else:
            await self._admit_checked(inbound)

    async def _admit_checked(self, inbound: r.Inbound, data: bytes = b"") -> None:
        if verify_checks(inbound.checks):
            await self._perform(self._admitted(inbound, data))
        else:
            self._blame_signature(inbound)

    def _limiter(self, is_seat: bool) -> trio.CapacityLimiter:
        return self._threads if is_seat else self._threads_of_strangers

    def _receive(self, sender: bytes, decoded: r.Decoded) -> r.Inbound | None:
        try:
            return self._replica.receive(sender, decoded)
        except DecodeError as error:
            self._blame(sender, error)
            return None

    async def _verify_beside(self, inbound: r.Inbound, message: _Message | None) -> None:
        """Verify ``message`` in a worker thread; its room in the inbox is released afterwards."""
        is_seat = self._replica.is_seat(inbound.sender) if message is None else message.is_seat
        checks: tuple[Check, ...] = inbound.checks
        is_valid = not checks or await trio.to_thread.run_sync(
            verify_checks, checks, limiter=self._limiter(is_seat)
        )
        if message is not None:
            self._done_with(message)
        if is_valid:
            self._put(lambda: self._admitted(inbound, b"" if message is None else message.data))
        else:
            self._blame_signature(inbound)

    def _admitted(self, inbound: r.Inbound, data: bytes = b"") -> list[r.Action]:
        """Process a verified message; ``data`` are its bytes, if known."""
        for event in inbound.events:
            if isinstance(event, c.ProposalReceived) and self.listener is not None:
                self.listener.heard(event.vote, inbound.sender)
                if data:
                    self.listener.proposed(event.vote.candidate, data)
            elif isinstance(event, c.VoteReceived):
                vote = event.vote
                core = self._replica.core
                if vote.epoch != core.epoch:
                    continue
                if self.listener is not None:
                    self.listener.heard(vote, inbound.sender)
                self._replica_metrics.note_vote(vote)
        return self._replica.admit(inbound, self._now_ms())

    def _blame(self, sender: bytes, error: DecodeError) -> None:
        self._metrics.count("messages_dropped_total", reason=error.code)
        self._blame_for(sender, str(error), is_false_window=isinstance(error, FalseWindow))

    def _blame_signature(self, inbound: r.Inbound) -> None:
        self._metrics.count("messages_dropped_total", reason="signature")
        is_window = inbound.window is not None
        self._blame_for(inbound.sender, "a signature that does not verify", is_false_window=is_window)

    def _blame_for(self, sender: bytes, reason: str, *, is_false_window: bool) -> None:
        if is_false_window:
            self._network.ban(sender, f"false blocks: {reason}")
        else:
            self._network.blame(sender, reason)
        self._put(lambda: self._replica.blamed(sender, self._now_ms()))

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
                    self._nursery.start_soon(self._chain_work.build, action)
                case c.Check(block_hash):
                    self._nursery.start_soon(self._chain_work.check, block_hash)
                case c.DropBlocks(()):
                    pass
                case c.Execute() | c.Commit() | c.DropBlocks():
                    self._chain_work.request(action)
                case r.ServeBlock():
                    self._block_server.serve_block(self._nursery, action)
                case r.ServeBlocks():
                    self._block_server.serve_blocks(self._nursery, action)
                case r.NextEpoch(number):
                    self._nursery.start_soon(self._next_epoch, number)
                case r.Redeliver(sender, decoded):
                    await self._on_decoded(sender, decoded)
                case r.RequestVote():
                    assert self._vote_requests is not None, "no other key is asked"
                    self._vote_requests.request(action)
                case r.RaiseFloor():
                    if self._vote_requests is not None:
                        self._vote_requests.raise_floor(action)
                case c.Halt(code, message, time_ms):
                    raise self._halted(code, message, time_ms)
                case _:
                    self._note(action)

    def _halted(self, code: str, message: str, time_ms: int) -> ConsensusHalted:
        if code == STATE_DIVERGENCE:
            self._metrics.set("state_divergence", 1)
        if code == DOPPELGANGER:
            listens_ms = self._parameters.doppelganger_ms
            message = doppelganger_message(message, time_ms, now_ms=self._wall_ms(), doppelganger_ms=listens_ms)
        return ConsensusHalted(code, message)

    def _note(self, action: r.Action) -> None:
        match action:
            case c.EnterView(view):
                if self.listener is not None:
                    self.listener.entered(self._replica.epoch, view)
            case c.KeepCertificate(certificate):
                self._chain_work.keep(certificate)
                if self.listener is not None:
                    self.listener.certified(certificate)
            case c.FoundEquivocation(equivocation):
                self._on_fault(equivocation)
            case c.FoundFork(certificate):
                if self._on_fork is not None:
                    self._on_fork(certificate)
            case _:
                pass
        self._replica_metrics.note(action, trio.current_time())

    def _on_fault(self, equivocation: Equivocation) -> None:
        vote = equivocation.first
        self._metrics.count("equivocations_total", type=equivocation.type)
        if (vote.epoch, vote.seat) in self._accused:
            return  # one proof is enough, and who made it can make hundreds
        self._accused.add((vote.epoch, vote.seat))
        _log.error(
            "equivocation",
            type=equivocation.type,
            epoch=vote.epoch,
            view=vote.view,
            seat=vote.seat,
        )
        if self._on_equivocation is not None:
            self._on_equivocation(equivocation)

    # Epochs, and a guard in another process.

    async def _next_epoch(self, number: int) -> None:
        try:
            epoch = await self._chain.epoch(number)
        except StoreError:
            raise  # the disk is at fault, and ends the node under its own name
        except DekubeError as error:
            refusal = self._replica.refuse_epoch(error.code, str(error))
            self._put(lambda: refusal)
            return
        self._put(lambda: self._begin_epoch(epoch))

    def _begin_epoch(self, epoch: Epoch) -> list[r.Action]:
        """Continue with the key that has a seat now, which a rotation may have changed."""
        key, voter, now_ms = self._seated_key(epoch), self._seated_voter(epoch), self._now_ms()
        self._accused = {known for known in self._accused if known[0] >= epoch.number - 1}
        if voter is not None and self._vote_requests is not None and voter is not self._vote_requests.voter:
            self._vote_requests.end()
            self._vote_requests = self._by(voter)
            actions = self._replica.begin_epoch(epoch, now_ms, vote_key=voter.vote_key)
            self._nursery.start_soon(self._vote_requests.run)
        elif key is None or key is self._key:
            actions = self._replica.begin_epoch(epoch, now_ms)
        else:
            self._key = key
            actions = self._replica.begin_epoch(epoch, now_ms, signer=key.signer, guard=self._open(key))
        self._replica_metrics.begin_epoch()
        _log.info("epoch began", epoch=epoch.number, seats=epoch.committee.size, seat=self._replica.seat)
        return actions

    async def _prove(self, build: c.Build) -> bytes | None:
        if self._key is not None:
            return self._key.signer.prove(vrf_alpha(self._genesis_hash, build.randomness, build.epoch, build.view))
        assert self._vote_requests is not None, "only a seat is asked to build"
        return await self._vote_requests.prove(build)
