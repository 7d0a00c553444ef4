"""A whole network in one heap of events: one seed, a virtual clock, no event loop, no threads, no sockets.

Each node is the real replica with the real record of its guard and its journal on a simulated disk that loses what
was not synced. What it agrees on is the world's (``consensus.simulation.worlds``): a chain of hashes, or the real
state on a simulated database. The same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from consensus import events as c
from consensus import replica as r
from consensus.core.core import Core
from consensus.events import ConsensusParameters, Epoch
from consensus.guard import Guard, GuardCorrupt, GuardMissing, GuardRefused
from consensus.notarizations import Notarizations
from consensus.simulation.disk import DiskFailed, Fault, PowerFailed, SimulatedLog
from consensus.simulation.oracle import EpochView, Oracle, Violation
from consensus.simulation.worlds import HashWorld, Machine, World
from consensus.votes import Check, Signer
from consensus.wire import BlockReply, Certificates, Message, Proposal, Votes, encode_message
from state.primitives.blocks import Block, header_hash
from state.primitives.errors import DecodeError
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import NOTARIZE, NULLIFY, Candidate, Vote, vote_digest, vrf_alpha

__all__ = ["TIME_AHEAD_MS_MAX", "Cluster", "Network", "SimulatedNode", "sim_parameters"]

EVENTS_MAX: Final = 400_000
"""A run that needs more events than this has run away."""
INLINE_CHECKS_MAX: Final = 2
"""Of messages with more signatures, a part is verified beside; certificates of four seats have three."""
BESIDE: Final = 0.2
"""The part of them."""
BESIDE_MS: Final = 60
"""What a worker thread may take for one, at most."""
TIME_AHEAD_MS_MAX: Final = ChainParameters().time_ahead_ms_max
"""A block whose time is further ahead of a node's wall clock waits, as in ``consensus.service``."""


def sim_parameters(
    idle_ms: int = 0, *, block_interval_ms: int = 0, doppelganger_ms: int = 0
) -> ConsensusParameters:
    """Return the times of a fast network, so that a run of some seconds holds hundreds of views."""
    return ConsensusParameters(
        leader_ms=200,
        advance_ms=350,
        block_interval_ms=block_interval_ms,
        retransmit_ms=200,
        retransmit_ms_max=1_000,
        fetch_ms=100,
        pull_ms=15,
        idle_ms=idle_ms,
        silent_ms=3_000,
        backoff_factor_max=16,
        timeout_ms_max=6_000,
        window_ms=300,
        status_ms=500,
        doppelganger_ms=doppelganger_ms,
    )


@dataclass(slots=True)
class Network:
    """What happens to messages now; the scenario changes it while it runs."""

    latency_ms_min: int = 1
    latency_ms_max: int = 30
    loss: float = 0.0
    duplication: float = 0.0
    blocked: Callable[[int, int], bool] | None = None


@dataclass(slots=True)
class SimulatedNode:
    """One process: its disk survives it, everything else is lost at a crash."""

    number: int
    account: int
    address: bytes
    honest: bool
    machine: Machine
    votes: bool = True
    """Whether it is run with the account's key; else it only follows."""
    key: int = 0
    guard_logs: dict[int, SimulatedLog] = field(default_factory=dict)
    journal_log: SimulatedLog = field(default_factory=SimulatedLog)
    replica: r.Replica | None = None
    incarnation: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    clock_permille: int = 1000
    ahead_ms: int = 0
    """How far its wall clock is ahead of the others', which its blocks tell."""
    durable_operations: int = 0
    fault_at: int = -1
    fault: Fault = Fault.TAIL
    is_torn_next: bool = False
    restart_after_ms: int = 200
    halted: str | None = None
    refused: str | None = None
    """Why its guard has refused to open; it follows without a vote from then on."""
    entered: int = 0
    epoch: int = 0
    guard: Guard | None = None
    commits: int = 0
    """Commits on their way to the disk."""
    commit_at_ms: int = 0
    advance_ms: int = 0
    """The time-out of its present view, with the back-off."""
    watches_own_seat: bool = True
    notarized: Notarizations = field(default_factory=Notarizations)

    @property
    def guard_log(self) -> SimulatedLog:
        """The record of the key it votes with."""
        return self.guard_logs.setdefault(self.key, SimulatedLog())


