"""Shapes of decoders of the Llama family and of GPT-2, and their frozen tensors (market.md 4.6, R154).

GPT-2 has learned positions, norms with mean and bias, one weight for queries, keys and values, and no gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.rotary import BASE_MAX, POSITION_MAX, WIDTH_MAX
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "BEST",
    "BITS",
    "EVALUATES",
    "FUSED",
    "GPT2_PROJECTIONS",
    "KEEPS_BEST",
    "LAYERS_MAX",
    "LAYOUT_MAX",
    "PROJECTIONS",
    "SUMS_OF_GRADIENTS",
    "WEIGHT_EXPONENT_MAX",
    "Adapter",
    "LlamaShape",
    "adapter_tensors",
    "exponents_of",
    "frozen_bytes",
    "frozen_tensors",
    "layer_parameters",
    "other_parameters",
    "parameters_of",
    "projection",
    "projections_of",
    "weight_tensors",
]

BITS: Final = 15
LAYERS_MAX: Final = 256
PROJECTIONS: Final = ("query", "key", "value", "output", "gate", "up", "down")
"""Weights of a layer that adapters may change, in canonical order."""
FUSED: Final = "query_key_value"
"""The weight of GPT-2 that gives queries, keys and values, side by side."""
GPT2_PROJECTIONS: Final = (FUSED, "output", "up", "down")
"""The same of GPT-2."""
SIZES_HELD_MAX: Final = 4_096
"""Shapes of models whose size is kept in memory."""
WEIGHT_EXPONENT_MAX: Final = 20
"""Weights are below 2^21."""


@dataclass(frozen=True)
class LlamaShape:
    """What a model's program follows from. ``epsilon_nano`` is that of the norms in units of 10^-9.

    With ``rotary_base`` 0 positions are learned and the layers are those of GPT-2: all have biases, so ``biased``,
    which is about queries, keys and values alone, is false.
    Raises ProgramInvalid for a shape that no program is made of.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    context: int
    rotary_base: int
    epsilon_nano: int
    tied: bool = True
    biased: bool = False

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.width, self.heads * self.head_width, self.hidden, self.context)
        if not all(1 <= size <= TERMS_MAX for size in sizes) or not 1 <= self.layers <= LAYERS_MAX:
            raise ProgramInvalid(f"sizes of {', '.join(map(str, sizes))}, {self.layers} layers")
        if not 1 <= self.key_heads <= self.heads or self.heads % self.key_heads:
            raise ProgramInvalid(f"{self.heads} heads over {self.key_heads} key heads")
        if not 1 <= self.head_width <= WIDTH_MAX or (self.head_width % 2 and not self.is_gpt2):
            raise ProgramInvalid(f"heads of {self.head_width} columns")
        if self.is_gpt2 and (self.key_width, self.heads) != (self.width, self.key_heads):
            raise ProgramInvalid(f"{self.heads} heads of {self.head_width} columns are not the width {self.width}")
        if self.is_gpt2 and self.biased:
            raise ProgramInvalid("biased: GPT-2 has all biases without it")
        if (not self.is_gpt2 and not 2 <= self.rotary_base <= BASE_MAX) or self.context > POSITION_MAX:
            raise ProgramInvalid(f"a context of {self.context} tokens, rotary base {self.rotary_base}")
        if not 1 <= self.epsilon_nano <= NANO:
            raise ProgramInvalid(f"an epsilon of {self.epsilon_nano} x 10^-9")

    @property
    def is_gpt2(self) -> bool:
        """Whether positions are learned and layers are those of GPT-2."""
        return not self.rotary_base

    @property
    def key_width(self) -> int:
        """Columns of keys and of values."""
        return self.key_heads * self.head_width


BEST: Final = "best"
"""The group of a state with the matrices of the lowest validation loss."""
SUMS_OF_GRADIENTS: Final = 1
EVALUATES: Final = 2
KEEPS_BEST: Final = 4
"""Bits of a layout: what a state of fine-tuning has beside its matrices and their moments."""
LAYOUT_MAX: Final = SUMS_OF_GRADIENTS | EVALUATES | KEEPS_BEST


class Adapter(NamedTuple):
    """Low-rank adapters that somebody trained: with ``step`` steps, on these weights of each layer.

    ``layout`` says what their state has beside them. If it has the best ones, those are the adapters.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...]
    step: int
    layout: int = 0

    @property
    def group(self) -> str:
        """The group of the state that the adapters stand in."""
        return BEST if self.layout & KEEPS_BEST else "parameter"

    @property
    def is_whole(self) -> bool:
        """Whether the state has all weights of a model that was trained from scratch (R89)."""
        return not self.rank

    def check(self, shape: LlamaShape) -> None:
        """Raises ProgramInvalid for a state of a whole model that no training leaves."""
        if self.is_whole and (self.alpha or self.targets or shape.biased):
            raise ProgramInvalid("a trained model has no alpha, no targets and no biases")


def exponents_of(name: str) -> str:
    """Return the name of the tensor with the exponents of a weight's rows."""
    return f"{name}/exponents"


def projection(shape: LlamaShape, name: str) -> tuple[int, int]:
    """Return outputs and inputs of a weight of a layer. Raises KeyError."""
    queries, keys = shape.heads * shape.head_width, shape.key_width
    return {
        FUSED: (queries + 2 * keys, shape.width),
        "query": (queries, shape.width), "key": (keys, shape.width), "value": (keys, shape.width),
        "output": (shape.width, queries), "gate": (shape.hidden, shape.width), "up": (shape.hidden, shape.width),
        "down": (shape.width, shape.hidden),
    }[name]  # fmt: skip


