"""What checking costs, and who is checked: pure arithmetic of audits and the check fund (market.md R29 to R31).

A window at the price W of a worker with the bond S is audited with the probability a = min(1, 4 W / (h S)). All
numbers are integers: probabilities are in parts of 10^18 and rounded up, amounts in 10^-18 DKB.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from billing.prices import BPS, share_up
from tasks.ledger.parameters import TaskParameters

__all__ = [
    "AUDIT_MARGIN",
    "BOND_FLOORS",
    "CHECK_GAS",
    "NEW_FACTOR",
    "SURE",
    "Audit",
    "allowance",
    "audit_of",
    "audit_paid_for",
    "average_cost",
    "bond_floor",
    "check_fee",
    "check_floor",
    "contribution",
    "gas_paid_for",
    "gas_price_of",
    "is_backed",
    "is_hit",
    "samples_of",
]

SURE: Final = 10**18
"""The probability 1."""
AUDIT_MARGIN: Final = (10, 1)
"""4 / h with h = 0.4, the chance that a drawn audit meets an honest verifier: a = 10 W / S."""
BOND_FLOORS: Final = 750
"""300 / h: a worker's bond is so many floors of a check at least. So what audits cost follows the price."""
NEW_FACTOR: Final = 4
"""A worker that is new, or had a recent fault, is audited so much more often. Its least bond grows too."""
CHECK_GAS: Final = 400_000 + 600_000 + 300_000
"""Gas of a check: seal, reveal, and a seat that is declined."""
BACKED_PARTS: Final = (3, 4)
"""A worker whose bond has fallen below this part of its floor proves no more windows."""
GAS_PRICE_FACTOR: Final = 4
"""The floor pays gas at so many times the base fee of the match."""
FUND_NUMERATOR: Final = 11
FUND_NUMERATOR_BELOW: Final = 12
FUND_DENOMINATOR: Final = 10
"""A window pays 1.1 times what its audit costs on average, 1.2 times while the fund is below its float."""
_CHANCE_BITS: Final = 256


class Audit(NamedTuple):
    """The probability of an audit in parts of ``SURE``, and how many verifiers are drawn then."""

    chance: int
    verifiers: int


