"""How a task with a container ends: what its machine says of it, and the last seconds (market.md R96)."""

from __future__ import annotations

from typing import Final

from state.primitives.hashing import ZERO_HASH
from state.primitives.receipts import EventType
from tasks.errors import MeterMismatch, WrongPhase
from tasks.kinds.container import METER_PROGRESS, ContainerPart, ExitKind
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import ContainerEnd, MeterRecord, load_meter, save_meter
from tasks.ledger.metering import SECONDS_METERED, pay_until, require_metered
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.progress import go_on_elsewhere, wind_up
from tasks.ledger.quorums import end_seat

__all__ = ["METER_EVENTS", "finish_container"]

CONTAINER_ENDED: Final = EventType(
    LEDGER_ADDRESS,
    "ContainerEnded(bytes32 indexed task, address indexed worker, uint256 kind, uint256 code, bytes32 output, "
    "bytes32 logs)",
)
METER_EVENTS: Final = (SECONDS_METERED, CONTAINER_ENDED)


def _check_idle(case: Case, part: ContainerPart, own_seconds: int) -> None:
    """Refuse an idle end where nothing counts progress, and a part of a tick for it. Raises MeterMismatch."""
    if part.metering.name != METER_PROGRESS:
        raise MeterMismatch("the job does not meter progress: its container may stand still")
    if (own_seconds - load_meter(case.state, case.record.id).own_seconds) % case.spec.tick_s:
        raise MeterMismatch("a container that stood still is paid for whole ticks alone")


def finish_container(case: Case, own_seconds: int, end: ContainerEnd) -> None:
    """End a task whose container has ended, and pay what is left of its seconds (R96); of a quorum see R115.

    Raises KindMismatch, WrongPhase, NotYours, MeterAhead, MeterMismatch.
    """
    part, record = require_metered(case), case.record
    if record.phase != Phase.RUNNING and not case.spec.is_quorum:
        raise WrongPhase(record.phase.name.lower())
    if end.kind == ExitKind.STOPPED and not record.ending:
        raise MeterMismatch("nobody has stopped the container: who cannot run it any more gives the task up")
    if end.kind == ExitKind.IDLE:
        _check_idle(case, part, own_seconds)
    if end.output_bytes > part.storage.output_bytes_max:
        raise MeterMismatch(f"{end.output_bytes} bytes of output, at most {part.storage.output_bytes_max}")
    if case.spec.is_quorum:
        end_seat(case, own_seconds, end)
    else:
        meter = pay_until(case, load_meter(case.state, record.id), own_seconds)
        if _goes_on(case, part, meter, end):
            save_meter(case.state, record.id, meter)
            go_on_elsewhere(case)
        else:
            save_meter(case.state, record.id, meter._replace(end=end))
            _wind_up(case, end)
    case.scope.emit(
        CONTAINER_ENDED(
            record.id, record.worker, end.kind, end.code, end.output or ZERO_HASH, end.logs or ZERO_HASH
        )
    )


def _goes_on(case: Case, part: ContainerPart, meter: MeterRecord, end: ContainerEnd) -> bool:
    """Tell whether another machine goes on after this end (R141): no stop, and a try and time are left."""
    return (
        end.kind == ExitKind.EXITED and end.code in part.metering.again and not case.record.ending
        and case.record.attempts <= part.metering.retries and meter.seconds < case.spec.schedule.total_steps
    )  # fmt: skip


def _wind_up(case: Case, end: ContainerEnd) -> None:
    record = case.record
    if record.ending == Phase.CANCELLED:
        wind_up(case, Phase.CANCELLED, Reason(record.ending_reason))
    elif end.kind == ExitKind.STOPPED:
        wind_up(case, Phase.FAILED, Reason.TIME_USED_UP)
    else:
        is_well = end.kind == ExitKind.EXITED and end.code == 0
        wind_up(case, Phase.SETTLED if is_well else Phase.FAILED, Reason.CONTAINER_EXITED)
