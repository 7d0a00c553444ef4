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
"""For all addresses without a seat together, because anybody can create any number of identities."""
STRANGERS_BURST_BYTES: Final = 48 * 1024 * 1024
QUESTION_BYTES: Final = 4 * 1024
"""Minimum charge of a request, whatever its answer."""
INBOX_MESSAGES_MAX: Final = 4_096
INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
SENDER_MESSAGES_MAX: Final = 512
"""Maximum share of the inbox for one sender."""
SENDER_BYTES_MAX: Final = 20 * 1024 * 1024
"""Room for two of the largest messages: a peer has at most two windows of blocks outstanding."""
STRANGERS_MESSAGES_MAX: Final = INBOX_MESSAGES_MAX // 2
"""Maximum share of the inbox for all senders without a seat, so that votes always have room."""
STRANGERS_BYTES_MAX: Final = INBOX_BYTES_MAX // 2
SEATS_IN_A_ROW_MAX: Final = 16
"""After this many messages of seats, one message of a sender without a seat is taken."""


class FalseWindow(DecodeError):
    """Blocks that no honest node serves: they are not linked, or no quorum finalised them."""

    code = "false_window"


class Decoded(NamedTuple):
    """A message and the blocks in it, each with its hash and its bytes; header and body belong together."""

    message: Message
    blocks: tuple[tuple[bytes, Block, bytes], ...]


class Inbound(NamedTuple):
    """A message that may matter, the resulting events, and the signatures to verify first.

    ``reply`` is a message that is answered; ``window`` proves requested ``blocks``. ``epoch`` is that of a message
    of another epoch. An ``early`` one is kept until its epoch begins; the sender of a request about an old one is
    told how that ended. ``during`` is the epoch whose committee the checks and events use: it may end while they
    are verified.
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
    """Decode a peer's message. Uses no replica, so a worker thread may do it for large ones.

    Raises DecodeError, also for a block whose body does not match its header, and its subclass FalseWindow for a
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
    """The epoch of a message; None if it is independent of the epoch."""
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
    """Waiting messages. Those of seats come first, and other senders cannot use the seats' room.

    A message counts until ``done``: it also uses room while it is decoded or verified.
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
        """Number of waiting messages that were not taken yet."""
        return len(self._of_seats) + len(self._of_strangers)

    def put(self, sender: bytes, data: bytes, *, is_seat: bool) -> bool:
        """Queue a message; return False if there is no room."""
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
        """Return sender and bytes of the next message, and whether it uses a seat's room; None if none waits."""
        if self._of_seats and (self._row < SEATS_IN_A_ROW_MAX or not self._of_strangers):
            self._row += 1
            return self._of_seats.popleft()
        self._row = 0
        return self._of_strangers.popleft() if self._of_strangers else None

    def done(self, sender: bytes, size_bytes: int, *, is_seat: bool) -> None:
        """Release a message's room."""
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
    """Messages of the next epoch, unprocessed until its committee is known; bounded per sender and in total."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: deque[tuple[bytes, Decoded, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, sender: bytes, decoded: Decoded, seats: frozenset[bytes]) -> None:
        """Keep a message; messages of the addresses in ``seats`` cannot be displaced by others."""
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
        """Make room by dropping the oldest messages of the sender that uses most room."""
        held: Counter[bytes] = Counter()
        for sender, _, size in self._kept:
            held[sender] += size if by_bytes else 1
        largest = max(held, key=held.__getitem__)
        self._forget(next(at for at, (sender, _, _) in enumerate(self._kept) if sender == largest))

    def take(self) -> list[tuple[bytes, Decoded]]:
        """Return and remove the kept messages, oldest first."""
        found = [(sender, decoded) for sender, decoded, _ in self._kept]
        self._kept.clear()
        self._bytes = 0
        return found


class Pace:
    """Limits unrequested messages to an address: one per interval."""

    __slots__ = ("_last_ms", "_pause_ms")

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._last_ms: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last_ms)

    def may(self, address: bytes, now_ms: int) -> bool:
        """Tell whether a message may be sent now, and record it."""
        last_ms = self._last_ms.get(address)
        if last_ms is not None and now_ms - last_ms < self._pause_ms:
            return False
        self._last_ms[address] = now_ms
        self._last_ms.move_to_end(address)
        while len(self._last_ms) > ANSWERED_MAX:
            self._last_ms.popitem(last=False)
        return True


class Allowance:
    """Byte allowance of answers to requests, which are short where answers are long.

    An address is answered while any of its allowance is left; an excess is deducted later. Addresses without a
    seat share one more allowance.
    """

    __slots__ = ("_known", "_strangers")

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Bytes left, and the time of that balance."""
        self._strangers = (STRANGERS_BURST_BYTES, 0)

    def __len__(self) -> int:
        return len(self._known)

    def may(self, address: bytes, now_ms: int, *, is_seat: bool) -> bool:
        """Tell whether a request of this address is answered now; the request itself is charged."""
        if self._left(address, now_ms) <= 0 or (not is_seat and self._left_to_strangers(now_ms) <= 0):
            return False
        self.charge(address, QUESTION_BYTES, now_ms, is_seat=is_seat)
        return True

    def charge(self, address: bytes, size_bytes: int, now_ms: int, *, is_seat: bool) -> None:
        """Note an answer that was sent."""
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
