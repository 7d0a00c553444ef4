"""Range proofs: all entries of the map whose key hashes lie in a range, complete and unaltered.

See chain.md 9.3.

A range is ``start <= key hash < stop`` (None: to the end). Subtrees that lie wholly inside are made again from the
entries alone; of the nodes that the ends of the range cut, at most two a level, the bytes travel in the proof. So
the receiver has every node of the range, and the union of ranges that cover the map is the whole trie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.hashing import HASH_BYTES
from state.trie.proof import NODES_MAX, is_node
from state.trie.trie import (
    BUCKET_ENTRIES_MAX,
    EMPTY_ROOT,
    NO_NODES,
    Batch,
    Trie,
    TrieDamaged,
    child_count,
    child_hash,
    count_of,
    is_inner,
    node_hash,
)

__all__ = [
    "RANGE_LIMIT_BYTES",
    "RangeInvalid",
    "RangeOfMap",
    "decode_range",
    "encode_range",
    "prove_range",
    "verify_range",
]

RANGE_LIMIT_BYTES: Final = 2 * 1024 * 1024
"""Hard bound of the decoder; encoded ranges stay far below it."""
_END: Final = 1 << 8 * HASH_BYTES
_HEX: Final = tuple(b"%x" % nibble for nibble in range(16))


class RangeInvalid(ProtocolError):
    """Entries and nodes that are not exactly the range under the root: their sender is faulty."""

    code = "range_invalid"


class RangeOfMap(NamedTuple):
    """The keys of a range with their values, in the order of their key hashes, and the nodes that its ends cut."""

    items: tuple[tuple[bytes, bytes], ...]
    nodes: tuple[bytes, ...]


def encode_range(content: RangeOfMap) -> bytes:
    """Return the canonical bytes of a range, in which keys and values alternate."""
    return encode([[part for item in content.items for part in item], list(content.nodes)])


def decode_range(data: bytes) -> RangeOfMap:
    """Return the range of ``data``; nothing is verified but the shape of each node. Raises DecodeError."""
    match decode(data, limit_bytes=RANGE_LIMIT_BYTES, limit_items=NODES_MAX + len(data) // 2):
        case [list(flat), list(nodes)] if (
            len(flat) % 2 == 0
            and len(nodes) <= 2 * NODES_MAX
            and all(type(part) is bytes for part in flat)
            and all(type(node) is bytes and is_node(node) for node in nodes)
        ):
            return RangeOfMap(tuple(zip(flat[::2], flat[1::2], strict=True)), tuple(nodes))
        case _:
            raise DecodeError("not a range")


def prove_range(trie: Trie, start: bytes, stop: bytes | None) -> tuple[bytes, ...]:
    """Return the nodes that the ends of a range cut, parents before children, lower before higher.

    Raises TrieDamaged.
    """
    low, high = _bounds(start, stop)
    found: list[bytes] = []

    def cut(path: bytes, first: int, size_bits: int, expected: bytes) -> None:
        node = trie.nodes.get(path)
        if node is None or node_hash(node) != expected:
            raise TrieDamaged(f"trie node at '{path.decode()}' is absent or has another hash")
        found.append(node)
        if not is_inner(node):
            return
        for nibble in range(16):
            below = first + (nibble << size_bits - 4)
            if child_count(node, nibble) and _is_cut(below, size_bits - 4, low, high):
                cut(path + _HEX[nibble], below, size_bits - 4, child_hash(node, nibble))

    if trie.root != EMPTY_ROOT and _is_cut(0, 8 * HASH_BYTES, low, high):
        cut(b"", 0, 8 * HASH_BYTES, trie.root)
    return tuple(found)


def verify_range(
    root: bytes, start: bytes, stop: bytes | None, entries: Sequence[bytes], nodes: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Return each node of the trie with ``root`` that touches the range, by path.

    ``entries`` are those of the range (see ``entry_of``), in ascending order. Raises RangeInvalid unless they are
    exactly the map's in that range and ``nodes`` exactly those of ``prove_range``.
    """
    low, high = _bounds(start, stop)
    previous = b""
    for entry in entries:
        if len(entry) != 2 * HASH_BYTES or entry[:HASH_BYTES] <= previous:
            raise RangeInvalid("the entries are not in ascending order")
        previous = entry[:HASH_BYTES]
    if entries and (entries[0][:HASH_BYTES] < start or (stop is not None and previous >= stop)):
        raise RangeInvalid("an entry outside of the range")
    if root == EMPTY_ROOT:
        if entries or nodes:
            raise RangeInvalid("entries of an empty map")
        return {}
    check = _Check(low, high, list(entries), nodes)
    if _is_cut(0, 8 * HASH_BYTES, low, high):
        check.cut(b"", 0, 8 * HASH_BYTES, root, None)
    else:
        check.whole(b"", 0, 8 * HASH_BYTES, root, None)
    check.end()
    return check.nodes


