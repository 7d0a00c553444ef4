"""Records of custody in the state: the terms of a task, one record a window, misses of machines (market.md 11.5).

A window's record is bounded; every list that grows with a task has keys of its own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.custody.chunks import BlobCommitment
from tasks.errors import CustodyUnknown
from tasks.ledger.deadlines import Due, cancel, custody_slot, schedule
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import Asked, by_custodian_key

__all__ = [
    "CUSTODY_LIMIT_BYTES",
    "DRAWN_MAX",
    "HOLDERS_MAX",
    "INPUT_WINDOW",
    "RECEIVERS_MAX",
    "TERMS_LIMIT_BYTES",
    "TRIED_MAX",
    "CustodyPhase",
    "CustodyRecord",
    "Demand",
    "DemandKind",
    "Holder",
    "Terms",
    "count_hand_over",
    "custody_count",
    "find_custody",
    "find_input",
    "find_terms",
    "forget_custody",
    "is_unreliable",
    "load_custody",
    "save_custody",
    "save_input",
    "save_terms",
    "sole_keeper",
]

DRAWN_MAX: Final = 4
"""Custodians drawn for a blob of which at least one has signed; after them its worker keeps it beside these."""
TRIED_MAX: Final = 8
"""Custodians drawn for an output of which none has signed; after them its window does not count (R90), unless most
of them could not."""
RECEIVERS_MAX: Final = 3
"""Receivers drawn for one demand."""
HOLDERS_MAX: Final = TRIED_MAX - 1
"""Holders of a blob, its worker among them: of eight drawn six sign at most (R91)."""
INPUT_WINDOW: Final = 1 << 30
"""The data set of a task is in custody under this number: no window has it."""
INPUT_LIMIT_BYTES: Final = 96
TERMS_LIMIT_BYTES: Final = 256
CUSTODY_LIMIT_BYTES: Final = 2_048
MISSES_LIMIT_BYTES: Final = 32
COUNT_LIMIT_BYTES: Final = 8
_TABLE: Final = bytes([Table.CUSTODY])
_TERMS, _WINDOW, _AUTHOR, _MISSES, _INPUT = b"T", b"W", b"A", b"M", b"I"


class CustodyPhase(IntEnum):
    """Where the custody of a window stands."""

    DRAWING = 1
    """Waits for the beacon of a later block, which draws custodians."""
    SIGNING = 2
    """Custodians were drawn and have not all signed."""
    KEPT = 3
    """As many have signed as the chain asks for, or the worker keeps it itself."""
    VOID = 4
    """The window does not count: what is locked returns at the end of a block."""
    UNKEPT = 5
    """None of those that were drawn has signed: the window is void once what is open after it is settled."""
    CLOSING = 6
    """It is over, but a custodian that the beacon has drawn has to show a chunk before that is settled (R157)."""


class DemandKind(IntEnum):
    """What the requester asks of a custodian."""

    CHUNK = 1
    """A chunk that the beacon picks, on chain."""
    DELIVERY = 2
    """The whole blob, to a receiver that the beacon picks."""


class Terms(NamedTuple):
    """What the requester of a task asked for. ``reserved`` is locked for windows and demands that are not over.

    ``live`` windows are in custody, and ``looks`` of them are over but for a chunk that is asked for (R157).
    ``each`` is what one of them may cost. ``price_per_gib_hour`` is the chain's when the requester asked.
    """

    key_root: bytes
    inputs: int
    windows: int
    price_per_gib_hour: int
    each: int
    reserved: int
    live: int
    demands: int
    looks: int = 0


class Holder(NamedTuple):
    """A custodian that has signed, or the worker itself, whose ``bond`` is 0: it answers with that for the task.

    ``asked`` counts demands; ``failed`` is 1 after a delivery that failed, which costs its pay.
    """

    address: bytes
    bond: int
    since_ms: int
    asked: int
    failed: int


class Demand(NamedTuple):
    """A demand that is not over. ``chunk`` is -1, and ``receiver`` empty, until the beacon has picked one.

    ``deadline_ms`` is 0 until then. ``amount`` is for who answers, ``stake`` returns unless a delivery fails.

    ``height`` is that of the block from which the draw counts. ``tries`` counts receivers without a receipt,
    ``used`` are those drawn and the accounts behind them.
    """

    kind: DemandKind
    holder: bytes
    amount: int
    stake: int
    height: int
    chunk: int
    receiver: bytes
    tries: int
    deadline_ms: int
    used: tuple[bytes, ...]

    @property
    def is_drawn(self) -> bool:
        """Whether the beacon has picked a chunk or a receiver."""
        return self.chunk >= 0 or bool(self.receiver)


class CustodyRecord(NamedTuple):
    """The output of a window in custody. ``author`` is the window's worker. Of an input it is the requester.

    ``reserve`` is what the requester has locked for it, ``bond`` what a custodian locks. ``drawn`` counts
    custodians, ``pending`` are those that have not signed; ``used`` are all drawn and the accounts behind them.
    ``step_ms`` is when the time to sign is due, ``until_ms`` when custody ends, ``deadline_ms`` its
    place in the queue. Of an unkept output they are when its window is looked at, and the last time for that.
    ``prover`` is who has shown a lie of the worker, which the end of the block settles.
    """

    task: bytes
    window: int
    author: bytes
    phase: CustodyPhase
    blob: BlobCommitment
    reserve: int
    bond: int
    height: int
    step_ms: int
    until_ms: int
    deadline_ms: int
    drawn: int
    pending: tuple[bytes, ...]
    holders: tuple[Holder, ...]
    used: tuple[bytes, ...]
    demand: Demand | None
    prover: bytes
    tried: int = 0
    """How many of those drawn had the bond, so that they could have signed."""

    @property
    def refused(self) -> int:
        """How many machines could have signed and have not, once the time of all that were drawn is over."""
        return self.tried - sum(1 for holder in self.holders if holder.bond)

    @property
    def is_kept_alone(self) -> bool:
        """Whether machines were drawn for an output, and its worker alone keeps it."""
        return self.drawn > 0 and [holder.bond for holder in self.holders] == [0]

    @property
    def is_input(self) -> bool:
        """Whether it is the data set of the task, and no output."""
        return self.window >= INPUT_WINDOW

    def holder(self, address: bytes) -> Holder | None:
        """Return a custodian that has signed, or None."""
        return next((holder for holder in self.holders if holder.address == address), None)

    def with_holder(self, holder: Holder) -> CustodyRecord:
        """Return the record with a changed holder."""
        return self._replace(
            holders=tuple(holder if other.address == holder.address else other for other in self.holders)
        )

    def next_due_ms(self, now_ms: int) -> int:
        """Return when something is due, 0 for never; what was proven, or is void, is due now."""
        if self.prover or self.phase is CustodyPhase.VOID:
            return now_ms
        times = (self.step_ms, self.until_ms, self.demand.deadline_ms if self.demand else 0)
        return min((time_ms for time_ms in times if time_ms), default=0)


# Terms


def find_terms(state: Reader, task: bytes) -> Terms | None:
    """Return the terms of custody of a task, None where its requester asked for none. Raises RecordDamaged."""
    data = state.get(_TABLE + _TERMS + task)
    if data is None:
        return None
    return read_record(data, _terms, what="terms of custody", limit_bytes=TERMS_LIMIT_BYTES)


def _terms(value: Any) -> Terms:
    terms = Terms(*items_of(value, bytes, *[int] * 8))
    if len(terms.key_root) != HASH_BYTES:
        raise DecodeError("not terms of custody")
    return terms


def save_terms(state: Overlay, task: bytes, terms: Terms) -> None:
    """Write the terms of custody of a task."""
    state.put(_TABLE + _TERMS + task, encode(list(terms)))


# Inputs


def find_input(state: Reader, task: bytes) -> BlobCommitment | None:
    """Return what a task's requester committed to as its data set; None if it did not. Raises RecordDamaged."""
    data = state.get(_TABLE + _INPUT + task)
    if data is None:
        return None
    return read_record(data, _blob, what="the input of a task", limit_bytes=INPUT_LIMIT_BYTES)


