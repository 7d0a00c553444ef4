"""Encoders of the BERT family from a folder: shape, frozen weights, tokens of texts, what a vector is (R84)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tasks.models.errors import ModelInvalid, ModelUnsupported, TokenizersMissing
from tasks.models.huggingface import CONFIG, CONFIG_BYTES_MAX, read_settings
from tasks.models.llama import contents_of, frozen_tensor
from tasks.models.rows import Tokens
from tasks.models.safetensors import SafetensorsFile
from tasks.models.settings import Settings
from tasks.models.strict_json import JsonFault, read_object
from tasks.models.tokens import JSON_BYTES_MAX
from tasks.programs.bert_shape import BertShape, encoder_tensors
from tasks.programs.embed import ModelShape, frozen_tensors
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.scalars import NANO

__all__ = [
    "ENCODER", "Encoder", "EncoderFiles", "FrozenModel", "PlainTokens", "TextTokens", "encoder_tokens",
    "pooling_of",
]  # fmt: skip

ENCODER: Final = "bert"
"""Of the setting ``model_type``."""
_NAMES: Final = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "hidden_norm": "output.LayerNorm",
}  # fmt: skip
_OUTER: Final = {
    "embedding": "embeddings.word_embeddings.weight", "positions": "embeddings.position_embeddings.weight",
    "type": "embeddings.token_type_embeddings.weight", "norm": "embeddings.LayerNorm.weight",
    "norm_bias": "embeddings.LayerNorm.bias",
}  # fmt: skip
_PREFIX: Final = "bert."
"""What names begin with in the files of a model with a head."""
_UNREAD: Final = ("pooler.", "cls.", "embeddings.position_ids")
"""Beginnings of tensors that no vector depends on."""
_MODES: Final = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last",
}  # fmt: skip


@dataclass(frozen=True)
class FrozenModel:
    """A shape and its frozen tensors by name. ``notes`` say what was changed when the files were read."""

    shape: ModelShape
    tensors: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of every tensor, as programs and roots take them."""
        return contents_of(frozen_tensors(self.shape), self.tensors)


class EncoderFiles:
    """Settings and weights of an encoder; what they hold is frozen a weight at a time."""

    def __init__(self, config: bytes, files: Mapping[str, SafetensorsFile]) -> None:
        """Raises ModelInvalid and ModelUnsupported."""
        self._files, self._of = files, dict[str, tuple[str, str]]()
        for name, file in files.items():
            for tensor in file.tensors:
                self._of[tensor.removeprefix(_PREFIX)] = (name, tensor)
        self.shape: Final = _shape(Settings(read_settings(CONFIG, config, CONFIG_BYTES_MAX)))
        """Shape of the model."""
        self._places = {name: _place(name) for name in encoder_tensors(self.shape) if "/exponents" not in name}
        for tensor in sorted(self._of.keys() - self._places.values()):
            if not tensor.startswith(_UNREAD):
                raise ModelUnsupported(
                    f"tensor {tensor[:80]} is not of this architecture", file=self._of[tensor][0]
                )

    def size(self, place: str) -> tuple[int, int] | None:
        """See TensorSource. Of the types of tokens the first row is read: a text is not the second of a pair."""
        if place not in self._of:
            return None
        file, tensor = self._of[place]
        held = self._files[file].tensors[tensor]
        return (1 if place == _OUTER["type"] else held.rows), held.columns

    def rows(self, place: str, first: int, count: int) -> np.ndarray:
        """See TensorSource."""
        file, tensor = self._of[place]
        return self._files[file].values(tensor, first, count)

    def file(self, place: str) -> str:
        """See TensorSource."""
        return self._of[place][0] if place in self._of else ""

    def model(self) -> FrozenModel:
        """Return shape and frozen weights. Raises ModelInvalid."""
        kinds, notes, found = encoder_tensors(self.shape), list[str](), dict[str, np.ndarray]()
        for name, place in self._places.items():
            try:
                found.update(frozen_tensor(name, kinds[name], self, place, None, notes))
            except ModelInvalid as error:
                raise error.within(self.file(place)) from None
        return FrozenModel(self.shape, found, tuple(notes))


