"""``python -m tests.tasks.dispute.tally [GAMES]``: random games of disputes, and who lost each, as JSON.

Programs, sources, steps and lies are random. Half of the games have a liar against honest software, with the data
served or with everything shown on chain in turn. A third of the liars computed rightly, and claim another state
root, seal or loss for it, or fall silent after some moves. In the other half an honest worker is accused, by one
who names random elements or by one who moves at random. Each move is decoded from its bytes and judged as a
validator does.
A liar is slashed if its game ends against it (market.md 7.8), or if it falls silent and two drawn machines find
what its challenger found.

A run that was stopped goes on where it was, from ``build/disputes/tally.json``. Other code begins again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Final

from tasks.dispute.commitments import Question
from tasks.dispute.errors import NoMove
from tasks.dispute.game import MOVES_MAX, Game, Side, Stage, play
from tasks.dispute.moves import Move, Pick
from tasks.dispute.players import Accused
from tests.tasks.dispute import test_game as games
from tests.tasks.dispute.toys import Segment, influential

GAMES: Final = 10_000
STATE: Final = Path("build/disputes/tally.json")
SAVED_EVERY: Final = 100
"""Games between two writes of the state."""
TICK_MS: Final = 0.01
"""Times of moves are counted in steps of this."""
_CODE: Final = ("state/primitives", "tasks/dispute", "tasks/programs", "tests/tasks/dispute")


@dataclass
class Count:
    """What has come of the games so far. ``seed`` made the last of them."""

    code: str = ""
    seed: int = 0
    liars: int = 0
    challengers: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)
    """How many moves took so many ticks to judge."""

    @property
    def games(self) -> int:
        """Games that were played: the wrong side lost each."""
        return self.liars + self.challengers

    def judged(self, moves: Counter[int]) -> None:
        """Add the moves of a game, by their ticks."""
        for tick, times in moves.items():
            self.ticks[str(tick)] = self.ticks.get(str(tick), 0) + times

    def judge_ms(self) -> dict[str, float]:
        """Return median and maximum of the times, each up to a tick too high."""
        ticks = sorted((int(tick), times) for tick, times in self.ticks.items())
        counted = list(accumulate(times for _, times in ticks))
        middle, most = ticks[bisect_right(counted, counted[-1] // 2)][0], ticks[-1][0]
        return {"median": round((middle + 1) * TICK_MS, 2), "max": round((most + 1) * TICK_MS, 2)}


def _code() -> str:
    root, hashed = Path(__file__).resolve().parents[3], blake2b(digest_size=16)
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            hashed.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


def load(path: Path | None) -> Count:
    """Return what an earlier run of this code has left, or a new count."""
    code = _code()
    if path is not None and path.exists():
        found = Count(**json.loads(path.read_text()))
        if found.code == code:
            return found
    return Count(code)


def save(path: Path | None, count: Count) -> None:
    """Write the count: a run that is killed meanwhile leaves the one before."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(asdict(count)))
    os.replace(beside, path)


class Judged:
    """Plays moves as the rules do, and counts the processor time of each in ticks."""

    def __init__(self) -> None:
        self.ticks = Counter[int]()

    def __call__(self, question: Question, game: Game, side: Side, move: Move) -> Game:
        """Return the game after a move."""
        begun = time.process_time()
        game = play(question, game, side, move)
        self.ticks[int(1000 * (time.process_time() - begun) / TICK_MS)] += 1
        return game


class Lie(Enum):
    """What a liar does. Two thirds play for an element that they computed falsely.

    Others computed rightly, and claim another state root, work digest or loss after the segment (N1). Or they fall
    silent after some moves.
    """

    ELEMENT = "element"
    STATE_ROOT = "state_root"
    SEAL = "work_digest"
    LOSS = "loss_total"
    SILENT = "silent"


_LIES: Final = (*[Lie.ELEMENT] * 8, *Lie)[1:]


def _against_a_liar(seed: int) -> tuple[Game, Side | None] | None:
    """Play a liar; None if nothing follows from its lie."""
    kind = lie_of(seed)
    if kind in (Lie.ELEMENT, Lie.SILENT):
        return _with_an_element(seed, is_silent=kind is Lie.SILENT)
    return _with_a_claim(seed, kind)


def lie_of(seed: int) -> Lie:
    """Return what the liar of a game does."""
    found: Lie = Random(f"lie {seed}").choice(_LIES)
    return found


def _with_a_claim(seed: int, kind: Lie) -> tuple[Game, Side | None]:
    """Play a liar with honest traces and a false end of the segment."""
    random = Random(seed)
    honest, _ = games._random_case(random)
    end = honest.records[-1]
    false: Any = end.loss_total ^ 1 << random.randrange(52) if kind is Lie.LOSS else random.randbytes(32)
    end = end._replace(**{kind.value: false})
    question = honest.question(end)
    player = Accused(question, honest.witness((*honest.records[:-1], end)))

    def accused(game: Game, _moves: Sequence[Move]) -> Move | None:
        try:
            return player.move(game)
        except NoMove:  # it has nothing that fits what it claims
            return None

    served = honest.traces[-1] if seed % 2 else None
    game, _, silent = games._play(question, accused, games._challenger(question, honest.witness(), served))
    return game, silent


def _with_an_element(seed: int, *, is_silent: bool) -> tuple[Game, Side | None] | None:
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
    plays, last = games._liar(question, liar, random), random.randrange(6) if is_silent else MOVES_MAX
    game, _, silent = games._play(
        question, lambda game, moves: None if len(moves) >= last else plays(game, moves), challenger
    )
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


def tally(games_max: int = GAMES, state: Path | None = None) -> dict[str, Any]:
    """Play games until there are ``games_max``; return who lost them.

    ``state`` is the file of an earlier run. Raises AssertionError where the honest side lost.
    """
    count = load(state)
    try:
        while count.games < games_max:
            _play_next(count)
            if count.games % SAVED_EVERY == 0:
                save(state, count)
    finally:
        vars(games)["play"] = play
    save(state, count)
    return {
        "games": count.games, "liars_lost": count.liars, "lying_challengers_lost": count.challengers,
        "honest_sides_lost": 0, "endings": dict(sorted(count.endings.items())),
        "moves": sum(count.ticks.values()), "judge_ms": count.judge_ms(),
    }  # fmt: skip


def _play_next(count: Count) -> None:
    """Play the next game, if its seed makes one. Raises AssertionError where the honest side loses."""
    judged, seed, is_liar = Judged(), count.seed + 1, count.games % 2 == 0
    vars(games)["play"] = judged
    played = _against_a_liar(seed) if is_liar else _against_the_honest(seed)
    if played is not None:
        game, silent = played
        loser = silent if game.ending is None else game.ending.loser
        if loser is not (Side.ACCUSED if is_liar else Side.CHALLENGER):
            raise AssertionError(f"the honest side of game {seed} lost: {game.ending}, silent {silent}")
        count.liars, count.challengers = count.liars + is_liar, count.challengers + (not is_liar)
        who = f"liar about {lie_of(seed).name.lower()}" if is_liar else "lying challenger"
        ending = f"{who}: {'silent' if game.ending is None else game.ending.name.lower()}"
        count.endings[ending] = count.endings.get(ending, 0) + 1
        count.judged(judged.ticks)
    count.seed = seed


if __name__ == "__main__":
    print(json.dumps(tally(int(sys.argv[1]) if len(sys.argv) > 1 else GAMES, STATE), indent=2))
