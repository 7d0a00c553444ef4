"""Records of tasks and windows in the state, their indexes and their places in the deadline queue.

See market.md 2.2, 2.3.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple, get_type_hints

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError, RecordDamaged
from state.primitives.hashing import HASH_BYTES
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import TaskUnknown, WindowUnknown
from tasks.ledger.jobs import JobSizes, KeptJob, kept_job
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.proofs import (
    Finding,
    WindowProof,
    findings_from_value,
    findings_to_value,
    window_proof_from_value,
    window_proof_to_value,
)

__all__ = [
    "LEDGER_ADDRESS",
    "SEAT_BYTES",
    "Asked",
    "HistoryEntry",
    "JobReport",
    "Opened",
    "Seat",
    "TaskRecord",
    "WindowRecord",
    "append_history",
    "by_custodian_key",
    "by_duty_key",
    "by_phase_key",
    "by_player_key",
    "by_requester_key",
    "by_task_of_worker_key",
    "by_verifier_key",
    "forget_report",
    "load_history",
    "load_job",
    "load_report",
    "load_spec",
    "load_spec_bytes",
    "load_task",
    "load_window",
    "save_report",
    "save_spec",
    "save_task",
    "save_window",
]

LEDGER_ADDRESS: Final = (0x0702).to_bytes(ADDRESS_BYTES, "big")
"""The account that the events of tasks and groups come from."""
TASK_LIMIT_BYTES: Final = 8 * 1024
WINDOW_LIMIT_BYTES: Final = 60 * 1024
HISTORY_LIMIT_BYTES: Final = 256
HISTORY_PAGE: Final = 256
SEAT_BYTES: Final = HASH_BYTES + 1
"""The id of a group, and the number of a seat."""
REPORT_LIMIT_BYTES: Final = 256

_TASK: Final = bytes([Table.TASK])
_WINDOW: Final = bytes([Table.WINDOW])
_INDEX: Final = bytes([Table.TASK_INDEX])
_SPEC_PART: Final = b"\x01"
_HISTORY_PART: Final = b"\x02"


class TaskRecord(NamedTuple):
    """A task. ``worker`` is empty while there is none; ``deadline_ms`` and ``match_at_ms`` are 0 while unset.

    ``target`` is the number of windows to be run: fewer than the job's after a cancellation. ``next_window`` is
    due next, from ``state_root``; windows below ``final_windows`` are final. ``ending`` and ``ending_reason`` say
    how the task will end once its windows are settled. ``excluded`` workers are not matched again. ``attempts``
    counts workers that started, ``vain_offers`` those that were offered the task since a window was last proved.
    ``parked`` is 0, or the turn of a task that waits for a machine to change. ``rank`` is the class of its budget.
    ``bid_height`` is from when on it has been in the book of the call, ``waker`` the machine that had it come back
    there, or empty.
    ``prepared`` is 1 once the preparation was paid.
    Windows from ``own_from`` on are of the present worker; those of them that are not final cost ``open_charge``.
    ``match_by_ms`` is when the search for a worker under way ends. ``price_per_tera_unit`` and ``rate`` are what
    the worker's profile had when it was matched. ``base_fee`` is that of the match, ``is_new`` tells whether the
    worker was new then: the floor of a check and of the bond follow from them. ``complaints`` are the machines
    that could not have its inputs since a window was last proved (R53). ``sizes`` are those of its job (R78).
    ``group`` is empty, or its group's id and the number of its seat. Of a spare, ``own_from`` is how many windows
    of the group were final when it began to stand by.
    """

    id: bytes
    requester: bytes
    phase: Phase
    reason: Reason
    created_height: int
    created_ms: int
    changed_height: int
    changed_ms: int
    deadline_ms: int
    match_at_ms: int
    match_by_ms: int
    worker: bytes
    price_per_tera_unit: int
    rate: int
    busy: int
    attempts: int
    vain_offers: int
    assigned_ms: int
    excluded: tuple[bytes, ...]
    started_ms: int
    next_window: int
    final_windows: int
    target: int
    state_root: bytes
    final_root: bytes
    ending: int
    ending_reason: int
    history: int
    parked: int
    rank: int
    bid_height: int
    waker: bytes
    own_from: int
    open_charge: int
    prepared: int
    base_fee: int
    is_new: int
    complaints: tuple[bytes, ...]
    sizes: JobSizes
    group: bytes = b""

    @property
    def is_metered(self) -> bool:
        """Whether its seconds are paid and nothing of it is proven (R93): it alone has no state."""
        return not self.sizes.state_limit_bytes

    @property
    def own_windows(self) -> range:
        """Windows that the present worker has proved and that are not final."""
        return range(max(self.own_from, self.final_windows), self.next_window)

    @property
    def open_windows(self) -> range:
        """Windows that are proved and not final."""
        return range(self.final_windows, self.next_window)


class Seat(NamedTuple):
    """A drawn verifier or juror: its seal (empty until given) and its findings (None until revealed)."""

    address: bytes
    seal: bytes
    findings: tuple[Finding, ...] | None


class Opened(NamedTuple):
    """What the worker opened of a sampled segment."""

    segment: int
    state_root_before: bytes
    state_root_after: bytes
    work_digest: bytes
    loss_bits: int


class WindowRecord(NamedTuple):
    """A window from its proof on. ``charge`` is its price; ``fee`` what one verifier of it earns.

    ``height`` is that of the block whose proof, doubt or lack of verdicts asks for the next draw. ``verifiers``
    judge first. ``jurors`` try to fetch and re-run ``missed``: segments that a verifier could not fetch.
    ``unserved`` is 0, 1 while the worker is asked to serve them after a jury could not fetch them either, and
    above that 1 more than the jurors of that jury, which was enlarged.
    ``used`` are the machines drawn so far and their operators: none of them is drawn again.
    ``seen`` are segments that were opened in an earlier round of verdicts, of which none stood.
    ``vacant`` has the heights at which seats were declined that nobody was drawn for yet.
    ``ripe`` is 1 when the challenge time is over and only an earlier window is waited for. ``rerun`` are segments
    that drawn machines run again because the worker was silent about them; these are ``jurors`` then.
    ``chance`` is the probability of its audit in 10^-18 until the lot, then 0 or certainty; ``wanted`` is how
    many verifiers an audit has. ``fee`` is what one of them is paid, ``due`` what an audit costs on average, and
    ``reserve`` what the check fund has put down for it. ``gas_price`` is the base fee up to which ``fee`` pays the
    gas of a check.
    """

    task: bytes
    number: int
    phase: WindowPhase
    reason: Reason
    proof: WindowProof
    worker: bytes
    height: int
    deadline_ms: int
    draws: int
    sampled: tuple[int, ...]
    verifiers: tuple[Seat, ...]
    opened: tuple[Opened, ...]
    missed: tuple[int, ...]
    unserved: int
    jurors: tuple[Seat, ...]
    used: tuple[bytes, ...]
    vacant: tuple[int, ...]
    charge: int
    fee: int
    ripe: int
    seen: tuple[int, ...]
    rerun: tuple[int, ...]
    chance: int
    wanted: int
    due: int
    reserve: int
    gas_price: int


class HistoryEntry(NamedTuple):
    """One change of a task's phase: by whom, why, and the hash of what shows it (a transaction, or zero)."""

    number: int
    height: int
    time_ms: int
    before: int
    after: Phase
    reason: Reason
    actor: bytes
    evidence: bytes


