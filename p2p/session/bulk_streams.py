"""Bulk between two peers, without I/O: whole messages over any of several connections, within one window. See
network.md 4.6.

Each message has a number. It is sent on one bulk connection (on the control connection if there is none) and
counts against the window until the receiver reports it as done. Unfinished messages of a dead connection are sent
on another one, and the receiver accepts each number once. Messages have no order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final, NamedTuple

from p2p.base.errors import FrameInvalid, QueueOverflow
from p2p.base.limits import MemoryAccount, MemoryCharge
from p2p.secure.channel import CHANNEL_KIND_MIN, PAYLOAD_BYTES_MAX, Channel, ChannelFrame, conversation_of
from p2p.secure.frame import HEADER_BYTES, STREAM_MAX, TrafficClass, frames, header
from p2p.secure.noise import MESSAGE_BYTES_MAX

__all__ = [
    "DONE_NUMBERS_MAX",
    "OUTSTANDING_MAX",
    "RECORD_BYTES_MAX",
    "STREAM_NAME_BYTES",
    "BulkIn",
    "BulkOut",
    "BulkStream",
    "Message",
    "WindowLimits",
]

MIB: Final = 1024 * 1024
OUTSTANDING_MAX: Final = 4_096
"""Messages in flight at once, regardless of size."""
WINDOW_BYTES_MAX: Final = 32 * MIB
DONE_NUMBERS_MAX: Final = 1_024
"""Numbers in one DONE frame."""
RECORD_BYTES_MAX: Final = 2 + MESSAGE_BYTES_MAX
STREAM_NAME_BYTES: Final = 8
"""The name of a bulk connection at both ends: a hash of its handshake, which only they know."""
_LEFT: Final = Struct(">I")
_FRAGMENT_HEADER_BYTES: Final = HEADER_BYTES + _LEFT.size
_SLIVER_BYTES: Final = 1024
"""A fragment is not cut below this size, unless it is the last one."""
_EPOCH_S_MIN: Final = 0.01
"""Minimum time of a rate measurement: over a shorter one, scheduling decides."""
_WINDOW_ROUND_TRIPS: Final = 4
"""Seconds of the current rate that the window holds."""
_TELL_S: Final = 0.025
"""Maximum delay of a DONE report while more arrives: bulk connections are judged by it."""


class Message(NamedTuple):
    """A completely received message."""

    cls: TrafficClass
    kind: int
    body: bytes
    number: int = 0
    """For bulk: the number to release once it was handled."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Limits of bulk in flight from one peer to this node."""

    first_bytes: int = MIB // 4
    max_bytes: int = WINDOW_BYTES_MAX


@dataclass(slots=True, eq=False)
class _Outgoing:
    number: int
    kind: int
    body: bytes
    stream: object = None
    """Its bulk connection; None: it waits."""
    sent: int = 0
    is_again: bool = False
    """Its bulk connection died, but it may have arrived."""


