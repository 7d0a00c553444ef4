"""A node's side of relays, on trio: keeps reservations at the best of its relays, brings in what is dialled
through them, and dials others through theirs, over one relay or several.

What it hands over are plain byte streams; the nodes shake hands inside, so neither this nor the relay is trusted
with anything but to carry bytes. A relay that dies, lies or falls silent costs its circuits; the rest goes on, and
what is held against it (``relay.client.reputation``) decides whether it is used again.
"""

from __future__ import annotations

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import structlog
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.netgroups import network_of
from p2p.base.sockets import Opener
from p2p.base.transport import Acceptance, Doubt
from p2p.secure.identity import Identity
from relay.client.circuit_stream import CircuitStream
from relay.client.control_link import Link, RelayClientOptions, local_host, wall_ms
from relay.client.data_connections import DataConnections
from relay.client.reputation import Fault, RelayJudge, has_swallowed
from relay.payment.metering import FreeTier, Tally, Tariff
from relay.protocol.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.link_state import LINK_STATE_S, LinkState
from relay.protocol.route import HOPS_MAX, NONCE_BYTES, Route
from relay.protocol.wire import (
    AskLinks,
    Connect,
    Extend,
    Incoming,
    Links,
    Message,
    Offered,
    Pay,
    Refused,
    Release,
    Reserve,
    Reserved,
    Terms,
    Voucher,
)
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["DownRelay", "RelayClient", "RelayClientOptions", "Reservation"]

RENEW_AT: Final = 0.8
"""Part of a reservation's life after which it is renewed."""
RENEW_S_MIN: Final = 0.5
LOOK_S: Final = 1.0
"""How often circuits are looked at: counted, and watched for silence."""
PROBES_MAX: Final = 8
"""Relays whose round trip is measured before some are chosen."""
RELAYS_MAX: Final = 512
"""Places of relays that are known beside those of the configuration; of more the one that was named longest ago is
forgotten."""
PLACES_MAX: Final = 4
"""Of those, places of one relay."""
TALLIES_MAX: Final = 1_024
"""Relays with a count, beyond which none is counted and paid for fan-out alone."""

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A relay's promise to carry circuits to this node."""

    endpoint: Endpoint
    voucher: Voucher
    observed: str
    """The host and port from which the relay sees this node, as the relay says."""


@dataclass(frozen=True, slots=True)
class DownRelay:
    """A relay at which this node wants a reservation and has none."""

    endpoint: Endpoint
    since_s: float
    """When the reservation was lost, or first failed; on trio's clock."""
    why: str
    """The newest reason."""


@dataclass(slots=True, eq=False)
class _Running:
    """A circuit as the client accounts for it; only a dialler pays."""

    stream: CircuitStream
    counted: dict[bytes, int] = field(default_factory=dict)
    tiers: dict[bytes, FreeTier] = field(default_factory=dict)


