"""A claim that a step diverges: true ones stand against anybody, false ones lose to one honest machine."""

from __future__ import annotations

from functools import cache
from math import isfinite
from random import Random
from typing import Any, NamedTuple

import pytest

from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace
from tasks.dispute.errors import MoveRefused
from tasks.dispute.game import Ending, Side, Stage, begin, play
from tasks.dispute.moves import Ask, Name, ShowDiverged, ShowTrace, Tree, decode_move, encode_move
from tasks.dispute.players import Accused
from tasks.dispute.running import SegmentRun
from tasks.engines.arrays import NumpyArrays
from tasks.engines.errors import Diverged
from tasks.engines.training import Trainer, initial_state
from tasks.programs.divergence import (
    Divergence,
    diverged_root,
    divergence_from_value,
    divergence_to_value,
    extend_diverged,
    is_store,
)
from tasks.programs.errors import StoreDiverged
from tasks.programs.tensors import pack_values
from tasks.spec import classifier_plan
from tests.tasks.dispute.liars import Job, Played, play_out
from tests.tasks.dispute.test_attacks import _diverging
from tests.tasks.executor.helpers import DATA
from tests.tasks.executor.helpers import make_diverging as diverging_spec
from tests.tasks.programs.engines import engine

ARRAYS = engine("numpy")
SECRET = b"s" * 32
STEP_FROM, STEP = 8, 10
"""Where the segment begins, and its last step, which diverges."""
served = pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])


class Case(NamedTuple):
    """A segment whose last step diverges, as honest machines run it."""

    job: Job
    claim: Divergence
    honest: SegmentRun
    """By its worker."""


@cache
def case() -> Case:
    spec = diverging_spec()
    trainer = Trainer(classifier_plan(spec), DATA, NumpyArrays(), initial_state(classifier_plan(spec)))
    trainer.run_steps(STEP_FROM)
    state = dict(trainer.state().tensors)
    job = Job(spec.program(), spec.seed, state, DATA.contents, STEP_FROM, STEP + 1 - STEP_FROM)
    found = run(job, Divergence(STEP, 0, 0, 0, bytes(32)), None).divergence
    assert found is not None
    return Case(job, found, run(job, found, None))


def run(job: Job, claim: Divergence | None, secret: bytes | None = SECRET) -> SegmentRun:
    return SegmentRun(
        job.program, ARRAYS, seed=job.seed, state=job.state, data=job.data, step_from=job.step_from,
        steps=job.steps, secret=secret, claimed=claim,
    )  # fmt: skip


def question(job: Job, honest: SegmentRun, claim: Divergence, end: StepRecord) -> Question:
    data = honest.trace(0).data_tree.root
    return Question(job.program, job.seed, data, job.step_from, job.steps, honest.record(0), end, diverged=claim)


def test_the_worker_finds_the_first_value_of_the_first_store_without_one() -> None:
    job, claim, honest = case()
    assert claim.step == STEP and claim.state_before == honest.record(job.steps - 1).state_root
    assert is_store(job.program, claim.store, claim.row, claim.column)
    trace, last = run(job, claim).trace(job.steps - 1), job.steps - 1
    assert trace.traced == range(len(job.program.sources), claim.store)
    end = StepRecord(
        diverged_root(claim),
        extend_diverged(honest.record(last).work_digest, trace.trace_tree.root),
        honest.record(last).loss_total,
    )
    assert honest.end_record == end
    with pytest.raises(StoreDiverged, match=f"tensor {claim.store}"):
        run(job, None, None)
    spec = diverging_spec()
    with pytest.raises(Diverged) as raised:
        Trainer(classifier_plan(spec), DATA, NumpyArrays(), initial_state(classifier_plan(spec))).run_steps(40)
    assert raised.value.step == STEP + 1


