"""What can go wrong in a job: the task's fault, the data's fault, or training that leaves the number range."""

from __future__ import annotations

from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["DatasetInvalid", "Diverged", "EngineMissing", "StateInvalid", "UnsupportedJob"]


class UnsupportedJob(ProtocolError):
    """A job this engine cannot run: unknown profile, model or optimiser, or sizes beyond the named limits."""

    code = "unsupported_job"


class DatasetInvalid(ProtocolError):
    """A dataset blob that is malformed or is not the one the job names."""

    code = "dataset_invalid"


class StateInvalid(ProtocolError):
    """A training state that is malformed, of another model, or holds numbers the profile does not allow."""

    code = "state_invalid"


class Diverged(DekubeError):
    """The numbers left the range in which the profile is exact; every engine says so at the same step.

    ``work_digest`` and ``loss_bits`` are those of the segment before that step.
    """

    code = "diverged"

    def __init__(self, *, step: int, work_digest: bytes, loss_bits: int) -> None:
        super().__init__(f"training diverged at step {step}")
        self.step, self.work_digest, self.loss_bits = step, work_digest, loss_bits


class EngineMissing(DekubeError):
    """The asked engine is not installed on this machine (torch comes with the extra ``ml``)."""

    code = "engine_missing"
