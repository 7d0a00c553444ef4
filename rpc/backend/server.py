"""The node's end of the gateways' socket: answers requests without letting gateways slow the node.

Cheap requests are answered on the event loop, others in a few worker threads (``rpc.protocol.requests`` says
which). Gateways may take ``share_percent`` of the event loop's time together. Running requests and unsent answers
of each connection are bounded.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import structlog
import trio

from rpc.protocol.frames import (
    ANSWER_LIMIT_BYTES,
    REQUEST_LIMIT_BYTES,
    FrameBuffer,
    Request,
    Unreadable,
    encode_answer,
    encode_failure,
    encode_push,
    failure_value,
    read_request,
)
from rpc.protocol.requests import (
    REQUESTS,
    BlobRequests,
    ChainRequests,
    LiveNode,
    LiveRequests,
    NodeView,
    PoolRequests,
    TaskViewRequests,
    TaskViewSource,
    awaiting_handler_of,
    handler_of,
)
from rpc.protocol.wire_types import record_value
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value
from state.primitives.errors import ConfigError, DecodeError, DekubeError
from state.primitives.hashing import ZERO_HASH

__all__ = ["Backend", "BackendOptions"]

_log = structlog.get_logger(__name__)

SUBMITS_MAX: Final = 64
"""Transactions of one ``submit``: some 2 ms of the loop."""
HEADS_MAX: Final = 8
CHANGES_MAX: Final = 20_000
"""Heads and changed keys that one pushed message reports."""
BURST: Final = 32
"""Requests that are answered before the rest of the node runs."""
DEBT_S: Final = 0.005
"""Loop time that a connection may take ahead of its share before it sleeps."""
_CHUNK_BYTES: Final = 64 * 1024
_BYTES: Final = frozenset((bytes,))
_ADDRESS_LENGTHS: Final = frozenset((ADDRESS_BYTES,))


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Limits of the socket that the gateway connects to."""

    connections_max: int = 8
    in_flight_max: int = 64
    """Requests of one connection that wait for a thread."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Unsent answers of a gateway that does not read; above it no more requests are read."""
    threads: int = 2
    share_percent: int = 33
    """Most of the loop's time that all gateways may take together."""


class _Share:
    """Counts the loop time that gateways took, and computes how long they have to sleep for it."""

    def __init__(self, percent: int) -> None:
        self._factor = 100 / percent
        self._free_at = 0.0

    def spend(self, start: float, end: float) -> float:
        """Return the seconds to sleep after having worked from ``start`` to ``end``."""
        self._free_at = max(self._free_at, start) + (end - start) * self._factor
        ahead = self._free_at - end
        return ahead if ahead > DEBT_S else 0.0


class _Connection:
    def __init__(self, backend: Backend, stream: trio.SocketStream) -> None:
        self._backend = backend
        self._stream = stream
        self._limit_bytes = backend.options.unsent_bytes_max
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._wake = trio.Event()
        self._drained = trio.Event()
        self._is_writing = False
        self.in_flight = trio.Semaphore(backend.options.in_flight_max)
        self.watching = False

    def put(self, frame: bytes) -> None:
        self.add(frame)
        self._wake.set()

    def add(self, frame: bytes) -> None:
        """Take a frame that ``flush`` will send."""
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)

    def flush(self) -> None:
        """Send what the socket accepts now: waking the writer costs as much as ten answers."""
        if not self._unsent:
            return
        if not self._is_writing:
            chunk = b"".join(self._unsent)
            try:
                sent = os.write(self._stream.socket.fileno(), chunk)
            except OSError:  # full, or gone, which the writer will see
                sent = 0
            self._unsent = [chunk[sent:]] if sent < len(chunk) else []
            self._unsent_bytes -= sent
        if self._unsent:
            self._wake.set()

    @property
    def is_full(self) -> bool:
        return self._unsent_bytes > self._limit_bytes

    async def wait_room(self) -> None:
        while self.is_full:
            self._drained = trio.Event()
            await self._drained.wait()

    async def write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            chunk, self._unsent = b"".join(self._unsent), []
            self._is_writing = True
            await self._stream.send_all(chunk)
            self._is_writing = False
            self._unsent_bytes -= len(chunk)
            self._drained.set()


