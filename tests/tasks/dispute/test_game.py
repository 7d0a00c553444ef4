"""Games of liars against honest software: the liar loses each, whatever it owns, and the honest side none."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

import pytest

from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace
from tasks.dispute.errors import MoveRefused, NoMove
from tasks.dispute.game import MOVES_MAX, Ending, Game, Side, Stage, begin, play, turn_of
from tasks.dispute.moves import (
    Ask,
    Move,
    Name,
    Nodes,
    Partials,
    Pick,
    PickTerms,
    ShowRecords,
    ShowTrace,
    Tree,
    decode_move,
    encode_move,
)
from tasks.dispute.players import Accused, Challenger
from tasks.programs.program import PlaceKind
from tests.tasks.dispute.toys import Change, Segment, influential, random_program, random_sources

GAMES = int(os.environ.get("DISPUTE_GAMES", "12"))

Player = Callable[[Game, Sequence[Move]], Move | None]


def _play(question: Question, accused: Player, challenger: Player) -> tuple[Game, list[Move], Side | None]:
    """Return the end of a game, its moves, and who fell silent."""
    game, moves = begin(question), list[Move]()
    while (side := turn_of(game)) is not None:
        move = (accused if side is Side.ACCUSED else challenger)(game, moves)
        if move is None:
            return game, moves, side
        data = encode_move(move)
        assert decode_move(data) == move
        game = play(question, game, side, move)
        moves.append(move)
        assert len(moves) <= MOVES_MAX
    return game, moves, None


def _accused(question: Question, witness: SegmentWitness) -> Player:
    player = Accused(question, witness)
    return lambda game, _moves: player.move(game)


def _challenger(question: Question, witness: SegmentWitness, served: StepTrace | None = None) -> Player:
    return Challenger(question, witness, served).move


def _liar(question: Question, segment: Segment, random: Random) -> Player:
    """Play for a segment with a wrong element: the partial folds of a wrong fold are made to fit its value."""
    player = Accused(question, segment.witness())

    def move(game: Game, _moves: Sequence[Move]) -> Move | None:
        honest = player.move(game)
        if not isinstance(honest, Partials):
            return honest
        assert game.fold is not None and game.element is not None
        wanted = game.fold.total
        sums = _operator(segment, game.element.tensor) == "contract"
        if wanted is None:
            trace = segment.traces[game.step]
            call = trace.program.call_of(game.element.tensor)
            assert call is not None
            kind, row = trace.program.types[call.inputs[0]], game.element.row
            first = int.from_bytes(
                trace.contents[call.inputs[0]][row * kind.row_bytes :][:8], "little", signed=True
            )
            (claimed,) = struct.unpack("<d", game.shown[0])
            if not math.isfinite(claimed) or (2 * (claimed - first)) % 1:
                return None  # no integer makes this value
            wanted = int(2 * (claimed - first))
        values = list(honest.values)
        at = random.randrange(len(values))
        if sums:
            values[at] += wanted - sum(values)
        else:
            values = [min(value, wanted) for value in values]
            values[at] = wanted if max(values) < wanted else values[at]
        return honest._replace(values=tuple(values))

    return move


def _flip(random: Random, tensor: int) -> Change:
    """Change one value of a tensor."""

    def change(number: int, content: bytes) -> bytes:
        if number != tensor:
            return content
        at = random.randrange(len(content) // 4) * 4
        # The lowest byte of a value or of half of one: no exponent, so no value becomes infinite.
        return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]

    return change


def _random_case(random: Random) -> tuple[Segment, Callable[..., Segment]]:
    program = random_program(random)
    sources = random_sources(program, random)
    steps, step_from = random.choice([1, 2, 3, 17]), random.randrange(1000)
    return (
        Segment(program, step_from, steps, sources),
        lambda changes: Segment(program, step_from, steps, sources, changes),
    )


def _operator(segment: Segment, tensor: int) -> str:
    call = segment.program.call_of(tensor)
    assert call is not None
    return call.operator


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
def test_a_liar_at_a_random_element_is_proved_to_lie(served: bool) -> None:
    played, folds = 0, 0
    for seed in count():
        random = Random(seed)
        honest, lie = _random_case(random)
        step = random.randrange(honest.steps)
        tensors = influential(honest.program)
        if random.random() < 0.5:
            tensors = [at for at in tensors if _operator(honest, at) in ("contract", "largest")]
        liar = lie({step: _flip(random, random.choice(tensors))})
        if liar.records[-1] == honest.records[-1]:
            continue  # nothing that counts follows from what was changed
        question = liar.question()
        first = next(at for at in range(honest.steps) if liar.records[at + 1] != honest.records[at + 1])
        trace = liar.traces[first] if served else None
        game, moves, silent = _play(
            question, _liar(question, liar, random), _challenger(question, honest.witness(), trace)
        )
        assert game.step == first
        if silent is not None or game.ending is Ending.ACCUSED_INCONSISTENT:
            assert game.stage == Stage.FOLD_SHOW or isinstance(moves[-1], Partials)
            continue
        assert game.ending is Ending.ELEMENT_WRONG, (seed, game.ending, moves[-1])
        folds += any(isinstance(move, PickTerms) for move in moves)
        played += 1
        if played == GAMES:
            break
    assert folds > 0, "too few of the lies were in long folds"


def test_an_honest_worker_wins_against_any_challenger_that_names_elements() -> None:
    for seed in range(GAMES):
        random = Random(seed)
        honest, _ = _random_case(random)
        question = honest.question()
        truth = _accused(question, honest.witness())

        def challenger(
            game: Game, _moves: Sequence[Move], random: Random = random, honest: Segment = honest,
            question: Question = question,
        ) -> Move | None:  # fmt: skip
            match game.stage:
                case Stage.PICK_PART:
                    return Pick(random.randrange(len(game.records) + 1))
                case Stage.FOLD_PICK:
                    return _terms(question, honest, game, random.randrange(len(game.partials)))
                case _:
                    return _named(question, honest, game, random)

        game, _, silent = _play(question, truth, challenger)
        assert silent is None
        assert game.ending is Ending.ELEMENT_RIGHT, (seed, game.ending)


def _named(question: Question, segment: Segment, game: Game, random: Random) -> Move:
    """Name a random element as the honest software would, had it computed another value there."""
    trace = segment.traces[game.step]
    program = trace.program
    tensor = random.randrange(len(program.sources), len(program.types))
    player = Challenger(question, _wrong_witness(segment, game.step, tensor, random), trace)
    return player.move(game, ())


def _wrong_witness(segment: Segment, step: int, tensor: int, random: Random) -> SegmentWitness:
    trace = segment.traces[step]
    contents = list(trace.contents)
    contents[tensor] = _flip(random, tensor)(tensor, contents[tensor])
    wrong = StepTrace(trace.program, trace.step, contents)
    return SegmentWitness(
        segment.records.__getitem__, lambda place: wrong if place == step else segment.traces[place]
    )


def _terms(question: Question, segment: Segment, game: Game, child: int) -> Move:
    """Open the terms of a block, or go on in it."""
    player = Challenger(question, segment.witness(), segment.traces[game.step])
    partials = tuple(value + (at == child) for at, value in enumerate(game.partials))
    move = player.move(game._replace(partials=partials), ())
    assert isinstance(move, PickTerms) and move.child == child
    return move


@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
@pytest.mark.parametrize("part", StepRecord._fields)
def test_a_liar_with_a_false_record_loses(part: str, served: bool) -> None:
    """A liar keeps its traces honest and claims another state, seal or loss from some step on (MARKET N1)."""
    for seed in range(GAMES):
        random = Random(seed)
        honest, _ = _random_case(random)
        at = random.randrange(1, honest.steps + 1)
        false: Any = honest.records[at].loss_total ^ 1 if part == "loss_total" else random.randbytes(32)
        records = (
            *honest.records[:at],
            *(record._replace(**{part: false}) for record in honest.records[at:]),
        )
        question = honest.question(records[-1])
        accused = _accused(question, honest.witness(records))
        game, _, silent = _play(
            question, accused, _challenger(question, honest.witness(), honest.traces[at - 1] if served else None)
        )
        assert game.step == at - 1
        if part == "state_root":  # the honest trace is not one for a false root: the liar has no tensor to show
            assert silent is Side.ACCUSED or game.ending is Ending.ACCUSED_INCONSISTENT, seed
        else:
            assert game.ending is Ending.COMMITMENT_BROKEN, seed


def test_a_side_that_makes_random_moves_never_wins_against_honest_software() -> None:
    for seed in range(GAMES):
        random = Random(seed)
        honest, lie = _random_case(random)
        question = honest.question()
        game, _, silent = _play(
            question, _accused(question, honest.witness()), _noise(random, honest, _challenger_noise)
        )
        assert silent is not Side.ACCUSED
        assert game.ending is None or game.ending.loser is Side.CHALLENGER, seed
        liar = lie({0: _flip(random, len(honest.program.types) - 3)})
        if liar.records[-1] == honest.records[-1]:
            continue
        question = liar.question()
        game, _, silent = _play(
            question, _noise(random, liar, _accused_noise), _challenger(question, honest.witness())
        )
        assert silent is not Side.CHALLENGER
        assert game.ending is None or game.ending.loser is Side.ACCUSED, seed


def _noise(random: Random, segment: Segment, make: Callable[[Random, Segment, Game], Move | None]) -> Player:
    return lambda game, _moves: None if random.random() < 0.05 else make(random, segment, game)


def _challenger_noise(random: Random, segment: Segment, game: Game) -> Move:
    match game.stage:
        case Stage.PICK_PART:
            return Pick(random.randrange(16))
        case Stage.PICK if random.random() < 0.5:
            return Pick(random.randrange(16))
        case Stage.FOLD_PICK:
            return PickTerms(random.randrange(16), ())
        case _:
            move = _named(segment.question(), segment, game._replace(stage=Stage.NAME), random)
            assert isinstance(move, Name)
            cut = random.randrange(len(move.openings) + 1)
            return move._replace(openings=move.openings[:cut])


def _accused_noise(random: Random, segment: Segment, game: Game) -> Move | None:
    try:
        move = Accused(segment.question(), segment.witness()).move(game)
    except NoMove:  # it was false before
        return None
    if random.random() < 0.6:
        return move
    match move:
        case ShowRecords(records):
            return ShowRecords((*records[:-1], records[-1]._replace(work_digest=random.randbytes(32))))
        case Nodes(nodes):
            return Nodes((*nodes[:-1], random.randbytes(32)))
        case ShowTrace():
            return move._replace(trace_root=random.randbytes(32))
        case Partials(values):
            return move._replace(values=(values[0] + 1, *values[1:]))
        case _:
            return move


def test_no_challenger_brings_an_honest_worker_to_contradict_itself() -> None:
    """So a contradiction is as good as a proof: whatever is picked, asked for and named, in whatever order."""
    asked, shown = set[int](), set[Stage]()
    for seed in range(3 * GAMES):
        random = Random(seed)
        honest, _ = _random_case(random)
        question = honest.question()
        truth = _accused(question, honest.witness())

        def challenger(
            game: Game, _moves: Sequence[Move], random: Random = random, honest: Segment = honest,
            question: Question = question,
        ) -> Move:  # fmt: skip
            match game.stage:
                case Stage.PICK_PART:
                    return Pick(random.randrange(len(game.records) + 1))
                case Stage.PICK if random.random() < 0.8:
                    return Pick(random.randrange(len(game.shown)))
                case Stage.FOLD_PICK:
                    return _terms(question, honest, game, random.randrange(len(game.partials)))
                case _:
                    pass
            if random.random() < 0.15:
                return _named(question, honest, game._replace(stage=Stage.NAME), random)
            trace = honest.traces[game.step]
            if (tree := random.choice((Tree.TRACE, Tree.AFTER, Tree.TENSOR))) is not Tree.TENSOR:
                asked.add(tree)
                return Ask(tree, 0, bytes(32), ())
            tensor = random.randrange(len(trace.program.types))
            asked.add(10 + trace.program.places[tensor].kind)
            return Ask(tree, tensor, trace.root(tensor), trace.path(tensor))

        def accused(game: Game, moves: Sequence[Move], truth: Player = truth) -> Move | None:
            shown.add(game.stage)
            return truth(game, moves)

        game, _, silent = _play(question, accused, challenger)
        assert silent is None and game.ending in (Ending.ELEMENT_RIGHT, Ending.MOVES_EXHAUSTED), (
            seed,
            game.ending,
        )
    assert asked == {
        *(10 + kind for kind in PlaceKind if kind not in (PlaceKind.MODEL, PlaceKind.ADAPTER)),
        Tree.TRACE,
        Tree.AFTER,
    }
    assert shown == {Stage.SHOW_RECORDS, Stage.TRACE, Stage.SHOW, Stage.FOLD_SHOW}


def test_moves_of_the_other_side_or_of_another_kind_change_nothing() -> None:
    honest, _ = _random_case(Random(3))
    question = honest.question()
    game = begin(question)
    with pytest.raises(MoveRefused, match="turn"):
        play(question, game, Side.CHALLENGER, Pick(0))
    with pytest.raises(MoveRefused, match="kind"):
        play(question, game, Side.ACCUSED, Pick(0))
