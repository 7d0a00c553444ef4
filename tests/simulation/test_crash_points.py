"""A failure at each durable operation of a run: always a restart, never a contradiction."""

from __future__ import annotations

import random

import pytest

from consensus.simulation.cluster import Cluster
from consensus.simulation.crash_points import CHANGING, COURSES, VIEWS, Course, operations, run_crash_point
from consensus.simulation.disk import Fault
from node.simulation.crash_points import WHOLE

FAULTS = tuple(Fault)
TURNS = 3
"""Each operation has every third of the six faults; campaigns play it with all of them."""
COURSES_HERE = {name: course for name, course in COURSES.items() if name != "one epoch"} | {"whole": WHOLE}
EACH = {"changing": 5, "joining": 7, "whole": 19}
"""Of so many operations one, with one fault; campaigns play all of them with each."""


@pytest.mark.parametrize("fault", Fault)
def test_a_failure_at_each_durable_operation(fault: Fault) -> None:
    count = len(operations())
    assert count > 4 * VIEWS, "a view has several durable operations"
    for operation in range(1 + FAULTS.index(fault) % TURNS, count + 1, TURNS):
        run_crash_point(operation, fault)


def around_the_changes(done: tuple[str, ...]) -> list[int]:
    """The operations from the commit of an epoch's last block to the first of the next one, and other rewrites."""
    return [at + 1 for at in range(len(done)) if any("replace" in what for what in done[max(0, at - 1) : at + 2])]


@pytest.mark.parametrize("fault", Fault)
def test_a_failure_around_each_change_of_epochs(fault: Fault) -> None:
    done = operations(CHANGING)
    assert done.count("replace guard") >= 5 and done.count("replace journal") >= 5
    for operation in around_the_changes(done):
        run_crash_point(operation, fault, CHANGING)


def test_a_failure_of_a_whole_node_around_each_change_of_epochs() -> None:
    done = operations(WHOLE)
    assert done.count("replace guard") >= 4 and done.count("commit") > 30
    for operation in around_the_changes(done):
        run_crash_point(operation, FAULTS[operation % len(FAULTS)], WHOLE)


@pytest.mark.parametrize("name", COURSES_HERE)
def test_a_failure_while_committees_weights_and_keys_change(name: str) -> None:
    course: Course = COURSES_HERE[name]
    for operation in range(1, len(operations(course)) + 1, EACH[name]):
        run_crash_point(operation, FAULTS[operation // EACH[name] % len(FAULTS)], course)


@pytest.mark.parametrize("name", COURSES_HERE)
def test_in_the_courses_the_failing_node_votes_with_more_than_one_key_or_none_at_first(name: str) -> None:
    """The test of the test: without a change of keys a course would say nothing about it."""
    course: Course = COURSES_HERE[name]
    cluster = course.make(Cluster)
    cluster.start_all()
    while not course.has_ended(cluster):
        cluster.run(cluster.now_ms + 20)
    victim = cluster.nodes[course.victim]
    seats = []
    for epoch in range(victim.epoch + 1):
        epoch_view = victim.machine.epoch_view(epoch)
        assert epoch_view is not None
        seat = epoch_view.committee.seat_of(victim.address)
        seats.append(None if seat is None else epoch_view.committee.seats[seat])
    if name == "joining":
        assert seats[0] is None and seats[-1] is not None
    else:
        assert len({seat.vote_key for seat in seats if seat is not None}) > 1
    assert len({seat.weight for seat in seats if seat is not None}) > (name == "changing")


@pytest.mark.parametrize("seed", range(12))
def test_the_whole_committee_loses_power_again_and_again(seed: int) -> None:
    cluster = Cluster(100 + seed, (1, 1, 1, 1), frozenset(range(4)))
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    rng = random.Random(seed)
    cluster.start_all()
    for _ in range(8):
        cluster.run(cluster.now_ms + rng.randrange(20, 200))
        for node in cluster.nodes:
            node.is_torn_next = rng.random() < 0.5
            cluster.crash(node, 10)
    height = cluster.oracle.height_max
    cluster.run(cluster.now_ms + 20_000, lambda: min(cluster.oracle.height(n) for n in range(4)) > height + 5)
    assert min(cluster.oracle.height(n) for n in range(4)) > height + 5
