"""Jobs of the kinds ``embed`` and ``evaluate`` on tiny models, with everything that their workers fetch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.pass_plan import PassPlan, root_of
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.embed import KIND_EMBED, EmbedPart, Pooling
from tasks.kinds.evaluate import KIND_EVALUATE, EvaluatePart, LabelledRows
from tasks.kinds.finetune import BaseModel
from tasks.kinds.generate import PromptSet
from tasks.models.evaluating import padded_rows
from tasks.models.llama import contents_of, frozen
from tasks.models.rows import Example, make_rows
from tasks.programs.bert_shape import BertShape
from tasks.programs.embed import LAST, TEXT_TOKENS, EmbedShape, ModelShape, frozen_tensors
from tasks.programs.evaluate import EvaluateShape
from tasks.programs.llama_shape import Adapter, LlamaShape, exponents_of
from tasks.programs.tensors import ElementType
from tasks.spec import JobSpec, Part, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.programs.generations import made_adapter, made_model
from tests.tasks.tuned import TINY
from tests.tasks.world import WORTH

SEED: Final = bytes(range(32))
ENCODER: Final = BertShape(
    vocabulary=40, width=8, layers=2, heads=2, hidden=12, context=16, epsilon_nano=1_000
)  # fmt: skip
ADAPTER: Final = Adapter(2, 4, ("query", "down"), 6)
WHOLE: Final = Adapter(0, 0, (), 6)
"""A model that a task has trained."""
STEPS: Final = 6


class Passed(NamedTuple):
    """A job, its plan, and the contents of its model and rows by name."""

    spec: JobSpec
    plan: PassPlan
    model: Mapping[str, bytes]
    rows: Mapping[str, bytes]


def encoder_weights(shape: BertShape, seed: int = 3) -> dict[str, np.ndarray]:
    """Return random weights and vectors of an encoder, in binary64."""
    random, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, kind in frozen_tensors(shape).items():
        if kind.element is ElementType.BINARY32:
            centre = 1.0 if name.endswith("norm") else 0.0
            values = centre + random.normal(0, 0.3, (1, kind.columns))
            found[name] = values.astype(np.float32).astype(np.float64)
        elif not name.endswith("/exponents"):
            found[name] = random.normal(0, 2.5 / np.sqrt(kind.columns), (kind.rows, kind.columns))
    return found


def model_contents(shape: ModelShape, seed: int = 3) -> dict[str, bytes]:
    """Return the contents of a random model."""
    if isinstance(shape, LlamaShape):
        return made_model(shape, seed).contents()
    tensors = dict[str, np.ndarray]()
    kinds = frozen_tensors(shape)
    for name, values in encoder_weights(shape, seed).items():
        if kinds[name].element is ElementType.BINARY32:
            tensors[name] = values
        else:
            tensors[name], tensors[exponents_of(name)] = frozen(values)
    return contents_of(kinds, tensors)


def made_texts(shape: EmbedShape, seed: int = 5) -> list[list[int]]:
    """Return texts of one token to all; the first is the longest."""
    random = np.random.default_rng(seed)
    lengths = [shape.length, 1, *random.integers(1, shape.length + 1, shape.rows).tolist()][: shape.rows]
    return [random.integers(0, shape.model.vocabulary, length).tolist() for length in lengths]


def text_contents(shape: EmbedShape, texts: list[list[int]], fill: int = 0) -> dict[str, bytes]:
    """Return the tensors of texts; ``fill`` stands in their rows beyond them."""
    table, last = np.full((shape.table_rows, shape.length), fill, "<i4"), np.zeros(shape.table_rows, "<i4")
    for row in range(shape.table_rows):
        one = texts[min(row, len(texts) - 1)]
        table[row, : len(one)] = one
        last[row] = len(one) - 1
    return {TEXT_TOKENS: table.tobytes(), LAST: last.tobytes()}


def base_of(model: ModelShape, root: bytes) -> BaseModel:
    if isinstance(model, BertShape):
        return BaseModel(
            "bert", b"m" * 32, root, model.vocabulary, model.width, model.layers, model.heads, model.heads,
            model.head_width, model.hidden, model.context, 0, model.epsilon_nano, 1, 1,
        )  # fmt: skip
    return BaseModel(
        "llama", b"m" * 32, root, model.vocabulary, model.width, model.layers, model.heads, model.key_heads,
        model.head_width, model.hidden, model.context, model.rotary_base, model.epsilon_nano, int(model.tied),
        int(model.biased),
    )  # fmt: skip


def embedded(
    model: ModelShape = ENCODER, *, batch: int = 2, rows: int = 11, length: int = 5, pooling: str = "mean",
    normalised: bool = True, segment: int = 2, window: int = STEPS, adapter: Adapter | None = None,
) -> Passed:  # fmt: skip
    """Return a job that embeds 11 texts in six steps; the last one is half filled."""
    shape = EmbedShape(model, batch, rows, length, pooling, normalised, adapter)
    plan = EmbeddingPlan(SEED, shape)
    base, contents, tuned = _model_of(plan, model)
    texts = text_contents(shape, made_texts(shape))
    part = EmbedPart(
        base, PromptSet(b"t" * 32, root_of(plan.row_tensors(), texts), rows, length), batch,
        Pooling(pooling, int(normalised)), tuned,
    )  # fmt: skip
    return _passed(KIND_EMBED, part, plan, contents, texts, segment, window)


def made_examples(model: LlamaShape, rows: int, length: int, seed: int = 5) -> list[Example]:
    """Return rows of two tokens to one more than ``length``, of which some are trained."""
    random, found = np.random.default_rng(seed), list[Example]()
    for row in range(rows):
        count = length + 1 if not row else int(random.integers(2, length + 2))
        trained = random.random(count) < 0.6
        trained[-1] = True
        found.append(
            Example(row + 1, tuple(random.integers(0, model.vocabulary, count).tolist()), tuple(trained.tolist()))
        )
    return found


def evaluated(
    model: LlamaShape = TINY, adapter: Adapter | None = None, *, batch: int = 2, rows: int = 11, length: int = 6,
    segment: int = 2, window: int = STEPS,
) -> Passed:  # fmt: skip
    """Return a job that evaluates 11 rows in six steps."""
    made = make_rows(made_examples(model, rows, length), length)
    shape = EvaluateShape(model, batch, made.rows, made.length, made.slots, adapter)
    plan, data = EvaluationPlan(SEED, shape), padded_rows(shape, made)
    base, contents, tuned = _model_of(plan, model)
    part = EvaluatePart(
        base,
        LabelledRows(b"r" * 32, root_of(plan.row_tensors(), data), made.rows, made.length, made.slots),
        batch, tuned,
    )  # fmt: skip
    return _passed(KIND_EVALUATE, part, plan, contents, data, segment, window)


def _model_of(plan: PassPlan, model: ModelShape) -> tuple[BaseModel, Mapping[str, bytes], TunedAdapter | None]:
    """Return what a specification says of a random model, its contents, and its adapters."""
    contents, adapter, layout = model_contents(model), plan.adapter, plan.adapter_plan
    root = root_of(plan.weight_tensors(), contents)
    if adapter is None or layout is None or not isinstance(model, LlamaShape):
        return base_of(model, root), contents, None
    state = made_adapter(model, adapter, 5)
    tuned = TunedAdapter(b"a" * 32, state.root(layout), *adapter)
    if adapter.is_whole:
        return base_of(model, bytes(32))._replace(blob=bytes(32)), state.tensors, tuned
    return base_of(model, root), {**contents, **state.tensors}, tuned


def _passed(
    kind: str, part: Part, plan: PassPlan, model: Mapping[str, bytes], rows: Mapping[str, bytes], segment: int,
    window: int,
) -> Passed:  # fmt: skip
    spec = JobSpec(
        kind, 3, "exact/2", part, SEED, plan.first_state().root(plan), Schedule(plan.steps, segment, window),
        WORTH // 1000, Requirements(0, 0, 0), 60_000,
    )  # fmt: skip
    return Passed(decode_spec(encode_spec(spec)), plan, model, rows)