def _place(name: str) -> str:
    """Return what the field calls a weight or vector of an encoder."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part = name.split("/")
    end = "bias" if part.endswith("_bias") else "weight"
    return f"encoder.layer.{layer}.{_NAMES[part.removesuffix('_bias')]}.{end}"


def _shape(settings: Settings) -> BertShape:
    settings.refuse("hidden_act", "gelu")
    settings.refuse("position_embedding_type", "absolute")
    settings.refuse("is_decoder", False)
    settings.refuse("add_cross_attention", False)
    epsilon = settings.get("layer_norm_eps")
    if type(epsilon) not in (int, float) or not 0 < epsilon <= 1:
        raise ModelInvalid("layer_norm_eps is not a number between 0 and 1", file=CONFIG)
    try:
        return BertShape(
            vocabulary=settings.number("vocab_size"), width=settings.number("hidden_size"),
            layers=settings.number("num_hidden_layers"), heads=settings.number("num_attention_heads"),
            hidden=settings.number("intermediate_size"), context=settings.number("max_position_embeddings"),
            epsilon_nano=round(epsilon * NANO),
        )  # fmt: skip
    except ProgramInvalid as error:
        raise ModelUnsupported(str(error), file=CONFIG) from None


def pooling_of(data: bytes, name: str) -> str:
    """Return the pooling of a file of sentence-transformers. Raises ModelInvalid, ModelUnsupported."""
    settings = read_settings(name, data, CONFIG_BYTES_MAX)
    modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ModelUnsupported(
            f"pooling {', '.join(modes)[:80] or 'none'}; one of {', '.join(_MODES)} is computed", file=name
        )
    return _MODES[modes[0]]


class TextTokens(Protocol):
    """What turns a text into the tokens that a model reads."""

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return the tokens of a text, ``most`` at most if a number is given."""


class PlainTokens:
    """The tokens of a decoder's own tokeniser, with none added."""

    def __init__(self, made: Tokens) -> None:
        self._made = made

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """See TextTokens."""
        return self._made.encode(text)[:most]


class Encoder:
    """A tokeniser of a model's own file, with the tokens that it puts around a text."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """See TextTokens."""
        if most is None:
            return [int(number) for number in self._made.encode(text).ids]
        self._made.enable_truncation(most)
        try:
            return [int(number) for number in self._made.encode(text).ids]
        finally:
            self._made.no_truncation()


def encoder_tokens(data: bytes, vocabulary: int) -> Encoder:
    """Return the tokeniser of a ``tokenizer.json``, of byte pairs or word pieces.

    Raises ModelInvalid, ModelUnsupported, and TokenizersMissing without the library.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizersMissing("tokenizers is not installed: pip install dekube-node[models]") from error
    if len(data) > JSON_BYTES_MAX:
        raise ModelInvalid(f"a file of {len(data)} bytes, at most {JSON_BYTES_MAX}")
    try:
        text = data.decode("utf-8")
        found = read_object(text)
    except UnicodeDecodeError:
        raise ModelInvalid("not UTF-8 text") from None
    except JsonFault as fault:
        raise ModelInvalid(str(fault)) from None
    kind = found.get("model", {})
    if not isinstance(kind, dict) or kind.get("type", "WordPiece") not in ("BPE", "WordPiece"):
        raise ModelUnsupported("a tokeniser that is neither of byte pairs (BPE) nor of word pieces (WordPiece)")
    try:
        made = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # what the library raises for a panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelInvalid(f"no tokeniser: {str(error)[:120]}") from None
    made.no_truncation()
    made.no_padding()
    if (most := max(made.get_vocab(with_added_tokens=True).values(), default=-1)) >= vocabulary:
        raise ModelInvalid(f"token {most} in a vocabulary of {vocabulary}")
    return Encoder(made)
