"""A program: operators over named tensors, one list that engines, verifiers, judge and price read.

See market.md 4.6. Tensors have numbers. Sources come first; each call adds one. A program is a pure function of a
job's specification, so it is the same on every machine; its hash stands in what is proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from state.primitives.codec import encode
from state.primitives.hashing import digest
from tasks.programs.alike import propagated
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Operator
from tasks.programs.tensors import TensorType

__all__ = ["CALLS_MAX", "Call", "Computation", "Place", "PlaceKind", "Program", "Source", "SourceKind"]

CALLS_MAX: Final = 1 << 16
_VERSION: Final = 1


class SourceKind(IntEnum):
    """Where a source's root stands."""

    STATE = 1
    """In the state before the step; its key is the tensor's name there."""
    DATA = 2
    """In the task: under the root of its data. Its key names it."""
    MODEL = 3
    """In the task: under the root of the frozen model, which tasks share. Its key names it."""
    ADAPTER = 4
    """In the task: under the root of the state that a task of fine-tuning left. Its key is the name there."""


class Source(NamedTuple):
    """A tensor that a program starts from."""

    kind: SourceKind
    key: str
    type: TensorType


class Call(NamedTuple):
    """One operator applied to earlier tensors; its result is the next tensor."""

    operator: str
    inputs: tuple[int, ...]
    attributes: Attributes


def types_of(
    sources: Sequence[Source], calls: Sequence[Call], operators: Mapping[str, Operator]
) -> tuple[TensorType, ...]:
    """Return the type of each tensor, by number. Raises ProgramInvalid."""

    def shape(at: int, kinds: list[TensorType]) -> TensorType:
        name, _, attributes = calls[at]
        operator = operators.get(name)
        if operator is None:
            raise ProgramInvalid(f"there is no operator {name[:40]}")
        return operator.shape(kinds, attributes).check()

    return tuple(propagated([source.type.check() for source in sources], calls, shape))


def units_of(types: Sequence[TensorType], calls: Sequence[Call], operators: Mapping[str, Operator]) -> int:
    """Return the work units of ``calls``, given the types of all tensors."""
    return sum(call_units(types, calls, operators))


def call_units(
    types: Sequence[TensorType], calls: Sequence[Call], operators: Mapping[str, Operator]
) -> Iterator[int]:
    """Yield the work units of each of ``calls``, given the types of all tensors."""
    known: dict[tuple[object, ...], int] = {}
    for number, (name, inputs, attributes) in enumerate(calls, len(types) - len(calls)):
        kinds = [types[at] for at in inputs]
        key = (name, attributes, *kinds)
        units = known.get(key)
        if units is None:
            units = known[key] = operators[name].units(kinds, types[number], attributes)
        yield units


def sizes_of(types: Iterable[TensorType]) -> Iterator[int]:
    """Yield the bytes of each tensor. There are few types, and properties of many tensors take their time."""
    known: dict[TensorType, int] = {}
    for kind in types:
        size = known.get(kind)
        if size is None:
            size = known[kind] = kind.size_bytes
        yield size


def _call_of(sources: Sequence[Source], calls: Sequence[Call], tensor: int) -> Call | None:
    if not 0 <= tensor < len(sources) + len(calls):
        raise IndexError(tensor)
    return None if tensor < len(sources) else calls[tensor - len(sources)]


@dataclass(frozen=True)
class Computation:
    """Calls for ``results``, outside of any step: no state comes from it.

    Raises ProgramInvalid where shapes do not fit, when types or units are asked for.
    """

    sources: tuple[Source, ...]
    calls: tuple[Call, ...]
    results: tuple[int, ...]
    operators: Mapping[str, Operator]

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        """Type of each tensor, by number. Raises ProgramInvalid."""
        return types_of(self.sources, self.calls, self.operators)

    @cached_property
    def units(self) -> int:
        """Work units of the calls. Raises ProgramInvalid."""
        return units_of(self.types, self.calls, self.operators)

    def call_of(self, tensor: int) -> Call | None:
        """Return the call that made a tensor; None for a source. Raises IndexError."""
        return _call_of(self.sources, self.calls, tensor)


class PlaceKind(IntEnum):
    """Under which commitment of a step a tensor's root stands."""

    BEFORE = 1
    """The state before the step."""
    AFTER = 2
    """The state after the step."""
    PROBE = 3
    """The probe of the step: the commitment is the tensor's root itself."""
    DATA = 4
    """A root that stands in the task."""
    TRACE = 5
    """The trace, a tree over the roots of all other tensors, in the order of their numbers."""
    MODEL = 6
    """The root of the frozen model, which stands in the task."""
    ADAPTER = 7
    """The root of the state with the adapters of that model, which stands in the task."""


