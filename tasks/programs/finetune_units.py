"""What is known of a step of fine-tuning without its program: its work units, its calls, and that it is exact.

Everybody may send a specification to a node and pay nothing for its refusal. A program of thirty layers takes
150 ms, and this a fraction of one. A test compares both for all kinds of shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    PROJECTIONS,
    FinetuneRates,
    FinetuneShape,
    Needs,
    check_rates,
    finetune_program,
    layer_tensors,
)
from tasks.programs.llama_layers import NOTHING
from tasks.programs.llama_shape import projection
from tasks.programs.operators.rules import UNITS
from tasks.programs.operators.scalars import NANO, order_units
from tasks.programs.program import CALLS_MAX

__all__ = ["CHECKED_LAYERS", "Cost", "check_finetune", "finetune_cost"]

CHECKED_LAYERS: Final = 3
"""A lowest, a middle and a highest layer. All others are as the middle one. The stream between layers is rounded
to binary32, so the bounds of a layer do not depend on how many there are."""


class Cost(NamedTuple):
    """Work units and calls of a step, or of a part of it."""

    units: int
    calls: int


def finetune_cost(shape: FinetuneShape, rates: FinetuneRates) -> Cost:
    """Return units and calls of ``finetune_program(shape, rates)``."""
    model, step = shape.model, _Tally(shape)
    each = step.forward().plus(step.updates(rates)).times(model.layers)
    above = step.backward(Needs(True, shape.targets)).times(model.layers - 1)
    return step.once(rates).plus(each, above, step.backward(Needs(False, shape.targets))).cost


def check_finetune(shape: FinetuneShape, rates: FinetuneRates) -> None:
    """Raises ProgramInvalid exactly where ``finetune_program(shape, rates)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    check_rates(shape, rates)
    calls = finetune_cost(shape, rates).calls if shape.model.layers > CHECKED_LAYERS else 0
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    layers = min(shape.model.layers, CHECKED_LAYERS)
    finetune_program(replace(shape, model=replace(shape.model, layers=layers)), rates)


@cache
def _together(names: tuple[str, ...]) -> tuple[int, int]:
    """Return the work units of calls, and of an element of all their results. This module names what is kept."""
    return sum(UNITS[name].call for name in names), sum(UNITS[name].element for name in names)


class _Sum:
    """A growing sum of calls."""

    def __init__(self, units: int = 0, calls: int = 0) -> None:
        self._units, self._calls = units, calls

    @property
    def cost(self) -> Cost:
        """What was counted."""
        return Cost(self._units, self._calls)

    def plus(self, *others: _Sum) -> _Sum:
        """Return the sum of some."""
        costs = [self.cost, *(other.cost for other in others)]
        return _Sum(sum(cost.units for cost in costs), sum(cost.calls for cost in costs))

    def times(self, count: int) -> _Sum:
        """Return it so many times."""
        return _Sum(self._units * count, self._calls * count)

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

    def product(self, rows: int, terms: int, others: int) -> None:
        """Count the products of rows that are integers already."""
        cost = UNITS["contract"]
        found = rows * others
        self.add(
            cost.call + cost.element * found + cost.term * found * terms + cost.read * (rows + others) * terms
        )

    def products(self, left: int, right: int, found: int, terms: int) -> None:
        """Count the products of groups of rows: ``left`` and ``right`` are the values of both sides."""
        cost = UNITS["contract_groups"]
        self.add(cost.call + cost.element * found + cost.term * found * terms + cost.read * (left + right))

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

    def through_weight(self, rows: int, outputs: int, inputs: int) -> None:
        """Count the products of gradients with the columns of a frozen weight."""
        self.each(rows * outputs, "scale_columns")
        self.quantised(rows, rows * outputs)
        self.each(outputs * inputs, "transpose")
        self.products(rows * outputs, outputs * inputs, rows * inputs, outputs)


