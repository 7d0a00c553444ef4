"""One call of an operator on drawn tensors, and what such calls are drawn from."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import assume
from hypothesis import strategies as st

from tasks.programs.bounds import Bounds, Magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Operator
from tests.tasks.programs.values import Tensor


class Case(NamedTuple):
    """One call of an operator on drawn tensors."""

    operator: Operator
    inputs: tuple[Tensor, ...]
    attributes: Attributes

    @property
    def bounds(self) -> Bounds:
        return self.operator.bounds(
            [one.bounds for one in self.inputs], [one.type for one in self.inputs], self.attributes
        )


PRODUCT_WIDTHS = ((15,), (20,), (20, 15), (23, 15), (15, 23), (23, 20), (23,), (28, 15), (28, 20))
"""Of both sides of a product, or of each."""
seeds = st.integers(0, 2**32)
sides = st.integers(1, 5)
terms = st.integers(1, 40)


@st.composite
def ranges(draw: st.DrawFn, low: int = -900, high: int = 1000) -> Magnitudes:
    """Any bounds, often narrow and often at one of the ends."""
    near = st.integers(min(max(low, -60), high), max(low, min(high, 60)))
    least = draw(st.one_of(st.just(low), st.integers(low, high), near))
    most = draw(st.one_of(st.just(least), st.integers(least, min(high, least + 60)), st.integers(least, high)))
    negative = draw(st.booleans())
    return Magnitudes(least, most, draw(st.booleans()), negative, draw(st.booleans()) if negative else True)


def legal(case: Case) -> Case:
    try:
        assert case.bounds
    except ProgramInvalid:
        assume(False)
    return case
