"""Direct connections between two nodes behind NAT, by TCP simultaneous open. See network.md 8.2.

The two nodes are already connected through a relay. Each opens connections from one local port to two *observers*
(relays, and peers that it dialled directly), which report the address at which they see it. If both see the same
address, the NAT keeps one mapping for all destinations, and the peer may use that address too. The nodes exchange
the observed addresses. At one agreed moment each dials the other from that port, so each NAT takes the other's
packet for an answer to its own.

If two observers disagree, others are asked, because one may lie. If no two see the same address, the NAT is
symmetric, and nothing is tried.

``HolePuncher`` is a transport (``p2p.base.transport``): a dialer of the scheme ``punch`` and an acceptor. The
handshake runs inside, so a lying observer or peer can only waste an attempt.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import trio

from p2p.base.dial_policy import DialPolicy
from p2p.base.endpoint import Endpoint
from p2p.base.errors import PeerUnreachable, PunchFailed, RequestFailed, RequestRefused
from p2p.base.observed_address import OBSERVE_PREAMBLE, OBSERVED_BYTES_MAX, ObservedAddress
from p2p.base.sockets import Connector, tune
from p2p.base.transport import Acceptance
from p2p.secure.identity import Identity
from p2p.session.peerinfo import PeerInfo
from p2p.session.requests import RequestHandler
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.token_bucket import RateLimiter

__all__ = [
    "METHOD_PUNCH",
    "PUNCHED",
    "HolePunchOptions",
    "HolePuncher",
    "PunchMessage",
]

METHOD_PUNCH: Final = "punch"
PUNCHED: Final = Endpoint("", 0, is_punched=True)
"""The path to any peer by hole punching."""
_MESSAGE_BYTES_MAX: Final = 128
_ATTEMPT_BYTES: Final = 16
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - whichever leads to the peer
_REDIAL_S: Final = 0.1
"""Interval of dials: short enough to meet the peer, long enough not to burden a host named in its place."""


@dataclass(frozen=True, slots=True)
class HolePunchOptions:
    """Limits of hole punching; times in seconds."""

    observe_s_max: float = 3.0
    tries: int = 3
    """Tries of the simultaneous dial in one attempt."""
    try_s: float = 1.5
    """Duration of one try: the kernel retransmits a lost packet after one second."""
    request_s_max: float = 5.0
    attempts_max: int = 8
    """Concurrent attempts of others."""
    per_peer_s: float = 10.0
    """Minimum interval of one peer's attempts (burst of two)."""
    in_all_per_s: float = 2.0
    observers_max: int = 4
    """Observers that are asked; the first two that agree are believed."""
    symmetric_s: float = 600.0
    """Pause after which a NAT is asked again if three or more observers all saw different addresses, ..."""
    contradicted_s: float = 60.0
    """... and the pause if there were only two: one of them may have lied."""
    look_s: float = 5.0
    """Interval of searches for peers that are reached through a relay."""
    settled_s: float = 5.0
    """Minimum age of such a peer: many disconnect soon."""
    again_s: float = 600.0
    """Pause after an attempt with a peer, successful or not."""
    turn_s: float = 30.0
    """How long the end with the higher address leaves the attempt to the other end."""


@dataclass(frozen=True, slots=True)
class PunchMessage:
    """A message between the two ends: with ``observed``, prepare an attempt; without it, dial now."""

    attempt: bytes
    observed: ObservedAddress | None = None

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([1, self.attempt, self.observed.encode()] if self.observed else [2, self.attempt])

    @classmethod
    def decode(cls, data: bytes) -> PunchMessage:
        """Return it from its canonical bytes. Raises DecodeError."""
        match decode(data, limit_bytes=_MESSAGE_BYTES_MAX):
            case [1, bytes(attempt), bytes(observed)] if len(attempt) == _ATTEMPT_BYTES:
                return cls(attempt, ObservedAddress.decode(observed))
            case [2, bytes(attempt)] if len(attempt) == _ATTEMPT_BYTES:
                return cls(attempt)
            case _:
                raise DecodeError("malformed hole punching message")


class _Network(Protocol):
    """The part of the network that is used here."""

    identity: Identity

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes: ...

    def peers(self) -> list[PeerInfo]: ...

    def peer(self, address: bytes) -> PeerInfo | None: ...

    async def move(self, address: bytes, endpoint: Endpoint) -> bool: ...

    def on_paths(self, maker: Callable[[bytes, tuple[Endpoint, ...]], Iterable[Endpoint]]) -> None: ...

    def on_request(self, method: str, handler: RequestHandler) -> None: ...