class JobReport(NamedTuple):
    """What workers said of a job as they gave it up: why the last one did, and ``times`` since it last settled."""

    reason: Reason
    height: int
    worker: bytes
    task: bytes
    times: int


def _shape_of(record: type) -> list[type]:
    """Return the types of what is encoded of a record: numbers, bytes, and lists for all else."""
    hints = get_type_hints(record).values()
    return [
        bytes if kind is bytes else int if isinstance(kind, type) and issubclass(kind, int) else list
        for kind in hints
    ]


_TASK_SHAPE: Final = _shape_of(TaskRecord)
_WINDOW_SHAPE: Final = _shape_of(WindowRecord)
_SIZES_SHAPE: Final = _shape_of(JobSizes)
_PHASE_AT: Final = TaskRecord._fields.index("phase")
"""The reason stands after it."""
_ADDRESSES_AT: Final = tuple(TaskRecord._fields.index(name) for name in ("excluded", "complaints"))
_SIZES_AT: Final = TaskRecord._fields.index("sizes")


def _task_value(task: TaskRecord) -> Value:
    fields = task if task.group else task[:-1]  # a task without a group has no field for it
    return [
        int(item) if isinstance(item, int) else list(item) if isinstance(item, tuple) else item for item in fields
    ]


def load_task(state: Reader, task_id: bytes) -> TaskRecord:
    """Return the task. Raises TaskUnknown, RecordDamaged."""
    data = state.get(_TASK + task_id)
    if data is None:
        raise TaskUnknown(task_id.hex())
    return read_record(data, _task, what=f"task {task_id.hex()}", limit_bytes=TASK_LIMIT_BYTES)


