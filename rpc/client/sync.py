"""The blocking client: one persistent connection, with the standard library only."""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

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
from state.primitives.errors import DekubeError

if TYPE_CHECKING:
    from rpc.client.websocket import WebSocketConnection

__all__ = ["Client"]

_T = TypeVar("_T")
READ_BYTES: Final = 65536
OVERHEAD_BYTES_MAX: Final = 1024 * 1024
"""Bytes of an answer beside its body: headers, and the framing of small chunks."""


class Client(Api, NetworkApi, TaskApi, JobApi, MetricsApi, BlobApi, ViewsApi):
    """Client of the gateways at ``urls`` (http or https); uses the first that answers. Not thread-safe."""

    def __init__(self, *urls: str, timeout_s: float | None = None, options: ClientOptions | None = None) -> None:
        """Raises ConfigError for an invalid URL, ArgumentInvalid for invalid options."""
        if options is None:
            options = ClientOptions() if timeout_s is None else ClientOptions(timeout_s=timeout_s)
        check_options(options)
        self.core = Core(urls, options)
        self._connection: http.client.HTTPConnection | None = None
        self._connected_to = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; later calls raise ClientClosed."""
        self.core.close()
        self._drop()

    def _drop(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def perform(self, flow: Flow[_T]) -> _T:
        """Perform the effects of ``flow``; return its result."""
        self.core.check_open()
        steps = Steps(flow)
        with closing(flow), _Socket() as websocket:
            for effect in steps:
                steps.resume(*self._do(effect, websocket))
        result: _T = steps.result
        return result

    def iterate(self, stream: Stream[_T]) -> Iterator[_T]:
        """Perform the effects of ``stream``; yield its items."""
        self.core.check_open()
        steps = Steps(stream)
        with closing(stream), _Socket() as websocket:
            for effect in steps:
                if isinstance(effect, Item):
                    yield effect.item
                else:
                    steps.resume(*self._do(effect, websocket))

    def _do(self, effect: Effect, websocket: _Socket) -> tuple[Any, DekubeError | None]:
        """Perform ``effect``; return its result, or its error."""
        try:
            match effect:
                case Post():
                    return self._post(effect), None
                case Fetch():
                    return self._fetch(effect), None
                case Pause(seconds):
                    time.sleep(seconds)
                case ReadClock():
                    return time.monotonic(), None
                case RunBlocking(do):
                    return do(), None
                case OpenWebSocket(url, timeout_s):
                    websocket.dial(url, timeout_s)
                case SendMessage(text, timeout_s):
                    websocket.send(text, timeout_s)
                case ReceiveMessage(timeout_s):
                    return websocket.receive(timeout_s), None
                case _:
                    raise AssertionError(effect)
        except DekubeError as error:
            return None, error
        return None, None

    def _post(self, post: Post) -> bytes:
        headers = (("content-type", "application/json"),)
        reply = self._fetch(Fetch("POST", post.url, post.timeout_s, post.body, headers, whole_s=post.whole_s))
        if reply.status != 200 and not post.any_status:
            self._drop()
            raise GatewayUnreachable(f"{_place(post.url)}: HTTP status {reply.status}")
        return reply.body

    def _fetch(self, fetch: Fetch) -> Reply:
        place = _origin(fetch.url)
        deadline = math.inf if fetch.whole_s is None else time.monotonic() + fetch.whole_s
        if place != self._connected_to:
            self._drop()
        for attempt in (1, 2):
            is_fresh = self._connection is None
            try:
                return self._send(fetch, place, deadline)
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: sizes of chunks
                self._drop()
                # A kept connection may have been closed meanwhile; only then nothing was done yet.
                was_closed = isinstance(error, http.client.RemoteDisconnected | BrokenPipeError)
                if is_fresh or attempt == 2 or not was_closed:
                    raise GatewayUnreachable(f"{_place(fetch.url)}: {error}") from None
        raise AssertionError("unreachable")

    def _send(self, fetch: Fetch, place: str, deadline: float) -> Reply:
        parts = urlsplit(fetch.url)
        if self._connection is None:
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(str(parts.hostname), parts.port)
            self._connected_to = place
        if self._connection.sock is None:
            self._connection.timeout = min(fetch.timeout_s, _left_s(deadline))
            self._connection.connect()
        self._connection.sock.settimeout(min(fetch.timeout_s, _left_s(deadline)))
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        limit_bytes = 2 * fetch.limit_bytes + OVERHEAD_BYTES_MAX
        kept = partial(_Response, limit_bytes=limit_bytes, deadline=deadline)
        self._connection.response_class = kept  # type: ignore[assignment]
        self._connection.request(fetch.method, target, fetch.body or None, dict(fetch.headers))
        response = self._connection.getresponse()
        try:
            data = response.read(fetch.limit_bytes + 1)
            if len(data) > fetch.limit_bytes:
                raise http.client.HTTPException("an answer without end")
        except BaseException:
            response.close()  # it holds the socket beside the connection
            raise
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, data)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _place(url: str) -> str:
    return urlsplit(url).netloc


def _left_s(deadline: float) -> float:
    """Return the seconds until ``deadline``. Raises TimeoutError after it."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is over")
    return left_s


