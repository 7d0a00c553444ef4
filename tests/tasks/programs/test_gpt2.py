"""Programs of GPT-2: near to plain arithmetic, the same bits on every engine, every element judged (R154)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.programs.adamw import Rates
from tasks.programs.builder import Builder
from tasks.programs.checks import check_computation
from tasks.programs.decoder import DecoderShape, decoder_program
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates, FinetuneShape, adapter_tensors
from tasks.programs.gelu import gelu, gelu_slope
from tasks.programs.llama_shape import GPT2_PROJECTIONS, LlamaShape, weight_tensors
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Source, SourceKind
from tasks.programs.running import ResultRunner
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.gpt2s import GPT2, TURN, torch_gpt2_logits
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import frozen_weights
from tests.tasks.programs.trainings import training
from tests.tasks.programs.tunings import made_rows, tuning
from tests.tasks.programs.values import CONTEXT

NUMPY = engine("numpy")
PLAIN = FinetuneRates(Rates(1_000_000, beta1_nano=0))
"""Without a first moment of earlier steps, the moment that is stored is the gradient."""
ADAMW = FinetuneRates(Rates(20_000_000, weight_decay_nano=10_000_000), "cosine", 1, 9, NANO)
ERROR_MAX = 1e-4
NO_TORCH = "torch (extra ml) IS NOT INSTALLED: GRADIENTS WERE NOT CHECKED"
TARGETS = (GPT2_PROJECTIONS, ("query_key_value",), ("output",), ("up",), ("down",))


def distance(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    squares = sum(float(((found[name] - one) ** 2).sum()) for name, one in wanted.items())
    return float((squares / sum(float((one**2).sum()) for one in wanted.values())) ** 0.5)


def test_the_gelu_is_the_tanh_form_and_its_slope() -> None:
    """Within a few units of the last place of 1, at all magnitudes, beyond the bend too."""
    values = np.concatenate([np.linspace(-12, 12, 3_001), [0.0, 1e-30, -1e-30, 2.0**59, -(2.0**59)]]).reshape(
        1, -1
    )
    build = Builder([Source(SourceKind.DATA, "x", TensorType(ElementType.BINARY32, 1, values.size))])
    made = gelu(build, build.call("load", build.source(SourceKind.DATA, "x")))
    computation = build.computation(made.inner, gelu_slope(build, made))
    check_computation(computation)
    single = values.astype("<f4").astype(np.float64)
    found, slope = ResultRunner(computation, NUMPY).run([single], CONTEXT)
    inside = np.clip(single, -30, 30)
    tanh = np.tanh(TURN * (inside + 0.044715 * inside**3))
    wanted = 0.5 * single * (1 + tanh)
    bend = 0.5 * inside * (1 - tanh**2) * TURN * (1 + 3 * 0.044715 * inside**2)
    assert (np.abs(found - wanted) <= 1e-14 * np.maximum(np.abs(single), 1)).all()
    assert np.abs(slope - (0.5 * (1 + tanh) + bend)).max() < 1e-12
    check_elements(computation, [single], CONTEXT, 60)


@pytest.mark.parametrize("shape", [GPT2, replace(GPT2, tied=False, heads=1, key_heads=1, head_width=24)])
def test_gradients_of_all_weights_are_those_of_automatic_differentiation(shape: LlamaShape) -> None:
    torch: Any = pytest.importorskip("torch", reason=NO_TORCH)
    made = training(shape, PLAIN, spread=1.0, length=24)
    result, after = made.step(NUMPY)
    found = made.weights("adam_m", after)
    with torch.enable_grad():
        weights = {name: torch.tensor(one, requires_grad=True) for name, one in made.weights().items()}
        logits = torch_gpt2_logits(
            torch, shape, weights, torch.tensor(made.rows("tokens")),
            lambda values, name: values @ weights[name].T + weights[f"{name}_bias"][0],
        )  # fmt: skip
        targets = torch.tensor(made.rows("targets")).flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        loss.backward()
    assert float(result.loss[0, 0]) == pytest.approx(float(loss.detach()), rel=1e-5)
    wanted = {name: one.grad.numpy() for name, one in weights.items()}
    assert distance(found, wanted) <= ERROR_MAX
    for name, one in wanted.items():  # queries' bias changes nothing of a key's share but by rounding
        assert distance({name: found[name]}, {name: one}) <= 2 * ERROR_MAX, name


@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
def test_gradients_of_adapters_are_those_of_automatic_differentiation(targets: tuple[str, ...]) -> None:
    torch: Any = pytest.importorskip("torch", reason=NO_TORCH)
    made = tuning(GPT2, PLAIN, targets)
    result, after = made.step(NUMPY)
    rows, job = made_rows(made.job), made.job
    frozen = frozen_weights(GPT2)
    plain = {
        name: torch.tensor(one * 2.0 ** (frozen.get(f"{name}/exponents", np.float64(14)) - 14))
        for name, one in frozen.items() if not name.endswith("exponents")
    }  # fmt: skip
    with torch.enable_grad():
        adapters = {name: torch.tensor(one, requires_grad=True) for name, one in made.adapters().items()}

        def linear(values: Any, name: str) -> Any:
            found = values @ plain[name].T + plain[f"{name}_bias"][0]
            if name.split("/")[-1] not in targets:
                return found
            return found + job.alpha / job.rank * (values @ adapters[f"{name}/a"].T @ adapters[f"{name}/b"].T)

        logits = torch_gpt2_logits(torch, GPT2, plain, torch.tensor(rows.tokens), linear)
        row, slot = np.nonzero(rows.places < job.length)
        picked = logits[torch.tensor(row), torch.tensor(rows.places[row, slot])]
        loss = torch.nn.functional.cross_entropy(picked, torch.tensor(rows.targets[row, slot]))
        loss.backward()
    assert float(result.loss[0, 0]) == pytest.approx(float(loss.detach()), rel=1e-5)
    found = {
        name: np.frombuffer(after[f"adam_m/{name}"], dtype="<f4").reshape(kind.rows, kind.columns).astype(float)
        for name, kind in adapter_tensors(job).items()
    }
    assert distance(found, {name: one.grad.numpy() for name, one in adapters.items()}) <= ERROR_MAX


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("make", [training, tuning])
def test_engines_give_the_same_bits(name: str, make: Callable[..., Any]) -> None:
    made = make(GPT2, ADAMW) if make is training else make(GPT2, ADAMW, GPT2_PROJECTIONS)
    (one, after), (other, again) = (made.step(engine(kind), 3) for kind in ("numpy", name))
    assert after == again
    assert float(one.loss[0, 0]) == float(engine(name).store(other.loss)[0, 0])


def test_every_element_of_a_step_is_what_the_judge_computes() -> None:
    """Of training all weights: it has all calls of the way forward and back."""
    made = training(GPT2, ADAMW, batch=2, rows=2, length=5)
    program = decoder_program(made.job, made.rates)
    sources = [
        np.frombuffer(
            made.state[source.key] if source.kind is SourceKind.STATE else made.data[source.key],
            dtype="<f4" if source.kind is SourceKind.STATE else "<i4",
        ).reshape(source.type.rows, source.type.columns).astype(np.float64)
        for source in program.sources
    ]  # fmt: skip
    check_elements(program, sources, CONTEXT, 2)


def test_biases_and_norms_do_not_decay_and_positions_do() -> None:
    made = training(GPT2, PLAIN._replace(adamw=PLAIN.adamw._replace(weight_decay_nano=NANO)))
    still = training(GPT2, PLAIN)
    decayed, kept = (
        made.weights("parameter", made.step(NUMPY)[1]),
        still.weights("parameter", still.step(NUMPY)[1]),
    )
    for name, before in made.weights().items():
        shrunk = 0.0 if name.endswith(("norm", "bias")) else 0.001
        assert np.allclose(decayed[name], kept[name] - shrunk * before, rtol=0, atol=1e-6), name


@pytest.mark.parametrize(
    "change",
    [
        {"biased": True},
        {"key_heads": 2},
        {"head_width": 5},
        {"rotary_base": 1},
        {"rotary_base": -1},
        {"width": 25},
    ],
)
def test_other_shapes_are_no_gpt2(change: dict[str, Any]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(GPT2, **change)


def test_names_of_another_family_are_no_targets() -> None:
    for targets in (("query",), ("query_key_value", "gate"), ("up", "output")):
        with pytest.raises(ProgramInvalid, match="query_key_value, output, up, down"):
            FinetuneShape(GPT2, 4, 8, targets, 1, 4, 2, 4, 4)
    assert "layer/0/query_key_value_bias" in weight_tensors(GPT2)
    DecoderShape(GPT2, 1, GPT2.context, 1, 1)
    with pytest.raises(ProgramInvalid, match="context"):
        DecoderShape(GPT2, 1, GPT2.context + 1, 1, 1)
