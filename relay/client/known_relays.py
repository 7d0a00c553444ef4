"""The relays that a node may use, without I/O: their endpoints, their faults, and which of them will end soon.

A relay is named by its address and may listen at several endpoints, for example on IPv4 and on IPv6. Endpoints
come from the configuration, from the chain's registry and from other relays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from p2p.base.endpoint import Endpoint
from relay.client.reputation import Fault, RelayReputation
from state.primitives.errors import ConfigError

__all__ = ["ENDPOINTS_PER_RELAY_MAX", "OFFERED_MAX", "KnownRelays"]

OFFERED_MAX: Final = 512
"""Endpoints known beside the configured ones; beyond it the ones offered longest ago are forgotten."""
ENDPOINTS_PER_RELAY_MAX: Final = 4
"""The same for one relay: a relay that moves often does not displace the others."""


class KnownRelays:
    """Endpoints of relays with the reputation of each relay.

    ``clock`` returns the present in seconds; ``on_avoided`` is called when a fault makes a relay one to avoid.
    Raises ConfigError for an endpoint that names no relay.
    """

    def __init__(
        self,
        configured: Iterable[Endpoint],
        clock: Callable[[], float],
        on_avoided: Callable[[Endpoint, Fault], None],
    ) -> None:
        self.endpoints = tuple(dict.fromkeys(configured))
        for endpoint in self.endpoints:
            _check_relay(endpoint)
        self.configured = frozenset(self.endpoints)
        self.reputation = RelayReputation()
        self._clock = clock
        self._on_avoided = on_avoided
        self._offered_at: dict[Endpoint, int] = {}
        """The number of the offer that last named each offered endpoint."""
        self._offers = 0
        self._failures: Counter[Endpoint] = Counter()
        """Consecutive failures to connect, by endpoint."""
        self._leaving: dict[Endpoint, float] = {}
        """Relays that announced their end, and until when they are not used again."""

    def offer(self, endpoints: Iterable[Endpoint], reserved: Collection[Endpoint]) -> bool:
        """Add endpoints, and forget the oldest ones without a reservation; return whether anything changed."""
        known = dict.fromkeys(self.endpoints)
        self._offers += 1
        for endpoint in endpoints:
            _check_relay(endpoint)
            known[endpoint] = None
            self._offered_at[endpoint] = self._offers
        self._forget(known, reserved)
        is_changed = tuple(known) != self.endpoints
        self.endpoints = tuple(known)
        return is_changed

    def _forget(self, known: dict[Endpoint, None], reserved: Collection[Endpoint]) -> None:
        """Remove endpoints beyond the limits: a relay may announce any number of them over time."""
        removable = [e for e in known if e not in self.configured and e not in reserved]
        counts = Counter(e.relay for e in known if e not in self.configured)
        total = sum(counts.values())
        for endpoint in sorted(removable, key=lambda e: self._offered_at.get(e, 0)):
            if total > OFFERED_MAX or counts[endpoint.relay] > ENDPOINTS_PER_RELAY_MAX:
                del known[endpoint]
                counts[endpoint.relay] -= 1
                total -= 1
        for table in (self._offered_at, self._failures):
            for endpoint in [endpoint for endpoint in table if endpoint not in known]:
                del table[endpoint]

    def endpoints_of(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """Return ``endpoint`` and all other known endpoints of the same relay."""
        others = (known for known in self.endpoints if known.relay == endpoint.relay)
        return tuple(dict.fromkeys((endpoint, *others)))

    def one_endpoint_each(self, endpoints: Sequence[Endpoint], reserved: Collection[Endpoint]) -> list[Endpoint]:
        """Return one endpoint of each relay: the reserved one, or else the one with the fewest failures."""
        chosen: dict[bytes | None, Endpoint] = {}
        for endpoint in sorted(endpoints, key=lambda e: (e not in reserved, self._failures[e])):
            chosen.setdefault(endpoint.relay, endpoint)
        return [endpoint for endpoint in endpoints if chosen[endpoint.relay] == endpoint]

    def connect_failed(self, endpoint: Endpoint) -> bool:
        """Count a failure to connect; return whether to blame the relay: no other endpoint failed less often."""
        if endpoint not in self.endpoints:
            return True
        self._failures[endpoint] += 1
        return all(self._failures[other] >= self._failures[endpoint] for other in self.endpoints_of(endpoint))

    # Reputation.

    def measured(self, endpoint: Endpoint, rtt_s: float) -> None:
        """Record a round trip to a relay."""
        del self._failures[endpoint]
        if self.is_endpoint_of_its_relay(endpoint):
            self.reputation.measured(endpoint.relay or b"", rtt_s, self._clock())

    def blame(self, endpoint: Endpoint, fault: Fault, *, about: bytes = b"", among: int = 1) -> None:
        """Record a fault of a relay; see ``RelayReputation.blame``."""
        if not self.is_endpoint_of_its_relay(endpoint):
            return
        relay = endpoint.relay or b""
        now = self._clock()
        was_avoided = self.reputation.is_avoided(relay, now)
        self.reputation.blame(relay, fault, now, about=about, among=among)
        if not was_avoided and self.reputation.is_avoided(relay, now):
            self._on_avoided(endpoint, fault)

    def is_endpoint_of_its_relay(self, endpoint: Endpoint) -> bool:
        """Tell whether what happens at this endpoint counts for the relay that it names.

        A peer's record may name a good relay at a host of the peer's own, which answers slowly or not at all.
        """
        return endpoint in self.endpoints or all(known.relay != endpoint.relay for known in self.endpoints)

    def is_avoided(self, path: Endpoint) -> bool:
        """Tell whether the reputation of a relay on this path says to avoid it."""
        now = self._clock()
        return any(
            self.is_endpoint_of_its_relay(hop) and self.reputation.is_avoided(hop.relay or b"", now)
            for hop in path.hops
        )

    # Relays that will end soon.

    def will_leave(self, endpoint: Endpoint, until_s: float) -> bool:
        """Note that a relay announced its end; it is not used before ``until_s``. Return whether that is new."""
        is_new = endpoint not in self._leaving
        self._leaving[endpoint] = until_s
        return is_new

    def forget_left(self) -> None:
        """Forget the announcements whose time is over: the relay may have restarted."""
        now = self._clock()
        self._leaving = {endpoint: until_s for endpoint, until_s in self._leaving.items() if until_s > now}

    def has_announced_end(self, endpoint: Endpoint) -> bool:
        """Tell whether the relay at ``endpoint`` announced its end and the announcement is not forgotten."""
        return endpoint in self._leaving

    def is_leaving(self, path: Endpoint) -> bool:
        """Tell whether a relay of this path will end soon."""
        now = self._clock()
        return any(self._leaving.get(hop, -math.inf) > now for hop in path.hops)


def _check_relay(endpoint: Endpoint) -> None:
    if endpoint.relay is None or endpoint.via is not None:
        raise ConfigError(f"{endpoint}: relay:<address>:host:port expected")
