"""One connection after its handshake, without I/O: seals and opens records, and keeps the connection's state. See
network.md 4.4.

Channel frames have class 0 and concern this one connection: pings, key changes, acknowledgements, and the
connection's place in the conversation of two peers, which outlives its connections (``p2p.session.mux``). They
precede the conversation's frames in a record, and are never sent again on another connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from p2p.base.errors import FrameInvalid
from p2p.secure.frame import HEADER_BYTES, TrafficClass, frame, frames
from p2p.secure.handshake import Session
from p2p.secure.record import RECORD_PLAINTEXT_BYTES_MAX, RecordReader, seal, seal_into
from state.primitives.hashing import digest

__all__ = [
    "CHANNEL_KIND_MAX",
    "CHANNEL_KIND_MIN",
    "CONVERSATION_BYTES",
    "GENERATION_MAX",
    "PAYLOAD_BYTES_MAX",
    "REKEY_RECORDS",
    "Channel",
    "ChannelFrame",
    "Hello",
    "HelloKind",
    "conversation_of",
]

CONVERSATION_BYTES: Final = 16
GENERATION_MAX: Final = 2**32 - 1
"""Maximum generation that is accepted from a peer, so that there is a higher one for the answer."""
REKEY_RECORDS: Final = 2**20
"""Records sent under one key."""
CHANNEL_KIND_MIN: Final = 0xF0
CHANNEL_KIND_MAX: Final = 0xF7
"""Kinds of channel frames. Higher kinds belong to the conversation, lower kinds are messages."""
_FRAMES_BYTES_MAX: Final = 128
PAYLOAD_BYTES_MAX: Final = RECORD_PLAINTEXT_BYTES_MAX - _FRAMES_BYTES_MAX
"""Space in a record beside one channel frame of each kind."""
_PING_BYTES: Final = 8
_COUNT_BYTES: Final = 8
_HELLO: Final = Struct(">B16sIQ")


class ChannelFrame(IntEnum):
    """The kinds of frames that concern the connection on which they are sent."""

    PING = 0xF0
    PONG = 0xF1
    REKEY = 0xF3
    ACK = 0xF4
    """Number of received records of the conversation."""
    HELLO = 0xF5
    START = 0xF6
    """Number of the conversation's record that follows on this connection."""
    BYE = 0xF7
    """The conversation has ended; do not resume it."""


_SIZES: Final = {
    ChannelFrame.PING: _PING_BYTES,
    ChannelFrame.PONG: _PING_BYTES,
    ChannelFrame.REKEY: 0,
    ChannelFrame.ACK: _COUNT_BYTES,
    ChannelFrame.HELLO: _HELLO.size,
    ChannelFrame.START: _COUNT_BYTES,
    ChannelFrame.BYE: 0,
}


class HelloKind(IntEnum):
    """The purpose of a new connection, in its first record."""

    NEW = 0
    """A conversation begins."""
    RESUME = 1
    """The conversation continues on this connection."""
    BULK = 2
    """This connection carries bulk of the conversation in addition."""
    GONE = 3
    """The answer to RESUME of an unknown conversation."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first record of a connection."""

    opening: HelloKind
    conversation: bytes = bytes(CONVERSATION_BYTES)
    generation: int = 0
    """Number of migrations of the conversation, including this one; of two concurrent ones the higher counts. For
    a bulk connection: its path number if its other end requested it (``p2p.session.path_offers``), else 0."""
    received: int = 0
    """Number of conversation records that the sender has received."""

    @property
    def is_asked(self) -> bool:
        """Whether it opens a bulk connection requested by the other end."""
        return self.opening is HelloKind.BULK and self.generation > 0

    def encode(self) -> bytes:
        """Return the plaintext of the record."""
        body = _HELLO.pack(self.opening, self.conversation, self.generation, self.received)
        return frame(TrafficClass.CONSENSUS, ChannelFrame.HELLO, 0, body)

    @classmethod
    def decode(cls, plaintext: bytes) -> Hello:
        """Return the hello that a connection begins with. Raises FrameInvalid."""
        if len(plaintext) != HEADER_BYTES + _HELLO.size:
            raise FrameInvalid("the first record is not a hello")
        for found in frames(plaintext):
            match found:
                case [TrafficClass.CONSENSUS, ChannelFrame.HELLO, 0, bytes(body)] if len(body) == _HELLO.size:
                    opening, conversation, generation, received = _HELLO.unpack(body)
                    if opening <= max(HelloKind) and generation < GENERATION_MAX:
                        return cls(HelloKind(opening), conversation, generation, received)
                case _:
                    pass
        raise FrameInvalid("malformed hello")


