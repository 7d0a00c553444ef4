"""Pay of a container's seconds: at once, or after a later checkpoint or the end (market.md 5.7)."""

from __future__ import annotations

from billing.escrow import NOBODY, Pool, Purpose
from billing.prices import Role, share, work_price
from tasks.ledger.carriage import dues_of, pay_dues, share_pay
from tasks.ledger.open_task import Case
from tasks.ledger.settlement import pay_earned, pay_preparation, preparation_units

__all__ = [
    "burn_seconds",
    "burn_seconds_fee",
    "forfeit_seconds",
    "hold_preparation",
    "pay_seconds",
    "release_preparation",
    "release_seconds",
]


def pay_seconds(case: Case, seconds: int, *, waits: bool) -> int:
    """Pay the machine of a container for seconds, and its relays; burn the fee. Return what the seconds cost.

    The first that meters a task earns its preparation. Nothing is held (R95), unless the pay ``waits`` for a
    checkpoint (R105).
    """
    record = case.record
    if not waits:
        pay_preparation(case)
    charge = work_price(seconds * case.spec.step_units, record.price_per_tera_unit)
    if waits:
        case.vault.hold(Pool.PRICE, Pool.HOLD, charge, Purpose.SECONDS_HELD, target_owner=record.worker)
    else:
        _pay_out_seconds(case, (Pool.PRICE, NOBODY), record.worker, charge)
    return charge


def hold_preparation(case: Case) -> int:
    """Have the preparation of a container wait for its first checkpoint (R138); return what it costs."""
    record = case.record
    amount = work_price(preparation_units(case.spec, case.parameters), record.price_per_tera_unit)
    case.vault.hold(Pool.PRICE, Pool.HOLD, amount, Purpose.SECONDS_HELD, target_owner=record.worker)
    case.change(prepared=1)
    return amount


def release_preparation(case: Case, worker: bytes, amount: int) -> None:
    """Pay a machine the preparation that waited."""
    pay_earned(case, Pool.HOLD, worker, amount, Purpose.PREPARATION, Role.COMPUTE, owner=worker)


def burn_seconds_fee(case: Case, amount: int) -> None:
    """Burn the fee for pay of seconds, which is not paid yet."""
    fee = min(share(amount, case.parameters.fee_bps), case.vault.held(Pool.FEE))
    case.vault.burn(Pool.FEE, fee, Purpose.PROTOCOL_FEE)


def _pay_out_seconds(case: Case, source: tuple[Pool, bytes], worker: bytes, charge: int) -> None:
    (pool, owner), left = source, charge
    for relay, part in share_pay(charge, dues_of(case.state, worker, case.now)):
        pay_earned(case, pool, relay, part, Purpose.CARRIAGE, Role.RELAY, owner=owner)
        pay_dues(case.state, worker, relay, part)
        left -= part
    disk = left * case.spec.disk_units // case.spec.step_units
    pay_earned(case, pool, worker, disk, Purpose.DISK, Role.COMPUTE, owner=owner)
    pay_earned(case, pool, worker, left - disk, Purpose.METERED, Role.COMPUTE, owner=owner)
    burn_seconds_fee(case, charge)


def release_seconds(case: Case, worker: bytes, amount: int) -> None:
    """Pay a machine what waited for a checkpoint, and burn the fee for it."""
    if amount:
        _pay_out_seconds(case, (Pool.HOLD, worker), worker, amount)


def forfeit_seconds(case: Case, worker: bytes, amount: int) -> None:
    """Give pay that waited for a checkpoint back to the price pool: others do those seconds again."""
    case.vault.hold(Pool.HOLD, Pool.PRICE, amount, Purpose.HOLD_FORFEIT, owner=worker)


def burn_seconds(case: Case, worker: bytes, amount: int, *, has_fee: bool = True) -> None:
    """Burn pay that waited for a checkpoint, and the fee for it: who refuses a checkpoint saves nothing."""
    case.vault.burn(Pool.HOLD, amount, Purpose.HOLD_FORFEIT, owner=worker)
    if has_fee:
        burn_seconds_fee(case, amount)
