"""Which hosts this node dials when strangers name them: the open network, and inner ones where its owner is.

See network.md R30.

Records, registries and relays may name any host. Without bounds a stranger could have this node knock at what only
this machine or its own network can reach: a router's page, a database that trusts its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address

__all__ = ["DialPolicy", "Zone", "zone_of"]


class Zone(Enum):
    """What kind of network an address belongs to."""

    OPEN = "open"
    """Reached from everywhere."""
    INNER = "inner"
    """Private, link-local, shared by a provider, for documentation: means something else elsewhere."""
    MACHINE = "machine"
    """Loopback."""
    NONE = "none"
    """Nobody's: multicast, unspecified."""


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.version == 6 and address.ipv4_mapped) or address


def zone_of(host: str) -> Zone | None:
    """Return the zone of an IP address, or None for a name, whose zone nobody knows before it is looked up."""
    address = _address_of(host)
    if address is None:
        return None
    if address.is_unspecified or address.is_multicast:
        return Zone.NONE
    if address.is_loopback:
        return Zone.MACHINE
    return Zone.OPEN if address.is_global else Zone.INNER


def _zone_of_own(host: str) -> Zone:
    """Return where a host lies that the owner named; a name of one label means something in one network only."""
    zone = zone_of(host)
    if zone is not None:
        return zone
    if host == "localhost":
        return Zone.MACHINE
    return Zone.OPEN if "." in host else Zone.INNER


class DialPolicy:
    """``named`` are the hosts of the owner's own options: those are dialled, and the zones that they lie in."""

    def __init__(self, named: Iterable[str] = (), *, is_inner: bool = False) -> None:
        self._named = {host for host in named if zone_of(host) is not Zone.NONE}
        self._zones = {Zone.OPEN, *(_zone_of_own(host) for host in self._named)}
        if is_inner:
            self._zones |= {Zone.INNER, Zone.MACHINE}

    def name(self, host: str) -> None:
        """Note a host that the owner named while the node runs: it is dialled, others of its zone are not."""
        self._named.add(host)

    def is_named(self, host: str) -> bool:
        """Tell whether the owner named this host."""
        return host in self._named

    def may_dial(self, address: str) -> bool:
        """Tell whether an IP address may be dialled, whoever named it."""
        return address in self._named or zone_of(address) in self._zones
