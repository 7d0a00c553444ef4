"""Blobs in custody: chunks under a key, with roots of what they are and of how they lie (market.md 11.3).

Chunk i of a blob lies as ChaCha20 (RFC 8439) under a key that is derived from the blob's key, i, and the root of
the plain chunks. A window that is proved again has the same key: other bytes of it share no stream. Two roots
commit to the blob: over its plain chunks and over its cipher chunks. Neither needs a tag: every chunk is checked
against them. A machine that keeps what it cannot read also keeps the hashes of the plain chunks. So it can show a
chunk with all that the holder of the key needs to prove in one step that the chunk is garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import (
    MerkleProof,
    MerkleTree,
    leaf_hash,
    merkle_root,
    verify_leaf_hash,
    verify_merkle_proof,
)
from tasks.custody.errors import ChunkInvalid
from tasks.custody.keys import KEY_BYTES

__all__ = [
    "CHUNK_BYTES",
    "BlobCommitment",
    "ChunkProof",
    "CipherBlob",
    "Custody",
    "check_chunk",
    "chunk_proof_from_value",
    "chunk_proof_to_value",
    "crypt_chunk",
    "is_garbage",
    "read_chunk",
    "siblings_of",
]

CHUNK_BYTES: Final = 16 * 1024
CHUNKS_MAX: Final = 1 << 28
SIBLINGS_MAX: Final = 28
STREAM_BLOCK_BYTES: Final = 64
COUNTER_BYTES: Final = 4
_NONCE: Final = bytes(12)
"""Each key is for one chunk of one content, so its counter and nonce begin with zero."""


class BlobCommitment(NamedTuple):
    """What stands on chain of a blob: its size in bytes, and the roots over its plain and its cipher chunks."""

    size: int
    plain_root: bytes
    cipher_root: bytes

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // CHUNK_BYTES)

    def chunk_size(self, index: int) -> int:
        """Return the bytes of a chunk. Raises ChunkInvalid."""
        if not 0 <= index < self.chunks <= CHUNKS_MAX:
            raise ChunkInvalid(f"the blob has {self.chunks} chunks, no chunk {index}")
        return min(CHUNK_BYTES, self.size - index * CHUNK_BYTES)


class ChunkProof(NamedTuple):
    """A cipher chunk with its path, and the hash of the plain chunk with its path."""

    number: int
    cipher: bytes
    cipher_siblings: tuple[bytes, ...]
    plain_hash: bytes
    plain_siblings: tuple[bytes, ...]


def chunk_proof_to_value(proof: ChunkProof) -> list[Value]:
    """Return ``proof`` as a codec value."""
    return [proof.number, proof.cipher, list(proof.cipher_siblings), proof.plain_hash, list(proof.plain_siblings)]


def chunk_proof_from_value(value: Any) -> ChunkProof:
    """Return the proof of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(number), bytes(cipher), list(mine), bytes(plain), list(others)] if (
            0 <= number < CHUNKS_MAX and 0 < len(cipher) <= CHUNK_BYTES and len(plain) == HASH_BYTES
        ):
            return ChunkProof(number, cipher, siblings_of(mine), plain, siblings_of(others))
    raise DecodeError("not a chunk with its paths")


def siblings_of(value: list[Any]) -> tuple[bytes, ...]:
    """Return the hashes of a path. Raises DecodeError."""
    if len(value) > SIBLINGS_MAX or any(type(item) is not bytes or len(item) != HASH_BYTES for item in value):
        raise DecodeError(f"a path has {SIBLINGS_MAX} hashes at most")
    return tuple(value)


