"""Links of speed trials in a job's process: the order and the answers (market.md 3.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.trials import SAMPLES_MAX, WIDTHS

__all__ = ["RESULTS_MAX", "Links", "RunLinks", "links_from", "links_to_value", "run_links_from"]

RESULTS_MAX: Final = 96
"""Results in one frame, so that it stays a small one."""


@dataclass(frozen=True)
class RunLinks:
    """To the process: run links of the trial with ``seed``.

    ``is_chain``: one after the other from the only state of ``befores`` on, until the process is ended. Otherwise
    the one after each of the states.
    """

    seed: bytes
    width: int
    befores: tuple[bytes, ...]
    is_chain: bool


@dataclass(frozen=True)
class Links:
    """From the process: the digests of the results of further links."""

    results: tuple[bytes, ...]


def links_to_value(order: RunLinks) -> list[Value]:
    """Return an order as a codec value."""
    return [order.seed, order.width, list(order.befores), int(order.is_chain)]


def run_links_from(value: list[Any]) -> RunLinks:
    """Return the order of a decoded codec value. Raises DecodeError."""
    match value:
        case [bytes(seed), int(width), list(befores), (0 | 1) as is_chain] if (
            len(seed) == HASH_BYTES
            and width in WIDTHS
            and 0 < len(befores) <= (1 if is_chain else SAMPLES_MAX)
            and all(type(each) is bytes and len(each) == HASH_BYTES for each in befores)
        ):
            return RunLinks(seed, width, tuple(befores), bool(is_chain))
    raise DecodeError("not an order to run links")


def links_from(joined: bytes) -> Links:
    """Return the answer whose results stand one behind the other. Raises DecodeError."""
    if not joined or len(joined) % HASH_BYTES or len(joined) > HASH_BYTES * RESULTS_MAX:
        raise DecodeError("not results of links")
    return Links(tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)))
