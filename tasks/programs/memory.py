"""The memory of a step, from its program alone: what arrays are held from call to call (market.md R153).

A result is born by its call and ends with the last call that reads it. Some results read the memory of an input.
While an operator runs it may need more than its result. All sizes are those of an engine that holds numbers as
binary64, and frozen weights in their stored form. Nothing here runs a program, and there is no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tasks.programs.operators import Attributes
from tasks.programs.operators.elementwise import PIECE
from tasks.programs.operators.rows import SUM_TERMS, WIDTHS, terms_at_once
from tasks.programs.program import Call, Computation, Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "WIDE_BYTES_MAX",
    "StepMemory",
    "computation_memory",
    "is_wide",
    "scratch_bytes",
    "step_memory",
    "width_of",
]

WIDE_BYTES_MAX: Final = 1 << 31
"""A frozen model that decodes is held as binary64 if that takes no more: otherwise each use expands it."""
WIDE: Final = 8
"""Bytes of a number that an engine computes with."""
ARRAY_BYTES: Final = 512
"""Of each array beside its values: its own object, and a column of an operator."""
HEAP_BYTES: Final = 1 << 25
"""Arrays from here on are given back to the system when they end."""
PIECE_BYTES: Final = 12 * WIDE * PIECE
"""What exponentials take beside their results: they are computed piece by piece."""
_FROZEN: Final = (SourceKind.MODEL,)
_STORED: Final[Mapping[ElementType, int]] = MappingProxyType({ElementType.INT16: 2, ElementType.UINT8: 1})
"""Bytes of a number that engines hold as it is stored."""


class StepMemory(NamedTuple):
    """Bytes of arrays: ``sources`` before a step, ``step`` beside them at its most.

    ``small`` of these are in arrays below HEAP_BYTES, which an allocator keeps after they end.
    """

    sources: int
    step: int
    small: int


class _Array(NamedTuple):
    """An array: its type, the bytes of a number, and the tensor whose memory it reads."""

    kind: TensorType
    width: int
    owner: int

    @property
    def size(self) -> int:
        """Bytes of its own."""
        return self.kind.values * self.width


def is_wide(program: Program) -> bool:
    """Tell whether a job that decodes holds its frozen model as binary64."""
    frozen = sum(source.type.values for source in program.sources if source.kind in _FROZEN)
    return WIDE * frozen <= WIDE_BYTES_MAX


def width_of(source: Source, *, wide: bool) -> int:
    """Return the bytes of a number of a source."""
    return WIDE if wide and source.kind in _FROZEN else _STORED.get(source.type.element, WIDE)


def _is_view(name: str, arrays: Sequence[_Array], attributes: Attributes) -> bool:
    """Tell whether a result reads the memory of the first input."""
    if name in ("load", "load_integers", "store_integers", "transpose"):
        return True
    if name in ("split_heads", "join_heads"):
        batch, heads = attributes
        length = arrays[0].kind.rows // (batch if name == "split_heads" else batch * heads)
        return heads == 1 or length == 1
    if name == "transpose_groups":
        return 1 in (arrays[0].kind.columns, arrays[0].kind.rows // attributes[0])
    return False


_Rule = Callable[[int, int], int]
"""Bytes beside the result, given those of the result and of the first input, both as binary64."""
_RULES: Final[Mapping[str, _Rule]] = MappingProxyType({
    "quantise": lambda result, _: result,
    "rotate": lambda result, _: result,
    "square_root": lambda result, _: result + result // 8,
    "store": lambda result, _: result + result // 8,
    "gather_groups": lambda result, _: result + result // 4,
    "select": lambda result, _: result // 8,
    "causal": lambda result, _: result // 8,
    "since": lambda result, _: result // 8,
    "one_hot": lambda result, _: result // 8,
    "rotary": lambda result, _: 9 * result,
    "positions": lambda result, _: 3 * result,
    "log": lambda result, _: 7 * result,
    "scale_bytes": lambda result, _: result,
    "scale_rows": lambda result, _: result,
    "temper": lambda result, _: 3 * result,
    "row_exponent": lambda result, first: first + 2 * result,
    "row_maximum": lambda result, _: result,
    "sum_from": lambda _, first: first + first // 4,
    "count_from": lambda _, first: first + first // 4,
    "sum_up_to": lambda result, first: first + first // 4 + result,
    "first_above": lambda _, first: first + first // 4,
    "find": lambda _, first: first + first // 4,
    "exp": lambda result, _: min(PIECE_BYTES, 8 * result),
    "erf": lambda result, _: min(2 * PIECE_BYTES, 12 * result),
})  # fmt: skip
"""Operators that need more than their result. Those of a few numbers are in ARRAY_BYTES."""
_NUMBERED: Final = frozenset({"gather", "gather_groups", "scale_columns"})
"""Operators that make integers of their second input, a column: it may be as large as their result."""
_NO_SCRATCH: Final = frozenset({
    "add", "bound", "divide", "multiply", "subtract", "gather", "scale_columns", "place_rows", "split_heads",
    "join_heads", "transpose_groups", "load", "load_integers", "store_integers", "transpose",
})  # fmt: skip
"""Operators that need nothing beside their result."""
_KEPT_WIDTH: Final = frozenset({
    "load_integers", "transpose", "transpose_groups", "gather", "split_heads", "join_heads",
})  # fmt: skip
"""Operators whose results have the numbers of the first input as they are held."""
_COLUMNS: Final = 4
"""Columns of numbers that any other operator may need: those that draw tokens, say."""


def scratch_bytes(call: Call, kinds: Sequence[TensorType], output: TensorType, widths: Sequence[int]) -> int:
    """Return the bytes that an operator needs while it runs, beside its result and its inputs."""
    name, _, attributes = call
    result, first = WIDE * output.values, WIDE * kinds[0].values if kinds else 0
    if name in ("contract", "contract_groups"):
        return _product_bytes(name, kinds, output, widths, attributes)
    if name == "row_sum":
        is_whole = kinds[0].columns <= SUM_TERMS  # else the block before is held until this one is made
        return (2 * first if is_whole else 3 * WIDE * kinds[0].rows * SUM_TERMS) + 4 * result
    column, rule = WIDE * kinds[1].rows if name in _NUMBERED else 0, _RULES.get(name)
    if rule is not None:
        return rule(result, first) + column
    return column if name in _NO_SCRATCH else _COLUMNS * result


def _product_bytes(
    name: str, kinds: Sequence[TensorType], output: TensorType, widths: Sequence[int], attributes: Attributes
) -> int:
    bits = attributes if name == "contract" else (attributes[0], *attributes[2:])
    terms, block = kinds[0].columns, terms_at_once((WIDTHS[bits[0]], WIDTHS[bits[-1]]))
    share = min(terms, block)
    expanded = sum(
        WIDE * kind.rows * share for kind, width in zip(kinds[:2], widths, strict=False) if width != WIDE
    )
    columns = 3 * WIDE * (kinds[0].rows + kinds[1].rows)
    # Beside the sums of integers so far: those with this block, and the block itself in both forms.
    blocks = 3 * WIDE * output.values if terms > block else 0
    return max(expanded + (2 * WIDE * output.values if blocks else 0), blocks) + columns


class _Held:
    """Arrays that are held, and the most bytes that they had."""

    def __init__(self, sources: Sequence[_Array]) -> None:
        self.arrays = list(sources)
        self._readers: dict[int, int] = {}
        self._pinned = len(sources)
        self.held = self.most = self._large = self.small = 0

    def add(self, array: _Array, scratch: int) -> None:
        """Hold a result that has been computed."""
        number = len(self.arrays)
        own = array.size if array.owner == number else 0
        if self.held + own + scratch > self.most:
            self.most = self.held + own + scratch
            large = sum(size for size in (own, scratch) if size >= HEAP_BYTES)
            self.small = self.most - self._large - large
        self.held += own + ARRAY_BYTES
        self._large += own if own >= HEAP_BYTES else 0
        self.arrays.append(array)
        self._readers[array.owner] = self._readers.get(array.owner, 0) + 1

    def end(self, number: int) -> None:
        """Let go of a tensor; its memory ends with the last that reads it."""
        owner = self.arrays[number].owner
        self.held -= ARRAY_BYTES
        if owner < self._pinned:
            return
        self._readers[owner] -= 1
        if not self._readers[owner]:
            size = self.arrays[owner].size
            self.held -= size
            self._large -= size if size >= HEAP_BYTES else 0


def _memory(
    sources: Sequence[_Array], calls: Sequence[Call], types: Sequence[TensorType], kept: set[int]
) -> StepMemory:
    first, last = len(sources), dict[int, int]()
    for number, (_, inputs, _) in enumerate(calls, first):
        last |= dict.fromkeys((*inputs, number), number)
    ends: dict[int, list[int]] = {}
    for number, at in last.items():
        if number not in kept and number >= first:
            ends.setdefault(at, []).append(number)
    held = _Held(sources)
    for number, call in enumerate(calls, first):
        arrays, output = [held.arrays[at] for at in call.inputs], types[number]
        width = arrays[0].width if call.operator in _KEPT_WIDTH and arrays else WIDE
        owner = arrays[0].owner if _is_view(call.operator, arrays, call.attributes) else number
        kinds, widths = [array.kind for array in arrays], [array.width for array in arrays]
        held.add(_Array(output, width, owner), scratch_bytes(call, kinds, output, widths))
        for ended in ends.get(number, ()):
            held.end(ended)
    return StepMemory(sum(source.size for source in sources), held.most, held.small)


def step_memory(program: Program, *, wide: bool = False) -> StepMemory:
    """Return the memory of a step; ``wide``: the frozen model is held as binary64."""
    sources = [
        _Array(source.type, width_of(source, wide=wide), number) for number, source in enumerate(program.sources)
    ]
    kept = {*program.stores.values(), program.probe, program.loss}
    return _memory(sources, tuple(program.calls), program.types, kept)


def computation_memory(computation: Computation, *, wide: bool) -> StepMemory:
    """Return the memory of a computation; ``wide``: its sources of 16 bits are held as binary64."""
    sources = [
        _Array(source.type, WIDE if wide else _STORED.get(source.type.element, WIDE), number)
        for number, source in enumerate(computation.sources)
    ]
    return _memory(sources, computation.calls, computation.types, set(computation.results))
