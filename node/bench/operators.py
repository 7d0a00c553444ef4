"""``dekube bench operators``: whether work units follow time, for every operator over shapes (market.md 4.6).

A ratio says how many times longer a unit of the operator takes than a unit of the challenge program, which is one
large contraction. Work is paid by units, so a large ratio is work that is paid too little. Figures are processor
time of one thread, the least of several rounds, so other work on the machine matters little. NumPy's products use
one thread if OPENBLAS_NUM_THREADS=1 is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from time import thread_time
from typing import Any, Final, NamedTuple

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.engines.torch_arrays import TorchArrays, has_gpu
from tasks.programs.arrays import Array, Arrays
from tasks.programs.operators import Attributes, Context
from tasks.programs.operators.scalars import constant_bits
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType

__all__ = ["challenge_units_per_s", "run"]

_SHAPES: Final = ((1, 1), (64, 10), (64, 256), (256, 64), (1, 4_096), (4_096, 1), (512, 1_024), (8, 32_768))
_PRODUCTS: Final = ((1, 1, 1), (1, 64, 256), (64, 64, 256), (256, 64, 64), (64, 256, 10), (1, 4_096, 1_024),
                    (512, 512, 512), (16, 32_768, 16), (1_024, 64, 1_024))  # fmt: skip
"""Rows, terms and rows of the other side."""
_GROUPS: Final = ((3, 3, 64, 256), (3, 768, 64, 256), (3, 768, 256, 64), (48, 3, 64, 512), (8, 1, 128, 1_024))
"""Groups, and of each the rows, terms and rows of the other side."""
_CHALLENGE: Final = (1_024, 1_024, 1_024)
_SEED: Final = bytes(32)
_REPEATED_S: Final = 0.002
_INTEGERS: Final = 1 << 14
_WEIGHT: Final = 1 << 26


class _Case(NamedTuple):
    """One call: its types, inputs on the engine and attributes."""

    name: str
    shape: tuple[int, ...]
    types: tuple[TensorType, ...]
    inputs: tuple[Array, ...]
    attributes: Attributes

    def units(self) -> int:
        operator = OPERATORS[self.name]
        return operator.units(self.types, operator.shape(self.types, self.attributes), self.attributes)


def run(*, rounds: int = 9, torch: int = 1) -> dict[str, float]:
    """Measure and return the worst ratio of each operator on each engine, and the worst of all."""
    engines: dict[str, Callable[[], Arrays]] = {"numpy": NumpyArrays}
    if torch and find_spec("torch") is not None:
        engines["torch"] = _torch_on_one_thread
        if has_gpu():
            engines["cuda"] = lambda: TorchArrays("cuda")
    figures: dict[str, float] = {}
    for engine, make in engines.items():
        found = measure(make(), rounds)
        figures[f"{engine}_units_per_s"] = found.units_per_s
        worst: dict[str, float] = {}
        for case, ratio in found.ratios:
            worst[case.name] = max(ratio, worst.get(case.name, 0.0))
        figures |= {f"{engine}_{name}_ratio": ratio for name, ratio in sorted(worst.items())}
        figures[f"{engine}_worst_ratio"] = max(worst.values())
    return figures


def _torch_on_one_thread() -> Arrays:
    import torch

    arrays = TorchArrays()
    torch.set_num_threads(1)
    return arrays


def challenge_units_per_s(arrays: Arrays, rounds: int = 5) -> float:
    """Return the work units a second of the challenge program, at the best of several rounds."""
    challenge = _product(arrays, "contract", _CHALLENGE, 15)
    return challenge.units() / min(_time_s(arrays, challenge) for _ in range(rounds))


class Measured(NamedTuple):
    """Units a second of the challenge program, and the ratio of each call."""

    units_per_s: float
    ratios: list[tuple[_Case, float]]


def measure(arrays: Arrays, rounds: int) -> Measured:
    """Time all operators on one engine, in rounds, so that a busy second spoils one round of a case only."""
    challenge = _product(arrays, "contract", _CHALLENGE, 15)
    cases = [challenge, *_cases(arrays)]
    least = [_time_s(arrays, case) for case in cases]
    for _ in range(rounds - 1):
        least = [min(time_s, _time_s(arrays, case)) for time_s, case in zip(least, cases, strict=True)]
    units_per_s = challenge.units() / least[0]
    ratios = [
        (case, time_s * units_per_s / case.units()) for case, time_s in zip(cases[1:], least[1:], strict=True)
    ]
    return Measured(units_per_s, ratios)


def _time_s(arrays: Arrays, case: _Case) -> float:
    """Return the seconds of one call, of about ``_REPEATED_S`` in all."""
    operator = OPERATORS[case.name]
    step = 0

    def timed(count: int) -> float:
        nonlocal step
        started = thread_time()
        for _ in range(count):
            result = operator.run(arrays, case.inputs, case.attributes, Context(step, _SEED))
            step += 1
        if not arrays.device.startswith("cpu"):
            arrays.store(result)  # waits for the device
        return thread_time() - started

    timed(1)
    count = max(1, int(_REPEATED_S / max(timed(1), 1e-6)))
    return timed(count) / count


def _cases(arrays: Arrays) -> Iterator[_Case]:
    for shape in _SHAPES:
        yield from _elementwise(arrays, shape)
        yield from _rows(arrays, shape)
        yield from _moves(arrays, shape)
        yield from _weights(arrays, shape)
    for sides in _PRODUCTS:
        for bits in (15, 20):
            yield _product(arrays, "contract", sides, bits)
        product = _product(arrays, "contract", sides, 23)
        yield product._replace(attributes=(23, 15))
        yield product._replace(attributes=(28, 15))
    for heads, rows, terms, others in _GROUPS:
        for count in (3, 4):
            product = _product(arrays, "contract_groups", (heads * rows, terms, heads * others), 15)
            yield product._replace(
                shape=(heads, rows, terms, others), types=product.types[:count], inputs=product.inputs[:count],
                attributes=(15, heads),
            )  # fmt: skip
    yield _Case("number", (), (), (), (1,))
    yield _Case("scalar", (), (), (), (constant_bits(0.5),))
    yield _Case("bias_correction", (), (), (), (999_000_000,))
    yield _Case("learning_rate", (), (), (), (1_000_000, 2, 10, 1 << 30))
    for batch in (1, 64, 4_096):
        yield _Case("sample_order", (batch,), (), (), (batch, 1_437))
        yield _Case("sample_order", (batch,), (), (), (batch, 1 << 22))


def _fractions(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).random(shape) + 0.5


def _elementwise(arrays: Arrays, shape: tuple[int, int]) -> Iterator[_Case]:
    kind = TensorType(ElementType.BINARY64, *shape)
    values = arrays.load(_fractions(shape))
    for name, count in (
        ("add", 2), ("bound", 1), ("divide", 2), ("erf", 1), ("exp", 1), ("log", 1), ("multiply", 2),
        ("select", 3), ("square_root", 1), ("store", 1), ("subtract", 2), ("transpose", 1),
    ):  # fmt: skip
        attributes = {"bound": (0,), "store": (100,)}.get(name, ())
        yield _Case(name, shape, (kind,) * count, (values,) * count, attributes)
    yield _Case("load", shape, (kind._replace(element=ElementType.BINARY32),), (values,), ())
    bytes_kind = kind._replace(element=ElementType.UINT8)
    yield _Case("scale_bytes", shape, (bytes_kind,), (arrays.load_bytes(np.ones(shape)),), (4,))
    column = TensorType(ElementType.INT64, shape[0], 1)
    numbers = arrays.load(np.arange(shape[0])[::-1].reshape(-1, 1))
    yield _Case("gather", shape, (kind, column), (values, numbers), ())
    yield _Case("one_hot", shape, (column,), (numbers,), (shape[1],))
    yield _Case("gather_groups", shape, (kind, column), (values, numbers), (1,))


def _moves(arrays: Arrays, shape: tuple[int, int]) -> Iterator[_Case]:
    kind, column = TensorType(ElementType.BINARY64, *shape), TensorType(ElementType.INT64, 1, 1)
    values, first = arrays.load(_fractions(shape)), arrays.load(np.zeros((1, 1)))
    rows, columns = shape
    if columns % 2 == 0:
        yield _Case("split_heads", shape, (kind,), (values,), (1, 2))
        half = TensorType(ElementType.BINARY64, rows, columns // 2)
        angles = arrays.load(_fractions((rows, columns // 2)))
        yield _Case("rotate", shape, (kind, half, half), (values, angles, angles), ())
    if rows % 2 == 0:
        yield _Case("join_heads", shape, (kind,), (values,), (1, 2))
        yield _Case("transpose_groups", shape, (kind,), (values,), (2,))
        few = kind._replace(rows=rows // 2)
        new = arrays.load(_fractions((rows // 2, columns)))
        yield _Case("place_rows", shape, (kind, few, column), (values, new, first), (1, 1))
    yield _Case("causal", shape, (kind, column), (values, first), (1, rows, 0))
    exponents = arrays.load(np.zeros((columns, 1)))
    yield _Case("scale_columns", shape, (kind, column._replace(rows=columns)), (values, exponents), ())
    yield _Case("positions", shape, (column,), (first,), (1, rows))
    numbers = arrays.load(np.arange(rows).reshape(-1, 1))
    yield _Case("rotary", shape, (column._replace(rows=rows),), (numbers,), (100_000, 64, 1))
    whole, exponents = kind._replace(element=ElementType.INT64), arrays.load(np.zeros((rows, 1)))
    yield _Case("scale_rows", shape, (whole, column._replace(rows=rows)), (values, exponents), (15,))
    yield _Case("find", shape, (kind, kind._replace(columns=1)), (values, values[:, :1]), ())
    narrow = arrays.from_content(np.ones(shape, dtype="<i2").tobytes(), "i2", *shape)
    yield _Case("load_integers", shape, (kind._replace(element=ElementType.INT16),), (narrow,), (-9, 9))


def _rows(arrays: Arrays, shape: tuple[int, int]) -> Iterator[_Case]:
    for turned in (False, True):  # as the transposed memory of a tensor too
        kind = TensorType(ElementType.BINARY64, *(shape[::-1] if turned else shape))
        values = arrays.load(_fractions(shape))
        values = values.T if turned else values
        column = TensorType(ElementType.INT64, kind.rows, 1)
        exponents = arrays.load(np.zeros((kind.rows, 1)))
        yield _Case("row_maximum", (*shape, turned), (kind,), (values,), ())
        yield _Case("row_sum", (*shape, turned), (kind, column), (values, exponents), ())
        for bits in (15, 40):
            yield _Case("row_exponent", (*shape, turned, bits), (kind,), (values,), (bits,))
            yield _Case("quantise", (*shape, turned, bits), (kind, column), (values, exponents), (bits,))


def _weights(arrays: Arrays, shape: tuple[int, int]) -> Iterator[_Case]:
    kind = TensorType(ElementType.INT64, *shape)
    column, one = kind._replace(columns=1), TensorType(ElementType.INT64, 1, 1)
    random, rows = np.random.default_rng(9), shape[0]
    weights = arrays.load(random.integers(0, _WEIGHT, shape))
    thresholds = arrays.load(random.integers(0, _WEIGHT, (rows, 1)))
    totals, place = arrays.load(np.full((rows, 1), _WEIGHT * shape[1])), arrays.load(np.ones((1, 1)))
    numbers = arrays.load(np.arange(rows).reshape(-1, 1))
    for name in ("sum_from", "count_from"):
        yield _Case(name, shape, (kind, column), (weights, thresholds), (1 << 20,))
    yield _Case("sum_up_to", shape, (kind, column), (weights, thresholds), ())
    yield _Case("first_above", shape, (kind, column), (weights, thresholds), ())
    yield _Case("raise_threshold", shape, (column, column, column), (thresholds, totals, totals), (1 << 20,))
    yield _Case("share_of", shape, (column,), (totals,), (900_000_000,))
    yield _Case("draw", shape, (column, column, one), (totals, numbers, place), ())
    yield _Case("share_by", shape, (column, column), (totals, thresholds), ())
    keys = arrays.load(random.integers(0, 1 << 31, (rows, 4)))
    yield _Case("draw_by", shape, (column, kind._replace(columns=4), one), (totals, keys, place), ())
    fractions = kind._replace(element=ElementType.BINARY64)
    yield _Case("temper", shape, (fractions, column), (arrays.load(_fractions(shape)), numbers), ())


def _product(arrays: Arrays, name: str, shape: Sequence[int], bits: int) -> _Case:
    rows, terms, others = shape
    kinds = [TensorType(ElementType.INT64, count, terms) for count in (rows, others)]
    columns = [TensorType(ElementType.INT64, count, 1) for count in (rows, others)]
    inputs: list[Any] = [
        arrays.load(np.random.default_rng(7).integers(-_INTEGERS, _INTEGERS, (kind.rows, terms))) for kind in kinds
    ]
    inputs += [arrays.load(np.zeros((kind.rows, 1))) for kind in columns]
    return _Case(name, (*shape, bits), (*kinds, *columns), tuple(inputs), (bits,))
