"""Calls of the operators that transformers need."""

from __future__ import annotations

from hypothesis import strategies as st

from tasks.programs.bounds import Integers, Magnitudes
from tasks.programs.operators import Attributes
from tasks.programs.operators.rotary import BASE_MAX, POSITION_MAX
from tasks.programs.operators.row_sampling import KEY_COLUMNS, KEY_PART_MAX, TEMPERATURE_MICRO_MAX
from tasks.programs.operators.rows import EXPONENT_MAX, EXPONENT_MIN, WIDTHS
from tasks.programs.operators.sampling import TOTAL_MAX, WEIGHT_MAX
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.operators.whole import WHOLE_MAX
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.cases import PRODUCT_WIDTHS, Case, legal, ranges, seeds, sides, terms
from tests.tasks.programs.values import Tensor, fractions, whole_numbers

MOVES = ("join_heads", "split_heads", "transpose_groups")
"""They give what they read, whatever it is."""
FILLS = (0.0, 1.0, -(2.0**100), -1.5)
few = st.integers(1, 3)


@st.composite
def tuning(draw: st.DrawFn) -> Case:
    if draw(st.booleans()):
        total = draw(st.integers(1, 40))
        attributes = draw(st.integers(1, NANO)), draw(st.integers(0, 2)), draw(st.integers(0, total - 1)), total
        return Case(OPERATORS["learning_rate"], (), attributes)
    groups, rows, count = draw(few), draw(sides), draw(sides)
    values = fractions(draw(seeds), groups * rows, draw(sides), draw(ranges()))
    numbers = whole_numbers(
        draw(seeds), groups * count, 1, Integers(0, rows + draw(st.sampled_from((0, 1, 1000))))
    )
    return Case(OPERATORS["gather_groups"], (values, numbers), (groups,))


@st.composite
def any_tensor(draw: st.DrawFn, rows: int, columns: int, element: ElementType | None = None) -> Tensor:
    element = element or draw(st.sampled_from(tuple(ElementType)))
    if element.is_integer:
        low, high = (0, 255) if element == ElementType.UINT8 else (-300, 300)
        return whole_numbers(draw(seeds), rows, columns, Integers(low, high), element)
    return fractions(draw(seeds), rows, columns, draw(ranges(-100, 99)), element)


@st.composite
def firsts(draw: st.DrawFn, batch: int, high: int) -> Tensor:
    return whole_numbers(draw(seeds), draw(st.sampled_from((1, batch))), 1, Integers(0, high))


@st.composite
def grouped_products(draw: st.DrawFn) -> Case:
    bits, groups, length = draw(st.sampled_from(PRODUCT_WIDTHS)), draw(few), draw(terms)
    rows, others = groups * draw(few), groups * draw(few)
    limits, exponents = [WIDTHS[one].limit for one in bits], Integers(EXPONENT_MIN, EXPONENT_MAX - 60)
    inputs = [
        whole_numbers(draw(seeds), rows, length, Integers(-limits[0], limits[0])),
        whole_numbers(draw(seeds), others, length, Integers(-limits[-1], limits[-1])),
        whole_numbers(draw(seeds), rows, 1, exponents),
        whole_numbers(draw(seeds), others, 1, exponents),
    ]
    return Case(
        OPERATORS["contract_groups"], tuple(inputs[: draw(st.sampled_from((3, 4)))]), (bits[0], groups, *bits[1:])
    )


@st.composite
def layouts(draw: st.DrawFn) -> Case:
    name, batch, heads, rows, columns = (
        draw(st.sampled_from(MOVES)),
        draw(few),
        draw(few),
        draw(sides),
        draw(sides),
    )
    if name == "split_heads":
        return Case(OPERATORS[name], (draw(any_tensor(batch * rows, heads * columns)),), (batch, heads))
    values = draw(any_tensor(batch * heads * rows, columns))
    return Case(OPERATORS[name], (values,), (batch, heads) if name == "join_heads" else (batch * heads,))


@st.composite
def attention(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(("positions", "causal", "since", "scale_columns", "place_rows")))
    batch, heads, length, columns = draw(few), draw(few), draw(few), draw(sides)
    if name == "positions":
        return Case(OPERATORS[name], (draw(firsts(batch, 1 << 20)),), (batch, length))
    if name == "causal":
        values = draw(any_tensor(batch * heads * length, columns, ElementType.BINARY64))
        fill = constant_bits(draw(st.sampled_from(FILLS)))
        return Case(OPERATORS[name], (values, draw(firsts(batch, columns))), (batch, length, fill))
    if name == "since":
        values = draw(any_tensor(batch * heads * length, columns, ElementType.BINARY64))
        starts = whole_numbers(draw(seeds), batch * length, 1, Integers(0, columns))
        return Case(OPERATORS[name], (values, starts), (batch, constant_bits(draw(st.sampled_from(FILLS)))))
    if name == "scale_columns":
        values = fractions(draw(seeds), heads * length, columns, draw(ranges(-780, 500)))
        exponents = whole_numbers(draw(seeds), heads * columns, 1, Integers(EXPONENT_MIN, EXPONENT_MAX - 1))
        return legal(Case(OPERATORS[name], (values, exponents), ()))
    room, element = draw(st.integers(0, 3)), draw(st.sampled_from(tuple(ElementType)))
    stored = draw(any_tensor(batch * heads * (length + room), columns, element))
    rows = draw(any_tensor(batch * heads * length, columns, element))
    return Case(OPERATORS[name], (stored, rows, draw(firsts(batch, room))), (batch, batch * heads))


