"""Kernel and reference of every operator: the same bits, within the bounds, from normal numbers alone."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks.programs.bounds import EXPONENT_LOW, Integers, Magnitudes
from tasks.programs.errors import ElementUndefined, ProgramInvalid, StoreDiverged
from tasks.programs.loop import Loop
from tasks.programs.operators import Attributes, Context, FoldOperator
from tasks.programs.operators.loops import FLAGS, NUMBERS
from tasks.programs.operators.rows import EXPONENT_MAX, EXPONENT_MIN, SUM_BITS, TERMS_MAX, WIDTHS
from tasks.programs.operators.rules import UNITS
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.cases import PRODUCT_WIDTHS, Case, legal, ranges, seeds, sides, terms
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.test_loop import loops
from tests.tasks.programs.transformer_cases import MOVES, TRANSFORMER_CASES, TRANSFORMER_SHAPES, weights
from tests.tasks.programs.values import (
    CONTEXT,
    Tensor,
    computed,
    fractions,
    patterns,
    reader,
    referred,
    watched,
    whole_numbers,
)

NUMPY = engine("numpy")
ELEMENTWISE = {"add": 2, "bound": 1, "divide": 2, "erf": 1, "exp": 1, "log": 1, "multiply": 2, "select": 3,
               "square_root": 1, "subtract": 2}  # fmt: skip
FOLDS = ("contract", "contract_groups", "count_from", "find", "first_above", "row_exponent", "row_maximum",
         "row_sum", "sum_from", "sum_up_to")  # fmt: skip


@st.composite
def elementwise(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(ELEMENTWISE)))
    rows, columns = draw(sides), draw(sides)
    inputs = [
        fractions(
            draw(seeds), draw(st.sampled_from((1, rows))), draw(st.sampled_from((1, columns))), draw(ranges())
        )
        for _ in range(ELEMENTWISE[name])
    ]
    return legal(Case(OPERATORS[name], tuple(inputs), (draw(st.integers(0, 100)),) if name == "bound" else ()))


def _exponents(values: Tensor, width: int) -> Tensor:
    """The exponents of rows, as the operator before gives them."""
    operator = OPERATORS["row_exponent"]
    found = computed(operator, NUMPY, [values], (width,))
    bounds = operator.bounds([values.bounds], [values.type], (width,))
    return Tensor(TensorType(ElementType.INT64, values.type.rows, 1), found, bounds)


@st.composite
def rows_of_fractions(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(("row_exponent", "quantise", "row_sum", "row_maximum")))
    values = fractions(draw(seeds), draw(sides), draw(terms), draw(ranges(high=EXPONENT_MAX - 1)))
    width = SUM_BITS if name == "row_sum" else draw(st.sampled_from(tuple(WIDTHS)))
    inputs = (values, _exponents(values, width)) if name in ("quantise", "row_sum") else (values,)
    return Case(OPERATORS[name], inputs, (width,) if name in ("row_exponent", "quantise") else ())


@st.composite
def contractions(draw: st.DrawFn) -> Case:
    bits, rows, others, length = draw(st.sampled_from(PRODUCT_WIDTHS)), draw(sides), draw(sides), draw(terms)
    limits = [WIDTHS[one].limit for one in bits]
    exponents = Integers(EXPONENT_MIN, EXPONENT_MAX - 60)
    inputs = (
        whole_numbers(draw(seeds), rows, length, Integers(-limits[0], limits[0])),
        whole_numbers(draw(seeds), others, length, Integers(-limits[-1], limits[-1])),
        whole_numbers(draw(seeds), rows, 1, exponents),
        whole_numbers(draw(seeds), others, 1, exponents),
    )
    return Case(OPERATORS["contract"], inputs, bits)


@st.composite
def conversions(draw: st.DrawFn) -> Case:
    name, rows, columns = draw(st.sampled_from(("load", "store", "scale_bytes"))), draw(sides), draw(sides)
    if name == "scale_bytes":
        content = whole_numbers(draw(seeds), rows, columns, Integers(0, 255), ElementType.UINT8)
        return Case(OPERATORS[name], (content,), (draw(st.integers(0, 8)),))
    if name == "load":
        stored = fractions(draw(seeds), rows, columns, draw(ranges(-100, 99)), ElementType.BINARY32)
        return Case(OPERATORS[name], (stored,), ())
    limit = draw(st.integers(-99, 100))
    values = fractions(draw(seeds), rows, columns, draw(ranges(high=limit - 2)))
    return Case(OPERATORS[name], (values,), (limit,))


@st.composite
def moves(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(("gather", "one_hot", "transpose")))
    element = draw(st.sampled_from(tuple(ElementType)))
    rows, columns = draw(sides), draw(sides)
    if name == "one_hot":
        labels = whole_numbers(draw(seeds), rows, 1, Integers(0, columns), ElementType.UINT8)
        return Case(OPERATORS[name], (labels,), (columns,))
    if element.is_integer:
        values = whole_numbers(draw(seeds), rows, columns, Integers(0, 255), element)
    else:
        values = fractions(draw(seeds), rows, columns, draw(ranges(-100, 99)), element)
    if name == "transpose":
        return Case(OPERATORS[name], (values,), ())
    return Case(OPERATORS[name], (values, whole_numbers(draw(seeds), draw(sides), 1, Integers(0, rows - 1))), ())


@st.composite
def without_inputs(draw: st.DrawFn) -> Case:
    loop = draw(loops())
    name = draw(st.sampled_from((
        "bias_correction", "sample_order", "scalar", "loop_rows", "loop_weights", "loop_flag", "loop_number",
    )))  # fmt: skip
    attributes: dict[str, Attributes] = {
        "loop_rows": loop,
        "loop_weights": (*loop, draw(st.integers(1, 5))),
        "loop_flag": (*loop, draw(st.integers(0, len(FLAGS) - 1))),
        "loop_number": (*loop, draw(st.integers(0, len(NUMBERS) - 1))),
        "bias_correction": (draw(st.integers(0, NANO - 1)),),
        "sample_order": (draw(st.integers(1, 40)), draw(st.integers(1, 60))),
        "scalar": (constant_bits(draw(st.floats(-(2.0**90), 2.0**90, allow_subnormal=False))),),
    }
    return legal(Case(OPERATORS[name], (), attributes[name]))


@st.composite
def of_updates(draw: st.DrawFn) -> Case:
    """Operators that may be given the number of an update in place of the step's."""
    number = whole_numbers(draw(seeds), 1, 1, Integers(0, draw(st.sampled_from((1, 9, 1 << 40)))))
    if draw(st.booleans()):
        return legal(Case(OPERATORS["bias_correction"], (number,), (draw(st.integers(0, NANO - 1)),)))
    return legal(Case(OPERATORS["learning_rate"], (number,), (1_000_000, draw(st.integers(0, 2)), 2, 30)))


