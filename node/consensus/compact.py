"""Compact proposals: short ids in place of transactions that the receivers have. Pure. See network.md 7.2.

A compact proposal has the certificates, the header and eight bytes for each transaction. A receiver takes the
transactions from its mempool, requests missing ones, and restores the leader's bytes. The compact proposal names
the hash of those bytes, and nothing else is delivered. So whatever a compact proposal, a pool or an answer
contains, the result is what the leader would have sent whole, or nothing.

An id is a sum of products of the transaction's hash with factors derived from the hash of the proposal. So only
its leader could choose transactions whose ids collide in it (docs/decisions/0048-compact-blocks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from consensus.wire import MESSAGE_LIMIT_BYTES, Proposal, decode_message, encode_message
from state.primitives.blocks import (
    BLOCK_LIMIT_BYTES,
    Block,
    Header,
    decode_block,
    decode_header,
    encode_block,
    encode_header,
)
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest

__all__ = [
    "BULK_LIMIT_BYTES",
    "CONTROL_LIMIT_BYTES",
    "GIVEN_BYTES_MAX",
    "Bulk",
    "CompactControl",
    "CompactProposal",
    "HaveProposal",
    "ProposalRequest",
    "Rebuild",
    "TransactionsReply",
    "TransactionsRequest",
    "bits_of",
    "decode_bulk",
    "decode_compact_control",
    "encode_bulk",
    "encode_compact_control",
    "make_compact_proposal",
    "match_ids",
    "message_hash",
    "numbers_of",
    "short_ids",
]

ID_BYTES: Final = 8
GIVEN_BYTES_MAX: Final = 64 * 1024
"""Transactions included in full because the others probably lack them."""
COMPACT_SHARE_MAX: Final = 2
"""The compact proposal must be smaller than the proposal by this factor to be used."""
BULK_LIMIT_BYTES: Final = MESSAGE_LIMIT_BYTES
"""A compact proposal is at most half as large; an answer is never larger than the proposal."""
TRANSACTIONS_MAX: Final = BLOCK_LIMIT_BYTES // 64
"""No transaction is shorter than its signature."""
CONTROL_LIMIT_BYTES: Final = TRANSACTIONS_MAX // 8 + 64

_FORM, _SOME = 1, 2
_HAVE, _WANT_SOME, _WANT_WHOLE = 1, 2, 3
_IDS: TypeAlias = NDArray[np.uint64]


class CompactProposal(NamedTuple):
    """A proposal without the transactions that its receivers have.

    ``root`` is the hash of the whole message, which has ``size_bytes``. ``proposal`` is that message with an empty
    block. ``given`` are transactions with their positions in the body, in order; the ``ids`` stand for all others.
    """

    root: bytes
    size_bytes: int
    proposal: Proposal
    header: Header
    evidence: tuple[bytes, ...]
    ids: bytes
    given: tuple[tuple[int, bytes], ...]


class TransactionsReply(NamedTuple):
    """The requested transactions, in the order of their positions."""

    root: bytes
    raws: tuple[bytes, ...]


class HaveProposal(NamedTuple):
    """The receiver has the whole proposal."""

    root: bytes


class TransactionsRequest(NamedTuple):
    """Requests the transactions at the positions whose bits are set."""

    root: bytes
    bits: bytes


class ProposalRequest(NamedTuple):
    """Requests the whole proposal."""

    root: bytes


Bulk: TypeAlias = CompactProposal | TransactionsReply
CompactControl: TypeAlias = HaveProposal | TransactionsRequest | ProposalRequest


def encode_bulk(message: Bulk) -> bytes:
    """Return the canonical bytes of a compact proposal or an answer."""
    match message:
        case CompactProposal(root, size_bytes, proposal, header, evidence, ids, given):
            return encode(
                [
                    _FORM, root, size_bytes, encode_message(proposal), encode_header(header), list(evidence), ids,
                    [[number, raw] for number, raw in given],
                ]
            )  # fmt: skip
        case TransactionsReply(root, raws):
            return encode([_SOME, root, list(raws)])
        case _:
            raise AssertionError(message)


def decode_bulk(data: bytes) -> Bulk:
    """Return the compact proposal or answer of ``data``; the parts of a compact proposal are consistent.

    Raises DecodeError.
    """
    match decode(data, limit_bytes=BULK_LIMIT_BYTES):
        case [
            1, bytes(root), int(size_bytes), bytes(head), bytes(header), list(evidence), bytes(ids), list(given),
        ] if (
            len(root) == HASH_BYTES
            and 0 < size_bytes <= MESSAGE_LIMIT_BYTES
            and len(data) * COMPACT_SHARE_MAX <= size_bytes
            and len(ids) % ID_BYTES == 0
            and all(type(item) is bytes for item in evidence)
        ):  # fmt: skip
            proposal = decode_message(head)
            if not isinstance(proposal, Proposal) or proposal.block:
                raise DecodeError("not the head of a proposal")
            compact = CompactProposal(
                root, size_bytes, proposal, decode_header(header), tuple(evidence), ids,
                tuple([_given(item) for item in given]),
            )  # fmt: skip
            _check_compact(compact)
            return compact
        case [2, bytes(root), list(raws)] if (
            len(root) == HASH_BYTES
            and 0 < len(raws) <= TRANSACTIONS_MAX
            and all(type(raw) is bytes for raw in raws)
        ):
            return TransactionsReply(root, tuple(raws))
        case _:
            raise DecodeError("not a compact proposal")


def _given(value: Any) -> tuple[int, bytes]:
    match value:
        case [int(number), bytes(raw)] if 0 <= number < TRANSACTIONS_MAX:
            return number, raw
        case _:
            raise DecodeError("not a transaction with its position")


def _check_compact(compact: CompactProposal) -> None:
    count = len(compact.ids) // ID_BYTES + len(compact.given)
    numbers = [number for number, _ in compact.given]
    if count != compact.header.tx_count or count > TRANSACTIONS_MAX:
        raise DecodeError("not as many transactions as the header says")
    if any(later <= earlier for earlier, later in pairwise(numbers)) or (numbers and numbers[-1] >= count):
        raise DecodeError("positions out of order or outside the body")
    if compact.header.tx_bytes >= compact.size_bytes:
        raise DecodeError("a body that is larger than its message")


def encode_compact_control(control: CompactControl) -> bytes:
    """Return the canonical bytes of a control message about a compact proposal."""
    match control:
        case HaveProposal(root):
            return encode([_HAVE, root])
        case TransactionsRequest(root, bits):
            return encode([_WANT_SOME, root, bits])
        case ProposalRequest(root):
            return encode([_WANT_WHOLE, root])
        case _:
            raise AssertionError(control)


def decode_compact_control(data: bytes) -> CompactControl:
    """Return the control message of ``data``. Raises DecodeError."""
    match decode(data, limit_bytes=CONTROL_LIMIT_BYTES):
        case [1, bytes(root)] if len(root) == HASH_BYTES:
            return HaveProposal(root)
        case [2, bytes(root), bytes(bits)] if len(root) == HASH_BYTES and bits and bits[-1]:
            return TransactionsRequest(root, bits)
        case [3, bytes(root)] if len(root) == HASH_BYTES:
            return ProposalRequest(root)
        case _:
            raise DecodeError("not a control message about a compact proposal")


def bits_of(numbers: Sequence[int]) -> bytes:
    """Return bits set at these positions, lowest first, without zero bytes at the end."""
    if not numbers:
        return b""
    flags = np.zeros(max(numbers) + 1, np.uint8)
    flags[list(numbers)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def numbers_of(bits: bytes) -> list[int]:
    """Return the positions of the set bits, in order."""
    found: list[int] = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")).tolist()
    return found


def message_hash(data: bytes) -> bytes:
    """Return the hash that identifies a message in its compact proposal."""
    return digest(b"compact", data)


def short_ids(hashes: Sequence[bytes], key: bytes) -> _IDS:
    """Return the ids of transactions by their hashes, as little-endian numbers; ``key`` is the message's hash.

    The four words of a hash are multiplied with the four odd words of the key and added modulo 2**64. Hashes
    chosen without the key collide with a probability of about 2**-64. Pairs ground to differ only by multiples of
    2**16 in each word, which takes 2**32 hashes a pair, collide with 2**-48.
    """
    words = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, HASH_BYTES // ID_BYTES)
    factors = np.frombuffer(key, "<u8") | np.uint64(1)
    ids: _IDS = (words * factors).sum(axis=1, dtype=np.uint64)
    return ids


def match_ids(ids: bytes, hashes: Sequence[bytes], key: bytes) -> list[int]:
    """Return for each of ``ids`` the index of its hash in ``hashes``; -1 if none or several match."""
    wanted = np.frombuffer(ids, "<u8")
    if not hashes:
        return [-1] * len(wanted)
    known = short_ids(hashes, key)
    order = np.argsort(known)
    known = known[order]
    at = np.searchsorted(known, wanted)
    following = np.minimum(at + 1, len(known) - 1)
    at = np.minimum(at, len(known) - 1)
    is_one = (known[at] == wanted) & ((following == at) | (known[following] != wanted))
    found: list[int] = np.where(is_one, order[at], -1).tolist()
    return found


def make_compact_proposal(
    data: bytes, hash_of: Callable[[bytes], bytes | None], young: Collection[bytes] = ()
) -> tuple[CompactProposal, tuple[bytes, ...]] | None:
    """Return the compact proposal of a proposal's bytes, and its transactions; None if it would save too little.

    ``hash_of`` returns the hash of a transaction by its bytes if the mempool knows it. Transactions whose hashes
    are ``young``, and those that the mempool does not know, are included in full, up to a limit. Raises
    DecodeError for anything but a proposal.
    """
    proposal = decode_message(data)
    if not isinstance(proposal, Proposal):
        raise DecodeError("not a proposal")
    block = decode_block(proposal.block)
    hashes: list[bytes] = []
    given: list[tuple[int, bytes]] = []
    given_bytes = 0
    for number, raw in enumerate(block.transactions):
        known = hash_of(raw)
        if known is None:
            given.append((number, raw))
        elif known in young and given_bytes + len(raw) <= GIVEN_BYTES_MAX:
            given.append((number, raw))
            given_bytes += len(raw)
        else:
            hashes.append(known)
    root = message_hash(data)
    compact = CompactProposal(
        root, len(data), proposal._replace(block=b""), block.header, block.evidence,
        short_ids(hashes, root).astype("<u8").tobytes(), tuple(given),
    )  # fmt: skip
    size = len(encode_bulk(compact))
    return (compact, block.transactions) if size * COMPACT_SHARE_MAX <= len(data) else None


class Rebuild:
    """A proposal that is being restored; ``message`` is the result once nothing is ``missing``."""

    def __init__(self, compact: CompactProposal) -> None:
        self.compact = compact
        self._raws: list[bytes | None] = [None] * compact.header.tx_count
        for number, raw in compact.given:
            self._raws[number] = raw
        self.missing = [number for number, raw in enumerate(self._raws) if raw is None]
        """Positions of the missing transactions, in order."""

    @property
    def transactions(self) -> tuple[bytes, ...]:
        """The whole body; nothing may be missing."""
        assert not self.missing
        return tuple([raw for raw in self._raws if raw is not None])

    def fill(self, hashes: Sequence[bytes], raw_of: Callable[[bytes], bytes | None]) -> None:
        """Take transactions from the mempool: its ``hashes``, and a function for the bytes of one that is still
        there.
        """
        places = self.missing
        self.missing = []
        for place, found in zip(places, match_ids(self.compact.ids, hashes, self.compact.root), strict=True):
            raw = raw_of(hashes[found]) if found >= 0 else None
            self._raws[place] = raw
            if raw is None:
                self.missing.append(place)

    def supply(self, raws: Sequence[bytes]) -> bool:
        """Process an answer.

        Returns False, and takes nothing, unless it has one transaction for each missing one.
        """
        if len(raws) != len(self.missing):
            return False
        for place, raw in zip(self.missing, raws, strict=True):
            self._raws[place] = raw
        self.missing = []
        return True

    def message(self) -> bytes | None:
        """Return the bytes that the leader has hashed; None if the restored bytes differ."""
        compact, transactions = self.compact, self.transactions
        if sum(map(len, transactions)) != compact.header.tx_bytes:
            return None  # ids that repeat could make a body of any size out of few transactions
        block = encode_block(Block(compact.header, transactions, compact.evidence))
        if len(block) > BLOCK_LIMIT_BYTES:
            return None
        data = encode_message(compact.proposal._replace(block=block))
        return data if message_hash(data) == compact.root else None
