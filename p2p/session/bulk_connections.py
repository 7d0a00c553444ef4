"""Runs the bulk connections of one peer: reads, writes, watches and closes them.

``p2p.session.bulk_streams`` decides what is sent on which connection, and recovers the messages of a lost one.
``p2p.path.selection`` decides how many there are on which path, and opens them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol

import trio

from p2p.base.errors import RecordDamaged
from p2p.base.limits import NetworkLimits
from p2p.base.transport import TransportFault
from p2p.secure.channel import ChannelFrame, Hello
from p2p.session.bulk_streams import RECORD_BYTES_MAX, BulkStream
from p2p.session.connection import Connection, ConnectionLost
from p2p.session.mux import Message, Mux
from p2p.session.requests import KIND_RESPONSE
from p2p.session.stall_detection import StallDetector, StallTimeout
from state.primitives.errors import ProtocolError

__all__ = ["BulkConnections", "MessageHandler"]

_WRITE_RECORDS: Final = 2
_READ_BYTES: Final = 128 * 1024
"""A bulk connection takes short turns: a vote on the control connection waits for one turn of each bulk
connection."""
_DRAIN_LOOKS: Final = 50

MessageHandler = Callable[[bytes, bytes], Awaitable[None]]


class _Conversation(Protocol):
    """The part of the peer that its bulk connections use."""

    @property
    def address(self) -> bytes: ...
    @property
    def mux(self) -> Mux: ...
    @property
    def rtt_s(self) -> float | None: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def is_attached(self) -> bool: ...
    def close(self, reason: str) -> None: ...
    def wake(self) -> None: ...
    def give_room(self) -> None: ...
    def request_ping(self, now: float) -> None: ...
    def release(self, number: int) -> None: ...
    def take(self, message: Message) -> None: ...
    def may_carry(self, hello: Hello, connection: Connection) -> bool: ...


class BulkConnections(Mapping[Connection, BulkStream]):
    """The bulk connections of a peer, with the bulk stream of each.

    ``handlers`` receive the messages of each kind. ``bring`` is called when bulk waits without a bulk connection,
    and returns whether some are being opened. ``on_suspected`` is called when one stalls, to open another beside
    it.
    """

    def __init__(
        self,
        peer: _Conversation,
        *,
        limits: NetworkLimits,
        handlers: Mapping[int, MessageHandler],
        bring: Callable[[], bool],
        on_suspected: Callable[[Connection], None],
    ) -> None:
        self.opening = 0
        """Number of own bulk connections being dialled."""
        self.bytes_in = 0
        """Bytes received over ended ones."""
        self.bytes_out = 0
        """Bytes sent over ended ones."""
        self._peer = peer
        self._mux = peer.mux
        self._limits = limits
        self._handlers = handlers
        self._bring = bring
        self._on_suspected = on_suspected
        self._streams: dict[Connection, BulkStream] = {}
        self._nursery: trio.Nursery | None = None
        self._something = trio.Event()
        self._timeout = StallTimeout()
        self._hold_until = -math.inf
        """Until when bulk waits for a bulk connection."""
        self._failed_at = -math.inf

    def __getitem__(self, connection: Connection) -> BulkStream:
        return self._streams[connection]

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def count(self, *, is_ours: bool) -> int:
        """Return how many carry this node's bulk (``is_ours``), or the peer's."""
        return sum(stream.is_ours == is_ours for stream in self._streams.values())

    @property
    def is_quiet(self) -> bool:
        """Whether one of them has stalled for a while."""
        return any(stream.is_quiet for stream in self._streams.values())

    # -- how many there are ----------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Accept bulk connections from now on; ``nursery`` runs their tasks."""
        self._nursery = nursery

    def end(self) -> list[Connection]:
        """Drop all, and return their connections for the caller to close."""
        connections, self._streams = list(self._streams), {}
        return connections

    def wake(self) -> None:
        """Wake the writers: there may be data to send."""
        self._something.set()

    def seek(self) -> None:
        """Request bulk connections for much bulk; if none can be opened, use the control connection."""
        mux = self._mux
        waiting = mux.bulk_out.waiting_bytes
        now = trio.current_time()
        have = self.opening + self.count(is_ours=True)
        if (
            waiting >= self._limits.bulk_open_bytes
            and not have
            and self._peer.is_attached
            and now - self._failed_at > self._limits.bulk_retry_s
        ):
            self._failed_at = now  # one attempt in that time; success takes it back
            if self._bring():
                self._hold_until = now + self._limits.bulk_wait_s
        may_begin = not self._streams and now >= self._hold_until
        if may_begin and not mux.may_begin_bulk:
            self._peer.wake()
        mux.may_begin_bulk = may_begin

    def failed(self) -> None:
        """Note that none could be opened; bulk no longer waits for one."""
        self._hold_until = -math.inf
        self.seek()
        self._peer.wake()

    def may_add(self, hello: Hello, connection: Connection) -> bool:
        """Whether ``connection`` may be a bulk connection of this conversation; see ``Peer.may_move``."""
        return (
            self._nursery is not None
            and self._peer.may_carry(hello, connection)
            and self.count(is_ours=_is_ours(hello, connection)) < self._limits.bulk_connections_max
        )

    def close(self, connection: Connection) -> None:
        """Close a bulk connection once its messages are sent; after a while unfinished ones move to others."""
        stream = self._streams.get(connection)
        if stream is not None and not stream.is_draining and self._nursery is not None and not self._peer.is_over:
            stream.is_draining = True
            connection.is_broken = False
            self._share()
            self._nursery.start_soon(self._drain, connection, stream)

    async def _drain(self, connection: Connection, stream: BulkStream) -> None:
        with trio.move_on_after(self._limits.bulk_drain_s):
            while not stream.is_empty:  # noqa: ASYNC110 - rare, has no event
                await trio.sleep(self._limits.bulk_drain_s / _DRAIN_LOOKS)
        connection.retire()

    def hear(self) -> None:
        """Process the peer's reports about them from the control connection. Raises FrameInvalid."""
        mux = self._mux
        if mux.stream_progress:
            for stream in self._streams.values():
                records = mux.stream_progress.get(stream.name)
                if records is not None:
                    stream.note_progress(records)
            mux.stream_progress.clear()
        if mux.streams_given_up:
            for connection, stream in self._streams.items():
                if stream.name in mux.streams_given_up:
                    connection.is_stalled = True
                    connection.retire()
            mux.streams_given_up.clear()

    # -- one bulk connection
    # --------------------------------------------------------------------------------------------

    async def carry(self, connection: Connection, hello: Hello) -> None:
        """Run ``connection`` until it or the peer ends; its unfinished messages are sent on another one."""
        assert self._nursery is not None and not self._peer.is_over
        connection.make_bulk()
        stream = BulkStream(
            connection.channel, self._mux.bulk_out, self._mux.bulk_in, is_ours=_is_ours(hello, connection)
        )
        self._streams[connection] = stream
        self._share()
        self._mux.may_begin_bulk = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stream, connection)
                nursery.start_soon(self._watch, stream, connection)
                await self._read(stream, connection)
                nursery.cancel_scope.cancel()
        finally:
            self._end(stream, connection)
            await connection.aclose()

    def _end(self, stream: BulkStream, connection: Connection) -> None:
        """Remove a bulk connection.

        Completely received messages are still handled: they will not be sent again.
        """
        connection.retire()
        if self._streams.pop(connection, None) is None:
            return
        self.bytes_in += connection.bytes_in
        self.bytes_out += connection.bytes_out
        stream.is_draining = True  # its writer may not have ended yet, and must take nothing more
        stream.lost()
        if self._nursery is not None and not self._peer.is_over:
            self._nursery.start_soon(connection.aclose)
        self._share()
        self.seek()
        self._peer.wake()

    def _share(self) -> None:
        """Use own bulk connections for own bulk, and the peer's only while there are no own ones."""
        own = [stream for stream in self._streams.values() if stream.is_ours and not stream.is_draining]
        if all(stream.is_suspended for stream in own):
            for stream in own:  # there is no other any more
                stream.is_suspended = False
        for stream in self._streams.values():
            stream.is_spare = bool(own) and not stream.is_ours
        streams = self._streams.values()
        may_take = sum(not (stream.is_spare or stream.is_draining or stream.is_suspended) for stream in streams)
        self._mux.bulk_out.stream_count = max(may_take, 1)
        self.wake()

    async def _write(self, stream: BulkStream, connection: Connection) -> None:
        sent_bytes = 0
        buffer = memoryview(bytearray(_WRITE_RECORDS * RECORD_BYTES_MAX))
        try:
            while True:
                size = stream.fill(buffer)
                if not size:
                    if self._something.is_set():
                        self._something = trio.Event()
                    await self._something.wait()
                    continue
                if stream.sent_bytes != sent_bytes:
                    sent_bytes = stream.sent_bytes
                    connection.used_at = trio.current_time()
                await connection.send(buffer[:size], timeout_s=self._limits.write_timeout_s)
                self._peer.give_room()
        except (ConnectionLost, trio.TooSlowError):
            self._end(stream, connection)

    async def _watch(self, stream: BulkStream, connection: Connection) -> None:
        limits, mux, peer = self._limits, self._mux, self._peer
        watch = StallDetector(self._timeout, trio.current_time())
        pinged_at, told, told_at = -math.inf, (connection.bytes_in, 0), -math.inf
        has_suspected = False
        rekeyed_at = connection.since
        rtt_s_min = math.inf
        while True:
            now = trio.current_time()
            idle_s = limits.bulk_idle_s * (1 if stream.is_ours else 2)
            if now - connection.used_at > idle_s and not stream.is_owed:
                connection.is_broken = False
                self._end(stream, connection)
                return
            if now - pinged_at > (limits.idle_timeout_s if connection.rtt_s is not None else limits.probe_s):
                pinged_at = now
                stream.channel.say(ChannelFrame.PING, connection.new_ping(now))
                self.wake()
            if now - rekeyed_at > limits.rekey_interval_s:
                rekeyed_at = now
                stream.channel.rekey()
                self.wake()
            is_news = stream.is_busy or told != (connection.bytes_in, stream.received_records)
            if is_news and now - told_at >= limits.bulk_report_s:
                told, told_at = (connection.bytes_in, stream.received_records), now
                mux.report_progress(stream.name, stream.received_records)
                peer.wake()
            rtt_s_min = min(rtt_s_min, connection.rtt_s or math.inf)
            rtt_s = max(peer.rtt_s or 0.0, rtt_s_min if rtt_s_min < math.inf else 0.0)
            is_owed = stream.is_owed or connection.is_sending
            is_dead = watch.tick(now, is_owed=is_owed, moved=stream.moved, heard=mux.records_opened, rtt_s=rtt_s)
            if is_dead:
                self._timeout.alarmed(now)
                connection.is_stalled = True
                connection.report_fault(TransportFault.SILENT)
                mux.give_up(stream.name)
                self._end(stream, connection)
                return
            stream.is_quiet = watch.is_quiet(now)
            if stream.is_quiet:
                peer.request_ping(now)  # one on the other connection is what tells the two apart
            if not watch.is_suspected(now, rtt_s):
                has_suspected = False
            elif not has_suspected:
                has_suspected = True
                self._on_suspected(connection)
            self._suspend(stream, must_suspend=watch.must_suspend(now, rtt_s))
            await trio.sleep(limits.bulk_tick_s)

    def _suspend(self, stream: BulkStream, *, must_suspend: bool) -> None:
        """Also send messages in flight on a stalled bulk connection over others, until it moves again."""
        if stream.is_suspended and not must_suspend:
            stream.is_suspended = False
            self._share()
        elif must_suspend and not stream.is_suspended and stream.is_ours and not stream.is_draining:
            others = (other for other in self._streams.values() if other is not stream and other.is_ours)
            if any(not (other.is_draining or other.is_suspended or other.is_quiet) for other in others):
                stream.is_suspended = True
                self._mux.bulk_out.suspend(stream)
                self._share()
                self._peer.wake()

    async def _read(self, stream: BulkStream, connection: Connection) -> None:
        peer, mux = self._peer, self._mux
        data, received_bytes = b"", 0
        try:
            while True:
                messages, pongs = stream.receive(data)
                if stream.received_bytes != received_bytes:
                    received_bytes, connection.used_at = stream.received_bytes, trio.current_time()
                for token in pongs:
                    connection.take_pong(token, trio.current_time())
                    self._failed_at = -math.inf  # the peer has taken it; before, it may refuse it yet
                for message in messages:
                    if peer.is_over:  # while the last one was dealt with
                        raise ConnectionLost
                    handler = self._handlers.get(message.kind)
                    if handler is not None:
                        stream.is_busy = True
                        await handler(peer.address, message.body)
                        stream.is_busy = False
                    elif message.kind == KIND_RESPONSE:  # nothing else of the network's own is ever bulk
                        peer.take(message)
                    peer.release(message.number)
                if stream.channel.has_frames:
                    self.wake()
                if mux.has_output:
                    peer.wake()
                data = await connection.receive(_READ_BYTES)
        except ConnectionLost:
            pass
        except RecordDamaged:
            connection.report_fault(TransportFault.CHANGED)
        except ProtocolError as error:
            peer.close(error.code)


def _is_ours(hello: Hello, connection: Connection) -> bool:
    """Whether a bulk connection carries own bulk: this node opened it for that, or requested it from the peer."""
    return connection.is_outbound != hello.is_asked
