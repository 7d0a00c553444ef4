"""Work units of calls that nobody has to make: an operator, and how many elements, terms and values it has."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tasks.programs.operators.rows import product_units
from tasks.programs.operators.rules import UNITS

__all__ = ["Cost", "Tally"]


class Cost(NamedTuple):
    """Work units and calls of a step, or of a part of it."""

    units: int
    calls: int


@cache
def _together(names: tuple[str, ...]) -> tuple[int, int]:
    """Return the work units of calls, and of an element of all their results. This module names what is kept."""
    return sum(UNITS[name].call for name in names), sum(UNITS[name].element for name in names)


class Tally:
    """A growing sum of calls, which are not made."""

    def __init__(self, units: int = 0, calls: int = 0) -> None:
        self._units, self._calls = units, calls

    @property
    def cost(self) -> Cost:
        """What was counted."""
        return Cost(self._units, self._calls)

    def plus(self, *others: Tally) -> Tally:
        """Return the sum of some."""
        costs = [self.cost, *(other.cost for other in others)]
        return Tally(sum(cost.units for cost in costs), sum(cost.calls for cost in costs))

    def times(self, count: int) -> Tally:
        """Return it so many times."""
        return Tally(self._units * count, self._calls * count)

    def add(self, units: int, calls: int = 1) -> None:
        """Count calls."""
        self._units += units
        self._calls += calls

    def each(self, elements: int, *names: str) -> None:
        """Count calls of operators without terms whose results have so many elements."""
        call, element = _together(names)
        self._units += call + element * elements
        self._calls += len(names)

    def fold(self, name: str, rows: int, values: int) -> None:
        """Count a call with one element a row that reads ``values``."""
        cost = UNITS[name]
        self.add(cost.call + cost.element * rows + cost.term * values)

    def row_sum(self, rows: int, values: int) -> None:
        """Count the sum of each row."""
        self.fold("row_exponent", rows, values)
        self.fold("row_sum", rows, values)

    def quantised(self, rows: int, values: int) -> None:
        """Count rows that become integers."""
        self.fold("row_exponent", rows, values)
        self.each(values, "quantise")

    def product(self, rows: int, terms: int, others: int, *bits: int) -> None:
        """Count the products of rows that are integers of ``bits`` already: one width, or one of each side."""
        self.add(product_units("contract", bits, rows * others, terms, (rows + others) * terms))

    def products(self, left: int, right: int, found: int, terms: int, *bits: int) -> None:
        """Count the products of groups of rows: ``left`` and ``right`` are the values of both sides."""
        self.add(product_units("contract_groups", bits, found, terms, left + right))

    def column(self, rows: int, width: int) -> None:
        """Count integers of the data as a column."""
        self.each(rows * width, "gather", "load_integers", "split_heads")

    def weight(self, outputs: int, inputs: int) -> None:
        """Count a frozen weight's integers and exponents."""
        self.each(outputs, "load_integers")
        self.each(outputs * inputs, "load_integers")

    def normed(self, rows: int, width: int) -> None:
        """Count a norm."""
        self.row_sum(rows, rows * width)
        self.each(rows * width, "multiply", "divide", "bound", "multiply")
        self.each(rows, "multiply", "add", "square_root", "add")
        self.each(width, "load")

    def through_norm(self, rows: int, width: int) -> None:
        """Count the way back through a norm."""
        self.row_sum(rows, rows * width)
        self.each(rows * width, "bound", "multiply", "multiply", "multiply", "subtract", "divide")
        self.each(rows, "multiply")

    def rounded(self, values: int) -> None:
        """Count a sum that is rounded to binary32."""
        self.each(values, "add", "store", "load")

    def through_weight(self, rows: int, outputs: int, inputs: int, *bits: int) -> None:
        """Count the products of gradients with the columns of a weight, which are integers already."""
        self.each(rows * outputs, "scale_columns")
        self.quantised(rows, rows * outputs)
        self.each(outputs * inputs, "transpose")
        self.products(rows * outputs, outputs * inputs, rows * inputs, outputs, *bits)
