"""A peer: the conversation with one address, over whichever connection carries it now.

Here what is said goes out, what is heard is handed on, and the conversation moves from one connection to another.
Its order and bounds are those of ``p2p.session.mux``; its requests are ``p2p.session.requests``, its lanes for
bulk ``p2p.session.bulk_connections``, and whether it is still there says ``p2p.session.liveness``. Who becomes a
peer is decided above it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from p2p.base.errors import PeerUnreachable, RecordDamaged
from p2p.base.limits import Holding, LoopShare, NetworkLimits, ReceiveMemory
from p2p.base.transport import Doubt
from p2p.secure.channel import Hello
from p2p.secure.frame import Class
from p2p.secure.handshake import Session
from p2p.session.bulk_connections import MessageHandler, PeerLanes
from p2p.session.connection import Link, LinkLost
from p2p.session.liveness import Act, Vigil
from p2p.session.migration import Migration
from p2p.session.mux import Message, Mux
from p2p.session.path_offers import PeerWay
from p2p.session.peerinfo import LaneStats, PeerInfo
from p2p.session.requests import Requests, Served
from p2p.session.stall_detection import is_silent, silence_limit_s
from p2p.session.usefulness import Usefulness
from state.primitives.errors import ProtocolError

__all__ = ["KIND_GOSSIP", "RESERVED_KIND_MIN", "Peer", "PeerOwner"]

KIND_GOSSIP: Final = 0xE8
RESERVED_KIND_MIN: Final = 0xE0
"""Kinds from here on are the network's own; the node's messages use those below."""

_CONSENSUS: Final = Class.CONSENSUS
_BULK: Final = Class.BULK
"""A member looked up on its enumeration costs a tenth of all that a small message does."""
_LOOK_S_MIN: Final = 0.02
"""Between two looks at the vigil."""
_DAMAGED_MAX: Final = 3
"""Damaged records after which the peer, not its lines, is to blame; ..."""
_DAMAGED_S: Final = 60.0
"""... unless so much time without any has passed between them."""


@dataclass(frozen=True, slots=True)
class PeerOwner:
    """What a peer needs of the network that it belongs to."""

    handlers: Mapping[int, MessageHandler]
    """What takes the messages (address, body) of each kind. Awaited before the next one of the same connection:
    a peer that sends faster than it is handled is slowed down by its own connection. A ProtocolError raised there
    ends the peer."""
    gossip: Callable[[bytes, bytes], None]
    """Takes what the peer of an address gossips."""
    served: Callable[[str], Served | None]
    find_way: Callable[[Peer], None]
    """Called when the peer has lost its connection or hears nothing on it: bring another if there is one."""
    left_silent: Callable[[Peer, Link, bool], None]
    """Called for a connection that was left for its silence, once it is known whether it was dead."""
    open_lanes: Callable[[Peer], bool]
    """Called when bulk waits and has no lane: bring some; whether that is tried."""
    doubt_lane: Callable[[Peer, Link], None]
    """Called when nothing moves on a lane: bring one by another way beside it, if there is one."""
    answer_lanes: Callable[[Peer, Mapping[int, int]], None]
    """Called when the peer asks for so many lanes by our ways, for it cannot open them itself."""
    take_ways: Callable[[Peer, tuple[PeerWay, ...]], None]
    """Called when the peer has told by which ways lanes may be asked of it."""


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
        self.migration = Migration(session, own_address=own_address)
        self.conversation = self.migration.conversation
        self.control: Link | None = link
        self.last = link
        """The connection that carries it now or did so last."""
        self.is_finding_way = False
        self.rtt_s: float | None = None
        self.usefulness = Usefulness()
        self.closed_for: str | None = None
        """Why it ended: a stable code, once it has."""
        self.lanes = PeerLanes(
            self, limits=limits, handlers=owner.handlers, bring=lambda: owner.open_lanes(self),
            doubt=lambda lane: owner.doubt_lane(self, lane),
        )  # fmt: skip
        """The connections for its bulk beside the control connection."""
        self.requests = Requests(
            self.address, limits=limits, classes=self.mux.limits.classes, served=owner.served,
            say=self.queue, say_when_room=self.queue_when_room,
        )  # fmt: skip
        self._limits = limits
        self._owner = owner
        self._attached = trio.Event()
        self._wake = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._vigil = Vigil(self.since, limits)
        self._until = trio.CancelScope(deadline=math.inf)
        """Of the pause until the vigil is looked at again."""
        self._voted_at = -math.inf
        self._damaged = 0
        self._damaged_at = -math.inf
        self._bytes_in = 0
        self._bytes_out = 0

    def __repr__(self) -> str:
        return f"Peer(0x{self.address.hex()}, {self.last})"

    # -- what is known of it ---------------------------------------------------------------------------------

    @property
    def remote(self) -> str:
        """Who is, or was last, at the other end of the control connection."""
        return self.last.remote

    @property
    def is_attached(self) -> bool:
        """Whether a connection carries the conversation now."""
        return self.control is not None and self.closed_for is None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.closed_for is not None

    @property
    def bytes_in(self) -> int:
        """Received over all connections."""
        return self._bytes_in + self.lanes.bytes_in + sum(link.bytes_in for link in self._links())

    @property
    def bytes_out(self) -> int:
        """Sent over all connections."""
        return self._bytes_out + self.lanes.bytes_out + sum(link.bytes_out for link in self._links())

    def _links(self) -> list[Link]:
        return [*([self.control] if self.control is not None else []), *self.lanes]

    def info(self, *, score: float) -> PeerInfo:
        """Return what an operator sees of it; ``score`` is the gossip's."""
        return PeerInfo(
            address=self.address,
            roles=self.session.certificate.roles,
            is_outbound=self.is_outbound,
            remote=self.remote,
            rtt_ms=None if self.rtt_s is None else self.rtt_s * 1_000,
            score=score,
            age_s=trio.current_time() - self.since,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            lanes=len(self.lanes),
            moves=self.migration.generation,
            is_attached=self.is_attached,
            host=None if self.control is None else self.control.remote_host,
        )

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

    def is_voting(self, now: float) -> bool:
        """Whether messages of class consensus go to this peer."""
        return now - self._voted_at < self._limits.short_records_s

    @property
    def is_doubted(self) -> bool:
        """Whether the control connection has missed a deadline and has said nothing since."""
        return self._vigil.is_doubted

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
            self.lanes.seek()
            self.lanes.wake()
        elif cls is _CONSENSUS:
            self._voted_at = now = trio.current_time()
            if self._vigil.voted(now):
                self._ping(now)
            else:
                self._hasten()
        self._wake.set()
        return queued

    async def queue_when_room(self, cls: Class, kind: int, body: bytes) -> None:
        """Queue a message as soon as its class has room. Raises PeerUnreachable when the peer is gone first."""
        while not self.queue(cls, kind, body):
            if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            self._is_room_wanted = True
            await self._room.wait()

    def undelivered(self) -> list[tuple[Class, int, bytes]]:
        """Return the node's own messages that have not arrived for certain, once it has ended."""
        return [message for message in self.mux.undelivered() if message[1] < RESERVED_KIND_MIN]

    def holding(self) -> Holding:
        """Return what is kept of what it is to hear."""
        holding = self.mux.holding()
        return holding._replace(size_bytes=holding.size_bytes + self.requests.waiting_bytes)

    def ask_for_lanes(self, wishes: Mapping[int, int]) -> None:
        """Ask the peer to open lanes by its ways, for it reaches us and we perhaps not it."""
        self.mux.ask_for_lanes(wishes)
        self._wake.set()

    def tell_ways(self, ways: tuple[PeerWay, ...]) -> None:
        """Tell the peer by which ways it may ask for lanes."""
        self.mux.tell_ways(ways)
        self._wake.set()

    def ask_for_word(self, now: float) -> None:
        """Ask the peer for a word out of turn, unless that has just been done."""
        if self.is_attached and self._vigil.may_ask(now):
            self._ping(now)

    def wake(self) -> None:
        """Say that there may be something to write on the control connection."""
        self._wake.set()

    def give_room(self) -> None:
        """Let those who wait for room try again."""
        if self._is_room_wanted:
            self._is_room_wanted = False
            self._room.set()
            self._room = trio.Event()

    def close(self, reason: str) -> None:
        """End it; ``run`` returns soon after."""
        if self.closed_for is None:
            self.closed_for = reason
            self._room.set()
            self._scope.cancel()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry messages until either side ends it; the reason is in ``closed_for`` then."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self.lanes.start(nursery)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._read)
        finally:
            self.closed_for = self.closed_for or "shutdown"
            self.account.close()
            self._room.set()
            self.requests.end(self.closed_for)
            control, lanes = self.control, self.lanes.end()
            self.control = None
            if control is not None:
                await control.part()
            for lane in lanes:
                await lane.aclose()

    # -- moving to another connection ------------------------------------------------------------------------

    def may_move(self, hello: Hello, link: Link) -> bool:
        """Whether the conversation may go on over ``link``, whose proved peer said ``hello``."""
        return (
            self._nursery is not None
            and self.may_carry(hello, link)
            and self.migration.may_replace(hello, link.session, self.last.session)
        )

    def may_carry(self, hello: Hello, link: Link) -> bool:
        """Whether ``link`` is for this conversation, and the conversation goes on."""
        return self.closed_for is None and self.migration.may_carry(hello, link.session)

    def attach(self, link: Link, hello: Hello) -> None:
        """Go on over ``link``; see ``may_move``. Raises FrameInvalid."""
        old = self.control
        silent_s = trio.current_time() - self._vigil.heard_at
        is_dead = is_silent(silent_s, rtt_s=self.rtt_s or 0.0, limit_s=self._limits.stall_s)
        is_waiting = self._vigil.is_waiting
        is_left = is_waiting and link.is_outbound  # the end that accepts says a word on it and closes it
        self.mux.attach(link.channel, hello.received)
        self.control = self.last = link
        self.migration.generation = hello.generation
        self._vigil.attached(trio.current_time())
        if old is not None and is_left and not is_dead:
            self._count(old)
            old.retire()
            assert self._nursery is not None
            self._nursery.start_soon(self._await_word, old, silent_s, self.rtt_s or 0.0)
        elif old is not None:
            if is_dead:
                old.doubt(Doubt.SILENT)
                if is_waiting:
                    self._owner.left_silent(self, old, True)
            self._count(old)
            assert self._nursery is not None
            self._nursery.start_soon(old.leave, self.mux.received)
        self._attached.set()
        self._attached = trio.Event()
        self._wake.set()

    def _lose(self, link: Link) -> None:
        """Note that the control connection is gone."""
        if link is not self.control:
            return
        self.control = None
        self.mux.detach()
        self._retire(link)
        if not self._vigil.has_heard:  # refused, more likely than broken
            self.close("connection_lost")
            return
        self._vigil.detached(trio.current_time())
        self._owner.find_way(self)

    async def _await_word(self, link: Link, silent_s: float, rtt_s: float) -> None:
        """Find out whether a connection that was left for its silence is dead.

        On a live one a last word of the peer's arrives. Only what was silent for long enough is held against the
        way and who carried it.
        """
        is_dead = await link.is_dead(max(silence_limit_s(rtt_s, limit_s=self._limits.stall_s) - silent_s, 0.0))
        if is_dead:
            link.doubt(Doubt.SILENT)
        self._owner.left_silent(self, link, is_dead)
        await link.aclose()

    def _count(self, link: Link) -> None:
        self._bytes_in += link.bytes_in
        self._bytes_out += link.bytes_out

    def _retire(self, link: Link) -> None:
        self._count(link)
        link.retire()
        assert self._nursery is not None
        self._nursery.start_soon(link.aclose)

    def _fail(self, link: Link, error: ProtocolError) -> None:
        """End the connection, or the peer where that is what the error speaks against."""
        now = trio.current_time()
        if now - self._damaged_at > _DAMAGED_S:
            self._damaged = 0
        if isinstance(error, RecordDamaged) and self._damaged < _DAMAGED_MAX and self._vigil.has_heard:
            self._damaged += 1
            self._damaged_at = now
            link.doubt(Doubt.CHANGED)
            self._lose(link)
        else:
            self.close(error.code)

    # -- the control connection ------------------------------------------------------------------------------

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
            self.give_room()

    async def _watch(self) -> None:
        """Do what the vigil says, and see to lanes for bulk that waits."""
        self._ping(self.since)
        while True:
            now = trio.current_time()
            due_at = max(self._vigil.due_at, now + _LOOK_S_MIN)
            with trio.CancelScope(deadline=min(now + self._limits.probe_s / 2, due_at)) as self._until:
                await trio.sleep_forever()
            now = trio.current_time()
            is_owed = self.mux.is_owed or self.lanes.is_doubtful
            for act in self._vigil.tick(now, is_owed=is_owed, is_finding_way=self.is_finding_way):
                match act:
                    case Act.REKEY:
                        if self.control is not None:
                            self.control.channel.rekey()
                    case Act.PING:
                        self._ping(now)
                    case Act.FIND_WAY:
                        self._owner.find_way(self)
                    case Act.END_SILENT:
                        self.close("peer_silent")
                    case Act.END_LOST:
                        self.close("connection_lost")
            if self.is_attached:
                self.lanes.seek()

    def _ping(self, now: float) -> None:
        self._vigil.asked(now)
        if self.control is not None:
            self.mux.ping(self.control.new_ping(now))
        self._hasten()
        self._wake.set()

    def _hasten(self) -> None:
        """Look at the vigil no later than it is due."""
        due_at = self._vigil.due_at
        if due_at < self._until.deadline:
            self._until.deadline = due_at

    async def _read(self) -> None:
        data, link, opened = b"", self.control, 0
        handlers, gossip, address = self._owner.handlers, self._owner.gossip, self.address
        share = LoopShare(self.since, percent=self._limits.loop_share_percent, debt_s=self._limits.loop_debt_s)
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
                    self._vigil.heard(now)
                for message in messages:
                    kind = message.kind
                    if kind < RESERVED_KIND_MIN:
                        if message.cls is _CONSENSUS:
                            self._vigil.heard_vote(now)
                        handler = handlers.get(kind)
                        if handler is not None:
                            await handler(address, message.body)
                    elif kind == KIND_GOSSIP:
                        started = time.thread_time()
                        gossip(address, message.body)
                        took_s += time.thread_time() - started
                    elif Mux.is_pong(message):
                        pong_at = trio.current_time()
                        answered_s = link.take_pong(message.body, pong_at)
                        self.rtt_s = link.rtt_s
                        if answered_s is not None and self.rtt_s is not None:
                            self._vigil.answered(answered_s, self.rtt_s, pong_at)
                    elif Mux.is_bye(message):
                        self.close("peer_left")
                    else:
                        started = time.thread_time()
                        self.take(message)
                        took_s += time.thread_time() - started
                    if message.number:
                        self.release(message.number)
                self._hasten()
                if self.mux.has_output:  # pongs and credit
                    self._wake.set()
                self.lanes.wake()
                self._hear_of_lanes()
                ahead_s = share.wait_s(took_s, now)
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

    def take(self, message: Message) -> None:
        """Take a message of the network's own. Raises ProtocolError."""
        assert self._nursery is not None
        self.requests.take(message, self._nursery)

    def release(self, number: int) -> None:
        """Note that a message of bulk has been dealt with."""
        rtt_s = max((link.rtt_s or 0.0 for link in self._links()), default=0.0)
        self.mux.release_bulk(number, trio.current_time(), rtt_s)

    def _hear_of_lanes(self) -> None:
        """Take what the peer has said of lanes. Raises FrameInvalid."""
        mux = self.mux
        self.lanes.hear()
        if mux.ways_told is not None:
            ways, mux.ways_told = mux.ways_told, None
            self._owner.take_ways(self, ways)
        if mux.lanes_wanted:
            wanted, mux.lanes_wanted = mux.lanes_wanted, {}
            self._owner.answer_lanes(self, wanted)
