"""What can go wrong around a job; each has the code that ends up in logs, metrics and a task's reason."""

from __future__ import annotations

from state.primitives.errors import DekubeError

__all__ = ["ExecutorError", "IsolationMissing", "JobFailed", "JobGivenUp", "JobStalled", "JournalDamaged"]


class ExecutorError(DekubeError):
    """Base of the executor's errors; the job's process is gone when one is raised."""

    code = "executor_error"


class JobFailed(ExecutorError):
    """The job said it cannot go on (``reason`` is its own error code) or its process ended on its own."""

    code = "job_failed"

    def __init__(self, *, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class JobStalled(ExecutorError):
    """No step finished for too long, or the job outran its wall-clock cap; its process was killed."""

    code = "job_stalled"


class JobGivenUp(ExecutorError):
    """The job's process ended too often by itself and is not started again (``tasks.executor.failure_count``)."""

    code = "job_given_up"


class IsolationMissing(ExecutorError):
    """The machine does not grant an isolation that the options demand."""

    code = "isolation_missing"


class JournalDamaged(ExecutorError):
    """A file of the journal that is not what was written; the job starts from the last whole segment."""

    code = "journal_damaged"
