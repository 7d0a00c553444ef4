"""The deadline queue: what becomes due at which chain time, in one order for everybody (market.md 5.4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from state.view import Overlay, Reader, Table

__all__ = [
    "CARRIAGE_SLOT",
    "FIRST_MATCH_SLOT",
    "MATCH_SLOT",
    "NODE_SLOT",
    "TASK_SLOT",
    "Due",
    "cancel",
    "due_before",
    "matches_due",
    "schedule",
    "window_slot",
]

TASK_SLOT: Final = 0
FIRST_MATCH_SLOT: Final = 2**32 - 4
"""The first look for a worker, or the first after losing one."""
CARRIAGE_SLOT: Final = 2**32 - 3
MATCH_SLOT: Final = 2**32 - 2
"""A further look for a worker."""
NODE_SLOT: Final = 2**32 - 1
_QUEUE_OF: Final = {FIRST_MATCH_SLOT: 1 << 62, MATCH_SLOT: 1 << 63}
"""Looks for a worker queue up apart, above all times: tasks that nobody takes delay nothing else."""
_QUEUE: Final = bytes([Table.DEADLINE])


class Due(NamedTuple):
    """``subject`` (a task's id, or the address of a node or payer after 12 zero bytes) is due in ``slot``."""

    time_ms: int
    subject: bytes
    slot: int


def window_slot(window: int) -> int:
    """Return the slot of a task's window."""
    return window + 1


def _key(due: Due) -> bytes:
    return _QUEUE + _time_field(due.slot, due.time_ms) + due.subject + due.slot.to_bytes(4, "big")


def _time_field(slot: int, time_ms: int) -> bytes:
    return (_QUEUE_OF.get(slot, 0) | time_ms).to_bytes(8, "big")


def schedule(state: Overlay, due: Due) -> None:
    """Put ``due`` into the queue."""
    state.put(_key(due), b"\x01")


def cancel(state: Overlay, due: Due) -> None:
    """Take ``due`` out of the queue."""
    state.delete(_key(due))


def due_before(state: Reader, time_ms: int, limit: int) -> list[Due]:
    """Return up to ``limit`` that are due at ``time_ms``, the earliest first; not looks for workers."""
    return _due(state, TASK_SLOT, time_ms, limit)


def matches_due(state: Reader, time_ms: int, limit: int) -> list[Due]:
    """Return up to ``limit`` looks for a worker that are due, the earliest first; the rest keeps its place.

    First looks go before others, which have a quarter at least.
    """
    first = _due(state, FIRST_MATCH_SLOT, time_ms, limit - limit // 4)
    return first + _due(state, MATCH_SLOT, time_ms, limit - len(first))


def _due(state: Reader, slot: int, time_ms: int, limit: int) -> list[Due]:
    if limit <= 0:
        return []
    start, stop = _QUEUE + _time_field(slot, 0), _QUEUE + _time_field(slot, time_ms + 1)
    base = _QUEUE_OF.get(slot, 0)
    return [
        Due(int.from_bytes(key[1:9], "big") - base, key[9:41], int.from_bytes(key[41:45], "big"))
        for key, _ in state.scan(start, stop, limit)
    ]
