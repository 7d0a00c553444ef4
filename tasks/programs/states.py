"""The commitments to a program's state and to a task's data: Merkle roots over their tensors (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from state.primitives.codec import encode
from state.primitives.merkle import merkle_root
from tasks.programs.tensors import TensorType

__all__ = ["data_root", "state_leaves", "state_root", "step_leaf", "tensor_leaf"]

_STEP: Final = "step"


def step_leaf(step: int) -> bytes:
    """Return the first leaf of a state: the number of steps that led to it."""
    return encode([_STEP, step])


def tensor_leaf(name: str, kind: TensorType, root: bytes) -> bytes:
    """Return the leaf of a named tensor in a state or in a task's data."""
    return encode([name, int(kind.element), kind.rows, kind.columns, root])


def state_leaves(step: int, tensors: Mapping[str, tuple[TensorType, bytes]]) -> list[bytes]:
    """Return the leaves of a state: the step, then type and root of each tensor in the order of the names.

    The tensor at ``position`` of that order is leaf ``position + 1``.
    """
    return [step_leaf(step), *(tensor_leaf(name, *tensors[name]) for name in sorted(tensors))]


def data_root(tensors: Mapping[str, tuple[TensorType, bytes]]) -> bytes:
    """Return the root of a task's data, given type and root of each tensor: leaves in the order of the names."""
    return merkle_root([tensor_leaf(name, *tensors[name]) for name in sorted(tensors)])


def state_root(step: int, tensors: Mapping[str, tuple[TensorType, bytes]]) -> bytes:
    """Return the root of a state after ``step`` steps, given type and root of each tensor."""
    return merkle_root(state_leaves(step, tensors))
