"""The operations of the exact profile: accuracy, and indifference to the order of their terms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engines import exact
from tasks.engines.arrays import NumpyArrays
from tests.tasks.engines.fingerprint import noise

ARRAYS = NumpyArrays()
labels = st.binary(min_size=1, max_size=4)


def exactly_contracted(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The definition, in Python's integers: round rows and columns, multiply, add, scale back."""

    def rounded(row: np.ndarray) -> tuple[list[int], int]:
        largest = float(np.abs(row).max())
        exponent = max(math.frexp(largest)[1] - 1, exact.EXPONENT_MIN) if largest else exact.EXPONENT_MIN
        shift = exact.CONTRACTION_BITS - 1 - exponent
        return [round(math.ldexp(float(value), shift)) for value in row], shift

    rows, columns = [rounded(row) for row in left], [rounded(column) for column in right.T]
    return np.array([
        [
            math.ldexp(sum(a * b for a, b in zip(row, column, strict=True)), -row_shift - column_shift)
            for column, column_shift in columns
        ]
        for row, row_shift in rows
    ])  # fmt: skip


@given(labels, st.integers(1, 5), st.integers(1, 40), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_contraction_is_what_integers_say(label: bytes, rows: int, terms: int, columns: int) -> None:
    left, right = noise(label, rows, terms), noise(label + b"r", terms, columns)
    assert np.array_equal(exact.contract(ARRAYS, left, right), exactly_contracted(left, right))


@given(labels, st.integers(2, 200), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_terms_changes_no_bit(label: bytes, terms: int, random: object) -> None:
    order = list(range(terms))
    random.shuffle(order)  # type: ignore[attr-defined]
    left, right = noise(label, 4, terms), noise(label + b"r", terms, 3)
    assert np.array_equal(
        exact.contract(ARRAYS, left, right),
        exact.contract(ARRAYS, np.ascontiguousarray(left[:, order]), np.ascontiguousarray(right[order])),
    )
    assert np.array_equal(exact.total(ARRAYS, left, 1), exact.total(ARRAYS, left[:, order], 1))


def test_a_row_alone_gives_what_it_gives_in_a_batch() -> None:
    left, right = noise(b"left", 64, 257), noise(b"right", 257, 31)
    together = exact.contract(ARRAYS, left, right)
    for row in (0, 17, 63):
        assert np.array_equal(exact.contract(ARRAYS, left[row : row + 1], right)[0], together[row])


def test_the_worst_case_stays_exact_up_to_the_last_term() -> None:
    """Every operand at its largest magnitude over the longest stretch: the sum is 2**52 exactly."""
    ones = np.full((1, exact.TERMS_MAX), np.nextafter(2.0, 1.0))
    found = exact.contract(ARRAYS, ones, ones.T)[0, 0]
    assert found == 4.0 * exact.TERMS_MAX


def test_a_contraction_is_as_accurate_as_said() -> None:
    left, right = noise(b"l", 30, 500), noise(b"r", 500, 20)
    bound = np.abs(left).max(1, keepdims=True) * np.abs(right).max(0, keepdims=True) * 500 * 2.0**-18
    assert (np.abs(exact.contract(ARRAYS, left, right) - left @ right) <= bound).all()


def test_long_contractions_and_sums_are_split() -> None:
    left, right = noise(b"l", 2, 2 * exact.TERMS_MAX + 5), noise(b"r", 2 * exact.TERMS_MAX + 5, 2)
    assert np.allclose(exact.contract(ARRAYS, left, right), left @ right, rtol=0, atol=50.0)
    long = noise(b"s", 2, 3 * exact.SUM_TERMS_MAX + 1)
    assert np.allclose(exact.total(ARRAYS, long, 1), long.sum(1, keepdims=True), rtol=1e-9)
    assert np.allclose(exact.total(ARRAYS, long.T.copy(), 0), long.T.sum(0, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_zeros_come_out_positive(value: float) -> None:
    zeros = np.full((2, 3), value)
    for found in (
        exact.contract(ARRAYS, zeros, np.full((3, 2), -1.0)),
        exact.total(ARRAYS, zeros, 1),
        exact.storable(ARRAYS, zeros),
        exact.storable(ARRAYS, np.full((2, 2), -(2.0**-101))),
    ):
        assert not np.signbit(found).any()
        assert not found.any()


@given(st.floats(-690.0, 0.0))
def test_exp_is_accurate(value: float) -> None:
    assert float(exact.exp(ARRAYS, np.array([[value]]))[0, 0]) == pytest.approx(math.exp(value), rel=4e-16)


def test_exp_of_anything_small_is_nearly_nothing_and_not_an_error() -> None:
    found = exact.exp(ARRAYS, np.array([[-701.0, -1e300, 0.0]]))
    assert found[0, 0] == found[0, 1] < 1e-300
    assert found[0, 2] == 1.0


@given(st.floats(1e-300, 1e300))
def test_log_is_accurate(value: float) -> None:
    found = float(exact.log(ARRAYS, np.array([[value]]))[0, 0])
    assert found == pytest.approx(math.log(value), rel=1e-15, abs=1e-15)


@given(st.floats(-600.0, 600.0))
def test_sigmoid_is_accurate(value: float) -> None:
    assert float(exact.sigmoid(ARRAYS, np.array([[value]]))[0, 0]) == pytest.approx(
        1 / (1 + math.exp(-value)), rel=1e-15
    )


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_what_is_storable_stays_as_it_is(value: float) -> None:
    once = exact.storable(ARRAYS, np.array([value]))
    assert np.array_equal(exact.storable(ARRAYS, once), once)
    assert float(once[0]) == float(np.float32(once[0]))
