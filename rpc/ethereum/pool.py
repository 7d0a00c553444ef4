"""The mempool in Ethereum's form (``txpool_*``), by sender and nonce; only a part of a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rpc.ethereum import render
from rpc.ethereum.method import method
from rpc.ethereum.params import ACCOUNT
from rpc.ethereum.render import QUANTITY_OUT
from rpc.methods.method import Json, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.render import hexed
from rpc.methods.schema import STRING, Param, Schema, obj, ref
from rpc.protocol.blocks import waiting_transaction
from rpc.protocol.records import PooledTransaction
from rpc.protocol.requests import PoolRequests
from state.primitives.transactions import Transaction

__all__ = ["POOL_METHODS", "SHOWN_MAX"]

SHOWN_MAX: Final = 500
"""Transactions of one answer: so many that could be taken now, and so many that wait for an earlier nonce."""

TURN: Final = 64
"""Transactions shown before other requests have their turn."""

Shape = Callable[[Transaction, NodeApi], Json]


async def status(node: NodeApi) -> Json:
    """Answer ``txpool_status``."""
    pool = await node.request(PoolRequests.pool_status)
    return {"pending": hex(pool.pending), "queued": hex(pool.queued)}


async def content(node: NodeApi) -> Json:
    """Answer ``txpool_content``."""
    return await _content(node, _whole)


async def inspect(node: NodeApi) -> Json:
    """Answer ``txpool_inspect``."""
    return await _content(node, _line)


async def content_from(node: NodeApi, who: bytes) -> Json:
    """Answer ``txpool_contentFrom``."""
    waiting = list(map(waiting_transaction, await node.request(PoolRequests.pool_of, who)))
    nonce = await node.pending_nonce(who)
    return {
        "pending": {str(item.nonce): _whole(item, node) for item in waiting if item.nonce < nonce},
        "queued": {str(item.nonce): _whole(item, node) for item in waiting if item.nonce >= nonce},
    }


async def _content(node: NodeApi, shape: Shape) -> Json:
    return {
        "pending": await _by_sender(node, await node.request(PoolRequests.pool_transactions, SHOWN_MAX), shape),
        "queued": await _by_sender(node, await node.request(PoolRequests.pool_queued, SHOWN_MAX), shape),
    }


async def _by_sender(node: NodeApi, waiting: Iterable[PooledTransaction], shape: Shape) -> Json:
    found: dict[str, dict[str, Json]] = {}
    for number, item in enumerate(map(waiting_transaction, waiting)):
        if number % TURN == TURN - 1:
            await node.yield_turn()
        found.setdefault(hexed(item.sender), {})[str(item.nonce)] = shape(item, node)
    return found


def _whole(item: Transaction, node: NodeApi) -> Json:
    return render.transaction(item, node.description, None)


def _line(item: Transaction, node: NodeApi) -> Json:
    shown = render.transaction(item, node.description, None)
    to, value = shown["to"] or "nobody", int(shown["value"], 16)
    return f"{to}: {value} wei + {item.gas_limit} gas × {item.max_fee_per_gas} wei"


def _by_nonce(item: Schema) -> Schema:
    return {"type": "object", "additionalProperties": item}


_BOTH: Final = ("pending", "queued")
_TRANSACTIONS: Final = _by_nonce(ref("EthTransaction"))


POOL_METHODS: Final = (
    method(
        "txpool_status",
        "Number of pending and queued transactions",
        status,
        obj(dict.fromkeys(_BOTH, QUANTITY_OUT)),
        cost=1,
    ),
    method(
        "txpool_content",
        f"Mempool by sender and nonce: the {SHOWN_MAX} best pending and {SHOWN_MAX} queued transactions",
        content,
        obj(dict.fromkeys(_BOTH, _by_nonce(_TRANSACTIONS))),
        cost=50,
        queue=QueueKind.LISTING,
    ),
    method(
        "txpool_contentFrom",
        "Pending and queued transactions of one sender",
        content_from,
        obj(dict.fromkeys(_BOTH, _TRANSACTIONS)),
        Param("address", ACCOUNT, "The sender."),
        cost=10,
        queue=QueueKind.LISTING,
    ),
    method(
        "txpool_inspect",
        "As txpool_content, one text line per transaction",
        inspect,
        obj(dict.fromkeys(_BOTH, _by_nonce(_by_nonce(STRING)))),
        cost=50,
        queue=QueueKind.LISTING,
    ),
)
"""The methods of the namespace ``txpool``."""