class BulkOut:
    """The sending side."""

    __slots__ = (
        "_current",
        "_message_bytes_max",
        "_number",
        "_queue_bytes_max",
        "_under_way",
        "_undone",
        "_waiting",
        "_window_bytes_max",
        "carried",
        "grain_bytes",
        "outstanding_bytes",
        "stream_count",
        "waiting_bytes",
        "window_bytes",
    )

    def __init__(
        self,
        *,
        queue_bytes_max: int,
        message_bytes_max: int,
        window_bytes: int,
        window_bytes_max: int = WINDOW_BYTES_MAX,
    ) -> None:
        self._queue_bytes_max = queue_bytes_max
        self._message_bytes_max = message_bytes_max
        self._window_bytes_max = window_bytes_max
        self._waiting: deque[_Outgoing] = deque()
        self._undone: OrderedDict[int, _Outgoing] = OrderedDict()
        """Unfinished messages by number, waiting or in flight, lowest first."""
        self._current: dict[object, _Outgoing] = {}
        self._under_way: Counter[object] = Counter()
        """Unfinished bytes by bulk connection."""
        self._number = 0
        self.carried: Counter[object] = Counter()
        """Bytes by bulk connection that the receiver reported as done; the planner takes them out."""
        self.grain_bytes = 0
        """The unit of ``carried``: the size of the last queued message."""
        self.stream_count = 1
        """Bulk connections that may begin messages. Each has a share of the window: otherwise the buffer of a slow
        one could use the whole window, and a fast one would seem to carry nothing."""
        self.outstanding_bytes = 0
        """Bytes given to bulk connections and not done."""
        self.waiting_bytes = 0
        """Bytes of messages that no bulk connection has taken yet."""
        self.window_bytes = window_bytes
        """The receiver's limit of bytes in flight."""

    def queue(self, kind: int, body: bytes) -> bool:
        """Queue a message; return False if the queue is full."""
        size = len(body)
        assert size <= self._message_bytes_max, f"bulk of {size} bytes, limit {self._message_bytes_max}"
        if self.waiting_bytes + size + HEADER_BYTES > self._queue_bytes_max:
            return False
        if self._number >= STREAM_MAX:
            raise QueueOverflow("the numbers of bulk messages of this conversation are used up")
        self._number += 1
        self.grain_bytes = size
        entry = self._undone[self._number] = _Outgoing(self._number, kind, body)
        self._waiting.append(entry)
        self.waiting_bytes += size + HEADER_BYTES
        return True

    def is_ready(self, stream: object, *, may_begin: bool = True) -> bool:
        """Whether ``take`` has data for this bulk connection."""
        return stream in self._current or (may_begin and self._may_begin(stream))

    def _may_begin(self, stream: object) -> bool:
        if not self._waiting:
            return False
        first = self._waiting[0]
        size, has = len(first.body), self._under_way[stream]
        if self.outstanding_bytes and self.outstanding_bytes + size > self.window_bytes:
            return False  # one message may go, however small the window
        if has and (has + size) * self.stream_count > self.window_bytes:
            return False  # and one on each bulk connection, however small its share
        # Numbers stay close together, so that the receiver's memory of them is bounded.
        return first.number - next(iter(self._undone)) < OUTSTANDING_MAX

    def take(self, stream: object, parts: list[bytes | memoryview], room: int, *, may_begin: bool = True) -> int:
        """Append fragments for a bulk connection to ``parts``, at most ``room`` bytes; return the number of
        bytes.
        """
        taken = 0
        while True:
            entry = self._current.get(stream)
            if entry is None:
                if (
                    room - taken < _FRAGMENT_HEADER_BYTES + _SLIVER_BYTES
                    or not may_begin
                    or not self._may_begin(stream)
                ):
                    break
                entry = self._waiting.popleft()
                self.waiting_bytes -= len(entry.body) + HEADER_BYTES
                self.outstanding_bytes += len(entry.body)
                self._under_way[stream] += len(entry.body)
                entry.stream, entry.sent = stream, 0
                self._current[stream] = entry
            body, at = entry.body, entry.sent
            left = len(body) - at
            chunk = min(room - taken - _FRAGMENT_HEADER_BYTES, left)
            if chunk < min(left, _SLIVER_BYTES):
                break
            left -= chunk
            parts.append(
                header(TrafficClass.BULK, entry.kind, entry.number, chunk + _LEFT.size)
                + left.to_bytes(_LEFT.size, "big")
            )
            if chunk:
                parts.append(body if chunk == len(body) else memoryview(body)[at : at + chunk])
            entry.sent = at + chunk
            taken += chunk + _FRAGMENT_HEADER_BYTES
            if not left:
                del self._current[stream]
        return taken

    def done(self, numbers: Iterable[int]) -> None:
        """Process the receiver's report of finished messages. Raises FrameInvalid."""
        for number in numbers:
            entry = self._undone.pop(number, None)
            if entry is None or (entry.sent < len(entry.body) and not entry.is_again):
                raise FrameInvalid("DONE for a message that was not sent")
            if entry.stream is not None:
                self.outstanding_bytes -= len(entry.body)
                self._under_way[entry.stream] -= len(entry.body)
                self.carried[entry.stream] += len(entry.body)
            elif entry.is_again:  # it had arrived before its bulk connection died
                self._waiting.remove(entry)
                self.waiting_bytes -= len(entry.body) + HEADER_BYTES
            else:
                raise FrameInvalid("DONE for a message that was not sent")

    def grant(self, window_bytes: int) -> None:
        """Set the receiver's window; no more than both ends allow is in flight."""
        self.window_bytes = min(window_bytes, self._window_bytes_max)

    def undone(self) -> list[tuple[int, bytes]]:
        """Return the unfinished messages, waiting or in flight."""
        return [(entry.kind, entry.body) for entry in self._undone.values()]

    def has_under_way(self, stream: object) -> bool:
        """Whether unfinished messages are on a bulk connection."""
        return any(entry.stream is stream for entry in self._undone.values())

    def suspend(self, stream: object) -> int:
        """Queue the messages in flight on a suspected bulk connection again, first; return their number.

        It may still finish its current message, which then continues at the receiver.
        """
        current = self._current.get(stream)
        if current is not None and current.stream is stream:
            self._current[stream] = replace(current, is_again=True)
        return self._give_back(stream)

    def stream_lost(self, stream: object) -> int:
        """Queue the messages in flight on a dead bulk connection again, first; return their number."""
        self._current.pop(stream, None)
        self.carried.pop(stream, None)
        return self._give_back(stream)

    def _give_back(self, stream: object) -> int:
        self._under_way.pop(stream, None)
        lost = [entry for entry in self._undone.values() if entry.stream is stream]
        for entry in reversed(lost):
            self.outstanding_bytes -= len(entry.body)
            self.waiting_bytes += len(entry.body) + HEADER_BYTES
            entry.stream, entry.sent, entry.is_again = None, 0, True
            self._waiting.appendleft(entry)
        return len(lost)


