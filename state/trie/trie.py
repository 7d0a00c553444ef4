"""The authenticated map: a hexary Merkle trie over hashed keys with one hash a node and buckets at its leaves.

See chain.md R8.

A key's place is its key hash, 64 nibbles. A subtree of at most ``BUCKET_ENTRIES_MAX`` keys is one bucket, a
larger one an inner node of 16 children; so the shape, and with it the root, depends on the content alone and
never on the order of changes. Each node is bytes that are stored, hashed and sent in proofs alike:

- inner: ``0x01 || 16 x count (4) || 16 x hash (32)``, zeros for a child without keys;
- bucket: ``0x00 || n x (key hash || value hash)`` in ascending order of the key hashes.

The counts under the hash say which form each child has, so no node can be read as the other form. Nodes are
found by path: the nibbles from the root as lower-case hex digits, ``b""`` for the root itself.
"""

from __future__ import annotations

from binascii import hexlify
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple, Protocol

from state.primitives.errors import StoreError
from state.primitives.hashing import HASH_BYTES, ZERO_HASH

__all__ = [
    "BUCKET_ENTRIES_MAX",
    "EMPTY_ROOT",
    "NO_NODES",
    "Batch",
    "NodeLayer",
    "NodeReader",
    "Trie",
    "TrieDamaged",
    "TrieUpdate",
    "entry_of",
    "root_of_entries",
    "update_below",
]

EMPTY_ROOT: Final = ZERO_HASH
BUCKET_ENTRIES_MAX: Final = 32
"""Measured at a million keys: 16 writes fewer bytes but hashes more nodes a block."""

_COUNT_BYTES: Final = 4
_COUNTS: Final = Struct(">x16I")
_HASHES_AT: Final = 1 + 16 * _COUNT_BYTES
INNER_BYTES: Final = _HASHES_AT + 16 * HASH_BYTES
_ENTRY_BYTES: Final = 2 * HASH_BYTES
_BUCKET_TAG: Final = b"\x00"
_EMPTY_INNER: Final = b"\x01" + bytes(INNER_BYTES - 1)
_HASH_AT: Final = {ord(f"{nibble:x}"): _HASHES_AT + HASH_BYTES * nibble for nibble in range(16)}
_NIBBLES: Final = tuple(b"%x" % nibble for nibble in range(16))

# Copying a prepared state costs half of constructing one with keywords.
_KEY_HASHER: Final = blake2b(digest_size=HASH_BYTES, person=b"trie-key")
_VALUE_HASHER: Final = blake2b(digest_size=HASH_BYTES, person=b"trie-value")
_NODE_HASHER: Final = blake2b(digest_size=HASH_BYTES, person=b"trie-node")


class TrieDamaged(StoreError):
    """A node that the trie refers to is absent or does not have the hash its parent states."""

    code = "store_damaged"


class NodeReader(Protocol):
    """Where the nodes of a trie are read."""

    def get(self, path: bytes) -> bytes | None:
        """Return the node at ``path``, or None when there is none."""
        ...


class _NoNodes:
    def get(self, path: bytes) -> bytes | None:
        return None


NO_NODES: Final[NodeReader] = _NoNodes()
"""The nodes of the empty trie."""


class NodeLayer:
    """Nodes changed by one block, over those of its parent; None stands for a removed node.

    ``rebase`` replaces what lies below, for when the parent's nodes have reached the store.
    """

    __slots__ = ("_base", "nodes")

    def __init__(self, base: NodeReader, nodes: Mapping[bytes, bytes | None]) -> None:
        self._base = base
        self.nodes = nodes

    def get(self, path: bytes) -> bytes | None:
        """Return the node at ``path`` through the layers."""
        try:
            return self.nodes[path]
        except KeyError:
            return self._base.get(path)

    def rebase(self, base: NodeReader) -> None:
        """Read what this layer does not hold from ``base``, which must hold the same nodes as before."""
        self._base = base


class TrieUpdate(NamedTuple):
    """The outcome of a batch: the new root, and each node that differs, by path (None: removed)."""

    root: bytes
    nodes: dict[bytes, bytes | None]


def node_hash(node: bytes) -> bytes:
    """Return the hash by which a parent (or the header) refers to ``node``."""
    hasher = _NODE_HASHER.copy()
    hasher.update(node)
    return hasher.digest()


def key_hash(key: bytes) -> bytes:
    """Return the place of ``key``."""
    hasher = _KEY_HASHER.copy()
    hasher.update(key)
    return hasher.digest()