CASES = st.one_of(
    elementwise(),
    rows_of_fractions(),
    contractions(),
    conversions(),
    moves(),
    without_inputs(),
    of_updates(),
    TRANSFORMER_CASES,
)
RANDOM_CASES = int(os.environ.get("OPERATOR_CASES", "500"))
"""For each engine; `make operators` takes 100,000."""
STEPS = st.sampled_from((0, 1, 17, 10**6, (1 << 48) - 1))


def agree(case: Case, name: str, context: Context = CONTEXT) -> None:
    found = computed(case.operator, engine(name), case.inputs, case.attributes, context)
    assert patterns(found) == patterns(referred(case.operator, case.inputs, case.attributes, context))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_references_give_the_same_bits(name: str) -> None:
    @given(CASES, STEPS)
    @settings(max_examples=RANDOM_CASES, deadline=None)
    def check(case: Case, step: int) -> None:
        agree(case, name, Context(step, CONTEXT.seed))

    check()


@given(CASES)
@settings(max_examples=400, deadline=None)
def test_results_lie_within_their_bounds(case: Case) -> None:
    bounds = case.bounds
    for value in computed(case.operator, NUMPY, case.inputs, case.attributes).flatten().tolist():
        if isinstance(bounds, Integers):
            assert bounds.low <= value <= bounds.high
        elif value == 0.0:
            assert bounds.zero
        else:
            assert bounds.least <= math.frexp(value)[1] - 1 <= bounds.most
            assert bounds.negative if value < 0 else bounds.positive


