"""What a liar can send besides a wrong trace: the honest side still finds a move, and all validators agree."""

from __future__ import annotations

import struct
from itertools import count
from random import Random
from typing import Any

import pytest

from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace
from tasks.dispute.game import Ending
from tasks.dispute.judge import Element, Opened, element_of
from tasks.dispute.running import SegmentRun
from tasks.dispute.views import leaf_content
from tasks.programs.arrays import Arrays
from tasks.programs.builder import Builder
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import LEAF_BYTES, ElementType, TensorType, leaves_of
from tests.tasks.dispute.liars import Job, play_out, question_of
from tests.tasks.dispute.test_game import _accused, _challenger, _flip, _play
from tests.tasks.dispute.toys import Segment, influential, random_program, random_sources
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
        if honest.records != liar.records:
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
    return Question(program, b"", b"", 0, 1, b"", b"", b"", 0)


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
    later = StepRecord(bytes(32), bytes(32), 0)
    witness = SegmentWitness((false.record(0), later, later), lambda _place: false)
    question = question_of(job, honest, witness.records)
    played = play_out(question, witness, honest.witness(), served=served)
    assert played.game.ending is Ending.ELEMENT_WRONG


def _words(content: bytes) -> list[bytes]:
    return [content[at : at + 4] for at in range(0, len(content), 4)]


def _run(job: Job, arrays: Arrays) -> SegmentRun:
    return SegmentRun(
        job.program, arrays, seed=job.seed, state=job.state, data=job.data, step_from=0, steps=job.steps,
        secret=b"s" * 32,
    )  # fmt: skip
