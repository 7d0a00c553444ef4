"""The deadline queue: what becomes due at which chain time, in one order for everybody (MARKET.md 5)."""

from __future__ import annotations

from typing import Final, NamedTuple

from state.view import Overlay, Reader, Table

__all__ = [
    "CARRIAGE_SLOT",
    "MATCH_SLOT",
    "NODE_SLOT",
    "TASK_SLOT",
    "Due",
    "cancel",
    "due_before",
    "schedule",
    "window_slot",
]

TASK_SLOT: Final = 0
CARRIAGE_SLOT: Final = 2**32 - 3
MATCH_SLOT: Final = 2**32 - 2
NODE_SLOT: Final = 2**32 - 1
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
    return _QUEUE + due.time_ms.to_bytes(8, "big") + due.subject + due.slot.to_bytes(4, "big")


def schedule(state: Overlay, due: Due) -> None:
    """Put ``due`` into the queue."""
    state.put(_key(due), b"\x01")


def cancel(state: Overlay, due: Due) -> None:
    """Take ``due`` out of the queue."""
    state.delete(_key(due))


def due_before(state: Reader, time_ms: int, limit: int) -> list[Due]:
    """Return what is due at ``time_ms`` or earlier, the earliest first, at most ``limit``."""
    entries = state.scan(_QUEUE, _QUEUE + (time_ms + 1).to_bytes(8, "big"), limit)
    return [
        Due(int.from_bytes(key[1:9], "big"), key[9:41], int.from_bytes(key[41:45], "big")) for key, _ in entries
    ]