class _Response(http.client.HTTPResponse):
    """An answer with a deadline for the whole, so that a gateway cannot delay a client byte by byte."""

    def __init__(
        self, sock: socket.socket, *args: Any, limit_bytes: int, deadline: float = math.inf, **options: Any
    ) -> None:
        """``limit_bytes`` bounds the whole answer with headers and chunk framing; ``deadline`` bounds its time."""
        paced = _Paced(sock, limit_bytes, deadline)
        super().__init__(paced, *args, **options)  # type: ignore[arg-type]  # all that it takes is a file


class _Paced:
    """The part of a socket's interface that ``http.client`` reads from."""

    def __init__(self, sock: socket.socket, limit_bytes: int, deadline: float) -> None:
        self._sock = sock
        self._limit_bytes = limit_bytes
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_PacedReader(self._sock, self._limit_bytes, self._deadline), READ_BYTES)


class _PacedReader(io.RawIOBase):
    """Reads from a socket within its timeout, longer by a second for each ``ANSWER_BYTES_PER_S_MIN`` that came.

    Never after ``deadline``.
    """

    def __init__(self, sock: socket.socket, limit_bytes: int, deadline: float) -> None:
        self._sock = sock
        self._left_bytes = limit_bytes
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)
        self._until = time.monotonic() + (sock.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = min(self._until, self._deadline) - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("too slow an answer")
        self._sock.settimeout(left_s)
        size = self._raw.readinto(buffer)
        self._until += (size or 0) / ANSWER_BYTES_PER_S_MIN
        self._left_bytes -= size or 0
        if self._left_bytes < 0:
            raise OSError("an answer without end")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """The WebSocket of one flow."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._conversation: WebSocketConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def dial(self, url: str, timeout_s: float) -> None:
        from rpc.client.websocket import WebSocketConnection  # few commands listen

        self.__exit__()
        parts = urlsplit(url)
        deadline = time.monotonic() + timeout_s
        try:
            self._socket = socket.create_connection((parts.hostname, parts.port), timeout_s)
            if parts.scheme == "wss":
                context = ssl.create_default_context()
                self._socket.settimeout(_left_s(deadline))
                self._socket = context.wrap_socket(self._socket, server_hostname=parts.hostname)
            self._conversation = WebSocketConnection(url)
            self._flush(deadline)
            while not self._conversation.is_open:
                if not self._receive(deadline):
                    raise GatewayUnreachable(f"{parts.netloc}: no WebSocket in {timeout_s:.0f} s")
        except OSError as error:
            raise GatewayUnreachable(f"{parts.netloc}: {error}") from None

    def send(self, text: bytes, timeout_s: float) -> None:
        assert self._conversation is not None
        self._conversation.send(text)
        try:
            self._flush(time.monotonic() + timeout_s)
        except OSError as error:
            raise GatewayUnreachable(f"the WebSocket broke: {error}") from None

    def receive(self, timeout_s: float) -> bytes | None:
        assert self._conversation is not None
        deadline = time.monotonic() + timeout_s
        try:
            while (text := self._conversation.next_message()) is None:
                if not self._receive(deadline):
                    return None
        except OSError as error:
            raise GatewayUnreachable(f"the WebSocket broke: {error}") from None
        return text

    def _receive(self, deadline: float) -> bool:
        """Receive data; return False on timeout."""
        assert self._socket is not None
        assert self._conversation is not None
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        self._socket.settimeout(left_s)
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError:
            return False
        self._conversation.receive(data)
        self._flush(deadline)
        return True

    def _flush(self, deadline: float) -> None:
        """Send the pending output. Raises TimeoutError if it is not sent by ``deadline``.

        A part of a message may have been sent, so the connection cannot be used any more.
        """
        assert self._socket is not None
        assert self._conversation is not None
        data = memoryview(self._conversation.outgoing())
        while data:  # not sendall: over TLS each part would have the whole time
            self._socket.settimeout(_left_s(deadline))
            data = data[self._socket.send(data) :]
