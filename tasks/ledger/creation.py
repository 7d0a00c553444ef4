"""How a task begins: its escrow, its record and its places in the indexes (market.md 5.3, 8.1)."""

from __future__ import annotations

from billing.escrow import Pool, Purpose, Vault
from billing.prices import Budget
from tasks.ledger.deadlines import RANKS
from tasks.ledger.jobs import sizes_of
from tasks.ledger.lifecycle import Event, Phase, Reason
from tasks.ledger.open_task import TASK_CREATED, Case, Scope
from tasks.ledger.records import TaskRecord, by_requester_key, save_spec
from tasks.spec import JobSpec, spec_hash

__all__ = ["begin_task"]


def begin_task(
    scope: Scope, task: bytes, requester: bytes, spec: JobSpec, raw: bytes, budget: Budget, *,
    group: bytes = b"", rank_of: int = 0,
) -> Case:  # fmt: skip
    """Lock the budget of a new task of ``requester`` and return it in phase matching; it is no bid yet.

    ``group`` is the seat that it is, or empty. Its bid is ranked by ``rank_of``, its own budget at least.
    The caller saves it. Raises InsufficientBalance.
    """
    block = scope.block
    now = block.steady_ms
    vault = Vault.create(scope.state, task, requester, scope.emit, block.height)
    vault.lock(Pool.PRICE, requester, budget.price, Purpose.PRICE)
    vault.lock(Pool.VERIFICATION, requester, budget.verification, Purpose.VERIFICATION)
    vault.lock(Pool.FEE, requester, budget.fee, Purpose.PROTOCOL_FEE)
    vault.lock(Pool.PRICE, requester, budget.preparation, Purpose.PREPARATION)
    record = TaskRecord(
        id=task,
        requester=requester,
        phase=Phase.CREATED,
        reason=Reason.CREATED,
        created_height=block.height,
        created_ms=now,
        changed_height=block.height,
        changed_ms=now,
        deadline_ms=0,
        match_at_ms=0,
        match_by_ms=now + spec.match_ms,
        worker=b"",
        price_per_tera_unit=0,
        rate=0,
        busy=0,
        attempts=0,
        vain_offers=0,
        assigned_ms=0,
        excluded=(),
        started_ms=0,
        next_window=0,
        final_windows=0,
        target=spec.windows,
        state_root=spec.init_root,
        final_root=spec.init_root,
        ending=0,
        ending_reason=0,
        history=0,
        parked=0,
        bid_height=0,
        waker=b"",
        own_from=0,
        open_charge=0,
        prepared=0,
        base_fee=0,
        is_new=0,
        complaints=(),
        sizes=sizes_of(spec),
        rank=min(max(budget.total, rank_of).bit_length() // 2, RANKS - 1),
        group=group,
    )
    case = Case(scope, record, is_new=True)
    case.vault = vault
    save_spec(scope.state, task, raw)
    scope.state.put(by_requester_key(requester, now, task), b"\x01")
    scope.emit(TASK_CREATED(task, requester, spec_hash(raw), budget.total))
    case.begin()
    case.advance(Event.ADMIT, Reason.ADMITTED)  # the specification was checked whole when it was decoded
    return case
