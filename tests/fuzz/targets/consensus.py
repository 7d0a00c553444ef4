"""Decoders of the consensus: messages, guard, signer, light clients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from consensus import signer as votesigner
from consensus.guard import (
    JOURNAL_BLOCK,
    JOURNAL_CERTIFICATE,
    Guard,
    GuardCorrupt,
    GuardMissing,
    GuardRefused,
    _slot,
    journal_record,
    read_journal,
)
from consensus.inbound import decode_inbound
from consensus.light import (
    EpochRecord,
    decode_epoch_record,
    decode_merkle_proof,
    encode_epoch_record,
    encode_merkle_proof,
)
from consensus.vote_relay import decode_statement, decode_wanted, encode_statement, encode_wanted
from consensus.wire import decode_certificate, decode_message, encode_certificate, encode_message
from state.primitives.blocks import encode_block
from state.primitives.errors import DecodeError
from state.primitives.merkle import merkle_proof, merkle_root, verify_merkle_proof
from state.primitives.votes import FINALIZE, Vote, VoteKey
from tests.consensus.test_signer import ANSWERS, REQUESTS
from tests.consensus.test_wire import BLOCK, FINAL, MESSAGES, VOTE
from tests.fuzz.targets.base import Raises, Target, canonical
from tests.fuzz.targets.samples import (
    COMMITTEE,
    KEY,
)

KNOWN_MAX: Final = 4_096
"""Signatures and proofs that are remembered: changed inputs mostly ask for the same ones."""


class _Remembering(VoteKey):
    """Does the curve's arithmetic once for each digest: what is fuzzed is who may ask for it."""

    @lru_cache(KNOWN_MAX)  # noqa: B019 - there is one
    def sign_vote(self, digest: bytes) -> bytes:
        return super().sign_vote(digest)

    @lru_cache(KNOWN_MAX)  # noqa: B019
    def prove(self, alpha: bytes) -> bytes:
        return super().prove(alpha)


OURS = _Remembering(KEY)


def guard() -> Guard:
    """A guard with two votes."""
    made = Guard(b"g" * 32, OURS.vote_key)
    for view in (1, 2):
        made.record(vote(view))
    return made


def vote(view: int) -> Vote:
    """A vote in a view."""
    return Vote(FINALIZE, 0, view, view - 1, b"h" * 32, 0, b"s" * 64)


IMAGE = guard().image()


def third_slot() -> bytes:
    """The content of the slot that follows those of ``guard``."""
    made = guard()
    made.image()
    return made.record(vote(3))[:244]


def read_guard(data: bytes) -> None:
    """Load a guard; what it took must survive its own image."""
    loaded, whole = Guard.load(data, b"g" * 32, OURS.vote_key)
    assert whole <= len(data)
    again, _ = Guard.load(loaded.image(), b"g" * 32, OURS.vote_key)
    assert list(again.votes()) == list(loaded.votes())


def read_guard_slot(data: bytes) -> None:
    """Load a guard with a last slot of any content under a right checksum."""
    read_guard(IMAGE + _slot(data[:244]))


def read_vote_journal(data: bytes) -> None:
    """Read a journal: what is told must be the very beginning of the bytes."""
    records, whole = read_journal(data)
    assert b"".join([journal_record(kind, body) for kind, body in records]) == data[:whole]


def read_signer_frames(data: bytes) -> None:
    """Ask a signer with any bytes; what it signs was asked for by its fields, and is on its record."""
    record = Guard(b"g" * 32, OURS.vote_key)
    signer = votesigner.SignerCore(OURS, record, b"g" * 32)
    for body in votesigner.FrameReader(256).feed(data):
        _, request = votesigner.decode_request(body)
        if isinstance(request, votesigner.AskStatus | votesigner.AskKeys):
            continue  # answered by the shell
        answer = signer.step(request).answer
        if isinstance(answer, votesigner.Signed):
            assert isinstance(request, votesigner.AskVote) and answer.vote.candidate == request.candidate
            assert not record.is_foreign(answer.vote)


