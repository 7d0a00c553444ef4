"""Models of the Llama family and of GPT-2 from files (docs/decisions/0077-transformers.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.gguf import GgufFile, Setting
from tasks.models.gpt2 import GPT2
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama import BITS, WEIGHT_EXPONENT_MAX, LlamaShape, exponents_of, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.operators.rows import QUANTISE, ROW_EXPONENT, WIDTHS
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.storage import STORED_EXPONENT_MAX, STORED_EXPONENT_MIN
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "Model",
    "TensorSource",
    "contents_of",
    "expanded",
    "frozen",
    "frozen_tensor",
    "frozen_tensors",
    "gguf_place",
    "model_from_gguf",
    "model_from_tensors",
    "places_of",
    "rotated_heads",
    "shape_of_gguf",
    "side_by_side",
]

ROWS_AT_ONCE: Final = 4_096
_CONTEXT: Final = Context(0, bytes(32))
_ARRAYS: Final = NumpyArrays()
_CODES: Final = {ElementType.BINARY32: "<f4", ElementType.INT16: "<i2"}
_WHOLE: Final = "Take all files of the model from one place"
_NAMES: Final = {
    "attention_norm": "attn_norm.weight", "query": "attn_q.weight", "query_bias": "attn_q.bias",
    "key": "attn_k.weight", "key_bias": "attn_k.bias", "value": "attn_v.weight", "value_bias": "attn_v.bias",
    "output": "attn_output.weight", "hidden_norm": "ffn_norm.weight", "gate": "ffn_gate.weight",
    "up": "ffn_up.weight", "down": "ffn_down.weight", "query_key_value": "attn_qkv.weight",
    "query_key_value_bias": "attn_qkv.bias", "output_bias": "attn_output.bias", "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias", "attention_norm_bias": "attn_norm.bias", "hidden_norm_bias": "ffn_norm.bias",
}  # fmt: skip
_OUTER: Final = {
    "embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
    "positions": "position_embd.weight", "norm_bias": "output_norm.bias",
}  # fmt: skip
_INTERLEAVED: Final = {"llama": True, "qwen2": False, GPT2: False}
"""Architectures that are read, and whether a file has the two columns of each rotated pair side by side."""


@dataclass(frozen=True)
class Model:
    """A shape and its frozen tensors by name: int16 integers and exponents, float32 vectors.

    ``notes`` say what was changed when the file was read.
    """

    shape: LlamaShape
    tensors: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of every tensor, as programs and roots take them."""
        return contents_of(weight_tensors(self.shape), self.tensors)


