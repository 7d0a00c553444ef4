"""A network of services on trio with real files, keys and signatures, and a chain of hashes with epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import trio

from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard import Guard
from consensus.guard_log import VoteDirectory
from consensus.metrics import Metrics
from consensus.ports import BuildRequest
from consensus.replica import root_of
from consensus.service import ConsensusService, VotingKey
from consensus.signer import GuardState, SignerUnavailable
from consensus.votes import Certificate
from state.primitives.blocks import (
    VERSION,
    Block,
    Header,
    encode_block,
    evidence_root,
    header_hash,
    transactions_root,
)
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DekubeError, InvalidBlock
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.votes import Candidate, Equivocation, Vote, VoteKey, vote_digest, vrf_alpha
from state.primitives.vrf import vrf_verify

GENESIS = digest(b"test", b"genesis")
ROOT = Root(digest(b"test", b"block 0"), 0, 0, digest(b"test", b"state 0"), ZERO_HASH)
PARAMETERS = ConsensusParameters(
    leader_ms=400, advance_ms=800, block_interval_ms=0, retransmit_ms=300, fetch_ms=200, pull_ms=20, idle_ms=0,
    window_ms=600, status_ms=300, doppelganger_ms=0,
)  # fmt: skip
NEVER = 10**9


class UpgradeRequired(DekubeError):
    """The next epoch has a version of the protocol that this node does not know."""

    code = "upgrade_required"


def vote_key(account: int, number: int = 0) -> VoteKey:
    """The vote key of an account; each rotation has the next number."""
    return VoteKey(SecretKey(digest(b"test-key", bytes((account, number)))))


def address_of(account: int) -> bytes:
    return digest(b"test-account", bytes((account,)))[:20]


def committee_of(*members: tuple[int, int, int]) -> Committee:
    """A committee of (account, number of its key, weight)."""
    keys = [vote_key(account, number) for account, number, _ in members]
    return Committee(
        Seat(address_of(account), key.vote_key, key.vrf_key, weight)
        for key, (account, _, weight) in zip(keys, members, strict=True)
    )


FOUR = committee_of(*((account, 0, 1) for account in range(4)))


class Epochs:
    """Which committee sits when."""

    def __init__(self, blocks: int = NEVER, committee: Callable[[int], Committee] = lambda _: FOUR) -> None:
        self.blocks, self._committee = blocks, committee
        self.unknown_from = NEVER
        self.refusal: DekubeError = UpgradeRequired("an epoch of version 2")

    def get(self, number: int) -> Epoch:
        if number >= self.unknown_from:
            raise self.refusal
        randomness = digest(b"test", b"randomness" + bytes((number,)))
        return Epoch(number, (number + 1) * self.blocks, self._committee(number), randomness)

    def of_height(self, height: int) -> Epoch:
        return self.get((height - 1) // self.blocks)


class HashChain:
    """A chain port whose state is a chain of hashes."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs
        self.final: list[tuple[bytes, bytes, bytes | None, Header]] = []
        self.roots = {ROOT.block_hash: ROOT.state_root}
        self.times = {ROOT.block_hash: 0}
        self.heights = {ROOT.block_hash: 0}
        self.held: dict[bytes, Block] = {}
        self.grown = trio.Event()
        self.is_wrong = False
        self.served: list[tuple[int, int]] = []
        self.views: tuple[Certificate, ...] = ()
        self.ahead_ms_max = 2_000
        self.wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    async def build(self, request: BuildRequest) -> Block | None:
        body = (request.view.to_bytes(8, "big"),)
        height = self.heights[request.parent_hash] + 1
        epoch = self.epochs.of_height(height)
        following = self.epochs.of_height(height + 1).committee.hash if height == epoch.last_height else ZERO_HASH
        header = Header(
            VERSION, GENESIS, height, request.epoch, request.view, request.seat, request.parent_hash,
            request.time_ms, transactions_root(body), ZERO_HASH, self.roots[request.parent_hash],
            evidence_root(()), request.vrf_proof, request.committee_hash, following, request.voters_bitmap,
            0, 8, 1, 1,
        )  # fmt: skip
        return Block(header, body)

    async def check(self, block: Block) -> None:
        header = block.header
        epoch = self.epochs.of_height(header.height)
        seat = epoch.committee.seats[header.proposer_seat]
        alpha = vrf_alpha(GENESIS, epoch.randomness, header.epoch, header.view)
        if header.time_ms < self.times[header.parent_hash] or header.epoch != epoch.number:
            raise InvalidBlock("time or epoch")
        if header.time_ms > self.wall_ms() + self.ahead_ms_max:
            raise InvalidBlock("a time ahead")
        if vrf_verify(seat.vrf_key, alpha, header.vrf_proof) is None:
            raise InvalidBlock("VRF proof")

    async def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes]:
        header = block.header
        if header.parent_hash not in self.roots:
            raise InvalidBlock("unknown parent")
        salt = b"wrong" if self.is_wrong else b""
        self.roots[block_hash] = digest(b"test", self.roots[header.parent_hash] + block_hash + salt)
        self.times[block_hash], self.heights[block_hash] = header.time_ms, header.height
        self.held[block_hash] = block
        await trio.lowlevel.checkpoint()
        return self.roots[block_hash], ZERO_HASH

    async def commit(self, block_hash: bytes, certificate: bytes, views: tuple[Certificate, ...]) -> None:
        self.views += views
        branch = []
        last = self.final[-1][0] if self.final else ROOT.block_hash
        while block_hash != last:
            branch.append(block_hash)
            block_hash = self.held[block_hash].header.parent_hash
        for known in reversed(branch):
            block = self.held.pop(known)
            is_last = known == branch[0]
            self.final.append((known, encode_block(block), certificate if is_last else None, block.header))
        self.grown.set()
        self.grown = trio.Event()

    async def drop(self, block_hashes: tuple[bytes, ...]) -> None:
        for block_hash in block_hashes:
            self.held.pop(block_hash, None)

    async def block(self, block_hash: bytes) -> bytes | None:
        return next((raw for known, raw, _, _ in self.final if known == block_hash), None)

    async def blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        self.served.append((from_height, count_max))
        window = self.final[from_height - 1 : from_height - 1 + count_max]
        return [(known, raw, certificate) for known, raw, certificate, _ in window]

    def oldest_height(self) -> int:
        return 1

    async def epoch(self, number: int) -> Epoch:
        await trio.lowlevel.checkpoint()
        return self.epochs.get(number)

    def time_ahead_ms_max(self) -> int:
        return self.ahead_ms_max

    def time_ms(self, block_hash: bytes) -> int:
        return self.times.get(block_hash, 0)

    async def wait_height(self, height: int) -> None:
        while len(self.final) < height:
            await self.grown.wait()

    def root(self) -> tuple[Epoch, Root, tuple[Certificate, ...]]:
        """What a start finds here."""
        if not self.final:
            return self.epochs.of_height(1), ROOT, ()
        block_hash, _, certificate, header = self.final[-1]
        epoch = self.epochs.of_height(header.height + 1)
        root, certificates = root_of(
            block_hash=block_hash, height=header.height, view=header.view, state_root=self.roots[block_hash],
            receipt_root=ZERO_HASH, certificate=certificate, epoch=epoch.number,
        )  # fmt: skip
        return epoch, root, certificates


