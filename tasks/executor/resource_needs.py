"""What a job takes of the machine that runs it, by the job's sizes: a machine can decline it in time.

The memory of a job's process follows its work (market.md R153): it receives the job, loads it, and does its steps.
The plan is the most that one of these needs. ``dekube bench exact`` compares it with processes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating_plan import VALUES_AT_ONCE, GeneratingPlan
from tasks.engines.pass_plan import PassPlan
from tasks.engines.plan import TrainingPlan
from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.classifier import SCORED_ROWS
from tasks.programs.generate import GenerateShape
from tasks.programs.llama import Pass, llama_forward
from tasks.programs.memory import WIDE, StepMemory, computation_memory, is_wide, step_memory
from tasks.programs.program import Computation, SourceKind
from tasks.programs.sampling import row_computation, sampling_computation
from tasks.spec import JobSpec

__all__ = ["LIBRARY_BYTES", "Needs", "needs_of"]

LIBRARY_BYTES: Final = {"numpy": 46 << 20, "torch": 550 << 20}
"""Of a job's process before it knows its job: interpreter and libraries, as measured without a card."""
HEAP_PART: Final = 5
"""A part of the small arrays of a step, one in so many, that the allocator needs beside them: as measured."""
CALL_BYTES: Final = 1_400
"""Of each call of a program that a process runs."""
ENCODED_HALVES: Final = 11
"""Halves of encoded states that a process holds at once at the end of a segment, as measured: contents, their
encoding and a frame with it, and what the allocator keeps of them."""
ROW_COPIES: Final = 3
"""Of the rows while they are received: the frame twice, and what is in it."""
STATE_COPIES: Final = 6
"""Encoded states that the node holds at once while one is received, checked and written down."""
DATASET_COPIES: Final = 3
PLANS_HELD_MAX: Final = 64
"""Plans whose memory is known."""
_Plan: TypeAlias = TrainingPlan | DecoderPlan | TuningPlan | GeneratingPlan | PassPlan
_KINDS: Final = (TrainingPlan, DecoderPlan, TuningPlan, GeneratingPlan, PassPlan)


class Needs(NamedTuple):
    """Bytes of memory (the job's process; the node beside it) and of disk (the journal; blobs: the data set, and
    the states of open windows)."""

    process: int
    node: int
    journal: int
    blobs: int

    def __add__(self, other: object) -> Needs:  # of tasks that run beside each other
        assert isinstance(other, Needs)
        return Needs(*(a + b for a, b in zip(self, other, strict=True)))


class _Memory(NamedTuple):
    """Bytes of a step and of what it begins with, and how many calls it has.

    ``is_expanded`` says that the frozen model is held as binary64; ``scores`` is what comes after the steps.
    """

    step: StepMemory
    is_expanded: bool
    calls: int
    scores: int = 0


@lru_cache(maxsize=PLANS_HELD_MAX)
def _memory_of(plan: _Plan, segment_steps: int) -> _Memory:
    program = plan.program
    wide = isinstance(plan, GeneratingPlan) and is_wide(program)
    is_expanded = wide and any(source.kind == SourceKind.MODEL for source in program.sources)
    step, scores, calls = step_memory(program, wide=wide), 0, len(program.calls)
    if isinstance(plan, TrainingPlan):
        made = computation_memory(plan.scores, wide=True)
        scores = made.step + plan.widths[0] * SCORED_ROWS
    elif isinstance(plan, GeneratingPlan):
        shape = plan.shape
        count = min(segment_steps, shape.places, max(1, VALUES_AT_ONCE // (shape.batch * shape.widest)))
        if count > 1:
            found = llama_forward(shape.model, Pass(shape.batch, count, shape.places, adapter=shape.adapter))
            scores, calls = computation_memory(found, wide=wide).step, calls + len(found.calls)
            drawing = _drawing_of(shape, count)
            if drawing is not None:  # beside what the pass gives
                given = sum(WIDE * found.types[number].values for number in found.results)
                scores = max(scores, given + computation_memory(drawing, wide=wide).step)
                calls += len(drawing.calls)
    return _Memory(step, is_expanded, calls, scores)


def _drawing_of(shape: GenerateShape, count: int) -> Computation | None:
    """Return what draws the tokens of ``count`` places after a pass over them, None where none are drawn."""
    rows, vocabulary = shape.batch * count, shape.model.vocabulary
    if shape.by_row is not None:
        return row_computation(rows, vocabulary)
    return None if shape.sampling is None else sampling_computation(shape.sampling, rows, vocabulary)


def _process_bytes(spec: JobSpec, plan: _Plan, engine: str) -> int:
    """Return the most bytes that the process of a job has."""
    model = sum(
        given.size_bytes for given in spec.inputs() if given.kind in (SourceKind.MODEL, SourceKind.ADAPTER)
    )
    rows = sum(given.size_bytes for given in spec.inputs() if given.kind == SourceKind.DATA)
    if isinstance(plan, TrainingPlan):
        rows = plan.rows * (plan.widths[0] + 1)
    memory, sent = _memory_of(plan, spec.schedule.segment_steps), plan.state_limit_bytes
    held = memory.step.sources
    loaded = held + (model if memory.is_expanded else 0)  # in 16 bits beside what is expanded
    if engine == "torch":  # NumPy's arrays read the contents, those of torch are copies
        loaded += model
    most = max(
        2 * model + ROW_COPIES * rows + 2 * sent,  # a blob and its tensors
        loaded + 2 * rows + 2 * sent,
        held + memory.step.step + memory.step.small // HEAP_PART,
        held + memory.scores,
        held + ENCODED_HALVES * sent // 2,
    )
    return LIBRARY_BYTES[engine] + CALL_BYTES * memory.calls + most


def needs_of(spec: JobSpec, *, open_windows_max: int, engine: str = "numpy") -> Needs:
    """Return what the worker of ``spec`` needs while ``open_windows_max`` windows may wait for their verdicts.

    A job of fewer windows never has more of them open than it has. ``engine`` is ``numpy`` or ``torch``.
    """
    plan, inputs = spec.plan(), spec.inputs_bytes()
    if not isinstance(plan, _KINDS):
        raise UnsupportedJob(f"this executor runs no jobs of the kind {spec.kind}")
    if isinstance(plan, TrainingPlan):
        inputs = plan.rows * (plan.widths[0] + 1)
    window = (spec.schedule.window_steps // spec.schedule.segment_steps + 1) * plan.state_limit_bytes
    return Needs(
        process=_process_bytes(spec, plan, engine),
        node=STATE_COPIES * plan.state_limit_bytes + DATASET_COPIES * inputs,
        journal=window + 2 * plan.state_limit_bytes,
        blobs=(min(open_windows_max, spec.windows) + 1) * window + inputs,
    )