def value_hash(value: bytes) -> bytes:
    """Return what stands for ``value`` in a bucket."""
    hasher = _VALUE_HASHER.copy()
    hasher.update(value)
    return hasher.digest()


def entry_of(key: bytes, value: bytes) -> bytes:
    """Return the 64-byte entry of a bucket for ``key`` with ``value``."""
    return key_hash(key) + value_hash(value)


def is_inner(node: bytes) -> bool:
    """Tell an inner node from a bucket."""
    return node[0] == 1


def child_count(inner: bytes, nibble: int) -> int:
    """Return how many keys are below child ``nibble`` of an inner node."""
    at = 1 + _COUNT_BYTES * nibble
    return int.from_bytes(inner[at : at + _COUNT_BYTES], "big")


def child_hash(inner: bytes, nibble: int) -> bytes:
    """Return the hash of child ``nibble`` of an inner node; zeros when it has no keys."""
    at = _HASHES_AT + HASH_BYTES * nibble
    return inner[at : at + HASH_BYTES]


def nibble_at(hashed_key: bytes, depth: int) -> int:
    """Return the nibble of a key hash that chooses the child of an inner node at ``depth``."""
    byte = hashed_key[depth >> 1]
    return byte & 15 if depth & 1 else byte >> 4


class Trie:
    """A version of the map: a root and where its nodes are. Never changed; ``update`` yields the next version."""

    __slots__ = ("nodes", "root")

    def __init__(self, root: bytes = EMPTY_ROOT, nodes: NodeReader = NO_NODES) -> None:
        self.root = root
        self.nodes = nodes

    def update(self, changes: Mapping[bytes, bytes | None]) -> TrieUpdate:
        """Return the version in which each key of ``changes`` has its new value, or is absent for None.

        Raises TrieDamaged when a node that must be read is absent.
        """
        copy_key, copy_value = _KEY_HASHER.copy, _VALUE_HASHER.copy
        items: list[bytes] = []
        for key, value in changes.items():
            hasher = copy_key()
            hasher.update(key)
            if value is None:
                items.append(hasher.digest())
            else:
                value_hasher = copy_value()
                value_hasher.update(value)
                items.append(hasher.digest() + value_hasher.digest())
        items.sort()
        return self.update_entries(items)

    def update_entries(self, items: list[bytes]) -> TrieUpdate:
        """Do what ``update`` does for keys already hashed.

        ``items`` are in ascending order, one for a key: a 64-byte entry sets, a bare 32-byte key hash removes.
        """
        if not items:
            return TrieUpdate(self.root, {})
        batch = Batch(self.nodes)
        root = self.root
        if root == EMPTY_ROOT:
            root, _ = batch.change_bucket(b"", 0, _BUCKET_TAG, items)
            return TrieUpdate(root, batch.nodes)
        top = batch.read(b"")
        if is_inner(top):
            root, items = batch.overwrite(root, count_of(top), items)
            if items:  # keys that come or go: the shape may change
                top = batch.read(b"")
                root, _ = batch.change_inner(b"", 0, top, count_of(top), items, 0, len(items))
        else:
            root, _ = batch.change_bucket(b"", 0, top, items)
        return TrieUpdate(root, batch.nodes)

    def after(self, update: TrieUpdate) -> Trie:
        """Return the version that ``update`` of this one led to, its nodes laid over this one's."""
        return Trie(update.root, NodeLayer(self.nodes, update.nodes))

    @property
    def count(self) -> int:
        """How many keys the map has."""
        if self.root == EMPTY_ROOT:
            return 0
        top = self.nodes.get(b"")
        if top is None:
            raise TrieDamaged("the trie's root node is absent")
        return count_of(top)

    def path_to(self, hashed_key: bytes) -> list[bytes]:
        """Return the nodes from the root towards the key: to its bucket, or to an inner node without its child.

        Each node is checked against the hash by which it was found. Raises TrieDamaged.
        """
        found: list[bytes] = []
        if self.root == EMPTY_ROOT:
            return found
        expected, path = self.root, b""
        for depth in range(2 * HASH_BYTES):
            node = self.nodes.get(path)
            if node is None or node_hash(node) != expected:
                raise TrieDamaged(f"trie node at '{path.decode()}' is absent or has another hash")
            found.append(node)
            if not is_inner(node):
                break
            nibble = nibble_at(hashed_key, depth)
            if not child_count(node, nibble):
                break
            expected, path = child_hash(node, nibble), path + _NIBBLES[nibble]
        return found