class _Tally:
    """The parts of a step of one shape."""

    def __init__(self, shape: FinetuneShape) -> None:
        self.job, self.model = shape, shape.model
        model = shape.model
        self.rows, self.picked = shape.batch * shape.length, shape.batch * shape.slots
        self.queries, self.keys = model.heads * model.head_width, model.key_width
        self.groups = shape.batch * model.key_heads
        self.query_rows, self.key_rows = self.rows * model.heads, self.rows * model.key_heads
        self.scores = self.query_rows * shape.length
        self.group_rows = model.heads // model.key_heads * shape.length
        self.sizes = {name: projection(model, name) for name in PROJECTIONS}

    def once(self, rates: FinetuneRates) -> _Sum:
        """Return what does not depend on the number of layers."""
        job, model, rows, found = self.job, self.model, self.rows, _Sum()
        found.add(order_units(job.batch, job.train_rows))
        found.each(rows, "positions")
        found.each(rows * (model.head_width // 2), "rotary", "rotary")
        found.each(1, "number", "learning_rate", *["scalar"] * len(self._constants(rates)))
        found.column(job.batch, job.length)
        found.weight(model.vocabulary, model.width)
        found.each(rows * model.width, "gather", "scale_rows")
        found.each(rows, "gather")
        if self._turns_back():
            found.each(rows * (model.head_width // 2), "subtract")  # the negated sines
        self._head(found)
        first = layer_tensors(job)[1]
        found.each(first.values, "store")  # the probe
        betas = {rates.adamw.beta1_nano, rates.adamw.beta2_nano}
        found.each(1, *["bias_correction"] * len(betas), "multiply")
        if rates.adamw.weight_decay_nano:
            found.each(1, "multiply", "subtract")
        if rates.clip_nano:
            found.each(1, "square_root", "subtract", "select", "add", "divide")
            found.add(-UNITS["add"].call - UNITS["add"].element, -1)  # n matrices are added with n - 1 calls
        return found

    def _turns_back(self) -> bool:
        """Tell whether the way back goes through the heads of any layer."""
        return self.model.layers > 1 or any(name in self.job.targets for name in ("query", "key", "value"))

    def _constants(self, rates: FinetuneRates) -> set[float]:
        """Return the constants of a step. Equal ones are one call."""
        model, adamw = self.model, rates.adamw
        betas = (adamw.beta1_nano, adamw.beta2_nano)
        found = {
            0.0, 1.0, self.job.alpha / self.job.rank, 1.0 / model.width, model.epsilon_nano / NANO, NOTHING,
            model.head_width**-0.5, adamw.epsilon_nano / NANO,
        }  # fmt: skip
        found |= {beta / NANO for beta in betas} | {(NANO - beta) / NANO for beta in betas}
        found |= {adamw.weight_decay_nano / NANO} if adamw.weight_decay_nano else set()
        return found | ({rates.clip_nano / NANO} if rates.clip_nano else set())

    def _head(self, found: _Sum) -> None:
        """Count the loss of the trained tokens, and its gradient by the stream."""
        job, model, picked = self.job, self.model, self.picked
        logits = picked * model.vocabulary
        found.column(job.batch, job.slots)
        found.column(job.batch, job.slots)
        found.column(job.batch, job.length)
        found.each(picked * model.width, "gather_groups")
        found.normed(picked, model.width)
        found.quantised(picked, picked * model.width)
        if not model.tied:
            found.weight(model.vocabulary, model.width)
        found.product(picked, model.width, model.vocabulary)
        found.each(logits, "one_hot", "subtract", "exp", "multiply", "divide", "bound", "subtract", "multiply")
        found.each(picked * job.length, "one_hot")
        found.row_sum(picked, picked * job.length)
        found.fold("row_maximum", picked, logits)
        found.row_sum(picked, logits)
        found.row_sum(picked, logits)
        found.each(picked, "transpose", "divide", "bound", "log", "subtract", "multiply", "transpose")
        found.row_sum(1, picked)
        found.row_sum(1, picked)
        found.each(1, "add")
        found.through_weight(picked, model.vocabulary, model.width)
        found.through_norm(picked, model.width)
        found.each(self.rows * model.width, "gather_groups", "store", "load")

    def _linear(self, found: _Sum, inputs: int, *names: str) -> None:
        """Count products of the same rows with weights, and with their adapters."""
        rows, rank = self.rows, self.job.rank
        found.quantised(rows, rows * inputs)
        for name in names:
            outputs = self.sizes[name][0]
            found.weight(outputs, inputs)
            found.product(rows, inputs, outputs)
            if name in self.job.targets:
                found.each(0, "load", "load")
                found.quantised(rank, rank * inputs)
                found.product(rows, inputs, rank)
                found.quantised(rows, rows * rank)
                found.quantised(outputs, outputs * rank)
                found.product(rows, rank, outputs)
                found.each(rows * outputs, "multiply", "add")

    def forward(self) -> _Sum:
        """Return the way forward of a layer."""
        model, rows, found = self.model, self.rows, _Sum()
        scores, queries, keys = self.scores, self.queries, self.keys
        found.normed(rows, model.width)
        self._linear(found, model.width, "query", "key", "value")
        if model.biased:
            for columns in (queries, keys, keys):
                found.each(rows * columns, "add")
                found.each(columns, "load")
        found.each(rows * queries, "rotate", "split_heads", "join_heads")
        found.each(rows * keys, "rotate", "split_heads", "split_heads")
        found.quantised(self.query_rows, rows * queries)
        found.quantised(self.key_rows, rows * keys)
        found.quantised(self.key_rows, rows * keys)
        found.products(rows * queries, rows * keys, scores, model.head_width)
        found.each(scores, "multiply", "bound", "causal", "subtract", "exp", "causal", "divide", "bound")
        found.fold("row_maximum", self.query_rows, scores)
        found.row_sum(self.query_rows, scores)
        found.each(self.query_rows, "add")
        self._folded(found, self.query_rows, rows * keys, rows * queries, self.job.length)
        self._linear(found, queries, "output")
        found.rounded(rows * model.width)
        found.normed(rows, model.width)
        self._linear(found, model.width, "gate", "up")
        hidden = ("bound", "subtract", "exp", "add", "divide", "select", "multiply", "multiply")
        found.each(rows * model.hidden, *hidden)
        self._linear(found, model.hidden, "down")
        found.rounded(rows * model.width)
        return found

    def _folded(self, found: _Sum, rows: int, right: int, result: int, terms: int) -> None:
        """Count the products of shares or scores with the columns of rows of heads."""
        found.each(self.scores, "scale_columns")
        found.quantised(rows, self.scores)
        found.each(right, "transpose_groups" if self.groups > 1 else "transpose")
        found.products(self.scores, right, result, terms)

    def backward(self, needs: Needs) -> _Sum:
        """Return the way back through a layer."""
        model, rows, found = self.model, self.rows, _Sum()
        attended = needs.any("query", "key", "value")
        middle = attended or needs.any("output")
        hidden = middle or needs.any("gate", "up")
        self._back(found, ("down",), needed=hidden)
        if not hidden:
            return found
        found.each(rows * model.hidden, *["multiply"] * 5, "subtract", "add")
        self._back(found, ("gate", "up"), needed=middle)
        if not middle:
            return found
        found.through_norm(rows, model.width)
        found.rounded(rows * model.width)
        self._back(found, ("output",), needed=attended)
        if not attended:
            return found
        self._through_heads(found, needs)
        if needs.below:
            found.through_norm(rows, model.width)
            found.rounded(rows * model.width)
        return found

    def _back(self, found: _Sum, names: Iterable[str], *, needed: bool) -> None:
        """Count the gradients of adapters that took the same rows, and of these rows if ``needed``."""
        rows, rank, parts, shown = self.rows, self.job.rank, 0, False
        for name in names:
            outputs, inputs = self.sizes[name]
            if needed:
                found.through_weight(rows, outputs, inputs)
                parts += 1
            if name not in self.job.targets:
                continue
            found.each(rows * outputs, "multiply", "transpose")
            found.quantised(outputs, outputs * rows)
            found.each(rank * rows, "transpose", "transpose")
            found.quantised(rank, rank * rows)
            found.product(outputs, rows, rank)
            found.each(outputs * rank, "transpose")
            found.quantised(rows, rows * outputs)
            found.quantised(rank, rank * outputs)
            found.product(rows, outputs, rank)
            found.quantised(rank, rank * rows)
            if not shown:
                found.each(inputs * rows, "transpose")
                found.quantised(inputs, inputs * rows)
                shown = True
            found.product(rank, rows, inputs)
            if needed:
                found.each(rank * inputs, "transpose")
                found.quantised(rows, rows * rank)
                found.quantised(inputs, inputs * rank)
                found.product(rows, rank, inputs)
                parts += 1
        for _ in range(parts - 1):
            found.each(rows * self.sizes[name][1], "add")

    def _through_heads(self, found: _Sum, needs: Needs) -> None:
        rows, scores, queries, keys = self.rows, self.scores, self.queries, self.keys
        found.each(rows * queries, "split_heads")
        found.quantised(self.query_rows, rows * queries)
        if needs.any("value"):
            found.each(scores, "transpose_groups")
            self._folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
            found.each(rows * keys, "join_heads")
        if needs.any("query", "key"):
            found.products(rows * queries, rows * keys, scores, self.model.head_width)
            found.each(scores, "bound", "multiply", "subtract", "multiply")
            found.row_sum(self.query_rows, scores)
            found.each(self.query_rows, "bound")
        if needs.any("query"):
            self._folded(found, self.query_rows, rows * keys, rows * queries, self.job.length)
            found.each(rows * queries, "join_heads", "rotate", "multiply")
        if needs.any("key"):
            found.each(scores, "transpose_groups")
            self._folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
            found.each(rows * keys, "join_heads", "rotate", "multiply")
        self._back(found, ("query", "key", "value"), needed=needs.below)

    def updates(self, rates: FinetuneRates) -> _Sum:
        """Return clipping and AdamW for the adapters of a layer."""
        found = _Sum()
        for kind in layer_tensors(self.job):
            values = kind.values
            found.each(values, "store", "load")
            if rates.clip_nano:
                found.each(values, "multiply", "multiply")
                found.row_sum(kind.rows, values)
                found.each(kind.rows, "transpose")
                found.row_sum(1, kind.rows)
                found.each(1, "add")
            found.each(values, *["multiply"] * 7, *["add"] * 3, *["load"] * 4, *["store"] * 5)
            found.each(values, "square_root", "divide", "subtract")
            if rates.adamw.weight_decay_nano:
                found.each(values, "multiply")
        return found
