"""Splits a sealed message into pieces with Merkle proofs, and adds parity pieces where useful. See network.md 7.4.

The message is sealed before it is split, so a node that forwards pieces sees neither content nor kind; the key is
in the announcement. A piece is verified before it is kept or forwarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from p2p.base.errors import PieceForged
from p2p.multicast import erasure
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleProof, merkle_proofs, verify_merkle_proof

__all__ = [
    "KEY_BYTES",
    "MESSAGE_BYTES_MAX",
    "PARITY_MAX",
    "PARITY_MESSAGE_BYTES_MAX",
    "PIECE_BYTES_MAX",
    "PIECE_BYTES_MIN",
    "PIECE_FRAME_BYTES_MAX",
    "SEAL_BYTES",
    "Assembly",
    "Piece",
    "PieceLayout",
    "PieceSet",
    "decode_piece",
    "encode_piece",
    "make_parity_pieces",
    "open_message",
    "seal_message",
    "split_message",
]

KEY_BYTES: Final = 32
SEAL_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 9 * 1024 * 1024
"""Longest message before sealing: the limit of the class BLOCK."""
PIECE_BYTES_MAX: Final = 64 * 1024
PIECE_BYTES_MIN: Final = 1024
DATA_PIECES_MAX: Final = 160
PARITY_MAX: Final = 32
"""Parity pieces of one message. Rebuilding needs this many passes over the data."""
PARITY_MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Longer messages have no parity: rebuilding would block the event loop for more than about 50 ms."""
_PROOF_HASHES_MAX: Final = 8
_HEAD: Final = Struct(">32sBHB")
_FORWARD: Final = 1
PIECE_FRAME_BYTES_MAX: Final = _HEAD.size + _PROOF_HASHES_MAX * HASH_BYTES + PIECE_BYTES_MAX
_NONCE: Final = bytes(12)
"""A key seals one message."""


