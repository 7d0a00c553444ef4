"""``python -m tests.tasks.dispute.tally [GAMES]``: random games of disputes, and who lost each, as JSON.

Programs, sources, steps and lies are random. Half of the games have a liar against honest software, with the data
served or with everything shown on chain in turn. In the other half an honest worker is accused, by one who names
random elements or by one who moves at random. Each move is decoded from its bytes and judged as a validator does.
A liar is slashed if its game ends against it (market.md 7.8), or if it falls silent and two drawn machines find
what its challenger found.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any, Final

from tasks.dispute.commitments import Question
from tasks.dispute.game import Game, Side, Stage, play
from tasks.dispute.moves import Move, Pick
from tests.tasks.dispute import test_game as games
from tests.tasks.dispute.toys import Segment, influential

GAMES: Final = 10_000


class Judged:
    """Plays moves as the rules do, and notes the processor time of each."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, question: Question, game: Game, side: Side, move: Move) -> Game:
        """Return the game after a move."""
        begun = time.process_time()
        game = play(question, game, side, move)
        self.times.append(1000 * (time.process_time() - begun))
        return game


def _against_a_liar(seed: int) -> tuple[Game, Side | None] | None:
    """Play a liar at a random element; None if nothing follows from its lie."""
    random = Random(seed)
    honest, lie = games._random_case(random)
    step = random.randrange(honest.steps)
    liar = lie({step: games._flip(random, random.choice(influential(honest.program)))})
    if liar.records[-1] == honest.records[-1]:
        return None
    question = liar.question()
    first = next(at for at in range(honest.steps) if liar.records[at + 1] != honest.records[at + 1])
    served = liar.traces[first] if seed % 2 else None
    challenger = games._challenger(question, honest.witness(), served)
    game, _, silent = games._play(question, games._liar(question, liar, random), challenger)
    return game, silent


def _against_the_honest(seed: int) -> tuple[Game, Side | None]:
    """Play an honest worker, whose challenger names random elements or moves at random."""
    random = Random(seed)
    honest, _ = games._random_case(random)
    question = honest.question()
    accused = games._accused(question, honest.witness())
    if seed % 3 == 0:
        challenger = games._noise(random, honest, games._challenger_noise)
    else:
        challenger = _naming(random, honest, question)
    game, _, silent = games._play(question, accused, challenger)
    return game, silent


def _naming(random: Random, honest: Segment, question: Question) -> games.Player:
    def move(game: Game, _moves: Sequence[Move]) -> Move | None:
        match game.stage:
            case Stage.PICK_PART:
                return Pick(random.randrange(len(game.records) + 1))
            case Stage.FOLD_PICK:
                return games._terms(question, honest, game, random.randrange(len(game.partials)))
            case _:
                return games._named(question, honest, game, random)

    return move


def tally(count: int = GAMES) -> dict[str, Any]:
    """Play ``count`` games; return who lost them. Raises AssertionError where the honest side did."""
    judged, endings, seed = Judged(), Counter[str](), 0
    lost = Counter[str]()
    vars(games)["play"] = judged
    try:
        while lost.total() < count:
            seed += 1
            is_liar = lost.total() % 2 == 0
            played = _against_a_liar(seed) if is_liar else _against_the_honest(seed)
            if played is None:
                continue
            game, silent = played
            loser = silent if game.ending is None else game.ending.loser
            wrong = Side.ACCUSED if is_liar else Side.CHALLENGER
            if loser is not wrong:
                raise AssertionError(f"the honest side of game {seed} lost: {game.ending}, silent {silent}")
            who = "liar" if is_liar else "lying challenger"
            lost[who] += 1
            endings[f"{who}: {'silent' if game.ending is None else game.ending.name.lower()}"] += 1
    finally:
        vars(games)["play"] = play
    return {
        "games": lost.total(), "liars_lost": lost["liar"], "lying_challengers_lost": lost["lying challenger"],
        "honest_sides_lost": 0, "endings": dict(sorted(endings.items())), "moves": len(judged.times),
        "judge_ms": {"median": round(median(judged.times), 3), "max": round(max(judged.times), 3)},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(tally(*map(int, sys.argv[1:])), indent=2))
