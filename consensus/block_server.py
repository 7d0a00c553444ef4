"""Serves stored blocks to peers that catch up (trio); the limits are those of ``consensus.block_serving``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from consensus import replica as r
from consensus.block_serving import ServingSlots, window
from consensus.metrics import Metrics
from consensus.ports import ChainPort, NetworkPort
from consensus.wire import BLOCKS_MAX, BlockReply, BlocksPruned, encode_message

__all__ = ["BlockServer"]


class BlockServer:
    """Answers the requests that the replica accepts, a bounded number at the same time."""

    def __init__(
        self,
        chain: ChainPort,
        network: NetworkPort,
        replica: r.Replica,
        *,
        now_ms: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        self._chain = chain
        self._network = network
        self._replica = replica
        self._now_ms = now_ms
        self._metrics = metrics
        self._slots = ServingSlots(replica.is_seat)

    def serve_block(self, nursery: trio.Nursery, request: r.ServeBlock) -> None:
        """Send one block, if it is stored."""
        self._serve(nursery, request.address, partial(self._send_block, request.address, request.block_hash))

    def serve_blocks(self, nursery: trio.Nursery, request: r.ServeBlocks) -> None:
        """Send a window of blocks."""
        address = request.address
        send = partial(self._send_blocks, address, request.from_height, request.count_max)
        self._serve(nursery, address, send)

    def _serve(self, nursery: trio.Nursery, address: bytes, serve: Callable[[], Awaitable[None]]) -> None:
        if self._slots.take(address):
            nursery.start_soon(self._serve_one, address, serve)
        else:
            self._metrics.count("messages_dropped_total", reason="serving")

    async def _serve_one(self, address: bytes, serve: Callable[[], Awaitable[None]]) -> None:
        try:
            await serve()
        finally:
            self._slots.give_back(address)

    async def _send_block(self, address: bytes, block_hash: bytes) -> None:
        raw = await self._chain.block(block_hash)
        if raw is not None:
            await self._send_served(address, encode_message(BlockReply(raw)))

    async def _send_served(self, address: bytes, data: bytes) -> None:
        self._replica.served(address, len(data), self._now_ms())
        await self._network.send(address, data, True)

    async def _send_blocks(self, address: bytes, from_height: int, count_max: int) -> None:
        """Send a window of blocks, or the oldest stored height: silence would look like a refusal."""
        blocks = await self._chain.blocks(from_height, min(count_max, BLOCKS_MAX))
        reply = window(from_height, blocks)
        if reply is not None:
            await self._send_served(address, encode_message(reply))
        elif not blocks and (oldest := self._chain.oldest_height()) > from_height:
            await self._send_served(address, encode_message(BlocksPruned(from_height, oldest)))
