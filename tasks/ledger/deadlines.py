"""The deadline queue: what becomes due at which steady time, in one order for everybody (market.md 5.4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from state.view import Overlay, Reader, Table

__all__ = [
    "CARRIAGE_SLOT",
    "FIRST_GROUP_SLOT",
    "FIRST_MATCH_SLOT",
    "FURTHER_GROUP_SLOT",
    "GROUPS_PER_CALL",
    "GROUP_SLOT",
    "MATCH_SLOT",
    "NODE_SLOT",
    "QUORUM_SLOT",
    "RANKS",
    "SPONSOR_SLOT",
    "TASK_SLOT",
    "TRIAL_DRAW_SLOT",
    "TRIAL_SLOT",
    "WAKE_SLOT",
    "WINDOW_SLOTS",
    "Draw",
    "Due",
    "cancel",
    "custody_slot",
    "draws_due",
    "due_before",
    "matches_due",
    "schedule",
    "schedule_draw",
    "take_draw",
    "trials_due",
    "waits_due",
    "wakes_due",
    "window_slot",
]

TASK_SLOT: Final = 0
WINDOW_SLOTS: Final = 1 << 31
"""Slots below are of a task and its windows, from here on of their custody, up to the slots with names."""
FIRST_MATCH_SLOT: Final = 2**32 - 4
"""The first look for a worker, or the first after losing one."""
CARRIAGE_SLOT: Final = 2**32 - 3
MATCH_SLOT: Final = 2**32 - 2
"""A further look for a worker."""
NODE_SLOT: Final = 2**32 - 1
WAKE_SLOT: Final = 2**32 - 5
"""A machine changed, or its pause is over: it looks at the tasks that are parked."""
SPONSOR_SLOT: Final = 2**32 - 6
"""What a sponsor takes back of its bond for a machine."""
TRIAL_SLOT: Final = 2**32 - 7
"""A step of a machine's speed trial."""
TRIAL_DRAW_SLOT: Final = 2**32 - 8
"""The draw of who checks a speed trial; it has a height in the place of the time."""
GROUP_SLOT: Final = 2**32 - 9
"""A step of a group: spares are called, or its seats end."""
FIRST_GROUP_SLOT: Final = 2**32 - 10
"""The first look of a group for its machines."""
FURTHER_GROUP_SLOT: Final = 2**32 - 11
"""A further look of a group."""
QUORUM_SLOT: Final = 2**32 - 12
"""A step of a quorum of machines that run one container."""
_QUEUE_OF: Final = {
    TRIAL_DRAW_SLOT: 1 << 58,
    TRIAL_SLOT: 1 << 57,
    WAKE_SLOT: 1 << 61,
    FIRST_MATCH_SLOT: 1 << 62,
    FIRST_GROUP_SLOT: (1 << 62) + (1 << 61),
    MATCH_SLOT: 1 << 63,
    FURTHER_GROUP_SLOT: (1 << 63) + (1 << 62),
}
"""Looks for a worker queue up apart, above all times: tasks that nobody takes delay nothing else. Those of groups
queue up apart from them: a call takes few groups, and the others would hold places of tasks."""
GROUPS_PER_CALL: Final = 16
"""Groups that are in one call; others wait for the next one. Each takes a search over all asks."""
GROUP_PART: Final = 8
"""A group has one place in a call for so many bids."""
_RANKED: Final = (FIRST_MATCH_SLOT, FIRST_GROUP_SLOT)
_DRAWS: Final = 1 << 60
"""Draws of verifiers queue up by height."""
_WAITS: Final = 1 << 59
"""Draws that were put off have a queue of their own: as many as there are delay nothing else."""
RANKS: Final = 64
_RANK_BITS: Final = 54
"""First looks are in the order of the ranks of their budgets, the largest first; times have fewer bits."""
_TIME_MASK: Final = (1 << _RANK_BITS) - 1
_QUEUE: Final = bytes([Table.DEADLINE])


class Due(NamedTuple):
    """``subject`` (a task's id, or the address of a node or payer after 12 zero bytes) is due in ``slot``.

    ``rank`` is that of a task's budget, below ``RANKS``; it counts for first looks alone.
    """

    time_ms: int
    subject: bytes
    slot: int
    rank: int = 0


def window_slot(window: int) -> int:
    """Return the slot of a task's window."""
    return window + 1


def custody_slot(window: int) -> int:
    """Return the slot of the custody of a task's window."""
    return WINDOW_SLOTS + window


