"""Logs in Ethereum's form: search by filter, with blooms that exclude blocks without reading them.

See rpc.md 8.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rpc.methods.log_filter import LogFilter, bloom_bits
from rpc.methods.method import Json, NodeApi
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from state.primitives.receipts import Event

__all__ = [
    "BLOCKS_MAX",
    "BLOOM_BYTES",
    "LOGS_MAX",
    "Log",
    "add_logs",
    "block_bloom",
    "bloom_of",
    "find_first_logs",
    "find_logs",
    "log_json",
    "logs_of",
]

BLOOM_BYTES: Final = 256
BLOCKS_MAX: Final = 10_000
"""Blocks that one question may be about."""
LOGS_MAX: Final = 10_000
"""Logs of one answer."""
_TURN: Final = 256
"""Blocks looked at before other requests have their turn."""
_LOGS_OF_TURN: Final = 128


class Log(NamedTuple):
    """An event with its indexes: ``number`` in the block, ``transaction`` of its transaction in the block.

    Block events (deadlines, matching, payouts) come last, with the index after the last transaction and the hash
    of the block.
    """

    event: Event
    number: int
    transaction: int


def bloom_of(*events: Event) -> int:
    """Return the bloom of ``events`` as a number of 2048 bits."""
    bloom = 0
    for event in events:
        bloom |= bloom_bits(event.address)
        for topic in event.topics:
            bloom |= bloom_bits(topic)
    return bloom


def _events(loaded: LoadedBlock) -> Iterator[tuple[int, Event]]:
    for number, receipt in enumerate(loaded.receipts):
        for event in receipt.events:
            yield number, event
    for event in loaded.hooks.events if loaded.hooks else ():
        yield len(loaded.receipts), event


def logs_of(loaded: LoadedBlock) -> Iterator[Log]:
    """Yield every log of a block in its order."""
    for index, (number, event) in enumerate(_events(loaded)):
        yield Log(event, index, number)


def block_bloom(loaded: LoadedBlock) -> int:
    """Return the bloom of a block, the OR of those of its logs."""
    if loaded.bloom is None:
        loaded.bloom = bloom_of(*(event for _, event in _events(loaded)))
    return loaded.bloom


def log_json(loaded: LoadedBlock, log: Log) -> Json:
    """Return a log as clients read it."""
    is_of_block = log.transaction == len(loaded.hashes)
    return {
        "address": "0x" + log.event.address.hex(),
        "topics": ["0x" + topic.hex() for topic in log.event.topics],
        "data": "0x" + log.event.data.hex(),
        "blockNumber": hex(loaded.height),
        "blockHash": "0x" + loaded.hash.hex(),
        "blockTimestamp": hex(loaded.block.header.time_ms // 1000),
        "transactionHash": "0x" + (loaded.hash if is_of_block else loaded.hashes[log.transaction]).hex(),
        "transactionIndex": hex(log.transaction),
        "logIndex": hex(log.number),
        "removed": False,
    }


def logs_in(loaded: LoadedBlock, wanted: LogFilter) -> list[Json]:
    """Return the wanted logs of a block."""
    return [log_json(loaded, log) for log in logs_of(loaded) if wanted.matches(log.event)]


async def find_logs(node: NodeApi, wanted: LogFilter, first: int, last: int) -> list[Json]:
    """Return the wanted logs of the blocks from ``first`` to ``last``, which are final.

    Raises RpcError over BLOCKS_MAX blocks, and over LOGS_MAX logs of several, Pruned below what the node keeps.
    """
    if last - first >= BLOCKS_MAX:
        raise RpcError("limit_exceeded", f"limit exceeded: at most {BLOCKS_MAX} blocks at once", limit=BLOCKS_MAX)
    found, _ = await find_first_logs(node, wanted, first, last)
    if len(found) > LOGS_MAX and first < last:
        raise RpcError(
            "limit_exceeded",
            f"limit exceeded: more than {LOGS_MAX} logs, ask for fewer blocks",
            limit=LOGS_MAX,
        )
    return found


async def find_first_logs(node: NodeApi, wanted: LogFilter, first: int, last: int) -> tuple[list[Json], int]:
    """Return the matching logs from ``first`` on, and the height of the last block that was read.

    That is ``last``, or the block whose logs exceed LOGS_MAX.
    """
    masks = wanted.masks()
    found: list[Json] = []
    for height in range(max(first, 1), last + 1):  # the genesis has no block
        if height % _TURN == 0:
            await node.yield_turn()
        bloom = node.blooms.get(height)
        if bloom is not None and not all(any(mask & bloom == mask for mask in some) for some in masks):
            continue
        loaded = await node.block(height)
        if loaded is None:
            return found, height - 1
        if bloom is None:
            node.blooms.put(height, block_bloom(loaded))
            await node.yield_turn()  # a block at hand was no wait, and its bloom may have taken long
        await add_logs(node, loaded, wanted, found)
        if len(found) > LOGS_MAX:
            return found, height
    return found, last


async def add_logs(node: NodeApi, loaded: LoadedBlock, wanted: LogFilter, found: list[Json]) -> None:
    """Add the wanted logs of a block to ``found``, in turns where there are many."""
    for log in logs_of(loaded):
        if wanted.matches(log.event):
            found.append(log_json(loaded, log))
            if len(found) % _LOGS_OF_TURN == 0:
                await node.yield_turn()
    if len(loaded.receipts) > _LOGS_OF_TURN:
        await node.yield_turn()
