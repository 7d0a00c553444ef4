"""What a requester refuses of a container: pay that waits burns, so neither side gains by a lie (R137 to R139).

Nobody can prove what a folder should hold. So the rule is what two words can give: who pays for nothing loses an
interval at most, who bills for nothing earns nothing, and who refuses good work pays as much as for accepting it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from tasks.errors import MeterMismatch
from tasks.ledger.checkpoint_records import Checkpoints, Run, Stored, load_checkpoints, save_checkpoints
from tasks.ledger.checkpoints import SECONDS_LOST, pay_open
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.meter_records import load_meter, save_meter
from tasks.ledger.open_task import Case
from tasks.ledger.seconds_pay import burn_seconds
from tasks.spec import container_of

__all__ = ["REFUSED_IN", "all_of_machine", "refuse_stored"]

REFUSED_IN: Final = frozenset({Phase.RUNNING, Phase.DEGRADED, Phase.PAUSED, *ENDED})
"""Where a requester may refuse: not while a machine gets ready to begin with what is refused."""


def all_of_machine(worker: bytes) -> bytes:
    """Return what a requester names to refuse whatever a machine has stored: its address behind zeros."""
    return worker.rjust(HASH_BYTES, b"\0")


class _Refused(NamedTuple):
    """What is refused: pay of the latest checkpoint, pay that no checkpoint holds; and what is left."""

    closing: bool
    open: bool
    latest: Stored | None
    before: Stored | None
    base: Stored | None


def refuse_stored(case: Case, name: bytes) -> bool:
    """Burn what waits for what the requester refuses; tell whether the last machine is to blame for it.

    ``name`` is the latest checkpoint; or a zero hash, for the seconds that no checkpoint holds; or what
    ``all_of_machine`` gives of the last machine, or of the one that stored the latest checkpoint. Seconds stay
    counted. If that is another machine's, the present one is paid for what it did. Raises MeterMismatch.
    """
    task = case.record.id
    found, plan = load_checkpoints(case.state, task), container_of(case.spec).checkpoint
    if plan is None:
        raise MeterMismatch("the container has no checkpoint")
    if case.record.phase in ENDED and not found.waits:
        raise MeterMismatch("nothing of the ended container's pay waits any more")
    refused = _refused(case, found, name, plan.every_s)
    if refused.closing:
        assert found.latest is not None
        found = _burn(case, found, found.latest.worker, found.closing, found.closing_s, is_open=False)
        found = found._replace(closing=0, closing_s=0)
    if refused.open:
        open_s = load_meter(case.state, task).own_seconds - found.covered_s if found.open else 0
        found = _burn(case, found, found.last, found.open, open_s, is_open=True)._replace(open=0)
    elif case.record.phase == Phase.RUNNING:
        found = pay_open(case, found)
    found = found._replace(latest=refused.latest, before=refused.before, base=refused.base, missed=0, doubted=0)
    save_checkpoints(case.state, task, found)
    return refused.open


def _refused(case: Case, found: Checkpoints, name: bytes, every_s: int) -> _Refused:
    latest, is_whole = found.latest, name == all_of_machine(found.last)
    # Of what the last run has stored nothing may be left: after a refusal, while no machine has the task.
    is_own = latest is not None and found.covered_s > 0 and latest.worker == found.last
    is_idle = case.record.phase in (Phase.DEGRADED, Phase.PAUSED)
    if latest is not None and latest.blob and name == latest.blob:
        return _without(found, [one for one in _stored(found) if one.blob == name], is_own=is_own)
    if is_whole and is_own:
        return _Refused(True, True, found.base, None, found.base)
    if latest is not None and name == all_of_machine(latest.worker) and not is_own and (is_idle or not is_whole):
        return _without(found, [one for one in _stored(found) if one.worker == latest.worker], is_own=False)
    if not found.runs or is_idle or not (is_whole or name == ZERO_HASH):
        raise MeterMismatch("not what was stored last")
    _check_late(case, found.covered_s + every_s)
    return _Refused(False, True, latest, found.before, found.base)


def _stored(found: Checkpoints) -> list[Stored]:
    return [one for one in (found.latest, found.before, found.base) if one is not None]


def _without(found: Checkpoints, refused: list[Stored], *, is_own: bool) -> _Refused:
    """Refuse the latest checkpoint, and drop all that are ``refused``."""
    before, base = [None if one in refused else one for one in (found.before, found.base)]
    return _Refused(True, is_own, before or base, base if before and before != base else None, base)


def _check_late(case: Case, due_s: int) -> None:
    """Refuse a refusal of a machine whose next checkpoint is not late yet (R138). Raises MeterMismatch."""
    late_ms = load_meter(case.state, case.record.id).began_ms + 1000 * (due_s + case.spec.tick_s)
    if case.record.phase == Phase.RUNNING and case.now < late_ms:
        raise MeterMismatch(f"its next checkpoint is not late for {late_ms - case.now} ms yet")


def _burn(
    case: Case, found: Checkpoints, worker: bytes, amount: int, seconds: int, *, is_open: bool
) -> Checkpoints:  # fmt: skip
    """Burn pay of a machine, with its preparation if that waits for the same; the record is not written."""
    meter = load_meter(case.state, case.record.id)
    burn_seconds(case, worker, amount)
    save_meter(case.state, case.record.id, meter._replace(paid=meter.paid - amount))
    if found.prepared and found.is_preparation_open == is_open:
        burn_seconds(case, worker, found.prepared, has_fee=False)
        found = found._replace(prepared=0)
    case.scope.emit(SECONDS_LOST(case.record.id, worker, seconds, amount))
    return found._replace(runs=_with_lost(found.runs, worker, seconds))


def _with_lost(runs: tuple[Run, ...], worker: bytes, seconds: int) -> tuple[Run, ...]:
    at = max((at for at, run in enumerate(runs) if run.worker == worker), default=-1)
    if at < 0:
        return runs
    return (*runs[:at], runs[at]._replace(lost=runs[at].lost + seconds), *runs[at + 1 :])
