"""The link to the helper of a pod: connections of its container come out at the node's own Unix socket.

The helper listens where the container finds its socket (``helper_socket``). Each connection is joined with a new
one to the socket that the node serves for every back end. So all limits of that socket hold here too. What comes
over the link is a stranger's word: it is bounded and decoded strictly. A link that breaks is made again, and the
container's next connection waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final, NamedTuple, TypeVar

import structlog
import trio

from state.primitives.errors import DecodeError
from state.primitives.token_bucket import TokenBucket
from tasks.executor.containers.backend import Usage
from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import Command, run_command
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.kubernetes.scripts import LINK_COMMAND
from tasks.executor.containers.settings import SOCKET_NAME

__all__ = [
    "Frame",
    "FrameReader",
    "PodLink",
    "check_head",
    "connected",
    "decode_use",
    "encode_frame",
    "while_linked",
]

_log = structlog.get_logger("containers")

OPEN, DATA, END, CLOSE, USAGE, PING = range(1, 7)
CONNECTIONS_MAX: Final = 8
CHUNK_BYTES: Final = 4_096
FRAMES_PER_S: Final = 200
FRAMES_BURST: Final = 400
BEAT_S: Final = 15.0
AGAIN_S: Final = 2.0
SEND_S: Final = 5.0
LINGER_S: Final = 1.0
"""How long the container may still send after the node has ended a connection."""
FRESH_S: Final = 20.0
"""What the helper measured longer ago is not told."""
_HEAD: Final = Struct(">IBH")
_USE: Final = Struct(">QQ")
_NS_MAX: Final = 1 << 63
_BYTES_MAX: Final = 1 << 50
T = TypeVar("T")


class Frame(NamedTuple):
    """What one side says of a connection: ``kind`` is OPEN, DATA, END, CLOSE; 0 has USAGE and PING."""

    connection: int
    kind: int
    data: bytes = b""


def encode_frame(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    return _HEAD.pack(frame.connection, frame.kind, len(frame.data)) + frame.data


class FrameReader:
    """Cuts what a helper sends into frames whose heads pass ``check``, which raises DecodeError."""

    def __init__(self, check: Callable[[int, int, int], None] | None = None) -> None:
        self._check, self._buffer = check or check_head, bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes; return the frames that are whole now. Raises DecodeError."""
        self._buffer += data
        found, at = list[Frame](), 0
        while len(self._buffer) - at >= _HEAD.size:
            connection, kind, size = _HEAD.unpack_from(self._buffer, at)
            self._check(connection, kind, size)
            if len(self._buffer) - at < _HEAD.size + size:
                break
            at += _HEAD.size
            found.append(Frame(connection, kind, bytes(self._buffer[at : at + size])))
            at += size
        del self._buffer[:at]
        return found


def check_head(connection: int, kind: int, size: int) -> None:
    """Check the head of a frame of the socket's helper. Raises DecodeError."""
    sizes = {OPEN: (0, 0), DATA: (1, CHUNK_BYTES), END: (0, 0), CLOSE: (0, 0), USAGE: (0, _USE.size)}.get(kind)
    if sizes is None or not sizes[0] <= size <= sizes[1] or (connection == 0) != (kind == USAGE):
        raise DecodeError(f"not a frame of a helper: kind {kind}, {size} bytes")


def decode_use(data: bytes) -> Usage | None:
    """Return what a helper measured, None where it tells nothing. Raises DecodeError."""
    if not data:
        return None
    if len(data) != _USE.size:
        raise DecodeError("not the use of a container")
    ns, held = _USE.unpack(data)
    if ns >= _NS_MAX or held >= _BYTES_MAX:
        raise DecodeError("a use that no container has")
    return Usage(ns / 10**9, held)


