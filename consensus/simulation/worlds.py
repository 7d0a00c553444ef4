"""The chains that simulated nodes agree on: accounts, keys, committees by epoch, and a state machine each.

``HashWorld`` has a chain of hashes for a state and a schedule of committees, drawn from one seed, so that a run is
about consensus alone. Whole nodes with the real state are another world behind the same two protocols
(``node.simulation``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from consensus.events import Epoch, Root
from consensus.replica import root_of
from consensus.votes import Certificate, Check, Signer, verify_checks
from consensus.wire import BLOCKS_MAX, BlocksReply, encode_certificate
from state.primitives.blocks import VERSION, Block, Header, encode_block, evidence_root
from state.primitives.committee import Committee, Seat
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.merkle import merkle_root
from state.primitives.votes import Equivocation, VoteKey, vrf_alpha

__all__ = [
    "GENESIS",
    "GENESIS_BLOCK",
    "Committed",
    "FastKey",
    "HashMachine",
    "HashWorld",
    "Machine",
    "Member",
    "SimulatedKey",
    "Standing",
    "World",
    "account_address",
    "next_state_root",
]

GENESIS: Final = digest(b"sim", b"genesis")
GENESIS_BLOCK: Final = digest(b"sim", b"block 0")
EPOCHS_FREE: Final = 2**31
"""The last height of an only epoch lies beyond every run."""


def account_address(account: int) -> bytes:
    """Return the address of a simulated account."""
    return digest(b"sim-account", account.to_bytes(4, "big"))[:20]


def next_state_root(parent_root: bytes, block_hash: bytes) -> bytes:
    """Return the state after a block: the state machine of a ``HashWorld``."""
    return digest(b"sim-state", parent_root + block_hash)


class SimulatedKey(Signer, Protocol):
    """A signer that can be asked for its VRF key too."""

    @property
    def vrf_key(self) -> bytes:
        """The public key of the proofs."""
        ...


class FastKey:
    """A signer of keyed hashes in the place of BIP340, where the schedule matters and not the curve."""

    __slots__ = ("_secret", "vote_key", "vrf_key")

    def __init__(self, account: int, number: int = 0) -> None:
        self._secret = digest(b"sim-secret", account.to_bytes(4, "big") + number.to_bytes(4, "big"))
        self.vote_key = digest(b"sim-key", self._secret)
        self.vrf_key = digest(b"sim-vrf", self._secret)

    def sign_vote(self, message: bytes) -> bytes:
        """Return 64 bytes that only the holder of the secret can make."""
        return blake2b(message, key=self._secret, digest_size=64).digest()

    def prove(self, alpha: bytes) -> bytes:
        """Return 80 bytes in the place of a VRF proof."""
        return blake2b(alpha, key=self._secret, digest_size=64).digest() + bytes(16)


class Member(NamedTuple):
    """A seat of one epoch: whose, with which of the account's keys, and its weight."""

    account: int
    key: int
    weight: int


class Standing(NamedTuple):
    """Where a machine stands after a start: the newest final block, and what the store knows above it."""

    epoch: int
    root: Root
    certificates: tuple[Certificate, ...] = ()


class Committed(NamedTuple):
    """One block that became durable."""

    height: int
    block_hash: bytes
    state_root: bytes