def save_input(state: Overlay, task: bytes, blob: BlobCommitment) -> None:
    """Write what a task's data set is."""
    state.put(_TABLE + _INPUT + task, encode(list(blob)))


def _blob(value: Any) -> BlobCommitment:
    blob = BlobCommitment(*items_of(value, int, bytes, bytes))
    if not len(blob.plain_root) == len(blob.cipher_root) == HASH_BYTES:
        raise DecodeError("not the roots of a blob")
    return blob


# Windows


def _key(task: bytes, window: int) -> bytes:
    return _TABLE + _WINDOW + task + window.to_bytes(4, "big")


def find_custody(state: Reader, task: bytes, window: int) -> CustodyRecord | None:
    """Return the custody of a window, or None. Raises RecordDamaged."""
    data = state.get(_key(task, window))
    if data is None:
        return None

    def make(value: Any) -> CustodyRecord:
        return _custody(task, window, value)

    return read_record(data, make, what="a window in custody", limit_bytes=CUSTODY_LIMIT_BYTES)


def load_custody(state: Reader, task: bytes, window: int) -> CustodyRecord:
    """Return the custody of a window. Raises CustodyUnknown, RecordDamaged."""
    record = find_custody(state, task, window)
    if record is None:
        raise CustodyUnknown(f"{task.hex()} window {window}")
    return record


