"""How near exact programs are to plain binary64 at fixed states, and what eight seeds learn.

``gradient_error`` is the relative error of all gradients of one step, ``kl`` the mean divergence of the exact
distribution from that of binary64, in nats. ``float32_*`` are plain float32's own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from node.bench.exact_jobs import (
    RATES,
    SEED,
    Models,
    adapters_of,
    as_rows,
    classifier_plan_of,
    decoder_job,
    tuning_job,
    weights_of,
)
from node.bench.plain_training import plain_training, plain_training_logits, plain_vectors
from node.bench.plain_tuning import Rows, plain_adamw, plain_gradients, plain_logits, plain_weights
from node.bench.train import PlainClassifier
from tasks.engines.arrays import NumpyArrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer
from tasks.engines.decoder_training import first_state as first_weights
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.passing import RowPass
from tasks.engines.state import TrainingState
from tasks.engines.training import Trainer, initial_state
from tasks.engines.tuning import Tuner, TuningPlan, first_state
from tasks.models.decoding import Decoder
from tasks.models.gguf import GgufFile
from tasks.models.llama import Model, gguf_place, places_of, rotated_heads
from tasks.models.training import DecoderSize
from tasks.programs.adamw import Rates
from tasks.programs.bert_shape import BertShape
from tasks.programs.embed import LAST, TEXT_TOKENS, EmbedShape
from tasks.programs.finetune import ROW_TOKENS, TARGETS, FinetuneRates, FinetuneShape
from tasks.programs.operators import Context
from tasks.programs.permutation import order_keys, permuted
from tasks.programs.program import Program, SourceKind
from tasks.programs.running import Runner

__all__ = ["closeness", "seed_figures"]

BATCH: Final = 4
"""Rows of the fixed states."""
SEEDS_STEPS: Final = {"mlp": 60, "gpt": 60}
SEEDS_TAIL: Final = 10
"""The loss of a seed is the mean of its last steps."""
SMALL_GPT: Final = DecoderSize(2, 64, 4, 32)
"""Of the seeds: 0.1 million weights."""
SEEDS_RATE: Final = 4_000_000


def closeness(models: Models, name: str) -> dict[str, float]:
    """Return the figures of a job."""
    return _MEASURES[name](models)


def _relative(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    norm = sum(float((one.astype(np.float64) ** 2).sum()) for one in wanted.values())
    rest = sum(float(((found[name].astype(np.float64) - one) ** 2).sum()) for name, one in wanted.items())
    return float((rest / norm) ** 0.5)


def _worst(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """Return the relative error of the tensor where it is largest."""
    return max(_relative({name: found[name]}, {name: one}) for name, one in wanted.items() if one.any())


def _log_shares(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    values = values - values.max(-1, keepdims=True)
    found: np.ndarray = values - np.log(np.exp(values).sum(-1, keepdims=True))
    return found


def _kl(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the mean over rows of the divergence of ``found`` from ``wanted``, both logits."""
    right, given = _log_shares(wanted), _log_shares(found)
    return float((np.exp(right) * (right - given)).sum(-1).mean())


def _exact_logits(
    program: Program, sources: Mapping[SourceKind, Mapping[str, bytes]], columns: int, seed: bytes
) -> np.ndarray:
    """Return the logits of a step of training, less the largest of each row."""
    first = len(program.sources)
    at = max(
        number
        for number, call in enumerate(program.calls)
        if call.operator == "exp" and program.types[first + number].columns == columns
    )
    wanted = program.calls[at].inputs[0]
    runner = Runner(program, NumpyArrays())
    held = {kind: runner.load(kind, contents) for kind, contents in sources.items()}
    loaded = runner.sources(held[SourceKind.STATE], held[SourceKind.DATA], held.get(SourceKind.MODEL, {}))
    ((_, content),) = runner.contents(loaded, Context(0, seed), wanted=frozenset({wanted}))
    return np.frombuffer(content, "<f8").reshape(-1, columns)


def _classifier(_models: Models) -> dict[str, float]:
    dataset, plan = make_dataset("digits"), classifier_plan_of(64, beta1_nano=0)
    trainer = Trainer(plan, dataset, NumpyArrays(), initial_state(plan))
    trainer.run_steps(1)
    state = trainer.state().tensors
    wanted, single = (PlainClassifier(plan, dataset, dtype).gradients(0) for dtype in (np.float64, np.float32))
    found = {
        name: np.frombuffer(state[f"adam_m/{name}"], "<f4").reshape(one.shape) for name, one in wanted[1].items()
    }
    sources = {SourceKind.STATE: initial_state(plan).tensors, SourceKind.DATA: dataset.contents}
    logits = _exact_logits(plan.program, sources, plan.widths[-1], plan.seed)
    return _figures(found, wanted[1], single[1]) | {
        "kl": _kl(logits, wanted[2]), "float32_kl": _kl(single[2], wanted[2])
    }  # fmt: skip