@st.composite
def rotations(draw: st.DrawFn) -> Case:
    rows, half = draw(sides), draw(few)
    if draw(st.booleans()):
        positions = whole_numbers(draw(seeds), rows, 1, Integers(0, POSITION_MAX))
        base = draw(st.sampled_from((2, 10_000, 100_000, 500_000, BASE_MAX)))
        return Case(
            OPERATORS["rotary"], (positions,), (base, 2 * draw(st.integers(1, 32)), draw(st.integers(0, 1)))
        )
    values = fractions(draw(seeds), rows, 2 * half * draw(few), draw(ranges(-500, 500)))
    angles = [fractions(draw(seeds), rows, half, Magnitudes(-62, 0)) for _ in range(2)]
    return legal(Case(OPERATORS["rotate"], (values, *angles), ()))


@st.composite
def whole(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(("load_integers", "number", "scale_rows", "find")))
    rows, columns = draw(sides), draw(terms)
    if name == "number":
        return Case(OPERATORS[name], (), (draw(st.integers(0, WHOLE_MAX)),))
    if name == "load_integers":
        element, most = draw(
            st.sampled_from(
                ((ElementType.INT16, 32_639), (ElementType.INT64, WHOLE_MAX), (ElementType.UINT8, 255))
            )
        )
        low = 0 if element == ElementType.UINT8 else -most
        return Case(
            OPERATORS[name],
            (whole_numbers(draw(seeds), rows, columns, Integers(low, most), element),),
            (low, most),
        )
    if name == "scale_rows":
        bits = draw(st.sampled_from(tuple(WIDTHS)))
        limit = WIDTHS[bits].limit
        exponents = Integers(EXPONENT_MIN, EXPONENT_MAX)
        return Case(OPERATORS[name], (
            whole_numbers(draw(seeds), rows, columns, Integers(-limit, limit)),
            whole_numbers(draw(seeds), rows, 1, exponents),
        ), (bits,))  # fmt: skip
    values = fractions(draw(seeds), rows, columns, draw(ranges()))
    largest = values.values.max(axis=1, keepdims=True) if draw(st.booleans()) else values.values[:, -1:]
    wanted = Tensor(TensorType(ElementType.BINARY64, rows, 1), largest, values.bounds)
    return Case(OPERATORS[name], (values, wanted), ())


@st.composite
def decoding(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(("step_place", "store_integers", "token_at", "until")))
    rows, columns, most = draw(sides), draw(sides), draw(st.sampled_from((3, 40, 40_000)))
    if name == "step_place":
        return Case(OPERATORS[name], (), tuple(draw(st.integers(1, 50)) for _ in range(3)))
    if name == "store_integers":
        values = whole_numbers(draw(seeds), rows, columns, Integers(-most, most))
        return Case(OPERATORS[name], (values,), (-most, draw(st.integers(most, 50_000))))
    lengths = whole_numbers(draw(seeds), rows, 1, Integers(0, columns))
    if name == "token_at":
        made = draw(sides)
        tokens = [whole_numbers(draw(seeds), rows, count, Integers(0, most)) for count in (columns, made)]
        place = whole_numbers(draw(seeds), 1, 1, Integers(0, made))
        return Case(OPERATORS[name], (*tokens, lengths, place), ())
    chosen = [whole_numbers(draw(seeds), rows, 1, Integers(0, 9)) for _ in range(2)]
    place = whole_numbers(draw(seeds), 1, 1, Integers(0, columns))
    limit = draw(st.integers(5, 12))
    ends = sorted(draw(st.sets(st.integers(0, 4), max_size=3)))
    return Case(OPERATORS[name], (*chosen, lengths, place), (limit, *ends))


