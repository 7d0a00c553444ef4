"""Containers as a model: what really runs in them, what checkpoints hold, and which output is right.

The chain sees seconds and names of blobs. What is behind them is here: a run does some seconds of work for each
second of its time, a checkpoint holds the work that was done, and one output is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from state.primitives.hashing import digest
from state.view import Reader
from tasks.kinds.container import (
    CHECKPOINT_EVERY_S_MAX,
    TICK_S_MAX,
    TICK_S_MIN,
    Checkpoint,
    ContainerPart,
    ExitKind,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    Storage,
)
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.meter_records import ContainerEnd, load_meter
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.quorum_records import find_quorum, output_result, seat_number
from tasks.spec import JobSpec, Requirements, container_job

__all__ = ["BOX_RATE", "Boxes", "Run", "Terms", "box_job", "ended_with", "is_right", "is_seat", "needed_s"]

BOX_RATE: Final = 4 * 10**9
"""Work units that a second counts: each machine of a market is as fast, and none too fast (R93)."""
TICKS: Final = 10
"""Ticks in the time that a window would take."""
SLACK_MILLI: Final = 1_250
"""The time that is locked, in thousandths of what the work needs."""
RETRIES: Final = 4
MEMORY_MIB: Final = 1_024
OUTPUT_BYTES: Final = 4_096
STORED_BYTES: Final = 10_240
_LOG: Final = b"l" * 32


class Terms(NamedTuple):
    """How a requester has its containers run."""

    every: int = 0
    """Ticks between checkpoints; 0: there are none."""
    looks: int = 2
    """Ticks between looks of the requester; 0: it never looks."""
    level: int = 0
    stays: bool = False
    """Whether only machines are matched that have offered to stay."""
    opens: bool = True
    """Whether the requester opens the checkpoints and outputs that are named."""
    mount: float = 0.0
    """What fetching the mounts counts as, in ticks."""


def needed_s(window_units: int, windows: int) -> int:
    """Return the seconds of work of a container that stands for so many windows."""
    return max(1, window_units // BOX_RATE) * windows


def box_job(window_units: int, windows: int, terms: Terms, price_max: int, match_ms: int) -> JobSpec:
    """Return the job of a container whose work takes as long as these windows would."""
    window_s = needed_s(window_units, 1)
    tick_s = max(TICK_S_MIN, min(TICK_S_MAX, window_s // TICKS))
    ticks = -(-needed_s(window_units, windows) * SLACK_MILLI // (1000 * tick_s))
    every_s = min(CHECKPOINT_EVERY_S_MAX, terms.every * tick_s)
    part = ContainerPart(
        Image("docker.io/library/python", b"\xd1" * 32), Process((), (), 65_534),
        Storage(_mounts(int(terms.mount * tick_s)), "/output", 1 << 20, 1024), 1,
        Metering("reserved", max(TICK_S_MIN, tick_s), RETRIES),
        Checkpoint("/state", every_s, 1 << 20) if terms.every else None, int(not terms.stays),
    )  # fmt: skip
    return container_job(
        part, ticks=ticks, tick_s=tick_s, max_price_per_tera_unit=price_max,
        requirements=Requirements(0, MEMORY_MIB, BOX_RATE), match_ms=match_ms, level=terms.level,
    )  # fmt: skip


def _mounts(fetch_s: int) -> tuple[Mount, ...]:
    """Return mounts whose preparation counts as so many seconds."""
    size_bytes = fetch_s * BOX_RATE // TaskParameters().fetch_units_per_byte
    return (Mount("/data", b"\xd2" * 32, size_bytes, MountForm.FILE),) if size_bytes else ()


def ended_with(task: bytes, kind: ExitKind, lie: bytes = b"") -> ContainerEnd:
    """Return the end of a container: with the right output of ``task``, or another one."""
    code = 0
    return ContainerEnd(kind, code, digest(b"sim-output", task + lie), OUTPUT_BYTES, _LOG, len(_LOG), b"")


def is_seat(state: Reader, task: bytes) -> bool:
    """Tell whether a task is a further seat of a quorum, whose first seat stands for all."""
    return find_quorum(state, task) is not None and seat_number(state, task) > 0


def is_right(state: Reader, task: bytes) -> bool:
    """Tell whether what a settled task came to is its right output."""
    right = ended_with(task, ExitKind.EXITED)
    quorum = find_quorum(state, task)
    if quorum is not None:
        return quorum.result == output_result(right.kind, right.code, right.output, right.output_bytes)
    end = load_meter(state, task).end
    return end is not None and end.output == right.output


@dataclass
class Run:
    """What a container has done since a machine began it: ``done_s`` of its work, with what it began with."""

    began_ms: int
    base_s: float
    done_s: float
    at_ms: int
    effort: float = 0.0
    """Seconds of work that it has done a second since ``at_ms``."""
    is_faked: bool = False
    """Whether its log shows work that nobody did."""

    def advance(self, now_ms: int, effort: float) -> float:
        """Work until now, and with ``effort`` from now on; return the seconds of work that were done."""
        worked_s = self.effort * (now_ms - self.at_ms) / 1000
        self.done_s, self.at_ms, self.effort = self.done_s + worked_s, now_ms, effort
        return worked_s


@dataclass
class Boxes:
    """All containers of a market."""

    needs_s: dict[bytes, int] = field(default_factory=dict)
    """Seconds of work of each task."""
    runs: dict[bytes, Run] = field(default_factory=dict)
    """The run under way of each task."""
    blobs: dict[bytes, float] = field(default_factory=dict)
    """Seconds of work that a checkpoint holds; others cannot be had."""
    worked_s: dict[bytes, float] = field(default_factory=dict)
    """Seconds of work that were done for each task, by all its machines."""

    def begin(self, state: Reader, task: bytes, now_ms: int) -> Run:
        """Return the run of a machine that has started a task: it goes on from the latest checkpoint."""
        began_ms, run = load_meter(state, task).began_ms, self.runs.get(task)
        if run is None or run.began_ms != began_ms:
            latest = load_checkpoints(state, task).latest
            base_s = self.blobs.get(latest.blob, 0.0) if latest is not None else 0.0
            run = self.runs[task] = Run(began_ms, base_s, base_s, now_ms)
        return run
