"""Containers on the ledger: their seconds are counted by the chain's time, paid at once, and never judged.

See market.md 5.7, R94 to R96.
"""

from __future__ import annotations

from typing import Final

from state.primitives.receipts import EventType
from tasks.errors import KindMismatch, MeterAhead, MeterMismatch, WrongPhase
from tasks.kinds.container import ContainerPart
from tasks.ledger.checkpoints import begin_run, count_seconds, name_checkpoint, prepare_run
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import MeterRecord, load_meter, save_meter
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.seconds_pay import pay_seconds
from tasks.spec import container_of

__all__ = [
    "SECONDS_METERED",
    "begin_meter",
    "check_proven",
    "count_to_now",
    "meter_seconds",
    "pay_held",
    "pay_until",
    "require_metered",
    "silent_for_ms",
    "stop_container",
    "store_checkpoint",
]

SECONDS_METERED: Final = EventType(
    LEDGER_ADDRESS,
    "SecondsMetered(bytes32 indexed task, address indexed worker, uint256 added, uint256 total, uint256 paid)",
)


def require_metered(case: Case) -> ContainerPart:
    """Return what is run, of a container alone. Raises KindMismatch."""
    if not case.spec.is_metered:
        raise KindMismatch("no seconds of this task are metered: its windows are proven")
    return container_of(case.spec)


def check_proven(case: Case) -> None:
    """Refuse a container where windows are proven or claimed. Raises KindMismatch."""
    if case.record.is_metered:
        raise KindMismatch("nothing of a container is proven: its seconds are metered")


def _arm(case: Case, *, stops: bool) -> None:
    part, tick_s = container_of(case.spec), case.spec.tick_s
    span_s = part.metering.grace_s + (0 if stops else tick_s)
    case.change(deadline_ms=case.now + 1000 * span_s)


def begin_meter(case: Case) -> None:
    """Begin to count: the container of a new machine runs from now on, and goes on from a checkpoint."""
    begin_run(case)
    meter = load_meter(case.state, case.record.id)
    if case.spec.is_quorum:  # what an earlier machine metered is not paid: it has left no output
        meter = meter._replace(seconds=0)
    save_meter(case.state, case.record.id, meter._replace(began_ms=case.now, own_seconds=0, stop_ms=0))
    _arm(case, stops=False)


def pay_until(case: Case, meter: MeterRecord, own_seconds: int, *, is_held: bool = False) -> MeterRecord:
    """Pay the present machine up to ``own_seconds`` since it began; the meter is not written.

    What ``is_held`` is counted and not paid yet. Raises MeterAhead, MeterMismatch.
    """
    until_ms = min(case.now, meter.stop_ms) if meter.stop_ms else case.now
    allowed = max(0, until_ms - meter.began_ms) // 1000
    if own_seconds > allowed:
        raise MeterAhead(allowed=allowed, got=own_seconds)
    seconds = own_seconds - meter.own_seconds
    if seconds < 0:
        raise MeterMismatch(f"{meter.own_seconds} seconds are metered already")
    left = case.spec.schedule.total_steps - meter.seconds
    if seconds > left:
        raise MeterMismatch(f"{seconds} seconds more, the task has {left} left")
    if not seconds:
        return meter
    charge = 0
    if not is_held:
        waits = container_of(case.spec).checkpoint is not None
        if waits:
            prepare_run(case)
        charge = pay_seconds(case, seconds, waits=waits)
        count_seconds(case, seconds, charge if waits else 0)
    meter = meter._replace(
        seconds=meter.seconds + seconds, paid=meter.paid + charge, own_seconds=own_seconds
    )  # fmt: skip
    case.change(vain_offers=0)
    record = case.record
    case.scope.emit(SECONDS_METERED(record.id, record.worker, seconds, meter.seconds, charge))
    return meter


