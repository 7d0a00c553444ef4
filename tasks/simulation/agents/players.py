"""How a side of a dispute finds its move: honest software, on what its owner computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tasks.dispute.commitments import SegmentWitness
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Side
from tasks.dispute.moves import Move
from tasks.dispute.players import Accused, Challenger
from tasks.dispute.records import decode_game
from tasks.ledger.disputes import DisputeRecord
from tasks.ledger.queries import DisputeDuty
from tasks.simulation.actions import Action
from tasks.simulation.market import BLOCK_MS, View
from tasks.simulation.segments import question_of
from tasks.simulation.work import OffChain

__all__ = ["FALSE_WAYS", "false_play", "move_of"]

FALSE_WAYS: Final = ("prompt", "slow", "silent", "resumes")
"""How a false challenger plays: at once, at the last moment, never, or never but for one resumption."""


def move_of(
    view: View, off: OffChain, duty: DisputeDuty, dispute: DisputeRecord, secret: bytes = b""
) -> Move | None:  # fmt: skip
    """Return the move that is due in a game that has begun, or None if there is none for this side.

    The accused stands for what it claimed. The challenger stands for the truth, or with a ``secret`` for its own
    forgery of the segment.
    """
    opened = dispute.opened
    assert opened is not None, "the accused opens the segment first"
    job = view.job(duty.task)
    step_from, _ = job.segment_range(duty.window, duty.segment)
    question = question_of(job, view.window(duty.task, duty.window), opened)
    before = opened.state_root_before
    game, claim = decode_game(dispute.game), question.diverged
    try:
        if claim is not None:  # nothing diverges here, so who claims it shows that to be false
            honest = off.run(job, duty.task, before, step_from, secret).under(claim)
            if duty.side is Side.ACCUSED:
                stands = SegmentWitness((honest.start, question.end).__getitem__, honest.witness().trace)
                return Accused(question, stands).move(game)
            return Challenger(question, honest.witness()).move(game, view.dispute_moves(duty))
        theirs = off.claimed(job, duty.task, before, step_from, opened.state_root_after)
        if duty.side is Side.ACCUSED:
            return Accused(question, theirs.witness()).move(game)
        own = off.run(job, duty.task, before, step_from, secret).witness()
        return Challenger(question, own, theirs.trace).move(game, view.dispute_moves(duty))
    except NoMove:
        return None


def false_play(
    view: View, off: OffChain, sender: bytes, duty: DisputeDuty, way: str, secret: bytes,
    wait: Callable[[int], None],
) -> list[Action]:  # fmt: skip
    """Return what a challenger does in one of ``FALSE_WAYS`` that claims its own forgery of the segment."""
    dispute = view.dispute(duty)
    if duty.resume_price is not None:
        return [view.resume_dispute(sender, duty)] if way == "resumes" else []
    if way in ("silent", "resumes") or dispute.opened is None:
        return []
    last_ms = duty.deadline_ms - 2 * BLOCK_MS
    if way == "slow" and view.time_ms < last_ms:
        wait(last_ms)
        return []
    move = move_of(view, off, duty, dispute, secret)
    return [] if move is None else [view.move(sender, duty, move)]
