"""A training state as bytes: named tensors, their canonical encoding and the Merkle root that commits to them.

No NumPy here: whoever only stores, sends or checks a state against its root needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.merkle import merkle_root
from tasks.engines.errors import StateInvalid
from tasks.engines.plan import TrainingPlan

__all__ = ["TENSOR_LEAF_BYTES", "TrainingState"]

TENSOR_LEAF_BYTES: Final = 64 * 1024
"""Size of the pieces of a tensor under its own root, so that one piece can be opened alone (market.md 4.4)."""
STEP_MAX: Final = 1 << 48
_VERSION: Final = 1
_FLOAT32: Final = "f4"
_STEP: Final = "step"
_ITEMS: Final = 4
"""The state itself, its version, its step, its tensors: no stranger's bytes make more objects than a state has."""
_TENSOR_ITEMS: Final = 3


@dataclass(frozen=True)
class TrainingState:
    """Little-endian float32 ``tensors`` after ``step`` steps."""

    step: int
    tensors: Mapping[str, bytes]

    def encode(self) -> bytes:
        """Return the canonical bytes: what a state blob holds."""
        return encode([_VERSION, self.step, [[name, self.tensors[name]] for name in sorted(self.tensors)]])

    @classmethod
    def decode(cls, data: bytes, plan: TrainingPlan) -> TrainingState:
        """Read a state of ``plan``'s model. Raises StateInvalid; the numbers are checked where they are loaded."""
        shapes = plan.tensors()
        try:
            value = decode(
                data, limit_bytes=plan.state_limit_bytes, limit_items=_ITEMS + _TENSOR_ITEMS * len(shapes)
            )
        except DecodeError as error:
            raise StateInvalid(str(error)) from None
        match value:
            case [1, int(step), list(items)] if 0 <= step < STEP_MAX and len(items) == len(shapes):
                pass
            case _:
                raise StateInvalid("not a training state")
        tensors: dict[str, bytes] = {}
        for (name, shape), item in zip(shapes.items(), items, strict=True):
            match item:
                case [str(found), bytes(content)] if found == name and len(content) == 4 * shape[0] * shape[1]:
                    tensors[name] = content
                case _:
                    raise StateInvalid(f"expected tensor {name} of shape {shape}")
        return cls(step, tensors)

    def root(self, plan: TrainingPlan) -> bytes:
        """Return the Merkle root over (name, type, shape, root of the bytes), sorted by name, and the step."""
        leaves = [encode([_STEP, self.step])]
        for name, shape in plan.tensors().items():
            content = self.tensors[name]
            pieces = [content[at : at + TENSOR_LEAF_BYTES] for at in range(0, len(content), TENSOR_LEAF_BYTES)]
            leaves.append(encode([name, _FLOAT32, list(shape), merkle_root(pieces)]))
        return merkle_root(leaves)
