"""The messages between senders and receivers of a multicast, and the effects of their cores.

See network.md 7.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from p2p.multicast.pieces import KEY_BYTES, PARITY_MAX, PieceLayout
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES

__all__ = [
    "ASK_SOURCES_MAX",
    "CONTROL_BYTES_MAX",
    "FORGET_S",
    "SWAP_MEMBERS_MAX",
    "TICK_S",
    "Announce",
    "Ask",
    "Control",
    "Deliver",
    "Done",
    "Effect",
    "Finished",
    "Have",
    "Member",
    "MulticastParameters",
    "Publish",
    "ReportFault",
    "SendControl",
    "SendPiece",
    "Swap",
    "Want",
    "decode_control",
    "encode_control",
    "numbers_of",
]  # fmt: skip

TICK_S: Final = 0.02
FORGET_S: Final = 0.5
"""Interval of ticks when everything has arrived and only expiry is left."""
CONTROL_BYTES_MAX: Final = 4 * 1024
SWAP_MEMBERS_MAX: Final = 128
ASK_SOURCES_MAX: Final = 32
_BITS_MAX: Final = 256
_KIND_MAX: Final = 0xDF
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MulticastParameters:
    """Times in seconds, and limits of what is in flight."""

    stall_s: float = 0.15
    """Silence beyond two round trips after which a receiver is helped; doubled with every round of help."""
    rtt_s_max: float = 0.5
    """Longer measured round trips mean a busy receiver, not a distant one."""
    standstill_s_max: float = 1.0
    """How much of this node's own stall time is not counted against receivers, in total."""
    have_s: float = 0.05
    """Minimum interval of one receiver's reports."""
    pull_s: float = 0.75
    """Silence after which a receiver requests missing pieces; doubled with every request."""
    pulls_max: int = 6
    later_s: float = 1.0
    """Maximum wait of receivers that may wait."""
    expiry_s: float = 15.0
    """After this time a sender and a receiver drop an incomplete message."""
    keep_s: float = 3.0
    """How long a receiver keeps the pieces of a complete message for others."""
    remember_s: float = 60.0
    relays_max: int = 3
    """Relays of one message."""
    relay_members_min: int = 2
    """A relay that reaches fewer receivers saves nothing."""
    relay_percent_min: int = 50
    """A further relay costs one more upload. It must reach this share of additional receivers, in percent of those
    reached."""
    split_max: int = 2
    """Number of relays that share the pieces even where one would reach every receiver."""
    relay_backoff_s: float = 10.0
    """How long a failed relay is not used for a receiver; doubled with every consecutive failure."""
    relay_backoff_s_max: float = 600.0
    swap_members_min: int = 3
    """Fewer receivers are served by the sender itself."""
    swap_rounds_max: int = 2
    """Rounds of help by swap. After these the sender itself serves receivers that lack pieces."""
    outgoing_max: int = 4
    incoming_per_sender_max: int = 8
    incoming_bytes_per_sender_max: int = 20 * MIB
    incoming_bytes_max: int = 128 * MIB
    incoming_bytes_of_untrusted_max: int = 32 * MIB
    early_bytes_per_source_max: int = 2 * MIB
    early_bytes_max: int = 16 * MIB
    """Pieces that arrived before their announcement."""
    early_s: float = 5.0
    remembered_max: int = 4_096
    resend_s: float = 2.0
    """A piece given to a connection is sent there again only after this much silence."""
    serves_percent_max: int = 150
    """Pieces served to one receiver alone, in percent of the message's pieces."""


class Announce(NamedTuple):
    """Sender: a message of this kind comes in pieces of this layout under ``root``, sealed with ``key``."""

    root: bytes
    key: bytes
    kind: int
    layout: PieceLayout


class Have(NamedTuple):
    """Receiver: I have the pieces whose bits are set."""

    root: bytes
    bitmap: int


class Done(NamedTuple):
    """Receiver: I have the whole message."""

    root: bytes


class Swap(NamedTuple):
    """Sender: forward the pieces that I mark to these members; parity has this root (empty: there is none)."""

    root: bytes
    parity_root: bytes
    parity_count: int
    members: tuple[bytes, ...]