class Backend:
    """Serves gateways at a Unix socket; run it in the node's nursery.

    ``path`` lies in a directory that only the node's user may enter; the socket itself has mode 0600.
    """

    def __init__(
        self,
        view: NodeView,
        live: LiveNode,
        path: Path,
        options: BackendOptions | None = None,
        *,
        blobs: BlobRequests | None = None,
        views: TaskViewSource | None = None,
    ) -> None:
        """Without ``blobs`` requests about blobs fail as unknown, without ``views`` those about containers."""
        self.options = options or BackendOptions()
        self._view = view
        self._live = live
        self._path = path
        self._threads = trio.CapacityLimiter(self.options.threads)
        self._share = _Share(self.options.share_percent)
        self._connections = 0
        self.gateway: tuple[str, int] = ("", 0)
        """Where the gateway that connected last is listening."""
        self._gateway_known = trio.Event()
        self._inline: dict[str, Callable[[list[Any]], Value]] = {
            "serving": self._serving,
            "submit": self._submit,
        }
        self._threaded: dict[str, Callable[[list[Any]], Value]] = {}
        self._awaited: dict[str, Callable[[list[Any]], Awaitable[Value]]] = {}
        answers: dict[type, object] = {
            ChainRequests: view,
            PoolRequests: view,
            LiveRequests: live,
            BlobRequests: blobs,
            TaskViewRequests: views,
        }
        for request in REQUESTS.values():
            answering = answers[request.answered_by]
            if answering is not None and request.is_awaited:
                self._awaited[request.name] = awaiting_handler_of(request, getattr(answering, request.name))
            elif answering is not None:
                handlers = self._threaded if request.is_threaded else self._inline
                handlers[request.name] = handler_of(request, getattr(answering, request.name))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; ``task_status`` is started when gateways can connect. Raises ConfigError."""
        listener = self._listen()
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await trio.serve_listeners(self._serve, [listener], handler_nursery=nursery)
        finally:
            self._path.unlink(missing_ok=True)

    def _listen(self) -> trio.SocketListener:
        path = self._path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()  # left by a node that was killed: the data directory has one writer, us
            mask = os.umask(0o177)
            try:
                sock._sock.bind(str(path))  # type: ignore[attr-defined]
            finally:
                os.umask(mask)
            sock.listen(self.options.connections_max)
        except OSError as error:
            sock.close()
            raise ConfigError(f"rpc socket {path}: {error.strerror or error}") from None
        return trio.SocketListener(sock)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._connections >= self.options.connections_max:
            _log.warning("rpc gateway refused", connections=self._connections)
            await stream.aclose()
            return
        self._connections += 1
        connection = _Connection(self, stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.write)
                await self._read_requests(connection, stream, nursery)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the gateway went away; it connects again by itself
        except* DecodeError as group:
            _log.warning(
                "rpc gateway sent a malformed frame; its connection is closed", error=str(group.exceptions[0])
            )
        finally:
            self._connections -= 1
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await stream.aclose()

    async def _read_requests(
        self, connection: _Connection, stream: trio.SocketStream, nursery: trio.Nursery
    ) -> None:
        buffer = FrameBuffer(REQUEST_LIMIT_BYTES)
        while data := await _receive(stream):
            values = buffer.feed(data)
            for first in range(0, len(values), BURST):
                start = perf_counter()
                waiting: list[Request] = []
                for value in values[first : first + BURST]:
                    if type(value) is Unreadable:
                        connection.put(encode_failure(value.identifier, DecodeError(value.reason)))
                        continue
                    request = read_request(value)
                    handler = self._inline.get(request.method)
                    if handler is not None:
                        connection.add(_answer(request, handler))
                    else:
                        waiting.append(request)
                connection.flush()
                pause = self._share.spend(start, perf_counter())
                for request in waiting:
                    # The semaphore is taken here: a gateway that asks too much at once is no longer read.
                    await connection.in_flight.acquire()
                    nursery.start_soon(self._answer_later, connection, request, nursery)
                if pause or first + BURST < len(
                    values
                ):  # else reading from the socket lets the rest of the node run
                    await trio.sleep(pause)
                await connection.wait_room()

    async def _answer_later(self, connection: _Connection, request: Request, nursery: trio.Nursery) -> None:
        try:
            connection.put(await self._frame_of(connection, request, nursery))
        finally:
            connection.in_flight.release()

    async def _frame_of(self, connection: _Connection, request: Request, nursery: trio.Nursery) -> bytes:
        try:
            if (threaded := self._threaded.get(request.method)) is not None:
                return await trio.to_thread.run_sync(
                    _answer, request, threaded, limiter=self._threads, abandon_on_cancel=False
                )
            if (awaited := self._awaited.get(request.method)) is not None:
                return encode_answer(request.identifier, await awaited(request.params))
            if request.method == "watch":
                if not connection.watching:
                    connection.watching = True
                    nursery.start_soon(self._push_heads, connection)
                return encode_answer(request.identifier, None)
            raise DecodeError(f"no such request: {request.method}")
        except DekubeError as error:
            return encode_failure(request.identifier, error)

    async def _push_heads(self, connection: _Connection) -> None:
        view, known = self._view, -1
        while True:
            await view.wait_head(known)
            # A gateway that does not read gets only the newest head when it reads again; it reads the rest itself.
            await connection.wait_room()
            head = view.head()
            connection.put(encode_push("head", [record_value(head), self._changes(known, head.height)]))
            known = head.height

    def _changes(self, known: int, height: int) -> Value:
        """Return ``known`` and the keys changed since; None if they are too many or unknown."""
        if not 0 <= known < height <= known + HEADS_MAX:
            return None
        keys: set[bytes] = set()
        for above in range(known + 1, height + 1):
            changed = self._view.changed_keys(above)
            if changed is None or len(keys) + len(changed) > CHANGES_MAX:
                return None
            keys.update(changed)
        return [known, list(keys)]

    def _serving(self, params: list[Any]) -> Value:
        match params:
            case [str(host), int(port)]:
                self.gateway = (host, port)
                self._gateway_known.set()
                return None
            case _:
                raise DecodeError("serving: a host and a port expected")

    async def wait_gateway(self) -> tuple[str, int]:
        """Return host and port of the gateway that connected last, as soon as one has."""
        await self._gateway_known.wait()
        return self.gateway

    def _submit(self, params: list[Any]) -> Value:
        """Return the hashes, with zeros for refused transactions, and the errors with their positions."""
        if (
            len(params) > 2 * SUBMITS_MAX
            or len(params) % 2
            or not set(map(type, params)) <= _BYTES  # a loop over them would cost a fiftieth of their admission
            or not set(map(len, params[1::2])) <= _ADDRESS_LENGTHS
        ):
            raise DecodeError(f"submit: at most {SUBMITS_MAX} transactions, each with its sender, expected")
        hashes: list[Any] = []
        failures: list[Value] = []
        raws = iter(params)
        with self._live.admission() as admit:
            for raw, sender in zip(raws, raws, strict=True):
                try:
                    hashes.append(admit(raw, sender))
                    continue
                except DekubeError as error:
                    failure = failure_value(error)
                except Exception:
                    _log.exception("a transaction of the gateway failed")
                    failure = failure_value(_Unanswered("internal error"))
                failures.append([len(hashes), *failure])
                hashes.append(ZERO_HASH)
        return [b"".join(hashes), failures]


async def _receive(stream: trio.SocketStream) -> bytes:
    """Return what the gateway sent, nothing at the end. Waits before it reads: data is rarely there already."""
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError as error:
            raise trio.BrokenResourceError from error


def _answer(request: Request, handler: Callable[[list[Any]], Value]) -> bytes:
    try:
        answer = encode_answer(request.identifier, handler(request.params))
        if len(answer) <= ANSWER_LIMIT_BYTES:
            return answer
        _log.error("an answer is too long for the gateway", method=request.method, size_bytes=len(answer))
        return encode_failure(request.identifier, _Unanswered("the answer is too long"))
    except DekubeError as error:
        return encode_failure(request.identifier, error)
    except Exception:
        # A bug behind a public request must not end the node: only this request fails.
        _log.exception("a request of the gateway failed", method=request.method)
        return encode_failure(request.identifier, _Unanswered("internal error"))


class _Unanswered(DekubeError):
    code = "internal_error"
