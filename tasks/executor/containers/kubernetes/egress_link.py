"""The egress of a container in a pod: its connections come out at the proxy of the node (market.md R144).

The helper listens on the pod's loopback (``helper_egress``). Each connection is joined with a new one to a Unix
socket, at which the node serves the proxy that it serves for containers of an engine too. So names, addresses,
limits and counters are the same code. What comes over the link is a stranger's word: it is bounded and decoded
strictly, and who takes the helper over gains what the container could ask the proxy for anyway.

Each side sends at most ``WINDOW_BYTES`` of a connection ahead of what the other one has passed on. So a connection
whose reader is slow holds up no other one, and the node keeps so many bytes of it at most.
"""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

import trio

from state.primitives.errors import DecodeError
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import Command
from tasks.executor.containers.kubernetes.link import Frame, PodLink, connected
from tasks.executor.containers.kubernetes.scripts import EGRESS_COMMAND

__all__ = ["EgressLink", "check_egress_head", "listen_for_link"]

OPEN, DATA, END, CLOSE, CREDIT, PING = range(1, 7)
CONNECTIONS_MAX: Final = 72
"""Connections at once: somewhat more than the proxy takes, so that it is the one that refuses."""
BACKLOG: Final = 128
"""More than there can be connections: a full one would refuse some."""
CHUNK_BYTES: Final = 32 << 10
WINDOW_BYTES: Final = 256 << 10
CREDIT_BYTES: Final = WINDOW_BYTES // 4
FRAMES_PER_S: Final = 4_000
FRAMES_BURST: Final = 8_000
CONNECT_S: Final = 10.0
"""How long the proxy of a node that has just started may take to listen."""
CONNECT_AGAIN_S: Final = 0.05
LINGER_S: Final = 60.0
"""How long the container may send nothing after the proxy has ended its side."""
EGRESS_SOCKET: Final = "egress.sock"
_CREDIT: Final = Struct(">I")
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


def check_egress_head(connection: int, kind: int, size: int) -> None:
    """Check the head of a frame of the helper. Raises DecodeError."""
    sizes = {OPEN: (0, 0), DATA: (1, CHUNK_BYTES), END: (0, 0), CLOSE: (0, 0), CREDIT: (4, 4), PING: (0, 0)}.get(
        kind
    )
    if sizes is None or not sizes[0] <= size <= sizes[1] or (connection == 0) != (kind == PING):
        raise DecodeError(f"not a frame of a helper's egress: kind {kind}, {size} bytes")


def listen_for_link(folder: Path) -> socket.socket:
    """Return a socket in a folder at which the proxy accepts what comes over the link. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / EGRESS_SOCKET).unlink(missing_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            made.bind(f"/proc/self/fd/{handle}/{EGRESS_SOCKET}")
            made.listen(BACKLOG)
        except BaseException:
            made.close()
            raise
        return made
    finally:
        os.close(handle)


class _Joined:
    """A connection of the container: what it has sent and nobody took yet, and how much it may be sent."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.may_come, self.may_go = WINDOW_BYTES, WINDOW_BYTES
        self.has_ended = self.is_answered = False
        """Whether the container, and the proxy, send no more."""
        self.moved = trio.Event()
        """Set when one of these has changed."""
        self.scope = trio.CancelScope()

    def note(self) -> None:
        """Wake who waits for a change."""
        self.moved.set()
        self.moved = trio.Event()


