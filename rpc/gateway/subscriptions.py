"""Subscriptions over WebSockets: finalised heads and events, in order and without gaps (rpc.md 7.1).

Each session has one bounded queue of unsent messages. If it is full, answers wait, and no further requests are
read. The notifications of a block enter the queue together; if it is full, the subscription falls behind and
replays the blocks later. A session whose queue stays full for ``slow_reader_s`` is closed with SLOW_READER; its
client subscribes again with ``from_height``. A slow session never delays another one or the node.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
import structlog

from billing.escrow import BILLING_ADDRESS
from rpc.ethereum.logs import logs_of
from rpc.gateway.memory_quota import HeldBytes, shrink_to_fit
from rpc.gateway.node.client import NodeClient
from rpc.methods import render
from rpc.methods.log_filter import LogFilter
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.render import AT, HASH_OUT, hexed
from rpc.methods.schema import (
    ADDRESS,
    HASH,
    HEIGHT,
    NUMBER,
    STRING,
    Param,
    array,
    choice,
    nullable,
    obj,
    ref,
    text,
)
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import Pruned, RpcError
from rpc.protocol.requests import POOL_ARRIVALS_MAX, PoolRequests
from state.primitives.errors import DekubeError
from state.primitives.heads import Head
from tasks.ledger.open_task import LEDGER_ADDRESS

__all__ = [
    "CATCH_UP_MAX",
    "SESSION_METHODS",
    "SLOW_READER",
    "PoolTransactions",
    "Session",
    "SessionOptions",
    "SubscriptionHub",
    "answering",
]

_log = structlog.get_logger(__name__)

SLOW_READER: Final = 4008
"""Close code: the client does not read its notifications. It may subscribe again with ``from_height``."""
GAP: Final = 4009
"""Close code: the gateway itself missed more blocks than it replays."""
ENVELOPE: Final = "dekube_subscription"
CATCH_UP_MAX: Final = 1_000
"""Most blocks that a subscription replays."""
POOL_POLL_S: Final = 0.25
"""How often the node is asked for new transactions, while there are subscriptions to the mempool."""
POOL_NEWS_MAX: Final = 1_000
"""Hashes of one poll that are sent; the newest, if there are more."""
IDENTIFIER_BITS: Final = 64
TELLS_OF_TURN: Final = 8
"""Subscriptions that are notified of a block without a pause: each may look at every event of it."""
BLOCKS_OF_UNIT: Final = 10
"""Replayed blocks that cost as much as reading one record."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Bounds of one WebSocket connection."""

    queue_messages_max: int = 1_024
    queue_bytes_max: int = 4 * 1024 * 1024
    slow_reader_s: float = 10.0
    """How long the queue may stay full while there are notifications."""
    subscriptions_max: int = 32
    subscriptions_per_address_max: int = 1_024
    """Subscriptions of all connections of one address: each may look at every event. 0: no limit."""
    requests_max: int = 32
    """Running requests of the connection; above it nothing more is read."""


class Selector(Protocol):
    """Selects what a subscription notifies of in a block; ``envelope`` is the notification's method."""

    @property
    def envelope(self) -> str:
        """The method of the notifications."""
        ...

    def __call__(self, loaded: LoadedBlock, node: NodeClient, /) -> list[Json]:
        """Return the results, one for each notification."""
        ...


@dataclass(frozen=True, slots=True)
class PoolTransactions:
    """Selects hashes of new transactions in the mempool. Missed ones are not replayed."""

    envelope: str

    def __call__(self, _loaded: LoadedBlock, _node: NodeClient) -> list[Json]:
        """Return nothing: blocks do not show the mempool."""
        return []


class Subscription:
    """A subscription to what ``select`` finds in each block from ``height`` on, once it is ``answered``."""

    __slots__ = ("answered", "height", "identifier", "select", "session", "weight")

    def __init__(self, identifier: str, session: Session, select: Selector, height: int, weight: int) -> None:
        self.identifier = identifier
        self.session = session
        self.select = select
        self.height = height
        self.weight = weight
        self.answered = asyncio.Event()


