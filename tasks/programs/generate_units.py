"""What is known of a step of decoding without its program: its work units, its calls, and that it is exact."""

from __future__ import annotations

from dataclasses import replace

from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune_units import CHECKED_LAYERS
from tasks.programs.generate import GenerateShape, generate_program
from tasks.programs.llama_units import LayersTally
from tasks.programs.operators.row_sampling import KEY_COLUMNS
from tasks.programs.program import CALLS_MAX
from tasks.programs.sampling import count_sampling, count_sampling_by_row
from tasks.programs.tally import Cost, Tally

__all__ = ["check_generate", "generate_cost"]


def generate_cost(shape: GenerateShape) -> Cost:
    """Return units and calls of ``generate_program(shape)``."""
    model = shape.model
    rank, targets = (0, ()) if shape.adapter is None else (shape.adapter.rank, shape.adapter.targets)
    layers = LayersTally(
        model, batch=shape.batch, length=1, seen=shape.places, rank=rank, targets=targets, keeps=True,
        is_trained=shape.adapter is not None and shape.adapter.is_whole,
    )  # fmt: skip
    return _once(shape, layers).plus(layers.forward().times(model.layers)).cost


def _once(shape: GenerateShape, layers: LayersTally) -> Tally:
    """Return what does not depend on the number of layers."""
    model, batch, found = shape.model, shape.batch, Tally()
    made, table = batch * shape.places, shape.rows * shape.places
    constants = layers.constants
    if shape.adapter is not None and not shape.adapter.is_whole:
        constants.add(shape.adapter.alpha / shape.adapter.rank)
    if shape.by_row is not None:
        found.each(batch, *["gather", "load_integers"] * 3)
        found.each(batch * KEY_COLUMNS, "gather", "load_integers")
        count_sampling_by_row(found, batch, model.vocabulary, layers.numbers)
    elif shape.sampling is None:
        found.fold("find", batch, batch * model.vocabulary)
    else:
        count_sampling(found, shape.sampling, batch, model.vocabulary, constants, layers.numbers)
    found.each(1, *["scalar"] * len(constants), "step_place")
    if shape.rows * shape.places > 1:  # otherwise both are one place
        found.each(1, "step_place")
        found.each(batch, "positions")
    layers.start(found)
    found.each(batch * shape.length, "gather", "load_integers")
    found.each(batch, "gather", "load_integers", "token_at")
    layers.logits(found, batch)
    found.fold("row_maximum", batch, batch * model.vocabulary)
    found.each(batch, "until", "store", "transpose", "transpose")
    found.each(made, "gather", "transpose", "place_rows", "transpose")
    found.each(table, "load_integers", "place_rows", "store_integers")
    found.row_sum(1, batch)
    return found


def check_generate(shape: GenerateShape) -> None:
    """Raises ProgramInvalid exactly where ``generate_program(shape)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    calls = generate_cost(shape).calls if shape.model.layers > CHECKED_LAYERS else 0
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    layers = min(shape.model.layers, CHECKED_LAYERS)
    generate_program(replace(shape, model=replace(shape.model, layers=layers)))
