"""What a liar can send besides a wrong trace: the honest side still finds a move, and all validators agree."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

import pytest

from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace, start_record
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Ending, Game, Side, Stage, begin, play
from tasks.dispute.judge import Element, Opened, element_of
from tasks.dispute.moves import Pick, ShowRecords, ShowTrace, decode_move
from tasks.dispute.players import Accused, Challenger
from tasks.dispute.running import SegmentRun
from tasks.dispute.views import leaf_content
from tasks.programs.arrays import Arrays
from tasks.programs.builder import Builder
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import LEAF_BYTES, ElementType, TensorType, leaves_of
from tests.tasks.dispute.liars import Job, play_out, question_of
from tests.tasks.dispute.test_game import _accused, _challenger, _flip, _play
from tests.tasks.dispute.toys import Change, Segment, influential, random_program, random_sources
from tests.tasks.engines.helpers import SEED
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of
from tests.tasks.programs.test_classifier import DATA, extreme_state, program_for


def _lie() -> tuple[Segment, Segment]:
    """Return an honest segment of one step, and one in which a value that counts is false."""
    for seed in count():
        random = Random(seed)
        program = random_program(random)
        sources = random_sources(program, random)
        change = _flip(random, random.choice(influential(program)))
        honest, liar = Segment(program, 0, 1, sources), Segment(program, 0, 1, sources, {0: change})
        if honest.records[-1] != liar.records[-1]:
            return honest, liar
    raise AssertionError


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("false", [lambda content: bytes(len(content)), lambda content: content[:-1]])
def test_sources_that_a_liar_serves_are_of_no_account(source: int, false: Any) -> None:
    honest, liar = _lie()
    contents = list(liar.traces[0].contents)
    contents[source] = false(contents[source])
    served = StepTrace(liar.program, 0, contents)
    ending = _ending(honest, liar, served)
    assert ending in (Ending.ELEMENT_WRONG, Ending.ACCUSED_INCONSISTENT)


def _ending(honest: Segment, liar: Segment, served: StepTrace) -> Ending | None:
    question = liar.question()
    game, _, _ = _play(
        question, _accused(question, liar.witness()), _challenger(question, honest.witness(), served)
    )
    return game.ending


def _segment(steps: int, changes: Mapping[int, int] | None = None) -> Segment:
    """Return a segment of one program; the probe of some steps is changed, by bits to flip."""
    random = Random(5)
    program = random_program(random)

    def change(flip: int) -> Change:
        return lambda number, content: (
            bytes([content[0] ^ flip, *content[1:]]) if number == program.probe else content
        )

    falsified = {place: change(flip) for place, flip in (changes or {}).items()}
    return Segment(program, 3, steps, random_sources(program, random), falsified)


def _disputed(
    honest: Segment, records: Sequence[StepRecord], traces: Sequence[StepTrace] | None = None
) -> tuple[Game, Side | None]:
    """Play against an accused that claims these records, and has these traces."""
    question = honest.question(records[-1])
    witness = SegmentWitness(records.__getitem__, (traces or honest.traces).__getitem__)
    game, _, silent = _play(question, _accused(question, witness), _challenger(question, honest.witness()))
    return game, silent


@pytest.mark.parametrize("steps", [1, 2, 16, 17, 40])
def test_n1_a_false_end_after_right_records_is_a_broken_commitment(steps: int) -> None:
    honest = _segment(steps)
    for part in ("work_digest", "loss_total"):
        false: Any = 7 if part == "loss_total" else bytes(32)
        end = honest.records[-1]._replace(**{part: false})
        game, _ = _disputed(honest, (*honest.records[:-1], end))
        assert (game.step, game.ending) == (steps - 1, Ending.COMMITMENT_BROKEN)


def test_records_that_go_back_to_the_truth_in_the_middle_hide_nothing() -> None:
    honest = _segment(40)
    records = list(honest.records)
    for place in (*range(7, 15), *range(31, 41)):
        records[place] = records[place]._replace(work_digest=Random(place).randbytes(32))
    game, _ = _disputed(honest, records)
    # Of 3, 6, 9 and so on the ninth is the first false one; then 7.
    assert (game.step, game.ending) == (6, Ending.COMMITMENT_BROKEN)


def test_n1_a_false_probe_is_a_wrong_element_even_if_the_work_digest_fits_it() -> None:
    honest, liar = _segment(20), _segment(20, {11: 1})
    game, _ = _disputed(honest, liar.records, liar.traces)
    assert (game.step, game.ending) == (11, Ending.ELEMENT_WRONG)


def test_n1_a_probe_or_a_loss_that_does_not_lead_to_the_end_is_a_broken_commitment() -> None:
    """Also with a right end: an honest accused shows what it computed, which fits."""
    honest = _segment(1)
    question = honest.question()
    move = Accused(question, honest.witness()).move(begin(question))
    assert isinstance(move, ShowTrace)
    assert play(question, begin(question), Side.ACCUSED, move).ending is None
    broken = play(question, begin(question), Side.ACCUSED, move._replace(probe_root=bytes(32)))
    assert broken.ending is Ending.COMMITMENT_BROKEN
    other = play(question, begin(question), Side.ACCUSED, move._replace(loss=move.loss ^ 1))
    assert other.ending is Ending.ACCUSED_INCONSISTENT


@pytest.mark.parametrize("part", ["state_root", "work_digest", "loss_total"])
def test_an_accused_whose_commitment_is_not_what_it_computes_has_no_move(part: str) -> None:
    """A machine that failed once: it does not prove a lie against itself."""
    honest = _segment(3)
    false: Any = 7 if part == "loss_total" else bytes(32)
    question = honest.question(honest.records[-1]._replace(**{part: false}))
    with pytest.raises(NoMove):
        Accused(question, honest.witness()).move(begin(question))
    question = question._replace(start=question.start._replace(state_root=bytes(32)), end=honest.records[-1])
    with pytest.raises(NoMove):
        Accused(question, honest.witness()).move(begin(question))


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_a_challenger_of_a_right_segment_has_no_move(steps: int) -> None:
    honest = _segment(steps)
    question = honest.question()
    game = begin(question)
    accused, challenger = Accused(question, honest.witness()), Challenger(question, honest.witness())
    game = play(question, game, Side.ACCUSED, accused.move(game))
    with pytest.raises(NoMove):
        challenger.move(game, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "served", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["served", "on-chain"]
)
def test_a_challenger_that_leads_to_any_right_step_proves_nothing(served: bool) -> None:
    """It claims to have other records from there on, and another probe in the step."""
    honest = _segment(20)
    question = honest.question()
    for place in (0, 1, 9, 18, 19):
        lying = _segment(20, {place: 1})
        game, moves, silent = _play(
            question, _accused(question, honest.witness()),
            _challenger(question, lying.witness(), honest.traces[place] if served else None),
        )  # fmt: skip
        assert (game.step, silent) == (place, None)
        assert game.ending is Ending.ELEMENT_RIGHT, (place, game.ending, moves[-1])


def test_no_part_of_a_right_segment_ends_in_a_lie() -> None:
    """Whatever intervals a challenger picks, the trace that the accused shows is accepted."""
    honest = _segment(40)
    question = honest.question()
    reached = set()

    def search(game: Game) -> None:
        if game.stage == Stage.TRACE:
            reached.add(game.step)
        move = Accused(question, honest.witness()).move(game)  # as after a restart: it knows nothing of before
        game = play(question, game, Side.ACCUSED, move)
        assert game.ending is None
        for part in range(len(game.records) + 1 if game.stage == Stage.PICK_PART else 0):
            search(play(question, game, Side.CHALLENGER, Pick(part)))

    search(begin(question))
    assert reached == set(range(40))


def test_another_number_of_records_contradicts_the_interval() -> None:
    honest = _segment(20)
    question = honest.question()
    move = Accused(question, honest.witness()).move(begin(question))
    assert isinstance(move, ShowRecords)
    for records in (move.records[:-1], (*move.records, move.records[0])):
        game = play(question, begin(question), Side.ACCUSED, ShowRecords(records))
        assert game.ending is Ending.ACCUSED_INCONSISTENT
    game = play(question, begin(question), Side.ACCUSED, move)
    assert play(question, game, Side.CHALLENGER, Pick(15)).ending is Ending.CHALLENGER_INCONSISTENT


@pytest.mark.parametrize(
    "record",
    [
        [bytes(31), bytes(32), 0], [bytes(32), bytes(33), 0], [bytes(32), bytes(32), -1],
        [bytes(32), bytes(32), 1 << 64], [bytes(32), bytes(32)], [bytes(32), bytes(32), b""], 7,
    ],
    ids=str,
)  # fmt: skip
def test_records_of_another_form_are_no_move(record: Any) -> None:
    good: list[Value] = [bytes(32), bytes(32), (1 << 64) - 1]
    decode_move(encode([7, [good]]))
    with pytest.raises(DecodeError):
        decode_move(encode([7, [good, record]]))


def test_a_move_shows_up_to_15_records() -> None:
    good: list[Value] = [bytes(32), bytes(32), 0]
    decode_move(encode([7, [good] * 15]))
    for count_ in (0, 16):
        with pytest.raises(DecodeError):
            decode_move(encode([7, [good] * count_]))


@pytest.mark.parametrize("length", [0, 7])
def test_a_served_tensor_of_another_length_is_not_served(length: int) -> None:
    honest, liar = _lie()
    contents = list(liar.traces[0].contents)
    contents[-1] = bytes(length)
    ending = _ending(honest, liar, StepTrace(liar.program, 0, contents))
    assert ending in (Ending.ELEMENT_WRONG, Ending.ACCUSED_INCONSISTENT)


def test_bits_of_a_nan_decide_nothing() -> None:
    """A binary32 NaN changes its bits when it becomes a Python float, in some versions and not in others."""
    state = Source(SourceKind.STATE, "w", TensorType(ElementType.BINARY32, 1, 2))
    builder = Builder((state,))
    moved, values = builder.call("transpose", 0), builder.call("load", 0)
    total = builder.row_sum(values)
    stores = {"w": builder.call("store", values, attributes=(40,))}
    program = builder.program(stores, builder.call("store", total, attributes=(40,)), total)
    signalling, other = bytes.fromhex("0100807f"), bytes.fromhex("0200c07f")
    opened = Opened(program, {(0, 0): signalling + bytes(4), (moved, 0): other})
    call = element_of(_asked(program), 0, Element(moved, 0, 0))
    assert call.claimed(opened) == other
    assert call.computed(opened) is None
    opened = Opened(program, {(0, 0): bytes(8), (moved, 0): signalling})
    assert (call.claimed(opened), call.computed(opened)) == (signalling, bytes(4))


def _asked(program: Program) -> Question:
    nowhere = start_record(bytes(32))
    return Question(program, b"", b"", 0, 1, nowhere, nowhere)


class _Watched(bytes):
    """Bytes that note how much of them was read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = bytes.__getitem__(self, key)
        _Watched.read += len(found) if isinstance(found, bytes) else 1
        return found


