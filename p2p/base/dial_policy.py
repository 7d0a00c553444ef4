"""Which hosts this node dials if others name them: public addresses, and private ones only if the owner uses such
ones. See network.md R30.

Records, registries and relays may name any host. Without a policy an attacker could make this node connect to
hosts that only this machine or its private network can reach. Examples are a router's web page or a database
without authentication.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address

__all__ = ["DialPolicy", "Zone", "zone_of"]


class Zone(Enum):
    """The kind of network that an address belongs to."""

    OPEN = "open"
    """Reachable from everywhere."""
    INNER = "inner"
    """Private, link-local, carrier-grade NAT, documentation: the address has another meaning elsewhere."""
    MACHINE = "machine"
    """Loopback."""
    NONE = "none"
    """Not a host: multicast, unspecified."""


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.version == 6 and address.ipv4_mapped) or address


def zone_of(host: str) -> Zone | None:
    """Return the zone of an IP address; None for a host name, whose zone is unknown before it is resolved."""
    address = _address_of(host)
    if address is None:
        return None
    if address.is_unspecified or address.is_multicast:
        return Zone.NONE
    if address.is_loopback:
        return Zone.MACHINE
    return Zone.OPEN if address.is_global else Zone.INNER


def _zone_of_own(host: str) -> Zone:
    """Return the zone of a host that the owner configured. A name of one label is valid in one network only."""
    zone = zone_of(host)
    if zone is not None:
        return zone
    if host == "localhost":
        return Zone.MACHINE
    return Zone.OPEN if "." in host else Zone.INNER


class DialPolicy:
    """Allows the hosts in the owner's configuration, and all addresses in the zones of those hosts."""

    def __init__(self, named: Iterable[str] = (), *, is_inner: bool = False) -> None:
        self._named = {host for host in named if zone_of(host) is not Zone.NONE}
        self._zones = {Zone.OPEN, *(_zone_of_own(host) for host in self._named)}
        if is_inner:
            self._zones |= {Zone.INNER, Zone.MACHINE}

    def name(self, host: str) -> None:
        """Allow a host that the owner named while the node runs; its zone is not allowed."""
        self._named.add(host)

    def is_named(self, host: str) -> bool:
        """Whether the owner named this host."""
        return host in self._named

    def may_dial(self, address: str) -> bool:
        """Whether an IP address may be dialled, regardless of its source."""
        return address in self._named or zone_of(address) in self._zones