@dataclass(slots=True)
class _Incoming:
    """A message being received on one bulk connection."""

    kind: int
    size: int
    left: int
    charge: MemoryCharge
    body: bytearray = field(default_factory=bytearray)
    """One buffer: a list of tiny fragments would cost a multiple of its bytes."""


class BulkIn:
    """The receiving side. ``account`` is charged for the bytes of a message until its release."""

    __slots__ = (
        "_account",
        "_charges",
        "_epoch_at",
        "_epoch_bytes",
        "_finished",
        "_floor",
        "_grant_max",
        "_held",
        "_limits",
        "_message_bytes_max",
        "_partials",
        "_released_at",
        "_to_tell",
        "_to_tell_bytes",
        "_told_at",
        "granted_bytes",
        "held_bytes",
        "wants_grant",
    )

    def __init__(self, account: MemoryAccount, *, message_bytes_max: int, limits: WindowLimits) -> None:
        self._account = account
        self._message_bytes_max = message_bytes_max
        self._limits = limits
        self._partials: dict[object, dict[int, _Incoming]] = {}
        self._held: dict[int, int] = {}
        """Sizes of messages begun and not released."""
        self._charges: dict[int, MemoryCharge] = {}
        """Sizes of completely received ones."""
        self.held_bytes = 0
        """Announced size of messages that have begun to arrive and are not released."""
        self._floor = 0
        """Every number up to this one was completely received."""
        self._finished: set[int] = set()
        self._to_tell: list[int] = []
        self._to_tell_bytes = 0
        self._released_at = self._told_at = 0.0
        self.granted_bytes = limits.first_bytes
        self._grant_max = limits.first_bytes
        self.wants_grant = False
        """Whether the window has changed and the sender was not informed."""
        self._epoch_at = 0.0
        self._epoch_bytes = 0

    def take(self, stream: object, kind: int, number: int, body: memoryview) -> Message | None:
        """Process a fragment; return the message that it completes. Raises FrameInvalid, ReceiveMemoryExceeded."""
        if len(body) < _LEFT.size or not number:
            raise FrameInvalid("malformed bulk frame")
        if number <= self._floor or number in self._finished:
            stale = self._partials.get(stream, {}).pop(number, None)
            if stale is not None:
                stale.charge.give_back()
            return None  # it came by another bulk connection meanwhile
        left = int.from_bytes(body[: _LEFT.size], "big")
        size = len(body) - _LEFT.size
        partials = self._partials.setdefault(stream, {})
        partial = partials.get(number)
        if partial is None:
            self._begin(number, size + left)
            charge = MemoryCharge(self._account, size + left)
            if not left:
                charge.cover(size)
                self._finish(number, charge)
                return Message(TrafficClass.BULK, kind, bytes(body[_LEFT.size :]), number)
            if partials:
                raise FrameInvalid("two unfinished bulk messages on one bulk connection")
            partial = partials[number] = _Incoming(kind, size + left, size + left, charge)
        if kind != partial.kind or partial.left - size != left or not size:
            raise FrameInvalid("a fragment does not continue its message")
        partial.charge.cover(partial.size - left)
        partial.left = left
        partial.body += body[_LEFT.size :]
        if left:
            return None
        del partials[number]
        self._finish(number, partial.charge)
        return Message(TrafficClass.BULK, kind, bytes(partial.body), number)

    def _begin(self, number: int, total: int) -> None:
        if total > self._message_bytes_max:
            raise FrameInvalid(f"message of {total} bytes exceeds the limit of class BULK")
        if number > self._floor + OUTSTANDING_MAX:
            raise FrameInvalid("a bulk message number exceeds the window of numbers")
        if len(self._to_tell) > OUTSTANDING_MAX:
            raise FrameInvalid("too many bulk messages without DONE")
        held = self._held.get(number)
        if held is not None:  # again, for its bulk connection died; the other end noticed first
            if held != total:
                raise FrameInvalid("a bulk message was sent again with another size")
            return
        if self.held_bytes and self.held_bytes + total > self._grant_max:
            raise FrameInvalid("bulk exceeds the window")
        self._held[number] = total
        self.held_bytes += total

    def _finish(self, number: int, charge: MemoryCharge) -> None:
        self._charges[number] = charge
        self._finished.add(number)
        for partials in self._partials.values():
            if number in partials:  # it was coming by another bulk connection too
                partials.pop(number).charge.give_back()
        while self._floor + 1 in self._finished:
            self._floor += 1
            self._finished.discard(self._floor)

    def stream_lost(self, stream: object) -> None:
        """Drop the partial messages of a bulk connection; they arrive again on another one."""
        for number, partial in self._partials.pop(stream, {}).items():
            partial.charge.give_back()
            is_elsewhere = any(number in others for others in self._partials.values())
            if number > self._floor and number not in self._finished and not is_elsewhere:
                self._drop(number)

    def _drop(self, number: int) -> int:
        size = self._held.pop(number)
        self.held_bytes -= size
        charge = self._charges.pop(number, None)
        if charge is not None:
            charge.give_back()
        return size

    def release(self, number: int, now: float, rtt_s: float) -> None:
        """Note that a message was handled; the sender is informed and may send more."""
        size = self._drop(number)
        self._released_at = now
        self._to_tell.append(number)
        self._to_tell_bytes += size
        self._epoch_bytes += size
        epoch_s = now - self._epoch_at
        if epoch_s >= max(
            rtt_s / _WINDOW_ROUND_TRIPS, _EPOCH_S_MIN
        ):  # a slow bulk connection's round trip holds up nobody
            # While the window is the bound it grows, also where half of it lies idle because whole messages do not
            # fill the shares of bulk connections.
            wanted = int(_WINDOW_ROUND_TRIPS * self._epoch_bytes * max(rtt_s, _EPOCH_S_MIN) / epoch_s)
            self._epoch_at, self._epoch_bytes = now, 0
            wanted = min(max(wanted, self.granted_bytes), self._limits.max_bytes)
            if self._account.is_scarce:
                wanted = self._limits.first_bytes
            if wanted > self.granted_bytes * 5 // 4 or wanted < self.granted_bytes:
                self.granted_bytes = wanted
                self._grant_max = max(self._grant_max, wanted)
                self.wants_grant = True

    @property
    def wants_to_tell(self) -> bool:
        """Whether to inform the sender now: enough is done, or all of it."""
        return bool(self._to_tell) and (
            self._to_tell_bytes >= self.granted_bytes // 4
            or not self._held
            or len(self._to_tell) >= DONE_NUMBERS_MAX // 4
            or self._released_at - self._told_at >= _TELL_S
        )

    def take_done(self) -> list[int]:
        """Return the finished numbers to report now, at most DONE_NUMBERS_MAX."""
        told, self._to_tell = self._to_tell[:DONE_NUMBERS_MAX], self._to_tell[DONE_NUMBERS_MAX:]
        self._to_tell_bytes = 0 if not self._to_tell else self._to_tell_bytes
        self._told_at = self._released_at
        return told


