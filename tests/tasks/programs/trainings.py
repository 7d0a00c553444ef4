"""Small jobs that train a decoder from scratch: rows, weights, and one step of their program on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.programs.arrays import Arrays
from tasks.programs.decoder import (
    DecoderShape,
    decoder_program,
    marked_program,
    row_tensors,
    state_tensors,
)
from tasks.programs.finetune import ROW_TOKENS, TARGETS, FinetuneRates
from tasks.programs.layered import LAYERS, Pattern
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.programs.operators import Context
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner, StepResult, content_of

SEED = bytes(range(32))
made_program = lru_cache(maxsize=4)(decoder_program)


def training_pattern(shape: DecoderShape, rates: FinetuneRates) -> Pattern:
    """Return the pattern of a shape with any number of layers."""
    return Pattern(marked_program(replace(shape, model=replace(shape.model, layers=LAYERS)), rates))


@dataclass(frozen=True)
class Training:
    """A job with contents of all sources, by name."""

    job: DecoderShape
    rates: FinetuneRates
    data: Mapping[str, bytes]
    state: Mapping[str, bytes]

    def step(
        self, arrays: Arrays, step: int = 0, state: Mapping[str, bytes] | None = None
    ) -> tuple[StepResult, dict[str, bytes]]:
        """Return what a step gives, and the contents of the state after it."""
        program = made_program(self.job, self.rates)
        runner = Runner(program, arrays)
        held = runner.load(SourceKind.STATE, state or self.state)
        sources = runner.sources(held, runner.load(SourceKind.DATA, self.data), {})
        result = runner.run(sources, Context(step, SEED))
        after = {
            name: content_of(arrays, program.types[number], result.stores[name])
            for name, number in program.stores.items()
        }
        return result, after

    def weights(self, group: str = "parameter", state: Mapping[str, bytes] | None = None) -> dict[str, np.ndarray]:
        """Return weights, or what else a state has of them, as binary64."""
        held = self.state if state is None else state
        return {
            name: np.frombuffer(held[f"{group}/{name}"], dtype="<f4").reshape(kind[1:]).astype(np.float64)
            for name, kind in parameters_of(self.job.model).items()
        }

    def rows(self, name: str) -> np.ndarray:
        """Return a tensor of the data."""
        return np.frombuffer(self.data[name], dtype="<i4").reshape(self.job.rows, self.job.length).astype(np.int64)


def training(
    model: LlamaShape, rates: FinetuneRates, *, batch: int = 3, rows: int = 3, length: int = 10,
    spread: float = 2.5, seed: int = 5, train_rows: int | None = None, loop: tuple[int, int, int] = (1, 0, 0),
) -> Training:  # fmt: skip
    """Return a job of a small model with random weights, much larger than those of a first state."""
    job = DecoderShape(model, batch, length, rows, rows if train_rows is None else train_rows, *loop)
    random, state = np.random.default_rng(seed), dict[str, bytes]()
    for name, kind in state_tensors(model, job).items():
        if not name.startswith("parameter"):
            state[name] = bytes(kind.size_bytes)
            continue
        centre, width = (1.0, 0.3) if name.endswith("norm") else (0.0, spread / kind.columns**0.5)
        state[name] = random.normal(centre, width, (kind.rows, kind.columns)).astype("<f4").tobytes()
    data = {
        name: random.integers(0, model.vocabulary, (kind.rows, kind.columns)).astype("<i4").tobytes()
        for name, kind in row_tensors(job).items()
    }
    return Training(job, rates, data, state)


def torch_gradients(torch: Any, made: Training, dtype: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Return loss and gradients of all weights, by automatic differentiation of the model in torch."""
    with torch.enable_grad():
        weights = {
            name: torch.tensor(one, dtype=dtype, requires_grad=True) for name, one in made.weights().items()
        }
        loss = _torch_loss(torch, made, weights)
        loss.backward()
    return float(loss.detach()), {name: one.grad.double().numpy() for name, one in weights.items()}


def _torch_loss(torch: Any, made: Training, weights: Mapping[str, Any]) -> Any:
    shape, functional = made.job.model, torch.nn.functional
    kind = weights["norm"].dtype

    def normed(values: Any, name: str) -> Any:
        mean = (values**2).mean(-1, keepdim=True) + shape.epsilon_nano / NANO
        return values * torch.rsqrt(mean) * weights[name]

    def turned(values: Any) -> Any:
        half = shape.head_width // 2
        turns = shape.rotary_base ** (-torch.arange(half).double() / half)
        angles = torch.outer(torch.arange(made.job.length).double(), turns)
        sides = torch.cat((-values[..., half:], values[..., :half]), -1)
        both = torch.cat((angles, angles), -1)
        return values * both.cos().to(kind) + sides * both.sin().to(kind)

    stream = weights["embedding"][torch.tensor(made.rows(ROW_TOKENS))]
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        values = normed(stream, f"{at}/attention_norm")
        query, key, value = (
            (values @ weights[f"{at}/{name}"].T).unflatten(-1, (-1, shape.head_width)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        repeated = shape.heads // shape.key_heads
        key, value = (one.repeat_interleave(repeated, 1) for one in (turned(key), value))
        read = functional.scaled_dot_product_attention(turned(query), key, value, is_causal=True)
        stream = stream + read.transpose(1, 2).flatten(2) @ weights[f"{at}/output"].T
        values = normed(stream, f"{at}/hidden_norm")
        inner = functional.silu(values @ weights[f"{at}/gate"].T) * (values @ weights[f"{at}/up"].T)
        stream = stream + inner @ weights[f"{at}/down"].T
    logits = normed(stream, "norm") @ weights["embedding" if shape.tied else "head"].T
    return functional.cross_entropy(logits.flatten(0, 1), torch.tensor(made.rows(TARGETS)).flatten())
