"""The conversation of two peers, without I/O: priorities, fragments, limits, and migration without loss. See
network.md 4.3 to 4.6.

The writer calls ``next_record`` whenever the socket has room, so the next record is chosen as late as possible: a
vote queued behind a block of 8 MiB is in the next record. Consensus and block parts have strict priority. Gossip,
requests and bulk share the rest 60 : 30 : 10, so none of them starves another.

The conversation is a sequence of numbered records. A sender keeps each until the receiver has acknowledged it.
After a migration the unacknowledged records are sealed again for the new connection. So every message arrives
once, in the order of its class, whatever the number of connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from p2p.base.errors import FrameInvalid, QueueOverflow, RecordDamaged
from p2p.base.limits import MemoryAccount, MemoryCharge, ReceiveMemory, SendBacklog
from p2p.secure.channel import CHANNEL_KIND_MAX, CHANNEL_KIND_MIN, PAYLOAD_BYTES_MAX, Channel, ChannelFrame
from p2p.secure.frame import HEADER_BYTES, STREAM_MAX, TrafficClass, frame, frames, header
from p2p.session.bulk_streams import DONE_NUMBERS_MAX, STREAM_NAME_BYTES, BulkIn, BulkOut, Message, WindowLimits
from p2p.session.path_offers import OfferedPath, decode_offer, decode_request, encode_offer, encode_request

__all__ = [
    "APPLICATION_KIND_MAX",
    "FRAGMENT_BYTES",
    "ClassLimits",
    "Message",
    "Mux",
    "MuxLimits",
]

MIB: Final = 1024 * 1024
FRAGMENT_BYTES: Final = 16 * 1024
"""Messages up to this size are sent whole; longer ones in fragments of about this size."""
SHORT_RECORD_BYTES: Final = 16 * 1024
_QUICK_BYTES: Final = 1024
"""Every class allows messages of this size."""
APPLICATION_KIND_MAX: Final = 0xEF
"""Higher kinds belong to the connection itself."""

_DONE: Final = 0xF8
_WINDOW: Final = 0xF9
_CONNECTIONS_WANTED: Final = 0xFA
_PATHS_OFFERED: Final = 0xFB
_STREAM_PROGRESS: Final = 0xFC
_STREAMS_GIVEN_UP: Final = 0xFD
_NUMBER_BYTES: Final = 4
_STREAM_PROGRESS_BYTES: Final = STREAM_NAME_BYTES + _NUMBER_BYTES
_STREAMS_TOLD_MAX: Final = 64
"""Bulk connections named in one frame: more than two ends can have."""
_CONTROL: Final = "control"
"""The control connection's name among the bulk connections."""
_LEFT: Final = Struct(">I")
_FRAGMENT_HEADER_BYTES: Final = HEADER_BYTES + _LEFT.size
_SLIVER_BYTES: Final = 1024
"""A fragment is not cut below this size, unless it is the last one."""
_WEIGHTED: Final = (TrafficClass.GOSSIP, TrafficClass.REQUEST, TrafficClass.BULK)
_COST: Final = {TrafficClass.GOSSIP: 1, TrafficClass.REQUEST: 2, TrafficClass.BULK: 6}
"""Virtual time per byte: the inverse of the shares 60, 30, 10."""
_ACK_BYTES: Final = 256 * 1024
"""Received records after which an acknowledgement is sent even without other data."""


@lru_cache(maxsize=4 * _QUICK_BYTES)
def _quick_header(cls: int, kind: int, size_bytes: int) -> bytes:
    """Return the header of a small message; cached, because few different ones occur."""
    return header(cls, kind, 0, size_bytes)


class ClassLimits(NamedTuple):
    """Limits of one class: bytes queued for sending, and bytes of one message."""

    queue_bytes_max: int
    message_bytes_max: int


