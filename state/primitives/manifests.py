"""Blob manifests: the hashes of a blob's pieces, and the blob's name, which follows from them (network.md 9.1).

A piece's hash is the Merkle root over its chunks. The name covers the size and a hash of all pieces' hashes. So a
blob's size can be shown under its name in a few bytes, and any chunk of a small blob in a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.merkle import merkle_root

__all__ = [
    "BLOB_CHUNK_BYTES",
    "BLOB_PIECES_MAX",
    "MANIFEST_BYTES_MAX",
    "PIECE_BYTES",
    "BlobTooLarge",
    "Manifest",
    "blob_id",
    "blob_name",
    "chunks_of",
    "manifest_of",
    "piece_hash",
    "pieces_digest",
    "pieces_of",
]

PIECE_BYTES: Final = 1024 * 1024
"""The unit of a transfer."""
BLOB_CHUNK_BYTES: Final = 4096
"""The unit that is shown on chain."""
BLOB_PIECES_MAX: Final = 32_768
"""32 GiB of content under a manifest of 1 MiB."""
MANIFEST_BYTES_MAX: Final = BLOB_PIECES_MAX * HASH_BYTES + 32


class BlobTooLarge(DekubeError):
    """The content has more pieces than a manifest can list."""

    code = "blob_too_large"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The size of a blob and the hashes of its pieces."""

    size_bytes: int
    hashes: tuple[bytes, ...]

    @property
    def blob_id(self) -> bytes:
        """The name of the blob."""
        return blob_name(self.size_bytes, pieces_digest(self.hashes))

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([self.size_bytes, PIECE_BYTES, b"".join(self.hashes)])

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Decode a manifest from its canonical bytes. Raises DecodeError."""
        match decode(data, limit_bytes=MANIFEST_BYTES_MAX):
            case [int(size), int(piece_bytes), bytes(joined)] if (
                piece_bytes == PIECE_BYTES
                and 0 <= size <= BLOB_PIECES_MAX * PIECE_BYTES
                and len(joined) == (size + PIECE_BYTES - 1) // PIECE_BYTES * HASH_BYTES
            ):
                hashes = (joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
                return cls(size, tuple(hashes))
            case _:
                raise DecodeError("not a manifest")

    def piece_bytes(self, index: int) -> int:
        """Return the size of one piece; all but the last are whole."""
        return min(PIECE_BYTES, self.size_bytes - index * PIECE_BYTES)

    def is_piece(self, index: int, data: bytes) -> bool:
        """Whether ``data`` is the piece of that number."""
        return len(data) == self.piece_bytes(index) and piece_hash(data) == self.hashes[index]


def pieces_digest(hashes: Sequence[bytes]) -> bytes:
    """Return what a blob's name covers of the hashes of its pieces."""
    return digest(b"blob pieces", b"".join(hashes))


def blob_name(size_bytes: int, pieces: bytes) -> bytes:
    """Return the name of a blob, given its size and its ``pieces_digest``."""
    return digest(b"blob", encode([size_bytes, PIECE_BYTES, pieces]))


def blob_id(manifest: bytes) -> bytes:
    """Return the name of the blob with these manifest bytes. Raises DecodeError."""
    return Manifest.decode(manifest).blob_id


def manifest_of(source: BinaryIO) -> Manifest:
    """Return the manifest of everything that can be read from ``source``."""
    size, hashes = 0, []
    for piece in pieces_of(source):
        size += len(piece)
        hashes.append(piece_hash(piece))
        if len(hashes) > BLOB_PIECES_MAX:
            raise BlobTooLarge(f"a blob has at most {BLOB_PIECES_MAX * PIECE_BYTES} bytes")
    return Manifest(size, tuple(hashes))


def piece_hash(data: bytes) -> bytes:
    """Return the hash of a piece, as manifests list it."""
    return merkle_root(chunks_of(data))


def chunks_of(piece: bytes) -> list[bytes]:
    """Return the chunks of a piece: the leaves of its tree."""
    return [piece[at : at + BLOB_CHUNK_BYTES] for at in range(0, len(piece), BLOB_CHUNK_BYTES)]


def pieces_of(source: BinaryIO) -> Iterator[bytes]:
    """Yield what can be read from ``source``, cut into pieces."""
    while piece := source.read(PIECE_BYTES):
        yield piece
