"""Records of groups, and how a group follows what happens to its seats (market.md 5.6).

A seat is a task. It has a record, an escrow, proofs and disputes of its own. What its group has of it are counts,
and keys that tell which machines hold a seat.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.hashing import digest
from state.primitives.receipts import Event as LogEvent
from state.primitives.receipts import EventType
from state.transition.rules import BlockContext
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import GroupUnknown
from tasks.ledger.bands import rate_top
from tasks.ledger.deadlines import GROUP_SLOT, Due, cancel, schedule
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.records import LEDGER_ADDRESS, TaskRecord, load_spec
from tasks.spec import JobSpec

__all__ = [
    "BARRED_MAX",
    "GROUP_HISTORY_MAX",
    "MEMBERS_MAX",
    "SEATS_MAX",
    "SPARES_PER",
    "GroupChange",
    "GroupPhase",
    "GroupRecord",
    "barred_of",
    "begin_group",
    "follow_seat",
    "group_id_of",
    "group_of_task",
    "holders_of",
    "is_spare",
    "key_spec",
    "load_group",
    "move_group",
    "save_group",
    "seat_of_task",
    "seat_spec",
    "seat_task",
    "wake_group",
]

GROUP_CREATED: Final = EventType(
    LEDGER_ADDRESS,
    "GroupCreated(bytes32 indexed group, address indexed requester, bytes32 spec, "
    "uint256 members, uint256 spares)",
)
GROUP_SEAT: Final = EventType(
    LEDGER_ADDRESS, "GroupSeat(bytes32 indexed group, bytes32 indexed task, uint256 seat)"
)
GROUP_PHASE: Final = EventType(
    LEDGER_ADDRESS, "GroupPhase(bytes32 indexed group, uint256 before, uint256 phase, uint256 reason)"
)

MEMBERS_MAX: Final = 64
SPARES_PER: Final = 8
"""A group has one spare for so many members at most, rounded up."""
SEATS_MAX: Final = MEMBERS_MAX + MEMBERS_MAX // SPARES_PER
BARRED_MAX: Final = 128
"""Machines that have lost a seat of a group and hold none of it again; those beyond are barred from that seat."""
GROUP_HISTORY_MAX: Final = 16
"""Changes of its phase that a group keeps."""
GROUP_LIMIT_BYTES: Final = 1024
_GROUP: Final = bytes([Table.GROUP])
_HOLDERS: Final = b"\x01"
_BARRED: Final = b"\x02"


class GroupPhase(IntEnum):
    """Where a group stands; stable numbers."""

    MATCHING = 1
    RUNNING = 2
    PAUSED = 3
    """A seat is paused: the group lacks a machine that nobody has replaced in time. The others go on."""
    ENDED = 4


class GroupChange(NamedTuple):
    """One change of a group's phase, and why."""

    height: int
    time_ms: int
    phase: GroupPhase
    reason: Reason


