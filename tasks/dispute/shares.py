"""Who gets what from a proven lie, and what a challenge costs: pure arithmetic (market.md 7.8).

All shares are of S, the liar's bond for the task. It is lost once a worker and task; the rest of its machine's
bond stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from billing.prices import share, share_up

__all__ = ["OUTSIDER_BPS", "WITNESS_BPS", "Shares", "challenge_bond", "share_out"]

ONE_VERIFIER_BPS: Final = 3_500
"""To the drawn verifier whose committed verdict differed, if it was the only one."""
EACH_VERIFIER_BPS: Final = 2_500
"""To each of two of them."""
OUTSIDER_BPS: Final = 1_000
WITNESS_BPS: Final = 500
"""To an outsider that shows leaves which do not fit: a copy of its transaction may come first."""
REQUESTER_BPS: Final = 1_000
SUCCESSORS_BPS_MAX: Final = 2_000
"""To other operators whose honest windows stood on the lost one, at cost, at most."""
BURNED_BPS_MIN: Final = 2_000
CHALLENGE_BPS: Final = 1_000
"""Bond of the first outsiders' challenges on a window."""
CHALLENGES_PER_DOUBLING: Final = 4
DOUBLINGS_MAX: Final = 64


class Shares(NamedTuple):
    """How S is divided. ``verifiers`` and ``successors`` are in the order in which they were given."""

    verifiers: tuple[int, ...]
    outsider: int
    requester: int
    costs: int
    successors: tuple[int, ...]
    burned: int

    @property
    def total(self) -> int:
        """All of it: S."""
        return (
            sum(self.verifiers) + self.outsider + self.requester + self.costs + sum(self.successors) + self.burned
        )


def share_out(
    bond: int, *, verifiers: int, has_outsider: bool, costs: int, successors: Sequence[int] = (),
    outsider_bps: int = OUTSIDER_BPS,
) -> Shares:  # fmt: skip
    """Divide ``bond`` after a proven lie.

    ``verifiers`` is how many drawn verifiers had committed to another verdict there, whatever outsiders did. With
    fewer than two of them the earliest outsider with the right root, if there is one, gets ``outsider_bps``, and
    the requester its part. ``costs`` is the gas of the winners and the re-runs, ``successors`` what honest windows
    that stood on the lost one have cost. Both are paid as far as the least burned part allows.
    """
    if bond < 0 or costs < 0 or min(successors, default=0) < 0:
        raise AssertionError("amounts are not negative")
    each = ONE_VERIFIER_BPS if verifiers == 1 else EACH_VERIFIER_BPS
    paid_verifiers = tuple(share(bond, each) for _ in range(min(verifiers, 2)))
    outsider = requester = 0
    if verifiers < 2:
        outsider = share(bond, outsider_bps) if has_outsider else 0
        requester = share(bond, REQUESTER_BPS)
    least_burned = share_up(bond, BURNED_BPS_MIN)
    left = bond - sum(paid_verifiers) - outsider - requester - least_burned
    paid_costs = min(costs, left)
    left -= paid_costs
    room = min(left, share(bond, SUCCESSORS_BPS_MAX))
    whole = sum(successors)
    paid = tuple(cost if whole <= room else cost * room // whole for cost in successors)
    burned = bond - sum(paid_verifiers) - outsider - requester - paid_costs - sum(paid)
    return Shares(paid_verifiers, outsider, requester, paid_costs, paid, burned)


def challenge_bond(bond: int, seals: int) -> int:
    """Return what the next outsider's challenge on a window costs after ``seals`` others. It doubles by fours."""
    doublings = min(seals // CHALLENGES_PER_DOUBLING, DOUBLINGS_MAX)
    return share_up(bond, CHALLENGE_BPS) << doublings
