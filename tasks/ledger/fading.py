"""Counts that halve with time, in integers: the same on every machine, however often they are brought up to date.

See market.md 3.4.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

__all__ = ["COUNT", "faded"]

COUNT: Final = 1_000_000
"""One outcome: counts are kept in millionths, so that what rounding takes is nothing beside what time takes."""
TICKS: Final = 64
"""Parts of a half-life after which counts fade. A power of two: a tick's factor takes square roots alone."""
_BITS: Final = 96


def _factors() -> tuple[int, ...]:
    """Return 2^(-tick / TICKS) for each tick of a half-life, times 2^_BITS and rounded down."""
    factor = 1 << (_BITS - 1)
    for _ in range(TICKS.bit_length() - 1):
        factor = isqrt(factor << _BITS)
    factors = [1 << _BITS]
    for _ in range(TICKS - 1):
        factors.append(factors[-1] * factor >> _BITS)
    return tuple(factors)


_FACTORS: Final = _factors()


def faded(count: int, from_ms: int, to_ms: int, half_life_ms: int) -> int:
    """Return what is left at ``to_ms`` of a count of ``from_ms``.

    Ticks lie on the clock of the chain and not at the count's own times, so a count that is read and written often
    fades like one that lies still.
    """
    tick_ms = half_life_ms // TICKS
    halvings, rest = divmod(max(0, to_ms // tick_ms - from_ms // tick_ms), TICKS)
    return (count * _FACTORS[rest] >> _BITS) >> halvings if halvings < count.bit_length() else 0