def test_a_verifier_that_runs_the_segment_finds_the_same_and_nothing_else() -> None:
    """Also of a claim with another store: what it finds does not depend on what is claimed."""
    job, claim, honest = case()
    for other in (claim, claim._replace(store=claim.store + 1), claim._replace(store=20)):
        assert run(job, other).end_record == honest.end_record
        assert run(job, other).divergence == claim
    shorter = job._replace(steps=job.steps - 1)
    assert run(shorter, claim).divergence is None
    assert run(shorter, claim).end_record == honest.record(job.steps - 1)
    longer = run(job._replace(steps=job.steps + 1), claim)
    assert longer.divergence is None and longer.end_record != honest.end_record


@served
def test_a_challenger_that_agrees_has_nothing_to_say(served: bool) -> None:
    job, claim, honest = case()
    played = play_out(
        question(job, honest, claim, honest.end_record), honest.witness(), run(job, claim).witness(), served=served
    )
    assert played.silent is Side.CHALLENGER


class Liar(NamedTuple):
    """One who claims what it did not compute: where it says to have stood, and its last trace."""

    claim: Divergence
    records: tuple[StepRecord, ...]
    last: StepTrace
    known: SegmentWitness

    def trace(self, place: int) -> StepTrace:
        return self.last if place == len(self.records) - 2 else self.known.trace(place)

    def against(self, job: Job, *, served: bool) -> Played:
        """Have one honest machine dispute it."""
        honest = run(job, self.claim)
        witness = SegmentWitness(self.records.__getitem__, self.trace)
        return play_out(
            question(job, honest, self.claim, self.records[-1]), witness, honest.witness(), served=served
        )


def liar(job: Job, known: SegmentRun, claim: Divergence, contents: list[bytes], **end: Any) -> Liar:
    """Return one whose records follow from ``contents`` of the last step's tensors, apart from ``end``."""
    steps = job.steps
    records = [known.record(place) for place in range(steps)]
    claim = claim._replace(state_before=records[-1].state_root)
    trace = StepTrace(job.program, job.step_from + steps - 1, contents, claim.store)
    work = extend_diverged(records[-1].work_digest, trace.trace_tree.root)
    last = StepRecord(diverged_root(claim), work, records[-1].loss_total)._replace(**end)
    return Liar(claim, (*records, last), trace, known.witness())


def sound() -> Job:
    """The same segment but for its last step: nothing in it diverges."""
    job = case().job
    return job._replace(steps=job.steps - 1)


def stores(job: Job) -> list[int]:
    return [
        number for number in range(len(job.program.sources), len(job.program.types))
        if is_store(job.program, number, 0, 0)
    ]  # fmt: skip


@served
@pytest.mark.parametrize("at", [0, 1, -1])
def test_who_claims_that_a_sound_step_diverges_shows_a_value_below_the_limit(served: bool, at: int) -> None:
    job = sound()
    honest = run(job, None, None)
    claim = Divergence(job.step_from + job.steps - 1, stores(job)[at], 0, 0, bytes(32))
    false = liar(job, honest, claim, list(honest.trace(job.steps - 1).contents))
    assert false.against(job, served=served).game.ending is Ending.COMMITMENT_BROKEN


@served
@pytest.mark.parametrize("value", [2.0**41, -(2.0**99), float("inf"), float("nan")])
def test_who_makes_up_a_value_that_diverges_has_a_wrong_element(served: bool, value: float) -> None:
    job = sound()
    honest = run(job, None, None)
    for store in stores(job)[::5]:
        call = job.program.call_of(store)
        assert call is not None
        (source,) = call.inputs
        contents = list(honest.trace(job.steps - 1).contents)
        element = job.program.types[source].element
        contents[source] = pack_values(element, [value]) + contents[source][element.size :]
        claim = Divergence(job.step_from + job.steps - 1, store, 0, 0, bytes(32))
        ending = liar(job, honest, claim, contents).against(job, served=served).game.ending
        # A value below this store's limit, or what is no number, already shows that nothing diverges.
        limit = 2.0 ** call.attributes[0]
        is_shown = isfinite(value) and abs(value) >= limit
        assert ending is (Ending.ELEMENT_WRONG if is_shown else Ending.COMMITMENT_BROKEN)


