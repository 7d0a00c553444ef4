"""What a machine has sold to containers, so that no core, GPU or byte of memory is sold twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tasks.ledger.fitting import host_cores
from tasks.ledger.queries import Action, WorkDuty
from tasks.ledger.registry import NodeProfile
from tasks.spec import JobSpec

__all__ = ["Room", "ahead_of", "is_over", "lack_of_room", "room_of", "wanted_by"]

_OVER: Final = (Action.WAIT, Action.REVEAL, Action.SHOW)


class Room(NamedTuple):
    """Cores, MiB of memory and GPUs: of a machine, or that containers have reserved."""

    cores: int
    memory_mib: int
    gpus: int


def room_of(profile: NodeProfile) -> Room:
    """Return what a machine has for containers, as its owner registered it."""
    return Room(host_cores(profile), profile.memory_mib, len(profile.gpus))


def wanted_by(spec: JobSpec) -> Room:
    """Return what a container reserves."""
    return Room(spec.host_cores, spec.requirements.memory_mib, spec.requirements.gpus)


def ahead_of(task: bytes, duties: Iterable[WorkDuty]) -> list[bytes]:
    """Return the other tasks that have room before ``task``: those that were accepted, and lower ids of the rest.

    Of two that are accepted at once one gets the room, not neither. A container that was sealed has ended.
    """
    return [
        duty.task
        for duty in duties
        if duty.task != task and not is_over(duty) and (duty.action is not Action.ACCEPT or duty.task < task)
    ]


def is_over(duty: WorkDuty) -> bool:
    """Whether the container of a task has ended, so that it needs no room."""
    return duty.action in _OVER


def lack_of_room(room: Room, taken: Iterable[Room], wanted: Room) -> str:
    """Return what is missing for ``wanted`` beside ``taken``; empty if there is room."""
    sums = [sum(values) for values in zip(*taken, strict=True)] or [0] * len(Room._fields)
    for name, has, used, more in zip(("cores", "MiB of memory", "GPUs"), room, sums, wanted, strict=True):
        if used + more > has:
            return f"{more} {name} needed, {max(0, has - used)} of {has} are free"
    return ""
