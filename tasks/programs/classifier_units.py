"""The work units of a classifier's step, without its program.

Everybody may send a specification to a node and pay nothing for its refusal. Building a program takes
milliseconds, and this microseconds. A test compares both for all kinds of shapes.
"""

from __future__ import annotations

from tasks.programs.classifier import BITS, HEAD_BITS, ClassifierShape, Rates
from tasks.programs.operators.rows import product_units
from tasks.programs.operators.rules import UNITS
from tasks.programs.operators.scalars import NANO, order_units

__all__ = ["classifier_units"]


def classifier_units(shape: ClassifierShape, rates: Rates) -> int:
    """Return ``classifier_program(shape, rates).units``."""
    batch, features, classes = shape.batch, shape.widths[0], shape.widths[-1]
    keep = 1.0 - rates.learning_rate_nano / NANO * (rates.weight_decay_nano / NANO)
    total = order_units(batch, shape.train_rows) + _constants(shape, rates, keep)
    total += _each(batch * features, "gather", "scale_bytes") + _each(batch, "gather")
    total += _each(batch * classes, "one_hot") + _loss(batch, classes)
    last = len(shape.widths) - 2
    for layer, (inputs, outputs) in enumerate(zip(shape.widths, shape.widths[1:], strict=False)):
        total += _product(batch, inputs, outputs, BITS) + _each(batch * outputs, "add")
        if layer < last:
            total += _activation(shape.activation, batch * outputs)
        bits = HEAD_BITS if layer == last else BITS
        total += _gradients(batch, inputs, outputs, bits)
        if layer:
            total += _each(inputs * outputs, "transpose") + _product(batch, outputs, inputs, bits)
        total += _update(inputs * outputs) + _update(outputs)
        total += _each(inputs * outputs, "multiply") if keep != 1.0 else 0
    return total + _each(shape.widths[1], "store")  # the probe


def _each(elements: int, *names: str) -> int:
    """Return the units of calls of elementwise operators whose results have so many elements."""
    return sum(UNITS[name].call + UNITS[name].element * elements for name in names)


def _exponents(rows: int, terms: int) -> int:
    cost = UNITS["row_exponent"]
    return cost.call + cost.element * rows + cost.term * rows * terms


def _row_sums(rows: int, terms: int) -> int:
    cost = UNITS["row_sum"]
    return _exponents(rows, terms) + cost.call + cost.element * rows + cost.term * rows * terms


def _product(rows: int, terms: int, others: int, bits: int) -> int:
    """Return the units of a contraction of ``rows`` by ``others`` rows, with their quantising."""
    quantise = UNITS["quantise"]
    values = (rows + others) * terms
    quantised = 2 * quantise.call + quantise.element * values + _exponents(rows, terms) + _exponents(others, terms)
    return quantised + product_units("contract", (bits,), rows * others, terms, values)


def _constants(shape: ClassifierShape, rates: Rates, keep: float) -> int:
    """Return the units of what depends on the step and on rates alone. Equal calls are made once."""
    betas = (rates.beta1_nano, rates.beta2_nano)
    values = {0.0, 1.0, 1.0 / shape.batch, rates.learning_rate_nano / NANO, rates.epsilon_nano / NANO, keep}
    values |= {beta / NANO for beta in betas} | {(NANO - beta) / NANO for beta in betas}
    corrections = len(set(betas)) * UNITS["bias_correction"].call
    return len(values) * _each(1, "scalar") + corrections + _each(1, "multiply")


def _loss(batch: int, classes: int) -> int:
    scores = _each(batch * classes, "subtract", "exp", "multiply", "divide", "bound", "subtract", "multiply")
    maximum = _each(batch, "row_maximum") + UNITS["row_maximum"].term * batch * classes
    sums = 2 * _row_sums(batch, classes) + _row_sums(1, batch)
    return scores + maximum + sums + _each(batch, "log", "subtract", "transpose") + _each(1, "multiply")


def _activation(name: str, elements: int) -> int:
    """Return the units of an activation and of the way back through it."""
    if name == "relu":
        return _each(elements, "select", "select")
    forward = ("bound", "subtract", "exp", "add", "divide", "select", "multiply")
    return _each(elements, *forward, "subtract", "multiply", "add", "multiply", "multiply")


def _gradients(batch: int, inputs: int, outputs: int, bits: int) -> int:
    """Return the units of the gradients of a layer's weight and bias."""
    turned = _each(batch * outputs, "transpose") + _each(batch * inputs, "transpose") + _each(outputs, "transpose")
    return turned + _product(outputs, batch, inputs, bits) + _row_sums(outputs, batch)


def _update(elements: int) -> int:
    """Return the units of AdamW for a tensor that does not decay."""
    loads, stores, products = ["load"] * 5, ["store"] * 5, ["multiply"] * 7
    return _each(elements, *loads, *stores, *products, "add", "add", "add", "square_root", "divide", "subtract")