def count_of(node: bytes) -> int:
    """Return how many keys are at or below ``node``."""
    if is_inner(node):
        return sum(_COUNTS.unpack_from(node))
    return len(node) // _ENTRY_BYTES


def root_of_entries(entries: Iterable[bytes]) -> bytes:
    """Return the root over ``entries`` (see ``entry_of``), computed from nothing, keeping no node."""
    batch = Batch(NO_NODES, keep=False)
    return batch.build(b"", 0, sorted(entries))


def update_below(nodes: NodeReader, path: bytes, items: list[bytes]) -> dict[bytes, bytes | None]:
    """Apply ``items`` (see ``Trie.update_entries``) to the subtree at ``path`` alone; return its changed nodes.

    All of ``items`` must lie below ``path``, and what lies below it must be the same map before and after in any
    trie that holds it, so that the node at ``path`` may be whatever its content makes it.
    """
    batch = Batch(nodes)
    top = nodes.get(path)
    if top is not None and is_inner(top):
        batch.change_inner(path, len(path), top, count_of(top), items, 0, len(items))
    else:
        batch.change_bucket(path, len(path), top or _BUCKET_TAG, items)
    return batch.nodes


class Batch:
    """One update on its way: reads from the version before, collects the nodes that differ."""

    __slots__ = ("_get", "_keep", "nodes")

    def __init__(self, base: NodeReader, *, keep: bool = True) -> None:
        self._get = base.get
        self._keep = keep
        self.nodes: dict[bytes, bytes | None] = {}

    def read(self, path: bytes) -> bytes:
        """Return the node at ``path``, changed or not. Raises TrieDamaged."""
        node = self.nodes.get(path) or self._get(path)
        if not node:
            raise TrieDamaged(f"trie node at '{path.decode()}' is absent")
        return node

    def overwrite(self, root: bytes, count: int, items: list[bytes]) -> tuple[bytes, list[bytes]]:
        """Set those ``items`` whose keys are there already, in a trie of ``count`` keys with an inner root.

        Returns the new root and the other items, untouched. What most of a block's changes are: no node comes
        or goes and no count changes, so buckets are found directly by path and hashes rise level by level.
        """
        get, nodes = self._get, self.nodes
        guess = 1  # the depth at which most keys are in a bucket, or one level above it
        while count >> 4 * guess > 2 * BUCKET_ENTRIES_MAX:
            guess += 1
        buckets: dict[bytes, bytes] = {}
        others: list[bytes] = []
        for item in items:
            if len(item) != _ENTRY_BYTES:
                others.append(item)
                continue
            nibbles = hexlify(item)
            depth = guess
            path = nibbles[:depth]
            bucket = buckets.get(path) or get(path)
            while bucket and bucket[0]:
                depth += 1
                path = nibbles[:depth]
                bucket = buckets.get(path) or get(path)
            # Hashes are personalised: 32 bytes of a bucket that equal a key hash are that entry.
            if bucket and (found := bucket.find(item[:HASH_BYTES])) > 0:
                buckets[path] = bucket[:found] + item + bucket[found + _ENTRY_BYTES :]
            else:
                others.append(item)
        if not buckets:
            return root, others
        nodes.update(buckets)
        copy = _NODE_HASHER.copy
        rising: list[dict[bytes, list[tuple[int, bytes]]]] = [{} for _ in range(2 * HASH_BYTES)]
        for path, bucket in buckets.items():
            hasher = copy()
            hasher.update(bucket)
            rising[len(path) - 1].setdefault(path[:-1], []).append((_HASH_AT[path[-1]], hasher.digest()))
        for depth in range(2 * HASH_BYTES - 1, -1, -1):
            for path, hashes in rising[depth].items():
                body = bytearray(self.read(path))
                for at, new_hash in hashes:
                    body[at : at + HASH_BYTES] = new_hash
                inner = nodes[path] = bytes(body)
                hasher = copy()
                hasher.update(inner)
                root = hasher.digest()
                if depth:
                    rising[depth - 1].setdefault(path[:-1], []).append((_HASH_AT[path[-1]], root))
        return root, others

    def change_inner(
        self, path: bytes, depth: int, node: bytes, total: int, items: list[bytes], start: int, stop: int
    ) -> tuple[bytes, int]:
        """Apply ``items[start:stop]``, all below the inner ``node`` of ``total`` keys; return its hash, count."""
        body = bytearray(node)
        at_byte, shift = depth >> 1, 0 if depth & 1 else 4
        here = start
        while here < stop:
            item = items[here]
            nibble = (item[at_byte] >> shift) & 15
            end = here + 1
            if stop - here > 64:  # crowded: the next child's first key by bisection
                bound = item[: at_byte + 1] if shift == 0 else bytes((*item[:at_byte], item[at_byte] | 15))
                end = bisect_left(items, _after(bound), here, stop)
            else:
                while end < stop and (items[end][at_byte] >> shift) & 15 == nibble:
                    end += 1
            count_at = 1 + _COUNT_BYTES * nibble
            hash_at = _HASHES_AT + HASH_BYTES * nibble
            count = int.from_bytes(body[count_at : count_at + _COUNT_BYTES], "big")
            child = path + _NIBBLES[nibble]
            if count > BUCKET_ENTRIES_MAX:
                new_hash, new_count = self.change_inner(
                    child, depth + 1, self.read(child), count, items, here, end
                )
            else:
                bucket = self.read(child) if count else _BUCKET_TAG
                new_hash, new_count = self.change_bucket(child, depth + 1, bucket, items[here:end])
            body[hash_at : hash_at + HASH_BYTES] = new_hash
            if new_count != count:
                total += new_count - count
                body[count_at : count_at + _COUNT_BYTES] = new_count.to_bytes(_COUNT_BYTES, "big")
            here = end
        changed = bytes(body)
        if total <= BUCKET_ENTRIES_MAX:
            return self._collapse(path, changed, total)
        self.nodes[path] = changed
        return node_hash(changed), total

    def change_bucket(self, path: bytes, depth: int, bucket: bytes, items: list[bytes]) -> tuple[bytes, int]:
        """Apply ``items``, all below the ``bucket`` at ``path``; return the hash and count of what results."""
        merged = {
            bucket[at : at + HASH_BYTES]: bucket[at : at + _ENTRY_BYTES]
            for at in range(1, len(bucket), _ENTRY_BYTES)
        }
        for item in items:
            if len(item) == _ENTRY_BYTES:
                merged[item[:HASH_BYTES]] = item
            else:
                merged.pop(item, None)
        return self.build(path, depth, sorted(merged.values())), len(merged)

    def build(self, path: bytes, depth: int, entries: list[bytes]) -> bytes:
        """Make the subtree of sorted ``entries`` at ``path`` from nothing and return its hash."""
        nodes = self.nodes
        if not entries:
            nodes[path] = None
            return ZERO_HASH
        if len(entries) <= BUCKET_ENTRIES_MAX:
            node = _BUCKET_TAG + b"".join(entries)
        else:
            at_byte, shift = depth >> 1, 0 if depth & 1 else 4
            body = bytearray(_EMPTY_INNER)
            here = 0
            while here < len(entries):
                first = entries[here]
                nibble = (first[at_byte] >> shift) & 15
                bound = first[: at_byte + 1] if shift == 0 else bytes((*first[:at_byte], first[at_byte] | 15))
                end = bisect_left(entries, _after(bound), here)
                hash_at, count_at = _HASHES_AT + HASH_BYTES * nibble, 1 + _COUNT_BYTES * nibble
                body[hash_at : hash_at + HASH_BYTES] = self.build(
                    path + _NIBBLES[nibble], depth + 1, entries[here:end]
                )
                body[count_at : count_at + _COUNT_BYTES] = (end - here).to_bytes(_COUNT_BYTES, "big")
                here = end
            node = bytes(body)
        if self._keep:
            nodes[path] = node
        return node_hash(node)

    def _collapse(self, path: bytes, inner: bytes, total: int) -> tuple[bytes, int]:
        """Turn the ``inner`` node at ``path``, with few keys left below, into one bucket."""
        nodes = self.nodes
        entries: list[bytes] = []
        for nibble in range(16):
            if child_count(inner, nibble):
                child = path + _NIBBLES[nibble]
                bucket = self.read(child)
                entries.append(bucket[1:])
                nodes[child] = None
        if not total:
            nodes[path] = None
            return ZERO_HASH, 0
        node = _BUCKET_TAG + b"".join(entries)
        nodes[path] = node
        return node_hash(node), total


def _after(prefix: bytes) -> bytes:
    """Return the least bytes above everything that starts with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return b"\xff" * (HASH_BYTES * 2 + 1)
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
