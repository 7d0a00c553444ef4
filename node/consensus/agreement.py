"""Connects the consensus service with the chain tree, the peers and the vote key."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog
import trio

from consensus import sync
from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard_log import FileLog, VoteDirectory
from consensus.ports import BuildRequest
from consensus.remote_voter import RemoteVoter
from consensus.replica import DOPPELGANGER_FACTOR_MAX, root_of
from consensus.service import ConsensusService, VotingKey
from consensus.votes import Certificate
from node.chain.block_tree import Body, Executed, decode_body
from node.chain.forks import kept, to_keep
from node.chain.ledger import NodeLedger
from node.consensus.compact_service import CompactBlocks
from node.consensus.vote_relay import VoteRelayService
from node.consensus.voter import LocalVoter, make_voter, votes_elsewhere
from node.home.config import Checkpoint, parse_vote_key
from node.home.guards import LISTENS_MS_MIN, open_guard
from node.home.options import NodeOptions
from node.home.paths import Home
from node.process.signature_pool import SignatureVerifier
from node.sync.database import checkpoint_of
from node.sync.start_plan import CheckpointMismatch
from node.telemetry.cpu_accounting import CpuAccounting
from node.telemetry.metrics import NodeMetrics
from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity
from p2p.service import Network
from state.primitives.blocks import Block, decode_header, header_hash
from state.primitives.genesis import read_parameters
from state.primitives.keys import SecretKey
from state.primitives.token_bucket import RateLimiter
from state.primitives.votes import Equivocation, VoteKey
from state.store import Pruned
from state.transition.epochs import EpochInfo, epoch_of, load_tally
from state.transition.runtime import Checked
from state.transition.staking import load_committee

__all__ = ["Agreement", "Progress", "tell_listening"]

_log = structlog.get_logger("consensus")
_T = TypeVar("_T")

KIND_CONSENSUS: Final = 0x01
KIND_CONSENSUS_BULK: Final = 0x02
BODIES_MAX: Final = 16
"""Blocks whose checked transactions are kept between check and execution."""
LISTENING_LOOK_S: Final = 1.0
VIEWS_AHEAD_MAX: Final = 64
VIEWS_BEHIND_MAX: Final = 8
"""A compact proposal is rebuilt only if its view is at most this far from the current one."""
YOUNG_S: Final = 0.15
"""Transactions younger than this are included in a compact proposal: gossip may not have reached all peers."""
YOUNG_MAX: Final = 1_024
POOL_NOTES_MAX: Final = 64
POOL_NOTE_S: Final = 0.01
LAG_BLOCKS_MAX: Final = 2
"""A node further behind than this is syncing."""
THREADS_MAX: Final = 8
"""Worker threads reserved for the chain."""
SEATS_KEPT: Final = 3
"""Connections to committee members that a node without a seat keeps."""
BLAMES_LOGGED_PER_S: Final = 0.2
BLAMES_LOGGED_BURST: Final = 20
"""Faults of peers that are logged individually; the metrics count all."""


class Progress(NamedTuple):
    """Progress of this node. ``highest`` is the highest height that peers claim or that was proven."""

    epoch: int
    view: int
    highest: int
    is_syncing: bool


class EvidenceSource(Protocol):
    """The pool of evidence that waits for a block."""

    def found(self, equivocation: Equivocation) -> None:
        """Add evidence that this node found."""
        ...

    def found_fork(self, certificate: Certificate) -> None:
        """Add evidence from a verified certificate of another chain."""
        ...

    def take(self) -> tuple[bytes, ...]:
        """Return evidence for the next block."""
        ...


class Agreement:
    """Connects ``consensus.service`` and starts it.

    ``votes`` are the vote key and, during a rotation, the next one; the one with a seat votes.
    ``accepts_empty_guard``: the operator states that the vote key has never voted although its record is empty.

    Raises GuardMissing, GuardCorrupt, GuardOutdated and ConfigError, and UpgradeRequired for a chain with a
    protocol version that this release does not know.
    """

    def __init__(
        self, ledger: NodeLedger, verifier: SignatureVerifier, network: Network, metrics: NodeMetrics, *,
        home: Home, options: NodeOptions, votes: Sequence[SecretKey], make_identity: Callable[[], Identity],
        evidence: EvidenceSource, stages: CpuAccounting, accepts_empty_guard: bool = False,
        on_block_time: Callable[[bytes, int], None] | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._network = network
        runtime = ledger.runtime
        number = epoch_of(ledger.store.tip.height + 1, runtime.chain)
        info = _epoch_info(ledger, number)
        self.committee = info.committee
        root, certificates = _root(ledger, number)
        parameters = read_parameters(ConsensusParameters, "consensus", runtime.genesis)
        voting = _open_voting(
            ledger, metrics, number, root.view, home=home, options=options, votes=votes,
            make_identity=make_identity, accepts_empty_guard=accepts_empty_guard, parameters=parameters,
        )  # fmt: skip
        parameters = voting.parameters
        self._directories, self._signers = voting.directories, voting.signers
        self._port = _NetworkPort(network)
        self._listens_s = DOPPELGANGER_FACTOR_MAX * parameters.doppelganger_ms / 1000
        self._began_s = inf
        self.service = ConsensusService(
            epoch=_epoch(info),
            genesis_hash=runtime.genesis_hash,
            root=root,
            certificates=certificates,
            parameters=parameters,
            chain=_ChainPort(
                ledger, verifier, stages, evidence, lambda: self.progress().is_syncing, checkpoint_of(options)
            ),
            network=self._port,
            wall_ms=wall_ms,
            keys=voting.keys,
            voters=voting.signers,
            journal=voting.journal,
            metrics=metrics,
            on_equivocation=evidence.found,
            on_fork=evidence.found_fork,
            on_block_time=on_block_time,
        )
        self._vote_relay = VoteRelayService(
            network,
            self.service,
            genesis_hash=runtime.genesis_hash,
            following=lambda epoch: load_committee(ledger.store, epoch),
        )
        self.service.listener = self._port.vote_relay = self._vote_relay
        self._pool = _PoolPort(ledger)
        self._port.compact = CompactBlocks(
            network,
            self._pool,
            own=network.identity.address,
            kind=KIND_CONSENSUS_BULK,
            leads=self._leads,
            deliver=self.service.receive,
            blame=self._port.blame,
            in_thread=lambda function: trio.to_thread.run_sync(stages.call, "decode", function),
            random=Random(),
        )
        network.on_message(KIND_CONSENSUS, self._receive)
        network.on_message(KIND_CONSENSUS_BULK, self._receive_bulk)
        network.on_peer(self._on_peer)
        self._seat_committee(number)
        ledger.add_listener(self._on_commit)
        # The replica assumes that transactions wait until it is told otherwise: an idle chain must hear it once.
        self._had_transactions = True
        self._pool_changed()
        ledger.on_pool_changed = self._pool_changed

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the replica and the connection to a signer. Errors: see ConsensusService.run and RemoteVoter.run."""
        try:
            async with trio.open_nursery() as nursery:
                for signer in self._signers:
                    await nursery.start(signer.run)
                nursery.start_soon(self._vote_relay.run)
                if self._port.compact is not None:
                    nursery.start_soon(self._port.compact.run)
                self._began_s = trio.current_time()
                nursery.start_soon(tell_listening, lambda: self.listens_s_max, self._listens_s)
                await self.service.run(task_status)
        finally:
            for directory in self._directories:
                directory.close()

    @property
    def listens_s_max(self) -> int:
        """Maximum remaining seconds for which this seat listens for votes of its key from elsewhere."""
        if not self.service.status().is_listening:
            return 0
        return max(0, ceil(self._began_s + self._listens_s - trio.current_time()))

    def _on_peer(self, address: bytes, is_connected: bool) -> None:
        if is_connected:
            self.service.connected(address)

    def _on_commit(self, blocks: Sequence[Executed]) -> None:
        number = epoch_of(blocks[-1].header.height + 1, self._ledger.runtime.chain)
        if number != blocks[0].header.epoch:
            self._seat_committee(number)

    def _seat_committee(self, number: int) -> None:
        """Keep connections to the committees of epoch ``number`` and of the next one, so that they exist in time.

        A node without a seat keeps connections to a few members and gets the messages from them.
        """
        sitting, following = (load_committee(self._ledger.store, epoch) for epoch in (number, number + 1))
        assert sitting is not None, "known since the boundary before the last"
        self.committee = sitting
        seats = dict.fromkeys(
            seat.address for committee in (sitting, following) if committee is not None for seat in committee.seats
        )
        is_seated = self._network.identity.address in seats
        self._port.seat(tuple(seats), is_seated=is_seated)
        self._network.set_persistent(seats, kept=None if is_seated else SEATS_KEPT)

    def sync_progress(self) -> sync.Progress:
        """Return the sync progress for a progress bar; its claimed height is unproven."""
        return self.service.progress()

    def progress(self) -> Progress:
        """Return the progress of this node."""
        status, claimed = self.service.status(), self.service.progress().claimed_height
        return Progress(status.epoch, status.view, claimed, claimed > self._ledger.head().height + LAG_BLOCKS_MAX)

    def is_synced(self) -> bool:
        """Tell whether the node follows the chain, according to the peers that serve blocks."""
        return not self.progress().is_syncing

    async def _receive(self, peer: bytes, body: bytes) -> None:
        self.service.receive(peer, body)

    async def _receive_bulk(self, peer: bytes, body: bytes) -> None:
        if self._port.compact is None or self._port.compact.came(peer, body):
            self.service.receive(peer, body)

    def _leads(self, address: bytes, epoch: int, view: int) -> bool:
        """Tell whether a view is near and, as far as this node knows, has that address as its leader."""
        status, committee = self.service.status(), self.committee
        if epoch != status.epoch or not -VIEWS_BEHIND_MAX <= view - status.view < VIEWS_AHEAD_MAX:
            return False
        return committee.seats[committee.leader(view)].address == address

    def _pool_changed(self) -> None:
        self._pool.note(trio.current_time())
        has_transactions = self._ledger.mempool.pending_count > 0
        if has_transactions != self._had_transactions:
            self._had_transactions = has_transactions
            self.service.mempool_changed(has_transactions)


