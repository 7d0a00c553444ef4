"""The gateway's client of its node, over a Unix socket, with caches of what is final.

Runs on asyncio. Requests of one turn of the event loop leave in one frame. The state at a height
(``rpc.gateway.node.state_cache``), blocks (``rpc.gateway.node.block_cache``) and locations of transactions never
change once they are final, so they are cached. The client reconnects by itself. While the node is away, every
request (``rpc.gateway.node.pending``) fails with NodeUnavailable.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import structlog

from rpc.gateway.node.batcher import Batcher
from rpc.gateway.node.block_cache import BlockCache
from rpc.gateway.node.pending import PendingRequests, as_error
from rpc.gateway.node.receipt_waiters import ReceiptWaiters
from rpc.gateway.node.state_cache import KEYS_OF_FRAME, StateCache
from rpc.gateway.node.view_threads import ViewThreads
from rpc.methods.poll_filters import FILTERS_PER_CALLER_MAX, PollFilters
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import HeightNotReached, HeightUnknown, NodeUnavailable, RpcError
from rpc.protocol.frames import ANSWER_LIMIT_BYTES, FrameBuffer, Push, read_answer, read_failure
from rpc.protocol.records import Description
from rpc.protocol.requests import ChainRequests, PoolRequests
from rpc.protocol.waiter import Waiter
from rpc.protocol.wire_types import read_record
from state.primitives.bounded_cache import BoundedCache
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.heads import Head
from state.primitives.receipts import EventType
from state.primitives.transactions import CALL_KIND
from tasks.ledger.events import EVENTS

__all__ = ["NodeClient", "NodeClientOptions", "read_submitted"]

_log = structlog.get_logger(__name__)

SUBMITS_OF_FRAME: Final = 64
SUBMIT_PAUSE_S: Final = 0.003
"""How long a frame waits to have as many transactions as the last one: a frame costs as much as two of them."""
EPOCHS_KEPT: Final = 64
"""Epochs whose leaders are cached."""
MIN_HEIGHT_WAIT_MS: Final = 2_000
"""How long a request waits for its ``min_height``: about two blocks."""
RECONNECT_S_MIN: Final = 0.05
RECONNECT_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class NodeClientOptions:
    """Bounds of the gateway's caches, and of its unanswered requests."""

    requests_max: int = 4096
    request_timeout_s: float = 15.0
    state_entries_max: int = 200_000
    block_bytes_max: int = 192 * 1024 * 1024
    location_entries_max: int = 200_000
    bloom_entries_max: int = 50_000
    """About 300 bytes each. A query of logs reads the blocks whose blooms are not cached."""
    waiters_max: int = 16_384
    """Requests that wait for a height, and as many more that wait for a transaction."""
    rendered_bytes_max: int = 64 * 1024 * 1024
    """Cached JSON of large blocks."""
    views_max: int = 64
    view_threads: int = 4
    large_block_transactions: int = 128
    """Blocks with more are decoded in a worker thread."""
    filters_per_caller_max: int = FILTERS_PER_CALLER_MAX


