"""A liar on the real classifier: one value of one tensor of one step is false, and all else follows from it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace, start_record
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Game, Side, begin, play, turn_of
from tasks.dispute.judge import Element, element_of
from tasks.dispute.moves import Move, Partials, ShowTrace, decode_move, encode_move
from tasks.dispute.players import Accused, Challenger, Reader
from tasks.dispute.running import SegmentRun
from tasks.programs.arrays import Arrays
from tasks.programs.errors import ElementUndefined
from tasks.programs.operators import Context
from tasks.programs.program import Program, SourceKind
from tasks.programs.running import content_of, load_tensor
from tasks.programs.tensors import ElementType, pack_values


class Job(NamedTuple):
    """What a segment starts from."""

    program: Program
    seed: bytes
    state: Mapping[str, bytes]
    data: Mapping[str, bytes]
    step_from: int
    steps: int
    model: Mapping[str, bytes] = MappingProxyType({})

    def run(self, arrays: Arrays) -> SegmentRun:
        """Run the segment honestly."""
        return SegmentRun(
            self.program, arrays, seed=self.seed, state=self.state, data=self.data, step_from=self.step_from,
            steps=self.steps, model=self.model,
        )  # fmt: skip


def false_trace(
    honest: StepTrace, arrays: Arrays, seed: bytes, tensor: int, random: Random, coarse: float = 0.0
) -> StepTrace:
    """Return a trace with one false value in ``tensor``; what follows from it is computed honestly."""
    program = honest.program
    contents = list(honest.contents)
    contents[tensor] = _false_content(honest, seed, tensor, random, coarse)
    values = [
        load_tensor(arrays, kind, content) if kind.element != ElementType.BINARY32 else arrays.from_content(
            content, "f4", kind.rows, kind.columns
        )
        for kind, content in zip(program.types, contents, strict=True)
    ]  # fmt: skip
    wrong = {tensor}
    for number, call in enumerate(program.calls, len(program.sources)):
        if number != tensor and wrong.intersection(call.inputs):
            inputs = [values[at] for at in call.inputs]
            operator = program.operators[call.operator]
            values[number] = operator.run(arrays, inputs, call.attributes, Context(honest.step, seed))
            contents[number] = content_of(arrays, program.types[number], values[number])
            wrong.add(number)
    return StepTrace(program, honest.step, contents)


def _false_content(honest: StepTrace, seed: bytes, tensor: int, random: Random, coarse: float) -> bytes:
    """Change one value; of a fold to what one more in the fold makes, so that a liar has partial folds to show."""
    kind, content = honest.program.types[tensor], honest.contents[tensor]
    row, column = random.randrange(kind.rows), random.randrange(kind.columns)
    reader = Reader(_anywhere(honest, seed), honest, Element(tensor, row, column))
    if coarse and kind.element in (ElementType.BINARY64, ElementType.INT64):
        at, form = row * kind.row_bytes + column * kind.element.size, "<d"
        if kind.element == ElementType.INT64:
            coarse, form = int(coarse), "<q"
        (value,) = struct.unpack_from(form, content, at)
        return content[:at] + struct.pack(form, value + coarse) + content[at + kind.element.size :]
    if reader.call.fold is None:
        return _changed(content, kind.element, random)
    total = reader.call.combined(reader.terms(0, reader.call.terms))
    try:
        false = pack_values(kind.element, [reader.call.value_of_fold(reader.read, total + 1)])
    except ElementUndefined:  # one more is too small to be a value: no fold that the judge takes is so wrong
        return _changed(content, kind.element, random)
    at = row * kind.row_bytes + column * kind.element.size
    return content[:at] + false + content[at + kind.element.size :]


def _anywhere(trace: StepTrace, seed: bytes) -> Question:
    """Return a question about the program of a trace: only program and seed count."""
    nowhere = start_record(bytes(32))
    return Question(trace.program, seed, b"", trace.step, 1, nowhere, nowhere)


class CleverAccused:
    """Makes the partial folds of a false fold fit its value, in a block of its choice."""

    def __init__(self, question: Question, witness: SegmentWitness, random: Random) -> None:
        self._honest = Accused(question, witness)
        self._question, self._random = question, random

    def move(self, game: Game) -> Move:
        """Return the move that is due."""
        move = self._honest.move(game)
        if not isinstance(move, Partials):
            return move
        assert game.fold is not None and game.element is not None
        call = element_of(self._question, self._question.step_from + game.step, game.element)
        values, at = list(move.values), self._random.randrange(len(move.values))
        # The false value is that of one more, so one more has to be shown, and then found again in each block.
        wanted = call.combined(values) + 1 if game.fold.total is None else game.fold.total
        adds = call.combined([1, 1]) == 2
        values[at] = values[at] + wanted - call.combined(values) if adds else wanted
        return move._replace(values=tuple(values))


def _changed(content: bytes, element: ElementType, random: Random) -> bytes:
    """Change a value in its lower bits; a zero becomes a small number."""
    size = element.size
    at = random.randrange(len(content) // size) * size
    value = bytearray(content[at : at + size])
    if element.is_integer:
        value[0] ^= 1
    elif not any(value):
        value[-1] = 0x3C
    else:
        value[random.randrange(size - 2)] ^= 1 << random.randrange(8)
    return content[:at] + bytes(value) + content[at + size :]


class Lie(NamedTuple):
    """A liar's segment, the step of the lie, and what it can show."""

    question: Question
    witness: SegmentWitness
    place: int


