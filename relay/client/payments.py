"""What a node pays its relays: it counts the bytes of circuits that it dialled, and signs receipts for them.

The count, the free tier and the receipts are ``relay.payment.metering``'s; here they meet the circuits and the
control links that carry receipts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.secure.identity import Identity
from relay.client.circuit_stream import CircuitStream
from relay.client.control_link import ControlLink, wall_ms
from relay.client.known_relays import KnownRelays
from relay.client.links import ControlLinks
from relay.client.reputation import Fault
from relay.payment.metering import FreeTier, PayerMeter, Tariff
from relay.protocol.errors import RelayProtocolError, RelayUnreachable
from relay.protocol.wire import Pay, Terms

__all__ = ["METERS_MAX", "Payments"]

COUNT_S: Final = 1.0
"""Interval at which circuits are counted and receipts are sent."""
METERS_MAX: Final = 1_024
"""Relays with a meter; beyond it none is created for fan-out alone."""


@dataclass(slots=True, eq=False)
class _CircuitCount:
    """What was already counted of one circuit, for each relay on its path."""

    counted: dict[bytes, int] = field(default_factory=dict)
    tiers: dict[bytes, FreeTier] = field(default_factory=dict)


class Payments:
    """The meters of all relays that this node uses, and the circuits that they count."""

    def __init__(
        self,
        known: KnownRelays,
        links: ControlLinks,
        make_identity: Callable[[], Identity],
        price_per_gib_max: int,
    ) -> None:
        self.meters: dict[bytes, PayerMeter] = {}
        """By the relay's address."""
        self._known = known
        self._links = links
        self._make_identity = make_identity
        self._price_per_gib_max = price_per_gib_max
        self._counts: dict[CircuitStream, _CircuitCount] = {}

    def begin(self, circuit: CircuitStream) -> None:
        """Count a circuit from now on; the dialler pays, so incoming circuits are not counted."""
        if circuit.target is not None:
            self._counts[circuit] = _CircuitCount()

    def end(self, circuit: CircuitStream) -> None:
        """Count a closed circuit for the last time."""
        count = self._counts.pop(circuit, None)
        if count is not None:
            self._count(circuit, count)

    def clear(self) -> None:
        """Stop counting: circuits that outlive the client are not paid for."""
        self._counts.clear()

    def check_price(self, hops: Sequence[Endpoint]) -> None:
        """Raise RelayUnreachable if a relay of the path costs more than this node pays."""
        for hop in hops:
            meter = self.meters.get(hop.relay or b"")
            tariff = None if meter is None else meter.tariff
            if tariff is not None and tariff.price_per_gib > self._price_per_gib_max:
                raise RelayUnreachable(f"{hop}: its price is higher than this node pays")

    def published(self, relay: Endpoint, size_bytes: int) -> None:
        """Note that ``relay`` got a fan-out piece, ``size_bytes`` with all copies, and connect to pay for it."""
        address = relay.relay or b""
        meter = self.meters.get(address)
        if meter is None:
            if len(self.meters) >= METERS_MAX:
                return
            meter = self.meters[address] = PayerMeter(address)
        meter.published(size_bytes)
        if meter.tariff is None or meter.tariff.price_per_gib:
            self._links.connect_in_background([relay])

    def terms(self, link: ControlLink, terms: Terms) -> None:
        """Take a relay's terms, which begin a payment channel; they may not change on the same channel."""
        meter = self.meters.setdefault(link.relay, PayerMeter(link.relay))
        if meter.channel == link.channel.channel:
            link.fail(RelayProtocolError("second terms on the same channel"))
            return
        meter.tariff = Tariff(terms.price_per_gib, terms.free_bytes, terms.free_ms, terms.unpaid_bytes_max)
        meter.opened(link.channel.channel, wall_ms(), _now_ms())

    def charged(self, link: ControlLink, size_bytes: int) -> None:
        """Take a relay's claim: pay, and record a fault if it claims far more than was counted here."""
        self._count_all()
        meter = self.meters.get(link.relay)
        if meter is not None and not meter.claimed(size_bytes):
            self._known.blame(link.endpoint, Fault.OVERCHARGED)
        self.pay(link)

    def _count_all(self) -> None:
        for circuit, count in self._counts.items():
            self._count(circuit, count)

    def _count(self, circuit: CircuitStream, count: _CircuitCount) -> None:
        total = circuit.bytes_sent + circuit.bytes_received
        for hop in circuit.endpoint.hops:
            meter = self.meters.get(hop.relay or b"")
            if meter is None or meter.tariff is None:
                continue  # its terms have not arrived yet
            tier = count.tiers.get(meter.relay)
            if tier is None:
                tier = count.tiers[meter.relay] = FreeTier(meter.tariff, int(circuit.opened_at * 1000))
            moved = total - count.counted.get(meter.relay, 0)
            count.counted[meter.relay] = total
            meter.size_bytes += tier.charge(moved, _now_ms())

    def pay(self, link: ControlLink) -> None:
        """Send a receipt over ``link`` if one is due."""
        meter = self.meters.get(link.relay)
        if meter is None or meter.tariff is None or meter.tariff.price_per_gib > self._price_per_gib_max:
            return
        if link.error is None and link.opened.is_set() and meter.channel == link.channel.channel:
            receipt = meter.due(self._make_identity(), _now_ms(), wall_ms())
            if receipt is not None:
                link.post(Pay(receipt.encode()))

    async def run(self) -> None:
        """Count circuits and send receipts until cancelled."""
        while True:
            await trio.sleep(COUNT_S)
            self._count_all()
            for link in self._links.all():
                self.pay(link)


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
