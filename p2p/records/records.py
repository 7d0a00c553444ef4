"""Signed peer records: the endpoints of a node, in at most 768 bytes that anyone may forward.

See network.md 2.5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.base.errors import CertificateInvalid, CertificateOutOfTime, RecordInvalid, RecordOutOfTime
from p2p.secure.identity import Identity, NodeCertificate, Role
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address

__all__ = ["ENDPOINTS_MAX", "RECORD_BYTES_MAX", "RECORD_LIFE_MS", "PeerRecord", "sign_record", "verify_record"]

RECORD_BYTES_MAX: Final = 768
RECORD_LIFE_MS: Final = 24 * 3_600_000
ENDPOINTS_MAX: Final = 6
"""Enough for IPv4 and IPv6 of the node itself and of two relays. A dialling node tries no more."""

_CLOCK_SKEW_MS_MAX: Final = 3_600_000
_KIND: Final = b"peer record"


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A verified record. ``data`` are the signed bytes, which are forwarded unchanged."""

    address: bytes
    certificate: NodeCertificate
    sequence: int
    expiry_ms: int
    endpoints: tuple[Endpoint, ...]
    data: bytes

    @property
    def roles(self) -> Role:
        """The roles that the node claims."""
        return self.certificate.roles

    def supersedes(self, other: PeerRecord) -> bool:
        """Whether this record replaces ``other`` of the same address."""
        return (self.certificate.sequence, self.sequence) > (other.certificate.sequence, other.sequence)


def sign_record(
    identity: Identity, endpoints: tuple[Endpoint, ...], *, now_ms: int, above: int = -1
) -> PeerRecord:
    """Return this node's record for the next 24 hours. Its sequence is the time, and greater than ``above``.

    ENDPOINTS_MAX and RECORD_BYTES_MAX limit the ``endpoints``. Direct ones come first, then one of each relay,
    then further ones of the same relays, each in order. Paths over several relays are left out.
    """
    sequence = max(now_ms, above + 1)
    expiry_ms = min(now_ms + RECORD_LIFE_MS, identity.certificate.not_after_ms)
    kept = _ranked(endpoints)[:ENDPOINTS_MAX]
    while True:
        signed: list[Value] = [
            identity.certificate.to_value(),
            sequence,
            expiry_ms,
            [str(endpoint) for endpoint in kept],
        ]
        data = encode([*signed, identity.signer.sign(digest(_KIND, encode(signed)))])
        if len(data) <= RECORD_BYTES_MAX:
            return PeerRecord(identity.address, identity.certificate, sequence, expiry_ms, kept, data)
        kept = kept[:-1]


def _ranked(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints that a record may contain, the most important first."""
    turns: Counter[bytes] = Counter()
    ranks: list[tuple[int, Endpoint]] = []
    for endpoint in endpoints:
        if endpoint.via is None:
            if endpoint.relay is not None:
                turns[endpoint.relay] += 1
            ranks.append((0 if endpoint.relay is None else turns[endpoint.relay], endpoint))
    return tuple([endpoint for _, endpoint in sorted(ranks, key=lambda ranked: ranked[0])])


def verify_record(data: bytes, *, genesis_hash: bytes, now_ms: int) -> PeerRecord:
    """Return the record of these bytes. Raises RecordInvalid; RecordOutOfTime if clocks may be the cause."""
    try:
        match decode(data, limit_bytes=RECORD_BYTES_MAX):
            case [list(inner), int(sequence), int(expiry_ms), list(texts), bytes(signature)] if (
                0 <= sequence < 2**63 and len(texts) <= ENDPOINTS_MAX and len(signature) == SIGNATURE_BYTES
            ):
                pass
            case _:
                raise RecordInvalid("not a peer record")
        certificate = NodeCertificate.from_value(inner)
        endpoints = tuple(Endpoint.parse(text) for text in texts if isinstance(text, str))
        if len(endpoints) != len(texts):
            raise RecordInvalid("an endpoint is not a text string")
        if not now_ms < expiry_ms <= now_ms + RECORD_LIFE_MS + _CLOCK_SKEW_MS_MAX:
            raise RecordOutOfTime("expired, or valid for too long")
        address = certificate.verify(genesis_hash=genesis_hash, now_ms=now_ms)
        signed = encode([inner, sequence, expiry_ms, texts])
        if recover_address(digest(_KIND, signed), signature) != certificate.signer:
            raise RecordInvalid("signed by a key that the certificate does not name")
    except CertificateOutOfTime as error:
        raise RecordOutOfTime(str(error)) from None
    except (DecodeError, SignatureInvalid, CertificateInvalid) as error:
        raise RecordInvalid(str(error)) from None
    return PeerRecord(address, certificate, sequence, expiry_ms, endpoints, data)
