"""A peer: the conversation with one address, the connection that carries it now, and the lanes for its bulk."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from p2p.channel import GENERATION_MAX, Hello, Opening, Word, conversation_of
from p2p.errors import (
    FrameInvalid,
    PeerBusy,
    PeerUnreachable,
    RecordDamaged,
    RequestFailed,
    RequestRefused,
    RequestTimeout,
)
from p2p.frame import Class
from p2p.handshake import Session
from p2p.identity import Role
from p2p.lanes import RECORD_BYTES_MAX, Lane
from p2p.limits import NetworkLimits, ReceiveMemory
from p2p.link import Link, LinkLost
from p2p.mux import Message, Mux
from p2p.places import Service
from p2p.sockets import TcpInfo
from p2p.stalls import Patience, StallWatch, is_silent
from p2p.transport import Doubt
from p2p.ways import PeerWay
from state.primitives.codec import decode, encode
from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["KIND_GOSSIP", "LaneStats", "Peer", "PeerInfo", "PeerOwner", "RequestHandler", "Served"]

KIND_REQUEST: Final = 0xE0
KIND_RESPONSE: Final = 0xE1
KIND_REFUSAL: Final = 0xE2
KIND_GOSSIP: Final = 0xE8
RESERVED_KIND_MIN: Final = 0xE0
"""Kinds from here on are the network's own; the node's messages use those below."""

LARGE_ANSWER_BYTES: Final = 64 * 1024
"""Answers from this size on are bulk, whatever class their method has."""
_CONSENSUS: Final = Class.CONSENSUS
_BULK: Final = Class.BULK
"""A member looked up on its enumeration costs a tenth of all that a small message does."""
_ID_BYTES: Final = 4
_METHOD_CHARACTERS_MAX: Final = 32
_REFUSAL_BYTES_MAX: Final = 128
_PING_TOKEN_BYTES: Final = 8
_LANE_WRITE_RECORDS: Final = 2
_LANE_READ_BYTES: Final = 128 * 1024
"""A lane takes short turns: a vote that comes by the control connection waits for one of each lane."""
_DAMAGED_MAX: Final = 3
"""Damaged records after which the peer, not its lines, is to blame; ..."""
_DAMAGED_S: Final = 60.0
"""... unless so much time without any has passed between them."""

RequestHandler = Callable[[bytes, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One connection of a peer, for whoever chooses paths."""

    is_control: bool
    path: str
    """The endpoint that was dialled, or who brought it in."""
    is_outbound: bool
    age_s: float
    rtt_ms: float | None
    """Measured by pings from end to end."""
    bytes_in: int
    bytes_out: int
    tcp: TcpInfo | None


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What an operator sees of a peer."""

    address: bytes
    roles: Role
    is_outbound: bool
    remote: str
    rtt_ms: float | None
    score: float
    age_s: float
    bytes_in: int
    bytes_out: int
    lanes: int = 0
    """Bulk connections beside the one for everything else."""
    moves: int = 0
    """How often the conversation was to go on over another connection."""
    is_attached: bool = True
    """Whether a connection carries the conversation now."""
    host: str | None = None
    """The IP address at the other end, where that connection goes there directly."""


@dataclass(frozen=True, slots=True)
class Served:
    """A method that this node answers, and the class its answers travel in."""

    handler: RequestHandler
    cls: Class


@dataclass(frozen=True, slots=True)
class PeerOwner:
    """What a peer needs of the network that it belongs to."""

    handlers: Mapping[int, Callable[[bytes, bytes], Awaitable[None]]]
    """What takes the messages (address, body) of each kind. Awaited before the next one of the same connection:
    a peer that sends faster than it is handled is slowed down by its own connection. A ProtocolError raised there
    ends the peer."""
    gossip: Callable[[Peer, bytes], None]
    served: Callable[[str], Served | None]
    find_way: Callable[[Peer], None]
    """Called when the peer has lost its connection or hears nothing on it: bring another if there is one."""
    open_lanes: Callable[[Peer], bool]
    """Called when bulk waits and has no lane: bring some; whether that is tried."""
    answer_lanes: Callable[[Peer, Mapping[int, int]], None]
    """Called when the peer asks for so many lanes by our ways, for it cannot open them itself."""
    take_ways: Callable[[Peer, tuple[PeerWay, ...]], None]
    """Called when the peer has told by which ways lanes may be asked of it."""


@dataclass(slots=True)
class _Asked:
    limit_bytes: int
    done: trio.Event = field(default_factory=trio.Event)
    answer: bytes | RequestFailed | None = None


class Peer:
    """A conversation after its first handshake. ``run`` lives as long as it does, over any connections."""

    def __init__(
        self, link: Link, *, own_address: bytes, limits: NetworkLimits, memory: ReceiveMemory, owner: PeerOwner
    ) -> None:
        session = link.session
        self.session: Session = session
        self.address = session.address
        self.is_outbound = session.is_initiator
        self.since = trio.current_time()
        self.account = memory.open(limits.receive_bytes_per_peer_max, lambda: self.close("receive_memory"))
        self.mux = Mux(link.channel, account=self.account)
        self.conversation = conversation_of(session)
        self.generation = 0
        """How often the conversation has moved to another connection, attempts that failed included."""
        self._attempted = 0
        self.control: Link | None = link
        self.last = link
        """The connection that carries it now or did so last."""
        self.lanes: dict[Link, Lane] = {}
        self.lanes_opening = 0
        self.is_finding_way = False
        self.rtt_s: float | None = None
        self.service = Service()
        self.closed_for: str | None = None
        """Why it ended: a stable code, once it has."""
        self._own_address = own_address
        self._limits = limits
        self._owner = owner
        self._attached = trio.Event()
        self._wake = trio.Event()
        self._bulk_wake = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._heard_at = self.since
        self._has_heard = False
        self._detached_at: float | None = None
        self._pinged_at = -math.inf
        self._patience = Patience()
        self._voted_at = -math.inf
        self._hold_until = -math.inf
        """Until then bulk waits for a lane."""
        self._lane_failed_at = -math.inf
        self._damaged = 0
        self._damaged_at = -math.inf
        self._asked: dict[int, _Asked] = {}
        self._next_id = 0
        self._serving = 0
        self._bytes_in = 0
        self._bytes_out = 0

    def __repr__(self) -> str:
        return f"Peer(0x{self.address.hex()}, {self.last})"

    @property
    def remote(self) -> str:
        """Who is, or was last, at the other end of the control connection."""
        return self.last.remote

    @property
    def is_attached(self) -> bool:
        """Whether a connection carries the conversation now."""
        return self.control is not None and self.closed_for is None

    @property
    def bytes_in(self) -> int:
        """Received over all connections."""
        return self._bytes_in + sum(link.bytes_in for link in self._links())

    @property
    def bytes_out(self) -> int:
        """Sent over all connections."""
        return self._bytes_out + sum(link.bytes_out for link in self._links())

    def _links(self) -> list[Link]:
        return [*([self.control] if self.control is not None else []), *self.lanes]

    def lane_stats(self) -> list[LaneStats]:
        """Return what is known of each connection, the control connection first."""
        now = trio.current_time()
        return [
            LaneStats(
                is_control=link is self.control,
                path=str(link.endpoint or link.remote),
                is_outbound=link.is_outbound,
                age_s=now - link.since,
                rtt_ms=None if link.rtt_s is None else link.rtt_s * 1_000,
                bytes_in=link.bytes_in,
                bytes_out=link.bytes_out,
                tcp=link.tcp_info(),
            )
            for link in self._links()
        ]

    # -- sending ---------------------------------------------------------------------------------------------

    def queue(self, cls: Class, kind: int, body: bytes) -> bool:
        """Queue a message; False when it was refused, or when the peer was too slow and is being dropped."""
        if self.closed_for is not None:
            return False
        try:
            queued = self.mux.queue(cls, kind, body)
        except ProtocolError as error:
            self.close(error.code)
            return False
        if cls is _BULK:
            self._want_lanes()
            self._bulk_wake.set()
        elif cls is _CONSENSUS:
            self._voted_at = trio.current_time()
        self._wake.set()
        return queued

    async def queue_when_room(self, cls: Class, kind: int, body: bytes) -> None:
        """Queue a message as soon as its class has room. Raises PeerUnreachable when the peer is gone first."""
        while not self.queue(cls, kind, body):
            if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            self._is_room_wanted = True
            await self._room.wait()

    def close(self, reason: str) -> None:
        """End it; ``run`` returns soon after."""
        if self.closed_for is None:
            self.closed_for = reason
            self._room.set()
            self._scope.cancel()

    async def request(self, method: str, body: bytes, *, timeout_s: float, limit_bytes: int) -> bytes:
        """Return the peer's answer of at most ``limit_bytes``. Raises RequestFailed, PeerUnreachable."""
        if len(self._asked) >= self._limits.requests_asked_per_peer_max:
            raise RequestRefused("too many requests to this peer are under way")
        self._next_id = (self._next_id + 1) % 2 ** (8 * _ID_BYTES)
        number, asked = self._next_id, _Asked(limit_bytes)
        self._asked[number] = asked
        try:
            if not self.queue(Class.REQUEST, KIND_REQUEST, encode([number, method, limit_bytes, body])):
                raise PeerUnreachable("the connection is full or gone")
            with trio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            del self._asked[number]
        match asked.answer:
            case bytes():
                return asked.answer
            case RequestFailed():
                raise asked.answer
            case _ if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            case _:
                raise RequestTimeout(f"{method}: no answer within {timeout_s} s")

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry messages until either side ends it; the reason is in ``closed_for`` then."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._read)
        finally:
            self.closed_for = self.closed_for or "shutdown"
            self.account.close()
            self._room.set()
            for asked in self._asked.values():
                asked.done.set()
            control, lanes = self.control, self.lanes
            self.control, self.lanes = None, {}
            if control is not None:
                control.channel.say(Word.BYE)
                await control.aclose(goodbye=control.channel.seal())
            for lane in lanes:
                await lane.aclose()

    def may_move(self, hello: Hello, link: Link) -> bool:
        """Whether the conversation may go on over ``link``, whose proved peer said ``hello``."""
        if self.closed_for is not None or hello.conversation != self.conversation or self._nursery is None:
            return False
        if not self._is_same(link):
            return False
        if hello.generation != self.generation or not self.generation:
            return hello.generation > self.generation
        # Both ends moved at once: both must keep the same one, that of the lower address.
        return self._initiator_of(link) < self._initiator_of(self.last)

    def _is_same(self, link: Link) -> bool:
        """Whether the node at the other end is this one, under the certificate that we know or a later one."""
        ours, theirs = self.session.certificate, link.session.certificate
        return ours.static_key == theirs.static_key and ours.sequence <= theirs.sequence

    def _initiator_of(self, link: Link) -> bytes:
        return self._own_address if link.is_outbound else self.address

    def resuming(self) -> Hello:
        """Return the hello of a connection that shall carry the conversation from now on.

        Each attempt counts: the peer may have gone along with one whose answer was lost.
        """
        self._attempted = min(max(self._attempted, self.generation) + 1, GENERATION_MAX)
        return Hello(Opening.RESUME, self.conversation, self._attempted, self.mux.received)

    def attach(self, link: Link, hello: Hello) -> None:
        """Go on over ``link``; see ``may_move``. Raises FrameInvalid."""
        old = self.control
        if old is not None:
            silent_s = trio.current_time() - self._heard_at
            if is_silent(silent_s, rtt_s=self.rtt_s or 0.0, limit_s=self._limits.stall_s):
                old.doubt(Doubt.SILENT)
        self.mux.attach(link.channel, hello.received)
        self.control = self.last = link
        self.generation = hello.generation
        self._detached_at = None
        if old is not None:
            self._retire(old)
        self._attached.set()
        self._attached = trio.Event()
        self._wake.set()

    def is_stalled(self, now: float) -> bool:
        """Whether nothing has been heard for longer than a connection that works needs."""
        return now - self._heard_at > self._limits.stall_s

    def _lose(self, link: Link) -> None:
        """Note that the control connection is gone."""
        if link is not self.control:
            return
        self.control = None
        self.mux.detach()
        self._retire(link)
        if not self._has_heard:  # refused, more likely than broken
            self.close("connection_lost")
            return
        self._detached_at = trio.current_time()
        self._owner.find_way(self)

    def _retire(self, link: Link) -> None:
        self._bytes_in += link.bytes_in
        self._bytes_out += link.bytes_out
        link.retire()
        assert self._nursery is not None
        self._nursery.start_soon(link.aclose)

    def _fail(self, link: Link, error: ProtocolError) -> None:
        """End the connection, or the peer where that is what the error speaks against."""
        now = trio.current_time()
        if now - self._damaged_at > _DAMAGED_S:
            self._damaged = 0
        if isinstance(error, RecordDamaged) and self._damaged < _DAMAGED_MAX and self._has_heard:
            self._damaged += 1
            self._damaged_at = now
            link.doubt(Doubt.CHANGED)
            self._lose(link)
        else:
            self.close(error.code)

    def is_voting(self, now: float) -> bool:
        """Whether messages of class consensus go to this peer."""
        return now - self._voted_at < self._limits.short_records_s

    async def _write(self) -> None:
        mux = self.mux
        while True:
            link = self.control
            is_short = self.is_voting(trio.current_time())
            record = mux.next_record(is_short=is_short) if link is not None else None
            if link is None or record is None:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            try:
                await link.send(record, timeout_s=self._limits.write_timeout_s)
            except trio.TooSlowError:
                self.close("peer_too_slow")
            except LinkLost:
                self._lose(link)
            self._give_room()

    def _give_room(self) -> None:
        if self._is_room_wanted:
            self._is_room_wanted = False
            self._room.set()
            self._room = trio.Event()

    async def _watch(self) -> None:
        """Ping, notice silence, end what waited too long for another connection."""
        limits = self._limits
        rekeyed_at = sought_at = self.since
        self._ping(self.since)
        while True:
            await trio.sleep(limits.probe_s / 2)
            now = trio.current_time()
            if now - self._heard_at > limits.idle_timeout_s:
                self.close("peer_silent")
            elif self._detached_at is not None:
                if now - self._detached_at > limits.resume_s:
                    self.close("connection_lost")
                elif not self.is_finding_way:
                    self._owner.find_way(self)
                continue
            if now - rekeyed_at > limits.rekey_interval_s and self.control is not None:
                self.control.channel.rekey()
                rekeyed_at = now
            silent_s = now - self._heard_at
            is_owed = self.mux.is_owed or any(lane.is_doubtful for lane in self.lanes.values())
            is_owed = is_owed and silent_s > limits.probe_s
            pinged_s = now - self._pinged_at
            if pinged_s > limits.ping_interval_s or (is_owed and pinged_s > limits.probe_s):
                self._ping(now)
            if is_owed and silent_s > limits.stall_s and now - sought_at > 2 * limits.stall_s:
                sought_at = now
                self._owner.find_way(self)
            self._want_lanes()

    def _ping(self, now: float) -> None:
        self._pinged_at = now
        self.mux.ping(_token(now))
        self._wake.set()

    async def _read(self) -> None:
        data, link, opened = b"", self.control, 0
        handlers, address = self._owner.handlers, self.address
        free_at = self.since
        while True:
            if link is None:
                if (link := self.control) is None:
                    await self._attached.wait()
                continue
            try:
                started = time.thread_time()
                messages = self.mux.receive(data)
                took_s = time.thread_time() - started
                now = trio.current_time()
                if self.mux.records_opened != opened:
                    opened = self.mux.records_opened
                    self._heard_at, self._has_heard = now, True
                for message in messages:
                    kind = message.kind
                    if kind < RESERVED_KIND_MIN:
                        handler = handlers.get(kind)
                        if handler is not None:
                            await handler(address, message.body)
                    elif kind == KIND_GOSSIP:
                        started = time.thread_time()
                        self._owner.gossip(self, message.body)
                        took_s += time.thread_time() - started
                    elif Mux.is_pong(message):
                        self.rtt_s = link.rtt_s = _rtt(link.rtt_s, message.body)
                    elif Mux.is_bye(message):
                        self.close("peer_left")
                    else:
                        started = time.thread_time()
                        self._take(message)
                        took_s += time.thread_time() - started
                    if message.number:
                        self._release(message.number)
                if self.mux.has_output:  # pongs and credit
                    self._wake.set()
                if self.lanes:
                    self._bulk_wake.set()
                self._hear_of_lanes()
                # What is cheap to send and costly to take must not starve the other peers: who takes more than
                # its share of the loop waits, and its own connection slows it down.
                free_at = max(free_at, now - took_s) + took_s * 100 / self._limits.loop_share_percent
                ahead_s = free_at - now - self._limits.loop_debt_s
                if ahead_s > 0:  # short pauses: what the peer sends in earnest must not wait long either
                    await trio.sleep(ahead_s)
                data = await link.receive()
            except LinkLost:
                self._lose(link)
                data = b""
            except ProtocolError as error:
                self._fail(link, error)
                data = b""
            if link is not self.control:  # what else came there will be sent again
                data, link = b"", self.control

    def _release(self, number: int) -> None:
        rtt_s = max((link.rtt_s or 0.0 for link in self._links()), default=0.0)
        self.mux.release_bulk(number, trio.current_time(), rtt_s)

    # -- lanes -----------------------------------------------------------------------------------------------

    def _hear_of_lanes(self) -> None:
        """Take what the peer has said of lanes. Raises FrameInvalid."""
        mux = self.mux
        if mux.lanes_moved:
            for lane in self.lanes.values():
                records = mux.lanes_moved.get(lane.name)
                if records is not None:
                    lane.note_moved(records)
            mux.lanes_moved.clear()
        if mux.lanes_given_up:
            for link, lane in self.lanes.items():
                if lane.name in mux.lanes_given_up:
                    link.is_stalled = True
                    link.retire()
            mux.lanes_given_up.clear()
        if mux.ways_told is not None:
            ways, mux.ways_told = mux.ways_told, None
            self._owner.take_ways(self, ways)
        if mux.lanes_wanted:
            wanted, mux.lanes_wanted = mux.lanes_wanted, {}
            self._owner.answer_lanes(self, wanted)

    def _want_lanes(self) -> None:
        """See to it that much bulk has lanes, or the control connection where none can be had."""
        mux = self.mux
        waiting = mux.bulk_out.waiting_bytes
        now = trio.current_time()
        have = self.lanes_opening + sum(lane.is_ours for lane in self.lanes.values())
        if (
            waiting >= self._limits.lane_open_bytes
            and not have
            and self.control is not None
            and now - self._lane_failed_at > self._limits.lane_retry_s
        ):
            self._lane_failed_at = now  # one attempt in that time; success takes it back
            if self._owner.open_lanes(self):
                self._hold_until = now + self._limits.lane_wait_s
        may_begin = not self.lanes and now >= self._hold_until
        if may_begin and not mux.may_begin_bulk:
            self._wake.set()
        mux.may_begin_bulk = may_begin

    def ask_for_lanes(self, wishes: Mapping[int, int]) -> None:
        """Ask the peer to open lanes by its ways, for it reaches us and we perhaps not it."""
        self.mux.ask_for_lanes(wishes)
        self._wake.set()

    def tell_ways(self, ways: tuple[PeerWay, ...]) -> None:
        """Tell the peer by which ways it may ask for lanes."""
        self.mux.tell_ways(ways)
        self._wake.set()

    def close_lane(self, link: Link) -> None:
        """Give a lane up as soon as what it has under way is done; what is not done soon goes elsewhere."""
        lane = self.lanes.get(link)
        if lane is not None and not lane.is_draining and self._nursery is not None and self.closed_for is None:
            lane.is_draining = True
            link.is_broken = False
            self._share_bulk()
            self._nursery.start_soon(self._drain, link, lane)

    async def _drain(self, link: Link, lane: Lane) -> None:
        with trio.move_on_after(self._limits.lane_drain_s):
            while not lane.is_empty:  # noqa: ASYNC110 - rare, has no event
                await trio.sleep(self._limits.lane_drain_s / 50)
        link.retire()

    def lanes_failed(self) -> None:
        """Note that no lane could be opened: bulk need not wait for one any longer."""
        self._hold_until = -math.inf
        self._want_lanes()
        self._wake.set()

    def may_add_lane(self, hello: Hello, link: Link) -> bool:
        """Whether ``link`` may be a lane of this conversation; see ``may_move``."""
        return (
            self.closed_for is None
            and self._nursery is not None
            and hello.conversation == self.conversation
            and self._is_same(link)
            and self.lanes_of(is_ours=_is_ours(hello, link)) < self._limits.lanes_max
        )

    def lanes_of(self, *, is_ours: bool) -> int:
        """Return how many lanes are there for our bulk, or for the peer's."""
        return sum(lane.is_ours == is_ours for lane in self.lanes.values())

    async def carry_lane(self, link: Link, hello: Hello) -> None:
        """Let bulk travel on ``link`` until it or the peer ends; what it then has under way goes elsewhere."""
        assert self.closed_for is None and self._nursery is not None
        link.make_bulk()
        lane = Lane(link.channel, self.mux.bulk_out, self.mux.bulk_in, is_ours=_is_ours(hello, link))
        self.lanes[link] = lane
        self._share_bulk()
        self.mux.may_begin_bulk = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_lane, lane, link)
                nursery.start_soon(self._watch_lane, lane, link)
                await self._read_lane(lane, link)
                nursery.cancel_scope.cancel()
        finally:
            self._end_lane(lane, link)
            await link.aclose()

    def _end_lane(self, lane: Lane, link: Link) -> None:
        """Take a lane out of use. What has wholly come on it is still dealt with: it will not come again."""
        link.retire()
        if self.lanes.pop(link, None) is None:
            return
        self._bytes_in += link.bytes_in
        self._bytes_out += link.bytes_out
        lane.is_draining = True  # its writer may not have ended yet, and must take nothing more
        lane.lost()
        if self.closed_for is None and self._nursery is not None:
            self._nursery.start_soon(link.aclose)
        self._share_bulk()
        self._want_lanes()
        self._wake.set()

    def _share_bulk(self) -> None:
        """Let our bulk begin on the lanes that are there for it, on the peer's only while there is none."""
        has_own = any(lane.is_ours and not lane.is_draining for lane in self.lanes.values())
        for lane in self.lanes.values():
            lane.is_spare = has_own and not lane.is_ours
        self.mux.bulk_out.lanes = max(
            sum(not (lane.is_spare or lane.is_draining) for lane in self.lanes.values()), 1
        )
        self._bulk_wake.set()

    async def _write_lane(self, lane: Lane, link: Link) -> None:
        sent_bytes = 0
        buffer = memoryview(bytearray(_LANE_WRITE_RECORDS * RECORD_BYTES_MAX))
        try:
            while True:
                size = lane.fill(buffer)
                if not size:
                    if self._bulk_wake.is_set():
                        self._bulk_wake = trio.Event()
                    await self._bulk_wake.wait()
                    continue
                if lane.sent_bytes != sent_bytes:
                    sent_bytes = lane.sent_bytes
                    link.used_at = trio.current_time()
                await link.send(buffer[:size], timeout_s=self._limits.write_timeout_s)
                self._give_room()
        except (LinkLost, trio.TooSlowError):
            self._end_lane(lane, link)

    async def _watch_lane(self, lane: Lane, link: Link) -> None:
        limits = self._limits
        watch = StallWatch(self._patience, trio.current_time())
        pinged_at, told = -math.inf, (link.bytes_in, 0)
        rekeyed_at = link.since
        rtt_s_min = math.inf
        while True:
            now = trio.current_time()
            idle_s = limits.lane_idle_s * (1 if lane.is_ours else 2)
            if now - link.used_at > idle_s and not lane.is_owed:
                link.is_broken = False
                self._end_lane(lane, link)
                return
            if now - pinged_at > (limits.idle_timeout_s if link.rtt_s is not None else limits.probe_s):
                pinged_at = now
                lane.channel.say(Word.PING, _token(now))
                self._bulk_wake.set()
            if now - rekeyed_at > limits.rekey_interval_s:
                rekeyed_at = now
                lane.channel.rekey()
                self._bulk_wake.set()
            if lane.is_busy or told != (link.bytes_in, lane.received_records):
                told = link.bytes_in, lane.received_records
                self.mux.tell_moved(lane.name, lane.received_records)
                self._wake.set()
            rtt_s_min = min(rtt_s_min, link.rtt_s or math.inf)
            is_dead = watch.tick(
                now,
                is_owed=lane.is_owed or link.is_sending,
                moved=lane.moved,
                heard=self.mux.records_opened,
                rtt_s=max(self.rtt_s or 0.0, rtt_s_min if rtt_s_min < math.inf else 0.0),
            )
            if is_dead:
                self._patience.alarmed(now)
                link.is_stalled = True
                link.doubt(Doubt.SILENT)
                self.mux.give_up(lane.name)
                self._end_lane(lane, link)
                return
            lane.is_doubtful = watch.is_doubtful(now)
            if lane.is_doubtful and self.is_attached and now - self._pinged_at >= limits.probe_s / 2:
                self._ping(now)  # a word of the peer's on the other connection is what tells the two apart
            await trio.sleep(limits.lane_tick_s)

    async def _read_lane(self, lane: Lane, link: Link) -> None:
        data, received_bytes = b"", 0
        try:
            while True:
                messages, pongs = lane.receive(data)
                if lane.received_bytes != received_bytes:
                    received_bytes, link.used_at = lane.received_bytes, trio.current_time()
                for token in pongs:
                    link.rtt_s = _rtt(link.rtt_s, token)
                    self._lane_failed_at = -math.inf  # the peer has taken it; before, it may refuse it yet
                for message in messages:
                    if self.closed_for is not None:  # while the last one was dealt with
                        raise LinkLost
                    handler = self._owner.handlers.get(message.kind)
                    if handler is not None:
                        lane.is_busy = True
                        await handler(self.address, message.body)
                        lane.is_busy = False
                    elif message.kind == KIND_RESPONSE:  # nothing else of the network's own is ever bulk
                        self._take(message)
                    self._release(message.number)
                if lane.channel.has_words:
                    self._bulk_wake.set()
                if self.mux.has_output:
                    self._wake.set()
                data = await link.receive(_LANE_READ_BYTES)
        except LinkLost:
            pass
        except RecordDamaged:
            link.doubt(Doubt.CHANGED)
        except ProtocolError as error:
            self.close(error.code)

    # -- requests --------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        match message.kind:
            case 0xE1:
                self._on_response(message.body)
            case 0xE0:
                assert self._nursery is not None
                self._on_request(self._nursery, message.body, self._owner.served)
            case 0xE2:
                self._on_refusal(message.body)
            case _:
                pass  # of a later version

    def _on_request(self, nursery: trio.Nursery, data: bytes, served: Callable[[str], Served | None]) -> None:
        match decode(data, limit_bytes=self._limits.request_bytes_max + 128):
            case [int(number), str(method), int(limit_bytes), bytes(body)] if (
                0 <= number < 2 ** (8 * _ID_BYTES) and len(method) <= _METHOD_CHARACTERS_MAX and limit_bytes >= 0
            ):
                pass
            case _:
                raise FrameInvalid("not a request")
        found = served(method)
        if found is None:
            self._refuse(number, "unknown_method")
        elif self._serving >= self._limits.requests_served_per_peer_max:
            self._refuse(number, PeerBusy.code)
        else:
            self._serving += 1
            nursery.start_soon(self._serve, number, found, limit_bytes, body)

    async def _serve(self, number: int, served: Served, limit_bytes: int, body: bytes) -> None:
        try:
            with trio.fail_after(self._limits.serve_timeout_s):
                answer = await served.handler(self.address, body)
                cls = Class.BULK if len(answer) >= LARGE_ANSWER_BYTES else served.cls
                message_bytes_max = self.mux.limits.classes[cls].message_bytes_max
                if len(answer) > limit_bytes or len(answer) + _ID_BYTES > message_bytes_max:
                    self._refuse(number, "answer_too_large")
                else:
                    head = number.to_bytes(_ID_BYTES, "big")
                    await self.queue_when_room(cls, KIND_RESPONSE, head + answer)
        except DekubeError as error:
            self._refuse(number, error.code)
        except trio.TooSlowError:
            self._refuse(number, PeerBusy.code)
        finally:
            self._serving -= 1

    def _refuse(self, number: int, code: str) -> None:
        self.queue(Class.REQUEST, KIND_REFUSAL, number.to_bytes(_ID_BYTES, "big") + code.encode())

    def _on_response(self, body: bytes) -> None:
        asked = self._asked.get(int.from_bytes(body[:_ID_BYTES], "big"))
        if len(body) < _ID_BYTES:
            raise FrameInvalid("an answer without its number")
        if asked is None or asked.done.is_set():
            return  # came after its time
        answer = body[_ID_BYTES:]
        if len(answer) > asked.limit_bytes:
            raise FrameInvalid(f"an answer of {len(answer)} bytes where {asked.limit_bytes} were asked for")
        asked.answer = answer
        asked.done.set()

    def _on_refusal(self, body: bytes) -> None:
        if not _ID_BYTES <= len(body) <= _REFUSAL_BYTES_MAX:
            raise FrameInvalid("malformed refusal")
        asked = self._asked.get(int.from_bytes(body[:_ID_BYTES], "big"))
        if asked is not None and not asked.done.is_set():
            asked.answer = RequestRefused(body[_ID_BYTES:].decode("ascii", "replace"))
            asked.done.set()


def _is_ours(hello: Hello, link: Link) -> bool:
    """Whether a lane is there for our bulk: we opened it of our own wish, or the peer did because we asked."""
    return link.is_outbound != hello.is_asked


def _token(now: float) -> bytes:
    return int(now * 1_000_000).to_bytes(_PING_TOKEN_BYTES, "big")


def _rtt(before_s: float | None, token: bytes) -> float | None:
    """Return the round trip that a pong tells of, smoothed."""
    rtt_s = trio.current_time() - int.from_bytes(token, "big") / 1_000_000
    if not 0 <= rtt_s < math.inf:
        return before_s
    return rtt_s if before_s is None else 0.75 * before_s + 0.25 * rtt_s