@st.composite
def weights(draw: st.DrawFn) -> Case:
    """Calls of sampling: rows of equal weights too, of one huge one, and thresholds that are a weight."""
    name = draw(st.sampled_from(("sum_from", "count_from", "sum_up_to", "first_above", "raise_threshold",
                                 "share_of", "draw", "share_by", "draw_by", "temper")))  # fmt: skip
    rows, columns, most = draw(sides), draw(terms), draw(st.sampled_from((1, 3, 1 << 26, WEIGHT_MAX)))
    shared = draw(st.sampled_from((1, rows)))
    values = whole_numbers(draw(seeds), rows, columns, Integers(draw(st.sampled_from((0, -most))), most))
    thresholds = whole_numbers(draw(seeds), shared, 1, Integers(0, most))
    more = draw(st.sampled_from((0, 1, 1 << 25)))
    if name in ("sum_from", "count_from"):
        return Case(OPERATORS[name], (values, thresholds), (more,))
    if name == "sum_up_to":
        return Case(OPERATORS[name], (values, thresholds), ())
    highest = draw(st.sampled_from((2, 1 << 26, TOTAL_MAX)))
    sums, totals = (whole_numbers(draw(seeds), rows, count, Integers(0, highest)) for count in (columns, 1))
    if name == "first_above":
        return Case(OPERATORS[name], (sums, totals), ())
    if name == "raise_threshold":
        goal = whole_numbers(draw(seeds), draw(st.sampled_from((1, rows))), 1, Integers(0, highest))
        return Case(OPERATORS[name], (thresholds, totals, goal), (more,))
    if name == "share_of":
        nano = draw(st.one_of(st.sampled_from((0, 1, NANO // 3, NANO - 1, NANO)), st.integers(0, NANO)))
        return Case(OPERATORS[name], (totals,), (nano,))
    if name == "share_by":
        return Case(OPERATORS[name], (totals, whole_numbers(draw(seeds), rows, 1, Integers(0, NANO))), ())
    if name == "temper":
        highest = draw(st.sampled_from((0, 1, 700_000, TEMPERATURE_MICRO_MAX)))
        temperatures = whole_numbers(draw(seeds), rows, 1, Integers(0, highest))
        return Case(
            OPERATORS[name], (fractions(draw(seeds), rows, columns, draw(ranges(-800, 900))), temperatures), ()
        )
    numbers = whole_numbers(draw(seeds), rows, 1, Integers(0, 1 << 28))
    places = whole_numbers(draw(seeds), shared, 1, Integers(0, 1 << 28))
    if name == "draw_by":
        numbers = whole_numbers(
            draw(seeds), rows, KEY_COLUMNS, Integers(0, draw(st.sampled_from((0, KEY_PART_MAX))))
        )
    return Case(OPERATORS[name], (totals, numbers, places), ())


TRANSFORMER_CASES = st.one_of(
    grouped_products(), layouts(), attention(), rotations(), whole(), tuning(), decoding(), weights()
)

_DOUBLES, _WHOLE = (TensorType(element, 2, 4) for element in (ElementType.BINARY64, ElementType.INT64))
_COLUMN, _ONE = (TensorType(ElementType.INT64, rows, 1) for rows in (2, 1))
_COLUMNS_OF_ALL, _ANGLES = TensorType(ElementType.INT64, 8, 1), TensorType(ElementType.BINARY64, 2, 2)
_VALUE = TensorType(ElementType.BINARY64, 2, 1)
TRANSFORMER_SHAPES: dict[str, list[tuple[list[TensorType], Attributes]]] = {
    "contract_groups": [
        ([_WHOLE, _WHOLE, _COLUMN, _COLUMN], (15, 2)),
        ([_WHOLE, _WHOLE, _COLUMN], (20, 1)),
    ],
    "split_heads": [([_DOUBLES], (2, 4))],
    "join_heads": [([_DOUBLES], (1, 2))],
    "transpose_groups": [([_DOUBLES], (2,))],
    "positions": [([_ONE], (1, 2))],
    "causal": [([_DOUBLES, _COLUMN], (2, 1, 0))],
    "since": [([_DOUBLES, _COLUMN], (2, 0))],
    "scale_columns": [([_DOUBLES, _COLUMNS_OF_ALL], ())],
    "place_rows": [([_WHOLE, _WHOLE, _ONE], (1, 1))],
    "rotary": [([_COLUMN], (10_000, 4, 1))],
    "rotate": [([_DOUBLES, _ANGLES, _ANGLES], ())],
    "load_integers": [([TensorType(ElementType.INT16, 2, 4)], (-9, 9))],
    "number": [([], (7,))],
    "scale_rows": [([_WHOLE, _COLUMN], (15,))],
    "find": [([_DOUBLES, _VALUE], ())],
    "gather_groups": [([_DOUBLES, _COLUMN], (2,))],
    "learning_rate": [([], (1_000, 2, 3, 10))],
    "step_place": [([], (3, 4, 5))],
    "store_integers": [([_WHOLE], (-9, 9)), ([_WHOLE], (0, 40_000))],
    "token_at": [([_WHOLE, _WHOLE, _COLUMN, _ONE], ())],
    "sum_from": [([_WHOLE, _COLUMN], (1,)), ([_WHOLE, _ONE], (0,))],
    "count_from": [([_WHOLE, _COLUMN], (1,))],
    "sum_up_to": [([_WHOLE, _COLUMN], ())],
    "first_above": [([_WHOLE, _COLUMN], ())],
    "raise_threshold": [([_ONE, _COLUMN, _COLUMN], (4,))],
    "share_of": [([_COLUMN], (NANO,))],
    "draw": [([_COLUMN, _COLUMN, _ONE], ())],
    "share_by": [([_COLUMN, _COLUMN], ())],
    "draw_by": [([_COLUMN, _WHOLE, _ONE], ())],
    "temper": [([_DOUBLES, _COLUMN], ())],
    "until": [([_COLUMN, _COLUMN, _COLUMN, _ONE], (50, 7))],
}
"""Legal calls of each."""
