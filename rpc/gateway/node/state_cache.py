"""A cache of state values. Values that are missing in one turn of the event loop are fetched together.

A value at the head is kept until a block changes it. Values at earlier heights never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

__all__ = ["KEYS_OF_FRAME", "StateCache"]

KEYS_OF_FRAME: Final = 256
SMALL_VALUE_BYTES: Final = 1024
"""Larger values are not cached."""
_ABSENT: Final = object()

Wanted = list[tuple[bytes, list[asyncio.Future[bytes | None]]]]
"""Keys, each with the futures that wait for its value."""


class StateCache:
    """Caches values; ``fetch`` reads values of some keys after a height from the node. Runs on asyncio."""

    def __init__(
        self,
        fetch: Callable[[int, list[bytes]], Coroutine[Any, Any, Sequence[bytes | None]]],
        entries_max: int,
    ) -> None:
        self._fetch = fetch
        self._entries_max = entries_max
        self._head: int | None = None
        """Height of the newest block, None while the node is not connected."""
        self._newest: dict[bytes, bytes | None] = {}
        """Values at the head. A new head removes those that it changed."""
        self._state: dict[tuple[int, bytes], bytes | None] = {}
        """Values at heights below the head."""
        self._wanted: dict[int, dict[bytes, list[asyncio.Future[bytes | None]]]] = {}

    def on_head(self, height: int, changes: Any) -> None:
        """Move to a new head; ``changes`` are a height and the keys changed since, if the node knows them."""
        match changes:
            case [int(known), list(keys)] if self._head is not None and known <= self._head:
                for key in keys:
                    self._newest.pop(key, None)
            case _:
                self._newest.clear()
        self._head = height

    def disconnect(self) -> None:
        """Remove the values at the head: without the node their changes are unknown."""
        self._head = None
        self._newest.clear()

    def clear(self) -> None:
        """Remove everything."""
        self._newest.clear()
        self._state.clear()

    def kept(self, height: int, key: bytes) -> object:
        """Return a cached value, or ``_ABSENT``."""
        if height == self._head:
            return self._newest.get(key, _ABSENT)
        return self._state.get((height, key), _ABSENT)

    async def read(self, height: int, *keys: bytes) -> list[bytes | None]:
        """Return values of the state after ``height``."""
        found = [self.kept(height, key) for key in keys]
        if _ABSENT not in found:
            return cast("list[bytes | None]", found)
        # All are asked for before the first is awaited.
        asked = [
            self._want(height, key) if value is _ABSENT else None for key, value in zip(keys, found, strict=True)
        ]
        return [
            cast("bytes | None", value) if future is None else await future
            for future, value in zip(asked, found, strict=True)
        ]

    def _want(self, height: int, key: bytes) -> asyncio.Future[bytes | None]:
        loop = asyncio.get_running_loop()
        wanted = self._wanted.get(height)
        if wanted is None:
            if not self._wanted:
                loop.call_soon(self._send_wanted)
            wanted = self._wanted[height] = {}
        future: asyncio.Future[bytes | None] = loop.create_future()
        wanted.setdefault(key, []).append(
            future
        )  # one future for each, so that cancelling one does not affect others
        return future

    def _send_wanted(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for height, futures in wanted.items():
            pairs = list(futures.items())
            for first in range(0, len(pairs), KEYS_OF_FRAME):
                asyncio.ensure_future(self._get(height, pairs[first : first + KEYS_OF_FRAME]))  # noqa: RUF006

    async def _get(self, height: int, wanted: Wanted) -> None:
        try:
            values = await self._fetch(height, [key for key, _ in wanted])
        except Exception as error:
            for _, futures in wanted:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()
            return
        for (key, futures), value in zip(wanted, values, strict=True):
            self._keep(height, key, value)
            for future in futures:
                if not future.done():
                    future.set_result(value)

    def _keep(self, height: int, key: bytes, value: bytes | None) -> None:
        if value is not None and len(value) > SMALL_VALUE_BYTES:
            return
        head, limit = self._head, self._entries_max
        if height == head:
            if len(self._newest) >= limit:
                del self._newest[next(iter(self._newest))]
            self._newest[key] = value
        elif head is not None and height < head:
            if len(self._state) >= limit:
                del self._state[next(iter(self._state))]
            self._state[height, key] = value
