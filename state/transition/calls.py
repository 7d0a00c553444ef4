"""Calls of Ethereum's forms: which kind ``[to, value, data]`` is, and how a kind is spelled as a call.

See chain.md 6.3.

A call to an account is a transfer; one to a system contract is the kind whose function its selector names, the
arguments are the items of the payload. What an item cannot be in Solidity's types (an array, a record) travels as
``bytes``: its canonical encoding. The value sent is to the last unit what the kind moves, so that what a wallet
shows is what leaves the account.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from state.primitives.abi import AbiValue, Function
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.envelope import TRANSACTION_LIMIT_BYTES
from state.primitives.errors import DecodeError, NotCanonical

__all__ = ["NOTE_LIMIT_BYTES", "SYSTEM_PREFIX", "CallForm", "reason_text", "split_call"]

SYSTEM_PREFIX: Final = bytes(18) + b"\x07"
"""Addresses 0x..0700 to 0x..07ff are the chain's own; nobody holds their keys: value sent there would be lost."""
NOTE_LIMIT_BYTES: Final = 256
"""Data of a call to an account, which nothing reads: a transfer weighs the same with and without, so it may not be
the way to fill blocks for little (tests/tasks/ledger/test_weights.py)."""


class CallForm:
    """How a kind is called: ``contract``, ``function``, and which items of the payload are not plain arguments.

    ``value_at`` is the place in the payload of the amount that is sent as the call's value; ``nested`` names the
    ``bytes`` parameters that are the canonical encoding of an item. A kind that moves what no item says
    (``is_payable`` without ``value_at``) is sent that as value too.
    """

    __slots__ = ("contract", "function", "is_payable", "nested", "value_at")

    def __init__(
        self, contract: bytes, declaration: str, *, value_at: int | None = None, nested: Iterable[str] = (),
        is_payable: bool = False,
    ) -> None:  # fmt: skip
        self.contract: Final = contract
        self.function: Final = Function(declaration)
        self.value_at: Final = value_at
        self.nested: Final = frozenset(nested)
        self.is_payable: Final = is_payable or value_at is not None
        if not self.nested <= {p.name for p in self.function.parameters if p.type == "bytes"}:
            raise AssertionError(f"nested parameters are bytes: {declaration}")

    def payload_of(self, value: int, data: bytes) -> list[Any]:
        """Return the payload of a call with ``data``. Raises DecodeError."""
        payload: list[Any] = []
        for parameter, argument in zip(self.function.parameters, self.function.decode(data), strict=True):
            if parameter.name in self.nested:
                assert isinstance(argument, bytes)
                try:
                    argument = decode(argument, limit_bytes=TRANSACTION_LIMIT_BYTES)
                except DecodeError:
                    raise DecodeError(f"{parameter.name} is not canonical CBOR") from None
            payload.append(argument)
        if self.value_at is not None:
            payload.insert(self.value_at, value)
        return payload

    def call_of(self, payload: list[Value], moves: int) -> tuple[int, bytes]:
        """Return value and data of the call that says ``payload``, whose kind moves ``moves``."""
        items = list(payload)
        if self.value_at is not None:
            del items[self.value_at]
        arguments: list[AbiValue] = []
        for parameter, item in zip(self.function.parameters, items, strict=True):
            if parameter.name in self.nested:
                item = encode(item)
            assert isinstance(item, int | bytes | str), f"{parameter.name} is {parameter.type}"
            arguments.append(item)
        return moves, self.function.encode(*arguments)


def reason_text(error: DecodeError) -> str:
    """Return why a call is refused; of bytes that are no CBOR the codec's own text would say nothing."""
    return "an argument is not canonical CBOR" if isinstance(error, NotCanonical) else str(error)


def split_call(payload: list[Any]) -> tuple[bytes, int, bytes]:
    """Return recipient, value and data of a call's payload. Raises DecodeError."""
    match payload:
        case [bytes(to), int(value), bytes(data)] if len(to) == ADDRESS_BYTES and value >= 0:
            return to, value, data
        case _:
            raise DecodeError("not a call: [to, value, data] expected")
