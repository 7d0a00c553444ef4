"""What a task is likely to cost. A quote says what is locked; most of that comes back."""

from __future__ import annotations

from typing import Final, NamedTuple

from billing.prices import share_up
from node.cli.output import show_amount
from node.cli.prices import PER_TERA_UNIT
from rpc.client.results import TaskQuote
from tasks.ledger.audits import BOND_FLOORS, NEW_FACTOR, audit_of, average_cost, contribution
from tasks.ledger.parameters import TaskParameters
from tasks.spec import JobSpec

__all__ = ["Expected", "expected_lines", "expected_of"]

_DEFAULTS: Final = TaskParameters()


class Expected(NamedTuple):
    """An estimate: the price of a match per 10^12 work units, what the task costs then, and what comes back.

    Amounts are in 10^-18 DKB. Custody and gas of transactions are no part of it: they are locked beside.
    """

    price_per_tera_unit: int
    cost: int
    refund: int

    def document(self) -> dict[str, str]:
        """Return it for JSON, amounts as texts."""
        return {name: str(amount) for name, amount in self._asdict().items()}


def expected_of(job: JobSpec, quoted: TaskQuote) -> Expected | None:
    """Return the estimate, None where nobody asks a price for such a job, or where several machines share it.

    The price is what the last call paid for such jobs in the mean, or else the lowest ask of a machine that could
    do it. A window pays for its audit what that costs on average (R31), with a worker that has a record and the
    least bond, by the default parameters of audits. A quote does not name those of its chain: where ``audit_bps``
    is above 0 more is paid, up to the whole of ``verification``.
    """
    asked = quoted.calls[-1].mean if quoted.calls else int(quoted.document["machines"].get("least_price") or 0)
    if not asked or not quoted.limit or job.is_quorum:
        return None
    price = min(asked, quoted.limit)
    work = quoted.price + quoted.fee + quoted.preparation
    checks = 0 if job.is_metered else min(quoted.verification, job.windows * _check_of_window(job, quoted, price))
    cost = -(-work * price // quoted.limit) + checks
    return Expected(price, cost, quoted.total - cost)


def _check_of_window(job: JobSpec, quoted: TaskQuote, price: int) -> int:
    """Return what a window pays for its audit on average, if it is matched at ``price``.

    The quote is at the limit. The bond is a multiple of the floor of a check, or of windows' prices if that is
    more (8.2). Only the former is the same at a lower price.
    """
    told = quoted.checks
    worth, bond, fee = quoted.price // job.windows, told.bond, told.fee
    floor = min(fee, told.bond_new // (NEW_FACTOR * BOND_FLOORS))  # of a check, or a little more
    if told.bond_new == NEW_FACTOR * told.bond:
        worth = max(worth * price // quoted.limit, share_up(worth, _DEFAULTS.bond_floor_bps))
    fee = floor + (fee - floor) * price // quoted.limit
    audit = audit_of(worth, bond, is_new=False, parameters=_DEFAULTS)
    return contribution(average_cost(audit, fee), is_below=True)


def expected_lines(found: Expected | None) -> dict[str, str]:
    """Return the estimate as lines of a quote."""
    if found is None:
        return {}
    price = f"{show_amount(found.price_per_tera_unit)} {PER_TERA_UNIT}"
    return {
        "to expect": f"about {show_amount(found.cost)}, at {price}",
        "comes back": f"about {show_amount(found.refund)} of what is locked",
    }