class Cluster:
    """The nodes, the network and the clock. Scenarios drive it, the oracle judges it.

    ``world`` may be the weights of the founders alone: one epoch, for ever. ``honest`` are accounts. The faulty
    accounts come first when there are ``twins``: each of them gets a second process with the same keys.
    """

    guard_type: type[Guard] = Guard
    core_type: type[Core] = Core
    replica_type: type[r.Replica] = r.Replica

    def __init__(
        self,
        seed: int,
        world: World | tuple[int, ...],
        honest: frozenset[int],
        *,
        twins: int = 0,
        parameters: ConsensusParameters | None = None,
        may_fork: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.world: World = HashWorld(world) if isinstance(world, tuple) else world
        self.parameters = parameters or sim_parameters()
        self._honest = frozenset(self.world.address(account) for account in honest)
        self.oracle = Oracle(self._honest, self.world.root_hash, may_fork=may_fork)
        self.network = Network()
        self.now_ms = 0
        self.events = 0
        self.trace = 0
        self._heap: list[tuple[int, int, int, int, Any, Any]] = []
        self._sequence = 0
        self._decoded: dict[bytes, r.Decoded | None] = {}
        self._valid: dict[Check, bool] = {}
        self._seen_data: set[bytes] = set()
        self._made_ms: dict[bytes, int] = {}
        """By block: its leader's wall clock when it was built."""
        self.calls: dict[int, Callable[[], None]] = {}
        self.on_deliver: dict[int, Callable[[int, bytes, r.Decoded], None]] = {}
        self.nodes: list[SimulatedNode] = []
        self._forgetful: set[bytes] = set()
        self._actions: list[r.Action] = []
        """Of the step that is performed."""
        for account in range(self.world.accounts):
            self._add_node(account, is_honest=account in honest)
        for account in sorted(set(range(self.world.accounts)) - honest)[:twins]:
            self.nodes[account].watches_own_seat = False
            self._add_node(account, is_honest=False).watches_own_seat = False
        self._by_address: dict[bytes, list[int]] = {}
        for node in self.nodes:
            self._by_address.setdefault(node.address, []).append(node.number)

    def _add_node(self, account: int, *, is_honest: bool) -> SimulatedNode:
        number = len(self.nodes)
        machine = self.world.machine(number, self.rng)
        node = SimulatedNode(number, account, self.world.address(account), is_honest, machine)
        self.nodes.append(node)
        return node

    # Time.

    def _push(self, at_ms: int, node: int, incarnation: int, what: Any, data: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, node, incarnation, what, data))

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        """Do something to the cluster at a time."""
        self._sequence += 1
        self.calls[self._sequence] = call
        heapq.heappush(self._heap, (at_ms, self._sequence, -1, 0, "call", self._sequence))

    def run(self, until_ms: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Run to a time, or until ``is_done``; tell whether it was. Raises Violation."""
        heap, nodes = self._heap, self.nodes
        while heap and heap[0][0] <= until_ms:
            at_ms, _, number, incarnation, what, data = heapq.heappop(heap)
            self.now_ms = at_ms
            if number < 0:
                self.calls.pop(data)()
                continue
            node = nodes[number]
            if node.incarnation != incarnation or node.replica is None:
                continue
            if what == "timer" and node.timers.get(data) != at_ms:
                continue
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation(f"more than {EVENTS_MAX} events")
            self._handle(node, what, data)
            if is_done is not None and what == "committed" and is_done():
                return True
        self.now_ms = max(self.now_ms, until_ms)
        return is_done is not None and is_done()

    def _handle(self, node: SimulatedNode, what: Any, data: Any) -> None:
        replica = node.replica
        assert replica is not None
        if what == "message":
            self._deliver(node, replica, *data)
        elif what == "timer":
            del node.timers[data]
            self.perform(node, replica.step(c.TimerFired(data), self._clock(node)))
        elif what == "event":
            self.perform(node, replica.step(data, self._clock(node)))
        elif what == "check":
            self._check(node, replica, data)
        elif what == "build":
            self._build(node, replica, data)
        elif what == "execute":
            self._execute(node, replica, *data)
        elif what == "committed":
            self._commit(node, replica, data)
        elif what == "evidence":
            node.machine.heard(data[1])
        elif what == "again":
            self._take_in(node, replica, *data)
        elif what == "verified":
            self.perform(node, replica.admit(data, self._clock(node)))
        else:
            raise AssertionError(what)

    def _deliver(self, node: SimulatedNode, replica: r.Replica, sender: int, raw: bytes) -> None:
        self.trace = crc32(raw, self.trace ^ (self.now_ms << 8 | node.number) & 0xFFFFFFFF)
        decoded = self.decode(raw)
        if decoded is None:
            return
        hook = self.on_deliver.get(node.number)
        if hook is not None:
            hook(sender, raw, decoded)
        self._take_in(node, replica, self.nodes[sender].address, decoded)

    def _take_in(self, node: SimulatedNode, replica: r.Replica, sender: bytes, decoded: r.Decoded) -> None:
        try:
            inbound = replica.receive(sender, decoded)
        except DecodeError as error:
            self._blame(node, replica, sender, f"a message was refused: {error}")
            return
        if inbound is None:
            return
        for check in inbound.checks:
            if not self.is_valid(check):
                self._blame(node, replica, sender, "a signature does not verify")
                return
        if len(inbound.checks) > INLINE_CHECKS_MAX and self.rng.random() < BESIDE:
            # A worker thread verifies it, while others are taken in and the epoch may end.
            at_ms = self.now_ms + self.rng.randrange(BESIDE_MS)
            self._push(at_ms, node.number, node.incarnation, "verified", inbound)
            return
        self.perform(node, replica.admit(inbound, self._clock(node)))

    def _blame(self, node: SimulatedNode, replica: r.Replica, sender: bytes, reason: str) -> None:
        if sender in self._honest:
            raise Violation(f"an honest node is blamed: {reason}")
        self.perform(node, replica.blamed(sender, self._clock(node)))

    def _clock(self, node: SimulatedNode) -> int:
        return self.now_ms * node.clock_permille // 1000

    # Processes.

    def start(self, node: SimulatedNode) -> None:
        """Start a node from what its disk holds. Raises Violation when the guard refuses without a reason."""
        node.incarnation += 1
        node.timers.clear()
        node.commits = 0
        standing = node.machine.start()
        signer, guard = self._open_guard(node, standing.epoch)
        node.epoch = standing.epoch
        epoch_view = self._enter_epoch(node, standing.epoch)
        if node.honest and guard is not None:
            # What was recorded and not sent when the power failed is as good as cast: it is counted from here on.
            for vote in guard.votes():
                self.oracle.saw_vote(vote)
        node.replica = _replica_of(self.replica_type, self.core_type)(
            epoch=c.Epoch(standing.epoch, epoch_view.last_height, epoch_view.committee, epoch_view.randomness),
            genesis_hash=self.world.genesis_hash,
            root=standing.root,
            certificates=standing.certificates,
            parameters=self.parameters,
            signer=signer,
            guard=guard,
            journal=node.journal_log.durable,
            verify=lambda checks: all(map(self.is_valid, checks)),
            compact_bytes=6_000,
            watches_own_seat=node.watches_own_seat,
        )
        actions = node.replica.start(self._clock(node))
        node.notarized = Notarizations(node.replica.core.all_certificates())
        self.perform(node, actions)

    def _open_guard(self, node: SimulatedNode, epoch: int) -> tuple[Signer | None, Guard | None]:
        """Open the guard of the key that has the seat in an epoch; a new key gets an empty record."""
        if not node.votes:
            return None, None
        node.key = self._key_in(node, epoch)
        signer, log = self.world.signer(node.account, node.key), node.guard_log
        genesis_hash = self.world.genesis_hash
        if not log.durable:
            log.durable = self.guard_type(genesis_hash, signer.vote_key).image()
        try:
            guard, whole = self.guard_type.load(log.durable, genesis_hash, signer.vote_key)
        except (GuardCorrupt, GuardMissing) as error:
            if node.honest and node.fault is not Fault.GUARD_FLIP:
                raise Violation(f"a guard refuses to open: {error}") from None
            node.refused = str(error)
            node.votes = False
            node.guard = None
            return None, None
        log.durable = log.durable[:whole]
        node.guard = guard
        return signer, guard

    def _key_in(self, node: SimulatedNode, epoch: int) -> int:
        """The key that the operator runs a node with: the one that has a seat, else the last one."""
        epoch_view = node.machine.epoch_view(epoch)
        seat = epoch_view.committee.seat_of(node.address) if epoch_view is not None else None
        if epoch_view is None or seat is None:
            return node.key
        return self.world.key_of(node.account, epoch_view.committee.seats[seat].vote_key)

    def _begin_epoch(self, node: SimulatedNode, number: int) -> None:
        replica = node.replica
        assert replica is not None
        epoch_view = self._enter_epoch(node, number)
        signer: Signer | None = None
        guard: Guard | None = None
        if node.votes and self._key_in(node, number) != node.key:
            signer, guard = self._open_guard(node, number)
        self._perform_all(node, replica.begin_epoch(epoch_view, self._clock(node), signer=signer, guard=guard))

    def _enter_epoch(self, node: SimulatedNode, epoch: int) -> Epoch:
        epoch_view = node.machine.epoch_view(epoch)
        if epoch_view is None:
            raise Violation(f"node {node.number} does not know its own epoch {epoch}")
        if node.honest:
            seats = epoch_view.committee.seats
            self.oracle.saw_epoch_view(
                node.number,
                EpochView(
                    epoch,
                    tuple([s.address for s in seats]),
                    tuple([s.weight for s in seats]),
                    epoch_view.last_height,
                ),
            )
        node.epoch = epoch
        return epoch_view

    def tell_mempool(self, number: int, has_transactions: bool) -> None:
        """Fill or empty a node's mempool."""
        node = self.nodes[number]
        if node.replica is not None:
            self.perform(node, node.replica.step(c.MempoolChanged(has_transactions), self._clock(node)))

    def start_all(self) -> None:
        """Start every node."""
        for node in self.nodes:
            self.start(node)

    def crash(self, node: SimulatedNode, restart_after_ms: int | None = None) -> None:
        """Cut the power of a node; it restarts later from its disk."""
        if node.replica is None:
            return
        self._stop(node, restart_after_ms)
        is_torn = node.is_torn_next
        for log in (*node.guard_logs.values(), node.journal_log):
            log.lose_power(self.rng, is_torn=is_torn)
        height = node.machine.lose_power(self.rng)
        if node.honest:
            self.oracle.saw_power_loss(node.number, height)

    def _stop(self, node: SimulatedNode, restart_after_ms: int | None) -> None:
        node.replica = None
        node.incarnation += 1
        node.fault_at = -1
        delay_ms = node.restart_after_ms if restart_after_ms is None else restart_after_ms
        self.call_at(self.now_ms + delay_ms, lambda: self._restart(node))

    def _restart(self, node: SimulatedNode) -> None:
        if node.replica is not None or node.halted is not None:
            return
        self.start(node)
        for other in self.nodes:
            if other.replica is not None and other.number != node.number:
                self.perform(other, other.replica.connected(node.address))

    def _fail(self, node: SimulatedNode, failure: DiskFailed | PowerFailed) -> None:
        """The process ends inside a durable operation."""
        if isinstance(failure, DiskFailed):
            self._stop(node, None)
            log, data, is_sync = failure.args
            for each in (*node.guard_logs.values(), node.journal_log):
                each.end_process(self.rng, data if each is log else None, is_sync=is_sync and each is log)
            return
        node.is_torn_next = node.is_torn_next or node.fault is Fault.TORN
        self.crash(node)
        if node.fault is Fault.GUARD_FLIP:
            node.guard_log.flip(self.rng)
        elif node.fault is Fault.JOURNAL_FLIP and self._may_forget(node):
            node.journal_log.flip(self.rng)

    def _may_forget(self, node: SimulatedNode) -> bool:
        """Whether its medium may lose what was synced: with no more than a third of the weight, as any fault.

        A quorum certifies what each of it has on disk. Had all of them lost it, the block would be gone for good.
        """
        epoch_view = node.machine.epoch_view(node.epoch)
        assert epoch_view is not None
        self._forgetful.add(node.address)
        committee = epoch_view.committee
        lost = sum(seat.weight for seat in committee.seats if seat.address in self._forgetful)
        if 3 * lost <= sum(committee.weights):
            return True
        self._forgetful.discard(node.address)
        return False

    def _durable(self, node: SimulatedNode, log: SimulatedLog | None, data: bytes | None) -> None:
        """Count a durable operation, and let it fail if it is its turn; ``data`` is None for a sync."""
        node.durable_operations += 1
        if node.fault_at < 0 or node.durable_operations < node.fault_at:
            return
        match node.fault:
            case Fault.FULL:
                if data is not None:
                    raise DiskFailed(log, data, False)
            case Fault.SYNC_ERROR:
                if data is None:
                    raise DiskFailed(log, b"", True)
            case _:
                raise PowerFailed

    # Actions.

    def perform(self, node: SimulatedNode, actions: list[r.Action]) -> None:
        """Do what a replica says, in its order; a failure may come inside any durable operation."""
        if not actions:
            return
        try:
            self._perform_all(node, actions)
        except (PowerFailed, DiskFailed) as failure:
            self._fail(node, failure)

    def _perform_all(self, node: SimulatedNode, actions: list[r.Action]) -> None:
        self._actions = actions
        for action in actions:
            self._perform(node, action)

    def _perform(self, node: SimulatedNode, action: r.Action) -> None:
        perform = _PERFORM.get(type(action))
        if perform is not None:  # of the others nothing follows here; CastVote, for one, is for metrics
            perform(self, node, action)

    def _set_timer(self, node: SimulatedNode, timer: c.SetTimer) -> None:
        name, delay_ms = timer
        if name == c.ADVANCE:
            node.advance_ms = delay_ms
        at_ms = self.now_ms + max(1, delay_ms * 1000 // node.clock_permille)
        node.timers[name] = at_ms
        self._push(at_ms, node.number, node.incarnation, "timer", name)

    def _broadcast(self, node: SimulatedNode, action: r.Broadcast) -> None:
        self._release(node, action.data)
        self._tell_others(node, action.data)

    def _tell_others(self, node: SimulatedNode, data: bytes, what: str = "message") -> None:
        source, send = node.number, self.send
        for target in range(len(self.nodes)):
            if target != source:
                send(source, target, data, what)

    def _send_to(self, node: SimulatedNode, action: r.Send) -> None:
        self._release(node, action.data)
        for number in self._by_address.get(action.address, ()):
            if number != node.number:
                self.send(node.number, number, action.data)

    def _append(self, node: SimulatedNode, append: r.Append) -> None:
        log = node.guard_log if append.log == r.GUARD else node.journal_log
        self._durable(node, log, append.data)
        log.pending += append.data

    def _sync(self, node: SimulatedNode, sync: r.Sync) -> None:
        log = node.guard_log if sync.log == r.GUARD else node.journal_log
        self._durable(node, log, None)
        log.durable += log.pending
        log.pending = b""

    def _replace(self, node: SimulatedNode, replace: r.Replace) -> None:
        # The new file stands beside the old one until it is whole: a failure leaves the old one.
        self._durable(node, None, b"")
        log = node.guard_log if replace.log == r.GUARD else node.journal_log
        log.durable, log.pending = replace.data, b""

    def _enter_view(self, node: SimulatedNode, enter: c.EnterView) -> None:
        node.entered = enter.view

    def _keep_certificate(self, node: SimulatedNode, keep: c.KeepCertificate) -> None:
        node.notarized.add(keep.certificate)
        if node.honest:
            self.oracle.saw_certificate(keep.certificate)

    def _ask_build(self, node: SimulatedNode, build: c.Build) -> None:
        self._later(node, "build", build)

    def _ask_check(self, node: SimulatedNode, check: c.Check) -> None:
        block_hash = check.block_hash
        early_ms = self._made_ms.get(block_hash, 0) - TIME_AHEAD_MS_MAX - self.now_ms - node.ahead_ms
        if early_ms > 0:
            self._later(node, "event", c.BlockEarly(block_hash))
            self._push(self.now_ms + early_ms, node.number, node.incarnation, "check", block_hash)
        else:
            self._later(node, "check", block_hash)

    def _ask_execute(self, node: SimulatedNode, execute: c.Execute) -> None:
        block_hash = execute.block_hash
        block = node.replica.block(block_hash) if node.replica is not None else None
        if block is not None:
            self._later(node, "execute", (block_hash, block))
        else:
            # Of one message a certificate may ask for it and the next let it go: the service finds nothing then.
            later = self._actions[self._actions.index(execute) :]
            if not any(isinstance(action, c.DropBlocks) and block_hash in action.block_hashes for action in later):
                raise Violation("a replica asked for the execution of a block it does not hold")

    def _ask_commit(self, node: SimulatedNode, commit: c.Commit) -> None:
        # One commit after the other, as the writer of a database does it.
        node.commit_at_ms = max(node.commit_at_ms, self.now_ms + self.rng.randrange(0, 4))
        node.commits += 1
        self._push(node.commit_at_ms, node.number, node.incarnation, "committed", commit)

    def _drop_blocks(self, node: SimulatedNode, drop: c.DropBlocks) -> None:
        node.machine.drop(drop.block_hashes)

    def _serve_block(self, node: SimulatedNode, serve: r.ServeBlock) -> None:
        raw = node.machine.block(serve.block_hash)
        if raw is not None:
            self._reply(node, serve.address, BlockReply(raw))

    def _serve_blocks(self, node: SimulatedNode, serve: r.ServeBlocks) -> None:
        window = node.machine.window(serve.from_height, serve.count_max)
        if window is not None:
            self._reply(node, serve.address, window)

    def _next_epoch(self, node: SimulatedNode, following: r.NextEpoch) -> None:
        self._begin_epoch(node, following.number)

    def _redeliver(self, node: SimulatedNode, again: r.Redeliver) -> None:
        # After the rest of the list: what follows from it must not come before what it follows.
        self._push(self.now_ms, node.number, node.incarnation, "again", (again.sender, again.decoded))

    def _found(self, node: SimulatedNode, found: c.FoundEquivocation) -> None:
        if node.honest:
            self.oracle.saw_evidence(found.equivocation)
        proof = node.machine.found(found.equivocation)
        if proof is not None:
            self._tell_others(node, proof, "evidence")

    def _halted(self, node: SimulatedNode, halt: c.Halt) -> None:
        self._halt(node, halt.code)

    def _halt(self, node: SimulatedNode, code: str) -> None:
        node.halted = code
        node.replica = None
        node.incarnation += 1
        if node.honest and not (self.oracle.may_fork and code == "safety"):
            raise Violation(f"an honest node halted: {code}")

    def _later(self, node: SimulatedNode, what: str, data: Any) -> None:
        self._push(self.now_ms + self.rng.randrange(0, 4), node.number, node.incarnation, what, data)

    def _reply(self, node: SimulatedNode, address: bytes, message: Message) -> None:
        self._perform(node, r.Send(address, encode_message(message), True))

    def send(self, source: int, target: int, data: bytes, what: str = "message") -> None:
        """Put a message on its way, or lose it, or let it arrive twice."""
        network, random = self.network, self.rng.random
        if network.blocked is not None and network.blocked(source, target):
            return
        if network.loss and random() < network.loss:
            return
        copies = 2 if network.duplication and random() < network.duplication else 1
        first_ms = self.now_ms + network.latency_ms_min
        span = network.latency_ms_max - network.latency_ms_min + 1
        for _ in range(copies):
            at_ms = first_ms + int(random() * span)
            self._push(at_ms, target, self.nodes[target].incarnation, what, (source, data))

    # The machine.

    def _build(self, node: SimulatedNode, replica: r.Replica, build: c.Build) -> None:
        alpha = vrf_alpha(self.world.genesis_hash, build.randomness, build.epoch, build.view)
        block = node.machine.build(
            build.parent_hash,
            epoch=build.epoch,
            view=build.view,
            seat=build.seat,
            time_ms=self._clock(node),
            vrf_proof=self.world.signer(node.account, node.key).prove(alpha),
            voters=build.voters_bitmap,
        )
        if block is not None:
            self._made_ms[header_hash(block.header)] = self.now_ms + node.ahead_ms
        if node.honest and block is not None:
            # Its vote may be recorded and the power fail before the proposal leaves.
            header = block.header
            self.oracle.saw_block(header_hash(header), header.parent_hash, header.height, header.epoch)
        self.perform(node, replica.built(build, block, self._clock(node)))

    def _check(self, node: SimulatedNode, replica: r.Replica, block_hash: bytes) -> None:
        block = replica.block(block_hash)
        is_valid = block is not None and node.machine.is_valid(block_hash, block, self._clock(node))
        self.perform(node, replica.step(c.BlockChecked(block_hash, is_valid), self._clock(node)))

    def _execute(self, node: SimulatedNode, replica: r.Replica, block_hash: bytes, block: Block) -> None:
        roots = node.machine.execute(block_hash, block)
        if roots is not None:  # its branch was dropped meanwhile
            self.perform(node, replica.step(c.BlockExecuted(block_hash, *roots), self._clock(node)))

    def _commit(self, node: SimulatedNode, replica: r.Replica, commit: c.Commit) -> None:
        certificate, block_hashes = commit.certificate, commit.block_hashes
        try:
            self._durable(node, None, b"")
            self._durable(node, None, None)
        except (PowerFailed, DiskFailed) as failure:
            whole = self.rng.randrange(len(block_hashes))
            if isinstance(failure, DiskFailed):
                node.machine.commit_in_vain(block_hashes, certificate)
            elif whole:  # each block is a batch of its own
                self._committed(node, commit._replace(block_hashes=block_hashes[:whole]))
            self._fail(node, failure)
            return
        self._committed(node, commit)
        self.trace = crc32(certificate.block_hash, self.trace)
        node.commits -= 1
        self.perform(node, replica.committed(block_hashes))
        if node.honest and node.guard is not None and node.replica is not None and node.commits == 0:
            _probe_guard(node.guard, certificate.epoch, certificate.view)

    def _committed(self, node: SimulatedNode, commit: c.Commit) -> None:
        certificate, block_hashes, _, nullified = commit
        views = (*nullified, *node.notarized.take(commit))
        written = node.machine.commit(block_hashes, certificate, views)
        if node.honest:
            self.oracle.saw_certificate(certificate, must_be_final=True)
            for height, block_hash, state_root in written:
                self.oracle.saw_commit(node.number, height, block_hash, state_root)

    def decode(self, raw: bytes) -> r.Decoded | None:
        """Decode a message once for all its receivers; None when it is refused."""
        try:
            return self._decoded[raw]
        except KeyError:
            try:
                decoded: r.Decoded | None = r.decode_inbound(raw)
            except DecodeError:
                decoded = None
            self._decoded[raw] = decoded
            return decoded

    def is_valid(self, check: Check) -> bool:
        """Verify a signature once for all its receivers."""
        known = self._valid.get(check)
        if known is None:
            known = self._valid[check] = self.world.is_valid(check)
        return known

    def _release(self, node: SimulatedNode, data: bytes) -> None:
        """Show the oracle what leaves a node."""
        if data in self._seen_data:
            return
        self._seen_data.add(data)
        decoded = self.decode(data)
        if decoded is None:
            raise Violation("a replica sent a message that cannot be decoded")
        match decoded.message:
            case Votes(votes):
                for vote in votes:
                    self.oracle.saw_vote(vote)
            case Proposal(candidate, signature, justify, nulls, _):
                header = decoded.blocks[0][1].header
                self.oracle.saw_block(candidate.block_hash, header.parent_hash, header.height, header.epoch)
                epoch_view = node.machine.epoch_view(candidate.epoch)
                if epoch_view is not None:
                    seat = epoch_view.committee.leader(candidate.view)
                    self.oracle.saw_vote(Vote(NOTARIZE, *candidate, seat, signature))
                if node.honest:
                    for certificate in nulls if justify is None else (*nulls, justify):
                        self.oracle.saw_certificate(certificate)
            case Certificates(certificates):
                if node.honest:
                    for certificate in certificates:
                        self.oracle.saw_certificate(certificate)
            case _:
                pass

    def sign(self, account: int, key: int, vote: Vote) -> Vote:
        """Sign for a faulty seat, past any guard; for an epoch that is not known yet nobody can."""
        epoch_view = self.nodes[account].machine.epoch_view(vote.epoch)
        if epoch_view is None:
            return vote._replace(signature=bytes(64))
        signer = self.world.signer(account, key)
        digest = vote_digest(self.world.genesis_hash, vote.kind, vote.candidate)
        signed = vote._replace(signature=signer.sign_vote(digest))
        seats = epoch_view.committee.seats
        if vote.seat < len(seats) and seats[vote.seat].vote_key == signer.vote_key:
            self.oracle.saw_vote(signed)
        return signed


_PERFORM: Final[dict[type, Callable[[Cluster, SimulatedNode, Any], None]]] = {
    c.SetTimer: Cluster._set_timer,
    r.Broadcast: Cluster._broadcast,
    r.Send: Cluster._send_to,
    r.Append: Cluster._append,
    r.Sync: Cluster._sync,
    r.Replace: Cluster._replace,
    c.EnterView: Cluster._enter_view,
    c.KeepCertificate: Cluster._keep_certificate,
    c.Build: Cluster._ask_build,
    c.Check: Cluster._ask_check,
    c.Execute: Cluster._ask_execute,
    c.Commit: Cluster._ask_commit,
    c.DropBlocks: Cluster._drop_blocks,
    r.ServeBlock: Cluster._serve_block,
    r.ServeBlocks: Cluster._serve_blocks,
    r.NextEpoch: Cluster._next_epoch,
    r.Redeliver: Cluster._redeliver,
    c.FoundEquivocation: Cluster._found,
    c.Halt: Cluster._halted,
}


def _probe_guard(guard: Guard, epoch: int, view: int) -> None:
    """The floor rises with every final block, and at and below it nothing is ever signed again."""
    if guard.floor < (epoch, view):
        raise Violation(f"the floor of a guard is at {guard.floor}, final is {epoch, view}")
    for below in ((epoch, view), (epoch, view - 1), (epoch - 1, 10**6)):
        if min(below) < 0:
            continue
        with contextlib.suppress(GuardRefused):
            guard.check(NULLIFY, Candidate(*below, 0, ZERO_HASH))
            raise Violation(f"a guard with its floor at {guard.floor} would sign at {below}")


_REPLICAS: dict[type[Core], type[r.Replica]] = {}


def _replica_of(replica_type: type[r.Replica], core_type: type[Core]) -> type[r.Replica]:
    """The replica around another core: how seeded bugs get in."""
    if core_type is Core:
        return replica_type
    if core_type not in _REPLICAS:
        _REPLICAS[core_type] = type("MutantReplica", (r.Replica,), {"core_type": core_type})
    return _REPLICAS[core_type]
