"""Work of the model market: segments of a program of four calls, which honest software can dispute about.

What a segment leads to follows from the root that it starts from. Both sides of a dispute find their segments here
by what they had committed to. A lie falsifies the last step; every liar tells the same one.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import lru_cache
from typing import Final

from state.primitives.hashing import digest
from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace, start_record
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Game, Side
from tasks.dispute.moves import Move
from tasks.dispute.players import Accused, Challenger
from tasks.ledger.questions import diverged_in
from tasks.ledger.records import Opened, WindowRecord
from tasks.programs.divergence import Divergence, diverged_root, extend_diverged
from tasks.programs.errors import ElementDiverged
from tasks.programs.program import Call, Program, Source, SourceKind
from tasks.programs.tensors import Number, TensorType
from tasks.spec import JobSpec
from tests.tasks.dispute.toys import F4, F8, OPERATORS, Elementwise, Segment, compute

LIMIT: Final = 1e6
"""A store diverges from there on. What stands for a state that nobody computed is far below."""


def _stored(value: Number) -> float:
    if abs(value) >= LIMIT:
        raise ElementDiverged(f"{value!r} is not below {LIMIT}")
    return float(value)


STEPS_MAX: Final = 3
"""Steps that are computed of a segment, however long it is; they have numbers of their own."""
PROGRAM: Final = Program(
    sources=(
        Source(SourceKind.DATA, "x", TensorType(F8, 1, 2)),
        Source(SourceKind.STATE, "a", TensorType(F4, 1, 2)),
    ),
    calls=(
        Call("load", (1,), ()), Call("add", (2, 0), ()), Call("corner", (3,), ()), Call("store", (3,), ()),
        Call("store", (2,), ()),
    ),
    stores={"a": 5}, probe=6, loss=4, operators={**OPERATORS, "store": Elementwise("store", 1, F4, _stored)},
)  # fmt: skip
STORE: Final = 5
"""The store that may diverge: that of the state."""
DATA: Final = struct.pack("<2d", 0.5, 0.25)
SUM: Final = 3
"""The tensor in which a liar's value is false."""
_states: dict[bytes, tuple[int, bytes]] = {}
"""By root: the number of the step before which it stands, and its content."""
_segments: dict[tuple[bytes, bytes], Segment] = {}


def _state_of(root: bytes) -> tuple[int, bytes]:
    """Return the state under a root; of a root that no segment led to, what stands for it."""
    number = int.from_bytes(digest(b"toy-state", root)[:2], "big")
    return _states.get(root, (0, struct.pack("<2f", number, 1.0)))


def _lie(tensor: int, content: bytes) -> bytes:
    first, second = struct.unpack("<2d", content) if tensor == SUM else (0.0, 0.0)
    return struct.pack("<2d", first + 1.0, second) if tensor == SUM else content


@lru_cache(maxsize=1 << 14)
def segment_of(before: bytes, step_from: int, step_to: int, *, lie: bool = False) -> Segment:
    """Return the segment that begins at the root ``before``."""
    steps = min(step_to - step_from, STEPS_MAX)
    number, content = _state_of(before)
    segment = Segment(PROGRAM, number, steps, [DATA, content], {steps - 1: _lie} if lie else None)
    end = segment.records[-1]
    _states[end.state_root] = number + steps, segment.traces[-1].contents[PROGRAM.stores["a"]]
    _segments[end.work_digest, end.state_root] = segment
    return segment


def end_of(before: bytes, step_from: int, step_to: int, *, lie: bool = False) -> StepRecord:
    """Return where a segment leads."""
    return segment_of(before, step_from, step_to, lie=lie).records[-1]