def test_a_leaf_of_a_long_row_costs_no_copy_of_the_row() -> None:
    kind = TensorType(ElementType.BINARY64, 2, 1_000)
    content = _Watched(Random(1).randbytes(kind.size_bytes))
    _Watched.read = 0
    found = [leaf_content(kind, content, leaf) for leaf in range(kind.leaves)]
    assert _Watched.read == kind.size_bytes
    assert found == leaves_of(kind, bytes(content))
    assert len(found[62]) < LEAF_BYTES


def _diverging() -> Job:
    program = program_for(DATA, (12, 8, 8, 4), "relu", 10)
    return Job(program, SEED, extreme_state(program, b"large", (39, 99, 99)), contents_of(DATA), 0, 3)


@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
@pytest.mark.parametrize("claimed", [0.0, 2.0**39, 2.0**40, float("inf"), float("nan")])
def test_a_liar_that_goes_on_after_the_training_diverged_loses(claimed: float, served: bool) -> None:
    job, arrays = _diverging(), engine("numpy")
    honest = _run(job, arrays)
    mark = honest._mark
    assert mark is not None
    contents = [
        b"".join(struct.pack("<f", claimed) if part == mark else part for part in _words(content))
        for content in honest.trace(0).contents
    ]
    false = StepTrace(job.program, 0, contents)
    assert contents != honest.trace(0).contents
    start, later = honest.record(0), StepRecord(bytes(32), bytes(32), 0)
    records = (start, false.record(start), later, later)
    witness = SegmentWitness(records.__getitem__, lambda _place: false)
    question = question_of(job, honest, later)
    played = play_out(question, witness, honest.witness(), served=served)
    assert played.game.ending is Ending.ELEMENT_WRONG


