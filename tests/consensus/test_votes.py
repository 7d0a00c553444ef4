from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.votes import Certificate, VoteSet, certificate_checks, verify_checks, vote_check
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DecodeError
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest

GENESIS = b"g" * 32
KEYS = [SecretKey(bytes([0] * 31 + [n + 1])) for n in range(4)]
WEIGHTS = (1, 2, 3, 4)
COMMITTEE = Committee(
    Seat(key.address, key.vote_key, key.vote_key, w) for key, w in zip(KEYS, WEIGHTS, strict=True)
)
A, B = Candidate(1, 5, 4, b"a" * 32), Candidate(1, 5, 4, b"b" * 32)
NULL = Candidate(1, 5, 0, ZERO_HASH)


def cast(kind: int, candidate: Candidate, seat: int) -> Vote:
    return Vote(kind, *candidate, seat, KEYS[seat].sign_vote(vote_digest(GENESIS, kind, candidate)))


def certified(kind: int = NOTARIZE, candidate: Candidate = A, seats: tuple[int, ...] = (1, 2, 3)) -> Certificate:
    return Certificate.of(COMMITTEE, [cast(kind, candidate, seat) for seat in seats])


def test_a_quorum_of_weight_makes_one_certificate_that_verifies() -> None:
    votes = VoteSet(COMMITTEE)
    assert votes.add(cast(NOTARIZE, A, 3)).certificate is None
    assert votes.add(cast(NOTARIZE, A, 2)).certificate is not None  # 7 of 10
    assert votes.add(cast(NOTARIZE, A, 1)).certificate is None
    certificate = certified()
    assert verify_checks(certificate_checks(COMMITTEE, GENESIS, certificate))
    assert certificate.bitmap == b"\x0e"


def test_a_vote_counts_once_also_when_the_very_same_object_comes_again() -> None:
    votes = VoteSet(COMMITTEE)
    vote = cast(NOTARIZE, A, 3)
    assert votes.add(vote).is_new
    assert votes.add(vote) == votes.add(Vote(*vote)) == (False, None, None)
    assert votes.add(cast(NOTARIZE, A, 1)).certificate is None  # 6 of 10


def test_equivocation_is_returned_as_evidence_and_not_counted() -> None:
    votes = VoteSet(COMMITTEE)
    first, second = cast(NOTARIZE, A, 3), cast(NOTARIZE, B, 3)
    votes.add(first)
    added = votes.add(second)
    assert added.equivocation == Equivocation(first, second)
    assert added.equivocation.type == "E1"
    assert votes.add(cast(NOTARIZE, B, 2)).certificate is None
    assert not votes.add(second).is_new


def test_finalize_and_nullify_of_one_seat_are_evidence() -> None:
    votes = VoteSet(COMMITTEE)
    votes.add(cast(NULLIFY, NULL, 1))
    equivocation = votes.add(cast(FINALIZE, A, 1)).equivocation
    assert equivocation is not None
    assert equivocation.type == "E3"


@given(st.permutations([(kind, seat) for kind in (1, 2, 3) for seat in range(4)]))
def test_the_order_of_votes_does_not_change_what_is_certified(order: list[tuple[int, int]]) -> None:
    votes = VoteSet(COMMITTEE)
    found = set()
    for kind, seat in order:
        certificate = votes.add(Vote(kind, *(NULL if kind == NULLIFY else A), seat, bytes(64))).certificate
        if certificate is not None:
            assert certificate.kind not in found
            found.add(certificate.kind)
    assert found == {1, 2, 3}


def test_a_vote_of_another_chain_kind_or_view_does_not_verify() -> None:
    vote = cast(NOTARIZE, A, 0)
    assert verify_checks((vote_check(COMMITTEE, GENESIS, vote),))
    for wrong in (
        vote._replace(kind=FINALIZE),
        vote._replace(view=6),
        vote._replace(epoch=2),
        vote._replace(parent_view=3),
        vote._replace(block_hash=b"b" * 32),
        vote._replace(seat=1),
    ):
        assert not verify_checks((vote_check(COMMITTEE, GENESIS, wrong),))
    assert not verify_checks((vote_check(COMMITTEE, b"h" * 32, vote),))
    with pytest.raises(DecodeError):
        vote_check(COMMITTEE, GENESIS, vote._replace(seat=4))


def test_a_damaged_certificate_is_refused() -> None:
    good = certified()
    for bad in (
        good._replace(bitmap=b"\x1e"),  # a bit of no seat
        good._replace(bitmap=b"\x0e\x00"),
        good._replace(bitmap=b""),
        good._replace(bitmap=b"\x0f"),
        good._replace(bitmap=b"\x06", signatures=good.signatures[:128]),  # 5 of 10
        good._replace(signatures=good.signatures[:128]),
        good._replace(signatures=good.signatures + bytes(64)),
        good._replace(signatures=good.signatures[:-1]),
    ):
        with pytest.raises(DecodeError):
            certificate_checks(COMMITTEE, GENESIS, bad)
    swapped = good.signatures[64:128] + good.signatures[:64] + good.signatures[128:]
    once = good.signatures[:64] * 3
    for forged in (
        good._replace(signatures=swapped),
        good._replace(signatures=once),
        good._replace(kind=FINALIZE),
    ):
        assert not verify_checks(certificate_checks(COMMITTEE, GENESIS, forged))


def test_the_votes_inside_a_certificate_are_those_it_was_made_of() -> None:
    assert certified().votes() == tuple(cast(NOTARIZE, A, seat) for seat in (1, 2, 3))
