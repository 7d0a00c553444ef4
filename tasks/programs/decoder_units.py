"""What is known of a step that trains a decoder without its program: its work units, its calls, that it is exact.

Everybody may send a specification to a node and pay nothing for its refusal. A test compares this with whole
programs of all kinds of shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tasks.programs.decoder import (
    DecoderShape,
    check_decoder_rates,
    decays,
    decoder_program,
)
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import BITS, FUSED, layer_parameters, other_parameters
from tasks.programs.llama_units import LayersTally
from tasks.programs.looped import count_sums, count_whole
from tasks.programs.operators.rules import UNITS
from tasks.programs.operators.scalars import NANO, order_units
from tasks.programs.program import CALLS_MAX
from tasks.programs.tally import Cost, Tally
from tasks.programs.tensors import TensorType

__all__ = ["CHECKED_LAYERS", "check_decoder", "decoder_cost"]

CHECKED_LAYERS: Final = 3
"""A lowest, a middle and a highest layer. All others are as the middle one: the stream between layers and its
gradient are rounded to binary32, so the bounds of a layer do not depend on how many there are."""


def decoder_cost(shape: DecoderShape, rates: FinetuneRates) -> Cost:
    """Return units and calls of ``decoder_program(shape, rates)``."""
    step = _Tally(shape)
    each = step.forward().plus(step.backward(), step.layer_updates(rates)).times(shape.model.layers)
    if shape.recompute:
        each = each.plus(step.again().times(shape.model.layers))
    return step.once(rates).plus(each).cost


def check_decoder(shape: DecoderShape, rates: FinetuneRates) -> None:
    """Raises ProgramInvalid exactly where ``decoder_program(shape, rates)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    check_decoder_rates(shape.model, rates)
    calls = decoder_cost(shape, rates).calls if shape.model.layers > CHECKED_LAYERS else 0
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    layers = min(shape.model.layers, CHECKED_LAYERS)
    decoder_program(replace(shape, model=replace(shape.model, layers=layers)), rates)


