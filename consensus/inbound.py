"""Messages on their way in: decoded, waiting for their epoch, answered at a bounded pace. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from consensus import events as c
from consensus.votes import Certificate, Check
from consensus.wire import (
    CERTIFICATE_LIMIT_BYTES,
    BlockReply,
    BlocksReply,
    Certificates,
    GetCertificates,
    Message,
    Proposal,
    Votes,
    decode_message,
)
from state.primitives.blocks import Block, decode_block, header_hash, is_body_of
from state.primitives.errors import DecodeError
from state.primitives.votes import FINALIZE

__all__ = [
    "EARLY_MESSAGES_MAX",
    "EARLY_OF_ONE_MAX",
    "EARLY_OF_STRANGERS_MAX",
    "Decoded",
    "EarlyMessages",
    "Inbound",
    "Pace",
    "decode_inbound",
    "epoch_of",
]

EARLY_MESSAGES_MAX: Final = 512
"""Messages of the next epoch that are kept until it begins here, the newest of them."""
EARLY_OF_ONE_MAX: Final = 16
EARLY_OF_STRANGERS_MAX: Final = 128
"""Of these, those of senders without a seat now, who may have one then: nobody can push out what seats said."""
EARLY_BYTES_MAX: Final = 8 * 1024 * 1024
VOTE_BYTES: Final = 512
"""What a vote takes in memory, about."""
ANSWERED_MAX: Final = 256


class Decoded(NamedTuple):
    """A message and the blocks in it, each with its hash and its bytes; header and body belong together."""

    message: Message
    blocks: tuple[tuple[bytes, Block, bytes], ...]


class Inbound(NamedTuple):
    """A message that may matter, the events it becomes, and the signatures to verify before.

    ``reply`` is a message that is answered, ``window`` proves ``blocks`` that were asked for. ``epoch`` is that of
    a message of another epoch: ``early`` is kept until it begins, who asks about an old one is told how it ended.
    ``during`` is the epoch whose committee the checks and events are of: it may end while they are verified.
    """

    sender: bytes
    events: tuple[c.Event, ...]
    checks: tuple[Check, ...]
    blocks: tuple[tuple[bytes, Block, bytes], ...] = ()
    reply: Message | None = None
    window: Certificate | None = None
    epoch: int | None = None
    early: Decoded | None = None
    during: int | None = None


def decode_inbound(data: bytes) -> Decoded:
    """Return the message of a peer's bytes. Touches no replica, so a worker thread may do it for large ones.

    Raises DecodeError, also for a block whose body is not the one its header names.
    """
    message = decode_message(data)
    match message:
        case Proposal() | BlockReply():
            raw: tuple[bytes, ...] = (message.block,)
        case BlocksReply():
            raw = message.blocks
        case _:
            return Decoded(message, ())
    blocks = tuple([_decode_whole_block(block) for block in raw])
    if isinstance(message, Proposal) and blocks[0][0] != message.candidate.block_hash:
        raise DecodeError("a proposal of another block")
    if isinstance(message, BlocksReply):
        for number, (_, block, _) in enumerate(blocks):
            if block.header.height != message.from_height + number or (
                number > 0 and block.header.parent_hash != blocks[number - 1][0]
            ):
                raise DecodeError("a window of blocks that do not follow each other")
        if blocks[-1][0] != message.certificate.block_hash or message.certificate.kind != FINALIZE:
            raise DecodeError("a window of blocks without the certificate of its last")
    return Decoded(message, blocks)


def _decode_whole_block(raw: bytes) -> tuple[bytes, Block, bytes]:
    block = decode_block(raw)
    if not is_body_of(block):
        raise DecodeError("a body that its header does not name")
    return header_hash(block.header), block, raw


def epoch_of(message: Message) -> int | None:
    """The epoch that a message speaks of; None where it means the same in all."""
    match message:
        case Proposal(candidate):
            return candidate.epoch
        case Certificates(certificates):
            return certificates[0].epoch
        case GetCertificates(epoch):
            return epoch
        case _:
            return None


class EarlyMessages:
    """Messages of the next epoch, undecided until its committee is known; bounded for each sender and in all."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: deque[tuple[bytes, Decoded, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, sender: bytes, decoded: Decoded, seats: frozenset[bytes]) -> None:
        """Keep a message; ``seats`` are the addresses whose messages no stranger may push out."""
        match decoded.message:
            case Votes(votes):
                size = VOTE_BYTES * len(votes)
            case Certificates(certificates):
                size = CERTIFICATE_LIMIT_BYTES * len(certificates)
            case Proposal(_, _, _, nulls, block):
                size = len(block) + CERTIFICATE_LIMIT_BYTES * (1 + len(nulls))
            case _:
                return
        kept = self._kept
        if sender not in seats and sum(other not in seats for other, _, _ in kept) >= EARLY_OF_STRANGERS_MAX:
            return
        mine = [at for at, (other, _, _) in enumerate(kept) if other == sender]
        if len(mine) >= EARLY_OF_ONE_MAX:
            self._bytes -= kept[mine[0]][2]
            del kept[mine[0]]
        kept.append((sender, decoded, size))
        self._bytes += size
        while len(kept) > EARLY_MESSAGES_MAX or self._bytes > EARLY_BYTES_MAX:
            self._bytes -= kept.popleft()[2]

    def take(self) -> list[tuple[bytes, Decoded]]:
        """Return what was kept, oldest first, and forget it."""
        found = [(sender, decoded) for sender, decoded, _ in self._kept]
        self._kept.clear()
        self._bytes = 0
        return found


class Pace:
    """Whether an address may be told something that it has not asked for: once in so long."""

    __slots__ = ("_last_ms", "_pause_ms")

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._last_ms: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last_ms)

    def may(self, address: bytes, now_ms: int) -> bool:
        """Tell whether it may be answered now, and remember that it was."""
        last_ms = self._last_ms.get(address)
        if last_ms is not None and now_ms - last_ms < self._pause_ms:
            return False
        self._last_ms[address] = now_ms
        self._last_ms.move_to_end(address)
        while len(self._last_ms) > ANSWERED_MAX:
            self._last_ms.popitem(last=False)
        return True
