"""Finds out where others can dial this node, by asking peers to dial back. See network.md 8.3.

The request names a port only. The asked peer dials that port at the host from which the requester's connection
comes, and names that host in its answer. So no peer can be made to dial a third host, requests need no payment,
and a node that listens on all addresses learns its address. The dialling stops after the second handshake message,
which proves whose listener answered. Peers of two networks must agree before an endpoint counts as public or
closed. For a learnt endpoint, only peers whose connections this node saw arrive are believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed, PeerUnreachable, RequestFailed, RequestRefused, RequestTimeout
from p2p.base.netgroups import block_of
from p2p.base.sockets import Connector
from p2p.base.transport import Acceptance
from p2p.path.endpoint_status import (
    ANSWER_BYTES_MAX,
    DialBackAnswer,
    DialBackResults,
    EndpointStatus,
    plain_address,
)
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from p2p.session.peerinfo import PeerInfo
from p2p.session.requests import RequestHandler
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.token_bucket import RateLimiter

__all__ = ["METHOD_DIAL_BACK", "SOURCE_LISTEN", "DialBack", "DialBackOptions"]

METHOD_DIAL_BACK: Final = "dial back"
SOURCE_LISTEN: Final = "listen"
"""The source name under which the network advertises its listening addresses."""
_READ_BYTES: Final = 4_096
_QUESTION_BYTES_MAX: Final = 8
_LEARNT_MAX: Final = 4
"""Own hosts reported by peers, about which others are asked."""


@dataclass(frozen=True, slots=True)
class DialBackOptions:
    """Limits of sending and answering requests; times in seconds."""

    networks_min: int = 2
    """This many networks must agree."""
    ask_every_s: float = 900.0
    said_s: float = 3_600.0
    """How long a network's answer counts: the port may be closed later."""
    ask_again_s: float = 5.0
    """Interval of attempts to find a peer to ask, while the status is unknown."""
    timeout_s: float = 5.0
    per_peer_s: float = 60.0
    in_all_per_s: float = 1.0
    dials_max: int = 4
    """Concurrent dials for others."""


class _Network(Protocol):
    """The part of the network that is used here."""

    identity: Identity

    @property
    def direct(self) -> Sequence[Endpoint]: ...

    @property
    def open_ports(self) -> Sequence[int]: ...

    @property
    def connector(self) -> Connector: ...

    def arrived_at(self, host: str) -> float: ...

    def peers(self) -> list[PeerInfo]: ...

    def peer(self, address: bytes) -> PeerInfo | None: ...

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes: ...

    def on_request(self, method: str, handler: RequestHandler) -> None: ...


