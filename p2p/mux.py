"""Many messages over one connection, without I/O: priorities, fragments, bounded queues, credit for bulk.

A writer calls ``next_record`` whenever the socket takes more, so what leaves next is chosen as late as possible: a
vote queued behind a block of 8 MiB is in the next record. Strict priority for consensus and block parts; gossip,
requests and bulk share what is left 60 : 30 : 10, so that none of them starves another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from p2p.errors import FrameInvalid, QueueOverflow
from p2p.frame import HEADER_BYTES, STREAM_MAX, Class, frame, frames, header
from p2p.handshake import Session
from p2p.record import RECORD_PLAINTEXT_BYTES_MAX, RecordReader, seal

__all__ = [
    "APPLICATION_KIND_MAX",
    "FRAGMENT_BYTES",
    "REKEY_RECORDS",
    "ClassLimits",
    "Message",
    "Mux",
    "MuxLimits",
]

MIB: Final = 1024 * 1024
FRAGMENT_BYTES: Final = 16 * 1024
"""Messages up to this size travel whole; longer ones in pieces of about this size."""
REKEY_RECORDS: Final = 2**20
"""Records sent under one key."""
APPLICATION_KIND_MAX: Final = 0xEF
"""Kinds above this one are the connection's own."""

_PING: Final = 0xF0
_PONG: Final = 0xF1
_CREDIT: Final = 0xF2
_REKEY: Final = 0xF3
_PING_BYTES: Final = 8
_LEFT: Final = Struct(">I")
_FRAGMENT_HEADER_BYTES: Final = HEADER_BYTES + _LEFT.size
_SLIVER_BYTES: Final = 1024
"""A fragment that leaves more behind is not cut shorter than this."""
_WEIGHTED: Final = (Class.GOSSIP, Class.REQUEST, Class.BULK)
_COST: Final = {Class.GOSSIP: 1, Class.REQUEST: 2, Class.BULK: 6}
"""Virtual time a byte takes: the inverse of the shares 60, 30, 10."""


class ClassLimits(NamedTuple):
    """What one class may hold: bytes queued for sending, and bytes of one message."""

    queue_bytes_max: int
    message_bytes_max: int


