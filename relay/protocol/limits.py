"""What one client, one host and all together may have of a relay; every bound has its name here.

See network.md 10.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from p2p.base.netgroups import address_of, block_of, network_of, site_of
from state.primitives.errors import ConfigError
from state.primitives.token_bucket import TokenBucket

__all__ = ["HostTable", "HostUse", "RelayLimits", "paces"]

FORGET_INTERVAL_MS: Final = 1_000
"""A full table is searched for idle hosts no oftener: it is large, and strangers fill it."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of a relay. A *host* is an IPv4 address or an IPv6 /64, a *network* a /24 or a /48.

    Where a bound in sum is reached, the largest *block* (a /16 or a /32) makes room for a smaller one.
    """

    connections_max: int = 32_768
    connections_per_host_max: int = 256
    connections_per_network_max: int = 4_096
    half_open_max: int = 256
    """Connections that have not yet proved what they are for."""
    half_open_per_host_max: int = 32
    accepts_per_s: int = 200
    accepts_burst: int = 400
    accepts_kept_per_s: int = 50
    """On top of these, for blocks from which hardly anybody has come of late."""
    accepts_per_block_per_s: int = 80
    """From one block: the rate in sum is not for one of them to use up."""
    accepts_per_block_burst: int = 160
    accepts_per_network_per_s: int = 40
    accepts_per_network_burst: int = 80
    accepts_per_host_per_s: int = 10
    accepts_per_host_burst: int = 40
    handshake_ms_max: int = 5_000
    """From the accepted connection to the finished handshake or the whole data preamble."""
    control_idle_ms_max: int = 60_000
    """A control connection that says nothing for so long is dropped; clients ping far oftener."""
    control_backlog_bytes_max: int = 65_536
    """Unsent control bytes at which a client counts as a slow reader and is dropped."""
    messages_per_s: int = 20
    messages_burst: int = 100
    reservations_max: int = 16_384
    reservations_per_host_max: int = 8
    reservations_per_network_max: int = 64
    reservation_s_max: int = 3_600
    connects_per_host_per_s: int = 10
    connects_per_host_burst: int = 60
    pending_max: int = 1_024
    """Circuits that wait for one of their ends, on top of those that run."""
    pending_per_client_max: int = 16
    pending_per_host_max: int = 128
    """Of those, the ones that one host asked for, for itself or as a relay for its clients."""
    pending_per_network_max: int = 512
    pending_ms_max: int = 10_000
    circuits_max: int = 4_096
    """Circuits that run. One more takes the place of another when it is joined; until then it only waits."""
    circuits_per_client_max: int = 64
    """Circuits (pending ones too) of one client, whichever end it is."""
    circuits_per_host_max: int = 128
    """Circuits that clients of one host asked for."""
    circuits_per_relay_max: int = 1_024
    """Circuits that one other relay brings for its clients."""
    circuits_per_network_max: int = 1_024
    """Circuits that hosts of one network asked for, for themselves or as relays."""
    parked_per_client_max: int = 4
    """Data connections of one client that wait for a circuit."""
    relays_max: int = 64
    """Other relays that are connected to at once."""
    relays_per_asker_max: int = 8
    """Of those, for routes that hosts of one network asked for."""
    relays_per_network_max: int = 8
    """Of those, that lie in one network; the ones of the configuration apart."""
    relay_spare_ms: int = 60_000
    """A link to another relay that was not used for so long makes room for another one."""
    relay_idle_ms_max: int = 600_000
    """A link to another relay that carried nothing for so long is ended."""
    circuit_idle_ms_max: int = 300_000
    """A circuit in which nothing moves for so long is ended."""
    circuit_linger_ms_max: int = 20_000
    """How long the second end of a circuit may take to read what is left after the first has closed."""
    circuit_buffer_bytes_max: int = 262_144
    """Unsent bytes of one direction at which its source is read no more (one read may come on top)."""
    circuit_bytes_per_s_max: int = 0
    """Pace of each direction of a circuit, held by the kernel; 0: none."""
    client_bytes_per_s_max: int = 0
    """Pace of each direction of all circuits that one client dialled, shared by those that move; 0: none."""
    line_bytes_per_s: int = 0
    """Pace of each direction of this relay's line, shared by the circuits that move; 0: none."""
    hosts_max: int = 65_536
    """Hosts that are remembered at once."""
    trusted_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks that the bounds for one host and one network do not hold for: by default this machine itself."""


@dataclass(slots=True)
class NetworkUse:
    """What all hosts of one network have of the relay now."""

    connections: int = 0
    reservations: int = 0
    circuits: int = 0
    pending: int = 0


@dataclass(slots=True)
class HostUse:
    """What one host has of the relay now."""

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
    """Of the connections, those for fan-out."""
    pending: int = 0
    """Of the circuits, those that wait for an end."""

    def count(self, *, connections: int = 0, circuits: int = 0, pending: int = 0) -> None:
        """Note so many more of each, here and in the network."""
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
    """All hosts that have something of the relay, or had recently. Bounded by ``limits.hosts_max``.

    Raises ConfigError where ``limits.trusted_networks`` are none.
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
        """Forget the hosts that have nothing here and used up no allowance."""
        self._forgot_at_ms = now_ms
        self._hosts = {key: use for key, use in self._hosts.items() if not use.is_idle(now_ms)}
        self._networks = {use.network: use.net for use in self._hosts.values()}

    def may_reserve(self, host: HostUse) -> bool:
        """Tell whether one more reservation of this host is within its and its network's bounds."""
        return host.is_trusted or (
            host.reservations < self.limits.reservations_per_host_max
            and host.net.reservations < self.limits.reservations_per_network_max
        )

    def count_reservation(self, host: HostUse, change: int) -> None:
        """Note a reservation more (1) or less (-1)."""
        host.reservations += change
        host.net.reservations += change

    def __len__(self) -> int:
        return len(self._hosts)


def paces(limits: RelayLimits, active: Mapping[int, bytes]) -> dict[int, int]:
    """Return the pace of each direction of the ``active`` circuits, by number; their values are who dialled them.

    0: as fast as it goes. Idle circuits take part again as soon as they move.
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
