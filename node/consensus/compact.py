"""Compact forms of proposals: short ids in the place of transactions that the receivers hold. Pure.

See network.md 7.2.

A proposal travels as its certificates, its header and eight bytes for each transaction; a receiver takes the
transactions out of its mempool, asks for those that it lacks, and puts the leader's very bytes together again. The
form names the hash of those bytes, and nothing else is ever handed on: whatever a form, a pool or an answer made
up, what comes out is what the leader would have sent whole, or nothing.

An id is a sum of products of the transaction's hash with factors that are drawn from the hash of the proposal, so
that nobody but its leader can choose transactions whose ids collide in it (docs/decisions/0048-compact-blocks.md).
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
    "GIVEN_BYTES_MAX",
    "WORD_LIMIT_BYTES",
    "Bulk",
    "Form",
    "Have",
    "Rebuild",
    "Some",
    "WantSome",
    "WantWhole",
    "Word",
    "bits_of",
    "decode_bulk",
    "decode_word",
    "encode_bulk",
    "encode_word",
    "make_form",
    "match_ids",
    "message_hash",
    "numbers_of",
    "short_ids",
]

ID_BYTES: Final = 8
GIVEN_BYTES_MAX: Final = 64 * 1024
"""Transactions that go with a form because the others hardly have them yet."""
FORM_SHARE_MAX: Final = 2
"""A form that is not so many times smaller than its proposal is worth nothing."""
BULK_LIMIT_BYTES: Final = MESSAGE_LIMIT_BYTES
"""A form is at most half as large; an answer is never larger than the proposal."""
TRANSACTIONS_MAX: Final = BLOCK_LIMIT_BYTES // 64
"""No transaction is shorter than its signature."""
WORD_LIMIT_BYTES: Final = TRANSACTIONS_MAX // 8 + 64

_FORM, _SOME = 1, 2
_HAVE, _WANT_SOME, _WANT_WHOLE = 1, 2, 3
_IDS: TypeAlias = NDArray[np.uint64]


class Form(NamedTuple):
    """A proposal without the transactions that its receivers hold.

    ``root`` is the hash of the whole message, which has ``size_bytes``; ``proposal`` is that message with an empty
    block. ``given`` are transactions with their places in the body, in order; the ``ids`` stand for all others.
    """

    root: bytes
    size_bytes: int
    proposal: Proposal
    header: Header
    evidence: tuple[bytes, ...]
    ids: bytes
    given: tuple[tuple[int, bytes], ...]


class Some(NamedTuple):
    """Transactions that were asked for, in the order of their places."""

    root: bytes
    raws: tuple[bytes, ...]


class Have(NamedTuple):
    """The proposal is whole here."""

    root: bytes


class WantSome(NamedTuple):
    """Asks for the transactions at the places whose bits are set."""

    root: bytes
    bits: bytes


class WantWhole(NamedTuple):
    """Asks for the proposal as it is."""

    root: bytes


Bulk: TypeAlias = Form | Some
Word: TypeAlias = Have | WantSome | WantWhole


def encode_bulk(message: Bulk) -> bytes:
    """Return the canonical bytes of a form or an answer."""
    match message:
        case Form(root, size_bytes, proposal, header, evidence, ids, given):
            return encode(
                [
                    _FORM, root, size_bytes, encode_message(proposal), encode_header(header), list(evidence), ids,
                    [[number, raw] for number, raw in given],
                ]
            )  # fmt: skip
        case Some(root, raws):
            return encode([_SOME, root, list(raws)])
        case _:
            raise AssertionError(message)


def decode_bulk(data: bytes) -> Bulk:
    """Return the form or answer of ``data``; a form's parts fit each other. Raises DecodeError."""
    match decode(data, limit_bytes=BULK_LIMIT_BYTES):
        case [
            1, bytes(root), int(size_bytes), bytes(head), bytes(header), list(evidence), bytes(ids), list(given),
        ] if (
            len(root) == HASH_BYTES
            and 0 < size_bytes <= MESSAGE_LIMIT_BYTES
            and len(data) * FORM_SHARE_MAX <= size_bytes
            and len(ids) % ID_BYTES == 0
            and all(type(item) is bytes for item in evidence)
        ):  # fmt: skip
            proposal = decode_message(head)
            if not isinstance(proposal, Proposal) or proposal.block:
                raise DecodeError("not the head of a proposal")
            form = Form(
                root, size_bytes, proposal, decode_header(header), tuple(evidence), ids,
                tuple([_given(item) for item in given]),
            )  # fmt: skip
            _check_form(form)
            return form
        case [2, bytes(root), list(raws)] if (
            len(root) == HASH_BYTES
            and 0 < len(raws) <= TRANSACTIONS_MAX
            and all(type(raw) is bytes for raw in raws)
        ):
            return Some(root, tuple(raws))
        case _:
            raise DecodeError("not a compact proposal")


def _given(value: Any) -> tuple[int, bytes]:
    match value:
        case [int(number), bytes(raw)] if 0 <= number < TRANSACTIONS_MAX:
            return number, raw
        case _:
            raise DecodeError("not a transaction with its place")


