"""The lie of the scenarios: one value of one weight is false after a step of each segment.

It is changed where steps and traces are computed. So work, check and game of a liar's machine agree with one
another, and a liar plays its game as well as a liar can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

import numpy as np

from tasks.programs.arrays import Array, Arrays
from tasks.programs.operators import Context
from tasks.programs.program import Program
from tasks.programs.running import Runner, StepResult, content_of, load_tensor

__all__ = ["TENSOR", "changed", "install"]

TENSOR: Final = "parameter/0/weight"
CHANGE: Final = 2.0**-8
EVERY: Final = 4
"""Of so many steps one is false: a segment has that many, or more."""
OFFSET: Final = 2


def changed(content: bytes) -> bytes:
    """Return binary32 values of which the first is another one that a store may hold."""
    first = float(np.frombuffer(content, dtype="<f4", count=1)[0])
    false = bytes(np.float32(first + (CHANGE if first >= 0 else -CHANGE)).astype("<f4").tobytes())
    return false + content[4:]


def install() -> None:
    """Make every program of this process compute the lie."""
    run, contents = Runner.run, Runner.contents

    def lying_run(self: Runner, sources: Sequence[Array], context: Context) -> StepResult:
        result = run(self, sources, context)
        if context.step % EVERY != OFFSET:
            return result
        program, arrays = _inside(self)
        kind = program.types[program.stores[TENSOR]]
        false = load_tensor(arrays, kind, changed(content_of(arrays, kind, result.stores[TENSOR])))
        return result._replace(stores=result.stores | {TENSOR: false})

    def lying_contents(
        self: Runner, sources: Sequence[Array], context: Context, mark: bytes | None = None,
        wanted: Set[int] | None = None,
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        false = _inside(self)[0].stores[TENSOR] if context.step % EVERY == OFFSET else None
        for number, content in contents(self, sources, context, mark, wanted):
            yield number, changed(content) if number == false else content

    Runner.run = lying_run  # type: ignore[method-assign]
    Runner.contents = lying_contents  # type: ignore[method-assign]


def _inside(runner: Runner) -> tuple[Program, Arrays]:
    return runner._program, runner._arrays