@dataclass(frozen=True, slots=True)
class _Voting:
    """The vote keys of this node, or the signers that hold them; both empty for a node without a vote."""

    parameters: ConsensusParameters
    keys: tuple[VotingKey, ...] = ()
    signers: tuple[RemoteVoter, ...] = ()
    directories: tuple[VoteDirectory, ...] = ()
    journal: FileLog | None = None
    """For a node with a signer. A key in this process has its journal in its directory."""


def _open_voting(
    ledger: NodeLedger, metrics: NodeMetrics, number: int, view: int, *, home: Home, options: NodeOptions,
    votes: Sequence[SecretKey], make_identity: Callable[[], Identity], accepts_empty_guard: bool,
    parameters: ConsensusParameters,
) -> _Voting:  # fmt: skip
    """Open the guards of the vote keys, or prepare the connections to their signers. Raises as ``Agreement``."""
    vote_key = parse_vote_key(options.signer.vote_key) if votes_elsewhere(options) else None
    if votes:
        vote_key = votes[0].vote_key
    reached: dict[bool, bool] = {}

    def tell(is_next: bool, is_reached: bool) -> None:
        reached[is_next] = is_reached
        metrics.set("signer_connected", float(all(reached.values())))

    def make(is_next: bool, key: bytes | None, vote: SecretKey | None) -> LocalVoter | RemoteVoter | None:
        return make_voter(
            home,
            options,
            chain_hash=ledger.runtime.genesis_hash,
            vote=vote,
            make_identity=make_identity,
            may_have_voted=lambda: key is not None and _may_have_voted(ledger, number, key),
            tip=(number, view),
            accepts_empty_guard=accepts_empty_guard,
            on_change=lambda is_reached, _: tell(is_next, is_reached),
            is_next=is_next,
            listens_ms=parameters.doppelganger_ms,
        )

    voter = make(False, vote_key, votes[0] if votes else None)
    if voter is None:
        return _Voting(parameters)
    if isinstance(voter, LocalVoter):
        if voter.directory.is_behind:
            parameters = replace(parameters, doppelganger_ms=max(parameters.doppelganger_ms, LISTENS_MS_MIN))
        following = [_next_key(ledger, home, number, view, secret) for secret in votes[1:]]
        keys = (VotingKey(voter.key, voter.directory), *following)
        return _Voting(parameters, keys, (), (voter.directory, *(key.directory for key in following)))
    signers = [voter]
    if options.signer.vote_key_next:
        next_signer = make(True, parse_vote_key(options.signer.vote_key_next), None)
        assert isinstance(next_signer, RemoteVoter)
        signers.append(next_signer)
    directory = VoteDirectory(home.guard)  # the record of what the votes rest on stays with the chain
    return _Voting(parameters, (), tuple(signers), (directory,), directory.journal)


