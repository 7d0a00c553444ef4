"""Running the links of a speed trial on an engine (market.md 3.6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.operators import Context
from tasks.programs.running import ResultRunner, content_of, load_tensor
from tasks.trials import first_state, link_program, next_state

__all__ = ["LinkRunner", "run_chain"]

_CONTEXT: Final = Context(0, bytes(32))


class LinkRunner:
    """Runs links of one trial: they share the matrix that follows from its seed."""

    def __init__(self, seed: bytes, width: int, arrays: Arrays) -> None:
        self._program = link_program(width)
        self._width, self._arrays = width, arrays
        self._runner = ResultRunner(self._program, arrays)
        self._right = self._matrix(b"right" + seed)

    def _matrix(self, name: bytes) -> Array:
        content = hashlib.shake_256(b"dekube trial\x00" + name).digest(self._width * self._width)
        return load_tensor(self._arrays, self._program.types[0], content)

    def run(self, before: bytes) -> bytes:
        """Return the state after the link that begins with ``before``."""
        (found,) = self._runner.run([self._matrix(b"left" + before), self._right], _CONTEXT)
        kind = self._program.types[self._program.results[0]]
        return next_state(before, content_of(self._arrays, kind, found))


def run_chain(seed: bytes, width: int, arrays: Arrays, goes_on: Callable[[int], bool]) -> list[bytes]:
    """Return the states of a chain; ``goes_on`` is asked before each link, with the number of those done."""
    runner, states = LinkRunner(seed, width, arrays), [first_state(seed)]
    while goes_on(len(states) - 1):
        states.append(runner.run(states[-1]))
    return states
