"""Records of quorums: machines that run one container, and what they have sealed and shown (market.md 5.8).

A seat is a task with a container. Its record, escrow, meter and life cycle are those of any container. What the
quorum has of it is what was sealed and revealed of its output.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.receipts import EventType
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import TaskUnknown
from tasks.kinds.container import ExitKind
from tasks.ledger.deadlines import QUORUM_SLOT, Due, cancel, schedule
from tasks.ledger.records import LEDGER_ADDRESS, TaskRecord

__all__ = [
    "QUORUM_EVENTS",
    "SEATS",
    "SEATS_FIRST",
    "QuorumPhase",
    "QuorumRecord",
    "QuorumSeat",
    "SeatState",
    "find_quorum",
    "follow_quorum_seat",
    "load_quorum",
    "output_result",
    "output_seal",
    "quorum_of",
    "quorum_seat_task",
    "save_quorum",
    "save_seat_of",
    "seat_number",
    "wake_quorum",
]

OUTPUT_SEALED: Final = EventType(
    LEDGER_ADDRESS, "OutputSealed(bytes32 indexed task, address indexed worker, bytes32 seal)"
)
OUTPUT_REVEALED: Final = EventType(
    LEDGER_ADDRESS, "OutputRevealed(bytes32 indexed task, address indexed worker, bytes32 result)"
)
QUORUM_PHASE: Final = EventType(
    LEDGER_ADDRESS, "QuorumPhase(bytes32 indexed quorum, uint256 before, uint256 phase, bytes32 result)"
)
QUORUM_EVENTS: Final = (OUTPUT_SEALED, OUTPUT_REVEALED, QUORUM_PHASE)

SEATS_FIRST: Final = 2
"""Machines that run the container in any case."""
SEATS: Final = 3
"""The last one runs it if they differ, or if one of them is lost."""
QUORUM_LIMIT_BYTES: Final = 512
_TASK: Final = bytes([Table.TASK])
_SEAT_PART: Final = b"\x06"
_QUORUM_PART: Final = b"\x07"


class QuorumPhase(IntEnum):
    """Where a quorum stands; stable numbers."""

    RUNNING = 1
    """Its machines run the container and seal what it left; no result is known."""
    REVEALING = 2
    """All of them have sealed, and reveal their results."""
    THIRD = 3
    """The results differ, or one was not revealed: the last machine runs the container."""
    SHOWING = 4
    """Two results are equal: their machines say how the container ended, and are paid."""
    STOPPING = 5
    """Its requester has cancelled it, or it lacks machines: what was metered is paid."""
    ENDED = 6


class SeatState(IntEnum):
    """What a quorum knows of a seat; stable numbers."""

    IDLE = 0
    """It was not called."""
    WORKING = 1
    SEALED = 2
    REVEALED = 3
    AGREED = 4
    """Its result is that of another one as well, and it has said how its container ended."""
    DIFFERED = 5
    MISSING = 6
    """It was lost, or did not reveal or show what it had sealed."""


class QuorumSeat(NamedTuple):
    """A seat: the machine that has sealed, its seal and its result (empty: none yet).

    ``span_s`` is the time from the start to the seal by the chain's clock.
    """

    state: SeatState
    machine: bytes = b""
    seal: bytes = b""
    result: bytes = b""
    span_s: int = 0


class QuorumRecord(NamedTuple):
    """A quorum. Its next step is due at ``due_ms`` (0: none); what it waits for ends at ``until_ms`` (0: no end).

    ``result`` is that of the majority, or empty. ``ending`` and ``ending_reason`` say how its tasks are to end.
    """

    id: bytes
    phase: QuorumPhase
    due_ms: int
    until_ms: int
    ending: int
    ending_reason: int
    result: bytes
    seats: tuple[QuorumSeat, ...]

    def with_seat(self, at: int, seat: QuorumSeat) -> QuorumRecord:
        """Return the quorum with another seat ``at``."""
        return self._replace(seats=(*self.seats[:at], seat, *self.seats[at + 1 :]))

    @property
    def is_blind(self) -> bool:
        """Whether no result is known: what is sealed now was not copied."""
        return self.phase == QuorumPhase.RUNNING


def output_result(kind: ExitKind, code: int, output: bytes, output_bytes: int) -> bytes:
    """Return the result of a container: what is compared. It does not tell where the output is."""
    return digest(b"container-result", encode([int(kind), code, output, output_bytes]))


def output_seal(task: bytes, machine: bytes, result: bytes, salt: bytes) -> bytes:
    """Return the seal over a result: nobody else can open it, and it tells nothing without its salt."""
    return digest(b"container-seal", task + machine + result + salt)


def quorum_seat_task(quorum: bytes, seat: int) -> bytes:
    """Return the id of the task of a seat. That of seat 0 is the quorum's own."""
    return digest(b"quorum-task", quorum + bytes([seat])) if seat else quorum


