"""What is known of a step of evaluating without its program: its work units, its calls, and that it is exact."""

from __future__ import annotations

from dataclasses import replace

from tasks.programs.errors import ProgramInvalid
from tasks.programs.evaluate import EvaluateShape, evaluate_program
from tasks.programs.finetune_units import CHECKED_LAYERS
from tasks.programs.llama_units import LayersTally
from tasks.programs.program import CALLS_MAX
from tasks.programs.tally import Cost, Tally

__all__ = ["check_evaluate", "evaluate_cost"]


def evaluate_cost(shape: EvaluateShape) -> Cost:
    """Return units and calls of ``evaluate_program(shape)``."""
    rank, targets = (0, ()) if shape.adapter is None else (shape.adapter.rank, shape.adapter.targets)
    layers = LayersTally(
        shape.model, batch=shape.batch, length=shape.length, seen=shape.length, rank=rank, targets=targets,
        is_trained=shape.adapter is not None and shape.adapter.is_whole, is_tuned=True,
    )  # fmt: skip
    return _once(shape, layers).plus(layers.forward().times(shape.model.layers)).cost


def _once(shape: EvaluateShape, layers: LayersTally) -> Tally:
    """Return what does not depend on the number of layers."""
    model, found, constants = shape.model, Tally(), layers.constants
    picked = shape.batch * shape.slots
    logits = picked * model.vocabulary
    if shape.adapter is not None and not shape.adapter.is_whole:
        constants.add(shape.adapter.alpha / shape.adapter.rank)
    found.each(1, *["scalar"] * len(constants), "step_place")
    found.each(shape.batch, "positions")
    layers.start(found)
    found.column(shape.batch, shape.length)
    found.column(shape.batch, shape.slots)
    found.column(shape.batch, shape.slots)
    found.each(picked * model.width, "gather_groups")
    layers.logits(found, picked)
    found.each(logits, "one_hot", "subtract", "exp", "multiply")
    found.each(picked * shape.length, "one_hot")
    found.row_sum(picked, picked * shape.length)
    found.fold("row_maximum", picked, logits)
    found.row_sum(picked, logits)
    found.row_sum(picked, logits)
    found.each(picked, "log", "subtract", "multiply", "store", "transpose", "join_heads", "join_heads")
    found.row_sum(1, picked)
    found.row_sum(shape.batch, picked)
    found.row_sum(shape.batch, picked)
    found.each(shape.table_rows, "load", "load", "place_rows", "place_rows", "store", "store")
    return found


def check_evaluate(shape: EvaluateShape) -> None:
    """Raises ProgramInvalid exactly where ``evaluate_program(shape)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    calls = evaluate_cost(shape).calls if shape.model.layers > CHECKED_LAYERS else 0
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    layers = min(shape.model.layers, CHECKED_LAYERS)
    evaluate_program(replace(shape, model=replace(shape.model, layers=layers)))
