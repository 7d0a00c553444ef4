"""A node's relay client, on trio: reservations at relays, incoming circuits, and dialling through relays.

It hands out plain byte streams. The nodes at both ends of a circuit run their own handshake inside it. So neither
this client nor a relay is trusted with more than carrying bytes. A relay that fails, lies or falls silent costs
its circuits only; its reputation (``relay.client.reputation``) decides whether it is used again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.sockets import Opener
from p2p.base.transport import Acceptance
from p2p.secure.identity import Identity
from relay.client.background import BackgroundTasks
from relay.client.circuit_stream import CircuitStream
from relay.client.circuits import ClientCircuits
from relay.client.control_link import ControlLink, wall_ms
from relay.client.data_connections import DataConnections
from relay.client.known_relays import KnownRelays
from relay.client.link_states import LinkStates
from relay.client.links import ControlLinks
from relay.client.options import RelayClientOptions
from relay.client.payments import Payments
from relay.client.reputation import Fault
from relay.client.reservations import DownRelay, Reservation, Reservations
from relay.protocol.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.route import HOPS_MAX, NONCE_BYTES, Route
from relay.protocol.wire import Connect, Extend, Incoming, Message, Offered, Refused, Terms

__all__ = ["RelayClient"]

log = structlog.get_logger("relay")


class RelayClient:
    """A ``Dialer`` of the scheme ``relay`` and an ``Acceptor`` for the peer network.

    ``make_identity`` returns the node's current identity; it is called before each handshake with a relay.
    ``dial`` waits for ``run`` to start, and works while it runs, with or without reservations.
    """

    def __init__(
        self,
        make_identity: Callable[[], Identity],
        relays: Sequence[Endpoint] = (),
        options: RelayClientOptions | None = None,
        *,
        connect: Opener = trio.open_tcp_stream,
    ) -> None:
        options = options or RelayClientOptions()
        self.connect = connect
        self.known = KnownRelays(relays, trio.current_time, self._avoided)
        self.tasks = BackgroundTasks()
        self.control_links = ControlLinks(self, self.known, self.tasks, make_identity, options)
        self.payments = Payments(self.known, self.control_links, make_identity, options.price_per_gib_max)
        self.client_circuits = ClientCircuits(self.known, self.control_links, self.payments, self.tasks)
        self.reserving = Reservations(self.known, self.control_links, self.tasks, options, self._advertise)
        self.link_states = LinkStates(self.reserving, self.control_links, self.known.reputation)
        self._data = DataConnections(connect, options, self.tasks, self._accept)
        self._make_identity = make_identity
        self._options = options
        self._opening = 0
        """Incoming circuits that are being opened."""
        self._acceptance: Acceptance | None = None

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The current reservations, in the order of the known relays."""
        return self.reserving.held

    @property
    def down(self) -> tuple[DownRelay, ...]:
        """The relays at which a reservation is wanted and missing, in the order of the known relays."""
        return self.reserving.down

    @property
    def links(self) -> tuple[Endpoint, ...]:
        """Relays that are connected now, or being connected to."""
        return self.control_links.endpoints

    @property
    def circuits(self) -> tuple[CircuitStream, ...]:
        """Circuits that run now."""
        return self.client_circuits.running

    def offer(self, relays: Iterable[Endpoint]) -> None:
        """Add relays to the configured ones, for example from the chain's registry."""
        self.reserving.offer(relays)

    def need(self, is_needed: bool) -> None:
        """Say whether reservations are needed; if not, only those at configured relays are kept."""
        self.reserving.need(is_needed)

    def roamed(self, gone: frozenset[str]) -> None:
        """End links and circuits from addresses that this machine has lost, so that new ones use its new address.

        The relays are not blamed.
        """
        self.control_links.end_from(gone)
        self.client_circuits.end_from(gone)

    def on_leaving(self, watcher: Callable[[Endpoint], None]) -> None:
        """Call ``watcher`` with a relay's endpoint when the relay announces its end.

        The owner of circuits through it (``CircuitStream.endpoint.hops`` names it) should replace them at once.
        """
        self.reserving.on_leaving(watcher)

    def is_leaving(self, endpoint: Endpoint) -> bool:
        """Tell whether a relay of this path will end soon."""
        return self.known.is_leaving(endpoint)

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Tell whether a relay of this path has a bad reputation."""
        return self.known.is_avoided(endpoint)

    def two_relay_paths(self, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
        """Return the paths over two relays: from each reserved relay to each of a target's ``endpoints``."""
        own = [reservation.endpoint for reservation in self.reservations]
        return tuple(
            replace(endpoint, via=relay)
            for endpoint in endpoints
            if endpoint.relay is not None and endpoint.via is None
            for relay in own
            if relay.relay != endpoint.relay and not self.is_leaving(relay) and not self.is_avoided(relay)
        )

    def estimate(self, endpoint: Endpoint) -> float | None:
        """Return the round trip in seconds to the path's last relay (``EstimatingDialer``); None: unknown."""
        return self.link_states.estimate(endpoint)

    async def wait_reserved(self, count: int = 1) -> None:
        """Wait until at least ``count`` reservations are held."""
        await self.reserving.wait_held(count)

    def published(self, relay: Endpoint, size_bytes: int) -> None:
        """Note that ``relay`` got a fan-out piece, of ``size_bytes`` with all copies, and pay for it."""
        self.payments.published(relay, size_bytes)

    async def run(self, acceptance: Acceptance) -> None:
        """Keep the reservations and accept incoming circuits, until cancelled."""
        assert not self.tasks.is_running, "runs already"
        self._acceptance = acceptance
        try:
            async with trio.open_nursery() as nursery:
                self.tasks.attach(nursery)
                nursery.start_soon(self.reserving.run)
                nursery.start_soon(self.payments.run)
                nursery.start_soon(self.link_states.run)
                await trio.sleep_forever()
        finally:
            self.tasks.detach()
            self._acceptance = None
            self.client_circuits.clear()

    # Dialling.

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a byte stream to the node ``target`` through the relays of ``endpoint``.

        Raises RelayRefused, RelayUnreachable or RelayProtocolError (a fault of the relay). The caller sets the
        time limit.
        """
        hops = endpoint.hops
        if not hops or target is None:
            raise RelayUnreachable("no relay, or no address of a node behind it")
        if len(hops) > HOPS_MAX:
            raise RelayUnreachable(f"a path of {len(hops)} relays; at most {HOPS_MAX} allowed")
        await self.tasks.started.wait()
        first = hops[0]
        try:
            link = await self.control_links.open(first)
            self.payments.check_price(hops)
            if len(hops) == 1:
                stream = await self._open_circuit(
                    link, lambda request, parked: Connect(request, target, parked)
                )  # fmt: skip
            else:
                nonce = secrets.token_bytes(NONCE_BYTES)
                route = Route.sign(self._make_identity(), hops, target, now_ms=wall_ms(), nonce=nonce).encode()
                stream = await self._open_circuit(link, lambda request, parked: Extend(request, route, parked))
                self.control_links.connect_in_background(hops[1:])
        except RelayProtocolError:
            self.known.blame(first, Fault.PROTOCOL_VIOLATION)
            raise
        except RelayRefused as error:
            if error.refusal is Refusal.RELAY_FULL and len(hops) == 1:  # else a later relay may have refused
                self.known.blame(first, Fault.REFUSED)
            raise
        return self.client_circuits.begin(stream, endpoint, target)

    async def _open_circuit(
        self, link: ControlLink, make_request: Callable[[int, bytes], Message]
    ) -> trio.SocketStream:
        """Ask for a circuit and return its data connection, joined with the other end."""
        parked = link.take_parked()
        token = b"" if parked is None else parked.token
        link.used_at = trio.current_time()
        is_used = False
        try:
            answer = await link.ask(lambda request: make_request(request, token))
            match answer:
                case Offered(_, offered, _) if parked is not None and offered == token:
                    is_used = True
                    return await self._data.joined(link, parked)
                case Offered(_, offered, _):
                    return await self._data.open(link.endpoint, offered)
                case Refused(_, refusal, _):
                    raise RelayRefused(refusal)
                case _:
                    raise link.fail(RelayProtocolError("the answer does not fit the request"))
        finally:
            if parked is not None and not is_used:
                self._data.give_back(link, parked)

    # Incoming circuits.

    def incoming(self, link: ControlLink, message: Incoming) -> bool:
        """Open the data connection of an incoming circuit in the background; False: too many at once."""
        if self._opening >= self._options.incoming_max or not self.tasks.start(self._open_incoming, link, message):
            return False
        self._opening += 1
        return True

    async def _open_incoming(self, link: ControlLink, message: Incoming) -> None:
        endpoint = link.endpoint
        try:
            stream = await self._data.open(endpoint, message.token)
        except (RelayRefused, RelayUnreachable, RelayProtocolError) as error:
            log.debug("incoming circuit failed", relay=str(endpoint), source=message.source, error=str(error))
            return
        finally:
            self._opening -= 1
        link.used_at = trio.current_time()
        self._data.refill(link)
        await self._accept(endpoint, stream)

    async def _accept(self, endpoint: Endpoint, stream: trio.SocketStream) -> None:
        if self._acceptance is None:
            await trio.aclose_forcefully(stream)
        else:
            self._acceptance.accept(self.client_circuits.begin(stream, endpoint, None), str(endpoint))

    def _advertise(self, source: str, reachable: tuple[Endpoint, ...]) -> None:
        if self._acceptance is not None:
            self._acceptance.advertise(source, reachable)

    # Events of control links (``ControlLinkOwner``).

    def terms(self, link: ControlLink, terms: Terms) -> None:
        """Take a relay's terms."""
        self.payments.terms(link, terms)

    def charged(self, link: ControlLink, size_bytes: int) -> None:
        """Take a relay's claim, and pay."""
        self.payments.charged(link, size_bytes)

    def leaving(self, link: ControlLink, left_ms: int) -> None:
        """Take a relay's announcement that it ends in ``left_ms``."""
        self.reserving.leaving(link, left_ms)

    def measured(self, endpoint: Endpoint, rtt_s: float) -> None:
        """Take a round trip to a relay."""
        self.known.measured(endpoint, rtt_s)

    def has_circuits(self, endpoint: Endpoint) -> bool:
        """Tell whether circuits run through this relay."""
        return self.client_circuits.is_used(endpoint)

    def heard_at(self, endpoint: Endpoint) -> float:
        """Return when bytes last arrived over a circuit through this relay."""
        return self.client_circuits.heard_at(endpoint)

    def cut(self, endpoint: Endpoint) -> None:
        """End the circuits through a relay that fell silent."""
        self.client_circuits.end_through(endpoint)

    def _avoided(self, endpoint: Endpoint, fault: Fault) -> None:
        log.warning(
            "a relay is avoided from now on, because of its faults", relay=str(endpoint), fault=fault.value
        )
        self.reserving.choose_again()
