"""The job of a task as its steps read it: nothing that follows from the specification is computed again (R78).

A task keeps the sizes of its job. They were computed when it was created, which its requester has paid for. Every
step of a task asks for them, and jobs that no node has in memory would make each step as dear as a creation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.errors import DecodeError
from tasks.custody.layout import state_size, step_size
from tasks.spec import JobSpec, read_checked_spec

__all__ = ["JOBS_HELD_MAX", "JobSizes", "KeptJob", "kept_job", "sizes_of"]

JOBS_HELD_MAX: Final = 1024
"""Decoded specifications kept in memory: every step of a task reads its own."""


class JobSizes(NamedTuple):
    """What a job comes to. ``tensor_bytes`` is an encoded state without what names its step."""

    step_units: int
    state_limit_bytes: int
    tensor_bytes: int
    inputs_bytes: int
    model_bytes: int


def sizes_of(spec: JobSpec) -> JobSizes:
    """Compute the sizes of a job. Raises UnsupportedJob."""
    if spec.is_metered:  # it has no state
        return JobSizes(spec.step_units, 0, 0, spec.inputs_bytes(), 0)
    return JobSizes(
        spec.step_units, spec.state_limit_bytes, state_size(spec.plan(), 0) - step_size(0), spec.inputs_bytes(),
        spec.model_bytes(),
    )  # fmt: skip


class KeptJob(JobSpec):
    """The job of a task, with the sizes that the task keeps. A changed copy computes its own."""

    sizes: JobSizes | None = None

    @property
    def step_units(self) -> int:
        """See JobSpec."""
        return super().step_units if self.sizes is None else self.sizes.step_units

    @property
    def state_limit_bytes(self) -> int:
        """See JobSpec."""
        return super().state_limit_bytes if self.sizes is None else self.sizes.state_limit_bytes

    def inputs_bytes(self) -> int:
        """See JobSpec."""
        return super().inputs_bytes() if self.sizes is None else self.sizes.inputs_bytes

    def model_bytes(self) -> int:
        """See JobSpec."""
        return super().model_bytes() if self.sizes is None else self.sizes.model_bytes

    def state_bytes(self, step: int) -> int:
        """Return the bytes of the encoded state after ``step`` steps."""
        sizes = sizes_of(self) if self.sizes is None else self.sizes
        return sizes.tensor_bytes + step_size(step)


@lru_cache(maxsize=JOBS_HELD_MAX)
def kept_job(raw: bytes, sizes: JobSizes) -> KeptJob:
    """Return the job of specification bytes that were checked when their task was created. Raises DecodeError."""
    try:
        job = KeptJob(*read_checked_spec(raw))
    except (LookupError, TypeError, ValueError) as error:
        raise DecodeError(f"not a job specification: {error}") from None
    job.sizes = sizes
    return job
