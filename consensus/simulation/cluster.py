"""A whole committee in one heap of events: one seed, a virtual clock, no event loop, no threads, no sockets.

Each node is the real replica with the real record of its guard and its journal on a simulated disk that loses what
was not synced. The state machine is a chain of hashes; everything else (codec, certificates, guard) is production
code. The same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

from consensus import core as c
from consensus import replica as r
from consensus.core import ConsensusParameters, Core, Root
from consensus.guard import Guard
from consensus.simulation.oracle import Oracle, Violation
from consensus.votes import Certificate, Check, Signer, verify_checks
from consensus.wire import (
    BLOCKS_MAX,
    BlockReply,
    BlocksReply,
    Message,
    Proposal,
    Votes,
    encode_message,
)
from state.primitives.blocks import VERSION, Block, Header, encode_block, evidence_root, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DecodeError
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.merkle import merkle_root
from state.primitives.votes import NOTARIZE, Vote, VoteKey, vote_digest

__all__ = [
    "Cluster",
    "Crash",
    "FastKey",
    "Network",
    "Node",
    "SimulatedLog",
    "genesis_root",
    "next_state_root",
    "sim_parameters",
]

GENESIS: Final = digest(b"sim", b"genesis")
GENESIS_BLOCK: Final = digest(b"sim", b"block 0")
EPOCH: Final = 1
EVENTS_MAX: Final = 400_000
"""A run that needs more events than this has run away."""


def next_state_root(parent_root: bytes, block_hash: bytes) -> bytes:
    """Return the state after a block: the stub of the state machine."""
    return digest(b"sim-state", parent_root + block_hash)


def genesis_root() -> Root:
    """Return the root on which every simulated chain stands."""
    return Root(GENESIS_BLOCK, 0, 0, next_state_root(ZERO_HASH, GENESIS_BLOCK), ZERO_HASH)


def sim_parameters(idle_ms: int = 0) -> ConsensusParameters:
    """Return the times of a fast network, so that a run of some seconds holds hundreds of views."""
    return ConsensusParameters(
        leader_ms=200,
        advance_ms=350,
        block_interval_ms=0,
        retransmit_ms=200,
        retransmit_ms_max=1_000,
        fetch_ms=100,
        pull_ms=15,
        idle_ms=idle_ms,
        silent_ms=3_000,
        backoff_factor_max=16,
        timeout_ms_max=6_000,
    )


class FastKey:
    """A signer of keyed hashes in the place of BIP340, where the schedule matters and not the curve."""

    __slots__ = ("_secret", "address", "vote_key")

    def __init__(self, number: int) -> None:
        self._secret = digest(b"sim-secret", number.to_bytes(4, "big"))
        self.vote_key = digest(b"sim-key", self._secret)
        self.address = self.vote_key[:20]

    def sign_vote(self, message: bytes) -> bytes:
        """Return 64 bytes that only the holder of the secret can make."""
        return blake2b(message, key=self._secret, digest_size=64).digest()

    def prove(self, alpha: bytes) -> bytes:
        """Return 80 bytes in the place of a VRF proof."""
        return blake2b(alpha, key=self._secret, digest_size=64).digest() + bytes(16)


class RealKey(VoteKey):
    """A signer of BIP340 that has an address, as a seat needs one."""

    def __init__(self, secret: SecretKey) -> None:
        super().__init__(secret)
        self.address = secret.address


@dataclass(slots=True)
class SimulatedLog:
    """A log that loses at a crash what was not synced, but for a torn piece of its beginning."""

    durable: bytes = b""
    pending: bytes = b""

    def crash(self, rng: random.Random, *, is_torn: bool) -> None:
        """Lose the tail; ``is_torn`` leaves some bytes of it, or zeros in their place, as file systems do."""
        if is_torn and self.pending:
            kept = rng.randrange(len(self.pending) + 1)
            tail = bytes(rng.randrange(len(self.pending) - kept + 1)) if rng.random() < 0.5 else b""
            if not (tail and self.pending[kept:].startswith(tail)):
                self.durable += self.pending[:kept] + tail
            else:
                self.durable += self.pending[:kept]
        self.pending = b""


class Crash(Exception):
    """The node loses power inside a durable operation."""


@dataclass(slots=True)
class Network:
    """What happens to messages now; the scenario changes it while it runs."""

    latency_ms_min: int = 1
    latency_ms_max: int = 30
    loss: float = 0.0
    duplication: float = 0.0
    blocked: Callable[[int, int], bool] | None = None


@dataclass(slots=True)
class Node:
    """One process: its disk survives it, everything else is lost at a crash."""

    number: int
    address: bytes
    signer: Signer | None
    honest: bool
    guard_log: SimulatedLog = field(default_factory=SimulatedLog)
    journal_log: SimulatedLog = field(default_factory=SimulatedLog)
    chain: list[tuple[bytes, Block, bytes, Certificate | None]] = field(default_factory=list)
    replica: r.Replica | None = None
    incarnation: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    executed: dict[bytes, bytes] = field(default_factory=dict)
    blocks: dict[bytes, Block] = field(default_factory=dict)
    clock_permille: int = 1000
    durable_operations: int = 0
    crash_at_operation: int = -1
    is_torn_next: bool = False
    restart_after_ms: int = 200
    halted: str | None = None
    entered: int = 0
    commit_at_ms: int = 0
    watches_own_seat: bool = True


class Cluster:
    """The nodes, the network and the clock. Scenarios drive it, the oracle judges it."""

    guard_type: type[Guard] = Guard
    core_type: type[Core] = Core

    def __init__(
        self,
        seed: int,
        weights: tuple[int, ...],
        honest: frozenset[int],
        *,
        twins: int = 0,
        is_real_crypto: bool = False,
        parameters: ConsensusParameters | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.weights = weights
        self.parameters = parameters or sim_parameters()
        keys: list[Any] = (
            [RealKey(SecretKey(digest(b"sim-real", bytes((number,))))) for number in range(len(weights))]
            if is_real_crypto
            else [FastKey(number) for number in range(len(weights))]
        )
        self.keys = keys
        self.is_real_crypto = is_real_crypto
        self.committee = Committee(
            Seat(key.address, key.vote_key, key.vote_key, weight)
            for key, weight in zip(keys, weights, strict=True)
        )
        self.oracle = Oracle(weights, honest, GENESIS_BLOCK)
        self.network = Network()
        self.now_ms = 0
        self.events = 0
        self.trace = 0
        self._heap: list[tuple[int, int, int, int, Any, Any]] = []
        self._sequence = 0
        self._decoded: dict[bytes, r.Decoded | None] = {}
        self._valid: dict[Check, bool] = {}
        self._by_key = {key.vote_key: key for key in keys}
        self._seen_data: set[bytes] = set()
        self.calls: dict[int, Callable[[], None]] = {}
        self.on_deliver: dict[int, Callable[[int, bytes, r.Decoded], None]] = {}
        self.on_proposal: Callable[[int, Proposal], None] | None = None
        self.nodes = [Node(number, key.address, key, number in honest) for number, key in enumerate(keys)]
        for number in range(twins):  # the faulty seats come first when there are twins
            seat = sorted(set(range(len(weights))) - honest)[number]
            self.nodes[seat].watches_own_seat = False
            twin = Node(len(self.nodes), keys[seat].address, keys[seat], False, watches_own_seat=False)
            self.nodes.append(twin)
        self._by_address: dict[bytes, list[int]] = {}
        for node in self.nodes:
            self._by_address.setdefault(node.address, []).append(node.number)

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

    def _handle(self, node: Node, what: Any, data: Any) -> None:
        replica = node.replica
        assert replica is not None
        if what == "message":
            sender, raw = data
            self.trace = crc32(raw, self.trace ^ (self.now_ms << 8 | node.number) & 0xFFFFFFFF)
            decoded = self.decode(raw)
            if decoded is None:
                return
            hook = self.on_deliver.get(node.number)
            if hook is not None:
                hook(sender, raw, decoded)
            try:
                inbound = replica.receive(self.nodes[sender].address, decoded)
            except DecodeError:
                if self.nodes[sender].honest:
                    raise Violation("an honest node's message was refused") from None
                return
            if inbound is None:
                return
            if inbound.checks and not all(map(self.is_valid, inbound.checks)):
                if self.nodes[sender].honest:
                    raise Violation("an honest node sent a signature that does not verify")
                return
            self.perform(node, replica.admit(inbound, self._clock(node)))
            return
        if what == "timer":
            del node.timers[data]
            self.perform(node, replica.step(c.TimerFired(data), self._clock(node)))
        elif what == "event":
            self.perform(node, replica.step(data, self._clock(node)))
        elif what == "built":
            view, block = data
            self.perform(node, replica.built(view, block, self._clock(node)))
        elif what == "execute":
            self._execute(node, data)
        elif what == "committed":
            self._commit(node, data)
        else:
            raise AssertionError(what)

    def _clock(self, node: Node) -> int:
        return self.now_ms * node.clock_permille // 1000

    # Processes.

    def start(self, node: Node) -> None:
        """Start a node from what its disk holds. Raises Violation when the guard refuses to open."""
        node.incarnation += 1
        node.timers.clear()
        node.blocks.clear()
        guard: Guard | None = None
        if node.signer is not None:
            if not node.guard_log.durable:
                node.guard_log.durable = self.guard_type(GENESIS, node.signer.vote_key).image()
            guard, whole = self.guard_type.load(node.guard_log.durable, GENESIS, node.signer.vote_key)
            node.guard_log.durable = node.guard_log.durable[:whole]
        root = genesis_root()
        node.executed = {root.block_hash: root.state_root}
        for block_hash, block, _, certificate in node.chain:
            state_root = next_state_root(root.state_root, block_hash)
            if block.header.state_root != root.state_root:
                raise Violation("a committed block rests on another state")
            view = certificate.view if certificate is not None else root.view
            root = Root(
                block_hash, block.header.height, view, state_root, ZERO_HASH, certificate or root.certificate
            )
            node.executed = {block_hash: state_root}
        node.replica = _replica_of(self.core_type)(
            committee=self.committee,
            genesis_hash=GENESIS,
            epoch=EPOCH,
            root=root,
            parameters=self.parameters,
            signer=node.signer,
            guard=guard,
            journal=node.journal_log.durable,
            verify=lambda checks: all(map(self.is_valid, checks)),
            compact_bytes=6_000,
            watches_own_seat=node.watches_own_seat,
        )
        try:
            self.perform(node, node.replica.start(self._clock(node)))
        except Crash:
            self.crash(node)

    def tell_mempool(self, number: int, has_transactions: bool) -> None:
        """Fill or empty a node's mempool."""
        node = self.nodes[number]
        if node.replica is not None:
            self.perform(node, node.replica.step(c.MempoolChanged(has_transactions), self._clock(node)))

    def start_all(self) -> None:
        """Start every node."""
        for node in self.nodes:
            self.start(node)

    def crash(self, node: Node, restart_after_ms: int | None = None) -> None:
        """Cut the power of a node; it restarts later from its disk."""
        if node.replica is None:
            return
        node.replica = None
        node.incarnation += 1
        node.crash_at_operation = -1
        for log in (node.guard_log, node.journal_log):
            log.crash(self.rng, is_torn=node.is_torn_next)
        delay_ms = node.restart_after_ms if restart_after_ms is None else restart_after_ms
        self.call_at(self.now_ms + delay_ms, lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        if node.replica is None:
            self.start(node)

    def _durable(self, node: Node) -> None:
        node.durable_operations += 1
        if node.durable_operations == node.crash_at_operation:
            raise Crash

    # Actions.

    def perform(self, node: Node, actions: list[r.Action]) -> None:
        """Do what a replica says, in its order; a crash may come inside any durable operation."""
        try:
            for action in actions:
                self._perform(node, action)
        except Crash:
            self.crash(node)

    def _perform(self, node: Node, action: r.Action) -> None:
        kind = type(action)
        if kind is c.SetTimer:
            name, delay_ms = action  # type: ignore[misc]
            at_ms = self.now_ms + max(1, delay_ms * 1000 // node.clock_permille)  # type: ignore[operator]
            node.timers[name] = at_ms  # type: ignore[index]
            self._push(at_ms, node.number, node.incarnation, "timer", name)
            return
        match action:
            case r.Broadcast(data, _):
                self._release(node, data)
                for other in self.nodes:
                    if other.number != node.number:
                        self.send(node.number, other.number, data)
            case r.Send(address, data, _):
                self._release(node, data)
                for number in self._by_address.get(address, ()):
                    if number != node.number:
                        self.send(node.number, number, data)
            case r.Append(log, data):
                target = node.guard_log if log == r.GUARD else node.journal_log
                target.pending += data
                self._durable(node)
            case r.Sync(log):
                self._durable(node)
                target = node.guard_log if log == r.GUARD else node.journal_log
                target.durable += target.pending
                target.pending = b""
            case r.Replace(log, data):
                self._durable(node)
                target = node.guard_log if log == r.GUARD else node.journal_log
                target.durable, target.pending = data, b""
            case c.Build(view, parent_hash, _):
                self._later(node, "built", (view, self._build(node, view, parent_hash)))
            case c.Check(block_hash):
                self._later(node, "event", c.BlockChecked(block_hash, self._is_valid_block(node, block_hash)))
            case c.Execute(block_hash):
                block = node.replica.block(block_hash) if node.replica is not None else None
                if block is None:
                    raise Violation("a replica asked for the execution of a block it does not hold")
                node.blocks[block_hash] = block
                self._later(node, "execute", block_hash)
            case c.Commit():
                # One commit after the other, as the writer of a database does it.
                node.commit_at_ms = max(node.commit_at_ms, self.now_ms + self.rng.randrange(0, 4))
                self._push(node.commit_at_ms, node.number, node.incarnation, "committed", action)
            case r.ServeBlock(address, block_hash):
                for known, _, raw, _ in reversed(node.chain):
                    if known == block_hash:
                        self._reply(node, address, BlockReply(raw))
                        break
            case r.ServeBlocks(address, from_height, count_max):
                self._serve(node, address, from_height, count_max)
            case c.Halt(code, _):
                node.halted = code
                node.replica = None
                if node.honest:
                    raise Violation(f"an honest node halted: {code}")
            case c.EnterView(view, _, _):
                node.entered = view
            case _:
                pass

    def _later(self, node: Node, what: str, data: Any) -> None:
        self._push(self.now_ms + self.rng.randrange(0, 4), node.number, node.incarnation, what, data)

    def _reply(self, node: Node, address: bytes, message: Message) -> None:
        self._perform(node, r.Send(address, encode_message(message), True))

    def _serve(self, node: Node, address: bytes, from_height: int, count_max: int) -> None:
        window = node.chain[from_height - 1 : from_height - 1 + min(count_max, BLOCKS_MAX)]
        while window and window[-1][3] is None:
            window.pop()
        if window:
            certificate = window[-1][3]
            assert certificate is not None
            self._reply(node, address, BlocksReply(from_height, certificate, tuple([item[2] for item in window])))

    def send(self, source: int, target: int, data: bytes) -> None:
        """Put a message on its way, or lose it, or let it arrive twice."""
        network, rng = self.network, self.rng
        if network.blocked is not None and network.blocked(source, target):
            return
        if network.loss and rng.random() < network.loss:
            return
        copies = 2 if network.duplication and rng.random() < network.duplication else 1
        for _ in range(copies):
            span = network.latency_ms_max - network.latency_ms_min + 1
            at_ms = self.now_ms + network.latency_ms_min + int(rng.random() * span)
            self._push(at_ms, target, self.nodes[target].incarnation, "message", (source, data))

    # The state machine, the disk of the chain and the keys.

    def make_block(self, *, height: int, view: int, seat: int, parent_hash: bytes, state_root: bytes) -> Block:
        """Return a block of the stub state machine with a transaction that no other block has."""
        body = (self.rng.getrandbits(64).to_bytes(8, "big"),)
        header = Header(
            VERSION, GENESIS, height, EPOCH, view, seat, parent_hash, height, merkle_root(body), ZERO_HASH,
            state_root, evidence_root(()), b"", self.committee.hash, ZERO_HASH, b"", 0, 8, 1, 1,
        )  # fmt: skip
        return Block(header, body)

    def _build(self, node: Node, view: int, parent_hash: bytes) -> Block:
        height = self._height_of(node, parent_hash) + 1
        seat = self.committee.seat_of(node.address)
        assert seat is not None
        return self.make_block(
            height=height, view=view, seat=seat, parent_hash=parent_hash, state_root=node.executed[parent_hash]
        )

    def _height_of(self, node: Node, block_hash: bytes) -> int:
        if block_hash in node.blocks:
            return node.blocks[block_hash].header.height
        return node.chain[-1][1].header.height if node.chain else 0

    def _is_valid_block(self, node: Node, block_hash: bytes) -> bool:
        block = node.replica.block(block_hash) if node.replica is not None else None
        return block is not None and block.header.time_ms == block.header.height

    def _execute(self, node: Node, block_hash: bytes) -> None:
        block = node.blocks[block_hash]
        parent = node.executed.get(block.header.parent_hash)
        if parent is None:
            return  # its branch was dropped meanwhile
        state_root = next_state_root(parent, block_hash)
        node.executed[block_hash] = state_root
        assert node.replica is not None
        event = c.BlockExecuted(block_hash, state_root, ZERO_HASH)
        self.perform(node, node.replica.step(event, self._clock(node)))

    def _commit(self, node: Node, commit: c.Commit) -> None:
        assert node.replica is not None
        try:
            self._durable(node)
        except Crash:
            self.crash(node)
            return
        for block_hash in commit.block_hashes:
            block = node.blocks[block_hash]
            is_last = block_hash == commit.block_hashes[-1]
            node.chain.append((block_hash, block, encode_block(block), commit.certificate if is_last else None))
            if node.honest:
                self.oracle.saw_commit(node.number, block.header.height, block_hash, node.executed[block_hash])
        if node.honest:
            self.oracle.saw_certificate(commit.certificate)
        height = node.chain[-1][1].header.height
        for block_hash in [known for known, block in node.blocks.items() if block.header.height < height]:
            del node.blocks[block_hash]
            node.executed.pop(block_hash, None)
        self.trace = crc32(commit.certificate.block_hash, self.trace)
        self.perform(node, node.replica.committed(commit.block_hashes))

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
            if self.is_real_crypto:
                known = verify_checks((check,))
            else:
                known = self._by_key[check.vote_key].sign_vote(check.digest) == check.signature
            self._valid[check] = known
        return known

    def _release(self, node: Node, data: bytes) -> None:
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
            case Proposal(candidate, signature, _, _, _):
                self.oracle.saw_block(candidate.block_hash, decoded.blocks[0][1].header.parent_hash)
                seat = self.committee.leader(candidate.view)
                self.oracle.saw_vote(Vote(NOTARIZE, *candidate, seat, signature))
            case _:
                pass

    def sign(self, seat: int, vote: Vote) -> Vote:
        """Sign for a faulty seat, past any guard."""
        signature = self.keys[seat].sign_vote(vote_digest(GENESIS, vote.kind, vote.candidate))
        signed = vote._replace(seat=seat, signature=signature)
        self.oracle.saw_vote(signed)
        return signed


_REPLICAS: dict[type[Core], type[r.Replica]] = {}


def _replica_of(core_type: type[Core]) -> type[r.Replica]:
    """The replica around another core: how seeded bugs get in."""
    if core_type is Core:
        return r.Replica
    if core_type not in _REPLICAS:
        _REPLICAS[core_type] = type("MutantReplica", (r.Replica,), {"core_type": core_type})
    return _REPLICAS[core_type]


def block_hash_of(block: Block) -> bytes:
    """Return a block's hash."""
    return header_hash(block.header)
