"""Amounts as people write them: texts, errors and logs for people name DKB, never units of 10^-18."""

from __future__ import annotations

from typing import Final

__all__ = ["DECIMALS", "format_amount", "format_units"]

DECIMALS: Final = 18


def format_amount(amount: int) -> str:
    """Return an amount of 10^-18 DKB in DKB, exactly."""
    return format_units(amount, DECIMALS) + " DKB"


def format_units(units: int, decimals: int) -> str:
    """Return ``units`` of 10^-decimals each as a decimal number, every digit of it: people sign what it says."""
    whole, rest = divmod(abs(units), 10**decimals)
    fraction = f"{rest:0{decimals}}".rstrip("0")
    return f"{'-' if units < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"
