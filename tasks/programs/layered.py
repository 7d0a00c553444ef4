"""The program of a step by need: any call of a deep model follows from the program of four layers.

A validator that judges a move about one call must not build 18,000 others. All layers between the second and the
last but one have the same calls, on tensors that stand in the same places of their own layer or of a neighbour's.
So a program of LAYERS layers, the pattern, gives every call, type, place and sum of a program with more.

Tensors that stand one after another for one layer after another are a run: sources, or calls that do one part of
a step. A run has chunks, one for each layer. Chunks at both ends may differ from those in the middle, because a
tensor that layers share, such as a constant, is made where it is first needed. A chunk in the middle reads of its
own layer, of the layer of the chunk before it, or what all layers share. That stands at the ends of runs.

A test compares all of this with whole programs of random shapes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, repeat
from typing import Final, NamedTuple

from tasks.programs.errors import ProgramInvalid
from tasks.programs.lazy import LazyMapping, LazySequence
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.program import (
    CALLS_MAX,
    Call,
    Place,
    PlaceKind,
    Program,
    Source,
    SourceKind,
    call_units,
    sizes_of,
)
from tasks.programs.tensors import TensorType

__all__ = ["LAYERS", "LayeredProgram", "Pattern", "layered_program"]

LAYERS: Final = 4
"""Layers of a pattern: the first two chunks of a run, a middle one, and the last."""
_SORTED: Final = (SourceKind.STATE, SourceKind.ADAPTER)
"""Sources that stand in the order of their names, with all of their layers."""
_MIDDLE: Final = 2
"""The chunk of a pattern's run that stands for all in the middle."""
_LAYER: Final = re.compile("(?P<head>(.*/)?(layer|cache)/)(?P<layer>[0-9]+)/(?P<tail>.*)")
"""A name of a source that each layer has."""


class _Run(NamedTuple):
    """Tensors of a pattern one after another: one chunk for each layer, or one for all if ``layered`` is false.

    ``starts`` are the numbers of the first tensors of its chunks, and of the tensor after the last. ``backward``
    means that the highest layer comes first, ``sorted`` that layers stand in the order of their names.
    """

    starts: tuple[int, ...]
    layered: bool
    backward: bool = False
    sorted: bool = False

    @property
    def chunk(self) -> int:
        """Tensors of a chunk in the middle."""
        return self.starts[_MIDDLE + 1] - self.starts[_MIDDLE]


class _At(NamedTuple):
    """Where a tensor of a pattern stands: run, layer (-1 if it is of no layer), and place in the chunk."""

    run: int
    layer: int
    offset: int


class Pattern:
    """A program of LAYERS layers, and its runs. It serves every deeper model of the same shape."""

    def __init__(self, made: Marked) -> None:
        program = self.program = made.program
        self.runs = (*_source_runs(program), *_call_runs(made))
        self._starts = tuple(run.starts[0] for run in self.runs)
        self._at: dict[int, _At] = {}
        self.firsts = {one.kind: at for at, one in reversed(tuple(enumerate(program.sources)))}
        """The first source of each kind."""
        self.state_first = self.firsts[SourceKind.STATE]
        self.after = {number: at for at, (_, number) in enumerate(program.stored)}
        """Places of the stores in the state after the step."""
        self.numbers = range(len(program.types) + 1)
        """For each number how many tensors stand before it."""

    def at(self, number: int) -> _At:
        """Return where a tensor stands."""
        found = self._at.get(number)
        if found is None:
            at = bisect_right(self._starts, number) - 1
            run = self.runs[at]
            chunk = bisect_right(run.starts, number) - 1
            layer = ONCE if not run.layered else LAYERS - 1 - chunk if run.backward else chunk
            found = self._at[number] = _At(at, layer, number - run.starts[chunk])
        return found

    @cached_property
    def untraced(self) -> tuple[int, ...]:
        """For each number how many tensors before it do not stand in the trace."""
        first = len(self.program.sources)
        traced = [number not in self.after for number in range(first, len(self.program.types))]
        traced[self.program.probe - first] = False
        return _sums(chain(repeat(1, first), (not one for one in traced)))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """For each number the bytes of all tensors before it."""
        return _sums(sizes_of(self.program.types))

    @cached_property
    def units(self) -> tuple[int, ...]:
        """For each number the work units of all calls before it."""
        program = self.program
        units = call_units(program.types, program.calls, program.operators)
        return _sums(chain(repeat(0, len(program.sources)), units))


