"""A command in a container of a pod, by the API server's WebSocket: bytes in, bytes out, and how it ended.

The protocol is Kubernetes' ``v4.channel.k8s.io``: the first byte of a message names its channel. Whether a command
has done its work is known from the error channel alone; a connection that ends before it counts as broken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final
from urllib.parse import quote, urlsplit

import orjson
import trio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.proxying import open_stream

__all__ = ["Command", "run_command", "status_of"]

PROTOCOL: Final = Subprotocol("v4.channel.k8s.io")
MESSAGE_BYTES_MAX: Final = 1 << 20
SEND_BYTES: Final = 128 << 10
RECEIVE_BYTES: Final = 256 << 10
CONNECT_S: Final = 15.0
SILENCE_S: Final = 60.0
"""A stream on which nothing moves for so long is broken."""
TOLD_BYTES_MAX: Final = 4_096
ANSWER_BYTES_MAX: Final = 64 << 10
_STDIN, _STDOUT, _STDERR, _ERROR = range(4)


class Command:
    """One command that runs; ``code`` is its exit code after the end of ``output``."""

    def __init__(self, stream: trio.abc.Stream, protocol: ClientProtocol, where: str) -> None:
        self._stream, self._protocol, self._where = stream, protocol, where
        self._parts, self.told = bytearray(), bytearray()
        self.code: int | None = None
        self._sending = trio.Lock()

    async def flush(self) -> None:
        """Send what the protocol wants to send, in its order: reading and writing may both have something."""
        async with self._sending:
            for data in self._protocol.data_to_send():
                if data:
                    await self._stream.send_all(data)

    async def write(self, data: bytes) -> None:
        """Write to the command's standard input. Raises EngineUnavailable."""
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            with _broken(self._where):
                self._protocol.send_binary(bytes((_STDIN,)) + view[start : start + SEND_BYTES])
                with trio.fail_after(SILENCE_S):
                    await self.flush()

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the command's standard output until it ended. Raises EngineUnavailable where the stream breaks."""
        while True:
            with _broken(self._where), trio.fail_after(SILENCE_S):
                data = await self._stream.receive_some(RECEIVE_BYTES)
            with _broken(self._where):
                if data:
                    self._protocol.receive_data(data)
                else:
                    self._protocol.receive_eof()
                events = self._protocol.events_received()
                with suppress(trio.BrokenResourceError):
                    await self.flush()
            for event in events:
                if isinstance(event, Frame) and (found := self._take(event)):
                    yield found
            if self.code is not None:
                return
            if not data or self._protocol.state is State.CLOSED:
                raise EngineUnavailable(f"{self._where}: the stream ended before the command")

    def _take(self, frame: Frame) -> bytes:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return b""
        self._parts += frame.data
        if not frame.fin:
            return b""
        message, self._parts = bytes(self._parts), bytearray()
        if message[:1] == bytes((_STDOUT,)):
            return message[1:]
        if message[:1] == bytes((_STDERR,)):
            self.told += message[1 : 1 + TOLD_BYTES_MAX - len(self.told)]
        elif message[:1] == bytes((_ERROR,)):
            self.code = status_of(message[1:])
        return b""


def status_of(data: bytes) -> int:
    """Return the exit code that the error channel tells. Raises EngineError for a failure of another kind."""
    try:
        found = orjson.loads(data)
        if found["status"] == "Success":
            return 0
        for cause in (found.get("details") or {}).get("causes") or ():
            if cause["reason"] == "ExitCode":
                return int(cause["message"])
        text = str(found.get("message", ""))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        text = "the end of a command is not a status"
    raise EngineError(200, " ".join(text.split())[:400])


class _broken:
    """Turn the errors of a stream into EngineUnavailable."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError,
                              WebSocketException)):  # fmt: skip
            raise EngineUnavailable(f"{self._where}: {str(error) or type(error).__name__}") from None


@asynccontextmanager
async def run_command(
    api: ClusterApi, pod: str, container: str, command: Sequence[str], *, stdin: bool = False
) -> AsyncIterator[Command]:
    """Run a command in a container; ``pod`` is a path in the API. Raises EngineUnavailable, EngineError."""
    access = api.access
    where = f"{access.server}: a command in {container}"
    options = [("container", container), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
    options += [("stdin", "true" if stdin else "false"), *(("command", one) for one in command)]
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options)
    parts = urlsplit(access.server)
    uri = parse_uri(f"wss://{parts.netloc}{parts.path}{pod}/exec?{query}")
    with _broken(where), trio.fail_after(CONNECT_S):
        raw = await open_stream(access.proxy, uri.host, uri.port)
    stream = trio.SSLStream(
        raw, api.context, server_hostname=access.server_name or uri.host, https_compatible=True
    )
    async with aclosing(stream):
        protocol = ClientProtocol(uri, subprotocols=[PROTOCOL], max_size=MESSAGE_BYTES_MAX)
        made = Command(stream, protocol, where)
        await _shake_hands(made, stream, protocol, api, where)
        yield made


async def _shake_hands(
    made: Command, stream: trio.SSLStream[trio.SocketStream], protocol: ClientProtocol, api: ClusterApi, where: str
) -> None:
    request = protocol.connect()
    for name, value in api.headers().items():
        request.headers[name] = value
    protocol.send_request(request)
    with _broken(where), trio.fail_after(CONNECT_S):
        await made.flush()
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            data = await stream.receive_some(RECEIVE_BYTES)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
                break
    error = protocol.handshake_exc
    if isinstance(error, InvalidStatus):
        body = error.response.body or b""
        raise EngineError(error.response.status_code, body[:400].decode("utf-8", "replace") or "no stream")
    if error is not None or protocol.state is not State.OPEN:
        raise EngineUnavailable(f"{where}: {error or 'the connection ended'}")


async def answer_of(
    api: ClusterApi, pod: str, container: str, script: str, data: Iterable[bytes] | None = None
) -> tuple[int, bytes]:
    """Run a script of the shell with ``data`` as its input; return exit code and output, at most 64 KiB of it."""
    return await answer_to(api, pod, container, ("/bin/sh", "-c", script), data)


async def answer_to(
    api: ClusterApi, pod: str, container: str, words: Sequence[str], data: Iterable[bytes] | None = None
) -> tuple[int, bytes]:
    """Run a command like ``answer_of``."""
    found = bytearray()
    async with run_command(api, pod, container, words, stdin=data is not None) as command:
        for part in data or ():
            await command.write(part)
        async with aclosing(command.output()) as output:  # type: ignore[type-var]
            async for part in output:
                found += part
                if len(found) > ANSWER_BYTES_MAX:
                    raise EngineError(200, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    assert command.code is not None
    return command.code, bytes(found)
