"""Quantities of the Kubernetes API: ``100m``, ``64Mi``, ``2``."""

from __future__ import annotations

from typing import Final

__all__ = ["amount"]

_UNITS: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 1 << 10, "Mi": 1 << 20,
    "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_DIGITS_MAX: Final = 20


def amount(text: object) -> int:
    """Return a quantity in thousandths, 0 for what is none."""
    whole = str(text)
    number = whole.rstrip("mkKMGTPi")
    unit = whole[len(number) :]
    if not number.isascii() or not number.isdigit() or len(number) > _DIGITS_MAX:
        return 0
    if unit == "m":
        return int(number)
    return int(number) * 1_000 * _UNITS[unit] if unit in _UNITS else 0
