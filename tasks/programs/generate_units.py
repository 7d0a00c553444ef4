"""What is known of a step of decoding without its whole program: its work units, its calls, and that it is exact.

All layers have the same calls. So units and calls of any model follow from programs of one and of two layers,
which take a millisecond each. The stream between layers is rounded to binary32, so bounds do not depend on how
many layers there are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune_units import CHECKED_LAYERS, Cost
from tasks.programs.generate import GenerateShape, generate_program
from tasks.programs.program import CALLS_MAX

__all__ = ["check_generate", "generate_cost"]

COSTS_HELD_MAX: Final = 4_096
"""Shapes whose work units are known: every proof of a window asks for them, and to count them takes 2 ms."""


def _with_layers(shape: GenerateShape, layers: int) -> GenerateShape:
    return replace(shape, model=replace(shape.model, layers=layers))


@lru_cache(maxsize=COSTS_HELD_MAX)
def generate_cost(shape: GenerateShape) -> Cost:
    """Return units and calls of ``generate_program(shape)``. Raises ProgramInvalid where a tensor is too large."""
    one, two = (generate_program(_with_layers(shape, layers), checks_bounds=False) for layers in (1, 2))
    more = shape.model.layers - 1
    calls = len(two.calls) - len(one.calls)
    return Cost(one.units + more * (two.units - one.units), len(one.calls) + more * calls)


def check_generate(shape: GenerateShape) -> None:
    """Raises ProgramInvalid exactly where ``generate_program(shape)`` does.

    It builds a program of CHECKED_LAYERS layers at most.
    """
    calls = generate_cost(shape).calls
    if calls > CALLS_MAX:
        raise ProgramInvalid(f"{calls} calls, at most {CALLS_MAX} are allowed")
    generate_program(_with_layers(shape, min(shape.model.layers, CHECKED_LAYERS)))
