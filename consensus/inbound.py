"""Received messages: the queue, decoding, messages of the next epoch, and limits on answers. Pure.

See consensus.md 3.5.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
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
    "ANSWER_BURST_BYTES",
    "EARLY_BYTES_MAX",
    "EARLY_MESSAGES_MAX",
    "EARLY_OF_ONE_MAX",
    "EARLY_OF_STRANGERS_MAX",
    "INBOX_MESSAGES_MAX",
    "SEATS_IN_A_ROW_MAX",
    "SENDER_MESSAGES_MAX",
    "STRANGERS_BURST_BYTES",
    "STRANGERS_MESSAGES_MAX",
    "Allowance",
    "Decoded",
    "EarlyMessages",
    "FalseWindow",
    "Inbound",
    "Inbox",
    "Pace",
    "decode_inbound",
    "epoch_of",
]

EARLY_MESSAGES_MAX: Final = 512
"""The newest messages of the next epoch, kept until it begins here."""
EARLY_OF_ONE_MAX: Final = 16
EARLY_OF_STRANGERS_MAX: Final = 128
"""Of these, the most from senders without a seat, so that they cannot displace the messages of seats."""
EARLY_BYTES_MAX: Final = 8 * 1024 * 1024
EARLY_OF_STRANGERS_BYTES_MAX: Final = 2 * 1024 * 1024
VOTE_BYTES: Final = 512
"""The approximate memory of a vote."""
ANSWERED_MAX: Final = 256
ANSWER_BYTES_PER_S: Final = 8 * 1024 * 1024
"""The answers to one address: some windows of blocks a second."""
ANSWER_BURST_BYTES: Final = 32 * 1024 * 1024
STRANGERS_BYTES_PER_S: Final = 12 * 1024 * 1024
"""The answers to all addresses without a seat together, because an attacker can make any number of identities."""
STRANGERS_BURST_BYTES: Final = 48 * 1024 * 1024
QUESTION_BYTES: Final = 4 * 1024
"""The least that a request counts, whatever its answer."""
INBOX_MESSAGES_MAX: Final = 4_096
INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
SENDER_MESSAGES_MAX: Final = 512
"""The part of the inbox that one sender may fill."""
SENDER_BYTES_MAX: Final = 20 * 1024 * 1024
"""Room for two of the largest messages: a peer owes at most two windows of blocks."""
STRANGERS_MESSAGES_MAX: Final = INBOX_MESSAGES_MAX // 2
"""The part of the inbox that all senders without a seat may fill, so that votes always find room."""
STRANGERS_BYTES_MAX: Final = INBOX_BYTES_MAX // 2
SEATS_IN_A_ROW_MAX: Final = 16
"""After this many messages of seats, one message of a sender without a seat is taken."""


class FalseWindow(DecodeError):
    """Blocks that an honest node does not serve: they are not linked, or no quorum finalised them."""

    code = "false_window"


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

    Raises DecodeError, also for a block whose body is not the one its header names, and of it FalseWindow for a
    window whose blocks or certificate do not belong together.
    """
    message = decode_message(data)
    match message:
        case Proposal() | BlockReply():
            raw: tuple[bytes, ...] = (message.block,)
        case BlocksReply():
            return Decoded(message, _window_blocks(message))
        case _:
            return Decoded(message, ())
    blocks = tuple([_decode_whole_block(block) for block in raw])
    if isinstance(message, Proposal) and blocks[0][0] != message.candidate.block_hash:
        raise DecodeError("a proposal of another block")
    return Decoded(message, blocks)


def _window_blocks(window: BlocksReply) -> tuple[tuple[bytes, Block, bytes], ...]:
    try:
        blocks = tuple([_decode_whole_block(block) for block in window.blocks])
    except DecodeError as error:
        raise FalseWindow(str(error)) from None
    for number, (_, block, _) in enumerate(blocks):
        if block.header.height != window.from_height + number or (
            number > 0 and block.header.parent_hash != blocks[number - 1][0]
        ):
            raise FalseWindow("a window of blocks that do not follow each other")
    if blocks[-1][0] != window.certificate.block_hash or window.certificate.kind != FINALIZE:
        raise FalseWindow("a window of blocks without the certificate of its last")
    return blocks


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


