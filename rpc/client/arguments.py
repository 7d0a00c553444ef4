"""Checks the arguments of the client's methods before anything is sent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rpc.client.core import ClientOptions
from rpc.client.errors import ArgumentInvalid
from state.primitives.address import ADDRESS_BYTES
from state.primitives.hashing import HASH_BYTES
from state.primitives.keys import SecretKey

__all__ = [
    "check_address",
    "check_amount",
    "check_data",
    "check_fees",
    "check_hash",
    "check_key",
    "check_kind",
    "check_options",
    "check_timeout",
]

TIMEOUT_S_MAX: Final = 10**9
AMOUNT_LIMIT: Final = 2**256
ROUNDS_MAX: Final = 100


def check_address(name: str, value: object) -> None:
    """Check that the argument ``name`` is an address. Raises ArgumentInvalid."""
    _check_bytes(name, value, ADDRESS_BYTES, "an address")


def check_hash(name: str, value: object) -> None:
    """Check that the argument ``name`` is a hash, as the id of a task is. Raises ArgumentInvalid."""
    _check_bytes(name, value, HASH_BYTES, "a hash")


def check_amount(name: str, value: object) -> None:
    """Check that the argument ``name`` is an amount. Raises ArgumentInvalid."""
    if type(value) is not int:
        raise ArgumentInvalid(f"{name}: an amount is an int of 10^-18 DKB, not {type(value).__name__}")
    if not 0 <= value < AMOUNT_LIMIT:
        raise ArgumentInvalid(f"{name}: an amount is from 0 to 2^256 - 1, not {value}")


def check_data(name: str, value: object) -> None:
    """Check that the argument ``name`` is bytes of any number. Raises ArgumentInvalid."""
    if not isinstance(value, bytes):
        raise ArgumentInvalid(f"{name}: bytes expected, not {type(value).__name__}")


def check_key(name: str, value: object) -> None:
    """Check that the argument ``name`` is a key that signs. Raises ArgumentInvalid, which does not repeat it."""
    if not isinstance(value, SecretKey):
        raise ArgumentInvalid(f"{name}: a SecretKey expected, not {type(value).__name__}")


def check_kind(name: str, value: object, kinds: Collection[str]) -> None:
    """Check that the argument ``name`` is one of ``kinds``. Raises ArgumentInvalid."""
    if value not in kinds:
        raise ArgumentInvalid(f"{name}: one of {', '.join(kinds)} expected, not {str(value)[:80]!r}")


def check_timeout(name: str, value: object) -> None:
    """Check that the argument ``name`` is a time in seconds. Raises ArgumentInvalid."""
    # Not a number is neither below nor above any.
    if not isinstance(value, int | float) or not 0 <= value <= TIMEOUT_S_MAX:
        raise ArgumentInvalid(f"{name}: seconds from 0 to {TIMEOUT_S_MAX} expected, not {value!r}")


def check_fees(fee: int | None, tip: int | None) -> None:
    """Check what is offered for a unit of gas, where it is given. Raises ArgumentInvalid."""
    for name, value in (("max_fee_per_gas", fee), ("max_priority_fee_per_gas", tip)):
        if value is not None:
            check_amount(name, value)


def check_options(options: ClientOptions) -> None:
    """Check how patient a client is to be. Raises ArgumentInvalid."""
    if not isinstance(options, ClientOptions):
        raise ArgumentInvalid(f"options: ClientOptions expected, not {type(options).__name__}")
    if options.chain_id is not None and (type(options.chain_id) is not int or not 0 < options.chain_id < 2**63):
        raise ArgumentInvalid(f"chain_id: an int from 1 to 2^63 - 1 expected, not {options.chain_id!r}")
    check_timeout("timeout_s", options.timeout_s)
    check_timeout("pause_s", options.pause_s)
    if type(options.rounds) is not int or not 1 <= options.rounds <= ROUNDS_MAX:
        raise ArgumentInvalid(f"rounds: an int from 1 to {ROUNDS_MAX} expected, not {options.rounds!r}")


def _check_bytes(name: str, value: object, size: int, what: str) -> None:
    if not isinstance(value, bytes):
        raise ArgumentInvalid(f"{name}: {what} is {size} bytes, not {type(value).__name__}")
    if len(value) != size:
        raise ArgumentInvalid(f"{name}: {what} is {size} bytes, not {len(value)}")
