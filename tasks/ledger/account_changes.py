"""What a block changed of accounts, and by what: the history of an account is made of it.

All that moves money leaves a trace in its block: a fee and a tip in a receipt, a transfer in its transaction,
everything else in an event. So nothing is kept for it but places, and whoever trusts a block's receipts can add up
an account. The changes of an account come to the difference of its free balance, and those of what it has bonded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from billing.escrow import LOCKED, PAID, REFUNDED, Purpose
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.receipts import Event, EventType, Receipt
from state.primitives.transactions import CALL_KIND, Transaction
from state.transition.calls import SYSTEM_PREFIX
from state.transition.epochs import JAILED
from state.transition.slashing import SLASHED
from state.transition.staking import STAKED, UNBONDED
from state.transition.transfer import TRANSFER_KIND
from tasks.ledger import carriage
from tasks.ledger.events import EVENTS

__all__ = [
    "KINDS",
    "Change",
    "Holding",
    "block_changes",
    "changes_of_events",
    "named_in",
    "names",
    "rewarding",
    "transaction_changes",
]

_NOBODY: Final = bytes(ADDRESS_BYTES)
_Values = Mapping[str, Any]


class Holding(StrEnum):
    """Where money of an account lies: free, or staked and being withdrawn from there."""

    BALANCE = "balance"
    BONDED = "bonded"


class Change(NamedTuple):
    """``amount`` is negative where it left; ``other`` is whom it went to or came from, ``escrow`` where it was."""

    account: bytes
    kind: str
    holding: Holding
    amount: int
    other: bytes | None = None
    escrow: bytes | None = None


class _Moves(NamedTuple):
    """What an event moves: amounts by name of the parameter, with their signs."""

    kind: str
    account: str
    signs: tuple[tuple[Holding, int, str], ...]
    other: str | None = None


_MOVES: Final[Mapping[tuple[bytes, bytes], _Moves]] = {
    (event.address, event.topic): moves
    for event, moves in (
        (
            STAKED,
            _Moves("stake", "validator", ((Holding.BALANCE, -1, "amount"), (Holding.BONDED, 1, "amount"))),
        ),
        (
            UNBONDED,
            _Moves("unbonded", "validator", ((Holding.BALANCE, 1, "amount"), (Holding.BONDED, -1, "amount"))),
        ),
        (SLASHED, _Moves("slashed", "operator", ((Holding.BONDED, -1, "amount"),))),
        (JAILED, _Moves("jailed", "validator", ((Holding.BONDED, -1, "burned"),))),
        (carriage.FUNDED, _Moves("carriage_funded", "payer", ((Holding.BALANCE, -1, "amount"),))),
        (carriage.RETURNED, _Moves("carriage_returned", "payer", ((Holding.BALANCE, 1, "amount"),))),
        (carriage.PAID, _Moves("carriage_paid", "relay", ((Holding.BALANCE, 1, "amount"),), "payer")),
    )
}
_ESCROW: Final[Mapping[tuple[bytes, bytes], tuple[str, int]]] = {
    (LOCKED.address, LOCKED.topic): ("from", -1),
    (PAID.address, PAID.topic): ("to", 1),
    (REFUNDED.address, REFUNDED.topic): ("to", 1),
}
_UNKNOWN_PURPOSE: Final = "escrow"
KINDS: Final = (
    "fee",
    "transfer",
    "tips",
    "slash_reward",
    *sorted({moves.kind for moves in _MOVES.values()}),
    *(purpose.name.lower() for purpose in Purpose),
    _UNKNOWN_PURPOSE,
)
"""What an account's money can have moved for."""


def _type_of(event: Event) -> EventType | None:
    return EVENTS.get((event.address, event.topics[0]))


def _decoded(event: Event, known: EventType | None) -> _Values:
    """Return the values of an event; none of one that is declared otherwise here."""
    try:
        return known.decode(event) if known is not None else {}
    except DecodeError:
        return {}


def names(event: Event) -> list[bytes]:
    """Return the accounts that an event names."""
    known = _type_of(event)
    values = _decoded(event, known)
    if known is None or not values:
        return []
    found = (values[name] for name, kind, _ in known.parameters if kind == "address")
    return [address for address in found if address != _NOBODY and not address.startswith(SYSTEM_PREFIX)]


def named_in(events: Iterable[Event]) -> tuple[bytes, ...]:
    """Return the accounts that events name, each once, in the order of their first mention."""
    return tuple(dict.fromkeys(address for event in events for address in names(event)))


def rewarding(events: Iterable[Event]) -> list[bytes]:
    """Return the operators for whose faults somebody is rewarded: who that is, their records say."""
    found = (_decoded(event, SLASHED) for event in events if event.topics[0] == SLASHED.topic)
    return [values["operator"] for values in found if values and values["reward"]]


def changes_of_events(events: Iterable[Event], reporter_of: Callable[[bytes], bytes]) -> list[Change]:
    """Return what events tell of money; ``reporter_of`` names who reported an operator that was slashed."""
    changes: list[Change] = []
    for event in events:
        key = event.address, event.topics[0]
        values = _decoded(event, _type_of(event))
        if not values:
            continue
        if (party := _ESCROW.get(key)) is not None:
            name, sign = party
            if values[name].startswith(SYSTEM_PREFIX):  # the check fund: nobody's account
                continue
            kind = _purpose(values["purpose"])
            changes.append(
                Change(values[name], kind, Holding.BALANCE, sign * values["amount"], escrow=values["escrow"])
            )
        elif (moves := _MOVES.get(key)) is not None:
            account, other = values[moves.account], values[moves.other] if moves.other else None
            of = partial(Change, account, moves.kind, other=other)
            changes += [of(holding, sign * values[name]) for holding, sign, name in moves.signs if values[name]]
            if moves.kind == "slashed" and values["reward"]:
                reward = values["reward"]
                changes.append(
                    Change(reporter_of(account), "slash_reward", Holding.BALANCE, reward, other=account)
                )
    return changes


def _purpose(number: int) -> str:
    try:
        return Purpose(number).name.lower()
    except ValueError:  # of a later version
        return _UNKNOWN_PURPOSE


def transaction_changes(transaction: Transaction, receipt: Receipt) -> list[Change]:
    """Return what a transaction, its sender recovered, did to accounts: its fee, and more where it succeeded."""
    sender = transaction.sender
    changes = [Change(sender, "fee", Holding.BALANCE, -receipt.gas_used * receipt.effective_gas_price)]
    if receipt.status != 1:
        return changes
    if transaction.kind in (TRANSFER_KIND, CALL_KIND):
        to, value = transaction.payload[:2]
        if value and not to.startswith(SYSTEM_PREFIX):  # what a contract takes it tells by its events
            changes.append(Change(sender, "transfer", Holding.BALANCE, -value, other=to))
            changes.append(Change(to, "transfer", Holding.BALANCE, value, other=sender))
    # A fault is proven by the block and by no transaction.
    return changes + changes_of_events(receipt.events, lambda _operator: _NOBODY)


def block_changes(
    leader: bytes, tips: int, events: Iterable[Event], reporter_of: Callable[[bytes], bytes]
) -> list[Change]:
    """Return what a block did by itself: the tips to its leader, and what its own events tell."""
    rewards = [Change(leader, "tips", Holding.BALANCE, tips)] if tips else []
    return rewards + changes_of_events(events, reporter_of)
