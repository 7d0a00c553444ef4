"""What strangers can fill, ask for and push out: the inbox, answers, and what waits for the next epoch."""

from __future__ import annotations

from consensus.inbound import (
    ANSWER_BURST_BYTES,
    ANSWERED_MAX,
    EARLY_BYTES_MAX,
    EARLY_OF_ONE_MAX,
    EARLY_OF_STRANGERS_BYTES_MAX,
    INBOX_BYTES_MAX,
    INBOX_MESSAGES_MAX,
    QUESTION_BYTES,
    SEATS_IN_A_ROW_MAX,
    SENDER_BYTES_MAX,
    SENDER_MESSAGES_MAX,
    STRANGERS_BURST_BYTES,
    STRANGERS_BYTES_MAX,
    STRANGERS_MESSAGES_MAX,
    Allowance,
    Decoded,
    EarlyMessages,
    Inbox,
)
from consensus.wire import MESSAGE_LIMIT_BYTES, Proposal, Votes
from state.primitives.votes import FINALIZE, Candidate, Vote


def name(number: int) -> bytes:
    return number.to_bytes(20, "big")


def filled(inbox: Inbox, *, senders: int, is_seat: bool, size: int, first: int = 0) -> int:
    """How many messages of so many senders find room."""
    taken = 0
    for number in range(first, first + senders):
        while inbox.put(name(number), bytes(size), is_seat=is_seat):
            taken += 1
    return taken


def test_strangers_can_fill_half_of_the_inbox_and_no_vote_is_lost_by_it() -> None:
    inbox = Inbox()
    assert filled(inbox, senders=100, is_seat=False, size=1) == STRANGERS_MESSAGES_MAX
    assert filled(inbox, senders=100, is_seat=True, size=1, first=100) == INBOX_MESSAGES_MAX // 2
    inbox = Inbox()
    large = 9 * 1024 * 1024
    assert filled(inbox, senders=100, is_seat=False, size=large) * large <= STRANGERS_BYTES_MAX
    assert filled(inbox, senders=100, is_seat=True, size=1024, first=100) == INBOX_MESSAGES_MAX - len_of(large)
    assert not inbox.put(name(300), bytes(1), is_seat=True)


def len_of(size: int) -> int:
    return STRANGERS_BYTES_MAX // size


def test_one_sender_fills_its_own_share_alone() -> None:
    inbox = Inbox()
    assert filled(inbox, senders=1, is_seat=True, size=1) == SENDER_MESSAGES_MAX
    inbox = Inbox()
    assert (
        filled(inbox, senders=1, is_seat=True, size=MESSAGE_LIMIT_BYTES) == SENDER_BYTES_MAX // MESSAGE_LIMIT_BYTES
    )
    assert SENDER_BYTES_MAX >= 2 * MESSAGE_LIMIT_BYTES
    assert (
        filled(inbox, senders=9, is_seat=True, size=MESSAGE_LIMIT_BYTES) * MESSAGE_LIMIT_BYTES <= INBOX_BYTES_MAX
    )


def test_seats_go_first_and_strangers_are_not_forgotten() -> None:
    inbox = Inbox()
    for number in range(3 * SEATS_IN_A_ROW_MAX):
        assert inbox.put(b"stranger", b"%d" % number, is_seat=False)
        assert inbox.put(b"seat", b"%d" % number, is_seat=True)
    order = []
    while (taken := inbox.take()) is not None:
        order.append(taken)
    row = [(b"seat", True)] * SEATS_IN_A_ROW_MAX + [(b"stranger", False)]
    assert [(sender, is_seat) for sender, _, is_seat in order[: 2 * len(row)]] == row * 2
    for sender in (b"seat", b"stranger"):
        said = [int(data) for who, data, _ in order if who == sender]
        assert said == list(range(3 * SEATS_IN_A_ROW_MAX)), "each sender's in the order they came"
    assert len(inbox) == 0


def test_room_is_free_when_a_message_is_done_with_and_not_before() -> None:
    inbox = Inbox()
    filled(inbox, senders=1, is_seat=False, size=100)
    message = inbox.take()
    assert message is not None
    assert not inbox.put(name(0), bytes(100), is_seat=False)
    inbox.done(message[0], len(message[1]), is_seat=message[2])
    assert inbox.put(name(0), bytes(100), is_seat=False)
    assert not inbox.put(name(0), bytes(100), is_seat=False)


def test_answers_are_paid_from_an_allowance_that_identities_do_not_multiply() -> None:
    allowance = Allowance()
    sent = 0
    while allowance.may(b"seat", 0, is_seat=True):
        allowance.charge(b"seat", 1_000_000, 0, is_seat=True)
        sent += 1_000_000
    assert ANSWER_BURST_BYTES - 2_000_000 < sent <= ANSWER_BURST_BYTES + 1_000_000
    assert not allowance.may(b"seat", 10, is_seat=True)
    assert allowance.may(b"seat", 1_000, is_seat=True)
    assert allowance.may(b"another", 0, is_seat=True)
    sent = 0
    for number in range(1_000):
        if allowance.may(name(number), 0, is_seat=False):
            allowance.charge(name(number), 1_000_000, 0, is_seat=False)
            sent += 1_000_000
    assert STRANGERS_BURST_BYTES - 2_000_000 < sent <= STRANGERS_BURST_BYTES + 1_000_000
    assert allowance.may(b"a third", 0, is_seat=True), "what strangers take is not the seats'"
    assert allowance.may(name(1_001), 60_000, is_seat=False)
    assert len(allowance) <= ANSWERED_MAX


def test_questions_that_have_no_answer_are_paid_for_too() -> None:
    allowance = Allowance()
    asked = 0
    while allowance.may(b"asker", 0, is_seat=False):
        asked += 1
    assert asked == ANSWER_BURST_BYTES // QUESTION_BYTES


def votes(number: int) -> Decoded:
    return Decoded(Votes((Vote(FINALIZE, *Candidate(1, 1, 0, name(number) + bytes(12)), 0, b"v" * 64),)), ())


def proposal(size: int) -> Decoded:
    return Decoded(Proposal(Candidate(1, 1, 0, b"x" * 32), b"v" * 64, None, (), bytes(size)), ())


def test_nobody_pushes_out_what_others_said_of_the_next_epoch_by_size() -> None:
    seats = frozenset({b"a", b"b", b"c"})
    early = EarlyMessages()
    for number in range(4):
        early.keep(b"a", votes(number), seats)
    for number in range(200):
        early.keep(name(number), proposal(1_000_000), seats)
    strangers = [decoded for sender, decoded in early.take() if sender not in seats]
    assert 0 < len(strangers) <= EARLY_OF_STRANGERS_BYTES_MAX // 1_000_000
    for number in range(4):
        early.keep(b"a", votes(number), seats)
    early.keep(b"b", proposal(1_000_000), seats)
    for _ in range(EARLY_OF_ONE_MAX):
        early.keep(b"c", proposal(2_000_000), seats)
    kept = early.take()
    assert [decoded for sender, decoded in kept if sender != b"c"] == [*map(votes, range(4)), proposal(1_000_000)]
    assert 0 < sum(sender == b"c" for sender, _ in kept) <= EARLY_BYTES_MAX // 2_000_000
