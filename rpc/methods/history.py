"""The history of an account: transactions that touch it, and changes by blocks themselves."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods import render
from rpc.methods.accounts import ACCOUNT_PARAM
from rpc.methods.light import kept_block
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_mismatch
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AT, BOOLEAN_OUT, HASH_OUT, INTEGER_OUT, address, at, hexed
from rpc.methods.schema import array, make_cursor, nullable, obj, ref
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.requests import ChainRequests
from state.primitives.receipts import Event
from state.transition.slashing import load_slash
from state.view import Reader
from tasks.ledger.account_changes import (
    KINDS,
    Change,
    Holding,
    block_changes,
    names,
    rewarding,
    transaction_changes,
)

__all__ = ["HISTORY_COMPONENTS", "HISTORY_METHODS"]

INDEX_LIMIT: Final = 2**32
"""Places in a block stay below."""
PAGE_MAX: Final = 100

HISTORY_COMPONENTS: Final = {
    "BalanceChange": obj(
        {
            "kind": {"type": "string", "enum": list(KINDS)},
            "holding": {"type": "string", "enum": [str(holding) for holding in Holding]},
            "amount": INTEGER_OUT,
            "other": nullable(ADDRESS_OUT),
            "escrow": nullable(HASH_OUT),
        },
        description="What moved money of an account: negative where it left. The changes of `balance` come to the "
        "difference of its free balance, those of `bonded` to that of its stake and what is withdrawn from it.",
    ),
    "HistoryEntry": obj(
        {
            "block": ref("BlockPosition"),
            "transaction": nullable(ref("Transaction")),
            "succeeded": BOOLEAN_OUT,
            "changes": array(ref("BalanceChange")),
            "events": array(ref("Event")),
        },
        description="A transaction, or what a block did by itself (`transaction` is null, the index is the number "
        "of its transactions), with the changes of the account and the events that name it.",
    ),
}


async def get_history(node: NodeApi, who: bytes, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getAccountHistory``."""
    asked_at = node.head
    match cursor:
        case None:
            before = (asked_at.height + 1, 0)  # the node may have a block more by now
        case ["history", bytes(bound), int(height), int(index)] if (
            bound == who and 0 <= height <= asked_at.height and 0 <= index < INDEX_LIMIT
        ):
            before = (height, index)
        case _:
            raise cursor_mismatch()
    places = await node.request(ChainRequests.history, who, before, limit + 1)
    items = []
    for height, index in places[:limit]:
        loaded = await kept_block(node, height)
        if loaded is None:  # nor is there any before it
            places = []
            break
        await node.yield_turn()  # blocks at hand are shown without a wait
        entry = _of_transaction if index < len(loaded.block.transactions) else _of_block
        items.append(await entry(node, who, loaded, index))
    more = len(places) > limit
    return {
        "at": at(asked_at),
        "items": items,
        "next": make_cursor(["history", who, *places[limit - 1]]) if more else None,
    }


async def _of_transaction(node: NodeApi, who: bytes, loaded: LoadedBlock, index: int) -> Json:
    transaction, receipt = loaded.transaction(index), loaded.receipts[index]
    place = render.block_position(loaded, index)
    return {
        "block": place,
        "transaction": render.transaction(transaction, node.kinds, place),
        "succeeded": receipt.status == 1,
    } | _shown(node, who, transaction_changes(transaction, receipt), receipt.events)


async def _of_block(node: NodeApi, who: bytes, loaded: LoadedBlock, index: int) -> Json:
    events = loaded.hooks.events if loaded.hooks else ()
    reporters: dict[bytes, bytes] = {}
    if operators := rewarding(events):
        reporters = await node.query(node.head.height, _reporters, operators)
    changes = block_changes(loaded.leader, loaded.tips_paid, events, reporters.__getitem__)
    return {"block": render.block_position(loaded, index), "transaction": None, "succeeded": True} | _shown(
        node, who, changes, events
    )


def _reporters(reader: Reader, operators: list[bytes]) -> dict[bytes, bytes]:
    """Return the reporter of each slashed operator; slashing records are permanent."""
    records = {operator: load_slash(reader, operator) for operator in operators}
    return {operator: b"" if record is None else record.reporter for operator, record in records.items()}


def _shown(node: NodeApi, who: bytes, changes: list[Change], events: tuple[Event, ...]) -> dict[str, Json]:
    return {
        "changes": [
            {
                "kind": change.kind,
                "holding": str(change.holding),
                "amount": str(change.amount),
                "other": None if change.other is None else address(change.other),
                "escrow": None if change.escrow is None else hexed(change.escrow),
            }
            for change in changes
            if change.account == who
        ],
        "events": [render.event(event, node.events) for event in events if who in names(event)],
    }


def _weigh(_node: NodeApi, _who: bytes, _cursor: Any, limit: int) -> int:
    return limit


HISTORY_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getAccountHistory",
        "Transactions and block events of an account, newest first",
        get_history,
        obj(
            {
                "at": AT,
                "items": array(ref("HistoryEntry"), maximum=PAGE_MAX),
                "next": NEXT_OUT,
            }
        ),
        (ACCOUNT_PARAM, CURSOR_PARAM, LIMIT_PARAM),
        cost=20,
        weigh=_weigh,
        group="accounts",
        queue=QueueKind.LISTING,
        routes=("/v1/accounts/{address}/history",),
    ),
)
