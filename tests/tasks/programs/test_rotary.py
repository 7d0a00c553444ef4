"""Sines of rotary positions are accurate, and rotations keep lengths."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.programs.bounds import Integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.rotary import POSITION_MAX, turns
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.engines import engine
from tests.tasks.programs.values import Tensor, computed

ROTARY = OPERATORS["rotary"]


def column(*positions: int) -> Tensor:
    kind = TensorType(ElementType.INT64, len(positions), 1)
    return Tensor(kind, np.array(positions).reshape(-1, 1), Integers(0, POSITION_MAX))


@given(
    st.integers(0, POSITION_MAX),
    st.sampled_from((2, 10_000, 100_000, 1_000_000)),
    st.sampled_from((2, 64, 128)),
    st.integers(0, 1),
)
def test_sines_are_accurate(position: int, base: int, width: int, quarter: int) -> None:
    """The angle is known to 2^-41 turns at the largest position."""
    found = computed(ROTARY, engine("numpy"), [column(position)], (base, width, quarter))[0]
    for pair in range(width // 2):
        with localcontext() as context:
            context.prec = 50
            angle = position * (Decimal(base).ln() * -2 * pair / width).exp()
            angle %= 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        wanted = (math.cos if quarter else math.sin)(float(angle))
        assert found[pair] == pytest.approx(wanted, rel=0, abs=1e-11)


def test_the_first_positions_are_those_of_the_circle() -> None:
    assert turns(10_000, 2)[0] == pytest.approx(2**64 / (2 * math.pi), rel=1e-15)
    assert computed(ROTARY, engine("numpy"), [column(0)], (10_000, 8, 0)).tolist() == [[0.0] * 4]
    assert computed(ROTARY, engine("numpy"), [column(0)], (10_000, 8, 1)).tolist() == [[1.0] * 4]


def test_positions_beyond_the_limit_are_refused() -> None:
    with pytest.raises(ProgramInvalid, match="positions from 0 to"):
        ROTARY.bounds([Integers(0, POSITION_MAX + 1)], [column(0).type], (10_000, 8, 0))