class _Check:
    """One verification on its way: ``at`` entries and ``used`` nodes are accounted for."""

    def __init__(self, low: int, high: int, entries: list[bytes], proof: Sequence[bytes]) -> None:
        self._low, self._high = low, high
        self._entries, self._proof = entries, proof
        self._at = self._used = 0
        self._batch = Batch(NO_NODES)
        self._cut: dict[bytes, bytes] = {}

    @property
    def nodes(self) -> dict[bytes, bytes]:
        return {**{path: node for path, node in self._batch.nodes.items() if node is not None}, **self._cut}

    def end(self) -> None:
        if self._at != len(self._entries) or self._used != len(self._proof):
            raise RangeInvalid("entries or nodes that the root does not account for")

    def whole(self, path: bytes, first: int, size_bits: int, expected: bytes, count: int | None) -> None:
        """Make the subtree at ``path``, which lies inside the range, from its entries."""
        taken = self._take(first + (1 << size_bits))
        if count is not None and len(taken) != count:
            raise RangeInvalid(f"{len(taken)} entries below '{path.decode()}', not {count}")
        if not taken or self._batch.build(path, len(path), taken) != expected:
            raise RangeInvalid(f"the entries below '{path.decode()}' have another hash")

    def cut(self, path: bytes, first: int, size_bits: int, expected: bytes, count: int | None) -> None:
        """Check the node at ``path``, through which an end of the range goes, and what of it is inside."""
        if self._used == len(self._proof):
            raise RangeInvalid(f"the node at '{path.decode()}' is not there")
        node = self._proof[self._used]
        self._used += 1
        held = count_of(node)
        if node_hash(node) != expected or held != (held if count is None else count):
            raise RangeInvalid(f"the node at '{path.decode()}' has another hash")
        if is_inner(node) != (held > BUCKET_ENTRIES_MAX):
            raise RangeInvalid(f"the node at '{path.decode()}' has not the form of its size")
        self._cut[path] = node
        if not is_inner(node):
            low, high = max(first, self._low), min(first + (1 << size_bits), self._high)
            listed = [node[at : at + 2 * HASH_BYTES] for at in range(1, len(node), 2 * HASH_BYTES)]
            if self._take(high) != [entry for entry in listed if low <= _place(entry) < high]:
                raise RangeInvalid(f"the bucket at '{path.decode()}' has other entries")
            return
        size_bits -= 4
        for nibble in range(16):
            below = first + (nibble << size_bits)
            inside = child_count(node, nibble)
            if below + (1 << size_bits) <= self._low or below >= self._high or not inside:
                continue
            step = self.cut if _is_cut(below, size_bits, self._low, self._high) else self.whole
            step(path + _HEX[nibble], below, size_bits, child_hash(node, nibble), inside)

    def _take(self, stop: int) -> list[bytes]:
        """Return the entries below the place ``stop`` that nothing has accounted for yet."""
        start = self._at
        bound = stop.to_bytes(HASH_BYTES + 1, "big")[1:] if stop < _END else None
        self._at = len(self._entries) if bound is None else bisect_left(self._entries, bound, start)
        return self._entries[start : self._at]


def _bounds(start: bytes, stop: bytes | None) -> tuple[int, int]:
    low, high = int.from_bytes(start, "big"), _END if stop is None else int.from_bytes(stop, "big")
    if len(start) != HASH_BYTES or (stop is not None and len(stop) != HASH_BYTES) or low >= high:
        raise RangeInvalid("not a range of key hashes")
    return low, high


def _is_cut(first: int, size_bits: int, low: int, high: int) -> bool:
    """Tell whether a subtree reaches into the range and out of it."""
    after = first + (1 << size_bits)
    return first < high and after > low and not (low <= first and after <= high)


def _place(entry: bytes) -> int:
    return int.from_bytes(entry[:HASH_BYTES], "big")