class Machine(Protocol):
    """One node's state machine and database. Its disk survives a crash; what it executed does not."""

    def start(self) -> Standing:
        """Open the database, and say where the node stands."""
        ...

    def epoch_view(self, epoch: int) -> Epoch | None:
        """Return an epoch that the final state knows."""
        ...

    def build(
        self,
        parent_hash: bytes,
        *,
        epoch: int,
        view: int,
        seat: int,
        time_ms: int,
        vrf_proof: bytes,
        voters: bytes,
    ) -> Block | None:
        """Return a block on an executed parent, None when none can be built."""
        ...

    def is_valid(self, block_hash: bytes, block: Block, now_ms: int) -> bool:
        """Check a block on its executed parent."""
        ...

    def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes] | None:
        """Return the roots after a block; None when its branch was dropped meanwhile."""
        ...

    def commit(
        self, block_hashes: Sequence[bytes], certificate: Certificate, views: Sequence[Certificate] = ()
    ) -> list[Committed]:
        """Write executed blocks, lowest first, durably, and certificates of the views up to the last."""
        ...

    def commit_in_vain(self, block_hashes: Sequence[bytes], certificate: Certificate) -> None:
        """Try the same on a disk that refuses: nothing may change."""
        ...

    def drop(self, block_hashes: Sequence[bytes]) -> None:
        """Forget executed blocks."""
        ...

    def block(self, block_hash: bytes) -> bytes | None:
        """Return the bytes of a final block."""
        ...

    def window(self, from_height: int, count_max: int) -> BlocksReply | None:
        """Return final blocks with the certificate of the last."""
        ...

    def lose_power(self, rng: random.Random) -> int:
        """Lose what was not synced; return the height that is left."""
        ...

    def found(self, equivocation: Equivocation) -> bytes | None:
        """Take in a fault that the node's consensus has found; return what the other nodes are told of it."""
        ...

    def heard(self, proof: bytes) -> None:
        """Take in what another node has found."""
        ...


class World(Protocol):
    """What all nodes of a cluster share."""

    genesis_hash: bytes
    root_hash: bytes
    accounts: int

    def address(self, account: int) -> bytes:
        """Return an account's address."""
        ...

    def signer(self, account: int, key: int) -> Signer:
        """Return one of an account's keys."""
        ...

    def key_of(self, account: int, vote_key: bytes) -> int:
        """Return which of its keys an account has registered as ``vote_key``."""
        ...

    def machine(self, number: int, rng: random.Random) -> Machine:
        """Return a new node's machine."""
        ...

    def is_valid(self, check: Check) -> bool:
        """Verify a signature."""
        ...


