"""The reputation of machines: outcomes that count for or against one, its pauses, its doubts (market.md 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from state.primitives.receipts import Event
from state.view import Overlay, Reader
from tasks.ledger.fading import COUNT, faded
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import COOLED, NodeRecord, load_node, require_node, save_node, wake_at

__all__ = [
    "count_decline",
    "declines_in_row",
    "doubts_of",
    "draw_weight",
    "fade",
    "is_new",
    "mark_decline",
    "mark_doubt",
    "mark_failure",
    "mark_refuted",
    "mark_success",
    "reputation_milli",
]

DOUBT: Final = 2
"""What an argument about a blob adds to the doubts of both sides; each window that is verified takes one away. So
who is honest has none in the long run, unless a third of those that it meets want to give it some."""
DOUBTS_MAX: Final = 1 << 16
REFUTED_MAX: Final = 3
"""Declines in a row from which on a refuted complaint has a pause."""
DRAW_STEPS_MILLI: Final = (750, 900, 975)
"""Reputations from which on a bond counts once more in the draws of verifiers: 2, 8 and 38 good outcomes of late
without a bad one. Who is new has none of them, so a fault is not worth a new key."""


def reputation_milli(node: NodeRecord) -> int:
    """Return (good + 1) / (good + 4 bad + 2) in thousandths, of the faded counts (market.md 3.4)."""
    return 1000 * (node.good_faded + COUNT) // (node.good_faded + 4 * node.bad_faded + 2 * COUNT)


def draw_weight(node: NodeRecord, stake: int) -> int:
    """Return the weight of a verifier in a draw: bond behind it, times 1 to 4 by its reputation (market.md 6.3).

    ``stake`` is what counts of that bond. A machine that divides it among several keys has no more weight by it.
    """
    return stake * (1 + sum(reputation_milli(node) >= step for step in DRAW_STEPS_MILLI))


def fade(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> NodeRecord:
    """Bring the faded counts up to ``now_ms``."""
    good, bad = (
        faded(count, node.faded_ms, now_ms, parameters.reputation_half_life_ms)
        for count in (node.good_faded, node.bad_faded)
    )
    return node._replace(good_faded=good, bad_faded=bad, faded_ms=now_ms)


def is_new(node: NodeRecord | None, charge: int, parameters: TaskParameters) -> bool:
    """Tell whether a worker has too little of a record to be trusted with a window at the price ``charge``.

    By worth, not by number: whoever buys a record from itself pays the more for it, the more it is to gain by it.
    Windows below ``reputation_charge_min`` count by their worth too, so that work of small windows leads there.
    """
    worth = max(charge, parameters.reputation_charge_min)
    return node is None or node.proved < parameters.new_windows * worth


def mark_success(
    state: Overlay, address: bytes, charge: int, now_ms: int, parameters: TaskParameters, *, is_worker: bool
) -> None:
    """Count a verified window at the price ``charge`` in its worker's or a verifier's favour.

    It ends a row of faults or declines, what it was worth is proved, and a doubt goes; towards a reputation it
    counts only if enough was paid for it.
    """
    node = load_node(state, address)
    if node is None:
        return
    counts = charge >= parameters.reputation_charge_min
    node = fade(node, now_ms, parameters)
    node = node._replace(
        failures=0, declines=0, good=node.good + counts, good_faded=node.good_faded + counts * COUNT,
        valid_streak=node.valid_streak + counts, proved=node.proved + charge * is_worker,
        doubts=max(0, node.doubts - 1),
    )  # fmt: skip
    save_node(state, node)


def doubts_of(state: Reader, address: bytes) -> int:
    """Return the doubts that there are about a node."""
    node = load_node(state, address)
    return 0 if node is None else node.doubts


def mark_doubt(state: Overlay, address: bytes) -> None:
    """Note that the node was a side of an argument about whether a blob could be had."""
    node = load_node(state, address)
    if node is not None:
        save_node(state, node._replace(doubts=min(node.doubts + DOUBT, DOUBTS_MAX)))


def declines_in_row(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> int:
    """Return how many tasks a machine has left unstarted that still count."""
    return node.declines if now_ms - node.match_from_ms < parameters.decline_memory_ms else 0


def count_decline(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Count a task that the machine has left unstarted, without a pause: it has paid for it."""
    node = require_node(state, address)
    declines = declines_in_row(node, now_ms, parameters) + 1
    save_node(state, node._replace(declines=declines, match_from_ms=max(node.match_from_ms, now_ms)))


def mark_decline(state: Overlay, address: bytes, now_ms: int, held_ms: int, parameters: TaskParameters) -> None:
    """Offer the node no task for a while: it left one that it had kept for ``held_ms`` and not started.

    That is nobody's fault and no mark against it: a machine may lack the room, or the job may not fit itself. The
    pause follows what it cost the task, and doubles while that repeats.
    """
    node = load_node(state, address)
    if node is None:
        return
    declines = declines_in_row(node, now_ms, parameters)
    pause_ms = (parameters.decline_ms + held_ms) << min(declines, parameters.decline_doublings_max)
    node = node._replace(declines=declines + 1, match_from_ms=max(node.match_from_ms, now_ms + pause_ms))
    save_node(state, node)
    wake_at(state, node, node.match_from_ms)


def mark_refuted(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Count a task whose inputs the node could not have, and others could: a pause from the third in a row on."""
    node = load_node(state, address)
    if node is None:
        return
    declines = declines_in_row(node, now_ms, parameters) + 1
    doublings = min(declines - REFUTED_MAX, parameters.decline_doublings_max)
    pause_ms = parameters.decline_ms << doublings if doublings >= 0 else 0
    node = node._replace(declines=declines, match_from_ms=max(node.match_from_ms, now_ms + pause_ms))
    save_node(state, node)
    if pause_ms:
        wake_at(state, node, node.match_from_ms)


def mark_failure(
    state: Overlay, address: bytes, now_ms: int, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Count a fault of the node: reputation, and a pause that doubles with each fault in a row."""
    node = load_node(state, address)
    if node is None:
        return
    pause_ms = parameters.cool_down_ms << min(node.failures, parameters.cool_down_doublings_max)
    node = fade(node, now_ms, parameters)
    node = node._replace(
        bad=node.bad + 1, bad_faded=node.bad_faded + COUNT, valid_streak=0, proved=0, failures=node.failures + 1,
        cool_down_until_ms=now_ms + pause_ms,
    )  # fmt: skip
    save_node(state, node)
    wake_at(state, node, node.cool_down_until_ms)
    emit(COOLED(address, node.cool_down_until_ms, node.failures))
