"""Binary Merkle trees over lists: roots and inclusion proofs for transactions, receipts, segments and parts.

See chain.md 5.3.

Leaves and inner nodes are hashed with different personalisations, so neither can pass for the other, and the
root covers the number of leaves. A node without a sibling moves up unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES, ZERO_HASH

__all__ = [
    "EMPTY_ROOT",
    "LEAVES_MAX",
    "MerkleProof",
    "merkle_proof",
    "merkle_proofs",
    "merkle_root",
    "verify_merkle_proof",
]

EMPTY_ROOT: Final = ZERO_HASH
LEAVES_MAX: Final = 1 << 32


class MerkleProof(NamedTuple):
    """Siblings from the leaf upwards for the leaf at ``position`` of ``leaves``."""

    position: int
    leaves: int
    siblings: tuple[bytes, ...]


def _leaf(data: bytes) -> bytes:
    return blake2b(data, digest_size=32, person=b"merkle-leaf").digest()


def _inner(pair: bytes) -> bytes:
    return blake2b(pair, digest_size=32, person=b"merkle-node").digest()


def _root(count: int, top: bytes) -> bytes:
    return blake2b(count.to_bytes(8, "big") + top, digest_size=32, person=b"merkle-root").digest()


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over ``leaves`` in their order; EMPTY_ROOT for none."""
    if not leaves:
        return EMPTY_ROOT
    level = [_leaf(leaf) for leaf in leaves]
    while len(level) > 1:
        above = [_inner(level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return _root(len(leaves), level[0])


def merkle_proof(leaves: Sequence[bytes], index: int) -> MerkleProof:
    """Return the proof that ``leaves[index]`` is under ``merkle_root(leaves)``. Raises IndexError."""
    if not 0 <= index < len(leaves):
        raise IndexError(index)
    level = [_leaf(leaf) for leaf in leaves]
    at, siblings = index, []
    while len(level) > 1:
        if at ^ 1 < len(level):
            siblings.append(level[at ^ 1])
        above = [_inner(level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        level, at = above, at // 2
    return MerkleProof(index, len(leaves), tuple(siblings))


def merkle_proofs(leaves: Sequence[bytes]) -> tuple[bytes, tuple[MerkleProof, ...]]:
    """Return the root over ``leaves`` and the proof of each, every leaf hashed once."""
    levels = [[_leaf(leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        level = levels[-1]
        above = [_inner(level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        levels.append(above + level[-1:] if len(level) % 2 else above)
    proofs = tuple(
        MerkleProof(
            index,
            len(leaves),
            tuple(
                level[index >> depth ^ 1]
                for depth, level in enumerate(levels[:-1])
                if index >> depth ^ 1 < len(level)
            ),
        )
        for index in range(len(leaves))
    )
    return (_root(len(leaves), levels[-1][0]) if leaves else EMPTY_ROOT), proofs


def verify_merkle_proof(root: bytes, leaf: bytes, proof: MerkleProof) -> bool:
    """Return whether ``leaf`` is at ``proof.position`` of the ``proof.leaves`` leaves under ``root``."""
    if not 0 <= proof.position < proof.leaves <= LEAVES_MAX:
        return False
    node, at, width, used = _leaf(leaf), proof.position, proof.leaves, 0
    while width > 1:
        if at ^ 1 < width:
            if used == len(proof.siblings) or len(proof.siblings[used]) != HASH_BYTES:
                return False
            sibling = proof.siblings[used]
            used += 1
            node = _inner(sibling + node) if at & 1 else _inner(node + sibling)
        at, width = at // 2, (width + 1) // 2
    return used == len(proof.siblings) and _root(proof.leaves, node) == root
