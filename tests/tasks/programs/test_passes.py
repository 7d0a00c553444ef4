"""Programs that pass over rows once: vectors of texts and losses of rows, against the field's own way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.bench.plain_tuning import Rows
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import StateInvalid
from tasks.engines.passing import RowPass
from tasks.engines.state import TrainingState
from tasks.programs.bert_shape import BertShape, encoder_bytes, encoder_tensors
from tasks.programs.embed import POOLINGS, VECTORS, EmbedShape, embed_program
from tasks.programs.embed import marked_program as marked_embed
from tasks.programs.embed_units import check_embed, embed_cost
from tasks.programs.errors import ProgramInvalid
from tasks.programs.evaluate import COUNTS, LOSSES, EvaluateShape, evaluate_program
from tasks.programs.evaluate import marked_program as marked_evaluate
from tasks.programs.evaluate_units import check_evaluate, evaluate_cost
from tasks.programs.finetune import PLACES, ROW_TOKENS, TARGETS, FinetuneShape, adapter_tensors
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.llama_shape import LAYERS_MAX, PROJECTIONS, Adapter, LlamaShape, projections_of
from tasks.programs.operators import Context
from tests.tasks.passed import (
    ADAPTER,
    ENCODER,
    SEED,
    WHOLE,
    Passed,
    embedded,
    encoder_weights,
    evaluated,
    made_texts,
    model_contents,
    text_contents,
)
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.generations import SMALL_MODELS, made_adapter
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED, TINY, plain_logits, plain_weights
from tests.tasks.programs.test_finetune import _torch_loss, weights_of
from tests.tasks.programs.test_layered import check_equal

NUMPY = engine("numpy")
JOBS = {
    "encoder": embedded(), "first": embedded(pooling="cls", normalised=False), "decoder": embedded(TINY),
    "last": embedded(BIASED, pooling="last"), "base": evaluated(), "tuned": evaluated(adapter=ADAPTER),
    "trained": evaluated(adapter=WHOLE), "vectors of tuned": embedded(TINY, adapter=ADAPTER),
    "vectors of trained": embedded(TINY, adapter=WHOLE, pooling="last"),
}  # fmt: skip
ENCODERS = st.builds(
    lambda width, heads, **fields: BertShape(width=width * heads, heads=heads, **fields),
    vocabulary=st.integers(2, 12), width=st.integers(1, 4), heads=st.integers(1, 3), layers=st.integers(1, 2),
    hidden=st.integers(1, 9), context=st.integers(4, 9), epsilon_nano=st.sampled_from((0, 1_000)),
)  # fmt: skip


@st.composite
def adapters(draw: st.DrawFn, model: LlamaShape) -> Adapter | None:
    names = projections_of(model)
    targets = draw(st.sets(st.sampled_from(names)))
    named = tuple(one for one in names if one in targets)
    if not targets:
        return draw(st.sampled_from((None, WHOLE)))
    return Adapter(draw(st.integers(1, 4)), draw(st.integers(1, 9)), named, 3)


@st.composite
def embeddings(draw: st.DrawFn) -> EmbedShape:
    model = draw(st.one_of(ENCODERS, SMALL_MODELS))
    batch = draw(st.integers(1, 3))
    return EmbedShape(
        model, batch, batch + draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.sampled_from(POOLINGS)),
        draw(st.booleans()), draw(adapters(model)) if isinstance(model, LlamaShape) and not model.biased else None,
    )  # fmt: skip


@st.composite
def evaluations(draw: st.DrawFn) -> EvaluateShape:
    batch, length, model = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(SMALL_MODELS)
    adapter = draw(adapters(model))
    if adapter is not None and adapter.is_whole:
        model = replace(model, biased=False)
    return EvaluateShape(
        model, batch, batch + draw(st.integers(0, 5)), length, draw(st.integers(1, length)), adapter
    )


def deep(shape: Any, layers: int) -> Any:
    return replace(shape, model=replace(shape.model, layers=layers))


def run(job: Passed, arrays: Any = NUMPY, steps: int | None = None) -> RowPass:
    found = RowPass(job.plan, job.model, job.rows, arrays, job.plan.first_state())
    found.run_steps(job.plan.steps if steps is None else steps)
    return found


def vectors(job: Passed, arrays: Any = NUMPY) -> np.ndarray:
    return np.frombuffer(run(job, arrays).state().tensors[VECTORS], "<f4").reshape(-1, job.plan.shape.model.width)  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(embeddings(), st.integers(1, 3))
def test_units_and_calls_of_embedding_are_those_of_the_program(shape: EmbedShape, layers: int) -> None:
    program = embed_program(deep(shape, layers))
    assert embed_cost(deep(shape, layers)) == (program.units, len(program.calls))


@settings(max_examples=60, deadline=None)
@given(evaluations(), st.integers(1, 3))
def test_units_and_calls_of_evaluating_are_those_of_the_program(shape: EvaluateShape, layers: int) -> None:
    program = evaluate_program(deep(shape, layers))
    assert evaluate_cost(deep(shape, layers)) == (program.units, len(program.calls))


@settings(max_examples=10, deadline=None)
@given(embeddings(), st.integers(LAYERS + 1, 13))
def test_embedding_by_need_is_that_of_the_whole_program(shape: EmbedShape, layers: int) -> None:
    lazy = layered_program(Pattern(marked_embed(deep(shape, LAYERS))), layers)
    check_equal(lazy, embed_program(deep(shape, layers), checks_bounds=False))


@settings(max_examples=10, deadline=None)
@given(evaluations(), st.integers(LAYERS + 1, 13))
def test_evaluating_by_need_is_that_of_the_whole_program(shape: EvaluateShape, layers: int) -> None:
    lazy = layered_program(Pattern(marked_evaluate(deep(shape, LAYERS))), layers)
    check_equal(lazy, evaluate_program(deep(shape, layers), checks_bounds=False))


def test_the_deepest_models_are_checked_without_all_their_layers() -> None:
    check_embed(deep(EmbedShape(ENCODER, 2, 4, 5, "mean", True), LAYERS_MAX))
    check_evaluate(deep(EvaluateShape(BIASED, 2, 4, 5, 3, ADAPTER), LAYERS_MAX))


def test_the_bytes_of_an_encoder_are_those_of_its_tensors() -> None:
    shape = replace(ENCODER, layers=5)
    assert encoder_bytes(shape) == sum(kind.size_bytes for kind in encoder_tensors(shape).values())


@pytest.mark.parametrize(
    "change",
    [
        {"length": 0}, {"length": 17}, {"batch": 0}, {"batch": 12}, {"rows": 0}, {"pooling": "max"},
        {"rows": 1 << 60}, {"batch": 1 << 20, "rows": 1 << 20},
    ],
    ids=str,
)  # fmt: skip
def test_texts_that_no_program_takes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(EmbedShape(ENCODER, 2, 11, 5, "mean", True), **change)


@pytest.mark.parametrize(
    "change", [{"heads": 3}, {"heads": 0}, {"width": 0}, {"layers": 257}, {"context": 0}, {"epsilon_nano": -1}],
    ids=str,
)  # fmt: skip
def test_encoders_that_no_program_is_made_of_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(ENCODER, **change)


def plain_vectors(shape: EmbedShape, weights: dict[str, np.ndarray], texts: list[list[int]]) -> np.ndarray:
    """An encoder written down as the field does, in binary64 with library functions."""
    from math import erf

    model = shape.model
    assert isinstance(model, BertShape)

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        rest = values - values.mean(1, keepdims=True)
        root = np.sqrt((rest**2).mean(1, keepdims=True) + model.epsilon_nano * 1e-9)
        found: np.ndarray = rest / root * weights[name] + weights[f"{name}_bias"]
        return found

    found = []
    for tokens in texts:
        count = len(tokens)
        stream = normed(weights["embedding"][tokens] + weights["positions"][:count] + weights["type"], "norm")
        for layer in range(model.layers):
            at = f"layer/{layer}"

            def linear(values: np.ndarray, name: str, at: str = at) -> np.ndarray:
                result: np.ndarray = values @ weights[f"{at}/{name}"].T + weights[f"{at}/{name}_bias"]
                return result

            query, key, value = (
                linear(stream, name).reshape(count, model.heads, -1) for name in ("query", "key", "value")
            )
            scores = np.einsum("ihc,jhc->hij", query, key) / np.sqrt(model.head_width)
            powers = np.exp(scores - scores.max(2, keepdims=True))
            read = np.einsum("hij,jhc->ihc", powers / powers.sum(2, keepdims=True), value).reshape(count, -1)
            stream = normed(stream + linear(read, "output"), f"{at}/attention_norm")
            inner = linear(stream, "up")
            inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
            stream = normed(stream + linear(inner, "down"), f"{at}/hidden_norm")
        found.append({"mean": stream.mean(0), "cls": stream[0], "last": stream[-1]}[shape.pooling])
    table = np.array(found)
    return table / np.linalg.norm(table, axis=1, keepdims=True) if shape.normalised else table


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalised", [False, True])
def test_vectors_of_an_encoder_are_those_of_plain_binary64(pooling: str, normalised: bool) -> None:
    job = embedded(pooling=pooling, normalised=normalised)
    plan = job.plan
    assert isinstance(plan, EmbeddingPlan)
    texts = made_texts(plan.shape)
    wanted = plain_vectors(plan.shape, encoder_weights(ENCODER), texts)
    found = vectors(job)
    cosines = (found[: len(texts)] * wanted).sum(1)
    cosines /= np.linalg.norm(found[: len(texts)], axis=1) * np.linalg.norm(wanted, axis=1)
    assert cosines.min() > 0.99999
    assert np.abs(found[: len(texts)] - wanted).max() < 2e-3 * np.abs(wanted).max()
    assert (found[len(texts) :] == found[len(texts) - 1]).all()  # the last text fills the last batch


def test_a_vector_of_a_decoder_comes_from_the_stream_that_gives_its_logits() -> None:
    job = embedded(BIASED, pooling="last", normalised=False)
    plan = job.plan
    assert isinstance(plan, EmbeddingPlan)
    weights = plain_weights(BIASED)
    for text, vector in zip(made_texts(plan.shape), vectors(job), strict=False):
        wanted = plain_logits(BIASED, weights, text)[-1]
        assert weights["head"] @ vector == pytest.approx(wanted, abs=3e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("model", [ENCODER, TINY], ids=["encoder", "decoder"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_depends_on_its_own_text_alone(model: Any, pooling: str) -> None:
    """Neither neighbours, nor the batch, nor what stands in a row beyond the text changes a bit of it."""
    shape = EmbedShape(model, 3, 7, 5, pooling, True)
    texts = made_texts(shape)
    held = model_contents(model)

    def of(shape: EmbedShape, texts: list[list[int]], fill: int) -> np.ndarray:
        plan = EmbeddingPlan(SEED, shape)
        found = RowPass(plan, held, text_contents(shape, texts, fill), NUMPY, plan.first_state())
        found.run_steps(plan.steps)
        table = np.frombuffer(found.state().tensors[VECTORS], "<f4").reshape(-1, model.width)
        return table[: len(texts)].copy()

    all_at_once = of(shape, texts, 0)
    assert of(shape, texts, model.vocabulary - 1).tobytes() == all_at_once.tobytes()
    assert of(replace(shape, batch=2, length=9), texts, 1).tobytes() == all_at_once.tobytes()
    for row, text in enumerate(texts):
        alone = of(replace(shape, batch=1, rows=1, length=len(text)), [text], 0)
        assert alone[0].tobytes() == all_at_once[row].tobytes()
    order = [4, 0, 6, 2, 1, 5, 3]
    assert of(shape, [texts[at] for at in order], 0).tobytes() == all_at_once[order].tobytes()


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_engines_give_the_same_bits(job: Passed, name: str) -> None:
    one, other = (run(job, engine(kind)).state() for kind in ("numpy", name))
    assert one.tensors == other.tensors


def _losses(job: Passed) -> tuple[np.ndarray, np.ndarray]:
    tensors = run(job).state().tensors
    return np.frombuffer(tensors[LOSSES], "<f4"), np.frombuffer(tensors[COUNTS], "<f4")


def _rows_of(job: Passed) -> Rows:
    shape = job.plan.shape  # type: ignore[attr-defined]
    columns = {ROW_TOKENS: shape.length, PLACES: shape.slots, TARGETS: shape.slots}
    tokens, places, targets = (
        np.frombuffer(job.rows[name], "<i4").reshape(-1, count)[: shape.rows].astype(np.int64)
        for name, count in columns.items()
    )
    return Rows(tokens, places, targets)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, ADAPTER], ids=["base", "tuned"])
@pytest.mark.parametrize("model", [TINY, BIASED], ids=["tied", "biased"])
def test_losses_of_rows_are_those_of_torch(model: LlamaShape, adapter: Adapter | None) -> None:
    torch = pytest.importorskip("torch", reason="torch (extra ml) IS NOT INSTALLED: LOSSES WERE NOT CHECKED")
    job = evaluated(model, adapter)
    sums, counts = _losses(job)
    rows = _rows_of(job)
    rank, alpha = (1, 1) if adapter is None else (adapter.rank, adapter.alpha)
    alike = FinetuneShape(model, rank, alpha, PROJECTIONS, 1, rows.tokens.shape[1], rows.places.shape[1], 1, 1)
    state = {} if adapter is None else made_adapter(model, adapter, 5).tensors
    adapters = {
        name: torch.tensor(_values(state, name, kind.rows, kind.columns))
        for name, kind in adapter_tensors(alike).items()
    }
    for row in range(len(rows.tokens)):
        one = Rows(*(part[row : row + 1] for part in rows))
        wanted = float(_torch_loss(torch, alike, weights_of(model), adapters, one))
        assert counts[row] == (one.places < alike.length).sum()
        assert sums[row] / counts[row] == pytest.approx(wanted, rel=5e-5)  # adapters are as large as weights
    assert not sums[len(rows.tokens) :].any() and not counts[len(rows.tokens) :].any()


def _values(state: Any, name: str, rows: int, columns: int) -> np.ndarray:
    content = state.get(f"parameter/{name}")
    if content is None:
        return np.zeros((rows, columns))
    return np.frombuffer(content, "<f4").reshape(rows, columns).astype(np.float64)


def test_the_loss_of_a_step_is_the_sum_of_its_rows() -> None:
    """So the proved losses of all steps are the sum over all trained tokens, never a mean of means."""
    job = evaluated()
    worker = RowPass(job.plan, job.model, job.rows, NUMPY, job.plan.first_state())
    _, bits = worker.run_steps(job.plan.steps)
    total = np.frombuffer(bits.to_bytes(8, "little"), "<f8")[0]
    assert total == pytest.approx(_losses(job)[0].astype(np.float64).sum(), rel=1e-6)


def test_what_a_row_has_beyond_its_trained_tokens_changes_no_bit() -> None:
    job = evaluated()
    tokens, places, _ = (one.copy() for one in _rows_of(job))
    for row, found in enumerate(places):
        last = int(found[found < tokens.shape[1]].max())
        tokens[row, last + 1 :] = 7
    changed = dict(job.rows)
    more = np.frombuffer(job.rows[ROW_TOKENS], "<i4")[tokens.size :]
    changed[ROW_TOKENS] = np.concatenate((tokens.ravel(), more)).astype("<i4").tobytes()
    assert changed[ROW_TOKENS] != job.rows[ROW_TOKENS]
    assert run(job._replace(rows=changed)).state().tensors == run(job).state().tensors


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_kind_of_call_is_what_the_judge_computes(job: Passed) -> None:
    program = job.plan.program
    found = RowPass(job.plan, job.model, job.rows, NUMPY, job.plan.first_state())
    check_elements(program, found._sources(), Context(0, SEED), 3)


def test_a_state_with_a_number_that_no_store_gives_is_refused() -> None:
    job = JOBS["encoder"]
    size = len(job.plan.first_state().tensors[VECTORS])
    wrong = TrainingState(0, {VECTORS: np.full(size // 4, np.nan, "<f4").tobytes()})
    with pytest.raises(StateInvalid):
        RowPass(job.plan, job.model, job.rows, NUMPY, wrong)


@pytest.mark.parametrize("name", ["encoder", "tuned"])
def test_weights_of_eight_bits_are_told_at_the_first_step(name: str) -> None:
    """A worker with a coarser copy of the model has another probe, and so another work digest."""
    job = JOBS[name]
    coarse = dict(job.model)
    for weight in [key for key in coarse if f"{key}/exponents" in coarse]:
        values = np.frombuffer(coarse[weight], "<i2")
        coarse[weight] = (np.rint(values / 256) * 256).clip(-32639, 32639).astype("<i2").tobytes()
    works = [
        RowPass(job.plan, model, job.rows, NUMPY, job.plan.first_state()).run_steps(1)[0]
        for model in (job.model, coarse)
    ]  # fmt: skip
    assert works[0] != works[1]
