"""The clients of ``dekube bench rpc``. Each has one request under way at a time.

Only the figure ``generator_us`` contains the clients' own cost. ``LoadGenerator.accept`` uses no gateway. It runs
the gateway's code on each transaction in this process, and this cost counts.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from node.bench.lone_node import CHAIN_ID, SENDERS, account_of, key_of
from rpc.client import Client
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.node.client import NodeClient
from rpc.methods.method import Submission
from rpc.process.limits import raise_descriptor_limit, tune_collector
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["CONNECTIONS", "LatencyReport", "LoadGenerator", "RequestCost"]

CONNECTIONS: Final = 16
NATIVE: Final = b'{"jsonrpc":"2.0","id":1,"method":"dekube_getBalance","params":["0x%s"]}'
ETHEREUM: Final = b'{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x%s","latest"]}'
SUBMIT_NATIVE: Final = "dekube_sendTransaction"
SUBMIT_RAW: Final = "eth_sendRawTransaction"
SUBMIT_CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"dekube_sendTransaction","params":["0x%s"]}'
SUBMIT_RAW_CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["0x%s"]}'
ACCEPTED_AT_ONCE: Final = 256
"""Concurrent transactions at the node: several frames, as with a busy gateway."""
LINK_PATIENCE_S: Final = 10.0
POOL_LOOK_S: Final = 0.5
SUBMIT_EVERY: Final = 20
"""At a fixed request rate, one of this many requests is a transaction."""
OPENED_AT_ONCE: Final = 100
FILES_SPARE: Final = 500
UPGRADE: Final = (
    b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
PING: Final = b"\x89"
PONG: Final = b"\x8a"


class _HttpConnection(asyncio.Protocol):
    """A persistent HTTP connection with one request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = -1
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._left < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._buffer.find(b"content-length: ") + 16
            self._left = end + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)])
        if len(self._buffer) >= self._left:
            refusal = bytes(self._buffer[-300:]) if b'"error"' in self._buffer else b""
            self._buffer.clear()
            self._left = -1
            if self.done is not None and not self.done.done():
                if refusal:
                    self.done.set_exception(AssertionError(refusal))
                else:
                    self.done.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(AssertionError("the gateway closed a connection"))

    async def ask(self, request: bytes) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)  # type: ignore[attr-defined]
        await self.done


class RequestCost(NamedTuple):
    """Processor time of a request in total and of the node, and requests per second."""

    us: float
    node_us: float
    per_s: float


class LatencyReport(NamedTuple):
    """Latencies from the due time of a request, the generator's own delay, and its cost."""

    p50_ms: float
    p99_ms: float
    p99_late_ms: float
    generator_us: float


def _http(body: bytes) -> bytes:
    return (
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (len(body), body)
    )


def _source(number: int) -> tuple[str, int]:
    """Return a loopback address for a connection: gateways limit each address."""
    return f"127.0.{1 + number // 250}.{1 + number % 250}", 0


async def _flood(port: int, source: Callable[[], bytes], seconds: float, connections: int = CONNECTIONS) -> int:
    """Send requests on all connections, the next one after each answer; return their number."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    count = 0

    async def worker(number: int) -> None:
        nonlocal count
        transport, connection = await loop.create_connection(
            _HttpConnection, "127.0.0.1", port, local_addr=_source(number)
        )
        try:
            while loop.time() < until:
                try:
                    request = source()
                except IndexError:  # all that was signed is sent
                    return
                await connection.ask(request)
                count += 1
        finally:
            transport.close()

    await asyncio.gather(*map(worker, range(connections)))
    return count


async def _accept(
    socket: Path, posting: Submission, take: Callable[[], bytes], seconds: float, spent_s: CpuMeter
) -> RequestCost:
    """Submit transactions to the node behind ``socket``, like a gateway that has already received their bytes."""
    link, heard = NodeClient(socket), asyncio.Event()
    link.on_head(lambda _head: heard.set())
    running = asyncio.ensure_future(link.run())
    try:
        async with asyncio.timeout(LINK_PATIENCE_S):
            await heard.wait()
        submitter = _Submitter(link, posting, take, seconds)
        node_s, _ = spent_s()
        here_s, started = time.process_time(), time.perf_counter()
        count = await submitter.run()
        here_s, wall_s = time.process_time() - here_s, time.perf_counter() - started
        node_s = spent_s()[0] - node_s
    finally:
        running.cancel()
    return RequestCost((here_s + node_s) / count * 1e6, node_s / count * 1e6, count / wall_s)


class _Submitter:
    """Keeps ``ACCEPTED_AT_ONCE`` transactions under way at a node. It is the batcher's waiter of each of them."""

    def __init__(self, link: NodeClient, posting: Submission, take: Callable[[], bytes], seconds: float) -> None:
        self._link, self._prepare, self._take = link, posting.prepare, take
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._under_way = 0
        self._accepted = 0
        self._is_due = False
        self._finished: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> int:
        """Return the number of accepted transactions when the time is over or all are sent."""
        self._fill()
        await self._finished
        return self._accepted

    def _fill(self) -> None:
        self._is_due = False
        try:
            while self._under_way < ACCEPTED_AT_ONCE and self._loop.time() < self._until:
                raw = self._take()
                prepared = self._prepare(self._link, raw)
                assert prepared is not None
                self._link.post(raw, prepared[0], self)
                self._under_way += 1
        except IndexError:  # all that was signed is sent
            self._until = 0.0
        if not self._under_way and not self._finished.done():
            self._finished.set_result(None)

    def done(self) -> bool:
        """Return False: every answer is awaited."""
        return False

    def answered(self, outcome: bytes | Exception) -> None:
        """Take the node's answer, which must be a hash."""
        self._under_way -= 1
        if isinstance(outcome, Exception):
            if not self._finished.done():
                self._finished.set_exception(outcome)
            return
        self._accepted += 1
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._fill)


