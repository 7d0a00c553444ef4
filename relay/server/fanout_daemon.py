"""A relay's connections for fan-out: asyncio protocols around ``relay.protocol.fanout``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from p2p.base.sockets import LowWater
from p2p.secure.handshake import Session
from relay.protocol.errors import RelayProtocolError
from relay.protocol.fanout import (
    PIECE_BYTES_MAX,
    Copy,
    Delivery,
    FanoutChannel,
    FanoutCore,
    FanoutLimits,
    FanoutMessage,
    Pong,
)
from relay.protocol.limits import HostUse

__all__ = ["FanoutServer"]

ANSWERS_BYTES_MAX: Final = 64 * 1024
"""Unsent bytes of a client above which its pings are not answered."""


class FanoutServer:
    """All connections for fan-out of one relay.

    ``drop(transport, reason, peer)`` closes a connection that broke a rule. ``connection_closed`` is called for
    each connection that closed. ``is_served`` says whether the relay still carries for a publisher from a host.
    ``charge`` takes the bytes delivered for it, every copy counted.
    """

    def __init__(
        self,
        limits: FanoutLimits,
        *,
        is_reserved: Callable[[bytes], bool],
        is_served: Callable[[bytes, HostUse], bool],
        charge: Callable[[bytes, HostUse, int], None],
        now_ms: Callable[[], int],
        drop: Callable[[asyncio.Transport, str, str], None],
        connection_closed: Callable[[asyncio.Transport], None],
    ) -> None:
        self.core = FanoutCore(limits, is_reserved=is_reserved, is_served=self._serves, backlog=self._backlog)
        self._is_served = is_served
        self._charge = charge
        self._now_ms = now_ms
        self._drop = drop
        self._connection_closed = connection_closed
        self._connections: dict[int, _FanoutConnection] = {}
        self._taking: _FanoutConnection | None = None
        """The connection whose message is being processed."""
        self._backlog_bytes = 0
        """Unsent bytes of all connections at the last tick, plus those written since then."""

    def open(self, number: int, transport: asyncio.Transport, session: Session, host: HostUse) -> None:
        """Take over a connection after its handshake."""
        connection = _FanoutConnection(self, number, transport, FanoutChannel(session), host)
        transport.set_protocol(connection)
        host.fanouts += 1
        if host.fanouts > self.core.limits.connections_per_host_max and not host.is_trusted:
            self._drop(transport, "fanout_host", session.address.hex())
            return
        try:
            old = self.core.opened(number, session.address, self._now_ms())
        except RelayProtocolError as error:
            self._drop(transport, error.code, session.address.hex())
            return
        self._connections[number] = connection
        # A slow subscriber is skipped because of its backlog; the others do not wait for it.
        transport.set_write_buffer_limits(high=2 * self.core.limits.backlog_bytes_max)
        if old is not None and old in self._connections:
            self._connections[old].transport.abort()
        connection.data_received(b"")  # bytes received with the handshake

    def tick(self, now_ms: int) -> None:
        """Drop silent connections."""
        self._backlog_bytes = sum(
            connection.transport.get_write_buffer_size() for connection in self._connections.values()
        )
        for number in self.core.idle(now_ms):
            connection = self._connections[number]
            self._drop(connection.transport, "fanout_idle", connection.channel.address.hex())

    def _backlog(self, number: int) -> int:
        connection = self._connections.get(number)
        if connection is None or connection.transport.is_closing():
            return self.core.limits.backlog_bytes_max
        if self._backlog_bytes >= self.core.limits.backlog_bytes_sum_max:
            return self.core.limits.backlog_bytes_max
        return connection.transport.get_write_buffer_size()

    def _serves(self, publisher: bytes) -> bool:
        assert self._taking is not None
        return self._is_served(publisher, self._taking.host)

    def take(self, connection: _FanoutConnection, message: FanoutMessage, piece: bytes) -> None:
        """Take a client's message. Raises RelayProtocolError."""
        self._taking = connection
        match self.core.message(connection.number, message, self._now_ms()):
            case Copy(connections):
                handed = Delivery(connection.channel.address, len(piece))
                for number in connections:
                    receiver = self._connections[number]
                    receiver.transport.writelines((receiver.channel.seal(handed), piece))
                    self._backlog_bytes += len(piece)
                self._charge(connection.channel.address, connection.host, len(piece) * len(connections))
            case Pong() as pong:
                # A client that does not read gets no more answers: they would pile up here without limit.
                if connection.transport.get_write_buffer_size() < ANSWERS_BYTES_MAX:
                    connection.transport.write(connection.channel.seal(pong))
            case None:
                pass

    def closed(self, connection: _FanoutConnection) -> None:
        """Note that a connection closed."""
        if self._connections.get(connection.number) is connection:
            del self._connections[connection.number]
            self.core.closed(connection.number)
        connection.host.fanouts -= 1
        self._connection_closed(connection.transport)

    def broke(self, connection: _FanoutConnection, error: RelayProtocolError) -> None:
        """Drop a connection that broke a rule."""
        self._drop(connection.transport, error.code, connection.channel.address.hex())


class _FanoutConnection(asyncio.Protocol):
    """One fan-out connection after its handshake."""

    __slots__ = ("_low_water", "_server", "channel", "host", "number", "transport")

    def __init__(
        self,
        server: FanoutServer,
        number: int,
        transport: asyncio.Transport,
        channel: FanoutChannel,
        host: HostUse,
    ) -> None:
        self._server = server
        self.number = number
        self.transport = transport
        self.channel = channel
        self.host = host
        self._low_water = LowWater(transport.get_extra_info("socket"), limit=PIECE_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        try:
            for message, piece in self.channel.receive(data):
                if self.transport.is_closing():
                    return
                self._server.take(self, message, piece)
            self._low_water.expect(self.channel.lacking)
        except RelayProtocolError as error:
            self._server.broke(self, error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._server.closed(self)