class EgressLink(PodLink):
    """The link for the egress of one pod. ``folder`` has the socket of the proxy."""

    command: ClassVar[tuple[str, ...]] = EGRESS_COMMAND
    pace: ClassVar[tuple[int, int]] = (FRAMES_PER_S, FRAMES_BURST)
    check = staticmethod(check_egress_head)

    def __init__(self, api: ClusterApi, folder: Path, task: bytes) -> None:
        super().__init__(api, folder, task)
        self._joined: dict[int, _Joined] = {}
        self._stray = 0
        """Bytes that may still come of connections that have ended here."""

    async def _drop_all(self) -> None:
        """Forget all connections: their tasks were cancelled, and closed them."""
        self._joined.clear()
        self._stray = 0

    async def _take(self, command: Command, frame: Frame, nursery: trio.Nursery) -> None:
        number = frame.connection
        if frame.kind == PING:
            return
        if frame.kind == OPEN:
            if number <= self._last:
                raise DecodeError(f"a helper opens connection {number} after {self._last}")
            self._last = number
            if len(self._joined) >= CONNECTIONS_MAX:
                self._stray += WINDOW_BYTES
                await self._say(command, Frame(number, CLOSE))
                return
            self._joined[number] = _Joined()
            nursery.start_soon(self._join, command, number, self._joined[number])
            return
        joined = self._joined.get(number)
        if joined is None:
            self._stray -= len(frame.data) if frame.kind == DATA else 0
            if self._stray < 0 or number > self._last:
                raise DecodeError(f"bytes of connection {number}, which is not open")
            return
        if frame.kind == DATA:
            joined.may_come -= len(frame.data)
            if joined.may_come < 0 or joined.has_ended:
                raise DecodeError(f"more bytes of connection {number} than may come")
            joined.waiting += frame.data
        elif frame.kind == CREDIT:
            joined.may_go += _CREDIT.unpack(frame.data)[0]
            if joined.may_go > WINDOW_BYTES:
                raise DecodeError(f"more room in connection {number} than it has")
        elif frame.kind == END:
            joined.has_ended = True
        else:
            joined.scope.cancel()
        joined.note()

    async def _join(self, command: Command, number: int, joined: _Joined) -> None:
        """Carry a connection to the proxy and back until both sides have ended."""
        with joined.scope, suppress(*_GONE):
            stream = await self._proxy()
            try:
                async with trio.open_nursery() as ways:
                    ways.start_soon(self._deliver, command, number, joined, stream)
                    await self._fetch(command, number, joined, stream)
                    joined.is_answered = True
                    joined.note()
            finally:
                await trio.aclose_forcefully(stream)
        await self._say(command, Frame(number, CLOSE))  # it counts until then: a helper that reads nothing has few
        self._joined.pop(number, None)
        self._stray += max(0, joined.may_come)

    async def _proxy(self) -> trio.SocketStream:
        """Connect to the proxy, which may be about to listen. Raises OSError."""
        deadline = trio.current_time() + CONNECT_S
        while True:
            try:
                return await connected(self._folder, EGRESS_SOCKET)
            except OSError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(CONNECT_AGAIN_S)

    async def _deliver(self, command: Command, number: int, joined: _Joined, stream: trio.SocketStream) -> None:
        """Pass on what the container sends, and tell the helper how much."""
        passed_on = 0
        with suppress(*_GONE):  # what the proxy answers comes still
            while True:
                while not joined.waiting and not joined.has_ended:
                    with trio.move_on_after(LINGER_S if joined.is_answered else math.inf) as waiting:
                        await joined.moved.wait()
                    if waiting.cancelled_caught:
                        return
                if not joined.waiting:
                    await stream.send_eof()
                    return
                data, joined.waiting = joined.waiting, bytearray()
                await stream.send_all(data)
                joined.may_come += len(data)
                passed_on += len(data)
                if passed_on >= CREDIT_BYTES:
                    await self._say(command, Frame(number, CREDIT, _CREDIT.pack(passed_on)))
                    passed_on = 0

    async def _fetch(self, command: Command, number: int, joined: _Joined, stream: trio.SocketStream) -> None:
        """Carry what the proxy answers, as far as the helper has room."""
        with suppress(*_GONE):
            while True:
                while joined.may_go <= 0:
                    await joined.moved.wait()
                data = await stream.receive_some(min(CHUNK_BYTES, joined.may_go))
                if not data:
                    break
                joined.may_go -= len(data)
                if not await self._say(command, Frame(number, DATA, bytes(data))):
                    return
        await self._say(command, Frame(number, END))
