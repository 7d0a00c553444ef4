"""Gateways as functions, sockets as queues and a clock that only pauses move: what a flow does, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from rpc.client.core import (
    ClientOptions,
    Core,
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
    Stream,
)
from rpc.client.errors import GatewayUnreachable
from rpc.protocol.errors import RpcError
from state.primitives.errors import DekubeError

_T = TypeVar("_T")
Answer = Callable[[str, Any], Any]
"""What a gateway answers to a method with parameters; it may raise RpcError or GatewayUnreachable."""


class Gateway:
    """One gateway, and what a WebSocket to it says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any]] = []
        self.serve: Callable[[Fetch], Reply] = lambda _fetch: Reply(404, {}, b"")
        """What it answers to other requests of HTTP; it may raise GatewayUnreachable."""
        self.is_silent = False
        """It takes connections and says nothing."""
        self.said: list[Any] = []
        """What the WebSocket says next: a document, None for silence, an error that breaks it."""

    def reply(self, request: Any) -> Any:
        if isinstance(request, list):
            return [self.reply(item) for item in request]
        params = request.get("params") or {}
        self.asked.append((request["method"], params))
        try:
            result = self.answer(request["method"], params)
        except RpcError as error:
            return {"id": request["id"], "error": error.to_json()}
        return {"id": request["id"], "result": result}


class World:
    """Performs the effects of flows."""

    def __init__(self, *answers: Answer, options: ClientOptions | None = None) -> None:
        self.gateways = {f"gateway{n}:8545": Gateway(answer) for n, answer in enumerate(answers)}
        self.core = Core(list(self.gateways), options or ClientOptions())
        self.now_s = 0.0
        self.pauses: list[float] = []
        self._dialled: Gateway | None = None

    @property
    def all(self) -> list[Gateway]:
        return list(self.gateways.values())

    def run(self, flow: Flow[_T]) -> _T:
        """Return what a flow returns."""
        answer: Any = None
        error: DekubeError | None = None
        while True:
            try:
                effect = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer, error = self._perform(effect)

    def take(self, stream: Stream[_T], count: int | None = None) -> list[_T]:
        """Return the first ``count`` items of a stream, or all."""
        found: list[_T] = []
        answer: Any = None
        error: DekubeError | None = None
        while count is None or len(found) < count:
            try:
                effect = stream.send(answer) if error is None else stream.throw(error)
            except StopIteration:
                return found
            answer = error = None
            if isinstance(effect, Item):
                found.append(effect.item)
            else:
                answer, error = self._perform(effect)
        return found

    def _gateway(self, url: str) -> Gateway:
        return self.gateways[url.split("/")[2]]

    def _perform(self, effect: Any) -> tuple[Any, DekubeError | None]:
        try:
            match effect:
                case Post(url=url, timeout_s=timeout_s) | OpenWebSocket(url, timeout_s) if self._gateway(
                    url
                ).is_silent:
                    self.now_s += timeout_s
                    raise GatewayUnreachable("too slow an answer")
                case Post(url=url, body=body):
                    return orjson.dumps(self._gateway(url).reply(orjson.loads(body))), None
                case Fetch():
                    return self._gateway(effect.url).serve(effect), None
                case Pause(seconds):
                    self.pauses.append(seconds)
                    self.now_s += seconds
                case ReadClock():
                    return self.now_s, None
                case RunBlocking(do):
                    return do(), None
                case OpenWebSocket(url, _):
                    self._dialled = self._gateway(url)
                    self._dialled.answer("dial", {})
                case SendMessage(text, _):
                    assert self._dialled is not None
                    request = orjson.loads(text)
                    self._dialled.said.insert(0, self._dialled.reply(request))
                case ReceiveMessage(timeout_s):
                    assert self._dialled is not None
                    if not self._dialled.said:
                        raise GatewayUnreachable("ended")
                    message = self._dialled.said.pop(0)
                    if isinstance(message, DekubeError):
                        raise message
                    if message is None:
                        self.now_s += timeout_s
                        return None, None
                    return orjson.dumps(message), None
                case _:
                    raise AssertionError(effect)
        except DekubeError as error:
            return None, error
        return None, None
