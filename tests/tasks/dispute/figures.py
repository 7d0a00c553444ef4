"""``python -m tests.tasks.dispute.figures [GAMES] [STEPS]``: moves, bytes and times of disputes, as JSON.

The job is the classifier of digits with the widths of the demonstration. Each game is played twice: with the data
served to the challenger, and with everything shown on chain. Costs compare a step with the hash of its state; they
are for OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from tasks.dispute import game as rules
from tasks.dispute.game import Side
from tasks.dispute.records import encode_game
from tasks.dispute.running import SegmentRun
from tasks.engines.builtin_datasets import make_dataset
from tasks.programs.tensors import tensor_root
from tests.tasks.dispute import liars
from tests.tasks.dispute.liars import Job, lie, play_out
from tests.tasks.engines.helpers import SEED
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of, first_state
from tests.tasks.programs.test_classifier import program_for

WIDTHS = (64, 256, 128, 10)
WIDE = (64, 1_024, 1_024, 10)


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "max": round(max(values), 3)}


def costs(widths: tuple[int, ...], steps: int = 24) -> dict[str, float]:
    """Return milliseconds of processor time for a step of a segment, for its probe's hash and for a state's."""
    data = make_dataset("digits")
    program = program_for(data, widths, "relu", 64)
    job = Job(program, SEED, first_state(program), contents_of(data), 0, steps)
    job.run(engine("numpy"))
    times = [time.process_time()]
    run = SegmentRun(
        program, engine("numpy"), seed=SEED, state=job.state, data=job.data, step_from=0, steps=steps,
        on_step=lambda _done: times.append(time.process_time()),
    )  # fmt: skip
    each = [1000 * (after - before) for before, after in pairwise(times)]
    kind = program.types[program.probe]
    start = time.process_time()
    tensor_root(kind, bytes(kind.size_bytes))
    probe = time.process_time()
    run.record(steps)
    state = time.process_time()
    megabytes = sum(program.types[number].size_bytes for number in program.stores.values()) / 1e6
    return {
        "state_megabytes": round(megabytes, 2), "step_with_probe_ms": round(median(each), 2),
        "probe_hash_ms": round(1000 * (probe - start), 3), "state_hash_ms": round(1000 * (state - probe), 1),
    }  # fmt: skip


def main(games: int = 60, steps: int = 256) -> dict[str, Any]:
    """Return the figures."""
    arrays, data = engine("numpy"), make_dataset("digits")
    program = program_for(data, WIDTHS, "relu", 64)
    job = Job(program, SEED, first_state(program), contents_of(data), 0, steps)
    honest = job.run(arrays)
    judged: list[float] = []
    records: list[float] = []
    play = rules.play

    def timed(*arguments: Any) -> Any:
        gc.disable()  # a pass over the players' traces, which no validator has, is no part of the judgement
        start = time.process_time()
        game = play(*arguments)
        judged.append(1000 * (time.process_time() - start))
        gc.enable()
        records.append(len(encode_game(game)))
        return game

    vars(liars)["play"] = timed
    found: dict[str, list[float]] = {}
    endings: dict[str, int] = {}
    seed = 0
    while len(found.get("served_moves", [])) < games:
        random = Random(seed)
        seed += 1
        tensor = random.randrange(len(program.sources), len(program.types))
        # A lie near the end: what follows has to be run again for each liar.
        place = steps - 1 - random.randrange(8)
        liar = lie(job, honest, arrays, place, tensor, random)
        if liar.question.end == honest.end_record:
            continue
        for mode in ("served", "on_chain"):
            played = play_out(
                liar.question, liar.witness, honest.witness(), served=mode == "served", clever=random
            )
            ending = played.game.ending
            assert ending is not None and ending.loser is Side.ACCUSED, (seed, ending)
            endings[ending.name.lower()] = endings.get(ending.name.lower(), 0) + 1
            after = played.sizes[played.searched :]
            for name, value in (
                ("moves", len(after)), ("bytes", sum(after)),
                ("search_moves", played.searched), ("search_bytes", sum(played.sizes[: played.searched])),
                ("all_moves", len(played.sizes)), ("all_bytes", sum(played.sizes)),
            ):  # fmt: skip
                found.setdefault(f"{mode}_{name}", []).append(value)
    return {
        "games": games, "steps": steps, "calls": len(program.calls), "endings": endings,
        "costs": {"x".join(map(str, widths)): costs(widths) for widths in (WIDTHS, WIDE)},
        "judge_ms": _spread(judged), "game_bytes": _spread(records),
        **{name: _spread(values) for name, values in sorted(found.items())},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:])), indent=2))