def conversation_of(session: Session) -> bytes:
    """Return the name of the conversation that begins with this session. Only its two ends can compute it."""
    return digest(b"conversation", session.channel_binding)[:CONVERSATION_BYTES]


class Channel:
    """Seals and opens the records of one connection. A ProtocolError ends the connection."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._send = session.send
        self._receive = session.receive
        self._reader = RecordReader(session.receive)
        self._pending: dict[int, bytes] = {}
        self._records_under_key = 0
        self._wants_rekey = False
        if session.rest:
            self._reader.feed(session.rest)

    @property
    def has_frames(self) -> bool:
        """Whether channel frames wait to be sent, even without data of the conversation."""
        return bool(self._pending) or self._wants_rekey

    def say(self, channel_frame: ChannelFrame, body: bytes = b"") -> None:
        """Send a channel frame in the next record; of each kind only the newest is sent."""
        assert len(body) == _SIZES[channel_frame]
        self._pending[channel_frame] = body

    def rekey(self) -> None:
        """Change the sending key after the next record (for connections that send little)."""
        self._wants_rekey = True

    def seal(self, payload: bytes = b"") -> bytes:
        """Return the next record: the pending channel frames, and ``payload`` of at most PAYLOAD_BYTES_MAX."""
        if not self._pending and not self._wants_rekey and self._records_under_key + 1 < REKEY_RECORDS:
            self._records_under_key += 1
            return seal(self._send, payload)
        parts = [
            frame(TrafficClass.CONSENSUS, channel_frame, 0, body) for channel_frame, body in self._pending.items()
        ]
        self._pending.clear()
        parts.append(payload)
        rekey = self._wants_rekey or self._records_under_key + 1 >= REKEY_RECORDS
        if rekey:
            parts.append(frame(TrafficClass.CONSENSUS, ChannelFrame.REKEY, 0, b""))
        record = seal(self._send, b"".join(parts))
        self._records_under_key += 1
        if rekey:
            self._send.rekey()
            self._records_under_key = 0
            self._wants_rekey = False
        return record

    def seal_into(self, payload: bytes, buffer: memoryview) -> int:
        """Write the next record to the front of ``buffer``; return its length."""
        if not self._pending and not self._wants_rekey and self._records_under_key + 1 < REKEY_RECORDS:
            self._records_under_key += 1
            return seal_into(self._send, payload, buffer)
        record = self.seal(payload)
        buffer[: len(record)] = record
        return len(record)

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire."""
        self._reader.feed(data)

    @property
    def lacking(self) -> int:
        """Missing bytes of the current record, if no complete one is available."""
        return self._reader.lacking

    def next_plaintext(self) -> bytes | None:
        """Return the next whole plaintext, or None. Raises FrameInvalid."""
        return self._reader.next_plaintext()

    def take(self, kind: int, body: bytes) -> ChannelFrame | None:
        """Process a channel frame. Returns it if it concerns the conversation or the caller, else None.

        Raises FrameInvalid.
        """
        if not CHANNEL_KIND_MIN <= kind <= CHANNEL_KIND_MAX or kind not in _SIZES:
            return None  # of a later version
        channel_frame = ChannelFrame(kind)
        if len(body) != _SIZES[channel_frame]:
            raise FrameInvalid("malformed channel frame")
        match channel_frame:
            case ChannelFrame.PING:
                self._pending[ChannelFrame.PONG] = (
                    body  # one answer is kept, the newest: a flood of pings costs nothing
                )
                return None
            case ChannelFrame.REKEY:
                self._receive.rekey()
                return None
            case ChannelFrame.HELLO:
                raise FrameInvalid("a second hello came")
            case _:
                return channel_frame
