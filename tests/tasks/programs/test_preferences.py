"""Fine-tuning on preferences (DPO): near to plain arithmetic, the same bits everywhere (market.md R135)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from node.bench.plain_tuning import Rows, plain_gradients
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    BETA_NANO_MAX,
    PROJECTIONS,
    FinetuneRates,
    finetune_program,
    state_tensors,
)
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED, TINY
from tests.tasks.programs.test_finetune import (
    ADAMW,
    ERROR_MAX,
    PLAIN,
    SHAPES,
    TARGETS,
    _source,
    distance,
    gradients_of,
    torch_losses,
    weights_of,
)
from tests.tasks.programs.tunings import Tuning, made_rows, row_contents, tuning
from tests.tasks.programs.values import CONTEXT

NUMPY = engine("numpy")
BETA = 0.3
PAIRS: dict[str, Any] = {"preference": round(BETA * NANO)}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def plain_preferences(made: Tuning, seed: int = 5) -> tuple[float, dict[str, np.ndarray]]:
    """Return loss and gradients in binary64, of the gradients of each sequence alone."""
    job, rows, weights, adapters = made.job, made_rows(made.job, seed), weights_of(made.job.model), made.adapters()
    nothing = {name: np.zeros_like(one) for name, one in adapters.items()}
    alone = replace(job, preference=0)
    found, others = [], []
    for at in range(job.rows * 2):
        row = Rows(*(one[at : at + 1] for one in rows))
        count = int((row.places < job.length).sum())
        loss, gradients = plain_gradients(alone, weights, adapters, row)
        found.append((loss * count, {name: one * count for name, one in gradients.items()}))
        others.append(plain_gradients(alone, weights, nothing, row)[0] * count)
    losses, total = [], {name: np.zeros_like(one) for name, one in adapters.items()}
    for at in range(0, job.rows * 2, 2):
        margin = BETA * ((others[at] - found[at][0]) - (others[at + 1] - found[at + 1][0]))
        losses.append(np.log1p(np.exp(-margin)))
        share = BETA / (1 + np.exp(margin)) / job.rows
        for name in total:
            total[name] += share * (found[at][1][name] - found[at + 1][1][name])
    return float(np.mean(losses)), total


@pytest.mark.slow
@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
@shapes
def test_gradients_are_those_of_plain_binary64(shape: LlamaShape, targets: tuple[str, ...]) -> None:
    """Some tokens of random models are worse than others: there the cross entropy of the rows is no nearer."""
    errors = []
    for seed in (5, 6, 8):
        made = tuning(shape, PLAIN, targets, seed=seed, **PAIRS)
        result, after = made.step(NUMPY)
        loss, wanted = plain_preferences(made, seed)
        assert float(result.loss[0, 0]) == pytest.approx(loss, rel=5e-5)
        plain = tuning(shape, PLAIN, targets, batch=6, rows=6, seed=seed)
        _, found = plain_gradients(plain.job, weights_of(shape), plain.adapters(), made_rows(plain.job, seed))
        usual = distance(gradients_of(plain.job, plain.step(NUMPY)[1]), found)
        errors.append(distance(gradients_of(made.job, after), wanted))
        assert errors[-1] <= max(ERROR_MAX, 2 * usual)
    assert float(np.median(errors)) <= ERROR_MAX


@shapes
def test_gradients_are_those_of_automatic_differentiation(shape: LlamaShape) -> None:
    torch = pytest.importorskip("torch", reason="torch (extra ml) IS NOT INSTALLED: GRADIENTS WERE NOT CHECKED")
    made = tuning(shape, PLAIN, PROJECTIONS, seed=6, **PAIRS)
    job, rows, weights = made.job, made_rows(made.job, 6), weights_of(shape)

    def log_probabilities(adapters: dict[str, Any]) -> Any:
        losses, sequences = torch_losses(torch, job, weights, adapters, rows)
        return torch.zeros(job.rows * 2, dtype=losses.dtype).index_add(0, sequences, -losses)

    with torch.enable_grad():
        adapters = {name: torch.tensor(one, requires_grad=True) for name, one in made.adapters().items()}
        reference = log_probabilities({name: torch.zeros_like(one) for name, one in adapters.items()})
        gains = (log_probabilities(adapters) - reference).unflatten(0, (-1, 2))
        total = -torch.nn.functional.logsigmoid(BETA * (gains[:, 0] - gains[:, 1])).mean()
        total.backward()
    result, after = made.step(NUMPY)
    assert float(result.loss[0, 0]) == pytest.approx(float(total.detach()), rel=5e-5)
    error = distance(gradients_of(job, after), {name: one.grad.numpy() for name, one in adapters.items()})
    assert error <= ERROR_MAX


def test_a_job_begins_with_the_loss_of_a_coin_and_learns_what_is_chosen() -> None:
    """At the first step B is zero, so the model is its own reference to the bit: every margin is zero."""
    made = tuning(TINY, FinetuneRates(ADAMW, "constant", 0, 1000), **PAIRS)
    state = {name: bytes(len(one)) if name.endswith("/b") else one for name, one in made.state.items()}
    losses = list[float]()
    for step in range(10):
        result, state = made.step(NUMPY, step, state)
        losses.append(float(NUMPY.store(result.loss)[0, 0]))
    assert losses[0] == pytest.approx(np.log(2.0), rel=1e-11)
    assert losses[-1] < 0.5 * losses[0]


def test_chosen_and_rejected_are_told_apart() -> None:
    """With both exchanged the margins have the other sign."""
    made = tuning(TINY, PLAIN, **PAIRS)
    rows = made_rows(made.job)
    turned = Rows(*(one.reshape(made.job.rows, 2, -1)[:, ::-1].reshape(one.shape) for one in rows))
    other = replace(made, data=row_contents(made.job, turned))
    one, two = (float(job.step(NUMPY)[0].loss[0, 0]) for job in (made, other))
    assert one != two
    # log(1 + exp(-m)) - log(1 + exp(m)) = -m, of each pair alone.
    alone = replace(made, job=replace(made.job, batch=1, train_rows=1))
    first, second = (float(replace(alone, data=job.data).step(NUMPY)[0].loss[0, 0]) for job in (made, other))
    assert np.exp(-first) + np.exp(-second) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES[1:])
@shapes
def test_engines_give_the_same_bits(shape: LlamaShape, name: str) -> None:
    made = tuning(shape, FinetuneRates(ADAMW, "cosine", 1, 9, NANO), PROJECTIONS, **PAIRS)
    (one, after), (other, again) = (made.step(engine(kind), 3) for kind in ("numpy", name))
    assert after == again
    assert float(one.loss[0, 0]) == float(engine(name).store(other.loss)[0, 0])


def test_the_judge_computes_the_same_elements() -> None:
    made = tuning(TINY, FinetuneRates(ADAMW, "cosine", 1, 9, NANO), batch=2, rows=5, **PAIRS)
    program = finetune_program(made.job, made.rates)
    sources = [_source(made, program, number) for number in range(len(program.sources))]
    check_elements(program, sources, CONTEXT, 2)


def test_rows_that_fill_up_a_batch_count_nothing() -> None:
    """Of three pairs two are a step: the second step has one, and its loss is that of this pair alone."""
    rates = PLAIN._replace(total_steps=2)
    made = tuning(TINY, rates, batch=2, rows=3, **PAIRS)
    assert not made.job.is_whole
    losses = [float(made.step(NUMPY, step)[0].loss[0, 0]) for step in (0, 1)]
    alone = tuning(TINY, rates, batch=1, rows=3, **PAIRS)
    each = [float(alone.step(NUMPY, step)[0].loss[0, 0]) for step in range(3)]
    assert sorted([losses[0] * 2 + losses[1], losses[1]]) == pytest.approx(
        sorted([sum(each), next(one for one in each if abs(one - losses[1]) < 1e-6)]), rel=1e-6
    )


@pytest.mark.parametrize("change", [{"preference": -1}, {"preference": BETA_NANO_MAX + 1}, {"batch": 1 << 16}],
                         ids=str)  # fmt: skip
def test_a_job_that_no_program_is_made_of_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(tuning(BIASED, PLAIN, **PAIRS).job, **change)  # type: ignore[arg-type]


def test_a_state_is_that_of_any_adapters() -> None:
    """So it is asked, evaluated and exported as any other, and is a start."""
    job = tuning(TINY, PLAIN, **PAIRS).job
    assert state_tensors(job) == state_tensors(replace(job, preference=0))
