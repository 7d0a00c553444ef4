"""Ways in: the listeners of a node, and each stream that comes from the first byte to what it is for.

The rates and places for those who have not yet proved who they are say ``p2p.peers.handshake_limits``. Who has,
and says what the connection is for, goes on as a peer (``p2p.peers.lifecycle``), as another connection of one or
as a lane (``p2p.path.steering``).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits, Place
from p2p.base.netgroups import site_of
from p2p.base.sockets import tune
from p2p.path.steering import Steering
from p2p.peers.handshake_limits import Entrance
from p2p.peers.roster import Roster
from p2p.secure.channel import Hello, Opening
from p2p.secure.identity import Purpose
from p2p.session.connection import Link, LinkLost
from p2p.session.greeting import Greeter
from p2p.session.peer import Peer
from state.primitives.errors import ConfigError, ProtocolError

__all__ = ["Accepting", "Listening", "Places", "listen", "places_of"]

_PAUSE_S: Final = 0.1
"""After an accept that failed: for want of descriptors, perhaps."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a node can be reached, as far as it knows by itself."""

    direct: tuple[Endpoint, ...] = ()
    """Where its owner says that others can dial it."""
    open_ports: tuple[int, ...] = ()
    """Where it listens on all addresses and its owner does not say which of them others can dial."""


def places_of(bound: Sequence[tuple[str, int]], advertised: tuple[Endpoint, ...]) -> Places:
    """Return where a node that listens at ``bound`` can be reached; what is ``advertised`` goes before."""
    if advertised:
        return Places(advertised)
    named = [(host, port) for host, port in bound if not ipaddress.ip_address(host).is_unspecified]
    everywhere = dict.fromkeys(port for host, port in bound if ipaddress.ip_address(host).is_unspecified)
    return Places(tuple(Endpoint(host, port) for host, port in named), tuple(everywhere))


class Listening(NamedTuple):
    """The listening sockets of a node, and what is known of them."""

    listeners: list[trio.SocketListener]
    bound: tuple[tuple[str, int], ...]
    """Their (host, port) pairs."""
    congestion_control: str
    """What the kernel granted."""
    own: Places


async def listen(places: Sequence[tuple[str, int]], advertised: tuple[Endpoint, ...]) -> Listening:
    """Listen at each (host, port). Raises ConfigError, and then listens nowhere."""
    listeners = await _open_listeners(places)
    names = [listener.socket.getsockname()[:2] for listener in listeners]
    bound = tuple((str(host), int(port)) for host, port in names)
    congestion_control = ""
    for listener in listeners:
        congestion_control = tune(listener.socket).congestion
    return Listening(listeners, bound, congestion_control, places_of(bound, advertised))


async def _open_listeners(places: Sequence[tuple[str, int]]) -> list[trio.SocketListener]:
    listeners: list[trio.SocketListener] = []
    for host, port in places:
        try:
            listeners += await trio.open_tcp_listeners(port, host=host or None)
        except (OSError, ValueError) as error:
            for listener in listeners:
                await listener.aclose()
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    return listeners


