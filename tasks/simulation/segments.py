"""Segments as a model: a program of one step, so that a dispute about a segment is played by honest software.

A state is 32 bytes, and the state after a segment a hash of it. Who ran a segment knows that hash, and the probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from state.primitives.hashing import digest
from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace, start_record
from tasks.ledger.questions import diverged_in
from tasks.ledger.records import Opened, WindowRecord
from tasks.programs.bounds import Bounds
from tasks.programs.divergence import Divergence, diverged_root, extend_diverged
from tasks.programs.operators import Attributes, Context, Operator, Read
from tasks.programs.program import Call, Program, Source, SourceKind
from tasks.programs.states import data_root, state_root
from tasks.programs.tensors import ElementType, Number, TensorType, pack_values, tensor_root
from tasks.spec import JobSpec

__all__ = [
    "INIT_ROOT",
    "INIT_STATE",
    "STORE",
    "SegmentModel",
    "next_state",
    "question_of",
    "root_of",
    "segment_number",
]

_STATE: Final = TensorType(ElementType.INT64, 1, 4)
_LOSS: Final = TensorType(ElementType.BINARY64, 1, 1)
_WORD: Final = 8


@dataclass(frozen=True)
class _Hash:
    """An operator on a state: each value follows from the whole of it."""

    name: str
    result: TensorType
    function: Callable[[bytes, Context], bytes]

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        return self.result

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        return output.values

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        raise NotImplementedError

    def run(self, arrays: Any, inputs: Sequence[Any], attributes: Attributes, context: Context) -> Any:
        raise NotImplementedError

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        words = [read(0, 0, at) for at in range(_STATE.columns)]
        value = self.function(pack_values(ElementType.INT64, words), context)
        if self.result == _LOSS:
            return float(value[0])
        return int.from_bytes(value[column * _WORD : (column + 1) * _WORD], "little", signed=True)


def _advance(content: bytes, context: Context) -> bytes:
    return digest(b"sim-state", context.seed + content + context.step.to_bytes(8, "big"))


def _probe(content: bytes, _context: Context) -> bytes:
    return digest(b"sim-probe", content)


def _same(content: bytes, _context: Context) -> bytes:
    return content


_OPERATORS: Final[Mapping[str, Operator]] = {
    operator.name: operator
    for operator in (
        _Hash("advance", _STATE, _advance),
        _Hash("loss", _LOSS, _same),
        _Hash("store", _STATE, _same),
        _Hash("probe", _STATE, _probe),
    )
}
_PROGRAM: Final = Program(
    sources=(Source(SourceKind.STATE, "x", _STATE), Source(SourceKind.DATA, "d", _LOSS)),
    calls=(Call("advance", (0,), ()), Call("loss", (2,), ()), Call("store", (2,), ()), Call("probe", (2,), ())),
    stores={"x": 4}, probe=5, loss=3, operators=_OPERATORS,
)  # fmt: skip
_DATA: Final = bytes(8)
_DATA_ROOT: Final = data_root({"d": (_LOSS, tensor_root(_LOSS, _DATA))})
INIT_STATE: Final = bytes(32)
STORE: Final = 4
"""The store of the program."""


def root_of(number: int, state: bytes) -> bytes:
    """Return the root of a state before the segment with this number in its job."""
    return state_root(number, {"x": (_STATE, tensor_root(_STATE, state))})


INIT_ROOT: Final = root_of(0, INIT_STATE)


def segment_number(job: JobSpec, step_from: int) -> int:
    """Return the number of a segment in its job."""
    return step_from // job.schedule.segment_steps


def next_state(task: bytes, number: int, state: bytes) -> bytes:
    """Return the state that running a segment leads to."""
    return _advance(state, Context(number, task))


class SegmentModel:
    """A segment that leads from one state to another, as its author claims: right or forged."""

    def __init__(
        self, task: bytes, number: int, before: bytes, after: bytes, claim: Divergence | None = None
    ) -> None:
        """With ``claim`` its author shows it as the step that is claimed to diverge: none here does."""
        context = Context(number, task)
        contents = [before, _DATA, after, b"", after, _probe(after, context)]
        contents[_PROGRAM.loss] = pack_values(ElementType.BINARY64, [float(after[0])])
        self.trace: Final = StepTrace(_PROGRAM, number, contents, None if claim is None else claim.store)
        self.start: Final = start_record(self.trace.before_tree.root)
        self.end: Final = self.trace.record(self.start)
        self._parts: Final = task, number, before, after

    def under(self, claim: Divergence) -> SegmentModel:
        """Return what this machine shows where the segment is claimed to diverge."""
        return SegmentModel(*self._parts, claim)

    def claimed(self, claim: Divergence) -> StepRecord:
        """Return where the claimant says to stand, whose results are those of this segment."""
        work = extend_diverged(self.start.work_digest, self.under(claim).trace.trace_tree.root)
        return StepRecord(diverged_root(claim), work, self.start.loss_total)

    def witness(self) -> SegmentWitness:
        """Return what its author can show."""
        return SegmentWitness((self.start, self.end).__getitem__, (self.trace,).__getitem__)


def question_of(spec: JobSpec, window: WindowRecord, opened: Opened, *, needs_program: bool = True) -> Question:
    """Return what a dispute about a segment asks: its one step."""
    step_from, _ = spec.segment_range(window.number, opened.segment)
    return Question(
        program=_PROGRAM,
        seed=window.task,
        data=_DATA_ROOT,
        step_from=segment_number(spec, step_from),
        steps=1,
        start=start_record(opened.state_root_before),
        end=StepRecord(opened.state_root_after, opened.work_digest, opened.loss_bits),
        diverged=diverged_in(window, opened.segment),
    )