class Want(NamedTuple):
    """Receiver: send me the pieces whose bits are set."""

    root: bytes
    bitmap: int


class Ask(NamedTuple):
    """Sender: request the pieces whose bits are set from these members, not from me."""

    root: bytes
    sources: tuple[tuple[bytes, int], ...]


Control: TypeAlias = Announce | Have | Done | Swap | Want | Ask


def encode_control(message: Control) -> bytes:
    """Return the canonical bytes of ``message``."""
    value: Value
    match message:
        case Announce(root, key, kind, layout):
            value = [1, root, key, kind, layout.size_bytes, layout.piece_bytes]
        case Have(root, bitmap):
            value = [2, root, bitmap]
        case Done(root):
            value = [3, root]
        case Swap(root, parity_root, parity_count, members):
            value = [4, root, parity_root, parity_count, list(members)]
        case Want(root, bitmap):
            value = [5, root, bitmap]
        case Ask(root, sources):
            value = [6, root, [[address, bitmap] for address, bitmap in sources]]
        case _:
            raise AssertionError(message)
    return encode(value)


def decode_control(data: bytes) -> Control:
    """Return the message of its canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=CONTROL_BYTES_MAX):
        case [1, bytes(root), bytes(key), int(kind), int(size_bytes), int(piece_bytes)] if (
            len(root),
            len(key),
        ) == (HASH_BYTES, KEY_BYTES) and 0 <= kind <= _KIND_MAX:
            return Announce(root, key, kind, PieceLayout(size_bytes, piece_bytes))
        case [2, bytes(root), int(bitmap)] if len(root) == HASH_BYTES and 0 <= bitmap < 1 << _BITS_MAX:
            return Have(root, bitmap)
        case [3, bytes(root)] if len(root) == HASH_BYTES:
            return Done(root)
        case [4, bytes(root), bytes(parity_root), int(parity_count), list(members)] if (
            len(root) == HASH_BYTES
            and 0 <= parity_count <= PARITY_MAX
            and len(parity_root) == (HASH_BYTES if parity_count else 0)
            and len(members) <= SWAP_MEMBERS_MAX
            and all(isinstance(member, bytes) and len(member) == ADDRESS_BYTES for member in members)
        ):
            return Swap(root, parity_root, parity_count, tuple(members))
        case [5, bytes(root), int(bitmap)] if len(root) == HASH_BYTES and 0 < bitmap < 1 << _BITS_MAX:
            return Want(root, bitmap)
        case [6, bytes(root), list(sources)] if len(root) == HASH_BYTES and len(sources) <= ASK_SOURCES_MAX:
            return Ask(root, tuple([_decode_source(source) for source in sources]))
        case _:
            raise DecodeError("not a message of a multicast")


def _decode_source(value: Value) -> tuple[bytes, int]:
    match value:
        case [bytes(address), int(bitmap)] if len(address) == ADDRESS_BYTES and 0 < bitmap < 1 << _BITS_MAX:
            return address, bitmap
        case _:
            raise DecodeError("not a source of pieces")


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message to a peer, before everything but votes."""

    address: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class SendPiece:
    """Send a piece to a peer, if it is connected."""

    address: bytes
    frame: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish these pieces at a relay in order, each for its members; report ``published`` or
    ``publish_failed``.
    """

    root: bytes
    relay: bytes
    parts: tuple[tuple[frozenset[bytes], bytes], ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message of ``sender`` is complete."""

    sender: bytes
    kind: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ReportFault:
    """A peer sent data that only a faulty node sends."""

    address: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """An own message reached every receiver, or its time is over and ``missing`` receivers lack it."""

    size_bytes: int
    members: int
    missing: int
    took_s: float


Effect: TypeAlias = SendControl | SendPiece | Publish | Deliver | ReportFault | Finished


class Member(NamedTuple):
    """A receiver from the sender's view. ``may_wait``: it is served after the others, and forwards nothing."""

    address: bytes
    rtt_s: float = 0.0
    is_connected: bool = True
    may_wait: bool = False


def numbers_of(bitmap: int) -> list[int]:
    """Return the numbers of the set bits."""
    return [number for number in range(bitmap.bit_length()) if bitmap >> number & 1]
