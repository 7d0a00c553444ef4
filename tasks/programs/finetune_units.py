"""What is known of a step of fine-tuning without its program: its work units, its calls, and that it is exact.

Everybody may send a specification to a node and pay nothing for its refusal. A program of thirty layers takes
150 ms, and this a fraction of one. A test compares both for all kinds of shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    BACK_BITS,
    HEAD_BITS,
    FinetuneRates,
    FinetuneShape,
    Needs,
    check_rates,
    finetune_program,
    layer_tensors,
)
from tasks.programs.llama_shape import FUSED
from tasks.programs.llama_units import LayersTally
from tasks.programs.looped import count_sums, count_whole
from tasks.programs.operators.rules import UNITS
from tasks.programs.operators.scalars import NANO, order_units
from tasks.programs.program import CALLS_MAX
from tasks.programs.tally import Cost, Tally

__all__ = ["CHECKED_LAYERS", "check_finetune", "finetune_cost"]

CHECKED_LAYERS: Final = 3
"""A lowest, a middle and a highest layer. All others are as the middle one. The stream between layers is rounded
to binary32, so the bounds of a layer do not depend on how many there are."""


def finetune_cost(shape: FinetuneShape, rates: FinetuneRates) -> Cost:
    """Return units and calls of ``finetune_program(shape, rates)``."""
    model, step = shape.model, _Tally(shape)
    each = step.forward().plus(step.updates(rates)).times(model.layers)
    if shape.preference:
        each = each.plus(step.reference.forward().times(model.layers))
    if shape.recompute:
        each = each.plus(step.again().times(model.layers))
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


class _Reference(LayersTally):
    """The way forward without adapters. Its weights and vectors are those of the other way."""

    def weight(self, found: Tally, outputs: int, inputs: int) -> None:
        """See LayersTally: it is loaded already."""

    def _loaded(self, found: Tally, columns: int, vectors: int) -> Tally:
        cost = UNITS["load"]
        found.add(-vectors * (cost.call + cost.element * columns), -vectors)
        return found

    def logits(self, found: Tally, rows: int) -> None:
        """See LayersTally."""
        super().logits(found, rows)
        self._loaded(found, self.model.width, 2 if self.model.is_gpt2 else 1)

    def forward(self) -> Tally:
        """See LayersTally."""
        model, found = self.model, self._loaded(super().forward(), self.model.width, 2)
        if model.is_gpt2:
            self._loaded(found, model.width, 2)
            for name in self.sizes:
                self._loaded(found, self.sizes[name][0], 1)
        if self.model.biased:
            self._loaded(found, self.queries, 1)
            self._loaded(found, self.keys, 2)
        return found


class _Tally(LayersTally):
    """The parts of a step of one shape."""

    def __init__(self, shape: FinetuneShape) -> None:
        super().__init__(
            shape.model, batch=shape.sequences, length=shape.length, seen=shape.length, rank=shape.rank,
            targets=shape.targets, packed=bool(shape.packed),
        )  # fmt: skip
        self.job, self.picked = shape, shape.sequences * shape.slots
        self.reference = _Reference(
            shape.model, batch=shape.sequences, length=shape.length, seen=shape.length, is_tuned=True
        )

    def once(self, rates: FinetuneRates) -> Tally:
        """Return what does not depend on the number of layers."""
        job, model, rows, found = self.job, self.model, self.rows, Tally()
        if job.is_whole:
            found.add(order_units(job.batch, job.train_rows))
        else:
            found.each(job.batch, "loop_rows")
        self.start(found)
        found.each(1, "learning_rate", *["scalar"] * len(self._constants(rates)))
        found.column(job.sequences, job.length)
        if job.packed:
            found.column(job.sequences, job.length)
            found.column(job.sequences, job.length)
            found.each(rows * job.length, "one_hot")
            found.row_sum(rows, rows * job.length)
        if self._turns_back() and not model.is_gpt2:
            found.each(rows * (model.head_width // 2), "subtract")  # the negated sines
        self._head(found)
        count_sums(found, job)
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
        adamw = rates.adamw
        betas = (adamw.beta1_nano, adamw.beta2_nano)
        found = self.constants | {self.job.alpha / self.job.rank, adamw.epsilon_nano / NANO}
        if self.model.layers > 1 or self.job.targets != ("down",):
            found |= self.slopes
        found |= {beta / NANO for beta in betas} | {(NANO - beta) / NANO for beta in betas}
        found |= {adamw.weight_decay_nano / NANO} if adamw.weight_decay_nano else set()
        found |= {self.job.preference / NANO} if self.job.preference else set()
        found |= {1.0 / self.job.batch} if self.job.preference and self.job.is_whole else set()
        return found | ({rates.clip_nano / NANO} if rates.clip_nano else set())

    def _head(self, found: Tally) -> None:
        """Count the loss of the trained tokens, and its gradient by the stream."""
        job, model, picked = self.job, self.model, self.picked
        logits = picked * model.vocabulary
        found.column(job.sequences, job.slots)
        found.column(job.sequences, job.slots)
        found.column(job.sequences, job.length)
        found.each(picked * model.width, "gather_groups")
        self.logits(found, picked)
        found.each(logits, "one_hot", "subtract", "exp", "multiply", "divide", "bound", "subtract", "multiply")
        found.each(picked * job.length, "one_hot")
        found.row_sum(picked, picked * job.length)
        found.fold("row_maximum", picked, logits)
        found.row_sum(picked, logits)
        found.row_sum(picked, logits)
        found.each(picked, "log", "subtract")
        if job.preference:
            self._pairs(found)
        else:
            found.each(picked, "transpose", "multiply", "transpose")
            found.row_sum(1, picked)
            found.row_sum(1, picked)
            if not job.is_whole:
                found.each(picked, "loop_weights", "multiply")
            if not job.is_gated:
                found.each(1, "add")
                found.each(picked, "divide", "bound")
        found.through_weight(picked, model.vocabulary, model.width, HEAD_BITS, self.weight_bits)
        self.through_norm(found, picked)
        found.each(self.rows * model.width, "gather_groups", "store", "load")

    def _pairs(self, found: Tally) -> None:
        """Count what comes of the reference, and the loss of pairs."""
        job, model, picked, pairs, both = self.job, self.model, self.picked, self.job.batch, self.job.sequences
        logits = picked * model.vocabulary
        found.each(self.rows * model.width, "store", "load")
        found.each(picked * model.width, "gather_groups")
        self.reference.logits(found, picked)
        found.each(logits, "subtract", "exp", "multiply")
        found.fold("row_maximum", picked, logits)
        found.row_sum(picked, logits)
        found.row_sum(picked, logits)
        found.each(picked, "log", "subtract", "subtract", "multiply", "join_heads")
        found.row_sum(both, picked)
        found.each(both, "join_heads", "multiply", "multiply", "split_heads")
        found.each(job.parts, "one_hot", "one_hot", "subtract")
        found.each(1, *["number"] * len({1} - self.numbers))
        found.row_sum(pairs, both)
        found.each(pairs, *["multiply"] * 4, "bound", "subtract", "exp", "add", "log", "exp", "add", "divide")
        found.each(pairs, "transpose")
        found.row_sum(1, pairs)
        found.each(picked, "join_heads", "multiply", "split_heads")
        if job.is_whole:
            return
        found.each(pairs, "loop_weights", "transpose")
        found.row_sum(1, pairs)
        if not job.is_gated:
            found.each(1, "add")
            found.each(pairs, "divide", "bound")

    def backward(self, needs: Needs) -> Tally:
        """Return the way back through a layer."""
        model, rows, found = self.model, self.rows, Tally()
        attended = needs.any("query", "key", "value", FUSED)
        middle = attended or needs.any("output")
        hidden = middle or needs.any("gate", "up")
        self._back(found, ("down",), needed=hidden)
        if not hidden:
            return found
        self.through_hidden(found)
        self._back(found, ("up",) if model.is_gpt2 else ("gate", "up"), needed=middle)
        if not middle:
            return found
        self.through_norm(found, rows)
        found.rounded(rows * model.width)
        self._back(found, ("output",), needed=attended)
        if not attended:
            return found
        self._through_heads(found, needs)
        if needs.below:
            self.through_norm(found, rows)
            found.rounded(rows * model.width)
        return found

    def _back(self, found: Tally, names: Iterable[str], *, needed: bool) -> None:
        """Count the gradients of adapters that took the same rows, and of these rows if ``needed``."""
        rows, rank, parts, shown = self.rows, self.job.rank, 0, False
        for name in names:
            outputs, inputs = self.sizes[name]
            if needed:
                found.through_weight(rows, outputs, inputs, self.bits, self.weight_bits)
                parts += 1
            if name not in self.job.targets:
                continue
            found.each(rows * outputs, "multiply", "transpose")
            found.quantised(outputs, outputs * rows)
            found.each(rank * rows, "transpose", "transpose")
            found.quantised(rank, rank * rows)
            found.product(outputs, rows, rank, BACK_BITS)
            if self.job.packed:  # what is of no row is cleared
                found.each(rank * rows, "select")
            found.each(outputs * rank, "transpose")
            found.quantised(rows, rows * outputs)
            found.quantised(rank, rank * outputs)
            found.product(rows, outputs, rank, BACK_BITS)
            found.quantised(rank, rank * rows)
            if not shown:
                if self.job.packed:
                    found.each(inputs * rows, "select")
                found.each(inputs * rows, "transpose")
                found.quantised(inputs, inputs * rows)
                shown = True
            found.product(rank, rows, inputs, BACK_BITS)
            if needed:
                found.each(rank * inputs, "transpose")
                found.quantised(rows, rows * rank)
                found.quantised(inputs, inputs * rank)
                found.product(rows, rank, inputs, BACK_BITS)
                parts += 1
        for _ in range(parts - 1):
            found.each(rows * self.sizes[name][1], "add")

    def _through_heads(self, found: Tally, needs: Needs) -> None:
        rows, scores, queries, keys = self.rows, self.scores, self.queries, self.keys
        found.each(rows * queries, "split_heads")
        found.quantised(self.query_rows, rows * queries)
        if needs.any("value", FUSED):
            found.each(scores, "transpose_groups")
            self.folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
            if not self.model.is_gpt2:
                found.each(rows * keys, "join_heads")
        if needs.any("query", "key", FUSED):
            found.products(rows * queries, rows * keys, scores, self.model.head_width, self.pair_bits)
            found.each(scores, "bound", "multiply", "subtract", "multiply")
            found.row_sum(self.query_rows, scores)
            found.each(self.query_rows, "bound")
        if needs.any("query", FUSED):
            self.folded(found, self.query_rows, rows * keys, rows * queries, self.job.length)
            self.turned_back(found, "query")
        if needs.any("key", FUSED):
            found.each(scores, "transpose_groups")
            self.folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
            self.turned_back(found, "key")
        if self.model.is_gpt2:
            self.together(found)
            self._back(found, (FUSED,), needed=needs.below)
        else:
            self._back(found, ("query", "key", "value"), needed=needs.below)

    def updates(self, rates: FinetuneRates) -> Tally:
        """Return clipping and AdamW for the adapters of a layer."""
        found, job = Tally(), self.job
        for kind in layer_tensors(job):
            values = kind.values
            found.each(values, "store", "load")
            count_whole(found, job, values)
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