def _task(value: Any) -> TaskRecord:
    has_group = type(value) is list and len(value) == len(_TASK_SHAPE)
    items = items_of(value, *_TASK_SHAPE) if has_group else items_of(value, *_TASK_SHAPE[:-1])
    if has_group and len(items[-1]) != SEAT_BYTES:
        raise DecodeError("not a seat of a group")
    items[_PHASE_AT], items[_PHASE_AT + 1] = Phase(items[_PHASE_AT]), Reason(items[_PHASE_AT + 1])
    for at in _ADDRESSES_AT:
        items[at] = tuple(items_of(items[at], *[bytes] * len(items[at])))
    items[_SIZES_AT] = JobSizes(*items_of(items[_SIZES_AT], *_SIZES_SHAPE))
    return TaskRecord(*items)


def save_task(state: Overlay, task: TaskRecord) -> None:
    """Write the task's record alone; ``tasks.ledger.open_task`` keeps indexes and deadlines in step."""
    state.put(_TASK + task.id, encode(_task_value(task)))


def save_spec(state: Overlay, task_id: bytes, spec: bytes) -> None:
    """Write the job's specification as it was sent."""
    state.put(_TASK + task_id + _SPEC_PART, spec)


def load_spec_bytes(state: Reader, task_id: bytes) -> bytes:
    """Return the specification bytes of a task. Raises TaskUnknown."""
    data = state.get(_TASK + task_id + _SPEC_PART)
    if data is None:
        raise TaskUnknown(task_id.hex())
    return data


def load_job(state: Reader, task: TaskRecord) -> KeptJob:
    """Return the job of a task, with the sizes that it keeps. Raises TaskUnknown, RecordDamaged."""
    try:
        return kept_job(load_spec_bytes(state, task.id), task.sizes)
    except DecodeError as error:
        raise RecordDamaged(f"the specification of task {task.id.hex()} is damaged: {error}") from None


def load_spec(state: Reader, task_id: bytes) -> KeptJob:
    """Return the job of a task. Raises TaskUnknown, RecordDamaged."""
    return load_job(state, load_task(state, task_id))


def _seats_value(seats: tuple[Seat, ...]) -> list[Value]:
    return [
        [seat.address, seat.seal, None if seat.findings is None else findings_to_value(seat.findings)]
        for seat in seats
    ]


def _seats(value: list[Any]) -> tuple[Seat, ...]:
    return tuple(
        Seat(address, seal, None if findings is None else findings_from_value(findings))
        for address, seal, findings in value
    )


def _window_key(task_id: bytes, number: int) -> bytes:
    return _WINDOW + task_id + number.to_bytes(4, "big")


def load_window(state: Reader, task_id: bytes, number: int) -> WindowRecord:
    """Return a window. Raises WindowUnknown, RecordDamaged."""
    data = state.get(_window_key(task_id, number))
    if data is None:
        raise WindowUnknown(f"{task_id.hex()} window {number}")
    what = f"window {number} of task {task_id.hex()}"
    return read_record(data, _window, what=what, limit_bytes=WINDOW_LIMIT_BYTES)


def _window(value: Any) -> WindowRecord:
    fields: dict[str, Any] = dict(zip(WindowRecord._fields, items_of(value, *_WINDOW_SHAPE), strict=True))
    fields["phase"], fields["reason"] = WindowPhase(fields["phase"]), Reason(fields["reason"])
    fields["proof"] = window_proof_from_value(fields["proof"])
    fields["verifiers"], fields["jurors"] = _seats(fields["verifiers"]), _seats(fields["jurors"])
    fields["opened"] = tuple(Opened(*items_of(item, int, bytes, bytes, bytes, int)) for item in fields["opened"])
    fields["sampled"] = tuple(items_of(fields["sampled"], *[int] * len(fields["sampled"])))
    fields["seen"] = tuple(items_of(fields["seen"], *[int] * len(fields["seen"])))
    fields["vacant"] = tuple(items_of(fields["vacant"], *[int] * len(fields["vacant"])))
    fields["missed"] = tuple(items_of(fields["missed"], *[int] * len(fields["missed"])))
    fields["rerun"] = tuple(items_of(fields["rerun"], *[int] * len(fields["rerun"])))
    fields["used"] = tuple(items_of(fields["used"], *[bytes] * len(fields["used"])))
    return WindowRecord(**fields)


def save_window(state: Overlay, window: WindowRecord) -> None:
    """Write the window's record alone."""
    values: dict[str, Any] = window._asdict()
    values["phase"], values["reason"] = int(window.phase), int(window.reason)
    values["proof"] = window_proof_to_value(window.proof)
    values["verifiers"], values["jurors"] = _seats_value(window.verifiers), _seats_value(window.jurors)
    values["opened"] = [list(item) for item in window.opened]
    values["sampled"], values["used"], values["vacant"], values["seen"], values["rerun"] = (
        list(window.sampled), list(window.used), list(window.vacant), list(window.seen), list(window.rerun),
    )  # fmt: skip
    state.put(_window_key(window.task, window.number), encode(list(values.values())))


