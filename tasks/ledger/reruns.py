"""What two drawn machines find of segments about which a worker was silent (market.md 7.8, R27).

Silence proves nothing by itself. Both machines have to agree with each other and with a challenger. A conviction
takes three machines of different owners then, two of them drawn after the silence. What they find is no proof: it
slashes nobody that agreed, and takes no machine below the least bond.
"""

from __future__ import annotations

from tasks.ledger.disputes import DisputeEnding, DisputeRecord
from tasks.ledger.dockets import end_dispute, silent_disputes
from tasks.ledger.games import lose_bond, lose_challenge, void_silent
from tasks.ledger.open_task import Case
from tasks.ledger.records import WindowRecord
from tasks.ledger.seats import agrees
from tasks.ledger.settlement import pay_rerun
from tasks.proofs import Code, Finding

__all__ = ["RERUN_SEATS", "agreed", "settle_rerun"]

RERUN_SEATS = 2
"""Machines that run segments again after a silence. Both have to find the same."""


def agreed(window: WindowRecord) -> tuple[Finding, ...] | None:
    """Return what the drawn machines found, if it is the same; None if they differ or one is missing."""
    found = [seat.findings for seat in window.jurors]
    return found[0] if len(found) == RERUN_SEATS and found[0] is not None and found[0] == found[1] else None


def settle_rerun(case: Case, number: int, found: tuple[Finding, ...]) -> None:
    """Settle the disputes about which a worker was silent; no findings: nobody decided.

    The worker loses all of S if the machines found what a challenger had found, and not what it committed to.
    Otherwise it pays for its silence. Challengers that had found something else have lost.
    """
    window = case.window(number)
    pay_rerun(case, window)
    by_segment = {finding.segment: finding for finding in found if finding.is_computed}
    lies: list[DisputeRecord] = []
    for dispute in silent_disputes(case, window):
        finding = by_segment.get(dispute.segment)
        if finding is None:
            continue
        if not dispute.has_result_of(finding):
            ended = end_dispute(case, window, dispute, DisputeEnding.RERUN_REFUTED)
            lose_challenge(case, case.window(number), ended)
        elif _contradicts(finding, dispute):
            lies.append(dispute)
    if lies:
        lose_bond(case, case.window(number), lies[0], DisputeEnding.RERUN_WRONG)
    else:
        void_silent(case, number)


def _contradicts(finding: Finding, dispute: DisputeRecord) -> bool:
    """Tell whether the accused committed to something else: by what it opened, or by what its leaf says."""
    if dispute.opened is None:
        return finding.code is Code.DIFFERS
    return not agrees(finding, dispute.opened)
