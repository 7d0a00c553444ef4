"""What moves in a task's escrow, and when: bonds, pay by window, verifiers' fees, fines, the end (market.md 8).

Every amount is bounded by the pool it comes from. Only final windows are paid, each for at most its share of the
price, so the price pool covers them all however often a window is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from billing.escrow import NOBODY, Pool, Purpose
from billing.prices import Budget, Role, share, share_up, split, split_roles, work_price, work_price_up
from tasks.ledger import registry
from tasks.ledger.carriage import dues_of, pay_dues, share_pay
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import WindowRecord
from tasks.spec import JobSpec

__all__ = [
    "bond_at",
    "budget_of",
    "charge_of",
    "check_budget",
    "check_fee",
    "close_escrow",
    "delivery_fees",
    "fine_worker",
    "forfeit_hold",
    "fund_check",
    "give_back_demand",
    "juror_fee",
    "pay_delivery",
    "pay_final_window",
    "pay_for_lost_result",
    "pay_jurors",
    "pay_kill_fee",
    "pay_preparation",
    "pay_void_verifiers",
    "release_bond",
    "release_idle_bonds",
]

VERIFIERS_SHARE_BPS_MAX: Final = 5_000
"""Of a newcomer's pay that its additional verifiers may take."""
_Source = tuple[Pool, bytes]


def budget_of(spec: JobSpec, parameters: TaskParameters) -> Budget:
    """Return what the requester of ``spec`` locks: the windows at the highest price, and their checks.

    A check costs its least fee at least. Each window is rounded up, and each payment down: what rounding leaves
    returns to the requester.
    """
    last = spec.windows - 1  # the others are as long as the first
    whole, rest = (work_price_up(spec.window_units(at), spec.max_price_per_tera_unit) for at in (0, last))
    price = last * whole + rest
    budget = Budget.of(price, verification_bps=parameters.verification_bps, fee_bps=parameters.fee_bps)
    checks = last * check_budget(spec, 0, parameters) + check_budget(spec, last, parameters)
    return budget._replace(verification=max(budget.verification, checks))


def check_budget(spec: JobSpec, window: int, parameters: TaskParameters) -> int:
    """Return what the checks of a window may take from the verification pool."""
    price = work_price(spec.window_units(window), spec.max_price_per_tera_unit)
    seats = max(parameters.verifiers, parameters.verifiers_new)
    return max(share(price, parameters.verification_bps), seats * parameters.check_fee_min)


def check_fee(charge: int, parameters: TaskParameters) -> int:
    """Return the fee of one verifier of a window that costs ``charge``."""
    return max(share(charge, parameters.verification_bps), parameters.check_fee_min)


def bond_at(spec: JobSpec, price_per_tera_unit: int, window: int, parameters: TaskParameters) -> int:
    """Return the bond of a worker that starts at ``window``: twice the pay of the windows it may have open.

    At least it is a part of what it would be at the job's highest price, and the fees of those who check and judge
    these windows: they are paid out of it where a window is rejected.
    """
    ahead = range(window, min(spec.windows, window + parameters.open_windows_max))
    units = sum(spec.window_units(number) for number in ahead)
    own, highest = (
        share_up(work_price(units, price), parameters.bond_windows_bps)
        for price in (price_per_tera_unit, spec.max_price_per_tera_unit)
    )
    seats = max(parameters.verifiers, parameters.verifiers_new) + parameters.jury
    prices = [work_price(spec.window_units(at), price_per_tera_unit) for at in ahead]
    fees = seats * sum(check_fee(price, parameters) for price in prices)
    return max(own, share_up(highest, parameters.bond_floor_bps), fees)


def charge_of(case: Case, window: int) -> int:
    """Return the price of a window: its work units at the worker's price, however long they took."""
    return work_price(case.spec.window_units(window), case.record.price_per_tera_unit)


def fund_check(case: Case) -> bool:
    """Tell whether the verification pool covers the checks of the next window."""
    due = check_budget(case.spec, case.record.next_window, case.parameters)
    return case.vault.held(Pool.VERIFICATION) >= due


def _pay(
    case: Case, pool: Pool, machine: bytes, amount: int, purpose: Purpose, role: Role, *,
    owner: bytes = NOBODY, subject: int | None = None,
) -> None:  # fmt: skip
    """Pay what a machine earned to its payout address."""
    to = registry.payout_of(case.state, machine)
    case.vault.pay(pool, to, amount, purpose, role, owner=owner, subject=subject, earner=machine)


