"""Whether others can dial this node: peers are asked to dial back (NETWORK.md, section 6, "NAT").

A peer that is asked dials only the host from which the asker's own connection comes, so nobody can be made to
knock at a third door and no price is needed. It goes as far as the second message of the handshake, which proves
whose listener answered, and closes. Two peers of different networks must agree before an endpoint counts as public
or as closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address, ip_network
from math import inf
from typing import Final, Protocol

import trio

from p2p.errors import HandshakeFailed, PeerUnreachable, RequestFailed, RequestRefused
from p2p.handshake import Handshake
from p2p.identity import Identity, Purpose
from p2p.limits import RateLimiter
from p2p.peer import PeerInfo, RequestHandler
from p2p.transport import ENDPOINT_CHARACTERS_MAX, Acceptance, Endpoint
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["METHOD_DIAL_BACK", "SOURCE_LISTEN", "Reach", "ReachOptions", "Verdict", "Votes", "network_of"]

METHOD_DIAL_BACK: Final = "dial back"
SOURCE_LISTEN: Final = "listen"
"""Under which the network advertises what it listens on."""
_READ_BYTES: Final = 4_096
_ANSWER_BYTES_MAX: Final = 1
_V4_NETWORK_BITS: Final = 16
_V6_NETWORK_BITS: Final = 32


class Verdict(Enum):
    """What is known of an own endpoint."""

    UNKNOWN = "unknown"
    PUBLIC = "public"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ReachOptions:
    """Bounds of asking and of being asked; times in seconds."""

    networks_min: int = 2
    """So many networks must say the same."""
    ask_every_s: float = 900.0
    ask_again_s: float = 20.0
    """While the verdict is open."""
    timeout_s: float = 5.0
    per_peer_s: float = 60.0
    in_all_per_s: float = 1.0
    dials_max: int = 4
    """Dials for others under way at once."""


def network_of(host: str) -> str:
    """Return the network of an IP address: a /16, or a /32 of IPv6. Raises ValueError for anything else."""
    address = ip_address(host.partition("%")[0])
    bits = _V4_NETWORK_BITS if address.version == 4 else _V6_NETWORK_BITS
    return str(ip_network((address, bits), strict=False))


@dataclass(slots=True)
class Votes:
    """What the networks that were asked say of one endpoint; a network has one voice, its newest."""

    networks_min: int
    said: dict[str, bool] = field(default_factory=dict)

    def add(self, network: str, is_reached: bool) -> None:
        """Take in an answer."""
        self.said[network] = is_reached

    @property
    def verdict(self) -> Verdict:
        """Enough yes make it public, whatever others say: their way may be bad. Nothing but no closes it."""
        yes = sum(self.said.values())
        if yes >= self.networks_min:
            return Verdict.PUBLIC
        if not yes and len(self.said) >= self.networks_min:
            return Verdict.CLOSED
        return Verdict.UNKNOWN


class _Network(Protocol):
    """What is needed of the network."""

    identity: Identity

    @property
    def direct(self) -> Sequence[Endpoint]: ...

    def peers(self) -> list[PeerInfo]: ...

    def peer(self, address: bytes) -> PeerInfo | None: ...

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes: ...

    def on_request(self, method: str, handler: RequestHandler) -> None: ...


class Reach:
    """Asks peers to dial this node, and dials those that ask.

    It is an acceptor of the network: what is found closed is advertised no more until it is found open again.
    """

    def __init__(
        self,
        options: ReachOptions | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        log: Callable[..., None] = lambda *_args, **_fields: None,
    ) -> None:
        self._options = options or ReachOptions()
        self._now_ms = now_ms
        self._log = log
        self._network: _Network | None = None
        self._acceptance: Acceptance | None = None
        self._votes: dict[Endpoint, Votes] = {}
        self._told: dict[Endpoint, Verdict] = {}
        self._asked_at: dict[tuple[Endpoint, str], float] = {}
        self._dials = 0
        self._per_peer = RateLimiter(per_s=1 / self._options.per_peer_s, burst=2)
        self._in_all = RateLimiter(per_s=self._options.in_all_per_s, burst=4)

    def attach(self, network: _Network) -> None:
        """Register with the network, before it runs."""
        self._network = network
        network.on_request(METHOD_DIAL_BACK, self._serve)

    def verdict(self, endpoint: Endpoint) -> Verdict:
        """Return what is known of an own endpoint."""
        votes = self._votes.get(endpoint)
        return Verdict.UNKNOWN if votes is None else votes.verdict

    @property
    def verdicts(self) -> dict[Endpoint, Verdict]:
        """What is known of the own endpoints."""
        return {endpoint: self.verdict(endpoint) for endpoint in self._own}

    @property
    def _own(self) -> Sequence[Endpoint]:
        assert self._network is not None, "not attached"
        return self._network.direct

    # -- asking ----------------------------------------------------------------------------------------------

    async def run(self, acceptance: Acceptance) -> None:
        """Ask, soon after the start and from time to time, until cancelled."""
        options = self._options
        self._acceptance = acceptance
        while True:
            own = list(self._own)
            self._votes = {e: self._votes.get(e) or Votes(options.networks_min) for e in own}
            self._asked_at = {key: at for key, at in self._asked_at.items() if key[0] in self._votes}
            for endpoint in own:
                await self._ask_about(endpoint)
            is_open = any(votes.verdict is Verdict.UNKNOWN for votes in self._votes.values())
            await trio.sleep(options.ask_again_s if is_open else options.ask_every_s)

    async def _ask_about(self, endpoint: Endpoint) -> None:
        """Ask one peer of each network, until enough have spoken."""
        assert self._network is not None
        options, now = self._options, trio.current_time()
        asked: set[str] = set()
        for peer in self._network.peers():
            try:
                network = network_of(peer.remote)
            except ValueError:
                continue  # it comes through a relay: from there nothing can be said
            recently = now - self._asked_at.get((endpoint, network), -inf) < options.per_peer_s
            if network in asked or recently or len(asked) > options.networks_min:
                continue
            asked.add(network)
            self._asked_at[endpoint, network] = now
            try:
                answer = await self._network.request(
                    peer.address,
                    METHOD_DIAL_BACK,
                    encode([str(endpoint)]),
                    timeout_s=2 * options.timeout_s,
                    limit_bytes=_ANSWER_BYTES_MAX,
                )
            except (RequestFailed, PeerUnreachable):
                continue  # it will not or cannot say
            self._votes[endpoint].add(network, answer == b"\1")
        verdict = self._votes[endpoint].verdict
        if verdict is not Verdict.UNKNOWN and self._told.get(endpoint) is not verdict:
            self._told[endpoint] = verdict
            self._log("own endpoint judged by others", endpoint=str(endpoint), verdict=verdict.value)
            if self._acceptance is not None:
                open_ones = tuple(e for e in self._own if self._told.get(e) is not Verdict.CLOSED)
                self._acceptance.advertise(SOURCE_LISTEN, open_ones)

    # -- being asked -----------------------------------------------------------------------------------------

    async def _serve(self, peer: bytes, body: bytes) -> bytes:
        match decode(body, limit_bytes=ENDPOINT_CHARACTERS_MAX + 8):
            case [str(text)]:
                endpoint = Endpoint.parse(text)
            case _:
                raise DecodeError("not an endpoint")
        assert self._network is not None
        info = self._network.peer(peer)
        remote = "" if info is None else info.remote
        try:
            is_own = endpoint.relay is None and ip_address(endpoint.host) == ip_address(remote.partition("%")[0])
        except ValueError:
            is_own = False
        if not is_own:
            raise RequestRefused("not the host that you come from")
        now = trio.current_time()
        if self._dials >= self._options.dials_max:
            raise RequestRefused("busy")
        if not self._per_peer.allows(peer, now) or not self._in_all.allows(None, now):
            raise RequestRefused("asked too often")
        self._dials += 1
        try:
            return b"\1" if await self._answers(endpoint, peer) else b"\0"
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
