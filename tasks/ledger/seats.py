"""Seats of a window: who checks it now, which segments, and for how long (market.md 6.4, 7.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tasks.ledger.audits import samples_of
from tasks.ledger.capacity import settle_owed
from tasks.ledger.lifecycle import WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import Opened, Seat, WindowRecord, by_verifier_key
from tasks.proofs import Code, Finding
from tasks.spec import JobSpec

__all__ = [
    "DELIVERY_PHASES",
    "JURY_PHASES",
    "SealTime",
    "agrees",
    "check_time",
    "differs",
    "dismiss",
    "finding_of",
    "has_fetched",
    "has_verdict",
    "is_checked",
    "is_jury",
    "missed_by",
    "seal_time",
    "seats_of",
    "segments_to_check",
    "with_seats",
]

DELIVERY_PHASES: Final = (WindowPhase.DEMANDED, WindowPhase.DELIVERY_SEALING, WindowPhase.DELIVERY_REVEALING)
JURY_PHASES: Final = (
    WindowPhase.DOUBTED, WindowPhase.JURY_SEALING, WindowPhase.JURY_REVEALING, *DELIVERY_PHASES,
)  # fmt: skip


class SealTime(NamedTuple):
    """The time from a draw to the seals: for fetching the states, and for everything else.

    ``work_ms`` is what the check takes on one slow core.
    """

    fetch_ms: int
    run_ms: int
    work_ms: int

    @property
    def total_ms(self) -> int:
        """From the draw to the deadline."""
        return self.fetch_ms + self.run_ms

    @property
    def owed_ms(self) -> int:
        """What the check takes on one slow core and the slowest line."""
        return self.fetch_ms + self.work_ms


def seal_time(spec: JobSpec, segments: int, parameters: TaskParameters) -> SealTime:
    """Return how long a verifier of ``segments`` segments has.

    It fetches the state before each of them, the one after the window, and a frozen model. For a data set there
    is room in the least time to run.
    """
    fetched_bytes = (segments + 1) * spec.state_limit_bytes + spec.model_bytes()
    work_ms = segments * spec.schedule.segment_steps * spec.step_ms
    run_ms = max(parameters.seal_ms_min, parameters.seal_slack * work_ms)
    return SealTime(1000 * fetched_bytes // parameters.seal_bytes_per_s, run_ms, work_ms)


def agrees(finding: Finding, opened: Opened) -> bool:
    """Tell whether a verifier found for a segment what the worker committed to."""
    return (
        finding.is_computed
        and finding.work_digest == opened.work_digest
        and finding.state_root_after == opened.state_root_after
        and finding.loss_bits == opened.loss_bits
    )


def finding_of(seat: Seat, segment: int) -> Finding | None:
    """Return what a seat found of a segment, if it revealed anything about it."""
    return next((finding for finding in seat.findings or () if finding.segment == segment), None)


def differs(seat: Seat, opened: Opened) -> bool:
    """Tell whether a seat computed something else than the worker opened."""
    finding = finding_of(seat, opened.segment)
    return finding is not None and finding.is_computed and not agrees(finding, opened)


def is_checked(window: WindowRecord) -> bool:
    """Tell whether a verifier found what the worker opened, of all that it opened."""
    return bool(window.opened) and any(
        all((found := finding_of(seat, opened.segment)) and agrees(found, opened) for opened in window.opened)
        for seat in window.verifiers
    )


def has_verdict(window: WindowRecord) -> bool:
    """Tell whether a verdict about a window stands: who has lost its game has no seat any more."""
    return any(
        agrees(found, opened)
        for opened in window.opened
        for seat in (*window.verifiers, *window.jurors)
        if (found := finding_of(seat, opened.segment)) is not None
    )


def missed_by(seats: Sequence[Seat]) -> tuple[int, ...]:
    """Return the segments that one of ``seats`` could not fetch."""
    found = (finding for seat in seats for finding in seat.findings or ())
    return tuple(sorted({finding.segment for finding in found if finding.code == Code.UNAVAILABLE}))


def has_fetched(window: WindowRecord, seat: Seat) -> bool:
    """Tell whether a seat could fetch and run all segments that were missed."""
    found = (finding_of(seat, segment) for segment in window.missed)
    return all(finding is not None and finding.is_computed for finding in found)


def is_jury(window: WindowRecord) -> bool:
    """Tell whether jurors check the window now."""
    return window.phase in JURY_PHASES


def seats_of(window: WindowRecord) -> tuple[Seat, ...]:
    """Return the seats that check the window now."""
    return window.jurors if is_jury(window) else window.verifiers


def with_seats(window: WindowRecord, seats: Sequence[Seat]) -> WindowRecord:
    """Return the window with other seats that check it now."""
    if is_jury(window):
        return window._replace(jurors=tuple(seats))
    return window._replace(verifiers=tuple(seats))


def segments_to_check(window: WindowRecord) -> tuple[int, ...]:
    """Return what the seats check now."""
    if window.phase in DELIVERY_PHASES:
        return (window.proof.segments - 1,)
    return window.rerun or window.missed if is_jury(window) else window.sampled


def check_time(case: Case, window: WindowRecord) -> SealTime:
    """Return the time of a check as the window's phase asks for it."""
    segments = len(segments_to_check(window))
    if window.phase == WindowPhase.PROVED:
        segments = samples_of(window.proof.segments, window.wanted, case.parameters)
    elif window.phase in DELIVERY_PHASES:
        segments = 0
    return seal_time(case.spec, segments, case.parameters)


def dismiss(case: Case, window: WindowRecord, seats: Sequence[Seat]) -> None:
    """Ask no more of the seats; checks that were not sealed are owed no more."""
    for seat in seats:
        key = by_verifier_key(seat.address, window.task, window.number)
        if not seat.seal and case.state.get(key) is not None:
            settle_owed(case.state, seat.address, check_time(case, window).owed_ms)
        case.state.delete(key)
