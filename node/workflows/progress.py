"""How far the tasks of a file are: one table, and one end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from node.workflows.records import MemberRecord, WorkflowRecord
from rpc.client import Client
from rpc.client.results import Task
from state.primitives.errors import DekubeError
from tasks.kinds.decoder import TRAINING

__all__ = ["MemberState", "end_of", "look", "summary"]

NOT_POSTED = "not posted"
ENDED = ("settled", "failed", "cancelled", "expired")


class MemberState(NamedTuple):
    """A task of a file, and where it is; ``paid`` once it has ended."""

    member: MemberRecord
    phase: str
    final: int = 0
    windows: int = 0
    paid: int | None = None
    loss: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return self.phase in ENDED


def look(client: Client, record: WorkflowRecord, known: Sequence[MemberState] = ()) -> list[MemberState]:
    """Return where all tasks are; those in ``known`` that have ended are not asked for again."""
    found = []
    for at, member in enumerate(record.members):
        if at < len(known) and known[at].has_ended:
            found.append(known[at])
            continue
        task: Task | None = client.task(bytes.fromhex(member.task)) if member.task else None
        if task is None:
            found.append(MemberState(member, NOT_POSTED))
            continue
        paid = client.bill(task.id).totals.paid if task.has_ended else None
        loss = _last_loss(client, task) if task.has_ended and task.proved_windows else None
        found.append(MemberState(member, task.phase, task.final_windows, task.windows, paid, loss))
    return found


def _last_loss(client: Client, task: Task) -> float | None:
    """Return the loss at the end of a task that trains; None where nobody has it any more."""
    if task.document["spec"]["kind"] not in TRAINING:
        return None
    with suppress(DekubeError):
        points = client.losses(task.id, first_window=task.proved_windows - 1)
        return points[-1].loss if points else None
    return None


def summary(states: Sequence[MemberState]) -> str:
    """Return where the tasks are, in a line."""
    phases = Counter(state.phase for state in states)
    told = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    final, windows = sum(state.final for state in states), sum(state.windows for state in states)
    return f"{told}; {final} of {windows} windows final"


def end_of(states: Sequence[MemberState]) -> str:
    """Return how all of it ended: settled if each task is, otherwise the worst end; empty before the end."""
    phases = {state.phase for state in states}
    if not phases or not phases <= set(ENDED):
        return ""
    return next((phase for phase in ("failed", "expired", "cancelled") if phase in phases), "settled")
