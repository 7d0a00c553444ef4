"""Checkpoints of containers on the ledger: whose pay waits for them, and who bears what is lost (R103 to R106).

Seconds of a container with a checkpoint are paid once a later checkpoint shows that they were not in vain, or some
time after the end. So a requester never pays a second time for what a machine lost as it left, and can refuse what
holds no work (``refusals``).
"""

from __future__ import annotations

from typing import Final

from billing.escrow import Purpose
from billing.prices import work_price
from state.primitives.hashing import ZERO_HASH
from state.primitives.receipts import EventType
from tasks.errors import MeterMismatch, WrongPhase
from tasks.ledger import registry
from tasks.ledger.checkpoint_records import (
    WORDS_NEEDED,
    Checkpoints,
    Run,
    Stored,
    load_checkpoints,
    save_checkpoints,
)
from tasks.ledger.lifecycle import Phase
from tasks.ledger.meter_records import MeterRecord, load_meter, save_meter
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.seconds_pay import (
    burn_seconds_fee,
    forfeit_seconds,
    hold_preparation,
    release_preparation,
    release_seconds,
)
from tasks.spec import JobSpec, container_of

__all__ = [
    "CHECKPOINT_EVENTS",
    "LEAVE_FINE_S_MAX",
    "SECONDS_LOST",
    "begin_run",
    "count_seconds",
    "doubt_checkpoint",
    "has_stored",
    "leave_to_requester",
    "lose_unstored",
    "name_checkpoint",
    "note_match",
    "pay_closing",
    "pay_open",
    "pay_what_waits",
    "prepare_run",
    "readmit",
    "refusal_ms",
    "stays_until_ms",
]

LEAVE_FINE_S_MAX: Final = 3_600
"""A machine that leaves before the time that it has offered loses the pay of so many seconds at most."""
CHECKPOINT_STORED: Final = EventType(
    LEDGER_ADDRESS,
    "CheckpointStored(bytes32 indexed task, address indexed worker, bytes32 blob, uint256 size, uint256 elapsed)",
)
SECONDS_LOST: Final = EventType(
    LEDGER_ADDRESS,
    "SecondsLost(bytes32 indexed task, address indexed worker, uint256 lost, uint256 amount)",
)
CHECKPOINT_EVENTS: Final = (CHECKPOINT_STORED, SECONDS_LOST)


def stays_until_ms(spec: JobSpec, seconds: int, now_ms: int, parameters: TaskParameters) -> int:
    """Return until when a machine must have offered to stay, 0 if it need not (R104).

    ``seconds`` of the task are counted. The time to accept and to prepare comes before the rest.
    """
    if not spec.is_metered or container_of(spec).is_interruptible:
        return 0
    left_s = max(0, spec.schedule.total_steps - seconds)
    return now_ms + parameters.accept_ms + parameters.prepare_ms + 1000 * left_s


def note_match(case: Case, until_ms: int) -> None:
    """Keep what the machine of a container had offered as it was matched: a later change does not count."""
    if case.record.is_metered:
        found = load_checkpoints(case.state, case.record.id)
        save_checkpoints(case.state, case.record.id, found._replace(until_ms=until_ms))


def doubt_checkpoint(case: Case, blob: bytes) -> None:
    """Note that the machine that prepares says that a checkpoint cannot be had (R156).

    With ``WORDS_NEEDED`` of them it is missed: the next machine begins with the one before, or anew (R105). The
    machine leaves the task. Raises WrongPhase, MeterMismatch.
    """
    if case.record.phase != Phase.PREPARING:
        raise WrongPhase(case.record.phase.name.lower())
    found = load_checkpoints(case.state, case.record.id)
    wanted = found.wanted
    if wanted is None or wanted.blob != blob or not blob:
        raise MeterMismatch("the container does not begin with this checkpoint")
    is_missed = found.doubted + 1 == WORDS_NEEDED
    doubters = tuple(one for one in found.doubters if one != case.record.worker)
    found = found._replace(
        missed=found.missed + is_missed, doubted=0 if is_missed else found.doubted + 1,
        doubters=(*doubters, case.record.worker),
    )  # fmt: skip
    save_checkpoints(case.state, case.record.id, found)


