"""Running the links of a speed trial on an engine (market.md 3.6)."""

from __future__ import annotations

import hashlib
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.operators import Context
from tasks.programs.running import ResultRunner, content_of, load_tensor
from tasks.trials import link_program, next_state, result_digest

__all__ = ["LinkRunner"]

_CONTEXT: Final = Context(0, bytes(32))


class LinkRunner:
    """Runs links of one trial: they share the matrices that follow from its seed."""

    def __init__(self, seed: bytes, width: int, arrays: Arrays) -> None:
        self._program = link_program(width)
        self._width, self._arrays = width, arrays
        self._runner = ResultRunner(self._program, arrays)
        self._matrices = [
            self._tensor(at, name + seed, width * width) for at, name in enumerate((b"left", b"right"))
        ]

    def _tensor(self, source: int, name: bytes, size: int) -> Array:
        content = hashlib.shake_256(b"dekube trial\x00" + name).digest(size)
        return load_tensor(self._arrays, self._program.types[source], content)

    def result(self, before: bytes) -> bytes:
        """Return the digest of the result of the link that begins with ``before``."""
        (found,) = self._runner.run([*self._matrices, self._tensor(2, b"scales" + before, self._width)], _CONTEXT)
        kind = self._program.types[self._program.results[0]]
        return result_digest(content_of(self._arrays, kind, found))

    def run(self, before: bytes) -> bytes:
        """Return the state after the link that begins with ``before``."""
        return next_state(before, self.result(before))
