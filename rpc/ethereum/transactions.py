"""Submission of transactions, and look-up with receipt (rpc.md 6)."""

from __future__ import annotations

from typing import Final

from rpc.ethereum import render
from rpc.ethereum.accounts import balance_at
from rpc.ethereum.block_ids import BLOCK_PARAM, HASH_PARAM, INDEX_PARAM, find_block
from rpc.ethereum.errors import NotFinalYet, NotReady, as_revert
from rpc.ethereum.method import method
from rpc.ethereum.params import RAW, SYNC_WAIT, SYNC_WAIT_MS, BlockParam
from rpc.methods.light import TRANSACTION_HASH, final_transaction
from rpc.methods.method import Json, Method, NodeApi, Submission
from rpc.methods.queues import QueueKind
from rpc.methods.render import HASH_OUT, hexed
from rpc.methods.schema import Param, nullable, ref
from rpc.protocol.blocks import waiting_transaction
from rpc.protocol.errors import RpcError
from rpc.protocol.requests import PoolRequests
from state.primitives.errors import DekubeError
from state.primitives.transactions import (
    CALL_KIND,
    NATIVE_FORM,
    decode_transaction,
    recover_sender,
)
from state.transition.errors import GasLimitTooHigh, InsufficientFunds
from state.view.accounts import SUPPLY_LIMIT

__all__ = ["TRANSACTION_METHODS"]

_NATIVE: Final = bytes((NATIVE_FORM,))


async def send_raw_transaction(node: NodeApi, raw: bytes) -> Json:
    """Answer ``eth_sendRawTransaction``; the signature is checked before the node is asked."""
    hash_, _ = await _hand_in(node, raw)
    return hexed(hash_)


async def _hand_in(node: NodeApi, raw: bytes) -> tuple[bytes, bytes]:
    """Return hash and sender of a transaction that the node has taken."""
    prepared = _prepare_raw(node, raw)
    if prepared is None:
        transaction = decode_transaction(raw)
        balance = await balance_at(node, transaction.recover_sender(), node.head.height)
        raise InsufficientFunds(balance=balance, needed=transaction.payload[1])
    sender, is_native = prepared
    try:
        return await node.submit(raw, sender), sender
    except RpcError as error:
        raise _refusal(is_native, error) from None


def _prepare_raw(node: NodeApi, raw: bytes) -> tuple[bytes, bool] | None:
    """Return the sender and whether the form is the native one; None where nobody has what is to be moved.

    Raises DecodeError, SignatureInvalid, GasLimitTooHigh and NodeUnavailable.
    """
    if raw[:1] == _NATIVE:
        return recover_sender(raw), True
    transaction = decode_transaction(raw)
    gas_max = render.transaction_gas_max(node.description)
    if transaction.kind == CALL_KIND and transaction.gas_limit > gas_max:
        raise GasLimitTooHigh(gas_limit=transaction.gas_limit, limit=gas_max)
    sender = transaction.recover_sender()
    if transaction.kind == CALL_KIND and transaction.payload[1] >= SUPPLY_LIMIT:
        return None
    return sender, False


def _refusal(is_native: bool, error: DekubeError) -> DekubeError:
    """Return the error that the node's refusal stands for: calls revert."""
    return as_revert(error) if isinstance(error, RpcError) and not is_native else error


async def send_raw_transaction_sync(node: NodeApi, raw: bytes, timeout_ms: int) -> Json:
    """Answer ``eth_sendRawTransactionSync`` (EIP-7966): the receipt, in one question."""
    hash_, sender = await _hand_in(node, raw)
    if decode_transaction(raw).nonce >= await node.pending_nonce(sender):
        raise NotReady(hexed(hash_))
    if await node.wait_transaction(hash_, timeout_ms) is None:
        raise NotFinalYet(hexed(hash_))
    return await get_receipt(node, hash_)


async def get_transaction(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``eth_getTransactionByHash``."""
    found = await final_transaction(node, hash_)
    if found is None:
        waiting = await node.request(PoolRequests.pool_get, hash_)
        if waiting is not None:
            return render.transaction(waiting_transaction(waiting), node.description, None)
        found = await final_transaction(node, hash_)  # a block may have taken it in between
        if found is None:
            return None
    loaded, index = found
    return render.transaction(loaded.transaction(index), node.description, loaded, index)


async def get_receipt(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``eth_getTransactionReceipt``."""
    found = await final_transaction(node, hash_)
    return None if found is None else render.receipt(*found, node.description)


async def get_transaction_at(node: NodeApi, block: BlockParam, index: int) -> Json:
    """Answer ``eth_getTransactionByBlock...AndIndex``."""
    loaded = await find_block(node, block)
    if loaded is None or index >= len(loaded.hashes):
        return None
    return render.transaction(loaded.transaction(index), node.description, loaded, index)


_RAW: Final = Param("raw", RAW, "The signed transaction.")
TRANSACTION_OUT: Final = nullable(ref("EthTransaction"))

TRANSACTION_METHODS: Final[tuple[Method, ...]] = (
    method(
        "eth_sendRawTransaction",
        "Submits a signed transaction",
        send_raw_transaction,
        HASH_OUT,
        _RAW,
        cost=5,
        submission=Submission(_prepare_raw, lambda _is_native, hash_: hexed(hash_), _refusal),
    ),
    method(
        "eth_sendRawTransactionSync",
        "Submits a signed transaction and waits for its receipt (EIP-7966)",
        send_raw_transaction_sync,
        ref("EthReceipt"),
        _RAW,
        Param(
            "timeout_ms",
            SYNC_WAIT,
            f"Give up waiting after so many ms, 1 to {SYNC_WAIT_MS}: error 4 with the hash as data.",
            required=False,
            default=SYNC_WAIT_MS,
        ),
        cost=10,
    ),
    method(
        "eth_getTransactionByHash",
        "A transaction of a block or of the mempool",
        get_transaction,
        TRANSACTION_OUT,
        TRANSACTION_HASH,
        cost=2,
        queue=QueueKind.LOOKUP,
    ),
    method(
        "eth_getTransactionReceipt",
        "Receipt of a transaction; null until it is final",
        get_receipt,
        nullable(ref("EthReceipt")),
        TRANSACTION_HASH,
        cost=2,
        queue=QueueKind.LOOKUP,
    ),
    method(
        "eth_getTransactionByBlockNumberAndIndex",
        "A transaction by block and index",
        get_transaction_at,
        TRANSACTION_OUT,
        BLOCK_PARAM,
        INDEX_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getTransactionByBlockHashAndIndex",
        "A transaction by block and index",
        get_transaction_at,
        TRANSACTION_OUT,
        HASH_PARAM,
        INDEX_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
)
