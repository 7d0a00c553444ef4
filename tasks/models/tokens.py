"""Text to tokens and back, with the vocabulary of a model's own file (extra ``models``).

A tokeniser's library is no part of what is proved: token ids are what is hashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tasks.models.errors import ModelInvalid, ModelUnsupported, TokenizersMissing
from tasks.models.gguf import Setting
from tasks.models.strict_json import JsonFault, read_object

__all__ = ["Tokeniser", "tokeniser_from_gguf", "tokeniser_from_json"]

JSON_BYTES_MAX: Final = 64 << 20
_ONE_PLACE: Final = "Take all files of the model from one place"

_CONTROL: Final = 3
"""Type of a token that stands for no text, for example the end of a turn."""
_SPLITS: Final = ("gpt-2", "smollm")


class Tokeniser:
    """Turns text into a model's tokens and back. ``ends`` are tokens after which a completion ends."""

    def __init__(self, made: Any, ends: frozenset[int]) -> None:
        self._made, self.ends = made, ends

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with none added. Names of control tokens in it are those tokens."""
        return [int(number) for number in self._made.encode(text, add_special_tokens=False).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without control tokens; bytes that are no UTF-8 are replaced."""
        return str(self._made.decode(list(tokens), skip_special_tokens=True))


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizersMissing("tokenizers is not installed: pip install dekube-node[models]") from error
    return tokenizers


def tokeniser_from_gguf(settings: Mapping[str, Setting]) -> Tokeniser:
    """Return the byte pairs over bytes of a GGUF file's settings.

    Raises ModelInvalid, ModelUnsupported, and TokenizersMissing without the library.
    """
    library = _library()
    kind, split = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or split not in _SPLITS:
        raise ModelUnsupported(f"a tokeniser of kind {str(kind)[:40]!r}, {str(split)[:40]!r}")
    tokens = _texts(settings, "tokens")
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) != len(tokens):
        raise ModelInvalid("two tokens with the same text")
    merges: list[Any] = [tuple(merge.split(" ")) for merge in _texts(settings, "merges")]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= numbers.keys():
            raise ModelInvalid(f"a merge of {' '.join(merge)[:40]!r}, which are not tokens")
    made = library.Tokenizer(library.models.BPE(vocab=numbers, merges=merges, fuse_unk=False))
    steps: list[Any] = [library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if split == "smollm":
        steps.insert(0, library.pre_tokenizers.Digits(individual_digits=True))
    made.pre_tokenizer = library.pre_tokenizers.Sequence(steps)
    made.decoder = library.decoders.ByteLevel()
    types = settings.get("tokenizer.ggml.token_type", [])
    if not isinstance(types, list) or len(types) not in (0, len(tokens)):
        raise ModelInvalid("not one token type for each token")
    control = [token for token, found in zip(tokens, types, strict=False) if found == _CONTROL]
    made.add_special_tokens([library.AddedToken(token, special=True, normalized=False) for token in control])
    end = settings.get("tokenizer.ggml.eos_token_id")
    return Tokeniser(made, frozenset({end} if type(end) is int and 0 <= end < len(tokens) else ()))


def tokeniser_from_json(data: bytes, vocabulary: int, ends: frozenset[int]) -> Tokeniser:
    """Return the tokeniser of a ``tokenizer.json``. It cuts and fills no text, whatever the file says of that.

    Raises ModelInvalid, ModelUnsupported, and TokenizersMissing without the library.
    """
    library = _library()
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
    if not isinstance(kind, dict) or kind.get("type", "BPE") != "BPE":
        raise ModelUnsupported("a tokeniser that is not of byte pairs (BPE)")
    try:
        made = library.Tokenizer.from_str(text)
    except BaseException as error:  # what the library raises for a panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelInvalid(f"no tokeniser: {str(error)[:120]}") from None
    made.no_truncation()
    made.no_padding()
    if (most := max(made.get_vocab(with_added_tokens=True).values(), default=-1)) >= vocabulary:
        raise ModelInvalid(f"token {most} in a vocabulary of {vocabulary}", remedy=_ONE_PLACE)
    if not all(0 <= end < vocabulary for end in ends):
        raise ModelInvalid(f"an end token outside of a vocabulary of {vocabulary}", remedy=_ONE_PLACE)
    return Tokeniser(made, ends)


def _texts(settings: Mapping[str, Setting], name: str) -> list[str]:
    found = settings.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ModelInvalid(f"tokenizer.ggml.{name} is no list of texts")
    return [str(one) for one in found]
