"""The gateway's side of the socket: a ``Node`` over frames, with caches of what can never change.

Runs on asyncio. Reads of one turn of the loop travel in one frame; state at a height, blocks and places of
transactions are immutable once final, so they are kept. The link reconnects by itself, and while it is down every
question fails with NodeUnavailable.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import orjson
import structlog

from rpc.blocks import LoadedBlock
from rpc.errors import HeightNotReached, HeightUnknown, NodeUnavailable, RpcError
from rpc.ethereum.filters import FILTERS_PER_CALLER_MAX, Filters
from rpc.events import EVENTS
from rpc.frames import (
    ANSWER_LIMIT_BYTES,
    REQUEST_LIMIT_BYTES,
    Answer,
    Failure,
    FrameBuffer,
    Push,
    encode_request,
    read_answer,
    read_failure,
)
from rpc.gather import Gatherer, Waiter
from rpc.limits import Cache
from rpc.view import (
    BlockRecord,
    Description,
    Head,
    KindInfo,
    KnownNode,
    Network,
    Peer,
    PoolStatus,
    Submitted,
    Sync,
    Waiting,
    read_record,
)
from rpc.waits import Waits
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.receipts import EventType
from state.primitives.transactions import CALL_KIND

__all__ = ["Link", "LinkOptions", "read_submitted"]

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

KEYS_OF_FRAME: Final = 256
SCAN_PAGE: Final = 1024
SUBMITS_OF_FRAME: Final = 64
SUBMIT_PAUSE_S: Final = 0.003
"""A frame of submissions costs both processes as much processor time as two transactions do."""
POOL_NEWS_MAX: Final = 4096
"""Hashes of one answer about what came into the mempool; the newest ones where there were more."""
EPOCHS_KEPT: Final = 64
"""Epochs whose leaders are kept."""
MIN_HEIGHT_WAIT_MS: Final = 2_000
"""How long a request waits for its ``min_height``: about two blocks."""
SMALL_VALUE_BYTES: Final = 1024
"""Larger values of the state are not kept."""
ITEMS_OF_TURN: Final = 16
"""Transactions of a block shown, or recovered, before others have their turn: a millisecond."""
LOADS_MAX: Final = 64
"""Blocks that are asked for or decoded at once: the node gives them faster than they are decoded."""
RENDERS_MAX: Final = 2
"""Blocks shown at once; what they take of each turn of the loop adds up."""
RECONNECT_S_MIN: Final = 0.05
RECONNECT_S_MAX: Final = 2.0
_ABSENT: Final = object()
_NOBODY: Final = (None, 0.0, None)


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Bounds of what the gateway keeps and of what it has under way at the node."""

    requests_max: int = 4096
    request_timeout_s: float = 15.0
    state_entries_max: int = 200_000
    block_bytes_max: int = 192 * 1024 * 1024
    place_entries_max: int = 200_000
    bloom_entries_max: int = 50_000
    """About 300 bytes each; a question about logs reads the blocks that are not among them."""
    waiters_max: int = 16_384
    """Requests that wait for a height, and as many more that wait for a transaction."""
    rendered_bytes_max: int = 64 * 1024 * 1024
    """Parts of large blocks as JSON."""
    queries_max: int = 64
    query_threads: int = 4
    large_block_transactions: int = 128
    """Blocks with more are decoded in a worker thread."""
    filters_per_caller_max: int = FILTERS_PER_CALLER_MAX


class _Session(asyncio.Protocol):
    """One connection to the node."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._buffer = FrameBuffer(ANSWER_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for value in self._buffer.feed(data):
                self._link.received(read_answer(value))
        except DecodeError as error:
            _log.error("the node speaks another protocol", error=str(error))
            self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        # At once, and not when ``run`` gets there: it may itself be waiting for an answer that will not come.
        self._link.session_lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, frame: bytes) -> None:
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._frames))
        self._frames = []


class _RemoteReader:
    """The state after one height as a ``Reader`` for worker threads."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop, height: int) -> None:
        self._link = link
        self._loop = loop
        self._height = height

    def get(self, key: bytes) -> bytes | None:
        [value] = asyncio.run_coroutine_threadsafe(self._link.read(self._height, key), self._loop).result()
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        entries: list[tuple[bytes, bytes]] = []
        while len(entries) < limit:
            wanted = min(limit - len(entries), SCAN_PAGE)
            ask = self._link.request("scan", self._height, start, stop, wanted)
            page = [(key, value) for key, value in asyncio.run_coroutine_threadsafe(ask, self._loop).result()]
            entries += page
            if len(page) < wanted:
                break
            start = page[-1][0] + b"\0"
        return entries