class GroupRecord(NamedTuple):
    """A group of ``members`` seats from 0 on, and ``spares`` after them; ``seats`` of them have a task so far.

    ``specification`` names the job of seat 0. ``band`` is the least rate of its machines, once it is matched: the
    highest follows from it. ``lost`` seats of members look for a machine, ``paused`` have stopped
    to, ``ended`` have ended; ``standby`` spares stand by. ``final`` windows of members are final. ``barred``
    machines hold no seat again. ``due_ms`` is when its next step is, 0: none. ``ending`` is how its seats are to
    end, 0: as they do; ``ending_from`` is the first seat that the next step looks at for that.
    """

    id: bytes
    requester: bytes
    specification: bytes
    phase: GroupPhase
    reason: Reason
    created_height: int
    created_ms: int
    changed_height: int
    changed_ms: int
    due_ms: int
    members: int
    spares: int
    seats: int
    band: int
    lost: int
    paused: int
    ended: int
    standby: int
    final: int
    barred: int
    ending: int
    ending_reason: int
    ending_from: int
    history: tuple[GroupChange, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all seats have a task."""
        return self.seats == self.members + self.spares

    @property
    def rate_max(self) -> int:
        """The highest rate of its machines."""
        return rate_top(self.band)


def group_id_of(sender: bytes, nonce: int) -> bytes:
    """Return the id of the group that ``sender`` creates with its transaction ``nonce``."""
    return digest(b"group", sender + nonce.to_bytes(8, "big"))


def seat_task(group: bytes, seat: int) -> bytes:
    """Return the id of the task of a seat."""
    return digest(b"group-task", group + bytes([seat]))


def seat_spec(spec: JobSpec, seat: int, init_root: bytes) -> JobSpec:
    """Return the job of a seat: that of the group with a seed of its own, and the state that follows from it.

    Seat 0 has the group's job as it is.
    """
    if not seat:
        return spec
    return spec.changed(seed=digest(b"group-seed", spec.seed + bytes([seat])), init_root=init_root)


def group_of_task(record: TaskRecord) -> bytes:
    """Return the id of a task's group, or empty bytes."""
    return record.group[:-1]


def seat_of_task(record: TaskRecord) -> int:
    """Return the seat that a task of a group is."""
    return record.group[-1]


def key_spec(state: Reader, record: TaskRecord) -> JobSpec:
    """Return the job from which the key of a task follows: of all seats of a group that of seat 0 (R79)."""
    return load_spec(state, seat_task(group_of_task(record), 0) if record.group else record.id)


def load_group(state: Reader, group: bytes) -> GroupRecord:
    """Return a group. Raises GroupUnknown, RecordDamaged."""
    data = state.get(_GROUP + group)
    if data is None:
        raise GroupUnknown(group.hex())
    return read_record(data, _record, what=f"group {group.hex()}", limit_bytes=GROUP_LIMIT_BYTES)


def _record(value: Any) -> GroupRecord:
    *items, history = items_of(value, bytes, bytes, bytes, *[int] * 20, list)
    changes = [items_of(item, *[int] * 4) for item in history]
    kept = tuple(GroupChange(height, at, GroupPhase(phase), Reason(why)) for height, at, phase, why in changes)
    fields: dict[str, Any] = dict(zip(GroupRecord._fields, [*items, kept], strict=True))
    fields["phase"], fields["reason"] = GroupPhase(fields["phase"]), Reason(fields["reason"])
    return GroupRecord(**fields)


def save_group(state: Overlay, group: GroupRecord) -> None:
    """Write a group's record and move its next step along. What it was before is read from the state."""
    data = state.get(_GROUP + group.id)
    before_ms = _record_due(data) if data is not None else 0
    if before_ms != group.due_ms:
        if before_ms:
            cancel(state, Due(before_ms, group.id, GROUP_SLOT))
        if group.due_ms:
            schedule(state, Due(group.due_ms, group.id, GROUP_SLOT))
    history: list[Value] = [[int(item) for item in change] for change in group.history]
    items = [int(item) if isinstance(item, int) else item for item in group[:-1]]
    state.put(_GROUP + group.id, encode([*items, history]))


def _record_due(data: bytes) -> int:
    return read_record(data, _record, what="a group", limit_bytes=GROUP_LIMIT_BYTES).due_ms


def is_spare(state: Reader, record: TaskRecord) -> bool:
    """Tell whether a task is a spare seat of a group."""
    return bool(record.group) and seat_of_task(record) >= load_group(state, group_of_task(record)).members


def holders_of(state: Reader, group: bytes) -> dict[bytes, int]:
    """Return the machines that hold a seat of a group, and which."""
    return {key[-ADDRESS_BYTES:]: value[0] for key, value in _part(state, group, _HOLDERS, SEATS_MAX)}


def barred_of(state: Reader, group: bytes) -> set[bytes]:
    """Return the machines that have lost a seat of a group."""
    return {key[-ADDRESS_BYTES:] for key, _ in _part(state, group, _BARRED, BARRED_MAX)}


def _part(state: Reader, group: bytes, part: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    prefix = _GROUP + group + part
    return list(state.scan(prefix, prefix + b"\xff" * (ADDRESS_BYTES + 1), limit))


def wake_group(group: GroupRecord, now_ms: int) -> GroupRecord:
    """Return a group whose next step is at once."""
    return group if 0 < group.due_ms <= now_ms else group._replace(due_ms=now_ms)


def begin_group(state: Overlay, group: GroupRecord, block: BlockContext, emit: Callable[[LogEvent], None]) -> None:
    """Write a new group."""
    emit(GROUP_CREATED(group.id, group.requester, group.specification, group.members, group.spares))
    save_group(state, move_group(group, group.phase, group.reason, block, emit, before=0))


def move_group(
    group: GroupRecord, phase: GroupPhase, reason: Reason, block: BlockContext, emit: Callable[[LogEvent], None],
    *, before: int | None = None,
) -> GroupRecord:  # fmt: skip
    """Return a group in another phase, and tell that."""
    was = int(group.phase) if before is None else before
    emit(GROUP_PHASE(group.id, was, phase, reason))
    change = GroupChange(block.height, block.time_ms, phase, reason)
    return group._replace(
        phase=phase, reason=reason, changed_height=block.height, changed_ms=block.steady_ms,
        history=(*group.history, change)[-GROUP_HISTORY_MAX:],
    )  # fmt: skip


def _holder(record: TaskRecord | None) -> bytes:
    return b"" if record is None or record.phase in ENDED else record.worker


def _has_changed(before: TaskRecord | None, after: TaskRecord) -> bool:
    return before is None or (
        (before.phase, before.worker, before.final_windows, before.excluded)
        != (after.phase, after.worker, after.final_windows, after.excluded)
    )  # fmt: skip


def follow_seat(
    state: Overlay, before: TaskRecord | None, after: TaskRecord, block: BlockContext,
    emit: Callable[[LogEvent], None],
) -> None:  # fmt: skip
    """Note in the group of a task what has changed of it."""
    if not _has_changed(before, after):
        return
    group, seat = load_group(state, group_of_task(after)), seat_of_task(after)
    old, new = _holder(before), _holder(after)
    if old != new:
        prefix = _GROUP + group.id + _HOLDERS
        if old and state.get(prefix + old) == bytes([seat]):
            state.delete(prefix + old)
        if new:
            state.put(prefix + new, bytes([seat]))
    for machine in after.excluded:
        key = _GROUP + group.id + _BARRED + machine
        is_new = before is None or machine not in before.excluded
        if is_new and group.barred < BARRED_MAX and state.get(key) is None:
            state.put(key, b"\x01")
            group = group._replace(barred=group.barred + 1)
    group = _counted(group, seat, before, after)
    save_group(state, _moved(group, seat, after, block, emit))


def _counted(group: GroupRecord, seat: int, before: TaskRecord | None, after: TaskRecord) -> GroupRecord:
    """Return a group with the counts that its seat has changed."""
    was = None if before is None else before.phase

    def change(*phases: Phase) -> int:
        return (after.phase in phases) - (was in phases)

    if seat >= group.members:
        return group._replace(standby=group.standby + change(Phase.STANDBY))
    return group._replace(
        lost=group.lost + change(Phase.DEGRADED),
        paused=group.paused + change(Phase.PAUSED),
        ended=group.ended + change(*ENDED),
        final=group.final + after.final_windows - (0 if before is None else before.final_windows),
    )


def _moved(
    group: GroupRecord, seat: int, after: TaskRecord, block: BlockContext, emit: Callable[[LogEvent], None]
) -> GroupRecord:
    """Return a group in the phase that its counts make, with a step at once where there is something to do."""
    now_ms, is_first = block.steady_ms, seat == 0 and after.phase in ENDED
    if group.phase == GroupPhase.MATCHING:
        if not is_first:
            return group
        # Its bid is that of seat 0: with that the group ends, and the tasks of the other seats.
        group = group._replace(ending=int(after.phase), ending_reason=int(after.reason))
        return wake_group(move_group(group, GroupPhase.ENDED, after.reason, block, emit), now_ms)
    if group.phase != GroupPhase.ENDED:
        phase = GroupPhase.PAUSED if group.paused else GroupPhase.RUNNING
        if group.ended == group.members:
            phase = GroupPhase.ENDED
        if phase != group.phase:
            group = move_group(group, phase, after.reason, block, emit)
    if after.phase in (Phase.DEGRADED, Phase.PAUSED):
        group = group._replace(ending_from=0)
    is_asked = group.lost and group.standby
    is_left = group.ending and (group.lost or group.paused)  # a last window that is not done after all
    if is_asked or is_left or (group.phase == GroupPhase.ENDED and group.spares):
        return wake_group(group, now_ms)
    return group