class HashWorld:
    """Accounts with a chain of hashes; ``members_of`` gives the committee of each epoch of ``epoch_blocks``."""

    def __init__(
        self,
        weights: tuple[int, ...],
        *,
        is_real_crypto: bool = False,
        epoch_blocks: int = 0,
        members_of: Callable[[int], tuple[Member, ...]] | None = None,
        accounts: int = 0,
        leaders: tuple[int, ...] = (),
    ) -> None:
        self.genesis_hash = GENESIS
        self.root_hash = GENESIS_BLOCK
        self.accounts = accounts or len(weights)
        self.epoch_blocks = epoch_blocks or EPOCHS_FREE
        self.is_real_crypto = is_real_crypto
        founders = tuple([Member(account, 0, weight) for account, weight in enumerate(weights)])
        self._members_of = members_of or (lambda _: founders)
        self._leaders = leaders
        self._members: dict[int, tuple[Member, ...]] = {}
        self._epoch_views: dict[int, Epoch] = {}
        self._signers: dict[tuple[int, int], SimulatedKey] = {}
        self._by_vote_key: dict[bytes, SimulatedKey] = {}
        self._numbers: dict[bytes, int] = {}
        self.checks_epochs = True
        """Whether the state refuses a block beyond its epoch; consensus must not rest on it."""

    def address(self, account: int) -> bytes:
        """Return an account's address."""
        return account_address(account)

    def members(self, epoch: int) -> tuple[Member, ...]:
        """Return the seats of an epoch."""
        if epoch not in self._members:
            self._members[epoch] = self._members_of(epoch)
        return self._members[epoch]

    def signer(self, account: int, key: int) -> SimulatedKey:
        """Return one of an account's keys."""
        signer = self._signers.get((account, key))
        if signer is None:
            if self.is_real_crypto:
                signer = VoteKey(SecretKey(digest(b"sim-real", bytes((account, key)))))
            else:
                signer = FastKey(account, key)
            self._signers[account, key] = signer
            self._by_vote_key[signer.vote_key] = signer
            self._numbers[signer.vote_key] = key
        return signer

    def key_of(self, account: int, vote_key: bytes) -> int:
        """Return which of its keys an account has registered as ``vote_key``."""
        return self._numbers[vote_key]

    def epoch_view(self, epoch: int) -> Epoch:
        """Return an epoch."""
        known = self._epoch_views.get(epoch)
        if known is None:
            members = self.members(epoch)
            signers = [self.signer(member.account, member.key) for member in members]
            seats = [
                Seat(account_address(member.account), signer.vote_key, signer.vrf_key, member.weight)
                for member, signer in zip(members, signers, strict=True)
            ]
            committee = _ScriptedCommittee(seats, self._leaders) if self._leaders else Committee(seats)
            last_height = (epoch + 1) * self.epoch_blocks
            randomness = digest(b"sim-random", epoch.to_bytes(4, "big"))
            known = self._epoch_views[epoch] = Epoch(epoch, last_height, committee, randomness)
        return known

    def epoch_of(self, height: int) -> int:
        """Return the epoch of a height from 1."""
        return (height - 1) // self.epoch_blocks

    def machine(self, number: int, rng: random.Random) -> HashMachine:
        """Return a new node's machine."""
        return HashMachine(self, rng)

    def is_valid(self, check: Check) -> bool:
        """Verify a signature: that of the curve, or by making the keyed hash again."""
        if self.is_real_crypto:
            return verify_checks((check,))
        return self._by_vote_key[check.vote_key].sign_vote(check.digest) == check.signature

    def make_block(
        self, *, height: int, epoch: int, view: int, seat: int, parent_hash: bytes, state_root: bytes,
        vrf_proof: bytes, body: bytes,
    ) -> Block:  # fmt: skip
        """Return a block with one transaction."""
        epoch_view = self.epoch_view(epoch)
        is_last = height == epoch_view.last_height
        header = Header(
            VERSION, GENESIS, height, epoch, view, seat, parent_hash, height, merkle_root((body,)), ZERO_HASH,
            state_root, evidence_root(()), vrf_proof, epoch_view.committee.hash,
            self.epoch_view(epoch + 1).committee.hash if is_last else ZERO_HASH, b"", 0, len(body), 1, 1,
        )  # fmt: skip
        return Block(header, (body,))

    def proof(self, epoch: int, view: int, seat: int) -> bytes:
        """Return the VRF proof of a seat for a view."""
        member = self.members(epoch)[seat]
        alpha = vrf_alpha(GENESIS, self.epoch_view(epoch).randomness, epoch, view)
        return self.signer(member.account, member.key).prove(alpha)


class _ScriptedCommittee(Committee):
    """A committee whose first leaders are given."""

    __slots__ = ("_script",)

    def __init__(self, seats: Sequence[Seat], leaders: tuple[int, ...]) -> None:
        super().__init__(seats)
        self._script = leaders

    def leader(self, view: int) -> int:
        """Return the seat that leads ``view``."""
        return self._script[view - 1] if view <= len(self._script) else super().leader(view)


