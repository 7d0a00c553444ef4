"""Limits of a relay for one client, host or network and for all, and their counters (network.md 10.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from p2p.base.netgroups import address_of, block_of, network_of, site_of
from state.primitives.errors import ConfigError
from state.primitives.token_bucket import TokenBucket

__all__ = ["HostTable", "HostUse", "RelayLimits", "pacing_rates"]

FORGET_INTERVAL_MS: Final = 1_000
"""Minimum interval between searches of a full table for idle hosts: it is large, and anybody can fill it."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of a relay. A *host* is an IPv4 address or an IPv6 /64, a *network* a /24 or a /48.

    If a limit of the whole relay is reached, the largest *block* (a /16 or a /32) loses an entry to a smaller one.
    """

    connections_max: int = 32_768
    connections_per_host_max: int = 256
    connections_per_network_max: int = 4_096
    half_open_max: int = 256
    """Connections whose handshake is not finished and that have not shown a token."""
    half_open_per_host_max: int = 32
    accepts_per_s: int = 200
    accepts_burst: int = 400
    accepts_kept_per_s: int = 50
    """Additional rate for blocks from which few connections came recently."""
    accepts_per_block_per_s: int = 80
    """Limit of one block, so that it cannot use up the rate of all."""
    accepts_per_block_burst: int = 160
    accepts_per_network_per_s: int = 40
    accepts_per_network_burst: int = 80
    accepts_per_host_per_s: int = 10
    accepts_per_host_burst: int = 40
    handshake_ms_max: int = 5_000
    """From the accepted connection to the finished handshake or the whole data preamble."""
    control_idle_ms_max: int = 60_000
    """A control connection silent for this long is dropped; clients ping more often."""
    control_backlog_bytes_max: int = 65_536
    """Unsent bytes at which a control connection is dropped as a slow reader."""
    messages_per_s: int = 20
    messages_burst: int = 100
    reservations_max: int = 16_384
    reservations_per_host_max: int = 8
    reservations_per_network_max: int = 64
    reservation_s_max: int = 3_600
    connects_per_host_per_s: int = 10
    connects_per_host_burst: int = 60
    pending_max: int = 1_024
    """Circuits that wait for a data connection; running circuits are not counted."""
    pending_per_client_max: int = 16
    pending_per_host_max: int = 128
    """Pending circuits that one host requested, for itself or as a relay for its clients."""
    pending_per_network_max: int = 512
    pending_ms_max: int = 10_000
    circuits_max: int = 4_096
    """Running circuits. One more replaces another when it is joined, not while it is pending."""
    circuits_per_client_max: int = 64
    """Circuits of one client, at either end, pending ones included."""
    circuits_per_host_max: int = 128
    """Circuits that clients of one host requested."""
    circuits_per_relay_max: int = 1_024
    """Circuits that one other relay requested for its clients."""
    circuits_per_network_max: int = 1_024
    """Circuits that hosts of one network requested, for themselves or as relays."""
    parked_per_client_max: int = 4
    """Parked data connections of one client."""
    relays_max: int = 64
    """Other relays connected to at once."""
    relays_per_client_network_max: int = 8
    """Other relays connected to for routes from hosts of one network."""
    relays_per_network_max: int = 8
    """Other relays connected to in one network; configured ones are not counted."""
    relay_spare_ms: int = 60_000
    """A link to another relay unused for this long may be evicted for a new one."""
    relay_idle_ms_max: int = 600_000
    """A link to another relay idle for this long is closed."""
    circuit_idle_ms_max: int = 300_000
    """A circuit without traffic for this long is ended."""
    circuit_linger_ms_max: int = 20_000
    """Time that the second end of a circuit has to read the rest after the first end closed."""
    circuit_buffer_bytes_max: int = 262_144
    """Unsent bytes of one direction at which reading from its source stops; one more read may add to them."""
    circuit_bytes_per_s_max: int = 0
    """Pacing rate of each direction of a circuit, enforced by the kernel; 0: none."""
    client_bytes_per_s_max: int = 0
    """Pacing rate of each direction of all active circuits that one client dialled, shared among them; 0: none."""
    line_bytes_per_s: int = 0
    """Pacing rate of each direction of this relay's line, shared by the active circuits; 0: none."""
    hosts_max: int = 65_536
    """Hosts remembered at once."""
    trusted_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks without limits for one host and one network; the default is this machine itself."""


@dataclass(slots=True)
class NetworkUse:
    """What all hosts of one network use of the relay now."""

    connections: int = 0
    reservations: int = 0
    circuits: int = 0
    pending: int = 0


@dataclass(slots=True)
class HostUse:
    """What one host uses of the relay now."""

    accepts: TokenBucket
    connects: TokenBucket
    is_trusted: bool
    network: str
    block: str
    net: NetworkUse
    connections: int = 0
    half_open: int = 0
    reservations: int = 0
    circuits: int = 0
    fanouts: int = 0
    """Connections for fan-out; ``connections`` includes them."""
    pending: int = 0
    """Circuits that wait for a data connection; ``circuits`` includes them."""

    def count(self, *, connections: int = 0, circuits: int = 0, pending: int = 0) -> None:
        """Add to the counts of this host and of its network."""
        self.connections += connections
        self.circuits += circuits
        self.pending += pending
        self.net.connections += connections
        self.net.circuits += circuits
        self.net.pending += pending

    def is_idle(self, now_ms: int) -> bool:
        """Tell whether the host may be forgotten."""
        return (
            not (self.connections or self.half_open or self.reservations or self.circuits)
            and self.accepts.is_full(now_ms)
            and self.connects.is_full(now_ms)
        )


class HostTable:
    """All hosts that use the relay or did recently, at most ``limits.hosts_max``.

    Raises ConfigError if ``limits.trusted_networks`` holds something else than networks.
    """

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self._hosts: dict[str, HostUse] = {}
        self._networks: dict[str, NetworkUse] = {}
        self._forgot_at_ms = -FORGET_INTERVAL_MS
        try:
            self._trusted = [ip_network(text) for text in limits.trusted_networks]
        except ValueError as error:
            raise ConfigError(f"trusted_networks: {error}") from None

    def use(self, ip: str, now_ms: int) -> HostUse | None:
        """Return the entry of the host that ``ip`` belongs to; None when the table is full of busy hosts."""
        address = address_of(ip)
        key = site_of(ip)
        found = self._hosts.get(key)
        if found is None:
            if len(self._hosts) >= self.limits.hosts_max:
                if now_ms - self._forgot_at_ms >= FORGET_INTERVAL_MS:
                    self.forget_idle(now_ms)
                if len(self._hosts) >= self.limits.hosts_max:
                    return None
            limits = self.limits
            network = network_of(ip)
            found = self._hosts[key] = HostUse(
                accepts=TokenBucket(limits.accepts_per_host_per_s, limits.accepts_per_host_burst, now_ms),
                connects=TokenBucket(limits.connects_per_host_per_s, limits.connects_per_host_burst, now_ms),
                is_trusted=any(address in trusted for trusted in self._trusted),
                network=network,
                block=block_of(ip),
                net=self._networks.setdefault(network, NetworkUse()),
            )
        return found

    def forget_idle(self, now_ms: int) -> None:
        """Forget the hosts that use nothing and whose token buckets are full."""
        self._forgot_at_ms = now_ms
        self._hosts = {key: use for key, use in self._hosts.items() if not use.is_idle(now_ms)}
        self._networks = {use.network: use.net for use in self._hosts.values()}

    def may_reserve(self, host: HostUse) -> bool:
        """Tell whether this host may hold one more reservation."""
        return host.is_trusted or (
            host.reservations < self.limits.reservations_per_host_max
            and host.net.reservations < self.limits.reservations_per_network_max
        )

    def count_reservation(self, host: HostUse, change: int) -> None:
        """Count a reservation added (1) or removed (-1)."""
        host.reservations += change
        host.net.reservations += change

    def __len__(self) -> int:
        return len(self._hosts)


def pacing_rates(limits: RelayLimits, active: Mapping[int, bytes]) -> dict[int, int]:
    """Return the pacing rate of each direction of the ``active`` circuits (by number, with their dialler).

    0: no limit. An idle circuit gets its share when it becomes active again.
    """
    by_client = Counter(active.values())
    pace: dict[int, int] = {}
    for circuit, client in active.items():
        bounds = [
            limits.circuit_bytes_per_s_max,
            -(-limits.client_bytes_per_s_max // by_client[client]),
            -(-limits.line_bytes_per_s // len(active)),
        ]
        pace[circuit] = min(filter(None, bounds), default=0)
    return pace
