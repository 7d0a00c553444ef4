"""Programs that could leave the exact range, or whose structure does not hold, are refused when they are made."""

from __future__ import annotations

import pytest

from tasks.programs.alike import propagated
from tasks.programs.bounds import Magnitudes
from tasks.programs.builder import Builder
from tasks.programs.checks import BY_BOUNDS_ALONE, check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.generated import generated
from tests.tasks.trained import trained
from tests.tasks.tuned import tuned
from tests.tasks.world import spec

STATE = Source(SourceKind.STATE, "w", TensorType(ElementType.BINARY32, 4, 6))
DATA = Source(SourceKind.DATA, "rows", TensorType(ElementType.UINT8, 9, 6))


class Draft(Builder):
    """A program over one tensor of the state and one of data, both also as binary64."""

    def __init__(self) -> None:
        super().__init__((STATE, DATA))
        self.weights = self.call("load", 0)
        self.bytes = self.call("scale_bytes", 1, attributes=(4,))

    def made(self, values: int, limit: int = 40) -> Program:
        """Return a program that keeps ``w`` and has ``values`` as its probe."""
        stores = {"w": self.call("store", self.weights, attributes=(limit,))}
        probe = self.call("store", values, attributes=(limit,))
        return self.program(stores, probe, self.row_sum(self.call("transpose", self.row_sum(self.bytes))))


def test_bounds_follow_from_what_a_state_may_hold() -> None:
    draft = Draft()
    square = draft.call("multiply", draft.weights, draft.weights)
    bounds = check_bounds(draft.made(square, limit=30))
    assert bounds[draft.weights] == Magnitudes(-100, 29)
    assert bounds[square] == Magnitudes(-200, 59)
    assert bounds[draft.bytes] == Magnitudes(-4, 3, True, False)


def test_a_chain_of_squares_becomes_too_small() -> None:
    draft = Draft()
    values = draft.weights
    for _ in range(3):
        values = draft.call("multiply", values, values)
    check_bounds(draft.made(values, limit=20))
    with pytest.raises(ProgramInvalid, match="multiply: values from 2"):
        check_bounds(draft.made(draft.call("multiply", values, values), limit=20))


def test_values_may_not_grow_beyond_a_row_exponent() -> None:
    draft = Draft()
    values = draft.weights
    for _ in range(4):
        values = draft.call("multiply", values, values)
    with pytest.raises(ProgramInvalid, match=r"row_exponent: rows of values up to|outside of"):
        check_bounds(draft.made(values, limit=100))


@pytest.mark.parametrize("operator", ["log", "divide"])
def test_what_may_be_zero_has_no_logarithm_and_divides_nothing(operator: str) -> None:
    draft = Draft()
    inputs = (draft.weights,) * (2 if operator == "divide" else 1)
    with pytest.raises(ProgramInvalid, match="zero"):
        check_bounds(draft.made(draft.call(operator, *inputs)))
    draft = Draft()
    shifted = draft.call("add", draft.call("exp", draft.weights), draft.constant(1.0))
    check_bounds(draft.made(draft.call(operator, *(shifted,) * len(inputs))))


def test_rows_that_are_gathered_must_exist() -> None:
    for samples in (9, 10):
        draft = Draft()
        rows = draft.call("gather", 1, draft.call("sample_order", attributes=(4, samples)))
        program = draft.made(draft.call("scale_bytes", rows, attributes=(0,)))
        if samples == 9:
            check_bounds(program)
        else:
            with pytest.raises(ProgramInvalid, match="rows 0 to 9 of a tensor of 9"):
                check_bounds(program)


def test_the_state_after_a_step_is_stored_and_of_the_same_kind() -> None:
    draft = Draft()
    good = draft.made(draft.call("add", draft.bytes, draft.bytes))
    other = draft.call("store", draft.bytes, attributes=(40,))
    for stores, said in (
        ({"result": other}, "the state after the step has no w"),
        ({"w": other}, "the state after the step has no w of the type"),
        ({"w": draft.weights}, "no call reads what makes the state"),
        ({"w": good.stores["w"], "x": other}, "the state before the step has no x"),
    ):
        with pytest.raises(ProgramInvalid, match=said):
            check_bounds(draft.program(stores, good.probe, good.loss))
    with pytest.raises(ProgramInvalid, match="a loss of 9 by 6 values"):
        check_bounds(draft.program({"w": good.stores["w"]}, good.probe, draft.bytes))


def _with_exponents(operator: str, *, wrong: bool) -> Program:
    """A program whose rows have the exponents of other rows, or of another width."""
    draft = Draft()
    right = draft.call("row_exponent", draft.weights, attributes=(15,))
    doubled = draft.call("row_exponent", draft.call("add", draft.weights, draft.weights), attributes=(15,))
    integers = draft.call("quantise", draft.weights, right, attributes=(15,))
    if operator == "quantise":
        exponents = doubled if wrong else right
        other = draft.call("quantise", draft.weights, exponents, attributes=(15,))
        return draft.made(draft.call("contract", integers, other, right, exponents, attributes=(15,)))
    if operator == "contract":
        exponents = doubled if wrong else right
        return draft.made(draft.call("contract", integers, integers, right, exponents, attributes=(15,)))
    width = 15 if wrong else 40
    exponents = draft.call("row_exponent", draft.weights, attributes=(width,))
    return draft.made(draft.call("row_sum", draft.weights, exponents))


@pytest.mark.parametrize("operator", ["quantise", "contract", "row_sum"])
def test_rows_are_used_with_their_own_exponents(operator: str) -> None:
    check_bounds(_with_exponents(operator, wrong=False))
    with pytest.raises(ProgramInvalid, match="of its rows"):
        check_bounds(_with_exponents(operator, wrong=True))


def _programs() -> list[Program]:
    """Programs of all kinds of steps, with what each operator is used for."""
    return [job.program() for job in (tuned()[0], generated()[0], trained()[0], spec())]


@pytest.mark.parametrize("at", range(4))
def test_calls_that_are_alike_have_the_bounds_that_each_of_them_has_alone(at: int) -> None:
    program = _programs()[at]
    assert isinstance(program, Program)
    found = check_bounds(program)
    first, types = len(program.sources), program.types
    assert len({call.operator for call in program.calls} & BY_BOUNDS_ALONE) > 5
    for number, (name, inputs, attributes) in enumerate(program.calls, first):
        bounds, kinds = [found[one] for one in inputs], [types[one] for one in inputs]
        operator = program.operators[name]
        assert operator.shape(kinds, attributes) == types[number]
        assert operator.bounds(bounds, kinds, attributes) == found[number]
        if name in BY_BOUNDS_ALONE:
            assert operator.bounds(bounds, (), attributes) == found[number], name


def test_a_call_reads_only_what_stands_before_it() -> None:
    for inputs in ((0, 2), (0, -1), (3, 0)):
        with pytest.raises(ProgramInvalid, match="call"):
            propagated([0, 1], [("add", inputs, ())], lambda _at, _inputs: 0)
    found = propagated([7, 8], [("add", (0, 1), ()), ("add", (2, 0), ())], lambda _at, inputs: sum(inputs))
    assert found == [7, 8, 15, 22]