def _draw(case: Case, sources: Sequence[_Source], to: bytes, amount: int, purpose: Purpose, subject: int) -> None:
    for pool, owner in sources:
        part = min(amount, case.vault.held(pool, owner))
        _pay(case, pool, to, part, purpose, Role.VERIFY, owner=owner, subject=subject)
        amount -= part


def _available(case: Case, sources: Sequence[_Source]) -> int:
    return sum(case.vault.held(pool, owner) for pool, owner in sources)


def _pay_evenly(
    case: Case, sources: Sequence[_Source], addresses: Sequence[bytes], amount: int, purpose: Purpose, subject: int
) -> None:
    if not addresses:
        return
    parts = split(min(amount, _available(case, sources)), [1] * len(addresses))
    for address, part in zip(addresses, parts, strict=True):
        _draw(case, sources, address, part, purpose, subject)


def pay_final_window(case: Case, window: WindowRecord) -> None:
    """Pay a final window: its verifiers, its worker (a part of that is held), the protocol's fee, which is burned.

    One verifier's fee comes from the verification budget; further ones, drawn because the worker is new, are paid
    out of the worker's own pay. What is missing to the least fee of each comes from the budget too.
    """
    vault, parameters = case.vault, case.parameters
    addresses = [seat.address for seat in window.verifiers]
    base = share(window.charge, parameters.verification_bps)
    from_pay = min(base * (len(addresses) - 1) if addresses else 0, share(window.charge, VERIFIERS_SHARE_BPS_MAX))
    from_budget = max(base, len(addresses) * parameters.check_fee_min - from_pay) if addresses else 0
    from_budget = min(from_budget, vault.held(Pool.VERIFICATION))
    pay = window.charge - from_pay
    if addresses:
        parts = split(from_budget + from_pay, [1] * len(addresses))
        for address, part in zip(addresses, parts, strict=True):
            budget_part = min(part, from_budget)
            from_budget -= budget_part
            _draw(case, [(Pool.VERIFICATION, NOBODY)], address, budget_part, Purpose.VERIFIER_FEE, window.number)
            _draw(case, [(Pool.PRICE, NOBODY)], address, part - budget_part, Purpose.VERIFIER_FEE, window.number)
    held = share(pay, parameters.hold_bps)
    carried = share_pay(pay - held, dues_of(case.state, window.worker, case.now))
    for relay, part in carried:
        _pay(case, Pool.PRICE, relay, part, Purpose.CARRIAGE, Role.RELAY, subject=window.number)
        pay_dues(case.state, window.worker, relay, part)
    left = pay - held - sum(part for _, part in carried)
    for role, address, part in split_roles(left, {Role.COMPUTE: {window.worker: 1}}):
        _pay(case, Pool.PRICE, address, part, Purpose.WINDOW_PAY, role, subject=window.number)
    vault.hold(Pool.PRICE, Pool.HOLD, held, Purpose.WINDOW_HOLD, target_owner=window.worker, subject=window.number)
    fee = min(share(window.charge, parameters.fee_bps), vault.held(Pool.FEE))
    vault.burn(Pool.FEE, fee, Purpose.PROTOCOL_FEE, subject=window.number)


def _void_sources(blamed: bytes) -> list[_Source]:
    budget = (Pool.VERIFICATION, NOBODY)
    return [(Pool.HOLD, blamed), (Pool.BOND, blamed), budget] if blamed else [budget]


def pay_void_verifiers(case: Case, window: WindowRecord, *, blamed: bytes) -> None:
    """Pay the verifiers whose verdicts on a void window stood.

    Whoever is to blame for the void pays them, out of what it forfeits and out of its bond; the requester where
    nobody is, or that is used up.
    """
    addresses = [seat.address for seat in window.verifiers if seat.findings is not None]
    amount = window.fee * len(addresses)
    _pay_evenly(case, _void_sources(blamed), addresses, amount, Purpose.VERIFIER_FEE, window.number)


def juror_fee(window: WindowRecord) -> int:
    """Return what a juror earns for the one segment that it re-runs."""
    return window.fee // max(1, len(window.sampled))


def pay_jurors(case: Case, window: WindowRecord, addresses: Sequence[bytes], blamed: Sequence[bytes]) -> None:
    """Pay jurors for the one segment that they re-ran, ``juror_fee`` each whichever way they decided.

    Whoever is ``blamed`` for the argument pays: the window's worker as for the verifiers of a void window, others
    out of the bonds of their machines; the requester where nobody is, or that is used up.
    """
    scope, due = case.scope, juror_fee(window)
    if window.worker in blamed:
        _pay_evenly(
            case, _void_sources(window.worker), addresses, due * len(addresses), Purpose.JUROR_FEE, window.number
        )
        return
    for juror in addresses:
        missing = due
        for payer, part in zip(blamed, split(due, [1] * len(blamed)) if blamed else (), strict=True):
            missing -= registry.pay_from_bond(
                case.state, payer, juror, part, Purpose.JUROR_FEE, scope.emit, scope.block.height
            )
        budget = [(Pool.VERIFICATION, NOBODY)]
        _draw(case, budget, juror, min(missing, _available(case, budget)), Purpose.JUROR_FEE, window.number)