def _next_key(ledger: NodeLedger, home: Home, number: int, view: int, secret: SecretKey) -> VotingKey:
    """Open the guard of the next key, which votes once the chain gives it a seat."""
    directory = open_guard(
        home.guard_of(secret.vote_key),
        ledger.runtime.genesis_hash,
        secret.vote_key,
        may_have_voted=_may_have_voted(ledger, number, secret.vote_key),
        tip=(number, view),
        accepts_empty=False,
    )
    return VotingKey(VoteKey(secret), directory)


def wall_ms() -> int:
    """Return this machine's clock; only block times may depend on it."""
    return time.time_ns() // 1_000_000


def _epoch_info(ledger: NodeLedger, number: int) -> EpochInfo:
    """Return the final state's record of an epoch that may begin. Raises UpgradeRequired."""
    info = ledger.chain.epoch_info(number)
    assert info is not None, f"epoch {number} is known when the one before it ends"
    ledger.runtime.require_version(info.version)
    return info


def _epoch(info: EpochInfo) -> Epoch:
    return Epoch(info.epoch, info.last_height, info.committee, info.randomness, info.lottery_weight)


def _may_have_voted(ledger: NodeLedger, number: int, vote_key: bytes) -> bool:
    """Tell whether the chain has votes of a key, or had a seat for it in an epoch whose record is gone."""
    for epoch in range(number, max(-1, number - ledger.runtime.chain.evidence_epochs), -1):
        committee = load_committee(ledger.store, epoch)
        if committee is None:
            continue
        for seat, sitting in enumerate(committee.seats):
            if sitting.vote_key == vote_key:
                tally = load_tally(ledger.store, epoch)
                if tally is None or tally.finalised[seat] or tally.led[seat]:
                    return True
    return False


