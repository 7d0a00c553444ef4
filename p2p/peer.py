"""One live connection: three tasks around a multiplexer, and the requests that travel over it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from p2p.errors import FrameInvalid, PeerUnreachable, RequestFailed, RequestRefused, RequestTimeout
from p2p.frame import Class
from p2p.handshake import Session
from p2p.identity import Role
from p2p.limits import NetworkLimits
from p2p.mux import Message, Mux
from state.primitives.codec import decode, encode
from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["KIND_GOSSIP", "Peer", "PeerInfo", "RequestHandler", "Served"]

KIND_REQUEST: Final = 0xE0
KIND_RESPONSE: Final = 0xE1
KIND_REFUSAL: Final = 0xE2
KIND_GOSSIP: Final = 0xE8
RESERVED_KIND_MIN: Final = 0xE0
"""Kinds from here on are the network's own; the node's messages use those below."""

_READ_BYTES: Final = 256 * 1024
_ID_BYTES: Final = 4
_METHOD_CHARACTERS_MAX: Final = 32
_REFUSAL_BYTES_MAX: Final = 128
_PING_TOKEN_BYTES: Final = 8

RequestHandler = Callable[[bytes, bytes], Awaitable[bytes]]


class _Gone(Exception):
    """The stream ended or broke."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What an operator sees of a connection."""

    address: bytes
    roles: Role
    is_outbound: bool
    remote: str
    rtt_ms: float | None
    score: float
    age_s: float
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Served:
    """A method that this node answers, and the class its answers travel in."""

    handler: RequestHandler
    cls: Class


@dataclass(slots=True)
class _Asked:
    limit_bytes: int
    done: trio.Event = field(default_factory=trio.Event)
    answer: bytes | RequestFailed | None = None