@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
def test_nobody_commits_to_what_a_challenger_has_after_the_training_diverged(served: bool) -> None:
    """Nothing of the mark reaches this state: a liar can tell what follows from it."""
    sources = (
        Source(SourceKind.DATA, "x", TensorType(ElementType.UINT8, 1, 1)),
        Source(SourceKind.STATE, "w", TensorType(ElementType.BINARY32, 1, 2)),
    )
    builder = Builder(sources)
    values = builder.call("load", 1)
    first = builder.call("store", builder.call("multiply", values, values), attributes=(40,))
    loss = builder.row_sum(values)
    stores = {"w": builder.call("store", builder.call("load", first), attributes=(40,))}
    program = builder.program(stores, builder.call("store", loss, attributes=(60,)), loss)
    job = Job(program, SEED, {"w": struct.pack("<2f", 2.0**39, 1.0)}, {"x": b"x"}, 0, 1)
    honest = _run(job, engine("numpy"))
    marked = honest.trace(0)
    contents = list(marked.contents)
    contents[first] = bytes(len(contents[first]))
    false = StepTrace(program, 0, contents)
    assert false.after_tree.root == marked.after_tree.root
    end = false.record(honest.record(0))
    assert honest.end_record not in (end, marked.record(honest.record(0)))
    witness = SegmentWitness((honest.record(0), end).__getitem__, lambda _place: false)
    played = play_out(question_of(job, honest, end), witness, honest.witness(), served=served)
    assert played.game.ending is Ending.ELEMENT_WRONG


def _words(content: bytes) -> list[bytes]:
    return [content[at : at + 4] for at in range(0, len(content), 4)]


def _run(job: Job, arrays: Arrays) -> SegmentRun:
    return SegmentRun(
        job.program, arrays, seed=job.seed, state=job.state, data=job.data, step_from=0, steps=job.steps,
        secret=b"s" * 32,
    )  # fmt: skip