class BulkStream:
    """The bulk of one connection, in both directions."""

    __slots__ = (
        "_incoming",
        "_outgoing",
        "arrived_records",
        "channel",
        "is_busy",
        "is_draining",
        "is_ours",
        "is_quiet",
        "is_spare",
        "is_suspended",
        "moved",
        "name",
        "received_bytes",
        "received_records",
        "sent_bytes",
        "sent_records",
    )

    def __init__(self, channel: Channel, outgoing: BulkOut, incoming: BulkIn, *, is_ours: bool = True) -> None:
        self.channel = channel
        self._outgoing = outgoing
        self._incoming = incoming
        self.name = conversation_of(channel.session)[:STREAM_NAME_BYTES]
        self.is_ours = is_ours
        """Whether it carries own bulk, by the own plan; each end has its own plan."""
        self.is_spare = False
        """Whether it takes no own bulk, because there are own bulk connections that do."""
        self.is_draining = False
        """Whether it finishes its messages and takes no more."""
        self.is_suspended = False
        """Whether it takes no new messages until it moves, because its data does not arrive."""
        self.is_busy = False
        """Whether received messages are being handled; nothing is read meanwhile."""
        self.is_quiet = False
        """Whether it has stalled, according to the peer's reports."""
        self.sent_bytes = 0
        """Bulk bytes sent on it."""
        self.received_bytes = 0
        """Bulk bytes received on it, including incomplete messages."""
        self.sent_records = 0
        self.received_records = 0
        """Sent records with bulk."""
        self.arrived_records = 0
        """Of those, the number that arrived, by the peer's reports."""
        self.moved = 0
        """Number of reports."""

    @property
    def is_empty(self) -> bool:
        """Whether none of its messages is in flight."""
        return not self._outgoing.has_under_way(self)

    @property
    def is_owed(self) -> bool:
        """Whether sent data has not arrived yet, as far as is known."""
        return self.sent_records > self.arrived_records

    def note_progress(self, records: int) -> None:
        """Process the peer's progress report. Raises FrameInvalid."""
        if records > self.sent_records:
            raise FrameInvalid("the peer reports more records of a bulk connection than were sent")
        self.arrived_records = max(self.arrived_records, records)
        self.moved += 1

    def next_record(self) -> bytes | None:
        """Return the next record to write, or None if there is no data for this bulk connection now."""
        parts: list[bytes | memoryview] = []
        self._take(parts)
        if parts:
            return self.channel.seal(b"".join(parts))
        return self.channel.seal() if self.channel.has_frames else None

    def _take(self, parts: list[bytes | memoryview]) -> int:
        may_begin = not (self.is_draining or self.is_spare or self.is_suspended)
        taken = self._outgoing.take(self, parts, PAYLOAD_BYTES_MAX, may_begin=may_begin)
        if taken:
            self.sent_bytes += taken
            self.sent_records += 1
        return taken

    def fill(self, buffer: memoryview) -> int:
        """Write records to ``buffer``, a multiple of RECORD_BYTES_MAX, while there is data; return their size."""
        at = 0
        channel = self.channel
        while len(buffer) - at >= RECORD_BYTES_MAX:
            parts: list[bytes | memoryview] = []
            if not self._take(parts) and not channel.has_frames:
                break
            at += channel.seal_into(b"".join(parts), buffer[at:])
        return at

    def receive(self, data: bytes) -> tuple[list[Message], list[bytes]]:
        """Return the messages that ``data`` completes, and the tokens of pongs. Raises ProtocolError."""
        messages: list[Message] = []
        pongs: list[bytes] = []
        self.channel.feed(data)
        while (plaintext := self.channel.next_plaintext()) is not None:
            is_rekeyed = has_bulk = False
            for cls, kind, number, body in frames(memoryview(plaintext)):
                if is_rekeyed:
                    raise FrameInvalid("a frame follows REKEY in its record")
                if cls is TrafficClass.BULK:
                    has_bulk = True
                    self.received_bytes += len(body)
                    message = self._incoming.take(self, kind, number, body)
                    if message is not None:
                        messages.append(message)
                elif cls is TrafficClass.CONSENSUS and not number and kind >= CHANNEL_KIND_MIN:
                    is_rekeyed = kind == ChannelFrame.REKEY
                    if self.channel.take(kind, bytes(body)) is ChannelFrame.PONG:
                        pongs.append(bytes(body))
                else:
                    raise FrameInvalid(f"class {cls.name} on a bulk connection")
            self.received_records += has_bulk
        return messages, pongs

    def lost(self) -> int:
        """Queue the messages in flight again; return their number."""
        self._incoming.stream_lost(self)
        return self._outgoing.stream_lost(self)