def _sums(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(values, initial=0))


def _split(key: str) -> tuple[str, int, str]:
    """Return what stands before the layer of a name, the layer, ONCE if there is none, and what is behind it."""
    found = _LAYER.fullmatch(key)
    return (key, ONCE, "") if found is None else (found["head"], int(found["layer"]), found["tail"])


def _source_runs(program: Program) -> Iterator[_Run]:
    def group_of(numbered: tuple[int, Source]) -> tuple[SourceKind, str]:
        """Names with a layer that begin alike are of one run, and so are those without that stand together."""
        source = numbered[1]
        head, layer, _ = _split(source.key)
        return source.kind, head if layer != ONCE else ""

    for (kind, head), sources in groupby(enumerate(program.sources), group_of):
        numbers = [number for number, _ in sources]
        first, end = numbers[0], numbers[-1] + 1
        if not head:
            yield _Run((first, end), layered=False)
            continue
        each, rest = divmod(end - first, LAYERS)
        assert not rest, "each layer has the same tensors"
        yield _Run((*range(first, end, each), end), True, sorted=kind in _SORTED)


def _call_runs(made: Marked) -> Iterator[_Run]:
    first, at = len(made.program.sources), 0
    marks = [*made.marks, Mark(made.marks[0].part, ONCE, len(made.program.calls))]
    while at < len(marks) - 1:
        layer = marks[at].layer
        count, backward = 1 if layer == ONCE else LAYERS, layer == LAYERS - 1
        starts = tuple(first + mark.call for mark in marks[at : at + count + 1])
        if layer != ONCE:
            expected = list(range(LAYERS))
            assert [mark.layer for mark in marks[at : at + count]] == (expected[::-1] if backward else expected)
            assert 0 < starts[2] - starts[1] == starts[3] - starts[2], "both are as all in the middle"
        yield _Run(starts, layer != ONCE, backward)
        at += count


