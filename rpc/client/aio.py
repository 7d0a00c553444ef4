"""The asynchronous client, on trio and on asyncio."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread
import httpx

from rpc.client.api import Api
from rpc.client.arguments import check_options
from rpc.client.blobs import BlobApi
from rpc.client.core import (
    ANSWER_BYTES_PER_S_MIN,
    ClientOptions,
    Core,
    Effect,
    Fetch,
    Flow,
    Item,
    OpenWebSocket,
    Pause,
    Post,
    ReadClock,
    ReceiveMessage,
    Reply,
    RunBlocking,
    SendMessage,
    Steps,
    Stream,
)
from rpc.client.errors import GatewayUnreachable
from rpc.client.jobs import JobApi
from rpc.client.metrics import MetricsApi
from rpc.client.network import NetworkApi
from rpc.client.tasks import TaskApi
from rpc.client.views import ViewsApi
from rpc.client.websocket import WebSocketConnection
from state.primitives.errors import DekubeError

__all__ = ["AsyncClient"]

_T = TypeVar("_T")
READ_BYTES: Final = 65536
_REFUSED = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""Errors of a request; the last is raised by ``idna`` for an invalid host name, also of a redirect."""
_BROKEN = (OSError, UnicodeError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class AsyncClient(Api, NetworkApi, TaskApi, JobApi, MetricsApi, BlobApi, ViewsApi):
    """Client of the gateways at ``urls`` (http or https); uses the first that answers. Tasks may share it.

    Close iterators that you leave early (``contextlib.aclosing``): each holds a connection.
    """

    def __init__(self, *urls: str, options: ClientOptions | None = None) -> None:
        """Raises ConfigError for an invalid URL, ArgumentInvalid for invalid options."""
        options = options or ClientOptions()
        check_options(options)
        self.core = Core(urls, options)
        self._http = httpx.AsyncClient(trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client and its connections; later calls raise ClientClosed."""
        self.core.close()
        await self._http.aclose()

    async def aperform(self, flow: Flow[_T]) -> _T:
        """Perform the effects of ``flow``; return its result."""
        self.core.check_open()
        steps, websocket = Steps(flow), _Socket()
        try:
            for effect in steps:
                steps.resume(*await self._do(effect, websocket))
        finally:
            flow.close()
            await websocket.close()
        result: _T = steps.result
        return result

    async def aiterate(self, stream: Stream[_T]) -> AsyncIterator[_T]:
        """Perform the effects of ``stream``; yield its items."""
        self.core.check_open()
        steps, websocket = Steps(stream), _Socket()
        try:
            for effect in steps:
                if isinstance(effect, Item):
                    yield effect.item
                else:
                    steps.resume(*await self._do(effect, websocket))
        finally:
            stream.close()
            await websocket.close()

    async def _do(self, effect: Effect, websocket: _Socket) -> tuple[Any, DekubeError | None]:
        """Perform ``effect``; return its result, or its error."""
        try:
            match effect:
                case _ if self._http.is_closed:  # while a flow of another task was under way
                    self.core.check_open()
                case Post():
                    return await self._post(effect), None
                case Fetch():
                    return await self._fetch(effect), None
                case Pause(seconds):
                    await anyio.sleep(seconds)
                case ReadClock():
                    return anyio.current_time(), None
                case RunBlocking(do):
                    return await anyio.to_thread.run_sync(do), None
                case OpenWebSocket(url, timeout_s):
                    await websocket.dial(url, timeout_s)
                case SendMessage(text, timeout_s):
                    await websocket.send(text, timeout_s)
                case ReceiveMessage(timeout_s):
                    return await websocket.receive(timeout_s), None
                case _:
                    raise AssertionError(effect)
        except DekubeError as error:
            return None, error
        return None, None

    async def _post(self, post: Post) -> bytes:
        headers = (("content-type", "application/json"),)
        fetch = Fetch("POST", post.url, post.timeout_s, post.body, headers, whole_s=post.whole_s)
        reply = await self._fetch(fetch)
        if reply.status != 200 and not post.any_status:
            raise GatewayUnreachable(f"{urlsplit(post.url).netloc}: HTTP status {reply.status}")
        return reply.body

    async def _fetch(self, fetch: Fetch) -> Reply:
        place = urlsplit(fetch.url).netloc
        data = bytearray()
        whole_s = math.inf if fetch.whole_s is None else fetch.whole_s
        deadline = anyio.current_time() + whole_s
        try:
            # As a whole, head and all: a gateway must not keep a client with a byte now and then.
            with anyio.fail_after(min(fetch.timeout_s, whole_s)) as scope:
                async with self._http.stream(
                    fetch.method, fetch.url, content=fetch.body, headers=list(fetch.headers),
                    timeout=fetch.timeout_s,
                ) as response:  # fmt: skip
                    async for part in response.aiter_bytes():
                        data += part
                        scope.deadline = min(scope.deadline + len(part) / ANSWER_BYTES_PER_S_MIN, deadline)
                        if len(data) > fetch.limit_bytes:
                            raise GatewayUnreachable(f"{place}: an answer without end")
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return Reply(response.status_code, headers, bytes(data))
        except _REFUSED as error:
            raise GatewayUnreachable(f"{place}: {_why(error)}") from None
        except TimeoutError:
            raise GatewayUnreachable(f"{place}: too slow an answer") from None


class _Socket:
    """The WebSocket of one flow."""

    def __init__(self) -> None:
        self._stream: anyio.abc.ByteStream | None = None
        self._conversation: WebSocketConnection | None = None

    async def close(self) -> None:
        if self._stream is not None:
            await anyio.aclose_forcefully(self._stream)
            self._stream = None

    async def dial(self, url: str, timeout_s: float) -> None:
        await self.close()
        parts = urlsplit(url)
        context = ssl.create_default_context() if parts.scheme == "wss" else None
        deadline = anyio.current_time() + timeout_s
        try:
            with anyio.fail_after(timeout_s):
                host, port = str(parts.hostname), int(parts.port or 0)
                if context is None:
                    self._stream = await anyio.connect_tcp(host, port)
                else:
                    self._stream = await anyio.connect_tcp(
                        host, port, ssl_context=context, tls_standard_compatible=False
                    )
            self._conversation = WebSocketConnection(url)
            await self._flush(deadline)
            while not self._conversation.is_open:
                if not await self._receive(deadline):
                    raise GatewayUnreachable(f"{parts.netloc}: no WebSocket in {timeout_s:.0f} s")
        except _BROKEN as error:  # a TimeoutError is one of these
            raise GatewayUnreachable(f"{parts.netloc}: {_why(error)}") from None

    async def send(self, text: bytes, timeout_s: float) -> None:
        assert self._conversation is not None
        self._conversation.send(text)
        try:
            await self._flush(anyio.current_time() + timeout_s)
        except _BROKEN as error:
            raise GatewayUnreachable(f"the WebSocket broke: {_why(error)}") from None

    async def receive(self, timeout_s: float) -> bytes | None:
        assert self._conversation is not None
        deadline = anyio.current_time() + timeout_s
        try:
            while (text := self._conversation.next_message()) is None:
                if not await self._receive(deadline):
                    return None
        except _BROKEN as error:
            raise GatewayUnreachable(f"the WebSocket broke: {_why(error)}") from None
        return text

    async def _receive(self, deadline: float) -> bool:
        """Receive data; return False on timeout."""
        assert self._stream is not None
        assert self._conversation is not None
        data = b""
        with anyio.CancelScope(deadline=deadline) as scope:
            try:
                data = await self._stream.receive(READ_BYTES)
            except anyio.EndOfStream:
                pass
        if scope.cancelled_caught:
            return False
        self._conversation.receive(data)
        await self._flush(deadline)
        return True

    async def _flush(self, deadline: float) -> None:
        """Send the pending output. Raises TimeoutError if it is not sent by ``deadline``.

        A part of a message may have been sent, so the connection cannot be used any more.
        """
        assert self._stream is not None
        assert self._conversation is not None
        if data := self._conversation.outgoing():
            with anyio.fail_after(deadline - anyio.current_time()):
                await self._stream.send(data)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
