"""Signed routes: the request for a path over several relays, without I/O (network.md 10.4).

The dialler signs the whole list of relays, so no relay can add one, leave one out or form a loop. Each relay finds
itself in the list and asks the next one; the last one announces the circuit to the target.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from p2p.base.endpoint import ENDPOINT_CHARACTERS_MAX, Endpoint
from p2p.base.errors import CertificateInvalid
from p2p.secure.identity import Identity, NodeCertificate
from relay.protocol.errors import RelayProtocolError
from relay.protocol.limits import HostUse
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address

__all__ = ["HOPS_MAX", "NONCE_BYTES", "ROUTE_BYTES_MAX", "Route", "SeenRoutes", "VerifiedRoute"]

HOPS_MAX: Final = 3
ROUTE_BYTES_MAX: Final = 1_024
ROUTE_LIFE_MS: Final = 60_000
CLOCK_SKEW_MS_MAX: Final = 10 * 60_000
"""How far the clocks of a dialler and a relay may differ."""
NONCE_BYTES: Final = 16
SEEN_MAX: Final = 131_072
SEEN_PER_NETWORK_MAX: Final = 8_192
"""Limit for the hosts of one network, so that no network fills the memory of all."""

_KIND: Final = b"relay route"


@dataclass(frozen=True, slots=True)
class Route:
    """A dialler's signed request: through ``hops``, in this order, to ``target``, until ``not_after_ms``."""

    hops: tuple[Endpoint, ...]
    target: bytes
    not_after_ms: int
    nonce: bytes
    certificate: NodeCertificate
    """The dialler's; its signing key has signed the rest."""
    signature: bytes = bytes(SIGNATURE_BYTES)

    @classmethod
    def sign(
        cls, dialler: Identity, hops: Sequence[Endpoint], target: bytes, *, now_ms: int, nonce: bytes
    ) -> Route:
        """Return the route that ``dialler`` signs at ``now_ms``; ``nonce`` is NONCE_BYTES random bytes."""
        unsigned = cls(tuple(hops), target, now_ms + ROUTE_LIFE_MS, nonce, dialler.certificate)
        return replace(unsigned, signature=dialler.signer.sign(unsigned.signing_digest()))

    def _signed(self) -> list[Value]:
        hops: list[Value] = [str(hop) for hop in self.hops]
        return [hops, self.target, self.not_after_ms, self.nonce, self.certificate.to_value()]

    def signing_digest(self) -> bytes:
        """Return what the dialler signs: everything but the signature; the certificate names the chain."""
        return digest(_KIND, encode(self._signed()))

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([*self._signed(), self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Route:
        """Return the route of its canonical bytes. Raises DecodeError; the signatures are not checked here."""
        match decode(data, limit_bytes=ROUTE_BYTES_MAX):
            case [
                list(texts), bytes(target), int(not_after_ms), bytes(nonce), list(certificate), bytes(signature),
            ] if (
                2 <= len(texts) <= HOPS_MAX
                and all(type(text) is str and len(text) <= ENDPOINT_CHARACTERS_MAX for text in texts)
                and (len(target), len(nonce), len(signature)) == (ADDRESS_BYTES, NONCE_BYTES, SIGNATURE_BYTES)
                and 0 <= not_after_ms < 2**53
            ):  # fmt: skip
                hops = tuple(Endpoint.parse(text) for text in texts)
                route = cls(
                    hops, target, not_after_ms, nonce, NodeCertificate.from_value(certificate), signature
                )  # fmt: skip
            case _:
                raise DecodeError("not a route")
        relays = [hop.relay for hop in hops]
        if None in relays or len({*relays, target}) != len(relays) + 1:
            raise DecodeError("a relay of the route occurs twice, or is the target")
        return route

    def check(self, *, genesis_hash: bytes, now_ms: int) -> VerifiedRoute:
        """Return the route with the address of its signer. Raises RelayProtocolError."""
        if not now_ms - CLOCK_SKEW_MS_MAX < self.not_after_ms <= now_ms + ROUTE_LIFE_MS + CLOCK_SKEW_MS_MAX:
            raise RelayProtocolError("the route is expired, or its expiry is too far ahead")
        try:
            dialler = self.certificate.verify(genesis_hash=genesis_hash, now_ms=now_ms)
            signer = recover_address(self.signing_digest(), self.signature)
        except (CertificateInvalid, SignatureInvalid) as error:
            raise RelayProtocolError(f"the route's signature is bad: {error}") from None
        if signer != self.certificate.signer:
            raise RelayProtocolError("the route is not signed by the key of its certificate")
        return VerifiedRoute(self, dialler)


class VerifiedRoute(NamedTuple):
    """A route whose signatures hold."""

    route: Route
    dialler: bytes

    def next_of(self, relay: bytes, came_from: bytes) -> Endpoint | None:
        """Return the relay after ``relay``, None after the last.

        ``came_from`` is the sender of the route: the dialler at the first relay, else the previous relay.
        Raises RelayProtocolError.
        """
        relays = [hop.relay for hop in self.route.hops]
        if relay not in relays:
            raise RelayProtocolError("the route does not include this relay")
        at = relays.index(relay)
        if came_from != (self.dialler if at == 0 else relays[at - 1]):
            raise RelayProtocolError("the route came from another node than the previous one in it")
        return self.route.hops[at + 1] if at + 1 < len(relays) else None


class SeenRoutes:
    """Used routes, so that none is used twice; bounded in all and for each network that sends them."""

    def __init__(self, seen_max: int = SEEN_MAX, per_network_max: int = SEEN_PER_NETWORK_MAX) -> None:
        self._seen: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        self._seen_max = seen_max
        self._per_network_max = per_network_max
        self._of_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, verified: VerifiedRoute, host: HostUse, now_ms: int) -> bool:
        """Note a route that ``host`` sent; False if it was used before, or if too many are remembered."""
        name = verified.dialler + verified.route.nonce
        if name in self._seen:
            return False
        while self._seen and next(iter(self._seen.values()))[0] <= now_ms:
            _, (_, network) = self._seen.popitem(last=False)
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]
        if len(self._seen) >= self._seen_max or (
            not host.is_trusted and self._of_network[host.network] >= self._per_network_max
        ):
            return False
        # Until no relay accepts it any more, whatever its clock says.
        self._seen[name] = now_ms + ROUTE_LIFE_MS + 2 * CLOCK_SKEW_MS_MAX, host.network
        self._of_network[host.network] += 1
        return True