class _Session(asyncio.Protocol):
    """One connection to the node."""

    def __init__(self, pending: PendingRequests, on_lost: Callable[[_Session], None]) -> None:
        self._pending = pending
        self._on_lost = on_lost
        self._buffer = FrameBuffer(ANSWER_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for value in self._buffer.feed(data):
                self._pending.received(read_answer(value))
        except DecodeError as error:
            _log.error("the node sent a malformed frame; the connection is closed", error=str(error))
            self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        # At once: ``run`` may itself be waiting for an answer that will not come.
        self._on_lost(self)

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


class NodeClient:
    """Implements ``rpc.methods.method.NodeApi`` over a connection to the node; ``run`` keeps it connected."""

    def __init__(self, path: Path, options: NodeClientOptions | None = None) -> None:
        self._path = path
        self._options = options = options or NodeClientOptions()
        self._session: _Session | None = None
        self._pending = PendingRequests(options.requests_max, options.request_timeout_s, self._on_push)
        self._state = StateCache(self._read_keys, options.state_entries_max)
        self._blocks = BlockCache(
            self._fetch_block,
            block_bytes_max=options.block_bytes_max,
            rendered_bytes_max=options.rendered_bytes_max,
        )
        self._views = ViewThreads(
            self._pending, self._state.read, running_max=options.views_max, threads=options.view_threads
        )
        # Bound here, not wrapped in methods: that would add a call to each request.
        self.request = self._pending.request
        self.read = self._state.read
        self.query = self._views.query
        self.block = self._blocks.block
        self.block_with_senders = self._blocks.block_with_senders
        self.rendered = self._blocks.rendered
        self._head: Head | None = None
        self._last: Head | None = None
        """The newest head before the connection was lost."""
        self._description: Description | None = None
        self._kinds: dict[int, str] = {}
        self._locations: BoundedCache[bytes, tuple[int, int]] = BoundedCache(options.location_entries_max)
        self._leaders: BoundedCache[int, list[bytes]] = BoundedCache(EPOCHS_KEPT)
        self._heights: BoundedCache[bytes, int] = BoundedCache(options.location_entries_max)
        self._hashes: BoundedCache[int, bytes] = BoundedCache(options.location_entries_max)
        self._waiters: set[asyncio.Future[None]] = set()
        self._locates: Batcher[bytes, tuple[int, int] | None] = Batcher(
            self._locate_all, frame_items_max=KEYS_OF_FRAME, waiting_max=options.waiters_max
        )
        self._nonces: Batcher[bytes, int] = Batcher(
            self._ask_nonces, frame_items_max=KEYS_OF_FRAME, waiting_max=options.requests_max
        )
        self._submits: Batcher[tuple[bytes, bytes], bytes] = Batcher(
            self._submit_all,
            frame_items_max=SUBMITS_OF_FRAME,
            waiting_max=options.requests_max,
            size_of=lambda transaction: len(transaction[0]) + 64,
            pause_s=SUBMIT_PAUSE_S,
        )
        self.receipt_waiters = ReceiptWaiters(self, options.waiters_max)
        self._listeners: list[Callable[[Head], None]] = []
        self.blooms: BoundedCache[int, int] = BoundedCache(options.bloom_entries_max)
        self.filters = PollFilters(time.monotonic, secrets.randbits, options.filters_per_caller_max)
        self.resets = 0
        """How often the node's chain turned out to be another one, or to have been set back."""
        self.serving: tuple[str, int] = ("", 0)
        """Where the gateway listens; reported to the node at each connection."""

    # Connection

    async def run(self) -> None:
        """Stay connected until cancelled."""
        delay_s = RECONNECT_S_MIN
        sweeper = asyncio.ensure_future(self._pending.sweep())
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
            self._views.close()
            self._blocks.close()

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        _, session = await loop.create_unix_connection(
            lambda: _Session(self._pending, self._session_lost), str(self._path)
        )
        try:
            self._session = session
            self._pending.connect(session.send)
            await self._greet()
            _log.info("connected to the node", height=self.head.height)
            await session.lost
            _log.warning("connection to the node lost")
            return True
        finally:
            session.close()

    async def _greet(self) -> None:
        hello = await self.request(ChainRequests.description)
        if self._description is not None and self._description.genesis_hash != hello.genesis_hash:
            _log.warning("the node has another chain now; caches are cleared", genesis=hello.genesis_hash.hex())
            self._forget()
        elif (
            self._last is not None
            and await self.request(ChainRequests.block_hash, self._last.height) != self._last.hash
        ):
            _log.warning("the node's chain was set back; caches are cleared", height=self._last.height)
            self._forget()
        self._description = hello
        self._kinds = {CALL_KIND: "call", **{item.kind: item.name for item in hello.kinds}}
        self._new_head(await self.request(ChainRequests.head))
        await self._pending.ask("watch", [])
        await self._pending.ask("serving", list(self.serving))

    def _forget(self) -> None:
        self.resets += 1
        self._last = None
        self._state.clear()
        self._blocks.clear()
        self._locations.clear()
        self._heights.clear()
        self._hashes.clear()
        self._leaders.clear()
        self.blooms.clear()
        self.filters.clear()
        self.receipt_waiters.reset()

    def _session_lost(self, session: _Session) -> None:
        if session is self._session:
            self._disconnected()

    def _disconnected(self) -> None:
        self._session = None
        self._last, self._head = self._head or self._last, None
        self._state.disconnect()
        self._pending.disconnect()

    def _on_push(self, news: Push) -> None:
        match news:
            case Push("head", [list(record), changes]):
                self._new_head(read_record(Head, record), changes)
            case _:
                pass  # a message of a later version

    def _new_head(self, head: Head, changes: Any = None) -> None:
        if self._head is not None and head.height <= self._head.height:
            return
        self._state.on_head(head.height, changes)
        self._head = head
        self._hashes.put(head.height, head.hash)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.receipt_waiters.on_head(head)
        for listener in self._listeners:
            listener(head)

    def on_head(self, listener: Callable[[Head], None]) -> None:
        """Call ``listener`` at each new head; heights may be skipped."""
        self._listeners.append(listener)

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
        """What does not change while the node runs. Raises NodeUnavailable before the first connection."""
        if self._description is None:
            raise NodeUnavailable
        return self._description

    @property
    def kinds(self) -> Mapping[int, str]:
        """Names of the kinds of transactions."""
        return self._kinds

    @property
    def events(self) -> Mapping[tuple[bytes, bytes], EventType]:
        """Known events."""
        return EVENTS

    # State

    async def _read_keys(self, height: int, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` after ``height``. Raises DecodeError, and what ``request`` does."""
        # State below the head comes from undo records: more work, so the node does it in a thread.
        is_newest = self._head is not None and height == self._head.height
        values = await self.request(ChainRequests.read if is_newest else ChainRequests.read_old, height, keys)
        if len(values) != len(keys):
            raise DecodeError("the node answered another number of values than keys")
        return values

    # Blocks and transactions

    async def hash_of(self, height: int) -> bytes:
        """Return the hash of the block at ``height``."""
        found = self._hashes.get(height)
        if found is None:
            found = await self.request(ChainRequests.block_hash, height)
            if found is None:
                raise HeightUnknown(height=height, newest_height=self.head.height)
            self._hashes.put(height, found)
        return found

    async def _fetch_block(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height`` with its leader, None above the newest.

        Fetched again if the node was set back meanwhile: decoding may outlast a connection.
        """
        resets = None
        while resets != self.resets:
            resets = self.resets
            record = await self.request(ChainRequests.block, height)
            if record is None:
                return None
            loaded = LoadedBlock(record)
            if len(loaded.block.transactions) > self._options.large_block_transactions:
                await self._blocks.in_thread(_decode_all, loaded)
            await self._name_leader(loaded)
        self._hashes.put(height, loaded.hash)
        self._heights.put(loaded.hash, height)
        return loaded

    async def _name_leader(self, loaded: LoadedBlock) -> None:
        header = loaded.block.header
        leaders = self._leaders.get(header.epoch)
        if leaders is None:
            leaders = await self.request(ChainRequests.leaders, header.epoch)
            if leaders:
                self._leaders.put(header.epoch, leaders)
        if header.proposer_seat < len(leaders):
            loaded.leader = leaders[header.proposer_seat]

    async def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block."""
        found = self._heights.get(block_hash)
        if found is None:
            found = await self.request(ChainRequests.height_of, block_hash)
            if found is not None:
                self._heights.put(block_hash, found)
        return found

    async def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Return height and index of a finalised transaction."""
        found = self._locations.get(transaction_hash)
        if found is None:
            found = await self._locates.answer(transaction_hash)
            if found is not None:
                self._locations.put(transaction_hash, found)
        return found

    def _locate_all(self, hashes: Sequence[bytes]) -> asyncio.Future[list[tuple[int, int] | None]]:
        return self.request(ChainRequests.locate, list(hashes))

    async def _head_above(self, height: int, until: float) -> bool:
        """Wait for a head above ``height``; return False if the time ``until`` is over first."""
        if self._head is not None and self._head.height > height:
            return True  # it arrived while the caller waited for something else
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
        place = await self.receipt_waiters.wait(transaction_hash, timeout_ms / 1000)
        if place is not None:
            self._locations.put(transaction_hash, place)
        return place

    async def yield_turn(self) -> None:
        """Let other requests run."""
        await asyncio.sleep(0)

    async def wait_height(self, height: int) -> None:
        """Wait a little for the head to be at ``height``. Raises HeightNotReached."""
        until = asyncio.get_running_loop().time() + MIN_HEIGHT_WAIT_MS / 1000
        while self.head.height < height:
            if not await self._head_above(self.head.height, until):
                raise HeightNotReached(height=self.head.height, min_height=height)

    # What changes at any time

    async def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction."""
        return await self._nonces.answer(address)

    def _ask_nonces(self, addresses: Sequence[bytes]) -> asyncio.Future[list[int]]:
        return self.request(PoolRequests.pending_nonces, list(addresses))

    async def submit(self, raw: bytes, sender: bytes) -> bytes:
        """Submit a transaction to the mempool; return its hash."""
        return await self._submits.ask((raw, sender))

    def post(self, raw: bytes, sender: bytes, waiter: Waiter[bytes]) -> None:
        """Submit a transaction to the mempool; ``waiter`` gets its hash."""
        self._submits.submit((raw, sender), waiter)

    def _submit_all(self, transactions: Sequence[tuple[bytes, bytes]]) -> asyncio.Future[list[bytes | Exception]]:
        return self._pending.ask(
            "submit", [part for transaction in transactions for part in transaction], read_submitted
        )


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
                        outcomes[position] = as_error(read_failure(0, why))
                    case _:
                        raise DecodeError("not the failure of a transaction")
            return outcomes
        case _:
            raise DecodeError("not the hashes of transactions")


def _decode_all(loaded: LoadedBlock) -> None:
    _ = loaded.hashes, loaded.before, loaded.tips_paid
