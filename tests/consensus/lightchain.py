"""A small chain with short epochs and a new committee in each, built by hand for tests of verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from consensus.light import EpochRecord, TrustedState, genesis_root
from consensus.votes import Certificate
from state.primitives.blocks import Header, evidence_root, header_hash, transactions_root
from state.primitives.committee import Committee, Seat
from state.primitives.hashing import ZERO_HASH, keccak
from state.primitives.keys import SecretKey
from state.primitives.merkle import MerkleProof, merkle_proof, merkle_root
from state.primitives.receipts import Receipt, encode_receipt
from state.primitives.transactions import sign_transaction
from state.primitives.votes import FINALIZE, Candidate, Vote, vote_digest
from state.trie import prove
from state.trie.trie import Trie
from state.view.accounts import ACCOUNT_BYTES, account_key

GENESIS = b"g" * 32
START_MS = 1_700_000_000_000
BLOCK_MS = 1_000
EPOCH_BLOCKS = 4
SENDER = SecretKey(b"\7" * 32)


@lru_cache(maxsize=256)
def key(number: int) -> SecretKey:
    return SecretKey((number + 1).to_bytes(32, "big"))


@lru_cache(maxsize=256)
def committee(epoch: int, size: int = 4) -> Committee:
    """Seats of unequal weight; each epoch one validator leaves and another joins."""
    seats = [
        Seat(key(number).address, key(number).vote_key, bytes([number]) * 32, 10 + number)
        for number in range(epoch, epoch + size)
    ]
    return Committee(seats, [*range(1, size), 0])


def certify(
    header: Header, voters: Committee, *, first_key: int, view: int | None = None, kind: int = FINALIZE,
    seats: Sequence[int] | None = None, genesis: bytes = GENESIS,
) -> Certificate:  # fmt: skip
    """Return a certificate of ``seats`` (all of them) over ``header``; seat i has key ``first_key + i``."""
    number = header.view if view is None else view
    candidate = Candidate(header.epoch, number, number - 1, header_hash(header))
    signed = vote_digest(genesis, kind, candidate)
    votes = [
        Vote(kind, *candidate, seat, key(first_key + seat).sign_vote(signed))
        for seat in (range(voters.size) if seats is None else seats)
    ]
    return Certificate.of(voters, votes)


class Placed(NamedTuple):
    """What shows that a transaction is in a block, and its receipt."""

    raw: bytes
    proof: MerkleProof
    receipt: bytes
    receipt_proof: MerkleProof


class LightChain:
    """``epochs`` whole epochs and ``more`` blocks; ``twist`` makes another chain of the same validators."""

    def __init__(self, epochs: int = 4, more: int = 3, *, size: int = 4, twist: int = 0, fork_at: int = 1) -> None:
        self.size = size
        self.headers: dict[int, Header] = {}
        self.hashes: dict[int, bytes] = {0: GENESIS}
        self.tries: dict[int, Trie] = {}
        self.transactions: dict[int, tuple[bytes, ...]] = {}
        self.receipts: dict[int, tuple[bytes, ...]] = {}
        self.certificates: dict[int, Certificate] = {}
        self.trie = Trie()
        self._receipt_root = ZERO_HASH
        for height in range(1, epochs * EPOCH_BLOCKS + more + 1):
            self._add(height, twist if height >= fork_at else 0)

    @property
    def tip(self) -> int:
        return max(self.headers)

    def _add(self, height: int, twist: int) -> None:
        epoch, view = (height - 1) // EPOCH_BLOCKS, (height - 1) % EPOCH_BLOCKS + 1
        raws = tuple(
            sign_transaction(SENDER, chain_id=7, nonce=10 * height + n, kind=1, payload=[b"a" * 20, 1 + twist],
                             gas_limit=21_000, max_fee_per_gas=10, max_priority_fee_per_gas=0)
            for n in range(height % 4)
        )  # fmt: skip
        header = Header(
            version=1, genesis_hash=GENESIS, height=height, epoch=epoch, view=view, proposer_seat=0,
            parent_hash=self.hashes[height - 1], time_ms=START_MS + height * BLOCK_MS,
            tx_root=transactions_root(raws), receipt_root=self._receipt_root, state_root=self.trie.root,
            evidence_root=evidence_root(()), vrf_proof=bytes(80), committee_hash=self.committee(epoch).hash,
            next_committee_hash=self.committee(epoch + 1).hash if height % EPOCH_BLOCKS == 0 else ZERO_HASH,
            voters_bitmap=b"\x0f", base_fee=7, tx_bytes=sum(map(len, raws)), tx_count=len(raws), signal=1,
        )  # fmt: skip
        self.headers[height], self.hashes[height] = header, header_hash(header)
        self.certificates[height] = certify(header, self.committee(epoch), first_key=epoch)
        self.transactions[height] = raws
        receipts = tuple(encode_receipt(Receipt(1, 21_000 + n, 7, None, ())) for n in range(len(raws)))
        # What the block leaves behind: a balance that changes, and accounts that stay.
        changes = {account_key(SENDER.address): self.account(height)}
        if height == 1:
            changes |= {account_key(key(n).address): bytes(23) + b"\1" for n in range(40)}
        update = self.trie.update(dict(changes))
        self.trie = self.trie.after(update)
        self.tries[height] = self.trie
        hooks = (encode_receipt(Receipt(1, 0, 0, None, ())),) if height % 2 else ()
        self.receipts[height] = (*receipts, *hooks)
        self._receipt_root = merkle_root(self.receipts[height])

    def committee(self, epoch: int) -> Committee:
        return committee(epoch, self.size)

    def account(self, height: int) -> bytes:
        """The sender's record after ``height``."""
        return (height << 128 | 1_000 + height).to_bytes(ACCOUNT_BYTES, "big")

    def now_ms(self) -> int:
        return START_MS + (self.tip + 1) * BLOCK_MS

    def root(self) -> TrustedState:
        return genesis_root(
            genesis_hash=GENESIS, time_ms=START_MS, epoch_blocks=EPOCH_BLOCKS, committee=self.committee(0)
        )

    def record(self, epoch: int) -> EpochRecord:
        height = (epoch + 1) * EPOCH_BLOCKS
        return EpochRecord(self.headers[height], self.certificates[height], self.committee(epoch + 1))

    def path(self, first: int, last: int) -> tuple[Header, ...]:
        return tuple(self.headers[height] for height in range(first, last + 1))

    def prove(self, height: int, state_key: bytes) -> bytes:
        """The proof of a key in the state after ``height``."""
        return prove(self.tries[height], state_key)

    def placed(self, height: int, index: int) -> Placed:
        raws, leaves = self.transactions[height], self.receipts[height]
        return Placed(raws[index], merkle_proof(raws, index), leaves[index], merkle_proof(leaves, index))

    def hash_of(self, height: int, index: int) -> bytes:
        return keccak(self.transactions[height][index])