class Accepting:
    """Takes what comes in; ``live`` carries a new peer to its end."""

    def __init__(
        self,
        roster: Roster,
        greeter: Greeter,
        steering: Steering,
        *,
        live: Callable[[Link], Awaitable[object]],
        limits: NetworkLimits,
        counters: Counter[str],
        log: Callable[..., None],
    ) -> None:
        self.entrance = Entrance(limits)
        self._roster = roster
        self._greeter = greeter
        self._steering = steering
        self._live = live
        self._limits = limits
        self._counters = counters
        self._log = log
        self._lanes_in = 0
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery, listeners: Sequence[trio.SocketListener]) -> None:
        """Accept from now on."""
        self._nursery = nursery
        for listener in listeners:
            nursery.start_soon(self._accept_from, listener)

    def take(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream that was brought by what is known by the name ``remote``."""
        assert self._nursery is not None
        place = self.entrance.circuit(remote, trio.current_time())
        if place is None:
            self._counters["accepts_refused"] += 1
            self._nursery.start_soon(trio.aclose_forcefully, stream)
            return
        self._nursery.start_soon(self.incoming, stream, remote, None, place)

    async def _accept_from(self, listener: trio.SocketListener) -> None:
        assert self._nursery is not None
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # out of descriptors, or the connection was gone already
                self._log("accept failed", error=str(error))
                await trio.sleep(_PAUSE_S)
                continue
            try:
                name = stream.socket.getpeername()
                remote, seen = str(name[0]), (str(name[0]), int(name[1]))
            except OSError:
                stream.socket.close()
                continue
            place = self.entrance.connection(remote, trio.current_time())
            if place is None:
                self._counters["accepts_refused"] += 1
                stream.socket.close()
                continue
            tune(stream.socket)
            self._nursery.start_soon(self.incoming, stream, remote, site_of(remote), place, seen)

    async def incoming(
        self,
        stream: trio.abc.Stream,
        remote: str,
        site: str | None,
        place: Place,
        seen: tuple[str, int] | None = None,
    ) -> None:
        """Carry a stream to its end; ``place`` is given back once its peer has said what it is for.

        ``site`` is where it counts as a connection of; None: where it was brought. ``seen``: the address of its
        other end, where it came directly.
        """
        self._counters["accepts"] += 1
        link: Link | None = None
        hello: Hello | None = None
        self.entrance.count(site, 1)
        is_direct = site is not None
        try:
            try:
                with trio.CancelScope() as scope:
                    place.on_lost = scope.cancel
                    if place.is_lost:
                        scope.cancel()
                    purpose = Purpose.PEER if is_direct else Purpose.CIRCUIT
                    session = await self._greeter.accepted(stream, purpose, seen=seen)
                    if session is not None:
                        link = Link(session, stream, remote=remote, is_direct=is_direct)
                        hello = await self._greeter.hear(link)
            finally:
                self.entrance.half_open.leave(place)
            self._counters["half_open_lost"] += scope.cancelled_caught
            if link is None or hello is None:
                return
            if link.session.address in self._roster.persistent:  # many of them may live in one place
                self.entrance.count(site, -1)
                site = None
            if self.entrance.is_crowded(site):
                self._counters["refused_site"] += 1
                return
            await self._carry(link, hello, site)
        except (LinkLost, trio.TooSlowError, ProtocolError):
            self._counters["handshake_failed"] += 1
        finally:
            self.entrance.count(site, -1)
            if link is not None:
                await link.aclose()
            await trio.aclose_forcefully(stream)

    async def _carry(self, link: Link, hello: Hello, site: str | None) -> None:
        peer = self._roster.peers.get(link.session.address)
        match hello.opening:
            case Opening.NEW:
                await self._live(link)
            case Opening.RESUME:
                if await self._steering.take_move(peer, hello, link):
                    await link.ended.wait()
            case Opening.LANE:
                await self._take_lane(peer, hello, link, site)
            case _:
                self._counters["handshake_failed"] += 1

    async def _take_lane(self, peer: Peer | None, hello: Hello, link: Link, site: str | None) -> None:
        is_full = self._lanes_in >= self._limits.lanes_in_sum_max
        if (
            peer is None
            or not peer.lanes.may_add(hello, link)
            or (is_full and peer.address not in self._roster.persistent)
        ):
            self._counters["lanes_refused"] += 1
            return
        # It belongs to a peer that has its place already, and has limits of its own.
        self.entrance.count(site, -1)
        self._lanes_in += 1
        self._steering.lane_asked(peer, hello, link)
        try:
            await peer.lanes.carry(link, hello)
        finally:
            self._lanes_in -= 1
            self.entrance.count(site, 1)
        self._steering.lane_ended(peer, link)
