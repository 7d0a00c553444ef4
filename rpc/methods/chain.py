"""Methods about the chain: its identity, the node's progress, blocks and receipts."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods import render
from rpc.methods.heights import AT_HEIGHT, stamp, state_height
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_mismatch
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, HASH_OUT, address, at, hexed
from rpc.methods.schema import (
    BLOCK,
    BOOLEAN,
    EARLIEST,
    NUMBER,
    STRING,
    Param,
    array,
    make_cursor,
    nullable,
    obj,
    ref,
)
from rpc.methods.validators import FOUNDER_OUT
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.requests import LiveRequests, PoolRequests
from state.view import Reader
from state.view.accounts import burned, issued

__all__ = ["CHAIN_METHODS"]

BLOCKS_PAGE_MAX: Final = 100


async def chain_info(node: NodeApi) -> Json:
    """Answer ``dekube_chainInfo``."""
    what = node.description
    return {
        "at": at(node.head),
        "chain_id": what.chain_id,
        "name": what.chain_name,
        "genesis_hash": hexed(what.genesis_hash),
        "genesis_time_ms": what.genesis_time_ms,
        "testnet": bool(what.testnet),
        "symbol": "DKB",
        "decimals": 18,
        "version": what.version,
    }


async def genesis(node: NodeApi) -> Json:
    """Answer ``dekube_genesis``."""
    what = node.description
    return {
        "at": at(node.head),
        "chain_id": what.chain_id,
        "name": what.chain_name,
        "hash": hexed(what.genesis_hash),
        "time_ms": what.genesis_time_ms,
        "validators": [
            {
                "address": address(who),
                "vote_key": hexed(vote_key),
                "vrf_key": hexed(vrf_key),
                "stake": str(stake),
            }
            for who, vote_key, vrf_key, stake in what.validators
        ],
        "parameters": {name: str(number) for name, number in what.parameters},
    }


async def status(node: NodeApi) -> Json:
    """Answer ``dekube_status``."""
    head, what, sync, pool = (
        node.head,
        node.description,
        await node.request(LiveRequests.sync),
        await node.request(PoolRequests.pool_status),
    )
    return {
        "at": at(head),
        "time_ms": head.time_ms,
        "syncing": bool(sync.syncing),
        "highest_height": max(sync.highest, head.height),
        "oldest_state_height": head.oldest_state,
        "oldest_block_height": head.oldest_block,
        "epoch": sync.epoch,
        "view": sync.view,
        "peers": sync.peers,
        "mempool": {"pending": pool.pending, "queued": pool.queued, "bytes": pool.bytes},
        "node": {"address": address(what.address), "roles": list(what.roles), "version": what.version},
    }


async def head(node: NodeApi) -> Json:
    """Answer ``dekube_head``."""
    newest = node.head
    return {
        "at": at(newest),
        "time_ms": newest.time_ms,
        "stood_still_ms": newest.stood_still_ms,
        "state_root": hexed(newest.state_root),
        "base_fee": str(newest.base_fee),
        "base_fee_next": str(newest.base_fee_next),
    }


async def supply(node: NodeApi, height: int | None) -> Json:
    """Answer ``dekube_getSupply``."""
    number = state_height(node, height)
    total, gone = await node.query(number, _supply)
    return {
        "at": await stamp(node, number),
        "issued": str(total),
        "burned": str(gone),
        "supply": str(total - gone),
    }


def _supply(reader: Reader) -> tuple[int, int]:
    return issued(reader), burned(reader)


async def _find_block(node: NodeApi, block: int | bytes | None, *, senders: bool = False) -> LoadedBlock | None:
    if block is None:
        height: int | None = node.head.height
    elif isinstance(block, bytes):
        height = await node.height_of(block)
    else:
        height = max(node.head.oldest_block, 1) if block == EARLIEST else block
    if height is None or height > node.head.height:
        return None
    return await (node.block_with_senders(height) if senders else node.block(height))


async def get_block(node: NodeApi, block: int | bytes | None, transactions: bool) -> Json:
    """Answer ``dekube_getBlock``."""
    loaded = await _find_block(node, block, senders=transactions)
    whole = None
    if loaded is not None and transactions:
        whole = await node.rendered(
            "transactions",
            loaded,
            lambda index: render.transaction(
                loaded.transaction(index), node.kinds, render.block_position(loaded, index)
            ),
        )
    return {
        "at": at(node.head),
        "block": None if loaded is None else render.block(loaded, node.events, whole),
    }


async def get_blocks(node: NodeApi, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getBlocks``."""
    asked_at = node.head
    match cursor:
        case None:
            top = asked_at.height
        case ["blocks", int(top)] if 0 <= top <= asked_at.height:
            pass
        case _:
            raise cursor_mismatch()
    lowest = max(asked_at.oldest_block, 1)
    items = []
    for height in range(top, max(top - limit, lowest - 1), -1):
        loaded = await node.block(height)
        if loaded is None:
            break
        items.append(render.header(loaded))
    below = top - limit
    return {
        "at": at(asked_at),
        "items": items,
        "next": make_cursor(["blocks", below]) if below >= lowest else None,
    }


