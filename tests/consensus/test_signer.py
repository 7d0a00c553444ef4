"""The signer without I/O: what it answers, in every order and over epochs, and which bytes it takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.guard import SLOT_BYTES, DoppelgangerWatch, Guard, GuardRefused
from consensus.signer import (
    EPOCH_LIMIT,
    FRAME_BYTES_MAX,
    VIEW_LIMIT,
    VOTES_PAGE,
    Answer,
    AskKeys,
    AskProof,
    AskStatus,
    AskVote,
    AskVotes,
    Done,
    FrameReader,
    GuardState,
    Keys,
    Open,
    Opened,
    Ping,
    Proved,
    RaiseFloor,
    Refusal,
    Request,
    Retire,
    Signed,
    SignedPage,
    SignerCore,
    SignerRefused,
    SignerStatus,
    Writes,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    frame,
    refusal_of,
)
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey, verify_vote
from state.primitives.votes import (
    FINALIZE,
    NOTARIZE,
    NULLIFY,
    Vote,
    VoteKey,
    evidence_type,
    vote_digest,
    vrf_alpha,
)
from state.primitives.vrf import vrf_verify

GENESIS = b"g" * 32
KEY = VoteKey(SecretKey(b"s" * 32))


def core(**options: int) -> SignerCore:
    return SignerCore(KEY, Guard(GENESIS, KEY.vote_key), GENESIS, **options)


def ask(kind: int, epoch: int, view: int, name: bytes = b"a") -> AskVote:
    if kind == NULLIFY:
        return AskVote(kind, epoch, view, 0, ZERO_HASH, 3)
    return AskVote(kind, epoch, view, view - 1, name * 32, 3)


def signed(signer: SignerCore, request: AskVote) -> Vote:
    answer = signer.step(request).answer
    assert isinstance(answer, Signed)
    return answer.vote


def test_a_vote_is_signed_for_its_fields_and_recorded_before_it_is_told() -> None:
    signer = core()
    step = signer.step(ask(NOTARIZE, 2, 7))
    assert isinstance(step.answer, Signed)
    vote = step.answer.vote
    assert vote[:6] == (NOTARIZE, 2, 7, 6, b"a" * 32, 3)
    assert verify_vote(KEY.vote_key, vote_digest(GENESIS, NOTARIZE, vote.candidate), vote.signature)
    assert len(step.writes.append) == SLOT_BYTES
    again = signer.step(ask(NOTARIZE, 2, 7))
    assert again.answer == step.answer
    assert again.writes == Writes(), "it is on the disk already"


def test_a_proof_is_of_a_view_of_this_chain() -> None:
    answer = core().step(AskProof(3, 9, b"r" * 32)).answer
    assert isinstance(answer, Proved)
    assert vrf_verify(KEY.vrf_key, vrf_alpha(GENESIS, b"r" * 32, 3, 9), answer.proof) is not None


def test_another_chain_is_refused() -> None:
    opened = core().step(Open(GENESIS)).answer
    assert opened == Opened(KEY.vote_key, KEY.vrf_key, 0, 0)
    with pytest.raises(SignerRefused) as refused:
        core().step(Open(b"h" * 32))
    assert refused.value.code == "wrong_chain"


def test_a_retired_signer_votes_no_more_and_shows_its_watermark() -> None:
    signer = core()
    signed(signer, ask(FINALIZE, 4, 9))
    status = signer.step(Retire()).answer
    assert isinstance(status, SignerStatus)
    assert (status.mark.epoch, status.mark.view, status.is_retired) == (4, 9, 1)
    for request in (ask(NOTARIZE, 4, 10), ask(FINALIZE, 4, 9)):
        with pytest.raises(SignerRefused) as refused:
            signer.step(request)
        assert refused.value.code == "signer_retired"


def test_the_votes_above_the_floor_are_shown_page_by_page() -> None:
    signer = core()
    made = [
        signed(signer, ask(kind, 1, view)) for view in range(1, VOTES_PAGE + 2) for kind in (NOTARIZE, FINALIZE)
    ]
    found: list[Vote] = []
    at = (0, 0, 0)
    while True:
        page = signer.step(AskVotes(*at)).answer
        assert isinstance(page, SignedPage)
        assert len(encode_answer(1, page)) <= FRAME_BYTES_MAX
        found += page.votes
        if len(page.votes) < VOTES_PAGE:
            break
        at = (found[-1].epoch, found[-1].view, found[-1].kind)
    assert found == made
    guard_state = GuardState(KEY.vote_key, KEY.vrf_key, (1, 0), tuple(found))
    assert guard_state.watermark == (1, VOTES_PAGE + 1)
    assert not guard_state.is_fresh
    assert guard_state.guard(GENESIS).votes() == tuple(found)


def test_the_floor_of_a_fresh_record_is_kept_and_the_record_stays_small() -> None:
    signer = core(compact_bytes=10 * SLOT_BYTES)
    kept = signer.step(RaiseFloor(2, 5)).writes.replace
    assert Guard.load(kept, GENESIS, KEY.vote_key)[0].floor == (2, 5)
    record = kept
    for view in range(6, 200):
        record += signer.step(ask(NOTARIZE, 2, view)).writes.append
        writes = signer.step(RaiseFloor(2, view - 1)).writes
        record = writes.replace or record
        assert len(record) <= 14 * SLOT_BYTES
        guard, whole = Guard.load(record, GENESIS, KEY.vote_key)
        assert whole == len(record)
        assert guard.votes()[-1].view == view
    assert signer.step(RaiseFloor(1, 1)).answer == Done()
    with pytest.raises(GuardRefused):
        signer.step(ask(NOTARIZE, 2, 198))


STEPS = st.one_of(
    st.builds(
        ask, st.sampled_from((NOTARIZE, NULLIFY, FINALIZE)), st.integers(0, 3), st.integers(1, 3),
        st.sampled_from((b"a", b"b")),
    ),
    st.builds(RaiseFloor, st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from(("crash", "lose the answer")),
)  # fmt: skip


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=60), st.integers(1, 4))
def test_no_order_of_requests_crashes_and_floors_makes_it_contradict_itself(
    steps: list[AskVote | RaiseFloor | str], slots: int
) -> None:
    """Over epochs: what was released before a crash, of the whole process, binds what is released after it."""
    guard = Guard(GENESIS, KEY.vote_key)
    disk = guard.image()
    signer = SignerCore(KEY, guard, GENESIS, compact_bytes=slots * SLOT_BYTES)
    released: list[Vote] = []
    highest_epoch = 0
    for number, step in enumerate(steps):
        if step == "lose the answer":
            continue
        if isinstance(step, str):
            guard, _ = Guard.load(disk, GENESIS, KEY.vote_key)
            disk = guard.image()
            signer = SignerCore(KEY, guard, GENESIS, compact_bytes=slots * SLOT_BYTES)
            continue
        try:
            writes, answer = signer.step(step)
        except GuardRefused:
            continue
        # A crash before the write leaves the old record; one in the middle of it a torn slot.
        if steps[number + 1 : number + 2] == ["crash"] and number % 3 < 2 and writes.append:
            disk += writes.append[: SLOT_BYTES // 2] if number % 3 else b""
            continue
        disk = (writes.replace or disk) + writes.append
        if isinstance(answer, Signed) and steps[number + 1 : number + 2] != ["lose the answer"]:
            released.append(answer.vote)
            if answer.vote not in released[:-1]:
                assert answer.vote.epoch >= highest_epoch, "a new vote in an epoch that is over"
            highest_epoch = max(highest_epoch, answer.vote.epoch)
    assert all(evidence_type(one, other) is None for one in released for other in released)
    restored, _ = Guard.load(disk, GENESIS, KEY.vote_key)
    assert not any(restored.is_foreign(vote) for vote in released), "an own vote is never a doppelganger's"


def test_a_vote_of_the_key_that_the_record_lacks_is_foreign() -> None:
    guard = Guard(GENESIS, KEY.vote_key, epoch=1, view=4)
    made = Vote(NOTARIZE, 1, 6, 5, b"a" * 32, 3, bytes(64))
    guard.record(made)
    assert not guard.is_foreign(made)
    assert guard.is_foreign(made._replace(block_hash=b"b" * 32))
    assert guard.is_foreign(made._replace(parent_view=2))
    assert guard.is_foreign(made._replace(kind=FINALIZE))
    assert guard.is_foreign(Vote(NULLIFY, 1, 5, 0, ZERO_HASH, 3, bytes(64)))
    assert guard.is_foreign(made._replace(epoch=2, view=1))
    assert not guard.is_foreign(made._replace(view=4)), "what is below the floor is forgotten, not foreign"
    assert not guard.is_foreign(made._replace(epoch=0, view=99))


def test_a_fresh_record_is_told_from_one_that_knows_anything() -> None:
    assert Guard(GENESIS, KEY.vote_key).is_fresh
    assert not Guard(GENESIS, KEY.vote_key, view=1).is_fresh
    guard = Guard(GENESIS, KEY.vote_key)
    guard.record(Vote(NULLIFY, 0, 1, 0, ZERO_HASH, 3, bytes(64)))
    assert not guard.is_fresh


# The watch


@pytest.mark.parametrize("views", [1, 2, 20])
def test_a_watch_of_n_views_hears_n_whole_ones(views: int) -> None:
    """It starts within a view, which may have begun long before: that one does not count, not even for N = 1."""
    watch = DoppelgangerWatch(views=views, wait_ms=0, wait_ms_max=10**9, now_ms=5)
    heard_whole = 0
    watch.entered_view()  # ends the view it started in
    while not watch.is_over(6):
        heard_whole += 1
        watch.entered_view()
    assert heard_whole == views


def test_a_watch_lasts_for_its_time_and_ends_by_it() -> None:
    watch = DoppelgangerWatch(views=2, wait_ms=100, wait_ms_max=500, now_ms=1_000)
    assert [watch.is_over(at) for at in (1_000, 1_100, 1_499, 1_500)] == [False, False, False, True]
    for _ in range(3):
        watch.entered_view()
    assert [watch.is_over(at) for at in (1_099, 1_100)] == [False, True]
    assert DoppelgangerWatch(views=0, wait_ms=0, wait_ms_max=0, now_ms=7).is_over(7)


# The wire

VOTE = Vote(FINALIZE, 1, 5, 4, b"a" * 32, 3, b"s" * 64)
REQUESTS: tuple[Request, ...] = (
    Open(GENESIS), ask(NOTARIZE, 1, 5), ask(NULLIFY, 1, 5), ask(FINALIZE, EPOCH_LIMIT - 1, VIEW_LIMIT - 1),
    AskProof(1, 5, b"r" * 32), AskVotes(0, 0, 0), AskVotes(1, 5, FINALIZE), RaiseFloor(0, 0), Ping(), AskStatus(),
    Retire(), Open(GENESIS, KEY.vote_key), AskStatus(KEY.vote_key), Retire(KEY.vote_key), AskKeys(),
)  # fmt: skip


ANSWERS: tuple[Answer, ...] = (
    Opened(KEY.vote_key, KEY.vrf_key, 1, 5), Signed(VOTE), Proved(b"p" * 80), SignedPage((VOTE, VOTE)),
    SignedPage(()), Done(), core().status(is_taken=True), Refusal("guard_refused", "floor", "why"),
    Keys((KEY.vote_key, b"o" * 32)),
)  # fmt: skip


def test_requests_and_answers_come_back_as_they_went() -> None:
    for request in REQUESTS:
        assert decode_request(encode_request(9, request)) == (9, request)
    for answer in ANSWERS:
        assert decode_answer(encode_answer(9, answer)) == (9, answer)


def test_who_names_no_key_asks_as_nodes_did_that_knew_of_one_alone() -> None:
    assert encode_request(1, Open(GENESIS)) == encode([1, 1, GENESIS])
    assert encode_request(1, AskStatus()) == encode([1, 7])
    assert encode_request(1, Retire()) == encode([1, 8])
    keys: tuple[list[Value], ...] = ([], [b"k" * 31], [b"k" * 32] * 17, [1])
    for value in keys:
        with pytest.raises(DecodeError):
            decode_answer(encode([1, 8, value]))


def test_a_refusal_becomes_the_error_that_it_was() -> None:
    signer = core()
    signed(signer, ask(NULLIFY, 1, 5))
    with pytest.raises(GuardRefused) as refused:
        signer.step(ask(FINALIZE, 1, 5))
    told = refusal_of(refused.value).error(ask(FINALIZE, 1, 5))
    assert isinstance(told, GuardRefused)
    assert told.rule == "finalize_after_nullify"
    assert refusal_of(SignerRefused("signer_busy", "why")).error(Ping()).code == "signer_busy"


@pytest.mark.parametrize(
    "value",
    [
        None, [], [1], [1, 6, 0], [-1, 6], [1 << 32, 6], [1, 10], [1, 9, 1],
        [1, 1, b"g" * 32, b"k" * 31], [1, 7, 1], [1, 8, b""], [1, 0], ["1", 6], [1, 1, b"g" * 31], [1, 5, 1],
        [1, 2, 4, 1, 5, 4, b"a" * 32, 3], [1, 2, 1, 1, 5, 5, b"a" * 32, 3], [1, 2, 1, 1, 0, 0, b"a" * 32, 3],
        [1, 2, 1, 1, 5, 4, b"a" * 32, 100], [1, 2, 1, 1, 5, 4, b"a" * 31, 3],
        [1, 2, 1, 1 << 32, 5, 4, b"a" * 32, 3],
        [1, 2, 1, 1, 1 << 48, 4, b"a" * 32, 3], [1, 2, NULLIFY, 1, 5, 4, bytes(32), 3],
        [1, 2, NULLIFY, 1, 5, 0, b"a" * 32, 3], [1, 2, b"a" * 32], [1, 3, b"a" * 32], [1, 3, 1, 0, b"r" * 32],
        [1, 3, 1, 1, b"r" * 33], [1, 4, 0, 0, 4], [1, 5, 0, -1],
    ],
)  # fmt: skip
def test_what_no_node_asks_is_no_request(value: object) -> None:
    with pytest.raises(DecodeError):
        decode_request(encode(value))  # type: ignore[arg-type]


def test_frames_come_whole_and_bounded() -> None:
    bodies = [b"", b"a", b"b" * 200]
    data = b"".join(frame(body) for body in bodies)
    for cut in range(len(data) + 1):
        reader = FrameReader(200)
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == bodies
    with pytest.raises(DecodeError):
        FrameReader(199).feed(frame(b"b" * 200)[:2])