def audit_of(charge: int, bond: int, *, is_new: bool, parameters: TaskParameters) -> Audit:
    """Return how a window at the price ``charge`` of a worker with ``bond`` is audited (R29).

    ``p.audit_bps`` is the least probability. Two verifiers are drawn exactly where the price alone makes an audit
    certain. A worker without a bond is always audited.
    """
    numerator, denominator = AUDIT_MARGIN
    factor = numerator * (NEW_FACTOR if is_new else 1)
    chance = SURE if bond <= 0 else min(SURE, -(-SURE * factor * charge // (denominator * bond)))
    verifiers = parameters.verifiers_sure if chance == SURE else parameters.verifiers
    return Audit(max(chance, SURE * parameters.audit_bps // BPS), max(parameters.verifiers, verifiers))


def is_hit(chance: int, lot: bytes) -> bool:
    """Tell whether ``lot``, 32 bytes that nobody chose, says that a window is audited."""
    return int.from_bytes(lot, "big") * SURE < chance << _CHANCE_BITS


def samples_of(segments: int, verifiers: int, parameters: TaskParameters) -> int:
    """Return how many of a window's segments each of its verifiers runs again.

    All of them together ``p.samples``, and at most 1/32 of the window. At least one each: where a window has fewer
    than 32 segments for each verifier, more than 1/32 of it is run again.
    """
    room = segments // (parameters.segments_per_sample * verifiers)
    return min(segments, max(1, min(parameters.samples // verifiers, room)))


def check_floor(base_fee: int, parameters: TaskParameters) -> int:
    """Return F0, the floor of one check: its gas at four times the base fee of the match, and the least pay."""
    return GAS_PRICE_FACTOR * base_fee * CHECK_GAS + parameters.check_fee_min


def check_fee(base_fee: int, rerun: int, parameters: TaskParameters) -> int:
    """Return F: what a verifier is paid that runs work again which costs ``rerun`` at the task's price."""
    return check_floor(base_fee, parameters) + rerun


def gas_price_of(matched: int) -> int:
    """Return the base fee up to which a check's floor pays its gas: four times ``matched``, that of the match."""
    return GAS_PRICE_FACTOR * matched


def is_backed(bond: int, floor: int) -> bool:
    """Tell whether a worker that has lost a part of its bond may prove windows: with three quarters of the floor.

    So the audits of its windows are at most 4/3 as probable as with the floor, which is what windows pay for.
    """
    return BACKED_PARTS[1] * bond >= BACKED_PARTS[0] * floor


def bond_floor(base_fee: int, *, is_new: bool, parameters: TaskParameters) -> int:
    """Return the least bond of a worker matched at ``base_fee``: 300 F0 / h, four times that if it is new."""
    return BOND_FLOORS * (NEW_FACTOR if is_new else 1) * check_floor(base_fee, parameters)


def average_cost(audit: Audit, fee: int) -> int:
    """Return a v F: what the audit of a window costs on average, where a verifier is paid ``fee``."""
    return -(-audit.chance * audit.verifiers * fee // SURE)


def contribution(cost: int, *, is_below: bool) -> int:
    """Return what a window pays into the check fund: 1.1 a v F, 1.2 while the fund ``is_below`` its float."""
    numerator = FUND_NUMERATOR_BELOW if is_below else FUND_NUMERATOR
    return -(-numerator * cost // FUND_DENOMINATOR)


def _fee_paid_for(audit: Audit, most: int) -> int:
    """Return the highest fee of a verifier of which a window that pays ``most`` bears the average."""
    shares = FUND_NUMERATOR_BELOW * audit.chance * audit.verifiers
    return FUND_DENOMINATOR * SURE * most // shares if shares else 0


def gas_paid_for(audit: Audit, fee: int, matched: int, base_fee: int, most: int) -> int:
    """Return the gas price that checks of a window are paid: that of its proof, as far as the window bears it.

    ``fee`` is what a verifier is paid at four times ``matched``, ``most`` what the window pays at most.
    """
    least = gas_price_of(matched)
    room = max(0, _fee_paid_for(audit, most) - fee) // CHECK_GAS
    return least + min(max(0, base_fee - least), room)


def audit_paid_for(usual: Audit, raised: Audit, fees: tuple[int, int], most: int) -> Audit:
    """Return the audit of a worker that became new while it works, with the bond of one that was not.

    It is ``raised`` as far as a window that pays ``most`` bears that on average, and ``usual`` at least. ``fees``
    are what a verifier is paid in each of them.
    """
    fee, fee_raised = fees
    if usual.chance == SURE or fee_raised <= _fee_paid_for(raised, most):
        return raised
    chance = FUND_DENOMINATOR * SURE * most // max(1, FUND_NUMERATOR_BELOW * usual.verifiers * fee)
    return usual._replace(chance=max(usual.chance, min(raised.chance, SURE - 1, chance)))


def allowance(price: int, segments: int, parameters: TaskParameters) -> int:
    """Return the most that a window at ``price`` pays into the check fund.

    The floors of its checks are at most 2/75 of it, because of the least bond; to that comes what is run again.
    A chain that audits more often by its parameters (``audit_bps``) has the least pay of these checks besides.
    """
    most = 0
    for verifiers in {parameters.verifiers, max(parameters.verifiers, parameters.verifiers_sure)}:
        again = samples_of(segments, verifiers, parameters) * verifiers
        floors = verifiers * AUDIT_MARGIN[0] * BPS // BOND_FLOORS
        most = max(most, floors + -(-BPS * again // segments))
    whole = -(-FUND_NUMERATOR_BELOW * share_up(price, most) // FUND_DENOMINATOR)
    forced = share_up(
        max(parameters.verifiers, parameters.verifiers_sure) * parameters.check_fee_min, parameters.audit_bps
    )
    return whole + -(-FUND_NUMERATOR_BELOW * forced // FUND_DENOMINATOR)
