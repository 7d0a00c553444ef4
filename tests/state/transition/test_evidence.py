"""Evidence: one spelling, judged by the committee of its epoch and never against others; its place in a block."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Equivocation
from state.transition import evidence as rules
from state.transition.evidence import (
    BLOCK_EVIDENCE_BYTES_MAX,
    EVIDENCE_LIMIT_BYTES,
    BlockEvidenceInvalid,
    Evidence,
    EvidenceFromFuture,
    EvidenceKnown,
    EvidenceRefused,
    EvidenceSeatUnknown,
    EvidenceSignatureInvalid,
    EvidenceTooOld,
    apply_evidence,
    check_block_evidence,
    decode_evidence,
    prove,
    select_evidence,
)
from state.transition.slashing import Offence, is_tombstoned, list_slashes, punish
from state.transition.staking import save_committee
from state.view import Overlay
from tests.state.transition.faults import EVIDENCE_EPOCHS, MEMBERS, REPORTER, Court, evidence, vote


@pytest.fixture
def court() -> Court:
    made = Court([100] * 10)
    made.seat_all(0, 1, 2, 3)
    return made


def judged(court: Court, found: Evidence, *, epoch_now: int = 0) -> Offence:
    return prove(
        court.state, found, epoch_now=epoch_now, chain=court.runtime.chain, genesis_hash=court.runtime.genesis_hash
    )


@pytest.mark.parametrize(("fault", "number"), [("E1", 1), ("E2", 2), ("E3", 3)])
def test_each_fault_is_proven_against_its_seat(court: Court, fault: str, number: int) -> None:
    found = evidence(court, 4, 2, fault=fault)
    assert decode_evidence(found.encode()) == found
    assert len(found.encode()) <= EVIDENCE_LIMIT_BYTES
    assert judged(court, found, epoch_now=3) == Offence(MEMBERS[4].address, number, 2, 7, 100, 1_000, REPORTER)


def test_a_fault_has_one_spelling_however_it_was_seen(court: Court) -> None:
    found = evidence(court, 4, 2)
    swapped = Evidence.of(Equivocation(found.second, found.first), REPORTER)
    assert swapped == found
    epoch, view, seat, first, second, reporter = decode(found.encode(), limit_bytes=512)
    for other in (
        [epoch, view, seat, second, first, reporter], [epoch, view, seat, first, first, reporter],
        [epoch, view, seat, first, second], [epoch, 0, seat, first, second, reporter],
        [epoch, view, 100, first, second, reporter], [epoch, view, seat, first, second, reporter[:19]],
        [epoch, view, seat, first[:3], second, reporter], [epoch, view, seat, first, second, reporter, 0],
        [epoch, view, seat, [4, *first[1:]], second, reporter], [2**32, view, seat, first, second, reporter],
        [epoch, view, seat, [1, view, *first[2:]], second, reporter],
        [epoch, view, seat, [NOTARIZE, *first[1:]], [FINALIZE, *second[1:]], reporter],
        [epoch, view, seat, [NOTARIZE, *first[1:]], [NULLIFY, 0, bytes(32), second[3]], reporter],
        [epoch, view, seat, [NULLIFY, *first[1:]], [FINALIZE, *second[1:]], reporter],
        [epoch, view, seat, [NULLIFY, 0, bytes(32), first[3]], [NULLIFY, 0, bytes(32), second[3]], reporter],
    ):  # fmt: skip
        with pytest.raises(DecodeError):
            decode_evidence(encode(other))
    with pytest.raises(DecodeError):
        Evidence.of(Equivocation(found.first, found.first), REPORTER)


def test_evidence_of_a_seat_the_epoch_lacks_or_of_an_epoch_to_come(court: Court) -> None:
    with pytest.raises(EvidenceFromFuture):
        judged(court, evidence(court, 0, 3), epoch_now=2)
    with pytest.raises(EvidenceSeatUnknown):
        judged(court, evidence(court, 0, 2, seat=10), epoch_now=2)


def test_the_age_limit_is_exact(court: Court) -> None:
    old = evidence(court, 0, 1)
    assert judged(court, old, epoch_now=1 + EVIDENCE_EPOCHS).operator == MEMBERS[0].address
    with pytest.raises(EvidenceTooOld):
        judged(court, old, epoch_now=2 + EVIDENCE_EPOCHS)


def test_an_operator_is_punished_once_for_whatever_and_with_whatever_key(court: Court) -> None:
    found = evidence(court, 0, 1)
    punish(court.state, [judged(court, found, epoch_now=1)], court.block(1), lambda _: None)
    for again in (found, evidence(court, 0, 1, fault="E2"), evidence(court, 0, 2, view=9)):
        with pytest.raises(EvidenceKnown):
            judged(court, again, epoch_now=2)
    # The same operator sat with another key before: the same owner.
    seats = list(court.committee.seats)
    seats[5] = seats[5]._replace(address=MEMBERS[0].address)
    seats[0] = seats[0]._replace(address=b"n" * 20)
    save_committee(court.state, 0, Committee(seats))
    with pytest.raises(EvidenceKnown):
        judged(court, evidence(court, 5, 0), epoch_now=2)


def test_a_fault_from_when_the_seat_was_larger_counts_beside_one_from_when_it_was_small(court: Court) -> None:
    seats = list(court.committee.seats)
    for epoch, weight in ((0, 1), (1, 400), (2, 399)):
        seats[0] = seats[0]._replace(weight=weight)
        save_committee(court.state, epoch, Committee(seats))
    small, large, less = (evidence(court, 0, epoch).encode() for epoch in range(3))
    apply_evidence(court.state, [small], court.block(2), lambda _: None)
    assert select(court, [small, less, large]) in ((less,), (large,))
    check(court.state, court, (large,))
    apply_evidence(court.state, [large], court.block(2), lambda _: None)
    assert select(court, [small, less, large]) == ()
    for known in (small, less, large):
        with pytest.raises(EvidenceKnown):
            judged(court, decode_evidence(known), epoch_now=2)
    assert list_slashes(court.state, limit=2)[0][1].rate == 923_076_924, "3 x 400 / 1300"
    court.check_supply()


def test_votes_of_another_chain_epoch_view_seat_or_key_prove_nothing(court: Court) -> None:
    good = evidence(court, 4, 2)
    other_chain = [vote(MEMBERS[4], 4, NOTARIZE, name, epoch=2, genesis_hash=b"x" * 32) for name in (b"a", b"b")]
    replayed = [each._replace(epoch=1) for each in good[:2]]
    moved = [each._replace(view=8) for each in good[:2]]
    seated = [each._replace(seat=5) for each in good[:2]]
    renamed = [good.first, good.second._replace(block_hash=b"c" * 32)]
    rekinded = [each._replace(kind=FINALIZE) for each in good[:2]]
    for votes in (other_chain, replayed, moved, seated, renamed, rekinded):
        with pytest.raises(EvidenceSignatureInvalid):
            judged(court, Evidence.of(Equivocation(*votes), REPORTER), epoch_now=2)
    # In another epoch the seats are ordered otherwise: the same number is somebody else.
    save_committee(court.state, 3, Committee(reversed(court.committee.seats)))
    with pytest.raises(EvidenceSignatureInvalid):
        judged(court, evidence(court, 4, 3), epoch_now=3)
    assert judged(court, evidence(court, 4, 3, seat=5), epoch_now=3).operator == MEMBERS[4].address


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 511), st.integers(0, 1))
def test_a_changed_bit_of_a_signature_never_verifies(bit: int, which: int) -> None:
    court = Court([100] * 4)
    court.seat_all(0)
    found = evidence(court, 1, 0)
    votes = list(found[:2])
    number = int.from_bytes(votes[which].signature, "big") ^ 1 << bit
    votes[which] = votes[which]._replace(signature=number.to_bytes(64, "big"))
    with pytest.raises(EvidenceSignatureInvalid):
        judged(court, Evidence.of(Equivocation(*votes), REPORTER))


def test_the_known_transformations_of_a_signature_do_not_verify(court: Court) -> None:
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    found = evidence(court, 1, 0)
    r, s = found.first.signature[:32], int.from_bytes(found.first.signature[32:], "big")
    for forged in (r + (order - s).to_bytes(32, "big"), found.first.signature[32:] + r, bytes(64), r + bytes(32)):
        votes = Equivocation(found.first._replace(signature=forged), found.second)
        with pytest.raises(EvidenceSignatureInvalid):
            judged(court, Evidence.of(votes, REPORTER))


# In a block


def check(state: Overlay, court: Court, raws: tuple[bytes, ...], *, epoch_now: int = 2) -> None:
    check_block_evidence(
        state, raws, epoch_now=epoch_now, chain=court.runtime.chain, genesis_hash=court.runtime.genesis_hash
    )


def select(court: Court, raws: list[bytes], *, epoch_now: int = 2) -> tuple[bytes, ...]:
    return select_evidence(
        court.state, raws, epoch_now=epoch_now, chain=court.runtime.chain, genesis_hash=court.runtime.genesis_hash
    )


def test_what_a_leader_selects_every_voter_accepts_and_punishes_alike(court: Court) -> None:
    good = [evidence(court, member, 2).encode() for member in (5, 1, 8)]
    second = evidence(court, 1, 1, fault="E3").encode()
    bad = [evidence(court, 2, 3).encode(), b"junk", evidence(court, 3, 2, seat=4).encode()]
    chosen = select(court, [*good, second, *bad, good[0]])
    assert len(chosen) == 3 and set(chosen) <= {*good, second}
    check(court.state, court, chosen)
    apply_evidence(court.state, chosen, court.block(2), lambda _: None)
    assert {address for address, _ in list_slashes(court.state, limit=9)} == {
        MEMBERS[member].address for member in (1, 5, 8)
    }
    court.check_supply()
    assert select(court, [*good, second]) == ()
    assert select(court, []) == ()


def test_the_evidence_of_a_block_is_ordered_unique_valid_and_bounded(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(evidence(court, member, 2).encode() for member in (1, 2))
    again = evidence(court, 1, 2, fault="E2").encode()
    one = evidence(court, 1, 2).encode()
    for raws, reason in (
        ((second, first), "order"), ((first, first), "order"), ((b"",), "order"), ((b"junk",), "decode_error"),
        (tuple(sorted((one, again))), "twice"), ((evidence(court, 1, 3).encode(),), "evidence_from_future"),
    ):  # fmt: skip
        before = dict(court.state.changes)
        with pytest.raises(BlockEvidenceInvalid) as refused:
            check(court.state, court, raws)
        assert (refused.value.reason, refused.value.code) == (reason, "block_evidence_invalid")
        with pytest.raises(BlockEvidenceInvalid):
            apply_evidence(court.state, raws, court.block(2), lambda _: None)
        assert court.state.changes == before
    check(court.state, court, (first, second))
    check(court.state, court, ())
    monkeypatch.setattr(rules, "BLOCK_EVIDENCE_BYTES_MAX", len(first) + len(second) - 1)
    with pytest.raises(BlockEvidenceInvalid) as refused:
        check(court.state, court, (first, second))
    assert refused.value.reason == "size"
    assert select(court, [second, first]) == (first,)


def test_a_whole_committee_of_culprits_fits_into_one_block() -> None:
    assert 100 * EVIDENCE_LIMIT_BYTES <= BLOCK_EVIDENCE_BYTES_MAX


def test_every_error_has_its_own_code() -> None:
    errors: list[type[ProtocolError]] = [
        EvidenceRefused,
        *EvidenceRefused.__subclasses__(),
        BlockEvidenceInvalid,
    ]
    assert len({error.code for error in errors}) == len(errors)


def test_nobody_is_named_by_votes_that_are_allowed_beside_each_other(court: Court) -> None:
    chain = court.runtime.genesis_hash
    votes = [
        vote(MEMBERS[1], 1, kind, b"a", epoch=2, genesis_hash=chain) for kind in (NOTARIZE, NULLIFY, FINALIZE)
    ]
    allowed = [(NOTARIZE, NULLIFY), (NOTARIZE, FINALIZE)]
    for one, other in itertools.permutations(votes, 2):
        pair = (min(one.kind, other.kind), max(one.kind, other.kind))
        if pair in allowed:
            with pytest.raises(DecodeError):
                Evidence.of(Equivocation(one, other), REPORTER)
        else:
            judged(court, Evidence.of(Equivocation(one, other), REPORTER), epoch_now=2)
    assert not is_tombstoned(court.state, MEMBERS[1].address)