def load_quorum(state: Reader, quorum: bytes) -> QuorumRecord:
    """Return a quorum. Raises TaskUnknown, RecordDamaged."""
    data = state.get(_TASK + quorum + _QUORUM_PART)
    if data is None:
        raise TaskUnknown(quorum.hex())
    what = f"quorum {quorum.hex()}"
    return read_record(data, _record, what=what, limit_bytes=QUORUM_LIMIT_BYTES)._replace(id=quorum)


def _record(value: Any) -> QuorumRecord:
    phase, due_ms, until_ms, ending, reason, result, seats = items_of(value, *[int] * 5, bytes, list)
    if len(result) not in (0, HASH_BYTES) or len(seats) != SEATS:
        raise DecodeError("not a quorum")
    return QuorumRecord(
        b"", QuorumPhase(phase), due_ms, until_ms, ending, reason, result, tuple(_seat(item) for item in seats)
    )


def _seat(value: Any) -> QuorumSeat:
    state, machine, seal, result, span_s = items_of(value, int, bytes, bytes, bytes, int)
    if len(machine) not in (0, ADDRESS_BYTES) or {len(seal), len(result)} - {0, HASH_BYTES}:
        raise DecodeError("not a seat of a quorum")
    return QuorumSeat(SeatState(state), machine, seal, result, span_s)


def save_quorum(state: Overlay, quorum: QuorumRecord) -> None:
    """Write a quorum's record and move its next step along."""
    key = _TASK + quorum.id + _QUORUM_PART
    before_ms = 0 if state.get(key) is None else load_quorum(state, quorum.id).due_ms
    if before_ms != quorum.due_ms:
        if before_ms:
            cancel(state, Due(before_ms, quorum.id, QUORUM_SLOT))
        if quorum.due_ms:
            schedule(state, Due(quorum.due_ms, quorum.id, QUORUM_SLOT))
    seats: list[Value] = [[int(seat.state), *seat[1:]] for seat in quorum.seats]
    state.put(
        key,
        encode([
            int(quorum.phase), quorum.due_ms, quorum.until_ms, quorum.ending, quorum.ending_reason, quorum.result,
            seats,
        ]),
    )  # fmt: skip


def save_seat_of(state: Overlay, quorum: bytes, seat: int) -> None:
    """Note of which quorum a task is a seat."""
    state.put(_TASK + quorum_seat_task(quorum, seat) + _SEAT_PART, quorum + bytes([seat]))


def _seat_key(state: Reader, task: bytes) -> bytes:
    return state.get(_TASK + task + _SEAT_PART) or b""


def quorum_of(state: Reader, task: bytes) -> bytes:
    """Return the id of the quorum that a task is a seat of, or empty bytes."""
    return _seat_key(state, task)[:-1]


def seat_number(state: Reader, task: bytes) -> int:
    """Return which seat of its quorum a task is."""
    return _seat_key(state, task)[-1]


def find_quorum(state: Reader, task: bytes) -> QuorumRecord | None:
    """Return the quorum that a task is a seat of, or None."""
    quorum = quorum_of(state, task)
    return load_quorum(state, quorum) if quorum else None


def wake_quorum(state: Overlay, quorum: bytes, now_ms: int) -> None:
    """Have the next step of a quorum be at once."""
    found = load_quorum(state, quorum)
    if found.phase != QuorumPhase.ENDED and not 0 < found.due_ms <= now_ms:
        save_quorum(state, found._replace(due_ms=now_ms))


def follow_quorum_seat(state: Overlay, before: TaskRecord | None, after: TaskRecord, now_ms: int) -> None:
    """Wake the quorum of a seat whose phase or machine has changed."""
    if before is None or (before.phase, before.worker) == (after.phase, after.worker):
        return
    quorum = quorum_of(state, after.id)
    if quorum:
        wake_quorum(state, quorum, now_ms)
