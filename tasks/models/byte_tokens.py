"""Bytes as tokens: the tokeniser of models that are trained from scratch without a vocabulary of their own.

A token is a byte of the text in UTF-8, and one more token ends a text. ``tokenizer_files`` says the same in the
format of the library ``tokenizers``, so other programs turn text into the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tasks.models.receipts import json_bytes

__all__ = ["BYTES_VOCABULARY", "END_TEXT", "END_TOKEN", "ByteTokens", "tokenizer_files"]

END_TOKEN: Final = 256
END_TEXT: Final = "<|end|>"
"""What stands for the end token in a text."""
BYTES_VOCABULARY: Final = 257
_LATIN_ENDS: Final = ((33, 127), (161, 173), (174, 256))
"""Bytes that the library's byte level writes as the character of their number. Others follow from 256 on."""


class ByteTokens:
    """Turns text into bytes and back; needs no library."""

    ends: Final = frozenset({END_TOKEN})
    """Tokens that end a text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with none added. ``END_TEXT`` in it is the end token."""
        found: list[int] = []
        for number, part in enumerate(text.split(END_TEXT)):
            found += [END_TOKEN] * (number > 0)
            found += part.encode("utf-8")
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without end tokens; bytes that are no UTF-8 are replaced."""
        return bytes(token for token in tokens if token < END_TOKEN).decode("utf-8", "replace")


def _characters() -> dict[str, int]:
    """Return the character that stands for each byte, by the rule of the library's byte level."""
    same = [byte for first, end in _LATIN_ENDS for byte in range(first, end)]
    rest = [byte for byte in range(END_TOKEN) if byte not in set(same)]
    numbers = {byte: byte for byte in same} | {byte: END_TOKEN + at for at, byte in enumerate(rest)}
    return {chr(numbers[byte]): byte for byte in range(END_TOKEN)}


def tokenizer_files(context: int) -> dict[str, bytes]:
    """Return the files of this tokeniser for a model that takes ``context`` tokens, by name."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = {
        "id": END_TOKEN, "content": END_TEXT, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip
    made: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {**_characters(), END_TEXT: END_TOKEN}, "merges": [],
        },
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TEXT, "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    return {"tokenizer.json": json_bytes(made), "tokenizer_config.json": json_bytes(settings)}
