"""Binary Merkle trees over lists: roots and inclusion proofs for transactions, receipts, segments and parts.

See chain.md 5.3.

Leaves and inner nodes are hashed with different personalisations, so neither can pass for the other, and the
root covers the number of leaves. A node without a sibling moves up unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES, ZERO_HASH

__all__ = [
    "EMPTY_ROOT",
    "LEAVES_MAX",
    "PART_LEAVES",
    "MerkleProof",
    "MerkleTree",
    "ancestor_of",
    "leaf_hash",
    "level_width",
    "merkle_proof",
    "merkle_proofs",
    "merkle_root",
    "root_of_top",
    "verify_leaf_hash",
    "verify_merkle_proof",
]

EMPTY_ROOT: Final = ZERO_HASH
LEAVES_MAX: Final = 1 << 32
PART_LEAVES: Final = 1 << 12
"""Leaves whose hashes a root holds at once: a power of two."""


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


class MerkleTree:
    """All nodes of a tree, to show any part of it. Level 0 has the hashes of the leaves."""

    __slots__ = ("leaves", "levels")

    def __init__(self, leaves: Sequence[bytes]) -> None:
        """Raises ValueError for no leaves."""
        self._grow([_leaf(leaf) for leaf in leaves])

    @classmethod
    def of_hashes(cls, hashes: Sequence[bytes]) -> MerkleTree:
        """Return the tree over leaves of which only the hashes are known. Raises ValueError for none."""
        tree = cls.__new__(cls)
        tree._grow(list(hashes))
        return tree

    def _grow(self, lowest: list[bytes]) -> None:
        if not lowest:
            raise ValueError("a tree has leaves")
        self.leaves = len(lowest)
        self.levels = [lowest]
        while len(self.levels[-1]) > 1:
            self.levels.append(_above(self.levels[-1]))

    @property
    def root(self) -> bytes:
        """The same as ``merkle_root`` of the leaves."""
        return _root(self.leaves, self.levels[-1][0])

    def siblings(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings of leaf ``index``, from the leaf upwards. Raises IndexError."""
        if not 0 <= index < self.leaves:
            raise IndexError(index)
        return tuple(
            level[index >> depth ^ 1]
            for depth, level in enumerate(self.levels[:-1])
            if index >> depth ^ 1 < len(level)
        )

    def nodes(self, level: int, index: int, depth: int) -> tuple[bytes, ...]:
        """Return the nodes ``depth`` levels below node ``index`` of ``level``. Raises IndexError."""
        if not 0 <= level - depth <= level < len(self.levels) or not 0 <= index < len(self.levels[level]):
            raise IndexError((level, index, depth))
        return tuple(self.levels[level - depth][index << depth : (index + 1) << depth])


def _above(level: list[bytes]) -> list[bytes]:
    above = [_inner(level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return above + level[-1:] if len(level) % 2 else above


def leaf_hash(leaf: bytes) -> bytes:
    """Return the node of a leaf."""
    return _leaf(leaf)


def level_width(leaves: int, level: int) -> int:
    """Return the number of nodes of a level; level 0 are the leaves."""
    return -(-leaves >> level)


def ancestor_of(nodes: Sequence[bytes], depth: int) -> bytes:
    """Return the node ``depth`` levels above ``nodes``, which are all its descendants of their level.

    Only the last node of a level has no sibling, so a count that is not 2^depth ends its level.
    """
    level = list(nodes)
    for _ in range(depth):
        level = _above(level)
    if len(level) != 1:
        raise ValueError(f"{len(nodes)} nodes have no common node {depth} levels above")
    return level[0]


def root_of_top(leaves: int, top: bytes) -> bytes:
    """Return the root of a tree of ``leaves`` leaves whose single uppermost node is ``top``."""
    return _root(leaves, top)


def _top(level: list[bytes]) -> bytes:
    while len(level) > 1:
        level = _above(level)
    return level[0]


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over ``leaves`` in their order; EMPTY_ROOT for none.

    It holds few leaves and hashes at once: a whole subtree of PART_LEAVES gives one node.
    """
    tops, count, rest = list[bytes](), 0, iter(leaves)
    while part := [_leaf(leaf) for leaf in islice(rest, PART_LEAVES)]:
        tops.append(_top(part))
        count += len(part)
    return _root(count, _top(tops)) if tops else EMPTY_ROOT


def merkle_proof(leaves: Sequence[bytes], index: int) -> MerkleProof:
    """Return the proof that ``leaves[index]`` is under ``merkle_root(leaves)``. Raises IndexError."""
    if not 0 <= index < len(leaves):
        raise IndexError(index)
    tree = MerkleTree(leaves)
    return MerkleProof(index, tree.leaves, tree.siblings(index))


def merkle_proofs(leaves: Sequence[bytes]) -> tuple[bytes, tuple[MerkleProof, ...]]:
    """Return the root over ``leaves`` and the proof of each, every leaf hashed once."""
    if not leaves:
        return EMPTY_ROOT, ()
    tree = MerkleTree(leaves)
    return tree.root, tuple(MerkleProof(at, tree.leaves, tree.siblings(at)) for at in range(tree.leaves))


def verify_merkle_proof(root: bytes, leaf: bytes, proof: MerkleProof) -> bool:
    """Return whether ``leaf`` is at ``proof.position`` of the ``proof.leaves`` leaves under ``root``."""
    return verify_leaf_hash(root, _leaf(leaf), proof)


def verify_leaf_hash(root: bytes, node: bytes, proof: MerkleProof) -> bool:
    """Return the same for a leaf of which only the hash is known."""
    if not 0 <= proof.position < proof.leaves <= LEAVES_MAX or len(node) != HASH_BYTES:
        return False
    at, width, used = proof.position, proof.leaves, 0
    while width > 1:
        if at ^ 1 < width:
            if used == len(proof.siblings) or len(proof.siblings[used]) != HASH_BYTES:
                return False
            sibling = proof.siblings[used]
            used += 1
            node = _inner(sibling + node) if at & 1 else _inner(node + sibling)
        at, width = at // 2, (width + 1) // 2
    return used == len(proof.siblings) and _root(proof.leaves, node) == root
