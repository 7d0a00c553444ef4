"""Places of connections in the middle of a handshake: bounded, and fair to who is known."""

from __future__ import annotations

from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from node.signer.tcp_server import HALF_OPEN_MAX, HalfOpenSlots


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32), comers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=1_200)
)
def test_places_are_bounded_and_the_known_keep_theirs(seed: int, comers: list[tuple[int, int]]) -> None:
    places, lost = HalfOpenSlots(Random(seed)), set[int]()
    places.prove("192.0.2.1")
    known = places.enter("192.0.2.1", lambda: lost.add(-1))
    lone = places.enter("198.51.100.1", lambda: lost.add(-2))
    for number, (block, host) in enumerate(comers):
        places.enter(f"10.{block}.0.{host}", partial(lost.add, number))
        assert len(places) <= HALF_OPEN_MAX
    assert len(places) == 2 + len(comers) - len(lost), "who is lost is told"
    assert not lost & {-1, -2}, "one of a block of its own is not the one to go"
    for number in (known, lone, lone):
        places.leave(number)


def test_a_flood_from_the_very_address_lets_the_node_through_now_and_then() -> None:
    """A handshake over a long line, and a thousand connections meanwhile, which are what a second may bring."""
    for is_known in (False, True):
        through = 0
        for seed in range(10):
            places, lost = HalfOpenSlots(Random(seed)), list[int]()
            if is_known:
                places.prove("192.0.2.1")
            for _ in range(300):
                places.enter("192.0.2.1", lambda: None)
            places.enter("192.0.2.1", lambda lost=lost: lost.append(1))  # type: ignore[misc]
            for _ in range(300):
                places.enter("192.0.2.1", lambda: None)
            through += not lost
        assert through