@dataclass(frozen=True, slots=True)
class MuxLimits:
    """Bounds of one connection; both ends must agree on ``message_bytes_max`` and on the window."""

    classes: tuple[ClassLimits, ...] = (
        ClassLimits(4 * MIB, MIB // 4),
        ClassLimits(32 * MIB, 9 * MIB),
        ClassLimits(4 * MIB, MIB),
        ClassLimits(20 * MIB, 9 * MIB),
        ClassLimits(16 * MIB, 2 * MIB),
    )
    bulk_window_bytes: int = 8 * MIB
    """Bulk received and not yet dealt with; at least four messages, or credit given late could lock it."""
    reassembly_bytes_max: int = 32 * MIB
    """Announced size of all messages of which a part has come."""
    partial_messages_max: int = 64


class Message(NamedTuple):
    """A message that has wholly arrived."""

    cls: Class
    kind: int
    body: bytes


@dataclass(slots=True)
class _Large:
    """A message on its way out in fragments."""

    cls: Class
    kind: int
    stream: int
    body: memoryview
    sent: int = 0

    @property
    def left(self) -> int:
        return len(self.body) - self.sent


@dataclass(slots=True)
class _Partial:
    """A message on its way in."""

    kind: int
    size: int
    left: int
    body: bytearray = field(default_factory=bytearray)
    """One buffer: a list of pieces would cost a multiple of its bytes where a peer cuts them tiny."""


class Mux:
    """One authenticated connection after its handshake: messages in, records out, and the other way round.

    Any ProtocolError that it raises is the end of the connection.
    """

    def __init__(self, session: Session, limits: MuxLimits | None = None) -> None:
        self.limits = limits or MuxLimits()
        assert self.limits.bulk_window_bytes >= 4 * self.limits.classes[Class.BULK].message_bytes_max
        self.session = session
        self._send = session.send
        self._receive = session.receive
        self._reader = RecordReader(session.receive)
        self._queues: tuple[deque[bytes | _Large], ...] = tuple(deque() for _ in Class)
        self._queued_bytes = [0] * len(Class)
        self._virtual = [0] * len(Class)
        self._virtual_now = 0
        self._stream = 0
        self._partials: dict[tuple[Class, int], _Partial] = {}
        self._reassembly_bytes = 0
        self._credit_bytes = self.limits.bulk_window_bytes
        self._unreleased_bytes = 0
        self._released_bytes = 0
        self._control: dict[int, bytes] = {}
        self._records_under_key = 0
        self._wants_rekey = False
        self.dropped_messages = 0
        """Gossip given up for newer gossip since the connection began."""

    # -- sending ---------------------------------------------------------------------------------------------

    def queue(self, cls: Class, kind: int, body: bytes) -> bool:
        """Queue a message; False when its class is full and may refuse (block parts, requests, bulk).

        A full queue of gossip gives up its oldest message instead. Raises QueueOverflow where consensus does not
        fit: a peer that is this slow must go, or it would hear votes of another age.
        """
        assert 0 <= kind <= APPLICATION_KIND_MAX, "a kind of the connection's own"
        size = len(body)
        queue_bytes_max, message_bytes_max = self.limits.classes[cls]
        assert size <= message_bytes_max, f"message of {size} bytes, class {cls.name} allows {message_bytes_max}"
        queued = self._queued_bytes
        if queued[cls] + size + HEADER_BYTES > queue_bytes_max:
            if cls is Class.CONSENSUS:
                raise QueueOverflow(f"{queued[cls]} bytes of consensus wait for a slow peer")
            if cls is not Class.GOSSIP or not self._make_room(queue_bytes_max - size - HEADER_BYTES):
                return False
        queue = self._queues[cls]
        if not queue and self._virtual[cls] < self._virtual_now:
            self._virtual[cls] = self._virtual_now  # an idle class saves nothing up
        if size <= FRAGMENT_BYTES:
            queue.append(frame(cls, kind, 0, body))
        else:
            self._stream = self._stream % STREAM_MAX + 1
            queue.append(_Large(cls, kind, self._stream, memoryview(body)))
        queued[cls] += size + HEADER_BYTES
        return True

    def queued_bytes(self, cls: Class) -> int:
        """Return how much of a class waits to leave."""
        return self._queued_bytes[cls]

    @property
    def has_output(self) -> bool:
        """Whether ``next_record`` has something to return."""
        queues = self._queues
        return bool(
            self._control
            or queues[0]
            or queues[1]
            or queues[2]
            or queues[3]
            or self._is_bulk_ready
            or self._wants_rekey
        )

    def next_record(self) -> bytes | None:
        """Return the next record to write, filled by priority, or None when nothing may leave."""
        parts: list[bytes | memoryview] = []
        room = RECORD_PLAINTEXT_BYTES_MAX - HEADER_BYTES  # what a rekeying frame takes
        for kind, body in self._control.items():
            parts.append(frame(Class.CONSENSUS, kind, 0, body))
            room -= HEADER_BYTES + len(body)
        self._control.clear()
        for cls in (Class.CONSENSUS, Class.BLOCK):
            if self._queues[cls]:
                room -= self._take(cls, parts, room)
        # Below, a class that has a message which does not fit any more ends the record: order is kept.
        while room > _FRAGMENT_HEADER_BYTES + _SLIVER_BYTES:
            chosen = None
            for cls in _WEIGHTED:
                if (
                    self._queues[cls]
                    and (cls is not Class.BULK or self._is_bulk_ready)
                    and (chosen is None or self._virtual[cls] < self._virtual[chosen])
                ):
                    chosen = cls
            if chosen is None:
                break
            taken = self._take(chosen, parts, min(room, FRAGMENT_BYTES + _FRAGMENT_HEADER_BYTES))
            if not taken:
                break
            self._virtual_now = self._virtual[chosen]
            self._virtual[chosen] += taken * _COST[chosen]
            room -= taken
        rekey = self._wants_rekey or self._records_under_key + 1 >= REKEY_RECORDS
        if rekey and (parts or self._wants_rekey):
            parts.append(frame(Class.CONSENSUS, _REKEY, 0, b""))
        if not parts:
            return None
        record = seal(self._send, b"".join(parts))
        self._records_under_key += 1
        if rekey:
            self._send.rekey()
            self._records_under_key = 0
            self._wants_rekey = False
        return record

    def ping(self, token: bytes) -> None:
        """Ask for ``token`` (8 bytes) back; it comes as the message that ``is_pong`` knows."""
        assert len(token) == _PING_BYTES
        self._control[_PING] = token

    @staticmethod
    def is_pong(message: Message) -> bool:
        """Whether the message is the answer to a ping; its body is the token."""
        return message.kind == _PONG

    def rekey(self) -> None:
        """Change the sending key behind the next record (for connections that send little)."""
        self._wants_rekey = True

    def release_bulk(self, size_bytes: int) -> None:
        """Say that a bulk message of this size has been dealt with, so that the peer may send as much again."""
        self._unreleased_bytes -= size_bytes
        self._released_bytes += size_bytes
        assert self._unreleased_bytes >= 0, "released more than was received"
        if self._released_bytes >= self.limits.bulk_window_bytes // 4 or self._unreleased_bytes == 0:
            waiting = int.from_bytes(self._control.get(_CREDIT, b""), "big")
            self._control[_CREDIT] = (waiting + self._released_bytes).to_bytes(4, "big")
            self._released_bytes = 0

    @property
    def _is_bulk_ready(self) -> bool:
        queue = self._queues[Class.BULK]
        if not queue:
            return False
        entry = queue[0]  # a short message travels whole, so the credit must cover it
        return self._credit_bytes >= (len(entry) - HEADER_BYTES if isinstance(entry, bytes) else 1)

    def _take(self, cls: Class, parts: list[bytes | memoryview], room: int) -> int:
        """Move what fits of a class into ``parts``; return the bytes taken."""
        queue = self._queues[cls]
        taken = payload = 0
        while queue:
            entry = queue[0]
            if cls is Class.BULK and not self._is_bulk_ready:
                break
            if isinstance(entry, bytes):
                size = len(entry)
                if size > room - taken:
                    break
                queue.popleft()
                parts.append(entry)
                taken += size
                payload += size
                if cls is Class.BULK:
                    self._credit_bytes -= size - HEADER_BYTES
                continue
            chunk = min(room - taken - _FRAGMENT_HEADER_BYTES, entry.left)
            if chunk < min(entry.left, _SLIVER_BYTES):
                break
            if cls is Class.BULK:
                chunk = min(chunk, self._credit_bytes)
                self._credit_bytes -= chunk
            at = entry.sent
            entry.sent += chunk
            parts.append(header(cls, entry.kind, entry.stream, chunk + _LEFT.size) + _LEFT.pack(entry.left))
            parts.append(entry.body[at : at + chunk])
            taken += chunk + _FRAGMENT_HEADER_BYTES
            payload += chunk
            if not entry.left:
                queue.popleft()
                payload += HEADER_BYTES
            elif cls is Class.REQUEST:
                queue.rotate(-1)  # a short answer need not wait for a long one; elsewhere order is kept
        self._queued_bytes[cls] -= payload
        return taken

    def _make_room(self, limit_bytes: int) -> bool:
        """Drop gossip from the oldest on until ``limit_bytes`` remain; never one that has begun to leave."""
        queue = self._queues[Class.GOSSIP]
        at = 0
        while self._queued_bytes[Class.GOSSIP] > limit_bytes and at < len(queue):
            entry = queue[at]
            if isinstance(entry, _Large):
                if entry.sent:
                    at += 1
                    continue
                size = len(entry.body) + HEADER_BYTES
            else:
                size = len(entry)
            del queue[at]
            self._queued_bytes[Class.GOSSIP] -= size
            self.dropped_messages += 1
        return self._queued_bytes[Class.GOSSIP] <= limit_bytes

    # -- receiving -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes, pongs among them.

        Every bulk message must later be given back by ``release_bulk``. Raises FrameInvalid.
        """
        messages: list[Message] = []
        for plaintext in self._reader.receive(data):
            is_rekeyed = False
            for cls, kind, stream, body in frames(plaintext):
                if is_rekeyed:  # the sender changed its key behind that frame, and a key costs its receiver
                    raise FrameInvalid("a frame behind the one that ends a key")
                is_rekeyed = kind == _REKEY and not stream
                if stream:
                    self._take_fragment(messages, cls, kind, stream, body)
                    continue
                if kind > APPLICATION_KIND_MAX:
                    self._take_control(messages, cls, kind, body)
                    continue
                if len(body) > self.limits.classes[cls].message_bytes_max:
                    raise FrameInvalid(f"message of {len(body)} bytes of class {cls.name}")
                if cls is Class.BULK:
                    self._charge(len(body))
                messages.append(Message(cls, kind, body))
        return messages

    @property
    def reassembly_bytes(self) -> int:
        """Memory promised to messages that have arrived in part."""
        return self._reassembly_bytes

    def _take_control(self, messages: list[Message], cls: Class, kind: int, body: bytes) -> None:
        match kind:
            case 0xF0 if len(body) == _PING_BYTES:
                self._control[_PONG] = body  # one answer is kept, the newest: a flood of pings costs nothing
            case 0xF1 if len(body) == _PING_BYTES:
                messages.append(Message(cls, kind, body))
            case 0xF2 if len(body) == _LEFT.size:
                self._credit_bytes += int.from_bytes(body, "big")
                if self._credit_bytes > self.limits.bulk_window_bytes:
                    raise FrameInvalid("credit for bulk that was never sent")
            case 0xF3 if not body:
                self._receive.rekey()
            case 0xF0 | 0xF1 | 0xF2 | 0xF3:
                raise FrameInvalid("malformed control frame")
            case _:
                pass  # of a later version

    def _take_fragment(self, messages: list[Message], cls: Class, kind: int, stream: int, body: bytes) -> None:
        if len(body) <= _LEFT.size or kind > APPLICATION_KIND_MAX:
            raise FrameInvalid("malformed fragment")
        left = _LEFT.unpack_from(body)[0]
        size = len(body) - _LEFT.size
        if cls is Class.BULK:
            self._charge(size)
        key = cls, stream
        partial = self._partials.get(key)
        if partial is None:
            total = size + left
            if total > self.limits.classes[cls].message_bytes_max:
                raise FrameInvalid(f"message of {total} bytes of class {cls.name}")
            if (
                len(self._partials) >= self.limits.partial_messages_max
                or self._reassembly_bytes + total > self.limits.reassembly_bytes_max
            ):
                raise FrameInvalid("too much begun and not finished")
            partial = self._partials[key] = _Partial(kind, total, total)
            self._reassembly_bytes += total
        if kind != partial.kind or partial.left - size != left:
            raise FrameInvalid("a fragment that does not continue its message")
        partial.left = left
        partial.body += memoryview(body)[_LEFT.size :]
        if not left:
            del self._partials[key]
            self._reassembly_bytes -= partial.size
            messages.append(Message(cls, kind, bytes(partial.body)))

    def _charge(self, size_bytes: int) -> None:
        self._unreleased_bytes += size_bytes
        if self._unreleased_bytes + self._released_bytes > self.limits.bulk_window_bytes:
            raise FrameInvalid("more bulk than the window allows")
