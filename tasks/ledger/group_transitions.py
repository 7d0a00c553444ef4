"""Transactions of groups (market.md 5.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.ledger.group_records import MEMBERS_MAX, SPARES_PER
from tasks.ledger.groups import SEATS_PER_STEP, add_seats, cancel_group, create_group
from tasks.ledger.open_task import LEDGER_ADDRESS, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.settlement import budget_of
from tasks.spec import SPEC_LIMIT_BYTES, JobSpec, decode_spec

__all__ = ["ADD_SEATS", "CANCEL_GROUP", "CREATE_GROUP", "group_rules", "spares_max"]

CREATE_GROUP: Final = 0x58
ADD_SEATS: Final = 0x59
CANCEL_GROUP: Final = 0x5A
AMOUNT_LIMIT: Final = 1 << 127


def spares_max(members: int) -> int:
    """Return how many spares a group may have."""
    return -(-members // SPARES_PER)


class _NewGroup(NamedTuple):
    """The job of seat 0, as it was sent, and how many seats there shall be."""

    spec: JobSpec
    raw: bytes
    members: int
    spares: int


class _NewSeats(NamedTuple):
    """The states that the next seats of a group start from; empty for spares."""

    group: bytes
    roots: tuple[bytes, ...]
    amount: int


def _decode_create(payload: list[Any]) -> _NewGroup:
    match payload:
        case [bytes(raw), int(members), int(spares)] if (
            len(raw) <= SPEC_LIMIT_BYTES and 1 <= members <= MEMBERS_MAX and 0 <= spares <= spares_max(members)
        ):
            spec = decode_spec(raw)
            if spec.is_metered:
                raise DecodeError("containers have no groups")
            return _NewGroup(spec, raw, members, spares)
        case _:
            raise DecodeError(
                f"[specification bytes, members, spares] expected: 1 to {MEMBERS_MAX} members, "
                f"a spare for {SPARES_PER} at most"
            )


def _decode_seats(payload: list[Any]) -> _NewSeats:
    match payload:
        case [bytes(group), list(roots), int(amount)] if (
            len(group) == HASH_BYTES and 1 <= len(roots) <= SEATS_PER_STEP and 0 <= amount < AMOUNT_LIMIT
            and all(type(root) is bytes and len(root) in (0, HASH_BYTES) for root in roots)
        ):  # fmt: skip
            return _NewSeats(group, tuple(roots), amount)
        case _:
            raise DecodeError(f"[group, roots, amount] expected, 1 to {SEATS_PER_STEP} roots")


def _decode_group(payload: list[Any]) -> bytes:
    match payload:
        case [bytes(group)] if len(group) == HASH_BYTES:
            return group
        case _:
            raise DecodeError("[group] expected")


def group_rules(
    parameters: TaskParameters, scope: Callable[[Overlay, Context], Scope]
) -> tuple[Rule[Any], ...]:  # fmt: skip
    """Return the kinds of transactions of groups."""

    def create(state: Overlay, new: _NewGroup, context: Context) -> None:
        create_group(
            scope(state, context), context.sender, context.nonce, new.spec, new.raw, new.members, new.spares
        )

    def add(state: Overlay, seats: _NewSeats, context: Context) -> None:
        add_seats(scope(state, context), context.sender, seats.group, seats.roots, seats.amount)

    def cancel(state: Overlay, group: bytes, context: Context) -> None:
        cancel_group(scope(state, context), context.sender, group)

    return (
        # As for a task: a program that no node has built before, and then a bid that looks at all machines.
        Rule(
            CREATE_GROUP, "create_group", 16_000_000, _decode_create,
            lambda new: budget_of(new.spec, parameters).total, create,
            call=CallForm(
                LEDGER_ADDRESS, "createGroup(bytes specification, uint32 members, uint32 spares)", is_payable=True
            ),
        ),
        # Each seat has a record, an escrow, and steps of its own at its match and its end.
        Rule(
            ADD_SEATS, "add_seats", 4_000_000, _decode_seats, lambda seats: seats.amount, add,
            call=CallForm(LEDGER_ADDRESS, "addSeats(bytes32 group, bytes roots)", value_at=2, nested=("roots",)),
        ),
        Rule(
            CANCEL_GROUP, "cancel_group", 2_000_000, _decode_group, lambda _: 0, cancel,
            call=CallForm(LEDGER_ADDRESS, "cancelGroup(bytes32 group)"),
        ),
    )  # fmt: skip