class Switchboard:
    """Every service's network port; ``down`` are cut off."""

    def __init__(self) -> None:
        self.services: dict[bytes, ConsensusService] = {}
        self.blamed: list[bytes] = []
        self.banned: list[bytes] = []
        self.reasons: list[str] = []
        self.down: set[bytes] = set()
        self.taps: list[Callable[[bytes, bytes, bytes], bool]] = []
        """Called with source, target and data; one that returns True has taken the message away."""

    def port(self, own: bytes) -> Port:
        return Port(self, own)


class Port:
    def __init__(self, board: Switchboard, own: bytes) -> None:
        self._board, self._own = board, own

    async def send(self, address: bytes, data: bytes, is_bulk: bool) -> None:
        await trio.lowlevel.checkpoint()
        service = self._board.services.get(address)
        if any(tap(self._own, address, data) for tap in self._board.taps):
            return
        if service is not None and not {address, self._own} & self._board.down:
            service.receive(self._own, data)

    async def broadcast(self, data: bytes, is_bulk: bool) -> None:
        for address in list(self._board.services):
            if address != self._own:
                await self.send(address, data, is_bulk)

    def blame(self, address: bytes, reason: str) -> None:
        self._board.blamed.append(address)
        self._board.reasons.append(reason)

    def ban(self, address: bytes, reason: str) -> None:
        self._board.banned.append(address)