class _Found(NamedTuple):
    """A tensor of a program: the one of the pattern that it is like, its layer, and the chunk of its run."""

    like: int
    layer: int
    chunk: int


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a program of ``layers`` layers stand, by those of its pattern."""

    pattern: Pattern
    layers: int

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Layers in the order of their names."""
        return tuple(sorted(range(self.layers), key=str))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """For each layer its place in that order."""
        ranks = [0] * self.layers
        for rank, layer in enumerate(self.order):
            ranks[layer] = rank
        return tuple(ranks)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """Number of the first tensor of each run, and of the tensor after the last."""
        return self.of_runs(self.pattern.numbers)

    @cached_property
    def untraced(self) -> tuple[int, ...]:
        """For each run how many tensors before it do not stand in the trace, and how many of all."""
        return self.of_runs(self.pattern.untraced)

    def of_runs(self, sums: Sequence[int]) -> tuple[int, ...]:
        """Return a sum over all tensors before each run, and over all; ``sums`` are those of the pattern."""
        return tuple(accumulate((self._sum(run, self.layers, sums) for run in self.pattern.runs), initial=0))

    def first(self, number: int) -> int:
        """Return the number of the first tensor of a run that begins with ``number`` in the pattern."""
        starts = [run.starts[0] for run in self.pattern.runs]
        return self.bases[starts.index(number)]

    def _sum(self, run: _Run, chunks: int, sums: Sequence[int]) -> int:
        """Return the sum over the first ``chunks`` chunks of a run; all is as many as there are layers."""
        if not run.layered:
            return sums[run.starts[1]] - sums[run.starts[0]] if chunks == self.layers else 0
        first, second, middle, last, end = (sums[at] for at in run.starts)
        if chunks <= _MIDDLE:
            return (0, second - first, middle - first)[chunks]
        if chunks < self.layers:
            return middle - first + (chunks - _MIDDLE) * (last - middle)
        return middle - first + (chunks - _MIDDLE - 1) * (last - middle) + end - last

    def like(self, chunk: int) -> int:
        """Return the chunk of the pattern that a chunk is like."""
        if chunk < _MIDDLE:
            return chunk
        return LAYERS - 1 if chunk == self.layers - 1 else _MIDDLE

    def find(self, number: int) -> _Found:
        """Return what a tensor is like. Raises IndexError."""
        if not 0 <= number < self.bases[-1]:
            raise IndexError(number)
        at = bisect_right(self.bases, number) - 1
        run, rest = self.pattern.runs[at], number - self.bases[at]
        starts = run.starts
        if not run.layered:
            return _Found(starts[0] + rest, ONCE, 0)
        early = starts[_MIDDLE] - starts[0]
        if rest < early:
            like, chunk = starts[0] + rest, int(rest >= starts[1] - starts[0])
        else:
            last = self.layers - 1
            chunk = min((rest - early) // run.chunk + _MIDDLE, last)
            like = starts[self.like(chunk)] + rest - early - (chunk - _MIDDLE) * run.chunk
        if run.backward:
            return _Found(like, self.layers - 1 - chunk, chunk)
        return _Found(like, self.order[chunk] if run.sorted else chunk, chunk)

    def number(self, at: _At, layer: int) -> int:
        """Return the number of the tensor in a place of the pattern, but of ``layer``."""
        run = self.pattern.runs[at.run]
        if not run.layered:
            return self.bases[at.run] + at.offset
        chunk = self.layers - 1 - layer if run.backward else self.ranks[layer] if run.sorted else layer
        return self.bases[at.run] + self._sum(run, chunk, self.pattern.numbers) + at.offset

    def end(self, number: int) -> int:
        """Return the number of a tensor of the pattern, with the last layers for the last ones."""
        at = self.pattern.at(number)
        return self.number(at, at.layer if at.layer < _MIDDLE else self.layers - LAYERS + at.layer)

    def _read(self, reader: _Found, number: int) -> int:
        """Return the number of what a tensor reads, given what the one that it is like reads."""
        at = self.pattern.at(number)
        own = self.pattern.at(reader.like).layer
        if own != ONCE and self.like(reader.chunk) == _MIDDLE and 0 < at.layer < LAYERS - 1:
            return self.number(at, reader.layer + at.layer - own)  # of its layer, or of a neighbour
        return self.end(number)

    # What stands there

    @property
    def sources(self) -> int:
        """Number of sources."""
        return self.first(len(self.pattern.program.sources))

    def source(self, number: int) -> Source:
        """Return a source."""
        found = self.find(number)
        like = self.pattern.program.sources[found.like]
        head, _, tail = _split(like.key)
        return like if found.layer == ONCE else like._replace(key=f"{head}{found.layer}/{tail}")

    def call(self, tensor: int) -> Call:
        """Return the call that gives a tensor."""
        program, found = self.pattern.program, self.find(tensor)
        operator, inputs, attributes = program.calls[found.like - len(program.sources)]
        return Call(operator, tuple([self._read(found, number) for number in inputs]), attributes)

    def type(self, number: int) -> TensorType:
        """Return the type of a tensor."""
        return self.pattern.program.types[self.find(number).like]

    def stored(self, position: int) -> tuple[str, int]:
        """Return name and number of a store, in the order of names."""
        pattern = self.pattern
        found = self.find(self.first(pattern.state_first) + position)
        like = found.like - pattern.state_first
        if found.layer != ONCE:
            # Name and what is stored under it stand alike, but the layers of the two runs have another order.
            at = pattern.at(found.like)
            like += (self.like(found.layer) - at.layer) * pattern.runs[at.run].chunk
        key = self.source(self.first(pattern.state_first) + position).key
        return key, self.number(pattern.at(pattern.program.stored[like][1]), found.layer)

    def traced_before(self, number: int) -> int:
        """Return how many tensors before one stand in the trace."""
        found, untraced = self.find(number), self.pattern.untraced
        at = self.pattern.at(found.like)
        run = self.pattern.runs[at.run]
        passed = self._sum(run, found.chunk, untraced) + untraced[found.like] - untraced[found.like - at.offset]
        return number - self.untraced[at.run] - passed

    def traced(self, position: int) -> int:
        """Return the number of a tensor in the trace."""
        return bisect_right(range(self.bases[-1]), position, key=self.traced_before) - 1

    def place(self, number: int) -> Place:
        """Return where the root of a tensor stands."""
        pattern, found = self.pattern, self.find(number)
        program, like = pattern.program, found.like
        if like in pattern.after:
            source = self.number(pattern.at(pattern.state_first + pattern.after[like]), found.layer)
            return Place(PlaceKind.AFTER, source - self.first(pattern.state_first))
        if like == program.probe:
            return Place(PlaceKind.PROBE, 0)
        if like >= len(program.sources):
            return Place(PlaceKind.TRACE, self.traced_before(number))
        kind, position = program.given[like]
        if (own := program.sources[like].kind) in _SORTED:
            return Place(kind, number - self.first(pattern.firsts[own]))
        if found.layer != ONCE:
            at = pattern.at(like)
            position += (self.ranks[found.layer] - at.layer) * pattern.runs[at.run].chunk
        elif kind == PlaceKind.MODEL and program.sources[like].key > "layer/":
            position += self.count(SourceKind.MODEL) - program.count(SourceKind.MODEL)
        return Place(kind, position)

    def count(self, kind: SourceKind) -> int:
        """Return how many sources of a kind there are."""
        program = self.pattern.program
        runs = zip(self.pattern.runs, self.bases, self.bases[1:], strict=False)
        return sum(
            end - base
            for run, base, end in runs
            if run.starts[0] < len(program.sources) and program.sources[run.starts[0]].kind == kind
        )


def layered_program(pattern: Pattern, layers: int) -> LayeredProgram:
    """Return the program of a step of a model with more than LAYERS layers. Raises ProgramInvalid."""
    if layers <= LAYERS:
        raise ValueError(f"{layers} layers: the program is small, build it whole")
    layout, like = Layout(pattern, layers), pattern.program
    first, count = layout.sources, layout.bases[-1]
    stored = LazySequence(layout.count(SourceKind.STATE), layout.stored)
    return LayeredProgram(
        sources=LazySequence(first, layout.source),
        calls=LazySequence(count - first, lambda at: layout.call(first + at)),
        stores=LazyMapping(lambda: dict(stored)),
        probe=layout.end(like.probe),
        loss=layout.end(like.loss),
        operators=like.operators,
        layout=layout,
        adapter_step=like.adapter_step,
    )


@dataclass(frozen=True)
class LayeredProgram(Program):
    """A program by need. Its structure is that of its pattern, which was checked. Raises ProgramInvalid."""

    layout: Layout

    def __post_init__(self) -> None:
        if len(self.calls) > CALLS_MAX:
            raise ProgramInvalid(f"{len(self.calls)} calls, 1 to {CALLS_MAX} are allowed")

    @cached_property
    def types(self) -> Sequence[TensorType]:
        """See Program."""
        return LazySequence(self.layout.bases[-1], self.layout.type)

    @cached_property
    def units(self) -> int:
        """See Program."""
        return self.layout.of_runs(self.layout.pattern.units)[-1]

    @cached_property
    def size_bytes(self) -> int:
        """See Program."""
        return self.layout.of_runs(self.layout.pattern.sizes)[-1]

    @cached_property
    def places(self) -> Sequence[Place]:
        """See Program."""
        return LazySequence(self.layout.bases[-1], self.layout.place)

    @cached_property
    def stored(self) -> Sequence[tuple[str, int]]:
        """See Program."""
        return LazySequence(self.count(SourceKind.STATE), self.layout.stored)

    @cached_property
    def traced(self) -> Sequence[int]:
        """See Program."""
        return LazySequence(self.layout.bases[-1] - self.layout.untraced[-1], self.layout.traced)

    def count(self, kind: SourceKind) -> int:
        """See Program."""
        return self.layout.count(kind)
