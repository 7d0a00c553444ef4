"""The order of samples: a permutation of every size, even, and the same one place at a time and in vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engines.arrays import NumpyArrays
from tasks.programs.operators import Context
from tasks.programs.operators.scalars import SAMPLE_ORDER
from tasks.programs.permutation import feistel, order_keys, permuted, width_of

SEED = bytes(range(32))


def epoch(count: int, number: int = 0, seed: bytes = SEED) -> list[int]:
    keys = order_keys(seed, number)
    return [permuted(place, count, keys) for place in range(count)]


@given(st.integers(1, 700), st.binary(min_size=32, max_size=32), st.integers(0, 2**48))
@settings(max_examples=80, deadline=None)
def test_every_number_stands_at_one_place(count: int, seed: bytes, number: int) -> None:
    assert sorted(epoch(count, number, seed)) == list(range(count))


@pytest.mark.parametrize("width", range(12))
def test_the_network_permutes_every_width(width: int) -> None:
    assert sorted(feistel(value, width, order_keys(SEED, 3)) for value in range(1 << width)) == list(
        range(1 << width)
    )
    assert width_of(1 << width) == width


def test_vectors_and_single_places_agree() -> None:
    """Batches that span blocks and epochs too."""
    for batch, samples in ((64, 1_437), (4_096, 5_000), (7, 3), (100, 1), (4_096, 9_001)):
        for step in (0, 1, 22, 10**9):
            context = Context(step, SEED)
            found = SAMPLE_ORDER.run(NumpyArrays(), (), (batch, samples), context)
            expected = [
                SAMPLE_ORDER.element(None, (), (batch, samples), context, row, 0)  # type: ignore[arg-type]
                for row in range(batch)
            ]
            assert found[:, 0].tolist() == expected


def test_steps_take_every_sample_of_an_epoch_once() -> None:
    taken = np.concatenate(
        [SAMPLE_ORDER.run(NumpyArrays(), (), (16, 70), Context(step, SEED))[:, 0] for step in range(35)]
    )
    assert len(taken) == 560
    for number in range(8):
        assert sorted(taken[number * 70 : (number + 1) * 70].tolist()) == list(range(70))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch(50, number)) for number in range(40)} | {tuple(epoch(50, 0, bytes(32)))}
    assert len(orders) == 41


@pytest.mark.parametrize("count", [2, 3, 5, 10, 16, 33])
def test_every_number_is_at_every_place_equally_often(count: int) -> None:
    """Chi-squared over 2,000 epochs, with bounds that a fair order exceeds once in 10^6."""
    epochs = 2_000
    seen = np.zeros((count, count))
    for number in range(epochs):
        seen[np.arange(count), epoch(count, number)] += 1
    expected = epochs / count
    statistic = float(((seen - expected) ** 2 / expected).sum())
    freedom = (count - 1) ** 2
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5 + 12


def test_neighbours_do_not_stay_neighbours() -> None:
    """Places next to each other hold numbers that are no more alike than any two."""
    count = 10_000
    order = np.array(epoch(count))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.05
    assert abs((np.abs(np.diff(order)) == 1).sum() - 2) < 10
    assert abs(int((order == np.arange(count)).sum()) - 1) < 8
    low_bits = np.bincount(order[: count // 2] & 7, minlength=8)
    assert abs(low_bits - count / 16).max() < 6 * (count / 16) ** 0.5


def test_all_six_orders_of_three_come_up() -> None:
    orders = [tuple(epoch(3, number)) for number in range(1_200)]
    counts = sorted(orders.count(order) for order in set(orders))
    assert len(counts) == 6
    assert 130 < counts[0] <= counts[-1] < 275


def test_one_place_takes_few_rounds() -> None:
    """The network is less than twice as large as the order: two walks on average."""
    calls = 0
    count, keys = (1 << 20) + 1, order_keys(SEED, 0)
    for place in range(2_000):
        number = place
        while True:
            number = feistel(number, width_of(count), keys)
            calls += 1
            if number < count:
                break
    assert calls < 2_000 * 2.4
