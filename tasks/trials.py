"""Speed trials: the program of a link, the chain of links, and what a machine shows of it (market.md 3.6). Pure.

A trial is a chain of links. Each is a program of products of matrices that follow from the seed of the trial and
the state before, 32 bytes; its result gives the state after. So the links of a chain are computed one after the
other, and who checks one of them needs nothing but the seed and its state before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.merkle import MerkleProof, MerkleTree, merkle_root, verify_merkle_proof
from tasks.programs.builder import Builder
from tasks.programs.program import Computation, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "LINKS_MAX", "SAMPLES_MAX", "WIDTHS", "ShownLink", "are_right", "first_state", "link_program", "link_units",
    "next_state", "positions_of", "result_digest", "root_of", "show", "shown_from_value", "shown_to_value",
    "shows", "width_of",
]  # fmt: skip

WIDTHS: Final = (64, 128, 256, 512, 1024, 2048)
"""Rows and columns of the matrices of a link. A verifier runs some links again on one slow core, in time."""
LINKS_WANTED: Final = 64
"""A width is chosen so that a machine as fast as it claims does at least so many links."""
LINKS_MAX: Final = 1 << 16
SAMPLES_MAX: Final = 8
"""Links of a trial that are checked, at most."""
PRODUCTS: Final = 3
"""Products of a link, one after the other."""
BITS: Final = 15
SHIFT: Final = 8
LEFT, RIGHT, SCALES = "left", "right", "scales"
_SIBLINGS_MAX: Final = LINKS_MAX.bit_length()


class ShownLink(NamedTuple):
    """A link with its states before and after, and the path of each to the root of the chain."""

    position: int
    before: bytes
    after: bytes
    siblings_before: tuple[bytes, ...]
    siblings_after: tuple[bytes, ...]


@lru_cache(maxsize=len(WIDTHS))
def link_program(width: int) -> Computation:
    """Return the program of a link: three products with one matrix, and the sums of the positive values of rows.

    Both matrices stay the same in a trial; a scale for each column of the left one follows from the state. So a
    link hashes one row, not matrices: a device waits for no processor. No product can be prepared before the
    scales are known. The last step reads each value of the last product, and is not linear: none can be left out.
    """
    kind = TensorType(ElementType.UINT8, width, width)
    row = TensorType(ElementType.UINT8, 1, width)
    kinds = {LEFT: kind, RIGHT: kind, SCALES: row}
    builder = Builder([Source(SourceKind.DATA, name, of) for name, of in kinds.items()])
    half = builder.constant(0.5)
    left, right, scales = (
        builder.call(
            "subtract",
            builder.call("scale_bytes", builder.source(SourceKind.DATA, name), attributes=(SHIFT,)),
            half,
        )
        for name in kinds
    )
    left = builder.call("multiply", left, scales)
    for _ in range(PRODUCTS):
        left = builder.contract(left, right, BITS)
    positive = builder.call("select", left, left, builder.constant(0.0))
    return builder.computation(builder.row_sum(positive))


def link_units(width: int) -> int:
    """Return the work units of a link."""
    return link_program(width).units


def width_of(rate: int, trial_ms: int) -> int:
    """Return the widest link of which a machine with ``rate`` units a second does ``LINKS_WANTED`` in time."""
    units = rate * trial_ms // 1000
    return max((width for width in WIDTHS if LINKS_WANTED * link_units(width) <= units), default=WIDTHS[0])


def first_state(seed: bytes) -> bytes:
    """Return the state before the first link of a trial."""
    return digest(b"trial-first", seed)


def result_digest(result: bytes) -> bytes:
    """Return the digest of a link's result. Who has not computed the link does not know it."""
    return digest(b"trial-result", result)


def next_state(before: bytes, result: bytes) -> bytes:
    """Return the state after a link: ``result`` is the digest of its program's result."""
    return digest(b"trial-link", before + result)


def are_right(links: Sequence[tuple[bytes, bytes]], results: Sequence[bytes]) -> bool:
    """Tell whether links, each with its states before and after, have these digests of results."""
    return all(next_state(before, result) == after for (before, after), result in zip(links, results, strict=True))


def root_of(states: Sequence[bytes]) -> bytes:
    """Return the root over the states of a chain, one more than its links."""
    return merkle_root(states)


def positions_of(lot: bytes, links: int, samples: int) -> tuple[int, ...]:
    """Return the different links that are checked, ascending; ``lot`` are 32 bytes that nobody chose."""
    if links <= samples:
        return tuple(range(links))
    drawn: list[int] = []
    number = 0
    while len(drawn) < samples:
        at = int.from_bytes(digest(b"trial-sample", lot + number.to_bytes(8, "big")), "big") % links
        number += 1
        if at not in drawn:
            drawn.append(at)
    return tuple(sorted(drawn))


def show(states: Sequence[bytes], positions: Sequence[int]) -> tuple[ShownLink, ...]:
    """Return links of a chain with their paths."""
    tree = MerkleTree(states)
    return tuple(
        ShownLink(at, states[at], states[at + 1], tree.siblings(at), tree.siblings(at + 1)) for at in positions
    )


def shows(link: ShownLink, root: bytes, links: int, seed: bytes) -> bool:
    """Tell whether a shown link stands under the root of a chain of ``links``, which begins as the trial says."""
    if not 0 <= link.position < links or (link.position == 0 and link.before != first_state(seed)):
        return False
    ends = (
        (link.position, link.before, link.siblings_before),
        (link.position + 1, link.after, link.siblings_after),
    )
    return all(verify_merkle_proof(root, state, MerkleProof(at, links + 1, path)) for at, state, path in ends)


def shown_to_value(link: ShownLink) -> Value:
    """Return a shown link as a codec value."""
    return [link.position, link.before, link.after, list(link.siblings_before), list(link.siblings_after)]


def _hashes(values: list[Any]) -> tuple[bytes, ...]:
    if len(values) > _SIBLINGS_MAX or not all(type(at) is bytes and len(at) == HASH_BYTES for at in values):
        raise DecodeError("not the path of a state")
    return tuple(values)


def shown_from_value(value: Any) -> ShownLink:
    """Return the shown link of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(position), bytes(before), bytes(after), list(first), list(second)] if (
            0 <= position < LINKS_MAX and len(before) == len(after) == HASH_BYTES
        ):
            return ShownLink(position, before, after, _hashes(first), _hashes(second))
        case _:
            raise DecodeError("[position, state before, state after, path, path] expected")