def pay_held(case: Case, seconds: int) -> None:
    """Pay the present machine of a task for ``seconds`` that were counted and not paid (R116)."""
    if not seconds:
        return
    record, meter = case.record, load_meter(case.state, case.record.id)
    charge = pay_seconds(case, seconds, waits=False)
    save_meter(case.state, record.id, meter._replace(paid=meter.paid + charge))
    case.scope.emit(SECONDS_METERED(record.id, record.worker, 0, meter.seconds, charge))


def meter_seconds(case: Case, own_seconds: int) -> None:
    """Count and pay whole ticks since the container's start (R94). Those of a quorum wait for its end (R116).

    With the last of them its time is used up: it ends within the grace.
    Raises KindMismatch, WrongPhase, MeterAhead, MeterMismatch.
    """
    require_metered(case)
    if case.record.phase != Phase.RUNNING:
        raise WrongPhase(case.record.phase.name.lower())
    meter, task = load_meter(case.state, case.record.id), case.record.id
    if meter.stop_ms:
        raise MeterMismatch("the container is to end: only its end is awaited")
    if own_seconds <= meter.own_seconds:
        raise MeterMismatch(f"{meter.own_seconds} seconds are metered already")
    if (own_seconds - meter.own_seconds) % case.spec.tick_s:
        raise MeterMismatch(f"whole ticks of {case.spec.tick_s} seconds expected")
    meter = pay_until(case, meter, own_seconds, is_held=case.spec.is_quorum)
    is_used_up = meter.seconds == case.spec.schedule.total_steps
    if is_used_up:
        meter = meter._replace(stop_ms=case.now)
        case.change(ending=int(Phase.FAILED), ending_reason=int(Reason.TIME_USED_UP))
    save_meter(case.state, task, meter)
    _arm(case, stops=is_used_up)


def store_checkpoint(case: Case, own_seconds: int, blob: bytes, size_bytes: int) -> None:
    """Count seconds up to a checkpoint, whole ticks or not, and note it (R103).

    Raises KindMismatch, WrongPhase, MeterAhead, MeterMismatch.
    """
    require_metered(case)
    if case.record.phase != Phase.RUNNING:
        raise WrongPhase(case.record.phase.name.lower())
    meter = load_meter(case.state, case.record.id)
    if meter.stop_ms:
        raise MeterMismatch("the container is to end: only its end is awaited")
    if own_seconds > meter.own_seconds:
        meter = pay_until(case, meter, own_seconds)
        save_meter(case.state, case.record.id, meter)
        _arm(case, stops=False)
    name_checkpoint(case, meter, own_seconds, blob, size_bytes)


def count_to_now(case: Case) -> None:
    """Count the seconds of the present machine up to now, a tick beyond the last count at most, as a stop does."""
    meter = load_meter(case.state, case.record.id)
    left_s = case.spec.schedule.total_steps - meter.seconds
    up_s = max(0, case.now - meter.began_ms) // 1000
    own_seconds = min(max(up_s, meter.own_seconds), meter.own_seconds + min(case.spec.tick_s, left_s))
    save_meter(case.state, case.record.id, pay_until(case, meter, own_seconds))


def stop_container(case: Case, reason: Reason) -> None:
    """Have the container of a running task stop: its machine ends it within the grace, and is paid up to now.

    More than one tick is not paid for it. The machine may have been silent for longer.
    """
    meter = load_meter(case.state, case.record.id)
    metered_ms = meter.began_ms + 1000 * meter.own_seconds
    stop_ms = min(case.now, metered_ms + 1000 * case.spec.tick_s)
    save_meter(case.state, case.record.id, meter._replace(stop_ms=max(stop_ms, meter.began_ms + 1)))
    case.change(ending=int(Phase.CANCELLED), ending_reason=int(reason))
    _arm(case, stops=True)


def silent_for_ms(case: Case) -> int:
    """Return how long the machine of a container has metered nothing."""
    meter = load_meter(case.state, case.record.id)
    return max(0, case.now - meter.began_ms - 1000 * meter.own_seconds)
