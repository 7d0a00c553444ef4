"""Runs ``p2p.multicast.core`` between the peers of a network and its relays."""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.randomness import RandomSource
from p2p.base.transport import Fanout
from p2p.multicast.core import Multicast
from p2p.multicast.pieces import MESSAGE_BYTES_MAX
from p2p.multicast.wire import (
    TICK_S,
    Deliver,
    Effect,
    Finished,
    Member,
    MulticastParameters,
    Publish,
    ReportFault,
    SendControl,
    SendPiece,
)
from p2p.records.records import PeerRecord
from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity
from p2p.session.peerinfo import PeerInfo
from state.primitives.errors import DekubeError

__all__ = ["KIND_MULTICAST", "KIND_PIECE", "UPLOAD_BYTES_MIN", "MulticastService"]

KIND_MULTICAST: Final = 0xD8
KIND_PIECE: Final = 0xD9
UPLOAD_BYTES_MIN: Final = 1024 * 1024
"""Message size times receivers: the upload without relays. Below this, pieces cost more than they save."""
RECEIVERS_MIN: Final = 3
RECEIVERS_MAX: Final = 256
"""Size of one group at a relay; further receivers get the message directly."""
RELAYS_WARM_MAX: Final = 3
"""Other nodes' relays at which the committee waits, to which connections are kept."""
WARM_INTERVAL_S: Final = 1.0
PUBLISH_S_MAX: Final = 5.0
"""A relay that takes longer to accept one piece has failed."""
BLAME_POINTS: Final = 10.0
RTT_UNKNOWN_S: Final = 0.1
DELIVERIES_MAX: Final = 256
DELIVERIES_BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit of messages that wait for their handler."""


class _Peers(Protocol):
    """The part of the network that is used here."""

    identity: Identity
    counters: Counter[str]

    @property
    def persistent(self) -> frozenset[bytes]: ...
    def on_message(self, kind: int, handler: Callable[[bytes, bytes], Awaitable[None]]) -> None: ...
    def on_peer(self, watcher: Callable[[bytes, bool], None]) -> None: ...
    def send(self, address: bytes, cls: TrafficClass, kind: int, body: bytes) -> bool: ...
    def broadcast(self, addresses: Iterable[bytes], cls: TrafficClass, kind: int, body: bytes) -> int: ...
    def is_connected(self, address: bytes) -> bool: ...
    def peers(self) -> list[PeerInfo]: ...
    def record(self, address: bytes) -> PeerRecord | None: ...
    def penalise(self, address: bytes, points: float) -> None: ...


class MulticastService:
    """Sends to many and receives from many; ``deliver(sender, kind, body)`` takes each whole message."""

    def __init__(
        self,
        network: _Peers,
        fanout: Fanout | None,
        *,
        deliver: Callable[[bytes, int, bytes], Awaitable[None]],
        random: RandomSource,
        log: Callable[..., None],
        parameters: MulticastParameters | None = None,
    ) -> None:
        self.core = Multicast(network.identity.address, random=random, parameters=parameters)
        self.finished: deque[Finished] = deque(maxlen=64)
        """The results of the last own messages."""
        self._network = network
        self._fanout = fanout
        self._deliver = deliver
        self._random = random
        self._log = log
        self._endpoints: dict[bytes, Endpoint] = {}
        self._deliveries: deque[Deliver] = deque()
        self._delivery_bytes = 0
        self._wake = trio.Event()
        self._arrived = trio.Event()
        self._nursery: trio.Nursery | None = None
        network.on_message(KIND_MULTICAST, self._on_control)
        network.on_message(KIND_PIECE, self._on_piece)
        network.on_peer(self._on_peer)

    def send(
        self, addresses: Iterable[bytes], cls: TrafficClass, kind: int, body: bytes, *,
        followers: Iterable[bytes] = (), upload_bytes_min: int = UPLOAD_BYTES_MIN,
    ) -> None:  # fmt: skip
        """Send a message to all ``addresses``, and to ``followers`` if that does not delay the others.

        A small message, or one for few receivers, is queued for each of them instead: below ``upload_bytes_min``
        in total.
        """
        own = self._network.identity.address
        first = [address for address in dict.fromkeys(addresses) if address != own]
        seen = {own, *first}
        others = [address for address in dict.fromkeys(followers) if address not in seen]
        if len(first) + len(others) > RECEIVERS_MAX:
            everybody = [*first, *others]
            self._network.broadcast(everybody[RECEIVERS_MAX:], cls, kind, body)
            first, others = first[:RECEIVERS_MAX], others[: max(0, RECEIVERS_MAX - len(first))]
        upload_bytes = len(body) * (len(first) + len(others))
        if (
            self._nursery is None
            or upload_bytes < upload_bytes_min
            or len(first) + len(others) < RECEIVERS_MIN
            or len(body) > MESSAGE_BYTES_MAX
        ):
            self._network.broadcast([*first, *others], cls, kind, body)
            return
        self.core.trusted = self._network.persistent
        rtt_s = {info.address: info.rtt_ms / 1_000 for info in self._network.peers() if info.rtt_ms is not None}
        connected = self._network.is_connected
        members = [
            Member(address, rtt_s.get(address, RTT_UNKNOWN_S), connected(address), may_wait)
            for group, may_wait in ((first, False), (others, True))
            for address in group
        ]
        routes = self._routes([*first, *others]) if self._fanout is not None else {}
        key, now = secrets.token_bytes(32), trio.current_time()
        self._do(self.core.send(kind, body, members, routes, key=key, now=now))

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tick)
                nursery.start_soon(self._hand_over)
                if self._fanout is not None:
                    nursery.start_soon(self._fanout.run, self._on_relay_piece)
                    nursery.start_soon(self._keep_warm, self._fanout)
        finally:
            self._nursery = None

    # -- relays ----------------------------------------------------------------------------------------------

    def _routes(self, addresses: Sequence[bytes]) -> dict[bytes, set[bytes]]:
        """Return which receivers are subscribed at which relay: own relays first, the others in random order."""
        waiting: dict[bytes, set[bytes]] = {}
        spelt: dict[bytes, Counter[Endpoint]] = {}
        for address in addresses:
            for endpoint in self._relays_of(address):
                assert endpoint.relay is not None
                waiting.setdefault(endpoint.relay, set()).add(address)
                spelt.setdefault(endpoint.relay, Counter())[endpoint] += 1
        own = {e.relay: e for e in self._relays_of(self._network.identity.address) if e.relay is not None}
        for relay, spellings in spelt.items():  # most of those who wait there know where it is
            self._endpoints[relay] = own.get(relay) or spellings.most_common(1)[0][0]
        self._endpoints = {relay: e for relay, e in self._endpoints.items() if relay in waiting}
        order = list(waiting)
        self._random.shuffle(order)
        return {relay: waiting[relay] for relay in sorted(order, key=lambda relay: relay not in own)}

    def _relays_of(self, address: bytes) -> list[Endpoint]:
        record = self._network.record(address)
        return [] if record is None else [endpoint for endpoint in record.endpoints if endpoint.relay is not None]

    async def _keep_warm(self, fanout: Fanout) -> None:
        """Wait at the own relays, and connect to those at which most of the committee waits."""
        while True:
            trusted = self.core.trusted = self._network.persistent
            routes = self._routes(sorted(trusted))
            best = sorted(routes, key=lambda relay: -len(routes[relay]))[:RELAYS_WARM_MAX]
            warm = self._relays_of(self._network.identity.address) + [self._endpoints[relay] for relay in best]
            unique = {endpoint.relay: endpoint for endpoint in reversed(warm)}
            fanout.subscribe(tuple(unique.values()) if trusted else (), trusted)
            await trio.sleep(WARM_INTERVAL_S)

    async def _publish(self, publish: Publish, endpoint: Endpoint | None) -> None:
        assert self._fanout is not None
        core, root, relay = self.core, publish.root, publish.relay
        for members, frame in publish.parts:
            if not core.is_wanted(root, relay, members):
                continue
            try:
                if endpoint is None:
                    raise OSError("no member waits at this relay")
                with trio.fail_after(PUBLISH_S_MAX):
                    await self._fanout.publish(endpoint, members, frame)
            except (OSError, DekubeError, trio.TooSlowError) as error:
                self._log("a relay failed a multicast; another path is used", relay=relay.hex(), error=str(error))
                self._do(core.publish_failed(root, relay, trio.current_time()))
                return
            core.published(root, relay, members, trio.current_time())

    def _on_relay_piece(self, relay: bytes, publisher: bytes, piece: bytes) -> None:
        self._do(self.core.relay_piece(relay, publisher, piece, trio.current_time()))

    # -- peers -----------------------------------------------------------------------------------------------

    async def _on_control(self, peer: bytes, body: bytes) -> None:
        self.core.trusted = self._network.persistent
        self._do(self.core.control(peer, body, trio.current_time()))

    async def _on_piece(self, peer: bytes, body: bytes) -> None:
        self._do(self.core.peer_piece(peer, body, trio.current_time()))

    def _on_peer(self, address: bytes, is_there: bool) -> None:
        if is_there:
            self._do(self.core.peer_joined(address, trio.current_time()))
        else:
            self.core.peer_left(address)

    # -- what the core says ----------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        network = self._network
        for effect in effects:
            match effect:
                case SendControl(address, data):
                    network.send(address, TrafficClass.CONSENSUS, KIND_MULTICAST, data)
                case SendPiece(address, frame):
                    if not network.is_connected(address) or not network.send(
                        address, TrafficClass.BLOCK, KIND_PIECE, frame
                    ):
                        self.core.pass_failed(address, frame)
                case Publish():
                    if self._nursery is not None:
                        self._nursery.start_soon(self._publish, effect, self._endpoints.get(effect.relay))
                case Deliver():
                    size = len(effect.body)
                    has_room = self._delivery_bytes + size <= DELIVERIES_BYTES_MAX
                    if len(self._deliveries) < DELIVERIES_MAX and has_room:
                        self._deliveries.append(effect)
                        self._delivery_bytes += size
                        self._arrived.set()
                case ReportFault(address):
                    network.penalise(address, BLAME_POINTS)
                case Finished(size_bytes, members, missing, took_s):
                    self.finished.append(effect)
                    self._log(
                        "a multicast is done", bytes=size_bytes, members=members, missing=missing,
                        ms=round(1_000 * took_s),
                    )  # fmt: skip
        self._wake.set()

    async def _hand_over(self) -> None:
        while True:
            while self._deliveries:
                message = self._deliveries.popleft()
                self._delivery_bytes -= len(message.body)
                await self._deliver(message.sender, message.kind, message.body)
                await trio.lowlevel.checkpoint()
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def _tick(self) -> None:
        core, ticked_at = self.core, -math.inf
        while True:
            self._wake = trio.Event()
            if not core.is_active:
                await self._wake.wait()
                continue
            if core.pause_s > TICK_S:  # nobody is waited for; what happens now may change that
                with trio.move_on_at(ticked_at + core.pause_s):
                    await self._wake.wait()
            await trio.sleep_until(ticked_at + TICK_S)
            now = trio.current_time()
            if now >= ticked_at + core.pause_s:
                ticked_at = now
                self._do(core.tick(now))
            for name, count in self.core.counters.items():
                self._network.counters[f"multicast_{name}"] = count
