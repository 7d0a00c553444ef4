"""Conflicting certificates name every culprit, with more than a third of the weight."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.evidence import evidence_of_certificates
from consensus.votes import Certificate, certificate_checks, verify_checks, vote_check
from state.primitives.committee import Committee, Seat
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, vote_digest

GENESIS = b"g" * 32
SECRETS = [SecretKey(bytes([number]) * 32) for number in range(1, 8)]
NOTHING = bytes(32)


def committee(weights: list[int]) -> Committee:
    seats = zip(SECRETS, weights, strict=False)
    return Committee(Seat(key.address, key.vote_key, bytes(32), weight) for key, weight in seats)


def certificate(
    seats: Committee, signers: set[int], kind: int, candidate: Candidate, *, signed: bool = True
) -> Certificate:
    digest = vote_digest(GENESIS, kind, candidate)
    votes = [
        Vote(kind, *candidate, seat, SECRETS[seat].sign_vote(digest) if signed else bytes(64)) for seat in signers
    ]
    return Certificate.of(seats, votes)


def test_two_notarisations_of_a_view_name_who_signed_both_with_votes_that_verify() -> None:
    four = committee([1, 1, 1, 1])
    a = certificate(four, {0, 1, 2}, NOTARIZE, Candidate(3, 9, 8, b"a" * 32))
    b = certificate(four, {1, 2, 3}, NOTARIZE, Candidate(3, 9, 8, b"b" * 32))
    for each in (a, b):
        assert verify_checks(certificate_checks(four, GENESIS, each))
    found = evidence_of_certificates(a, b)
    assert [(fault.type, fault.first.seat) for fault in found] == [("E1", 1), ("E1", 2)]
    for fault in found:
        assert verify_checks((vote_check(four, GENESIS, fault.first), vote_check(four, GENESIS, fault.second)))


def test_the_same_block_on_another_parent_view_is_another_candidate() -> None:
    four = committee([1, 1, 1, 1])
    a = certificate(four, {0, 1, 2}, FINALIZE, Candidate(3, 9, 8, b"a" * 32), signed=False)
    b = certificate(four, {0, 1, 2}, FINALIZE, Candidate(3, 9, 7, b"a" * 32), signed=False)
    assert {fault.type for fault in evidence_of_certificates(a, b)} == {"E2"}


def test_a_nullified_view_that_is_final_names_its_culprits_in_either_order() -> None:
    four = committee([1, 1, 1, 1])
    final = certificate(four, {0, 1, 2}, FINALIZE, Candidate(3, 9, 8, b"a" * 32), signed=False)
    skipped = certificate(four, {0, 2, 3}, NULLIFY, Candidate(3, 9, 0, NOTHING), signed=False)
    for found in (evidence_of_certificates(final, skipped), evidence_of_certificates(skipped, final)):
        assert [(fault.type, fault.first.seat) for fault in found] == [("E3", 0), ("E3", 2)]


def test_certificates_that_may_stand_beside_each_other_prove_nothing() -> None:
    four = committee([1, 1, 1, 1])
    block, other = Candidate(3, 9, 8, b"a" * 32), Candidate(3, 10, 9, b"b" * 32)
    harmless = [
        certificate(four, {0, 1, 2}, NOTARIZE, block, signed=False),
        certificate(four, {0, 1, 3}, NOTARIZE, block, signed=False),
        certificate(four, {0, 1, 2}, FINALIZE, block, signed=False),
        certificate(four, {0, 1, 2}, NOTARIZE, other, signed=False),
        certificate(four, {0, 1, 2}, NOTARIZE, block._replace(epoch=4, block_hash=b"c" * 32), signed=False),
    ]
    for a, b in itertools.product(harmless, repeat=2):
        assert evidence_of_certificates(a, b) == ()
    skipped = certificate(four, {0, 1, 2}, NULLIFY, Candidate(3, 9, 0, NOTHING), signed=False)
    assert evidence_of_certificates(harmless[0], skipped) == ()  # NOTARIZE then NULLIFY is what R4 asks for


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=7),
    st.sets(st.integers(0, 6)),
    st.sets(st.integers(0, 6)),
    st.sampled_from([NOTARIZE, FINALIZE, NULLIFY]),
)
def test_conflicting_quorums_name_more_than_a_third_of_the_weight(
    weights: list[int], first: set[int], second: set[int], kind: int
) -> None:
    seats = committee(weights)
    first, second = ({seat for seat in signers if seat < seats.size} for signers in (first, second))
    if min(sum(seats.weights[seat] for seat in signers) for signers in (first, second)) < seats.quorum:
        return
    candidate = Candidate(0, 1, 0, b"a" * 32) if kind != NULLIFY else Candidate(0, 1, 0, NOTHING)
    a = certificate(seats, first, kind, candidate, signed=False)
    against = FINALIZE if kind == NULLIFY else kind
    b = certificate(seats, second, against, Candidate(0, 1, 0, b"b" * 32), signed=False)
    found = {fault.first.seat for fault in evidence_of_certificates(a, b)}
    assert found == first & second
    assert 3 * sum(seats.weights[seat] for seat in found) > seats.weight
