"""The address and port at which other hosts see a connection of this node, and the request for it. See network.md
8.1.

A node behind NAT does not know this address. It sends ``OBSERVE_PREAMBLE`` in place of a handshake, and a listener
of a peer or of a relay answers with ``observed_answer``. ``p2p.path.hole_punch`` uses this.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["OBSERVED_BYTES_MAX", "OBSERVE_PREAMBLE", "ObservedAddress", "observed_answer"]

OBSERVE_PREAMBLE: Final = b"DKRO"
"""Asks a listener for the address at which it sees this connection."""
OBSERVED_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ObservedAddress:
    """The address and port at which other hosts see a local port."""

    host: IPv4Address | IPv6Address
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> ObservedAddress:
        """Return the address of a socket, or of a peer's message. Raises DecodeError."""
        try:
            found = ip_address(host.partition("%")[0])
        except ValueError:
            raise DecodeError("not an IP address") from None
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if not 0 < port < 65_536 or found.is_multicast or found.is_unspecified:
            raise DecodeError("not an address that can be dialled")
        return cls(found, port)

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([str(self.host), self.port])

    @classmethod
    def decode(cls, data: bytes) -> ObservedAddress:
        """Return the address of its canonical bytes. Raises DecodeError."""
        match decode(data, limit_bytes=OBSERVED_BYTES_MAX):
            case [str(host), int(port)]:
                observed = cls.of(host, port)
                if observed.encode() != data:
                    raise DecodeError("not the canonical form of an address")
                return observed
            case _:
                raise DecodeError("not an observed address")


def observed_answer(host: str, port: int) -> bytes:
    """Return the answer to ``OBSERVE_PREAMBLE``: a length byte and the encoded address."""
    data = ObservedAddress.of(host, port).encode()
    return bytes((len(data),)) + data
