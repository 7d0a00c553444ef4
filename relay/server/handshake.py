"""Connections that clients open to a relay: their purpose, their handshake, and their control messages.

See network.md 10.1.

A ``ClientHandshake`` owns a connection from its first byte until its purpose is known and proved. Then the
connection becomes a ``ControlConnection``, a connection for fan-out, or one end of a circuit. An error on a
connection closes that connection only.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Final, Protocol, cast

from p2p.base.errors import HandshakeFailed
from p2p.base.limits import HalfOpenSlot
from p2p.base.observed_address import OBSERVE_PREAMBLE, observed_answer
from p2p.base.sockets import tune
from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Identity, Purpose
from relay.protocol.errors import Refusal, RelayProtocolError
from relay.protocol.fanout import FANOUT_PREAMBLE
from relay.protocol.keep_alive import keep_alive
from relay.protocol.limits import HostUse, RelayLimits
from relay.protocol.wire import (
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    DATA_PREAMBLE_BYTES,
    JOINED,
    PREAMBLE_BYTES,
    ControlChannel,
    Message,
)

__all__ = ["ClientHandshake", "ControlConnection", "wall_ms"]

EARLY_BYTES_MAX: Final = 4_096
"""Bytes that a data connection may send after its token, before its circuit is joined."""

_PREAMBLES: Final = (CONTROL_PREAMBLE, DATA_PREAMBLE, OBSERVE_PREAMBLE, FANOUT_PREAMBLE)
_PURPOSES: Final = {CONTROL_PREAMBLE: Purpose.RELAY_CONTROL, FANOUT_PREAMBLE: Purpose.RELAY_FANOUT}


def wall_ms() -> int:
    """Return the wall-clock time in milliseconds."""
    return time.time_ns() // 1_000_000


class HandshakeOwner(Protocol):
    """What connections call on the daemon that owns them."""

    limits: RelayLimits
    has_bbr: bool

    def identity(self) -> Identity:
        """Return the identity that this relay uses in handshakes."""
        ...

    def admit(self, handshake: ClientHandshake) -> tuple[HostUse, HalfOpenSlot] | str:
        """Count a new connection as half open, or return why it is refused."""
        ...

    def promote(self, handshake: ClientHandshake, place: HalfOpenSlot) -> bool:
        """Admit a connection that proved its purpose; False: the relay is full, and it was dropped."""
        ...

    def handshake_ended(self, handshake: ClientHandshake, place: HalfOpenSlot) -> None:
        """Count a connection out of the half-open ones; it proved nothing."""
        ...

    def connection_closed(self, transport: asyncio.Transport) -> None:
        """Count a closed connection out."""
        ...

    def drop(self, transport: asyncio.Transport, reason: str, peer: str) -> None:
        """Close a connection that broke a rule."""
        ...

    def is_awaited(self, token: bytes) -> bool:
        """Tell whether a token was given out and not used yet."""
        ...

    def control_opened(self, handshake: ClientHandshake, channel: ControlChannel) -> None:
        """Take a control connection whose handshake proved an address."""
        ...

    def control_message(self, control: ControlConnection, message: Message) -> None:
        """Take a client's message. Raises RelayProtocolError."""
        ...

    def control_closed(self, control: ControlConnection) -> None:
        """Note that a control connection closed."""
        ...

    def fanout_opened(self, handshake: ClientHandshake, session: Session) -> None:
        """Take a fan-out connection whose handshake proved an address."""
        ...

    def data_opened(self, handshake: ClientHandshake, token: bytes) -> None:
        """Take a data connection that sent a token."""
        ...

    def data_closed(self, handshake: ClientHandshake) -> None:
        """Note that a data connection closed before its circuit was joined."""
        ...


