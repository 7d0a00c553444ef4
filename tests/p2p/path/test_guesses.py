"""What relays say of ways that nobody has tried: an order of trying, and nothing that lasts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.path.bulk_plan import BulkPlanner
from p2p.path.paths import PathParameters, PathTable, hops_of
from tests.p2p.path.test_paths import DIRECT, MBIT, OTHER, RELAY, TWO, Line, World

ALSO_TWO = Endpoint("192.0.2.8", 2, relay=bytes([8]) * 20, via=Endpoint("192.0.2.6", 2, relay=bytes([6]) * 20))
PATHS = [DIRECT, RELAY, OTHER, TWO, ALSO_TWO]
GUESSES = st.dictionaries(st.sampled_from(PATHS), st.floats(0, 10), max_size=5)


def table_of(guesses: dict[Endpoint, float], paths: list[Endpoint] | None = None) -> PathTable:
    table = PathTable()
    table.offer(paths or PATHS)
    for path, rtt_s in guesses.items():
        table.guessed_rtt(path, rtt_s)
    return table


def test_of_ways_as_long_as_each_other_the_one_of_which_good_is_said_is_tried_first() -> None:
    assert table_of({}).order(0.0) == PATHS
    assert table_of({ALSO_TWO: 0.05, TWO: 0.2, OTHER: 0.1}).order(0.0) == [DIRECT, OTHER, RELAY, ALSO_TWO, TWO]


@given(
    GUESSES,
    st.dictionaries(st.sampled_from(PATHS), st.floats(0.001, 2), max_size=5),
    st.sets(st.sampled_from(PATHS)),
)
def test_a_guess_moves_nothing_past_what_was_measured_or_is_shorter(
    guesses: dict[Endpoint, float], measured: dict[Endpoint, float], failed: set[Endpoint]
) -> None:
    lying, plain = table_of(guesses), table_of({})
    for table in (lying, plain):
        for path, rtt_s in measured.items():
            table.measured_rtt(path, rtt_s, 0.0)
        for path in failed:
            table.failed(path, 0.0)
    unknown = [path for path in PATHS if path not in measured and path not in failed]
    ours, theirs = lying.order(0.1), plain.order(0.1)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other or (one in (*unknown, *failed) and hops_of(one) == hops_of(other))
    for current in PATHS:  # and control moves for nothing that is merely said
        assert lying.better_control(current, 0.1) == plain.better_control(current, 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_relay_that_lies_draws_traffic_for_one_trial(seed: int) -> None:
    """The slowest ways are praised most, and a long transfer ends near what the best one alone would carry."""
    rng, shares = Random(seed), list[float]()
    for _ in range(10):
        rates = {path: rng.choice([rng.uniform(1, 20), rng.uniform(1, 300)]) for path in PATHS}
        lines = {
            path: Line(rate * MBIT, rate * rng.choice([1.0, 0.5, 0.1]) * MBIT) for path, rate in rates.items()
        }
        world = World(rng.uniform(10, 200) * MBIT, lines, seed=seed)
        _, rate = world.run(BulkPlanner(table_of({path: rates[path] / 300 for path in PATHS})), 120)
        shares.append(min(1.0, rate / world.best(PATHS, PathParameters().connections_max)))
    assert sum(shares) >= 0.9 * len(shares)


@pytest.mark.parametrize("hops", [1, 2])
def test_a_plan_full_of_slow_ways_still_tries_the_one_that_nobody_praised(hops: int) -> None:
    quick = OTHER if hops == 1 else ALSO_TWO
    lines = {path: Line(10 * MBIT if path is quick else MBIT, 10 * MBIT) for path in PATHS}
    guesses = {path: 9.0 if path is quick else 0.0 for path in PATHS}
    _, rate = World(96.5 * MBIT, lines).run(BulkPlanner(table_of(guesses)), 60)
    assert rate >= 10 * MBIT


@pytest.mark.parametrize("seed", range(5))
def test_a_lying_relay_that_carries_nothing_loses_its_turn(seed: int) -> None:
    rng = Random(seed)
    lines = {
        DIRECT: Line(2 * MBIT, 2 * MBIT),
        TWO: Line(90 * MBIT, 90 * MBIT),
        ALSO_TWO: Line(0.1 * MBIT, 0.1 * MBIT),
    }
    paths = [DIRECT, TWO, ALSO_TWO]
    rng.shuffle(paths)
    planner = BulkPlanner(table_of({ALSO_TWO: 0.0, TWO: 1.0}, paths))
    _, rate = World(96.5 * MBIT, lines, seed=seed).run(planner, 30)
    assert rate >= 0.9 * 90 * MBIT