_begun: ContextVar[list[Subscription] | None] = ContextVar("_begun", default=None)
"""Subscriptions that began in the message that is being answered."""


@contextmanager
def answering() -> Iterator[None]:
    """Delay notifications of subscriptions that begin in this context until it ends, when their answer is queued.

    The answer to a batch comes late, and a client drops notifications of a subscription that it does not know.
    """
    begun: list[Subscription] = []
    token = _begun.set(begun)
    try:
        yield
    finally:
        _begun.reset(token)
        for subscription in begun:
            subscription.answered.set()


class Session:
    """One WebSocket connection. ``drop`` ends it at once with a close code."""

    def __init__(
        self, hub: SubscriptionHub, options: SessionOptions, drop: Callable[[int, str], None], held: HeldBytes
    ) -> None:
        self._hub = hub
        self._options = options
        self._drop = drop
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._other_bytes = 0
        """Bytes of answers that wait for room in the queue, and of the message being sent."""
        self._sending_bytes = 0
        self._held = held
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False

    @property
    def caller(self) -> str:
        """The caller whose connection it is."""
        return self._held.caller

    @property
    def head(self) -> Head:
        """The newest finalised block."""
        return self._hub.node.head

    @property
    def is_full(self) -> bool:
        """Whether the queue is full."""
        options = self._options
        return len(self._queue) >= options.queue_messages_max or self._queued_bytes >= options.queue_bytes_max

    def _put(self, message: bytes) -> None:
        if self.is_closed:
            return
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._wake.set()
        self._note_held()

    async def answer(self, message: bytes) -> None:
        """Queue an answer; wait while the queue is full."""
        self._other_bytes += len(message)
        try:
            self._note_held()
            await self.wait_room()
        finally:
            self._other_bytes -= len(message)
        self._put(message)

    def _note_held(self) -> None:
        """Count the memory used for the client; close the session if it exceeds the quota."""
        if not self.is_closed and not self._held.resize(self._queued_bytes + self._other_bytes):
            self.close(SLOW_READER, "too many unread bytes; subscribe again with from_height")

    async def wait_reader(self) -> None:
        """Wait until the queue is not full; close the session if that takes too long."""
        try:
            async with asyncio.timeout(self._options.slow_reader_s):
                await self.wait_room()
        except TimeoutError:
            self.close(SLOW_READER, "the client reads too slowly; subscribe again with from_height")

    async def wait_room(self) -> None:
        """Wait until the queue is not full."""
        while self.is_full and not self.is_closed:
            self._room.clear()
            await self._room.wait()

    def push(self, messages: list[bytes]) -> None:
        """Queue the notifications of one block; the queue must not be full."""
        for message in messages:  # of one block: bounded by the events that it may have
            self._put(message)

    def close(self, code: int, reason: str) -> None:
        """End the session and close the connection with a reason."""
        if not self.is_closed:
            self.end()
            self._drop(code, reason)

    def end(self) -> None:
        """Remove the subscriptions and the queue."""
        self.is_closed = True
        for subscription in self.subscriptions.values():
            self._hub.remove(subscription)
        self.subscriptions.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._held.resize(0)
        self._room.set()
        self._wake.set()

    async def next_message(self) -> bytes | None:
        """Wait for the next message and return it; None when the session is over."""
        self._other_bytes -= self._sending_bytes
        self._sending_bytes = 0
        while not self._queue:
            if self.is_closed:
                return None
            if self._held.counted:
                self._note_held()
            self._wake.clear()
            await self._wake.wait()
        message = self._queue.popleft()
        self._queued_bytes -= len(message)
        self._sending_bytes = len(message)
        self._other_bytes += len(message)
        if not self.is_full:
            self._room.set()
        return message

    def start(self, select: Selector, from_height: int | None, weight: int = 1) -> Subscription:
        """Start a subscription to the blocks from ``from_height`` on, which counts as ``weight``.

        Raises Pruned or RpcError.
        """
        if self.is_closed:  # meanwhile: ``end`` was called already, so nothing would remove the subscription
            raise RpcError("connection_closed", "the connection is closed")
        if len(self.subscriptions) >= self._options.subscriptions_max:
            limit = self._options.subscriptions_max
            raise RpcError(
                "limit_exceeded", f"limit exceeded: at most {limit} subscriptions of one connection", limit=limit
            )
        limit = self._options.subscriptions_per_address_max
        if limit and self._hub.weight_of(self.caller) + weight > limit:
            raise RpcError(
                "limit_exceeded", f"limit exceeded: at most {limit} subscriptions of one address", limit=limit
            )
        head = self._hub.node.head
        start = head.height + 1 if from_height is None else from_height
        if start < max(head.oldest_block, 1):
            raise Pruned(height=start, oldest_height=max(head.oldest_block, 1))
        if start <= head.height - CATCH_UP_MAX:
            raise RpcError(
                "limit_exceeded", f"limit exceeded: at most {CATCH_UP_MAX} blocks are replayed", limit=CATCH_UP_MAX
            )
        # Random, not counted for each connection: a client that reconnects and then ends a subscription of its
        # earlier connection (viem does) would end another one.
        identifier = f"0x{secrets.randbits(IDENTIFIER_BITS) | 1 << (IDENTIFIER_BITS - 1):x}"
        subscription = Subscription(identifier, self, select, start, weight)
        self.subscriptions[identifier] = subscription
        if (begun := _begun.get()) is None:
            subscription.answered.set()
        else:
            begun.append(subscription)
        self._hub.add(subscription)
        return subscription

    async def start_of_pool(self, envelope: str) -> Subscription:
        """Start a subscription to the mempool. Raises NodeUnavailable or RpcError."""
        await self._hub.enter_pool()
        return self.start(PoolTransactions(envelope), None)

    def unsubscribe(self, identifier: str) -> bool:
        """End a subscription; return whether there was one."""
        subscription = self.subscriptions.pop(identifier, None)
        if subscription is None:
            return False
        self._hub.remove(subscription)
        return True


