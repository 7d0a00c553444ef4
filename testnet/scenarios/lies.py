"""The lie of the scenarios: one value of one weight is false after a step of each segment.

It is changed where steps and traces are computed. So work, check and game of a liar's machine agree with one
another, and a liar plays its game as well as a liar can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import numpy as np

from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.arrays import Array, Arrays
from tasks.programs.finetune import finetune_program
from tasks.programs.operators import Context
from tasks.programs.program import Program, SourceKind
from tasks.programs.running import Runner, StepResult, content_of, load_tensor

__all__ = ["TENSOR", "changed", "false_tensor", "install", "install_coarse", "install_rate", "install_skip"]

TENSOR: Final = "parameter/0/weight"
CHANGE: Final = 2.0**-8
EVERY: Final = 4
"""Of so many steps one is false: a segment has that many, or more."""
OFFSET: Final = 2
COARSE_BITS: Final = 4
_LOST: Final = 1 << (15 - COARSE_BITS)
RATE_FACTOR: Final = 2
"""How many times too large the learning rate of a fine-tuning liar is."""


def changed(content: bytes) -> bytes:
    """Return binary32 values of which the first is another one that a store may hold."""
    first = float(np.frombuffer(content, dtype="<f4", count=1)[0])
    false = bytes(np.float32(first + (CHANGE if first >= 0 else -CHANGE)).astype("<f4").tobytes())
    return false + content[4:]


def false_tensor(program: Program) -> str:
    """Return the name of the tensor that is false: a classifier's first weights, or the first adapter."""
    return TENSOR if TENSOR in program.stores else min(name for name in program.stores if "parameter/" in name)


def install_rate() -> None:
    """Make every job of fine-tuning of this process train with twice the learning rate."""

    def program(plan: TuningPlan) -> Program:
        adamw = plan.rates.adamw
        faster = plan.rates._replace(
            adamw=adamw._replace(learning_rate_nano=RATE_FACTOR * adamw.learning_rate_nano)
        )
        return finetune_program(plan.shape, faster)

    TuningPlan.program = property(program)  # type: ignore[method-assign, assignment]


def install_coarse() -> None:
    """Make every program of this process read frozen weights of COARSE_BITS bits instead of 15."""
    load = Runner.load

    def coarse_load(self: Runner, kind: SourceKind, contents: Mapping[str, bytes]) -> dict[str, Array]:
        if kind is SourceKind.MODEL:
            contents = {name: _coarse(name, content) for name, content in contents.items()}
        return load(self, kind, contents)

    Runner.load = coarse_load  # type: ignore[method-assign]


def _coarse(name: str, content: bytes) -> bytes:
    if name.endswith(("norm", "bias", "/exponents")):
        return content
    integers = np.frombuffer(content, dtype="<i2").astype(np.int32)
    return bytes((np.sign(integers) * (np.abs(integers) // _LOST * _LOST)).astype("<i2").tobytes())


def install_skip() -> None:
    """Make every program of this process leave the state as it was in some steps."""
    run = Runner.run

    def lazy_run(self: Runner, sources: Sequence[Array], context: Context) -> StepResult:
        result = run(self, sources, context)
        if context.step % EVERY != OFFSET:
            return result
        given = {one.key: value for one, value in zip(_inside(self)[0].sources, sources, strict=True)}
        return result._replace(stores={name: given[name] for name in result.stores})

    Runner.run = lazy_run  # type: ignore[method-assign]


def install() -> None:
    """Make every program of this process compute the lie."""
    run, contents = Runner.run, Runner.contents

    def lying_run(self: Runner, sources: Sequence[Array], context: Context) -> StepResult:
        result = run(self, sources, context)
        if context.step % EVERY != OFFSET:
            return result
        program, arrays = _inside(self)
        name = false_tensor(program)
        kind = program.types[program.stores[name]]
        false = load_tensor(arrays, kind, changed(content_of(arrays, kind, result.stores[name])))
        return result._replace(stores=result.stores | {name: false})

    def lying_contents(
        self: Runner, sources: Sequence[Array], context: Context, mark: bytes | None = None,
        wanted: Set[int] | None = None,
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        program = _inside(self)[0]
        false = program.stores[false_tensor(program)] if context.step % EVERY == OFFSET else None
        for number, content in contents(self, sources, context, mark, wanted):
            yield number, changed(content) if number == false else content

    Runner.run = lying_run  # type: ignore[method-assign]
    Runner.contents = lying_contents  # type: ignore[method-assign]


def _inside(runner: Runner) -> tuple[Program, Arrays]:
    return runner._program, runner._arrays
