"""What custody of a job costs, as lines of its quote: by bytes and hours (market.md R35, R44).

The quote also says if fewer machines than copies could keep anything now, and if custody makes the costs of a job
exceed the price of its work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from state.primitives.amounts import format_amount
from state.view import Reader
from tasks.ledger.custody import GIB, HOUR_MS, custody_budget, output_reserve, reserve_for
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeRole, candidates, is_available
from tasks.ledger.screening import Objection, side_costs
from tasks.spec import JobSpec

__all__ = [
    "CUSTODY_TOO_DEAR",
    "FEW_CUSTODIANS",
    "CustodyLine",
    "custody_cost_notices",
    "custody_lines",
    "custody_notices",
]

CUSTODY_TOO_DEAR: Final = "custody_exceeds_work"
"""Code of the notice that with custody the costs of a job exceed the price of its work."""

FEW_CUSTODIANS: Final = "few_custodians"
"""Code of the notice that fewer machines than copies could keep a blob now."""


class CustodyLine(NamedTuple):
    """Blobs of one size: each lies with ``copies`` machines for ``time_ms`` at most.

    ``amount`` is what the requester locks for all of them; what is not used returns. ``price_per_gib_hour`` is the
    chain's for one copy.
    """

    what: str
    blobs: int
    copies: int
    size_bytes: int
    time_ms: int
    price_per_gib_hour: int
    amount: int

    @property
    def cost_per_gib_hour(self) -> int:
        """What one copy of 2^30 bytes costs for an hour, rounded up; small blobs cost the least pay."""
        byte_ms = self.blobs * self.copies * self.size_bytes * self.time_ms
        return -(-self.amount * GIB * HOUR_MS // byte_ms)


def custody_lines(
    spec: JobSpec, parameters: TaskParameters, *, keeps_input: bool = False
) -> tuple[CustodyLine, ...]:
    """Return what a requester locks for custody: for the outputs, and for the data set if that is kept."""
    copies, time_ms = parameters.custody_copies, parameters.custody_ms
    if not copies:
        return ()
    size = spec.state_limit_bytes
    blobs = [("output", spec.windows, size, output_reserve(size, parameters))]
    if keeps_input:
        size = spec.inputs()[0].size_bytes
        blobs.append(("input", 1, size, reserve_for(size, parameters)))
    return tuple(
        CustodyLine(
            what, count, copies, size, time_ms, parameters.custody_price_per_gib_hour,
            count * each,
        )
        for what, count, size, each in blobs
    )  # fmt: skip


def custody_notices(state: Reader, now_ms: int, parameters: TaskParameters) -> list[Objection]:
    """Return that fewer machines than copies could keep a blob now, where that is so.

    Machines of one operator count as one: an output lies with one of them at most.
    """
    copies = parameters.custody_copies
    if not copies:
        return []
    found = candidates(state, NodeRole.STORAGE, b"", parameters.candidates_max)
    operators = {node.parties[-1] for node in found if is_available(node, now_ms, parameters)}
    if len(operators) >= copies:
        return []
    text = (
        f"{len(operators)} operators have machines with role storage that are on, and {copies} copies are kept: "
        "its worker keeps each output too, and its bond answers for that; a data set that others are to keep "
        "waits, and the task with it"
    )
    return [Objection(FEW_CUSTODIANS, text)]


def custody_cost_notices(
    spec: JobSpec, parameters: TaskParameters, gas: Mapping[str, int], base_fee: int
) -> list[Objection]:  # fmt: skip
    """Return that custody, checks and gas cost more than the work, where checks and gas alone do not.

    Its price does not depend on the size of a window, so fewer windows help. Arguments are as of
    ``cost_objections``.
    """
    custody, found = custody_budget(spec, parameters), side_costs(spec, parameters, gas, base_fee)
    asked = base_fee * gas["ask_custody"]
    if not found.total <= found.price < found.total + custody + asked:
        return []
    size = found.least_size(asked + custody // spec.windows)
    text = (
        f"custody of its outputs costs {format_amount(custody)} at most, checks and gas "
        f"{format_amount(found.total + asked)}, its work {format_amount(found.price)} at most; it takes {size}, "
        "or no custody"
    )
    return [Objection(CUSTODY_TOO_DEAR, text)]
