"""Models of the Llama family from their files: shape and frozen weights (docs/decisions/0077-transformers.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.gguf import GgufFile, Setting
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama import BITS, WEIGHT_EXPONENT_MAX, LlamaShape, exponents_of, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.operators.rows import QUANTISE, ROW_EXPONENT
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.storage import STORED_EXPONENT_MAX, STORED_EXPONENT_MIN
from tasks.programs.tensors import ElementType

__all__ = ["Model", "frozen", "model_from_gguf"]

ROWS_AT_ONCE: Final = 4_096
_CONTEXT: Final = Context(0, bytes(32))
_ARRAYS: Final = NumpyArrays()
_NAMES: Final = {
    "attention_norm": "attn_norm.weight", "query": "attn_q.weight", "query_bias": "attn_q.bias",
    "key": "attn_k.weight", "key_bias": "attn_k.bias", "value": "attn_v.weight", "value_bias": "attn_v.bias",
    "output": "attn_output.weight", "hidden_norm": "ffn_norm.weight", "gate": "ffn_gate.weight",
    "up": "ffn_up.weight", "down": "ffn_down.weight",
}  # fmt: skip
_OUTER: Final = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_INTERLEAVED: Final = {"llama": True, "qwen2": False}
"""Architectures that are read, and whether a file has the two columns of each rotated pair side by side."""


@dataclass(frozen=True)
class Model:
    """A shape and its frozen tensors by name: int16 integers and exponents, float32 vectors."""

    shape: LlamaShape
    tensors: dict[str, np.ndarray]


def frozen(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight's rows as integers of 15 bits and their exponents, both int16. Raises ModelInvalid."""
    if not np.isfinite(values).all():
        raise ModelInvalid("a weight that is not finite")
    values = np.where(np.abs(values) < 2.0**STORED_EXPONENT_MIN, 0.0, values)
    exponents = ROW_EXPONENT.run(_ARRAYS, [values], (BITS,), _CONTEXT)
    if exponents.max() > WEIGHT_EXPONENT_MAX:
        raise ModelInvalid(f"a weight of 2^{WEIGHT_EXPONENT_MAX + 1} or more")
    integers = QUANTISE.run(_ARRAYS, [values, exponents], (BITS,), _CONTEXT)
    return integers.astype(np.int16), exponents.astype(np.int16)


def _vector(values: np.ndarray) -> np.ndarray:
    """Return canonical float32 values. Raises ModelInvalid."""
    found = _ARRAYS.round_to_single(values, 2.0**STORED_EXPONENT_MIN) + 0.0
    if not _ARRAYS.all_below(found, 2.0**STORED_EXPONENT_MAX):
        raise ModelInvalid(f"a value that is not finite or not below 2^{STORED_EXPONENT_MAX}")
    single: np.ndarray = found.astype(np.float32)
    return single


def model_from_gguf(file: GgufFile) -> Model:
    """Return shape and frozen weights. Raises ModelInvalid and ModelUnsupported."""
    architecture = file.settings.get("general.architecture")
    if architecture not in _INTERLEAVED:
        raise ModelUnsupported(f"architecture {str(architecture)[:40]!r}; {', '.join(_INTERLEAVED)} are read")
    shape = _shape(file, str(architecture))
    kinds = weight_tensors(shape)
    places = {name: _place(name) for name in kinds if not name.endswith("/exponents")}
    if extra := sorted(file.tensors.keys() - places.values()):
        raise ModelUnsupported(f"a tensor {extra[0]} that no program reads")
    tensors: dict[str, np.ndarray] = {}
    for name, place in places.items():
        kind, held = kinds[name], file.tensors.get(place)
        if held is None or (held.rows, held.columns) != (kind.rows, kind.columns):
            raise ModelInvalid(f"{place} is not {kind.rows} by {kind.columns} values")
        heads = {"query": shape.heads, "key": shape.key_heads}.get(name.split("/")[-1].removesuffix("_bias"))
        interleaved = _INTERLEAVED[str(architecture)] and heads is not None
        if kind.element == ElementType.BINARY32:
            values = file.values(place)
            tensors[name] = _vector(_halved(values.T, heads or 1).T if interleaved else values)
            continue
        parts = [frozen(values) for values in _rows(file, place)]
        for part, found in zip((name, exponents_of(name)), zip(*parts, strict=True), strict=True):
            whole = np.concatenate(found)
            tensors[part] = _halved(whole, heads or 1) if interleaved else whole
    return Model(shape, tensors)


def _rows(file: GgufFile, name: str) -> Iterator[np.ndarray]:
    for first in range(0, file.tensors[name].rows, ROWS_AT_ONCE):
        yield file.values(name, first, ROWS_AT_ONCE)


def _halved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head with the first of each pair before all the second ones."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _place(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part = name.split("/")
    return f"blk.{layer}.{_NAMES[part]}"


def _shape(file: GgufFile, architecture: str) -> LlamaShape:
    def number(key: str, otherwise: int | None = None) -> int:
        value = file.settings.get(f"{architecture}.{key}", otherwise)
        if type(value) is not int:
            raise ModelInvalid(f"{architecture}.{key} is no integer")
        return value

    def fraction(key: str, take: Callable[[float], int]) -> int:
        value: Setting | None = file.settings.get(f"{architecture}.{key}")
        if not isinstance(value, float) or not 0 < value < 1 << 40:
            raise ModelInvalid(f"{architecture}.{key} is no positive number")
        return take(value)

    if (scaling := file.settings.get(f"{architecture}.rope.scaling.type", "none")) != "none":
        raise ModelUnsupported(f"rotary positions with scaling {str(scaling)[:40]!r}")
    embedding = file.tensors.get(_OUTER["embedding"])
    if embedding is None:
        raise ModelInvalid(f"the file has no {_OUTER['embedding']}")
    heads, width = number("attention.head_count"), number("embedding_length")
    if heads < 1 or width % heads:
        raise ModelInvalid(f"{width} columns in {heads} heads")
    head_width = number("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_width) != head_width:
            raise ModelUnsupported(f"{architecture}.{key} is not the width of a head, {head_width}")
    base = fraction("rope.freq_base", lambda value: int(value) if value.is_integer() else 0)
    try:
        return LlamaShape(
            vocabulary=embedding.rows,
            width=width,
            layers=number("block_count"),
            heads=heads,
            key_heads=number("attention.head_count_kv", heads),
            head_width=head_width,
            hidden=number("feed_forward_length"),
            context=number("context_length"),
            rotary_base=base,
            epsilon_nano=fraction("attention.layer_norm_rms_epsilon", lambda value: round(value * NANO)),
            tied=_OUTER["head"] not in file.tensors,
            biased="blk.0.attn_q.bias" in file.tensors,
        )
    except ProgramInvalid as error:
        raise ModelUnsupported(str(error)) from None
