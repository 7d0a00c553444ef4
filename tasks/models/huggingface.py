"""Models of the Llama family and of GPT-2 as the field shares them: config.json and safetensors files (JOBS 6).

What a program here does not compute is refused by name, with the setting that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.gpt2 import GPT2, GPT2_CONSTANTS, GPT2_PREFIX, gpt2_place, gpt2_shape, is_turned
from tasks.models.llama import ROWS_AT_ONCE, Model, frozen_tensors, model_from_tensors, places_of
from tasks.models.safetensors import SafetensorsFile
from tasks.models.settings import CONFIG, Settings
from tasks.models.strict_json import JsonFault, read_object
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_shape import LlamaShape

__all__ = [
    "CONFIG", "ENDS", "INDEX", "MODULES", "TOKENISER", "WEIGHTS", "Checkpoint", "ends_of", "place_of",
    "read_settings", "shards_of",
]  # fmt: skip

ENDS: Final = "generation_config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TOKENISER: Final = "tokenizer.json"
CONFIG_BYTES_MAX: Final = 1 << 20
INDEX_BYTES_MAX: Final = 4 << 20
SHARDS_MAX: Final = 256
ENDS_MAX: Final = 16
MODULES: Final = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj",
    "output": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
"""Names of a layer's modules in the field."""
_NORMS: Final = {"attention_norm": "input_layernorm", "hidden_norm": "post_attention_layernorm"}
_OUTER: Final = {
    "embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"
}  # fmt: skip
_KINDS: Final = ("llama", "mistral", "qwen2")
_MISTRAL_WINDOW: Final = 4_096
"""What a Mistral without the setting has."""
_CONSTANTS: Final = re.compile(r"model\.layers\.[0-9]{1,3}\.self_attn\.rotary_emb\.inv_freq")
"""Tensors of old files that follow from the settings."""
_SHARD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.safetensors")
_ONE_PLACE: Final = "Take all files of the model from one place"


