"""The messages between replicas: strict canonical decoders that raise nothing but DecodeError.

See consensus.md 3.3.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from consensus.votes import Certificate
from state.primitives.blocks import BLOCK_LIMIT_BYTES
from state.primitives.codec import decode, encode
from state.primitives.committee import SEATS_MAX
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.primitives.keys import VOTE_SIGNATURE_BYTES
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = [
    "BLOCKS_MAX",
    "CERTIFICATES_MAX",
    "CERTIFICATES_SENT_MAX",
    "CERTIFICATE_LIMIT_BYTES",
    "MESSAGE_LIMIT_BYTES",
    "NULLS_MAX",
    "SMALL_MESSAGE_BYTES_MAX",
    "VIEWS_MAX",
    "VOTES_MAX",
    "WINDOW_BYTES_MAX",
    "BlockReply",
    "BlocksPruned",
    "BlocksReply",
    "Certificates",
    "GetBlock",
    "GetBlocks",
    "GetCertificates",
    "Message",
    "Proposal",
    "Status",
    "Votes",
    "decode_certificate",
    "decode_message",
    "encode_certificate",
    "encode_message",
]

CERTIFICATE_LIMIT_BYTES: Final = SEATS_MAX * VOTE_SIGNATURE_BYTES + 128
MESSAGE_LIMIT_BYTES: Final = 9 * 1024 * 1024
NULLS_MAX: Final = 64
"""Nullifications that travel with a proposal; older ones are asked for."""
CERTIFICATES_MAX: Final = 3 * 64 + 4
CERTIFICATES_SENT_MAX: Final = 32
"""Certificates in one message: all that is no block must fit into ``SMALL_MESSAGE_BYTES_MAX``."""
SMALL_MESSAGE_BYTES_MAX: Final = 256 * 1024
"""The largest message that travels with the votes, before all blocks."""
VIEWS_MAX: Final = 64
VOTES_MAX: Final = 256
BLOCKS_MAX: Final = 64
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
"""A window of blocks is cut at this size; one larger block still travels alone."""

_ITEMS_MAX: Final = 16 + 8 * max(VOTES_MAX, CERTIFICATES_MAX, NULLS_MAX + 1 + BLOCKS_MAX)
"""A vote and a certificate are arrays of seven; a block is one item here."""
_EPOCHS: Final = 2**32
_VIEWS: Final = 2**48


class Proposal(NamedTuple):
    """The leader's block, which is its NOTARIZE vote; ``block`` is opaque here (state.primitives.blocks).

    ``justify`` certifies the parent (None on the root of the epoch), ``nulls`` the skipped views, newest first.
    """

    candidate: Candidate
    signature: bytes
    justify: Certificate | None
    nulls: tuple[Certificate, ...]
    block: bytes


class Votes(NamedTuple):
    """One vote as it is cast, or several repeated."""

    votes: tuple[Vote, ...]


class Certificates(NamedTuple):
    """Certificates that were requested, or pushed to a seat that needs them."""

    certificates: tuple[Certificate, ...]


class GetCertificates(NamedTuple):
    """Asks for the certificates of views ``from_view`` to ``to_view``; the newest ones come with them."""

    epoch: int
    from_view: int
    to_view: int


class GetBlock(NamedTuple):
    """Asks for one block, final or not, by its hash."""

    block_hash: bytes


class BlockReply(NamedTuple):
    """The bytes of one block."""

    block: bytes


class GetBlocks(NamedTuple):
    """Asks for at most ``blocks_max`` final blocks from ``from_height`` upwards."""

    from_height: int
    blocks_max: int


class BlocksReply(NamedTuple):
    """Final blocks of consecutive heights and the FINAL certificate of the last: the window proves itself."""

    from_height: int
    certificate: Certificate
    blocks: tuple[bytes, ...]


class BlocksPruned(NamedTuple):
    """The other answer to GetBlocks: blocks are kept from ``oldest_height`` on alone, which is above that.

    A hint, as a Status is: it says whom not to ask.
    """

    from_height: int
    oldest_height: int


class Status(NamedTuple):
    """Where a replica stands. A hint alone: a height is believed with its certificate only."""

    epoch: int
    view: int
    finalized_height: int
    finalized_hash: bytes


Message: TypeAlias = (
    Votes
    | Proposal
    | Certificates
    | GetCertificates
    | GetBlock
    | BlockReply
    | GetBlocks
    | BlocksReply
    | BlocksPruned
    | Status
)

_VOTES, _PROPOSAL, _CERTIFICATES, _GET_CERTIFICATES = 1, 2, 3, 4
_GET_BLOCK, _BLOCK, _GET_BLOCKS, _BLOCKS, _STATUS, _BLOCKS_PRUNED = 5, 6, 7, 8, 9, 10


def encode_certificate(certificate: Certificate) -> bytes:
    """Return the canonical bytes of a certificate, as stored beside its block."""
    return encode(list(certificate))


def decode_certificate(data: bytes) -> Certificate:
    """Return the certificate of ``data``; weight and signatures are not checked yet. Raises DecodeError."""
    return _certificate(decode(data, limit_bytes=CERTIFICATE_LIMIT_BYTES))


def encode_message(message: Message) -> bytes:
    """Return the canonical bytes of a message."""
    match message:
        case Votes(votes):
            return encode([_VOTES, [list(vote) for vote in votes]])
        case Proposal(candidate, signature, justify, nulls, block):
            return encode(
                [
                    _PROPOSAL,
                    *candidate,
                    signature,
                    None if justify is None else list(justify),
                    [list(null) for null in nulls],
                    block,
                ]
            )
        case Certificates(certificates):
            return encode([_CERTIFICATES, [list(certificate) for certificate in certificates]])
        case GetCertificates():
            return encode([_GET_CERTIFICATES, *message])
        case GetBlock(block_hash):
            return encode([_GET_BLOCK, block_hash])
        case BlockReply(block):
            return encode([_BLOCK, block])
        case GetBlocks():
            return encode([_GET_BLOCKS, *message])
        case BlocksReply(from_height, certificate, blocks):
            return encode([_BLOCKS, from_height, list(certificate), list(blocks)])
        case Status():
            return encode([_STATUS, *message])
        case BlocksPruned():
            return encode([_BLOCKS_PRUNED, *message])
        case _:
            raise AssertionError(message)


def decode_message(data: bytes) -> Message:
    """Return the message of ``data``: shapes and ranges are right, nothing is verified. Raises DecodeError."""
    match decode(data, limit_bytes=MESSAGE_LIMIT_BYTES, limit_items=_ITEMS_MAX):
        case [1, list(votes)] if 0 < len(votes) <= VOTES_MAX:
            return Votes(tuple([_vote(vote) for vote in votes]))
        case [2, int(epoch), int(view), int(parent_view), bytes(block_hash), bytes(signature), justify,
              list(nulls), bytes(block)] if (
            0 <= epoch < _EPOCHS and 0 <= parent_view < view < _VIEWS and len(nulls) <= NULLS_MAX
            and (len(block_hash), len(signature)) == (HASH_BYTES, VOTE_SIGNATURE_BYTES)
            and len(block) <= BLOCK_LIMIT_BYTES
        ):  # fmt: skip
            return Proposal(
                Candidate(epoch, view, parent_view, block_hash),
                signature,
                None if justify is None else _certificate(justify),
                tuple([_certificate(null) for null in nulls]),
                block,
            )
        case [3, list(certificates)] if 0 < len(certificates) <= CERTIFICATES_MAX:
            return Certificates(tuple([_certificate(certificate) for certificate in certificates]))
        case [4, int(epoch), int(from_view), int(to_view)] if (
            0 <= epoch < _EPOCHS and 0 < from_view <= to_view < _VIEWS and to_view - from_view < VIEWS_MAX
        ):
            return GetCertificates(epoch, from_view, to_view)
        case [5, bytes(block_hash)] if len(block_hash) == HASH_BYTES:
            return GetBlock(block_hash)
        case [6, bytes(block)] if len(block) <= BLOCK_LIMIT_BYTES:
            return BlockReply(block)
        case [7, int(from_height), int(count)] if 0 < from_height < _VIEWS and 0 < count <= BLOCKS_MAX:
            return GetBlocks(from_height, count)
        case [8, int(from_height), certificate, list(blocks)] if (
            0 < from_height < _VIEWS and 0 < len(blocks) <= BLOCKS_MAX and all(type(b) is bytes for b in blocks)
        ):
            return BlocksReply(from_height, _certificate(certificate), tuple(blocks))
        case [9, int(epoch), int(view), int(height), bytes(finalized_hash)] if (
            0 <= epoch < _EPOCHS
            and 0 < view < _VIEWS
            and 0 <= height < _VIEWS
            and len(finalized_hash) == HASH_BYTES
        ):
            return Status(epoch, view, height, finalized_hash)
        case [10, int(from_height), int(oldest)] if 0 < from_height < oldest < _VIEWS:
            return BlocksPruned(from_height, oldest)
        case _:
            raise DecodeError("not a consensus message")


def _vote(value: Any) -> Vote:
    match value:
        case [
            1 | 2 | 3 as kind, int(epoch), int(view), int(parent_view), bytes(block_hash), int(seat),
            bytes(signature),
        ] if (
            0 <= epoch < _EPOCHS and 0 <= parent_view < view < _VIEWS and 0 <= seat < SEATS_MAX
            and (len(block_hash), len(signature)) == (HASH_BYTES, VOTE_SIGNATURE_BYTES)
            and (kind != NULLIFY or (parent_view == 0 and block_hash == ZERO_HASH))
        ):  # fmt: skip
            return Vote(kind, epoch, view, parent_view, block_hash, seat, signature)
        case _:
            raise DecodeError("not a vote")


def _certificate(value: Any) -> Certificate:
    match value:
        case [
            1 | 2 | 3 as kind, int(epoch), int(view), int(parent_view), bytes(block_hash), bytes(bitmap),
            bytes(signatures),
        ] if (
            0 <= epoch < _EPOCHS and 0 <= parent_view < view < _VIEWS and len(block_hash) == HASH_BYTES
            and 0 < len(bitmap) <= (SEATS_MAX + 7) // 8 and 0 < len(signatures) <= SEATS_MAX * VOTE_SIGNATURE_BYTES
            and len(signatures) % VOTE_SIGNATURE_BYTES == 0
            and (kind != NULLIFY or (parent_view == 0 and block_hash == ZERO_HASH))
        ):  # fmt: skip
            return Certificate(kind, epoch, view, parent_view, block_hash, bitmap, signatures)
        case _:
            raise DecodeError("not a certificate")


assert CERTIFICATES_SENT_MAX * (CERTIFICATE_LIMIT_BYTES + 8) < SMALL_MESSAGE_BYTES_MAX
assert {NOTARIZE, NULLIFY, FINALIZE} == {1, 2, 3}, "the literals of the patterns above"
