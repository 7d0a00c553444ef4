"""The question of a dispute, from the records of the chain (market.md 7.7)."""

from __future__ import annotations

from typing import Final, Protocol, cast

from tasks.dispute.commitments import Question, StepRecord
from tasks.ledger.records import Opened, WindowRecord
from tasks.programs.divergence import Divergence
from tasks.programs.program import Program
from tasks.programs.work import WORK_START
from tasks.spec import JobSpec

__all__ = ["QuestionOf", "diverged_in", "question_of"]

_NOT_BUILT: Final = cast("Program", None)


class QuestionOf(Protocol):
    """Makes the question of a dispute. To begin a game needs no program, which may have to be built first."""

    def __call__(
        self, spec: JobSpec, window: WindowRecord, opened: Opened, *, needs_program: bool = True
    ) -> Question:
        """Return the question."""


def diverged_in(window: WindowRecord, segment: int) -> Divergence | None:
    """Return how a segment of a window is claimed to diverge: only the last one can."""
    return window.proof.diverged if segment == window.proof.segments - 1 else None


def question_of(spec: JobSpec, window: WindowRecord, opened: Opened, *, needs_program: bool = True) -> Question:
    """Return what a dispute about a segment asks, as the window's worker opened it."""
    step_from, step_to = spec.segment_range(window.number, opened.segment)
    step_to = min(step_to, window.proof.step_to)
    return Question(
        program=spec.program() if needs_program else _NOT_BUILT,
        seed=spec.seed,
        data=spec.dataset.root,
        model=spec.model_root(),
        adapter=spec.adapter_root(),
        step_from=step_from,
        steps=step_to - step_from,
        start=StepRecord(opened.state_root_before, WORK_START, 0),
        end=StepRecord(opened.state_root_after, opened.work_digest, opened.loss_bits),
        diverged=diverged_in(window, opened.segment),
    )