def _root(ledger: NodeLedger, number: int) -> tuple[Root, tuple[Certificate, ...]]:
    tip = ledger.store.tip
    header = decode_header(tip.header) if tip.header else None
    root, certificates = root_of(
        block_hash=tip.block_hash,
        height=tip.height,
        view=header.view if header is not None and header.epoch == number else 0,
        state_root=tip.state_root,
        receipt_root=tip.receipt_root,
        certificate=ledger.store.certificate(tip.height),
        epoch=number,
    )
    return root, (*certificates, *kept(ledger.store, number, root.view))


class _PoolPort:
    """The mempool in the form that compact proposals need."""

    def __init__(self, ledger: NodeLedger) -> None:
        self._ledger = ledger
        self._arrivals = 0
        self._notes: deque[tuple[float, int]] = deque(maxlen=POOL_NOTES_MAX)
        """Times of pool changes, with the number of earlier arrivals."""

    def note(self, now: float) -> None:
        """Note a change of the pool."""
        before, self._arrivals = self._arrivals, self._ledger.mempool.arrivals(0, 0)[0]
        if self._arrivals != before and (not self._notes or now >= self._notes[-1][0] + POOL_NOTE_S):
            self._notes.append((now, before))

    def hashes(self) -> Sequence[bytes]:
        """Return the hashes of all waiting transactions."""
        return self._ledger.mempool.arrivals(0, len(self._ledger.mempool))[1]

    def young(self) -> frozenset[bytes]:
        """Return the hashes of transactions that arrived within ``YOUNG_S``."""
        since_s = trio.current_time() - YOUNG_S
        for at_s, before in self._notes:
            if at_s >= since_s:
                return frozenset(self._ledger.mempool.arrivals(before, YOUNG_MAX)[1])
        return frozenset()

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        """Return a transaction's bytes; from any thread."""
        checked = self._ledger.mempool.get(transaction_hash)
        return None if checked is None else checked.transaction.raw

    def hash_of(self, raw: bytes) -> bytes | None:
        """Return the hash of a transaction that waits or was in a recent block; from any thread."""
        checked = self._ledger.find(raw)
        return None if checked is None else checked.transaction.hash


async def tell_listening(left_s: Callable[[], int], until_s: float) -> None:
    """Log the beginning and the end of the listening time before the first vote: a chain may wait for it."""
    with trio.move_on_after(until_s + 2 * LISTENING_LOOK_S):
        before = 0
        while True:
            await trio.sleep(LISTENING_LOOK_S)  # which epoch it has a seat in may have to be found first
            now = left_s()
            if now and not before:
                _log.info(
                    "listening for votes of the same key from elsewhere before the first vote", at_most_s=now
                )
            elif before and not now:
                _log.info("no vote of the same key from elsewhere: this node votes now")
                return
            before = now