class SubscriptionHub:
    """Follows the chain for all sessions: reads each block once, and renders each distinct selection once."""

    def __init__(self, node: NodeClient) -> None:
        self.node = node
        self._live: set[Subscription] = set()
        self._late: dict[Subscription, asyncio.Task[None]] = {}
        self._told = 0
        """Height up to which live subscriptions have been notified."""
        self._of_pool: set[Subscription] = set()
        self._polling: asyncio.Task[None] | None = None
        self._place: int | None = None
        """Arrival number of the newest transaction that subscriptions to the mempool were notified of."""
        self._of_caller: Counter[str] = Counter()
        self._resets = node.resets
        self._news = asyncio.Event()
        node.on_head(lambda _head: self._news.set())

    def add(self, subscription: Subscription) -> None:
        """Add a subscription. One that begins at an earlier block replays blocks in a task of its own first."""
        self._of_caller[subscription.session.caller] += subscription.weight
        if isinstance(subscription.select, PoolTransactions):
            self._of_pool.add(subscription)
            if self._polling is None or self._polling.done():
                self._polling = asyncio.ensure_future(self._poll())
            return
        if not self._live:
            self._told = max(self._told, self.node.head.height)
        if subscription.height > self._told:
            self._live.add(subscription)
        else:
            self._late[subscription] = asyncio.ensure_future(self._catch_up(subscription))

    def weight_of(self, caller: str) -> int:
        """Return the total weight of the subscriptions of one address."""
        return self._of_caller[caller]

    async def enter_pool(self) -> None:
        """Read the mempool's newest arrival number, so that a first subscriber misses nothing after its answer."""
        if not self._of_pool:
            self._place, _ = await self.node.request(PoolRequests.pool_arrivals, 0, 0)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription; called once for each."""
        caller = subscription.session.caller
        self._of_caller[caller] -= subscription.weight
        if not self._of_caller[caller]:
            del self._of_caller[caller]
        self._live.discard(subscription)
        self._of_pool.discard(subscription)
        task = self._late.pop(subscription, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def run(self) -> None:
        """Notify subscriptions of each block, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._advance()
            except DekubeError as error:
                _log.warning("notifications are late", error=str(error))  # the next head tries again

    async def _advance(self) -> None:
        if (
            self.node.head.height < self._told or self._resets != self.node.resets
        ):  # it was set back, or another chain's
            self._told, self._resets = self.node.head.height, self.node.resets
            for subscription in [*self._live, *self._late]:
                subscription.session.close(GAP, "the chain was set back; subscribe again with from_height")
        while self._told < self.node.head.height:
            newest = self.node.head.height
            if not self._live:
                self._told = newest
                return
            if newest - self._told > CATCH_UP_MAX:
                for subscription in list(self._live):
                    subscription.session.close(GAP, "blocks were missed; subscribe again with from_height")
                continue
            loaded = await self.node.block(self._told + 1)
            if loaded is None:
                return
            if loaded.height != self._told + 1:
                continue  # all have left meanwhile, and others have come who begin later
            self._told += 1
            rendered: dict[Selector, list[bytes]] = {}
            for number, subscription in enumerate(list(self._live)):
                if number % TELLS_OF_TURN == TELLS_OF_TURN - 1:
                    await asyncio.sleep(0)
                if subscription.height > loaded.height or subscription not in self._live:
                    continue  # of later blocks, or gone
                if subscription.session.is_full or not subscription.answered.is_set():
                    # Full of this very block, perhaps: the writer had no turn yet.
                    self._live.discard(subscription)
                    self._late[subscription] = asyncio.ensure_future(self._catch_up(subscription))
                else:
                    self._tell(subscription, loaded, rendered)

    def _tell(
        self, subscription: Subscription, loaded: LoadedBlock, rendered: dict[Selector, list[bytes]]
    ) -> None:
        select = subscription.select
        results = rendered.get(select)
        if results is None:
            results = rendered[select] = [orjson.dumps(found) for found in select(loaded, self.node)]
        subscription.height = loaded.height + 1
        if results:
            subscription.session.push(
                [_notification(select.envelope, subscription.identifier, result) for result in results]
            )

    async def _poll(self) -> None:
        """Notify of the mempool while there are subscriptions to it; a slow client misses some."""
        while self._of_pool:
            try:
                since, limit = (0, 0) if self._place is None else (self._place, POOL_ARRIVALS_MAX)
                self._place, hashes = await self.node.request(PoolRequests.pool_arrivals, since, limit)
            except DekubeError:
                self._place, hashes = None, []  # the node is away, and its next mempool another one
            results = [b'"0x%s"' % item.hex().encode() for item in hashes[-POOL_NEWS_MAX:]]
            for subscription in list(self._of_pool) if results else ():
                await asyncio.sleep(0)
                is_heard = subscription.answered.is_set() and not subscription.session.is_full
                if subscription in self._of_pool and is_heard:
                    envelope, identifier = subscription.select.envelope, subscription.identifier
                    subscription.session.push([_notification(envelope, identifier, item) for item in results])
            await asyncio.sleep(POOL_POLL_S)

    async def _catch_up(self, subscription: Subscription) -> None:
        try:
            await subscription.answered.wait()
            while subscription.height <= self._told:
                loaded = await self.node.block(subscription.height)
                if loaded is None:  # the node has gone back behind what was told
                    subscription.session.close(GAP, "the chain was set back; subscribe again with from_height")
                    return
                if subscription.session.is_full:
                    await subscription.session.wait_reader()
                    if subscription.session.is_closed:
                        return
                self._tell(subscription, loaded, {})
                await asyncio.sleep(0)  # cached blocks were no wait
            # Nothing was awaited since the look at what was told: no block falls between.
            self._live.add(subscription)
        except DekubeError as error:
            subscription.session.close(GAP, f"replay failed: {error.code}; subscribe again with from_height")
        finally:
            self._late.pop(subscription, None)