class Diverged:
    """A segment that is claimed to diverge in its last step, as one side ran it: truly or not."""

    def __init__(
        self, before: bytes, step_from: int, step_to: int, store: int = STORE, *, forged: bool = False
    ) -> None:
        steps = min(step_to - step_from, STEPS_MAX)
        number, content = _state_of(before)
        earlier = Segment(PROGRAM, number, steps - 1, [DATA, content]) if steps > 1 else None
        if earlier is not None:
            content = earlier.traces[-1].contents[PROGRAM.stores["a"]]
        last = compute(PROGRAM, number + steps - 1, [DATA, content], _forge if forged else None, store)
        traces = [*(earlier.traces if earlier else []), last]
        records = earlier.records if earlier else (start_record(before),)
        _states[records[-1].state_root] = number + steps - 1, content
        self.claim: Final = Divergence(step_to - 1, store, 0, 0, records[-1].state_root)
        work = extend_diverged(records[-1].work_digest, last.trace_tree.root)
        self.end: Final = StepRecord(diverged_root(self.claim), work, records[-1].loss_total)
        self.witness: Final = SegmentWitness((*records, self.end).__getitem__, traces.__getitem__)
        self.is_true: Final = abs(struct.unpack("<2d", last.contents[SUM])[0]) >= LIMIT and not forged
        _claims[self.end.work_digest, self.end.state_root] = self


def _forge(tensor: int, content: bytes) -> bytes:
    return struct.pack("<2d", 2 * LIMIT, 0.0) if tensor == SUM else content


def diverging_root(steps: int) -> bytes:
    """Return the root of a state of a job from which the toy step after ``steps`` others diverges."""
    content = struct.pack("<2f", LIMIT - (steps + 1) / 2, 1.0)
    root = compute(PROGRAM, 0, [DATA, content], None, STORE).before_tree.root
    _states[root] = 0, content
    return root


def found_of(before: bytes, step_from: int, step_to: int, claim: Divergence | None) -> StepRecord:
    """Return what an honest machine finds of a segment whose last step may be claimed to diverge."""
    try:
        if claim is not None and (own := Diverged(before, step_from, step_to)).is_true:
            return own.end
        return end_of(before, step_from, step_to)
    except ElementDiverged:  # in an earlier step
        return StepRecord(bytes(32), bytes(32), 0)


_claims: dict[tuple[bytes, bytes], Diverged] = {}


def start_root(number: float) -> bytes:
    """Return the root of a state that a job starts from."""
    content = struct.pack("<2f", number, 1.0)
    root = Segment(PROGRAM, 0, 1, [DATA, content]).records[0].state_root
    _states[root] = 0, content
    return root


INIT_ROOT: Final = start_root(7.0)
DATA_ROOT: Final = segment_of(INIT_ROOT, 0, 1).question().data


def toy_question(spec: JobSpec, window: WindowRecord, opened: Opened, *, needs_program: bool = True) -> Question:
    """Return what a dispute about a segment of this work asks."""
    step_from, step_to = spec.segment_range(window.number, opened.segment)
    step_to = min(step_to, window.proof.step_to)
    return Question(
        program=PROGRAM, seed=b"", data=DATA_ROOT, step_from=_state_of(opened.state_root_before)[0],
        steps=min(step_to - step_from, STEPS_MAX),
        start=start_record(opened.state_root_before),
        end=StepRecord(opened.state_root_after, opened.work_digest, opened.loss_bits),
        diverged=diverged_in(window, opened.segment),
    )  # fmt: skip


def next_move(
    question: Question, game: Game, side: Side, moves: list[Move], work_digest: bytes, state_root: bytes
) -> Move | None:
    """Return the move of the side whose segment leads to these; None if nobody ran such a segment.

    A challenger is served the trace of the disputed step if it is known.
    """
    claimed = _claims.get((work_digest, state_root))
    segment = _segments.get((work_digest, state_root))
    if claimed is not None:
        witness = claimed.witness
    elif segment is not None:
        witness = _against(question, segment.witness())
    else:
        return None
    if side is Side.ACCUSED:
        with suppress(NoMove):  # it committed to something else, as another sum of losses
            return Accused(question, witness).move(game)
        return None
    theirs = _segments.get((question.end.work_digest, question.end.state_root))
    served = theirs.traces[game.step] if theirs is not None and game.step >= 0 else None
    return Challenger(question, witness, served).move(game, moves)


def _against(question: Question, own: SegmentWitness) -> SegmentWitness:
    """Return what a machine shows whose last step does not diverge, also against a claim that it does."""

    def trace(place: int) -> StepTrace:
        found = own.trace(place)
        return StepTrace(found.program, found.step, found.contents, question.store_at(place))

    return SegmentWitness(own.record, trace)
