"""The result of a task, named in a job file: ``task:0xID``, or ``task:0xID@STEP`` for an earlier state of it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tasks.requests.fields import BY_TASK, JobFields

__all__ = ["TaskRef", "path_or_task", "read_ref", "ref_of"]

_FORM: Final = re.compile(BY_TASK + r"(0x)?(?P<task>[0-9a-f]{64})(@(?P<step>[1-9][0-9]{0,15}))?")


class TaskRef(NamedTuple):
    """A task, and after how many of its steps; None: what it has left at its end."""

    task: bytes
    step: int | None = None

    def __str__(self) -> str:
        at = "" if self.step is None else f"@{self.step}"
        return f"{BY_TASK}0x{self.task.hex()}{at}"


def read_ref(text: str) -> TaskRef | None:
    """Return the result that a text names; None for any other text."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    return TaskRef(bytes.fromhex(found["task"]), None if found["step"] is None else int(found["step"]))


def ref_of(fields: JobFields, name: str, what: str) -> TaskRef:
    """Return the result that a field names. Raises RequestInvalid; ``what`` is what its task has done."""
    found = read_ref(fields.text(name))
    if found is None:
        raise fields.wrong(
            name, f"{name}: task: and the ID of a task {what} expected, and @STEP for an earlier state"
        )
    return found


def path_or_task(fields: JobFields, name: str) -> str:
    """Return a path, or the name of a task that continued prompts, whose rows are taken. Raises RequestInvalid."""
    if fields.text(name).startswith(BY_TASK):
        return str(ref_of(fields, name, "that continued prompts"))
    return fields.path(name)
