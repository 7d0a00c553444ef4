"""The check of a whole program: it stays inside the range in which all engines compute the same bits.

See market.md 4.6. Operators say between what their results lie; here these bounds run through the program, and the
structure that they rely on is checked.
"""

from __future__ import annotations

from typing import Final

from tasks.programs.alike import propagated
from tasks.programs.bounds import Bounds, Integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_shape import BEST
from tasks.programs.operators.rows import SUM_BITS
from tasks.programs.operators.storage import STORED_EXPONENT_MAX, stored_bounds
from tasks.programs.program import Call, Computation, Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = ["ADAPTER_LIMIT", "check_bounds", "check_computation", "integer_ranges", "source_limit", "store_limit"]

ADAPTER_LIMIT: Final = 20
"""Of matrices of adapters, as of the weights that they change."""
_EXPONENTS_CHECKED: Final = frozenset({"quantise", "row_sum", "contract"})
BY_BOUNDS_ALONE: Final = frozenset({
    "add", "bias_correction", "bound", "divide", "exp", "join_heads", "load", "log", "multiply", "quantise",
    "rotate", "row_exponent", "row_maximum", "scalar", "scale_rows", "select", "split_heads", "square_root",
    "store", "subtract", "transpose", "transpose_groups",
})  # fmt: skip
"""Operators whose results lie between bounds that follow from those of their inputs, whatever the shapes."""
_BYTE_MAX: Final = 255
_INT16_MAX: Final = (1 << 15) - 1
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


def check_bounds(program: Program) -> tuple[Bounds, ...]:
    """Return the bounds of each tensor, by number.

    Raises ProgramInvalid for a program that could leave the exact range, or whose state, probe or loss is not of
    the right kind.
    """
    _check_outputs(program)
    return _bounds(program, [_source_bounds(program, source) for source in program.sources])


def check_computation(computation: Computation) -> tuple[Bounds, ...]:
    """Return the bounds of each tensor, by number. Raises ProgramInvalid if one could leave the exact range."""
    found = [
        stored_bounds(ADAPTER_LIMIT) if _is_matrix(source) else _type_bounds(source.type)
        for source in computation.sources
    ]
    return _bounds(computation, found)


def integer_ranges(program: Program | Computation) -> dict[int, Integers]:
    """Return between what the integers of each source lie, by number, where the calls that read it say so."""
    readers = {number: number for number in range(len(program.sources))}
    found: dict[int, Integers] = {}
    for number, call in enumerate(program.calls, len(program.sources)):
        source = readers.get(call.inputs[0]) if call.inputs else None
        if source is None:
            continue
        if call.operator == "gather":
            readers[number] = source
        elif call.operator == "load_integers":
            low, high = call.attributes
            other = found.get(source, Integers(low, high))
            found[source] = Integers(max(low, other.low), min(high, other.high))
    return found


def _bounds(program: Program | Computation, found: list[Bounds]) -> tuple[Bounds, ...]:
    types, calls, first = program.types, program.calls, len(found)
    made = {call.operator: program.operators[call.operator] for call in calls}
    for call in calls:
        if call.operator in _EXPONENTS_CHECKED:
            _check_exponents(program, call)

    def bounds(at: int, inputs: list[Bounds]) -> Bounds:
        name, numbers, attributes = calls[at]
        try:
            return made[name].bounds(inputs, [types[number] for number in numbers], attributes)
        except ProgramInvalid as error:
            raise ProgramInvalid(f"tensor {first + at}, {name}: {error}") from None

    return tuple(propagated(found, calls, bounds, types, BY_BOUNDS_ALONE))


def store_limit(program: Program, number: int) -> int:
    """Return below which power of two a stored tensor is. Raises ProgramInvalid for one that no store gave."""
    call = program.call_of(number)
    if call is None or call.operator != "store":
        raise ProgramInvalid(f"tensor {number} is no result of a store")
    return call.attributes[0]


def _check_outputs(program: Program) -> None:
    for number in (*program.stores.values(), program.probe):
        call = program.call_of(number)
        if call is None or call.operator != "store_integers" or number == program.probe:
            store_limit(program, number)
    loss = program.types[program.loss]
    if loss != (ElementType.BINARY64, 1, 1):
        raise ProgramInvalid(f"a loss of {loss.rows} by {loss.columns} values of {loss.element.name}")
    before = {source.key: source.type for source in program.sources if source.kind == SourceKind.STATE}
    for name, kind in before.items():
        number = program.stores.get(name, -1)
        if number < 0 or program.types[number] != kind:
            raise ProgramInvalid(f"the state after the step has no {name} of the type before it")
    # The state after one step is the state before the next, with as many leaves.
    if new := sorted(program.stores.keys() - before.keys()):
        raise ProgramInvalid(f"the state before the step has no {new[0]}")


def source_limit(program: Program, source: Source) -> int:
    """Return below which power of two the values of a source of binary32 are. Raises ProgramInvalid."""
    if source.kind == SourceKind.STATE and source.key in program.stores:
        return store_limit(program, program.stores[source.key])
    return ADAPTER_LIMIT if _is_matrix(source) else STORED_EXPONENT_MAX


def _is_matrix(source: Source) -> bool:
    """Tell whether a source is a matrix of adapters, not a moment of it."""
    return source.kind == SourceKind.ADAPTER and source.key.startswith(("parameter/", f"{BEST}/"))


def _source_bounds(program: Program, source: Source) -> Bounds:
    if source.kind == SourceKind.STATE and not source.type.element.is_integer:
        return stored_bounds(store_limit(program, program.stores[source.key]))
    if _is_matrix(source):
        return stored_bounds(ADAPTER_LIMIT)
    return _type_bounds(source.type)


def _type_bounds(kind: TensorType) -> Bounds:
    """Return between what all values of a source lie. ``load_integers`` says what its program takes."""
    match kind.element:
        case ElementType.UINT8:
            return Integers(0, _BYTE_MAX)
        case ElementType.INT16:
            return Integers(-_INT16_MAX - 1, _INT16_MAX)
        case ElementType.INT32:
            return Integers(-_INT32_MAX - 1, _INT32_MAX)
        case ElementType.INT64:
            return Integers(-_INT64_MAX - 1, _INT64_MAX)
        case ElementType.BINARY32:
            return stored_bounds(STORED_EXPONENT_MAX)
        case ElementType.BINARY64:
            raise ProgramInvalid("a source of binary64")


def _check_exponents(program: Program | Computation, call: Call) -> None:
    """Check that exponents of rows are those of the rows that they are used with. Raises ProgramInvalid."""
    name, inputs, attributes = call
    if name == "contract":
        left, right, left_exponents, right_exponents = inputs
        for integers, exponents, bits in (
            (left, left_exponents, attributes[:1]), (right, right_exponents, attributes[1:] or attributes[:1]),
        ):  # fmt: skip
            made = program.call_of(integers)
            if made is None or made.operator != "quantise":
                continue  # of a source, or moved: bounds say that they fit
            if made.inputs[1] != exponents or made.attributes != bits:
                raise ProgramInvalid(f"{name}: tensor {integers} is not the quantise of its rows")
        return
    values, exponents = inputs
    made = program.call_of(exponents)
    if made != ("row_exponent", (values,), attributes if name == "quantise" else (SUM_BITS,)):
        raise ProgramInvalid(f"{name}: tensor {exponents} is not the row_exponent of its rows")
