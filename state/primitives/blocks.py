"""Headers and blocks (chain.md 5): the header carries the roots of the parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, ZERO_HASH, digest
from state.primitives.merkle import merkle_root
from state.primitives.vrf import VRF_PROOF_BYTES

__all__ = [
    "BLOCK_LIMIT_BYTES",
    "HEADER_LIMIT_BYTES",
    "VERSION",
    "Block",
    "Header",
    "decode_block",
    "decode_header",
    "encode_block",
    "encode_header",
    "evidence_root",
    "header_hash",
    "is_body_of",
    "transactions_root",
]

VERSION: Final = 1
HEADER_LIMIT_BYTES: Final = 1024
BLOCK_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Hard bound of the decoder; the genesis parameter ``body_bytes_max`` is the chain's own, lower one."""
BITMAP_LIMIT_BYTES: Final = 32
_BLOCK_ITEMS_FREE: Final = 128
_TRANSACTION_BYTES_MIN: Final = 64
"""Every transaction is longer: it has a signature of so many bytes."""


class Header(NamedTuple):
    """What the hash of a block covers.

    ``state_root`` and ``receipt_root`` are those after executing the parent; ``base_fee`` is this block's own,
    already fixed by the parent's gas. ``genesis_hash`` ties the header to one chain. ``next_committee_hash`` is
    zero but in the last block of an epoch. ``voters_bitmap`` names the seats whose FINALIZE for the parent of the
    parent the leader has seen; ``signal`` is the highest version of the protocol that the leader's software knows.
    """

    version: int
    genesis_hash: bytes
    height: int
    epoch: int
    view: int
    proposer_seat: int
    parent_hash: bytes
    time_ms: int
    tx_root: bytes
    receipt_root: bytes
    state_root: bytes
    evidence_root: bytes
    vrf_proof: bytes
    committee_hash: bytes
    next_committee_hash: bytes
    voters_bitmap: bytes
    base_fee: int
    tx_bytes: int
    tx_count: int
    signal: int


class Block(NamedTuple):
    """A header with its body: the raw transactions in order, and evidence (as raw codec bytes)."""

    header: Header
    transactions: tuple[bytes, ...]
    evidence: tuple[bytes, ...] = ()

    @property
    def hash(self) -> bytes:
        """The hash of the header, computed at each use; keep it where it is needed often."""
        return header_hash(self.header)


def encode_header(header: Header) -> bytes:
    """Return the canonical bytes of ``header``."""
    return encode(header)


def header_hash(header: Header) -> bytes:
    """Return the block hash: BLAKE2b-256 of the header's canonical bytes."""
    return digest(b"header", encode(header))


def _header_from_value(value: Any) -> Header:
    match value:
        case [
            int(version), bytes(genesis_hash), int(height), int(epoch), int(view), int(seat), bytes(parent_hash),
            int(time_ms), bytes(tx_root), bytes(receipt_root), bytes(state_root), bytes(evidence_root),
            bytes(vrf_proof), bytes(committee_hash), bytes(next_committee_hash), bytes(voters_bitmap),
            int(base_fee), int(tx_bytes), int(tx_count), int(signal),
        ] if (
            0 < version < 2**16 and 0 <= signal < 2**16
            and 0 <= height < 2**48 and 0 <= epoch < 2**32 and 0 <= view < 2**48
            and 0 <= seat < 2**16 and 0 <= time_ms < 2**48 and 0 <= base_fee < 2**128
            and 0 <= tx_bytes <= BLOCK_LIMIT_BYTES and 0 <= tx_count <= BLOCK_LIMIT_BYTES
            and {len(genesis_hash), len(parent_hash), len(tx_root), len(receipt_root), len(state_root),
                 len(evidence_root), len(committee_hash), len(next_committee_hash)} == {HASH_BYTES}
            and len(vrf_proof) in (0, VRF_PROOF_BYTES) and len(voters_bitmap) <= BITMAP_LIMIT_BYTES
        ):  # fmt: skip
            return Header(*value)
        case _:
            raise DecodeError("not a header")


def decode_header(data: bytes) -> Header:
    """Return the header of ``data``. Raises DecodeError."""
    return _header_from_value(decode(data, limit_bytes=HEADER_LIMIT_BYTES))


def evidence_root(evidence: tuple[bytes, ...]) -> bytes:
    """Return the Merkle root over the block's evidence."""
    return merkle_root(evidence) if evidence else ZERO_HASH


def encode_block(block: Block) -> bytes:
    """Return the canonical bytes of ``block``."""
    value: Value = [list(block.header), list(block.transactions), list(block.evidence)]
    return encode(value)


def transactions_root(transactions: Sequence[bytes]) -> bytes:
    """Return the Merkle root over the raw transactions in their order; zeros for none."""
    return merkle_root(transactions)


def is_body_of(block: Block) -> bool:
    """Return whether the header commits to these transactions and this evidence."""
    header, transactions = block.header, block.transactions
    return (
        (header.tx_count, header.tx_bytes) == (len(transactions), sum(map(len, transactions)))
        and header.tx_root == transactions_root(transactions)
        and header.evidence_root == evidence_root(block.evidence)
    )


def decode_block(data: bytes, *, limit_bytes: int = BLOCK_LIMIT_BYTES) -> Block:
    """Return the block of ``data``; its roots and transactions are not checked yet. Raises DecodeError."""
    match decode(
        data, limit_bytes=limit_bytes, limit_items=_BLOCK_ITEMS_FREE + len(data) // _TRANSACTION_BYTES_MIN
    ):
        case [list(header), list(transactions), list(evidence)] if all(
            type(item) is bytes for item in transactions
        ) and all(type(item) is bytes for item in evidence):
            return Block(_header_from_value(header), tuple(transactions), tuple(evidence))
        case _:
            raise DecodeError("not a block")
