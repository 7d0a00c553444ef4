"""Records of the database: heights, views and undo data, with their encodings and the layout of keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.store.errors import StoreDamaged

__all__ = [
    "NO_VIEWS",
    "Bounds",
    "FinalisedBlock",
    "Span",
    "Tip",
    "TransactionPosition",
    "Undo",
    "ViewCertificate",
    "ViewCertificates",
]

_T = TypeVar("_T")

FORMAT_VERSION: Final = 2

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
INDEX: Final = b"x"
EPOCH: Final = b"e"
BOUNDS: Final = b"B"
NULLIFIED: Final = b"v"
NOTARIZED: Final = b"w"
NOTARIZED_SPAN: Final = b"W"
RESTORED: Final = b"R"
RESTORING: Final = b"D"

TABLES: Final = {
    STATE: "state",
    NODE: "trie",
    HEIGHT: "headers",
    BLOCK: "blocks",
    RECEIPTS: "receipts",
    CERTIFICATE: "certificates",
    EPOCH: "epoch records",
    NULLIFIED: "nullifications",
    NOTARIZED: "notarizations",
    UNDO: "undo",
    TRANSACTION: "transactions",
    ADDRESS: "addresses",
    BLOCK_HASH: "block hashes",
    INDEX: "index records",
}
"""Names of the tables for operators."""

RECORD_LIMIT_BYTES: Final = 64 * 1024
ADDRESS_BYTES: Final = 20
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


class ViewCertificate(NamedTuple):
    """A certificate of a view, encoded."""

    epoch: int
    view: int
    certificate: bytes


class ViewCertificates(NamedTuple):
    """Certificates of the views up to a finalised one, in order; evidence in case of a fork.

    NULLIFY of those that the chain skipped, NOTARIZE of those that have a block.
    """

    nullified: Sequence[ViewCertificate] = ()
    notarized: Sequence[ViewCertificate] = ()


NO_VIEWS: Final = ViewCertificates()


class FinalisedBlock(NamedTuple):
    """The encoded parts that one commit writes, and the resulting ``tip``.

    ``block`` are the bytes as received. ``transaction_hashes``, ``addresses`` and ``receipts`` have one item a
    transaction, in order; ``addresses`` are those in whose history the transaction is listed, and may end with
    those in whose history the block itself is, at the place behind its transactions. ``block_receipt`` is that of
    the block's hooks, if they left events. ``changes`` and ``nodes`` hold None for what goes.
    ``next_committee`` is the encoded committee of the next epoch, in the last block of an epoch; ``certificate``
    is then that of this very block. ``views`` has what is kept of the views up to this one.
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
    next_committee: bytes | None = None
    views: ViewCertificates = NO_VIEWS


class Bounds(NamedTuple):
    """The pruned ranges: headers below ``base``, bodies up to ``pruned``, states below ``states``.

    ``base`` is 0, or the height whose state a restored database began with.
    """

    base: int = 0
    pruned: int = 0
    states: int = 0


class Span(NamedTuple):
    """How much is kept of NOTARIZE certificates: their bytes in all, and that none stands below ``view``."""

    size_bytes: int = 0
    epoch: int = 0
    view: int = 0


class TransactionPosition(NamedTuple):
    """The height of a transaction's block and its position in it."""

    height: int
    position: int


def height_key(prefix: bytes, height: int) -> bytes:
    """Return the key of what ``prefix`` holds for ``height``."""
    return prefix + height.to_bytes(8, "big")


def view_key(prefix: bytes, epoch: int, view: int) -> bytes:
    """Return the key of what ``prefix`` (NULLIFIED or NOTARIZED) holds for a view."""
    return prefix + epoch.to_bytes(4, "big") + view.to_bytes(6, "big")


def view_of_key(key: bytes) -> tuple[int, int]:
    """Return epoch and view of such a key. Raises StoreDamaged."""
    if len(key) != 11:
        raise StoreDamaged("the key of a view's certificate is not one")
    return int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:], "big")


def encode_span(span: Span) -> bytes:
    """Return the record of ``span``."""
    return encode(span)


def decode_span(data: bytes | None) -> Span:
    """Return the span of a record; that of nothing where there is none. Raises StoreDamaged."""
    if data is None:
        return Span()
    match _decode(data, RECORD_LIMIT_BYTES):
        case [int(size), int(epoch), int(view)] if size >= 0 and 0 <= epoch < 2**32 and 0 <= view < 2**48:
            return Span(size, epoch, view)
        case _:
            raise StoreDamaged("the record of what is kept of notarized views is not one")


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


def encode_bounds(bounds: Bounds) -> bytes:
    """Return the record of ``bounds``."""
    return encode(bounds)


def decode_bounds(data: bytes | None) -> Bounds:
    """Return the bounds of a record. Raises StoreDamaged."""
    match _decode(data or b"", RECORD_LIMIT_BYTES):
        case [int(base), int(pruned), int(states)] if 0 <= base <= pruned and base <= states:
            return Bounds(base, pruned, states)
        case _:
            raise StoreDamaged("the record of what the database holds is absent or not one")


def encode_index(transaction_hashes: Sequence[bytes], addresses: Sequence[Sequence[bytes]]) -> bytes:
    """Return the record of a block's index entries, for their later removal."""
    return encode([b"".join(transaction_hashes), [b"".join(listed) for listed in addresses]])


def decode_index(data: bytes) -> tuple[list[bytes], list[list[bytes]]]:
    """Return the transaction hashes of a block and the addresses by transaction. Raises StoreDamaged."""
    match _decode(data, BLOB_LIMIT_BYTES):
        case [bytes(hashes), list(addresses)] if len(hashes) % HASH_BYTES == 0 and all(
            type(listed) is bytes and len(listed) % ADDRESS_BYTES == 0 for listed in addresses
        ):
            return _cut(hashes, HASH_BYTES), [_cut(listed, ADDRESS_BYTES) for listed in addresses]
        case _:
            raise StoreDamaged("an index record is not one")


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def encode_epoch(header: bytes, certificate: bytes, committee: bytes) -> bytes:
    """Return the record of an epoch: what a light client follows, each part encoded already."""
    return encode([header, certificate, committee])


def decode_epoch(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return header, certificate and next committee of a record. Raises StoreDamaged."""
    match _decode(data, RECORD_LIMIT_BYTES):
        case [bytes(header), bytes(certificate), bytes(committee)]:
            return header, certificate, committee
        case _:
            raise StoreDamaged("the record of an epoch is not one")


def encode_position(height: int, position: int) -> bytes:
    """Return the 12 bytes of a position; byte order is the order of positions."""
    return height.to_bytes(8, "big") + position.to_bytes(4, "big")


def decode_position(data: bytes) -> TransactionPosition:
    """Return the position of 12 bytes. Raises StoreDamaged."""
    if len(data) != 12:
        raise StoreDamaged("an index entry is not a place")
    return TransactionPosition(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))


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
        # This node wrote it: keys and values may be as short as the rules make them.
        return decode(data, limit_bytes=limit_bytes, limit_items=len(data))
    except DecodeError as error:
        raise StoreDamaged(f"a record does not decode: {error}") from None


def named(height: int, decoder: Callable[[bytes], _T], record: bytes) -> _T:
    """Return a decoded record of a height, which names its damage. Raises StoreDamaged."""
    try:
        return decoder(record)
    except StoreDamaged as error:
        raise StoreDamaged(f"height {height}: {error}") from None
