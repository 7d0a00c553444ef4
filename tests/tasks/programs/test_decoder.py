"""A step that trains a decoder from scratch: near to plain arithmetic, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape, decoder_program, state_tensors
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import ROW_TOKENS, TARGETS, FinetuneRates
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Program
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import TINY
from tests.tasks.programs.trainings import Training, torch_gradients, training
from tests.tasks.programs.values import CONTEXT

NUMPY = engine("numpy")
SHAPES = {
    "shared keys, tied": TINY,
    "own head": replace(TINY, tied=False),
    "bytes, four layers": LlamaShape(257, 48, 4, 4, 4, 12, 96, 64, 10_000, 10_000),
}
PLAIN = FinetuneRates(Rates(1_000_000, beta1_nano=0))
"""Without a first moment of earlier steps, the moment that is stored is the gradient."""
ERROR_MAX = 1e-4
ADAMW = Rates(20_000_000, weight_decay_nano=10_000_000)


def distance(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """Relative error of all gradients as one vector."""
    squares = sum(float(((found[name] - one) ** 2).sum()) for name, one in wanted.items())
    return float((squares / sum(float((one**2).sum()) for one in wanted.values())) ** 0.5)


def gradients_of(made: Training) -> dict[str, np.ndarray]:
    return made.weights("adam_m", made.step(NUMPY)[1])


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_those_of_automatic_differentiation(shape: LlamaShape) -> None:
    """Of every weight, alone and together, within what float32 of the field's library is trusted for."""
    torch = pytest.importorskip("torch", reason="torch (extra ml) IS NOT INSTALLED: GRADIENTS WERE NOT CHECKED")
    made = training(shape, PLAIN, spread=1.0, length=24)
    result, after = made.step(NUMPY)
    found = made.weights("adam_m", after)
    loss, single = torch_gradients(torch, made, torch.float32)
    assert float(result.loss[0, 0]) == pytest.approx(loss, rel=1e-5)
    assert distance(found, single) <= ERROR_MAX
    _, wanted = torch_gradients(torch, made, torch.float64)
    for name, one in wanted.items():
        assert distance({name: found[name]}, {name: one}) <= ERROR_MAX, name


def test_a_token_that_no_row_has_changes_its_embedding_by_the_head_alone() -> None:
    """The sum over tokens is exact: rows of the embedding without a token get a gradient of zero to the bit."""
    made = training(SHAPES["own head"], PLAIN)
    used = np.unique(made.rows(ROW_TOKENS))
    unused = np.setdiff1d(np.arange(TINY.vocabulary), used)
    found = gradients_of(made)["embedding"]
    assert len(unused) and not found[unused].any()
    assert (np.abs(found[used]).max(1) > 0).all()


def test_the_loss_of_a_text_falls() -> None:
    made = training(TINY, FinetuneRates(ADAMW, "cosine", 2, 40, NANO), spread=1.0)
    state, losses = dict(made.state), list[float]()
    for step in range(12):
        result, state = made.step(NUMPY, step, state)
        losses.append(float(result.loss[0, 0]))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_engines_give_the_same_bits(shape: LlamaShape, name: str) -> None:
    made = training(shape, FinetuneRates(ADAMW, "cosine", 1, 9, NANO))
    (one, after), (other, again) = (made.step(engine(kind), 3) for kind in ("numpy", name))
    assert after == again
    assert float(one.loss[0, 0]) == float(engine(name).store(other.loss)[0, 0])


def test_the_norm_of_all_gradients_is_clipped() -> None:
    free = gradients_of(training(TINY, PLAIN))
    clipped = gradients_of(training(TINY, PLAIN._replace(clip_nano=NANO // 100)))
    norm = sum(float((one**2).sum()) for one in free.values()) ** 0.5
    assert norm > 0.02
    assert distance(clipped, {name: one * 0.01 / norm for name, one in free.items()}) < 1e-6


def test_matrices_decay_and_norms_do_not() -> None:
    """Apart from the gradient: with a large rate of decay the weights shrink by it."""
    still, decayed = (
        made.weights("parameter", made.step(NUMPY)[1])
        for made in (
            training(TINY, PLAIN._replace(adamw=PLAIN.adamw._replace(weight_decay_nano=decay)))
            for decay in (0, NANO)
        )
    )
    before = training(TINY, PLAIN).weights()
    for name, one in before.items():
        shrunk = 0.0 if name.endswith("norm") else 0.001
        assert np.allclose(decayed[name], still[name] - shrunk * one, rtol=0, atol=1e-6), name


def test_the_judge_computes_the_same_elements() -> None:
    """Of every call of a step a few elements, from what they were computed from."""
    for shape in (TINY, replace(TINY, tied=False)):
        made = training(shape, FinetuneRates(ADAMW, "cosine", 1, 9, NANO), batch=2, rows=5)
        program = decoder_program(made.job, made.rates)
        sources = [_source(made, program, number) for number in range(len(program.sources))]
        check_elements(program, sources, CONTEXT, 2)


def _source(made: Training, program: Program, number: int) -> np.ndarray:
    source = program.sources[number]
    content = {**made.data, **made.state}[source.key]
    code = {2: "f4", 6: "i4"}[int(source.type.element)]
    return np.array(NUMPY.from_content(content, code, source.type.rows, source.type.columns))


@pytest.mark.parametrize(
    "change",
    [{"length": 65}, {"length": 0}, {"batch": 0}, {"train_rows": 0}, {"train_rows": 4}, {"batch": 1 << 20},
     {"model": replace(TINY, biased=True)}],
    ids=str,
)  # fmt: skip
def test_a_job_that_no_program_is_made_of_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(training(TINY, PLAIN).job, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rates",
    [PLAIN._replace(schedule="step"), PLAIN._replace(warmup_steps=5, total_steps=5), PLAIN._replace(clip_nano=-1),
     PLAIN._replace(adamw=Rates(0))],
    ids=str,
)  # fmt: skip
def test_rates_that_are_none_are_refused(rates: FinetuneRates) -> None:
    with pytest.raises(ProgramInvalid):
        decoder_program(training(TINY, PLAIN).job, rates)


def test_the_largest_models_stay_in_the_exact_range() -> None:
    """Bounds do not grow with the layers."""
    wide = LlamaShape(152_064, 8_192, 2, 64, 8, 128, 29_568, 32_768, 1_000_000, 1_000, tied=False)
    for model, layers in ((replace(TINY, layers=24), 24), (wide, 2)):
        shape = DecoderShape(model, 2, 64, 100, 90)
        program = decoder_program(shape, FinetuneRates(ADAMW, "linear", 10, 100, NANO))
        assert (
            len(state_tensors(model, shape))
            == 3 * len(parameters_of(model))
            == 3 * (9 * layers + 2 + (not model.tied))
        )
        assert program.units > 0


def test_tokens_and_what_follows_them_are_the_data() -> None:
    made = training(TINY, PLAIN)
    swapped = replace(made, data={**made.data, TARGETS: made.data[ROW_TOKENS]})
    assert float(swapped.step(NUMPY)[0].loss[0, 0]) != float(made.step(NUMPY)[0].loss[0, 0])
    assert made.job == DecoderShape(TINY, 3, 10, 3, 3)
