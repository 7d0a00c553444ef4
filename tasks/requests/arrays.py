"""Several tasks in one file: an array varies fields of a job, and steps use what earlier ones have made."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

from tasks.requests.fields import BY_TASK, FieldPath, JobFields

__all__ = [
    "MATRIX",
    "MEMBERS_MAX",
    "NAME",
    "NAME_LENGTH_MAX",
    "STEPS",
    "STEPS_MAX",
    "Member",
    "Varied",
    "members_of",
    "steps_named",
]

MATRIX: Final = "matrix"
STEPS: Final = "jobs"
"""Not ``steps``: that is how long a job trains."""
MEMBERS_MAX: Final = 64
"""Tasks of an array."""
STEPS_MAX: Final = 8
NAME_LENGTH_MAX: Final = 32
NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}")
"""Names of steps, and of workflows."""
BY_STEP: Final = "job:"
"""A value ``job:NAME`` stands for what the step of that name makes."""
_REFERENCES: Final = ("adapter", "model", "data")
"""Fields that may name a step."""
_UNVARIED: Final = ("kind", "adapter")
AT: Final = "@"
"""Between a task or a job, and the step of an earlier state of it."""
_NO_TASK: Final = BY_TASK + "0x" + "00" * 32
Varied = tuple[tuple[str, Any], ...]
"""Fields of an array with their values for one task."""


class Member(NamedTuple):
    """The fields of one task."""

    varied: Varied
    fields: Callable[[Mapping[str, str]], JobFields]
    """Returns its fields; it gets the task of each step that they name."""

    @property
    def name(self) -> str:
        """Its values, as a person reads them; empty for a job that is no array."""
        return ", ".join(f"{name}={value}" for name, value in self.varied)


def members_of(
    values: Mapping[str, Any], *, file: str, lines: Mapping[FieldPath, int], place: FieldPath
) -> tuple[Member, ...]:  # fmt: skip
    """Return the tasks of a job, in the order of the file. Raises RequestInvalid."""
    fields = JobFields(values, file=file, lines=lines, place=place)
    base = {name: value for name, value in values.items() if name != MATRIX}
    if not fields.has(MATRIX):
        return (_member(base, (), file, lines, place),)
    table = fields.value(MATRIX)
    if not isinstance(table, dict) or not table:
        raise fields.wrong(MATRIX, "matrix: fields with lists expected, as `matrix: {lora.rank: [4, 8]}`")
    inner = JobFields(table, file=file, lines=lines, place=(*place, MATRIX))
    choices, count = [], 1
    for name in table:
        outer, _, rest = name.partition(".")
        if outer in _UNVARIED or outer in (MATRIX, STEPS):
            raise inner.wrong(name, f"matrix: {name} is the same for all tasks of an array")
        held = base.get(outer)
        if name in base or (rest and isinstance(held, dict) and rest in held):
            raise inner.wrong(name, f"matrix: {name} stands outside of the matrix too; remove one of them")
        items = inner.listed(name) or []
        if not items or any(item == other for at, item in enumerate(items) for other in items[:at]):
            raise inner.wrong(name, f"matrix: {name}: a list of different values expected")
        count *= len(items)
        if count > MEMBERS_MAX:
            raise inner.wrong(name, f"matrix: {MEMBERS_MAX} tasks at most")
        choices.append([(name, item, (*place, MATRIX, name, at)) for at, item in enumerate(items)])
    found = []
    for combination in itertools.product(*choices):
        known = dict(lines)
        changed = deepcopy(base)
        for name, item, at in combination:
            outer, _, rest = name.partition(".")
            table = changed
            if rest:
                table = changed.setdefault(outer, {})
                if not isinstance(table, dict):
                    raise inner.wrong(name, f"matrix: {outer} has no fields of its own")
                known.setdefault((*place, outer), lines[at])
            table[rest or outer] = item
            known[(*place, outer, rest) if rest else (*place, outer)] = lines[at]
        varied = tuple((name, item) for name, item, _ in combination)
        found.append(_member(changed, varied, file, known, place))
    return tuple(found)


def _member(
    values: Mapping[str, Any], varied: Varied, file: str, lines: Mapping[FieldPath, int], place: FieldPath
) -> Member:  # fmt: skip
    def fields(tasks: Mapping[str, str]) -> JobFields:
        named = {name: _task_of(value, tasks) if _is_step(value) else value for name, value in values.items()}
        return JobFields(named, file=file, lines=lines, place=place)

    return Member(varied, fields)


def _task_of(value: str, tasks: Mapping[str, str]) -> str:
    """Return the result of a step, as a field names that of a task."""
    name, at, number = value.removeprefix(BY_STEP).partition(AT)
    return tasks.get(name, _NO_TASK) + at + number


def _is_step(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(BY_STEP)


def steps_named(fields: JobFields, values: Mapping[str, Any], earlier: Mapping[str, int]) -> tuple[str, ...]:
    """Return the steps that a step's fields name; ``earlier`` has those before it, with their tasks.

    Raises RequestInvalid for one that does not come before it, or is an array.
    """
    found = []
    for name, value in values.items():
        if not _is_step(value):
            continue
        step = value.removeprefix(BY_STEP).partition(AT)[0]
        if name not in _REFERENCES:
            raise fields.wrong(name, f"{name}: only {', '.join(_REFERENCES)} can be what a job makes")
        if step not in earlier:
            raise fields.wrong(name, f"{name}: no job {step!r} before this one")
        if earlier[step] != 1:
            raise fields.wrong(name, f"{name}: job {step} is an array of {earlier[step]} tasks")
        found.append(step)
    return tuple(found)