class _Tally(LayersTally):
    """The parts of a step of one shape."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape.model, batch=shape.batch, length=shape.length, seen=shape.length, is_trained=True)
        self.job = shape

    def once(self, rates: FinetuneRates) -> Tally:
        """Return what does not depend on the number of layers."""
        job, model, found = self.job, self.model, Tally()
        if job.is_gated:
            found.each(job.batch, "loop_rows")
        else:
            found.add(order_units(job.batch, job.train_rows))
        self.start(found)
        found.each(1, "learning_rate", *["scalar"] * len(self._constants(rates)))
        found.column(job.batch, job.length)
        if not model.is_gpt2:
            found.each(self.rows * (model.head_width // 2), "subtract")  # the negated sines
        self._head(found)
        count_sums(found, job)
        self._embedding(found)
        found.each(model.width, "store")  # the probe
        betas = {rates.adamw.beta1_nano, rates.adamw.beta2_nano}
        found.each(1, *["bias_correction"] * len(betas), "multiply")
        if rates.adamw.weight_decay_nano:
            found.each(1, "multiply", "subtract")
        if rates.clip_nano:
            found.each(1, "square_root", "subtract", "select", "add", "divide")
            found.add(-UNITS["add"].call - UNITS["add"].element, -1)  # n tensors are added with n - 1 calls
        return found.plus(self._updates(other_parameters(model), rates))

    def _constants(self, rates: FinetuneRates) -> set[float]:
        """Return the constants of a step. Equal ones are one call."""
        adamw = rates.adamw
        betas = (adamw.beta1_nano, adamw.beta2_nano)
        found = self.constants | self.slopes | {adamw.epsilon_nano / NANO}
        found |= set() if self.job.is_gated else {1.0 / self.rows}
        found |= {beta / NANO for beta in betas} | {(NANO - beta) / NANO for beta in betas}
        found |= {adamw.weight_decay_nano / NANO} if adamw.weight_decay_nano else set()
        return found | ({rates.clip_nano / NANO} if rates.clip_nano else set())

    def _head(self, found: Tally) -> None:
        """Count the loss, and its gradient by the stream."""
        job, model, rows = self.job, self.model, self.rows
        logits = rows * model.vocabulary
        found.column(job.batch, job.length)
        self.logits(found, rows)
        found.each(logits, "one_hot", "subtract", "exp", "multiply", "divide", "bound", "subtract", "multiply")
        found.fold("row_maximum", rows, logits)
        found.row_sum(rows, logits)
        found.row_sum(rows, logits)
        found.each(rows, "log", "subtract", "transpose")
        found.row_sum(1, rows)
        if job.is_gated:
            found.each(rows, "loop_weights", "multiply", "transpose")
            found.row_sum(1, rows)
        else:
            found.each(1, "multiply")
        self._back(found, model.vocabulary, model.width)
        self._shown(found, model.width)
        self._through_norm(found)
        found.each(rows * model.width, "store", "load")

    def _embedding(self, found: Tally) -> None:
        """Count the gradient of the embedding."""
        model, rows = self.model, self.rows
        found.each(rows * model.vocabulary, "one_hot", "transpose")
        found.quantised(model.vocabulary, rows * model.vocabulary)
        found.each(rows * model.width, "transpose")
        found.quantised(model.width, rows * model.width)
        found.product(model.vocabulary, rows, model.width, BITS, self.bits)
        if model.is_gpt2:
            found.each(rows * model.context, "one_hot", "transpose")
            found.quantised(model.context, rows * model.context)
            found.product(model.context, rows, model.width, BITS, self.bits)
            found.each(0, "load")
        if model.tied:
            found.each(model.vocabulary * model.width, "add")
        else:
            found.each(0, "load")  # for its update: the way forward loads rows of it

    def _through_norm(self, found: Tally) -> None:
        """Count the way back through a norm, with the gradient of its weights."""
        width, rows = self.model.width, self.rows
        self.through_norm(found, rows)
        found.each(rows * width, "multiply")
        for _ in range(2 if self.model.is_gpt2 else 1):
            found.each(rows * width, "transpose")
            found.row_sum(width, rows * width)
            found.each(width, "transpose")

    def _shown(self, found: Tally, inputs: int) -> None:
        """Count the columns of what weights were applied to: once for all that took the same rows."""
        found.each(self.rows * inputs, "transpose")
        found.quantised(inputs, self.rows * inputs)

    def _back(self, found: Tally, outputs: int, inputs: int) -> None:
        """Count the gradient of a weight, without ``_shown``, and that of its input."""
        rows = self.rows
        found.each(rows * outputs, "transpose")
        found.quantised(outputs, rows * outputs)
        found.product(outputs, rows, inputs, self.bits, self.weight_bits)
        found.through_weight(rows, outputs, inputs, self.bits, self.weight_bits)

    def _back_through(self, found: Tally, *names: str) -> None:
        """Count the way back through weights that took the same rows, and the sum of what they give."""
        for name in names:
            outputs, taken = self.sizes[name]
            self._back(found, outputs, taken)
            if self.model.is_gpt2:
                found.row_sum(outputs, self.rows * outputs)
                found.each(outputs, "transpose")
        inputs = self.sizes[names[0]][1]
        self._shown(found, inputs)
        found.each(self.rows * inputs, *["add"] * (len(names) - 1))

    def backward(self) -> Tally:
        """Return the way back through a layer."""
        model, rows, found = self.model, self.rows, Tally()
        self._back_through(found, "down")
        self.through_hidden(found)
        self._back_through(found, *(["up"] if model.is_gpt2 else ["gate", "up"]))
        self._back_through(found, "output")
        self._through_heads(found)
        for _ in ("hidden_norm", "attention_norm"):
            self._through_norm(found)
            found.rounded(rows * model.width)
        return found

    def _through_heads(self, found: Tally) -> None:
        rows, scores, queries, keys = self.rows, self.scores, self.queries, self.keys
        found.each(rows * queries, "split_heads")
        found.quantised(self.query_rows, rows * queries)
        found.each(scores, "transpose_groups")
        self.folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
        if not self.model.is_gpt2:
            found.each(rows * keys, "join_heads")
        found.products(rows * queries, rows * keys, scores, self.model.head_width, self.pair_bits)
        found.each(scores, "bound", "multiply", "subtract", "multiply")
        found.row_sum(self.query_rows, scores)
        found.each(self.query_rows, "bound")
        self.folded(found, self.query_rows, rows * keys, rows * queries, self.job.length)
        self.turned_back(found, "query")
        found.each(scores, "transpose_groups")
        self.folded(found, self.key_rows, rows * queries, rows * keys, self.group_rows)
        self.turned_back(found, "key")
        if self.model.is_gpt2:
            self.together(found)
            self._back_through(found, FUSED)
        else:
            self._back_through(found, "query", "key", "value")

    def layer_updates(self, rates: FinetuneRates) -> Tally:
        """Return rounding, clipping and AdamW for the weights of a layer."""
        return self._updates(layer_parameters(self.model), rates)

    def _updates(self, kinds: dict[str, TensorType], rates: FinetuneRates) -> Tally:
        found = Tally()
        for name, kind in kinds.items():
            values = kind.values
            found.each(values, "store", "load")
            count_whole(found, self.job, values)
            if rates.clip_nano:
                found.each(values, "multiply", "multiply")
                found.row_sum(kind.rows, values)
                found.each(kind.rows, "transpose")
                found.row_sum(1, kind.rows)
                found.each(1, "add")
            found.each(values, *["multiply"] * 7, *["add"] * 3, *["load"] * 4, *["store"] * 5)
            found.each(values, "square_root", "divide", "subtract")
            if rates.adamw.weight_decay_nano and decays(name):
                found.each(values, "multiply")
        return found
