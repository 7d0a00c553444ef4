"""What the meter of a container has counted, and how the container ended (market.md 2.2, R94)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.kinds.container import ExitKind

__all__ = ["ContainerEnd", "MeterRecord", "load_meter", "save_meter"]

METER_LIMIT_BYTES: Final = 256
_TASK: Final = bytes([Table.TASK])
_METER_PART: Final = b"\x04"


class ContainerEnd(NamedTuple):
    """How a container ended, as its machine ``worker`` says: nobody has checked that.

    ``output`` and ``logs`` are content addresses, or empty.
    """

    kind: ExitKind
    code: int
    output: bytes
    output_bytes: int
    logs: bytes
    logs_bytes: int
    worker: bytes


class MeterRecord(NamedTuple):
    """The seconds of a task. All are ``seconds``, paid with ``paid``; those of its machine are ``own_seconds``.

    Its container began at ``began_ms`` of steady time. From ``stop_ms`` on no second is paid; 0: it may go on.
    """

    seconds: int = 0
    paid: int = 0
    began_ms: int = 0
    own_seconds: int = 0
    stop_ms: int = 0
    end: ContainerEnd | None = None


def load_meter(state: Reader, task: bytes) -> MeterRecord:
    """Return the meter of a task; all zeros for one that has not started. Raises RecordDamaged."""
    data = state.get(_TASK + task + _METER_PART)
    if data is None:
        return MeterRecord()
    return read_record(data, _meter, what=f"meter of task {task.hex()}", limit_bytes=METER_LIMIT_BYTES)


def _meter(value: Any) -> MeterRecord:
    seconds, paid, began_ms, own_seconds, stop_ms, end = items_of(value, int, int, int, int, int, list)
    return MeterRecord(seconds, paid, began_ms, own_seconds, stop_ms, _end(end) if end else None)


def _end(value: Any) -> ContainerEnd:
    kind, code, output, output_bytes, logs, logs_bytes, worker = items_of(
        value, int, int, bytes, int, bytes, int, bytes
    )
    if {len(output), len(logs)} - {0, HASH_BYTES} or len(worker) != ADDRESS_BYTES:
        raise DecodeError("not the end of a container")
    return ContainerEnd(ExitKind(kind), code, output, output_bytes, logs, logs_bytes, worker)


def save_meter(state: Overlay, task: bytes, meter: MeterRecord) -> None:
    """Write the meter of a task."""
    end: list[Value] = [] if meter.end is None else [int(meter.end.kind), *meter.end[1:]]
    state.put(_TASK + task + _METER_PART, encode([*meter[:-1], end]))
