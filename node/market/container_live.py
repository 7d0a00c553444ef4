"""What a machine knows of a container that it prepares or runs: stage, pull, use, and what it reports (R109).

It is shown to the task's requester and summed up in the node's metrics. Nothing of it outlives the node, but for
the engine's own log.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import trio

from state.primitives.errors import DecodeError
from tasks.executor.containers.backend import PullProgress, Usage
from tasks.executor.containers.progress_report import METRICS_MAX, ProgressReport

__all__ = ["GpuUse", "Live", "Point"]

POINTS_MAX: Final = 1_024
"""Points of a series; beyond that each second one goes."""
POINT_S_MIN: Final = 1.0
"""Reports in a shorter time make one point."""


class GpuUse(NamedTuple):
    """A GPU of a container: percent of the time in use, MiB of its memory."""

    percent: int
    memory_mib: int


class Point(NamedTuple):
    """One point of what a container reports; ``number`` grows and never comes twice."""

    number: int
    time_ms: int
    progress: int | None
    metrics: dict[str, float]


class Live:
    """The state of one container. ``stage`` is waiting, pulling, inputs, running or ended."""

    def __init__(self) -> None:
        self.stage = "waiting"
        self.pull = PullProgress(0, 0)
        self.up_s = 0.0
        self.cpu_permille = 0
        """Thousandths of one core."""
        self.memory_bytes = 0
        self.gpus: tuple[GpuUse, ...] = ()
        self.progress: int | None = None
        self.total: int | None = None
        self.message = ""
        self.metrics: dict[str, float] = {}
        self.moved_s = 0.0
        """Seconds of the container at which its counter moved last; its start counts as a move."""
        self.is_adopted = False
        """It ran before this life of the node. When it moved last is not known: the first look is a move."""
        self.points: deque[Point] = deque()
        self._numbers = 0
        self._last_point_at = float("-inf")
        self._used: tuple[float, float] | None = None

    def note_up(self, up_s: float) -> None:
        """Note how long the container is up."""
        self.stage, self.up_s = "running", max(self.up_s, up_s)
        if self.is_adopted:
            self.is_adopted, self.moved_s = False, self.up_s

    def note_usage(self, usage: Usage) -> None:
        """Note what the engine measured; the processors' load is that since the measurement before."""
        now = trio.current_time()
        if self._used is not None and now > self._used[0]:
            load = (usage.cpu_s - self._used[1]) / (now - self._used[0])
            self.cpu_permille = max(0, round(1000 * load))
        self._used = now, usage.cpu_s
        self.memory_bytes = usage.memory_bytes

    def note_counter(self, counter: int, time_ms: int) -> None:
        """Note a counter that was found in the log."""
        self.note_report(ProgressReport(counter, None, "", {}), time_ms)

    def note_report(self, report: ProgressReport, time_ms: int) -> None:
        """Note what the container says. Raises DecodeError for too many names in all."""
        if len(self.metrics.keys() | report.metrics.keys()) > METRICS_MAX:
            raise DecodeError(f"metrics: more than {METRICS_MAX} names in all")
        if report.progress is not None:
            if report.progress != self.progress:
                self.moved_s = self.up_s
            self.progress = report.progress
        self.total = self.total if report.total is None else report.total
        self.message = report.message or self.message
        self.metrics = self.metrics | report.metrics
        self._add_point(report, time_ms)

    def _add_point(self, report: ProgressReport, time_ms: int) -> None:
        now = trio.current_time()
        if self.points and now - self._last_point_at < POINT_S_MIN:
            last = self.points.pop()
            merged = {**last.metrics, **report.metrics}
            progress = last.progress if report.progress is None else report.progress
            self.points.append(Point(last.number, last.time_ms, progress, merged))
            return
        self._last_point_at = now
        self._numbers += 1
        self.points.append(Point(self._numbers, time_ms, report.progress, report.metrics))
        if len(self.points) > POINTS_MAX:
            self.points = deque(point for at, point in enumerate(self.points) if at % 2)
