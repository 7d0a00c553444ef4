"""Messages about snapshots: encoders and strict decoders that raise only DecodeError. See chain.md 10.2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from consensus.votes import Certificate
from consensus.wire import CERTIFICATE_LIMIT_BYTES, decode_certificate, encode_certificate
from state.primitives.blocks import HEADER_LIMIT_BYTES, Header, decode_header, encode_header
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.store.snapshots import START_BYTES, piece_key

__all__ = [
    "ASK_LIMIT_BYTES",
    "CHUNK",
    "HEADERS_MAX",
    "MANIFEST",
    "MANIFEST_LIMIT_BYTES",
    "OFFERS",
    "OFFERS_LIMIT_BYTES",
    "OFFERS_MAX",
    "PIECES_MAX",
    "RECORDS",
    "RECORDS_LIMIT_BYTES",
    "Manifest",
    "Offer",
    "decode_asked",
    "decode_manifest",
    "decode_offers",
    "decode_records",
    "encode_asked",
    "encode_manifest",
    "encode_offers",
    "encode_records",
]

# Methods of requests between peers.
OFFERS: Final = "sync/offers"
RECORDS: Final = "sync/records"
MANIFEST: Final = "sync/manifest"
CHUNK: Final = "sync/chunk"

ASK_LIMIT_BYTES: Final = 64
OFFERS_MAX: Final = 8
OFFERS_LIMIT_BYTES: Final = OFFERS_MAX * 80 + 16
PIECES_MAX: Final = 1 << 16
"""64 GiB of state; a larger one needs larger pieces."""
HEADERS_MAX: Final = 256
"""Headers from the one with the state's root to the first that a certificate names."""
MANIFEST_LIMIT_BYTES: Final = (
    PIECES_MAX * START_BYTES + (HEADERS_MAX + 1) * (HEADER_LIMIT_BYTES + 3) + CERTIFICATE_LIMIT_BYTES + 256
)
RECORDS_MAX: Final = 1_024
RECORDS_LIMIT_BYTES: Final = 512 * 1024
_HEIGHTS: Final = 2**48


class Offer(NamedTuple):
    """A peer's snapshot: the height of its state, and the hash of its division into pieces
    (``Manifest.plan_hash``).
    """

    height: int
    plan_hash: bytes
    pieces: int


class Manifest(NamedTuple):
    """The division of a state into pieces, and the proof of its root.

    ``boundary`` is the header of the last block of an epoch; the state is the one after it. ``headers`` begin with
    the next header, which carries the root of that state. They end with the first that ``certificate`` makes
    final. ``starts`` are the first places of the pieces, in the short form of ``piece_key``.
    """

    boundary: Header
    headers: tuple[Header, ...]
    certificate: Certificate
    starts: tuple[bytes, ...]

    @property
    def height(self) -> int:
        """The height of the state."""
        return self.boundary.height

    @property
    def state_root(self) -> bytes:
        """The root of the state, from the header after the boundary."""
        return self.headers[0].state_root

    @property
    def plan_hash(self) -> bytes:
        """Equal for manifests with the same pieces, regardless of which votes prove them."""
        return digest(b"sync-plan", encode([self.height, self.state_root, b"".join(self.starts)]))

    def ranges(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Return start and stop of each piece."""
        places = [piece_key(start) for start in self.starts]
        return tuple(zip(places, [*places[1:], None], strict=True))


def encode_offers(offers: Sequence[Offer]) -> bytes:
    """Return the canonical bytes of a node's offers."""
    return encode([list(offer) for offer in offers])


def decode_offers(data: bytes) -> tuple[Offer, ...]:
    """Return a peer's offers. Raises DecodeError."""
    found = []
    match decode(data, limit_bytes=OFFERS_LIMIT_BYTES):
        case [*offers] if len(offers) <= OFFERS_MAX:
            for offer in offers:
                match offer:
                    case [int(height), bytes(plan_hash), int(pieces)] if (
                        0 < height < _HEIGHTS and len(plan_hash) == HASH_BYTES and 0 < pieces <= PIECES_MAX
                    ):
                        found.append(Offer(height, plan_hash, pieces))
                    case _:
                        raise DecodeError("not an offer")
        case _:
            raise DecodeError("not a list of offers")
    return tuple(found)


def encode_asked(*numbers: int) -> bytes:
    """Return the canonical bytes of a request: epoch, or height, or height and piece number."""
    return encode(list(numbers))


def decode_asked(data: bytes, count: int) -> tuple[int, ...]:
    """Return the ``count`` numbers of a request. Raises DecodeError."""
    match decode(data, limit_bytes=ASK_LIMIT_BYTES):
        case [*numbers] if len(numbers) == count and all(
            type(number) is int and 0 <= number < _HEIGHTS for number in numbers
        ):
            return tuple(numbers)
        case _:
            raise DecodeError("not a request for a part of a snapshot")


def encode_records(records: Sequence[bytes]) -> bytes:
    """Return the canonical bytes of consecutive, already encoded epoch records."""
    return encode(list(records))


def decode_records(data: bytes) -> tuple[bytes, ...]:
    """Return the encoded records of an answer. Raises DecodeError."""
    match decode(data, limit_bytes=RECORDS_LIMIT_BYTES + RECORDS_MAX * 4):
        case [*records] if len(records) <= RECORDS_MAX and all(type(record) is bytes for record in records):
            return tuple(records)
        case _:
            raise DecodeError("not a list of epoch records")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical bytes of a manifest."""
    return encode(
        [
            encode_header(manifest.boundary),
            [encode_header(header) for header in manifest.headers],
            encode_certificate(manifest.certificate),
            b"".join(manifest.starts),
        ]
    )


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest of ``data``. Its headers are not verified. Raises DecodeError."""
    match decode(data, limit_bytes=MANIFEST_LIMIT_BYTES):
        case [bytes(boundary), list(headers), bytes(certificate), bytes(joined)] if (
            0 < len(headers) <= HEADERS_MAX
            and all(type(header) is bytes for header in headers)
            and 0 < len(joined) <= PIECES_MAX * START_BYTES
            and len(joined) % START_BYTES == 0
        ):
            starts = tuple(joined[at : at + START_BYTES] for at in range(0, len(joined), START_BYTES))
            if starts[0] != bytes(START_BYTES) or any(below >= above for below, above in pairwise(starts)):
                raise DecodeError("the pieces of a manifest are not in order")
            return Manifest(
                decode_header(boundary),
                tuple([decode_header(header) for header in headers]),
                decode_certificate(certificate),
                starts,
            )
        case _:
            raise DecodeError("not a manifest")
