"""Running a program on an engine: steps at full speed, and the contents of all tensors of a disputed step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from state.primitives.merkle import merkle_root
from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Integers
from tasks.programs.checks import integer_ranges, source_limit
from tasks.programs.errors import SourceInvalid, StoreDiverged
from tasks.programs.operators import Attributes, Context, Operator
from tasks.programs.operators.storage import (
    STORED_EXPONENT_MAX,
    STORED_EXPONENT_MIN,
    diverged_content,
    first_diverged,
)
from tasks.programs.program import Call, Computation, Program, SourceKind
from tasks.programs.tensors import ElementType, TensorType, tensor_root

__all__ = ["DivergedStep", "ResultRunner", "Runner", "StepResult", "content_of", "load_tensor"]

_CODES: Final = {
    ElementType.BINARY64: "f8", ElementType.BINARY32: "f4", ElementType.INT64: "i8", ElementType.UINT8: "u1",
    ElementType.INT16: "i2", ElementType.INT32: "i4",
}  # fmt: skip

CHECKED_VALUES: Final = 1 << 18
"""Values of a source that are checked at once."""
_NOTHING: Final[Mapping[str, Array]] = MappingProxyType({})


class StepResult(NamedTuple):
    """What one step gives, as arrays of the engine: the state after it by name, the probe and the loss."""

    stores: dict[str, Array]
    probe: Array
    loss: Array


class DivergedStep(NamedTuple):
    """The first store of a step that diverged, its first value that is none, the root over results before it."""

    store: int
    row: int
    column: int
    results_root: bytes


class _Job(NamedTuple):
    """One call, ready to run; ``last`` are tensors that no later call reads."""

    operator: Operator
    inputs: tuple[int, ...]
    attributes: Attributes
    last: tuple[int, ...]


def load_tensor(
    arrays: Arrays,
    kind: TensorType,
    content: bytes,
    limit: int = STORED_EXPONENT_MAX,
    allowed: Integers | None = None,
) -> Array:
    """Return a tensor's content on the engine.

    Raises SourceInvalid for another length, for binary32 values that no store with ``limit`` gives, and for
    integers outside of ``allowed``.
    """
    if len(content) != kind.size_bytes:
        raise SourceInvalid(f"{len(content)} bytes, not the {kind.size_bytes} of {kind.rows} by {kind.columns}")
    code = _CODES[kind.element]
    values = arrays.from_content(content, code, kind.rows, kind.columns)
    step = max(1, CHECKED_VALUES // kind.columns)
    for start in range(0, kind.rows, step):  # what is compared is larger than the values
        part, size = values[start : start + step], kind.size_bytes // kind.rows
        if kind.element == ElementType.BINARY32:
            canonical = arrays.content(arrays.round_to_single(part, 2.0**STORED_EXPONENT_MIN), code)
            if (
                not arrays.all_below(part, 2.0**limit)
                or canonical != content[start * size : start * size + len(canonical)]
            ):
                raise SourceInvalid("a value that is not finite, too large, below 2^-100, or minus zero")
        if allowed is not None:
            middle = (allowed.low + allowed.high) / 2.0
            if not arrays.all_below(arrays.to_doubles(part) - middle, allowed.high - middle + 0.25):
                raise SourceInvalid(f"an integer outside of {allowed.low} to {allowed.high}")
    return values


def content_of(arrays: Arrays, kind: TensorType, values: Array) -> bytes:
    """Return the content of a tensor of type ``kind``: its values row by row, little-endian."""
    return arrays.content(values, _CODES[kind.element])


def _jobs(
    first: int, calls: Sequence[Call], operators: Mapping[str, Operator], kept: Set[int]
) -> tuple[_Job, ...]:
    """Return ``calls``, whose results have numbers from ``first`` on, ready to run."""
    last: dict[int, int] = {}
    for at, call in enumerate(calls):
        last |= dict.fromkeys((*call.inputs, at + first), at)
    ends: dict[int, list[int]] = {}
    for number, at in last.items():
        if number not in kept:
            ends.setdefault(at, []).append(number)
    return tuple(
        _Job(operators[call.operator], call.inputs, call.attributes, tuple(ends.get(at, ())))
        for at, call in enumerate(calls)
    )


class ResultRunner:
    """Runs a computation on one engine."""

    def __init__(self, computation: Computation, arrays: Arrays) -> None:
        self._arrays, self._results = arrays, computation.results
        count = len(computation.sources)
        self._jobs = _jobs(count, computation.calls, computation.operators, {*range(count), *computation.results})

    def run(self, sources: Sequence[Array], context: Context) -> tuple[Array, ...]:
        """Return the results; memory of a tensor ends after the last call that reads it.

        Raises StoreDiverged.
        """
        tensors: list[Array] = [*sources, *[None] * len(self._jobs)]
        for number, job in enumerate(self._jobs, len(sources)):
            inputs = [tensors[at] for at in job.inputs]
            tensors[number] = job.operator.run(self._arrays, inputs, job.attributes, context)
            del inputs
            for read in job.last:
                tensors[read] = None
        return tuple(tensors[number] for number in self._results)


class Runner:
    """Runs the steps of one program on one engine."""

    def __init__(self, program: Program, arrays: Arrays) -> None:
        self._program, self._arrays = program, arrays
        kept = {*range(len(program.sources)), *program.stores.values(), program.probe, program.loss}
        self._ranges = integer_ranges(program)
        self._jobs = _jobs(len(program.sources), tuple(program.calls), program.operators, kept)

    def sources(
        self, state: Mapping[str, Array], data: Mapping[str, Array], model: Mapping[str, Array] = _NOTHING
    ) -> list[Array]:
        """Return the arrays that a step starts from, in the order of the sources. A model's adapters are in it."""
        places = {
            SourceKind.STATE: state, SourceKind.DATA: data, SourceKind.MODEL: model, SourceKind.ADAPTER: model,
        }  # fmt: skip
        return [places[source.kind][source.key] for source in self._program.sources]

    def load(self, kind: SourceKind, contents: Mapping[str, bytes]) -> dict[str, Array]:
        """Return the sources of one kind on the engine, given their contents. Raises SourceInvalid."""
        program, found = self._program, dict[str, Array]()
        for number, source in enumerate(program.sources):
            if source.kind == kind:
                if source.key not in contents:
                    raise SourceInvalid(f"there is no {source.key}")
                limit = STORED_EXPONENT_MAX if source.type.element.is_integer else source_limit(program, source)
                content, allowed = contents[source.key], self._ranges.get(number)
                try:
                    found[source.key] = load_tensor(self._arrays, source.type, content, limit, allowed)
                except SourceInvalid as error:
                    raise SourceInvalid(f"{source.key}: {error}") from None
        return found

    def run(self, sources: Sequence[Array], context: Context) -> StepResult:
        """Return what one step gives; memory of a tensor ends after the last call that reads it.

        Raises StoreDiverged.
        """
        tensors = self._tensors(sources)
        for number, job in enumerate(self._jobs, len(sources)):
            tensors[number] = self._one(job, tensors, context, number)
            for read in job.last:
                tensors[read] = None
        program = self._program
        stores = {name: tensors[number] for name, number in program.stores.items()}
        return StepResult(stores, tensors[program.probe], tensors[program.loss])

    def trace(self, sources: Sequence[Array], context: Context, mark: bytes | None = None) -> list[bytes]:
        """Return the content of every tensor of one step, by number, the sources first.

        With ``mark``, 4 bytes, a diverged store has these where no value is right, and what follows from it is
        all zeros. Otherwise raises StoreDiverged.
        """
        return [content for _, content in self.contents(sources, context, mark)]

    def contents(
        self, sources: Sequence[Array], context: Context, mark: bytes | None = None, wanted: Set[int] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield number and content of the tensors of one step, of all or of those ``wanted``. See ``trace``.

        It runs no further than to the last that is wanted, and holds no tensor after the last call that reads it.
        """
        tensors, kinds = self._tensors(sources), self._program.types
        last = len(kinds) - 1 if wanted is None else max(wanted, default=-1)

        def asked(number: int) -> bool:
            return wanted is None or number in wanted

        for number, tensor in enumerate(sources):
            if asked(number):
                yield number, content_of(self._arrays, kinds[number], tensor)
        marked: set[int] = set()
        for number, job in enumerate(self._jobs[: max(last + 1 - len(sources), 0)], len(sources)):
            if not marked.isdisjoint(job.inputs):
                marked.add(number)
                if asked(number):
                    yield number, bytes(kinds[number].size_bytes)
            else:
                try:
                    tensors[number] = self._one(job, tensors, context, number)
                except StoreDiverged:
                    if mark is None:
                        raise
                    marked.add(number)
                    if asked(number):
                        values = content_of(self._arrays, kinds[job.inputs[0]], tensors[job.inputs[0]])
                        yield number, diverged_content(values, job.attributes[0], mark)
                else:
                    if asked(number):
                        yield number, content_of(self._arrays, kinds[number], tensors[number])
            for read in job.last:  # the contents alone may be gigabytes
                tensors[read] = None

    def diverged(self, sources: Sequence[Array], context: Context) -> DivergedStep:
        """Return where a step diverged, which ``run`` has found. Each result is hashed, and held no longer."""
        tensors, kinds = self._tensors(sources), self._program.types
        roots: list[bytes] = []
        for number, job in enumerate(self._jobs, len(sources)):
            try:
                tensors[number] = self._one(job, tensors, context, number)
            except StoreDiverged:
                kind, values = kinds[number], tensors[job.inputs[0]]
                place = first_diverged(content_of(self._arrays, kinds[job.inputs[0]], values), job.attributes[0])
                return DivergedStep(number, *divmod(place, kind.columns), merkle_root(roots))
            roots.append(tensor_root(kinds[number], content_of(self._arrays, kinds[number], tensors[number])))
            for read in job.last:
                tensors[read] = None
        raise AssertionError(f"step {context.step} does not diverge")

    def _tensors(self, sources: Sequence[Array]) -> list[Array]:
        return [*sources, *[None] * len(self._jobs)]

    def _one(self, job: _Job, tensors: list[Array], context: Context, number: int) -> Array:
        try:
            return job.operator.run(self._arrays, [tensors[at] for at in job.inputs], job.attributes, context)
        except StoreDiverged as error:
            raise StoreDiverged(f"step {context.step}, tensor {number}: {error}") from None
