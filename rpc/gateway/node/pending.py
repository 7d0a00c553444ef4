"""Unanswered requests to the node: matched with answers by number, bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from rpc.protocol.errors import NodeUnavailable, RpcError, fields_to_json
from rpc.protocol.frames import REQUEST_LIMIT_BYTES, Answer, Failure, Push, encode_request
from rpc.protocol.requests import REQUESTS
from state.primitives.codec import Value

_P = ParamSpec("_P")
_A = TypeVar("_A")

__all__ = ["PendingRequests", "as_error"]

SWEEP_S: Final = 1.0
_NOBODY: Final = (None, 0.0, None)


class PendingRequests:
    """The unanswered requests of one gateway. ``told`` is called with pushed messages. Runs on asyncio."""

    def __init__(self, open_max: int, timeout_s: float, told: Callable[[Push], None]) -> None:
        self._open_max = open_max
        self._timeout_s = timeout_s
        self._on_push = told
        self._send: Callable[[bytes], None] | None = None
        self._next_identifier = 1
        self._open: dict[int, tuple[asyncio.Future[Any], float, Callable[[Any], Any] | None]] = {}
        """For each request its future, when it was sent, and how its answer is read."""

    @property
    def is_connected(self) -> bool:
        """Whether the node is connected."""
        return self._send is not None

    def connect(self, send: Callable[[bytes], None]) -> None:
        """Send requests by ``send`` from now on."""
        self._send = send

    def disconnect(self) -> None:
        """Fail all unanswered requests."""
        self._send = None
        opened, self._open = self._open, {}
        for future, _, _ in opened.values():
            if not future.done():
                _fail(future, NodeUnavailable())

    async def sweep(self) -> None:
        """Fail requests that are not answered in time, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            late = loop.time() - self._timeout_s
            for identifier, (future, since, _) in list(self._open.items()):
                if since > late:
                    break
                del self._open[identifier]
                if not future.done():
                    _fail(future, NodeUnavailable())

    def request(
        self, function: Callable[Concatenate[Any, _P], _A], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_A]:
        """Send the request that ``function`` declares (``rpc.protocol.requests``); return its answer.

        Raises NodeUnavailable, or RpcError with the code of the node's error.
        """
        assert not kwargs, "the arguments of requests are positional"
        name, _, _, answer, _, _, _, writes = REQUESTS[function]
        params: list[Any] = list(args)
        if writes is not None:
            params = [
                arg if write is None else write(arg) for write, arg in zip(writes, params, strict=True)
            ]  # fmt: skip
        return self.ask(name, params, answer.read)

    def ask(
        self, method: str, params: list[Value], read: Callable[[Any], Any] | None = None
    ) -> asyncio.Future[Any]:
        """Return a future of the node's answer, as ``read`` returns it. Raises what ``request`` does."""
        send = self._send
        if send is None:
            raise NodeUnavailable
        if len(self._open) >= self._open_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests under way", retry_after_s=1)
        loop = asyncio.get_running_loop()
        identifier = self._next_identifier
        self._next_identifier += 1
        frame = encode_request(identifier, method, params)
        if len(frame) > REQUEST_LIMIT_BYTES:
            raise RpcError("limit_exceeded", "limit exceeded: the request is too long for the node")
        future: asyncio.Future[Any] = loop.create_future()
        self._open[identifier] = (future, loop.time(), read)
        send(frame)
        return future

    def received(self, reply: Answer | Failure | Push) -> None:
        """Take a message of the node."""
        match reply:
            case Answer(identifier, value):
                future, _, read = self._open.pop(identifier, _NOBODY)
                if future is None or future.done():
                    return
                try:
                    future.set_result(value if read is None else read(value))
                except Exception as error:  # the answer is malformed
                    _fail(future, error)
            case Failure(identifier):
                future, _, _ = self._open.pop(identifier, _NOBODY)
                if future is not None and not future.done():
                    _fail(future, as_error(reply))
            case Push():
                self._on_push(reply)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # the caller may be gone; this marks the error as seen


def as_error(failure: Failure) -> RpcError:
    """Return the error that the node answered."""
    return RpcError(failure.code, failure.message, **fields_to_json(failure.fields))
