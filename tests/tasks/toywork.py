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
from tasks.dispute.commitments import Question, StepRecord, start_record
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Game, Side
from tasks.dispute.moves import Move
from tasks.dispute.players import Accused, Challenger
from tasks.ledger.records import Opened, WindowRecord
from tasks.programs.program import Call, Program, Source, SourceKind
from tasks.programs.tensors import TensorType
from tasks.spec import JobSpec
from tests.tasks.dispute.toys import F4, F8, OPERATORS, Segment

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
    stores={"a": 5}, probe=6, loss=4, operators=OPERATORS,
)  # fmt: skip
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


INIT_ROOT: Final = Segment(PROGRAM, 0, 1, [DATA, struct.pack("<2f", 7.0, 1.0)]).records[0].state_root
_states[INIT_ROOT] = 0, struct.pack("<2f", 7.0, 1.0)
DATA_ROOT: Final = segment_of(INIT_ROOT, 0, 1).question().data


def toy_question(spec: JobSpec, window: WindowRecord, opened: Opened, *, needs_program: bool = True) -> Question:
    """Return what a dispute about a segment of this work asks."""
    step_from, step_to = spec.segment_range(window.number, opened.segment)
    return Question(
        program=PROGRAM, seed=b"", data=DATA_ROOT, step_from=_state_of(opened.state_root_before)[0],
        steps=min(step_to - step_from, STEPS_MAX),
        start=start_record(opened.state_root_before),
        end=StepRecord(opened.state_root_after, opened.work_digest, opened.loss_bits),
    )  # fmt: skip


def next_move(
    question: Question, game: Game, side: Side, moves: list[Move], work_digest: bytes, state_root: bytes
) -> Move | None:
    """Return the move of the side whose segment leads to these; None if nobody ran such a segment.

    A challenger is served the trace of the disputed step if it is known.
    """
    segment = _segments.get((work_digest, state_root))
    if segment is None:
        return None
    if side is Side.ACCUSED:
        with suppress(NoMove):  # it committed to something else, as another sum of losses
            return Accused(question, segment.witness()).move(game)
        return None
    theirs = _segments.get((question.end.work_digest, question.end.state_root))
    served = theirs.traces[game.step] if theirs is not None and game.step >= 0 else None
    return Challenger(question, segment.witness(), served).move(game, moves)
