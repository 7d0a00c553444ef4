"""Small jobs of decoding: a model, prompts, and the plan of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tasks.engines.generating import prompt_contents
from tasks.engines.generating_plan import GeneratingPlan
from tasks.models.llama import Model
from tasks.programs.generate import GenerateShape
from tasks.programs.llama_shape import LlamaShape, exponents_of, weight_tensors
from tasks.programs.tensors import ElementType
from tests.tasks.programs.llamas import frozen_weights

SEED: Final = bytes(range(32))
_CODES: Final = {ElementType.BINARY32: "<f4", ElementType.INT16: "<i2"}


@dataclass(frozen=True)
class Generation:
    """A job with its model, and the contents of model and prompts by name."""

    shape: GenerateShape
    frozen: Model
    prompts: list[list[int]]

    @property
    def plan(self) -> GeneratingPlan:
        return GeneratingPlan(self.shape, SEED)

    @property
    def model(self) -> Mapping[str, bytes]:
        return self.frozen.contents()

    @property
    def data(self) -> Mapping[str, bytes]:
        return prompt_contents(self.shape, self.prompts)


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
    seed: int = 5, twins: bool = False,
) -> Generation:  # fmt: skip
    shape = GenerateShape(model, batch, rows, length, new, ends)
    return Generation(shape, made_model(model, seed, twins=twins), made_prompts(shape, seed))
