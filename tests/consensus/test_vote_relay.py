"""Words of seats that others pass on: who publishes when, and what of it goes how far."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.core.limits import VIEWS_AHEAD
from consensus.vote_relay import (
    ALIVE_VIEWS,
    PAYLOAD_BYTES_MAX,
    REPEAT_MS,
    REPEATS_DISTANT_OF_ONE_PER_S_MAX,
    REPEATS_DISTANT_PER_S_MAX,
    REPEATS_PER_S_MAX,
    SOURCES_MAX,
    VIEWS_AHEAD_MAX,
    VIEWS_BEHIND_MAX,
    Opinion,
    Statement,
    VoteRelay,
    decode_statement,
    decode_wanted,
    encode_statement,
    encode_wanted,
)
from consensus.votes import Certificate, verify_checks
from consensus.wire import CERTIFICATE_LIMIT_BYTES, Certificates, GetBlock, Votes, encode_message
from state.primitives.codec import encode
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.votes import FINALIZE, KINDS, NOTARIZE, NULLIFY, Candidate, Vote, vote_digest
from tests.consensus.world import FOUR, GENESIS, address_of, committee_of, vote_key

OWN, PEER, OTHER = address_of(0), b"p" * 20, b"o" * 20
EPOCH, VIEW = 3, 100
FIVE = committee_of(*((account, 0, 1) for account in range(5)))


def block(number: int) -> bytes:
    return digest(b"test", b"block" + bytes((number,)))


def vote(seat: int, view: int = VIEW, kind: int = NOTARIZE, number: int = 0, epoch: int = EPOCH) -> Vote:
    candidate = Candidate(epoch, view, 0, ZERO_HASH) if kind == NULLIFY else Candidate(
        epoch, view, view - 1, block(number)
    )  # fmt: skip
    signature = vote_key(seat).sign_vote(vote_digest(GENESIS, kind, candidate))
    return Vote(kind, *candidate, seat, signature)


def certificate(seats: Iterable[int], view: int = VIEW, kind: int = NOTARIZE, number: int = 0) -> Certificate:
    return Certificate.of(FOUR, [vote(seat, view, kind, number) for seat in seats])


def vote_relay(view: int = VIEW, following: Committee | None = FOUR, own: bytes = OWN) -> VoteRelay:
    made = VoteRelay(GENESIS, own)
    made.entered(EPOCH, view, FOUR, following)
    return made


def take(core: VoteRelay, statement: Statement, now_ms: int = 0, repeat: int = 0, sender: bytes = PEER) -> Opinion:
    """What the shell does with one payload."""
    judged = core.judge(encode_statement(statement, repeat), sender, now_ms)
    if judged.opinion is not None:
        return judged.opinion
    assert judged.statement is not None
    if not verify_checks(judged.checks):
        return Opinion.REJECT
    return core.settle(judged.statement, sender, now_ms)[0]


def others(*missing: int) -> set[bytes]:
    return {address_of(account) for account in range(4)} - {address_of(account) for account in (0, *missing)}


# Who publishes when


def test_in_a_full_mesh_nobody_is_lacking() -> None:
    core = vote_relay()
    assert core.lacking(others()) == ()
    assert core.lacking(others(2)) == (address_of(2),)
    assert core.has_seat() and not vote_relay(own=b"x" * 20).has_seat()


def test_a_seat_that_was_not_heard_for_long_is_not_waited_for_and_one_that_speaks_is() -> None:
    core = vote_relay()
    for view in range(VIEW, VIEW + 2 * ALIVE_VIEWS):
        core.entered(EPOCH, view, FOUR, FOUR)
        core.heard(vote(1, view), address_of(1))
        core.certified(certificate((0, 1, 2), view))
        is_alive = view - VIEW <= ALIVE_VIEWS
        assert core.lacking(others(3)) == ((address_of(3),) if is_alive else ())
        assert core.lacking(others(2)) == (address_of(2),)  # in certificates alone, and alive
    # What it says may be of a view that is behind: it speaks now.
    assert take(core, vote(3, view - 5)) is Opinion.FORWARD
    assert core.lacking(others(3)) == (address_of(3),)


def test_in_a_stall_everybody_counts_as_alive() -> None:
    core = vote_relay()
    core.entered(EPOCH, VIEW + ALIVE_VIEWS, FOUR, FOUR)
    assert len(core.lacking(())) == 3


def test_a_new_epoch_asks_for_everybody_anew() -> None:
    core = vote_relay()
    core.entered(EPOCH, VIEW + ALIVE_VIEWS + 1, FOUR, FIVE)
    assert core.lacking(()) == ()
    core.entered(EPOCH + 1, 1, FIVE, None)
    assert set(core.lacking(())) == {address_of(account) for account in (1, 2, 3, 4)}


def test_what_is_published_is_one_payload_for_each_word_and_a_repeat_has_another_name() -> None:
    core = vote_relay()
    first, second = vote(0), vote(0, kind=FINALIZE)
    payloads = core.publish(Votes((first, second)))
    assert [decode_statement(payload) for payload in payloads] == [first, second]
    again = core.publish(Votes((first,)))
    assert again[0] not in payloads and decode_statement(again[0]) == first
    assert [decode_statement(payload) for payload in core.publish(Certificates((certificate((0, 1, 2)),)))]
    assert core.publish(GetBlock(block(0))) == []
    assert core.publish(Votes((vote(0, VIEW - VIEWS_BEHIND_MAX - 1),))) == []


def test_the_largest_certificate_fits() -> None:
    assert CERTIFICATE_LIMIT_BYTES + 64 < PAYLOAD_BYTES_MAX


# What goes on


@given(
    st.integers(0, 3), st.integers(VIEW - 40, VIEW + 40), st.sampled_from(sorted(KINDS)), st.integers(0, 6),
    st.sampled_from(["good", "signature", "seat", "swapped"]),
)  # fmt: skip
def test_a_vote_goes_on_when_it_is_near_and_genuine_and_only_forgery_is_rejected(
    seat: int, view: int, kind: int, epoch: int, fault: str
) -> None:
    statement = vote(seat, view, kind, epoch=epoch)
    if fault == "signature":
        statement = statement._replace(signature=bytes(64))
    elif fault == "seat":
        statement = statement._replace(seat=seat + 4)
    elif fault == "swapped":
        statement = statement._replace(seat=(seat + 1) % 4)
    is_near = (epoch == EPOCH and VIEW - VIEWS_BEHIND_MAX <= view <= VIEW + VIEWS_AHEAD_MAX) or (
        epoch == EPOCH + 1 and view <= VIEWS_AHEAD_MAX
    )
    core = vote_relay()
    got = take(core, statement)
    if not is_near:
        assert got is Opinion.IGNORE  # whoever passed it on may be elsewhere
    else:
        assert got is (Opinion.FORWARD if fault == "good" else Opinion.REJECT)
    honest = {OTHER: vote_relay(view), PEER: vote_relay(VIEW)}
    if got is Opinion.REJECT:  # then no honest node of the same chain passes it on, wherever it stands
        assert all(take(node, statement) is not Opinion.FORWARD for node in honest.values())


@given(st.binary(max_size=200))
def test_bytes_that_say_nothing_are_rejected(data: bytes) -> None:
    core = vote_relay()
    assert core.judge(data, PEER, 0).opinion is Opinion.REJECT


STATEMENTS: tuple[Statement, ...] = (vote(1), certificate((0, 1, 3)))


@given(st.data())
def test_damaged_payloads_never_go_on(data: st.DataObject) -> None:
    payload = bytearray(encode_statement(data.draw(st.sampled_from(STATEMENTS))))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    core = vote_relay()
    judged = core.judge(bytes(payload), PEER, 0)
    if judged.opinion is None:
        assert judged.statement is not None
        is_same = judged.statement in STATEMENTS  # the number of the repeat alone was hit
        assert verify_checks(judged.checks) == is_same
    else:
        assert judged.opinion is not Opinion.FORWARD


@pytest.mark.parametrize(
    "message",
    [
        Votes((vote(1), vote(2))),
        Certificates((certificate((0, 1, 2)), certificate((1, 2, 3)))),
        GetBlock(block(0)),
    ],
)
def test_a_payload_is_one_word_of_one_seat(message: Votes | Certificates | GetBlock) -> None:
    payload = encode([0, encode_message(message)])
    with pytest.raises(DecodeError):
        decode_statement(payload)
    assert vote_relay().judge(payload, PEER, 0).opinion is Opinion.REJECT


def test_a_certificate_needs_weight_its_committee_and_its_signatures() -> None:
    good = certificate((0, 1, 2))
    assert take(vote_relay(), good) is Opinion.FORWARD
    assert take(vote_relay(), good._replace(bitmap=b"\x03", signatures=good.signatures[:128])) is Opinion.REJECT
    assert take(vote_relay(), good._replace(bitmap=b"\x17")) is Opinion.REJECT
    assert take(vote_relay(), good._replace(signatures=bytes(192))) is Opinion.REJECT
    assert take(vote_relay(), good._replace(view=VIEW + 99)) is Opinion.IGNORE


def test_what_came_directly_goes_on_unverified_and_once() -> None:
    core = vote_relay()
    statement = vote(1)
    core.heard(statement, address_of(1))
    judged = core.judge(encode_statement(statement), PEER, 0)
    assert judged.opinion is Opinion.FORWARD and not judged.checks
    assert core.judge(encode_statement(statement, 1), PEER, REPEAT_MS - 1).opinion is Opinion.IGNORE


def test_a_repeat_goes_on_after_a_while_whoever_says_it() -> None:
    core = vote_relay()
    statement = vote(1)
    assert take(core, statement, 0) is Opinion.FORWARD
    assert take(core, statement, REPEAT_MS - 1, 1) is Opinion.IGNORE
    assert take(core, statement, REPEAT_MS, 2, OTHER) is Opinion.FORWARD
    assert take(core, statement, 2 * REPEAT_MS - 1, 3) is Opinion.IGNORE


def test_all_repeats_together_are_bounded() -> None:
    core = vote_relay()
    forwarded = 0
    views = range(VIEW, VIEW + VIEWS_AHEAD + 1)
    votes = [vote(seat, view, kind) for seat in range(4) for view in views for kind in KINDS]
    assert all(take(core, statement, 0) is Opinion.FORWARD for statement in votes)
    for second in range(1, 5):
        for repeat in range(4):
            for statement in votes:
                got = take(core, statement, 1_000 * second, 4 * second + repeat)
                forwarded += got is Opinion.FORWARD
    assert (
        forwarded == 4 * len(votes) <= 4 * REPEATS_PER_S_MAX
    )  # one for each word and second, however many say it


def test_who_repeats_old_and_far_words_keeps_no_present_one_back() -> None:
    core = vote_relay()
    views = (*range(VIEW - VIEWS_BEHIND_MAX, VIEW - 1), *range(VIEW + VIEWS_AHEAD + 1, VIEW + VIEWS_AHEAD_MAX + 1))
    flood = [vote(seat, view, kind) for seat in range(4) for view in views for kind in KINDS]
    present: list[Statement] = [
        vote(1),
        vote(2, kind=NULLIFY),
        vote(3, VIEW - 1, FINALIZE),
        certificate((0, 1, 2)),
    ]
    first: list[Statement] = [*flood, *present]
    assert all(take(core, statement) is Opinion.FORWARD for statement in first)
    for second in range(1, 4):
        now_ms = second * REPEAT_MS
        passed = [
            statement for statement in flood if take(core, statement, now_ms, second, PEER) is Opinion.FORWARD
        ]
        assert len(passed) == REPEATS_DISTANT_OF_ONE_PER_S_MAX
        for statement in passed:  # a certificate is there in the place of votes for a view that has passed
            assert statement.view > VIEW or statement.kind == FINALIZE
        for one in present:
            assert take(core, one, now_ms, second, PEER) is Opinion.FORWARD
        passed += [
            statement for statement in flood if take(core, statement, now_ms, second + 8, OTHER) is Opinion.FORWARD
        ]
        assert len(passed) == REPEATS_DISTANT_PER_S_MAX, "others have a part of their own"


def test_a_flood_of_one_seat_goes_on_once_for_each_kind_and_view() -> None:
    core = vote_relay()
    forwarded = news = 0
    for view in range(VIEW - 40, VIEW + 60):
        for kind in (NOTARIZE, FINALIZE):
            for number in range(4):
                judged = core.judge(encode_statement(vote(1, view, kind, number)), PEER, 0)
                if judged.opinion is None:
                    assert judged.statement is not None and verify_checks(judged.checks)
                    opinion, is_news = core.settle(judged.statement, PEER, 0)
                    forwarded += opinion is Opinion.FORWARD
                    news += is_news
    views = VIEWS_BEHIND_MAX + 1 + VIEWS_AHEAD_MAX
    assert forwarded == 2 * views
    assert news == 4 * views  # the second one is the proof of a fault, which is gossiped as evidence


def test_other_signatures_of_a_known_word_cost_nothing() -> None:
    core = vote_relay()
    core.heard(vote(1), address_of(1))
    judged = core.judge(encode_statement(vote(1)._replace(signature=bytes(64))), PEER, 0)
    assert (judged.opinion, judged.checks) == (Opinion.IGNORE, ())


def test_two_of_one_word_in_one_batch_go_on_once() -> None:
    core = vote_relay()
    first, second = (core.judge(encode_statement(vote(1), repeat), PEER, 0) for repeat in (0, 1))
    assert first.opinion is None and second.opinion is None
    assert core.settle(vote(1), PEER, 0) == (Opinion.FORWARD, True)
    assert core.settle(vote(1), OTHER, 0) == (Opinion.IGNORE, False)


# What the replica did not listen to yet


def test_words_for_later_views_and_for_the_next_epoch_are_told_when_their_time_has_come() -> None:
    core = vote_relay()
    late, near = vote(1, VIEW + VIEWS_AHEAD + 1), vote(1, VIEW + VIEWS_AHEAD)
    next_epoch = vote(2, 1, epoch=EPOCH + 1)
    for statement in (late, near, next_epoch):
        assert take(core, statement) is Opinion.FORWARD
    assert core.entered(EPOCH, VIEW + 1, FOUR, FOUR) == (late,)
    assert core.entered(EPOCH, VIEW + 2, FOUR, FOUR) == ()
    assert core.entered(EPOCH + 1, 1, FOUR, None) == (next_epoch,)
    assert take(core, vote(1, 1, epoch=EPOCH + 2)) is Opinion.IGNORE


def test_words_of_the_next_epoch_are_judged_by_its_committee() -> None:
    fifth = vote(4, 1, epoch=EPOCH + 1)
    assert take(vote_relay(following=FIVE), fifth) is Opinion.FORWARD
    assert take(vote_relay(following=FOUR), fifth) is Opinion.REJECT
    assert take(vote_relay(following=None), fifth) is Opinion.IGNORE


def test_what_is_behind_is_forgotten() -> None:
    core = vote_relay()
    assert take(core, vote(1)) is Opinion.FORWARD
    core.entered(EPOCH, VIEW + VIEWS_BEHIND_MAX + 1, FOUR, FOUR)
    assert take(core, vote(1)) is Opinion.IGNORE
    assert not core.knows(vote(1).candidate) and core._entries == {}


# Who has a block


def test_who_voted_and_who_told_are_remembered_as_sources() -> None:
    core = vote_relay()
    candidate = vote(1).candidate
    core.heard(vote(1), PEER)
    core.heard(vote(2), address_of(2))
    core.heard(vote(3, number=1), address_of(3))
    assert core.sources(candidate) == (PEER, address_of(2))
    assert core.holders(block(0)) == (address_of(2),)
    assert core.is_voter(address_of(2), candidate) and not core.is_voter(PEER, candidate)
    assert core.knows(candidate) and not core.knows(candidate._replace(block_hash=block(7)))
    for number in range(2 * SOURCES_MAX):
        core.heard(vote(1), bytes((number,)) * 20)
    assert len(core.sources(candidate)) == SOURCES_MAX
    assert core.candidates() == (candidate, candidate._replace(block_hash=block(1)))
    assert core.leader(EPOCH, VIEW) == FOUR.seats[FOUR.leader(VIEW)].address


def test_a_question_for_a_proposal_comes_back_as_it_was() -> None:
    candidate = vote(1).candidate
    assert decode_wanted(encode_wanted(candidate)) == candidate
    for wrong in (b"", encode([1, 2]), encode([EPOCH, 5, 5, block(0)]), encode([EPOCH, 5, 4, b"short"])):
        with pytest.raises(DecodeError):
            decode_wanted(wrong)
