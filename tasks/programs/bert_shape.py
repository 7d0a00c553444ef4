"""Shapes of encoders of the BERT family, and their frozen tensors (market.md 4.6, R84)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_shape import LAYERS_MAX, SIZES_HELD_MAX, exponents_of
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.tensors import ElementType, TensorType

__all__ = ["CONTEXT_MAX", "PROJECTIONS", "BertShape", "encoder_bytes", "encoder_tensors", "projection"]

CONTEXT_MAX: Final = 1 << 15
"""Tokens of a text."""
PROJECTIONS: Final = ("query", "key", "value", "output", "up", "down")
"""Weights of a layer."""


@dataclass(frozen=True)
class BertShape:
    """What an encoder's program follows from. ``epsilon_nano`` is that of the norms in units of 10^-9, rounded.

    Raises ProgramInvalid for a shape that no program is made of.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    context: int
    epsilon_nano: int

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.width, self.hidden)
        if not all(1 <= size <= TERMS_MAX for size in sizes) or not 1 <= self.layers <= LAYERS_MAX:
            raise ProgramInvalid(f"sizes of {', '.join(map(str, sizes))}, {self.layers} layers")
        if not 1 <= self.heads <= self.width or self.width % self.heads:
            raise ProgramInvalid(f"{self.width} columns in {self.heads} heads")
        if not 1 <= self.context <= CONTEXT_MAX:
            raise ProgramInvalid(f"a context of {self.context} tokens, at most {CONTEXT_MAX}")
        if not 0 <= self.epsilon_nano <= NANO:
            raise ProgramInvalid(f"an epsilon of {self.epsilon_nano} x 10^-9")

    @property
    def head_width(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


def projection(shape: BertShape, name: str) -> tuple[int, int]:
    """Return outputs and inputs of a weight of a layer. Raises KeyError."""
    square = (shape.width, shape.width)
    return {
        "query": square, "key": square, "value": square, "output": square, "up": (shape.hidden, shape.width),
        "down": (shape.width, shape.hidden),
    }[name]  # fmt: skip


def encoder_tensors(shape: BertShape) -> dict[str, TensorType]:
    """Return name and type of every frozen tensor. Weights are outputs by inputs.

    ``type`` is the row that is added to each token of a single text.
    """
    found: dict[str, TensorType] = {}

    def weight(name: str, rows: int, columns: int) -> None:
        found[name] = TensorType(ElementType.INT16, rows, columns)
        found[exponents_of(name)] = TensorType(ElementType.INT16, rows, 1)

    def vector(name: str, columns: int) -> None:
        found[name] = TensorType(ElementType.BINARY32, 1, columns)

    def norm(name: str) -> None:
        vector(name, shape.width)
        vector(f"{name}_bias", shape.width)

    weight("embedding", shape.vocabulary, shape.width)
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        for name in PROJECTIONS:
            outputs, inputs = projection(shape, name)
            weight(f"{at}/{name}", outputs, inputs)
            vector(f"{at}/{name}_bias", outputs)
        norm(f"{at}/attention_norm")
        norm(f"{at}/hidden_norm")
    norm("norm")
    weight("positions", shape.context, shape.width)
    vector("type", shape.width)
    return found


@lru_cache(maxsize=SIZES_HELD_MAX)
def encoder_bytes(shape: BertShape) -> int:
    """Return the bytes of all frozen tensors."""
    one, two = (_bytes(replace(shape, layers=layers)) for layers in (1, 2))
    return one + (two - one) * (shape.layers - 1)


def _bytes(shape: BertShape) -> int:
    return sum(kind.size_bytes for kind in encoder_tensors(shape).values())
