"""Methods about transactions: look-up with receipt, submission, simulation and cost."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods import render
from rpc.methods.heights import found_at
from rpc.methods.light import TRANSACTION_HASH, final_transaction
from rpc.methods.method import Json, Method, NodeApi, Submission
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_mismatch
from rpc.methods.queues import QueueKind
from rpc.methods.render import AMOUNT_OUT, AT, BOOLEAN_OUT, HASH_OUT, at, hexed
from rpc.methods.schema import (
    ADDRESS,
    LIMIT_MAX,
    NUMBER,
    STRING,
    Param,
    array,
    data,
    make_cursor,
    natural,
    nullable,
    obj,
    ref,
)
from rpc.protocol.blocks import waiting_transaction
from rpc.protocol.errors import RpcError
from rpc.protocol.requests import ChainRequests, PoolRequests
from state.primitives.codec import decode
from state.primitives.receipts import decode_receipt
from state.primitives.transactions import KIND_MAX, TRANSACTION_LIMIT_BYTES, decode_transaction, recover_sender

__all__ = ["TRANSACTION_METHODS"]

WAIT_MS_MAX: Final = 60_000
ARRIVALS_LIMIT: Final = 2**63
"""Numbers of arrivals in the mempool stay below."""


async def get_transaction(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``dekube_getTransaction``."""
    asked_at = node.head
    found = await _final_transaction(node, hash_)
    if found is None:
        waiting = await node.request(PoolRequests.pool_get, hash_)
        if waiting is not None:
            shown = render.transaction(waiting_transaction(waiting), node.kinds, None)
            return {"at": at(asked_at), "transaction": shown}
        found = await _final_transaction(node, hash_)  # a block may have taken it in between
    return {"at": found_at(node, asked_at, found), "transaction": found}


async def _final_transaction(node: NodeApi, hash_: bytes) -> Json:
    found = await final_transaction(node, hash_)
    if found is None:
        return None
    loaded, index = found
    return render.transaction(loaded.transaction(index), node.kinds, render.block_position(loaded, index))


async def _final_receipt(node: NodeApi, hash_: bytes) -> Json:
    found = await final_transaction(node, hash_)
    return None if found is None else render.receipt(*found, node.kinds, node.events)


