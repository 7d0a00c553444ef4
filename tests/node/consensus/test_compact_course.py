"""A leader, members with pools of all kinds, and hostile ones, in one heap of events: one seed, one course."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from node.consensus.compact import (
    CompactControl,
    CompactProposal,
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
RAWS = transactions(300)
FORM, DATA = form_of(RAWS, RAWS[:10])
OTHERS = transactions(100, 7)
LEADER = b"L" * 20
REBUILD_S = 0.02
END_S = 4.0


class Course:
    """One proposal from the leader to members, of whom ``hostile`` do what they like."""

    def __init__(self, seed: int, *, hostile: int, leader_lives: bool = True) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.members = [bytes([n]) * 20 for n in range(1, 13)]
        self.hostile = set(self.members[:hostile])
        self.delay_s = {a: self.random.choice([0.001, 0.02, 0.1]) for a in [*self.members, LEADER]}
        self.leader_lives = leader_lives
        self.sender = Sender(P, Counter())
        self.receivers = {a: Receiver(P, Counter()) for a in self.members if a not in self.hostile}
        self.got: dict[bytes, float] = {}
        self.whole: Counter[bytes] = Counter()
        self.answered_bytes = self.helped = 0
        self.lacking: dict[bytes, int] = {}

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, action))

    def run(self) -> None:
        rtt_s = {a: 2 * (self.delay_s[a] + self.delay_s[LEADER]) for a in self.members}
        self.sender.sent(FORM.root, DATA, RAWS, rtt_s, 0.0)
        for n, member in enumerate(self.members):
            self.after(0.01 * n + self._way(LEADER, member), lambda m=member: self._form(m))  # type: ignore[misc]
        self.after(TICK_S, self._tick)
        while self._events and self._events[0][0] < END_S:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def _way(self, one: bytes, other: bytes) -> float:
        return self.delay_s[one] + self.delay_s[other] + self.random.random() * 0.01

    def _tick(self) -> None:
        if self.leader_lives:
            self._do(LEADER, self.sender.tick(self.now))
        for address, receiver in self.receivers.items():
            self._do(address, receiver.tick(self.now))
        self.after(TICK_S, self._tick)

    def _form(self, member: bytes) -> None:
        if member in self.hostile:
            self._misbehave(member, FORM)
            return
        receiver = self.receivers[member]
        rebuild, effects = receiver.compact(LEADER, FORM, self.now)
        self._do(member, effects)
        assert rebuild is not None
        lacking = self.lacking[member] = self.random.choice([0, 0, 3, 3, 30, 150, 300])
        pool = SomePool([*OTHERS, *self.random.sample(RAWS, len(RAWS) - lacking)])
        rebuild.fill(pool.hashes(), pool.raw_of)
        if not rebuild.missing:
            self.after(
                REBUILD_S, lambda: self._do(member, receiver.finished(FORM.root, rebuild.message(), self.now))
            )
            return
        helpers = [a for a in self.members if a != member]
        self.random.shuffle(helpers)
        rtt_s = 2 * (self.delay_s[member] + self.delay_s[LEADER])
        self._do(member, receiver.filled(FORM.root, helpers, rtt_s, self.now))

    def _misbehave(self, member: bytes, compact: CompactProposal) -> None:
        numbers = self.random.sample(range(len(RAWS)), self.random.choice([1, 20, 37, 300]))
        words: list[CompactControl] = [
            HaveProposal(compact.root),
            ProposalRequest(compact.root),
            TransactionsRequest(compact.root, bits_of(numbers)),
        ]
        for _ in range(self.random.randrange(4)):
            control = self.random.choice(words)
            target = self.random.choice([LEADER, LEADER, *self.members])
            self.after(self.random.random(), lambda w=control, t=target: self._hear(t, member, w))  # type: ignore[misc]

    def _hear(self, address: bytes, source: bytes, control: CompactControl) -> None:
        if address == LEADER:
            if self.leader_lives:
                self._do(LEADER, self.sender.control(source, control, self.now))
        elif address in self.receivers:
            if isinstance(control, TransactionsRequest):
                self._do(address, self.receivers[address].help(source, control))
        elif (
            isinstance(control, TransactionsRequest) and self.random.random() < 0.5
        ):  # a hostile helper makes something up
            raws = tuple(self.random.choices(OTHERS, k=self.random.choice([1, 3])))
            self.after(
                self._way(address, source),
                lambda: self._answer(source, address, TransactionsReply(control.root, raws)),
            )

    def _answer(self, address: bytes, source: bytes, answer: TransactionsReply) -> None:
        receiver = self.receivers.get(address)
        rebuild = None if receiver is None else receiver.some(source, answer)
        if receiver is not None and rebuild is not None:
            self.after(
                REBUILD_S, lambda: self._do(address, receiver.finished(FORM.root, rebuild.message(), self.now))
            )

    def _do(self, source: bytes, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendCompactControl(address, control):
                    self.after(self._way(source, address), lambda a=address, w=control: self._hear(a, source, w))  # type: ignore[misc]
                case SendTransactions(address, answer):
                    if source == LEADER:
                        self.answered_bytes += sum(map(len, answer.raws))
                    else:
                        self.helped += 1
                    self.after(self._way(source, address), lambda a=address, s=answer: self._answer(a, source, s))  # type: ignore[misc]
                case SendProposal(data, addresses):
                    assert data == DATA
                    self.whole.update(addresses)
                    for address in addresses:
                        self.after(0.2 + self._way(source, address), lambda a=address: self._whole(a))  # type: ignore[misc]
                case Deliver(sender, data):
                    assert (sender, data) == (LEADER, DATA)
                    assert source not in self.got, "delivered twice"
                    self.got[source] = self.now
                case _:
                    raise AssertionError(effect)

    def _whole(self, address: bytes) -> None:
        receiver = self.receivers.get(address)
        if receiver is not None and receiver.whole(LEADER, DATA, self.now):
            self.got.setdefault(address, self.now)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_every_honest_member_has_the_very_bytes_in_time_whatever_a_third_does(seed: int, hostile: int) -> None:
    course = Course(seed, hostile=hostile)
    course.run()
    assert set(course.got) == set(course.receivers)
    assert max(course.got.values()) < P.latest_s + P.gather_s + 0.75
    assert max(course.whole.values(), default=0) <= 1
    assert course.answered_bytes <= len(DATA) // P.answers_share
    assert not course.sender.is_active
    assert all(receiver.pending_count == 0 for receiver in course.receivers.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_when_the_leader_dies_members_make_of_its_forms_what_they_can_and_nothing_else(
    seed: int, hostile: int
) -> None:
    course = Course(seed, hostile=hostile, leader_lives=False)
    course.run()
    assert set(course.got) >= {member for member, lacking in course.lacking.items() if not lacking}
    assert all(receiver.pending_count == 0 for receiver in course.receivers.values())


def test_members_help_each_other_when_the_leader_has_died() -> None:
    helped = 0
    for seed in range(10):
        course = Course(seed, hostile=0, leader_lives=False)
        course.run()
        helped += sum(course.lacking[member] > 0 for member in course.got)
        assert course.helped >= sum(course.lacking[member] > 0 for member in course.got)
    assert helped > 10
