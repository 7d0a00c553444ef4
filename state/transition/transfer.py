"""Kind 0x01, the transfer of value: payload ``[to (20 bytes), value]`` (chain.md 6.5)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.transition.calls import SYSTEM_PREFIX
from state.transition.rules import Context, Rule
from state.view import Overlay
from state.view.accounts import SUPPLY_LIMIT, credit, debit

__all__ = ["SYSTEM_PREFIX", "TRANSFER", "TRANSFER_GAS", "TRANSFER_KIND", "Transfer", "transfer_payload"]

TRANSFER_KIND: Final = 0x01
TRANSFER_GAS: Final = 21_000


class Transfer(NamedTuple):
    """Move ``value`` from the sender's free balance to that of ``to``."""

    to: bytes
    value: int


def transfer_payload(to: bytes, value: int) -> list[Value]:
    """Return the payload of a transfer."""
    return [to, value]


def _decode(payload: list[Any]) -> Transfer:
    match payload:
        case [bytes(to), int(value)] if len(to) == ADDRESS_BYTES and 0 <= value < SUPPLY_LIMIT:
            if to.startswith(SYSTEM_PREFIX):
                raise DecodeError("a transfer to a system address would be lost")
            return Transfer(to, value)
    raise DecodeError("not a transfer: [to, value] expected")


def _moves(transfer: Transfer) -> int:
    return transfer.value


def _touches(transfer: Transfer) -> tuple[bytes, ...]:
    return (transfer.to,)


def _apply(state: Overlay, transfer: Transfer, context: Context) -> None:
    debit(state, context.sender, transfer.value)  # raises before it writes
    credit(state, transfer.to, transfer.value)


TRANSFER: Final = Rule(
    kind=TRANSFER_KIND, name="transfer", gas=TRANSFER_GAS, decode=_decode, moves=_moves, apply=_apply,
    checks_first=True, touches=_touches,
)  # fmt: skip
