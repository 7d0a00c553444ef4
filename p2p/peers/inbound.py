"""Accepts connections: the listeners of a node, and each inbound stream from its first byte to its purpose.

``p2p.peers.handshake_limits`` bounds streams before they are authenticated. By its hello, an authenticated
connection starts a peer (``p2p.peers.lifecycle``), replaces a connection of one, or adds a bulk connection
(``p2p.path.selection``).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.limits import HalfOpenSlot, NetworkLimits
from p2p.base.netgroups import site_of
from p2p.base.sockets import tune
from p2p.path.selection import PathSelection
from p2p.peers.handshake_limits import HandshakeLimits
from p2p.peers.roster import Roster
from p2p.secure.channel import Hello, HelloKind
from p2p.secure.identity import Purpose
from p2p.session.connection import Connection, ConnectionLost
from p2p.session.handshaker import Handshaker
from p2p.session.peer import Peer
from state.primitives.errors import ConfigError, ProtocolError

__all__ = ["InboundConnections", "Listening", "OwnEndpoints", "listen", "own_endpoints"]

_PAUSE_S: Final = 0.1
"""Pause after a failed accept, for example without free descriptors."""


@dataclass(frozen=True, slots=True)
class OwnEndpoints:
    """This node's endpoints according to its configuration."""

    direct: tuple[Endpoint, ...] = ()
    """Endpoints that others can dial, as configured."""
    open_ports: tuple[int, ...] = ()
    """Ports on all addresses without a configured endpoint."""


def own_endpoints(bound: Sequence[tuple[str, int]], advertised: tuple[Endpoint, ...]) -> OwnEndpoints:
    """Return the own endpoints of a node that listens at ``bound``; ``advertised`` ones replace them."""
    if advertised:
        return OwnEndpoints(advertised)
    named = [(host, port) for host, port in bound if not ipaddress.ip_address(host).is_unspecified]
    everywhere = dict.fromkeys(port for host, port in bound if ipaddress.ip_address(host).is_unspecified)
    return OwnEndpoints(tuple(Endpoint(host, port) for host, port in named), tuple(everywhere))


class Listening(NamedTuple):
    """The listening sockets of a node, and their properties."""

    listeners: list[trio.SocketListener]
    bound: tuple[tuple[str, int], ...]
    """Their (host, port) pairs."""
    congestion_control: str
    """The kernel's congestion control."""
    own: OwnEndpoints


async def listen(addresses: Sequence[tuple[str, int]], advertised: tuple[Endpoint, ...]) -> Listening:
    """Listen at each (host, port). Raises ConfigError; no socket is then open."""
    listeners = await _open_listeners(addresses)
    names = [listener.socket.getsockname()[:2] for listener in listeners]
    bound = tuple((str(host), int(port)) for host, port in names)
    congestion_control = ""
    for listener in listeners:
        congestion_control = tune(listener.socket).congestion
    return Listening(listeners, bound, congestion_control, own_endpoints(bound, advertised))


async def _open_listeners(addresses: Sequence[tuple[str, int]]) -> list[trio.SocketListener]:
    listeners: list[trio.SocketListener] = []
    for host, port in addresses:
        try:
            listeners += await trio.open_tcp_listeners(port, host=host or None)
        except (OSError, ValueError) as error:
            for listener in listeners:
                await listener.aclose()
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    return listeners


