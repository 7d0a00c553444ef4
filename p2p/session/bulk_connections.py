"""The lanes of one peer: connections beside its conversation on which bulk travels.

What leaves on which lane, and what comes of one that is lost, says ``p2p.session.bulk_streams``; how many there
are and by which paths, ``p2p.path.steering``, which brings them. Here they are read, written, watched and ended.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol

import trio

from p2p.base.errors import RecordDamaged
from p2p.base.limits import NetworkLimits
from p2p.base.transport import Doubt
from p2p.secure.channel import Hello, Word
from p2p.session.bulk_streams import RECORD_BYTES_MAX, Lane
from p2p.session.connection import Link, LinkLost
from p2p.session.mux import Message, Mux
from p2p.session.requests import KIND_RESPONSE
from p2p.session.stall_detection import Patience, StallWatch
from state.primitives.errors import ProtocolError

__all__ = ["MessageHandler", "PeerLanes"]

_WRITE_RECORDS: Final = 2
_READ_BYTES: Final = 128 * 1024
"""A lane takes short turns: a vote that comes by the control connection waits for one of each lane."""
_DRAIN_LOOKS: Final = 50

MessageHandler = Callable[[bytes, bytes], Awaitable[None]]


class _Conversation(Protocol):
    """What lanes need of the peer whose bulk they carry."""

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
    def ask_for_word(self, now: float) -> None: ...
    def release(self, number: int) -> None: ...
    def take(self, message: Message) -> None: ...
    def may_carry(self, hello: Hello, link: Link) -> bool: ...


class PeerLanes(Mapping[Link, Lane]):
    """The lanes that a peer has now, each by its connection.

    ``handlers`` take the messages of each kind; ``bring`` is called when bulk waits and has no lane, and says
    whether some are tried; ``doubt`` when a lane stands still, to bring one by another way beside it.
    """

    def __init__(
        self,
        peer: _Conversation,
        *,
        limits: NetworkLimits,
        handlers: Mapping[int, MessageHandler],
        bring: Callable[[], bool],
        doubt: Callable[[Link], None],
    ) -> None:
        self.opening = 0
        """How many of ours are being dialled."""
        self.bytes_in = 0
        """Received over those that have ended."""
        self.bytes_out = 0
        """Sent over those that have ended."""
        self._peer = peer
        self._mux = peer.mux
        self._limits = limits
        self._handlers = handlers
        self._bring = bring
        self._doubt = doubt
        self._lanes: dict[Link, Lane] = {}
        self._nursery: trio.Nursery | None = None
        self._something = trio.Event()
        self._patience = Patience()
        self._hold_until = -math.inf
        """Until then bulk waits for a lane."""
        self._failed_at = -math.inf

    def __getitem__(self, link: Link) -> Lane:
        return self._lanes[link]

    def __iter__(self) -> Iterator[Link]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def count(self, *, is_ours: bool) -> int:
        """Return how many are there for our bulk, or for the peer's."""
        return sum(lane.is_ours == is_ours for lane in self._lanes.values())

    @property
    def is_doubtful(self) -> bool:
        """Whether on one of them nothing has moved for a while."""
        return any(lane.is_doubtful for lane in self._lanes.values())

    # -- how many there are ----------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Take lanes from now on; what ends them slowly runs in ``nursery``."""
        self._nursery = nursery

    def end(self) -> list[Link]:
        """Let go of all, and return their connections for the caller to close."""
        links, self._lanes = list(self._lanes), {}
        return links

    def wake(self) -> None:
        """Say that there may be something to write."""
        self._something.set()

    def seek(self) -> None:
        """See to it that much bulk has lanes, or the control connection where none can be had."""
        mux = self._mux
        waiting = mux.bulk_out.waiting_bytes
        now = trio.current_time()
        have = self.opening + self.count(is_ours=True)
        if (
            waiting >= self._limits.lane_open_bytes
            and not have
            and self._peer.is_attached
            and now - self._failed_at > self._limits.lane_retry_s
        ):
            self._failed_at = now  # one attempt in that time; success takes it back
            if self._bring():
                self._hold_until = now + self._limits.lane_wait_s
        may_begin = not self._lanes and now >= self._hold_until
        if may_begin and not mux.may_begin_bulk:
            self._peer.wake()
        mux.may_begin_bulk = may_begin

    def failed(self) -> None:
        """Note that none could be opened: bulk need not wait for one any longer."""
        self._hold_until = -math.inf
        self.seek()
        self._peer.wake()

    def may_add(self, hello: Hello, link: Link) -> bool:
        """Whether ``link`` may be a lane of this conversation; see ``Peer.may_move``."""
        return (
            self._nursery is not None
            and self._peer.may_carry(hello, link)
            and self.count(is_ours=_is_ours(hello, link)) < self._limits.lanes_max
        )

    def close(self, link: Link) -> None:
        """Give a lane up as soon as what it has under way is done; what is not done soon goes elsewhere."""
        lane = self._lanes.get(link)
        if lane is not None and not lane.is_draining and self._nursery is not None and not self._peer.is_over:
            lane.is_draining = True
            link.is_broken = False
            self._share()
            self._nursery.start_soon(self._drain, link, lane)

    async def _drain(self, link: Link, lane: Lane) -> None:
        with trio.move_on_after(self._limits.lane_drain_s):
            while not lane.is_empty:  # noqa: ASYNC110 - rare, has no event
                await trio.sleep(self._limits.lane_drain_s / _DRAIN_LOOKS)
        link.retire()

    def hear(self) -> None:
        """Take what the peer has said of them on the control connection. Raises FrameInvalid."""
        mux = self._mux
        if mux.lanes_moved:
            for lane in self._lanes.values():
                records = mux.lanes_moved.get(lane.name)
                if records is not None:
                    lane.note_moved(records)
            mux.lanes_moved.clear()
        if mux.lanes_given_up:
            for link, lane in self._lanes.items():
                if lane.name in mux.lanes_given_up:
                    link.is_stalled = True
                    link.retire()
            mux.lanes_given_up.clear()

    # -- one lane --------------------------------------------------------------------------------------------

    async def carry(self, link: Link, hello: Hello) -> None:
        """Let bulk travel on ``link`` until it or the peer ends; what it then has under way goes elsewhere."""
        assert self._nursery is not None and not self._peer.is_over
        link.make_bulk()
        lane = Lane(link.channel, self._mux.bulk_out, self._mux.bulk_in, is_ours=_is_ours(hello, link))
        self._lanes[link] = lane
        self._share()
        self._mux.may_begin_bulk = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, lane, link)
                nursery.start_soon(self._watch, lane, link)
                await self._read(lane, link)
                nursery.cancel_scope.cancel()
        finally:
            self._end(lane, link)
            await link.aclose()

    def _end(self, lane: Lane, link: Link) -> None:
        """Take a lane out of use. What has wholly come on it is still dealt with: it will not come again."""
        link.retire()
        if self._lanes.pop(link, None) is None:
            return
        self.bytes_in += link.bytes_in
        self.bytes_out += link.bytes_out
        lane.is_draining = True  # its writer may not have ended yet, and must take nothing more
        lane.lost()
        if self._nursery is not None and not self._peer.is_over:
            self._nursery.start_soon(link.aclose)
        self._share()
        self.seek()
        self._peer.wake()

    def _share(self) -> None:
        """Let our bulk begin on the lanes that are there for it, on the peer's only while there is none."""
        own = [lane for lane in self._lanes.values() if lane.is_ours and not lane.is_draining]
        if all(lane.is_suspended for lane in own):
            for lane in own:  # there is no other any more
                lane.is_suspended = False
        for lane in self._lanes.values():
            lane.is_spare = bool(own) and not lane.is_ours
        lanes = self._lanes.values()
        may_take = sum(not (lane.is_spare or lane.is_draining or lane.is_suspended) for lane in lanes)
        self._mux.bulk_out.lanes = max(may_take, 1)
        self.wake()

    async def _write(self, lane: Lane, link: Link) -> None:
        sent_bytes = 0
        buffer = memoryview(bytearray(_WRITE_RECORDS * RECORD_BYTES_MAX))
        try:
            while True:
                size = lane.fill(buffer)
                if not size:
                    if self._something.is_set():
                        self._something = trio.Event()
                    await self._something.wait()
                    continue
                if lane.sent_bytes != sent_bytes:
                    sent_bytes = lane.sent_bytes
                    link.used_at = trio.current_time()
                await link.send(buffer[:size], timeout_s=self._limits.write_timeout_s)
                self._peer.give_room()
        except (LinkLost, trio.TooSlowError):
            self._end(lane, link)

    async def _watch(self, lane: Lane, link: Link) -> None:
        limits, mux, peer = self._limits, self._mux, self._peer
        watch = StallWatch(self._patience, trio.current_time())
        pinged_at, told, told_at = -math.inf, (link.bytes_in, 0), -math.inf
        has_doubted = False
        rekeyed_at = link.since
        rtt_s_min = math.inf
        while True:
            now = trio.current_time()
            idle_s = limits.lane_idle_s * (1 if lane.is_ours else 2)
            if now - link.used_at > idle_s and not lane.is_owed:
                link.is_broken = False
                self._end(lane, link)
                return
            if now - pinged_at > (limits.idle_timeout_s if link.rtt_s is not None else limits.probe_s):
                pinged_at = now
                lane.channel.say(Word.PING, link.new_ping(now))
                self.wake()
            if now - rekeyed_at > limits.rekey_interval_s:
                rekeyed_at = now
                lane.channel.rekey()
                self.wake()
            is_news = lane.is_busy or told != (link.bytes_in, lane.received_records)
            if is_news and now - told_at >= limits.lane_report_s:
                told, told_at = (link.bytes_in, lane.received_records), now
                mux.tell_moved(lane.name, lane.received_records)
                peer.wake()
            rtt_s_min = min(rtt_s_min, link.rtt_s or math.inf)
            rtt_s = max(peer.rtt_s or 0.0, rtt_s_min if rtt_s_min < math.inf else 0.0)
            is_owed = lane.is_owed or link.is_sending
            is_dead = watch.tick(now, is_owed=is_owed, moved=lane.moved, heard=mux.records_opened, rtt_s=rtt_s)
            if is_dead:
                self._patience.alarmed(now)
                link.is_stalled = True
                link.doubt(Doubt.SILENT)
                mux.give_up(lane.name)
                self._end(lane, link)
                return
            lane.is_doubtful = watch.is_doubtful(now)
            if lane.is_doubtful:
                peer.ask_for_word(now)  # one on the other connection is what tells the two apart
            if not watch.is_doubted(now, rtt_s):
                has_doubted = False
            elif not has_doubted:
                has_doubted = True
                self._doubt(link)
            self._suspend(lane, is_suspect=watch.is_suspect(now, rtt_s))
            await trio.sleep(limits.lane_tick_s)

    def _suspend(self, lane: Lane, *, is_suspect: bool) -> None:
        """Send what does not arrive by other lanes too, where there are some; until it is seen to arrive."""
        if lane.is_suspended and not is_suspect:
            lane.is_suspended = False
            self._share()
        elif is_suspect and not lane.is_suspended and lane.is_ours and not lane.is_draining:
            others = (other for other in self._lanes.values() if other is not lane and other.is_ours)
            if any(not (other.is_draining or other.is_suspended or other.is_doubtful) for other in others):
                lane.is_suspended = True
                self._mux.bulk_out.suspend(lane)
                self._share()
                self._peer.wake()

    async def _read(self, lane: Lane, link: Link) -> None:
        peer, mux = self._peer, self._mux
        data, received_bytes = b"", 0
        try:
            while True:
                messages, pongs = lane.receive(data)
                if lane.received_bytes != received_bytes:
                    received_bytes, link.used_at = lane.received_bytes, trio.current_time()
                for token in pongs:
                    link.take_pong(token, trio.current_time())
                    self._failed_at = -math.inf  # the peer has taken it; before, it may refuse it yet
                for message in messages:
                    if peer.is_over:  # while the last one was dealt with
                        raise LinkLost
                    handler = self._handlers.get(message.kind)
                    if handler is not None:
                        lane.is_busy = True
                        await handler(peer.address, message.body)
                        lane.is_busy = False
                    elif message.kind == KIND_RESPONSE:  # nothing else of the network's own is ever bulk
                        peer.take(message)
                    peer.release(message.number)
                if lane.channel.has_words:
                    self.wake()
                if mux.has_output:
                    peer.wake()
                data = await link.receive(_READ_BYTES)
        except LinkLost:
            pass
        except RecordDamaged:
            link.doubt(Doubt.CHANGED)
        except ProtocolError as error:
            peer.close(error.code)


def _is_ours(hello: Hello, link: Link) -> bool:
    """Whether a lane is there for our bulk: we opened it of our own wish, or the peer did because we asked."""
    return link.is_outbound != hello.is_asked
