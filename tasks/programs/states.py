"""The commitment to a state of a program: a Merkle root over its step and tensors (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from state.primitives.codec import encode
from state.primitives.merkle import merkle_root
from tasks.programs.tensors import TensorType

__all__ = ["state_leaves", "state_root"]

_STEP: Final = "step"


def state_leaves(step: int, tensors: Mapping[str, tuple[TensorType, bytes]]) -> list[bytes]:
    """Return the leaves of a state: the step, then type and root of each tensor in the order of the names.

    The tensor at ``position`` of that order is leaf ``position + 1``.
    """
    leaves = [encode([_STEP, step])]
    for name in sorted(tensors):
        kind, root = tensors[name]
        leaves.append(encode([name, int(kind.element), kind.rows, kind.columns, root]))
    return leaves


def state_root(step: int, tensors: Mapping[str, tuple[TensorType, bytes]]) -> bytes:
    """Return the root of a state after ``step`` steps, given type and root of each tensor."""
    return merkle_root(state_leaves(step, tensors))
