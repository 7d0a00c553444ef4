"""The draws of a block: lots and verifiers of windows whose height has come, and draws that were put off (R6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from billing.prices import BPS
from tasks.ledger.deadlines import Draw, draws_due, take_draw, waits_due
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.verification import on_draw_due

__all__ = ["DRAWS_SHARE_BPS", "LOTS_PER_BLOCK", "WAITS_SHARE_BPS", "hold_draws"]

DRAWS_SHARE_BPS: Final = 7_500
"""Of the deadlines of a block, draws of verifiers at most. The rest come in the next block, with its beacon."""
WAITS_SHARE_BPS: Final = 1_250
"""Of the deadlines of a block, draws that were put off before at most: they are a part of the draws."""
LOTS_PER_BLOCK: Final = 768
"""Windows whose lot falls in a block, at most. A block of the gas target has fewer proofs, so no queue grows."""


def hold_draws(scope: Callable[[], Scope], is_full: Callable[[], bool]) -> int:
    """Hold the draws of the block until it ``is_full`` of events; return how many deadlines they count as.

    They come at their height: in a later block another beacon would decide. A lot that passes a window over looks
    at no machines, and does not count.
    """
    block, state, parameters = scope().block, scope().state, scope().parameters
    most, for_waits = (parameters.deadlines_per_block * bps // BPS for bps in (DRAWS_SHARE_BPS, WAITS_SHARE_BPS))
    waited = drawn = 0

    def hold(draw: Draw) -> bool:
        take_draw(state, draw)
        case = Case.load(scope(), draw.task)
        is_draw = on_draw_due(case, draw.window, draw.waits)
        case.save()
        return is_draw

    for draw in waits_due(state, block.height, max(1, for_waits)):
        if is_full():
            break
        hold(draw)
        waited += 1
    for draw in draws_due(state, block.height, LOTS_PER_BLOCK):
        if is_full() or drawn >= max(1, most - waited):
            break
        drawn += hold(draw)
    return waited + drawn