class DialBack:
    """Asks peers to dial this node, and dials for peers that ask.

    It is an acceptor of the network: an endpoint found closed is not advertised until it is found open again.
    """

    def __init__(
        self,
        options: DialBackOptions | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        log: Callable[..., None] = lambda *_args, **_fields: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options or DialBackOptions()
        self._on_change = on_change
        self._now_ms = now_ms
        self._log = log
        self._network: _Network | None = None
        self._acceptance: Acceptance | None = None
        self._votes: dict[Endpoint, DialBackResults] = {}
        self._told: dict[Endpoint, EndpointStatus] = {}
        self._asked_at: dict[tuple[int, str], tuple[float, float]] = {}
        """When a network was asked about a port, and the pause before it is asked again."""
        self._moved = trio.Event()
        self._dials = 0
        self._per_peer = RateLimiter(per_s=1 / self._options.per_peer_s, burst=2)
        self._in_all = RateLimiter(per_s=self._options.in_all_per_s, burst=4)

    def attach(self, network: _Network) -> None:
        """Register with the network, before it runs."""
        self._network = network
        network.on_request(METHOD_DIAL_BACK, self._serve)

    def verdict(self, endpoint: Endpoint) -> EndpointStatus:
        """Return the status of an own endpoint."""
        votes = self._votes.get(endpoint)
        return EndpointStatus.UNKNOWN if votes is None else votes.verdict

    @property
    def verdicts(self) -> dict[Endpoint, EndpointStatus]:
        """The status of the own endpoints, configured and learnt."""
        own = dict.fromkeys((*self._own.direct, *self._votes))
        return {endpoint: self.verdict(endpoint) for endpoint in own}

    @property
    def is_confirmed(self) -> bool:
        """Whether others can dial this node."""
        return EndpointStatus.PUBLIC in self.verdicts.values()

    @property
    def _own(self) -> _Network:
        assert self._network is not None, "not attached"
        return self._network

    # -- asking ----------------------------------------------------------------------------------------------

    async def run(self, acceptance: Acceptance) -> None:
        """Ask soon after the start, then periodically, until cancelled."""
        options, network = self._options, self._own
        self._acceptance = acceptance
        while True:
            ports = dict.fromkeys((*(endpoint.port for endpoint in network.direct), *network.open_ports))
            self._forget_old(trio.current_time() - options.said_s)
            self._asked_at = {key: at for key, at in self._asked_at.items() if key[0] in ports}
            for port in ports:
                await self._ask_about(port)
            verdicts = self.verdicts.values()
            is_open = (
                bool(ports) and not self.is_confirmed and (not verdicts or EndpointStatus.UNKNOWN in verdicts)
            )
            with trio.move_on_after(options.ask_again_s if is_open else options.ask_every_s):
                await self._moved.wait()
                self._moved = trio.Event()
                await trio.sleep(options.ask_again_s)  # they must be reached first, over other connections

    def _forget_old(self, before: float) -> None:
        """Drop old answers; the networks are asked again."""
        for endpoint, votes in list(self._votes.items()):
            votes.forget(before)
            if not votes.said and endpoint not in self._own.direct:
                del self._votes[endpoint]
        self._asked_at = {key: asked for key, asked in self._asked_at.items() if asked[0] >= before}

    def roamed(self, _gone: frozenset[str]) -> None:
        """Forget the observed own hosts after a change of address.

        Networks are asked again when their peers reconnect.
        """
        if self._network is None:
            return
        self._votes = {e: votes for e, votes in self._votes.items() if e in self._network.direct}
        for votes in self._votes.values():
            votes.said.clear()
        self._asked_at.clear()
        self._tell()
        self._moved.set()

    async def _ask_about(self, port: int) -> None:
        """Ask one peer of each network until enough have answered; each again later, at growing intervals."""
        network = self._own
        options, now = self._options, trio.current_time()
        asked: set[str] = set()
        for peer in network.peers():
            host = plain_address(peer.host)
            if host is None:
                continue  # it comes through a relay: from there nothing can be said
            group = block_of(host)
            asked_at, wait_s = self._asked_at.get((port, group), (-inf, options.per_peer_s / 2))
            alike = sum(
                (":" in other) == (":" in group) for other in asked
            )  # of IPv4, or of IPv6: each is its own
            if group in asked or now - asked_at < wait_s or alike > options.networks_min:
                continue
            asked.add(group)
            self._asked_at[port, group] = now, min(2 * wait_s, options.ask_every_s)
            try:
                said = await network.request(
                    peer.address,
                    METHOD_DIAL_BACK,
                    encode([port]),
                    timeout_s=2 * options.timeout_s,
                    limit_bytes=ANSWER_BYTES_MAX,
                )
                answer = DialBackAnswer.decode(said)
            except (RequestTimeout, PeerUnreachable):
                self._asked_at[port, group] = now, options.ask_again_s  # it has hardly heard the question
                continue
            except (RequestFailed, DecodeError):
                continue  # it will not or cannot say
            self._heard(port, group, answer, is_seen=network.arrived_at(host) >= now)
        self._tell()

    def _heard(self, port: int, group: str, answer: DialBackAnswer, *, is_seen: bool) -> None:
        """Count an answer for each endpoint that it concerns; ``is_seen``: a connection from that host arrived."""
        network, now = self._own, trio.current_time()
        for endpoint in network.direct:
            if endpoint.port != port:
                continue
            own = plain_address(endpoint.host)
            # Of a name, which may lead elsewhere than from where we are seen, only a yes says something.
            if own == answer.host or (own is None and answer.is_reached):
                self._votes_of(endpoint).add(group, answer.is_reached, now)
        is_place = network.connector.dial_policy.may_dial(answer.host)
        if port not in network.open_ports or not is_place or (answer.is_reached and not is_seen):
            return
        found = Endpoint(answer.host, port)
        for endpoint, votes in self._votes.items():
            if endpoint != found and endpoint.port == port and endpoint not in network.direct:
                votes.said.pop(group, None)  # a network has one voice: it sees us elsewhere now
        self._votes_of(found).add(group, answer.is_reached, now)
        learnt = {e: votes for e, votes in self._votes.items() if e not in network.direct}
        for endpoint in [e for e, votes in learnt.items() if not votes.said]:
            del learnt[endpoint], self._votes[endpoint]
        if len(learnt) > _LEARNT_MAX:
            del self._votes[min(learnt, key=lambda e: (e == found, sum(learnt[e].said.values())))]

    def _votes_of(self, endpoint: Endpoint) -> DialBackResults:
        return self._votes.setdefault(endpoint, DialBackResults(self._options.networks_min))

    def _tell(self) -> None:
        """Log and advertise changes."""
        verdicts = self.verdicts
        known: dict[Endpoint, EndpointStatus] = {
            endpoint: verdict for endpoint, verdict in verdicts.items() if verdict is not EndpointStatus.UNKNOWN
        }
        if known == self._told:
            return
        for endpoint in {**known, **self._told}:
            if known.get(endpoint) is not self._told.get(endpoint):
                verdict = known.get(endpoint, EndpointStatus.UNKNOWN)
                self._log("the status of an own endpoint changed", endpoint=str(endpoint), verdict=verdict.value)
        self._told = known
        configured = self._own.direct
        open_ones = [
            endpoint
            for endpoint, verdict in verdicts.items()
            if verdict is EndpointStatus.PUBLIC or (verdict is EndpointStatus.UNKNOWN and endpoint in configured)
        ]
        if self._acceptance is not None:
            self._acceptance.advertise(SOURCE_LISTEN, tuple(open_ones))
        self._on_change()

    # -- being asked -----------------------------------------------------------------------------------------

    async def _serve(self, peer: bytes, body: bytes) -> bytes:
        match decode(body, limit_bytes=_QUESTION_BYTES_MAX):
            case [int(port)] if 0 < port < 65_536:
                pass
            case _:
                raise DecodeError("not a port")
        info = self._own.peer(peer)
        host = None if info is None else plain_address(info.host)
        if host is None:
            raise RequestRefused("the address of the asker is not visible on this connection")
        endpoint = Endpoint(host, port)
        now = trio.current_time()
        if self._dials >= self._options.dials_max:
            raise RequestRefused("busy")
        if not self._per_peer.allows(peer, now) or not self._in_all.allows(None, now):
            raise RequestRefused("requests exceed the rate limit")
        self._dials += 1
        try:
            return DialBackAnswer(host, await self._answers(endpoint, peer)).encode()
        finally:
            self._dials -= 1

    async def _answers(self, endpoint: Endpoint, peer: bytes) -> bool:
        """Whether the listener at ``endpoint`` proves to be ``peer``."""
        assert self._network is not None
        handshake = Handshake(
            self._network.identity, Purpose.PEER, is_initiator=True, now_ms=self._now_ms(), expected=peer
        )
        stream: trio.abc.Stream | None = None
        try:
            with trio.fail_after(self._options.timeout_s):
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
                await stream.send_all(handshake.start())
                while handshake.session is None:
                    data = await stream.receive_some(_READ_BYTES)
                    if not data:
                        return False
                    handshake.receive(bytes(data))  # our own last word is not sent: this is no connection
            return True
        except (OSError, HandshakeFailed, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        finally:
            if stream is not None:
                await trio.aclose_forcefully(stream)
