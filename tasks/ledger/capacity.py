"""What a verifier owes, what it has time for, and how much lateness may cost it in a day (market.md 6.4)."""

from __future__ import annotations

from typing import Final

from state.view import Overlay, Reader
from tasks.errors import TooManyDeclines
from tasks.ledger.parameters import DAY_MS, TaskParameters
from tasks.ledger.registry import NodeRecord, load_node, require_node, save_node

__all__ = ["bounded_fine", "count_decline", "declines_left", "has_room", "owe", "settle_owed"]

ROOM_DIVISOR: Final = 2
"""Half of the time to seal is kept free for what a machine does beside."""


def has_room(parent: NodeRecord, state: Reader, height: int, work_ms: int, run_ms: int) -> bool:
    """Tell whether a machine that owes what ``parent`` says can re-run ``work_ms`` more within ``run_ms``.

    What it fetches for that has its own time. ``parent`` is its record before the block; what it was drawn for
    in this block adds to that. So the leader can neither make room nor take it by the verdicts that it lets
    in. A machine that owes nothing has room for one check of any size.
    """
    now = load_node(state, parent.address)
    owed_ms = parent.owed_ms
    if now is not None and now.drawn_height == height:
        owed_ms += now.drawn_ms
    return not owed_ms or owed_ms + work_ms <= run_ms // ROOM_DIVISOR


def owe(state: Overlay, address: bytes, height: int, check_ms: int) -> None:
    """Note that a machine was drawn in the block at ``height`` for a check that takes ``check_ms``."""
    node = require_node(state, address)
    drawn_ms = node.drawn_ms if node.drawn_height == height else 0
    save_node(
        state,
        node._replace(owed_ms=node.owed_ms + check_ms, drawn_height=height, drawn_ms=drawn_ms + check_ms),
    )


def settle_owed(state: Overlay, address: bytes, check_ms: int) -> None:
    """Note that a machine owes a check that takes ``check_ms`` no more."""
    node = require_node(state, address)
    if node.owed_ms < check_ms:
        raise AssertionError(f"node 0x{address.hex()} owes {node.owed_ms} ms, not {check_ms}")
    save_node(state, node._replace(owed_ms=node.owed_ms - check_ms))


def _today(node: NodeRecord, now_ms: int) -> NodeRecord:
    """Begin the counts of a day anew when the day of the chain's clock is another one."""
    day = now_ms // DAY_MS
    return node if node.day == day else node._replace(day=day, seat_declines=0, late_fines=0)


def declines_left(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> int:
    """Return how many seats a machine may still decline today."""
    return max(0, parameters.declines_per_day - _today(node, now_ms).seat_declines)


def count_decline(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Count a declined seat. Raises TooManyDeclines after as many as a machine may decline in a day."""
    node = _today(require_node(state, address), now_ms)
    if not declines_left(node, now_ms, parameters):
        raise TooManyDeclines(f"{node.seat_declines} seats declined today")
    save_node(state, node._replace(seat_declines=node.seat_declines + 1))


def bounded_fine(state: Overlay, address: bytes, fine: int, now_ms: int, parameters: TaskParameters) -> int:
    """Return what of a fine for lateness is taken, and count it.

    It ends at what a day may cost, and at the least bond: below that a machine is drawn for nothing. What its
    sponsor takes back counts until it has returned: no word of the sponsor ends the fines for what was drawn.
    """
    node = load_node(state, address)
    if node is None:
        return 0
    node = _today(node, now_ms)
    left_today = parameters.late_fines_per_day_max - node.late_fines
    fine = max(0, min(fine, left_today, node.bond + node.sponsored - parameters.node_bond_min))
    save_node(state, node._replace(late_fines=node.late_fines + fine))
    return fine
