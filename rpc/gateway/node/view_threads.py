"""Runs functions over the state in threads of the gateway; each sees the state after one height."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from rpc.gateway.node.pending import PendingRequests
from rpc.protocol.errors import NodeUnavailable, RpcError
from rpc.protocol.requests import ChainRequests

__all__ = ["ViewThreads"]

_T = TypeVar("_T")

SCAN_PAGE: Final = 1024
"""Entries of one request."""


class StateRead(Protocol):
    """Reads values of the state after a height."""

    def __call__(self, height: int, *keys: bytes) -> Coroutine[Any, Any, list[bytes | None]]:
        """Return the values of ``keys``."""
        ...


class ViewThreads:
    """Runs functions over the state, which reads values by ``read`` and ranges of keys from the node."""

    def __init__(self, pending: PendingRequests, read: StateRead, *, running_max: int, threads: int) -> None:
        self._pending = pending
        self._read = read
        self._running_max = running_max
        self._running = 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rpc-query")

    async def query(self, height: int, function: Callable[..., _T], *args: Any) -> _T:
        """Run ``function(reader, *args)`` in a worker thread over the state after ``height``."""
        if not self._pending.is_connected:
            raise NodeUnavailable
        if self._running >= self._running_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many queries under way", retry_after_s=1)
        self._running += 1
        loop = asyncio.get_running_loop()
        try:
            reader = _RemoteReader(self._pending, self._read, loop, height)
            return await loop.run_in_executor(self._threads, function, reader, *args)
        finally:
            self._running -= 1

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _RemoteReader:
    """The state after one height as a ``Reader`` for worker threads."""

    def __init__(
        self, pending: PendingRequests, read: StateRead, loop: asyncio.AbstractEventLoop, height: int
    ) -> None:
        self._pending = pending
        self._read = read
        self._loop = loop
        self._height = height

    def get(self, key: bytes) -> bytes | None:
        [value] = asyncio.run_coroutine_threadsafe(self._read(self._height, key), self._loop).result()
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        entries: list[tuple[bytes, bytes]] = []
        while len(entries) < limit:
            wanted = min(limit - len(entries), SCAN_PAGE)
            scanned = self._scan(start, stop, wanted)
            page = asyncio.run_coroutine_threadsafe(scanned, self._loop).result()
            entries += page
            if len(page) < wanted:
                break
            start = page[-1][0] + b"\0"
        return entries

    async def _scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return await self._pending.request(ChainRequests.scan, self._height, start, stop, limit)
