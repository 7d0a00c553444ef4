"""Netgroups: groups of addresses that probably have one owner, at three widths.

Addresses are cheap, blocks of addresses less so. A home or a rented machine has a whole /64 of IPv6, a customer of
a provider a /48, a provider a /32. Limits therefore hold for one *site* (an IPv4 address, a /64), one *network*
(/24, /48) and one *block* (/16, /32). Where slots are short, the largest block loses one first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from p2p.base.dial_policy import Zone, zone_of

__all__ = [
    "Netgroups",
    "Origin",
    "address_of",
    "block_of",
    "network_of",
    "origin_of",
    "public_netgroup_of",
    "site_of",
]

_PUNCHED: Final = "punch:"

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Origin(NamedTuple):
    """The origin of a connection."""

    network: str
    block: str
    is_bounded: bool
    """Whether the limit for one network applies: not inside a private network or a machine, nor for a relay, which
    carries others."""
    is_relayed: bool = False
    """Whether it came through a relay. All connections of one relay are one network and one block."""

    def of_its_own(self, address: bytes) -> Origin:
        """Return the origin of a peer that counts as a block of its own, wherever it connects from."""
        return self._replace(block=f"0x{address.hex()}")


def address_of(host: str) -> IpAddress:
    """Return the address of an IP host; an IPv4 address in either notation. Raises ValueError."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def site_of(host: str) -> str:
    """Return the site of an IP host: an IPv4 address, or a /64 of IPv6."""
    address = address_of(host)
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def network_of(host: str) -> str:
    """Return the network of an IP host: its /24 or IPv6 /48."""
    return _prefix(address_of(host), 24, 48)


def block_of(host: str) -> str:
    """Return the block of an IP host: its /16 or IPv6 /32."""
    return _prefix(address_of(host), 16, 32)


def _prefix(address: IpAddress, bits_v4: int, bits_v6: int) -> str:
    bits = bits_v4 if address.version == 4 else bits_v6
    rest = address.max_prefixlen - bits
    return f"{type(address)(int(address) >> rest << rest)}/{bits}"


def public_netgroup_of(host: str | None) -> str | None:
    """Return the network of a public address; None for others, which have no netgroup."""
    return None if host is None or zone_of(host) is not Zone.OPEN else network_of(host)


@lru_cache(maxsize=4_096)
def origin_of(remote: str) -> Origin:
    """Return the origin of a connection by the name of its other end: an IP address, or the relay that carries
    it.
    """
    host = remote.removeprefix(_PUNCHED)
    try:
        return Origin(network_of(host), block_of(host), zone_of(host) is Zone.OPEN)
    except ValueError:
        return Origin(remote, remote, False, is_relayed=True)


_Member = TypeVar("_Member", bound=Hashable)


class Netgroups(Generic[_Member]):
    """Members by netgroup, each netgroup in order of arrival. Every query is O(1)."""

    __slots__ = ("_by_size", "_largest", "_members", "_netgroup_of")

    def __init__(self) -> None:
        self._members: dict[str, dict[_Member, None]] = {}
        self._netgroup_of: dict[_Member, str] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._netgroup_of)

    def __contains__(self, member: object) -> bool:
        return member in self._netgroup_of

    def size(self, netgroup: str) -> int:
        """Return how many members a netgroup has."""
        return len(self._members.get(netgroup, ()))

    def enter(self, netgroup: str, member: _Member) -> None:
        """Add a member."""
        assert member not in self._netgroup_of
        self._netgroup_of[member] = netgroup
        members = self._members.setdefault(netgroup, {})
        self._resize(netgroup, len(members), len(members) + 1)
        members[member] = None

    def leave(self, member: _Member) -> None:
        """Remove a member, if present."""
        netgroup = self._netgroup_of.pop(member, None)
        if netgroup is None:
            return
        members = self._members[netgroup]
        self._resize(netgroup, len(members), len(members) - 1)
        del members[member]
        if not members:
            del self._members[netgroup]

    def eviction_candidate(self, netgroup: str) -> _Member | None:
        """Return the newest member of the largest netgroup if a newcomer of ``netgroup`` may replace it, else
        None.

        It may only if its netgroup stays smaller than the largest one. So a member alone in its netgroup is never
        evicted, and two netgroups of equal size do not evict each other in turn.
        """
        if self._largest < self.size(netgroup) + 2:
            return None
        largest = next(iter(self._by_size[self._largest]))
        return next(reversed(self._members[largest]))

    def _resize(self, netgroup: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][netgroup]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[netgroup] = None
        if after > self._largest:
            self._largest = after
        elif before == self._largest and before not in self._by_size:
            self._largest = after  # its netgroup was the only one of that size, and has one less now
