"""The transactions of machines that run containers (market.md 5.7)."""

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
from tasks.kinds.container import CODE_MAX, LOG_BYTES_MAX, OUTPUT_BYTES_MAX, SECONDS_MAX, ExitKind
from tasks.ledger import registration
from tasks.ledger.container_ends import finish_container
from tasks.ledger.meter_records import ContainerEnd
from tasks.ledger.metering import meter_seconds
from tasks.ledger.open_task import LEDGER_ADDRESS, Case

__all__ = ["FINISH_TASK", "METER_TASK", "finish_values", "metering_rules"]

METER_TASK: Final = 0x5C
FINISH_TASK: Final = 0x5D
CaseOf = Callable[[Overlay, Context, bytes], Case]

_CALLS: Final = {
    METER_TASK: CallForm(LEDGER_ADDRESS, "meterTask(bytes32 task, uint32 elapsed)"),
    FINISH_TASK: CallForm(LEDGER_ADDRESS, "finishTask(bytes32 task, uint32 elapsed, bytes end)", nested=("end",)),
}


class _Seconds(NamedTuple):
    """A task, and the seconds of the present machine since its container began."""

    task: bytes
    seconds: int


class _End(NamedTuple):
    """The same with how the container ended; its worker is the sender."""

    task: bytes
    seconds: int
    end: ContainerEnd


def finish_values(task: bytes, seconds: int, end: ContainerEnd) -> list[Any]:
    """Return the payload of FINISH_TASK."""
    return [task, seconds, [int(end.kind), *end[1:-1]]]


def _is_place(task: bytes, seconds: int) -> bool:
    return len(task) == HASH_BYTES and 0 <= seconds <= SECONDS_MAX


def _decode_meter(payload: list[Any]) -> _Seconds:
    match payload:
        case [bytes(task), int(seconds)] if _is_place(task, seconds):
            return _Seconds(task, seconds)
        case _:
            raise DecodeError("[task, seconds] expected")


_KINDS: Final = frozenset(int(kind) for kind in ExitKind)
_WITH_CODE: Final = (ExitKind.EXITED, ExitKind.SIGNALLED)


def _is_blob(blob: bytes, size: int, most: int) -> bool:
    return 0 <= size <= most and (len(blob) == HASH_BYTES if size else not blob)


def _decode_finish(payload: list[Any]) -> _End:
    match payload:
        case [
            bytes(task), int(seconds),
            [int(kind), int(code), bytes(output), int(output_bytes), bytes(logs), int(logs_bytes)],
        ] if (
            _is_place(task, seconds) and kind in _KINDS and 0 <= code <= (CODE_MAX if kind in _WITH_CODE else 0)
            and _is_blob(output, output_bytes, OUTPUT_BYTES_MAX) and _is_blob(logs, logs_bytes, LOG_BYTES_MAX)
        ):  # fmt: skip
            return _End(
                task, seconds, ContainerEnd(ExitKind(kind), code, output, output_bytes, logs, logs_bytes, b"")
            )
        case _:
            raise DecodeError("[task, seconds, [kind, code, output, its bytes, logs, their bytes]] expected")


class _Metering:
    """The rules; ``case_of`` opens a task for the sender of a transaction."""

    def __init__(self, case_of: CaseOf) -> None:
        self._case_of = case_of

    def _as_worker(self, state: Overlay, context: Context, task: bytes) -> Case:
        case = self._case_of(state, context, task)
        if context.sender != case.record.worker:
            raise NotYours("the sender is not the task's worker")
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        return case

    def meter(self, state: Overlay, payload: _Seconds, context: Context) -> None:
        case = self._as_worker(state, context, payload.task)
        meter_seconds(case, payload.seconds)
        case.save()

    def finish(self, state: Overlay, payload: _End, context: Context) -> None:
        case = self._as_worker(state, context, payload.task)
        finish_container(case, payload.seconds, payload.end._replace(worker=context.sender))
        case.save()


def metering_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of containers."""
    metering = _Metering(case_of)
    own: tuple[Rule[Any], ...] = (
        Rule(METER_TASK, "meter_task", 320_000, _decode_meter, lambda _: 0, metering.meter),
        # The end of a task and of its escrow.
        Rule(FINISH_TASK, "finish_task", 700_000, _decode_finish, lambda _: 0, metering.finish),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
