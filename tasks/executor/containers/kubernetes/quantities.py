"""Quantities of the Kubernetes API: ``100m``, ``64Mi``, ``1.5``, ``1e3``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["amount", "amount_above"]

_UNITS: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 1 << 10, "Mi": 1 << 20,
    "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}  # fmt: skip
_SMALL: Final = {"m": 10**3, "u": 10**6, "n": 10**9}
_QUANTITY: Final = re.compile(
    r"\+?([0-9]{1,20})(?:\.([0-9]{0,20}))?(?:[eE]\+?([0-9]{1,2})|([kMGTPE]i?|Ki|[mun]))?", re.ASCII
)


def amount(text: object) -> int:
    """Return a quantity in thousandths, rounded down; 0 for what is none."""
    found = _parts(text)
    return 0 if found is None else found[0] // found[1]


def amount_above(text: object) -> int:
    """Return a quantity in thousandths, rounded up. Raises ValueError for what is none."""
    found = _parts(text)
    if found is None:
        raise ValueError(f"{str(text)[:40]!r} is not a quantity")
    return -(-found[0] // found[1])


def _parts(text: object) -> tuple[int, int] | None:
    """Return numerator and denominator of a quantity in thousandths, None for what is none."""
    found = _QUANTITY.fullmatch(str(text)) if not isinstance(text, bool) else None
    if found is None:
        return None
    whole, fraction, exponent, unit = found[1], found[2] or "", found[3], found[4] or ""
    top, bottom = int(whole + fraction) * 1_000, 10 ** len(fraction)
    if exponent is not None:
        return top * 10 ** int(exponent), bottom
    return (top, bottom * _SMALL[unit]) if unit in _SMALL else (top * _UNITS[unit], bottom)
