"""Methods with filters: ``eth_getLogs``, and filters that clients poll (rpc.md 7.2)."""

from __future__ import annotations

from typing import Final

from rpc.ethereum.block_ids import block_height, find_block, genesis_at
from rpc.ethereum.logs import BLOCKS_MAX, add_logs, find_first_logs, find_logs
from rpc.ethereum.method import method
from rpc.ethereum.params import FILTER, QUANTITY, FilterParam
from rpc.ethereum.render import LOGS_OUT, QUANTITY_OUT, quantity
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.poll_filters import PollFilter
from rpc.methods.queues import QueueKind
from rpc.methods.render import BOOLEAN_OUT, HASH_OUT, hexed
from rpc.methods.schema import BOOLEAN, Param, array
from rpc.protocol.errors import RpcError
from rpc.protocol.requests import POOL_ARRIVALS_MAX, PoolRequests

__all__ = ["FILTER_METHODS"]

BLOCKS_OF_UNIT: Final = 10
"""Blocks that a filter reads for one unit."""


def _range(node: NodeApi, wanted: FilterParam) -> tuple[int, int]:
    head = node.head.height
    first, last = block_height(node, wanted.first), block_height(node, wanted.last)
    if first > last:
        raise RpcError("invalid_params", "invalid params: invalid block range params", param="fromBlock")
    if last > head:
        raise RpcError(
            "invalid_params", "invalid params: block range extends beyond current head block", param="toBlock"
        )
    return first, last


def _weigh_logs(node: NodeApi, wanted: FilterParam) -> int:
    if wanted.block_hash is not None:
        return 0
    first, last = _range(node, wanted)
    return (last - first) // BLOCKS_OF_UNIT


def _weigh_filter(node: NodeApi, identifier: int) -> int:
    live = node.filters.get(identifier)
    return 0 if live.of_pool else max(_end(node, live) - live.first, 0) // BLOCKS_OF_UNIT


def _weigh_changes(node: NodeApi, identifier: int) -> int:
    live = node.filters.get(identifier)
    first, last = _due(node, live)
    return 0 if live.of_pool else max(last - first, 0) // BLOCKS_OF_UNIT


async def get_logs(node: NodeApi, wanted: FilterParam) -> Json:
    """Answer ``eth_getLogs``."""
    if wanted.block_hash is None:
        return await find_logs(node, wanted.logs, *_range(node, wanted))
    loaded = await find_block(node, wanted.block_hash)
    if loaded is None:
        if await genesis_at(node, wanted.block_hash):
            return []
        raise RpcError("not_found", "unknown block", block_hash=hexed(wanted.block_hash))
    found: list[Json] = []
    await add_logs(node, loaded, wanted.logs, found)
    return found


async def new_filter(node: NodeApi, caller: str, wanted: FilterParam) -> Json:
    """Answer ``eth_newFilter``: it tells of blocks after the newest one, or from a later ``fromBlock`` on."""
    if wanted.block_hash is not None:
        raise RpcError("invalid_params", "invalid params: blockHash: a filter follows a range", param="blockHash")
    head = node.head.height
    first = block_height(node, wanted.first)
    last = None if wanted.last is None else block_height(node, wanted.last)
    if last is not None and first > last:
        raise RpcError("invalid_params", "invalid params: invalid block range params", param="fromBlock")
    start = max(head + 1, first)
    return quantity(node.filters.add(caller, wanted.logs, first=first, last=last, start=start))


async def new_block_filter(node: NodeApi, caller: str) -> Json:
    """Answer ``eth_newBlockFilter``."""
    start = node.head.height + 1
    return quantity(node.filters.add(caller, None, first=start, last=None, start=start))


async def new_pending_filter(node: NodeApi, caller: str, whole: bool) -> Json:
    """Answer ``eth_newPendingTransactionFilter``."""
    if whole:
        text = "invalid params: whole: whole transactions are not told, ask for them by their hashes"
        raise RpcError("invalid_params", text, param="whole")
    place, _ = await node.request(PoolRequests.pool_arrivals, 0, 0)
    return quantity(node.filters.add(caller, None, first=0, last=None, start=place, of_pool=True))