def _custody(task: bytes, window: int, value: Any) -> CustodyRecord:
    (
        author, phase, blob, reserve, bond, height, step_ms, until_ms, deadline_ms, drawn, pending, holders, used,
        demand, prover, tried,
    ) = items_of(value, bytes, int, list, *[int] * 7, list, list, list, list, bytes, int)  # fmt: skip
    return CustodyRecord(
        task, window, author, CustodyPhase(phase), _blob(blob), reserve,
        bond, height, step_ms, until_ms, deadline_ms, drawn, _addresses(pending),
        tuple(Holder(*items_of(holder, bytes, int, int, int, int)) for holder in holders), _addresses(used),
        _demand(demand) if demand else None, prover, tried,
    )  # fmt: skip


def _addresses(value: list[Any]) -> tuple[bytes, ...]:
    if any(type(item) is not bytes or len(item) != ADDRESS_BYTES for item in value):
        raise DecodeError("addresses expected")
    return tuple(value)


def _demand(value: list[Any]) -> Demand:
    kind, holder, amount, stake, height, chunk, receiver, tries, deadline_ms, used = items_of(
        value, int, bytes, int, int, int, int, bytes, int, int, list
    )
    return Demand(
        DemandKind(kind), holder, amount, stake, height, chunk, receiver, tries, deadline_ms, _addresses(used)
    )  # fmt: skip


def _demand_value(demand: Demand | None) -> list[Value]:
    return [] if demand is None else [int(demand.kind), *demand[1:-1], list(demand.used)]


def save_custody(state: Overlay, record: CustodyRecord, now_ms: int) -> CustodyRecord:
    """Write the custody of a window, and move its place in the deadline queue; return it with that.

    Its ``deadline_ms`` says where it stands in the queue now.
    """
    key = _key(record.task, record.window)
    before = find_custody(state, record.task, record.window)
    if before is None:
        _count(state, record, 1)
    _reindex(state, before, record)
    due_ms = record.next_due_ms(now_ms)
    _requeue(state, record, record.deadline_ms, due_ms)
    record = record._replace(deadline_ms=due_ms)
    values: list[Value] = [
        record.author, int(record.phase), list(record.blob), *record[5:12], list(record.pending),
        [list(holder) for holder in record.holders], list(record.used), _demand_value(record.demand),
        record.prover, record.tried,
    ]  # fmt: skip
    state.put(key, encode(values))
    return record