async def get_block_receipts(node: NodeApi, block: int | bytes | None) -> Json:
    """Answer ``dekube_getBlockReceipts``."""
    loaded = await _find_block(node, block, senders=True)
    receipts = None
    if loaded is not None:
        receipts = await node.rendered(
            "receipts", loaded, lambda index: render.receipt(loaded, index, node.kinds, node.events)
        )
    return {"at": at(node.head), "receipts": receipts}


_BLOCK: Final = Param("block", BLOCK, 'Height, hash, "latest" (default) or "earliest".', required=False)

CHAIN_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_chainInfo",
        "Chain ID, name, genesis hash and software version",
        chain_info,
        obj(
            {
                "at": AT,
                "chain_id": NUMBER,
                "name": STRING,
                "genesis_hash": HASH_OUT,
                "genesis_time_ms": NUMBER,
                "testnet": BOOLEAN_OUT,
                "symbol": STRING,
                "decimals": NUMBER,
                "version": STRING,
            }
        ),
        routes=("/v1/chain",),
    ),
    Method(
        "dekube_genesis",
        "Genesis validators and all chain parameters",
        genesis,
        obj(
            {
                "at": AT,
                "chain_id": NUMBER,
                "name": STRING,
                "hash": HASH_OUT,
                "time_ms": NUMBER,
                "validators": array(FOUNDER_OUT),
                "parameters": {"type": "object", "additionalProperties": AMOUNT_OUT},
            }
        ),
        cost=5,
        routes=("/v1/genesis",),
    ),
    Method(
        "dekube_status",
        "Sync status of this node and the oldest heights that it keeps",
        status,
        obj(
            {
                "at": AT,
                "time_ms": NUMBER,
                "syncing": BOOLEAN_OUT,
                "highest_height": NUMBER,
                "oldest_state_height": NUMBER,
                "oldest_block_height": NUMBER,
                "epoch": NUMBER,
                "view": NUMBER,
                "peers": NUMBER,
                "mempool": obj({"pending": NUMBER, "queued": NUMBER, "bytes": NUMBER}),
                "node": obj({"address": ADDRESS_OUT, "roles": array(STRING), "version": STRING}),
            }
        ),
        routes=(),
    ),
    Method(
        "dekube_head",
        "The newest finalised block",
        head,
        obj(
            {
                "at": AT,
                "time_ms": NUMBER,
                "stood_still_ms": NUMBER,
                "state_root": HASH_OUT,
                "base_fee": AMOUNT_OUT,
                "base_fee_next": AMOUNT_OUT,
            }
        ),
        routes=(),
    ),
    Method(
        "dekube_getSupply",
        "Total coins issued and burned",
        supply,
        obj({"at": AT, "issued": AMOUNT_OUT, "burned": AMOUNT_OUT, "supply": AMOUNT_OUT}),
        (AT_HEIGHT,),
        cost=2,
        queue=QueueKind.VIEW,
        routes=("/v1/supply",),
    ),
    Method(
        "dekube_getBlock",
        "A block, with transaction hashes or full transactions",
        get_block,
        obj({"at": AT, "block": nullable(ref("Block"))}),
        (_BLOCK, Param("transactions", BOOLEAN, "Include full transactions.", required=False, default=False)),
        cost=10,
        queue=QueueKind.BLOCK,
        routes=("/v1/blocks/{block}",),
    ),
    Method(
        "dekube_getBlocks",
        "Headers, newest first",
        get_blocks,
        obj({"at": AT, "items": array(ref("Header"), maximum=BLOCKS_PAGE_MAX), "next": NEXT_OUT}),
        (CURSOR_PARAM, LIMIT_PARAM),
        cost=20,
        queue=QueueKind.BLOCK,
        routes=("/v1/blocks",),
    ),
    Method(
        "dekube_getBlockReceipts",
        "Receipts of all transactions of a block",
        get_block_receipts,
        obj({"at": AT, "receipts": nullable(array(ref("Receipt")))}),
        (_BLOCK,),
        cost=20,
        queue=QueueKind.BLOCK,
        routes=("/v1/blocks/{block}/receipts",),
    ),
)
