"""What is known of a step of embedding without its program: its work units, its calls, and that it is exact."""

from __future__ import annotations

from dataclasses import replace

from tasks.programs.bert import ROOT_HALF
from tasks.programs.bert_shape import BertShape, projection
from tasks.programs.embed import COUNT_EXPONENT, EmbedShape, embed_program
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune_units import CHECKED_LAYERS
from tasks.programs.llama_layers import NOTHING
from tasks.programs.llama_shape import BITS
from tasks.programs.llama_units import LayersTally
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import CALLS_MAX
from tasks.programs.tally import Cost, Tally

__all__ = ["check_embed", "embed_cost"]


def embed_cost(shape: EmbedShape) -> Cost:
    """Return units and calls of ``embed_program(shape)``."""
    model, found, numbers = shape.model, Tally(), {0}
    if isinstance(model, BertShape):
        layers = _EncoderTally(model, shape.batch, shape.length)
        layers.start(found)
        each = layers.forward()
        constants = layers.constants
    else:
        adapter = shape.adapter
        rank, targets = (0, ()) if adapter is None else (adapter.rank, adapter.targets)
        decoder = LayersTally(
            model, batch=shape.batch, length=shape.length, seen=shape.length, rank=rank, targets=targets,
            is_trained=adapter is not None and adapter.is_whole,
        )  # fmt: skip
        decoder.start(found)
        decoder.normed(found, decoder.rows)
        each = decoder.forward()
        constants, numbers = decoder.constants, decoder.numbers
        if adapter is not None and not adapter.is_whole:
            constants.add(adapter.alpha / adapter.rank)
    found.each(1, *["scalar"] * len(constants))
    _ends(shape, found, numbers)
    return found.plus(each.times(model.layers)).cost


def _ends(shape: EmbedShape, found: Tally, numbers: set[int]) -> None:
    """Count what a step reads, and what it makes of the rows of all tokens; ``numbers`` are counted already."""
    batch, width = shape.batch, shape.model.width
    values, table = batch * width, shape.table_rows * width
    found.each(1, "step_place")
    found.each(batch, "positions", "gather", "load_integers")
    found.column(batch, shape.length)
    if shape.pooling == "mean":
        found.each(values * shape.length, "transpose_groups", "causal")
        found.row_sum(values, values * shape.length)
        found.each(values, "join_heads", "divide")
        found.each(1, *["number"] * len({COUNT_EXPONENT} - numbers))
        found.each(batch, "positions", "scale_rows", "add")
    else:
        found.each(values, "gather_groups")
        if shape.pooling == "cls" and shape.length > 1:  # otherwise all places are the first, and stand there
            found.each(batch, "positions")
    found.each(values, "multiply", "store")
    found.row_sum(batch, values)
    found.each(batch, "square_root", "add", "transpose")
    found.row_sum(1, batch)
    if shape.normalised:
        found.each(values, "divide", "bound")
    found.each(table, "load", "place_rows", "store")


class _EncoderTally:
    """What passes over ``batch`` texts of ``length`` tokens cost."""

    def __init__(self, model: BertShape, batch: int, length: int) -> None:
        self._model, self._batch, self._length = model, batch, length
        self._rows = batch * length

    @property
    def constants(self) -> set[float]:
        """Constants of a step. Equal ones are one call."""
        model = self._model
        return {1.0, 0.5, ROOT_HALF, 1.0 / model.width, model.epsilon_nano / NANO, NOTHING, model.head_width**-0.5}

    def start(self, found: Tally) -> None:
        """Count the rows of tokens and places."""
        model, rows = self._model, self._rows
        found.each(1, "number")
        found.each(rows, "positions", "gather", "gather")
        found.weight(model.vocabulary, model.width)
        found.weight(model.context, model.width)
        found.each(rows * model.width, "gather", "scale_rows", "gather", "scale_rows", "add", "add")
        found.each(model.width, "load")
        self._normed(found)

    def forward(self) -> Tally:
        """Return the way through a layer."""
        model, rows, found = self._model, self._rows, Tally()
        values, hidden = rows * model.width, rows * model.hidden
        head_rows = rows * model.heads
        scores = head_rows * self._length
        self._linear(found, "query", "key", "value")
        for _ in range(3):
            found.each(values, "split_heads")
            found.quantised(head_rows, values)
        found.products(values, values, scores, model.head_width, BITS)
        found.each(scores, "multiply", "bound", "causal", "subtract", "exp", "causal", "divide", "bound")
        found.fold("row_maximum", head_rows, scores)
        found.row_sum(head_rows, scores)
        found.each(head_rows, "add")
        found.each(scores, "scale_columns")
        found.quantised(head_rows, scores)
        found.each(values, "transpose_groups")
        found.products(scores, values, values, self._length, BITS)
        found.each(values, "join_heads")
        self._linear(found, "output")
        found.each(values, "add")
        self._normed(found)
        self._linear(found, "up")
        found.each(hidden, "multiply", "erf", "add", "multiply", "multiply")
        self._linear(found, "down")
        found.each(values, "add")
        self._normed(found)
        return found

    def _linear(self, found: Tally, *names: str) -> None:
        """Count products of the same rows with weights, and biases."""
        inputs = projection(self._model, names[0])[1]
        found.quantised(self._rows, self._rows * inputs)
        for name in names:
            outputs = projection(self._model, name)[0]
            found.weight(outputs, inputs)
            found.product(self._rows, inputs, outputs, BITS)
            found.each(self._rows * outputs, "add")
            found.each(outputs, "load")

    def _normed(self, found: Tally) -> None:
        rows, values = self._rows, self._rows * self._model.width
        found.row_sum(rows, values)
        found.row_sum(rows, values)
        found.each(rows, "multiply", "multiply", "add", "square_root", "add")
        found.each(values, "subtract", "multiply", "divide", "bound", "multiply", "add", "store", "load")
        found.each(self._model.width, "load", "load")


def check_embed(shape: EmbedShape) -> None:
    """Raises ProgramInvalid exactly where ``embed_program(shape)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    calls = embed_cost(shape).calls if shape.model.layers > CHECKED_LAYERS else 0
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    layers = min(shape.model.layers, CHECKED_LAYERS)
    embed_program(replace(shape, model=replace(shape.model, layers=layers)))