def projections_of(shape: LlamaShape) -> tuple[str, ...]:
    """Return the weights of a layer that adapters may change, in canonical order."""
    return GPT2_PROJECTIONS if shape.is_gpt2 else PROJECTIONS


def _layer_parts(shape: LlamaShape) -> list[str]:
    """Return the names of a layer's weights and vectors, in the order of its sources."""
    if shape.is_gpt2:
        norms = {"attention_norm": GPT2_PROJECTIONS[:2], "hidden_norm": GPT2_PROJECTIONS[2:]}
        named = [name for norm, rest in norms.items() for name in (norm, *rest)]
        return [one for name in named for one in (name, f"{name}_bias")]
    found = ["attention_norm"]
    for name in ("query", "key", "value"):
        found += [name, f"{name}_bias"] if shape.biased else [name]
    return [*found, "output", "hidden_norm", "gate", "up", "down"]


def _vector(shape: LlamaShape, name: str) -> int:
    """Return the columns of a vector of a layer, 0 for a weight."""
    own = name.removesuffix("_bias")
    if own.endswith("norm"):
        return shape.width
    return 0 if own == name else projection(shape, own)[0]


def _other_vectors(shape: LlamaShape) -> tuple[str, ...]:
    return ("norm", "norm_bias") if shape.is_gpt2 else ("norm",)


def _other_weights(shape: LlamaShape) -> dict[str, int]:
    """Return the rows of weights of no layer that stand behind the layers, by name."""
    found = {"positions": shape.context} if shape.is_gpt2 else {}
    return found if shape.tied else {**found, "head": shape.vocabulary}


def weight_tensors(shape: LlamaShape) -> dict[str, TensorType]:
    """Return name and type of every frozen tensor. Weights are outputs by inputs."""
    found: dict[str, TensorType] = {}

    def weight(name: str, rows: int, columns: int) -> None:
        found[name] = TensorType(ElementType.INT16, rows, columns)
        found[exponents_of(name)] = TensorType(ElementType.INT16, rows, 1)

    def vector(name: str, columns: int) -> None:
        found[name] = TensorType(ElementType.BINARY32, 1, columns)

    weight("embedding", shape.vocabulary, shape.width)
    parts = [(name, _vector(shape, name)) for name in _layer_parts(shape)]
    for layer in range(shape.layers):
        for name, columns in parts:
            if columns:
                vector(f"layer/{layer}/{name}", columns)
            else:
                weight(f"layer/{layer}/{name}", *projection(shape, name))
    for name in _other_vectors(shape):
        vector(name, shape.width)
    for name, rows in _other_weights(shape).items():
        weight(name, rows, shape.width)
    return found


def layer_parameters(model: LlamaShape) -> dict[str, TensorType]:
    """Return name, within its layer, and type of a layer's weights in binary32, of a model that is trained."""
    vectors = {name: columns for name in _layer_parts(model) if (columns := _vector(model, name))}
    found = {name: TensorType(ElementType.BINARY32, 1, columns) for name, columns in vectors.items()}
    for name in projections_of(model):
        found[name] = TensorType(ElementType.BINARY32, *projection(model, name))
    return found


def other_parameters(model: LlamaShape) -> dict[str, TensorType]:
    """Return name and type of the weights of no layer, of a model that is trained."""
    found = {"embedding": TensorType(ElementType.BINARY32, model.vocabulary, model.width)}
    found |= {name: TensorType(ElementType.BINARY32, 1, model.width) for name in _other_vectors(model)}
    rest = _other_weights(model).items()
    return found | {name: TensorType(ElementType.BINARY32, rows, model.width) for name, rows in rest}


def parameters_of(model: LlamaShape) -> dict[str, TensorType]:
    """Return name and type of every weight of a model that is trained."""
    kinds = layer_parameters(model)
    layers = {f"layer/{layer}/{name}": kind for layer in range(model.layers) for name, kind in kinds.items()}
    return {**layers, **other_parameters(model)}


def frozen_tensors(shape: LlamaShape, adapter: Adapter | None) -> dict[str, TensorType]:
    """Return the frozen tensors of a model with an adapter: none if that is the whole model."""
    return {} if adapter is not None and adapter.is_whole else weight_tensors(shape)


def frozen_bytes(shape: LlamaShape, adapter: Adapter | None) -> int:
    """Return the bytes of ``frozen_tensors``."""
    return 0 if adapter is not None and adapter.is_whole else model_bytes(shape)


def adapter_tensors(shape: LlamaShape, adapter: Adapter) -> dict[str, TensorType]:
    """Return name and type of every matrix: of each target A, rank by inputs, and B, outputs by rank.

    Of a whole model they are all its weights.
    """
    if adapter.is_whole:
        return {f"{adapter.group}/{name}": kind for name, kind in parameters_of(shape).items()}
    found: dict[str, TensorType] = {}
    for layer in range(shape.layers):
        for target in adapter.targets:
            outputs, inputs = projection(shape, target)
            at = f"{adapter.group}/layer/{layer}/{target}"
            found[f"{at}/a"] = TensorType(ElementType.BINARY32, adapter.rank, inputs)
            found[f"{at}/b"] = TensorType(ElementType.BINARY32, outputs, adapter.rank)
    return found


@lru_cache(maxsize=SIZES_HELD_MAX)
def model_bytes(shape: LlamaShape) -> int:
    """Return the bytes of all frozen tensors."""
    one, two = (_bytes(replace(shape, layers=layers)) for layers in (1, 2))
    return one + (two - one) * (shape.layers - 1)


def _bytes(shape: LlamaShape) -> int:
    return sum(kind.size_bytes for kind in weight_tensors(shape).values())