def delivery_fees(window: WindowRecord, parameters: TaskParameters) -> int:
    """Return what a requester puts down for the machines that try to fetch a result: a juror's fee for each."""
    return parameters.jury * max(juror_fee(window), parameters.check_fee_min)


def pay_delivery(case: Case, window: WindowRecord, addresses: Sequence[bytes], blamed: Sequence[bytes]) -> None:
    """Pay the machines that tried to fetch a result: its worker does if it is ``blamed``, else the requester."""
    fee = max(juror_fee(window), case.parameters.check_fee_min)
    sources = _void_sources(window.worker if blamed else b"")
    _pay_evenly(case, sources, addresses, fee * len(addresses), Purpose.JUROR_FEE, window.number)


def give_back_demand(case: Case) -> None:
    """Give the requester what is left of what it put down for a demand."""
    vault = case.vault
    vault.refund(Pool.VERIFICATION, vault.payer, vault.held(Pool.VERIFICATION), Purpose.UNSPENT)


def pay_for_lost_result(case: Case, window: WindowRecord) -> None:
    """Pay the requester back for a result that its worker does not serve, as for a window that is rejected.

    That is the last window's price, out of the bond of who did it.
    """
    vault = case.vault
    amount = min(window.charge, vault.held(Pool.BOND, window.worker))
    vault.refund(Pool.BOND, vault.payer, amount, Purpose.RESULT_LOST, owner=window.worker, subject=window.number)


def forfeit_hold(case: Case, worker: bytes) -> None:
    """Give what was held of a worker's pay back to the price pool: its work was found wrong."""
    held = case.vault.held(Pool.HOLD, worker)
    case.vault.hold(Pool.HOLD, Pool.PRICE, held, Purpose.HOLD_FORFEIT, owner=worker)


def fine_worker(case: Case, worker: bytes) -> None:
    """Burn the fine for a lost or abandoned task; nobody gains, so nobody has a reason to cause one."""
    bond = case.vault.held(Pool.BOND, worker)
    amount = share_up(bond, case.parameters.late_fine_bps)
    case.vault.burn(Pool.BOND, amount, Purpose.WORKER_FINE, owner=worker)


def pay_kill_fee(case: Case, worker: bytes) -> None:
    """Pay a worker whose task was cancelled under way its share of the price that nobody will earn any more."""
    amount = share(case.vault.held(Pool.PRICE), case.parameters.kill_fee_bps)
    _pay(case, Pool.PRICE, worker, amount, Purpose.KILL_FEE, Role.COMPUTE)


def pay_preparation(case: Case) -> None:
    """Pay a worker whose task was cancelled while it prepared: one segment, which preparing does, at its price.

    Nothing shows how far it is; but its requester alone decides whether it is paid.
    """
    record = case.record
    amount = work_price(case.spec.segment_units(record.next_window, 0), record.price_per_tera_unit)
    _pay(case, Pool.PRICE, record.worker, amount, Purpose.KILL_FEE, Role.COMPUTE)


def release_bond(case: Case, worker: bytes) -> None:
    """Give a worker its bond back."""
    case.vault.refund(Pool.BOND, worker, case.vault.held(Pool.BOND, worker), Purpose.BOND_RETURN, owner=worker)


def release_idle_bonds(case: Case) -> list[bytes]:
    """Give back the bonds of workers that left and have no window open; returns their addresses."""
    busy = {window.worker for window in case.open_windows()} | {case.record.worker}
    idle = [worker for worker in case.vault.owners(Pool.BOND) if worker not in busy]
    for worker in idle:
        release_bond(case, worker)
    return idle


def close_escrow(case: Case) -> None:
    """Pay out what was held and give the rest back to the requester; only bonds stay, for their time."""
    vault = case.vault
    for worker in vault.owners(Pool.HOLD):
        held = vault.held(Pool.HOLD, worker)
        _pay(case, Pool.HOLD, worker, held, Purpose.HOLD_RELEASE, Role.COMPUTE, owner=worker)
    for pool in (Pool.PRICE, Pool.VERIFICATION, Pool.FEE):
        vault.refund(pool, vault.payer, vault.held(pool), Purpose.UNSPENT)
