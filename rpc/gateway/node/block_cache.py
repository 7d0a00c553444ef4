"""A cache of blocks: each is fetched, its senders are recovered and it is rendered once for all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

import orjson

from rpc.protocol.blocks import LoadedBlock
from state.primitives.bounded_cache import BoundedCache

__all__ = ["ITEMS_OF_TURN", "BlockCache"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

ITEMS_OF_TURN: Final = 16
"""Transactions of a block that are rendered or recovered without a pause: about a millisecond."""
FETCHES_MAX: Final = 64
"""Blocks that are fetched or decoded at once: the node sends them faster than they are decoded."""
RENDERS_MAX: Final = 2
"""Blocks rendered at once: each takes its share of every turn of the event loop."""


class BlockCache:
    """Caches final blocks, and the JSON of large ones; ``fetch`` reads a block from the node.

    Runs on asyncio. Long computations run in one thread: large blocks must not occupy the threads of views, nor
    more than one processor.
    """

    def __init__(
        self,
        fetch: Callable[[int], Coroutine[Any, Any, LoadedBlock | None]],
        *,
        block_bytes_max: int,
        rendered_bytes_max: int,
    ) -> None:
        self._fetch = fetch
        self._blocks: BoundedCache[int, LoadedBlock] = BoundedCache(block_bytes_max)
        self._rendered: BoundedCache[tuple[str, bytes], bytes] = BoundedCache(rendered_bytes_max)
        self._fetching: _SharedWork[int, LoadedBlock | None] = _SharedWork()
        self._recovering: _SharedWork[int, None] = _SharedWork()
        self._rendering: _SharedWork[tuple[str, bytes], bytes] = _SharedWork()
        self._fetches = asyncio.Semaphore(FETCHES_MAX)
        self._renders = asyncio.Semaphore(RENDERS_MAX)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rpc-block")

    def put(self, loaded: LoadedBlock) -> None:
        """Cache a block."""
        self._blocks.put(loaded.height, loaded, loaded.weight_bytes)

    def clear(self) -> None:
        """Remove the blocks. Rendered JSON stays: its key is the block's hash, so it is valid on any chain."""
        self._blocks.clear()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, function: Callable[..., None], *args: Any) -> None:
        """Run ``function(*args)`` in the thread for blocks."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def block(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height``, None above the newest."""
        found = self._blocks.get(height)
        if found is not None:
            return found
        return await self._fetching.join(height, lambda: self._load(height))

    async def _load(self, height: int) -> LoadedBlock | None:
        async with self._fetches:
            loaded = await self._fetch(height)
        if loaded is not None:
            self.put(loaded)
        return loaded

    async def block_with_senders(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height`` with the senders of all its transactions."""
        loaded = await self.block(height)
        if loaded is not None and not loaded.has_senders:
            if len(loaded.block.transactions) <= ITEMS_OF_TURN:
                loaded.recover()
            else:
                await self._recovering.join(height, lambda: self.in_thread(LoadedBlock.recover, loaded))
        return loaded

    async def rendered(self, part: str, loaded: LoadedBlock, item: Callable[[int], Any]) -> Any:
        """Return the JSON of ``item`` of each transaction of a block; ``part`` is its name in the cache.

        For a large block it is made with pauses, once for all requests, and cached.
        """
        count = len(loaded.block.transactions)
        if count <= ITEMS_OF_TURN:
            return [item(index) for index in range(count)]
        key = (part, loaded.hash)
        found = self._rendered.get(key)
        if found is None:
            found = await self._rendering.join(key, lambda: self._render(key, count, item))
        return orjson.Fragment(found)

    async def _render(self, key: tuple[str, bytes], count: int, item: Callable[[int], Any]) -> bytes:
        async with self._renders:
            parts = []
            for first in range(0, count, ITEMS_OF_TURN):
                items = [item(index) for index in range(first, min(first + ITEMS_OF_TURN, count))]
                parts.append(orjson.dumps(items)[1:-1])
                await asyncio.sleep(0)
        found = b"[" + b",".join(parts) + b"]"
        self._rendered.put(key, found, len(found))
        return found


class _SharedWork(Generic[_K, _V]):
    """Runs one task for each key, for all that wait for it. The task goes on when they are cancelled."""

    def __init__(self) -> None:
        self._tasks: dict[_K, asyncio.Task[_V]] = {}

    def join(self, key: _K, begin: Callable[[], Coroutine[Any, Any, _V]]) -> asyncio.Future[_V]:
        """Return a future of the result for ``key``; start its task unless it runs already."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(begin())
            task.add_done_callback(lambda done: self._ended(key, done))
        return asyncio.shield(task)

    def _ended(self, key: _K, done: asyncio.Task[_V]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()  # nobody may wait for it any more
