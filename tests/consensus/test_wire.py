from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.inbound import decode_inbound
from consensus.votes import Certificate
from consensus.wire import (
    BLOCKS_MAX,
    CERTIFICATES_MAX,
    NULLS_MAX,
    VOTES_MAX,
    BlockReply,
    BlocksPruned,
    BlocksReply,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Message,
    Proposal,
    Status,
    Votes,
    decode_certificate,
    decode_message,
    encode_certificate,
    encode_message,
)
from state.primitives.blocks import (
    BLOCK_LIMIT_BYTES,
    VERSION,
    Block,
    Header,
    encode_block,
    evidence_root,
    header_hash,
    transactions_root,
)
from state.primitives.errors import DecodeError
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, pid, vote_digest

VECTORS = Path(__file__).parents[1] / "vectors" / "consensus.json"

BLOCK = Block(
    Header(
        VERSION, b"g" * 32, 7, 1, 9, 2, b"p" * 32, 1234, transactions_root((b"tx",)), b"r" * 32, b"s" * 32,
        evidence_root(()), b"", b"c" * 32, bytes(32), b"\x07", 10, 2, 1, 1,
    ),
    (b"tx",),
)  # fmt: skip
HASH = header_hash(BLOCK.header)
CANDIDATE = Candidate(1, 9, 7, HASH)
NOTAR = Certificate(NOTARIZE, 1, 7, 6, b"p" * 32, b"\x07", b"s" * 192)
NULL = Certificate(NULLIFY, 1, 8, 0, bytes(32), b"\x0e", b"t" * 192)
FINAL = Certificate(FINALIZE, *CANDIDATE, b"\x0b", b"u" * 192)
VOTE = Vote(FINALIZE, *CANDIDATE, 3, b"v" * 64)
MESSAGES: dict[str, Message] = {
    "votes": Votes((VOTE, Vote(NULLIFY, 1, 8, 0, bytes(32), 3, b"w" * 64))),
    "proposal": Proposal(CANDIDATE, b"v" * 64, NOTAR, (NULL,), encode_block(BLOCK)),
    "proposal on the root": Proposal(Candidate(1, 9, 0, HASH), b"v" * 64, None, (), encode_block(BLOCK)),
    "certificates": Certificates((NOTAR, NULL, FINAL)),
    "get certificates": GetCertificates(1, 5, 68),
    "get block": GetBlock(HASH),
    "block": BlockReply(encode_block(BLOCK)),
    "get blocks": GetBlocks(7, 64),
    "blocks": BlocksReply(7, FINAL, (encode_block(BLOCK),)),
    "status": Status(1, 9, 6, b"p" * 32),
    "blocks pruned": BlocksPruned(7, 900),
}


def vectors() -> dict[str, str]:
    found = {name: encode_message(message).hex() for name, message in MESSAGES.items()}
    found["pid"] = pid(CANDIDATE).hex()
    for kind in (NOTARIZE, FINALIZE):
        found[f"digest {kind}"] = vote_digest(b"g" * 32, kind, CANDIDATE).hex()
    found["digest 2"] = vote_digest(b"g" * 32, NULLIFY, Candidate(1, 9, 0, bytes(32))).hex()
    found["certificate"] = encode_certificate(FINAL).hex()
    return found


def test_encodings_and_digests_never_change() -> None:
    assert vectors() == json.loads(VECTORS.read_text())


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_return_as_they_were(name: str) -> None:
    data = encode_message(MESSAGES[name])
    assert decode_message(data) == MESSAGES[name]
    assert decode_inbound(data).message == MESSAGES[name]
    assert decode_certificate(encode_certificate(FINAL)) == FINAL


def test_a_body_under_a_foreign_header_is_refused() -> None:
    for other in (BLOCK._replace(transactions=(b"ty",)), BLOCK._replace(evidence=(b"e",))):
        for message in (
            BlockReply(encode_block(other)),
            BlocksReply(7, FINAL, (encode_block(other),)),
            Proposal(CANDIDATE, b"v" * 64, None, (), encode_block(other)),
        ):
            with pytest.raises(DecodeError):
                decode_inbound(encode_message(message))


def test_the_largest_messages_pass_and_what_unfolds_in_memory_does_not() -> None:
    certificate = Certificate(NULLIFY, 2**32 - 1, 2**48 - 1, 0, bytes(32), b"\xff" * 13, b"t" * 6_400)
    vote = Vote(FINALIZE, 2**32 - 1, 2**48 - 1, 2**48 - 2, HASH, 99, b"v" * 64)
    for message in (
        Votes((vote,) * VOTES_MAX),
        Certificates((certificate,) * CERTIFICATES_MAX),
        Proposal(CANDIDATE, b"v" * 64, certificate, (certificate,) * NULLS_MAX, bytes(BLOCK_LIMIT_BYTES)),
        BlocksReply(2**48 - 1, certificate, (bytes(100_000),) * BLOCKS_MAX),
    ):
        assert decode_message(encode_message(message)) == message
    many = 1 << 20
    bomb = b"\x9a" + many.to_bytes(4, "big") + b"\x80" * many
    for kind in range(1, 10):
        with pytest.raises(DecodeError, match="items"):
            decode_message(b"\x82" + bytes((kind,)) + bomb)
    for block in (b"\x83" + bomb + b"\x80\x80", b"\x83\x80" + bomb.replace(b"\x80", b"\x40") + b"\x80"):
        with pytest.raises(DecodeError, match="items"):
            decode_inbound(encode_message(BlockReply(block)))


def test_a_window_proves_itself_or_is_refused() -> None:
    raw = encode_block(BLOCK)
    for message in (
        BlocksReply(6, FINAL, (raw,)),
        BlocksReply(7, FINAL._replace(block_hash=b"x" * 32), (raw,)),
        BlocksReply(7, FINAL._replace(kind=NOTARIZE), (raw,)),
        BlocksReply(7, FINAL, (raw, raw)),
    ):
        with pytest.raises(DecodeError):
            decode_inbound(encode_message(message))


@settings(max_examples=400)
@given(st.binary(max_size=300))
def test_any_bytes_decode_or_raise_decode_error(data: bytes) -> None:
    for decoder in (decode_message, decode_inbound, decode_certificate):
        try:
            decoder(data)
        except DecodeError:
            pass


@pytest.mark.parametrize("name", MESSAGES)
def test_mutated_messages_decode_or_raise_decode_error(name: str) -> None:
    rng = random.Random(name)
    original = encode_message(MESSAGES[name])
    for _ in range(1_500):
        data = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 5))):
            change = rng.randrange(4)
            at = rng.randrange(len(data)) if data else 0
            if change == 0 and data:
                data[at] ^= 1 << rng.randrange(8)
            elif change == 1 and data:
                del data[at : at + rng.randrange(1, 9)]
            elif change == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif data:
                data[at] = rng.choice((0x00, 0x17, 0x1B, 0x3B, 0x5B, 0x9B, 0xBB, 0xC2, 0xF6, 0xFB, 0xFF))
        try:
            decoded = decode_inbound(bytes(data))
        except DecodeError:
            continue
        assert encode_message(decoded.message) == bytes(data), "one spelling alone"
