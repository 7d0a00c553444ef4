"""Who is sent what: nobody waits for long, nobody makes a leader upload much, and liars harm themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.consensus.compact import (
    CompactControl,
    HaveProposal,
    ProposalRequest,
    TransactionsReply,
    TransactionsRequest,
    bits_of,
)
from node.consensus.compact_exchange import (
    TICK_S,
    CompactParameters,
    Deliver,
    Effect,
    Receiver,
    SendCompactControl,
    Sender,
    SendProposal,
    SendTransactions,
)
from tests.node.compact_world import SomePool, form_of, transactions

P = CompactParameters()
ROOT = b"r" * 32
RAWS = transactions(400)
DATA = bytes(60_000)
MEMBERS = [bytes([n]) * 20 for n in range(1, 16)]
RTT_S = 0.08
LEADER, HELPER, OTHER = MEMBERS[:3]


def sender() -> Sender:
    core = Sender(P, Counter())
    core.sent(ROOT, DATA, RAWS, dict.fromkeys(MEMBERS, RTT_S), 0.0)
    return core


def ticks(core: Sender, since: float, until: float) -> list[tuple[float, Effect]]:
    found, now = [], since
    while now < until:
        now += TICK_S
        found += [(now, effect) for effect in core.tick(now)]
    return found


def whole_to(effects: Sequence[Effect]) -> set[bytes]:
    return {address for effect in effects if isinstance(effect, SendProposal) for address in effect.addresses}


# The leader's end.


def test_who_has_it_is_sent_nothing_more() -> None:
    core = sender()
    assert ticks(core, 0, 0.2) == []
    for member in MEMBERS:
        assert core.control(member, HaveProposal(ROOT), 0.2) == []
    assert not core.is_active
    assert ticks(core, 0.2, 5) == []
    assert core.split(MEMBERS, 5) == (MEMBERS, [])


def test_the_silent_are_sent_the_whole_together_and_get_the_next_ones_whole_for_a_while() -> None:
    core = sender()
    mute = MEMBERS[:4]
    for member in MEMBERS[4:]:
        core.control(member, HaveProposal(ROOT), 0.1)
    [(at, effect)] = ticks(core, 0, 5)
    assert effect == SendProposal(DATA, tuple(mute))
    assert at == pytest.approx(0.1 + P.silence_s + 2 * RTT_S, abs=2 * TICK_S)
    assert core.split(MEMBERS, 6) == (MEMBERS[4:], mute)
    core.control(mute[0], HaveProposal(ROOT), 6)  # late, but it can
    assert core.split(MEMBERS, 6)[1] == mute[1:]
    assert core.split(MEMBERS, at + P.whole_s)[1] == []


def test_news_of_others_do_not_delay_the_whole_for_ever() -> None:
    core = sender()
    found, now = [], 0.0
    for member in [*MEMBERS[5:], *MEMBERS[5:]]:
        found += ticks(core, now, now + 0.1)
        now += 0.1
        core.control(member, HaveProposal(ROOT), now)
    assert {a for at, effect in found if at <= P.latest_s + TICK_S for a in whole_to([effect])} >= set(MEMBERS[:5])


def test_those_who_lack_much_are_gathered_into_one_upload() -> None:
    core = sender()
    for member in MEMBERS[6:]:
        core.control(member, HaveProposal(ROOT), 0.1)
    for n, member in enumerate(MEMBERS[:6]):
        now = 0.1 + n * P.gather_s / 10
        assert core.control(member, ProposalRequest(ROOT), now) == []
        assert core.tick(now) == [], "others may ask as well"
    [(at, effect)] = ticks(core, now, 2)
    assert effect == SendProposal(DATA, tuple(MEMBERS[:6]))
    assert at <= 0.1 + P.gather_s + 2 * TICK_S


def test_what_is_missing_is_answered_once() -> None:
    core = sender()
    ask = TransactionsRequest(ROOT, bits_of([3, 17, 30]))
    assert core.control(LEADER, ask, 0.1) == [
        SendTransactions(LEADER, TransactionsReply(ROOT, (RAWS[3], RAWS[17], RAWS[30])))
    ]
    assert core.control(LEADER, ask, 0.1) == []
    [(_, effect)] = ticks(core, 0.1, 0.1 + P.gather_s + TICK_S)
    assert effect == SendProposal(DATA, (LEADER,))


@pytest.mark.parametrize("bits", [bits_of([len(RAWS)]), bits_of(range(200))])
def test_what_nobody_honest_asks_for_is_answered_by_the_whole(bits: bytes) -> None:
    core = sender()
    assert core.control(LEADER, TransactionsRequest(ROOT, bits), 0.1) == []
    assert whole_to([effect for _, effect in ticks(core, 0.1, 0.2)]) == {LEADER}


def test_strangers_and_unknown_messages_are_nothing() -> None:
    core = sender()
    for address, root in ((b"s" * 20, ROOT), (LEADER, b"o" * 32)):
        for control in (HaveProposal(root), ProposalRequest(root), TransactionsRequest(root, b"\1")):
            assert core.control(address, control, 0.1) == []
    assert ticks(core, 0.1, 0.2) == []


def test_a_node_that_stood_still_does_not_hold_it_against_others() -> None:
    core = sender()
    core.tick(TICK_S)
    assert core.tick(0.45) == [], "the words of the others wait to be read"
    for member in MEMBERS:
        core.control(member, HaveProposal(ROOT), 0.46)
    assert not core.is_active


def test_nobody_is_forgotten_by_a_node_that_stood_still_for_long() -> None:
    core = sender()
    core.control(LEADER, ProposalRequest(ROOT), 0.01)
    effects = [effect for _, effect in ticks(core, 2 * P.keep_s, 2 * P.keep_s + 3)]
    assert whole_to(effects) == set(MEMBERS)
    assert not core.is_active


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_everybody_is_served_in_time_and_uploads_are_bounded_whatever_members_say(seed: int) -> None:
    random, core = Random(seed), sender()
    served: Counter[bytes] = Counter()
    have: set[bytes] = set()
    answered, now = 0, 0.0
    while now < P.latest_s + P.gather_s + 2 * TICK_S:
        now += TICK_S
        for effect in core.tick(now):
            assert isinstance(effect, SendProposal)
            served.update(effect.addresses)
        for _ in range(random.randrange(4)):
            member = random.choice(MEMBERS)
            numbers = random.sample(range(len(RAWS)), random.choice([1, 10, 40, 100, 400]))
            words: list[CompactControl] = [
                HaveProposal(ROOT),
                ProposalRequest(ROOT),
                TransactionsRequest(ROOT, bits_of(numbers)),
            ]
            control = random.choice(words)
            if isinstance(control, HaveProposal):
                have.add(member)
            for effect in core.control(member, control, now):
                assert isinstance(effect, SendTransactions)
                answered += sum(map(len, effect.answer.raws))
    assert set(served) | have == set(MEMBERS)
    assert max(served.values(), default=0) <= 1
    assert answered <= len(DATA) // P.answers_share
    assert not core.is_active


def test_few_messages_are_kept() -> None:
    core = Sender(P, Counter())
    for n in range(20):
        core.sent(bytes([n]) * 32, DATA, RAWS, {}, 0.0)
    assert sum(core.knows(bytes([n]) * 32) for n in range(20)) == P.kept_max


# The member's end.


FORM, WHOLE = form_of(RAWS)


def receiver(lacking: Sequence[int] = ()) -> tuple[Receiver, list[Effect]]:
    core = Receiver(P, Counter())
    rebuild, effects = core.compact(LEADER, FORM, 0.0)
    assert rebuild is not None
    assert not effects
    pool = SomePool(raw for n, raw in enumerate(RAWS) if n not in lacking)
    rebuild.fill(pool.hashes(), pool.raw_of)
    return core, core.filled(FORM.root, [HELPER, OTHER], RTT_S, 0.0)


def test_a_rebuilt_message_is_delivered_once_and_said_to_be_here() -> None:
    core, effects = receiver()
    assert effects == []
    assert core.finished(FORM.root, WHOLE, 0.0) == [
        Deliver(LEADER, WHOLE),
        SendCompactControl(LEADER, HaveProposal(FORM.root)),
    ]
    assert core.finished(FORM.root, WHOLE, 0.0) == []
    assert core.compact(LEADER, FORM, 0.5) == (None, [SendCompactControl(LEADER, HaveProposal(FORM.root))])
    assert core.compact(LEADER, FORM, P.repeat_s) == (
        None,
        [SendCompactControl(LEADER, ProposalRequest(FORM.root))],
    ), "it may be lost"
    assert not core.is_active


def test_what_is_missing_is_asked_of_the_leader_then_of_one_other_then_all_of_it_is() -> None:
    core, effects = receiver([5, 6])
    ask = TransactionsRequest(FORM.root, bits_of([5, 6]))
    assert effects == [SendCompactControl(LEADER, ask)]
    patience_s = P.answer_s + 2 * RTT_S
    assert core.tick(patience_s - 0.01) == []
    assert core.tick(patience_s) == [SendCompactControl(HELPER, ask)]
    assert core.tick(patience_s + 0.01) == []
    assert core.tick(2 * patience_s) == [SendCompactControl(LEADER, ProposalRequest(FORM.root))]
    assert core.pending_count == 0


def test_an_answer_counts_from_whom_it_was_asked_and_only_if_it_fits() -> None:
    core, _ = receiver([5, 6])
    right = TransactionsReply(FORM.root, (RAWS[5], RAWS[6]))
    assert core.some(OTHER, right) is None
    assert core.some(LEADER, TransactionsReply(FORM.root, (RAWS[5],))) is None
    assert core.some(LEADER, TransactionsReply(b"o" * 32, right.raws)) is None
    rebuild = core.some(LEADER, right)
    assert rebuild is not None
    assert rebuild.message() == WHOLE
    assert core.some(LEADER, right) is None


def test_a_wrong_answer_leads_to_the_whole() -> None:
    core, _ = receiver([5])
    rebuild = core.some(LEADER, TransactionsReply(FORM.root, (RAWS[6],)))
    assert rebuild is not None
    assert rebuild.message() is None
    assert core.finished(FORM.root, None, 0.0) == [SendCompactControl(LEADER, ProposalRequest(FORM.root))]
    assert core.compact(LEADER, FORM, 0.0) == (None, [SendCompactControl(LEADER, ProposalRequest(FORM.root))]), (
        "it is not tried again"
    )


def test_who_lacks_much_asks_for_the_whole_at_once() -> None:
    core, effects = receiver(range(len(RAWS) // P.missing_share + 1))
    assert effects == [SendCompactControl(LEADER, ProposalRequest(FORM.root))]
    assert core.pending_count == 0


def test_one_form_of_a_leader_and_view_is_rebuilt_and_few_at_once() -> None:
    core = Receiver(P, Counter())
    for n in range(30):
        compact = FORM._replace(root=bytes([n]) * 32)
        rebuild, effects = core.compact(LEADER, compact, 0.0)
        assert (rebuild is None) == bool(n)
        assert effects == ([SendCompactControl(LEADER, ProposalRequest(compact.root))] if n else [])
    for n, member in enumerate([*MEMBERS[1:], *MEMBERS[1:]]):
        core.compact(member, form_of(RAWS[:100], view=20 + n)[0], 0.0)
        assert core.pending_count <= P.pending_max


def test_another_seat_is_helped_out_of_what_was_rebuilt() -> None:
    core, _ = receiver()
    ask = TransactionsRequest(FORM.root, bits_of([2]))
    assert core.help(OTHER, ask) == []
    core.finished(FORM.root, WHOLE, 0.0)
    assert core.help(OTHER, ask) == [SendTransactions(OTHER, TransactionsReply(FORM.root, (RAWS[2],)))]
    assert core.help(OTHER, ask) == []
    assert core.help(HELPER, TransactionsRequest(FORM.root, bits_of(range(200)))) == []


def test_the_whole_ends_a_rebuild_and_is_not_delivered_twice_in_a_moment() -> None:
    core, _ = receiver([5])
    assert core.whole(OTHER, WHOLE, 0.0), "somebody else's"
    assert core.whole(LEADER, bytes(len(WHOLE)), 0.0)
    assert core.pending_count == 1
    assert core.whole(LEADER, WHOLE, 0.0)
    assert core.pending_count == 0
    assert core.tick(10) == []
    core, _ = receiver()
    core.finished(FORM.root, WHOLE, 1.0)
    assert not core.whole(LEADER, WHOLE, 1.1)
    assert core.whole(LEADER, WHOLE, 1.0 + P.repeat_s), "a repetition: the first may have been lost behind us"
