"""Training a decoder with accumulation and validation does what a plain run in torch does (market.md R134)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.programs.adamw import Rates
from tasks.programs.decoder import decoder_program
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.programs.looped import EVALUATION_BEST, EVALUATION_LOSSES, has_result
from tasks.programs.operators import Context
from tasks.programs.operators.loops import LOOP_ROWS
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.trainings import SEED, Training, torch_gradients, training

NUMPY = engine("numpy")
TINY = LlamaShape(20, 12, 1, 2, 1, 6, 8, 16, 10_000, 10_000)
ERROR_MAX = 1e-4


def job(
    updates: int, rates: Rates, *, rows: int, train_rows: int, batch: int, loop: tuple[int, int, int]
) -> Training:
    """Return a job of a model whose weights are as small as first ones are."""
    made = FinetuneRates(rates, "constant", 0, updates)
    return training(
        TINY, made, batch=batch, rows=rows, length=6, spread=1.0, train_rows=train_rows, loop=loop
    )  # fmt: skip


def run(made: Training) -> tuple[list[float], list[dict[str, bytes]]]:
    """Return the loss of each step and the state after it."""
    losses, states = list[float](), [dict(made.state)]
    for step in range(made.job.loop(made.rates.total_steps).steps):
        result, state = made.step(NUMPY, step, states[-1])
        losses.append(float(result.loss[0, 0]))
        states.append(state)
    return losses, states[1:]


def of_rows(made: Training, taken: list[int], state: dict[str, bytes]) -> Training:
    """Return a job of some rows alone, with the weights of a state."""
    data = {name: made.rows(name)[taken].astype("<i4").tobytes() for name in made.data}
    shape = replace(
        made.job, rows=len(taken), train_rows=len(taken), batch=1, accumulate=1,
        evaluate_every=0, keeps_best=0,
    )  # fmt: skip
    return Training(shape, made.rates, data, state)


def taken_by(made: Training, step: int) -> list[int]:
    """Return the rows that a step counts."""
    loop = made.job.loop(made.rates.total_steps)
    rows = LOOP_ROWS.run(NUMPY, [], tuple(loop), Context(step, SEED)).reshape(-1).astype(int).tolist()
    return list(rows[: loop.at(step).counted])


def test_accumulated_gradients_are_the_mean_over_all_tokens_of_an_update() -> None:
    """Five rows in batches of two, three of them an update: its last batch has one row."""
    torch: Any = pytest.importorskip("torch", reason="torch (extra) IS NOT INSTALLED")
    made = job(1, Rates(1_000_000, beta1_nano=0), rows=5, train_rows=5, batch=2, loop=(3, 0, 0))
    losses, states = run(made)
    every = [row for step in range(3) for row in taken_by(made, step)]
    assert sorted(every) == list(range(5)) and losses[:2] == [0.0, 0.0]
    loss, wanted = torch_gradients(torch, of_rows(made, every, dict(made.state)), torch.float64)
    assert losses[-1] == pytest.approx(loss, rel=1e-5)
    found = made.weights("adam_m", states[-1])  # with a beta of zero the moment is the gradient
    error = sum(float(((found[name] - wanted[name]) ** 2).sum()) for name in wanted) ** 0.5
    assert error / sum(float((one**2).sum()) for one in wanted.values()) ** 0.5 <= ERROR_MAX
    for state in states[:-1]:
        assert all(state[f"parameter/{name}"] == made.state[f"parameter/{name}"] for name in parameters_of(TINY))


def test_validation_losses_are_those_of_rows_that_nobody_trains_on_and_the_best_weights_are_kept() -> None:
    """A rate that is far too high makes the loss rise again."""
    torch: Any = pytest.importorskip("torch", reason="torch (extra) IS NOT INSTALLED")
    made = job(5, Rates(200_000_000), rows=7, train_rows=4, batch=2, loop=(1, 1, 1))
    loop, (losses, states) = made.job.loop(5), run(made)
    found, best = list[float](), 0
    assert not has_result(made.job, states[0])
    for step in range(loop.steps):
        moment, state = loop.at(step), states[step]
        if moment.evaluation < 0:
            continue
        assert losses[step] == 0.0
        held = [name for name in state if name.startswith(("parameter", "adam"))]
        assert all(state[name] == states[step - 1][name] for name in held)
        if not moment.ends:
            continue
        loss, _ = torch_gradients(torch, of_rows(made, [4, 5, 6], state), torch.float64)
        found.append(loss)
        shown = np.frombuffer(state[EVALUATION_LOSSES], dtype="<f4")
        assert shown[: len(found)].tolist() == pytest.approx(found, rel=1e-4) and not shown[len(found) :].any()
        lowest = int(shown[: len(found)].argmin())
        assert np.frombuffer(state[EVALUATION_BEST], dtype="<f4")[0] == shown[lowest]
        wanted = states[loop.evaluated_at(lowest) - 1]
        assert all(state[f"best/{name}"] == wanted[f"parameter/{name}"] for name in parameters_of(TINY))
        best = lowest
    assert len(found) == 5 and best < 4, found
    assert has_result(made.job, states[-1])


def test_evaluating_changes_no_weight_of_a_training() -> None:
    rates = Rates(20_000_000, weight_decay_nano=10_000_000)
    made = job(4, rates, rows=7, train_rows=5, batch=2, loop=(2, 3, 0))
    alone = job(4, rates, rows=7, train_rows=5, batch=2, loop=(2, 0, 0))
    (_, states), (_, plain) = run(made), run(alone)
    assert len(states) > len(plain)
    assert all(states[-1][name] == plain[-1][name] for name in alone.state)


@pytest.mark.parametrize("name", NAMES[1:])
def test_engines_give_the_same_bits(name: str) -> None:
    made = job(3, Rates(20_000_000), rows=7, train_rows=5, batch=2, loop=(2, 2, 1))
    for step in (0, 2, 5):
        (one, after), (other, again) = (made.step(engine(kind), step) for kind in ("numpy", name))
        assert after == again
        assert float(one.loss[0, 0]) == float(engine(name).store(other.loss)[0, 0])


@pytest.mark.parametrize("step", [1, 5])
def test_the_judge_computes_the_same_elements(step: int) -> None:
    made = job(3, Rates(20_000_000), rows=7, train_rows=5, batch=2, loop=(2, 2, 1))
    program = decoder_program(made.job, made.rates)
    codes, every = {2: "f4", 5: "i2", 6: "i4"}, {**made.data, **made.state}
    sources = [
        np.array(NUMPY.from_content(every[one.key], codes[int(one.type.element)], one.type.rows, one.type.columns))
        for one in program.sources
    ]
    check_elements(program, sources, Context(step, SEED), 2)


@pytest.mark.parametrize("loop", [(0, 0, 0), (1 << 17, 0, 0), (1, -1, 0), (1, 0, 1), (1, 1, 2)], ids=str)
def test_a_loop_that_no_program_is_made_of_is_refused(loop: tuple[int, int, int]) -> None:
    made = job(1, Rates(1_000_000), rows=4, train_rows=3, batch=2, loop=(1, 0, 0))
    with pytest.raises(ProgramInvalid):
        replace(made.job, accumulate=loop[0], evaluate_every=loop[1], keeps_best=loop[2])
    with pytest.raises(ProgramInvalid, match="without validation rows"):
        replace(made.job, train_rows=4, evaluate_every=1)
