"""Status of jobs in the served format, by the phase of their task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ENDED", "OPEN_TASK", "SETTLED", "batch_end", "is_started", "tuning_end"]

SETTLED: Final = "settled"
ENDED: Final[Mapping[str, str]] = {
    SETTLED: "succeeded", "failed": "failed", "cancelled": "cancelled", "expired": "failed",
}  # fmt: skip
"""Status of a fine-tuning job by the last phase of its task. A task expires where no machine took it."""
_STARTED: Final = frozenset(("running", "degraded", "paused", "standby", "output", "verifying"))
_WAITING: Final = frozenset(("created", "matching", "assigned", "preparing"))
OPEN_TASK: Final = _STARTED | _WAITING


def is_started(phase: str) -> bool:
    """Tell whether a machine works on a task, or has. Raises ValueError for a phase that is unknown."""
    if phase not in OPEN_TASK and phase not in ENDED:
        raise ValueError(phase)
    return phase in _STARTED


def tuning_end(phase: str, *, is_cancelling: bool) -> str | None:
    """Return the status in which a fine-tuning job ends with its task; None for a task that goes on.

    A task that is wound up may settle all the same: its requester has the result then.
    """
    status = ENDED.get(phase)
    return "cancelled" if status == "failed" and is_cancelling else status


def batch_end(phase: str, *, is_cancelling: bool, is_late: bool) -> str | None:
    """Return the status in which a batch ends with its task; None for a task that goes on.

    ``is_late``: it was cancelled here because its time was over.
    """
    match phase:
        case "settled":
            return "completed"
        case "expired":
            return "cancelled" if is_cancelling else "expired"
        case "cancelled":
            return "expired" if is_late else "cancelled"
        case "failed":
            return "expired" if is_late else "cancelled" if is_cancelling else "failed"
        case _:
            return None