def _figures(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], single: Mapping[str, np.ndarray]
) -> dict[str, float]:
    return {
        "gradient_error": _relative(found, wanted), "gradient_error_worst_tensor": _worst(found, wanted),
        "float32_gradient_error": _relative(single, wanted),
    }  # fmt: skip


def _batch_of(plan: DecoderPlan, rows: Mapping[str, bytes], step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and targets of a step."""
    shape = plan.shape
    places = [divmod(step * shape.batch + at, shape.train_rows) for at in range(shape.batch)]
    picked = [permuted(place, shape.train_rows, order_keys(plan.seed, epoch)) for epoch, place in places]
    tokens, targets = (
        np.frombuffer(rows[name], "<i4").reshape(shape.rows, shape.length)[picked].astype(np.int64)
        for name in (ROW_TOKENS, TARGETS)
    )
    return tokens, targets


def _gpt(_models: Models) -> dict[str, float]:
    plan, rows = decoder_job(BATCH, rates=FinetuneRates(RATES._replace(beta1_nano=0)))
    state = first_weights(plan)
    trainer = DecoderTrainer(plan, rows, NumpyArrays(), state)
    trainer.run_steps(1)
    found = weights_of(plan, trainer.state().tensors, "adam_m", np.float64)
    tokens, targets = _batch_of(plan, rows, 0)
    model, held = (
        plan.shape.model,
        {dtype: weights_of(plan, state.tensors, "parameter", dtype) for dtype in (np.float64, np.float32)},
    )
    wanted, single = (plain_training(model, weights, tokens, targets)[1] for weights in held.values())
    logits = _exact_logits(
        plan.program, {SourceKind.STATE: state.tensors, SourceKind.DATA: rows}, model.vocabulary, plan.seed
    )
    right, less = (plain_training_logits(model, weights, tokens, targets) for weights in held.values())
    return _figures(found, wanted, single) | {"kl": _kl(logits, right), "float32_kl": _kl(less, right)}


def _lora(models: Models) -> dict[str, float]:
    """At adapters of which both matrices are random."""
    model, rows = models.decoder, models.rows(BATCH)
    job = tuning_job(model, rows)
    # The moment of a step without memory is its gradient.
    plan = TuningPlan(job, FinetuneRates(RATES._replace(beta1_nano=0)), SEED)
    random, tensors = np.random.default_rng(4), dict(first_state(plan).tensors)
    for name, kind in plan.tensors().items():
        if name.startswith("parameter/") and name.endswith("/b"):
            tensors[name] = random.normal(0, 0.003, (kind.rows, kind.columns)).astype("<f4").tobytes()
    contents = model.contents()
    tuner = Tuner(plan, contents, rows.contents, NumpyArrays(), TrainingState(0, tensors))
    tuner.run_steps(1)
    found = adapters_of(job, tuner.state().tensors, "adam_m", np.float64)
    del tuner
    logits = _exact_logits(
        plan.program,
        {SourceKind.STATE: tensors, SourceKind.DATA: rows.contents, SourceKind.MODEL: contents},
        model.shape.vocabulary, SEED,
    )  # fmt: skip
    given, order = as_rows(job, rows), [permuted(at, job.batch, order_keys(SEED, 0)) for at in range(job.batch)]
    given = type(given)(*(part[order] for part in given))
    gradients, plain = [], []
    for dtype in (np.float64, np.float32):
        weights, adapters = plain_weights(model.tensors, dtype), adapters_of(job, tensors, "parameter", dtype)
        gradients.append(plain_gradients(job, weights, adapters, given)[1])
        plain.append(plain_logits(job, weights, adapters, given))
    picked = logits[(given.places < job.length).reshape(-1)]  # free slots have logits too
    return _figures(found, gradients[0], gradients[1]) | {
        "kl": _kl(picked, plain[0]), "float32_kl": _kl(plain[1], plain[0])
    }  # fmt: skip


def _generate(models: Models) -> dict[str, float]:
    """Next tokens after all places of a prompt and its answer; ``kl`` is against the weights of the file."""
    model = models.decoder
    decoder = Decoder(model, NumpyArrays())
    text = [*models.prompt, *decoder.decode([models.prompt], 24).tokens[0]]
    exact = decoder.logits([text])[0]
    del decoder
    length = len(text)
    job = FinetuneShape(model.shape, 1, 1, ("query",), 1, length, length, 1, 1)
    tokens = np.array([text])
    rows = _asked(tokens)
    frozen, single = (plain_logits(job, plain_weights(model.tensors, dtype), {}, rows) for dtype in _TYPES)
    figures = {"kl_of_frozen_weights": _kl(exact, frozen), "float32_kl": _kl(single, frozen)}
    right = frozen
    if models.file is not None:
        right = plain_logits(job, _file_weights(models.file, model), {}, rows)
    same = float((exact.argmax(-1) == right.argmax(-1)).mean())
    return {"kl": _kl(exact, right), "same_first_choice_percent": 100 * same, **figures}


_TYPES: Final = (np.float64, np.float32)


def _asked(tokens: np.ndarray) -> Rows:
    """Return texts of which each place is asked for the next token."""
    return Rows(tokens, np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape), np.zeros_like(tokens))


def _file_weights(file: GgufFile, model: Model) -> dict[str, np.ndarray]:
    """Return the weights that a file of llama.cpp has, before they are frozen."""
    found = {}
    for name, place in places_of(model.shape, gguf_place).items():
        held = file.tensors[place]
        values = file.values(place, 0, held.rows)
        heads = rotated_heads(model.shape, name.split("/")[-1])
        if heads:
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        found[name] = values
    return found


def _embed(models: Models) -> dict[str, float]:
    """``vector_error`` is the relative error of all vectors."""
    model = models.encoder
    shape = model.shape
    assert isinstance(shape, BertShape)
    tokens = np.random.default_rng(5).integers(1_000, shape.vocabulary, (BATCH, 48))
    plan = EmbeddingPlan(SEED, EmbedShape(shape, BATCH, BATCH, 48, "mean", normalised=True))
    rows = {TEXT_TOKENS: tokens.astype("<i4").tobytes(), LAST: np.full(BATCH, 47, dtype="<i4").tobytes()}
    run = RowPass(plan, model.contents(), rows, NumpyArrays(), plan.first_state())
    run.run_steps(1)
    (content,) = run.state().tensors.values()
    exact = np.frombuffer(content, "<f4").reshape(-1, shape.width)[:BATCH]
    right, single = (plain_vectors(shape, plain_weights(dict(model.tensors), dtype), tokens) for dtype in _TYPES)
    return {
        "vector_error": _relative({"": exact}, {"": right}),
        "float32_vector_error": _relative({"": single}, {"": right}),
        "cosine_least": float((exact * right).sum(-1).min()),
    }


_MEASURES: Final[Mapping[str, Callable[[Models], dict[str, float]]]] = {
    "mlp": _classifier, "gpt": _gpt, "lora": _lora, "generate": _generate, "embed": _embed,
}  # fmt: skip


# Seeds


def seed_figures(name: str, seeds: int) -> dict[str, float]:
    """Return the mean loss of so many seeds, exact and float32's, and their distance in float32's spreads."""
    run = _classifier_losses if name == "mlp" else _gpt_losses
    found = np.array([run(bytes(31) + bytes([number])) for number in range(1, seeds + 1)])
    exact, plain = found.mean(0)
    spread = float(found[:, 1].std(ddof=1))
    return {
        "seeds": float(seeds), "loss_of_seeds": float(exact), "float32_loss_of_seeds": float(plain),
        "float32_loss_spread": spread, "loss_distance_in_spreads": abs(float(exact - plain)) / spread,
    }  # fmt: skip


def _tail(run: Any, steps: int) -> float:
    """Return the mean loss of the last steps of a run."""
    run.run_steps(steps - SEEDS_TAIL)
    _, bits = run.run_steps(SEEDS_TAIL)
    (total,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return float(total) / SEEDS_TAIL


def _classifier_losses(seed: bytes) -> tuple[float, float]:
    dataset, plan = make_dataset("digits"), classifier_plan_of(64, seed)
    plain = PlainClassifier(plan, dataset)
    losses = [plain.step() for _ in range(SEEDS_STEPS["mlp"])]
    exact = _tail(Trainer(plan, dataset, NumpyArrays(), initial_state(plan)), SEEDS_STEPS["mlp"])
    return exact, float(np.mean(losses[-SEEDS_TAIL:]))


def _gpt_losses(seed: bytes) -> tuple[float, float]:
    rates = Rates(SEEDS_RATE)
    plan, rows = decoder_job(8, SMALL_GPT, seed, FinetuneRates(rates))
    state = first_weights(plan)
    exact = _tail(DecoderTrainer(plan, rows, NumpyArrays(), state), SEEDS_STEPS["gpt"])
    weights, *moments = (
        weights_of(plan, state.tensors, group, np.float32) for group in ("parameter", "adam_m", "adam_v")
    )
    losses = []
    for step in range(SEEDS_STEPS["gpt"]):
        loss, gradients = plain_training(plan.shape.model, weights, *_batch_of(plan, rows, step))
        plain_adamw(rates, step + 1, weights, (moments[0], moments[1]), gradients)
        losses.append(loss)
    return exact, float(np.mean(losses[-SEEDS_TAIL:]))