class _NetworkPort:
    """Consensus messages to peers: votes before everything, blocks before everything but votes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.vote_relay: VoteRelayService | None = None
        """Relays votes to seats without a connection; None: such seats get nothing."""
        self.compact: CompactBlocks | None = None
        """Sends proposals in compact form; None: they are sent whole."""
        self.seats: tuple[bytes, ...] = ()
        """Receivers of every message: the seats of this and the next epoch. Without a seat: only the own peers."""
        self._blames = RateLimiter(per_s=BLAMES_LOGGED_PER_S, burst=BLAMES_LOGGED_BURST)

    def seat(self, seats: tuple[bytes, ...], *, is_seated: bool = True) -> None:
        """Set the seats of this and the next epoch, and whether this node has one."""
        self.seats = seats if is_seated else ()
        if self.compact is not None:
            self.compact.seats = seats

    async def send(self, address: bytes, data: bytes, is_bulk: bool) -> None:
        """Send to one address."""
        cls, kind = _lane(is_bulk)
        if self.vote_relay is not None and not is_bulk:
            address = self.vote_relay.route(address, data)
        self._network.send(address, cls, kind, data)

    async def broadcast(self, data: bytes, is_bulk: bool) -> None:
        """Send to all other seats and to all connected followers; blocks go to the seats first."""
        cls, kind = _lane(is_bulk)
        peers = self._network.peers()
        followers = [peer.address for peer in peers]
        if is_bulk and self.compact is not None:
            self.compact.send(data, self.seats, followers)
        elif is_bulk:
            self._network.multicast(self.seats, cls, kind, data, followers=followers)
        else:
            self._network.broadcast(dict.fromkeys((*self.seats, *followers)), cls, kind, data)
        if self.vote_relay is not None:
            self.vote_relay.sent(data, frozenset(peer.address for peer in peers if peer.is_attached))

    def blame(self, address: bytes, reason: str) -> None:
        """Take points from a peer for a message that only a faulty node sends."""
        if self._blames.allows(None, trio.current_time()):  # other nodes must not fill the disk with lines
            _log.warning(
                "a peer sent a message that only a faulty node sends; it loses points", peer=address, reason=reason
            )
        self._network.penalise(address, 10.0)

    def ban(self, address: bytes, reason: str) -> None:
        """Ban a lying peer at once. A seat only loses points, because its votes count in any case."""
        self.blame(address, reason)
        if address not in self._network.persistent:
            self._network.ban(address, reason)


def _lane(is_bulk: bool) -> tuple[TrafficClass, int]:
    return (TrafficClass.BLOCK, KIND_CONSENSUS_BULK) if is_bulk else (TrafficClass.CONSENSUS, KIND_CONSENSUS)


class _ChainPort:
    """The chain tree, with its long calls in worker threads."""

    def __init__(
        self, ledger: NodeLedger, verifier: SignatureVerifier, stages: CpuAccounting, evidence: EvidenceSource,
        is_syncing: Callable[[], bool] = lambda: False, checkpoint: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._evidence = evidence
        self._is_syncing = is_syncing
        self._checkpoint = checkpoint
        self._chain = ledger.chain
        self._verifier = verifier
        self._stages = stages
        self._bodies: OrderedDict[bytes, Sequence[Checked]] = OrderedDict()
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    async def build(self, request: BuildRequest) -> Block | None:
        limit = self._ledger.runtime.chain.transactions_max
        # The chain waits for its lock, which an execution or a commit may hold for long: never on the event loop.
        room = await self._in_thread("build", lambda: self._ledger.room_after(request.parent_hash))
        with self._stages.measure("build"):
            transactions = self._ledger.take(limit, room)
        evidence = self._evidence.take()
        block, chosen = await self._in_thread("build", lambda: self._build(request, transactions, evidence))
        self._keep(header_hash(block.header), chosen)
        return block

    def _build(
        self, request: BuildRequest, transactions: Iterable[Checked], evidence: tuple[bytes, ...]
    ) -> tuple[Block, list[Checked]]:
        return self._chain.build(
            request.parent_hash,
            epoch=request.epoch,
            view=request.view,
            seat=request.seat,
            time_ms=request.time_ms,
            voters_bitmap=request.voters_bitmap,
            vrf_proof=request.vrf_proof,
            transactions=transactions,
            evidence=evidence,
        )

    async def check(self, block: Block) -> None:
        transactions = await self._body(header_hash(block.header), block)
        await self._in_thread("check", lambda: self._chain.check(block, transactions, now_ms=wall_ms()))

    async def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes]:
        transactions = await self._body(block_hash, block)
        executed = await self._in_thread(
            "execute", lambda: self._chain.execute(block, transactions, block_hash=block_hash)
        )
        self._bodies.pop(block_hash, None)
        return executed.state_root, executed.receipt_root

    async def commit(self, block_hash: bytes, certificate: bytes, views: tuple[Certificate, ...]) -> None:
        self._check_checkpoint(block_hash)
        halves = to_keep(views)
        blocks = await self._in_thread("commit", lambda: self._chain.commit(block_hash, certificate, halves))
        with self._stages.measure("commit"):
            self._ledger.on_commit(blocks)
        tell = _log.debug if self._is_syncing() else _log.info  # the sync tells of many blocks in one line
        for executed in blocks:
            tell(
                "final", height=executed.header.height, block=executed.block_hash, view=executed.header.view,
                transactions=executed.header.tx_count, gas=executed.execution.gas_used,
            )  # fmt: skip

    def _check_checkpoint(self, block_hash: bytes) -> None:
        """Let the chain pass the checkpoint's height only through that block. Raises CheckpointMismatch."""
        checkpoint = self._checkpoint
        if checkpoint is None or self._ledger.store.tip.height >= checkpoint.height:
            return
        executed = self._chain.get(block_hash)
        while executed is not None and executed.header.height > checkpoint.height:
            executed = self._chain.get(executed.header.parent_hash)
        if executed is None or executed.header.height < checkpoint.height:
            return
        if executed.block_hash != checkpoint.block_hash:
            raise CheckpointMismatch(checkpoint, executed.block_hash)

    async def drop(self, block_hashes: tuple[bytes, ...]) -> None:
        for block_hash in block_hashes:
            self._bodies.pop(block_hash, None)
        await self._in_thread("commit", lambda: self._chain.drop(block_hashes))

    async def block(self, block_hash: bytes) -> bytes | None:
        height = self._ledger.store.height_of(block_hash)
        try:
            return None if height is None else await trio.to_thread.run_sync(self._ledger.store.block, height)
        except Pruned:
            return None

    async def blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        return await trio.to_thread.run_sync(self._blocks, from_height, count_max)

    def _blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        store, found = self._ledger.store, []
        for height in range(max(1, from_height), min(from_height + count_max, store.tip.height + 1)):
            try:
                record, raw = store.height(height), store.block(height)
            except Pruned:
                break
            if record is None or raw is None:
                break
            found.append((record.block_hash, raw, store.certificate(height)))
        return found

    def oldest_height(self) -> int:
        return self._ledger.store.oldest_block

    async def epoch(self, number: int) -> Epoch:
        return _epoch(await trio.to_thread.run_sync(_epoch_info, self._ledger, number))

    def time_ahead_ms_max(self) -> int:
        """Return the maximum lead of a block's time over this node's clock."""
        return self._chain.runtime.chain.time_ahead_ms_max

    def time_ms(self, block_hash: bytes) -> int:
        executed = self._chain.get(block_hash)
        if executed is not None:
            return executed.header.time_ms
        return self._chain.tip.time_ms if block_hash == self._chain.tip.block_hash else 0

    async def _body(self, block_hash: bytes, block: Block) -> Sequence[Checked]:
        """Return the block's transactions with all signatures checked, earlier by the pool or now by the
        workers.
        """
        known = self._bodies.get(block_hash)
        if known is not None:
            return known
        body: Body = await self._in_thread(
            "decode",
            lambda: decode_body(self._ledger.runtime, block.transactions, self._ledger.find),
        )
        addresses = await self._verifier.recover(body.batch) if body.batch else b""
        checked = await self._in_thread("decode", lambda: body.resolve(addresses))
        self._keep(block_hash, checked)
        return checked

    async def _in_thread(self, stage: str, function: Callable[[], _T]) -> _T:
        return await trio.to_thread.run_sync(self._stages.call, stage, function, limiter=self._threads)

    def _keep(self, block_hash: bytes, checked: Sequence[Checked]) -> None:
        self._bodies[block_hash] = checked
        self._ledger.remember(checked)
        while len(self._bodies) > BODIES_MAX:
            self._bodies.popitem(last=False)
