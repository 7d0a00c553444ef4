"""Choosing tokens at random with temperature, top-k and top-p: calls, work units, and a pass (market.md 4.6, R83).

A row's weights are integers: ``exp((logit - largest) / temperature)`` with 28 bits. So sums are exact. The cut is
a threshold: the largest integer from which on the weights are as many, or as much, as is asked for. It is found
bit by bit. Equal weights stay or go together, so no order of equal tokens has to be fixed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.programs.builder import Builder
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.row_sampling import KEY_COLUMNS
from tasks.programs.operators.sampling import WEIGHT_BITS
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Computation, Source, SourceKind
from tasks.programs.tally import Tally
from tasks.programs.tensors import DIMENSION_MAX, ElementType, TensorType

__all__ = [
    "TEMPERATURE_MAX",
    "RowColumns",
    "Sampling",
    "count_sampling",
    "count_sampling_by_row",
    "row_computation",
    "sampled",
    "sampled_by_row",
    "sampling_computation",
]

TEMPERATURE_MAX: Final = 100
_THRESHOLD_BITS: Final = 27
"""Bits of a weight: the largest of a row is 2^26."""
_ROWS: Final = "rows"
_PLACES: Final = "places"
_LOGITS: Final = "logits"


class Sampling(NamedTuple):
    """How tokens are drawn. Temperature and ``top_p`` are in units of 10^-9; ``top_k`` 0 keeps all tokens."""

    temperature: int
    top_p: int = NANO
    top_k: int = 0

    def check(self) -> Sampling:
        """Return itself. Raises ProgramInvalid."""
        if not 1 <= self.temperature <= TEMPERATURE_MAX * NANO:
            raise ProgramInvalid(f"a temperature above 0 and up to {TEMPERATURE_MAX} is expected")
        if not 0 <= self.top_p <= NANO or not 0 <= self.top_k <= DIMENSION_MAX:
            raise ProgramInvalid("top_p is from 0 to 1, and top_k 0 or more")
        return self


def sampled(build: Builder, how: Sampling, logits: int, largest: int, rows: int, places: int) -> int:
    """Return the token of each row. ``largest`` are the largest logits; one place may serve all rows."""
    below = build.call("subtract", logits, largest)
    if how.temperature != NANO:
        below = build.call("divide", below, build.constant(how.temperature / NANO))
    weights = build.quantised(build.call("exp", below), WEIGHT_BITS).integers
    threshold = build.call("number", attributes=(0,))
    if how.top_k:
        threshold = _raised(build, weights, "count_from", build.call("number", attributes=(how.top_k,)))
    if how.top_p < NANO:
        kept = build.call("sum_from", weights, threshold, attributes=(0,))
        threshold = _raised(build, weights, "sum_from", build.call("share_of", kept, attributes=(how.top_p,)))
    total = build.call("sum_from", weights, threshold, attributes=(0,))
    wanted = build.call("draw", total, rows, places)
    return build.call("first_above", build.call("sum_up_to", weights, threshold), wanted)


class RowColumns(NamedTuple):
    """Columns with numbers of each row: temperature (10^-6), ``top_k``, ``top_p`` (10^-9); and its key."""

    temperatures: int
    top_k: int
    top_p: int
    keys: int


def sampled_by_row(build: Builder, columns: RowColumns, logits: int, largest: int, places: int) -> int:
    """Return the token of each row, by numbers of its own. One place may serve all rows."""
    below = build.call("temper", build.call("subtract", logits, largest), columns.temperatures)
    weights = build.quantised(build.call("exp", below), WEIGHT_BITS).integers
    threshold = _raised(build, weights, "count_from", columns.top_k)
    kept = build.call("sum_from", weights, threshold, attributes=(0,))
    threshold = _raised(build, weights, "sum_from", build.call("share_by", kept, columns.top_p))
    total = build.call("sum_from", weights, threshold, attributes=(0,))
    wanted = build.call("draw_by", total, columns.keys, places)
    return build.call("first_above", build.call("sum_up_to", weights, threshold), wanted)


def _raised(build: Builder, weights: int, fold: str, goal: int) -> int:
    """Return the largest threshold from which on the fold of the weights is the goal at least."""
    found = build.call("number", attributes=(0,))
    for bit in reversed(range(_THRESHOLD_BITS)):
        more = (1 << bit,)
        above = build.call(fold, weights, found, attributes=more)
        found = build.call("raise_threshold", found, above, goal, attributes=more)
    return found


def _count_raised(found: Tally, fold: str, rows: int, values: int) -> None:
    for _ in range(_THRESHOLD_BITS):
        found.fold(fold, rows, values)
        found.each(rows, "raise_threshold")


def count_sampling_by_row(found: Tally, rows: int, vocabulary: int, numbers: set[int]) -> None:
    """Count the calls of ``sampled_by_row``; ``numbers`` are calls that were counted already."""
    values = rows * vocabulary
    found.each(values, "subtract", "temper", "exp")
    found.quantised(rows, values)
    found.each(0, *["number"] * len({0} - numbers))
    _count_raised(found, "count_from", rows, values)
    found.fold("sum_from", rows, values)
    found.each(rows, "share_by")
    _count_raised(found, "sum_from", rows, values)
    found.fold("sum_from", rows, values)
    found.each(rows, "draw_by")
    found.each(values, "sum_up_to")
    found.fold("first_above", rows, values)


def count_sampling(
    found: Tally, how: Sampling, rows: int, vocabulary: int, constants: set[float], numbers: set[int]
) -> None:  # fmt: skip
    """Count the calls of ``sampled``. A constant that it needs goes to ``constants``, which the caller counts.

    ``numbers`` are calls that were counted already.
    """
    values = rows * vocabulary
    found.each(values, "subtract", "exp")
    if how.temperature != NANO:
        constants.add(how.temperature / NANO)
        found.each(values, "divide")
    found.quantised(rows, values)
    found.each(0, *["number"] * len({0, how.top_k} - numbers))
    if how.top_k:
        _count_raised(found, "count_from", rows, values)
    if how.top_p < NANO:
        found.fold("sum_from", rows, values)
        found.each(rows, "share_of")
        _count_raised(found, "sum_from", rows, values)
    found.fold("sum_from", rows, values)
    found.each(rows, "draw")
    found.each(values, "sum_up_to")
    found.fold("first_above", rows, values)


def sampling_computation(how: Sampling, count: int, vocabulary: int) -> Computation:
    """Return the tokens of ``count`` rows of logits, each of which has a number and a place of its own.

    Its sources are, in this order: the logits, the numbers of the rows, and the places.
    """
    column = TensorType(ElementType.INT64, count, 1)
    kinds = {_LOGITS: TensorType(ElementType.BINARY64, count, vocabulary), _ROWS: column, _PLACES: column}
    build = Builder([Source(SourceKind.DATA, name, kind) for name, kind in kinds.items()])
    logits, rows, places = (build.source(SourceKind.DATA, name) for name in kinds)
    return build.computation(sampled(build, how, logits, build.call("row_maximum", logits), rows, places))


def row_computation(count: int, vocabulary: int) -> Computation:
    """Return the tokens of ``count`` rows of logits, each of which is drawn by numbers of its own.

    Its sources are, in this order: the logits, the columns of RowColumns, and the places.
    """
    column = TensorType(ElementType.INT64, count, 1)
    kinds = {_LOGITS: TensorType(ElementType.BINARY64, count, vocabulary)}
    kinds |= dict.fromkeys(RowColumns._fields[:-1], column)
    kinds |= {RowColumns._fields[-1]: column._replace(columns=KEY_COLUMNS), _PLACES: column}
    build = Builder([Source(SourceKind.DATA, name, kind) for name, kind in kinds.items()])
    logits, *columns, places = (build.source(SourceKind.DATA, name) for name in kinds)
    return build.computation(
        sampled_by_row(build, RowColumns(*columns), logits, build.call("row_maximum", logits), places)
    )