def crypt_chunk(blob_key: bytes, context: bytes, index: int, chunk: bytes, offset: int = 0) -> bytes:
    """Encrypt or decrypt a chunk, or bytes of it from ``offset`` on: the two are the same. Raises ChunkInvalid.

    ``context`` is a hash that binds all plain bytes of the blob, in custody its plain root. A key may be used for
    several contents of a blob, and none of them tells anything of another.
    """
    if len(blob_key) != KEY_BYTES or len(context) != HASH_BYTES or not 0 <= index < CHUNKS_MAX:
        raise ChunkInvalid("a key and a context of 32 bytes expected, and the number of a chunk")
    if offset % STREAM_BLOCK_BYTES or not 0 <= offset <= CHUNK_BYTES - len(chunk):
        raise ChunkInvalid(f"a chunk has {CHUNK_BYTES} bytes at most, and blocks of {STREAM_BLOCK_BYTES} bytes")
    info = encode(["dekube chunk", context, index])
    key = HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=info).derive(blob_key)
    counter = (offset // STREAM_BLOCK_BYTES).to_bytes(COUNTER_BYTES, "little")
    return Cipher(ChaCha20(key, counter + _NONCE), mode=None).encryptor().update(chunk)


class CipherBlob:
    """A blob made ready for custody by one who has its plain content and its key.

    ``chunks`` and ``plain_hashes`` are what a custodian gets; it keeps both.
    """

    def __init__(self, blob_key: bytes, content: bytes, context: bytes | None = None) -> None:
        """``context`` is that of its chunks, by default the plain root.

        Raises ChunkInvalid for an empty blob, or one that is too large.
        """
        if not 0 < len(content) <= CHUNKS_MAX * CHUNK_BYTES:
            raise ChunkInvalid("a blob has content")
        plain = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
        self.plain_hashes = [leaf_hash(chunk) for chunk in plain]
        root = merkle_root(plain)
        self.chunks = [crypt_chunk(blob_key, context or root, at, chunk) for at, chunk in enumerate(plain)]
        self.commitment = BlobCommitment(len(content), root, merkle_root(self.chunks))


class Custody:
    """What a custodian keeps of a blob that it cannot read.

    It checks both roots before it signs a receipt: so it can show any chunk with all that somebody who has the key
    needs to prove that the chunk is garbage.
    """

    def __init__(self, commitment: BlobCommitment, chunks: Sequence[bytes], plain_hashes: Sequence[bytes]) -> None:
        """Raises ChunkInvalid for anything but the blob's chunks and the hashes under its plain root."""
        count = commitment.chunks
        if not 0 < count <= CHUNKS_MAX or not count == len(chunks) == len(plain_hashes):
            raise ChunkInvalid(f"{count} chunks and as many hashes expected")
        if any(len(chunk) != commitment.chunk_size(index) for index, chunk in enumerate(chunks)):
            raise ChunkInvalid("a chunk has another size")
        if any(len(item) != HASH_BYTES for item in plain_hashes):
            raise ChunkInvalid(f"a hash has {HASH_BYTES} bytes")
        self._chunks, self._hashes = chunks, plain_hashes
        self._cipher, self._plain = MerkleTree(chunks), MerkleTree.of_hashes(plain_hashes)
        if (self._plain.root, self._cipher.root) != (commitment.plain_root, commitment.cipher_root):
            raise ChunkInvalid("the chunks or the hashes are not those under the blob's roots")
        self._commitment = commitment

    def proof(self, index: int) -> ChunkProof:
        """Return what answers a demand for a chunk. Raises ChunkInvalid."""
        self._commitment.chunk_size(index)
        return ChunkProof(
            index,
            self._chunks[index],
            self._cipher.siblings(index),
            self._hashes[index],
            self._plain.siblings(index),
        )

    def read(self, blob_key: bytes, index: int) -> bytes | None:
        """Return the plain chunk; None if it is garbage. Raises ChunkInvalid."""
        self._commitment.chunk_size(index)
        plain = crypt_chunk(blob_key, self._commitment.plain_root, index, self._chunks[index])
        return plain if leaf_hash(plain) == self._hashes[index] else None


def check_chunk(commitment: BlobCommitment, proof: ChunkProof) -> None:
    """Check that a proof shows a chunk of a blob as it lies in custody: what every validator judges.

    Raises ChunkInvalid.
    """
    count, index = commitment.chunks, proof.number
    if len(proof.cipher) != commitment.chunk_size(index):
        raise ChunkInvalid(f"chunk {index} has another size")
    path = MerkleProof(index, count, proof.cipher_siblings)
    if not verify_merkle_proof(commitment.cipher_root, proof.cipher, path):
        raise ChunkInvalid(f"chunk {index} is not under the root of cipher chunks")
    path = MerkleProof(index, count, proof.plain_siblings)
    if not verify_leaf_hash(commitment.plain_root, proof.plain_hash, path):
        raise ChunkInvalid(f"the hash of plain chunk {index} is not under the root of plain chunks")


def is_garbage(
    commitment: BlobCommitment, blob_key: bytes, proof: ChunkProof, context: bytes | None = None
) -> bool:
    """Tell whether a revealed key proves that a chunk in custody is not what the blob's author committed to.

    ``context`` is that of its chunks, by default the plain root. Raises ChunkInvalid where the proof is not about
    this blob: then nothing is proved.
    """
    check_chunk(commitment, proof)
    plain = crypt_chunk(blob_key, context or commitment.plain_root, proof.number, proof.cipher)
    return leaf_hash(plain) != proof.plain_hash


def read_chunk(commitment: BlobCommitment, blob_key: bytes, proof: ChunkProof) -> bytes | None:
    """Return the plain chunk that a custodian served; None if it is garbage. Raises ChunkInvalid."""
    check_chunk(commitment, proof)
    plain = crypt_chunk(blob_key, commitment.plain_root, proof.number, proof.cipher)
    return plain if leaf_hash(plain) == proof.plain_hash else None
