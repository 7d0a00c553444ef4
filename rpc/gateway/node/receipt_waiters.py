"""Waiting for transactions to be final: matched in the gateway against each new block, however many wait.

The node is asked once for a transaction when the wait begins, and once for each block while anybody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

import structlog

from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from rpc.protocol.records import Head
from state.primitives.errors import DekubeError

__all__ = ["BLOCKS_MAX", "BlockSource", "ReceiptWaiters"]

_log = structlog.get_logger(__name__)

BLOCKS_MAX: Final = 32
"""Blocks read one after another; after a longer gap the node is asked for all that are waited for instead."""

Place = tuple[int, int]
"""Height and index of a transaction."""


class BlockSource(Protocol):
    """Where blocks and places come from; every part may raise a DekubeError."""

    @property
    def head(self) -> Head:
        """The newest block."""
        ...

    async def block(self, height: int) -> LoadedBlock | None:
        """Return a block, None above the newest."""
        ...

    async def locate(self, transaction_hash: bytes) -> Place | None:
        """Return the place of a final transaction."""
        ...


class ReceiptWaiters:
    """Everybody who waits for a transaction; ``on_head`` is to be called at each new head."""

    def __init__(self, source: BlockSource, waiters_max: int) -> None:
        self._source = source
        self._waiters_max = waiters_max
        self._waiting: dict[bytes, set[asyncio.Future[Place | None]]] = {}
        self._count = 0
        self._seen: int | None = 0
        """Height of the last block that those who wait were matched against; None: that block is no more."""
        self._scanning: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    def on_head(self, _head: Head) -> None:
        """Look at what is new, unless that is being done."""
        if self._waiting and (self._scanning is None or self._scanning.done()):
            self._scanning = asyncio.ensure_future(self._scan())

    def look_again(self) -> None:
        """Go on behind other blocks than were told: at the next head all that is waited for is looked up once."""
        self._seen = None
        if self._scanning is not None:
            self._scanning.cancel()  # what it reads may be of before
            self._scanning = None

    async def wait(self, transaction_hash: bytes, timeout_s: float) -> Place | None:
        """Return the place of a transaction as soon as it is final, None when the time is over."""
        if self._count >= self._waiters_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests wait", retry_after_s=1)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        if not self._waiting:
            self._seen = self._source.head.height
        future: asyncio.Future[Place | None] = loop.create_future()
        # Before the question: whatever becomes final after the node has looked is in a block that is looked at.
        self._waiting.setdefault(transaction_hash, set()).add(future)
        self._count += 1
        try:
            place = await self._source.locate(transaction_hash)
            if place is not None:
                return place
            timer = loop.call_at(
                until, _give_up, future
            )  # there may be no task to time out (rpc.gateway.dispatch)
            try:
                return await future
            finally:
                timer.cancel()
        finally:
            self._count -= 1
            self._remove(transaction_hash, future)

    def _remove(self, transaction_hash: bytes, future: asyncio.Future[Place | None]) -> None:
        waiting = self._waiting.get(transaction_hash)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[transaction_hash]

    async def _scan(self) -> None:
        source = self._source
        try:
            while self._waiting and ((seen := self._seen) is None or seen < source.head.height):
                newest = source.head.height
                if seen is None or newest - seen > BLOCKS_MAX:
                    await self._look_up(list(self._waiting))
                    self._seen = max(self._seen or 0, newest)
                    continue
                loaded = await source.block(seen + 1)
                if loaded is None:
                    return
                # Meanwhile all may have left, and others have come.
                self._seen = max(self._seen or 0, loaded.height)
                for index, found in enumerate(loaded.hashes):
                    self._tell(found, (loaded.height, index))
        except DekubeError as error:
            _log.debug("waits are late", error=str(error))  # the next head tries again

    async def _look_up(self, hashes: Iterable[bytes]) -> None:
        async def look(transaction_hash: bytes) -> None:
            place = await self._source.locate(transaction_hash)
            if place is not None:
                self._tell(transaction_hash, place)

        await asyncio.gather(*map(look, hashes))

    def _tell(self, transaction_hash: bytes, place: Place) -> None:
        for future in self._waiting.pop(transaction_hash, ()):
            if not future.done():
                future.set_result(place)


def _give_up(future: asyncio.Future[Place | None]) -> None:
    if not future.done():
        future.set_result(None)
