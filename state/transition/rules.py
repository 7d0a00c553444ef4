"""Rules: each is one kind of transaction with its weight and its pure effect; the context of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from state.primitives.genesis import ChainParameters
from state.primitives.receipts import Event
from state.primitives.transactions import Transaction
from state.transition.calls import CallForm
from state.view import Overlay, Reader

__all__ = ["BlockContext", "BlockHook", "Checked", "Context", "Holding", "Invariant", "Rule", "Ticket"]

_Payload = TypeVar("_Payload")


class BlockContext(NamedTuple):
    """The block context of a rule: no other clocks, and no randomness but ``beacon`` (32 bytes)."""

    height: int
    time_ms: int
    base_fee: int
    leader: bytes
    """Address that receives the priority fees."""
    beacon: bytes
    chain: ChainParameters
    chain_id: int
    genesis_hash: bytes
    epoch: int
    steady_ms: int
    """Chain time without the times in which the chain stood still: deadlines count in it."""


class Context(NamedTuple):
    """The transaction context of a rule; ``emit`` appends an event to its receipt."""

    block: BlockContext
    sender: bytes
    nonce: int
    transaction_hash: bytes
    emit: Callable[[Event], None]


class Ticket(NamedTuple):
    """The right of a transaction to a place in the lane: one in a block for each ``subject``, until ``due_ms``."""

    subject: bytes
    due_ms: int


def _nobody(_payload: Any) -> tuple[bytes, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Rule(Generic[_Payload]):
    """One kind of transaction.

    ``gas`` is its fixed weight. ``decode`` turns the payload array into a typed value or raises DecodeError
    (then the transaction is inadmissible). ``moves`` is the most that applying it may take from the sender's
    free balance beside the fee (chain.md 6.4). ``apply`` changes the state or raises a ProtocolError,
    whose code becomes the failed receipt's reason; its changes are then undone. ``checks_first`` promises that
    ``apply`` raises only before its first write and its first event, which spares the record of how to undo it.
    ``touches`` names the accounts beside the sender's that a history should show the transaction under.
    ``call`` is how Ethereum's tools send the kind; state, events and fee are the same as of its own form.
    ``ticket`` returns the ticket of a transaction (state before the block, payload, sender), None if it has none.
    It raises nothing whatever the payload says.
    """

    kind: int
    name: str
    gas: int
    decode: Callable[[list[Any]], _Payload]
    moves: Callable[[_Payload], int]
    apply: Callable[[Overlay, _Payload, Context], None]
    checks_first: bool = False
    touches: Callable[[_Payload], tuple[bytes, ...]] = _nobody
    call: CallForm | None = None
    ticket: Callable[[Reader, Any, bytes], Ticket | None] | None = None


class Checked(NamedTuple):
    """A transaction that passed ``Runtime.check``: known kind, decoded payload, limits; its sender is known.

    ``cost_max`` is the most it can take from the sender's free balance: what its kind may move, and its fee.
    """

    transaction: Transaction
    rule: Rule[Any]
    payload: Any
    cost_max: int


BlockHook = Callable[[Overlay, BlockContext, Callable[[Event], None]], None]
"""Called once a block after its transactions, in the order of the runtime's table: deadlines, unbonding."""

Invariant = Callable[[Overlay], None]
"""Raises AssertionError when a sum that must hold at every block does not; ``changes`` are the block's own."""


class Holding(NamedTuple):
    """A table whose values hold money: the runtime can then check that no block creates or loses any."""

    table: int
    amount_of: Callable[[bytes], int]
    """The amount in the smallest unit that a value of the table holds."""
