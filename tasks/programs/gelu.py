"""The GELU of GPT-2 in its tanh form, and its slope, of operators that every engine computes alike (R154).

``x (1 + tanh(z)) / 2`` is ``x / (1 + exp(-2 z))``, with ``z = sqrt(2 / pi) (x + 0.044715 x^3)`` (Hendrycks and
Gimpel, arXiv 1606.08415). No library's tanh is used.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Final, NamedTuple

from tasks.programs.builder import Builder

__all__ = ["GELU_CONSTANTS", "SLOPE_CONSTANTS", "Gelu", "gelu", "gelu_slope"]

_EXPONENT: Final = 3
"""Arguments are bounded by 2^3: beyond it the sigmoid is 0 or 1 within 2^-70."""
_LINEAR: Final = 2.0 * sqrt(2.0 / pi)
_CUBIC: Final = 0.044715 * _LINEAR
GELU_CONSTANTS: Final = (_LINEAR, _CUBIC)
SLOPE_CONSTANTS: Final = (3.0 * _CUBIC,)


class Gelu(NamedTuple):
    """Tensors of a GELU: ``inner`` is its result, ``sigmoid`` is of ``bounded``, whose ``square`` is kept."""

    bounded: int
    square: int
    sigmoid: int
    inner: int


def gelu(build: Builder, values: int) -> Gelu:
    """Return the GELU of values."""
    one, zero = build.constant(1.0), build.constant(0.0)
    bounded = build.call("bound", values, attributes=(_EXPONENT,))
    square = build.call("multiply", bounded, bounded)
    factor = build.call("multiply", square, build.constant(_CUBIC))
    twice = build.call("multiply", bounded, build.call("add", factor, build.constant(_LINEAR)))
    powers = build.call("exp", build.call("subtract", zero, twice))
    sigmoid = build.call("divide", one, build.call("add", powers, one))
    inner = build.call("multiply", build.call("select", values, values, bounded), sigmoid)
    return Gelu(bounded, square, sigmoid, inner)


def gelu_slope(build: Builder, of: Gelu) -> int:
    """Return the derivative of a GELU by its values."""
    one = build.constant(1.0)
    factor = build.call("multiply", of.square, build.constant(SLOPE_CONSTANTS[0]))
    factor = build.call("multiply", of.bounded, build.call("add", factor, build.constant(_LINEAR)))
    bend = build.call("multiply", factor, build.call("subtract", one, of.sigmoid))
    return build.call("multiply", of.sigmoid, build.call("add", bend, one))
