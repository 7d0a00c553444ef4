from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.gossip.validation_queue import PendingPayload, QueueResult, ValidationQueue

LIMIT = 20_000


def _payload(sender: bytes, size: int) -> PendingPayload:
    return PendingPayload("tx", bytes(size), sender)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000), st.booleans()), max_size=150),
    st.randoms(use_true_random=False),
)
def test_sums_agree_and_everybody_has_a_part(steps: list[tuple[int, int, bool]], random: Random) -> None:
    room = ValidationQueue(limit_bytes=LIMIT, payloads_each_max=60)
    inside: dict[bytes, PendingPayload] = {}
    for number, (sender, size, is_judged) in enumerate(steps):
        identifier, new = number.to_bytes(4, "big"), _payload(bytes([sender]), size)
        admission = room.admit(identifier, new)
        for _, evicted in admission.evicted:
            assert inside.pop(evicted).first != new.first  # nobody pushes out what is its own
        if admission.is_queued:
            inside[identifier] = new
        held = Counter[bytes]()
        for waiting in inside.values():
            held[waiting.first] += len(waiting.payload)
        assert room.size_bytes == held.total() <= LIMIT and len(room) == len(inside)
        if not admission.is_queued and not admission.is_own_fault:
            # Who is refused would have at least as much as anybody: an equal part of what is full.
            assert held[new.first] + size >= max(held.values()) and held.total() + size > LIMIT
        if is_judged and inside:
            judged = random.choice(list(inside))
            assert room.pop(judged) is inside.pop(judged)
            assert room.pop(judged) is None and room.get(judged) is None
    for identifier in list(inside):
        room.pop(identifier)
    assert room.size_bytes == 0 and not room._held


def test_many_that_send_all_they_can_leave_an_equal_part_to_the_next() -> None:
    room = ValidationQueue(limit_bytes=LIMIT, payloads_each_max=1000)
    for number in range(2000):
        room.admit(number.to_bytes(4, "big"), _payload(bytes([number % 9]), 100))
    late = [room.admit(b"late%d" % number, _payload(b"late", 100)).is_queued for number in range(100)]
    assert late.index(False) == sum(late) == LIMIT // 100 // 10
    assert sum(room.get(number.to_bytes(4, "big")) is not None for number in range(2000)) == LIMIT // 100 * 9 // 10


def test_one_that_has_as_many_as_may_wait_is_told_apart_from_one_that_finds_no_room() -> None:
    room = ValidationQueue(limit_bytes=100, payloads_each_max=2)
    assert room.admit(b"1", _payload(b"a", 10)) == QueueResult(is_queued=True)
    assert room.admit(b"2", _payload(b"a", 10)).is_queued
    assert room.admit(b"3", _payload(b"a", 10)) == QueueResult(is_queued=False, is_own_fault=True)
    assert room.admit(b"4", _payload(b"b", 90)) == QueueResult(is_queued=False)
    assert room.admit(b"5", _payload(b"b", 80)).is_queued
    assert room.admit(b"6", _payload(b"c", 30)) == QueueResult(is_queued=True, evicted=[("tx", b"5")])
