"""Proposals of realistic size, for measuring their transport. Their signatures are not verified."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Final

from consensus.votes import Certificate
from consensus.wire import Proposal, encode_message
from state.primitives.blocks import Block, Header, encode_block, header_hash, transactions_root
from state.primitives.hashing import HASH_BYTES, ZERO_HASH, keccak
from state.primitives.keys import VOTE_SIGNATURE_BYTES, SecretKey
from state.primitives.transactions import sign_transaction
from state.primitives.votes import NOTARIZE, Candidate
from state.primitives.vrf import VRF_PROOF_BYTES
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["FixedPool", "make_proposal", "make_transfers"]

QUORUM: Final = 11
_SOME_HASH: Final = bytes(range(HASH_BYTES))


@cache
def _transfer_bytes() -> int:
    key = SecretKey(b"t" * 32)
    raw = sign_transaction(
        key, chain_id=2**31 - 2, nonce=1_000, kind=TRANSFER_KIND, payload=transfer_payload(key.address, 10**18),
        gas_limit=TRANSFER_GAS, max_fee_per_gas=10**12,
    )  # fmt: skip
    return len(raw)


def make_transfers(count: int, seed: int) -> tuple[bytes, ...]:
    """Return bytes of the length of a transfer; equal seeds give equal bytes."""
    random = Random(seed)
    return tuple([random.randbytes(_transfer_bytes()) for _ in range(count)])


def make_proposal(number: int, transactions: Sequence[bytes]) -> bytes:
    """Return the bytes of a proposal for view ``number`` (from 2) with the certificate of the view before."""
    header = Header(
        version=1, genesis_hash=_SOME_HASH, height=number, epoch=0, view=number, proposer_seat=0,
        parent_hash=_SOME_HASH, time_ms=number, tx_root=transactions_root(transactions), receipt_root=_SOME_HASH,
        state_root=_SOME_HASH, evidence_root=ZERO_HASH, vrf_proof=bytes(VRF_PROOF_BYTES),
        committee_hash=_SOME_HASH, next_committee_hash=ZERO_HASH, voters_bitmap=b"\xff\xff", base_fee=1,
        tx_bytes=sum(map(len, transactions)), tx_count=len(transactions), signal=1,
    )  # fmt: skip
    parent = Certificate(
        NOTARIZE, 0, number - 1, number - 2, _SOME_HASH, b"\xff\x07", bytes(QUORUM * VOTE_SIGNATURE_BYTES)
    )
    return encode_message(
        Proposal(
            Candidate(0, number, number - 1, header_hash(header)),
            bytes(VOTE_SIGNATURE_BYTES),
            parent,
            (),
            encode_block(Block(header, tuple(transactions))),
        )
    )


class FixedPool:
    """A pool with a fixed set of transactions, none of them recent."""

    def __init__(self, transactions: Sequence[bytes] = ()) -> None:
        self._raws = {keccak(raw): raw for raw in transactions}
        self._hashes = {raw: known for known, raw in self._raws.items()}

    def hashes(self) -> Sequence[bytes]:
        """Return all hashes."""
        return list(self._raws)

    def young(self) -> frozenset[bytes]:
        """Return nothing: no transaction is recent."""
        return frozenset()

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        """Return a transaction's bytes."""
        return self._raws.get(transaction_hash)

    def hash_of(self, raw: bytes) -> bytes | None:
        """Return a transaction's hash."""
        return self._hashes.get(raw)
