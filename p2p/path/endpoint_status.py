"""Whether others can dial an endpoint of this node, from the answers of peers that tried.

``p2p.path.dial_back`` asks the peers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Final

from p2p.base.dial_policy import Zone, zone_of
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["ANSWER_BYTES_MAX", "DialBackAnswer", "DialBackResults", "EndpointStatus", "plain_address"]

ANSWER_BYTES_MAX: Final = 64


class EndpointStatus(Enum):
    """The status of an own endpoint."""

    UNKNOWN = "unknown"
    PUBLIC = "public"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    """The dialled host, and whether this node's listener answered there."""

    host: str
    is_reached: bool

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([self.host, int(self.is_reached)])

    @classmethod
    def decode(cls, data: bytes) -> DialBackAnswer:
        """Return the answer of its canonical bytes. Raises DecodeError."""
        match decode(data, limit_bytes=ANSWER_BYTES_MAX):
            case [str(host), 0 | 1 as is_reached]:
                answer = cls(plain_address(host) or "", bool(is_reached))
                if answer.host != host or zone_of(host) in (None, Zone.NONE):
                    raise DecodeError("not the address of a host")
                return answer
            case _:
                raise DecodeError("malformed answer to a dial-back")


def plain_address(host: str | None) -> str | None:
    """Return the canonical text of an IP address, or None for anything else."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return None
    return str((isinstance(address, IPv6Address) and address.ipv4_mapped) or address)


@dataclass(slots=True)
class DialBackResults:
    """The answers of networks about one endpoint; the newest answer of each network counts."""

    networks_min: int
    said: dict[str, bool] = field(default_factory=dict)
    said_at: dict[str, float] = field(default_factory=dict)

    def add(self, network: str, is_reached: bool, now: float = 0.0) -> None:
        """Add an answer."""
        self.said[network], self.said_at[network] = is_reached, now

    def forget(self, before: float) -> None:
        """Drop the answers before that time."""
        for network in [network for network, at in self.said_at.items() if at < before]:
            del self.said_at[network]
            self.said.pop(network, None)

    @property
    def verdict(self) -> EndpointStatus:
        """Enough positive answers make it public, regardless of negative ones, whose paths may be bad.

        Only unanimous negative answers make it closed.
        """
        yes = sum(self.said.values())
        if yes >= self.networks_min:
            return EndpointStatus.PUBLIC
        if not yes and len(self.said) >= self.networks_min:
            return EndpointStatus.CLOSED
        return EndpointStatus.UNKNOWN
