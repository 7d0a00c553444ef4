"""What proves that an input with a key is not the data set of its job (market.md R46).

A claim opens plain chunks under the root that the requester committed to. Size is no fault here: the chain takes
no commitment to another size.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.manifests import BLOB_CHUNK_BYTES
from state.primitives.merkle import MerkleProof, MerkleTree, verify_merkle_proof
from tasks.claims import (
    ClaimUnproven,
    Fault,
    InputClaim,
    check_claim,
    find_fault,
    first_fault,
    is_fault,
    read_chunks,
)
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, crypt_chunk
from tasks.custody.layout import PlainChunk, plain_chunk_from_value, plain_chunk_to_value
from tasks.custody.sealed import input_blob_size, open_input
from tasks.engines.dataset_layout import TENSORS, NodePlace
from tasks.spec import JobSpec

__all__ = [
    "PLAIN_CHUNKS_MAX",
    "PlainClaim",
    "check_keyed_claim",
    "check_plain_claim",
    "find_keyed_fault",
    "find_plain_fault",
    "plain_claim_from_value",
    "plain_claim_to_value",
]

PLAIN_CHUNKS_MAX: Final = 3
"""Chunks that a claim opens: more would not fit into a transaction."""
_FAULTS: Final = (Fault.FORM, Fault.LABEL, Fault.NODE, Fault.ROOT)
_OFFSET_LIMIT: Final = 1 << 48


class PlainClaim(NamedTuple):
    """A fault of an input at ``place``, and the plain chunks that show it."""

    task: bytes
    fault: Fault
    place: NodePlace
    chunks: tuple[PlainChunk, ...]


def plain_claim_to_value(claim: PlainClaim) -> list[Value]:
    """Return a claim as a codec value."""
    chunks: list[Value] = [plain_chunk_to_value(chunk) for chunk in claim.chunks]
    return [claim.task, int(claim.fault), list(claim.place), chunks]


def plain_claim_from_value(value: Any) -> PlainClaim:
    """Return the claim of a decoded codec value. Raises DecodeError."""
    match value:
        case [bytes(task), int(fault), [int(tensor), int(stage), int(number)], list(chunks)] if (
            len(task) == HASH_BYTES and fault in _FAULTS and 0 <= tensor < len(TENSORS)
            and 0 <= stage <= HASH_BYTES and 0 <= number < _OFFSET_LIMIT and len(chunks) <= PLAIN_CHUNKS_MAX
        ):  # fmt: skip
            place = NodePlace(tensor, stage, number)
            return PlainClaim(task, Fault(fault), place, tuple(map(plain_chunk_from_value, chunks)))
        case _:
            raise DecodeError("not a claim about an input")


class _ShownPlain:
    """The plain chunks that a claim has shown to stand under the plain root."""

    def __init__(self, blob: BlobCommitment, chunks: tuple[PlainChunk, ...]) -> None:
        """Raises ChunkInvalid, ClaimUnproven."""
        self._chunks: dict[int, bytes] = {}
        for number, content, siblings in chunks:
            path = MerkleProof(number, blob.chunks, siblings)
            if len(content) != blob.chunk_size(number) or not verify_merkle_proof(blob.plain_root, content, path):
                raise ClaimUnproven(f"chunk {number} is not under the root of plain chunks")
            self._chunks[number] = content

    def read(self, start: int, stop: int) -> bytes:
        return read_chunks(self._chunks, CHUNK_BYTES, start, stop)


def check_plain_claim(spec: JobSpec, blob: BlobCommitment, claim: PlainClaim) -> None:
    """Return if a claim proves that an input is not its job's data set. Raises ChunkInvalid, ClaimUnproven."""
    if not is_fault(spec, claim.fault, claim.place, _ShownPlain(blob, claim.chunks)):
        raise ClaimUnproven("what is shown is no fault")


def check_keyed_claim(spec: JobSpec, claim: InputClaim, key: bytes) -> None:
    """Return if a claim proves that a task's blob does not decrypt to its data set with the key of its input.

    Raises ClaimUnproven, ChunkInvalid.
    """

    def plain_of(number: int, content: bytes) -> bytes:
        index, offset = divmod(number * BLOB_CHUNK_BYTES, CHUNK_BYTES)
        return crypt_chunk(key, spec.dataset.root, index, content, offset)

    check_claim(spec, claim, plain_of, blob_bytes=input_blob_size(spec))


def find_keyed_fault(task: bytes, spec: JobSpec, blob: bytes, key: bytes) -> tuple[bytes, InputClaim | None]:
    """Return what a private input decrypts to, and the claim against it; None if that is its job's data set."""
    content = open_input(key, spec, blob)
    return content, find_fault(task, spec, content, blob, blob_bytes=input_blob_size(spec))


def find_plain_fault(task: bytes, spec: JobSpec, content: bytes) -> PlainClaim | None:
    """Return the claim against an input of the right size; None if it is the data set of its job.

    None too where what shows the fault lies in more chunks than a claim has.
    """
    found = first_fault(spec, content)
    if found is None:
        return None
    fault, place, spans = found
    numbers = sorted({at // CHUNK_BYTES for start, stop in spans for at in (start, stop - 1)})
    if len(numbers) > PLAIN_CHUNKS_MAX:
        return None
    parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    tree = MerkleTree(parts)
    chunks = tuple(PlainChunk(number, parts[number], tree.siblings(number)) for number in numbers)
    return PlainClaim(task, fault, place, chunks)
