"""A node's reservations: chooses the best relays, reserves at them, renews, and replaces those that fail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.netgroups import network_of
from relay.client.background import BackgroundTasks
from relay.client.control_link import ControlLink
from relay.client.known_relays import KnownRelays
from relay.client.links import ControlLinks
from relay.client.options import RelayClientOptions
from relay.client.reputation import Fault
from relay.protocol.errors import RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.wire import Refused, Release, Reserve, Reserved, Voucher
from state.primitives.errors import DecodeError

__all__ = ["DownRelay", "Reservation", "Reservations"]

RENEW_AT: Final = 0.8
"""A reservation is renewed after this part of its life."""
RENEW_S_MIN: Final = 0.5
PROBES_MAX: Final = 8
"""Relays whose round trip is measured before some are chosen."""

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A relay's promise to carry circuits to this node."""

    endpoint: Endpoint
    voucher: Voucher
    observed: str
    """The host and port from which the relay sees this node, as the relay reports them."""


@dataclass(frozen=True, slots=True)
class DownRelay:
    """A relay at which this node wants a reservation and has none."""

    endpoint: Endpoint
    since_s: float
    """When the reservation was lost, or first failed; on trio's clock."""
    why: str
    """The most recent reason."""


class Reservations:
    """Holds up to ``options.reservations`` reservations at once.

    ``advertise(source, endpoints)`` tells the network where this node can be reached through each relay.
    """

    def __init__(
        self,
        known: KnownRelays,
        links: ControlLinks,
        tasks: BackgroundTasks,
        options: RelayClientOptions,
        advertise: Callable[[str, tuple[Endpoint, ...]], None],
    ) -> None:
        self._known = known
        self._links = links
        self._tasks = tasks
        self._options = options
        self._advertise = advertise
        self._is_needed = True
        self._held: dict[Endpoint, Reservation] = {}
        self._keepers: dict[Endpoint, trio.CancelScope] = {}
        """The task that keeps a reservation at each chosen relay."""
        self._down: dict[Endpoint, DownRelay] = {}
        self._watchers: list[Callable[[Endpoint], None]] = []
        self._changed = trio.Event()
        self._choose_again = trio.Event()

    @property
    def held(self) -> tuple[Reservation, ...]:
        """The current reservations, in the order of the known relays."""
        return tuple(self._held[e] for e in self._known.endpoints if e in self._held)

    @property
    def down(self) -> tuple[DownRelay, ...]:
        """The relays at which a reservation is wanted and missing, in the order of the known relays."""
        reserved = {endpoint.relay for endpoint in self._held}
        found: dict[bytes | None, DownRelay] = {}
        for endpoint in self._known.endpoints:
            if endpoint in self._down and endpoint.relay not in reserved:
                found.setdefault(endpoint.relay, self._down[endpoint])
        return tuple(found.values())

    async def wait_held(self, count: int) -> None:
        """Wait until at least ``count`` reservations are held."""
        while len(self._held) < count:
            await self._changed.wait()

    async def wait_changed(self) -> None:
        """Wait until a reservation is gained, lost or advertised again."""
        await self._changed.wait()

    def on_leaving(self, watcher: Callable[[Endpoint], None]) -> None:
        """Call ``watcher`` with the endpoint of each relay that announces its end."""
        self._watchers.append(watcher)

    # Choice of relays.

    def offer(self, endpoints: Iterable[Endpoint]) -> None:
        """Add known relays. Raises ConfigError for an endpoint that names no relay."""
        is_changed = self._known.offer(endpoints, self._held)
        for endpoint in [endpoint for endpoint in self._down if endpoint not in self._known.endpoints]:
            del self._down[endpoint]
        if is_changed:
            self._choose_again.set()
            for endpoint in self._held:
                self._announce(endpoint, self._known.endpoints_of(endpoint))

    def need(self, is_needed: bool) -> None:
        """Say whether reservations are needed; if not, only those at configured relays are kept."""
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self.choose_again()

    def choose_again(self) -> None:
        """Review the choice of relays soon."""
        self._choose_again.set()

    async def run(self) -> None:
        """Keep reservations at the best known relays until cancelled."""
        while True:
            self._choose_again = trio.Event()
            self._known.forget_left()
            needed = [e for e in self._known.endpoints if self._is_needed or e in self._known.configured]
            staying = [e for e in needed if not self._known.has_announced_end(e)]
            candidates = self._known.one_endpoint_each(staying, self._held)
            if len(candidates) > self._options.reservations:
                await self._probe(candidates)
            for endpoint in self.choose(candidates):
                if endpoint not in self._keepers and self._tasks.is_running:
                    self._keepers[endpoint] = trio.CancelScope()
                    self._tasks.start(self._keep, endpoint, self._keepers[endpoint])
            with trio.move_on_after(self._options.choose_s):
                await self._choose_again.wait()
            await trio.sleep(self._options.backoff_s_min * random.uniform(0.5, 1))

    def choose(self, candidates: Sequence[Endpoint]) -> list[Endpoint]:
        """Return the relays to reserve at, from as many networks as possible, and release the others.

        Relays of one network may fail together, and may belong to one operator.
        """
        now = trio.current_time()
        reputation = self._known.reputation
        order = reputation.order(dict.fromkeys(e.relay or b"" for e in candidates), now)
        rank = {relay: at for at, relay in enumerate(order)}

        def cost(endpoint: Endpoint) -> tuple[bool, bool, int]:
            relay = endpoint.relay or b""
            # A reservation that works is not given up for a relay that is a little nearer.
            return reputation.is_avoided(relay, now), endpoint not in self._held, rank[relay]

        turns: Counter[tuple[bool, str]] = Counter()
        ranks: list[tuple[bool, int, Endpoint]] = []
        for endpoint in sorted(candidates, key=cost):
            is_avoided = reputation.is_avoided(endpoint.relay or b"", now)
            turns[is_avoided, _network_of(endpoint.host)] += 1
            ranks.append((is_avoided, turns[is_avoided, _network_of(endpoint.host)], endpoint))
        chosen = [e for *_, e in sorted(ranks, key=lambda ranked: ranked[:2])[: self._options.reservations]]
        for endpoint, scope in list(self._keepers.items()):
            if endpoint not in chosen:
                scope.cancel()
                del self._keepers[endpoint]
        for endpoint in [e for e in self._down if e not in chosen and e not in self._known.configured]:
            if not self._known.has_announced_end(endpoint):
                del self._down[endpoint]
        return chosen

    async def _probe(self, candidates: Sequence[Endpoint]) -> None:
        """Measure the round trip to some relays of which it is unknown."""
        unknown = [
            e for e in candidates
            if self._known.reputation.rtt_s(e.relay or b"") is None and self._links.get(e) is None
        ]  # fmt: skip
        sample = random.sample(unknown, min(PROBES_MAX, len(unknown)))
        with trio.move_on_after(self._options.connect_s_max):
            async with trio.open_nursery() as nursery:
                for endpoint in sample:
                    nursery.start_soon(self._links.try_open, endpoint)

    def leaving(self, link: ControlLink, left_ms: int) -> None:
        """Take a relay's announcement that it ends in ``left_ms``, and reserve elsewhere."""
        endpoint = link.endpoint
        until_s = trio.current_time() + left_ms / 1000 + self._options.backoff_s_max
        if not self._known.will_leave(endpoint, until_s):
            return
        log.info(
            "a relay announced its end; this node reserves at another one", relay=str(endpoint), left_ms=left_ms
        )
        scope = self._keepers.pop(endpoint, None)
        if scope is not None:
            scope.cancel()
            self._note_down(endpoint, "it is shutting down")
        self.choose_again()
        for watcher in self._watchers:
            watcher(endpoint)

    # One reservation.

    async def _keep(self, endpoint: Endpoint, scope: trio.CancelScope) -> None:
        """Hold a reservation at one relay until ``scope`` is cancelled."""
        try:
            with scope:
                await self._renew_for_ever(endpoint)
        finally:
            link = self._links.get(endpoint)
            if self._forget(endpoint) and link is not None and link.error is None:
                link.is_reserving = False
                link.post(Release())

    async def _renew_for_ever(self, endpoint: Endpoint) -> None:
        options = self._options
        failures = 0
        while True:
            retry_s = 0.0
            started = trio.current_time()
            try:
                link = await self._links.open(endpoint, is_reserving=True)
                while True:
                    life_s = await self._reserve(link)
                    with trio.move_on_after(max(RENEW_S_MIN, life_s * RENEW_AT)):
                        await link.ended.wait()
                        self._note_down(endpoint, str(link.error))
                        break
            except RelayRefused as error:
                self._note_down(endpoint, f"refused the reservation: {error.refusal.label}")
                log.warning(
                    "a relay refused the reservation; it is asked again later",
                    relay=str(endpoint),
                    reason=error.refusal.label,
                )
                retry_s = options.backoff_s_max if endpoint not in self._held else 0.0
                self._known.blame(endpoint, Fault.REFUSED)
            except RelayProtocolError as error:
                self._note_down(endpoint, f"broke the protocol: {error}")
                log.warning(
                    "a relay broke the protocol; its reputation decreases", relay=str(endpoint), detail=str(error)
                )
                self._known.blame(endpoint, Fault.PROTOCOL_VIOLATION)
            except RelayUnreachable as error:
                self._note_down(endpoint, str(error).removeprefix(f"{endpoint}: "))
                log.debug("relay not reached", relay=str(endpoint), error=error.code, detail=str(error))
            if self._forget(endpoint):
                log.warning("a reservation was lost; it is requested again", relay=str(endpoint))
            self.choose_again()
            if trio.current_time() - started > options.backoff_s_max:
                failures = 0
            pause_s = min(options.backoff_s_max, options.backoff_s_min * 2 ** min(failures, 16))
            failures += 1
            await trio.sleep(max(pause_s, retry_s) * random.uniform(0.5, 1))

    def _note_down(self, endpoint: Endpoint, why: str) -> None:
        """Note for the operator that a reservation is missing at a relay; the first time it is logged."""
        known = self._down.get(endpoint)
        since_s = trio.current_time() if known is None else known.since_s
        self._down[endpoint] = DownRelay(endpoint, since_s, why)
        if known is None and endpoint not in self._held:
            log.warning(
                "a relay is down: it refused a reservation or does not answer", relay=str(endpoint), reason=why
            )

    def _forget(self, endpoint: Endpoint) -> bool:
        if self._held.pop(endpoint, None) is None:
            return False
        self._announce(endpoint, ())
        return True

    async def _reserve(self, link: ControlLink) -> int:
        """Reserve or renew, and return the life in seconds. Raises RelayRefused, RelayProtocolError."""
        answer = await link.ask(lambda request: Reserve(request, self._options.reservation_s))
        match answer:
            case Reserved(_, life_s, voucher_bytes, observed):
                try:
                    voucher = Voucher.decode(voucher_bytes)
                    # Expiry is for those to check who rely on the voucher: clocks differ.
                    voucher.check(link.relay, link.channel.certificate, client=link.own_address)
                except (DecodeError, RelayProtocolError) as error:
                    raise link.fail(RelayProtocolError(str(error))) from None
                is_new = link.endpoint not in self._held
                self._down.pop(link.endpoint, None)
                self._held[link.endpoint] = Reservation(link.endpoint, voucher, observed)
                if is_new:
                    log.info("reserved at a relay", relay=str(link.endpoint), observed=observed)
                    self._announce(link.endpoint, self._known.endpoints_of(link.endpoint))
                return life_s
            case Refused(_, refusal, _, _, alternatives):
                self.offer_alternatives(alternatives)
                raise RelayRefused(refusal)
            case _:
                raise link.fail(RelayProtocolError("the answer does not fit the request"))

    def offer_alternatives(self, texts: Iterable[str]) -> None:
        """Add the relays that a full one names, as long as few are known."""
        for text in texts:
            try:
                endpoint = Endpoint.parse(text)
            except DecodeError:
                continue
            is_known = any(known.relay == endpoint.relay for known in self._known.endpoints)
            if (
                endpoint.relay is not None
                and not is_known
                and len(self._known.endpoints) < self._options.links_max
            ):
                self.offer((endpoint,))

    def _announce(self, endpoint: Endpoint, reachable: tuple[Endpoint, ...]) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._advertise(str(endpoint), reachable)


def _network_of(host: str) -> str:
    try:
        return network_of(host)
    except ValueError:
        return host  # a name
