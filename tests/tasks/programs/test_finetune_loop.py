"""Batches that are not full, accumulation and evaluation: near to plain arithmetic over the same rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from node.bench.plain_tuning import Rows, plain_adamw, plain_gradients, plain_weights
from tasks.programs.adamw import Rates
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    PLACES,
    SLOTS,
    FinetuneRates,
    adapter_tensors,
    finetune_program,
    state_tensors,
)
from tasks.programs.looped import EVALUATION_BEST, EVALUATION_LOSSES, SUM_TOKENS
from tasks.programs.operators import Context
from tasks.programs.operators.loops import LOOP_ROWS
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import TINY, frozen_weights
from tests.tasks.programs.test_finetune import ERROR_MAX, distance, gradients_of
from tests.tasks.programs.tunings import SEED, Tuning, made_rows, tuning

NUMPY = engine("numpy")
RATES = Rates(20_000_000, weight_decay_nano=10_000_000)
PLAIN = Rates(1_000_000, beta1_nano=0)


def job(
    updates: int, adamw: Rates = RATES, *, rows: int = 7, batch: int = 2, clip: int = 0, **loop: int
) -> Tuning:
    """Return a job whose state is that before its first step."""
    made = tuning(TINY, FinetuneRates(adamw, "constant", 0, updates, clip), batch=batch, rows=rows)
    return changed(made, **loop)


def changed(made: Tuning, **loop: int) -> Tuning:
    """Return the same job with another training loop."""
    shape = replace(made.job, **loop)  # type: ignore[arg-type]
    state = {name: made.state.get(name, bytes(kind.size_bytes)) for name, kind in state_tensors(shape).items()}
    return replace(made, job=shape, state=state)


def run(made: Tuning, first: int = 0, steps: int | None = None) -> tuple[list[float], list[dict[str, bytes]]]:
    """Return the loss of each step and the state after it."""
    count = made.job.loop(made.rates.total_steps).steps if steps is None else steps
    losses, states = list[float](), [dict(made.state)]
    for step in range(first, first + count):
        result, state = made.step(NUMPY, step, states[-1])
        losses.append(float(result.loss[0, 0]))
        states.append(state)
    return losses, states[1:]


def rows_of(made: Tuning, steps: list[int]) -> Rows:
    """Return the rows that some steps count."""
    loop, every = made.job.loop(made.rates.total_steps), made_rows(made.job)
    taken = list[int]()
    for step in steps:
        found = LOOP_ROWS.run(NUMPY, [], tuple(loop), Context(step, SEED)).reshape(-1).astype(int).tolist()
        taken += found[: loop.at(step).counted]
    return Rows(*(one[taken] for one in every))


@cache
def weights() -> dict[str, np.ndarray]:
    return plain_weights(frozen_weights(TINY), np.float64)


def matrices(state: dict[str, bytes], made: Tuning, group: str = "parameter") -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(state[f"{group}/{name}"], dtype="<f4").reshape(kind[1:]).astype(np.float64)
        for name, kind in adapter_tensors(made.job).items()
    }


def plain_run(made: Tuning, updates: list[list[int]]) -> tuple[list[float], dict[str, np.ndarray]]:
    """Train in binary64: for each update its steps. Return losses and matrices."""
    adapters = made.adapters()
    moments = tuple({name: np.zeros_like(one) for name, one in adapters.items()} for _ in range(2))
    losses = list[float]()
    for number, steps in enumerate(updates):
        loss, gradients = plain_gradients(made.job, weights(), adapters, rows_of(made, steps))
        losses.append(loss)
        plain_adamw(made.rates.adamw, number + 1, adapters, moments, gradients)  # type: ignore[arg-type]
    return losses, adapters


def test_the_last_batch_of_an_epoch_is_the_mean_over_its_own_tokens() -> None:
    """7 rows in batches of 3: the third step has one row, and weighs it as a batch of one would."""
    made = job(6, PLAIN, rows=7, batch=3)
    losses, _ = run(made)
    alone = replace(made, job=replace(made.job, batch=1))
    for step in (2, 5):
        loss, wanted = plain_gradients(made.job, weights(), made.adapters(), rows_of(made, [step]))
        one, after = made.step(NUMPY, step)
        assert float(one.loss[0, 0]) == pytest.approx(loss, rel=1e-5)
        assert distance(gradients_of(made.job, after), wanted) <= ERROR_MAX
        # To the bit what a batch of that row alone gives: rows that fill up add zeros, and no exponent is theirs.
        number = (0, 0, 6, 0, 0, 13)[step]
        other, again = alone.step(NUMPY, number)
        assert np.array_equal(one.loss, other.loss)
        assert {name: after[name] for name in after if name.startswith("adam_m")} == {
            name: again[name] for name in again if name.startswith("adam_m")
        }
    assert len(losses) == 6


def test_an_epoch_of_whole_batches_is_the_same_program_as_ever() -> None:
    """No operator of the loop stands in it."""
    made = job(6, rows=6, batch=3)
    assert not any(call.operator.startswith("loop") for call in finetune_program(made.job, made.rates).calls)


@pytest.mark.parametrize("rows", [8, 7, 5])
def test_accumulated_batches_are_near_to_one_large_batch(rows: int) -> None:
    """Batches of 2, four of them an update, beside batches of 8. The last update of an epoch has fewer rows.

    Both are as near to plain binary64 as any step is. They are not equal to the bit: a sum over the tokens of a
    batch has one exponent.
    """
    small = job(2, PLAIN, rows=rows, batch=2, accumulate=4)
    large = job(2, PLAIN, rows=rows, batch=8)
    count = small.job.loop(1).epoch_steps
    losses, states = run(small, steps=count)
    assert losses[:-1] == [0.0] * (count - 1)
    whole, after = large.step(NUMPY)
    loss, wanted = plain_gradients(small.job, weights(), small.adapters(), rows_of(small, list(range(count))))
    assert losses[-1] == pytest.approx(loss, rel=1e-5)
    assert losses[-1] == pytest.approx(float(whole.loss[0, 0]), rel=1e-6)
    one, other = (gradients_of(small.job, state) for state in (states[-1], after))
    assert distance(one, wanted) <= ERROR_MAX and distance(other, wanted) <= ERROR_MAX
    assert distance(one, other) <= ERROR_MAX
    for state in states[:-1]:  # nothing is trained until the update is whole
        assert all(
            state[name] == small.state[name] for name in state if name.split("/")[0] in ("parameter", "adam_v")
        )
    assert all(not any(one) for name, one in states[-1].items() if name.split("/")[0] in ("gradient", "sum"))


def test_the_last_partial_accumulation_is_applied() -> None:
    """5 batches an epoch, 3 an update: updates of 3, 2, 3 and 2 batches, each a mean over its own tokens."""
    made = job(4, rows=9, batch=2, accumulate=3)
    losses, states = run(made)
    updates = [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    wanted, adapters = plain_run(made, updates)
    assert [losses[steps[-1]] for steps in updates] == pytest.approx(wanted, rel=1e-4)
    assert distance(matrices(states[-1], made), adapters) < 1e-3


def test_an_update_without_a_trained_token_divides_by_nothing() -> None:
    made = job(1, PLAIN, rows=4, accumulate=2)
    shape = made.job
    data = {
        **made.data,
        PLACES: np.full((shape.rows, shape.slots), shape.length, dtype="<i4").tobytes(),
        SLOTS: np.full((shape.rows, shape.length), shape.slots, dtype="<i4").tobytes(),
    }
    losses, states = run(replace(made, data=data))
    assert losses == [0.0, 0.0]
    assert matrices(states[-1], made).keys() and not np.frombuffer(states[-1][SUM_TOKENS], dtype="<f4").any()
    for name, one in matrices(states[-1], made).items():
        assert np.array_equal(one, made.adapters()[name])


def test_validation_losses_are_those_of_the_rows_that_nobody_trains_on() -> None:
    """An evaluation after every second update and after the last one, in steps that change no weight."""
    made = changed(job(5, rows=9), train_rows=6, evaluate_every=2, keeps_best=1)
    loop = made.job.loop(5)
    losses, states = run(made)
    every, found = made_rows(made.job), list[float]()
    for step in range(loop.steps):
        moment, state = loop.at(step), states[step]
        if moment.evaluation < 0:
            continue
        assert losses[step] == 0.0
        before = states[step - 1]
        assert all(
            state[name] == before[name]
            for name in state
            if name.split("/")[0] in ("parameter", "adam_m", "adam_v")
        )
        if moment.ends:
            rows = Rows(*(one[6:] for one in every))
            loss, _ = plain_gradients(made.job, weights(), matrices(state, made), rows)
            found.append(loss)
            shown = np.frombuffer(state[EVALUATION_LOSSES], dtype="<f4")
            assert shown[: len(found)].tolist() == pytest.approx(found, rel=1e-5)
            assert not shown[len(found) :].any()
            assert np.frombuffer(state[EVALUATION_BEST], dtype="<f4")[0] == min(shown[: len(found)])
    assert len(found) == 3
    wanted, _ = plain_run(made, [[step] for step in range(loop.steps) if loop.at(step).evaluation < 0])
    trained = [losses[step] for step in range(loop.steps) if loop.at(step).evaluation < 0]
    assert trained == pytest.approx(wanted, rel=1e-3)


def test_the_best_matrices_are_those_of_the_lowest_validation_loss() -> None:
    """A rate that is far too high makes it rise again."""
    made = changed(job(6, Rates(500_000_000), rows=8), train_rows=5, evaluate_every=1, keeps_best=1)
    loop = made.job.loop(6)
    _, states = run(made)
    losses = np.frombuffer(states[-1][EVALUATION_LOSSES], dtype="<f4")[:6]
    assert 0 <= (best := int(losses.argmin())) < 5, losses
    for evaluation in range(6):
        state = states[loop.evaluated_at(evaluation) - 1]
        lowest = int(losses[: evaluation + 1].argmin())
        wanted = states[loop.evaluated_at(lowest) - 1]
        for name in adapter_tensors(made.job):
            assert state[f"best/{name}"] == wanted[f"parameter/{name}"]
    assert states[-1][f"best/{name}"] != states[-1][f"parameter/{name}"], best


def test_accumulation_and_evaluation_together_train_as_without_evaluation() -> None:
    made = changed(job(4, rows=9, accumulate=2), train_rows=7, evaluate_every=3)
    alone = changed(job(4, rows=9, accumulate=2), train_rows=7)
    (_, states), (_, plain) = run(made), run(alone)
    loop = made.job.loop(4)
    assert loop.steps > alone.job.loop(4).steps and loop.evaluations == 2
    for name in alone.state:
        assert states[-1][name] == plain[-1][name]


@pytest.mark.parametrize("name", NAMES[1:])
def test_engines_give_the_same_bits(name: str) -> None:
    made = changed(job(3, rows=8, accumulate=2, clip=10**9), train_rows=5, evaluate_every=2, keeps_best=1)
    for step in (0, 1, 2, 5, 6):
        (one, after), (other, again) = (made.step(engine(kind), step) for kind in ("numpy", name))
        assert after == again
        assert float(one.loss[0, 0]) == float(engine(name).store(other.loss)[0, 0])


@pytest.mark.parametrize("step", [1, 3, 6])
def test_the_judge_computes_the_same_elements(step: int) -> None:
    made = changed(job(3, rows=8, accumulate=2, clip=10**9), train_rows=5, evaluate_every=2, keeps_best=1)
    program = finetune_program(made.job, made.rates)
    codes = {2: "f4", 5: "i2", 6: "i4"}
    every = {**made.model, **made.data, **made.state}
    sources = [
        np.array(NUMPY.from_content(every[one.key], codes[int(one.type.element)], one.type.rows, one.type.columns))
        for one in program.sources
    ]
    check_elements(program, sources, Context(step, SEED), 2)


@pytest.mark.parametrize(
    "change",
    [{"accumulate": 0}, {"accumulate": 1 << 17}, {"evaluate_every": 1}, {"evaluate_every": -1}, {"keeps_best": 1},
     {"keeps_best": 2, "evaluate_every": 1, "train_rows": 2}],
    ids=str,
)  # fmt: skip
def test_a_loop_that_no_program_is_made_of_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(job(1).job, **change)  # type: ignore[arg-type]


def test_a_job_of_too_many_evaluations_is_refused() -> None:
    made = changed(job(200), train_rows=5, evaluate_every=1)
    with pytest.raises(ProgramInvalid, match="evaluations"):
        finetune_program(made.job, made.rates)
