"""Accounts and the supply: free balances, nonces, what was issued and what was burned (chain.md 8.4).

A record is ``nonce (8) || balance (16)``, big-endian, read as one integer of 192 bits: adding to a balance, or one
to the nonce, is one addition. Balances cannot overflow because the issued supply is below 2^127 (checked when
the genesis is laid down) and every credit comes from a debit. An account of nonce 0 and balance 0 has no record.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from state.primitives.errors import ProtocolError, RecordDamaged
from state.view.overlay import Overlay, Reader
from state.view.records import number_of
from state.view.tables import Table

__all__ = [
    "ACCOUNT_BYTES",
    "AMOUNT_BYTES",
    "BALANCE_MASK",
    "NONCE_ONE",
    "SUPPLY_LIMIT",
    "Account",
    "InsufficientBalance",
    "account_key",
    "balance_of",
    "burn",
    "burned",
    "credit",
    "debit",
    "issued",
    "load_account",
    "nonce_of",
    "save_account",
    "set_issued",
]

ACCOUNT_BYTES: Final = 24
AMOUNT_BYTES: Final = 16
NONCE_ONE: Final = 1 << 128
"""What one nonce adds to a record read as an integer."""
BALANCE_MASK: Final = NONCE_ONE - 1
SUPPLY_LIMIT: Final = 1 << 127
"""The issued supply stays below."""

_PREFIX: Final = bytes([Table.ACCOUNT])
_ISSUED_KEY: Final = bytes([Table.CHAIN]) + b"issued"
_BURNED_KEY: Final = bytes([Table.CHAIN]) + b"burned"


class InsufficientBalance(ProtocolError):
    """The free balance does not cover an amount."""

    code = "insufficient_funds"

    def __init__(self, *, balance: int, needed: int) -> None:
        super().__init__(f"insufficient funds: balance {balance}, needed {needed}")
        self.balance = balance
        self.needed = needed


class Account(NamedTuple):
    """``nonce`` is the count of the account's transactions, ``balance`` what it may freely move."""

    nonce: int
    balance: int


def account_key(address: bytes) -> bytes:
    """Return the state key of the account at ``address``."""
    return _PREFIX + address


def load_account(state: Reader, address: bytes) -> Account:
    """Return the account at ``address``; one that was never used has nonce 0 and balance 0.

    Raises RecordDamaged.
    """
    record = state.get(_PREFIX + address)
    if record is None:
        return Account(0, 0)
    packed = packed_account(_PREFIX + address, record)
    return Account(packed >> 128, packed & BALANCE_MASK)


def packed_account(key: bytes, record: bytes) -> int:
    """Return nonce and balance of the record at ``key`` as one number. Raises RecordDamaged."""
    if len(record) != ACCOUNT_BYTES:
        raise RecordDamaged(f"the record of account 0x{key[1:].hex()} is damaged: {len(record)} bytes")
    return int.from_bytes(record, "big")


def save_account(state: Overlay, address: bytes, account: Account) -> None:
    """Write ``account`` at ``address``, which removes the record of an empty one."""
    _save(state, _PREFIX + address, account.nonce << 128 | account.balance)


def balance_of(state: Reader, address: bytes) -> int:
    """Return the free balance at ``address``."""
    return load_account(state, address).balance


def nonce_of(state: Reader, address: bytes) -> int:
    """Return the next nonce of ``address``."""
    return load_account(state, address).nonce


def credit(state: Overlay, address: bytes, amount: int) -> None:
    """Add ``amount`` to the free balance at ``address``."""
    if amount <= 0:
        if amount < 0:
            raise AssertionError(f"a credit of {amount}")
        return
    key = _PREFIX + address
    record = state.get(key)
    packed = amount if record is None else packed_account(key, record) + amount
    state.put(key, packed.to_bytes(ACCOUNT_BYTES, "big"))


def debit(state: Overlay, address: bytes, amount: int) -> None:
    """Take ``amount`` from the free balance at ``address``.

    Raises InsufficientBalance and then leaves the state as it was.
    """
    if amount <= 0:
        if amount < 0:
            raise AssertionError(f"a debit of {amount}")
        return
    key = _PREFIX + address
    record = state.get(key)
    packed = 0 if record is None else packed_account(key, record)
    if packed & BALANCE_MASK < amount:
        raise InsufficientBalance(balance=packed & BALANCE_MASK, needed=amount)
    _save(state, key, packed - amount)


def issued(state: Reader) -> int:
    """Return what the genesis issued; nothing is issued after it."""
    return _load_amount(state, _ISSUED_KEY)


def burned(state: Reader) -> int:
    """Return what was burned since the genesis."""
    return _load_amount(state, _BURNED_KEY)


def burn(state: Overlay, amount: int) -> None:
    """Count ``amount`` as burned; the caller has taken it from where it was."""
    if amount < 0:
        raise AssertionError(f"a burn of {amount}")
    if amount:
        state.put(_BURNED_KEY, (burned(state) + amount).to_bytes(AMOUNT_BYTES, "big"))


def set_issued(state: Overlay, amount: int) -> None:
    """Write the issued supply, once, when the genesis is laid down."""
    state.put(_ISSUED_KEY, amount.to_bytes(AMOUNT_BYTES, "big"))


def _load_amount(state: Reader, key: bytes) -> int:
    record = state.get(key)
    return 0 if record is None else number_of(record, AMOUNT_BYTES, what=f"the amount 0x{key.hex()}")


def _save(state: Overlay, key: bytes, packed: int) -> None:
    if packed:
        state.put(key, packed.to_bytes(ACCOUNT_BYTES, "big"))
    else:
        state.delete(key)