@served
def test_one_false_value_in_any_result_before_the_store_is_found(served: bool) -> None:
    job, claim, honest = case()
    marked = run(job, claim).trace(job.steps - 1)
    random = Random(7)
    for tensor in random.sample(range(len(job.program.sources), claim.store), 24):
        contents = list(marked.contents)
        at = random.randrange(len(contents[tensor]))
        contents[tensor] = contents[tensor][:at] + bytes([contents[tensor][at] ^ 1]) + contents[tensor][at + 1 :]
        ending = liar(job, honest, claim, contents).against(job, served=served).game.ending
        assert ending is Ending.ELEMENT_WRONG


@served
def test_who_names_a_later_store_has_a_wrong_element_in_the_first(served: bool) -> None:
    """Whatever it has there: none of all values is right."""
    job = _diverging()._replace(steps=1)
    first = run(job, Divergence(0, 0, 0, 0, bytes(32)), None).divergence
    assert first is not None
    later = [store for store in stores(job) if store > first.store]
    assert later
    for store in later[:3]:
        claim = first._replace(store=store, row=0, column=0)
        call = job.program.call_of(store)
        assert call is not None
        contents = list(run(job, claim).trace(0).contents)
        for number in (first.store, *range(first.store + 1, store)):
            contents[number] = bytes(len(contents[number]))
        (source,) = call.inputs
        element = job.program.types[source].element
        contents[source] = pack_values(element, [2.0**100]) + contents[source][element.size :]
        ending = liar(job, run(job, None), claim, contents).against(job, served=served).game.ending
        assert ending is Ending.ELEMENT_WRONG


@served
@pytest.mark.parametrize(
    "end",
    [{"state_root": b"r" * 32}, {"work_digest": b"w" * 32}, {"loss_total": 7}],
    ids=lambda end: next(iter(end)),
)
def test_an_end_that_does_not_follow_from_the_claim_is_a_broken_commitment(
    served: bool, end: dict[str, Any]
) -> None:
    job, claim, honest = case()
    false = liar(job, honest, claim, list(run(job, claim).trace(job.steps - 1).contents), **end)
    assert false.against(job, served=served).game.ending is Ending.COMMITMENT_BROKEN


def test_another_state_before_the_step_is_a_broken_commitment() -> None:
    job, claim, honest = case()
    false = claim._replace(state_before=b"b" * 32)
    end = honest.end_record._replace(state_root=diverged_root(false))
    records = (*(honest.record(place) for place in range(job.steps)), end)
    trace = honest.trace(job.steps - 1)
    witness = SegmentWitness(
        records.__getitem__, lambda place: trace if place == job.steps - 1 else honest.trace(place)
    )
    played = play_out(question(job, honest, false, end), witness, run(job, false).witness(), served=False)
    assert played.game.ending is Ending.COMMITMENT_BROKEN


@served
def test_who_claims_a_divergence_after_a_false_step_loses_in_that_step(served: bool) -> None:
    """It forges the state before, so that the next step diverges in all honesty."""
    job, claim, honest = case()
    wrong = honest.record(1)._replace(state_root=b"x" * 32)
    records = [honest.record(place) for place in range(job.steps + 1)]
    records[1] = wrong
    witness = SegmentWitness(records.__getitem__, honest.trace)
    played = play_out(question(job, honest, claim, records[-1]), witness, run(job, claim).witness(), served=served)
    # What it showed last was the truth: the first difference is its second record.
    assert played.game.ending is not None and played.game.ending.loser is Side.ACCUSED