class ElsewhereVoter:
    """A voter in another process, as the service sees one: it may be away, and it remembers."""

    def __init__(self, key: VoteKey) -> None:
        self._key = key
        self.guard = Guard(GENESIS, key.vote_key)
        self.is_away = False
        self.asked = 0
        self.epochs: set[int] = set()
        """In which it has voted."""

    @property
    def vote_key(self) -> bytes:
        return self._key.vote_key

    async def guard_state(self) -> GuardState:
        await trio.lowlevel.checkpoint()
        return GuardState(self._key.vote_key, self._key.vrf_key, self.guard.floor, self.guard.votes())

    async def vote(self, kind: int, candidate: Candidate, seat: int) -> Vote:
        await trio.sleep(0.001)
        self.asked += 1
        if self.is_away:
            raise SignerUnavailable("away")
        made = self.guard.check(kind, candidate)
        if made is None:
            signature = self._key.sign_vote(vote_digest(GENESIS, kind, candidate))
            made = Vote(kind, *candidate, seat, signature)
            self.guard.record(made)
            self.epochs.add(candidate.epoch)
        return made

    async def prove(self, epoch: int, view: int, randomness: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise SignerUnavailable("away")
        return self._key.prove(vrf_alpha(GENESIS, randomness, epoch, view))

    async def raise_floor(self, epoch: int, view: int) -> None:
        await trio.lowlevel.checkpoint()
        self.guard.raise_floor(epoch, view)


class Member:
    """One validator with its directories, or an observer without keys; ``live`` is one life."""

    def __init__(
        self, path: Path, account: int, board: Switchboard, epochs: Epochs | None = None, *, keys: int = 1
    ) -> None:
        self.account, self.address, self.board = account, address_of(account), board
        self.chain = HashChain(epochs or Epochs())
        self.parameters = PARAMETERS
        self.ahead_ms = 0
        self.chain.wall_ms = self.wall_ms
        self.voters: tuple[ElsewhereVoter, ...] = ()
        self.metrics: Metrics | None = None
        self.found: list[Equivocation] = []
        self._paths = [path / f"{account}-{number}" for number in range(keys)]
        for number, own in enumerate(self._paths):
            directory = VoteDirectory(own)
            directory.create_guard(Guard(GENESIS, vote_key(account, number).vote_key))
            directory.close()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    async def live(self, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
        epoch, root, certificates = self.chain.root()
        directories = [VoteDirectory(own) for own in self._paths]
        keys = [
            VotingKey(vote_key(self.account, number), directory) for number, directory in enumerate(directories)
        ]
        service = ConsensusService(
            epoch=epoch, genesis_hash=GENESIS, root=root, certificates=certificates, parameters=self.parameters,
            chain=self.chain, network=self.board.port(self.address),
            wall_ms=self.wall_ms, keys=keys, voters=self.voters,
            metrics=self.metrics, on_equivocation=self.found.append,
        )  # fmt: skip
        self.service = self.board.services[self.address] = service
        try:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                await service.run()
        finally:
            for directory in directories:
                directory.close()


def assert_one_chain(*chains: HashChain) -> None:
    """All chains are the same as far as the shortest goes."""
    shortest = min(len(chain.final) for chain in chains)
    assert len({tuple(known for known, *_ in chain.final[:shortest]) for chain in chains}) == 1
    assert all(header_hash(header) == known for known, _, _, header in chains[0].final)
