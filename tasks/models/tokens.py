"""Text to tokens and back, with the vocabulary of a model's own file (extra ``models``).

A tokeniser's library is no part of what is proved: token ids are what is hashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tasks.models.errors import ModelInvalid, ModelUnsupported, TokenizersMissing
from tasks.models.gguf import Setting

__all__ = ["Tokeniser"]

_CONTROL: Final = 3
"""Type of a token that stands for no text, for example the end of a turn."""
_SPLITS: Final = ("gpt-2", "smollm")


class Tokeniser:
    """Byte pairs over bytes, as in a GGUF file's settings."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        """Raises ModelInvalid, ModelUnsupported, and TokenizersMissing without the library."""
        try:
            import tokenizers
            from tokenizers import decoders, models, pre_tokenizers
        except ImportError as error:
            raise TokenizersMissing("tokenizers is not installed: pip install dekube-node[models]") from error
        kind, split = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre", "gpt-2")
        if kind != "gpt2" or split not in _SPLITS:
            raise ModelUnsupported(f"a tokeniser of kind {str(kind)[:40]!r}, {str(split)[:40]!r}")
        tokens = _texts(settings, "tokens")
        numbers = {token: number for number, token in enumerate(tokens)}
        if len(numbers) != len(tokens):
            raise ModelInvalid("two tokens of one text")
        merges: list[Any] = [tuple(merge.split(" ")) for merge in _texts(settings, "merges")]
        for merge in merges:
            if len(merge) != 2 or not {*merge, "".join(merge)} <= numbers.keys():
                raise ModelInvalid(f"a merge of {' '.join(merge)[:40]!r}, which are no tokens")
        made: Any = tokenizers.Tokenizer(models.BPE(vocab=numbers, merges=merges, fuse_unk=False))
        steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if split == "smollm":
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        made.pre_tokenizer = pre_tokenizers.Sequence(steps)
        made.decoder = decoders.ByteLevel()
        types = settings.get("tokenizer.ggml.token_type", [])
        if not isinstance(types, list) or len(types) not in (0, len(tokens)):
            raise ModelInvalid("token types that are not one for each token")
        control = [token for token, found in zip(tokens, types, strict=False) if found == _CONTROL]
        added = [tokenizers.AddedToken(token, special=True, normalized=False) for token in control]
        made.add_special_tokens(added)
        self._made: Any = made
        end = settings.get("tokenizer.ggml.eos_token_id")
        self.ends: Final = frozenset({end} if type(end) is int and 0 <= end < len(tokens) else ())
        """Tokens after which a completion ends."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with none added. Names of control tokens in it are those tokens."""
        return [int(number) for number in self._made.encode(text, add_special_tokens=False).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without control tokens; bytes that are no UTF-8 are replaced."""
        return str(self._made.decode(list(tokens), skip_special_tokens=True))


def _texts(settings: Mapping[str, Setting], name: str) -> list[str]:
    found = settings.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ModelInvalid(f"tokenizer.ggml.{name} is no list of texts")
    return [str(one) for one in found]
