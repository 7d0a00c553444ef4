"""Checkpoints of containers on the ledger: whose pay waits for them, and who bears what is lost (R103 to R106).

Seconds of a container with a checkpoint are paid once a later checkpoint, or the end, shows that they were not in
vain. So a requester never pays a second time for what a machine lost as it left.
"""

from __future__ import annotations

from typing import Final

from billing.escrow import Purpose
from billing.prices import work_price
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.primitives.receipts import EventType
from tasks.errors import MeterMismatch, WrongPhase
from tasks.ledger import registry
from tasks.ledger.checkpoint_records import Checkpoints, Run, Stored, load_checkpoints, save_checkpoints
from tasks.ledger.lifecycle import Phase
from tasks.ledger.meter_records import MeterRecord, load_meter, save_meter
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.settlement import burn_seconds, forfeit_seconds, release_seconds
from tasks.spec import JobSpec, container_of

__all__ = [
    "CHECKPOINT_EVENTS",
    "LEAVE_FINE_S_MAX",
    "all_of_machine",
    "begin_run",
    "burn_what_waits",
    "count_seconds",
    "has_stored",
    "lose_unstored",
    "miss_checkpoint",
    "name_checkpoint",
    "note_match",
    "pay_what_waits",
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
        save_checkpoints(case.state, case.record.id, found._replace(until_ms=until_ms, missed=0))


def miss_checkpoint(case: Case, blob: bytes) -> None:
    """Note that the machine that prepares cannot have a checkpoint: it begins with the one before, or anew (R105).

    Raises WrongPhase, MeterMismatch.
    """
    if case.record.phase != Phase.PREPARING:
        raise WrongPhase(case.record.phase.name.lower())
    found = load_checkpoints(case.state, case.record.id)
    wanted = found.wanted
    if wanted is None or wanted.blob != blob or not blob:
        raise MeterMismatch("the container does not begin with this checkpoint")
    save_checkpoints(case.state, case.record.id, found._replace(missed=found.missed + 1))


def begin_run(case: Case) -> None:
    """Begin the run of a new machine: pay of the one before is due, or lost with a checkpoint that was missed."""
    task, found = case.record.id, load_checkpoints(case.state, case.record.id)
    if found.latest is not None and found.missed:
        found = _lose(case, found, found.closing, found.closing_s, found.latest.worker)
    elif found.latest is not None:
        release_seconds(case, found.latest.worker, found.closing)
    latest, before = found.wanted, found.before if not found.missed else None
    save_checkpoints(
        case.state, task,
        found._replace(
            latest=latest, before=before, covered_s=0, closing=0, closing_s=0, open=0, missed=0,
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


def name_checkpoint(case: Case, meter: MeterRecord, own_seconds: int, blob: bytes, size_bytes: int) -> None:
    """Note that the present machine has stored a checkpoint at ``own_seconds``, which are counted (R103).

    Pay of the interval before the last checkpoint is due with it. One that follows too soon takes the place of
    the last one: so what waits is never less than an interval's. Raises MeterMismatch.
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
        release_seconds(case, worker, found.closing)
        found = found._replace(before=kept, closing=0, closing_s=0)
    at_s = meter.seconds - (meter.own_seconds - own_seconds)
    found = found._replace(
        latest=Stored(blob, size_bytes, at_s, worker), covered_s=own_seconds, open=found.open - amount,
        closing=found.closing + amount, closing_s=found.closing_s + seconds,
    )  # fmt: skip
    save_checkpoints(case.state, task, found)
    case.scope.emit(CHECKPOINT_STORED(task, worker, blob or ZERO_HASH, size_bytes, at_s))


def all_of_machine(worker: bytes) -> bytes:
    """Return what a requester names to refuse whatever a machine has stored last: its address behind zeros."""
    return worker.rjust(HASH_BYTES, b"\0")


def burn_what_waits(case: Case, blob: bytes) -> None:
    """Burn what waits of the present machine's pay, for its requester says that ``blob`` holds no work (R137).

    A zero hash says that the machine has stored nothing since its start; what ``all_of_machine`` gives, whatever
    it has stored last. The seconds stay counted. The next machine begins with the checkpoint before, unless it is
    the same one. Raises MeterMismatch.
    """
    task, worker = case.record.id, case.record.worker
    found, meter = load_checkpoints(case.state, task), load_meter(case.state, task)
    if container_of(case.spec).checkpoint is None:
        raise MeterMismatch("the container has no checkpoint")
    named = found.latest.blob if found.latest is not None and found.covered_s else b""
    if blob not in (named or ZERO_HASH, all_of_machine(worker)):
        raise MeterMismatch("not what the machine has stored last")
    amount, waited_s = found.closing + found.open, found.closing_s + meter.own_seconds - found.covered_s
    burn_seconds(case, worker, amount)
    save_meter(case.state, task, meter._replace(paid=meter.paid - amount))
    if found.covered_s:
        before = found.before
        is_same = before is not None and before.blob == named
        found = found._replace(latest=None if is_same else before, before=None)
    *others, run = found.runs
    runs = (*others, run._replace(lost=run.lost + waited_s))
    save_checkpoints(case.state, task, found._replace(closing=0, closing_s=0, open=0, runs=runs))
    case.scope.emit(SECONDS_LOST(task, worker, waited_s, amount))


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


def pay_what_waits(case: Case) -> None:
    """Pay what waits for a checkpoint: the container ends, and nobody repeats anything of it."""
    found = load_checkpoints(case.state, case.record.id)
    if found.latest is not None:
        release_seconds(case, found.latest.worker, found.closing)
    if found.open:
        release_seconds(case, case.record.worker, found.open)
    if found.closing or found.open:
        save_checkpoints(case.state, case.record.id, found._replace(closing=0, closing_s=0, open=0))