async def get_receipt(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``dekube_getReceipt``."""
    asked_at = node.head
    receipt = await _final_receipt(node, hash_)
    return {"at": found_at(node, asked_at, receipt), "receipt": receipt}


async def wait_receipt(node: NodeApi, hash_: bytes, timeout_ms: int) -> Json:
    """Answer ``dekube_waitForReceipt``."""
    is_final = await node.wait_transaction(hash_, timeout_ms) is not None
    receipt = await _final_receipt(node, hash_) if is_final else None
    asked_at = node.head
    pending = receipt is None and await node.request(PoolRequests.pool_get, hash_) is not None
    if receipt is None and not pending:
        receipt = await _final_receipt(node, hash_)  # a block may have taken it in the last moment
    return {"at": found_at(node, asked_at, receipt), "receipt": receipt, "pending": pending}


async def send_transaction(node: NodeApi, raw: bytes) -> Json:
    """Answer ``dekube_sendTransaction``; the signature is checked before the node is asked."""
    sender, stamp = _prepare_transaction(node, raw)
    return _sent(stamp, await node.submit(raw, sender))


def _prepare_transaction(node: NodeApi, raw: bytes) -> tuple[bytes, Json]:
    """Return sender and stamp. Raises DecodeError, SignatureInvalid and NodeUnavailable."""
    return recover_sender(raw), at(node.head)


def _sent(stamp: Json, hash_: bytes) -> Json:
    return {"at": stamp, "hash": hexed(hash_)}


async def simulate_transaction(node: NodeApi, raw: bytes) -> Json:
    """Answer ``dekube_simulateTransaction``."""
    transaction = decode_transaction(raw)
    sender = transaction.recover_sender()
    return await _dry_run(node, sender, transaction.kind, transaction.payload)


async def estimate(node: NodeApi, sender: bytes, kind: int, payload: bytes) -> Json:
    """Answer ``dekube_estimate``."""
    items = decode(payload, limit_bytes=TRANSACTION_LIMIT_BYTES)
    if type(items) is not list:
        raise RpcError(
            "invalid_params", "invalid params: payload: a canonical CBOR array expected", param="payload"
        )
    return await _dry_run(node, sender, kind, items)


async def _dry_run(node: NodeApi, sender: bytes, kind: int, payload: list[Any]) -> Json:
    newest = node.head
    outcome = decode_receipt(await node.request(ChainRequests.simulate, sender, kind, payload, None))
    return {"at": at(newest)} | render.outcome_fields(outcome, node.events)


async def quote(node: NodeApi) -> Json:
    """Answer ``dekube_quote``; the fee cap leaves room for eight full blocks in a row (12.5 % each)."""
    newest = node.head
    base_fee = newest.base_fee_next
    return {
        "at": at(newest),
        "base_fee_next": str(base_fee),
        "max_fee_per_gas": str(base_fee * 9**8 // 8**8 + 1),
        "max_priority_fee_per_gas": "0",
        "kinds": [
            {"kind": item.kind, "name": item.name, "gas": item.gas, "fee": str(item.gas * base_fee)}
            for item in node.description.kinds
        ],
    }


async def get_mempool(node: NodeApi, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getMempool``: by arrival, so that what comes and goes meanwhile moves no page."""
    match cursor:
        case None:
            before = None
        case ["mempool", int(before)] if 0 <= before < ARRIVALS_LIMIT:
            pass
        case _:
            raise cursor_mismatch()
    pool, waiting = (
        await node.request(PoolRequests.pool_status),
        await node.request(PoolRequests.pool_page, before, limit + 1),
    )
    return {
        "at": at(node.head),
        "pending": pool.pending,
        "queued": pool.queued,
        "bytes": pool.bytes,
        "items": [render.transaction(waiting_transaction(item), node.kinds, None) for _, item in waiting[:limit]],
        "next": make_cursor(["mempool", waiting[limit - 1][0]]) if len(waiting) > limit else None,
    }


_RAW: Final = Param("raw", data(TRANSACTION_LIMIT_BYTES), "The signed transaction.")
_OUTCOME: Final = obj(
    {
        "at": AT,
        "succeeded": BOOLEAN_OUT,
        "reason": nullable(STRING),
        "gas_used": NUMBER,
        "effective_gas_price": AMOUNT_OUT,
        "fee": AMOUNT_OUT,
        "events": array(ref("Event")),
    }
)

TRANSACTION_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getTransaction",
        "A finalised or pending transaction",
        get_transaction,
        obj({"at": AT, "transaction": nullable(ref("Transaction"))}),
        (TRANSACTION_HASH,),
        cost=2,
        group="transactions",
        queue=QueueKind.LOOKUP,
        routes=("/v1/transactions/{hash}",),
    ),
    Method(
        "dekube_getReceipt",
        "The receipt of a finalised transaction",
        get_receipt,
        obj({"at": AT, "receipt": nullable(ref("Receipt"))}),
        (TRANSACTION_HASH,),
        cost=2,
        group="transactions",
        queue=QueueKind.LOOKUP,
        routes=("/v1/transactions/{hash}/receipt",),
    ),
    Method(
        "dekube_waitForReceipt",
        "Waits until a transaction is final and returns its receipt",
        wait_receipt,
        obj({"at": AT, "receipt": nullable(ref("Receipt")), "pending": BOOLEAN_OUT}),
        (
            TRANSACTION_HASH,
            Param(
                "timeout_ms",
                natural(0, WAIT_MS_MAX),
                "Give up after this time; the receipt is then null.",
                required=False,
                default=10_000,
            ),
        ),
        cost=5,
        group="transactions",
        routes=(),
    ),
    Method(
        "dekube_sendTransaction",
        "Submits a signed transaction",
        send_transaction,
        obj({"at": AT, "hash": HASH_OUT}),
        (_RAW,),
        cost=5,
        has_min_height=False,
        group="transactions",
        submission=Submission(_prepare_transaction, _sent, lambda _stamp, error: error),
        routes=(),
    ),
    Method(
        "dekube_simulateTransaction",
        "Simulates a signed transaction on the newest state, without changing it",
        simulate_transaction,
        _OUTCOME,
        (_RAW,),
        cost=10,
        group="transactions",
        queue=QueueKind.VIEW,
        routes=(),
    ),
    Method(
        "dekube_estimate",
        "Simulates an unsigned transaction on the newest state",
        estimate,
        _OUTCOME,
        (
            Param("from", ADDRESS, "The sender."),
            Param("kind", natural(0, KIND_MAX), "Number of the kind."),
            Param("payload", data(TRANSACTION_LIMIT_BYTES), "The payload: an array in canonical CBOR."),
        ),
        cost=10,
        group="transactions",
        queue=QueueKind.VIEW,
        routes=(),
    ),
    Method(
        "dekube_quote",
        "Current fees: base fee, a safe fee cap, and the gas of each kind",
        quote,
        obj(
            {
                "at": AT,
                "base_fee_next": AMOUNT_OUT,
                "max_fee_per_gas": AMOUNT_OUT,
                "max_priority_fee_per_gas": AMOUNT_OUT,
                "kinds": array(obj({"kind": NUMBER, "name": STRING, "gas": NUMBER, "fee": AMOUNT_OUT})),
            }
        ),
        group="transactions",
        routes=("/v1/quote",),
    ),
    Method(
        "dekube_getMempool",
        "Pending transactions, the latest arrival first",
        get_mempool,
        obj(
            {
                "at": AT,
                "pending": NUMBER,
                "queued": NUMBER,
                "bytes": NUMBER,
                "items": array(ref("Transaction"), maximum=LIMIT_MAX),
                "next": NEXT_OUT,
            }
        ),
        (CURSOR_PARAM, LIMIT_PARAM),
        cost=10,
        group="transactions",
        queue=QueueKind.LISTING,
        routes=("/v1/mempool",),
    ),
)
