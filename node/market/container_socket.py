"""The Unix socket of a container, served by its node: HTTP/1.1 with small bodies (docs/jobs.md).

A stranger's program is at the other end. Connections, requests, bodies and waits are bounded, and a program that
asks too much is answered slowly. Nothing that it sends ends the node.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import h11
import structlog
import trio

from state.primitives.errors import DecodeError
from state.primitives.token_bucket import TokenBucket
from tasks.executor.containers.progress_report import REPORT_BYTES_MAX
from tasks.executor.containers.settings import SOCKET_NAME

__all__ = ["Answer", "Handler", "JobSocket"]

_log = structlog.get_logger("containers")

CONNECTIONS_MAX: Final = 8
REQUESTS_PER_S: Final = 20
REQUESTS_BURST: Final = 60
CONNECTIONS_PER_S: Final = 50
HEAD_BYTES_MAX: Final = 4_096
IDLE_S: Final = 60.0
"""A connection without a whole request for so long is closed, ..."""
SEND_S: Final = 5.0
"""... and one whose program reads no answer for so long."""
REFUSED_S: Final = 0.5
"""How long the answer to a request beyond the rate takes."""
DRAIN_S: Final = 0.5
DRAIN_CHUNKS_MAX: Final = 64
_CHUNK_BYTES: Final = 4_096


class Answer(NamedTuple):
    """Status of HTTP, and the document of the body."""

    status: int = 200
    document: Any = {}  # noqa: RUF012  never changed


Handler = Callable[[bytes], Answer]
"""Takes the body of a request. A DecodeError is answered with its text and status 400."""


class JobSocket:
    """The socket of one container in ``folder``; ``routes`` has a handler for each method and path."""

    def __init__(self, folder: Path, routes: Mapping[tuple[str, str], Handler]) -> None:
        self._folder, self._routes = folder, routes
        now_ms = int(trio.current_time() * 1000)
        self._requests = TokenBucket(REQUESTS_PER_S, REQUESTS_BURST, now_ms)
        self._accepts = TokenBucket(CONNECTIONS_PER_S, CONNECTIONS_PER_S, now_ms)
        self._open = 0
        self._listening: trio.socket.SocketType | None = None
        self.refused = 0
        """Requests and connections beyond a limit, and malformed ones."""

    def open(self) -> None:
        """Make folder and socket: a container that starts then can connect at once. Raises OSError.

        A socket of an earlier life of the node is replaced.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o755)
        self._listening = self._listen()

    def close(self) -> None:
        """Close the socket."""
        if self._listening is not None:
            self._listening.close()

    async def run(self) -> None:
        """Serve until cancelled, after ``open``."""
        listening = self._listening
        assert listening is not None, "not open"
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self._accepts.reserve(_now_ms()))
                    try:
                        connection, _ = await listening.accept()
                    except OSError as error:  # too many open files: the others of this node come first
                        _log.warning("a connection of a container was not accepted", error=str(error))
                        await trio.sleep(1)
                        continue
                    if self._open >= CONNECTIONS_MAX:
                        self.refused += 1
                        connection.close()
                        continue
                    self._open += 1
                    nursery.start_soon(self._serve, trio.SocketStream(connection))
        finally:
            listening.close()

    def _listen(self) -> trio.socket.SocketType:
        """Bind the socket through the descriptor of its folder: a socket's path has 107 bytes at most."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            place = f"/proc/self/fd/{folder}/{SOCKET_NAME}"
            with suppress(FileNotFoundError):
                os.unlink(place)
            made.bind(place)
            os.chmod(place, 0o666)  # noqa: S103  any user of the container; nobody else gets into the folder
            made.listen(CONNECTIONS_MAX)
        except OSError:
            made.close()
            raise
        finally:
            os.close(folder)
        return trio.socket.from_stdlib_socket(made)

    async def _serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            while await self._serve_one(http, stream):
                http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.LocalProtocolError):
            pass
        except h11.RemoteProtocolError as error:
            self.refused += 1
            with suppress(trio.BrokenResourceError, trio.TooSlowError, h11.LocalProtocolError):
                if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await _send(http, stream, Answer(error.error_status_hint, {"error": str(error)[:200]}))
                    await _drain(stream)
        finally:
            self._open -= 1
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await stream.aclose()

    async def _serve_one(self, http: h11.Connection, stream: trio.SocketStream) -> bool:
        """Answer one request; return whether the connection can go on. Raises what a bad peer causes."""
        request: h11.Request | None = None
        body = bytearray()
        with trio.fail_after(IDLE_S):
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    if http.they_are_waiting_for_100_continue:
                        await stream.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])))
                    http.receive_data(await stream.receive_some(_CHUNK_BYTES))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > REPORT_BYTES_MAX:
                        self.refused += 1
                        answer = Answer(413, {"error": f"a body has {REPORT_BYTES_MAX} bytes at most"})
                        await _send(http, stream, answer)
                        await _drain(stream)
                        return False
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:  # the connection has ended
                    return False
        assert request is not None
        if self._requests.take(_now_ms()):
            answer = self._answer(request, bytes(body))
        else:
            await trio.sleep(REFUSED_S)
            answer = Answer(429, {"error": f"{REQUESTS_PER_S} requests a second at most"})
        self.refused += answer.status >= 400
        await _send(http, stream, answer)
        if answer.status >= 400:
            await _drain(stream)
        return http.our_state is h11.DONE and http.their_state is h11.DONE

    def _answer(self, request: h11.Request, body: bytes) -> Answer:
        method, path = request.method.decode("latin-1"), request.target.decode("latin-1").partition("?")[0]
        handler = self._routes.get((method, path))
        if handler is None:
            known = ", ".join(" ".join(route) for route in self._routes)
            status = 405 if any(path == one for _, one in self._routes) else 404
            return Answer(status, {"error": f"known: {known}"})
        try:
            return handler(body)
        except DecodeError as error:
            return Answer(400, {"error": str(error)})


async def _send(http: h11.Connection, stream: trio.SocketStream, answer: Answer) -> None:
    body = json.dumps(answer.document).encode() + b"\n"
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    if answer.status >= 400:
        headers.append(("connection", "close"))
    data = http.send(h11.Response(status_code=answer.status, headers=headers))
    data += http.send(h11.Data(data=body)) + http.send(h11.EndOfMessage())
    with trio.fail_after(SEND_S):
        await stream.send_all(data)


async def _drain(stream: trio.SocketStream) -> None:
    """Read what is still sent, for a moment: closing before would take the answer back."""
    with trio.move_on_after(DRAIN_S):
        await stream.send_eof()
        for _ in range(DRAIN_CHUNKS_MAX):
            if not await stream.receive_some(_CHUNK_BYTES):
                return


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
