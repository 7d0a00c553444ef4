"""What the database holds beside state and trie: records of heights, undo records, and the layout of keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.store.errors import StoreDamaged

__all__ = ["FinalisedBlock", "Place", "Tip", "Undo"]

FORMAT_VERSION: Final = 1

# First byte of each database key. Heights are 8 bytes big endian, so that ranges are in their order.
STATE: Final = b"s"
NODE: Final = b"n"
FLUSHED: Final = b"N"
TIP: Final = b"T"
FORMAT: Final = b"F"
HEIGHT: Final = b"h"
BLOCK: Final = b"b"
RECEIPTS: Final = b"r"
CERTIFICATE: Final = b"c"
UNDO: Final = b"u"
BLOCK_HASH: Final = b"i"
TRANSACTION: Final = b"t"
ADDRESS: Final = b"a"

RECORD_LIMIT_BYTES: Final = 64 * 1024
BLOB_LIMIT_BYTES: Final = 1 << 30
"""Bound of decoding what this node itself has written, a hash of whose size stands in a checksummed table."""


class Tip(NamedTuple):
    """A finalised height: its block and what executing it led to. At height 0 ``header`` is empty.

    ``state_root`` and ``receipt_root`` are those after executing this block: the ones in the next header.
    ``next_base_fee`` is the base fee of the next block.
    """

    height: int
    block_hash: bytes
    state_root: bytes
    receipt_root: bytes
    next_base_fee: int
    time_ms: int
    header: bytes


class FinalisedBlock(NamedTuple):
    """All that one commit writes, each part already encoded; ``tip`` says what it leads to.

    ``block`` are the bytes as received. ``transaction_hashes``, ``addresses`` and ``receipts`` have one item a
    transaction, in order; ``addresses`` are those in whose history the transaction is listed. ``block_receipt``
    is that of the block's hooks, if they left events. ``changes`` and ``nodes`` hold None for what goes.
    """

    tip: Tip
    block: bytes
    certificate: bytes
    transaction_hashes: Sequence[bytes]
    addresses: Sequence[Sequence[bytes]]
    receipts: Sequence[bytes]
    block_receipt: bytes | None
    changes: Mapping[bytes, bytes | None]
    nodes: Mapping[bytes, bytes | None]


class Place(NamedTuple):
    """Where a transaction stands."""

    height: int
    position: int


def height_key(prefix: bytes, height: int) -> bytes:
    """Return the key of what ``prefix`` holds for ``height``."""
    return prefix + height.to_bytes(8, "big")


def encode_tip(tip: Tip) -> bytes:
    """Return the record of ``tip``."""
    return encode(tip)


def decode_tip(data: bytes) -> Tip:
    """Return the tip of a record. Raises StoreDamaged."""
    match _decode(data, RECORD_LIMIT_BYTES):
        case [
            int(height), bytes(block_hash), bytes(state_root), bytes(receipt_root), int(base_fee), int(time_ms),
            bytes(header),
        ] if (
            height >= 0 and base_fee >= 0 and time_ms >= 0
            and {len(block_hash), len(state_root), len(receipt_root)} == {HASH_BYTES}
        ):  # fmt: skip
            return Tip(height, block_hash, state_root, receipt_root, base_fee, time_ms, header)
        case _:
            raise StoreDamaged("the record of a height is not one")


def encode_place(height: int, position: int) -> bytes:
    """Return the 12 bytes of a place, in the order of places."""
    return height.to_bytes(8, "big") + position.to_bytes(4, "big")


def decode_place(data: bytes) -> Place:
    """Return the place of 12 bytes. Raises StoreDamaged."""
    if len(data) != 12:
        raise StoreDamaged("an index entry is not a place")
    return Place(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))


def encode_receipts(receipts: Sequence[bytes], block_receipt: bytes | None) -> bytes:
    """Return the record of a block's receipts."""
    return encode([tuple(receipts), block_receipt])


def decode_receipts(data: bytes) -> tuple[tuple[bytes, ...], bytes | None]:
    """Return the receipts of a block and that of its hooks. Raises StoreDamaged."""
    match _decode(data, BLOB_LIMIT_BYTES):
        case [list(receipts), (None | bytes()) as block_receipt] if all(
            type(receipt) is bytes for receipt in receipts
        ):
            return tuple(receipts), block_receipt
        case _:
            raise StoreDamaged("the record of receipts is not one")


class Undo:
    """The values that a block's changed keys had before it, in the order of the keys."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes], values: list[bytes | None]) -> None:
        self.keys = keys
        self.values = values

    def find(self, key: bytes) -> tuple[bytes | None] | None:
        """Return the value before the block in a tuple, or None when the block left ``key`` alone."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return (self.values[at],)
        return None

    def between(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes | None]]:
        """Return the changed keys with ``start <= key < stop`` and their earlier values."""
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, stop)
        return list(zip(self.keys[low:high], self.values[low:high], strict=True))

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return encode([tuple(self.keys), tuple(self.values)])

    @classmethod
    def decode(cls, data: bytes) -> Undo:
        """Return the record of ``data``. Raises StoreDamaged."""
        match _decode(data, BLOB_LIMIT_BYTES):
            case [list(keys), list(values)] if (
                len(keys) == len(values)
                and all(type(key) is bytes for key in keys)
                and all(value is None or type(value) is bytes for value in values)
            ):
                return cls(keys, values)
            case _:
                raise StoreDamaged("an undo record is not one")


def _decode(data: bytes, limit_bytes: int) -> Any:
    try:
        return decode(data, limit_bytes=limit_bytes)
    except DecodeError as error:
        raise StoreDamaged(f"a record does not decode: {error}") from None