class RelayClient:
    """Both seams of the peer network: a ``Dialer`` of the scheme ``relay`` and an ``Acceptor``.

    ``make_identity`` returns the node's current identity; it is asked before each handshake with a relay.
    ``dial`` waits for ``run`` to start, and works while it runs, whether or not there are relays to reserve at.
    """

    def __init__(
        self,
        make_identity: Callable[[], Identity],
        relays: Sequence[Endpoint] = (),
        options: RelayClientOptions | None = None,
        *,
        connect: Opener = trio.open_tcp_stream,
    ) -> None:
        for endpoint in relays:
            _check_relay(endpoint)
        self.connect = connect
        self.judge = RelayJudge()
        self.link_states: dict[bytes, LinkState] = {}
        """What our relays say of their ways to others, by relay."""
        self._make_identity = make_identity
        self._relays = tuple(dict.fromkeys(relays))
        self._configured = frozenset(self._relays)
        self._named_at: dict[Endpoint, int] = {}
        """Of those that are offered, with which offer last."""
        self._offers = 0
        self._is_needed = True
        self._options = options or RelayClientOptions()
        self._data = DataConnections(connect, self._options, self._bring_in)
        self._links: dict[Endpoint, Link] = {}
        self._reservations: dict[Endpoint, Reservation] = {}
        self._keepers: dict[Endpoint, trio.CancelScope] = {}
        self._leaving: dict[Endpoint, float] = {}
        self._down: dict[Endpoint, DownRelay] = {}
        self._missed: Counter[Endpoint] = Counter()
        """How often in a row a place of a known relay could not be connected to."""
        self._watchers: list[Callable[[Endpoint], None]] = []
        self._circuits: dict[CircuitStream, _Running] = {}
        self._tallies: dict[bytes, Tally] = {}
        self._changed = trio.Event()
        self._rechoose = trio.Event()
        self._incoming = 0
        self._started = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._acceptance: Acceptance | None = None

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The promises that stand now, in the order of the known relays."""
        return tuple(self._reservations[e] for e in self._relays if e in self._reservations)

    @property
    def down(self) -> tuple[DownRelay, ...]:
        """The relays at which a reservation is wanted and cannot be had, in the order of the known relays."""
        reserved = {endpoint.relay for endpoint in self._reservations}
        found: dict[bytes | None, DownRelay] = {}
        for endpoint in self._relays:
            if endpoint in self._down and endpoint.relay not in reserved:
                found.setdefault(endpoint.relay, self._down[endpoint])
        return tuple(found.values())

    @property
    def links(self) -> tuple[Endpoint, ...]:
        """Relays that are connected now, or being connected to."""
        return tuple(self._links)

    @property
    def circuits(self) -> tuple[CircuitStream, ...]:
        """Circuits that run now."""
        return tuple(self._circuits)

    def offer(self, relays: Iterable[Endpoint]) -> None:
        """Say which relays there are beside those of the configuration, for example by the chain's registry."""
        known = dict.fromkeys(self._relays)
        self._offers += 1
        for endpoint in relays:
            _check_relay(endpoint)
            known[endpoint] = None
            self._named_at[endpoint] = self._offers
        self._forget_relays(known)
        if tuple(known) != self._relays:
            self._relays = tuple(known)
            self._rechoose.set()
            for endpoint in self._reservations:
                self._announce(endpoint, self._places_of(endpoint))

    def _forget_relays(self, known: dict[Endpoint, None]) -> None:
        """Forget the places of relays that have moved: over the months they say many, and some say any number."""
        loose = [e for e in known if e not in self._configured and e not in self._reservations]
        places = Counter(e.relay for e in known if e not in self._configured)
        left = sum(places.values())
        for endpoint in sorted(loose, key=lambda e: self._named_at.get(e, 0)):
            if left > RELAYS_MAX or places[endpoint.relay] > PLACES_MAX:
                del known[endpoint]
                places[endpoint.relay] -= 1
                left -= 1
        for kept in (self._named_at, self._missed, self._down):
            for endpoint in [endpoint for endpoint in kept if endpoint not in known]:
                del kept[endpoint]

    def need(self, is_needed: bool) -> None:
        """Say whether reservations are needed; where not, only those at the configuration's relays are kept."""
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self._rechoose.set()

    def roamed(self, gone: frozenset[str]) -> None:
        """End what runs from addresses that this machine has lost, so that it begins anew from where it is now.

        Nothing of it is held against the relays.
        """
        for link in list(self._links.values()):
            if link.local_host in gone:
                link.fail(RelayUnreachable("the address of this machine has changed"))
        for circuit in list(self._circuits):
            if local_host(circuit.socket) in gone and self._nursery is not None:
                self._nursery.start_soon(trio.aclose_forcefully, circuit)

    def on_leaving(self, watcher: Callable[[Endpoint], None]) -> None:
        """Call ``watcher`` with a relay's endpoint when the relay says that it will end soon.

        Whoever has circuits through it (``CircuitStream.endpoint.hops`` names it) should replace them now.
        """
        self._watchers.append(watcher)

    def is_leaving(self, endpoint: Endpoint) -> bool:
        """Whether a relay of this path is about to end."""
        now = trio.current_time()
        return any(self._leaving.get(hop, -math.inf) > now for hop in endpoint.hops)

    def ways(self, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
        """Return the paths of two relays: through one of ours to each relay among a target's ``endpoints``."""
        own = [reservation.endpoint for reservation in self.reservations]
        return tuple(
            replace(endpoint, via=relay)
            for endpoint in endpoints
            if endpoint.relay is not None and endpoint.via is None
            for relay in own
            if relay.relay != endpoint.relay and not self.is_leaving(relay) and not self.is_avoided(relay)
        )

    def estimate(self, endpoint: Endpoint) -> float | None:
        """Return the round trip in seconds to the path's last relay (``Estimator``).

        As far as it was measured here and by the relays; None: not known.
        """
        hops = endpoint.hops
        first = hops[0].relay if hops else None
        rtt_s = None if first is None else self.judge.rtt_s(first)
        if first is None or rtt_s is None:
            return None
        for before, after in pairwise(hops):
            state = None if before.relay is None else self.link_states.get(before.relay)
            link = None if state is None else dict(state.links).get(after.relay or b"")
            if link is None:
                return None
            rtt_s += link.rtt_us / 1_000_000
        return rtt_s

    async def wait_reserved(self, count: int = 1) -> None:
        """Wait until at least ``count`` reservations stand."""
        while len(self._reservations) < count:
            await self._changed.wait()

    async def run(self, acceptance: Acceptance) -> None:
        """Keep the reservations and bring the circuits that others dial, until cancelled."""
        assert self._nursery is None, "runs already"
        self._acceptance = acceptance
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self._data.nursery = nursery
                self._started.set()
                nursery.start_soon(self._choose)
                nursery.start_soon(self._look)
                nursery.start_soon(self._learn_links)
                await trio.sleep_forever()
        finally:
            self._nursery = self._data.nursery = None
            self._acceptance = None
            self._circuits.clear()  # they go on, unwatched

    # Dialling.

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a byte stream to the node ``target`` through the relays of ``endpoint``.

        Raises RelayRefused, RelayUnreachable or RelayProtocolError (the relay's fault); the caller sets the time
        limit.
        """
        hops = endpoint.hops
        if not hops or target is None:
            raise RelayUnreachable("a relay and the address behind it are needed")
        if len(hops) > HOPS_MAX:
            raise RelayUnreachable(f"a path has at most {HOPS_MAX} relays")
        await self._started.wait()
        first = hops[0]
        try:
            link = await self._link(first)
            self._check_price(hops)
            if len(hops) == 1:
                stream = await self._circuit(
                    link, lambda request, parked: Connect(request, target, parked)
                )  # fmt: skip
            else:
                nonce = secrets.token_bytes(NONCE_BYTES)
                route = Route.sign(self._make_identity(), hops, target, now_ms=wall_ms(), nonce=nonce).encode()
                stream = await self._circuit(link, lambda request, parked: Extend(request, route, parked))
                self._meet(hops[1:])
        except RelayProtocolError:
            self._blame(first, Fault.LIED)
            raise
        except RelayRefused as error:
            if error.refusal is Refusal.RELAY_FULL and len(hops) == 1:  # else it may be another's word
                self._blame(first, Fault.REFUSED)
            raise
        return self._track(stream, endpoint, target)

    async def _circuit(self, link: Link, question: Callable[[int, bytes], Message]) -> trio.SocketStream:
        """Ask for a circuit and return its data connection, joined."""
        parked = link.take_parked()
        token = b"" if parked is None else parked.token
        link.used_at = trio.current_time()
        is_ours = False
        try:
            answer = await link.ask(lambda request: question(request, token))
            match answer:
                case Offered(_, offered, _) if parked is not None and offered == token:
                    is_ours = True
                    return await self._data.joined(link, parked)
                case Offered(_, offered, _):
                    return await self._data.open(link.endpoint, offered)
                case Refused(_, refusal, _):
                    raise RelayRefused(refusal)
                case _:
                    raise link.fail(RelayProtocolError("an answer to another question"))
        finally:
            if parked is not None and not is_ours:
                self._data.give_back(link, parked)

    def _track(self, stream: trio.SocketStream, endpoint: Endpoint, target: bytes | None) -> CircuitStream:
        """Return the stream of a circuit, counted from here on."""
        circuit = CircuitStream(stream, endpoint, target, self._circuit_closed, self._doubt)
        self._circuits[circuit] = _Running(circuit)
        return circuit

    def _circuit_closed(self, circuit: CircuitStream) -> None:
        running = self._circuits.pop(circuit, None)
        if running is not None:
            self._count(running)

    def _doubt(self, circuit: CircuitStream, doubt: Doubt) -> None:
        """Hold against the relays of a circuit what its end has found of it."""
        match doubt:
            case Doubt.CHANGED:
                fault = Fault.BROKEN
            case Doubt.SLOW:
                fault = Fault.HELD_UP
            case Doubt.SILENT if self._has_swallowed(circuit):
                fault = Fault.STALLED
            case _:
                return
        if not self.is_leaving(circuit.endpoint):
            for hop in circuit.endpoint.hops:
                self._blame(hop, fault, about=circuit.target or b"", among=len(circuit.endpoint.hops))

    def _has_swallowed(self, circuit: CircuitStream) -> bool:
        since, link = circuit.silent_since, self._links.get(circuit.endpoint.hops[0])
        if since is None or link is None:
            return False
        return has_swallowed(silent_s=trio.current_time() - since, spoke_s=link.heard_at - since)

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Tell whether a relay of this path is held to be bad (``Wary``)."""
        now = trio.current_time()
        return any(
            self._speaks_for_its_relay(e) and self.judge.is_left(e.relay or b"", now) for e in endpoint.hops
        )

    def _check_price(self, hops: Sequence[Endpoint]) -> None:
        for hop in hops:
            tally = self._tallies.get(hop.relay or b"")
            tariff = None if tally is None else tally.tariff
            if tariff is not None and tariff.price_per_gib > self._options.price_per_gib_max:
                raise RelayUnreachable(f"{hop}: asks for more than this node pays")

    def _meet(self, hops: Sequence[Endpoint]) -> None:
        """Connect to the later relays of a path as well, to learn their terms and pay them."""
        for hop in hops:
            if hop not in self._links and self._nursery is not None:
                self._nursery.start_soon(self._try_link, hop)

    def published(self, relay: Endpoint, size_bytes: int) -> None:
        """Note that ``relay`` was given a piece to hand on, so many bytes if everybody gets it, and pay for it."""
        address = relay.relay or b""
        tally = self._tallies.get(address)
        if tally is None:
            if len(self._tallies) >= TALLIES_MAX:
                return
            tally = self._tallies[address] = Tally(address)
        tally.published(size_bytes)
        if tally.tariff is None or tally.tariff.price_per_gib:
            self._meet([relay])

    async def _try_link(self, endpoint: Endpoint) -> None:
        try:
            await self._link(endpoint)
        except RelayUnreachable as error:
            log.debug("relay not met", relay=str(endpoint), error=str(error))

    # What was carried, and what it costs.

    def terms(self, link: Link, terms: Terms) -> None:
        """Take a relay's terms; its channel begins."""
        tally = self._tallies.setdefault(link.relay, Tally(link.relay))
        if tally.channel == link.channel.channel:
            link.fail(RelayProtocolError("other terms on the same channel"))
            return
        tally.tariff = Tariff(terms.price_per_gib, terms.free_bytes, terms.free_ms, terms.unpaid_bytes_max)
        tally.opened(link.channel.channel, wall_ms(), _now_ms())

    def charged(self, link: Link, size_bytes: int) -> None:
        """Take a relay's claim, and pay or hold it against it."""
        for running in self._circuits.values():
            self._count(running)
        tally = self._tallies.get(link.relay)
        if tally is not None and not tally.claimed(size_bytes):
            self._blame(link.endpoint, Fault.OVERCHARGED)
        self._pay(link)

    def _count(self, running: _Running) -> None:
        stream = running.stream
        if stream.target is None:
            return  # who dialled pays
        total = stream.bytes_sent + stream.bytes_received
        for hop in stream.endpoint.hops:
            tally = self._tallies.get(hop.relay or b"")
            if tally is None or tally.tariff is None:
                continue  # its terms are on their way
            tier = running.tiers.get(tally.relay)
            if tier is None:
                tier = running.tiers[tally.relay] = FreeTier(tally.tariff, int(stream.opened_at * 1000))
            moved = total - running.counted.get(tally.relay, 0)
            running.counted[tally.relay] = total
            tally.size_bytes += tier.charge(moved, _now_ms())

    def _pay(self, link: Link) -> None:
        tally = self._tallies.get(link.relay)
        if tally is None or tally.tariff is None or tally.tariff.price_per_gib > self._options.price_per_gib_max:
            return
        if link.error is None and link.opened.is_set() and tally.channel == link.channel.channel:
            receipt = tally.due(self._make_identity(), _now_ms(), wall_ms())
            if receipt is not None:
                link.post(Pay(receipt.encode()))

    async def _look(self) -> None:
        """Count what circuits carry, and pay."""
        while True:
            await trio.sleep(LOOK_S)
            for running in self._circuits.values():
                self._count(running)
            for link in list(self._links.values()):
                self._pay(link)

    # Which relays, and where.

    def _places_of(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """Return all the places of the relay at one of them: it may have several, as of IPv4 and of IPv6."""
        others = (known for known in self._relays if known.relay == endpoint.relay)
        return tuple(dict.fromkeys((endpoint, *others)))

    def _one_place_each(self, known: Sequence[Endpoint]) -> list[Endpoint]:
        """Return one place of each relay: where it has reserved for us, else the one least missed."""
        chosen: dict[bytes | None, Endpoint] = {}
        for endpoint in sorted(known, key=lambda e: (e not in self._reservations, self._missed[e])):
            chosen.setdefault(endpoint.relay, endpoint)
        return [endpoint for endpoint in known if chosen[endpoint.relay] == endpoint]

    def _miss(self, endpoint: Endpoint) -> bool:
        """Note that a relay could not be connected to at one of its places; whether it is to blame for that."""
        if endpoint not in self._relays:
            return True
        self._missed[endpoint] += 1
        return all(self._missed[other] >= self._missed[endpoint] for other in self._places_of(endpoint))

    async def _choose(self) -> None:
        """Keep reservations at the best relays that are known."""
        while True:
            self._rechoose = trio.Event()
            now = trio.current_time()
            self._leaving = {e: until for e, until in self._leaving.items() if until > now}
            needed = [e for e in self._relays if self._is_needed or e in self._configured]
            known = self._one_place_each([e for e in needed if e not in self._leaving])
            if len(known) > self._options.reservations:
                await self._probe(known)
            for endpoint in self._wanted(known):
                if endpoint not in self._keepers and self._nursery is not None:
                    self._keepers[endpoint] = trio.CancelScope()
                    self._nursery.start_soon(self._keep, endpoint, self._keepers[endpoint])
            with trio.move_on_after(self._options.choose_s):
                await self._rechoose.wait()
            await trio.sleep(self._options.backoff_s_min * random.uniform(0.5, 1))

    def _wanted(self, known: Sequence[Endpoint]) -> list[Endpoint]:
        """Return the relays to reserve at, of as many networks as there are, and end what is kept elsewhere.

        Several relays of one house end together, and may be one operator's.
        """
        now = trio.current_time()
        order = self.judge.order(dict.fromkeys(e.relay or b"" for e in known), now)
        rank = {relay: at for at, relay in enumerate(order)}

        def cost(endpoint: Endpoint) -> tuple[bool, bool, int]:
            relay = endpoint.relay or b""
            # One that is held and does its work is not given up for one that is a little nearer.
            return self.judge.is_left(relay, now), endpoint not in self._reservations, rank[relay]

        turns: Counter[tuple[bool, str]] = Counter()
        ranks: list[tuple[bool, int, Endpoint]] = []
        for endpoint in sorted(known, key=cost):
            is_left = self.judge.is_left(endpoint.relay or b"", now)
            turns[is_left, _network_of(endpoint.host)] += 1
            ranks.append((is_left, turns[is_left, _network_of(endpoint.host)], endpoint))
        wanted = [e for *_, e in sorted(ranks, key=lambda ranked: ranked[:2])[: self._options.reservations]]
        for endpoint, scope in list(self._keepers.items()):
            if endpoint not in wanted:
                scope.cancel()
                del self._keepers[endpoint]
        for endpoint in [e for e in self._down if e not in wanted and e not in self._configured]:
            if endpoint not in self._leaving:
                del self._down[endpoint]
        return wanted

    async def _probe(self, known: Sequence[Endpoint]) -> None:
        """Measure the way to some relays that nothing is known of."""
        unknown = [e for e in known if self.judge.rtt_s(e.relay or b"") is None and e not in self._links]
        sample = random.sample(unknown, min(PROBES_MAX, len(unknown)))
        with trio.move_on_after(self._options.connect_s_max):
            async with trio.open_nursery() as nursery:
                for endpoint in sample:
                    nursery.start_soon(self._try_link, endpoint)

    def leaving(self, link: Link, left_ms: int) -> None:
        """Take a relay's word that it ends soon: go elsewhere."""
        endpoint = link.endpoint
        until = trio.current_time() + left_ms / 1000 + self._options.backoff_s_max
        is_news = endpoint not in self._leaving
        self._leaving[endpoint] = until
        if not is_news:
            return
        log.info("relay is about to end", relay=str(endpoint), left_ms=left_ms)
        scope = self._keepers.pop(endpoint, None)
        if scope is not None:
            scope.cancel()
            self._note_down(endpoint, "it is shutting down")
        self._rechoose.set()
        for watcher in self._watchers:
            watcher(endpoint)

    # Reservations.

    async def _keep(self, endpoint: Endpoint, scope: trio.CancelScope) -> None:
        """Hold a reservation at one relay until ``scope`` is cancelled."""
        try:
            with scope:
                await self._keep_on(endpoint)
        finally:
            link = self._links.get(endpoint)
            if self._forget_reservation(endpoint) and link is not None and link.error is None:
                link.is_ours = False
                link.post(Release())

    async def _keep_on(self, endpoint: Endpoint) -> None:
        options = self._options
        failures = 0
        while True:
            retry_s = 0.0
            started = trio.current_time()
            try:
                link = await self._link(endpoint, ours=True)
                while True:
                    life_s = await self._reserve(link)
                    with trio.move_on_after(max(RENEW_S_MIN, life_s * RENEW_AT)):
                        await link.ended.wait()
                        self._note_down(endpoint, str(link.error))
                        break
            except RelayRefused as error:
                self._note_down(endpoint, f"refused the reservation: {error.refusal.label}")
                log.warning("relay refused the reservation", relay=str(endpoint), reason=error.refusal.label)
                retry_s = options.backoff_s_max if endpoint not in self._reservations else 0.0
                self._blame(endpoint, Fault.REFUSED)
            except RelayProtocolError as error:
                self._note_down(endpoint, f"broke the protocol: {error}")
                log.warning("relay lied", relay=str(endpoint), detail=str(error))
                self._blame(endpoint, Fault.LIED)
            except RelayUnreachable as error:
                self._note_down(endpoint, str(error).removeprefix(f"{endpoint}: "))
                log.debug("relay not reached", relay=str(endpoint), error=error.code, detail=str(error))
            if self._forget_reservation(endpoint):
                log.warning("relay lost", relay=str(endpoint))
            self._rechoose.set()
            if trio.current_time() - started > options.backoff_s_max:
                failures = 0
            pause_s = min(options.backoff_s_max, options.backoff_s_min * 2 ** min(failures, 16))
            failures += 1
            await trio.sleep(max(pause_s, retry_s) * random.uniform(0.5, 1))

    def _note_down(self, endpoint: Endpoint, why: str) -> None:
        """Note that no reservation is had at a relay, for the operator; says so in the log once."""
        known = self._down.get(endpoint)
        since_s = trio.current_time() if known is None else known.since_s
        self._down[endpoint] = DownRelay(endpoint, since_s, why)
        if known is None and endpoint not in self._reservations:
            log.warning("relay is down", relay=str(endpoint), reason=why)

    def _forget_reservation(self, endpoint: Endpoint) -> bool:
        if self._reservations.pop(endpoint, None) is None:
            return False
        self._announce(endpoint, ())
        return True

    async def _reserve(self, link: Link) -> int:
        answer = await link.ask(lambda request: Reserve(request, self._options.reservation_s))
        match answer:
            case Reserved(_, life_s, voucher_bytes, observed):
                try:
                    voucher = Voucher.decode(voucher_bytes)
                    # Whether it has expired is for those to judge who rely on it: clocks differ.
                    voucher.check(link.relay, link.channel.certificate, client=link.own_address)
                except (DecodeError, RelayProtocolError) as error:
                    raise link.fail(RelayProtocolError(str(error))) from None
                is_new = link.endpoint not in self._reservations
                self._down.pop(link.endpoint, None)
                self._reservations[link.endpoint] = Reservation(link.endpoint, voucher, observed)
                if is_new:
                    log.info("relay reserved", relay=str(link.endpoint), observed=observed)
                    self._announce(link.endpoint, self._places_of(link.endpoint))
                return life_s
            case Refused(_, refusal, _, _, alternatives):
                self._offer_texts(alternatives)
                raise RelayRefused(refusal)
            case _:
                raise link.fail(RelayProtocolError("an answer to another question"))

    def _offer_texts(self, texts: Iterable[str]) -> None:
        """Take the names of other relays from one that is full, as long as few are known."""
        for text in texts:
            try:
                endpoint = Endpoint.parse(text)
            except DecodeError:
                continue
            is_known = any(known.relay == endpoint.relay for known in self._relays)
            if endpoint.relay is not None and not is_known and len(self._relays) < self._options.links_max:
                self.offer((endpoint,))

    def _announce(self, endpoint: Endpoint, reachable: tuple[Endpoint, ...]) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._acceptance is not None:
            self._acceptance.advertise(str(endpoint), reachable)

    # Circuits brought in.

    def incoming(self, link: Link, message: Incoming) -> bool:
        """Start to fetch a circuit that a relay announced; False: not now."""
        if self._nursery is None or self._incoming >= self._options.incoming_max:
            return False
        self._incoming += 1
        self._nursery.start_soon(self._bring, link, message)
        return True

    async def _bring(self, link: Link, message: Incoming) -> None:
        endpoint = link.endpoint
        try:
            stream = await self._data.open(endpoint, message.token)
        except (RelayRefused, RelayUnreachable, RelayProtocolError) as error:
            log.debug("circuit not brought in", relay=str(endpoint), source=message.source, error=str(error))
            return
        finally:
            self._incoming -= 1
        link.used_at = trio.current_time()
        self._data.refill(link)
        await self._bring_in(endpoint, stream)

    async def _bring_in(self, endpoint: Endpoint, stream: trio.SocketStream) -> None:
        if self._acceptance is None:
            await trio.aclose_forcefully(stream)
        else:
            self._acceptance.accept(self._track(stream, endpoint, None), str(endpoint))

    # Links.

    async def _link(self, endpoint: Endpoint, *, ours: bool = False) -> Link:
        """Return the live link to a relay, opening it if need be. Raises RelayUnreachable."""
        link = self._links.get(endpoint)
        if link is None or link.error is not None:
            link = None if ours else self._link_elsewhere(endpoint)
        if link is None:
            if self._nursery is None:
                raise RelayUnreachable("the relay client has ended")
            if len(self._links) >= self._options.links_max and not ours:
                raise RelayUnreachable("connected to as many relays as allowed")
            link = self._links[endpoint] = Link(self, self._make_identity(), endpoint, self._options)
            self._nursery.start_soon(self._run_link, link)
        link.is_ours |= ours
        await link.opened.wait()
        if link.error is not None:
            raise RelayUnreachable(f"{endpoint}: {link.error}")
        return link

    def _link_elsewhere(self, endpoint: Endpoint) -> Link | None:
        """Return a link over which the relay of this endpoint is spoken to at another of its places."""
        for link in self._links.values():
            if link.relay == endpoint.relay and link.opened.is_set() and link.error is None:
                return link
        return None

    async def _run_link(self, link: Link) -> None:
        try:
            await link.run()
        finally:
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]
            for parked in link.parked:
                parked.stream.socket.close()
            fault = link.fault
            is_to_blame = fault is not Fault.UNREACHED or self._miss(link.endpoint)
            if link.is_no_way:
                self._miss(link.endpoint)
            if fault is not None and is_to_blame and not self.is_leaving(link.endpoint):
                self._blame(link.endpoint, fault)

    def _through(self, endpoint: Endpoint) -> list[CircuitStream]:
        return [circuit for circuit in self._circuits if _crosses(circuit, endpoint)]

    def has_circuits(self, endpoint: Endpoint) -> bool:
        """Whether circuits run through this relay."""
        return any(_crosses(circuit, endpoint) for circuit in self._circuits)

    def heard_at(self, endpoint: Endpoint) -> float:
        """Return when a circuit through this relay has brought bytes last."""
        return max((circuit.heard_at for circuit in self._through(endpoint)), default=-math.inf)

    def cut(self, endpoint: Endpoint) -> None:
        """End the circuits through a relay that has fallen silent, so that their peers take another way now."""
        for circuit in self._through(endpoint):
            if self._nursery is not None:
                self._nursery.start_soon(trio.aclose_forcefully, circuit)

    def measured(self, endpoint: Endpoint, rtt_s: float) -> None:
        """Take a round trip to a relay."""
        del self._missed[endpoint]
        if self._speaks_for_its_relay(endpoint):
            self.judge.measured(endpoint.relay or b"", rtt_s, trio.current_time())

    def _speaks_for_its_relay(self, endpoint: Endpoint) -> bool:
        """Tell whether what happens at this place is the doing of the relay that it names.

        A peer's record may name a good relay at a host of the peer's own, which answers nothing, or slowly.
        """
        return endpoint in self._relays or all(known.relay != endpoint.relay for known in self._relays)

    def _blame(self, endpoint: Endpoint, fault: Fault, *, about: bytes = b"", among: int = 1) -> None:
        relay = endpoint.relay or b""
        if not self._speaks_for_its_relay(endpoint):
            return
        now = trio.current_time()
        was_left = self.judge.is_left(relay, now)
        self.judge.blame(relay, fault, now, about=about, among=among)
        if not was_left and self.judge.is_left(relay, now):
            log.warning("relay avoided from now on", relay=str(endpoint), fault=fault.value)
            self._rechoose.set()

    async def _learn_links(self) -> None:
        """Ask our relays how well they reach others."""
        while True:
            for endpoint in list(self._reservations):
                link = self._links.get(endpoint)
                if link is not None and link.error is None:
                    await self._learn(link)
            with trio.move_on_after(LINK_STATE_S):
                await self._changed.wait()

    async def _learn(self, link: Link) -> None:
        try:
            answer = await link.ask(AskLinks)
            match answer:
                case Links(_, data):
                    state = LinkState.decode(data)
                    state.check(link.relay, link.channel.certificate)
                    self.link_states[link.relay] = state
                case _:
                    raise RelayProtocolError("an answer to another question")
        except RelayUnreachable:
            return
        except (DecodeError, RelayProtocolError) as error:
            link.fail(RelayProtocolError(str(error)))


def _check_relay(endpoint: Endpoint) -> None:
    if endpoint.relay is None or endpoint.via is not None:
        raise ConfigError(f"{endpoint}: relay:<address>:host:port expected")


def _crosses(circuit: CircuitStream, endpoint: Endpoint) -> bool:
    return any(hop.relay == endpoint.relay for hop in circuit.endpoint.hops)


def _now_ms() -> int:
    return int(trio.current_time() * 1000)


def _network_of(host: str) -> str:
    try:
        return network_of(host)
    except ValueError:
        return host  # a name
