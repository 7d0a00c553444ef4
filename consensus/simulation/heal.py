"""Networks that break in a known way and heal: progress comes within a bound that the timers give.

See consensus.md 5.3.

The bound counts from the heal. A node is in some view v, with the time-out t_a(v) of that view, back-off included;
it has said NULLIFY or will within t_a(v). Whoever is behind learns of v from the next repeat, at most 1.2 times
``retransmit_ms_max`` away (R7). Then v ends, and the leader of the next view proposes. So a new block is final
everywhere within two t_a, the greatest that any node had armed at the heal, and one repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.oracle import Violation

__all__ = ["Break", "Healed", "breaks", "run_break", "weighted_breaks"]

LATENCY_MS: Final = 20
SLOW_MS: Final = 3_000
BROKEN_MS: Final = 2_000
CALM_MS: Final = 150
SIZES: Final = (4, 5, 6, 7)
WEIGHTS: Final = {4: (3, 3, 2, 2), 5: (3, 3, 2, 2, 1), 6: (7, 6, 4, 3, 2, 1), 7: (6, 6, 3, 2, 2, 1, 1)}
"""By size: no seat has more than a third, the least a small part of the greatest."""


class Break(NamedTuple):
    """One way in which the network of ``size`` nodes breaks; ``sides`` and ``leader`` as far as it needs them."""

    kind: str
    size: int
    sides: tuple[bool, ...] = ()
    weights: tuple[int, ...] = ()
    """Of the seats; equal ones if not given."""


class Healed(NamedTuple):
    """How long progress took after the heal, and the bound for it; virtual milliseconds."""

    progress_ms: int
    bound_ms: int
    heights_while_broken: int


def breaks() -> Iterator[Break]:
    """Every two-way split of 4 to 7 nodes, whole and one-way, and one of each other kind for each size."""
    for size in SIZES:
        for number in range(1, 1 << (size - 1)):
            sides = tuple([bool(number >> node & 1) for node in range(size)])
            yield Break("split", size, sides)
            yield Break("one-way split", size, sides)
            yield Break("one-way split", size, tuple([not side for side in sides]))
        for kind in ("ring", "line", "isolated leader", "deaf leader", "mute leader", "loss", "slow"):
            yield Break(kind, size)


def weighted_breaks() -> Iterator[Break]:
    """The same with unequal weights: nobody's rest is short of a quorum, but a side of few may have one."""
    for broken in breaks():
        yield broken._replace(weights=WEIGHTS[broken.size])


def run_break(broken: Break, seed: int = 0) -> Healed:
    """Break the network, heal it, and wait for a new final block on every node. Raises Violation."""
    kind, size, _, weights = broken
    cluster = Cluster(seed, weights or (1,) * size, frozenset(range(size)), parameters=sim_parameters())
    network, nodes, oracle = cluster.network, cluster.nodes, cluster.oracle
    network.latency_ms_min = network.latency_ms_max = LATENCY_MS
    cluster.start_all()
    cluster.run(CALM_MS)
    before = oracle.height_max
    network.blocked = _blocked(cluster, broken)
    if kind == "loss":
        network.loss = 0.5
    elif kind == "slow":
        network.latency_ms_max = network.latency_ms_min = SLOW_MS
    cluster.run(CALM_MS + (2 * SLOW_MS if kind == "slow" else BROKEN_MS))

    network.blocked = None
    network.loss = 0.0
    network.latency_ms_min = network.latency_ms_max = LATENCY_MS
    healed_ms, goal = cluster.now_ms, oracle.height_max + 1
    armed_ms = max(node.advance_ms for node in nodes)
    bound_ms = 2 * armed_ms + 12 * cluster.parameters.retransmit_ms_max // 10
    if not cluster.run(healed_ms + bound_ms, lambda: min(oracle.height(node.number) for node in nodes) >= goal):
        heights = [oracle.height(node.number) for node in nodes]
        raise Violation(f"{broken}: no progress within {bound_ms} ms of the heal: heights {heights}, goal {goal}")
    return Healed(cluster.now_ms - healed_ms, bound_ms, goal - 1 - before)


def _blocked(cluster: Cluster, broken: Break) -> Callable[[int, int], bool] | None:
    kind, size, sides, _ = broken
    nodes = cluster.nodes

    def leader() -> int:
        epoch_view = nodes[0].machine.epoch_view(0)
        assert epoch_view is not None, "the founders sit in the only epoch"
        return epoch_view.committee.leader(max(1, max(node.entered for node in nodes)))

    match kind:
        case "split":
            return lambda source, target: sides[source] != sides[target]
        case "one-way split":
            return lambda source, target: sides[source] < sides[target]
        case "ring":
            return lambda source, target: (source - target) % size not in (1, size - 1)
        case "line":
            return lambda source, target: abs(source - target) > 1
        case "isolated leader":
            return lambda source, target: leader() in (source, target)
        case "deaf leader":
            return lambda _, target: leader() == target
        case "mute leader":
            return lambda source, _: leader() == source
        case _:
            return None