def append_history(state: Overlay, task_id: bytes, entry: HistoryEntry) -> None:
    """Write one line of a task's history."""
    state.put(
        _TASK + task_id + _HISTORY_PART + entry.number.to_bytes(4, "big"),
        encode([*(int(item) if isinstance(item, int) else item for item in entry[1:])]),
    )


def load_history(
    state: Reader, task_id: bytes, *, start: int = 0, limit: int = HISTORY_PAGE
) -> list[HistoryEntry]:
    """Return lines of a task's history from number ``start``."""
    prefix = _TASK + task_id + _HISTORY_PART
    entries = []
    for key, value in state.scan(
        prefix + start.to_bytes(4, "big"), prefix + b"\xff" * 5, min(limit, HISTORY_PAGE)
    ):
        number = int.from_bytes(key[-4:], "big")
        what = f"change {number} of task {task_id.hex()}"
        entries.append(read_record(value, partial(_entry, number), what=what, limit_bytes=HISTORY_LIMIT_BYTES))
    return entries


def _entry(number: int, value: Any) -> HistoryEntry:
    height, time_ms, before, after, reason, actor, evidence = items_of(value, *[int] * 5, bytes, bytes)
    return HistoryEntry(number, height, time_ms, before, Phase(after), Reason(reason), actor, evidence)


def _report_key(spec_hash: bytes) -> bytes:
    return _INDEX + b"S" + spec_hash


def load_report(state: Reader, spec_hash: bytes) -> JobReport | None:
    """Return what was last said against the job with the hash ``spec_hash``, or None. Raises RecordDamaged."""
    data = state.get(_report_key(spec_hash))
    if data is None:
        return None

    def make(value: Any) -> JobReport:
        reason, height, worker, task, times = items_of(value, int, int, bytes, bytes, int)
        return JobReport(Reason(reason), height, worker, task, times)

    return read_record(data, make, what=f"report on job {spec_hash.hex()}", limit_bytes=REPORT_LIMIT_BYTES)


def save_report(state: Overlay, spec_hash: bytes, report: JobReport) -> None:
    """Write what a worker said against a job."""
    state.put(_report_key(spec_hash), encode([int(report.reason), *report[1:]]))


def forget_report(state: Overlay, spec_hash: bytes) -> None:
    """Drop what was said against a job: it was done."""
    state.delete(_report_key(spec_hash))


def by_requester_key(requester: bytes, created_ms: int = 0, task_id: bytes = b"") -> bytes:
    """Return the key, or with defaults the least key, of the index of tasks by requester and time."""
    return _INDEX + b"R" + requester + created_ms.to_bytes(8, "big") + task_id


def by_phase_key(phase: int, created_ms: int = 0, task_id: bytes = b"") -> bytes:
    """Return the key, or with defaults the least key, of the index of tasks by phase and time."""
    return _INDEX + b"P" + bytes([phase]) + created_ms.to_bytes(8, "big") + task_id


def by_task_of_worker_key(worker: bytes, created_ms: int = 0, task_id: bytes = b"") -> bytes:
    """Return the key, or with defaults the least key, of the index of all tasks that a worker was ever given."""
    return _INDEX + b"W" + worker + created_ms.to_bytes(8, "big") + task_id


def by_duty_key(worker: bytes, task_id: bytes = b"") -> bytes:
    """Return the key of the index of tasks that ask something of a worker now."""
    return _INDEX + b"A" + worker + task_id


def by_verifier_key(verifier: bytes, task_id: bytes = b"", window: int | None = None) -> bytes:
    """Return the key of the index of windows that ask something of a verifier now."""
    return _INDEX + b"V" + verifier + task_id + (b"" if window is None else window.to_bytes(4, "big"))


def by_player_key(player: bytes, task: bytes = b"", window: int = 0, game: int = 0) -> bytes:
    """Return the key, or with defaults the prefix, of the index of disputes that an address plays now."""
    place = window.to_bytes(4, "big") + game.to_bytes(4, "big") if task else b""
    return _INDEX + b"G" + player + task + place


class Asked(IntEnum):
    """What an output in custody asks of a machine; what is urgent stands first in the index."""

    DEMAND = 0
    RECEIPT = 1
    KEPT = 2
    """Nothing now: it has signed for the output."""


def by_custodian_key(
    machine: bytes, asked: Asked | None = None, task: bytes = b"", window: int | None = None
) -> bytes:
    """Return the key, or with defaults a prefix, of the index of outputs that ask something of a custodian."""
    place = task + (b"" if window is None else window.to_bytes(4, "big"))
    return _INDEX + b"C" + machine + (b"" if asked is None else bytes([asked])) + place
