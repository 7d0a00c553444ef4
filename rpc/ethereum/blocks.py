"""Blocks and their receipts. The chain is final, so there are no uncles."""

from __future__ import annotations

from typing import Final

from rpc.ethereum import render
from rpc.ethereum.block_ids import BLOCK_PARAM, HASH_PARAM, INDEX_PARAM, find_block, genesis_at
from rpc.ethereum.method import method
from rpc.ethereum.params import BLOCK, BlockParam
from rpc.ethereum.render import QUANTITY_OUT, quantity
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.schema import BOOLEAN, NULL, Param, array, nullable, ref

__all__ = ["BLOCK_METHODS"]


async def get_block(node: NodeApi, block: BlockParam, whole: bool) -> Json:
    """Answer ``eth_getBlockBy...``."""
    loaded = await find_block(node, block, senders=whole)
    if loaded is None:
        return await genesis_at(node, block)
    if not whole:
        return render.block(loaded, node.description)
    what = node.description
    transactions = await node.rendered(
        "eth transactions",
        loaded,
        lambda index: render.transaction(loaded.transaction(index), what, loaded, index),
    )
    return render.block(loaded, what, transactions)


async def get_header(node: NodeApi, block: BlockParam) -> Json:
    """Answer ``eth_getHeaderBy...``."""
    loaded = await find_block(node, block)
    if loaded is not None:
        return render.header(loaded, node.description)
    if await genesis_at(node, block) is None:
        return None
    return render.genesis_header(node.description.genesis_hash, node.description)


async def get_block_receipts(node: NodeApi, block: BlockParam) -> Json:
    """Answer ``eth_getBlockReceipts``."""
    loaded = await find_block(node, block, senders=True)
    if loaded is None:
        return [] if await genesis_at(node, block) else None
    what = node.description
    return await node.rendered("eth receipts", loaded, lambda index: render.receipt(loaded, index, what))


async def get_transaction_count_of(node: NodeApi, block: BlockParam) -> Json:
    """Answer ``eth_getBlockTransactionCountBy...``."""
    loaded = await find_block(node, block)
    if loaded is None:
        return "0x0" if await genesis_at(node, block) else None
    return quantity(len(loaded.hashes))


async def get_uncle_count(node: NodeApi, block: BlockParam) -> Json:
    """Answer ``eth_getUncleCountBy...``: a final chain has none."""
    is_known = await find_block(node, block) is not None or await genesis_at(node, block)
    return "0x0" if is_known else None


async def get_uncle(_node: NodeApi, _block: BlockParam, _index: int) -> Json:
    """Answer ``eth_getUncleBy...AndIndex``."""
    return None


_WHOLE: Final = Param("transactions", BOOLEAN, "Include full transactions.", required=False, default=False)
_BLOCK_OUT: Final = nullable(ref("EthBlock"))
_HEADER_OUT: Final = nullable(ref("EthHeader"))
_COUNT_OUT: Final = nullable(QUANTITY_OUT)

BLOCK_METHODS: Final[tuple[Method, ...]] = (
    method(
        "eth_getBlockByNumber",
        "A block",
        get_block,
        _BLOCK_OUT,
        BLOCK_PARAM,
        _WHOLE,
        cost=10,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getBlockByHash", "A block", get_block, _BLOCK_OUT, HASH_PARAM, _WHOLE, cost=10, queue=QueueKind.BLOCK
    ),
    method(
        "eth_getHeaderByNumber", "A header", get_header, _HEADER_OUT, BLOCK_PARAM, cost=2, queue=QueueKind.BLOCK
    ),
    method("eth_getHeaderByHash", "A header", get_header, _HEADER_OUT, HASH_PARAM, cost=2, queue=QueueKind.BLOCK),
    method(
        "eth_getBlockReceipts",
        "The receipts of a block",
        get_block_receipts,
        nullable(array(ref("EthReceipt"))),
        Param("block", BLOCK, "A number in hex, a tag, a hash, or an object of EIP-1898."),
        cost=20,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getBlockTransactionCountByNumber",
        "Number of transactions of a block",
        get_transaction_count_of,
        _COUNT_OUT,
        BLOCK_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getBlockTransactionCountByHash",
        "Number of transactions of a block",
        get_transaction_count_of,
        _COUNT_OUT,
        HASH_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getUncleCountByBlockNumber",
        "Always zero: there are no uncles",
        get_uncle_count,
        _COUNT_OUT,
        BLOCK_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getUncleCountByBlockHash",
        "Always zero: there are no uncles",
        get_uncle_count,
        _COUNT_OUT,
        HASH_PARAM,
        cost=2,
        queue=QueueKind.BLOCK,
    ),
    method(
        "eth_getUncleByBlockNumberAndIndex",
        "Always null: there are no uncles",
        get_uncle,
        NULL,
        BLOCK_PARAM,
        INDEX_PARAM,
    ),
    method(
        "eth_getUncleByBlockHashAndIndex",
        "Always null: there are no uncles",
        get_uncle,
        NULL,
        HASH_PARAM,
        INDEX_PARAM,
    ),
)