def _key(due: Due) -> bytes:
    rank = (RANKS - 1 - due.rank) << _RANK_BITS if due.slot in _RANKED else 0
    return _QUEUE + _time_field(due.slot, rank | due.time_ms) + due.subject + due.slot.to_bytes(4, "big")


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

    An eighth of them are those of groups at most, ``GROUPS_PER_CALL`` at most, and one in any case. First looks
    go before others, which have a quarter at least. Of first looks the tasks with the largest budgets have half,
    those with the next rank half of the rest, and so on: many small ones delay no larger one.
    """
    most = min(GROUPS_PER_CALL, max(1, limit // GROUP_PART))
    groups = _looks(state, FIRST_GROUP_SLOT, FURTHER_GROUP_SLOT, time_ms, most)
    left = max(limit - len(groups), limit - limit // GROUP_PART)
    return _looks(state, FIRST_MATCH_SLOT, MATCH_SLOT, time_ms, left) + groups


def _looks(state: Reader, first_slot: int, further_slot: int, time_ms: int, limit: int) -> list[Due]:
    further = len(_due(state, further_slot, time_ms, limit // 4))
    first = _first_looks(state, first_slot, time_ms, limit - further)
    return first + _due(state, further_slot, time_ms, limit - len(first))


def wakes_due(state: Reader, time_ms: int, limit: int) -> list[Due]:
    """Return up to ``limit`` machines that are to look at the parked tasks, the earliest first."""
    return _due(state, WAKE_SLOT, time_ms, limit)


def trials_due(state: Reader, slot: int, at: int, limit: int) -> list[Due]:
    """Return up to ``limit`` steps of speed trials: due at a time, or at a height (``TRIAL_DRAW_SLOT``)."""
    return _due(state, slot, at, limit)


class Draw(NamedTuple):
    """A draw for ``window`` of ``task`` from the block at ``height`` on; it was put off ``waits`` times."""

    height: int
    task: bytes
    window: int
    waits: int = 0


def _draw_key(draw: Draw) -> bytes:
    queue = _WAITS if draw.waits else _DRAWS
    return _QUEUE + (queue | draw.height).to_bytes(8, "big") + draw.task + draw.window.to_bytes(4, "big")


def schedule_draw(state: Overlay, draw: Draw) -> None:
    """Have verifiers drawn at a height."""
    state.put(_draw_key(draw), bytes([draw.waits]) if draw.waits else b"\x01")


def take_draw(state: Overlay, draw: Draw) -> None:
    """Take a draw out of the queue."""
    state.delete(_draw_key(draw))


def draws_due(state: Reader, height: int, limit: int) -> list[Draw]:
    """Return up to ``limit`` draws that are due in the block at ``height``, the earliest first."""
    return [draw._replace(waits=0) for draw in _draws_of(state, _DRAWS, height, limit)]


def waits_due(state: Reader, height: int, limit: int) -> list[Draw]:
    """Return up to ``limit`` draws that were put off and are due in the block at ``height``."""
    return _draws_of(state, _WAITS, height, limit)


def _draws_of(state: Reader, queue: int, height: int, limit: int) -> list[Draw]:
    start, stop = (_QUEUE + (queue | at).to_bytes(8, "big") for at in (0, height + 1))
    return [
        Draw(int.from_bytes(key[1:9], "big") - queue, key[9:41], int.from_bytes(key[41:45], "big"), value[0])
        for key, value in state.scan(start, stop, limit)
    ]


def _first_looks(state: Reader, slot: int, time_ms: int, limit: int) -> list[Due]:
    """Return first looks; all that there are are due, but for those of the block's future."""
    found: list[list[Due]] = []
    base = _QUEUE_OF[slot]
    start, stop = (_QUEUE + (base + more).to_bytes(8, "big") for more in (0, RANKS << _RANK_BITS))
    while entries := state.scan(start, stop, limit):
        rank = RANKS - 1 - (_field(entries[0][0]) - base >> _RANK_BITS)
        end = _field(entries[0][0]) >> _RANK_BITS
        mine = [key for key, _ in entries if _field(key) >> _RANK_BITS == end]
        dues = [Due(_field(key) & _TIME_MASK, key[9:41], int.from_bytes(key[41:45], "big"), rank) for key in mine]
        found.append([due for due in dues if due.time_ms <= time_ms])
        start = _QUEUE + (end + 1 << _RANK_BITS).to_bytes(8, "big")
    chosen: list[Due] = []
    for each in found:
        share = -(-(limit - len(chosen)) // 2)
        chosen += each[:share]
        del each[:share]
    for each in found:  # what the shares left over
        chosen += each[: limit - len(chosen)]
    return chosen


def _field(key: bytes) -> int:
    return int.from_bytes(key[1:9], "big")


def _due(state: Reader, slot: int, time_ms: int, limit: int) -> list[Due]:
    if limit <= 0:
        return []
    start, stop = _QUEUE + _time_field(slot, 0), _QUEUE + _time_field(slot, time_ms + 1)
    base = _QUEUE_OF.get(slot, 0)
    return [
        Due(int.from_bytes(key[1:9], "big") - base, key[9:41], int.from_bytes(key[41:45], "big"))
        for key, _ in state.scan(start, stop, limit)
    ]