class HashMachine:
    """The state machine of a ``HashWorld``: each commit is one durable operation."""

    def __init__(self, world: HashWorld, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._chain: list[tuple[bytes, Block, bytes, Certificate]] = []
        self._heights: dict[bytes, int] = {}
        self._executed: dict[bytes, tuple[int, bytes]] = {}
        self._blocks: dict[bytes, Block] = {}
        self._tip = (GENESIS_BLOCK, 0, next_state_root(ZERO_HASH, GENESIS_BLOCK))

    def start(self) -> Standing:
        """Open the database, and say where the node stands."""
        block_hash, height, state_root = self._tip
        self._executed = {block_hash: (height, state_root)}
        self._blocks.clear()
        epoch = self._world.epoch_of(height + 1)
        header = self._chain[-1][1].header if self._chain else None
        root, certificates = root_of(
            block_hash=block_hash,
            height=height,
            view=header.view if header is not None else 0,
            state_root=state_root,
            receipt_root=ZERO_HASH,
            certificate=encode_certificate(self._chain[-1][3]) if self._chain else None,
            epoch=epoch,
        )
        return Standing(epoch, root, certificates)

    def epoch_view(self, epoch: int) -> Epoch | None:
        """Return an epoch that the final state knows: that of the next height and the one after it."""
        return self._world.epoch_view(epoch) if epoch <= self._world.epoch_of(self._tip[1] + 1) + 1 else None

    def build(
        self,
        parent_hash: bytes,
        *,
        epoch: int,
        view: int,
        seat: int,
        time_ms: int,
        vrf_proof: bytes,
        voters: bytes,
    ) -> Block | None:
        """Return a block with a transaction that no other has."""
        parent = self._executed.get(parent_hash)
        world = self._world
        if parent is None or (world.checks_epochs and world.epoch_of(parent[0] + 1) != epoch):
            return None
        return world.make_block(
            height=parent[0] + 1, epoch=epoch, view=view, seat=seat, parent_hash=parent_hash,
            state_root=parent[1], vrf_proof=vrf_proof, body=self._rng.getrandbits(64).to_bytes(8, "big"),
        )  # fmt: skip

    def is_valid(self, block_hash: bytes, block: Block, now_ms: int) -> bool:
        """Check what the core leaves to the state: time, proof, the next committee."""
        header, world = block.header, self._world
        epoch_view = world.epoch_view(header.epoch)
        expected = (
            world.epoch_view(header.epoch + 1).committee.hash
            if header.height == epoch_view.last_height
            else ZERO_HASH
        )
        return (
            header.time_ms == header.height
            and header.next_committee_hash == expected
            and (world.epoch_of(header.height) == header.epoch or not world.checks_epochs)
            and header.vrf_proof == world.proof(header.epoch, header.view, header.proposer_seat)
        )

    def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes] | None:
        """Return the roots after a block; None when its branch was dropped meanwhile."""
        parent = self._executed.get(block.header.parent_hash)
        if parent is None:
            return None
        state_root = next_state_root(parent[1], block_hash)
        self._executed[block_hash] = (block.header.height, state_root)
        self._blocks[block_hash] = block
        return state_root, ZERO_HASH

    def commit(
        self, block_hashes: Sequence[bytes], certificate: Certificate, views: Sequence[Certificate] = ()
    ) -> list[Committed]:
        """Write executed blocks, lowest first."""
        written = []
        for block_hash in block_hashes:
            block = self._blocks[block_hash]
            height, state_root = self._executed[block_hash]
            self._chain.append((block_hash, block, encode_block(block), certificate))
            self._heights[block_hash] = height
            self._tip = (block_hash, height, state_root)
            written.append(Committed(height, block_hash, state_root))
        below = self._tip[1]
        for known in [known for known, block in self._blocks.items() if block.header.height < below]:
            del self._blocks[known]
            self._executed.pop(known, None)
        return written

    def commit_in_vain(self, block_hashes: Sequence[bytes], certificate: Certificate) -> None:
        """A chain of hashes has no disk of its own."""

    def drop(self, block_hashes: Sequence[bytes]) -> None:
        """Forget executed blocks."""
        for block_hash in block_hashes:
            self._blocks.pop(block_hash, None)
            if block_hash != self._tip[0]:
                self._executed.pop(block_hash, None)

    def block(self, block_hash: bytes) -> bytes | None:
        """Return the bytes of a final block."""
        height = self._heights.get(block_hash)
        return None if height is None else self._chain[height - 1][2]

    def window(self, from_height: int, count_max: int) -> BlocksReply | None:
        """Return final blocks of one epoch with the certificate of the last."""
        epoch = self._world.epoch_of(from_height)
        window = self._chain[from_height - 1 : from_height - 1 + min(count_max, BLOCKS_MAX)]
        while window and (window[-1][3].block_hash != window[-1][0] or window[-1][1].header.epoch != epoch):
            window.pop()
        if not window:
            return None
        return BlocksReply(from_height, window[-1][3], tuple([item[2] for item in window]))

    def lose_power(self, rng: random.Random) -> int:
        """Every commit was synced: the height stays."""
        return self._tip[1]

    def found(self, equivocation: Equivocation) -> bytes | None:
        """Tell nobody: this state punishes nothing."""
        return None

    def heard(self, proof: bytes) -> None:
        """Nothing is told here."""