def readmit(case: Case) -> bool:
    """Let machines come back that could not have a checkpoint; tell whether there were any (R156)."""
    found = load_checkpoints(case.state, case.record.id)
    if not found.doubters:
        return False
    case.change(excluded=tuple(one for one in case.record.excluded if one not in found.doubters))
    save_checkpoints(case.state, case.record.id, found._replace(doubters=()))
    return True


def begin_run(case: Case) -> None:
    """Begin the run of a new machine. Pay of the one before is lost with a checkpoint that was missed.

    Else it waits for the first checkpoint of this run: until then the requester may refuse what it goes on from.
    """
    readmit(case)
    found = load_checkpoints(case.state, case.record.id)
    wanted = found.wanted
    if found.latest is not None and found.missed:
        found = _lose(case, found, found.closing, found.closing_s, found.latest.worker)
        found = _lose_preparation(case, found)._replace(closing=0, closing_s=0, before=None)
    save_checkpoints(
        case.state, case.record.id,
        found._replace(
            latest=wanted, base=wanted, covered_s=0, open=0, missed=0, doubted=0,
            runs=(*found.runs, Run(case.record.worker, 0, 0)),
        ),
    )  # fmt: skip


def count_seconds(case: Case, seconds: int, held: int) -> None:
    """Count seconds of the present machine, of whose pay ``held`` waits for a checkpoint."""
    found = load_checkpoints(case.state, case.record.id)
    *others, run = found.runs
    run = run._replace(seconds=run.seconds + seconds)
    save_checkpoints(
        case.state, case.record.id, found._replace(open=found.open + held, runs=(*others, run))
    )  # fmt: skip


def prepare_run(case: Case) -> None:
    """Have the preparation of the present machine wait for a checkpoint, if nobody has earned it (R138)."""
    if case.record.prepared:
        return
    found = load_checkpoints(case.state, case.record.id)
    found = found._replace(prepared=hold_preparation(case), prepared_run=found.gone + len(found.runs))
    save_checkpoints(case.state, case.record.id, found)


def name_checkpoint(case: Case, meter: MeterRecord, own_seconds: int, blob: bytes, size_bytes: int) -> None:
    """Note that the present machine has stored a checkpoint at ``own_seconds``, which are counted (R103).

    Pay of the interval before the last checkpoint is due with it, whoever's that is. One that follows too soon
    takes the place of the last one: so what waits is never less than an interval's. Raises MeterMismatch.
    """
    plan, task = container_of(case.spec).checkpoint, case.record.id
    if plan is None:
        raise MeterMismatch("the container has no checkpoint")
    if size_bytes > plan.bytes_max:
        raise MeterMismatch(f"{size_bytes} bytes of a checkpoint, at most {plan.bytes_max}")
    found = load_checkpoints(case.state, task)
    seconds = own_seconds - found.covered_s
    if seconds <= 0:
        raise MeterMismatch(f"{found.covered_s} seconds are stored already")
    kept, worker = found.latest, case.record.worker
    if not blob and kept is not None:  # its folder cannot be stored: the last one that could counts
        blob, size_bytes = kept.blob, kept.size_bytes
    uncovered_s = meter.own_seconds - found.covered_s
    amount = found.open * seconds // uncovered_s
    is_early = kept is not None and kept.worker == worker and found.covered_s > 0 and seconds < plan.every_s
    if not is_early:
        found = pay_closing(case, found)._replace(before=kept)
    at_s = meter.seconds - (meter.own_seconds - own_seconds)
    found = found._replace(
        latest=Stored(blob, size_bytes, at_s, worker), covered_s=own_seconds, open=found.open - amount,
        closing=found.closing + amount, closing_s=found.closing_s + seconds,
    )  # fmt: skip
    save_checkpoints(case.state, task, found)
    case.scope.emit(CHECKPOINT_STORED(task, worker, blob or ZERO_HASH, size_bytes, at_s))


def pay_closing(case: Case, found: Checkpoints) -> Checkpoints:
    """Pay what waits for what follows on the latest checkpoint; the record is not written."""
    if found.latest is None:
        return found
    release_seconds(case, found.latest.worker, found.closing)
    if not found.is_preparation_open:
        release_preparation(case, found.latest.worker, found.prepared)
        found = found._replace(prepared=0)
    return found._replace(closing=0, closing_s=0)