class ClientHandshake(asyncio.Protocol):
    """A connection until its purpose is known and proved; a data connection until its circuit runs."""

    __slots__ = (
        "_buffer", "_daemon", "_handshake", "_is_held", "_place", "_purpose", "_timer", "early", "host", "number",
        "peer", "transport",
    )  # fmt: skip

    transport: asyncio.Transport
    host: HostUse
    _place: HalfOpenSlot

    def __init__(self, daemon: HandshakeOwner) -> None:
        self._daemon = daemon
        self._buffer = b""
        self._handshake: Handshake | None = None
        self._purpose = Purpose.RELAY_CONTROL
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self.number = 0
        self.peer: tuple[str, int] = ("", 0)
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # closed between the kernel's accept and this call
            transport.abort()  # type: ignore[attr-defined]
            return
        self.peer = peer[0], peer[1]
        answer = self._daemon.admit(self)
        if isinstance(answer, str):
            self._daemon.drop(self.transport, f"refused_{answer}", self.peer[0])
            return
        self.host, self._place = answer
        self._daemon.has_bbr = tune(cast(Any, self.socket())).congestion == "bbr"
        self._timer = asyncio.get_running_loop().call_later(
            self._daemon.limits.handshake_ms_max / 1000, self._too_slow
        )

    def socket(self) -> socket.socket:
        """Return the socket, for its options only."""
        return cast(socket.socket, self.transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Read the preamble or the handshake; while the connection waits for its circuit, nothing may arrive."""
        if self._timer is None:
            if self._is_held:
                self._daemon.drop(self.transport, "garbage", self.peer[0])
            return  # refused already, or the preamble is complete
        try:
            if self._handshake is not None:
                self._shake(data)
                return
            self._buffer += data
            if self._buffer[:PREAMBLE_BYTES] in _PURPOSES:
                self._purpose = _PURPOSES[self._buffer[:PREAMBLE_BYTES]]
                self._handshake = Handshake(
                    self._daemon.identity(), self._purpose, is_initiator=False, now_ms=wall_ms()
                )
                rest, self._buffer = self._buffer[PREAMBLE_BYTES:], b""
                self._shake(rest)
            elif self._buffer[:PREAMBLE_BYTES] == DATA_PREAMBLE:
                self._take_token()
            elif self._buffer == OBSERVE_PREAMBLE:
                # It stays open until the handshake times out: the mapping at the asker's NAT lasts as long.
                self.transport.write(observed_answer(*self.peer))
            elif not any(preamble.startswith(self._buffer) for preamble in _PREAMBLES):
                raise RelayProtocolError("not a client of a relay")
        except HandshakeFailed as error:
            self._daemon.drop(self.transport, error.code, self.peer[0])
        except RelayProtocolError:
            self._daemon.drop(self.transport, "garbage", self.peer[0])

    def _shake(self, data: bytes) -> None:
        assert self._handshake is not None
        answer = self._handshake.receive(data)
        if answer:
            self.transport.write(answer)
        session = self._handshake.session
        if session is not None:
            if not self._finish(has_proved=True):
                return
            if self._purpose is Purpose.RELAY_FANOUT:
                self._daemon.fanout_opened(self, session)
            else:
                self._daemon.control_opened(self, ControlChannel(session))

    def hold(self) -> None:
        """Wait parked: read, to notice when the client closes; no byte may arrive."""
        if self.early:
            self._daemon.drop(self.transport, "garbage", self.peer[0])
            return
        self._is_held = True
        keep_alive(self.socket())
        self.transport.resume_reading()

    def _take_token(self) -> None:
        if len(self._buffer) < DATA_PREAMBLE_BYTES:
            return
        self.early = self._buffer[DATA_PREAMBLE_BYTES:]
        if len(self.early) > EARLY_BYTES_MAX:
            raise RelayProtocolError("too much before the circuit is joined")
        token = self._buffer[PREAMBLE_BYTES:DATA_PREAMBLE_BYTES]
        if not self._finish(has_proved=self._daemon.is_awaited(token)):
            return
        self.transport.pause_reading()
        self._daemon.data_opened(self, token)

    def _finish(self, *, has_proved: bool) -> bool:
        """End the half-open state; False: the relay is full, and the connection was dropped."""
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        if has_proved:
            return self._daemon.promote(self, self._place)
        self._daemon.handshake_ended(self, self._place)
        return True

    def _too_slow(self) -> None:
        self._daemon.drop(self.transport, "slow_handshake", self.peer[0])

    def joined(self) -> None:
        """Tell the client that its circuit is joined."""
        self.transport.write(bytes((JOINED,)))

    def refuse(self, refusal: Refusal) -> None:
        """Send the refusal, and close."""
        self.transport.write(bytes((refusal,)))
        self.transport.close()

    def eof_received(self) -> bool:
        """Close both directions: a client that ends its direction is done."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection out."""
        if not self.number:
            return  # it was never admitted
        if self._timer is not None:
            self._finish(has_proved=False)
        self._daemon.connection_closed(self.transport)
        self._daemon.data_closed(self)


class ControlConnection(asyncio.Protocol):
    """A client's control connection after its handshake."""

    __slots__ = ("_daemon", "channel", "number", "opened_ms", "transport")

    def __init__(
        self,
        daemon: HandshakeOwner,
        number: int,
        transport: asyncio.Transport,
        channel: ControlChannel,
    ) -> None:
        self._daemon = daemon
        self.number = number
        self.transport = transport
        self.channel = channel
        self.opened_ms = wall_ms()

    def send(self, message: Message) -> None:
        """Send a message; a client that does not read is dropped."""
        self.transport.write(self.channel.seal(message))
        if self.transport.get_write_buffer_size() > self._daemon.limits.control_backlog_bytes_max:
            self._daemon.drop(self.transport, "slow_reader", self.channel.address.hex())

    def data_received(self, data: bytes) -> None:
        """Pass the messages to the daemon."""
        try:
            for message in self.channel.receive(data):
                if self.transport.is_closing():
                    return
                self._daemon.control_message(self, message)
        except RelayProtocolError as error:
            self._daemon.drop(self.transport, error.code, self.channel.address.hex())

    def eof_received(self) -> bool:
        """Close both directions: a client that ends its direction is done."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection out."""
        self._daemon.connection_closed(self.transport)
        self._daemon.control_closed(self)