@dataclass(frozen=True, slots=True)
class MuxLimits:
    """Limits of one connection. Both ends must agree on ``message_bytes_max`` and on the window."""

    classes: tuple[ClassLimits, ...] = (
        ClassLimits(4 * MIB, MIB // 4),
        ClassLimits(32 * MIB, 9 * MIB),
        ClassLimits(4 * MIB, MIB),
        ClassLimits(20 * MIB, 9 * MIB),
        ClassLimits(16 * MIB, 9 * MIB),
    )
    window: WindowLimits = field(default_factory=WindowLimits)
    """Bulk received and not handled yet, over all bulk connections."""
    retained_bytes_max: int = 8 * MIB
    """Records sent and not acknowledged; at this number the sender waits."""
    reassembly_bytes_max: int = 32 * MIB
    """Announced size of all partly received messages."""
    partial_messages_max: int = 128
    """More than two honest ends can have in flight as requests and answers."""


@dataclass(slots=True)
class _Large:
    """A message being sent in fragments."""

    cls: TrafficClass
    kind: int
    stream: int
    body: memoryview
    sent: int = 0

    @property
    def left(self) -> int:
        return len(self.body) - self.sent


@dataclass(slots=True)
class _Partial:
    """A message being received."""

    kind: int
    size: int
    left: int
    charge: MemoryCharge
    body: bytearray = field(default_factory=bytearray)
    """One buffer: a list of tiny fragments would cost a multiple of its bytes."""


class Mux:
    """One side of a conversation: turns messages into records, and records into messages.

    A ProtocolError ends the conversation, with one exception: ``receive`` also raises for a record that is damaged
    or out of order, which may be the fault of the connection alone.
    """

    def __init__(
        self, channel: Channel, limits: MuxLimits | None = None, account: MemoryAccount | None = None
    ) -> None:
        self.limits = limits or MuxLimits()
        self.channel: Channel | None = channel
        """The connection that carries the conversation; None between two connections."""
        bulk = self.limits.classes[TrafficClass.BULK]
        if account is None:
            account = ReceiveMemory(2**62).open(2**62, lambda: None)
        self._account = account
        self.bulk_out = BulkOut(
            queue_bytes_max=bulk.queue_bytes_max,
            message_bytes_max=bulk.message_bytes_max,
            window_bytes=self.limits.window.first_bytes,
            window_bytes_max=self.limits.window.max_bytes,
        )
        self.bulk_in = BulkIn(account, message_bytes_max=bulk.message_bytes_max, limits=self.limits.window)
        self.may_begin_bulk = True
        """Whether bulk may use this connection: not while bulk connections carry it."""
        self.connections_wanted: dict[int, int] = {}
        """Bulk connections that the peer requests, by path. The caller opens them and clears this."""
        self.paths_offered: tuple[OfferedPath, ...] | None = None
        """The paths to this node that the peer offers. The caller stores them and sets None."""
        self.stream_progress: dict[bytes, int] = {}
        """The peer's reports of received records by bulk connection. The caller processes and clears them."""
        self.streams_given_up: set[bytes] = set()
        """Bulk connections that the peer has given up. The caller closes them and clears this."""
        self._queues: tuple[deque[bytes | _Large], ...] = tuple(deque() for _ in TrafficClass)
        self._queued_bytes = [0] * len(TrafficClass)
        self._queue_bytes_max = tuple(limits.queue_bytes_max for limits in self.limits.classes)
        self._virtual = [0] * len(TrafficClass)
        self._virtual_now = 0
        self._stream = 0
        self._partials: dict[tuple[TrafficClass, int], _Partial] = {}
        self._reassembly_bytes = 0
        self._frames: dict[int, bytes] = {}
        self._moved: dict[bytes, int] = {}
        self._given_up: dict[bytes, None] = {}
        self._retained: deque[bytes] = deque()
        self._retained_bytes = 0
        self._acknowledged = 0
        self._again: deque[bytes] = deque()
        """Retained records that must still be sent on the current connection."""
        self._damage: RecordDamaged | None = None
        self._received = 0
        self._next: int | None = 0
        """Number of the next record on the current connection; None until it is announced."""
        self._unacknowledged_bytes = 0
        self.records_opened = 0
        """Authentic records received over all connections, whatever their content."""
        self.dropped_messages = 0
        """Gossip messages dropped for newer ones since the conversation began."""

    # -- sending ---------------------------------------------------------------------------------------------

    def queue(self, cls: TrafficClass, kind: int, body: bytes) -> bool:
        """Queue a message; return False if its class is full and may refuse (block parts, requests, bulk).

        A full queue of gossip drops its oldest message instead. Raises QueueOverflow if consensus does not fit:
        such a slow peer must be dropped, because it would get outdated votes.
        """
        assert 0 <= kind <= APPLICATION_KIND_MAX, "a kind of the connection's own"
        queue = self._queues[cls]
        size = len(body)
        if queue and size <= _QUICK_BYTES:  # the short way for one of many small messages
            total = self._queued_bytes[cls] + size + HEADER_BYTES
            if total <= self._queue_bytes_max[cls]:
                queue.append(_quick_header(cls, kind, size) + body)
                self._queued_bytes[cls] = total
                return True
        if not queue and self._virtual[cls] < self._virtual_now:
            self._virtual[cls] = self._virtual_now  # an idle class saves nothing up
        if cls is TrafficClass.BULK:
            return self.bulk_out.queue(kind, body)
        queue_bytes_max, message_bytes_max = self.limits.classes[cls]
        assert size <= message_bytes_max, f"message of {size} bytes, class {cls.name} allows {message_bytes_max}"
        queued = self._queued_bytes
        if queued[cls] + size + HEADER_BYTES > queue_bytes_max:
            if cls is TrafficClass.CONSENSUS:
                raise QueueOverflow(f"{queued[cls]} bytes of consensus wait for a slow peer")
            if cls is not TrafficClass.GOSSIP or not self._make_room(queue_bytes_max - size - HEADER_BYTES):
                return False
        if size <= FRAGMENT_BYTES:
            queue.append(frame(cls, kind, 0, body))
        else:
            self._stream = self._stream % STREAM_MAX + 1
            queue.append(_Large(cls, kind, self._stream, memoryview(body)))
        queued[cls] += size + HEADER_BYTES
        return True

    def queued_bytes(self, cls: TrafficClass) -> int:
        """Return the bytes of a class that wait to be sent."""
        return self.bulk_out.waiting_bytes if cls is TrafficClass.BULK else self._queued_bytes[cls]

    def backlog(self) -> SendBacklog:
        """Return the bytes kept for the peer until it has acknowledged them."""
        bulk = self.bulk_out
        size_bytes = sum(self._queued_bytes) + self._retained_bytes + bulk.waiting_bytes + bulk.outstanding_bytes
        large = [
            entry.body
            for entry in self._queues[TrafficClass.BLOCK]
            if isinstance(entry, _Large) and not entry.sent
        ]
        return SendBacklog(size_bytes, tuple([(id(body.obj), len(body)) for body in large]))

    def undelivered(self) -> Iterator[tuple[TrafficClass, int, bytes]]:
        """Yield the node's messages of consensus, block parts and bulk that may not have arrived.

        They are sent again if the conversation ends and another one begins; some may then arrive twice.
        """
        for payload in self._retained:
            for cls, kind, stream, body in frames(payload):
                if cls <= TrafficClass.BLOCK and kind < APPLICATION_KIND_MAX and not stream:
                    yield cls, kind, body
        for cls in (TrafficClass.CONSENSUS, TrafficClass.BLOCK):
            for entry in self._queues[cls]:
                if isinstance(entry, bytes):
                    yield cls, entry[1], entry[HEADER_BYTES:]
                else:
                    yield cls, entry.kind, bytes(entry.body)
        for kind, body in self.bulk_out.undone():
            yield TrafficClass.BULK, kind, body

    @property
    def has_output(self) -> bool:
        """Whether ``next_record`` has data."""
        if self.channel is None:
            return False
        if self.channel.has_frames or self._again:
            return True
        if self._retained_bytes >= self.limits.retained_bytes_max:
            return False
        queues = self._queues
        return bool(
            self._frames
            or self._moved
            or self._given_up
            or queues[0]
            or queues[1]
            or queues[2]
            or queues[3]
            or self._is_bulk_ready
            or self.bulk_in.wants_grant
            or self.bulk_in.wants_to_tell
        )

    @property
    def is_owed(self) -> bool:
        """Whether the peer has unacknowledged records."""
        return bool(self._retained)

    def next_record(self, *, is_short: bool = False) -> bytes | None:
        """Return the next record to write, filled by priority, or None if nothing may be sent.

        ``is_short``: at most SHORT_RECORD_BYTES if it contains bulk, because votes may follow on a slow line.
        """
        channel = self.channel
        if channel is None:
            return None
        if self._again:
            return channel.seal(self._again.popleft())
        payload = b""
        if self._retained_bytes < self.limits.retained_bytes_max:
            is_short = is_short and self._is_bulk_ready
            payload = self._payload(SHORT_RECORD_BYTES + _FRAGMENT_HEADER_BYTES if is_short else PAYLOAD_BYTES_MAX)
        if payload:
            self._retained.append(payload)
            self._retained_bytes += len(payload)
        elif not channel.has_frames:
            return None
        return channel.seal(payload)

    def _payload(self, room: int) -> bytes:
        parts: list[bytes | memoryview] = []
        if self.bulk_in.wants_grant:
            self.bulk_in.wants_grant = False
            self._frames[_WINDOW] = self.bulk_in.granted_bytes.to_bytes(_NUMBER_BYTES, "big")
        if self.bulk_in.wants_to_tell:
            numbers = self.bulk_in.take_done()
            parts.append(
                frame(
                    TrafficClass.CONSENSUS, _DONE, 0, b"".join(n.to_bytes(_NUMBER_BYTES, "big") for n in numbers)
                )
            )
        if self._moved:
            self._frames[_STREAM_PROGRESS] = b"".join(
                name + _LEFT.pack(count) for name, count in self._moved.items()
            )
            self._moved.clear()
        if self._given_up:
            self._frames[_STREAMS_GIVEN_UP] = b"".join(self._given_up)
            self._given_up.clear()
        for kind, body in self._frames.items():
            parts.append(frame(TrafficClass.CONSENSUS, kind, 0, body))
        self._frames.clear()
        room -= sum(map(len, parts))
        for cls in (TrafficClass.CONSENSUS, TrafficClass.BLOCK):
            if self._queues[cls]:
                room -= self._take(cls, parts, room)
        # Below, a class that has a message which does not fit any more ends the record: order is kept.
        while room > _FRAGMENT_HEADER_BYTES + _SLIVER_BYTES:
            chosen = None
            for cls in _WEIGHTED:
                is_there = self._queues[cls] if cls is not TrafficClass.BULK else self._is_bulk_ready
                if is_there and (chosen is None or self._virtual[cls] < self._virtual[chosen]):
                    chosen = cls
            if chosen is None:
                break
            limit = min(room, FRAGMENT_BYTES + _FRAGMENT_HEADER_BYTES)
            if chosen is TrafficClass.BULK:
                taken = self.bulk_out.take(_CONTROL, parts, limit, may_begin=self.may_begin_bulk)
            else:
                taken = self._take(chosen, parts, limit)
            if not taken:
                break
            self._virtual_now = self._virtual[chosen]
            self._virtual[chosen] += taken * _COST[chosen]
            room -= taken
        return b"".join(parts)

    @property
    def _is_bulk_ready(self) -> bool:
        return self.bulk_out.is_ready(_CONTROL, may_begin=self.may_begin_bulk)

    def ping(self, token: bytes) -> None:
        """Send a ping with ``token`` (8 bytes); ``is_pong`` recognises its answer."""
        if self.channel is not None:
            self.channel.say(ChannelFrame.PING, token)
            self._acknowledge()

    @staticmethod
    def is_pong(message: Message) -> bool:
        """Whether the message is the answer to a ping; its body is the token."""
        return message.kind == ChannelFrame.PONG

    @staticmethod
    def is_bye(message: Message) -> bool:
        """Whether the message is a BYE."""
        return message.kind == ChannelFrame.BYE

    def request_connections(self, wishes: Mapping[int, int]) -> None:
        """Request this many bulk connections on each of the peer's offered paths."""
        self._frames[_CONNECTIONS_WANTED] = encode_request(wishes)

    def offer_paths(self, paths: Iterable[OfferedPath]) -> None:
        """Tell the peer on which paths it may request bulk connections."""
        self._frames[_PATHS_OFFERED] = encode_offer(paths)

    def report_progress(self, name: bytes, records: int) -> None:
        """Report how many records of bulk have come on a bulk connection."""
        if name in self._moved or len(self._moved) < _STREAMS_TOLD_MAX:
            self._moved[name] = records

    def give_up(self, name: bytes) -> None:
        """Report that a bulk connection is dead, in case its other end has not noticed."""
        if len(self._given_up) < _STREAMS_TOLD_MAX:
            self._given_up[name] = None

    def release_bulk(self, number: int, now: float, rtt_s: float) -> None:
        """Note that a bulk message was handled, so that the peer may send more; see ``BulkIn.release``."""
        self.bulk_in.release(number, now, rtt_s)

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """Number of received records of the conversation, for a hello."""
        return self._received

    def detach(self) -> None:
        """Note that the connection is lost; messages can still be queued."""
        self.channel = None
        self._again.clear()

    def attach(self, channel: Channel, received: int) -> None:
        """Continue over another connection, whose peer has ``received`` this many records.

        Raises FrameInvalid for an impossible count.
        """
        if received > self._acknowledged + len(self._retained):
            raise FrameInvalid("the peer acknowledges more records than were sent")
        self._forget_until(max(received, self._acknowledged))
        self._again = deque(self._retained)
        self.channel = channel
        self._damage = None
        self._next = None
        channel.say(ChannelFrame.START, self._acknowledged.to_bytes(8, "big"))

    def _forget_until(self, count: int) -> None:
        while self._acknowledged < count:
            self._retained_bytes -= len(self._retained.popleft())
            self._acknowledged += 1

    def _acknowledge(self) -> None:
        assert self.channel is not None
        self._unacknowledged_bytes = 0
        self.channel.say(ChannelFrame.ACK, self._received.to_bytes(8, "big"))

    def _take(self, cls: TrafficClass, parts: list[bytes | memoryview], room: int) -> int:
        """Move messages of a class that fit into ``parts``; return the number of bytes."""
        queue = self._queues[cls]
        taken = overhead = 0
        append, popleft = parts.append, queue.popleft
        while queue:
            entry = queue[0]
            if type(entry) is bytes:
                taken += len(entry)
                if taken > room:
                    taken -= len(entry)
                    break
                append(entry)
                popleft()
                continue
            assert isinstance(entry, _Large)
            chunk = min(room - taken - _FRAGMENT_HEADER_BYTES, entry.left)
            if chunk < min(entry.left, _SLIVER_BYTES):
                break
            at = entry.sent
            entry.sent += chunk
            parts.append(header(cls, entry.kind, entry.stream, chunk + _LEFT.size) + _LEFT.pack(entry.left))
            parts.append(entry.body[at : at + chunk])
            taken += chunk + _FRAGMENT_HEADER_BYTES
            overhead += _FRAGMENT_HEADER_BYTES
            if not entry.left:
                queue.popleft()
                overhead -= HEADER_BYTES
            elif cls is TrafficClass.REQUEST:
                queue.rotate(-1)  # a short answer need not wait for a long one; elsewhere order is kept
        self._queued_bytes[cls] -= taken - overhead
        return taken

    def _make_room(self, limit_bytes: int) -> bool:
        """Drop the oldest gossip until ``limit_bytes`` remain; never a message that is partly sent."""
        queue = self._queues[TrafficClass.GOSSIP]
        at = 0
        while self._queued_bytes[TrafficClass.GOSSIP] > limit_bytes and at < len(queue):
            entry = queue[at]
            if isinstance(entry, _Large):
                if entry.sent:
                    at += 1
                    continue
                size = len(entry.body) + HEADER_BYTES
            else:
                size = len(entry)
            del queue[at]
            self._queued_bytes[TrafficClass.GOSSIP] -= size
            self.dropped_messages += 1
        return self._queued_bytes[TrafficClass.GOSSIP] <= limit_bytes

    # -- receiving -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes, including pongs.

        Every bulk message must later be released by ``release_bulk``. Raises FrameInvalid, ReceiveMemoryExceeded.
        """
        channel = self.channel
        assert channel is not None
        if self._damage is not None:
            raise self._damage
        messages: list[Message] = []
        append, new, bulk = messages.append, tuple.__new__, TrafficClass.BULK
        sizes = [limits.message_bytes_max for limits in self.limits.classes]
        channel.feed(data)
        while True:
            try:
                plaintext = channel.next_plaintext()
            except RecordDamaged as error:
                if not messages:
                    raise
                self._damage = error  # what came before it is whole and counts as received; the next call raises
                break
            if plaintext is None:
                break
            is_rekeyed = is_old = is_counted = is_plain = False
            for cls, kind, stream, body in frames(plaintext):
                if is_plain and not stream and kind <= APPLICATION_KIND_MAX and cls is not bulk:
                    if len(body) > sizes[cls]:
                        raise FrameInvalid(f"message of {len(body)} bytes exceeds the limit of class {cls.name}")
                    append(new(Message, (cls, kind, body, 0)))  # nearly every frame is one of these
                    continue
                if is_rekeyed:  # the sender changed its key behind that frame, and a key costs its receiver
                    raise FrameInvalid("a frame follows REKEY in its record")
                if CHANNEL_KIND_MIN <= kind <= CHANNEL_KIND_MAX and not stream:
                    is_rekeyed = kind == ChannelFrame.REKEY
                    is_plain = is_plain and not is_rekeyed
                    channel_frame = channel.take(kind, body)
                    if channel_frame is not None:
                        self._take_channel_frame(messages, channel_frame, body)
                    continue
                if not is_counted:
                    is_counted, is_old = True, self._count()
                    is_plain = not is_old
                if is_old:
                    continue
                if stream:
                    self._take_fragment(messages, cls, kind, stream, body)
                elif kind > APPLICATION_KIND_MAX:
                    self._take_control(kind, body)
                elif cls is bulk or len(body) > sizes[cls]:
                    raise FrameInvalid(f"message of {len(body)} bytes exceeds the limit of class {cls.name}")
                else:
                    append(Message(cls, kind, body))
            self._unacknowledged_bytes += len(plaintext)
            self.records_opened += 1
        if self._unacknowledged_bytes >= _ACK_BYTES:
            self._acknowledge()
        return messages

    @property
    def reassembly_bytes(self) -> int:
        """Announced size of the partly received messages."""
        return self._reassembly_bytes

    def _count(self) -> bool:
        """Count a record of the conversation; return whether it was already received over an earlier
        connection.
        """
        if self._next is None:
            raise FrameInvalid("a record of the conversation came before START")
        self._next += 1
        if self._next <= self._received:
            return True
        self._received = self._next
        return False

    def _take_channel_frame(self, messages: list[Message], channel_frame: ChannelFrame, body: bytes) -> None:
        match channel_frame:
            case ChannelFrame.PONG | ChannelFrame.BYE:
                messages.append(Message(TrafficClass.CONSENSUS, channel_frame, body))
            case ChannelFrame.ACK:
                count = int.from_bytes(body, "big")
                # Of what is still to be sent again, some may have come by the connection before.
                if count > self._acknowledged + len(self._retained):
                    raise FrameInvalid("ACK for records that were not sent")
                self._forget_until(count)
            case ChannelFrame.START:
                if self._next is not None or int.from_bytes(body, "big") > self._received:
                    raise FrameInvalid("START skips records or came twice")
                self._next = int.from_bytes(body, "big")
            case _:
                raise AssertionError(channel_frame)

    def _take_control(self, kind: int, body: bytes) -> None:
        size = len(body)
        match kind:
            case 0xF8 if size and size % _NUMBER_BYTES == 0 and size <= DONE_NUMBERS_MAX * _NUMBER_BYTES:
                self.bulk_out.done(number for (number,) in _LEFT.iter_unpack(body))
            case 0xF9 if size == _NUMBER_BYTES:
                self.bulk_out.grant(int.from_bytes(body, "big"))
            case 0xFA:
                self.connections_wanted = decode_request(body)
            case 0xFB:
                self.paths_offered = decode_offer(body)
            case 0xFC if (
                size and size % _STREAM_PROGRESS_BYTES == 0 and size <= _STREAMS_TOLD_MAX * _STREAM_PROGRESS_BYTES
            ):
                for at in range(0, size, _STREAM_PROGRESS_BYTES):
                    name_end = at + STREAM_NAME_BYTES
                    self.stream_progress[body[at:name_end]] = _LEFT.unpack_from(body, name_end)[0]
            case 0xFD if size and size % STREAM_NAME_BYTES == 0 and size <= _STREAMS_TOLD_MAX * STREAM_NAME_BYTES:
                self.streams_given_up.update(
                    body[at : at + STREAM_NAME_BYTES] for at in range(0, size, STREAM_NAME_BYTES)
                )
            case 0xF8 | 0xF9 | 0xFC | 0xFD:
                raise FrameInvalid("malformed control frame")
            case _:
                pass  # of a later version

    def _take_fragment(
        self, messages: list[Message], cls: TrafficClass, kind: int, stream: int, body: bytes
    ) -> None:
        if kind > APPLICATION_KIND_MAX:
            raise FrameInvalid("malformed fragment")
        if cls is TrafficClass.BULK:
            message = self.bulk_in.take(_CONTROL, kind, stream, memoryview(body))
            if message is not None:
                messages.append(message)
            return
        if len(body) <= _LEFT.size:
            raise FrameInvalid("malformed fragment")
        left = _LEFT.unpack_from(body)[0]
        size = len(body) - _LEFT.size
        key = cls, stream
        partial = self._partials.get(key)
        if partial is None:
            total = size + left
            if total > self.limits.classes[cls].message_bytes_max:
                raise FrameInvalid(f"message of {total} bytes exceeds the limit of class {cls.name}")
            if (
                len(self._partials) >= self.limits.partial_messages_max
                or self._reassembly_bytes + total > self.limits.reassembly_bytes_max
            ):
                raise FrameInvalid("too many unfinished messages")
            if cls is TrafficClass.CONSENSUS and any(begun is cls for begun, _ in self._partials):
                # It leaves in order; and what is never refused for want of memory must be little.
                raise FrameInvalid("two unfinished messages of class CONSENSUS")
            charge = MemoryCharge(self._account, total, is_exempt=cls is TrafficClass.CONSENSUS)
            partial = self._partials[key] = _Partial(kind, total, total, charge)
            self._reassembly_bytes += total
        if kind != partial.kind or partial.left - size != left:
            raise FrameInvalid("a fragment does not continue its message")
        partial.charge.cover(partial.size - left)
        partial.left = left
        partial.body += memoryview(body)[_LEFT.size :]
        if not left:
            del self._partials[key]
            self._reassembly_bytes -= partial.size
            partial.charge.give_back()
            messages.append(Message(cls, kind, bytes(partial.body)))
