"""The gateway's ASGI application: JSON-RPC at POST / and over WebSocket, the rest by ``rpc.gateway.rest``.

See rpc.md 2.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from rpc.gateway.blobs import PREFIX as BLOBS
from rpc.gateway.blobs import BlobEndpoint
from rpc.gateway.dispatch import FIRST_CALL_BYTES, Caller, Dispatcher, PendingAnswer
from rpc.gateway.fast_path import BODY_DEADLINE_S, CHUNK_BYTES, RETRY_S, SEND_DEADLINE_S
from rpc.gateway.limits import caller_key
from rpc.gateway.memory_quota import MEMORY_EXCEEDED, HeldBytes, MemoryQuota
from rpc.gateway.metrics import Metrics
from rpc.gateway.subscriptions import Session, SessionOptions, SubscriptionHub, answering
from rpc.protocol.errors import RpcError

__all__ = ["Application", "WebOptions"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEALTH_PATHS: Final = ("/healthz", "/health", "/livez")
"""Liveness. Answered without FastAPI and without a charge: a flood must not make the process look dead."""
HOSTLESS_PATHS: Final = frozenset((*HEALTH_PATHS, "/readyz"))
"""Answered for every Host, because load balancers write their service's name there. They reveal nothing."""
ALLOWED_HEADERS: Final = b"content-type, authorization, range"
"""Allowed headers for a preflight that names none."""
REQUEST_HEADERS_MAX: Final = 64
REQUEST_HEADERS_BYTES_MAX: Final = 2_048
_HEADER_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
REST_UNITS: Final = 5
"""Extra cost of a request that is not JSON-RPC: FastAPI takes that much longer."""
HOST_KEPT_BYTES_MAX: Final = 512
"""Longest host name that is cached; a hostile client could send 64 KiB."""
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Which origins and host names the application accepts."""

    cors: tuple[str, ...] = ("*",)
    hosts: tuple[str, ...] = ()
    """Host names accepted beside the loopback names. Without ``is_loopback`` every name is accepted."""
    is_loopback: bool = True


class Application:
    """The ASGI callable."""

    def __init__(
        self,
        hub: SubscriptionHub,
        dispatcher: Dispatcher,
        rest: Callable[[Scope, Receive, Send], Awaitable[None]],
        blobs: BlobEndpoint,
        metrics: Metrics,
        memory_quota: MemoryQuota,
        sessions: SessionOptions,
        options: WebOptions,
    ) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._rest = rest
        self._blobs = blobs
        self._metrics = metrics
        self._memory_quota = memory_quota
        self._body_bytes_max = dispatcher.body_bytes_max
        self._session_options = sessions
        self._origin_any = "*" in options.cors
        self._origins = frozenset(options.cors)
        self._hosts = frozenset((*LOOPBACK_NAMES, *options.hosts)) if options.is_loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._rest(scope, receive, send)
            return
        host, origin, length = _read_headers(scope["headers"])
        if not self._is_known(host) and not (kind == "http" and scope["path"] in HOSTLESS_PATHS):
            await _refuse_host(scope, send)
            return
        if kind == "websocket":
            await self._websocket(scope, receive, send, origin)
        elif scope["method"] == "POST" and scope["path"] == "/":
            await self._post(scope, receive, send, origin, length)
        elif scope["method"] == "OPTIONS":
            await self._preflight(scope, _with_headers(send, self._cors_headers(origin)))
        else:
            await self._other(scope, receive, _with_headers(send, self._cors_headers(origin)))

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer REST, blobs and health: all that is neither JSON-RPC nor a preflight."""
        method, path, caller = scope["method"], scope["path"], _caller_of(scope)
        if path in HEALTH_PATHS and method in ("GET", "HEAD"):
            await _say(send, 200, b"ok\n", [(b"content-type", b"text/plain; charset=utf-8")])
            return
        if wait_s := self._dispatcher.charge(caller, 0):
            await _refuse_now(method, send, wait_s)
            return
        try:
            if path == BLOBS or path.startswith(BLOBS + "/"):
                await self._blobs(scope, receive, send, caller)
            else:
                await self._rest(scope, receive, send)
        finally:
            self._dispatcher.add_debt(caller, REST_UNITS)

    # Plain requests (rpc.gateway.fast_path)

    @property
    def memory_quota(self) -> MemoryQuota:
        """What counts the bytes that are held."""
        return self._memory_quota

    @property
    def body_bytes_max(self) -> int:
        """Longest body that is read."""
        return self._body_bytes_max

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the head of the answer to a plain request; None if the host or the length is refused."""
        host, origin, length = _read_headers(headers)
        if length > self._body_bytes_max or not self._is_known(host):
            return None
        if not origin and self._origin_any:
            return _HEAD
        return b"".join(
            b"%s: %s\r\n" % header
            for header in ((b"content-type", b"application/json"), *self._cors_headers(origin))
        )

    def answer(self, body: bytes | bytearray, caller: Caller) -> Coroutine[Any, Any, bytes | None]:
        """Return the answer to a body."""
        return self._dispatcher.answer(body, caller)

    def begin(self, body: bytes | bytearray, caller: Caller) -> bytes | PendingAnswer | None:
        """Return the answer to a body without waiting, or a pending answer."""
        return self._dispatcher.begin(body, caller)

    def charge(self, caller: str, units: int) -> float:
        """Take ``units`` from a caller's budget and return 0, or the seconds until that is possible."""
        return self._dispatcher.charge(caller, units)

    def refuse(self, error: RpcError, body: bytes | bytearray = b"") -> bytes:
        """Return the error for a body that is not read, or for an answer that cannot be sent."""
        return self._dispatcher.refuse(error, body)

    # ASGI

    def _is_known(self, host: bytes) -> bool:
        """Return whether requests for ``host`` are answered.

        This prevents DNS rebinding: a web page whose owner points its name at this machine must not read the node.
        Browsers always send Host, so a request without it, or for an IP address, is answered.
        """
        return self._hosts is None or not host or (name := _name_of(host)) in self._hosts or _is_address(name)

    def _cors_headers(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if self._origin_any:
            return [(b"access-control-allow-origin", b"*")]
        if origin.decode("latin-1") in self._origins:
            return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        return []

    async def _preflight(self, scope: Scope, send: Send) -> None:
        if wait_s := self._dispatcher.charge(_caller_of(scope), 1):
            await _refuse_now(scope["method"], send, wait_s)
            return
        headers = [
            (b"access-control-allow-methods", b"POST, GET, PUT, OPTIONS"),
            (b"access-control-allow-headers", allowed_headers(scope["headers"])),
            (b"access-control-max-age", b"86400"),
            (b"vary", b"access-control-request-headers"),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    async def _post(self, scope: Scope, receive: Receive, send: Send, origin: bytes, length: int) -> None:
        caller = Caller(_caller_of(scope))
        headers = [(b"content-type", b"application/json"), *self._cors_headers(origin)]
        held = HeldBytes(self._memory_quota, caller.key)
        began = bytearray()
        """The beginning of a refused body or answer, in which the request's identifier is looked for."""
        try:
            if length > self._body_bytes_max and any(name == b"expect" for name, _ in scope["headers"]):
                raise self._too_large()  # the client waits for 100 Continue, which would ask for all of it
            async with asyncio.timeout(BODY_DEADLINE_S):
                body = await self._read_body(receive, held, length, began)
            answer = await self._dispatcher.answer(body, caller) or b""
            del body
            if not held.resize(len(answer)):
                began[:] = answer[:FIRST_CALL_BYTES]
                raise _holds_too_much()
            await _respond(scope, send, answer, headers)
        except RpcError as error:
            headers.append((b"connection", b"close"))  # what follows of the body is not read
            await _respond(scope, send, self._dispatcher.refuse(error, began), headers)
        except TimeoutError:
            scope["state"]["drop"]()
        except ConnectionError:
            pass
        finally:
            held.resize(0)

    def _too_large(self) -> RpcError:
        return RpcError("invalid_request", "request too large", limit=self._body_bytes_max)

    async def _read_body(self, receive: Receive, held: HeldBytes, length: int, began: bytearray) -> bytearray:
        """Return the body, its first bytes also in ``began``. Raises RpcError for one that is too long,
        ConnectionError.
        """
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            body += message.get("body", b"")
            began[:] = body[:FIRST_CALL_BYTES]
            if max(length, len(body)) > self._body_bytes_max:
                raise self._too_large()
            if not held.resize(len(body)):
                raise _holds_too_much()
            if not message.get("more_body", False):
                return body

    async def _websocket(self, scope: Scope, receive: Receive, send: Send, origin: bytes) -> None:
        await receive()  # websocket.connect
        wrong_origin = origin and not self._origin_any and origin.decode("latin-1") not in self._origins
        if scope["path"] not in ("/", "/ws") or wrong_origin:
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        key = _caller_of(scope)
        session = Session(
            self._hub, self._session_options, scope["state"]["drop"], HeldBytes(self._memory_quota, key)
        )
        caller = Caller(key, session)
        self._metrics.websockets.inc()
        writer = asyncio.ensure_future(_write(session, send))
        under_way = asyncio.Semaphore(self._session_options.requests_max)
        tasks: set[asyncio.Task[None]] = set()

        def let_go() -> None:
            for task in tasks:
                task.cancel()

        # With ``requests_max`` requests running, ``receive`` is not called, so a disconnect would not be noticed.
        scope["state"]["when_lost"](let_go)
        try:
            while (message := await receive())["type"] == "websocket.receive":
                body = message[
                    "bytes"
                ]  # text is too (rpc.gateway.websocket); web3.py sends its requests as binary frames
                await under_way.acquire()  # a client that asks faster than it is answered is not read
                await session.wait_room()
                task = asyncio.ensure_future(self._answer(session, body, caller, under_way))
                del body, message  # or an idle connection would keep its longest message
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            session.end()
            writer.cancel()
            let_go()
            self._metrics.websockets.dec()

    async def _answer(self, session: Session, body: bytes, caller: Caller, under_way: asyncio.Semaphore) -> None:
        try:
            with answering():
                answer = await self._dispatcher.answer(body, caller)
                if answer is not None:
                    await session.answer(answer)
        finally:
            under_way.release()


def _holds_too_much() -> RpcError:
    return RpcError("limit_exceeded", MEMORY_EXCEEDED, retry_after_s=RETRY_S)


async def _write(session: Session, send: Send) -> None:
    try:
        while (message := await session.next_message()) is not None:
            await send({"type": "websocket.send", "utf8": message})
    except (OSError, RuntimeError):  # the client is gone; the reading side ends the session
        session.end()


async def _respond(scope: Scope, send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    if len(body) <= CHUNK_BYTES:
        await send(start)
        await send({"type": "http.response.body", "body": body})
        return
    try:
        async with asyncio.timeout(SEND_DEADLINE_S):
            await send(start)
            for first in range(0, len(body), CHUNK_BYTES):
                more = first + CHUNK_BYTES < len(body)
                await send(
                    {"type": "http.response.body", "body": body[first : first + CHUNK_BYTES], "more_body": more}
                )
    except TimeoutError:
        scope["state"]["drop"]()


async def _say(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes, int]:
    host = origin = b""
    length = 0
    for name, value in headers:
        if name == b"host":
            host = value
        elif name == b"origin":
            origin = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() and len(value) < 16 else 2**63
    return host, origin, length


def allowed_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the request headers to allow in a preflight: those that it names.

    Libraries add headers of their own (``x-requested-with``), which this server ignores.
    """
    for name, value in headers:
        if name == b"access-control-request-headers" and len(value) <= REQUEST_HEADERS_BYTES_MAX:
            asked = value.strip()
            if asked.count(b",") < REQUEST_HEADERS_MAX and _HEADER_NAMES.fullmatch(asked):
                return asked
    return ALLOWED_HEADERS


_HEAD: Final = b"content-type: application/json\r\naccess-control-allow-origin: *\r\n"


def _name_of(host: bytes) -> str:
    return _kept_name_of(host) if len(host) <= HOST_KEPT_BYTES_MAX else ""  # no accepted name is that long


@lru_cache(maxsize=1024)
def _kept_name_of(host: bytes) -> str:
    name, _, port = host.decode("latin-1").lower().rpartition(":")
    return name if name and port.isdigit() else host.decode("latin-1").lower()


@lru_cache(maxsize=1024)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def _caller_of(scope: Scope) -> str:
    client = scope.get("client")
    return caller_key(client[0]) if client else ""


async def _refuse_host(scope: Scope, send: Send) -> None:
    """Refuse an unknown host name (DNS rebinding)."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _say(send, 403, b"unknown host name\n", [(b"content-type", b"text/plain")])


async def _refuse_now(method: str, send: Send, wait_s: float) -> None:
    """Refuse a request whose caller is over its rate limit."""
    error = RpcError("limit_exceeded", "limit exceeded: too many requests", retry_after_s=round(wait_s, 3))
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"%d" % (int(wait_s) + 1))]
    if method not in ("GET", "HEAD"):
        headers.append((b"connection", b"close"))  # a body is not read
    await _say(send, 429, orjson.dumps({"error": error.to_json()}), headers)


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return sender