LookUp = Callable[[str, socket.AddressFamily], Awaitable[list[str]]]
"""Returns the addresses of a host. Raises OSError."""


class _Port:
    """One local port, with connections to the observers while the attempt lasts."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self.family = family
        self.number = 0
        self._held: list[trio.socket.SocketType] = []

    def socket(self) -> trio.socket.SocketType:
        """Return a new socket of this port."""
        made = trio.socket.socket(self.family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if self.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return made

    async def bound(self) -> trio.socket.SocketType:
        """Return a new socket bound to this port; the first one chooses the port."""
        made = self.socket()
        try:
            await made.bind((_ANY[self.family], self.number))
        except BaseException:
            made.close()
            raise
        self.number = self.number or int(made.getsockname()[1])
        return made

    async def observe(self, observer: Endpoint, look_up: LookUp) -> ObservedAddress:
        """Ask one observer; the connection stays open and keeps the mapping. Raises OSError, DecodeError."""
        sock = await self.bound()
        self._held.append(sock)
        found = await look_up(observer.host, self.family)
        await sock.connect((found[0], observer.port))
        await sock.send(OBSERVE_PREAMBLE)
        data = b""
        while not data or len(data) < 1 + data[0]:
            more = await sock.recv(1 + OBSERVED_BYTES_MAX - len(data))
            if not more or len(data) + len(more) > 1 + OBSERVED_BYTES_MAX:
                raise DecodeError("malformed answer of an observer")
            data += more
            if data[0] > OBSERVED_BYTES_MAX:
                raise DecodeError("malformed answer of an observer")
        return ObservedAddress.decode(data[1 : 1 + data[0]])

    def close(self) -> None:
        """Close the port."""
        for sock in self._held:
            sock.close()
        self._held.clear()


@dataclass(slots=True)
class _Ready:
    """An attempt that the other end started."""

    port: _Port
    theirs: ObservedAddress
    tries: int = 0


class HolePuncher:
    """The scheme ``punch``: dials peers that are connected through a relay, and answers their attempts.

    ``observers`` returns public endpoints that answer ``OBSERVE_PREAMBLE``; at least two are needed. While it
    runs, it moves relayed peers to direct connections if that succeeds. Measurements decide whether they stay
    there, as for any path.
    """

    def __init__(
        self,
        observers: Callable[[], Sequence[Endpoint]],
        options: HolePunchOptions | None = None,
        *,
        look_up: LookUp | None = None,
    ) -> None:
        self._observers = observers
        self._look_up = look_up or Connector(DialPolicy(is_inner=True)).look_up
        self._options = options or HolePunchOptions()
        self._network: _Network | None = None
        self._acceptance: Acceptance | None = None
        self._nursery: trio.Nursery | None = None
        self._ready: dict[tuple[bytes, bytes], _Ready] = {}
        """Prepared attempts of others, by peer and number, that wait for the start message."""
        self._answering = 0
        self._per_peer = RateLimiter(per_s=1 / self._options.per_peer_s, burst=2)
        self._in_all = RateLimiter(per_s=self._options.in_all_per_s, burst=4)
        self._symmetric_until = -inf
        self._contradicted: dict[Endpoint, float] = {}
        """Observers that contradicted two agreeing ones, and until when they are asked last."""
        self._next: dict[bytes, float] = {}
        """When to try a peer."""
        self.attempts = 0
        self.successes = 0

    def attach(self, network: _Network) -> None:
        """Register with the network, before it runs."""
        self._network = network
        network.on_request(METHOD_PUNCH, self._serve)
        network.on_paths(self._ways)

    @property
    def can_try(self) -> bool:
        """Whether an attempt from here could succeed, as far as is known."""
        return len(self._observers()) >= 2 and trio.current_time() >= self._symmetric_until

    async def run(self, acceptance: Acceptance) -> None:
        """Answer others' attempts and make own ones, until cancelled."""
        self._acceptance = acceptance
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                while True:
                    await trio.sleep(self._options.look_s)
                    if self._network is not None and self.can_try:
                        await self._upgrade(self._network)
        finally:
            self._nursery = None
            self._acceptance = None

    # -- whom to dial ----------------------------------------------------------------------------------------

    def _ways(self, target: bytes, known: tuple[Endpoint, ...]) -> Iterable[Endpoint]:
        """Offer the punched path to a peer that is connected only through a relay or by hole punching."""
        info = self._network.peer(target) if self._network is not None else None
        if info is None or any(not endpoint.hops for endpoint in known):
            return ()
        is_there = info.remote == str(PUNCHED)
        return (PUNCHED,) if is_there or (info.is_attached and self.can_try) else ()

    async def _upgrade(self, network: _Network) -> None:
        """Try one attempt with each peer that is due, one after the other."""
        options, now = self._options, trio.current_time()
        relayed = [info for info in network.peers() if info.remote.startswith("relay:") and info.is_attached]
        self._next = {info.address: self._next[info.address] for info in relayed if info.address in self._next}
        for info in relayed:
            if info.age_s < options.settled_s:
                continue
            is_first = network.identity.address < info.address
            due = self._next.setdefault(info.address, now if is_first else now + options.turn_s)
            if due <= trio.current_time():
                self._next[info.address] = trio.current_time() + options.again_s
                await network.move(info.address, PUNCHED)

    # -- dialling --------------------------------------------------------------------------------------------

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a direct stream to ``target``, which must be connected already. Raises PunchFailed, OSError."""
        network = self._network
        info = None if network is None or target is None else network.peer(target)
        if network is None or target is None or info is None or not info.is_attached:
            raise PunchFailed("the target is not connected")
        self.attempts += 1
        options = self._options
        attempt = secrets.token_bytes(_ATTEMPT_BYTES)
        port, own = await self._open()
        try:
            answer = await self._ask(target, PunchMessage(attempt, own))
            theirs = _checked(ObservedAddress.decode(answer), own)
            for _ in range(options.tries):
                began = trio.current_time()
                # The peer dials when the word reaches it: half a round trip after it left.
                info = network.peer(target)
                half_s = 0.0 if info is None or info.rtt_ms is None else info.rtt_ms / 2_000
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say_go, target, attempt)
                    await trio.sleep(min(half_s, options.try_s))
                    stream = await _dial_until(port, theirs, trio.current_time() + options.try_s)
                    nursery.cancel_scope.cancel()
                if stream is not None:
                    self.successes += 1
                    return stream
                await trio.sleep_until(began + options.try_s)
            raise PunchFailed("the simultaneous connect failed")
        except DecodeError as error:
            raise PunchFailed(str(error)) from None
        finally:
            port.close()

    async def _say_go(self, target: bytes, attempt: bytes) -> None:
        with suppress(RequestFailed, PeerUnreachable):  # it may have heard the word all the same
            await self._ask(target, PunchMessage(attempt))

    async def _ask(self, target: bytes, word: PunchMessage) -> bytes:
        assert self._network is not None
        return await self._network.request(
            target,
            METHOD_PUNCH,
            word.encode(),
            timeout_s=self._options.request_s_max,
            limit_bytes=OBSERVED_BYTES_MAX,
        )

    async def _open(self) -> tuple[_Port, ObservedAddress]:
        """Return a port and its observed address. Raises PunchFailed if observers disagree or too few answer."""
        if not self.can_try:
            raise PunchFailed("fewer than two observers, or a symmetric NAT")
        families = [socket.AF_INET, socket.AF_INET6]
        reasons: list[str] = []
        for family in families:
            port = _Port(family)
            try:
                seen, found = await self._see(port, reasons)
            except BaseException:  # for example, the requesting peer has left
                port.close()
                raise
            now = trio.current_time()
            if found is not None:
                for observer in [observer for observer, answer in seen.items() if answer != found]:
                    self._contradicted[observer] = now + self._options.symmetric_s
                return port, found
            port.close()
            if len(seen) >= 2:
                pause_s = self._options.symmetric_s if len(seen) > 2 else self._options.contradicted_s
                self._symmetric_until = now + pause_s
                raise PunchFailed("observers see different addresses: a symmetric NAT")
        raise PunchFailed("; ".join(reasons[-2:]) or "no observer")

    async def _see(
        self, port: _Port, reasons: list[str]
    ) -> tuple[dict[Endpoint, ObservedAddress], ObservedAddress | None]:
        """Return the addresses that observers see, and the one on which two agree; ``reasons`` has the failures of
        others.
        """
        seen: dict[Endpoint, ObservedAddress] = {}
        found: ObservedAddress | None = None
        for observer in self._in_turn():
            try:
                with trio.fail_after(self._options.observe_s_max):
                    answer = await port.observe(observer, self._look_up)
            except (OSError, DecodeError, trio.TooSlowError, ValueError) as error:
                reasons.append(f"{observer}: {str(error) or type(error).__name__}")
                continue
            found = answer if answer in seen.values() else None
            seen[observer] = answer
            if found is not None or len(seen) == self._options.observers_max:
                break
        return seen, found

    def _in_turn(self) -> list[Endpoint]:
        """Return the observers; those that others contradicted come last."""
        now = trio.current_time()
        self._contradicted = {observer: until for observer, until in self._contradicted.items() if until > now}
        return sorted(self._observers(), key=lambda observer: observer in self._contradicted)

    # -- answering -------------------------------------------------------------------------------------------

    async def _serve(self, peer: bytes, body: bytes) -> bytes:
        word = PunchMessage.decode(body)
        if word.observed is None:
            return self._go(peer, word.attempt)
        return await self._prepare(peer, word.attempt, word.observed)

    async def _prepare(self, peer: bytes, attempt: bytes, theirs: ObservedAddress) -> bytes:
        now = trio.current_time()
        if self._nursery is None or self._answering >= self._options.attempts_max:
            raise RequestRefused("busy")
        if not self._per_peer.allows(peer, now) or not self._in_all.allows(None, now):
            raise RequestRefused("requests exceed the rate limit")
        self._answering += 1
        try:
            port, own = await self._open()
            try:
                theirs = _checked(theirs, own)
            except DecodeError:
                port.close()
                raise
        except BaseException:
            self._answering -= 1
            raise
        self._ready[peer, attempt] = _Ready(port, theirs)
        self._nursery.start_soon(self._forget, peer, attempt)
        return own.encode()

    async def _forget(self, peer: bytes, attempt: bytes) -> None:
        options = self._options
        await trio.sleep(2 * options.tries * options.try_s + options.request_s_max)
        found = self._ready.pop((peer, attempt), None)
        if found is not None:
            found.port.close()
            self._answering -= 1

    def _go(self, peer: bytes, attempt: bytes) -> bytes:
        found = self._ready.get((peer, attempt))
        if found is None or self._nursery is None:
            raise RequestRefused("unknown attempt")
        if found.tries >= self._options.tries:
            raise RequestRefused(
                "requests exceed the rate limit"
            )  # every word makes this node knock at somebody's door
        found.tries += 1
        self._nursery.start_soon(self._answer, peer, attempt, found)
        return b""

    async def _answer(self, peer: bytes, attempt: bytes, ready: _Ready) -> None:
        port, theirs = ready.port, ready.theirs
        stream = await _dial_until(port, theirs, trio.current_time() + self._options.try_s)
        if stream is None:
            return
        if self._ready.pop((peer, attempt), None) is None or self._acceptance is None:
            await trio.aclose_forcefully(stream)  # too late, or a second one
            return
        self._answering -= 1
        port.close()
        self._acceptance.accept(stream, f"punch:{theirs.host}")


def _checked(theirs: ObservedAddress, own: ObservedAddress) -> ObservedAddress:
    """Return the peer's address if dialling it is harmless. Raises DecodeError.

    The named host gets a few packets. So others may not name hosts inside this node's private network.
    """
    if theirs.host.version != own.host.version:
        raise DecodeError("the peer's address has another IP version")
    if own.host.is_global and not theirs.host.is_global:
        raise DecodeError("the peer's address is private")
    if theirs.host.is_loopback and not own.host.is_loopback:
        raise DecodeError("the peer's address is a loopback address")
    return theirs


async def _dial_until(port: _Port, theirs: ObservedAddress, deadline: float) -> trio.SocketStream | None:
    """Dial from the port, and listen on it too: a peer without NAT may be faster."""
    result: trio.SocketStream | None = None

    async with trio.open_nursery() as nursery:

        def won(sock: trio.socket.SocketType) -> None:
            nonlocal result
            tune(sock)
            result = trio.SocketStream(sock)
            nursery.cancel_scope.cancel()

        async def listen() -> None:
            with suppress(OSError, DecodeError), await port.bound() as sock:  # else dialling alone must do
                sock.listen(1)
                while True:
                    arrived, name = await sock.accept()
                    if result is None and ObservedAddress.of(str(name[0]), int(name[1])) == theirs:
                        won(arrived)
                        return
                    arrived.close()

        async def connect() -> None:
            while True:
                sock = None
                try:
                    sock = await port.bound()
                    await sock.connect((str(theirs.host), theirs.port))
                except OSError:  # refused by a NAT that had no mapping yet
                    if sock is not None:
                        sock.close()
                    await trio.sleep(_REDIAL_S)
                    continue
                except BaseException:
                    if sock is not None:
                        sock.close()
                    raise
                if result is None:
                    won(sock)
                else:
                    sock.close()
                return

        nursery.cancel_scope.deadline = deadline
        nursery.start_soon(listen)
        nursery.start_soon(connect)
    return result
