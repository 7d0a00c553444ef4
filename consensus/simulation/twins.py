"""Twins, by enumeration: a faulty seat is two processes with one key, both running correct code.

See consensus.md 5.3.

A scenario is a number. Each of its rounds is one view: who leads it, and how the processes are split into at most
two sides, so that with four seats and one twin there are 4 x 16 choices a round: 4,096 scenarios of two rounds,
262,144 of three. After the rounds the network is whole and in step, and every honest node must go on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.oracle import Violation
from consensus.simulation.worlds import HashWorld

__all__ = ["Round", "TwinsScenario", "count_scenarios", "run_twins", "scenario_of"]

LATENCY_MS: Final = 5
ROUND_MS: Final = 800
"""A side without a quorum ends no view: after so long for each round the network is whole again."""
SUFFIX_MS: Final = 20_000


class Round(NamedTuple):
    """One view: the seat that leads it, and the side of each process."""

    leader: int
    sides: tuple[bool, ...]


class TwinsScenario(NamedTuple):
    """Processes 0 to seats - 1 hold their own seat; process seats + i is the twin of seat i."""

    seats: int
    twins: int
    rounds: tuple[Round, ...]


def _choices(seats: int, twins: int) -> int:
    return seats << (seats + twins - 1)


def count_scenarios(seats: int, twins: int, rounds: int) -> int:
    """Return how many scenarios there are: every leader, and every split into at most two sides, in each round."""
    return int(_choices(seats, twins) ** rounds)


def scenario_of(index: int, *, seats: int = 4, twins: int = 1, rounds: int = 2) -> TwinsScenario:
    """Return the scenario of a number below ``count_scenarios``: its digits are the rounds."""
    if not 0 <= index < count_scenarios(seats, twins, rounds):
        raise ValueError(f"there is no scenario {index}")
    found = []
    for _ in range(rounds):
        index, choice = divmod(index, _choices(seats, twins))
        leader, split = choice % seats, choice // seats
        # Process 0 is on the first side: which of the two is called the first does not matter.
        sides = (False, *[bool(split >> process & 1) for process in range(seats + twins - 1)])
        found.append(Round(leader, sides))
    return TwinsScenario(seats, twins, tuple(found))


def run_twins(scenario: TwinsScenario, *, finalisations: int = 10) -> int:
    """Run a scenario until every honest node has ``finalisations`` more blocks after it; return the events.

    A message belongs to the round of its sender's view. Raises Violation.
    """
    seats, twins, rounds = scenario
    world = HashWorld((1,) * seats, leaders=tuple([each.leader for each in rounds]))
    cluster = Cluster(0, world, frozenset(range(twins, seats)), twins=twins, parameters=sim_parameters())
    network, nodes, oracle = cluster.network, cluster.nodes, cluster.oracle
    network.latency_ms_min = network.latency_ms_max = LATENCY_MS
    sides = [each.sides for each in rounds]
    split_ms = ROUND_MS * len(rounds)

    def blocked(source: int, target: int) -> bool:
        view = nodes[source].entered
        return (
            0 < view <= len(sides)
            and cluster.now_ms < split_ms
            and sides[view - 1][source] != sides[view - 1][target]
        )

    network.blocked = blocked
    cluster.start_all()
    honest = range(twins, seats)
    passed = [0]

    def is_through() -> bool:
        """The rounds are over for every honest node, and it has made as many blocks final since."""
        if not passed[0]:
            if min(nodes[number].entered for number in honest) <= len(sides):
                return False
            passed[0] = oracle.height_max + finalisations
        return min(oracle.height(number) for number in honest) >= passed[0]

    if not cluster.run(split_ms + SUFFIX_MS, is_through):
        raise Violation(f"{scenario}: heights {[oracle.height(number) for number in honest]}")
    return cluster.events