CpuMeter = Callable[[], tuple[float, float]]
"""Returns the current processor time of the node (without block production) and of its gateway."""


class LoadGenerator:
    """Clients of the server at ``port``, with ``accounts`` accounts; ``spent_s`` reads the server's processor
    time.
    """

    def __init__(self, port: int, accounts: int, spent_s: CpuMeter = lambda: (0.0, 0.0)) -> None:
        self._port, self._accounts, self._spent_s = port, accounts, spent_s
        self._random = random.Random(1)
        self._nonces = [0] * SENDERS
        self._keys = [key_of(number) for number in range(SENDERS)]

    def absent(self) -> bytes:
        """Return a request for an account that no earlier request named."""
        return _http(self._call(self._random.randbytes(20)))

    def _call(self, address: bytes | None = None, text: bytes = ETHEREUM) -> bytes:
        who = (address or account_of(self._random.randrange(self._accounts))).hex()
        return text % who.encode()

    def balance(self, text: bytes = ETHEREUM) -> bytes:
        """Return a request for one of the existing accounts."""
        return _http(self._call(text=text))

    def batch(self, size: int, text: bytes = ETHEREUM) -> bytes:
        """Return one batch request for several accounts."""
        return _http(b"[" + b",".join(self._call(text=text) for _ in range(size)) + b"]")

    def each_once(self) -> Callable[[], bytes]:
        """Return a source of batch requests that cover every account once."""
        calls = [self._call(account_of(number)) for number in range(self._accounts)]
        parts = [calls[at : at + 100] for at in range(0, len(calls), 100)]
        return [_http(b"[" + b",".join(part) + b"]") for part in parts].pop

    def mixed(self) -> bytes:
        """Return a typical read request: half of the accounts are new to the gateway."""
        return self.absent() if self._random.random() < 0.5 else self.balance()

    def submit(self, count: int, size: int = 1, *, is_ethereum: bool = False) -> Callable[[], bytes]:
        """Return a source of requests with ``count`` signed transactions in total, ``size`` in each."""
        text = SUBMIT_RAW_CALL if is_ethereum else SUBMIT_CALL
        take_call = self._signed(count, lambda raw: text % raw.hex().encode(), is_ethereum=is_ethereum)

        def take() -> bytes:
            calls = [take_call() for _ in range(size)]
            return _http(calls[0] if size == 1 else b"[" + b",".join(calls) + b"]")

        return take

    def signed(self, count: int, *, is_ethereum: bool = False) -> Callable[[], bytes]:
        """Return a source of ``count`` signed transactions, with the senders in turn."""
        return self._signed(count, lambda raw: raw, is_ethereum=is_ethereum)

    def _signed(self, count: int, form: Callable[[bytes], bytes], *, is_ethereum: bool) -> Callable[[], bytes]:
        ready: list[tuple[int, bytes]] = []
        nonces = list(self._nonces)
        for number in range(count):
            at = number % SENDERS
            to = account_of(number % self._accounts)
            if is_ethereum:
                raw = sign_dynamic(
                    self._keys[at], chain_id=CHAIN_ID, nonce=nonces[at], to=to, value=1, gas_limit=TRANSFER_GAS,
                    max_fee_per_gas=10**12,
                )  # fmt: skip
            else:
                raw = sign_transaction(
                    self._keys[at], chain_id=CHAIN_ID, nonce=nonces[at], kind=TRANSFER_KIND,
                    payload=transfer_payload(to, 1), gas_limit=TRANSFER_GAS, max_fee_per_gas=10**12,
                )  # fmt: skip
            nonces[at] += 1
            ready.append((at, form(raw)))
        ready.reverse()

        def take() -> bytes:
            at, formed = ready.pop()
            self._nonces[at] += 1  # what is not taken before the time is up is never sent
            return formed

        return take

    def accept(
        self, socket: Path, take: Callable[[], bytes], seconds: float, *, is_ethereum: bool = False
    ) -> RequestCost:
        """Submit transactions to the node behind ``socket`` without a gateway.

        This process does the gateway's work on the bytes, and its cost counts as the gateway's.
        """
        posting = METHOD_TABLE[SUBMIT_RAW if is_ethereum else SUBMIT_NATIVE].submission
        assert posting is not None
        tune_collector()  # as a gateway does
        try:
            return uvloop.run(_accept(socket, posting, take, seconds, self._spent_s))
        finally:
            gc.unfreeze()

    def ask_all(self, source: Callable[[], bytes], seconds: float, connections: int = CONNECTIONS) -> int:
        """Send requests, the next one after each answer; return their number."""
        return uvloop.run(_flood(self._port, source, seconds, connections))

    def flood(self, source: Callable[[], bytes], seconds: float, connections: int = CONNECTIONS) -> RequestCost:
        """Send requests, the next one after each answer; return the cost of one."""
        before = self._spent_s()
        started = time.perf_counter()
        count = self.ask_all(source, seconds, connections)
        wall_s = time.perf_counter() - started
        after = self._spent_s()
        node_us, gateway_us = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
        return RequestCost(node_us + gateway_us, node_us, count / wall_s)

    def wait_empty_pool(self) -> None:
        """Wait until the submitted transactions are in blocks."""
        with Client(f"http://127.0.0.1:{self._port}") as client:
            while client.call("txpool_status") != {"pending": "0x0", "queued": "0x0"}:
                time.sleep(POOL_LOOK_S)

    def paced(self, rate_per_s: int, seconds: float) -> LatencyReport:
        """Send requests at a fixed rate, independent of the answers.

        Some are transactions, so that blocks are not empty.
        """
        self.wait_empty_pool()
        requests = [self.balance() for _ in range(int(rate_per_s * seconds))]
        requests[::SUBMIT_EVERY] = _drain(self.submit(len(requests[::SUBMIT_EVERY])))
        before_s = time.process_time()
        latencies, late = uvloop.run(self._paced(rate_per_s, requests))
        spent_s = time.process_time() - before_s
        return LatencyReport(
            _part(latencies, 50) * 1e3, _part(latencies, 99) * 1e3, _part(late, 99) * 1e3,
            spent_s / len(requests) * 1e6,
        )  # fmt: skip

    async def _paced(self, rate_per_s: int, requests: list[bytes]) -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        now = time.perf_counter  # the loop's own clock stands still within a turn
        free: deque[_HttpConnection] = deque()
        for _ in range(8 * CONNECTIONS):
            _, connection = await loop.create_connection(_HttpConnection, "127.0.0.1", self._port)
            free.append(connection)
        latencies: list[float] = []
        late: list[float] = []
        waiting: deque[tuple[float, bytes]] = deque()
        finished: asyncio.Future[None] = loop.create_future()

        def ask(due: float, request: bytes) -> None:
            if not free:
                waiting.append((due, request))
                return
            connection = free.popleft()
            connection.done = loop.create_future()
            connection.done.add_done_callback(partial(answered, connection, due))
            connection.transport.write(request)  # type: ignore[attr-defined]

        def answered(connection: _HttpConnection, due: float, done: asyncio.Future[None]) -> None:
            if (error := done.exception()) is not None:
                finished.set_exception(error)
                return
            latencies.append(now() - due)
            free.append(connection)
            if waiting:
                ask(*waiting.popleft())
            elif len(latencies) == len(requests):
                finished.set_result(None)

        started = now()
        for number, request in enumerate(requests):
            due = started + number / rate_per_s
            if due > now():
                await asyncio.sleep(due - now())
            late.append(now() - due)
            ask(due, request)
        await finished
        return latencies, late

    def idle_websockets(self, count: int, measure: Callable[[], float]) -> float:
        """Return ``measure()`` while ``count`` idle WebSockets are open. All must stay open."""
        raise_descriptor_limit(count + FILES_SPARE)
        return uvloop.run(self._idle_websockets(count, measure))

    async def _idle_websockets(self, count: int, measure: Callable[[], float]) -> float:
        loop = asyncio.get_running_loop()
        listeners: list[_Listener] = []
        for first in range(0, count, OPENED_AT_ONCE):
            opening = (
                loop.create_connection(_Listener, "127.0.0.1", self._port, local_addr=_source(number))
                for number in range(first, min(first + OPENED_AT_ONCE, count))
            )
            opened = [listener for _, listener in await asyncio.gather(*opening)]
            await asyncio.gather(*(listener.accepted for listener in opened))
            listeners += opened
        _, connection = await loop.create_connection(_HttpConnection, "127.0.0.1", self._port)
        await connection.ask(self.balance())  # others are served
        if any(listener.is_closed for listener in listeners):
            raise AssertionError("the gateway closed an idle WebSocket")
        return measure()


class _Listener(asyncio.Protocol):
    """An idle WebSocket that only answers pings."""

    def __init__(self) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(UPGRADE)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.accepted.done():
            if data[:1] == PING:
                answer = PONG + bytes([0x80 | data[1]]) + bytes(4) + data[2 : 2 + data[1]]
                self._transport.write(answer)  # type: ignore[attr-defined]
        else:
            if data.startswith(b"HTTP/1.1 101 "):
                self.accepted.set_result(None)
            else:
                self.accepted.set_exception(AssertionError(data[:300]))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        if not self.accepted.done():
            self.accepted.set_exception(AssertionError("closed before it was opened"))


def _drain(source: Callable[[], bytes]) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(source())
        except IndexError:
            return found


def _part(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]