@served
def test_no_challenger_wins_against_a_true_claim(served: bool) -> None:
    job, claim, honest = case()
    random = Random(3)
    own = run(job, claim)
    marked = own.trace(job.steps - 1)
    false_ends = own.end_record._replace(work_digest=b"f" * 32)
    for tensor in random.sample(range(len(job.program.sources), claim.store), 24):
        contents = list(marked.contents)
        at = random.randrange(len(contents[tensor]))
        contents[tensor] = contents[tensor][:at] + bytes([contents[tensor][at] ^ 1]) + contents[tensor][at + 1 :]
        false = StepTrace(job.program, STEP, contents, claim.store)

        def record(place: int) -> StepRecord:
            return own.record(place) if place < job.steps else false_ends

        def trace(place: int, false: StepTrace = false) -> StepTrace:
            return own.trace(place) if place < job.steps - 1 else false

        played = play_out(
            question(job, honest, claim, honest.end_record), honest.witness(), SegmentWitness(record, trace),
            served=served,
        )  # fmt: skip
        assert played.game.ending in (Ending.ELEMENT_RIGHT, Ending.CHALLENGER_INCONSISTENT)


def _at_name() -> tuple[Question, Any]:
    """Return the game in which the accused has shown its diverged value."""
    job, claim, honest = case()
    job = job._replace(state={}, step_from=STEP, steps=1)
    start = honest.record(STEP - STEP_FROM)._replace(work_digest=bytes(32), loss_total=0)
    trace = honest.trace(STEP - STEP_FROM)
    end = StepRecord(diverged_root(claim), extend_diverged(bytes(32), trace.trace_tree.root), 0)
    asked = Question(job.program, job.seed, trace.data_tree.root, STEP, 1, start, end, diverged=claim)
    witness = SegmentWitness((start, end).__getitem__, lambda _place: trace)
    move = Accused(asked, witness).move(begin(asked))
    assert isinstance(move, ShowDiverged) and decode_move(encode_move(move)) == move
    return asked, play(asked, begin(asked), Side.ACCUSED, move)


def test_nothing_stands_from_the_store_on() -> None:
    asked, game = _at_name()
    claim = case().claim
    assert (game.stage, game.ending) == (Stage.NAME, None)
    for ask in (Ask(Tree.AFTER, 0, bytes(32), ()), Ask(Tree.TENSOR, claim.store, bytes(32), ())):
        assert play(asked, game, Side.CHALLENGER, ask).ending is Ending.CHALLENGER_INCONSISTENT
    name = Name(claim.store, claim.row, claim.column, ())
    assert play(asked, game, Side.CHALLENGER, name).ending is Ending.CHALLENGER_INCONSISTENT


def test_each_kind_of_step_takes_its_own_move() -> None:
    asked, _ = _at_name()
    with pytest.raises(MoveRefused):
        play(asked, begin(asked), Side.ACCUSED, ShowTrace(bytes(32), bytes(32), 0, ()))
    plain = asked._replace(diverged=None)
    with pytest.raises(MoveRefused):
        play(plain, begin(plain), Side.ACCUSED, ShowDiverged(bytes(32), ()))


def test_an_accused_that_opens_nothing_contradicts_itself() -> None:
    asked, _ = _at_name()
    job, _, honest = case()
    root = honest.trace(job.steps - 1).trace_tree.root
    ended = play(asked, begin(asked), Side.ACCUSED, ShowDiverged(root, ()))
    assert ended.ending is Ending.ACCUSED_INCONSISTENT


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1 << 40}, {"store": -1}, {"row": 1 << 60}, {"column": -1}, {"state_before": b"short"}],
)
def test_a_divergence_is_decoded_strictly(change: dict[str, Any]) -> None:
    claim = case().claim
    assert divergence_from_value(divergence_to_value(claim)) == claim
    with pytest.raises(DecodeError):
        divergence_from_value(divergence_to_value(claim._replace(**change)))
    with pytest.raises(DecodeError):
        decode_move(encode([8, b"short", []]))
