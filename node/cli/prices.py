"""Prices of work as people read them: per 10^12 work units, and by the hour of a machine."""

from __future__ import annotations

from typing import Final

from node.cli.output import show_amount

__all__ = ["PER_TERA_UNIT", "show_hour_price"]

PER_TERA_UNIT: Final = "per 10^12 work units"
SHOWN_UNIT: Final = 10**12
"""An hour's price follows from a measured rate: digits beyond a millionth of a DKB mean nothing."""


def show_hour_price(amount: int, *, has_gpus: bool) -> str:
    """Return what an hour of one GPU costs, or of one core of a machine without GPUs."""
    shown = amount - amount % SHOWN_UNIT or amount
    return f"{show_amount(shown)} a {'GPU' if has_gpus else 'core'}-hour"
