"""Models of GPUs as words: what a job orders, and whether a card is that (R148).

Programs name one card in several ways: ``NVIDIA A100-SXM4-40GB`` or ``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb``. So a
name is a set of words, and an order is some of them. A part of a card has the word ``mig`` and that of its
profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final

__all__ = [
    "GPU_WORDS_MAX", "PART_WORD", "WORD_LENGTH_MAX", "common_words", "gpu_words", "has_card", "is_part",
    "is_profile", "mig_memory_mib", "order_fault",
]  # fmt: skip

GPU_WORDS_MAX: Final = 8
"""Words of an order."""
NAME_WORDS_MAX: Final = 16
"""Words of a machine's card that count: the first ones."""
WORD_LENGTH_MAX: Final = 32
PART_WORD: Final = "mig"
_AS_WRITTEN: Final = str.maketrans(ascii_uppercase + "+", ascii_lowercase + ".")
"""Of ASCII alone: nodes agree on the words, whatever tables of letters they have."""
_WORD: Final = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*", re.ASCII)
_PROFILE: Final = re.compile(r"[1-9][0-9]?g\.([1-9][0-9]{0,3})gb(?:\.[a-z0-9]+)*", re.ASCII)
_PART_SHARE: Final = 95
"""Percent of the named memory that a part has at least: one of 5 GB has 4,864 MiB."""


@lru_cache(maxsize=4_096)
def gpu_words(name: str) -> tuple[str, ...]:
    """Return the words of a name, sorted, each once: the first ``NAME_WORDS_MAX`` of them."""
    found = _WORD.findall(name.translate(_AS_WRITTEN))
    return tuple(sorted({word for word in found[:NAME_WORDS_MAX] if len(word) <= WORD_LENGTH_MAX}))


def common_words(names: Iterable[str]) -> tuple[str, ...]:
    """Return the words that all names have, sorted."""
    sets = [set(gpu_words(name)) for name in names]
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def is_part(name: str) -> bool:
    """Whether a name is that of a part of a card."""
    return PART_WORD in gpu_words(name)


def has_card(name: str, memory_mib: int, words: Sequence[str], least_mib: int) -> bool:
    """Whether a card is what an order says: its words, its memory, and a part if, and only if, one is ordered."""
    own = gpu_words(name)
    is_right_part = (PART_WORD in own) == (PART_WORD in words)
    return is_right_part and set(words) <= set(own) and memory_mib >= least_mib


def order_fault(words: Sequence[str]) -> str:
    """Return what is wrong with the words of an order, empty if nothing is."""
    if len(words) > GPU_WORDS_MAX:
        return f"{GPU_WORDS_MAX} words at most"
    if list(words) != sorted(set(words)):
        return "sorted, each word once"
    if not all(len(word) <= WORD_LENGTH_MAX and _WORD.fullmatch(word) for word in words):
        return f"words of letters and digits, {WORD_LENGTH_MAX} at most"
    return ""


def is_profile(text: str) -> bool:
    """Whether a text is a profile of parts, as ``1g.10gb``; other marks than the dot are dots already."""
    return len(text) <= WORD_LENGTH_MAX and _PROFILE.fullmatch(text) is not None


def mig_memory_mib(profile: str) -> int:
    """Return the MiB that a part of this profile has at least; 0 for what is no profile."""
    found = _PROFILE.fullmatch(profile)
    return 0 if found is None else int(found[1]) * 1024 * _PART_SHARE // 100
