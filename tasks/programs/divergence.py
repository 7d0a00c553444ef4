"""A step that diverges: which store, what a worker commits to for it, and where its tensors stand (market.md 4.6).

From the diverged store on there is nothing to commit to: what follows from a store without a value has none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from tasks.programs.program import CALLS_MAX, Place, PlaceKind, Program
from tasks.programs.tensors import DIMENSION_MAX

__all__ = [
    "Divergence",
    "diverged_place",
    "diverged_root",
    "divergence_from_value",
    "divergence_to_value",
    "extend_diverged",
    "is_store",
]

_STEP_LIMIT = 1 << 40


class Divergence(NamedTuple):
    """Step ``step`` of a job, from 0, diverges: store ``store`` has no value at ``row`` and ``column``.

    ``store`` is the number of the first store that diverges. ``state_before`` is the root of the state before the
    step, which is the last one that there is.
    """

    step: int
    store: int
    row: int
    column: int
    state_before: bytes


def diverged_root(found: Divergence) -> bytes:
    """Return what stands for the root of the state after a diverged step."""
    return digest(b"diverged", encode([found.state_before, found.step, found.store]))


def extend_diverged(work_digest: bytes, results_root: bytes) -> bytes:
    """Return the chain over the steps after a diverged one.

    ``results_root`` is the Merkle root over the roots of the results of all calls before the store.
    """
    return digest(b"work-diverged", encode([work_digest, results_root]))


def diverged_place(program: Program, store: int, tensor: int) -> Place:
    """Return where the root of a tensor before ``store`` stands. Raises IndexError for another tensor.

    Sources stand where they always do. All results stand in the trace, whatever the program makes of them.
    """
    if not 0 <= tensor < store:
        raise IndexError(tensor)
    count = len(program.sources)
    return program.places[tensor] if tensor < count else Place(PlaceKind.TRACE, tensor - count)


def is_store(program: Program, tensor: int, row: int, column: int) -> bool:
    """Tell whether a tensor is the result of a store, and has such a value."""
    if not len(program.sources) < tensor < len(program.types):  # a result stands before each store
        return False
    call, kind = program.call_of(tensor), program.types[tensor]
    return call is not None and call.operator == "store" and row < kind.rows and column < kind.columns


def divergence_to_value(found: Divergence) -> list[Value]:
    """Return a divergence as a codec value."""
    return list(found)


def divergence_from_value(value: Any) -> Divergence:
    """Return the divergence of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(step), int(store), int(row), int(column), bytes(before)] if (
            0 <= step < _STEP_LIMIT and 0 <= store < 2 * CALLS_MAX and 0 <= row < DIMENSION_MAX
            and 0 <= column < DIMENSION_MAX and len(before) == HASH_BYTES
        ):  # fmt: skip
            return Divergence(step, store, row, column, before)
    raise DecodeError("not a divergence")
