"""The transactions about checkpoints of containers (market.md R103, R105, R156)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.errors import NotYours
from tasks.kinds.container import CHECKPOINT_BYTES_MAX, SECONDS_MAX
from tasks.ledger import registration
from tasks.ledger.metering import require_metered, store_checkpoint
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.progress import miss_checkpoint, refuse_checkpoint

__all__ = ["CHECKPOINT_TASK", "MISS_CHECKPOINT", "checkpoint_rules"]

CHECKPOINT_TASK: Final = 0x55
MISS_CHECKPOINT: Final = 0x56
CaseOf = Callable[[Overlay, Context, bytes], Case]

_CALLS: Final = {
    CHECKPOINT_TASK: CallForm(
        LEDGER_ADDRESS, "checkpointTask(bytes32 task, uint32 elapsed, bytes blob, uint64 size)"
    ),
    MISS_CHECKPOINT: CallForm(LEDGER_ADDRESS, "missCheckpoint(bytes32 task, bytes32 blob)"),
}


class _Named(NamedTuple):
    """A task, the seconds of its machine that a checkpoint holds, its content address and its bytes.

    A folder that cannot be stored has no address and no bytes.
    """

    task: bytes
    seconds: int
    blob: bytes
    size_bytes: int


class _Missed(NamedTuple):
    """A task, and the checkpoint that its machine cannot have, or that its requester refuses."""

    task: bytes
    blob: bytes


def _decode_named(payload: list[Any]) -> _Named:
    match payload:
        case [bytes(task), int(seconds), bytes(blob), int(size)] if (
            len(task) == HASH_BYTES and 0 < seconds <= SECONDS_MAX and 0 <= size <= CHECKPOINT_BYTES_MAX
            and len(blob) == (HASH_BYTES if size else 0)
        ):  # fmt: skip
            return _Named(task, seconds, blob, size)
        case _:
            raise DecodeError("[task, seconds, checkpoint, its bytes] expected")


def _decode_missed(payload: list[Any]) -> _Missed:
    match payload:
        case [bytes(task), bytes(blob)] if len(task) == len(blob) == HASH_BYTES:
            return _Missed(task, blob)
        case _:
            raise DecodeError("[task, checkpoint] expected")


class _Checkpoints:
    """The rules; ``case_of`` opens a task for the sender of a transaction."""

    def __init__(self, case_of: CaseOf) -> None:
        self._case_of = case_of

    def _as_worker(self, state: Overlay, context: Context, task: bytes) -> Case:
        case = self._case_of(state, context, task)
        if context.sender != case.record.worker:
            raise NotYours("the sender is not the task's worker")
        require_metered(case)
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        return case

    def store(self, state: Overlay, payload: _Named, context: Context) -> None:
        case = self._as_worker(state, context, payload.task)
        store_checkpoint(case, payload.seconds, payload.blob, payload.size_bytes)
        case.save()

    def miss(self, state: Overlay, payload: _Missed, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        if context.sender == case.record.requester and context.sender != case.record.worker:
            require_metered(case)
            refuse_checkpoint(case, payload.blob)
        else:
            case = self._as_worker(state, context, payload.task)
            miss_checkpoint(case, payload.blob)
        case.save()


def checkpoint_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions about checkpoints."""
    rules = _Checkpoints(case_of)
    own: tuple[Rule[Any], ...] = (
        # What waits is paid, to relays too, and seconds are counted.
        Rule(CHECKPOINT_TASK, "checkpoint_task", 500_000, _decode_named, lambda _: 0, rules.store),
        # A machine is replaced; or its requester refuses, and the task may end.
        Rule(MISS_CHECKPOINT, "miss_checkpoint", 500_000, _decode_missed, lambda _: 0, rules.miss),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
