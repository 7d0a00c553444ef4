"""A training state as bytes: named tensors, their canonical encoding and the Merkle root that commits to them.

No NumPy here: whoever only stores, sends or checks a state against its root needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.errors import StateInvalid
from tasks.programs.states import state_root
from tasks.programs.tensors import TensorType, tensor_root

__all__ = ["StatePlan", "TrainingState", "head_size", "state_size", "step_size"]

STEP_MAX: Final = 1 << 48
_VERSION: Final = 1
_HEAD_ONE_BYTE: Final = 24
_ITEMS: Final = 4
"""The state itself, its version, its step, its tensors: no stranger's bytes make more objects than a state has."""
_TENSOR_ITEMS: Final = 3


class StatePlan(Protocol):
    """What a state's layout follows from."""

    @property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state."""

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""

    def alike(self) -> Iterable[tuple[int, str, TensorType]]:
        """Yield tensors that stand for others of the same type with a name as long, and for how many each stands.

        The size of a state's encoding follows from these few.
        """


@dataclass(frozen=True)
class TrainingState:
    """Little-endian binary32 ``tensors`` after ``step`` steps."""

    step: int
    tensors: Mapping[str, bytes]

    def encode(self) -> bytes:
        """Return the canonical bytes: what a state blob holds."""
        return encode([_VERSION, self.step, [[name, self.tensors[name]] for name in sorted(self.tensors)]])

    @classmethod
    def decode(cls, data: bytes, plan: StatePlan) -> TrainingState:
        """Read a state of a plan. Raises StateInvalid; the numbers are checked where they are loaded."""
        types = plan.tensors()
        try:
            value = decode(
                data, limit_bytes=plan.state_limit_bytes, limit_items=_ITEMS + _TENSOR_ITEMS * len(types)
            )
        except DecodeError as error:
            raise StateInvalid(str(error)) from None
        match value:
            case [1, int(step), list(items)] if 0 <= step < STEP_MAX and len(items) == len(types):
                pass
            case _:
                raise StateInvalid("not a training state")
        tensors: dict[str, bytes] = {}
        for (name, kind), item in zip(types.items(), items, strict=True):
            match item:
                case [str(found), bytes(content)] if found == name and len(content) == kind.size_bytes:
                    tensors[name] = content
                case _:
                    raise StateInvalid(f"expected tensor {name} of {kind.rows} by {kind.columns} values")
        return cls(step, tensors)

    def root(self, plan: StatePlan) -> bytes:
        """Return the root that commits to the step and to every tensor (market.md 4.6)."""
        types = plan.tensors()
        return state_root(
            self.step, {name: (kind, tensor_root(kind, self.tensors[name])) for name, kind in types.items()}
        )


def state_size(plan: StatePlan, step: int) -> int:
    """Return the bytes of the encoding of a state after ``step`` steps."""
    count = size = 0
    for times, name, kind in plan.alike():
        count += times
        size += times * (1 + head_size(len(name)) + len(name) + head_size(kind.size_bytes) + kind.size_bytes)
    return step_size(step) + head_size(count) + size


def step_size(step: int) -> int:
    """Return the bytes of the encoding of a state that name its step."""
    return len(encode([_VERSION, step, []])) - 1


def head_size(number: int) -> int:
    """Return the bytes of the head of an item of that length (RFC 8949)."""
    if number < _HEAD_ONE_BYTE:
        return 1
    return 2 if number < 1 << 8 else 3 if number < 1 << 16 else 5 if number < 1 << 32 else 9