class Link:
    """The node as the methods see it (``rpc.table.Node``); ``run`` keeps it connected."""

    def __init__(self, path: Path, options: LinkOptions | None = None) -> None:
        self._path = path
        self._options = options or LinkOptions()
        self._session: _Session | None = None
        self._next_identifier = 1
        self._asked: dict[int, tuple[asyncio.Future[Any], float, Callable[[Any], Any] | None]] = {}
        """What the node is to answer, since when, and how that is read."""
        self._head: Head | None = None
        self._last: Head | None = None
        """The head when the node was heard last."""
        self._description: Description | None = None
        self._kinds: dict[int, str] = {}
        self._newest: dict[bytes, bytes | None] = {}
        """Values that hold at the head: a new head takes out those that it changed."""
        self._state: dict[tuple[int, bytes], bytes | None] = {}
        """Values at heights below the head."""
        self._wanted: dict[int, dict[bytes, list[asyncio.Future[bytes | None]]]] = {}
        self._blocks: Cache[int, LoadedBlock] = Cache(self._options.block_bytes_max)
        self._loading: dict[int, asyncio.Future[LoadedBlock | None]] = {}
        self._places: Cache[bytes, tuple[int, int]] = Cache(self._options.place_entries_max)
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._recovering: dict[int, asyncio.Future[None]] = {}
        self._rendered: Cache[tuple[str, bytes], bytes] = Cache(self._options.rendered_bytes_max)
        self._rendering: dict[tuple[str, bytes], asyncio.Future[bytes]] = {}
        self._renders = asyncio.Semaphore(RENDERS_MAX)
        self._leaders: Cache[int, list[bytes]] = Cache(EPOCHS_KEPT)
        self._heights: Cache[bytes, int] = Cache(self._options.place_entries_max)
        self._hashes: Cache[int, bytes] = Cache(self._options.place_entries_max)
        self._waiters: set[asyncio.Future[None]] = set()
        limit = self._options.requests_max
        self._locates: Gatherer[bytes, tuple[int, int] | None] = Gatherer(
            self._locate_all, frame_items_max=KEYS_OF_FRAME, waiting_max=self._options.waiters_max
        )
        self._nonces: Gatherer[bytes, int] = Gatherer(
            self._ask_nonces, frame_items_max=KEYS_OF_FRAME, waiting_max=limit
        )
        self._submits: Gatherer[tuple[bytes, bytes], bytes] = Gatherer(
            self._submit_all,
            frame_items_max=SUBMITS_OF_FRAME,
            waiting_max=limit,
            size_of=lambda transaction: len(transaction[0]) + 64,
            pause_s=SUBMIT_PAUSE_S,
        )
        self.waits = Waits(self, self._options.waiters_max)
        self._queries = 0
        self._threads = ThreadPoolExecutor(self._options.query_threads, thread_name_prefix="rpc-query")
        # One of its own: large blocks must not take the places of views, nor more than one processor.
        self._block_thread = ThreadPoolExecutor(1, thread_name_prefix="rpc-block")
        self._listeners: list[Callable[[Head], None]] = []
        self.blooms: Cache[int, int] = Cache(self._options.bloom_entries_max)
        self.filters = Filters(time.monotonic, self._options.filters_per_caller_max)
        self.serving: tuple[str, int] = ("", 0)
        """Where the gateway listens; told to the node at each connection."""

    # Connection

    async def run(self) -> None:
        """Stay connected until cancelled."""
        delay_s = RECONNECT_S_MIN
        sweeper = asyncio.ensure_future(self._sweep())
        try:
            while True:
                try:
                    if await self._connect():
                        delay_s = RECONNECT_S_MIN
                except (OSError, NodeUnavailable, DecodeError, RpcError) as error:
                    _log.debug("no connection to the node", error=str(error))
                finally:
                    self._disconnected()
                await asyncio.sleep(delay_s * (1 + random.random()))
                delay_s = min(delay_s * 2, RECONNECT_S_MAX)
        finally:
            sweeper.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._block_thread.shutdown(wait=False, cancel_futures=True)

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        _, session = await loop.create_unix_connection(lambda: _Session(self), str(self._path))
        try:
            self._session = session
            await self._greet()
            _log.info("connected to the node", height=self.head.height)
            await session.lost
            _log.warning("connection to the node lost")
            return True
        finally:
            session.close()

    async def _greet(self) -> None:
        hello = read_record(Description, await self.request("hello"))
        hello = hello._replace(kinds=tuple(KindInfo(*item) for item in hello.kinds))
        if self._description is not None and self._description.genesis_hash != hello.genesis_hash:
            _log.warning("the node is of another chain now", genesis=hello.genesis_hash.hex())
            self._forget()
        elif self._last is not None and await self.request("hash", self._last.height) != self._last.hash:
            _log.warning("the node was set back", height=self._last.height)
            self._forget()
        self._description = hello
        self._kinds = {CALL_KIND: "call", **{item.kind: item.name for item in hello.kinds}}
        self._new_head(read_record(Head, await self.request("head")))
        await self.request("watch")
        await self.request("serving", *self.serving)

    def _forget(self) -> None:
        self._last = None
        self._newest.clear()
        self._state.clear()
        self._blocks.clear()
        self._places.clear()
        self._heights.clear()
        self._hashes.clear()
        self._leaders.clear()
        self.blooms.clear()

    def session_lost(self, session: _Session) -> None:
        """Fail whatever waits for an answer of ``session``."""
        if session is self._session:
            self._disconnected()

    def _disconnected(self) -> None:
        self._session = None
        self._last, self._head = self._head or self._last, None
        self._newest.clear()
        asked, self._asked = self._asked, {}
        for future, _, _ in asked.values():
            if not future.done():
                future.set_exception(NodeUnavailable())
                future.exception()  # whoever waited may be gone

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)
            late = loop.time() - self._options.request_timeout_s
            for identifier, (future, since, _) in list(self._asked.items()):
                if since > late:
                    break
                del self._asked[identifier]
                if not future.done():
                    future.set_exception(NodeUnavailable())
                    future.exception()

    def received(self, reply: Answer | Failure | Push) -> None:
        """Take what the node says."""
        match reply:
            case Answer(identifier, value):
                future, _, read = self._asked.pop(identifier, _NOBODY)
                if future is None or future.done():
                    return
                try:
                    future.set_result(value if read is None else read(value))
                except Exception as error:  # it is not what was asked for
                    future.set_exception(error)
                    future.exception()
            case Failure(identifier):
                future, _, _ = self._asked.pop(identifier, _NOBODY)
                if future is not None and not future.done():
                    future.set_exception(_as_error(reply))
                    future.exception()
            case Push("head", [list(record), changes]):
                self._new_head(read_record(Head, record), changes)
            case _:
                pass  # news of a later version

    def _new_head(self, head: Head, changes: Any = None) -> None:
        if self._head is not None and head.height <= self._head.height:
            return
        match changes:
            case [int(known), list(keys)] if self._head is not None and known <= self._head.height:
                for key in keys:
                    self._newest.pop(key, None)
            case _:
                self._newest.clear()
        self._head = head
        self._hashes.put(head.height, head.hash)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waits.on_head(head)
        for listener in self._listeners:
            listener(head)

    def on_head(self, listener: Callable[[Head], None]) -> None:
        """Call ``listener`` at each new head; heights may be skipped."""
        self._listeners.append(listener)

    async def request(self, method: str, *params: Value) -> Any:
        """Ask the node. Raises NodeUnavailable, or RpcError with the code of the node's error."""
        return await self._ask(method, list(params))

    def _ask(
        self, method: str, params: list[Value], read: Callable[[Any], Any] | None = None
    ) -> asyncio.Future[Any]:
        """Return what the node will answer, or what ``read`` makes of it. Raises what ``request`` does."""
        session = self._session
        if session is None:
            raise NodeUnavailable
        if len(self._asked) >= self._options.requests_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests under way", retry_after_s=1)
        loop = asyncio.get_running_loop()
        identifier = self._next_identifier
        self._next_identifier += 1
        frame = encode_request(identifier, method, params)
        if len(frame) > REQUEST_LIMIT_BYTES:
            raise RpcError("limit_exceeded", "limit exceeded: too much for one question")
        future: asyncio.Future[Any] = loop.create_future()
        self._asked[identifier] = (future, loop.time(), read)
        session.send(frame)
        return future

    # Facts

    @property
    def is_connected(self) -> bool:
        """Whether the node answers."""
        return self._head is not None

    @property
    def head(self) -> Head:
        """The newest finalised block. Raises NodeUnavailable."""
        if self._head is None:
            raise NodeUnavailable
        return self._head

    @property
    def description(self) -> Description:
        """What does not change. Raises NodeUnavailable before the first connection."""
        if self._description is None:
            raise NodeUnavailable
        return self._description

    @property
    def kinds(self) -> Mapping[int, str]:
        """Names of the kinds."""
        return self._kinds

    @property
    def events(self) -> Mapping[tuple[bytes, bytes], EventType]:
        """Known events."""
        return EVENTS

    # State

    def kept(self, height: int, key: bytes) -> object:
        """Return a kept value of the state, or a token when it is not kept."""
        if self._head is not None and height == self._head.height:
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
        wanted.setdefault(key, []).append(future)  # each has its own, so that nobody's leaving harms another
        return future

    def _send_wanted(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for height, futures in wanted.items():
            pairs = list(futures.items())
            for first in range(0, len(pairs), KEYS_OF_FRAME):
                asyncio.ensure_future(self._read_keys(height, pairs[first : first + KEYS_OF_FRAME]))  # noqa: RUF006

    async def _read_keys(
        self, height: int, wanted: list[tuple[bytes, list[asyncio.Future[bytes | None]]]]
    ) -> None:
        keys: list[Value] = [key for key, _ in wanted]
        try:
            # State below the head comes from undo records: more work, so the node does it in a thread.
            method = "read" if self._head is not None and height == self._head.height else "read_old"
            values = await self.request(method, height, keys)
            if type(values) is not list or len(values) != len(keys):
                raise DecodeError("not the values that were asked for")
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
        head, limit = self._head, self._options.state_entries_max
        if head is not None and height == head.height:
            if len(self._newest) >= limit:
                del self._newest[next(iter(self._newest))]
            self._newest[key] = value
        elif head is not None and height < head.height:
            if len(self._state) >= limit:
                del self._state[next(iter(self._state))]
            self._state[height, key] = value

    async def query(self, height: int, function: Callable[..., _T], *args: Any) -> _T:
        """Run ``function(reader, *args)`` in a worker thread over the state after ``height``."""
        if self._session is None:
            raise NodeUnavailable
        if self._queries >= self._options.queries_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many queries under way", retry_after_s=1)
        self._queries += 1
        loop = asyncio.get_running_loop()
        try:
            reader = _RemoteReader(self, loop, height)
            return await loop.run_in_executor(self._threads, function, reader, *args)
        finally:
            self._queries -= 1

    # Blocks and transactions

    async def hash_of(self, height: int) -> bytes:
        """Return the hash of the block at ``height``."""
        found = self._hashes.get(height)
        if found is None:
            found = await self.request("hash", height)
            if type(found) is not bytes:
                raise HeightUnknown(height=height, newest_height=self.head.height)
            self._hashes.put(height, found)
        return found

    async def block(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height``, None above the newest."""
        found = self._blocks.get(height)
        if found is not None:
            return found
        loading = self._loading.get(height)
        if loading is None:
            loading = asyncio.ensure_future(self._load_block(height))
            self._loading[height] = loading
            loading.add_done_callback(lambda done: (self._loading.pop(height, None), done.exception()))
        return await asyncio.shield(loading)

    async def _load_block(self, height: int) -> LoadedBlock | None:
        async with self._loads:
            return await self._load(height)

    async def _load(self, height: int) -> LoadedBlock | None:
        value = await self.request("block", height)
        if value is None:
            return None
        record = read_record(BlockRecord, value)
        loaded = LoadedBlock(record)
        if len(loaded.block.transactions) > self._options.large_block_transactions:
            await self._in_thread(_decode_all, loaded)
        await self._name_leader(loaded)
        self._blocks.put(height, loaded, loaded.weight_bytes)
        self._hashes.put(height, loaded.hash)
        self._heights.put(loaded.hash, height)
        return loaded

    async def _name_leader(self, loaded: LoadedBlock) -> None:
        header = loaded.block.header
        leaders = self._leaders.get(header.epoch)
        if leaders is None:
            leaders = list(await self.request("leaders", header.epoch))
            if leaders:
                self._leaders.put(header.epoch, leaders)
        if header.proposer_seat < len(leaders):
            loaded.leader = leaders[header.proposer_seat]

    async def block_with_senders(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height`` with the senders of all its transactions."""
        loaded = await self.block(height)
        if loaded is not None and not loaded.has_senders:
            if len(loaded.block.transactions) <= ITEMS_OF_TURN:
                loaded.recover()
                return loaded
            recovering = self._recovering.get(height)
            if recovering is None:  # once for all who ask
                recovering = asyncio.ensure_future(self._in_thread(LoadedBlock.recover, loaded))
                self._recovering[height] = recovering
                recovering.add_done_callback(lambda _done: self._recovering.pop(height, None))
                recovering.add_done_callback(_look_at)
            await asyncio.shield(recovering)
        return loaded

    async def _in_thread(self, function: Callable[..., None], *args: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._block_thread, function, *args)

    async def rendered(self, part: str, loaded: LoadedBlock, item: Callable[[int], Any]) -> Any:
        """Return the JSON of ``item`` of each transaction of a block; ``part`` names it.

        That of a large block is made in turns, once for all who ask, and kept.
        """
        count = len(loaded.block.transactions)
        if count <= ITEMS_OF_TURN:
            return [item(index) for index in range(count)]
        key = (part, loaded.hash)
        found = self._rendered.get(key)
        if found is None:
            rendering = self._rendering.get(key)
            if rendering is None:
                rendering = asyncio.ensure_future(self._render(key, count, item))
                self._rendering[key] = rendering
                rendering.add_done_callback(lambda _done: self._rendering.pop(key, None))
                rendering.add_done_callback(_look_at)
            found = await asyncio.shield(rendering)
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

    async def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block."""
        found = self._heights.get(block_hash)
        if found is None:
            found = await self.request("height_of", block_hash)
            if found is not None:
                self._heights.put(block_hash, found)
        return found

    async def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Return height and index of a finalised transaction."""
        found = self._places.get(transaction_hash)
        if found is None:
            found = await self._locates.answer(transaction_hash)
            if found is not None:
                self._places.put(transaction_hash, found)
        return found

    async def _locate_all(self, hashes: Sequence[bytes]) -> list[tuple[int, int] | Exception | None]:
        found = await self.request("locate", *hashes)
        return [None if place is None else (place[0], place[1]) for place in found]

    async def _head_above(self, height: int, until: float) -> bool:
        """Wait for a head above ``height``; return False when the time ``until`` is over first."""
        if self._head is not None and self._head.height > height:
            return True  # it came while the caller was waiting for something else
        if len(self._waiters) >= self._options.waiters_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests wait", retry_after_s=1)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=max(until - loop.time(), 0))
            return waiter.done()
        finally:
            self._waiters.discard(waiter)

    async def wait_transaction(self, transaction_hash: bytes, timeout_ms: int) -> tuple[int, int] | None:
        """Return height and index as soon as a transaction is final, None when the time is over."""
        place = await self.waits.wait(transaction_hash, timeout_ms / 1000)
        if place is not None:
            self._places.put(transaction_hash, place)
        return place

    async def yield_turn(self) -> None:
        """Let other requests have their turn."""
        await asyncio.sleep(0)

    async def wait_height(self, height: int) -> None:
        """Wait a little for the head to be at ``height``. Raises HeightNotReached."""
        until = asyncio.get_running_loop().time() + MIN_HEIGHT_WAIT_MS / 1000
        while self.head.height < height:
            if not await self._head_above(self.head.height, until):
                raise HeightNotReached(height=self.head.height, min_height=height)

    async def history(self, address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        """Return places of transactions that touch ``address``, newest first."""
        found = await self.request("history", address, None if before is None else list(before), limit)
        return [(height, index) for height, index in found]

    async def prove(self, height: int, key: bytes) -> bytes:
        """Return the encoded proof of ``key``."""
        return cast(bytes, await self.request("prove", height, key))

    async def header_path(
        self, height: int, limit: int, *, to_certificate: bool = True
    ) -> tuple[list[bytes], bytes | None]:
        """Return headers from ``height`` up to the first that a kept certificate names, and that certificate."""
        headers, certificate = await self.request("header_path", height, limit, int(to_certificate))
        return headers, certificate

    async def epoch_records(self, first: int, limit: int) -> list[bytes]:
        """Return the records of at most ``limit`` epochs from ``first`` on."""
        return cast(list[bytes], await self.request("epoch_records", first, limit))

    # What changes at any time

    async def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction."""
        return await self._nonces.answer(address)

    async def _ask_nonces(self, addresses: Sequence[bytes]) -> list[int | Exception]:
        return cast("list[int | Exception]", await self.request("pending_nonces", *addresses))

    async def pool_status(self) -> PoolStatus:
        """Return the mempool in numbers."""
        return read_record(PoolStatus, await self.request("pool"))

    async def pool_transactions(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool, the best first."""
        return _waiting(await self.request("pool_list", limit))

    async def pool_page(self, before: int | None, limit: int) -> list[tuple[int, Waiting]]:
        """Return transactions of the mempool with the numbers of their arrival, the newest first."""
        found = await self.request("pool_page", before, limit)
        return [(number, read_record(Waiting, item)) for number, item in found]

    async def pool_queued(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool that wait for an earlier nonce."""
        return _waiting(await self.request("pool_queued", limit))

    async def pool_of(self, address: bytes) -> list[Waiting]:
        """Return what waits from one sender."""
        return _waiting(await self.request("pool_of", address))

    async def pool_news(self, since: int | None) -> tuple[int, list[bytes]]:
        """Return where the mempool is now, and the hashes of what came in after ``since``."""
        now, hashes = await self.request("pool_news", since or 0, 0 if since is None else POOL_NEWS_MAX)
        return now, hashes

    async def pool_get(self, transaction_hash: bytes) -> Waiting | None:
        """Return a waiting transaction."""
        found = await self.request("pool_get", transaction_hash)
        return None if found is None else read_record(Waiting, found)

    async def submit(self, raw: bytes, sender: bytes) -> bytes:
        """Hand a transaction to the mempool; return its hash."""
        return await self._submits.ask((raw, sender))

    def post(self, raw: bytes, sender: bytes, waiter: Waiter[bytes]) -> None:
        """Hand a transaction to the mempool, and tell ``waiter`` its hash."""
        self._submits.tell((raw, sender), waiter)

    def _submit_all(self, transactions: Sequence[tuple[bytes, bytes]]) -> asyncio.Future[list[bytes | Exception]]:
        return self._ask("submit", [part for transaction in transactions for part in transaction], read_submitted)

    async def submit_evidence(self, raw: bytes) -> Submitted:
        """Hand evidence of a fault to the node."""
        return read_record(Submitted, await self.request("submit_evidence", raw))

    async def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[Submitted]:
        """Hand the proof of a fork to the node."""
        values: list[Value] = list(certificates)
        return [read_record(Submitted, item) for item in await self.request("submit_fork", values, reporter)]

    async def simulate(self, sender: bytes, kind: int, payload: list[Any], price: int | None = None) -> bytes:
        """Return the encoded receipt of a dry run; see ``NodeView.simulate``."""
        # As bytes: what strangers have nested goes no deeper into a frame than anything else.
        return cast(bytes, await self.request("simulate", sender, kind, encode(payload), price))

    async def peers(self) -> list[Peer]:
        """Return the connected peers."""
        return [read_record(Peer, item) for item in await self.request("peers")]

    async def network(self, after: bytes, limit: int) -> Network:
        """Return how the node is reached, and some whom it knows; see ``NodeView.network``."""
        value = await self.request("network", after, limit)
        found = read_record(Network, value)
        return found._replace(nodes=tuple(read_record(KnownNode, item) for item in value[-1]))

    async def sync(self) -> Sync:
        """Return how far the node is."""
        return read_record(Sync, await self.request("sync"))


def _as_error(failure: Failure) -> RpcError:
    return RpcError(failure.code, failure.message, **fields_to_json(failure.fields))


def read_submitted(value: Any) -> list[bytes | Exception]:
    """Return the hash of each transaction, or why it was refused. Raises DecodeError."""
    match value:
        case [bytes(hashes), list(failures)] if not len(hashes) % HASH_BYTES:
            outcomes: list[bytes | Exception] = [
                hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)
            ]
            for failure in failures:
                match failure:
                    case [int(position), *why] if 0 <= position < len(outcomes):
                        outcomes[position] = _as_error(read_failure(0, why))
                    case _:
                        raise DecodeError("not the failure of a transaction")
            return outcomes
        case _:
            raise DecodeError("not the hashes of transactions")


def _waiting(items: Any) -> list[Waiting]:
    return [read_record(Waiting, item) for item in items]


def _look_at(done: asyncio.Future[Any]) -> None:
    """Take note of a failure that nobody may wait for any more."""
    if not done.cancelled():
        done.exception()


def _decode_all(loaded: LoadedBlock) -> None:
    _ = loaded.hashes, loaded.before, loaded.tips_paid


def fields_to_json(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of an error for its data: heights as numbers, other integers as decimal strings."""
    return {
        name: str(value) if type(value) is int and not name.endswith("height") else value
        for name, value in fields
        if name not in ("reason", "message")  # the error's own code and text stand there
    }
