"""Running a frozen model on an engine: one pass over sequences, and greedy decoding with a cache.

Both give the same logits to the bit, so what was decoded token by token is checked in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tasks.models.llama import Model
from tasks.programs.arrays import Array, Arrays
from tasks.programs.errors import SourceInvalid
from tasks.programs.llama import LlamaShape, Pass, cache_tensors, llama_forward, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.program import Computation
from tasks.programs.running import ResultRunner
from tasks.programs.tensors import ElementType

__all__ = ["Decoded", "Decoder"]

CAPACITY_STEP: Final = 64
"""A cache has room for a multiple of this many tokens."""
_CONTEXT: Final = Context(0, bytes(32))
_CODES: Final = {ElementType.INT16: "i2", ElementType.BINARY32: "f4"}


class Decoded(NamedTuple):
    """The new tokens of each sequence, and the logits that each was chosen from."""

    tokens: list[list[int]]
    logits: list[list[np.ndarray]]


@lru_cache(maxsize=8)
def _computation(shape: LlamaShape, run: Pass) -> Computation:
    return llama_forward(shape, run)


class Decoder:
    """A model's weights on an engine. ``wide`` holds them as binary64: four times the memory, no conversion."""

    def __init__(self, model: Model, arrays: Arrays, *, wide: bool = True) -> None:
        """Raises SourceInvalid for tensors of another shape."""
        self._shape, self._arrays = model.shape, arrays
        self._weights: list[Array] = []
        for name, kind in weight_tensors(model.shape).items():
            values = model.tensors.get(name)
            if values is None or values.shape != (kind.rows, kind.columns):
                raise SourceInvalid(f"{name} is not {kind.rows} by {kind.columns} values")
            code = _CODES[kind.element]
            content = values.astype(f"<{code}").tobytes()
            loaded = arrays.from_content(content, code, kind.rows, kind.columns)
            self._weights.append(arrays.to_doubles(loaded) if wide else loaded)

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the logits of every token of sequences of any lengths, in one pass. Raises SourceInvalid."""
        length = max(map(len, sequences))
        run = Pass(len(sequences), length)
        logits, _ = self._run(run, [self._padded(sequences, length)])
        split = np.split(self._arrays.store(logits), len(sequences))
        return [part[: len(one)] for part, one in zip(split, sequences, strict=True)]

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        most: int,
        ends: frozenset[int] = frozenset(),
        *,
        kept: bool = False,
    ) -> Decoded:
        """Return up to ``most`` tokens after each prompt, the likeliest each time, and none after one of ``ends``.

        Of equal logits the lowest token is taken. Logits are returned only if ``kept``. Raises SourceInvalid for
        an empty prompt, and for tokens that no model of this shape has.
        """
        batch, length = len(prompts), max(map(len, prompts), default=0)
        if not batch or not min(map(len, prompts)) or most < 1:
            raise SourceInvalid("an empty prompt, or no tokens to decode")
        if length + most > self._shape.context:
            raise SourceInvalid(f"{length} and {most} tokens; the context has {self._shape.context}")
        capacity = min(-(-(length + most) // CAPACITY_STEP) * CAPACITY_STEP, self._shape.context)
        kinds = cache_tensors(self._shape, batch, capacity).values()
        cache = [self._arrays.load(np.zeros((kind.rows, kind.columns))) for kind in kinds]
        picked = self._column([at * length + len(one) - 1 for at, one in enumerate(prompts)])
        logits, choice, *cache = self._run(
            Pass(batch, length, capacity, picked=True),
            [self._padded(prompts, length), picked, self._column([0] * batch), *cache],
        )
        found = Decoded([[] for _ in prompts], [[] for _ in prompts])
        ended = [False] * batch
        while True:
            chosen = [int(token) for token in self._arrays.store(choice)[:, 0]]
            rows = self._arrays.store(logits) if kept else None
            for at, token in enumerate(chosen):
                if not ended[at]:
                    found.tokens[at].append(token)
                    if rows is not None:
                        found.logits[at].append(rows[at])
                    ended[at] = token in ends or len(found.tokens[at]) == most
            if all(ended):
                return found
            # Sequences that have ended go on at their last place, and nobody reads what they give.
            first = [len(one) + len(new) - 1 for one, new in zip(prompts, found.tokens, strict=True)]
            logits, choice, *cache = self._run(
                Pass(batch, 1, capacity), [self._column(chosen), self._column(first), *cache]
            )

    def _run(self, run: Pass, sources: Sequence[Array]) -> tuple[Array, ...]:
        runner = ResultRunner(_computation(self._shape, run), self._arrays)
        return runner.run([*self._weights, *sources], _CONTEXT)

    def _padded(self, sequences: Sequence[Sequence[int]], length: int) -> Array:
        """Return all tokens as a column; shorter sequences end with token 0, which nothing before it sees."""
        for one in sequences:
            if not all(0 <= token < self._shape.vocabulary for token in one):
                raise SourceInvalid(f"a token outside of 0 to {self._shape.vocabulary - 1}")
        return self._column([token for one in sequences for token in [*one, *[0] * (length - len(one))]])

    def _column(self, values: Sequence[int]) -> Array:
        return self._arrays.load(np.array(values, dtype=np.float64).reshape(-1, 1))
