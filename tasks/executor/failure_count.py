"""Counts the ends of job processes that nobody asked for, and tells when a job is given up.

A process that the kernel kills now and then is started again and goes on from its last segment. One that keeps
being killed, by the lack of memory or by a person, would be started again for ever although each start makes a
little progress. Time is given; nothing is logged here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from tasks.executor.errors import JobFailed, JobStalled

__all__ = ["ENDS_MAX", "ENDS_WITHIN_S", "Ends", "JobEnd", "code_of"]

ENDS_MAX: Final = 8
"""Ends of one job within ENDS_WITHIN_S; with one more the job is given up."""
ENDS_WITHIN_S: Final = 3600.0
JOBS_MAX: Final = 1024
"""Maximum number of jobs with recorded ends; the oldest is dropped first."""


class JobEnd(NamedTuple):
    """An end of a job's process that nobody asked for: the ``times``-th of its job within ENDS_WITHIN_S."""

    task: bytes
    code: str
    text: str
    times: int
    is_check: bool

    @property
    def is_last(self) -> bool:
        """Whether the job is given up."""
        return self.times > ENDS_MAX


def code_of(error: JobFailed | JobStalled) -> str:
    """Return why a process ended: the job's own reason, or that it stalled."""
    return error.reason if isinstance(error, JobFailed) else error.code


class Ends:
    """The ends of each job within the last ENDS_WITHIN_S."""

    def __init__(self) -> None:
        self._times: dict[Hashable, list[float]] = {}

    def note(self, job: Hashable, now: float) -> int:
        """Count an end of ``job``; return how many there were of late."""
        times = [time for time in self._times.pop(job, ()) if time > now - ENDS_WITHIN_S]
        times.append(now)
        while len(self._times) >= JOBS_MAX:
            self._times.pop(next(iter(self._times)))
        self._times[job] = times[-(ENDS_MAX + 1) :]
        return len(self._times[job])

    def count(self, job: Hashable, now: float) -> int:
        """Return how many ends of ``job`` there were of late."""
        return sum(1 for time in self._times.get(job, ()) if time > now - ENDS_WITHIN_S)

    def forget(self, job: Hashable) -> None:
        """Forget a job that is over."""
        self._times.pop(job, None)