async def get_filter_changes(node: NodeApi, identifier: int) -> Json:
    """Answer ``eth_getFilterChanges``."""
    live = node.filters.get(identifier)
    if live.is_polled:  # who polls twice at a time is told each thing once: what is left comes with the next poll
        return []
    live.is_polled = True
    try:
        return await _news(node, live)
    finally:
        live.is_polled = False


async def _news(node: NodeApi, live: PollFilter) -> list[Json]:
    """Return the new items; items that were not read, or failed, come with the next poll."""
    if live.of_pool:
        live.next, news = await node.request(PoolRequests.pool_arrivals, live.next, POOL_ARRIVALS_MAX)
        return [hexed(item) for item in news]
    first, last = _due(node, live)
    if last < first:
        return []
    if live.logs is None:
        found: list[Json] = [hexed(await node.hash_of(height)) for height in range(first, last + 1)]
    else:
        found, last = await find_first_logs(node, live.logs, first, last)
    live.next = last + 1
    return found


def _due(node: NodeApi, live: PollFilter) -> tuple[int, int]:
    """Return the first and last block of the next poll. A client that is far behind needs several polls.

    An error would be permanent, because the number of new items only grows.
    """
    return live.next, min(_end(node, live), live.next + BLOCKS_MAX - 1)


def _end(node: NodeApi, live: PollFilter) -> int:
    return node.head.height if live.last is None else min(live.last, node.head.height)


async def get_filter_logs(node: NodeApi, identifier: int) -> Json:
    """Answer ``eth_getFilterLogs``."""
    live = node.filters.get(identifier)
    if live.logs is None:
        raise RpcError("filter_not_found", "filter not found: it is not one of logs")
    return await find_logs(node, live.logs, live.first, _end(node, live))


async def uninstall_filter(node: NodeApi, identifier: int) -> Json:
    """Answer ``eth_uninstallFilter``."""
    return node.filters.remove(identifier)


_FILTER: Final = Param("filter", FILTER, "fromBlock, toBlock or blockHash; address, topics.")
_FILTER_ID: Final = Param("filter", QUANTITY, "Filter ID.")

FILTER_METHODS: Final[tuple[Method, ...]] = (
    method(
        "eth_getLogs",
        f"Logs of up to {BLOCKS_MAX} blocks",
        get_logs,
        LOGS_OUT,
        _FILTER,
        cost=10,
        weigh=_weigh_logs,
        queue=QueueKind.LISTING,
    ),
    method("eth_newFilter", "Creates a filter of logs", new_filter, QUANTITY_OUT, _FILTER, caller=True),
    method("eth_newBlockFilter", "Creates a filter of new blocks", new_block_filter, QUANTITY_OUT, caller=True),
    method(
        "eth_newPendingTransactionFilter",
        "Creates a filter of new pending transactions",
        new_pending_filter,
        QUANTITY_OUT,
        Param("whole", BOOLEAN, "Must be false; hashes only.", required=False, default=False),
        caller=True,
    ),
    method(
        "eth_getFilterChanges",
        "New items since the last poll",
        get_filter_changes,
        {"anyOf": [LOGS_OUT, array(HASH_OUT)]},
        _FILTER_ID,
        cost=10,
        weigh=_weigh_changes,
        queue=QueueKind.LISTING,
    ),
    method(
        "eth_getFilterLogs",
        "All logs that a filter selects",
        get_filter_logs,
        LOGS_OUT,
        _FILTER_ID,
        cost=10,
        weigh=_weigh_filter,
        queue=QueueKind.LISTING,
    ),
    method("eth_uninstallFilter", "Removes a filter", uninstall_filter, BOOLEAN_OUT, _FILTER_ID),
)
