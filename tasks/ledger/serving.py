"""Segments that verifiers could not fetch: juries, and workers that serve nobody (market.md R50, R51).

A jury of few decides quickly that a blob can be fetched. That it cannot costs the worker's bond. So the worker is
asked first, has a day to answer, and a jury of many decides then. Two fifths of it suffice for the worker: whoever
could fetch all that was missed has run it, and differs in a game of its own if it is forged.
"""

from __future__ import annotations

from typing import Final

from tasks.errors import NotYours, WrongPhase
from tasks.ledger.deadlines import Draw, schedule_draw
from tasks.ledger.endings import reject
from tasks.ledger.games import settle_ended
from tasks.ledger.lifecycle import NEXT_WINDOW_PHASE, Reason, WindowEvent, WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.records import Seat, WindowRecord
from tasks.ledger.settlement import fine_opening

__all__ = [
    "ENLARGED_JURY",
    "first_jurors",
    "is_enlarged",
    "is_upheld",
    "lose_unserved",
    "serve",
    "wait_for_worker",
]

ENLARGED_JURY: Final = 15
"""Jurors of a window in all, once its worker was asked to serve what was missed."""
_UPHELD_PARTS: Final = (2, 5)
"""Part of an enlarged jury that has to have fetched all. With a third of all bonds against it an honest worker
misses that in 1 of 150 such arguments, and one that serves friends alone in more than half of them."""


def is_enlarged(window: WindowRecord) -> bool:
    """Tell whether more jurors were asked for beside those of the first jury."""
    return window.unserved > 1


def first_jurors(window: WindowRecord) -> tuple[Seat, ...]:
    """Return the seats of the first jury; all seats if there was no other one."""
    return window.jurors[: window.unserved - 1] if is_enlarged(window) else window.jurors


def is_upheld(window: WindowRecord, votes: int) -> bool:
    """Tell whether ``votes`` of the jurors suffice for the worker: a majority, or a part of an enlarged jury."""
    if is_enlarged(window):
        return _UPHELD_PARTS[1] * votes >= _UPHELD_PARTS[0] * len(window.jurors)
    return 2 * votes > len(window.jurors)


def wait_for_worker(case: Case, window: WindowRecord) -> None:
    """Ask the worker to serve what a jury could not fetch; its bond is at stake."""
    case.put_window(window._replace(unserved=1))
    case.advance_window(
        window.number, WindowEvent.REDRAW, Reason.NOT_SERVED, deadline_ms=case.now + case.parameters.serve_ms
    )


def serve(case: Case, number: int, sender: bytes) -> None:
    """Take a worker's statement that it serves what was missed: more jurors are drawn, once.

    After the time of an opening it costs what a late opening costs. Raises WrongPhase, NotYours.
    """
    window, parameters = case.window(number), case.parameters
    if window.phase != WindowPhase.DOUBTED or window.unserved != 1 or window.deadline_ms <= case.now:
        raise WrongPhase(window.phase.name.lower())
    if sender != window.worker:
        raise NotYours("the sender is not the window's worker")
    asked_ms = window.deadline_ms - parameters.serve_ms
    if case.now > asked_ms + parameters.reveal_ms:
        fine_opening(case, window)
    height = case.scope.block.height
    case.advance_window(number, WindowEvent.REDRAW, Reason.SERVED, height=height, unserved=1 + len(window.jurors))
    schedule_draw(case.state, Draw(height + parameters.draw_blocks, window.task, number))


def lose_unserved(case: Case, number: int) -> None:
    """Void all windows of a worker that are not final, and burn its bond: it serves one of them to nobody.

    Proofs of a lie come first.
    """
    settle_ended(case, number)
    window = case.window(number)
    if window.phase == WindowPhase.VOID:
        return
    first = next(one for one in case.open_windows() if one.worker == window.worker)
    is_first = first.number == number and (window.phase, WindowEvent.REJECT) in NEXT_WINDOW_PHASE
    event = WindowEvent.REJECT if is_first else WindowEvent.DROP
    reject(case, first, event, Reason.NOT_SERVED, blamed=window.worker)