class PodLink:
    """The link to one pod. ``folder`` has the node's socket for the container."""

    command: ClassVar[tuple[str, ...]] = LINK_COMMAND
    pace: ClassVar[tuple[int, int]] = (FRAMES_PER_S, FRAMES_BURST)
    check = staticmethod(check_head)

    def __init__(self, api: ClusterApi, folder: Path, task: bytes) -> None:
        self._api, self._folder, self._task = api, folder, task
        self._pod = ""
        self._is_there = trio.Event()
        self._streams: dict[int, trio.SocketStream] = {}
        self._last = 0
        self._used: tuple[float, Usage] | None = None
        self._logged: set[type[Exception]] = set()
        self.told = ""
        """Why it was cut last."""
        self.made = 0
        """How often the link was made."""

    def attach(self, pod: str) -> None:
        """Say which pod it is, by its path in the API: its helper runs."""
        self._pod = pod
        self._is_there.set()

    def usage(self) -> Usage | None:
        """Return what the helper measured last, None where that is too old."""
        if self._used is None or trio.current_time() > self._used[0] + FRESH_S:
            return None
        return self._used[1]

    async def run(self) -> None:
        """Carry connections until cancelled."""
        await self._is_there.wait()
        while True:
            try:
                await self._carry_all()
            except (EngineUnavailable, EngineError, DecodeError) as error:
                self.told = str(error)
                if type(error) not in self._logged:  # each kind once: a container can cut it, and choose the text
                    self._logged.add(type(error))
                    _log.warning("the socket of a container is out of reach", task=self._task, error=self.told)
            await trio.sleep(AGAIN_S)

    async def _carry_all(self) -> None:
        """Carry connections until the link breaks. Raises EngineUnavailable, EngineError, DecodeError."""
        failure: Exception | None = None
        async with run_command(self._api, self._pod, HELPER, self.command, stdin=True) as command:
            self._last, self.made = 0, self.made + 1
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._beat, command, nursery.cancel_scope)
                    try:
                        await self._read(command, nursery)
                    except (EngineUnavailable, EngineError, DecodeError) as error:
                        failure = error
                    nursery.cancel_scope.cancel()
            finally:
                await self._drop_all()
        if failure is not None:
            raise failure

    async def _drop_all(self) -> None:
        """Close all connections: the link that carries them is gone."""
        for stream in self._streams.values():
            await trio.aclose_forcefully(stream)
        self._streams.clear()

    async def _beat(self, command: Command, scope: trio.CancelScope) -> None:
        while True:
            if not await self._say(command, Frame(0, PING)):
                scope.cancel()
                return
            await trio.sleep(BEAT_S)

    async def _say(self, command: Command, frame: Frame) -> bool:
        """Send a frame; return whether the link stands."""
        try:
            await command.write(encode_frame(frame))
        except EngineUnavailable:
            return False
        return True

    async def _read(self, command: Command, nursery: trio.Nursery) -> None:
        reader, pace = FrameReader(self.check), TokenBucket(*self.pace, _now_ms())
        async with aclosing(command.output()) as output:  # type: ignore[type-var]
            async for data in output:
                for frame in reader.feed(data):
                    await trio.sleep(pace.reserve(_now_ms()))
                    await self._take(command, frame, nursery)
        raise EngineUnavailable(f"the helper has ended (code {command.code}) {bytes(command.told[-200:])!r}")

    async def _take(self, command: Command, frame: Frame, nursery: trio.Nursery) -> None:
        number = frame.connection
        if frame.kind == USAGE:
            used = decode_use(frame.data)
            self._used = None if used is None else (trio.current_time(), used)
            return
        if frame.kind == OPEN:
            if number <= self._last:
                raise DecodeError(f"a helper opens connection {number} after {self._last}")
            self._last = number
            await self._open(command, number, nursery)
            return
        stream = self._streams.get(number)
        if stream is None:
            return  # ended here meanwhile
        if frame.kind == CLOSE:
            await self._close(number)
            return
        with trio.move_on_after(SEND_S) as waiting:
            try:
                if frame.kind == END:
                    await stream.send_eof()
                else:
                    await stream.send_all(frame.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # what the node answered comes still
        if waiting.cancelled_caught:
            await self._close(number)
            await self._say(command, Frame(number, CLOSE))

    async def _open(self, command: Command, number: int, nursery: trio.Nursery) -> None:
        try:
            if len(self._streams) >= CONNECTIONS_MAX:
                raise OSError("too many connections")
            self._streams[number] = await connected(self._folder, SOCKET_NAME)
        except OSError:
            await self._say(command, Frame(number, CLOSE))
            return
        nursery.start_soon(self._answer, command, number, self._streams[number])

    async def _answer(self, command: Command, number: int, stream: trio.SocketStream) -> None:
        """Carry what the node answers, to the end of a connection."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(CHUNK_BYTES):
                if not await self._say(command, Frame(number, DATA, bytes(data))):
                    return
            await self._say(command, Frame(number, END))
            await trio.sleep(LINGER_S)
        if number in self._streams:
            await self._close(number)
            await self._say(command, Frame(number, CLOSE))

    async def _close(self, number: int) -> None:
        await trio.aclose_forcefully(self._streams.pop(number))


async def connected(folder: Path, name: str) -> trio.SocketStream:
    """Connect to a socket of the node through the descriptor of its folder: a path has 107 bytes at most.

    Raises OSError.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        try:
            await made.connect(f"/proc/self/fd/{handle}/{name}")
        except BaseException:
            made.close()
            raise
        return trio.SocketStream(made)
    finally:
        os.close(handle)


async def while_linked(links: Iterable[PodLink], work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns, with the links beside it. Raises what ``work`` raises."""
    found: list[T] = []
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.run)
        try:
            found.append(await work())
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found[0]


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
