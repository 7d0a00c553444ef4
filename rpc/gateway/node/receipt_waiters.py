"""Requests that wait for a transaction to become final. Each new block is matched against all of them.

The gateway asks the node for a transaction once, when the wait begins, and reads each new block once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

import structlog

from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from state.primitives.errors import DekubeError
from state.primitives.heads import Head

__all__ = ["BLOCKS_MAX", "BlockSource", "ReceiptWaiters"]

_log = structlog.get_logger(__name__)

BLOCKS_MAX: Final = 32
"""Blocks that are read one after another; after a longer gap the node is asked for each transaction."""

Location = tuple[int, int]
"""Height and index of a transaction."""


class BlockSource(Protocol):
    """What the waiters need of the node; every method may raise a DekubeError."""

    @property
    def head(self) -> Head:
        """The newest block."""
        ...

    async def block(self, height: int) -> LoadedBlock | None:
        """Return a block, None above the newest."""
        ...

    async def locate(self, transaction_hash: bytes) -> Location | None:
        """Return the location of a final transaction."""
        ...


class ReceiptWaiters:
    """All requests that wait for a transaction; ``on_head`` is called at each new head."""

    def __init__(self, source: BlockSource, waiters_max: int) -> None:
        self._source = source
        self._waiters_max = waiters_max
        self._waiting: dict[bytes, set[asyncio.Future[Location | None]]] = {}
        self._count = 0
        self._seen: int | None = 0
        """Height of the last block that was matched; None if that block no longer exists."""
        self._scanning: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    def on_head(self, _head: Head) -> None:
        """Match new blocks, unless that is running already."""
        if self._waiting and (self._scanning is None or self._scanning.done()):
            self._scanning = asyncio.ensure_future(self._scan())

    def reset(self) -> None:
        """Start again after the chain was set back: at the next head every transaction is looked up once."""
        self._seen = None
        if self._scanning is not None:
            self._scanning.cancel()  # it may have read blocks that no longer exist
            self._scanning = None

    async def wait(self, transaction_hash: bytes, timeout_s: float) -> Location | None:
        """Return the location of a transaction as soon as it is final, None when the time is over."""
        if self._count >= self._waiters_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests wait", retry_after_s=1)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        if not self._waiting:
            self._seen = self._source.head.height
        future: asyncio.Future[Location | None] = loop.create_future()
        # Before the node is asked: what becomes final after its answer is in a block that will be matched.
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

    def _remove(self, transaction_hash: bytes, future: asyncio.Future[Location | None]) -> None:
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
                # Meanwhile all waiters may have gone, and others may have come.
                self._seen = max(self._seen or 0, loaded.height)
                for index, found in enumerate(loaded.hashes):
                    self._tell(found, (loaded.height, index))
        except DekubeError as error:
            _log.debug("waiting requests are late", error=str(error))  # the next head tries again

    async def _look_up(self, hashes: Iterable[bytes]) -> None:
        async def look(transaction_hash: bytes) -> None:
            place = await self._source.locate(transaction_hash)
            if place is not None:
                self._tell(transaction_hash, place)

        await asyncio.gather(*map(look, hashes))

    def _tell(self, transaction_hash: bytes, place: Location) -> None:
        for future in self._waiting.pop(transaction_hash, ()):
            if not future.done():
                future.set_result(place)


def _give_up(future: asyncio.Future[Location | None]) -> None:
    if not future.done():
        future.set_result(None)
