"""Proofs that a key has a value, or has none, under a state root; checked without any of the node's data.

See chain.md 9.2.

A proof is the canonical encoding of the nodes from the root towards the key (``Trie.path_to``).
"""

from __future__ import annotations

from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.trie.trie import (
    BUCKET_ENTRIES_MAX,
    EMPTY_ROOT,
    INNER_BYTES,
    Trie,
    child_count,
    child_hash,
    count_of,
    entry_of,
    is_inner,
    key_hash,
    nibble_at,
    node_hash,
)

__all__ = ["PROOF_LIMIT_BYTES", "decode_proof", "is_node", "prove", "verify_proof"]

NODES_MAX: Final = 2 * HASH_BYTES
PROOF_LIMIT_BYTES: Final = NODES_MAX * (INNER_BYTES + 3) + BUCKET_ENTRIES_MAX * 2 * HASH_BYTES + 16


def prove(trie: Trie, key: bytes) -> bytes:
    """Return the proof of what ``key`` has in ``trie``, or that it has nothing. Raises TrieDamaged."""
    return encode(tuple(trie.path_to(key_hash(key))))


def decode_proof(data: bytes) -> tuple[bytes, ...]:
    """Return the nodes of a proof, each of a possible shape; their hashes are not checked. Raises DecodeError."""
    match decode(data, limit_bytes=PROOF_LIMIT_BYTES):
        case [*nodes] if len(nodes) <= NODES_MAX and all(type(node) is bytes and is_node(node) for node in nodes):
            return tuple(nodes)
        case _:
            raise DecodeError("not a proof")


def verify_proof(root: bytes, key: bytes, value: bytes | None, proof: bytes) -> bool:
    """Tell whether ``proof`` shows that ``key`` has ``value`` (None: is absent) in the state with ``root``.

    Any other bytes than the one proof of this key under this root are refused.
    """
    try:
        nodes = decode_proof(proof)
    except DecodeError:
        return False
    if root == EMPTY_ROOT or not nodes:
        return root == EMPTY_ROOT and not nodes and value is None
    hashed = key_hash(key)
    expected, count = root, None
    for depth, node in enumerate(nodes):
        if node_hash(node) != expected or (count is not None and count_of(node) != count):
            return False
        is_last = depth == len(nodes) - 1
        if not is_inner(node):
            return is_last and _bucket_says(node, hashed, key, value)
        if count_of(node) <= BUCKET_ENTRIES_MAX:
            return False
        nibble = nibble_at(hashed, depth)
        expected, count = child_hash(node, nibble), child_count(node, nibble)
        if not count:
            return is_last and value is None
    return False  # ends at an inner node that does have the key's child


def is_node(node: bytes) -> bool:
    """Tell whether bytes have the shape of a node; nothing is said about their hash."""
    if node[:1] == b"\x01":
        return len(node) == INNER_BYTES
    entries, rest = divmod(len(node) - 1, 2 * HASH_BYTES)
    return node[:1] == b"\x00" and rest == 0 and 0 < entries <= BUCKET_ENTRIES_MAX


def _bucket_says(bucket: bytes, hashed: bytes, key: bytes, value: bytes | None) -> bool:
    entries = [bucket[at : at + 2 * HASH_BYTES] for at in range(1, len(bucket), 2 * HASH_BYTES)]
    if value is not None:
        return entry_of(key, value) in entries
    return all(entry[:HASH_BYTES] != hashed for entry in entries)
