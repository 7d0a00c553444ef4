"""What every kind of job has in common: a plan of its steps, and the blobs that it starts from (market.md 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from tasks.programs.program import Program, SourceKind
from tasks.programs.tensors import TensorType

__all__ = ["Input", "JobPlan", "NamedBlob"]


class NamedBlob(Protocol):
    """A blob that a specification names: its content address, and the root of the tensors that it holds."""

    @property
    def blob(self) -> bytes:
        """Content address."""

    @property
    def root(self) -> bytes:
        """Root of the tensors (market.md 4.6)."""


class Input(NamedTuple):
    """A blob that a job starts from. ``kind`` is under which root of a question its tensors stand."""

    kind: SourceKind
    blob: bytes
    root: bytes
    tensors: Mapping[str, TensorType]
    size_bytes: int
    check: Callable[[bytes], None] | None = None
    """Raises DatasetInvalid for another blob than the root is of. None: its tensors stand one after another."""


class JobPlan(Protocol):
    """What ledger and engines know of a job's steps. Only ``program`` and ``check`` may build a program."""

    @property
    def seed(self) -> bytes:
        """The job's seed."""

    @property
    def program(self) -> Program:
        """The program of one step. Raises UnsupportedJob."""

    def check(self) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""

    @property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state."""

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""

    def alike(self) -> Iterable[tuple[int, str, TensorType]]:
        """Yield tensors that stand for others of the same type with a name as long, and for how many."""
