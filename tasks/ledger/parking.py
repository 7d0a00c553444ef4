"""Tasks that wait for a machine, by what they require: a machine that changes finds those that it admits.

See market.md R13. A parked task costs nothing until a machine changes. Its place is by class: GPUs, memory and
speed in coarse steps. Within a class who was woken in vain or passed over less often comes first, and then the
highest price. So a look of a machine goes over classes, not over tasks, and whoever parks tasks that it does not
admit delays none that it does for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES, digest
from state.view import Overlay, Reader, Table
from tasks.ledger.fitting import usable_gpus
from tasks.ledger.records import TaskRecord, load_job
from tasks.ledger.registry import NodeProfile
from tasks.spec import GPUS_MAX, JobSpec

__all__ = [
    "CLASSES_LOOKED_MAX", "CLASS_BYTES", "LOOKS_MAX", "class_of", "count_parked", "move_parked", "parked_for",
    "wake_order",
]  # fmt: skip

CLASSES_LOOKED_MAX: Final = 64
"""Classes of tasks that one look of a machine goes over."""
TURNS_MAX: Final = 8
"""A task that was woken in vain or passed over more often comes no later for that."""
LOOKS_MAX: Final = 128
"""Parked tasks that one look of a machine reads."""
_MEMORY_STEP_BITS: Final = 4
_SPEED_STEP_BITS: Final = 8
_PRICE_BYTES: Final = 16
_PRICE_TOP: Final = (1 << 8 * _PRICE_BYTES) - 1
_PARKED: Final = bytes([Table.PARKED])
CLASS_BYTES: Final = 3


class _Class(NamedTuple):
    """GPUs, and the steps of memory and of speed: what is required rounds up, so does what a machine has.

    A task of a machine's own highest step may require more than the machine has; it is looked at.
    """

    gpus: int
    memory: int
    speed: int


def _class(gpus: int, memory_mib: int, speed: int) -> _Class:
    return _Class(
        min(gpus, GPUS_MAX),
        -(-memory_mib.bit_length() // _MEMORY_STEP_BITS),
        -(-speed.bit_length() // _SPEED_STEP_BITS),
    )


def class_of(spec: JobSpec) -> bytes:
    """Return the class of what a job requires."""
    wanted = spec.requirements
    return bytes(_class(wanted.gpus, wanted.memory_mib, wanted.rate_min))


def _place(spec: JobSpec, turn: int, task_id: bytes) -> bytes:
    price = _PRICE_TOP - spec.max_price_per_tera_unit
    return _PARKED + class_of(spec) + bytes([turn]) + price.to_bytes(_PRICE_BYTES, "big") + task_id


def move_parked(state: Overlay, before: TaskRecord | None, after: TaskRecord) -> None:
    """Keep the index of parked tasks in step with a task's record."""
    old, new = before.parked if before is not None else 0, after.parked
    if old == new:
        return
    spec = load_job(state, after)
    if old:
        state.delete(_place(spec, old, after.id))
    if new:
        state.put(_place(spec, new, after.id), b"\x01")


def _classes(state: Reader, most: _Class, start: _Class) -> Iterator[_Class]:
    """Yield the classes in which tasks are parked and that ``most`` covers, from ``start`` on to the end."""
    at = start
    for _ in range(CLASSES_LOOKED_MAX):
        stop = _PARKED + bytes([most.gpus + 1])
        entries = state.scan(_PARKED + bytes(at), stop, 1)
        if not entries:
            return
        found = _Class(*entries[0][0][1 : 1 + CLASS_BYTES])
        if found.memory > most.memory:
            at = _Class(found.gpus + 1, 0, 0)
        elif found.speed > most.speed:
            at = _Class(found.gpus, found.memory + 1, 0)
        else:
            yield found
            at = found._replace(speed=found.speed + 1)
        if at.gpus > most.gpus:
            return


def parked_for(state: Reader, profile: NodeProfile, seed: bytes) -> Iterator[bytes]:
    """Yield ids of parked tasks that a machine may admit by its class and its price, ``LOOKS_MAX`` at most.

    The classes begin at a place that ``seed`` picks and go around.
    """
    most = _class(usable_gpus(profile), profile.memory_mib, profile.rate)
    picks = digest(b"wake", seed)
    start = _Class(*(pick % (limit + 1) for pick, limit in zip(picks, most, strict=False)))
    highest = (_PRICE_TOP - profile.price_per_tera_unit + 1).to_bytes(_PRICE_BYTES, "big")
    left, seen = LOOKS_MAX, set[_Class]()
    for begin in (start, _Class(0, 0, 0)):
        for each in _classes(state, most, begin):
            if each in seen:
                continue
            seen.add(each)
            for turn in range(1, TURNS_MAX + 1):
                prefix = _PARKED + bytes((*each, turn))
                for key, _ in state.scan(prefix, prefix + highest, left):
                    left -= 1
                    yield key[-HASH_BYTES:]
                if not left:
                    return


def count_parked(state: Reader, limit: int) -> int:
    """Return how many tasks are parked; those beyond ``limit`` are not counted."""
    return len(state.scan(_PARKED, bytes([Table.PARKED + 1]), limit))


def wake_order(task: TaskRecord) -> int:
    """Return the turn of a task that was woken and not matched, or passed over: behind others of its class."""
    return min(task.parked + 1, TURNS_MAX)
