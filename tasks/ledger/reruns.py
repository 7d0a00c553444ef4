"""What two drawn machines find of segments about which a side was silent (market.md 7.8, R27 and R43).

Silence proves nothing by itself. If the worker was silent, both machines have to agree with each other and with a
challenger. A conviction takes three machines of different owners then, two of them drawn after the silence. What
they find is no proof: it slashes nobody that agreed, and takes no machine below the least bond.

If a verifier was silent, the machines convict nobody. Each that computed something else than the worker opened has
a game of its own, in the place of the verifier. So one honest machine is enough, and colluding machines rob no
honest worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.dispute.game import Side
from tasks.ledger.disputes import (
    Challenger,
    DisputeEnding,
    DisputeRecord,
    load_docket,
    load_seal,
    save_docket,
)
from tasks.ledger.dockets import end_dispute, silent_disputes
from tasks.ledger.games import go_on, lose_bond, lose_challenge, open_games, void_silent
from tasks.ledger.lifecycle import Reason
from tasks.ledger.open_task import Case
from tasks.ledger.records import Seat, WindowRecord
from tasks.ledger.seats import agrees, finding_of
from tasks.ledger.serving import lose_unserved
from tasks.ledger.settlement import pay_jurors, pay_rerun
from tasks.ledger.stakes import return_challenge
from tasks.proofs import Code, Finding

__all__ = ["RERUN_SEATS", "agreed", "needs_agreement", "settle_rerun"]

RERUN_SEATS = 2
"""Machines that run segments again after a silence. If the worker was silent, both have to find the same."""


def agreed(window: WindowRecord) -> tuple[Finding, ...] | None:
    """Return what the drawn machines found, if it is the same; None if they differ or one is missing."""
    found = [seat.findings for seat in window.jurors]
    return found[0] if len(found) == RERUN_SEATS and found[0] is not None and found[0] == found[1] else None


def needs_agreement(case: Case, window: WindowRecord) -> bool:
    """Tell whether the worker was silent in a dispute: only then the drawn machines have to find the same."""
    return any(dispute.clock.side is Side.ACCUSED for dispute in silent_disputes(case, window))


def settle_rerun(case: Case, number: int, found: tuple[Finding, ...]) -> None:
    """Settle the disputes in which a side was silent. ``found`` is what the drawn machines agree on, if they do.

    A worker that was silent loses all of S if the machines found what a challenger had found, and not what it
    committed to. Otherwise it pays for its silence. Challengers that had found something else have lost.
    """
    window = case.window(number)
    seats = [seat for seat in window.jurors if seat.findings is not None]
    absent = [dispute for dispute in silent_disputes(case, window) if dispute.clock.side is Side.CHALLENGER]
    drawn = {seat.address for seat in window.verifiers}
    had_jury = any(dispute.challenger not in drawn for dispute in absent)
    refuted = _settle_absent(case, number, absent, seats)
    if needs_agreement(case, window):
        _settle_silent(case, number, found)
        return
    pay_jurors(case, window, [seat.address for seat in seats], refuted)
    _go_on(case, number, seats, had_jury=had_jury)


def _settle_absent(case: Case, number: int, absent: Sequence[DisputeRecord], seats: Sequence[Seat]) -> list[bytes]:
    """End the disputes whose challengers fell silent; return who has lost.

    Who is backed by a drawn machine loses nothing, nor does anybody if no machine could run the segment again: a
    worker that serves nobody would gain by cutting the verifier's line.
    """
    lost: list[bytes] = []
    for dispute in absent:
        results = [finding_of(seat, dispute.segment) for seat in seats]
        computed = [finding for finding in results if finding is not None and finding.is_computed]
        is_refuted = not seats or any(computed)
        if is_refuted and not any(dispute.has_result_of(finding) for finding in computed):
            ended = end_dispute(case, case.window(number), dispute, DisputeEnding.CHALLENGER_SILENT)
            lose_challenge(case, case.window(number), ended)
            lost.append(dispute.challenger)
        else:
            end_dispute(case, case.window(number), dispute, DisputeEnding.DROPPED)
    docket = load_docket(case.state, case.record.id, number)
    if absent:
        save_docket(case.state, case.record.id, number, docket._replace(rerun_from=docket.games))
    return lost


def _go_on(case: Case, number: int, seats: Sequence[Seat], *, had_jury: bool) -> None:
    """Have drawn machines that differ from the worker play, and move the window on.

    They hold a jury's seats, unless a jury still has to say whether a blob could be fetched: that comes after
    games of verifiers, and before those of jurors.
    """
    window = case.window(number)
    jurors = tuple(seats) if not window.missed or had_jury else ()
    rounds = load_docket(case.state, window.task, number).rounds
    window = window._replace(rerun=(), jurors=jurors, draws=rounds)
    case.put_window(window)
    open_games(case, window, seats)
    go_on(case, number, Reason.CHALLENGES_LOST)


def _settle_silent(case: Case, number: int, found: tuple[Finding, ...]) -> None:
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
    elif any(finding.code is Code.UNAVAILABLE for finding in found):
        lose_unserved(case, number)  # it had a day to answer
    elif window.missed:
        _ask_jury(case, number)
    else:
        void_silent(case, number)


def _ask_jury(case: Case, number: int) -> None:
    """Have a jury say whether what a verifier missed can be fetched; a false challenge is no way around that."""
    window = case.window(number)
    for dispute in silent_disputes(case, window):
        end_dispute(case, case.window(number), dispute, DisputeEnding.ACCUSED_SILENT)
        if dispute.kind is Challenger.OUTSIDER:
            seal = load_seal(case.state, window.task, number, dispute.seal)
            return_challenge(case, window, dispute.seal, seal)
    rounds = load_docket(case.state, window.task, number).rounds
    case.put_window(case.window(number)._replace(rerun=(), jurors=(), draws=rounds))
    go_on(case, number, Reason.CHALLENGES_LOST)


def _contradicts(finding: Finding, dispute: DisputeRecord) -> bool:
    """Tell whether the accused committed to something else: by what it opened, or by what its leaf says."""
    if dispute.opened is None:
        return finding.code is Code.DIFFERS
    return not agrees(finding, dispute.opened)
