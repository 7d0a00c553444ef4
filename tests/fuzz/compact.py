"""Compact proposals as targets: what is decoded is also rebuilt, out of a pool that does not fit it."""

from __future__ import annotations

from typing import Final

from node.consensus.compact import (
    CompactProposal,
    HaveProposal,
    ProposalRequest,
    Rebuild,
    TransactionsReply,
    TransactionsRequest,
    bits_of,
    decode_bulk,
    decode_compact_control,
    encode_bulk,
    encode_compact_control,
    message_hash,
    numbers_of,
)
from tests.node.compact_world import SomePool, form_of, transactions

RAWS: Final = transactions(40)
POOL: Final = SomePool(RAWS[10:])
FORM: Final = form_of(RAWS, RAWS[:2])[0]
BULK: Final = (
    encode_bulk(FORM),
    encode_bulk(form_of(RAWS)[0]),
    encode_bulk(TransactionsReply(FORM.root, RAWS[:3])),
)
WORDS: Final = tuple(
    encode_compact_control(word)
    for word in (
        TransactionsRequest(FORM.root, bits_of([3, 20])),
        HaveProposal(FORM.root),
        ProposalRequest(FORM.root),
    )
)


def check_bulk(data: bytes) -> None:
    """Rebuild what is decoded: nothing but the hashed message may come of it."""
    message = decode_bulk(data)
    assert encode_bulk(message) == data
    if isinstance(message, CompactProposal):
        rebuild = Rebuild(message)
        rebuild.fill(POOL.hashes(), POOL.raw_of)
        rebuild.supply([RAWS[0]] * len(rebuild.missing))
        whole = rebuild.message()
        assert whole is None or message_hash(whole) == message.root


def check_word(data: bytes) -> None:
    """Read the places out of what is decoded."""
    word = decode_compact_control(data)
    assert encode_compact_control(word) == data
    if isinstance(word, TransactionsRequest):
        assert bits_of(numbers_of(word.bits)) == word.bits
