"""Private blobs of a task: how inputs, states and outputs lie under the task's keys (market.md 11.7).

A state before a segment lies as its cipher chunks alone. An input and an output lie as their cipher chunks and
then the hashes of the plain chunks: a custodian needs both, and whoever has the blob can answer for it.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from state.primitives.codec import encode
from state.primitives.hashing import HASH_BYTES, digest
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, ChunkProof, CipherBlob, Custody, crypt_chunk
from tasks.custody.errors import ChunkInvalid, KeyInvalid
from tasks.custody.keys import (
    KEY_BYTES,
    PUBLIC_TASK_KEY,
    KeyCommitments,
    derive_key,
    input_key_name,
    public_key_root,
    window_key_name,
)
from tasks.spec import JobSpec, encode_spec

__all__ = [
    "OutputIsGarbage",
    "SealedBlob",
    "check_task_key",
    "crypt_blob",
    "custody_of",
    "input_blob_size",
    "is_public",
    "open_input",
    "open_output",
    "public_input",
    "public_output",
    "seal_input",
    "seal_output",
    "sealed_size",
    "state_key",
    "task_key_of",
]


class OutputIsGarbage(ChunkInvalid):
    """An output whose cipher chunk does not decrypt to what its author committed to; ``chunk`` proves it."""

    code = "output_is_garbage"

    def __init__(self, chunk: ChunkProof) -> None:
        super().__init__(f"chunk {chunk.number} does not decrypt to what its worker committed to")
        self.chunk = chunk


class SealedBlob(NamedTuple):
    """A private input or output as it is stored, and what stands on chain of it."""

    blob: bytes
    commitment: BlobCommitment


def is_public(key_root: bytes, inputs: int, windows: int) -> bool:
    """Tell whether terms of custody are those of a task whose outputs are public."""
    return not inputs and key_root == public_key_root(windows)


def task_key_of(secret: bytes, spec: JobSpec) -> bytes:
    """Return the key of a task, from the secret of its requester's account and the job.

    So it is kept as safely as the account, and whoever has the account has it. The name of the encrypted data set
    is left out: it follows from the key. Jobs that differ in anything else have other keys, so a key never
    encrypts two contents.
    """
    job = digest(b"task-key-job", encode_spec(spec.changed(dataset=spec.dataset._replace(blob=bytes(HASH_BYTES)))))
    return _expand(digest(b"task-key-secret", secret), ["dekube task key", job])


def check_task_key(task_key: bytes, key_root: bytes, inputs: int, windows: int) -> KeyCommitments:
    """Return the keys of a task with the paths of their hashes. Raises KeyInvalid for another task's key."""
    keys = KeyCommitments(task_key, inputs, windows)
    if keys.root != key_root:
        raise KeyInvalid("the key is not the one that the task commits to")
    return keys


def state_key(window_key: bytes, segment: int) -> bytes:
    """Return the key of the state before a segment of a window: no other content lies under it."""
    return _expand(window_key, ["dekube state", segment])


def _expand(key: bytes, info: list[str | int | bytes]) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=encode([*info])).derive(key)


def crypt_blob(blob_key: bytes, context: bytes, content: bytes) -> bytes:
    """Encrypt or decrypt a blob chunk by chunk: the two are the same.

    ``context`` is a root that binds the plain content: of the data set, or of the state.
    """
    return b"".join(
        crypt_chunk(blob_key, context, at // CHUNK_BYTES, content[at : at + CHUNK_BYTES])
        for at in range(0, len(content), CHUNK_BYTES)
    )


def sealed_size(size: int) -> int:
    """Return the bytes of a private input or output of ``size`` plain bytes as it is stored."""
    return size + HASH_BYTES * -(-size // CHUNK_BYTES)


def seal_output(window_key: bytes, content: bytes) -> SealedBlob:
    """Encrypt the output of a window. Raises ChunkInvalid."""
    return _sealed(CipherBlob(window_key, content))


def seal_input(input_key: bytes, root: bytes, content: bytes) -> SealedBlob:
    """Encrypt a data set with its ``root``. Raises ChunkInvalid."""
    return _sealed(CipherBlob(input_key, content, root))


def _sealed(blob: CipherBlob) -> SealedBlob:
    return SealedBlob(b"".join((*blob.chunks, *blob.plain_hashes)), blob.commitment)


def input_blob_size(spec: JobSpec) -> int:
    """Return the bytes of a job's private data set as it is stored."""
    return sealed_size(spec.inputs()[0].size_bytes)


def open_input(input_key: bytes, spec: JobSpec, blob: bytes) -> bytes:
    """Return what the chunks of a private data set decrypt to: whether that is the data set is not checked."""
    return crypt_blob(input_key, spec.dataset.root, blob[: spec.inputs()[0].size_bytes])


def public_output(window: int, content: bytes) -> CipherBlob:
    """Return the output of a window of a task with the public key, ready for custody. Raises ChunkInvalid."""
    return CipherBlob(derive_key(PUBLIC_TASK_KEY, window_key_name(window)), content)


def public_input(root: bytes, content: bytes) -> CipherBlob:
    """Return a data set that everybody can read, ready for custody. Raises ChunkInvalid."""
    return CipherBlob(derive_key(PUBLIC_TASK_KEY, input_key_name(0)), content, root)


def custody_of(commitment: BlobCommitment, blob: bytes) -> Custody:
    """Return what a custodian keeps of a private blob. Raises ChunkInvalid for any other bytes."""
    if len(blob) != sealed_size(commitment.size):
        raise ChunkInvalid(f"{sealed_size(commitment.size)} bytes expected")
    chunks = [blob[at : min(at + CHUNK_BYTES, commitment.size)] for at in range(0, commitment.size, CHUNK_BYTES)]
    hashes = [blob[at : at + HASH_BYTES] for at in range(commitment.size, len(blob), HASH_BYTES)]
    return Custody(commitment, chunks, hashes)


def open_output(commitment: BlobCommitment, window_key: bytes, blob: bytes) -> bytes:
    """Return the plain output. Raises ChunkInvalid, and OutputIsGarbage with what proves it."""
    custody = custody_of(commitment, blob)
    plain = [custody.read(window_key, index) for index in range(commitment.chunks)]
    for index, chunk in enumerate(plain):
        if chunk is None:
            raise OutputIsGarbage(custody.proof(index))
    return b"".join(chunk for chunk in plain if chunk is not None)