class Peer:
    """A connection after its handshake. ``run`` lives as long as the connection does."""

    def __init__(
        self, session: Session, stream: trio.abc.Stream, *, remote: str, is_outbound: bool, limits: NetworkLimits
    ) -> None:
        self.session = session
        self.address = session.address
        self.remote = remote
        self.is_outbound = is_outbound
        self.since = trio.current_time()
        self.mux = Mux(session)
        self.rtt_s: float | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.closed_for: str | None = None
        """Why it ended: a stable code, once it has."""
        self._stream = stream
        self._limits = limits
        self._wake = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._scope = trio.CancelScope()
        self._heard_at = self.since
        self._asked: dict[int, _Asked] = {}
        self._next_id = 0
        self._serving = 0

    def __repr__(self) -> str:
        return f"Peer(0x{self.address.hex()}, {self.remote})"

    # -- sending ---------------------------------------------------------------------------------------------

    def queue(self, cls: Class, kind: int, body: bytes) -> bool:
        """Queue a message; False when it was refused, or when the peer was too slow and is being dropped."""
        if self.closed_for is not None:
            return False
        try:
            queued = self.mux.queue(cls, kind, body)
        except ProtocolError as error:
            self.close(error.code)
            return False
        self._wake.set()
        return queued

    async def queue_when_room(self, cls: Class, kind: int, body: bytes) -> None:
        """Queue a message as soon as its class has room. Raises PeerUnreachable when the connection ends first."""
        while not self.queue(cls, kind, body):
            if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            self._is_room_wanted = True
            await self._room.wait()

    def close(self, reason: str) -> None:
        """End the connection; ``run`` returns soon after."""
        if self.closed_for is None:
            self.closed_for = reason
            self._room.set()
            self._scope.cancel()

    async def request(self, method: str, body: bytes, *, timeout_s: float, limit_bytes: int) -> bytes:
        """Return the peer's answer of at most ``limit_bytes``. Raises RequestFailed, PeerUnreachable."""
        if len(self._asked) >= self._limits.requests_asked_per_peer_max:
            raise RequestRefused("too many requests to this peer are under way")
        self._next_id = (self._next_id + 1) % 2 ** (8 * _ID_BYTES)
        number, asked = self._next_id, _Asked(limit_bytes)
        self._asked[number] = asked
        try:
            if not self.queue(Class.REQUEST, KIND_REQUEST, encode([number, method, limit_bytes, body])):
                raise PeerUnreachable("the connection is full or gone")
            with trio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            del self._asked[number]
        match asked.answer:
            case bytes():
                return asked.answer
            case RequestFailed():
                raise asked.answer
            case _ if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            case _:
                raise RequestTimeout(f"{method}: no answer within {timeout_s} s")

    # -- life ------------------------------------------------------------------------------------------------

    async def run(
        self,
        dispatch: Callable[[Peer, Message], Awaitable[None]],
        served: Callable[[str], Served | None],
    ) -> None:
        """Carry messages until either side ends it; the reason is in ``closed_for`` then.

        ``dispatch`` takes every message but requests and answers, and is awaited before the next one is read:
        a peer that sends faster than it is handled is slowed down by its own connection. A ProtocolError that it
        raises ends the connection.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._ping)
                    nursery.start_soon(self._read, nursery, dispatch, served)
        finally:
            self.closed_for = self.closed_for or "shutdown"
            self._room.set()
            for asked in self._asked.values():
                asked.done.set()
            await trio.aclose_forcefully(self._stream)

    async def _write(self) -> None:
        try:
            while True:
                while (record := self.mux.next_record()) is not None:
                    with trio.fail_after(self._limits.write_timeout_s):
                        await self._stream.send_all(record)
                    self.bytes_out += len(record)
                    if self._is_room_wanted:
                        self._is_room_wanted = False
                        self._room.set()
                        self._room = trio.Event()
                self._wake = trio.Event()
                await self._wake.wait()
        except trio.TooSlowError:
            self.close("peer_too_slow")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("connection_lost")
        except ProtocolError as error:
            self.close(error.code)

    async def _ping(self) -> None:
        rekeyed_at = self.since
        while True:
            now = trio.current_time()
            if now - self._heard_at > self._limits.idle_timeout_s:
                self.close("peer_silent")
                return
            if now - rekeyed_at > self._limits.rekey_interval_s:
                self.mux.rekey()
                rekeyed_at = now
            self.mux.ping(int(now * 1_000_000).to_bytes(_PING_TOKEN_BYTES, "big"))
            self._wake.set()
            await trio.sleep(self._limits.ping_interval_s)

    async def _read(
        self,
        nursery: trio.Nursery,
        dispatch: Callable[[Peer, Message], Awaitable[None]],
        served: Callable[[str], Served | None],
    ) -> None:
        data = self.session.rest
        free_at = self.since
        try:
            while True:
                started = time.thread_time()
                messages = self.mux.receive(data)
                if messages:
                    self._heard_at = trio.current_time()
                for message in messages:
                    kind = message.kind
                    if kind == KIND_GOSSIP:
                        await dispatch(self, message)
                    elif kind < RESERVED_KIND_MIN:
                        aside = time.thread_time()
                        await dispatch(self, message)
                        started += time.thread_time() - aside  # a handler may wait while others work
                    elif kind == KIND_RESPONSE:
                        self._on_response(message.body)
                    elif kind == KIND_REQUEST:
                        self._on_request(nursery, message.body, served)
                    elif kind == KIND_REFUSAL:
                        self._on_refusal(message.body)
                    elif Mux.is_pong(message):
                        self._on_pong(message.body)
                    if message.cls is Class.BULK:
                        self.mux.release_bulk(len(message.body))
                if self.mux.has_output:  # pongs and credit
                    self._wake.set()
                # What is cheap to send and costly to take must not starve the other peers: who takes more than
                # its share of the loop waits, and its own connection slows it down.
                now = trio.current_time()
                took_s = time.thread_time() - started
                free_at = max(free_at, now - took_s) + took_s * 100 / self._limits.loop_share_percent
                ahead_s = free_at - now - self._limits.loop_debt_s
                if ahead_s > 0:  # short pauses: what the peer sends in earnest must not wait long either
                    await trio.sleep(ahead_s)
                data = await self._receive()
                self.bytes_in += len(data)
        except _Gone:
            self.close("connection_lost")
        except ProtocolError as error:
            self.close(error.code)

    async def _receive(self) -> bytes:
        try:
            data = await self._stream.receive_some(_READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise _Gone from None
        if not data:
            raise _Gone
        return bytes(data)

    def _on_pong(self, token: bytes) -> None:
        rtt_s = trio.current_time() - int.from_bytes(token, "big") / 1_000_000
        if 0 <= rtt_s < math.inf:
            self.rtt_s = rtt_s if self.rtt_s is None else 0.75 * self.rtt_s + 0.25 * rtt_s

    # -- requests --------------------------------------------------------------------------------------------

    def _on_request(self, nursery: trio.Nursery, data: bytes, served: Callable[[str], Served | None]) -> None:
        match decode(data, limit_bytes=self._limits.request_bytes_max + 128):
            case [int(number), str(method), int(limit_bytes), bytes(body)] if (
                0 <= number < 2 ** (8 * _ID_BYTES) and len(method) <= _METHOD_CHARACTERS_MAX and limit_bytes >= 0
            ):
                pass
            case _:
                raise FrameInvalid("not a request")
        found = served(method)
        if found is None:
            self._refuse(number, "unknown_method")
        elif self._serving >= self._limits.requests_served_per_peer_max:
            self._refuse(number, "busy")
        else:
            self._serving += 1
            nursery.start_soon(self._serve, number, found, limit_bytes, body)

    async def _serve(self, number: int, served: Served, limit_bytes: int, body: bytes) -> None:
        try:
            with trio.fail_after(self._limits.serve_timeout_s):
                answer = await served.handler(self.address, body)
                message_bytes_max = self.mux.limits.classes[served.cls].message_bytes_max
                if len(answer) > limit_bytes or len(answer) + _ID_BYTES > message_bytes_max:
                    self._refuse(number, "answer_too_large")
                else:
                    head = number.to_bytes(_ID_BYTES, "big")
                    await self.queue_when_room(served.cls, KIND_RESPONSE, head + answer)
        except DekubeError as error:
            self._refuse(number, error.code)
        except trio.TooSlowError:
            self._refuse(number, "busy")
        finally:
            self._serving -= 1

    def _refuse(self, number: int, code: str) -> None:
        self.queue(Class.REQUEST, KIND_REFUSAL, number.to_bytes(_ID_BYTES, "big") + code.encode())

    def _on_response(self, body: bytes) -> None:
        asked = self._asked.get(int.from_bytes(body[:_ID_BYTES], "big"))
        if len(body) < _ID_BYTES:
            raise FrameInvalid("an answer without its number")
        if asked is None or asked.done.is_set():
            return  # came after its time
        answer = body[_ID_BYTES:]
        if len(answer) > asked.limit_bytes:
            raise FrameInvalid(f"an answer of {len(answer)} bytes where {asked.limit_bytes} were asked for")
        asked.answer = answer
        asked.done.set()

    def _on_refusal(self, body: bytes) -> None:
        if not _ID_BYTES <= len(body) <= _REFUSAL_BYTES_MAX:
            raise FrameInvalid("malformed refusal")
        asked = self._asked.get(int.from_bytes(body[:_ID_BYTES], "big"))
        if asked is not None and not asked.done.is_set():
            asked.answer = RequestRefused(body[_ID_BYTES:].decode("ascii", "replace"))
            asked.done.set()
