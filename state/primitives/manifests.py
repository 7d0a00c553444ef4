"""Blob manifests: the hashes of a blob's pieces; the manifest's hash is the blob's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest

__all__ = [
    "BLOB_PIECES_MAX",
    "MANIFEST_BYTES_MAX",
    "PIECE_BYTES",
    "BlobTooLarge",
    "Manifest",
    "blob_id",
    "manifest_of",
    "piece_hash",
    "pieces_of",
]

PIECE_BYTES: Final = 1024 * 1024
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
        return blob_id(self.encode())

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


def blob_id(manifest: bytes) -> bytes:
    """Return the name of the blob with these manifest bytes."""
    return digest(b"blob", manifest)


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
    return digest(b"blob piece", data)


def pieces_of(source: BinaryIO) -> Iterator[bytes]:
    """Yield what can be read from ``source``, cut into pieces."""
    while piece := source.read(PIECE_BYTES):
        yield piece
