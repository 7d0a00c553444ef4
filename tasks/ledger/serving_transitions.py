"""The transaction of a worker that serves what verifiers have missed (market.md R51)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.ledger import registration
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.serving import serve

__all__ = ["SERVE_WINDOW", "serving_rules"]

SERVE_WINDOW: Final = 0x54
SERVE_GAS: Final = 600_000
"""Gas of serve_window: the chain draws an enlarged jury for it."""
NUMBER_LIMIT: Final = 1 << 32
CaseOf = Callable[[Overlay, Context, bytes], Case]


class ServedWindow(NamedTuple):
    """A window of a task."""

    task: bytes
    window: int


def _decode_serve(payload: list[Any]) -> ServedWindow:
    match payload:
        case [bytes(task), int(window)] if len(task) == HASH_BYTES and 0 <= window < NUMBER_LIMIT:
            return ServedWindow(task, window)
        case _:
            raise DecodeError("[task, window] expected")


def serving_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kind of transaction; ``case_of`` opens a task for the sender of a transaction."""

    def apply(state: Overlay, payload: ServedWindow, context: Context) -> None:
        case = case_of(state, context, payload.task)
        serve(case, payload.window, context.sender)
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        case.save()

    call = CallForm(LEDGER_ADDRESS, "serveWindow(bytes32 task, uint32 window)")
    return (Rule(SERVE_WINDOW, "serve_window", SERVE_GAS, _decode_serve, lambda _: 0, apply, call=call),)
