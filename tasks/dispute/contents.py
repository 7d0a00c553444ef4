"""Contents of a step's tensors: in memory where they are few, and else computed again when they are asked for.

A step of a language model has more than ten gigabytes of tensors. Its commitments need the root of each, and a
game opens a handful. So the step is run once to hash every tensor, and again up to those that are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Final, overload

from tasks.programs.program import Program
from tasks.programs.tensors import tensor_root

__all__ = ["KEPT_BYTES", "Pass", "TraceContents"]

KEPT_BYTES: Final = 256 << 20
"""Contents that are kept in memory; more only where those of one call are larger."""
SMALL_BYTES: Final = 4 << 10
"""Tensors up to this size are always kept."""

Pass = Callable[[Set[int] | None], Iterable[tuple[int, bytes]]]
"""Runs the step and yields number and content of the tensors that are asked for, in order; None means all."""


class TraceContents(Sequence[bytes]):
    """Contents by number. ``roots`` are those of all tensors if they were hashed, else it is empty."""

    def __init__(self, program: Program, run: Pass, kept_bytes: int = KEPT_BYTES) -> None:
        """Run the step. Raises what ``run`` raises."""
        self._program, self._run, self._kept_bytes = program, run, kept_bytes
        self._small, self._kept = dict[int, bytes](), dict[int, bytes]()
        self.roots = dict[int, bytes]()
        whole = sum(kind.size_bytes for kind in program.types) <= kept_bytes
        for number, content in run(None):
            if whole or len(content) <= SMALL_BYTES:
                self._small[number] = content
            if not whole:
                self.roots[number] = tensor_root(program.types[number], content)

    def __len__(self) -> int:
        return len(self._program.types)

    @overload
    def __getitem__(self, at: int, /) -> bytes: ...

    @overload
    def __getitem__(self, at: slice, /) -> list[bytes]: ...

    def __getitem__(self, at: int | slice, /) -> bytes | list[bytes]:
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return list(self._several(numbers))
        found = self._small.get(numbers)
        return self._large(numbers) if found is None else found

    def __iter__(self) -> Iterator[bytes]:
        return self._several(range(len(self)))

    def _several(self, numbers: range) -> Iterator[bytes]:
        """Yield contents in one pass over the step."""
        missing = frozenset(numbers) - self._small.keys()
        computed = iter(self._run(missing) if missing else ())
        for number in numbers:
            yield self._small[number] if number in self._small else next(computed)[1]

    def _large(self, number: int) -> bytes:
        """Return a content that may have to be computed; those that the same call reads are then kept with it."""
        if number in self._kept:
            self._kept[number] = self._kept.pop(number)  # the last to be dropped
            return self._kept[number]
        wanted = self._near(number) - self._small.keys() - self._kept.keys()
        found = dict(self._run(wanted))
        size = sum(map(len, found.values())) + sum(map(len, self._kept.values()))
        while self._kept and size > self._kept_bytes:
            oldest = next(iter(self._kept))
            size -= len(self._kept.pop(oldest))
        self._kept |= found
        return found[number]

    def _near(self, number: int) -> frozenset[int]:
        """Return a tensor and what the call that gives it reads."""
        first = len(self._program.sources)
        return frozenset({number, *(self._program.calls[number - first].inputs if number >= first else ())})
