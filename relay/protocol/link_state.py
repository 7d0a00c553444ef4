"""Link states: what a relay measured of its paths to other relays, renewed every 30 s (network.md 10.5).

The relay signs them. Nodes use them to choose paths over several relays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from p2p.secure.identity import Identity, NodeCertificate
from relay.protocol.errors import RelayProtocolError
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address

__all__ = ["LINK_STATE_BYTES_MAX", "LINK_STATE_S", "LinkMeasurement", "LinkState"]

LINK_STATE_S: Final = 30
"""Interval at which a relay renews its link state, in seconds."""
LINKS_MAX: Final = 32
LINK_STATE_BYTES_MAX: Final = 1_536
MICROSECONDS_LIMIT: Final = 2**32
RATE_LIMIT: Final = 2**53
TIME_LIMIT_MS: Final = 2**53

_KIND: Final = b"relay links"


class LinkMeasurement(NamedTuple):
    """What a relay measured of its path to another relay."""

    rtt_us: int
    bytes_per_s: int
    """The highest recent rate of carried bytes; 0: nothing carried yet."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """The measurements of ``relay`` at ``at_ms``, by the address of the other relay, sorted; at most LINKS_MAX."""

    genesis_hash: bytes
    relay: bytes
    at_ms: int
    links: tuple[tuple[bytes, LinkMeasurement], ...]
    signature: bytes = bytes(SIGNATURE_BYTES)

    @classmethod
    def sign(cls, relay: Identity, links: Mapping[bytes, LinkMeasurement], *, now_ms: int) -> LinkState:
        """Return the signed link state; beyond LINKS_MAX the links with the lowest round trip are kept."""
        kept = sorted(links.items(), key=lambda item: (item[1].rtt_us, item[0]))[:LINKS_MAX]
        unsigned = cls(relay.genesis_hash, relay.address, now_ms, tuple(sorted(kept)))
        return replace(unsigned, signature=relay.signer.sign(unsigned.signing_digest()))

    def _signed(self) -> list[Value]:
        links: list[Value] = [[address, *link] for address, link in self.links]
        return [self.genesis_hash, self.relay, self.at_ms, links]

    def signing_digest(self) -> bytes:
        """Return what the relay signs: everything but the signature."""
        return digest(_KIND, encode(self._signed()))

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([*self._signed(), self.signature])

    @classmethod
    def decode(cls, data: bytes) -> LinkState:
        """Return the state of its canonical bytes. Raises DecodeError; the signature is not checked here."""
        match decode(data, limit_bytes=LINK_STATE_BYTES_MAX):
            case [bytes(genesis_hash), bytes(relay), int(at_ms), list(values), bytes(signature)] if (
                len(genesis_hash) == HASH_BYTES
                and len(relay) == ADDRESS_BYTES
                and 0 <= at_ms < TIME_LIMIT_MS
                and len(values) <= LINKS_MAX
                and len(signature) == SIGNATURE_BYTES
            ):
                links = tuple(_link_measurement(value) for value in values)
                addresses = [address for address, _ in links]
                if addresses != sorted(set(addresses)):
                    raise DecodeError("links out of order")
                return cls(genesis_hash, relay, at_ms, links, signature)
            case _:
                raise DecodeError("not a link state")

    def check(self, relay: bytes, certificate: NodeCertificate) -> None:
        """Check that ``relay`` signed this. Raises RelayProtocolError."""
        if (self.genesis_hash, self.relay) != (certificate.genesis_hash, relay):
            raise RelayProtocolError("the link state is of another chain or relay")
        try:
            signer = recover_address(self.signing_digest(), self.signature)
        except SignatureInvalid:
            raise RelayProtocolError("the link state's signature is bad") from None
        if signer != certificate.signer:
            raise RelayProtocolError("the link state is signed by another than the relay")


def _link_measurement(value: object) -> tuple[bytes, LinkMeasurement]:
    match value:
        case [bytes(address), int(rtt_us), int(bytes_per_s)] if (
            len(address) == ADDRESS_BYTES and 0 <= rtt_us < MICROSECONDS_LIMIT and 0 <= bytes_per_s < RATE_LIMIT
        ):
            return address, LinkMeasurement(rtt_us, bytes_per_s)
        case _:
            raise DecodeError("not a link")
