"""A failure at each durable operation of a run, of every kind a disk knows (consensus.md 5.3).

A course is a run that is the same each time up to the failure, so that operation k is what it was when the
operations were counted: 30 views of an only epoch, or epochs whose committees, weights and keys change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from consensus import events as c
from consensus import replica as r
from consensus.simulation.cluster import Cluster, SimulatedNode
from consensus.simulation.disk import Fault, SimulatedLog
from consensus.simulation.oracle import Violation
from consensus.simulation.worlds import HashWorld, Member, World

__all__ = ["CATCH_UP_MS", "CHANGING", "COURSES", "ONE_EPOCH", "VIEWS", "Course", "operations", "run_crash_point"]

VIEWS: Final = 30
CATCH_UP_MS: Final = 30_000
"""Virtual time in which the failed node is level with the others again."""
RESTART_MS: Final = 40
LIVE_BLOCKS: Final = 4
EPOCH_BLOCKS: Final = 5
EPOCHS: Final = 5
_SEED: Final = 1


class Course(NamedTuple):
    """A run of whose nodes one fails."""

    make: Callable[[type[Cluster]], Cluster]
    """Return the cluster, not started yet; any two are the same."""
    has_ended: Callable[[Cluster], bool]
    victim: int = 0
    live_blocks: int = LIVE_BLOCKS
    """So many more must be final everywhere afterwards."""


def _one_epoch(cluster_type: type[Cluster]) -> Cluster:
    return _mild(cluster_type(_SEED, (1, 1, 1, 1), frozenset(range(4))))


def _changing(cluster_type: type[Cluster]) -> Cluster:
    """The first account has a seat, another key, no seat, and another key again; others come and go.

    Of no committee it has a third: who has lost its guard never votes again, and the others go on.
    """

    def members(epoch: int) -> tuple[Member, ...]:
        seats: tuple[tuple[int, int, int], ...]  # account, key, weight
        match epoch:
            case 0 | 1:
                seats = ((0, 0, 3), (1, 0, 3), (2, 0, 2), (3, 0, 2), (4, 0, 1))
            case 2:
                seats = ((3, 1, 3), (2, 0, 3), (0, 1, 2), (1, 0, 2), (5, 0, 1))
            case 3:
                seats = ((1, 0, 3), (5, 0, 2), (4, 1, 2), (2, 1, 1))
            case _:
                seats = ((5, 0, 1), (0, 2, 3), (1, 0, 2), (2, 1, 2), (3, 1, 2), (4, 1, 1))
        return tuple([Member(*seat) for seat in seats])

    world = HashWorld((3, 3, 2, 2, 1), epoch_blocks=EPOCH_BLOCKS, members_of=members, accounts=6)
    return _mild(cluster_type(_SEED, world, frozenset(range(6))))


def _mild(cluster: Cluster) -> Cluster:
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    return cluster


ONE_EPOCH: Final = Course(_one_epoch, lambda cluster: cluster.nodes[0].entered > VIEWS)
CHANGING: Final = Course(
    _changing,
    lambda cluster: cluster.oracle.height(0) > EPOCHS * EPOCH_BLOCKS,
    live_blocks=EPOCH_BLOCKS + 1,  # whoever comes back goes through the next change as well
)
COURSES: Final = {"one epoch": ONE_EPOCH, "changing": CHANGING, "joining": CHANGING._replace(victim=5)}
"""By name; the last one is as seen by who gets its first seat in the third epoch."""


class _Recording(Cluster):
    """Notes what each durable operation of one node is."""

    def __init__(self, seed: int, world: World | tuple[int, ...], honest: frozenset[int]) -> None:
        self.victim = 0
        self.done: list[str] = []
        self._what = ""
        super().__init__(seed, world, honest)

    def _perform(self, node: SimulatedNode, action: r.Action) -> None:
        if isinstance(action, r.Append | r.Sync | r.Replace):
            self._what = f"{type(action).__name__.lower()} {action.log}"
        super()._perform(node, action)

    def _commit(self, node: SimulatedNode, replica: r.Replica, commit: c.Commit) -> None:
        self._what = "commit"
        super()._commit(node, replica, commit)

    def _durable(self, node: SimulatedNode, log: SimulatedLog | None, data: bytes | None) -> None:
        if node.number == self.victim:
            self.done.append(self._what)
        super()._durable(node, log, data)


def operations(course: Course = ONE_EPOCH) -> tuple[str, ...]:
    """Return what the victim's durable operations are in the run without failures."""
    cluster = course.make(_Recording)
    assert isinstance(cluster, _Recording)
    cluster.victim = course.victim
    cluster.start_all()
    while not course.has_ended(cluster):
        cluster.run(cluster.now_ms + 20)
    return tuple(cluster.done)


def run_crash_point(operation: int, fault: Fault, course: Course = ONE_EPOCH) -> int:
    """Fail one node at its ``operation``-th durable operation; return how long it was behind, in virtual ms.

    The node restarts on its disk. A guard with a changed bit must refuse, so that the node only follows from then
    on; everything else votes again. Raises Violation.
    """
    cluster = course.make(Cluster)
    victim = cluster.nodes[course.victim]
    victim.fault_at, victim.fault = operation, fault
    victim.restart_after_ms = RESTART_MS
    cluster.start_all()
    oracle = cluster.oracle
    while victim.incarnation <= 1:
        if cluster.now_ms > CATCH_UP_MS:
            raise Violation("the failure never came")
        cluster.run(cluster.now_ms + 5)
    goal, failed_ms, failed_key = oracle.height_max + course.live_blocks, cluster.now_ms, victim.key
    cluster.run(failed_ms + RESTART_MS)
    # A record that is not opened any more may be damaged: another key votes from the epoch on that has just begun.
    must_refuse = fault is Fault.GUARD_FLIP and (victim.key == failed_key)
    everybody = range(len(cluster.nodes))
    if not cluster.run(failed_ms + CATCH_UP_MS, lambda: min(map(oracle.height, everybody)) >= goal):
        heights = [oracle.height(number) for number in everybody]
        raise Violation(f"{fault.value} at operation {operation}: heights {heights}, goal {goal}")
    if must_refuse and victim.refused is None:
        raise Violation(f"{fault.value} at operation {operation}: the guard did not notice")
    if not must_refuse and (victim.refused is not None or victim.replica is None):
        raise Violation(f"{fault.value} at operation {operation}: the node does not vote again: {victim.refused}")
    return cluster.now_ms - failed_ms