_PLACES: Final = {
    SourceKind.STATE: PlaceKind.BEFORE, SourceKind.DATA: PlaceKind.DATA, SourceKind.MODEL: PlaceKind.MODEL,
    SourceKind.ADAPTER: PlaceKind.ADAPTER,
}  # fmt: skip


class Place(NamedTuple):
    """Where a tensor's root stands: under which commitment, and which leaf of its tree (0 for PROBE)."""

    kind: PlaceKind
    position: int


@dataclass(frozen=True)
class Program:
    """A program whose shapes were checked.

    ``adapter_step`` is the step of the state that sources of the kind ADAPTER stand in.

    ``stores`` are the tensors that make the state after the step, by their name there; ``probe`` and ``loss`` are
    tensors too. No call reads a store or the probe: so whatever a wrong element follows from stands in the trace,
    the state before, or the data. ``operators`` is the table that the calls were checked against.

    Raises ProgramInvalid.
    """

    sources: Sequence[Source]
    calls: Sequence[Call]
    stores: Mapping[str, int]
    probe: int
    loss: int
    operators: Mapping[str, Operator]
    adapter_step: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < len(self.calls) <= CALLS_MAX:
            raise ProgramInvalid(f"{len(self.calls)} calls, 1 to {CALLS_MAX} are allowed")
        count = len(self.types)
        outputs = [*self.stores.values(), self.probe, self.loss]
        if not all(len(self.sources) <= number < count for number in outputs) or len(set(outputs)) != len(outputs):
            raise ProgramInvalid("a state, the probe and the loss are results of different calls")
        if not set(outputs[:-1]).isdisjoint(chain.from_iterable([inputs for _, inputs, _ in self.calls])):
            raise ProgramInvalid("no call reads what makes the state after the step, nor the probe")
        if len({(source.kind, source.key) for source in self.sources}) != len(self.sources):
            raise ProgramInvalid("two sources have one name")

    @cached_property
    def types(self) -> Sequence[TensorType]:
        """Type of each tensor, by number. Raises ProgramInvalid."""
        return types_of(self.sources, self.calls, self.operators)

    @cached_property
    def units(self) -> int:
        """Work units of one step."""
        return units_of(self.types, self.calls, self.operators)

    def call_of(self, tensor: int) -> Call | None:
        """Return the call that made a tensor; None for a source. Raises IndexError."""
        return _call_of(self.sources, self.calls, tensor)

    @cached_property
    def places(self) -> Sequence[Place]:
        """Where the root of each tensor stands, by number."""
        stored = {number: at for at, (_, number) in enumerate(self.stored)}
        places: list[Place] = [*self.given]
        traced = 0
        for number in range(len(self.sources), len(self.types)):
            if number == self.probe:
                places.append(Place(PlaceKind.PROBE, 0))
            elif number in stored:
                places.append(Place(PlaceKind.AFTER, stored[number]))
            else:
                places.append(Place(PlaceKind.TRACE, traced))
                traced += 1
        return tuple(places)

    def _keys(self, kind: SourceKind) -> list[str]:
        return [source.key for source in self.sources if source.kind == kind]

    @cached_property
    def stored(self) -> Sequence[tuple[str, int]]:
        """Names and numbers of the stores in the order of their names: that of the leaves of a state."""
        return tuple(sorted(self.stores.items()))

    def count(self, kind: SourceKind) -> int:
        """Return how many sources of a kind there are: so many leaves has the tree over them."""
        return self._counts[kind]

    @cached_property
    def _counts(self) -> Mapping[SourceKind, int]:
        return {kind: sum(source.kind == kind for source in self.sources) for kind in SourceKind}

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(sizes_of(self.types))

    @cached_property
    def given(self) -> Sequence[Place]:
        """Where the root of each source stands, by number."""
        keys = {kind: sorted(self._keys(kind)) for kind in SourceKind}
        ranks = {kind: {key: at for at, key in enumerate(found)} for kind, found in keys.items()}
        return tuple(Place(_PLACES[source.kind], ranks[source.kind][source.key]) for source in self.sources)

    @cached_property
    def traced(self) -> Sequence[int]:
        """Numbers of the tensors whose roots make the trace, in order."""
        return tuple(number for number, place in enumerate(self.places) if place.kind == PlaceKind.TRACE)

    @cached_property
    def hash(self) -> bytes:
        """Hash of the canonical program."""
        return digest(
            b"program",
            encode([
                _VERSION,
                [[int(source.kind), source.key, [int(part) for part in source.type]] for source in self.sources],
                [[call.operator, list(call.inputs), list(call.attributes)] for call in self.calls],
                [[name, number] for name, number in self.stored],
                self.probe,
                self.loss,
            ]),
        )  # fmt: skip