def read_settings(name: str, data: bytes, limit: int) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ModelInvalid."""
    if len(data) > limit:
        raise ModelInvalid(f"a file of {len(data)} bytes, at most {limit}", file=name)
    try:
        return read_object(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ModelInvalid("not UTF-8 text", file=name) from None
    except JsonFault as fault:
        place = "" if fault.line is None else f" (line {fault.line}, column {fault.column})"
        raise ModelInvalid(f"{fault}{place}", file=name) from None


def shards_of(index: bytes) -> dict[str, frozenset[str]]:
    """Return the names of the files that an index names, each with its tensors. Raises ModelInvalid."""
    places = read_settings(INDEX, index, INDEX_BYTES_MAX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelInvalid("weight_map is not an object of tensors and files", file=INDEX)
    found = dict[str, set[str]]()
    for tensor, name in places.items():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ModelInvalid(f"weight_map: {str(name)[:40]!r} is not the name of a safetensors file", file=INDEX)
        found.setdefault(name, set()).add(tensor)
        if len(found) > SHARDS_MAX:
            raise ModelInvalid(f"more than {SHARDS_MAX} files", file=INDEX)
    return {name: frozenset(tensors) for name, tensors in sorted(found.items())}


def ends_of(*settings: tuple[str, bytes]) -> frozenset[int]:
    """Return the tokens that end a completion, from files of settings, each with its name. Raises ModelInvalid."""
    found = set[int]()
    for name, data in settings:
        value = read_settings(name, data, CONFIG_BYTES_MAX).get("eos_token_id")
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        if len(tokens) > ENDS_MAX or not all(type(token) is int and token >= 0 for token in tokens):
            raise ModelInvalid("eos_token_id is neither a token nor a list of tokens", file=name)
        found.update(tokens)
    return frozenset(found)


class Checkpoint:
    """A model's settings and weight files, by name; what they hold is frozen a weight at a time.

    ``shards`` are the tensors that each file should have, if an index says so.
    """

    def __init__(
        self,
        config: bytes,
        files: Mapping[str, SafetensorsFile],
        shards: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Raises ModelInvalid and ModelUnsupported."""
        self._files, self._of = files, dict[str, str]()
        for name, file in files.items():
            if shards is not None and set(file.tensors) != shards.get(name, set()):
                raise ModelInvalid(f"other tensors than {INDEX} says", file=name, remedy=_ONE_PLACE)
            for tensor in file.tensors:
                if tensor in self._of:
                    raise ModelInvalid(f"tensor {tensor} is in {self._of[tensor]} as well", file=name)
                self._of[tensor] = name
        self.shape: Final = _shape(read_settings(CONFIG, config, CONFIG_BYTES_MAX), self._of)
        """Shape of the model."""
        places = places_of(self.shape, partial(place_of, self.shape))
        self._turned, self._kept = frozenset[str](), ("", np.empty((0, 0)))
        if self.shape.is_gpt2:
            if places["embedding"] not in self._of:  # as files of the bare model have them
                places = {name: place.removeprefix(GPT2_PREFIX) for name, place in places.items()}
            self._turned = frozenset(place for name, place in places.items() if is_turned(name))
        self._places = places
        self._check_rest()

    def _check_rest(self) -> None:
        """Check the tensors that are not read. A head that is tied must be the embedding."""
        constants = GPT2_CONSTANTS if self.shape.is_gpt2 else _CONSTANTS
        for tensor in sorted(self._of.keys() - self._places.values()):
            if tensor == _OUTER["head"]:
                self._check_tied()
            elif not constants.fullmatch(tensor):
                raise ModelUnsupported(f"tensor {tensor[:80]} is not of this architecture", file=self._of[tensor])

    def _check_tied(self) -> None:
        head, embedding = _OUTER["head"], self._places["embedding"]
        if self.size(head) == self.size(embedding):
            rows = range(0, self.shape.vocabulary, ROWS_AT_ONCE)
            if all(
                self.rows(head, at, ROWS_AT_ONCE).tobytes() == self.rows(embedding, at, ROWS_AT_ONCE).tobytes()
                for at in rows
            ):
                return
        raise ModelInvalid(
            f"tensor {head} differs from {embedding}, and {CONFIG} says that they are tied", file=self._of[head],
            remedy="Set tie_word_embeddings to false if the head is one of its own",
        )  # fmt: skip

    def size(self, place: str) -> tuple[int, int] | None:
        """See TensorSource."""
        if place not in self._of:
            return None
        held = self._files[self._of[place]].tensors[place]
        return (held.columns, held.rows) if place in self._turned else (held.rows, held.columns)

    def rows(self, place: str, first: int, count: int) -> np.ndarray:
        """See TensorSource."""
        file = self._files[self._of[place]]
        if place not in self._turned:
            return file.values(place, first, count)
        if self._kept[0] != place:
            self._kept = place, file.values(place).T
        return np.ascontiguousarray(self._kept[1][first : first + count])

    def file(self, place: str) -> str:
        """See TensorSource."""
        return self._of.get(place, next(iter(self._files)) if len(self._files) == 1 else "")

    def model(self) -> Model:
        """Return shape and frozen weights. Raises ModelInvalid."""
        return model_from_tensors(self.shape, self, self._places, interleaved=False)

    def tensors(self, notes: list[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the frozen tensors, one weight at a time. Raises ModelInvalid."""
        return frozen_tensors(self.shape, self, self._places, notes, interleaved=False)


def place_of(shape: LlamaShape, name: str) -> str:
    """Return what the field calls a weight or vector of a model."""
    return gpt2_place(name) if shape.is_gpt2 else _llama_place(name)


def _llama_place(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part = name.split("/")
    end = "bias" if part.endswith("_bias") else "weight"
    module = _NORMS.get(part) or MODULES[part.removesuffix("_bias")]
    return f"model.layers.{layer}.{module}.{end}"


def _rotary_base(settings: Settings) -> int:
    """Return the base of rotary positions, of which two forms are in use. Raises ModelUnsupported if scaled."""
    base = settings.get("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        found = settings.get(key)
        if found is None:
            continue
        if not isinstance(found, dict):
            raise ModelInvalid(f"{key} is not an object", file=CONFIG)
        inner = Settings(found)
        inner.refuse("rope_type", "default")
        inner.refuse("type", "default")
        inner.refuse("partial_rotary_factor", 1, 1.0)
        if (other := found.get("rope_theta")) is not None:
            if base is not None and other != base:
                raise ModelInvalid(f"rope_theta and {key}.rope_theta differ", file=CONFIG)
            base = other
    base = 10_000 if base is None else base
    if type(base) not in (int, float) or not 2 <= base < 1 << 40 or base != int(base):
        raise ModelUnsupported(f"rope_theta {str(base)[:40]} is not an integer of 2 or more", file=CONFIG)
    return int(base)


def _context(settings: Settings, kind: str) -> int:
    """Return the longest row. Positions attend to all before them, so a sliding window bounds it."""
    context = settings.number("max_position_embeddings")
    if kind == "qwen2" and not settings.truth("use_sliding_window"):
        return context
    if "sliding_window" in settings and settings.get("sliding_window") is None:
        return context
    otherwise = _MISTRAL_WINDOW if kind == "mistral" else context
    return min(context, settings.number("sliding_window", otherwise))


def _shape(values: Mapping[str, Any], tensors: Mapping[str, str]) -> LlamaShape:
    settings = Settings(values)
    kind = settings.get("model_type")
    if kind != GPT2 and kind not in _KINDS:
        raise ModelUnsupported(
            f"model_type {str(kind)[:40]!r}; {', '.join((*_KINDS, GPT2))} are read", file=CONFIG,
            remedy="Choose a model of the Llama family, or GPT-2",
        )  # fmt: skip
    if settings.get("quantization_config") is not None:
        raise ModelUnsupported(
            "quantization_config: quantised weights are not read", file=CONFIG,
            remedy="Take the model's bfloat16 or float32 files",
        )  # fmt: skip
    if kind == GPT2:
        return gpt2_shape(settings)
    settings.refuse("hidden_act", "silu")
    settings.refuse("mlp_bias", False)
    settings.refuse("partial_rotary_factor", 1, 1.0)
    settings.refuse("rope_interleaved", False)
    heads, width = settings.number("num_attention_heads"), settings.number("hidden_size")
    if width % heads and settings.get("head_dim") is None:
        raise ModelInvalid(f"{width} columns in {heads} heads", file=CONFIG)
    try:
        return LlamaShape(
            vocabulary=settings.number("vocab_size"),
            width=width,
            layers=settings.number("num_hidden_layers"),
            heads=heads,
            key_heads=settings.number("num_key_value_heads", heads),
            head_width=settings.number("head_dim", width // heads),
            hidden=settings.number("intermediate_size"),
            context=_context(settings, str(kind)),
            rotary_base=_rotary_base(settings),
            epsilon_nano=settings.nano("rms_norm_eps"),
            tied=settings.truth("tie_word_embeddings"),
            biased=_llama_place("layer/0/query_bias") in tensors,
        )
    except ProgramInvalid as error:
        raise ModelUnsupported(str(error), file=CONFIG) from None
