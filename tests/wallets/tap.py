"""A wire between wallets and a gateway that changes nothing and keeps what went over it, to be judged afterwards.

Every answer is held against the schema that ``rpc.discover`` gives for its method, every notification against that
of what it tells. Bytes are passed on as they come: a client that is tested unchanged speaks to the gateway itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httptools
import orjson
import trio

from tests.rpc.validate import validate

PIECE_BYTES: Final = 256 * 1024
TEXT, BINARY, CONTINUED = 1, 2, 0
_HEADER: Final = {"$ref": "#/components/schemas/EthHeader"}
_LOG: Final = {"$ref": "#/components/schemas/EthLog"}


@dataclass(slots=True)
class Wire:
    """One connection: the bytes of both directions."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)


class Tap:
    """Listens on a free port and passes connections on to ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.wires: list[Wire] = []
        self.listen_port = 0
        self._traffic = trio.lowlevel.ParkingLot()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listen_port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.listen_port}/ws"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.listen_port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass_on, [listener])

    async def _pass_on(self, client: trio.SocketStream) -> None:
        wire = Wire()
        self.wires.append(wire)
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._port)
        except OSError:
            return
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, client, server, wire.up)
            nursery.start_soon(self._copy, server, client, wire.down)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, kept: bytearray) -> None:
        try:
            while piece := await source.receive_some(PIECE_BYTES):
                kept += piece
                self._traffic.unpark_all()
                await target.send_all(piece)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # the other side is gone
            return

    def subscriptions(self) -> int:
        """Return how many subscriptions were ever granted."""
        granted = 0
        for wire in self.wires:
            _, asked = _messages(bytes(wire.up), httptools.HttpRequestParser)
            wanted = {one["id"] for message in asked for one in _each(message) if one["method"] == "eth_subscribe"}
            _, told = _messages(bytes(wire.down), httptools.HttpResponseParser) if wanted else ([], [])
            granted += sum(
                one.get("id") in wanted and "result" in one for message in told for one in _each(message)
            )
        return granted

    async def wait_subscriptions(self, count: int) -> None:
        """Wait until ``count`` subscriptions were granted: a client does not always say when it listens."""
        while self.subscriptions() < count:
            await self._traffic.park()


@dataclass(slots=True)
class Verdict:
    """What went over the wires: answers by method, errors by code, and what is not as it was described."""

    answers: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    notifications: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Judge:
    """Holds answers against a document of ``rpc.discover``."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]["schemas"]
        self._codes = {int(code) for code in document["components"]["errors"]}
        self._results = {method["name"]: method["result"]["schema"] for method in document["methods"]}
        self._verdict = Verdict()

    def judge(self, wires: list[Wire]) -> Verdict:
        """Return the verdict on all wires."""
        for wire in wires:
            requests, frames_up = _messages(bytes(wire.up), httptools.HttpRequestParser)
            answers, frames_down = _messages(bytes(wire.down), httptools.HttpResponseParser)
            for request, answer in zip(requests, answers, strict=False):  # the last may have had no answer
                if request and answer:
                    self._pair(request, answer)
            asked: dict[Any, str] = {}
            for message in frames_up:
                asked |= {one["id"]: one["method"] for one in _each(message)}
            for message in frames_down:
                for one in _each(message):
                    if "method" in one:
                        self._notification(one)
                    else:
                        self._answer(asked[one["id"]], one)
        return self._verdict

    def _pair(self, request: bytes, answer: bytes) -> None:
        asked = {one["id"]: one["method"] for one in _each(request)}
        told = _each(answer)
        if asked.keys() != {one["id"] for one in told}:
            self._verdict.faults.append(f"ids {sorted(map(str, asked))} were answered by {answer[:200]!r}")
            return
        for one in told:
            self._answer(asked[one["id"]], one)

    def _answer(self, method: str, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._error(method, answer)
            return
        self._verdict.answers[method] += 1
        if answer.keys() != {"jsonrpc", "id", "result"}:
            self._verdict.faults.append(f"{method}: an answer of {sorted(answer)}")
        elif method not in self._results:
            self._verdict.faults.append(f"{method} is answered and not described")
        else:
            self._check(method, answer["result"], self._results[method])

    def _error(self, method: str, answer: dict[str, Any]) -> None:
        error = answer["error"]
        self._verdict.errors[f"{method} {error['code']}"] += 1
        if answer.keys() != {"jsonrpc", "id", "error"} or type(error["message"]) is not str:
            self._verdict.faults.append(f"{method}: not an error: {answer}")
        if error["code"] == -32603 or error["code"] not in self._codes:
            self._verdict.faults.append(f"{method}: {error}")

    def _notification(self, message: dict[str, Any]) -> None:
        content = message["params"]["result"]
        kind = "logs" if "topics" in content else "newHeads"
        self._verdict.notifications[kind] += 1
        if message.keys() != {"jsonrpc", "method", "params"}:
            self._verdict.faults.append(f"a notification of {sorted(message)}")
        self._check(kind, content, _LOG if kind == "logs" else _HEADER)

    def _check(self, what: str, value: Any, schema: dict[str, Any]) -> None:
        try:
            validate(value, schema, self._components)
        except AssertionError as error:
            self._verdict.faults.append(f"{what}: {error}"[:1_000])


def _each(message: bytes) -> list[dict[str, Any]]:
    content = orjson.loads(message)
    return content if type(content) is list else [content]


class _Bodies:
    """Takes a parser's bodies; HEAD, OPTIONS and the like give an empty one, so that pairs stay pairs."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self.bodies.append(self._body)


def _messages(stream: bytes, parser: Any) -> tuple[list[bytes], list[bytes]]:
    """Return the bodies of a direction, and the messages of the WebSocket that it may have become."""
    taken = _Bodies()
    try:
        parser(taken).feed_data(stream)
    except httptools.HttpParserUpgrade as upgrade:
        return [], list(_frames(stream[upgrade.args[0] :]))
    return taken.bodies, []


def _frames(stream: bytes) -> Iterator[bytes]:
    """Yield the text and binary messages of a direction of a WebSocket; nothing is compressed (no extension)."""
    at, message = 0, b""
    while len(stream) >= at + 2:
        opcode, size = stream[at] & 15, stream[at + 1] & 127
        is_masked, is_last = stream[at + 1] & 128, stream[at] & 128
        assert not stream[at] & 0x70, "an extension that nobody agreed on"
        at += 2
        if size > 125:
            wide = 2 if size == 126 else 8
            size = int.from_bytes(stream[at : at + wide], "big")
            at += wide
        mask = stream[at : at + 4] if is_masked else b""
        at += len(mask)
        content = stream[at : at + size]
        if len(content) < size:
            return  # cut off in the middle
        at += size
        if mask:
            key = (mask * (size // 4 + 1))[:size]
            content = (int.from_bytes(content, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
        if opcode in (TEXT, BINARY, CONTINUED):
            message += content
            if is_last:
                yield message
                message = b""
