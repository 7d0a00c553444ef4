"""Where the values of a state lie in its blob: what ties a blob in custody to the state root (market.md R40).

A worker commits to a state twice: by the root over its tensors, which verifiers check, and by the root over the
chunks of its encoding, which is what custodians keep. The encoding of a state is fixed, so one chunk and one leaf
of a tensor that lies in it show that the two differ.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleProof, verify_merkle_proof
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, siblings_of
from tasks.custody.errors import ChunkInvalid
from tasks.engines.state import StatePlan, state_size, step_size
from tasks.programs.states import tensor_leaf
from tasks.programs.tensors import LEAF_BYTES, TensorType, leaf_size

__all__ = [
    "LeafEvidence",
    "PlainChunk",
    "StateLayout",
    "check_mismatch",
    "leaf_evidence_from_value",
    "leaf_evidence_to_value",
    "plain_chunk_from_value",
    "plain_chunk_to_value",
    "state_size",
    "step_size",
]

TENSORS_MAX: Final = 1 << 16
_VERSION: Final = 1
_HEAD_ONE_BYTE: Final = 24
_PAIR: Final = b"\x82"
"""Head of an array of two items: a tensor's name and its bytes."""
_SHORT_PAIR: Final = tuple(_PAIR + bytes([0x60 + size]) for size in range(_HEAD_ONE_BYTE))
"""The same with the head of a short text."""
_BYTES_TYPE: Final = 0x40
"""Major type of byte strings in the head of an item (RFC 8949)."""


class PlainChunk(NamedTuple):
    """A plain chunk of a blob with its path to the plain root."""

    number: int
    content: bytes
    siblings: tuple[bytes, ...]


class LeafEvidence(NamedTuple):
    """A leaf of the tensor at ``position`` of a state, with the paths that tie it to the state root."""

    position: int
    tensor_root: bytes
    tensor_siblings: tuple[bytes, ...]
    leaf: int
    content: bytes
    leaf_siblings: tuple[bytes, ...]


class _Tensor(NamedTuple):
    name: str
    kind: TensorType
    offset: int


class StateLayout:
    """The encoding of a state after ``step`` steps: its size, what is fixed in it, and where each tensor lies."""

    def __init__(self, plan: StatePlan, step: int) -> None:
        types = plan.tensors()
        self.fixed: list[tuple[int, bytes]] = []
        """Bytes that are the same in every such state, with their offsets."""
        self.tensors: list[_Tensor] = []
        head = encode([_VERSION, step, []])[:-1] + encode([None] * len(types))[: -len(types)]
        heads: dict[TensorType, tuple[bytes, int]] = {}
        at = 0
        for name, kind in types.items():
            if kind not in heads:
                heads[kind] = _bytes_head(kind.size_bytes), kind.size_bytes
            content, size = heads[kind]
            text = name.encode()
            short = len(text) < _HEAD_ONE_BYTE
            head += (_SHORT_PAIR[len(text)] if short else _PAIR + encode(name)[: -len(text)]) + text + content
            self.fixed.append((at, head))
            at += len(head)
            self.tensors.append(_Tensor(name, kind, at))
            at += size
            head = b""
        self.size = at
        """Bytes of the encoding."""


def _bytes_head(size: int) -> bytes:
    head = encode(size)
    return bytes([head[0] | _BYTES_TYPE]) + head[1:]


def plain_chunk_to_value(chunk: PlainChunk) -> list[Value]:
    """Return ``chunk`` as a codec value."""
    return [chunk.number, chunk.content, list(chunk.siblings)]


def plain_chunk_from_value(value: Any) -> PlainChunk:
    """Return the chunk of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(number), bytes(content), list(siblings)] if number >= 0 and 0 < len(content) <= CHUNK_BYTES:
            return PlainChunk(number, content, siblings_of(siblings))
    raise DecodeError("not a plain chunk with its path")


def leaf_evidence_to_value(evidence: LeafEvidence | None) -> list[Value]:
    """Return ``evidence`` as a codec value; none is an empty list."""
    if evidence is None:
        return []
    position, root, tensor_siblings, leaf, content, leaf_siblings = evidence
    return [position, root, list(tensor_siblings), leaf, content, list(leaf_siblings)]


def leaf_evidence_from_value(value: Any) -> LeafEvidence | None:
    """Return the evidence of a decoded codec value. Raises DecodeError."""
    match value:
        case []:
            return None
        case [int(position), bytes(root), list(mine), int(leaf), bytes(content), list(others)] if (
            0 <= position < TENSORS_MAX and len(root) == HASH_BYTES and leaf >= 0
            and 0 < len(content) <= LEAF_BYTES
        ):  # fmt: skip
            return LeafEvidence(position, root, siblings_of(mine), leaf, content, siblings_of(others))
    raise DecodeError("not a leaf of a state with its paths")


def check_mismatch(
    layout: StateLayout, state_root: bytes, commitment: BlobCommitment, chunk: PlainChunk,
    evidence: LeafEvidence | None,
) -> None:  # fmt: skip
    """Check that a plain chunk under a blob's root is not what the state under ``state_root`` has there.

    Without ``evidence`` the chunk differs in what is fixed in every such state. Raises ChunkInvalid where nothing
    is shown.
    """
    if len(chunk.content) != commitment.chunk_size(chunk.number):
        raise ChunkInvalid(f"chunk {chunk.number} has another size")
    path = MerkleProof(chunk.number, commitment.chunks, chunk.siblings)
    if not verify_merkle_proof(commitment.plain_root, chunk.content, path):
        raise ChunkInvalid(f"chunk {chunk.number} is not under the root of plain chunks")
    if evidence is None:
        expected = layout.fixed
    else:
        expected = [(_offset_of(layout, state_root, evidence), evidence.content)]
    if all(_fits(chunk, offset, content) for offset, content in expected):
        raise ChunkInvalid(f"chunk {chunk.number} is what the state has there")


def _offset_of(layout: StateLayout, state_root: bytes, evidence: LeafEvidence) -> int:
    """Return where in the encoding a leaf under the state root lies. Raises ChunkInvalid."""
    if evidence.position >= len(layout.tensors):
        raise ChunkInvalid("the state has no such tensor")
    name, kind, offset = layout.tensors[evidence.position]
    if evidence.leaf >= kind.leaves or len(evidence.content) != leaf_size(kind, evidence.leaf):
        raise ChunkInvalid("the tensor has no such leaf")
    place = MerkleProof(evidence.position + 1, len(layout.tensors) + 1, evidence.tensor_siblings)
    if not verify_merkle_proof(state_root, tensor_leaf(name, kind, evidence.tensor_root), place):
        raise ChunkInvalid("the tensor is not one of the state")
    place = MerkleProof(evidence.leaf, kind.leaves, evidence.leaf_siblings)
    if not verify_merkle_proof(evidence.tensor_root, evidence.content, place):
        raise ChunkInvalid("the leaf is not one of the tensor")
    row, column = divmod(evidence.leaf, kind.leaves_per_row)
    return offset + row * kind.row_bytes + column * LEAF_BYTES


def _fits(chunk: PlainChunk, offset: int, content: bytes) -> bool:
    """Tell whether a chunk has ``content`` at ``offset`` of the blob, as far as that lies in it."""
    start = chunk.number * CHUNK_BYTES
    first, stop = max(offset, start), min(offset + len(content), start + len(chunk.content))
    return first >= stop or chunk.content[first - start : stop - start] == content[first - offset : stop - offset]