def _check_form(form: Form) -> None:
    count = len(form.ids) // ID_BYTES + len(form.given)
    numbers = [number for number, _ in form.given]
    if count != form.header.tx_count or count > TRANSACTIONS_MAX:
        raise DecodeError("not as many transactions as the header says")
    if any(later <= earlier for earlier, later in pairwise(numbers)) or (numbers and numbers[-1] >= count):
        raise DecodeError("places that are out of order or out of the body")
    if form.header.tx_bytes >= form.size_bytes:
        raise DecodeError("a body that is larger than its message")


def encode_word(word: Word) -> bytes:
    """Return the canonical bytes of a word about a form."""
    match word:
        case Have(root):
            return encode([_HAVE, root])
        case WantSome(root, bits):
            return encode([_WANT_SOME, root, bits])
        case WantWhole(root):
            return encode([_WANT_WHOLE, root])
        case _:
            raise AssertionError(word)


def decode_word(data: bytes) -> Word:
    """Return the word of ``data``. Raises DecodeError."""
    match decode(data, limit_bytes=WORD_LIMIT_BYTES):
        case [1, bytes(root)] if len(root) == HASH_BYTES:
            return Have(root)
        case [2, bytes(root), bytes(bits)] if len(root) == HASH_BYTES and bits and bits[-1]:
            return WantSome(root, bits)
        case [3, bytes(root)] if len(root) == HASH_BYTES:
            return WantWhole(root)
        case _:
            raise DecodeError("not a word about a compact proposal")


def bits_of(numbers: Sequence[int]) -> bytes:
    """Return bits that are set at these places, the lowest first, without zero bytes at the end."""
    if not numbers:
        return b""
    flags = np.zeros(max(numbers) + 1, np.uint8)
    flags[list(numbers)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def numbers_of(bits: bytes) -> list[int]:
    """Return the places whose bits are set, in order."""
    found: list[int] = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")).tolist()
    return found


def message_hash(data: bytes) -> bytes:
    """Return what a form names its message by."""
    return digest(b"compact", data)


def short_ids(hashes: Sequence[bytes], key: bytes) -> _IDS:
    """Return the ids of transactions by their hashes, as little-endian numbers; ``key`` is the message's hash.

    The four words of a hash are multiplied with the four odd words of the key and added modulo 2**64. Hashes that
    were chosen without knowing the key collide with a probability of about 2**-64; even pairs that were ground to
    differ only by multiples of 2**16 in each word, which takes 2**32 hashes a pair, with 2**-48.
    """
    words = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, HASH_BYTES // ID_BYTES)
    factors = np.frombuffer(key, "<u8") | np.uint64(1)
    ids: _IDS = (words * factors).sum(axis=1, dtype=np.uint64)
    return ids


def match_ids(ids: bytes, hashes: Sequence[bytes], key: bytes) -> list[int]:
    """Return for each of ``ids`` which of ``hashes`` it means; -1 where it means none of them, or several."""
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


def make_form(
    data: bytes, hash_of: Callable[[bytes], bytes | None], young: Collection[bytes] = ()
) -> tuple[Form, tuple[bytes, ...]] | None:
    """Return the form of a proposal's bytes, and its transactions; None where it would save too little.

    ``hash_of`` tells the hash of a transaction by its bytes if the mempool knows it. Transactions whose hashes are
    ``young`` are given, up to a bound, and so is what the mempool does not know. Raises DecodeError for anything
    but a proposal.
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
    form = Form(
        root, len(data), proposal._replace(block=b""), block.header, block.evidence,
        short_ids(hashes, root).astype("<u8").tobytes(), tuple(given),
    )  # fmt: skip
    size = len(encode_bulk(form))
    return (form, block.transactions) if size * FORM_SHARE_MAX <= len(data) else None


class Rebuild:
    """A proposal that is put together again; ``message`` is what came of it once nothing is ``missing``."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._raws: list[bytes | None] = [None] * form.header.tx_count
        for number, raw in form.given:
            self._raws[number] = raw
        self.missing = [number for number, raw in enumerate(self._raws) if raw is None]
        """Places of the transactions that are not here, in order."""

    @property
    def transactions(self) -> tuple[bytes, ...]:
        """The whole body; nothing may be missing."""
        assert not self.missing
        return tuple([raw for raw in self._raws if raw is not None])

    def fill(self, hashes: Sequence[bytes], raw_of: Callable[[bytes], bytes | None]) -> None:
        """Take what the mempool has: its ``hashes``, and the bytes of a transaction that is still there."""
        places = self.missing
        self.missing = []
        for place, found in zip(places, match_ids(self.form.ids, hashes, self.form.root), strict=True):
            raw = raw_of(hashes[found]) if found >= 0 else None
            self._raws[place] = raw
            if raw is None:
                self.missing.append(place)

    def supply(self, raws: Sequence[bytes]) -> bool:
        """Take an answer; False, and nothing taken, when it is not one transaction for each that is missing."""
        if len(raws) != len(self.missing):
            return False
        for place, raw in zip(self.missing, raws, strict=True):
            self._raws[place] = raw
        self.missing = []
        return True

    def message(self) -> bytes | None:
        """Return the bytes that the leader has hashed; None when what is here is something else."""
        form, transactions = self.form, self.transactions
        if sum(map(len, transactions)) != form.header.tx_bytes:
            return None  # ids that repeat could make a body of any size out of few transactions
        block = encode_block(Block(form.header, transactions, form.evidence))
        if len(block) > BLOCK_LIMIT_BYTES:
            return None
        data = encode_message(form.proposal._replace(block=block))
        return data if message_hash(data) == form.root else None
