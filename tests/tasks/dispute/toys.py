"""Small operators and random programs, computed by their reference functions alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace, start_record
from tasks.programs.bounds import Bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Operator, Read
from tasks.programs.program import Call, Program, Source, SourceKind
from tasks.programs.tensors import ElementType, Number, TensorType, leaves_of, pack_values, unpack_leaf

F8, F4, I8 = ElementType.BINARY64, ElementType.BINARY32, ElementType.INT64


class WithoutKernel:
    """What runs by its reference function alone."""

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        raise NotImplementedError

    def run(self, arrays: Any, inputs: Sequence[Any], attributes: Attributes, context: Context) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Elementwise(WithoutKernel):
    """An operator on matrices of one shape."""

    name: str
    arity: int
    result: ElementType
    function: Callable[..., Number]

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        if len(inputs) != self.arity or len({kind[1:] for kind in inputs}) != 1:
            raise ProgramInvalid("shapes differ")
        return TensorType(self.result, *inputs[0][1:])

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        return output.values

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        return self.function(*(read(at, row, column) for at in range(self.arity)))


@dataclass(frozen=True)
class Fold(WithoutKernel):
    """A contraction of two integer matrices along their rows, or the maximum of each row of one."""

    name: str
    arity: int

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        if len(inputs) != self.arity or len({kind.columns for kind in inputs}) != 1:
            raise ProgramInvalid("columns differ")
        if not all(kind.element == I8 for kind in inputs):
            raise ProgramInvalid("integers expected")
        return TensorType(F8, inputs[0].rows, inputs[1].rows if self.arity == 2 else 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        return output.values * inputs[0].columns

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        first = int(read(0, row, index))
        return first * int(read(1, column, index)) if self.arity == 2 else first

    def combine(self, left: int, right: int) -> int:
        return left + right if self.arity == 2 else max(left, right)

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        return float(total) * 0.5 + float(read(0, row, 0))

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        total = self.term(read, inputs, attributes, row, column, 0)
        for index in range(1, self.length(inputs, attributes)):
            total = self.combine(total, self.term(read, inputs, attributes, row, column, index))
        return self.finish(read, inputs, attributes, row, column, total)


@dataclass(frozen=True)
class Transpose(WithoutKernel):
    """The transposed matrix."""

    name: str = "transpose"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        (kind,) = inputs
        return TensorType(kind.element, kind.columns, kind.rows)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        return output.values

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        return read(0, column, row)


@dataclass(frozen=True)
class Corner(WithoutKernel):
    """The first value, as a matrix of one value."""

    name: str = "corner"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        return TensorType(F8, 1, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        return 1

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        return float(read(0, 0, 0)) + context.step


def _single(value: Number) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", max(-1e30, min(1e30, value))))
    return float(rounded)


def _integer(value: Number) -> int:
    return max(-(1 << 20), min(1 << 20, round(value * 8)))


OPERATORS: Final[Mapping[str, Operator]] = {
    operator.name: operator
    for operator in (
        Elementwise("load", 1, F8, float),
        Elementwise("round", 1, F8, _single),
        Elementwise("store", 1, F4, _single),
        Elementwise("integers", 1, I8, _integer),
        Elementwise("add", 2, F8, lambda a, b: _single(a + b)),
        Elementwise("multiply", 2, F8, lambda a, b: _single(a * b * 0.25)),
        Fold("contract", 2),
        Fold("largest", 1),
        Transpose(),
        Corner(),
    )
}


def random_program(random: Random) -> Program:
    """Return a program of 8 to 30 calls over a state of two tensors and one of data."""
    columns = random.choice([1, 16, 17, 40, 300])
    rows = random.randint(1, 3)
    sources = (
        Source(SourceKind.DATA, "x", TensorType(F8, random.randint(1, 3), columns)),
        Source(SourceKind.STATE, "a", TensorType(F4, rows, columns)),
        Source(SourceKind.STATE, "b", TensorType(F4, random.randint(1, 2), random.randint(1, 20))),
    )
    calls: list[Call] = []
    types = [source.type for source in sources]

    def call(name: str, *inputs: int) -> int:
        types.append(OPERATORS[name].shape([types[at] for at in inputs], ()))
        calls.append(Call(name, inputs, ()))
        return len(types) - 1

    a, b = call("load", 1), call("load", 2)
    live = [0, a, b]
    integers = [call("integers", 0), call("integers", a)]
    live.append(call("contract", *integers))
    for _ in range(random.randint(2, 20)):
        at = random.choice(live)
        match random.randrange(6):
            case 0:
                live.append(call("transpose", at))
            case 1:
                integers.append(call("integers", at))
            case 2:
                live.append(call("largest", random.choice(integers)))
            case 3:
                left = random.choice(integers)
                right = random.choice([i for i in integers if types[i].columns == types[left].columns])
                live.append(call("contract", left, right))
            case _:
                other = random.choice([i for i in live if types[i][1:] == types[at][1:]])
                live.append(call(random.choice(["add", "multiply"]), at, other))
    folds = [at for at, made in enumerate(calls, len(sources)) if made.operator in ("contract", "largest")]
    loss = call("corner", random.choice(folds))
    mix = call("add", b, call("multiply", b, b))
    return Program(
        sources=sources,
        calls=(*calls, *_endings(call, calls, a, mix, random.choice(folds[-3:]))),
        stores={"a": len(types) - 3, "b": len(types) - 2},
        probe=len(types) - 1,
        loss=loss,
        operators=OPERATORS,
    )


def _endings(call: Callable[..., int], calls: list[Call], a: int, mix: int, probed: int) -> list[Call]:
    grown = call("add", a, a)
    for tensor in (grown, mix, probed):
        call("store", tensor)
    ends = calls[-4:]
    del calls[-4:]
    return ends


def influential(program: Program) -> list[int]:
    """Return the results from which some commitment of a step follows."""
    found = {program.probe, program.loss, *program.stores.values()}
    for number in range(len(program.types) - 1, len(program.sources) - 1, -1):
        call = program.call_of(number)
        if number in found and call is not None:
            found |= set(call.inputs)
    return sorted(number for number in found if number >= len(program.sources))


Change = Callable[[int, bytes], bytes]
"""What a liar makes of a tensor, by its number."""


def compute(
    program: Program, step: int, sources: Sequence[bytes], change: Change | None = None, store: int | None = None
) -> StepTrace:
    """Return the trace of a step, each tensor from those before it; ``change`` falsifies tensors on the way.

    From ``store`` on, with which the step is claimed to diverge, there is nothing.
    """
    contents = list(sources)
    unpacked: dict[int, list[Number]] = {}

    def values_of(tensor: int) -> list[Number]:
        """Return all values of a tensor, row by row. They are unpacked once."""
        if tensor not in unpacked:
            kind = program.types[tensor]
            leaves = enumerate(leaves_of(kind, contents[tensor]))
            unpacked[tensor] = [value for leaf, content in leaves for value in unpack_leaf(kind, leaf, content)]
        return unpacked[tensor]

    def read_from(inputs: tuple[int, ...]) -> Read:
        tensors = [(values_of(at), *program.types[at][1:]) for at in inputs]

        def read(source: int, row: int, column: int) -> Number:
            values, rows, columns = tensors[source]
            if not (0 <= row < rows and 0 <= column < columns):
                raise IndexError((row, column))
            return values[row * columns + column]

        return read

    for number, call in enumerate(program.calls, len(program.sources)):
        kind, operator = program.types[number], program.operators[call.operator]
        if store is not None and number >= store:
            contents.append(bytes(kind.size_bytes))
            continue
        inputs = [program.types[at] for at in call.inputs]
        read, context = read_from(call.inputs), Context(step, b"")
        values = [
            operator.element(read, inputs, call.attributes, context, row, column)
            for row in range(kind.rows)
            for column in range(kind.columns)
        ]
        content = pack_values(kind.element, values)
        contents.append(content if change is None else change(number, content))
    return StepTrace(program, step, contents, store)


def random_sources(program: Program, random: Random) -> list[bytes]:
    """Return values for the sources of a program."""
    return [
        pack_values(source.type.element, [_single(random.uniform(-4, 4)) for _ in range(source.type.values)])
        for source in program.sources
    ]


class Segment:
    """A segment as one side ran it: all its traces. ``changes`` falsify steps, by their place in the segment."""

    def __init__(
        self, program: Program, step_from: int, steps: int, sources: Sequence[bytes],
        changes: Mapping[int, Change] | None = None,
    ) -> None:  # fmt: skip
        self.program, self.step_from, self.steps = program, step_from, steps
        self.traces: list[StepTrace] = []
        records: list[StepRecord] = []
        current = list(sources)
        for place in range(steps):
            change = None if changes is None else changes.get(place)
            trace = compute(program, step_from + place, current, change)
            self.traces.append(trace)
            if not place:
                records.append(start_record(trace.before_tree.root))
            records.append(trace.record(records[-1]))
            for number, source in enumerate(program.sources):
                if source.kind == SourceKind.STATE:
                    current[number] = trace.contents[program.stores[source.key]]
        self.records = tuple(records)
        """Where it stands after so many steps."""

    def witness(self, records: Sequence[StepRecord] | None = None) -> SegmentWitness:
        """Return what this side can show, or one that claims other records."""
        return SegmentWitness((records or self.records).__getitem__, self.traces.__getitem__)

    def question(self, end: StepRecord | None = None) -> Question:
        """Return the dispute about this side's segment, or about one that claims another end."""
        return Question(
            program=self.program,
            seed=b"",
            data=self.traces[0].data_tree.root,
            step_from=self.step_from,
            steps=self.steps,
            start=self.records[0],
            end=end or self.records[-1],
        )