class InboundConnections:
    """Accepts streams; ``live`` runs a new peer to its end."""

    def __init__(
        self,
        roster: Roster,
        handshaker: Handshaker,
        path_selection: PathSelection,
        *,
        live: Callable[[Connection], Awaitable[object]],
        limits: NetworkLimits,
        counters: Counter[str],
        log: Callable[..., None],
    ) -> None:
        self.handshake_limits = HandshakeLimits(limits)
        self._roster = roster
        self._handshaker = handshaker
        self._path_selection = path_selection
        self._live = live
        self._limits = limits
        self._counters = counters
        self._log = log
        self._bulk_connections_in = 0
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery, listeners: Sequence[trio.SocketListener]) -> None:
        """Accept from now on."""
        self._nursery = nursery
        for listener in listeners:
            nursery.start_soon(self._accept_from, listener)

    def take(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream from an acceptor; ``remote`` names its origin."""
        assert self._nursery is not None
        slot = self.handshake_limits.circuit(remote, trio.current_time())
        if slot is None:
            self._counters["accepts_refused"] += 1
            self._nursery.start_soon(trio.aclose_forcefully, stream)
            return
        self._nursery.start_soon(self.incoming, stream, remote, None, slot)

    async def _accept_from(self, listener: trio.SocketListener) -> None:
        assert self._nursery is not None
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # out of descriptors, or the connection was gone already
                self._log("a connection could not be accepted; tried again", error=str(error))
                await trio.sleep(_PAUSE_S)
                continue
            try:
                name = stream.socket.getpeername()
                remote, seen = str(name[0]), (str(name[0]), int(name[1]))
            except OSError:
                stream.socket.close()
                continue
            slot = self.handshake_limits.connection(remote, trio.current_time())
            if slot is None:
                self._counters["accepts_refused"] += 1
                stream.socket.close()
                continue
            tune(stream.socket)
            self._nursery.start_soon(self.incoming, stream, remote, site_of(remote), slot, seen)

    async def incoming(
        self,
        stream: trio.abc.Stream,
        remote: str,
        site: str | None,
        slot: HalfOpenSlot,
        seen: tuple[str, int] | None = None,
    ) -> None:
        """Run a stream to its end. ``slot`` is freed once the peer has sent its hello.

        ``site`` is the site for which the stream counts; None: it came from an acceptor. ``seen`` is the address
        of the other end of a direct stream.
        """
        self._counters["accepts"] += 1
        connection: Connection | None = None
        hello: Hello | None = None
        self.handshake_limits.count(site, 1)
        is_direct = site is not None
        try:
            try:
                with trio.CancelScope() as scope:
                    slot.on_lost = scope.cancel
                    if slot.is_lost:
                        scope.cancel()
                    purpose = Purpose.PEER if is_direct else Purpose.CIRCUIT
                    session = await self._handshaker.accepted(stream, purpose, seen=seen)
                    if session is not None:
                        connection = Connection(session, stream, remote=remote, is_direct=is_direct)
                        hello = await self._handshaker.hear(connection)
            finally:
                self.handshake_limits.half_open.leave(slot)
            self._counters["half_open_lost"] += scope.cancelled_caught
            if connection is None or hello is None:
                return
            if connection.session.address in self._roster.persistent:  # many of them may live in one place
                self.handshake_limits.count(site, -1)
                site = None
            if self.handshake_limits.is_full(site):
                self._counters["refused_site"] += 1
                return
            await self._carry(connection, hello, site)
        except (ConnectionLost, trio.TooSlowError, ProtocolError):
            self._counters["handshake_failed"] += 1
        finally:
            self.handshake_limits.count(site, -1)
            if connection is not None:
                await connection.aclose()
            await trio.aclose_forcefully(stream)

    async def _carry(self, connection: Connection, hello: Hello, site: str | None) -> None:
        peer = self._roster.peers.get(connection.session.address)
        match hello.opening:
            case HelloKind.NEW:
                await self._live(connection)
            case HelloKind.RESUME:
                if await self._path_selection.take_move(peer, hello, connection):
                    await connection.ended.wait()
            case HelloKind.BULK:
                await self._take_bulk(peer, hello, connection, site)
            case _:
                self._counters["handshake_failed"] += 1

    async def _take_bulk(self, peer: Peer | None, hello: Hello, connection: Connection, site: str | None) -> None:
        is_full = self._bulk_connections_in >= self._limits.bulk_connections_in_max
        if (
            peer is None
            or not peer.bulk_connections.may_add(hello, connection)
            or (is_full and peer.address not in self._roster.persistent)
        ):
            self._counters["bulk_connections_refused"] += 1
            return
        # It belongs to a peer that has its place already, and has limits of its own.
        self.handshake_limits.count(site, -1)
        self._bulk_connections_in += 1
        self._path_selection.note_requested(peer, hello, connection)
        try:
            await peer.bulk_connections.carry(connection, hello)
        finally:
            self._bulk_connections_in -= 1
            self.handshake_limits.count(site, 1)
        self._path_selection.note_ended(peer, connection)
