"""WebSockets whose frames are bounded: for what they carry, in a turn of the loop, and unsent (rpc.md 2.2).

A frame costs some ten microseconds to read, even an empty one, and one read of the socket may bring forty thousand
of them. So what came is read in slices between which others have their turn; frames that are no message of their
own are charged to the address that sent them; and a message of many fragments ends its connection.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame

from rpc.gateway.fast_path import BODY_DEADLINE_S, PIECE_BYTES_MIN, PIECES_FREE
from rpc.gateway.memory_quota import HeldBytes, MemoryQuota
from rpc.gateway.unsent_bytes import reset

__all__ = ["BoundedWebSocket"]

SLICE_BYTES: Final = 1_024
FRAMES_OF_TURN: Final = 64
"""Small frames of one connection that are read before other connections are served."""
FRAMES_OF_UNIT: Final = 2
"""Small frames that cost as much as reading one record."""
PONGS_UNSENT_MAX: Final = 64
"""Unsent answers to pings."""
CHARGE_WAIT_S_MAX: Final = 1.0
CLOSE_GRACE_S: Final = 5.0
"""Time in which a disconnected client may still read the reason."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol with bounds. The subclass implements ``charge`` and calls ``hold_for``."""

    _rest = b""
    """Received bytes that are not parsed yet."""
    _next_turn: asyncio.Handle | None = None
    _small = 0
    """Control frames and fragments that are not charged yet."""
    _fragments = 0
    _fragment_bytes = 0
    _queued_bytes = 0
    """Bytes of messages that the application has not finished."""
    _pongs_unsent = 0
    _deadline: asyncio.TimerHandle | None = None
    """When an incomplete large message ends its connection."""
    _was_unread = False
    """Whether reading was paused since the last ping."""
    _held: HeldBytes
    _unsent: HeldBytes
    """For what the client does not read; the subclass tells it (``rpc.gateway.unsent_bytes.UnsentBytes``)."""

    def charge(self, units: int) -> float:
        """Take ``units`` from the budget of who sends and return 0, or the seconds until that is possible."""
        raise NotImplementedError

    def hold_for(self, memory_quota: MemoryQuota, caller: str) -> None:
        """Count what is held from now on for ``caller``."""
        self._held, self._unsent = HeldBytes(memory_quota, caller), HeldBytes(memory_quota, caller)

    # In

    def data_received(self, data: bytes) -> None:
        """Read what came, or as much of it as fits into this turn."""
        self._rest = self._rest + data if self._rest else data
        if self._next_turn is None:
            self._read()

    def _read(self) -> None:
        self._next_turn = None
        rest, at, turn, wait_s = self._rest, 0, 0, 0.0
        while at < len(rest) and turn < FRAMES_OF_TURN and not self.read_paused and not wait_s:
            before = self._small
            try:
                super().data_received(rest[at : at + SLICE_BYTES])
            except UnicodeError:  # in the request: nothing but ASCII belongs there
                reset(self.transport)
            at += SLICE_BYTES
            turn += self._small - before
            if self.transport.is_closing():
                self._rest = b""
                return
            if self._small >= FRAMES_OF_UNIT:
                wait_s = self._pay()
        self._rest = rest[at:]
        if not self._note_held():
            self._fail(CloseCode.TRY_AGAIN_LATER, "too many bytes under way")
            return
        if wait_s or (self._rest and not self.read_paused):
            self._pause()
            self._next_turn = self.loop.call_later(min(wait_s, CHARGE_WAIT_S_MAX), self._read_on)
        elif self._rest:
            self._pause()  # ``receive`` goes on

    def _pause(self) -> None:
        self._was_unread = True
        self.transport.pause_reading()

    def _read_on(self) -> None:
        self._next_turn = None
        if self._small >= FRAMES_OF_UNIT and (wait_s := self._pay()):
            self._next_turn = self.loop.call_later(min(wait_s, CHARGE_WAIT_S_MAX), self._read_on)
            return
        self._read()
        if not self._rest and self._next_turn is None and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _pay(self) -> float:
        """Pay for small frames, and return 0 or the seconds to wait before a next try."""
        wait_s = self.charge(self._small // FRAMES_OF_UNIT)
        if not wait_s:
            self._small %= FRAMES_OF_UNIT
        return wait_s

    def _note_held(self) -> bool:
        unfinished = len(self.conn.reader.buffer) + self._fragment_bytes
        is_noted = self._held.resize(len(self._rest) + unfinished + self._queued_bytes)
        if unfinished and self._held.counted and not self.read_paused:
            if self._deadline is None:
                self._deadline = self.loop.call_later(BODY_DEADLINE_S, reset, self.transport)
        else:
            self._end_deadline()
        return is_noted

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def receive(self) -> Any:
        """Return the next event; the message before it is done with."""
        if self._queued_bytes and self.queue.empty():
            self._queued_bytes = 0
            if self._held.counted:
                self._note_held()
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._rest:
                if not self.transport.is_closing():
                    self.transport.resume_reading()
            elif self._next_turn is None:
                self._next_turn = self.loop.call_soon(self._read_on)
        return message

    def handle_text(self, event: Frame) -> None:
        """Begin a message of text."""
        self._begin(event)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a message of bytes."""
        self._begin(event)
        super().handle_bytes(event)

    def _begin(self, event: Frame) -> None:
        self._fragments, self._fragment_bytes = 0, len(event.data)
        if not event.fin:
            self._small += 1

    def handle_cont(self, event: Frame) -> None:
        """Go on with a message."""
        self._small += 1
        self._fragments += 1
        self._fragment_bytes += len(event.data)
        if self._fragments > PIECES_FREE + self._fragment_bytes // PIECE_BYTES_MIN:
            self._fail(CloseCode.POLICY_VIOLATION, "a message in too many fragments")
        elif not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a whole message to the application."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames, self._fragments, self._fragment_bytes = [], 0, 0
        self._end_deadline()  # it was this message's; what stands behind it has one of its own
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                data.decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "text that is not UTF-8")
                return
        # As bytes, whatever it is: of text, one character beyond the usual ones makes four bytes of each.
        self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        self._queued_bytes += len(data)
        if not self.read_paused:
            self.read_paused = True
            self._pause()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client sends them without reading the answers."""
        self._small += 1
        if not self.writable.is_set():
            self._pongs_unsent += 1
            if self._pongs_unsent > PONGS_UNSENT_MAX:
                reset(self.transport)
                return
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping."""
        self._small += 1
        super().handle_pong(event)

    def send_keepalive_ping(self) -> None:
        """Ask whether the client is there."""
        self._was_unread = self.read_paused or self._next_turn is not None
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """End the connection if the ping was not answered. If reading was paused, ping once more."""
        if not self._was_unread:
            super().keepalive_timeout()
            return
        self.pong_timer = self.pending_ping_payload = None
        if not self.close_sent and not self.transport.is_closing():
            self.schedule_ping()

    def _fail(self, code: int, reason: str) -> None:
        """Send a close frame with a reason, and end the connection soon."""
        self._rest, self.frames = b"", []
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self.loop.call_later(CLOSE_GRACE_S, reset, self.transport)

    def handle_parser_exception(self) -> None:
        """End the connection after what is not the protocol."""
        if self.conn.close_sent is None:  # the opening is not done
            reset(self.transport)
        else:
            super().handle_parser_exception()

    # Out

    async def send(self, message: Any) -> None:
        """Send as ASGI says; text may be its bytes too (``utf8``), which saves two copies of each answer."""
        data = message.get("utf8")
        if data is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected:
            raise ClientDisconnected
        if not self.close_sent:
            try:
                self.conn.send_text(data)
            except InvalidState:
                raise ClientDisconnected from None
            self.transport.write(b"".join(self.conn.data_to_send()))

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._pongs_unsent = 0
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was held."""
        for timer in (self._next_turn, self._deadline):
            if timer is not None:
                timer.cancel()
        self._rest, self.frames = b"", []
        self._held.resize(0)
        self._unsent.resize(0)
        super().connection_lost(exc)