def _notification(envelope: str, identifier: str, result: bytes) -> bytes:
    params = {"subscription": identifier, "result": orjson.Fragment(result)}
    return shrink_to_fit(orjson.dumps({"jsonrpc": "2.0", "method": envelope, "params": params}))


# What can be subscribed to


@dataclass(frozen=True, slots=True)
class Heads:
    """Selects every finalised header."""

    envelope: str = ENVELOPE

    def __call__(self, loaded: LoadedBlock, _node: NodeClient) -> list[Json]:
        """Return the header."""
        return [{"at": {"height": loaded.height, "hash": hexed(loaded.hash)}, "header": render.header(loaded)}]


@dataclass(frozen=True, slots=True)
class Events:
    """Selects events by a filter."""

    wanted: LogFilter
    envelope: str = ENVELOPE

    def __call__(self, loaded: LoadedBlock, node: NodeClient) -> list[Json]:
        """Return the events of a block in one result; those of the block itself come last."""
        items: list[Json] = []
        for log in logs_of(loaded):
            if self.wanted.matches(log.event):
                is_of_block = log.transaction == len(loaded.receipts)
                items.append(
                    {
                        "transaction_hash": None if is_of_block else hexed(loaded.hashes[log.transaction]),
                        "index": None if is_of_block else log.transaction,
                        "event": render.event(log.event, node.events),
                    }
                )
        if not items:
            return []
        return [{"at": {"height": loaded.height, "hash": hexed(loaded.hash)}, "items": items}]