class Inbox:
    """Messages that wait to be dealt with: those of seats go first, and strangers cannot fill the room of seats.

    A message counts until it is ``done`` with: one that is decoded or verified beside takes room as well.
    """

    __slots__ = ("_by_sender", "_bytes", "_messages", "_of_seats", "_of_strangers", "_row", "_strangers")

    def __init__(self) -> None:
        self._of_seats: deque[tuple[bytes, bytes, bool]] = deque()
        self._of_strangers: deque[tuple[bytes, bytes, bool]] = deque()
        self._row = 0
        self._messages = self._bytes = 0
        self._strangers = (0, 0)
        self._by_sender: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        """How many wait and are not taken yet."""
        return len(self._of_seats) + len(self._of_strangers)

    def put(self, sender: bytes, data: bytes, *, is_seat: bool) -> bool:
        """Queue a message; False when there is no room for it."""
        size = len(data)
        held, held_bytes = self._by_sender.get(sender, (0, 0))
        others, other_bytes = self._strangers
        if (
            self._messages >= INBOX_MESSAGES_MAX
            or self._bytes + size > INBOX_BYTES_MAX
            or held >= SENDER_MESSAGES_MAX
            or held_bytes + size > SENDER_BYTES_MAX
            or (not is_seat and (others >= STRANGERS_MESSAGES_MAX or other_bytes + size > STRANGERS_BYTES_MAX))
        ):
            return False
        self._count(sender, 1, size, is_seat=is_seat)
        (self._of_seats if is_seat else self._of_strangers).append((sender, data, is_seat))
        return True

    def take(self) -> tuple[bytes, bytes, bool] | None:
        """Return sender and bytes of the next message, and whether it has a seat's room; None when none waits."""
        if self._of_seats and (self._row < SEATS_IN_A_ROW_MAX or not self._of_strangers):
            self._row += 1
            return self._of_seats.popleft()
        self._row = 0
        return self._of_strangers.popleft() if self._of_strangers else None

    def done(self, sender: bytes, size_bytes: int, *, is_seat: bool) -> None:
        """Give a message's room back."""
        self._count(sender, -1, -size_bytes, is_seat=is_seat)

    def _count(self, sender: bytes, messages: int, size_bytes: int, *, is_seat: bool) -> None:
        self._messages += messages
        self._bytes += size_bytes
        if not is_seat:
            self._strangers = self._strangers[0] + messages, self._strangers[1] + size_bytes
        held, held_bytes = self._by_sender.get(sender, (0, 0))
        if held + messages:
            self._by_sender[sender] = held + messages, held_bytes + size_bytes
        else:
            del self._by_sender[sender]


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
        if sender not in seats:
            strangers = [size for other, _, size in kept if other not in seats]
            if len(strangers) >= EARLY_OF_STRANGERS_MAX or sum(strangers) + size > EARLY_OF_STRANGERS_BYTES_MAX:
                return
        mine = [at for at, (other, _, _) in enumerate(kept) if other == sender]
        if len(mine) >= EARLY_OF_ONE_MAX:
            self._forget(mine[0])
        kept.append((sender, decoded, size))
        self._bytes += size
        while self._bytes > EARLY_BYTES_MAX:
            self._forget_of_largest(by_bytes=True)
        while len(kept) > EARLY_MESSAGES_MAX:
            self._forget_of_largest(by_bytes=False)

    def _forget(self, at: int) -> None:
        self._bytes -= self._kept[at][2]
        del self._kept[at]

    def _forget_of_largest(self, *, by_bytes: bool) -> None:
        """Make room by dropping the oldest messages of the sender that takes most room."""
        held: Counter[bytes] = Counter()
        for sender, _, size in self._kept:
            held[sender] += size if by_bytes else 1
        largest = max(held, key=held.__getitem__)
        self._forget(next(at for at, (sender, _, _) in enumerate(self._kept) if sender == largest))

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


class Allowance:
    """How much may be sent in answer to questions, which are short where answers are long.

    An address may be answered while anything of its allowance is left; what the answer takes beyond is owed.
    Addresses without a seat share one more allowance.
    """

    __slots__ = ("_known", "_strangers")

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Bytes left, and when that was."""
        self._strangers = (STRANGERS_BURST_BYTES, 0)

    def __len__(self) -> int:
        return len(self._known)

    def may(self, address: bytes, now_ms: int, *, is_seat: bool) -> bool:
        """Tell whether a question of this address is answered now; the question itself is charged."""
        if self._left(address, now_ms) <= 0 or (not is_seat and self._left_to_strangers(now_ms) <= 0):
            return False
        self.charge(address, QUESTION_BYTES, now_ms, is_seat=is_seat)
        return True

    def charge(self, address: bytes, size_bytes: int, now_ms: int, *, is_seat: bool) -> None:
        """Take notice of an answer that was sent."""
        self._known[address] = self._left(address, now_ms) - size_bytes, now_ms
        self._known.move_to_end(address)
        while len(self._known) > ANSWERED_MAX:
            self._known.popitem(last=False)
        if not is_seat:
            self._strangers = self._left_to_strangers(now_ms) - size_bytes, now_ms

    def _left(self, address: bytes, now_ms: int) -> int:
        left, at_ms = self._known.get(address, (ANSWER_BURST_BYTES, now_ms))
        return min(ANSWER_BURST_BYTES, left + (now_ms - at_ms) * ANSWER_BYTES_PER_S // 1000)

    def _left_to_strangers(self, now_ms: int) -> int:
        left, at_ms = self._strangers
        return min(STRANGERS_BURST_BYTES, left + (now_ms - at_ms) * STRANGERS_BYTES_PER_S // 1000)