@given(CASES)
@settings(max_examples=400, deadline=None)
def test_references_meet_no_subnormal_number(case: Case) -> None:
    referred(case.operator, case.inputs, case.attributes, wrap=watched)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_the_smallest_values_make_no_subnormal_number(name: str) -> None:
    """Multiply and divide have results below 2^EXPONENT_LOW, which the bounds refuse."""
    small = 2.0**EXPONENT_LOW
    for other in (small, -small, 2.0 * small, 1.0, small * (1.0 + 2.0**-52)):
        row = [Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(EXPONENT_LOW, 1))
               for value in (small, other, other)][:ELEMENTWISE[name]]  # fmt: skip
        if name not in ("multiply", "divide") or other == 1.0:
            referred(OPERATORS[name], row, (0,) if name == "bound" else (), wrap=watched)


@given(st.integers(-900, 3))
def test_erf_of_a_small_number_makes_no_subnormal_number(exponent: int) -> None:
    row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[2.0**exponent]]), Magnitudes(-900, 4))
    referred(OPERATORS["erf"], [row], (), wrap=watched)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_flushed_subnormals_change_nothing(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch (extra ml) IS NOT INSTALLED: FLUSHING WAS NOT CHECKED")

    @given(CASES)
    @settings(max_examples=300, deadline=None)
    def check(case: Case) -> None:
        expected = patterns(referred(case.operator, case.inputs, case.attributes))
        torch.set_flush_denormal(True)  # of this thread, Python's operations too
        try:
            assert patterns(computed(case.operator, engine(name), case.inputs, case.attributes)) == expected
            assert patterns(referred(case.operator, case.inputs, case.attributes)) == expected
        finally:
            torch.set_flush_denormal(False)

    check()


@given(st.one_of(rows_of_fractions(), contractions(), weights()), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_order_of_terms_changes_no_fold(case: Case, random: object) -> None:
    assume(case.operator.name in FOLDS)
    fold: FoldOperator = case.operator  # type: ignore[assignment]
    types, read = [one.type for one in case.inputs], reader(case.inputs)
    output = fold.shape(types, case.attributes)
    row, column = output.rows - 1, output.columns - 1
    order = list(range(fold.length(types, case.attributes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    parts = [fold.term(read, types, case.attributes, row, column, index) for index in order]
    while len(parts) > 1:
        parts = [fold.combine(parts[0], parts[1]), *parts[2:]] if len(parts) % 2 else [
            fold.combine(parts[at], parts[at + 1]) for at in range(0, len(parts), 2)
        ]  # fmt: skip
    assert abs(parts[0]) < 1 << 63
    found = fold.finish(read, types, case.attributes, row, column, parts[0])
    assert patterns([[found]]) == patterns([[fold.element(read, types, case.attributes, CONTEXT, row, column)]])


def _terms_max(bits: tuple[int, ...]) -> int:
    """How many of the largest products a signed integer of 64 bits holds, 2^20 at most."""
    return min(((1 << 63) - 1) // (WIDTHS[bits[0]].limit * WIDTHS[bits[-1]].limit), TERMS_MAX)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("widths", PRODUCT_WIDTHS, ids=str)
def test_the_largest_integers_over_the_longest_rows_are_summed_exactly(widths: tuple[int, ...], name: str) -> None:
    """As many terms as a width allows, 2^20 at most, and 49,152 where that is allowed: a vocabulary."""
    arrays, operator = engine(name), OPERATORS["contract"]
    one, other = WIDTHS[widths[0]], WIDTHS[widths[-1]]
    most = _terms_max(widths)
    for length in (min(49_152, most), most - 3 if name == "contrary" and widths == (15,) else most):
        if name == "contrary":
            length //= 8  # it takes three terms at a time
        left, right = np.full((1, length), one.limit), np.full((1, length), -other.limit)
        left[0, ::2] -= 1
        right[0, ::3] += 1
        true = sum(a * b for a, b in zip(left[0].tolist(), right[0].tolist(), strict=True))
        zero = arrays.load(np.zeros((1, 1)))
        found = operator.run(arrays, [arrays.load(left), arrays.load(right), zero, zero], widths, CONTEXT)
        assert float(arrays.store(found)[0, 0]) == math.ldexp(float(true), -one.depth - other.depth)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_values_over_the_longest_row_are_summed_exactly(name: str) -> None:
    arrays, operator = engine(name), OPERATORS["row_sum"]
    values = np.nextafter(np.full((1, TERMS_MAX), 2.0), 1.0)
    values[0, ::2] = 1.0 + 3 * 2.0**-39
    found = operator.run(arrays, [arrays.load(values), arrays.load(np.zeros((1, 1)))], (), CONTEXT)
    true = sum(round(math.ldexp(value, 39)) for value in values[0].tolist())
    assert float(arrays.store(found)[0, 0]) == math.ldexp(float(true), -39)


def test_fifteen_bits_are_two_signed_bytes() -> None:
    """At the threshold the exponent goes up by one, so that 127 * 256 + 127 is never exceeded."""
    limit, edge = WIDTHS[15].limit, 32_639.5 / 2.0**14
    assert limit == 127 * 256 + 127
    for value, exponent in ((np.nextafter(edge, 1.0), 0), (edge, 1), (-edge, 1), (np.nextafter(2.0, 1.0), 1)):
        row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(0, 0))
        exponents = _exponents(row, 15)
        assert exponents.values.tolist() == [[exponent]]
        assert abs(int(computed(OPERATORS["quantise"], NUMPY, [row, exponents], (15,))[0, 0])) <= limit
        agree(Case(OPERATORS["row_exponent"], (row,), (15,)), "numpy")
        agree(Case(OPERATORS["quantise"], (row, exponents), (15,)), "numpy")


def test_twenty_three_bits_are_three_signed_bytes() -> None:
    """At the threshold the exponent goes up by one."""
    limit, edge = WIDTHS[23].limit, 8_355_711.5 / 2.0**22
    assert limit == 127 * 65_536 + 127 * 256 + 127
    for value, exponent in ((np.nextafter(edge, 1.0), 0), (edge, 1), (-edge, 1)):
        row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(0, 0))
        exponents = _exponents(row, 23)
        assert exponents.values.tolist() == [[exponent]]
        assert abs(int(computed(OPERATORS["quantise"], NUMPY, [row, exponents], (23,))[0, 0])) <= limit


def _shaped(bits: tuple[int, ...], terms: int) -> None:
    """Check a product of rows of so many terms, alone and in groups. Raises ProgramInvalid."""
    whole, column = TensorType(ElementType.INT64, 2, terms), TensorType(ElementType.INT64, 2, 1)
    for name, attributes in (("contract", bits), ("contract_groups", (bits[0], 1, *bits[1:]))):
        OPERATORS[name].shape([whole, whole, column, column], attributes)


@pytest.mark.parametrize("bits", [(28,), (28, 23), (23, 28), (40,), (15, 40)], ids=str)
def test_widths_of_which_binary64_holds_few_terms_are_refused(bits: tuple[int, ...]) -> None:
    for count in (1, 3):
        with pytest.raises(ProgramInvalid):
            _shaped(bits, count)


@pytest.mark.parametrize("bits", [*PRODUCT_WIDTHS, (20, 28)], ids=str)
def test_a_product_has_as_many_terms_as_its_widths_leave_room_for(bits: tuple[int, ...]) -> None:
    """R150. 2^17 of 23 by 23 bits: the context of today's longest small models."""
    most = _terms_max(bits)
    assert most >= 1 << 17 or bits in ((28, 20), (20, 28))
    _shaped(bits, most)
    with pytest.raises(ProgramInvalid, match="terms"):
        _shaped(bits, most + 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [(23,), (28, 20)], ids=str)
def test_products_of_several_blocks_are_those_of_the_reference(bits: tuple[int, ...], name: str) -> None:
    """128 terms and more, up to four blocks: largest integers with the lowest and the highest exponents."""
    limits = [WIDTHS[one].limit for one in bits]
    ends = [Integers(EXPONENT_MIN, EXPONENT_MIN), Integers(EXPONENT_MAX - 60, EXPONENT_MAX - 60)]

    @given(seeds, st.sampled_from((128, 129, 136, 256, 257, 385)), st.sampled_from(ends), st.booleans())
    @settings(max_examples=25, deadline=None)
    def check(seed: int, length: int, exponents: Integers, grouped: bool) -> None:
        low, high = [-limit if seed % 2 else limit for limit in limits], limits
        rows = [
            whole_numbers(seed + at, 2, length, Integers(one, most))
            for at, (one, most) in enumerate(((low[0], high[0]), (low[-1], high[-1])))
        ]
        inputs = (*rows, *(whole_numbers(seed, 2, 1, exponents) for _ in range(2)))
        kind, attributes = ("contract_groups", (bits[0], 2, *bits[1:])) if grouped else ("contract", bits)
        agree(Case(OPERATORS[kind], inputs, attributes), name)

    check()


def test_units_of_an_element_are_for_each_block_of_terms() -> None:
    """23 by 23 bits have a block each 128 terms, 20 by 20 bits each 32,768."""
    column = TensorType(ElementType.INT64, 2, 1)
    for bits, length, blocks in ((23, 128, 1), (23, 129, 2), (23, 576, 5), (20, 576, 1), (15, 1 << 20, 1)):
        whole = TensorType(ElementType.INT64, 2, length)
        for name, attributes in (("contract", (bits,)), ("contract_groups", (bits, 1))):
            types, cost = [whole, whole, column, column], UNITS[name]
            found = OPERATORS[name].units(types, OPERATORS[name].shape(types, attributes), attributes)
            assert found == cost.call + 4 * (cost.element * blocks + cost.term * length) + 4 * length * cost.read


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**-1030, -(2.0**-1074)])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_a_value_that_no_honest_trace_holds_is_undefined(name: str, value: float) -> None:
    operator = OPERATORS[name]

    def read(at: int, row: int, column: int) -> float:
        return value

    for types, attributes in _shapes(name):
        if types and name not in ("gather", "one_hot", "transpose", *MOVES):
            with pytest.raises(ElementUndefined):
                operator.element(read, types, attributes, CONTEXT, 0, 0)


LOOP = Loop(3, 10, 8, 2, 3, 7)


def _shapes(name: str) -> list[tuple[list[TensorType], Attributes]]:
    """Legal calls on tensors of 2 by 3."""
    doubles, column = TensorType(ElementType.BINARY64, 2, 3), TensorType(ElementType.INT64, 2, 1)
    whole = TensorType(ElementType.INT64, 2, 3)
    if name in ELEMENTWISE:
        return [([doubles] * ELEMENTWISE[name], (7,) if name == "bound" else ())]
    found: dict[str, list[tuple[list[TensorType], Attributes]]] = {
        "contract": [([whole, whole, column, column], (15,))],
        "quantise": [([doubles, column], (20,))],
        "row_exponent": [([doubles], (20,))],
        "row_sum": [([doubles, column], ())],
        "row_maximum": [([doubles], ())],
        "load": [([TensorType(ElementType.BINARY32, 2, 3)], ())],
        "store": [([doubles], (40,))],
        "scale_bytes": [([TensorType(ElementType.UINT8, 2, 3)], (4,))],
        "gather": [([doubles, column], ())],
        "one_hot": [([column], (3,))],
        "transpose": [([doubles], ())],
        "scalar": [([], (constant_bits(0.5),))],
        "bias_correction": [([], (900_000_000,))],
        "sample_order": [([], (3, 10))],
        "loop_rows": [([], LOOP)],
        "loop_weights": [([], (*LOOP, 3))],
        "loop_flag": [([], (*LOOP, 2))],
        "loop_number": [([], (*LOOP, 1))],
        **TRANSFORMER_SHAPES,
    }
    return found[name]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_calls_that_do_not_fit_are_refused(name: str) -> None:
    operator = OPERATORS[name]
    other = TensorType(ElementType.BINARY32, 5, 4)
    for types, attributes in _shapes(name):
        strange = ElementType.INT64 if name == "scale_bytes" else ElementType.UINT8
        assert operator.units(types, operator.shape(types, attributes), attributes) > 0
        for wrong in ([*types, other], [*types[:-1], other._replace(element=strange, columns=2)]):
            if name not in ("transpose", "load_integers") or len(wrong) > 1:  # they take any one tensor
                with pytest.raises(ProgramInvalid):
                    operator.shape(wrong, attributes)
        for numbers in ((*attributes, 1), (-9999,) * len(attributes) or (1,)):
            with pytest.raises(ProgramInvalid):
                operator.shape(types, numbers)


def test_what_reaches_the_limit_of_a_store_has_diverged() -> None:
    store = OPERATORS["store"]
    for value, limit in ((2.0**40, 40), (np.nextafter(2.0**40, 0), 40), (math.inf, 100), (math.nan, 100)):
        with pytest.raises(StoreDiverged):
            store.run(NUMPY, [NUMPY.load(np.array([[1.0, value]]))], (limit,), CONTEXT)
        row = Tensor(TensorType(ElementType.BINARY64, 1, 2), np.array([[1.0, value]]), Magnitudes(0, 0))
        with pytest.raises(ElementUndefined):
            store.element(reader([row]), [row.type], (limit,), CONTEXT, 0, 1)


def test_what_is_stored_has_no_small_values_and_no_negative_zero() -> None:
    tiny = 2.0**-100
    below = float(np.nextafter(tiny, 0))
    values = np.array([[tiny, -tiny, below, -below, tiny * 0.999, -0.0, 2.0**-899]])
    row = Tensor(TensorType(ElementType.BINARY64, 1, 7), values, Magnitudes(-899, -100))
    expected = [[tiny, -tiny, tiny, -tiny, 0.0, 0.0, 0.0]]
    assert patterns(referred(OPERATORS["store"], [row], (100,))) == patterns(list(map(list, expected)))
    agree(Case(OPERATORS["store"], (row,), (100,)), "numpy")


@given(st.integers(0, 2), st.integers(0, 30), st.integers(0, 120))
def test_a_learning_rate_follows_its_schedule(schedule: int, warmup: int, step: int) -> None:
    peak, total = 3_000_000, 100
    done = (min(step, total) - warmup) / (total - warmup)
    shapes = (1.0, 1.0 - done, (1.0 + math.cos(math.pi * done)) / 2.0)
    wanted = (step + 1) / warmup if step < warmup else shapes[schedule]
    found = computed(OPERATORS["learning_rate"], NUMPY, [], (peak, schedule, warmup, total), Context(step, b""))
    assert found[0, 0] == pytest.approx(0.003 * wanted, rel=1e-13, abs=1e-18)


@given(st.floats(-80.0, 80.0))
def test_exp_is_accurate(value: float) -> None:
    row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(-900, 6))
    found = computed(OPERATORS["exp"], NUMPY, [row], ())[0, 0]
    assert found == pytest.approx(math.exp(value), rel=1e-15)


@given(st.floats(-9.0, 9.0))
def test_erf_is_accurate(value: float) -> None:
    row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(-900, 4))
    found = computed(OPERATORS["erf"], NUMPY, [row], ())[0, 0]
    assert found == pytest.approx(math.erf(value), rel=0, abs=2e-15)


@given(st.floats(2.0**-900, 2.0**900))
def test_log_is_accurate(value: float) -> None:
    row = Tensor(TensorType(ElementType.BINARY64, 1, 1), np.array([[value]]), Magnitudes(-900, 900, False, False))
    found = computed(OPERATORS["log"], NUMPY, [row], ())[0, 0]
    assert found == pytest.approx(math.log(value), rel=1e-15, abs=1e-15)