_MARKET: Final = frozenset((LEDGER_ADDRESS, BILLING_ADDRESS))


async def _subscribe(
    session: Session,
    kind: str,
    address: bytes | None,
    topic: bytes | None,
    task: bytes | None,
    from_height: int | None,
) -> Json:
    """Answer ``dekube_subscribe``."""
    given = {"address": address, "topic": topic, "task": task}
    allowed = {"heads": (), "events": ("address", "topic"), "tasks": ("task",)}[kind]
    for name, value in given.items():
        if value is not None and name not in allowed:
            raise RpcError("invalid_params", f"invalid params: {name}: not with {kind}", param=name)
    select: Selector
    if kind == "heads":
        select = Heads()
    elif kind == "events":
        select = Events(LogFilter(_among(address), (_among(topic),) if topic else ()))
    else:
        select = Events(LogFilter(_MARKET, (None, _among(task)) if task else ()))
    subscription = session.start(select, from_height)
    return {
        "at": render.at(session.head),
        "subscription": subscription.identifier,
        "from_height": subscription.height,
    }


def _among(item: bytes | None) -> frozenset[bytes]:
    return frozenset((item,) if item else ())


def _weigh_replay(node: NodeApi, *params: Any) -> int:
    from_height = params[-1]
    return 0 if from_height is None else max(node.head.height - from_height, 0) // BLOCKS_OF_UNIT


async def _unsubscribe(session: Session, identifier: str) -> Json:
    """Answer ``dekube_unsubscribe``."""
    return {"found": session.unsubscribe(identifier)}


_ITEM: Final = obj({"transaction_hash": nullable(HASH_OUT), "index": nullable(NUMBER), "event": ref("Event")})
NOTIFICATIONS: Final[dict[str, Any]] = {
    "Heads": obj({"at": AT, "header": ref("Header")}),
    "Events": obj({"at": AT, "items": array(_ITEM)}),
}
"""Schemas of the results that notifications carry."""

SESSION_METHODS: Final = (
    Method(
        "dekube_subscribe",
        "Subscribes to finalised blocks, events or tasks; sends `dekube_subscription` notifications (WebSocket)",
        _subscribe,
        obj({"at": AT, "subscription": STRING, "from_height": NUMBER}),
        (
            Param("kind", choice("heads", "events", "tasks"), "Kind of notifications."),
            Param("address", ADDRESS, "events: only from this system contract.", required=False),
            Param("topic", HASH, "events: only with this first topic.", required=False),
            Param("task", HASH, "tasks: only of this task.", required=False),
            Param("from_height", HEIGHT, "Replay from this block on; absent: from the next one.", required=False),
        ),
        cost=10,
        has_min_height=False,
        needs_session=True,
        weigh=_weigh_replay,
        group="subscriptions",
        routes=(),
    ),
    Method(
        "dekube_unsubscribe",
        "Ends a subscription (WebSocket)",
        _unsubscribe,
        obj({"found": {"type": "boolean"}}),
        (Param("subscription", text(18), "Subscription ID."),),
        has_min_height=False,
        needs_session=True,
        group="subscriptions",
        routes=(),
    ),
)