def forget_custody(state: Overlay, record: CustodyRecord) -> None:
    """Delete the custody of a window that is over."""
    _requeue(state, record, record.deadline_ms, 0)
    _reindex(state, find_custody(state, record.task, record.window), None)
    state.delete(_key(record.task, record.window))
    _count(state, record, -1)


def _index_keys(record: CustodyRecord | None) -> set[bytes]:
    """Return where machines find what an output asks of them."""
    if record is None:
        return set()
    places = {(address, Asked.RECEIPT) for address in record.pending}
    places |= {(holder.address, Asked.KEPT) for holder in record.holders}
    if record.demand is not None and record.demand.is_drawn:
        places.add((record.demand.receiver or record.demand.holder, Asked.DEMAND))
    return {by_custodian_key(address, asked, record.task, record.window) for address, asked in places}


def _reindex(state: Overlay, before: CustodyRecord | None, after: CustodyRecord | None) -> None:
    old, new = _index_keys(before), _index_keys(after)
    for key in sorted(old - new):
        state.delete(key)
    for key in sorted(new - old):
        state.put(key, b"\x01")


def _requeue(state: Overlay, record: CustodyRecord, old_ms: int, new_ms: int) -> None:
    if old_ms == new_ms:
        return
    slot = custody_slot(record.window)
    if old_ms:
        cancel(state, Due(old_ms, record.task, slot))
    if new_ms:
        schedule(state, Due(new_ms, record.task, slot))


def sole_keeper(state: Reader, task: bytes, window: int) -> bytes:
    """Return the worker that alone keeps the output of a window though machines were drawn, or nothing (R58)."""
    record = find_custody(state, task, window) if window >= 0 else None
    return record.author if record is not None and record.is_kept_alone else b""


# Counts


def custody_count(state: Reader, task: bytes, author: bytes) -> int:
    """Return for how many windows in custody a worker's bond for the task answers."""
    data = state.get(_TABLE + _AUTHOR + task + author)
    return 0 if data is None else int.from_bytes(data, "big")


def _count(state: Overlay, record: CustodyRecord, change: int) -> None:
    if record.is_input:  # no worker's bond answers for it
        return
    key = _TABLE + _AUTHOR + record.task + record.author
    count = custody_count(state, record.task, record.author) + change
    if count:
        state.put(key, count.to_bytes(4, "big"))
    else:
        state.delete(key)


def _hand_overs(state: Reader, machine: bytes, day: int) -> tuple[int, int]:
    """Return how many hand-overs of a day of the chain's clock brought no receipt, and how many did."""
    data = state.get(_TABLE + _MISSES + machine)
    if data is None:
        return 0, 0
    of_day, missed, done = read_record(
        data, _numbers, what="hand-overs of a machine", limit_bytes=MISSES_LIMIT_BYTES
    )
    return (missed, done) if of_day == day else (0, 0)


def _numbers(value: Any) -> tuple[int, int, int]:
    day, missed, done = items_of(value, int, int, int)
    return day, missed, done


def count_hand_over(state: Overlay, machine: bytes, day: int, *, is_done: bool) -> None:
    """Count a hand-over that a machine was a side of. Nobody can tell whose fault it is if it failed."""
    missed, done = _hand_overs(state, machine, day)
    state.put(_TABLE + _MISSES + machine, encode([day, missed + (not is_done), done + is_done]))


def is_unreliable(state: Reader, machine: bytes, day: int, parameters: TaskParameters) -> bool:
    """Tell whether too many hand-overs of a machine failed in a day: as many as are allowed, and more than not."""
    missed, done = _hand_overs(state, machine, day)
    return missed >= parameters.custody_misses_per_day and missed > done
