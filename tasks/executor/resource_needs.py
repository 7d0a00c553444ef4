"""What a job takes of the machine that runs it, by the job's sizes: a machine can decline it in time."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.pass_plan import PassPlan
from tasks.engines.plan import TrainingPlan
from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.classifier import SCORED_ROWS
from tasks.programs.running import peak_values
from tasks.spec import JobSpec

__all__ = ["Needs", "needs_of"]

PROCESS_BYTES: Final = 192 << 20
"""Of a job's process before it knows its job."""
PARAMETER_BYTES: Final = 72
"""Of a job's process for each parameter: values, gradients and moments as binary64, and as integers. A state that
is sent takes less."""
ACTIVATION_BYTES: Final = 16
"""Of a job's process for each input or output of a layer and sample of a batch."""
SCRATCH_BYTES: Final = 72
"""Of a job's process for each of the widest layer's and sample: what comes between one operation and the next."""
STATE_COPIES: Final = 6
"""Encoded states that the node holds at once while one is received, checked and written down."""
DATASET_COPIES: Final = 3
MODEL_COPIES: Final = 8
"""Of a frozen model in a job's process: its blob, twice its tensors, and its integers as binary64."""
STEP_BYTES: Final = 16
"""Of each value that a step with a frozen model holds at once: as binary64, and as much for an operator."""
PEAKS_HELD_MAX: Final = 64
"""Plans whose largest step is known."""
PASS_BYTES: Final = 12 * 8
"""Of a job that decodes, for each value of the largest tensor of a pass over many places."""
PASS_VALUES_MAX: Final = 1 << 22
"""Values of that tensor (``VALUES_AT_ONCE``)."""


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


@lru_cache(maxsize=PEAKS_HELD_MAX)
def _peak_values(plan: DecoderPlan | TuningPlan | GeneratingPlan | PassPlan) -> int:
    return peak_values(plan.program)


def needs_of(spec: JobSpec, *, open_windows_max: int) -> Needs:
    """Return what the worker of ``spec`` needs while ``open_windows_max`` windows may wait for their verdicts.

    A job of fewer windows never has more of them open than it has.
    """
    plan, inputs = spec.plan(), spec.inputs_bytes()
    parameters = plan.parameters
    window = (spec.schedule.window_steps // spec.schedule.segment_steps + 1) * plan.state_limit_bytes
    if isinstance(plan, TrainingPlan):
        inputs = plan.rows * (plan.widths[0] + 1)
        process = max(plan.batch, SCORED_ROWS) * (
            ACTIVATION_BYTES * sum(plan.widths) + SCRATCH_BYTES * max(plan.widths)
        ) + DATASET_COPIES * inputs  # fmt: skip
    elif isinstance(plan, DecoderPlan):
        process = DATASET_COPIES * inputs + STEP_BYTES * _peak_values(plan)
    elif isinstance(plan, TuningPlan):
        process = MODEL_COPIES * inputs + STEP_BYTES * _peak_values(plan)
    elif isinstance(plan, GeneratingPlan):
        shape, parameters = plan.shape, 0
        largest = shape.batch * shape.widest
        passed = max(largest, min(largest * shape.places, PASS_VALUES_MAX))
        step = _peak_values(plan) + plan.parameters
        process = MODEL_COPIES * inputs + PASS_BYTES * passed + STEP_BYTES * step
    elif isinstance(plan, PassPlan):
        process, parameters = MODEL_COPIES * inputs + STEP_BYTES * (_peak_values(plan) + plan.parameters), 0
    else:
        raise UnsupportedJob(f"this executor runs no jobs of the kind {spec.kind}")
    return Needs(
        process=PROCESS_BYTES + PARAMETER_BYTES * parameters + process,
        node=STATE_COPIES * plan.state_limit_bytes + DATASET_COPIES * inputs,
        journal=window + 2 * plan.state_limit_bytes,
        blobs=(min(open_windows_max, spec.windows) + 1) * window + inputs,
    )
