"""The transactions of machines that run a container together with others (market.md 5.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.errors import NotYours
from tasks.kinds.container import SECONDS_MAX
from tasks.ledger import registration
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.quorums import reveal_output, seal_output

__all__ = ["REVEAL_OUTPUT", "SEAL_OUTPUT", "quorum_rules"]

SEAL_OUTPUT: Final = 0x5B
REVEAL_OUTPUT: Final = 0x5E
CaseOf = Callable[[Overlay, Context, bytes], Case]


class _Sealed(NamedTuple):
    """A task, the seconds of its container, and the seal over its result."""

    task: bytes
    seconds: int
    seal: bytes


class _Revealed(NamedTuple):
    """A task, the result of its container, and the salt of the seal."""

    task: bytes
    result: bytes
    salt: bytes


def _decode_seal(payload: list[Any]) -> _Sealed:
    match payload:
        case [bytes(task), int(seconds), bytes(seal)] if (
            len(task) == len(seal) == HASH_BYTES and 0 <= seconds <= SECONDS_MAX
        ):
            return _Sealed(task, seconds, seal)
        case _:
            raise DecodeError("[task, seconds, seal] expected")


def _decode_reveal(payload: list[Any]) -> _Revealed:
    match payload:
        case [bytes(task), bytes(result), bytes(salt)] if len(task) == len(result) == len(salt) == HASH_BYTES:
            return _Revealed(task, result, salt)
        case _:
            raise DecodeError("[task, result, salt] expected")


def quorum_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of quorums. ``case_of`` opens a task for the sender of a transaction."""

    def as_worker(state: Overlay, context: Context, task: bytes) -> Case:
        case = case_of(state, context, task)
        if context.sender != case.record.worker:
            raise NotYours("the sender is not the task's worker")
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        return case

    def seal(state: Overlay, payload: _Sealed, context: Context) -> None:
        case = as_worker(state, context, payload.task)
        seal_output(case, payload.seconds, payload.seal)
        case.save()

    def reveal(state: Overlay, payload: _Revealed, context: Context) -> None:
        case = as_worker(state, context, payload.task)
        reveal_output(case, payload.result, payload.salt)
        case.save()

    return (
        Rule(
            SEAL_OUTPUT, "seal_output", 350_000, _decode_seal, lambda _: 0, seal,
            call=CallForm(LEDGER_ADDRESS, "sealOutput(bytes32 task, uint32 elapsed, bytes32 seal)"),
        ),
        Rule(
            REVEAL_OUTPUT, "reveal_output", 200_000, _decode_reveal, lambda _: 0, reveal,
            call=CallForm(LEDGER_ADDRESS, "revealOutput(bytes32 task, bytes32 result, bytes32 salt)"),
        ),
    )  # fmt: skip
