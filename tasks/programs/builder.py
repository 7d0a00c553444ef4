"""Building programs: calls by name, equal calls once, and the short forms that models use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tasks.programs.operators import Attributes
from tasks.programs.operators.rows import SUM_BITS
from tasks.programs.operators.scalars import constant_bits
from tasks.programs.program import Call, Computation, Program, Source, SourceKind
from tasks.programs.table import OPERATORS

__all__ = ["Builder", "Quantised", "widths"]

_NEW_CALL: Final = partial(tuple.__new__, Call)
"""Makes a call of a tuple of its fields, in half the time that its constructor takes: programs have thousands."""


class Quantised(NamedTuple):
    """Numbers of the tensors that hold rows as integers: the integers, and the exponent of each row."""

    integers: int
    exponents: int
    bits: int


def widths(left: Quantised, right: Quantised) -> tuple[int, ...]:
    """Return the attribute of a product: one width if both sides have it, otherwise both."""
    return (left.bits,) if left.bits == right.bits else (left.bits, right.bits)


class Builder:
    """Collects the calls of a program over ``sources``. A call that stands there already is not made again."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources: Final = tuple(sources)
        self._places: Final = {(source.kind, source.key): number for number, source in enumerate(sources)}
        self._numbers: Final[dict[Call, int]] = {}

    @property
    def calls(self) -> int:
        """How many calls there are so far."""
        return len(self._numbers)

    def source(self, kind: SourceKind, key: str) -> int:
        """Return the number of a source. Raises KeyError."""
        return self._places[kind, key]

    def call(self, operator: str, *inputs: int, attributes: Attributes = ()) -> int:
        """Return the number of the result of a call."""
        found, numbers = _NEW_CALL((operator, inputs, attributes)), self._numbers
        number = numbers.get(found)
        if number is None:
            number = numbers[found] = len(self._sources) + len(numbers)
        return number

    def constant(self, value: float) -> int:
        """Return the number of a tensor of one constant."""
        return self.call("scalar", attributes=(constant_bits(value),))

    def quantised(self, values: int, bits: int) -> Quantised:
        """Return the rows of ``values`` as integers of ``bits`` bits."""
        exponents = self.call("row_exponent", values, attributes=(bits,))
        return Quantised(self.call("quantise", values, exponents, attributes=(bits,)), exponents, bits)

    def contract(self, left: int, right: int, bits: int, right_bits: int | None = None) -> int:
        """Return the products of each row of ``left`` with each row of ``right``."""
        return self.products(self.quantised(left, bits), self.quantised(right, right_bits or bits))

    def products(self, one: Quantised, other: Quantised) -> int:
        """Return the products of each row of one side with each row of the other."""
        return self.call(
            "contract", one.integers, other.integers, one.exponents, other.exponents, attributes=widths(one, other)
        )

    def row_sum(self, values: int) -> int:
        """Return the sum of each row."""
        return self.call("row_sum", values, self.call("row_exponent", values, attributes=(SUM_BITS,)))

    def binary32(self, values: int, limit: int) -> int:
        """Return values rounded to binary32, as a store rounds them: one of 2^limit or more has diverged."""
        return self.call("load", self.call("store", values, attributes=(limit,)))

    def computation(self, *results: int) -> Computation:
        """Return all calls, for these results."""
        return Computation(self._sources, tuple(self._numbers), results, OPERATORS)

    def program(self, stores: Mapping[str, int], probe: int, loss: int, *, adapter_step: int = 0) -> Program:
        """Return the program of all calls. Raises ProgramInvalid."""
        return Program(
            self._sources, tuple(self._numbers), stores, probe, loss, OPERATORS, adapter_step=adapter_step
        )
