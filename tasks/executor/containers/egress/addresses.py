"""Which addresses a container may be connected to: those of the public Internet, and no others (R131).

A name is the requester's, and so is what its addresses are. So none may lead into a network of the machine: not to
the machine itself, its neighbours, its cloud's metadata, or to any of these as part of another address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

__all__ = ["ADDRESSES_MAX", "Network", "chosen_addresses", "is_public", "parse_network"]

ADDRESSES_MAX: Final = 4
"""Addresses of a name that are tried."""
Network: TypeAlias = IPv4Network | IPv6Network

_BARRED_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/3",
        "168.63.129.16/32",  # the host of a virtual machine in Azure: its number looks public
    )
)  # fmt: skip
_OPEN_6: Final = IPv6Network("2000::/3")
"""Global unicast. Mapped and translated IPv4, unique local, link local, multicast and loopback lie outside."""
_BARRED_6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, ORCHID and other tunnels and names
        "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
    )
)  # fmt: skip


def parse_network(text: str) -> Network | None:
    """Return the network or address that an owner has written, None for none."""
    try:
        return ip_network(text)
    except ValueError:
        return None


def is_public(text: str, barred: Iterable[Network] = ()) -> bool:
    """Tell whether an address is one of the public Internet, and in none of the owner's ``barred`` networks."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        is_open = not any(address in network for network in _BARRED_4)
    else:
        is_open = address in _OPEN_6 and not any(address in network for network in _BARRED_6)
    return is_open and not any(address in network for network in barred)


def chosen_addresses(found: Sequence[str], barred: Sequence[Network] = ()) -> list[str]:
    """Return which of the addresses of a name may be tried, in turn: IPv4 and IPv6 alternate, each once."""
    may = [address for address in dict.fromkeys(found) if is_public(address, barred)]
    fours, sixes = [one for one in may if ":" not in one], [one for one in may if ":" in one]
    turns = [one for pair in zip(fours, sixes, strict=False) for one in pair]
    rest = fours[len(sixes) :] + sixes[len(fours) :]
    return [*turns, *rest][:ADDRESSES_MAX]
