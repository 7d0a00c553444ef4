"""Decoders as computations: near to plain arithmetic, blind to later tokens, the same with a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tasks.programs.arrays import Array
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama import (
    FIRST,
    PICKED,
    TOKENS,
    LlamaShape,
    Pass,
    cache_tensors,
    llama_forward,
    weight_tensors,
)
from tasks.programs.running import ResultRunner
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED, CONTEXT, TINY, frozen_weights, plain_logits, plain_weights

SHAPES = {"shared keys, tied": TINY, "biases, own head": BIASED}


class Model:
    """A small model on an engine."""

    def __init__(self, shape: LlamaShape, name: str) -> None:
        self.shape, self.arrays = shape, engine(name)
        weights = frozen_weights(shape)
        self.weights = [self.arrays.load(weights[tensor]) for tensor in weight_tensors(shape)]

    def column(self, values: list[int]) -> Array:
        return self.arrays.load(np.array(values, dtype=np.float64).reshape(-1, 1))

    def logits(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """One pass over sequences of one length; no cache."""
        run = Pass(len(sequences), len(sequences[0]))
        tokens = self.column([token for sequence in sequences for token in sequence])
        found, choice = ResultRunner(llama_forward(self.shape, run), self.arrays).run(
            [*self.weights, tokens], CONTEXT
        )
        logits = self.arrays.store(found)
        assert (self.arrays.store(choice)[:, 0] == logits.argmax(axis=1)).all()
        return np.split(logits, len(sequences))

    def cached(self, sequences: list[list[int]], chunk: int, capacity: int) -> list[np.ndarray]:
        """The same logits, ``chunk`` tokens at a time."""
        batch, length = len(sequences), len(sequences[0])
        kinds = cache_tensors(self.shape, batch, capacity).values()
        cache = [self.arrays.load(np.full((kind.rows, kind.columns), 7.0)) for kind in kinds]  # never read
        runner = ResultRunner(llama_forward(self.shape, Pass(batch, chunk, capacity)), self.arrays)
        found: list[np.ndarray] = []
        for start in range(0, length, chunk):
            tokens = self.column([token for one in sequences for token in one[start : start + chunk]])
            first = self.column([start] * batch)
            logits, _, *cache = runner.run([*self.weights, tokens, first, *cache], CONTEXT)
            found.append(self.arrays.store(logits).reshape(batch, chunk, -1))
        return list(np.concatenate(found, axis=1))


def some_tokens(shape: LlamaShape, count: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, shape.vocabulary, count)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_are_near_those_of_plain_arithmetic(shape: LlamaShape) -> None:
    tokens = some_tokens(shape, 21)
    (found,) = Model(shape, "numpy").logits([tokens])
    wanted = plain_logits(shape, plain_weights(shape), tokens)
    assert np.abs(wanted).max() > 1
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_token_sees_a_later_one(shape: LlamaShape, name: str) -> None:
    model, tokens = Model(shape, name), some_tokens(shape, 12)
    (whole,) = model.logits([tokens])
    for count in (1, 5, 11):
        (found,) = model.logits([tokens[:count]])
        assert found.tobytes() == whole[:count].tobytes()
        others = [(token + 1) % shape.vocabulary for token in tokens[count:]]
        (found,) = model.logits([tokens[:count] + others])
        assert found[:count].tobytes() == whole[:count].tobytes()
        assert found[count:].tobytes() != whole[count:].tobytes()


def test_a_later_token_is_not_seen_however_large_its_values_are() -> None:
    """exp gives 2^-115 at least: values 2^105 times as large as those before would show through one mask."""
    weights = frozen_weights(TINY)
    weights["embedding/exponents"][:33] -= 112
    weights["layer/0/value/exponents"] += 18
    model = Model(TINY, "numpy")
    model.weights = [weights[tensor] for tensor in weight_tensors(TINY)]
    small, large = [3, 30, 7, 12], [60, 61]
    (found,) = model.logits([small])
    assert np.abs(found).max() > 0
    assert model.logits([small + large])[0][:4].tobytes() == found.tobytes()
    assert model.cached([small + large], 3, 6)[0][:4].tobytes() == found.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_decoding_with_a_cache_equals_one_pass(shape: LlamaShape, name: str) -> None:
    model, sequences = Model(shape, name), [some_tokens(shape, 12), some_tokens(shape, 12, seed=2)]
    whole = [one.tobytes() for one in Model(shape, "numpy").logits(sequences)]
    for chunk, capacity in ((1, 12), (3, 17), (12, 12), (4, 32)):
        assert [one.tobytes() for one in model.cached(sequences, chunk, capacity)] == whole


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    model, tokens = Model(TINY, "numpy"), some_tokens(TINY, 9)
    (alone,) = model.logits([tokens])
    for other in (tokens, some_tokens(TINY, 9, seed=5)):
        assert model.logits([other, tokens, other])[1].tobytes() == alone.tobytes()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_judge_computes_the_same_elements(shape: LlamaShape) -> None:
    """Of every call of a step with a cache: a few elements, and what they were computed from."""
    random = np.random.default_rng(4)
    computation = llama_forward(shape, Pass(2, 3, 6, picked=True))
    weights = frozen_weights(shape)
    drawn = {TOKENS: (6, shape.vocabulary), PICKED: (2, 6), FIRST: (2, 3)}
    values = [
        weights[source.key]
        if source.key in weights
        else random.integers(0, drawn.get(source.key, (0, 6))[1], (source.type.rows, source.type.columns)) * 1.0
        for source in computation.sources
    ]
    check_elements(computation, values, CONTEXT, 4)


def test_engines_give_the_same_logits() -> None:
    tokens = some_tokens(TINY, 9)
    (found,), (other,) = (Model(TINY, name).logits([tokens]) for name in ("numpy", "contrary"))
    assert found.tobytes() == other.tobytes()


@pytest.mark.parametrize("run", [Pass(1, 65), Pass(0, 1), Pass(1, 0), Pass(1, 4, 3), Pass(1, 1, 65)], ids=str)
def test_a_pass_beyond_the_context_is_refused(run: Pass) -> None:
    with pytest.raises(ProgramInvalid):
        llama_forward(TINY, run)


@pytest.mark.parametrize(
    "change",
    [{"heads": 5}, {"head_width": 7}, {"layers": 0}, {"layers": 257}, {"rotary_base": 1}, {"epsilon_nano": 0},
     {"vocabulary": (1 << 20) + 1}, {"key_heads": 0}],
    ids=str,
)  # fmt: skip
def test_a_shape_that_no_model_has_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(TINY, **change)  # type: ignore[arg-type]


def test_the_largest_shapes_stay_in_the_exact_range() -> None:
    """Bounds do not grow with the layers."""
    llama_forward(replace(TINY, layers=256), Pass(1, 1, 64))
    wide = LlamaShape(152_064, 8_192, 2, 64, 8, 128, 29_568, 32_768, 1_000_000, 1_000, tied=False, biased=True)
    llama_forward(wide, Pass(1, 4_096))
