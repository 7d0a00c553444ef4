"""The chain's check fund: each window pays into it what its audit costs on average, drawn checks are paid from it.

See market.md R31. The fund is the free balance of an account that nobody has a key of. What it has put down for a
check that was drawn lies in the task's escrow, in a pool of its own.
"""

from __future__ import annotations

from typing import Final

from billing.escrow import Pool, Purpose, Vault
from state.primitives.address import ADDRESS_BYTES
from state.view import Reader
from state.view.accounts import balance_of
from tasks.ledger.parameters import TaskParameters

__all__ = ["BURN_FROM", "FUND_ADDRESS", "bears", "fund_balance", "is_below", "pay_in", "put_down", "take_back"]

FUND_ADDRESS: Final = (0x0704).to_bytes(ADDRESS_BYTES, "big")
BURN_FROM: Final = 2
"""Floats from which on what is paid in is burned."""
TASK_PARTS: Final = 4
"""Checks of one task have at most this part of the float, besides those of its first open window."""
KEPT_PARTS: Final = 2
"""This part of the float is kept for checks of the first open windows of tasks."""


def fund_balance(state: Reader) -> int:
    """Return what the fund can put down now."""
    return balance_of(state, FUND_ADDRESS)


def is_below(state: Reader, parameters: TaskParameters) -> bool:
    """Tell whether the fund has less than its float."""
    return fund_balance(state) < parameters.check_fund_float


def _room(state: Reader, parameters: TaskParameters) -> int:
    return max(0, BURN_FROM * parameters.check_fund_float - fund_balance(state))


def pay_in(state: Reader, vault: Vault, amount: int, window: int, parameters: TaskParameters) -> None:
    """Pay up to ``amount`` of a task's verification pool into the fund; what it has no room for is burned."""
    amount = min(amount, vault.held(Pool.VERIFICATION))
    kept = min(amount, _room(state, parameters))
    vault.pay(Pool.VERIFICATION, FUND_ADDRESS, kept, Purpose.CHECK_FUND, None, subject=window)
    vault.burn(Pool.VERIFICATION, amount - kept, Purpose.CHECK_FUND, subject=window)


def bears(state: Reader, vault: Vault, amount: int, parameters: TaskParameters, *, is_first: bool) -> bool:
    """Tell whether the fund puts ``amount`` down for one more check of a task (R31).

    All of it is there for the first open window of a task (``is_first``): all others wait for that. What these may
    hold is bounded. So who keeps the first from being final keeps the fund from nobody.
    """
    left, whole = fund_balance(state) - amount, parameters.check_fund_float
    if is_first:
        return left >= 0
    return left >= whole // KEPT_PARTS and vault.held(Pool.CHECK) + amount <= whole // TASK_PARTS


def put_down(state: Reader, vault: Vault, amount: int) -> bool:
    """Put ``amount`` down for a check, or change nothing where the fund has not so much; tell which."""
    if fund_balance(state) < amount:
        return False
    vault.lock(Pool.CHECK, FUND_ADDRESS, amount, Purpose.CHECK)
    return True


def take_back(state: Reader, vault: Vault, amount: int, window: int, parameters: TaskParameters) -> None:
    """Take ``amount`` back that was put down for a check and is not paid; above its bound the fund burns it."""
    kept = min(amount, _room(state, parameters))
    vault.refund(Pool.CHECK, FUND_ADDRESS, kept, Purpose.CHECK, subject=window)
    vault.burn(Pool.CHECK, amount - kept, Purpose.CHECK, subject=window)