@dataclass(frozen=True, slots=True)
class PieceLayout:
    """How a sealed message of ``size_bytes`` is split. Raises DecodeError for impossible sizes."""

    size_bytes: int
    piece_bytes: int

    def __post_init__(self) -> None:
        if not (
            SEAL_BYTES < self.size_bytes <= MESSAGE_BYTES_MAX + SEAL_BYTES
            and PIECE_BYTES_MIN <= self.piece_bytes <= PIECE_BYTES_MAX
            and self.count <= DATA_PIECES_MAX
        ):
            raise DecodeError("impossible piece size or message size")

    @property
    def count(self) -> int:
        """Number of data pieces."""
        return -(-self.size_bytes // self.piece_bytes)

    def piece_size(self, index: int) -> int:
        """Return the size of one piece; the last data piece may be shorter."""
        return (
            min(self.piece_bytes, self.size_bytes - index * self.piece_bytes)
            if index < self.count
            else self.piece_bytes
        )

    @classmethod
    def fit(cls, size_bytes: int, receivers: int) -> PieceLayout:
        """Return the layout in which equal shares of the pieces are equal shares of the message."""
        shares = max(1, min(receivers, DATA_PIECES_MAX))
        each = -(-size_bytes // (shares * PIECE_BYTES_MAX))
        if shares * each > DATA_PIECES_MAX:
            return cls(size_bytes, PIECE_BYTES_MAX)
        return cls(size_bytes, max(PIECE_BYTES_MIN, -(-size_bytes // (shares * each))))


class Piece(NamedTuple):
    """One piece with its proof. Numbers after the data pieces are parity, under a root of their own.

    ``is_to_forward``: a receiver that gets it from the sender itself forwards it to the others.
    """

    root: bytes
    number: int
    siblings: tuple[bytes, ...]
    data: bytes
    is_to_forward: bool = False


class PieceSet(NamedTuple):
    """Pieces under one root."""

    root: bytes
    pieces: tuple[bytes, ...]
    proofs: tuple[MerkleProof, ...]


def encode_piece(piece: Piece) -> bytes:
    """Return the encoded piece."""
    head = _HEAD.pack(piece.root, _FORWARD if piece.is_to_forward else 0, piece.number, len(piece.siblings))
    return b"".join((head, *piece.siblings, piece.data))


def decode_piece(data: bytes) -> Piece:
    """Decode a canonical piece; its proof is not checked. Raises DecodeError."""
    if len(data) < _HEAD.size or len(data) > PIECE_FRAME_BYTES_MAX:
        raise DecodeError("not a piece")
    root, flags, index, hashes = _HEAD.unpack_from(data)
    at = _HEAD.size + hashes * HASH_BYTES
    if flags > _FORWARD or hashes > _PROOF_HASHES_MAX or index >= DATA_PIECES_MAX + PARITY_MAX or len(data) <= at:
        raise DecodeError("not a piece")
    siblings = tuple(data[begin : begin + HASH_BYTES] for begin in range(_HEAD.size, at, HASH_BYTES))
    return Piece(root, index, siblings, data[at:], flags == _FORWARD)


def seal_message(key: bytes, kind: int, body: bytes) -> bytes:
    """Return the sealed message; ``key`` must never be used again."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, body, bytes((kind,)))


def open_message(key: bytes, kind: int, sealed: bytes) -> bytes:
    """Return the message. Raises PieceForged if the sender announced another key, kind or content."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, bytes((kind,)))
    except InvalidTag:
        raise PieceForged("the pieces do not form a message") from None


def split_message(sealed: bytes, layout: PieceLayout) -> PieceSet:
    """Return the pieces of a sealed message."""
    step = layout.piece_bytes
    return _under_root(tuple(sealed[at : at + step] for at in range(0, len(sealed), step)))


def make_parity_pieces(pieces: Sequence[bytes], layout: PieceLayout, count: int) -> PieceSet:
    """Return ``count`` parity pieces of all data pieces, numbered from 0 under their own root."""
    return _under_root(tuple(erasure.parity([*pieces[:-1], pieces[-1].ljust(layout.piece_bytes, b"\0")], count)))


def _under_root(pieces: tuple[bytes, ...]) -> PieceSet:
    root, proofs = merkle_proofs(pieces)
    return PieceSet(root, pieces, proofs)


@dataclass(slots=True)
class Assembly:
    """The received pieces of one message."""

    root: bytes
    layout: PieceLayout
    parity_root: bytes = b""
    parity_count: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)

    def add(self, piece: Piece) -> bool:
        """Add a piece; return False if it was already present. Raises PieceForged; the piece is then not kept."""
        count = self.layout.count
        if piece.number < count:
            proof, root = MerkleProof(piece.number, count, piece.siblings), self.root
        else:
            proof, root = MerkleProof(piece.number - count, self.parity_count, piece.siblings), self.parity_root
        if piece.number in self.pieces:
            return False
        if len(piece.data) != self.layout.piece_size(piece.number) or not verify_merkle_proof(
            root, piece.data, proof
        ):
            raise PieceForged(f"piece {piece.number} is not under its root")
        self.pieces[piece.number] = piece
        return True

    def knows(self, index: int) -> bool:
        """Whether a piece of that number can be verified yet; parity only once its root is known."""
        return index < self.layout.count + self.parity_count

    @property
    def is_enough(self) -> bool:
        """Whether the message can be restored."""
        return len(self.pieces) >= self.layout.count

    @property
    def bitmap(self) -> int:
        """The numbers of the present pieces, as bits."""
        return sum(1 << index for index in self.pieces)

    def sealed(self) -> bytes:
        """Return the sealed message. Raises PieceForged if the parity belongs to other data."""
        count, layout = self.layout.count, self.layout
        if all(index in self.pieces for index in range(count)):
            return b"".join(self.pieces[index].data for index in range(count))
        padded = {index: piece.data.ljust(layout.piece_bytes, b"\0") for index, piece in self.pieces.items()}
        data = erasure.rebuild(padded, count)
        sealed = b"".join(data)[: layout.size_bytes]
        if split_message(sealed, layout).root != self.root:
            raise PieceForged("the parity pieces do not belong to the data pieces")
        return sealed