def contents_of(kinds: Mapping[str, TensorType], tensors: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Return the bytes of frozen tensors, as programs and roots take them."""
    return {name: tensors[name].astype(_CODES[kind.element]).tobytes() for name, kind in kinds.items()}


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


def expanded(model: Model, name: str) -> np.ndarray:
    """Return a weight or vector as binary32, which holds each integer times its power of two exactly."""
    found = model.tensors[name]
    if found.dtype != np.int16:
        return found.astype("<f4")
    exponents = model.tensors[exponents_of(name)].astype(np.int32)
    values: np.ndarray = np.ldexp(found.astype(np.float64), exponents - WIDTHS[BITS].depth)
    # An integer of a row with a small exponent may be below what a store keeps.
    return np.where(np.abs(values) < 2.0**STORED_EXPONENT_MIN, 0.0, values).astype("<f4")


def _vector(values: np.ndarray) -> np.ndarray:
    """Return canonical float32 values. Raises ModelInvalid."""
    found = _ARRAYS.round_to_single(values, 2.0**STORED_EXPONENT_MIN) + 0.0
    if not _ARRAYS.all_below(found, 2.0**STORED_EXPONENT_MAX):
        raise ModelInvalid(f"a value that is not finite or not below 2^{STORED_EXPONENT_MAX}")
    single: np.ndarray = found.astype(np.float32)
    return single


class TensorSource(Protocol):
    """A file's tensors by the file's own names: sizes, and rows as binary64."""

    def size(self, place: str) -> tuple[int, int] | None:
        """Return rows and columns of a tensor; None if there is none."""

    def rows(self, place: str, first: int, count: int) -> np.ndarray:
        """Return up to ``count`` rows of a tensor from ``first`` on."""

    def file(self, place: str) -> str:
        """Return the name of the file that holds a tensor; empty if it has none."""


def model_from_gguf(file: GgufFile) -> Model:
    """Return shape and frozen weights. Raises ModelInvalid and ModelUnsupported."""
    shape, architecture = shape_of_gguf(file), str(file.settings["general.architecture"])
    places = places_of(shape, gguf_place)
    twice = {_OUTER["head"]} if shape.is_gpt2 and shape.tied else set()  # the embedding again
    if extra := sorted(file.tensors.keys() - places.values() - twice):
        raise ModelUnsupported(f"a tensor {extra[0]} that no program reads")
    return model_from_tensors(shape, _GgufSource(file), places, interleaved=_INTERLEAVED[architecture])


def shape_of_gguf(file: GgufFile) -> LlamaShape:
    """Return the shape of the model in a file. Raises ModelInvalid and ModelUnsupported."""
    architecture = file.settings.get("general.architecture")
    if architecture not in _INTERLEAVED:
        raise ModelUnsupported(f"architecture {str(architecture)[:40]!r}; {', '.join(_INTERLEAVED)} are read")
    return _shape(file, str(architecture))


def places_of(shape: LlamaShape, place: Callable[[str], str]) -> dict[str, str]:
    """Return the name in a file of every weight and vector."""
    return {name: place(name) for name in weight_tensors(shape) if not name.endswith("/exponents")}


def frozen_tensors(
    shape: LlamaShape, source: TensorSource, places: Mapping[str, str], notes: list[str], *, interleaved: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the frozen tensors of a file, one weight at a time; ``notes`` gets what was changed.

    ``interleaved`` tells whether the file has the two columns of each rotated pair side by side. Raises
    ModelInvalid for a tensor that is missing, of another size, or with a number that is not finite or too large.
    """
    kinds = weight_tensors(shape)
    for name, place in places.items():
        turned = rotated_heads(shape, name.split("/")[-1].removesuffix("_bias")) if interleaved else None
        try:
            yield from frozen_tensor(name, kinds[name], source, place, turned, notes)
        except ModelInvalid as error:
            raise error.within(source.file(place)) from None


def frozen_tensor(
    name: str, kind: TensorType, source: TensorSource, place: str, turned: int | None, notes: list[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a weight and its exponents, or a vector; ``turned`` are heads whose rotated pairs lie side by side.

    Raises ModelInvalid.
    """
    size, tiny = source.size(place), 0
    if size is None:
        raise ModelInvalid(f"tensor {place} is missing", remedy=_WHOLE)
    if size != (kind.rows, kind.columns):
        raise ModelInvalid(
            f"tensor {place} is {size[0]} by {size[1]}, not {kind.rows} by {kind.columns} values", remedy=_WHOLE
        )
    if kind.element == ElementType.BINARY32:
        values = source.rows(place, 0, 1)
        tiny = _checked(values, place, 0, STORED_EXPONENT_MAX)
        yield name, _vector(_halved(values.T, turned).T if turned else values)
    else:
        parts = list[tuple[np.ndarray, np.ndarray]]()
        for first in range(0, kind.rows, ROWS_AT_ONCE):
            values = source.rows(place, first, ROWS_AT_ONCE)
            tiny += _checked(values, place, first, WEIGHT_EXPONENT_MAX + 1)
            parts.append(frozen(values))
        for part, found in zip((name, exponents_of(name)), zip(*parts, strict=True), strict=True):
            whole = np.concatenate(found)
            yield part, _halved(whole, turned) if turned else whole
    if tiny:
        file = source.file(place)
        notes.append(f"{file + ': ' if file else ''}tensor {place}: {tiny} values below 2^-100 are taken as 0")


def model_from_tensors(
    shape: LlamaShape, source: TensorSource, places: Mapping[str, str], *, interleaved: bool
) -> Model:
    """Return a model with the tensors that ``frozen_tensors`` yields. Raises ModelInvalid."""
    notes = list[str]()
    tensors = dict(frozen_tensors(shape, source, places, notes, interleaved=interleaved))
    return Model(shape, tensors, tuple(notes))


def _checked(values: np.ndarray, place: str, first: int, exponent: int) -> int:
    """Return how many values are too small to be kept. Raises ModelInvalid for one not finite or too large.

    ``first`` is the tensor's row that the values begin with.
    """
    size = np.abs(values)
    if not (size < 2.0**exponent).all():
        row, column = (int(at) for at in np.argwhere(~(size < 2.0**exponent))[0])
        raise ModelInvalid(
            f"tensor {place} has {values[row, column]} at row {first + row}, column {column};"
            f" finite values below 2^{exponent} are read",
            remedy="Training has diverged or the file is damaged: take another checkpoint",
        )
    return int(np.count_nonzero(size < 2.0**STORED_EXPONENT_MIN) - np.count_nonzero(size == 0.0))


class _GgufSource:
    """The tensors of a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def size(self, place: str) -> tuple[int, int] | None:
        held = self._file.tensors.get(place)
        return None if held is None else (held.rows, held.columns)

    def rows(self, place: str, first: int, count: int) -> np.ndarray:
        return self._file.values(place, first, count)

    def file(self, _place: str) -> str:
        return ""


def rotated_heads(shape: LlamaShape, part: str) -> int | None:
    """Return in how many heads the rows of a part of a layer are rotated; None where they are not."""
    return {"query": shape.heads, "key": shape.key_heads}.get(part)


def side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head with the two of each rotated pair side by side: as files of llama.cpp."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _halved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head with the first of each pair before all the second ones."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def gguf_place(name: str) -> str:
    """Return the name of a tensor in files of llama.cpp."""
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
    if architecture == GPT2:
        return _gpt2_shape(
            file, number, fraction("attention.layer_norm_epsilon", lambda value: round(value * NANO))
        )
    head_width = number("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_width) != head_width:
            raise ModelUnsupported(f"{architecture}.{key} is not the width of a head, {head_width}")
    base = fraction("rope.freq_base", lambda value: int(value) if value.is_integer() else 0)
    if not base:  # 0 is that of a GPT-2, whose positions are learned
        value = file.settings[f"{architecture}.rope.freq_base"]
        raise ModelUnsupported(f"rotary base {value}: a whole number is expected")
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


def _gpt2_shape(file: GgufFile, number: Callable[..., int], epsilon_nano: int) -> LlamaShape:
    heads, width = number("attention.head_count"), number("embedding_length")
    if number("attention.head_count_kv", heads) != heads:
        raise ModelUnsupported("key heads that query heads share, of GPT-2")
    try:
        return LlamaShape(
            vocabulary=file.tensors[_OUTER["embedding"]].rows,
            width=width,
            layers=number("block_count"),
            heads=heads,
            key_heads=heads,
            head_width=width // heads,
            hidden=number("feed_forward_length", 4 * width),
            context=number("context_length"),
            rotary_base=0,
            epsilon_nano=epsilon_nano,
            tied=_is_tied(file),
        )
    except ProgramInvalid as error:
        raise ModelUnsupported(str(error)) from None


def _is_tied(file: GgufFile) -> bool:
    """Tell whether the head is the embedding: it is missing, or stands there once more with the same values."""
    head, embedding = _OUTER["head"], _OUTER["embedding"]
    if head not in file.tensors:
        return True
    one, other = file.tensors[head], file.tensors[embedding]
    return (one.rows, one.columns) == (other.rows, other.columns) and all(
        np.array_equal(file.values(head, at, ROWS_AT_ONCE), file.values(embedding, at, ROWS_AT_ONCE))
        for at in range(0, one.rows, ROWS_AT_ONCE)
    )