LEAVES = [bytes([n]) for n in range(21)]
PROOF = merkle_proof(LEAVES, 5)
ROOT = merkle_root(LEAVES)


def check_merkle_proof(data: bytes) -> None:
    """Verify a proof against a root: no other bytes than the right ones pass."""
    assert verify_merkle_proof(ROOT, LEAVES[5], decode_merkle_proof(data)) == (data == encode_merkle_proof(PROOF))


def targets() -> Iterator[tuple[str, Target]]:
    wire = tuple(map(encode_message, MESSAGES.values()))
    yield "consensus message", Target(
        canonical(decode_message, encode_message), wire,
        ("consensus.wire:decode_message", "consensus.wire:_vote", "consensus.wire:_certificate"),
    )  # fmt: skip
    yield "consensus inbound", Target(
        canonical(decode_inbound, lambda found: encode_message(found.message)), wire,
        ("consensus.inbound:decode_inbound", "consensus.inbound:_decode_whole_block"),
    )  # fmt: skip
    yield "word of a seat", Target(
        lambda data: encode_statement(decode_statement(data)),
        tuple(encode_statement(said) for said in (VOTE, FINAL)),
        ("consensus.vote_relay:decode_statement",),
    )  # fmt: skip
    yield "wanted proposal", Target(
        canonical(decode_wanted, encode_wanted), (encode_wanted(FINAL.candidate),),
        ("consensus.vote_relay:decode_wanted",),
    )  # fmt: skip
    yield "certificate", Target(
        canonical(decode_certificate, encode_certificate), (encode_certificate(FINAL),),
        ("consensus.wire:decode_certificate",),
    )  # fmt: skip
    yield "epoch record", Target(
        canonical(decode_epoch_record, encode_epoch_record),
        (encode_epoch_record(EpochRecord(BLOCK.header, FINAL, COMMITTEE)),),
        ("consensus.light:decode_epoch_record",),
    )  # fmt: skip
    yield "merkle proof", Target(
        canonical(decode_merkle_proof, encode_merkle_proof),
        (encode_merkle_proof(PROOF),), ("consensus.light:decode_merkle_proof",),
    )  # fmt: skip
    yield "merkle proof, verified", Target(
        check_merkle_proof, (encode_merkle_proof(PROOF),), ("state.primitives.merkle:verify_merkle_proof",),
    )  # fmt: skip
    faults: Raises = (GuardCorrupt, GuardMissing)
    yield "guard", Target(read_guard, (guard().image(),), ("consensus.guard:Guard.load",), faults)
    yield "guard slot", Target(read_guard_slot, (third_slot(),), ("consensus.guard:Guard._take",), faults)
    yield "consensus journal", Target(
        read_vote_journal,
        (
            journal_record(JOURNAL_BLOCK, encode_block(BLOCK))
            + journal_record(JOURNAL_CERTIFICATE, encode_certificate(FINAL)),
        ),
        ("consensus.guard:read_journal", "consensus.guard:_journal_records"), (),
    )  # fmt: skip
    yield "signer request", Target(
        canonical(votesigner.decode_request, lambda found: votesigner.encode_request(*found)),
        tuple(votesigner.encode_request(number, request) for number, request in enumerate(REQUESTS)),
        ("consensus.signer:decode_request",),
    )  # fmt: skip
    yield "signer answer", Target(
        canonical(votesigner.decode_answer, lambda found: votesigner.encode_answer(*found)),
        tuple(votesigner.encode_answer(number, answer) for number, answer in enumerate(ANSWERS)),
        (
            "consensus.signer:decode_answer", "consensus.signer:_vote_from_value",
            "consensus.signer:_watermark_from_value",
        ),
    )  # fmt: skip
    yield "signer", Target(
        read_signer_frames,
        (b"".join(votesigner.frame(votesigner.encode_request(1, request)) for request in REQUESTS),),
        ("consensus.signer:FrameReader.feed",), (DecodeError, GuardRefused, votesigner.SignerRefused),
    )  # fmt: skip