def pay_open(case: Case, found: Checkpoints) -> Checkpoints:
    """Pay what waits for the next checkpoint of the last machine; the record is not written."""
    release_seconds(case, found.last, found.open)
    if found.is_preparation_open:
        release_preparation(case, found.last, found.prepared)
        found = found._replace(prepared=0)
    return found._replace(open=0)


def has_stored(case: Case) -> bool:
    """Tell whether the present machine has stored something of its run."""
    return load_checkpoints(case.state, case.record.id).covered_s > 0


def lose_unstored(case: Case, *, is_fined: bool = True) -> None:
    """Part with the machine of a running container: seconds that no checkpoint holds are not paid (R105).

    One that leaves before the time that it has offered pays a fine, which is burned (R106), if it ``is_fined``.
    """
    task, worker = case.record.id, case.record.worker
    found, meter = load_checkpoints(case.state, task), load_meter(case.state, task)
    if container_of(case.spec).checkpoint is not None:
        found = _lose(case, found, found.open, meter.own_seconds - found.covered_s, worker)
        found = _lose_preparation(case, found) if found.is_preparation_open else found
        save_checkpoints(case.state, task, found._replace(open=0))
    fine = _leave_fine(case, found.until_ms) if is_fined else 0
    if fine:
        registry.fine_node(
            case.state, worker, fine, case.scope.emit, case.scope.block.height, case.parameters,
            Purpose.WORKER_FINE,
        )  # fmt: skip


def _leave_fine(case: Case, until_ms: int) -> int:
    """Return what it costs to leave now: the pay of the seconds that were offered and are left, up to a bound."""
    left_s = case.spec.schedule.total_steps - load_meter(case.state, case.record.id).seconds
    seconds = min(LEAVE_FINE_S_MAX, left_s, -(-max(0, until_ms - case.now) // 1000))
    return work_price(seconds * case.spec.step_units, case.record.price_per_tera_unit)


def _lose(case: Case, found: Checkpoints, amount: int, seconds: int, worker: bytes) -> Checkpoints:
    """Return pay that waited to the task, and its seconds to what is left of it; the record is not written."""
    task, meter = case.record.id, load_meter(case.state, case.record.id)
    if not seconds:
        return found
    forfeit_seconds(case, worker, amount)
    save_meter(case.state, task, meter._replace(seconds=meter.seconds - seconds, paid=meter.paid - amount))
    at = max((at for at, run in enumerate(found.runs) if run.worker == worker), default=-1)
    runs = list(found.runs)
    if at >= 0:
        runs[at] = runs[at]._replace(lost=runs[at].lost + seconds)
    case.scope.emit(SECONDS_LOST(task, worker, seconds, amount))
    return found._replace(runs=tuple(runs))


def _lose_preparation(case: Case, found: Checkpoints) -> Checkpoints:
    """Return a preparation that waited to the task: the next machine earns it; the record is not written."""
    if not found.prepared:
        return found
    assert found.latest is not None or found.is_preparation_open
    owner = found.last if found.is_preparation_open or found.latest is None else found.latest.worker
    forfeit_seconds(case, owner, found.prepared)
    case.change(prepared=0)
    return found._replace(prepared=0)


def leave_to_requester(case: Case) -> None:
    """Burn the fee for what waits as a container ends: the pay itself may still be refused (R139)."""
    found = load_checkpoints(case.state, case.record.id)
    burn_seconds_fee(case, found.closing + found.open)


def refusal_ms(case: Case) -> int:
    """Return until when what waits of an ended container may be refused: an interval after the end."""
    plan = container_of(case.spec).checkpoint
    return case.record.changed_ms + (0 if plan is None else 1000 * plan.every_s)


def pay_what_waits(case: Case) -> None:
    """Pay what waits for a checkpoint: the container has ended, and its requester has refused nothing of it."""
    found = load_checkpoints(case.state, case.record.id)
    if found.waits:
        save_checkpoints(case.state, case.record.id, pay_open(case, pay_closing(case, found)))