def lie(
    job: Job, honest: SegmentRun, arrays: Arrays, place: int, tensor: int, random: Random, coarse: float = 0.0
) -> Lie:
    """Return the segment of a liar that is honest but for one value, and goes on from what followed.

    A fraction or an integer is off by ``coarse``, if that is given: by more than roundings take.
    """
    program, known = job.program, honest.witness()
    false = false_trace(known.trace(place), arrays, job.seed, tensor, random, coarse)
    records = [false.record(known.record(place))]
    later: SegmentRun | None = None
    if place + 1 < job.steps:
        state = {name: false.contents[number] for name, number in program.stores.items()}
        later = Job(
            program, job.seed, state, job.data, job.step_from + place + 1, job.steps - place - 1, job.model
        ).run(arrays)  # fmt: skip
        # The work digest and the sum of losses go on from the false step.
        for at in range(later.steps):
            records.append(later.trace(at).record(records[-1]))

    def record(at: int) -> StepRecord:
        return known.record(at) if at <= place else records[at - place - 1]

    def trace(at: int) -> StepTrace:
        if at < place:
            return known.trace(at)
        if at == place:
            return false
        assert later is not None
        return later.trace(at - place - 1)

    return Lie(question_of(job, honest, records[-1]), SegmentWitness(record, trace), place)


def false_records(honest: SegmentRun, place: int, random: Random) -> SegmentWitness:
    """Return what a liar shows that has honest traces and, after ``place`` steps and more, false records.

    The state, the work digest or the sum of losses is false, or all of them.
    """
    known = honest.witness()
    false: dict[str, Any] = {
        "state_root": random.randbytes(32),
        "work_digest": random.randbytes(32),
        "loss_total": random.getrandbits(64),
    }
    parts = random.choice([*([part] for part in false), list(false)])

    def record(at: int) -> StepRecord:
        right = known.record(at)
        return right._replace(**{part: false[part] for part in parts}) if at >= place else right

    return SegmentWitness(record, known.trace)


def question_of(job: Job, honest: SegmentRun, end: StepRecord) -> Question:
    """Return the dispute about a segment of a job that is claimed to end so."""
    trace = honest.trace(0)
    data, model = trace.data_tree.root, trace.model_tree.root if job.program.count(SourceKind.MODEL) else b""
    return Question(job.program, job.seed, data, job.step_from, job.steps, honest.record(0), end, model)


class Played(NamedTuple):
    """A game with the bytes of its moves; ``searched`` of them found the step. ``silent`` had no move."""

    game: Game
    sizes: tuple[int, ...]
    searched: int
    silent: Side | None = None


def play_out(
    question: Question, accused: SegmentWitness, challenger: SegmentWitness, *, served: bool,
    clever: Random | None = None,
) -> Played:  # fmt: skip
    """Play a game to its end with honest software on both sides, or a clever liar's for the accused."""
    one = Accused(question, accused) if clever is None else CleverAccused(question, accused, clever)
    other = None
    game, moves, sizes, searched = begin(question), list[Move](), list[int](), 0
    while (side := turn_of(game)) is not None:
        if other is None and game.step >= 0 and side is Side.CHALLENGER:
            other = Challenger(question, challenger, accused.trace(game.step) if served else None)
        try:
            if side is Side.ACCUSED:
                move = one.move(game)
            else:
                move = (other or Challenger(question, challenger)).move(game, moves)
        except NoMove:
            return Played(game, tuple(sizes), searched, side)
        data = encode_move(move)
        game = play(question, game, side, decode_move(data))
        if isinstance(move, ShowTrace):
            searched = len(moves)
        moves.append(move)
        sizes.append(len(data))
    return Played(game, tuple(sizes), searched)
