"""Costs, checks and programs of shapes that are kept in memory: the same for every kind of job with a decoder.

A shape is all that these follow from: every proof of a window asks for the cost, every move of a dispute for the
program. Programs of deep models follow from a pattern of ``LAYERS`` layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Generic, ParamSpec

from tasks.engines.errors import UnsupportedJob
from tasks.programs.errors import ProgramInvalid
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.marks import Marked
from tasks.programs.program import Program
from tasks.programs.tally import Cost

__all__ = ["CHECKS_HELD_MAX", "COSTS_HELD_MAX", "PROGRAMS_HELD_MAX", "Held"]

PROGRAMS_HELD_MAX: Final = 16
"""Programs of a kind kept in memory, and patterns of deeper ones: of up to LAYERS layers, 2 MB each."""
COSTS_HELD_MAX: Final = 4_096
"""Shapes of a kind whose work units are known: every proof of a window asks for them."""
CHECKS_HELD_MAX: Final = 256
"""Shapes of a kind that are known to be exact."""
_P = ParamSpec("_P")


class Held(Generic[_P]):
    """What is kept of a kind's shapes. Each function takes a shape with a ``model``, and perhaps rates."""

    def __init__(
        self, *, cost: Callable[_P, Cost], check: Callable[_P, None], marked: Callable[_P, Marked],
        program: Callable[_P, Program],
    ) -> None:  # fmt: skip
        """``program`` makes that of a shallow model; its bounds are known to be exact (``check``)."""
        self._costs = lru_cache(COSTS_HELD_MAX)(cost)
        self._checks = lru_cache(CHECKS_HELD_MAX)(check)
        self._patterns = lru_cache(PROGRAMS_HELD_MAX)(lambda *what: Pattern(_any(marked)(*what)))
        self._programs = lru_cache(PROGRAMS_HELD_MAX)(self._made)
        self._program = _any(program)

    def cost(self, *what: _P.args, **_named: _P.kwargs) -> Cost:
        """Return work units and calls of a step."""
        return self._costs(*what)

    def check(self, *what: _P.args, **_named: _P.kwargs) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""
        try:
            self._checks(*what)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    def program(self, *what: _P.args, **_named: _P.kwargs) -> Program:
        """Return the program of a step, which ``check`` says is exact. Raises UnsupportedJob for what is none."""
        try:
            return self._programs(*what)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    def forget(self) -> None:
        """Drop all of it."""
        for kept in (self._costs, self._checks, self._patterns, self._programs):
            kept.cache_clear()

    def _made(self, shape: Any, *rest: Any) -> Program:
        if shape.model.layers <= LAYERS:
            found: Program = self._program(shape, *rest)
            return found
        like = replace(shape, model=replace(shape.model, layers=LAYERS))
        return layered_program(self._patterns(like, *rest), shape.model.layers)


def _any(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
