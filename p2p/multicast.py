"""One message to many, without I/O: pieces through relays, a swap among the receivers, the rest by request.

The sender announces root and key to every receiver over its own connection; the pieces take the cheapest way:

- *relays*: each piece leaves the sender once, the relays that the receivers reserved hand out copies;
- *swap*: where there is no relay, or one fails, every receiver gets other pieces and hands them on to the others;
- *pull*: what still lacks is asked for by number.

A receiver tells the sender what it has, so the sender sees before long that a relay is dead, slow or a censor, and
goes on by another relay, or by swap, for those who lack pieces. Every piece is checked under the announced root
before it is kept or handed on. To its receiver a message that came in pieces is one that the announcer sent.

The shell passes monotonic seconds in, calls ``tick`` every TICK_S while ``is_active``, and does the effects in
order.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, TypeAlias

from p2p.errors import PieceForged
from p2p.pieces import (
    KEY_BYTES,
    PARITY_MAX,
    PARITY_MESSAGE_BYTES_MAX,
    PIECE_BYTES_MIN,
    Assembly,
    Cut,
    Piece,
    Shape,
    cut_message,
    cut_parity,
    decode_piece,
    encode_piece,
    open_message,
    seal_message,
)
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest

__all__ = [
    "CONTROL_BYTES_MAX",
    "TICK_S",
    "Announce",
    "Blame",
    "Control",
    "Deliver",
    "Done",
    "Effect",
    "Finished",
    "Have",
    "Member",
    "Multicast",
    "MulticastParameters",
    "Pass",
    "Publish",
    "Swap",
    "Tell",
    "Want",
    "decode_control",
    "encode_control",
]

TICK_S: Final = 0.02
CONTROL_BYTES_MAX: Final = 4 * 1024
SWAP_MEMBERS_MAX: Final = 128
_BITS_MAX: Final = 256
_KIND_MAX: Final = 0xDF
_SOON: Final = 0.5
"""Part of its patience after which a receiver is helped together with one that has lost it."""
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MulticastParameters:
    """Times in seconds and bounds of what is under way at once."""

    stall_s: float = 0.15
    """Silence beyond two round trips after which a receiver is helped; doubled with every round of help."""
    rtt_s_max: float = 0.5
    """Round trips that are longer speak of a receiver that is busy, not far away."""
    standstill_s_max: float = 1.0
    """How much of the time in which this node stood still itself is not held against receivers, in all."""
    have_s: float = 0.05
    """Least time between two reports of one receiver."""
    pull_s: float = 0.75
    """Silence after which a receiver asks for what it lacks; doubled with every time it asks."""
    pulls_max: int = 6
    later_s: float = 1.0
    """How long those who may wait do so at most."""
    expiry_s: float = 15.0
    """After this a sender and a receiver forget what is not complete."""
    keep_s: float = 3.0
    """How long a receiver keeps the pieces of a complete message for others."""
    remember_s: float = 60.0
    relays_max: int = 3
    """Relays of one message."""
    relay_members_min: int = 2
    """A relay that reaches fewer saves nothing."""
    split_max: int = 2
    """Relays among which pieces are shared out where one would reach everybody."""
    shun_s: float = 10.0
    """How long a relay that failed for a receiver is not used for it; doubled with every failure in a row."""
    shun_s_max: float = 600.0
    swap_members_min: int = 3
    """Fewer receivers are served by the sender itself."""
    swap_rounds_max: int = 2
    """Rounds of help by swap; after these the sender serves who lacks pieces itself."""
    outgoing_max: int = 4
    incoming_per_sender_max: int = 8
    incoming_bytes_per_sender_max: int = 20 * MIB
    incoming_bytes_max: int = 128 * MIB
    incoming_bytes_of_strangers_max: int = 32 * MIB
    early_bytes_per_source_max: int = 2 * MIB
    early_bytes_max: int = 16 * MIB
    """Pieces that came before their announcement."""
    early_s: float = 5.0
    remembered_max: int = 4_096
    serves_percent_max: int = 150
    """Pieces served to one receiver alone, in percent of those that the message has."""


class Announce(NamedTuple):
    """Sender: a message of this kind comes in pieces of this shape under ``root``, sealed with ``key``."""

    root: bytes
    key: bytes
    kind: int
    shape: Shape


class Have(NamedTuple):
    """Receiver: I have the pieces whose bits are set."""

    root: bytes
    bitmap: int


class Done(NamedTuple):
    """Receiver: I have the message and want no more of it."""

    root: bytes


class Swap(NamedTuple):
    """Sender: hand on what I mark to these; parity has this root (empty: there is none)."""

    root: bytes
    parity_root: bytes
    parity_count: int
    members: tuple[bytes, ...]


class Want(NamedTuple):
    """Receiver: send me the pieces whose bits are set."""

    root: bytes
    bitmap: int


Control: TypeAlias = Announce | Have | Done | Swap | Want


def encode_control(message: Control) -> bytes:
    """Return the canonical bytes of ``message``."""
    value: Value
    match message:
        case Announce(root, key, kind, shape):
            value = [1, root, key, kind, shape.size_bytes, shape.piece_bytes]
        case Have(root, bitmap):
            value = [2, root, bitmap]
        case Done(root):
            value = [3, root]
        case Swap(root, parity_root, parity_count, members):
            value = [4, root, parity_root, parity_count, list(members)]
        case Want(root, bitmap):
            value = [5, root, bitmap]
    return encode(value)


def decode_control(data: bytes) -> Control:
    """Return the message of its canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=CONTROL_BYTES_MAX):
        case [1, bytes(root), bytes(key), int(kind), int(size_bytes), int(piece_bytes)] if (
            len(root),
            len(key),
        ) == (HASH_BYTES, KEY_BYTES) and 0 <= kind <= _KIND_MAX:
            return Announce(root, key, kind, Shape(size_bytes, piece_bytes))
        case [2, bytes(root), int(bitmap)] if len(root) == HASH_BYTES and 0 <= bitmap < 1 << _BITS_MAX:
            return Have(root, bitmap)
        case [3, bytes(root)] if len(root) == HASH_BYTES:
            return Done(root)
        case [4, bytes(root), bytes(parity_root), int(parity_count), list(members)] if (
            len(root) == HASH_BYTES
            and 0 <= parity_count <= PARITY_MAX
            and len(parity_root) == (HASH_BYTES if parity_count else 0)
            and len(members) <= SWAP_MEMBERS_MAX
            and all(isinstance(member, bytes) and len(member) == ADDRESS_BYTES for member in members)
        ):
            return Swap(root, parity_root, parity_count, tuple(members))
        case [5, bytes(root), int(bitmap)] if len(root) == HASH_BYTES and 0 < bitmap < 1 << _BITS_MAX:
            return Want(root, bitmap)
        case _:
            raise DecodeError("not a message of a multicast")


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a control message to a peer, ahead of all but votes."""

    address: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Pass:
    """Send a piece to a connected peer; to nobody where it is not connected."""

    address: bytes
    frame: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """Give a relay these pieces in order, each for its members; report ``published`` or ``publish_failed``."""

    root: bytes
    relay: bytes
    parts: tuple[tuple[frozenset[bytes], bytes], ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message of ``sender`` is whole."""

    sender: bytes
    kind: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer sent what only a faulty one sends."""

    address: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """An own message has reached everybody, or its time is over and ``missing`` have not got it."""

    size_bytes: int
    members: int
    missing: int
    took_s: float


Effect: TypeAlias = Tell | Pass | Publish | Deliver | Blame | Finished


class Member(NamedTuple):
    """A receiver as the sender knows it; ``may_wait``: the others come first, and it hands nothing on."""

    address: bytes
    rtt_s: float = 0.0
    is_connected: bool = True
    may_wait: bool = False


@dataclass(slots=True)
class _Receiver:
    rtt_s: float
    is_told: bool
    may_wait: bool
    news_at: float
    shares: dict[bytes, int] = field(default_factory=dict)
    """The pieces that each relay is to bring, as bits."""
    have: int = 0
    is_heard: bool = False
    """Whether it has answered the announcement: nothing is uploaded for one that does not listen."""
    is_given: bool = False
    """Whether a relay has taken a piece for it."""
    is_done: bool = False
    rounds: int = 0
    served: int = 0


@dataclass(slots=True)
class _Outgoing:
    content: bytes
    announce: bytes
    cut: Cut
    shape: Shape
    receivers: dict[bytes, _Receiver]
    began: float
    began_at: dict[bytes, float] = field(default_factory=dict)
    """When each relay took its first piece."""
    pardoned_s: float = 0.0
    parity: Cut | None = None
    is_finished: bool = False

    def frame(self, number: int, *, is_to_forward: bool) -> bytes:
        count = self.shape.count
        if number < count:
            cut, at = self.cut, number
        else:
            assert self.parity is not None
            cut, at = self.parity, number - count
        return encode_piece(Piece(self.cut.root, number, cut.proofs[at].siblings, cut.pieces[at], is_to_forward))

    @property
    def numbers(self) -> int:
        return self.shape.count + (0 if self.parity is None else len(self.parity.pieces))


@dataclass(slots=True)
class _Incoming:
    sender: bytes
    key: bytes
    kind: int
    assembly: Assembly
    began: float
    news_at: float
    told_at: float = -math.inf
    has_news: bool = False
    swap: tuple[bytes, ...] = ()
    to_forward: dict[int, Piece] = field(default_factory=dict)
    """Marked pieces that came before the list of those who get them."""
    forwarded: set[int] = field(default_factory=set)
    done_by: set[bytes] = field(default_factory=set)
    served: Counter[bytes] = field(default_factory=Counter)
    pulls: int = 0
    done_at: float | None = None


class _Early(NamedTuple):
    until: float
    piece: Piece
    peer: bytes
    """Who handed it over; empty: a relay."""


class Multicast:
    """What one node sends and receives in pieces.

    ``own`` is its address. ``trusted`` (set from outside) are those who answer for what they make others do: what
    they mark is handed on, and what comes before its announcement is kept. Input of strangers only fills bounds
    of its own.
    """

    def __init__(self, own: bytes, *, random: Random, parameters: MulticastParameters | None = None) -> None:
        self.own = own
        self.trusted: frozenset[bytes] = frozenset()
        self.counters: Counter[str] = Counter()
        """Events by name since the start, for metrics."""
        self._random = random
        self._parameters = parameters or MulticastParameters()
        self._outgoing: OrderedDict[bytes, _Outgoing] = OrderedDict()
        self._incoming: OrderedDict[tuple[bytes, bytes], _Incoming] = OrderedDict()
        self._finished: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()
        self._early: OrderedDict[tuple[bytes, bytes, int], _Early] = OrderedDict()
        self._early_bytes: Counter[bytes] = Counter()
        self._shunned: OrderedDict[tuple[bytes, bytes], tuple[int, float]] = OrderedDict()
        """(relay, receiver): failures in a row, and until when the one is not used for the other."""
        self._ticked_at = -math.inf
        self._garbled: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()
        """(relay, publisher): until when nothing is taken from the two together."""

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return bool(self._outgoing or self._incoming or self._early)

    @property
    def held_bytes(self) -> int:
        """Memory promised to messages of others, and held by pieces without an announcement."""
        announced = sum(incoming.assembly.shape.size_bytes for incoming in self._incoming.values())
        return announced + self._early_bytes.total()

    # -- sending ---------------------------------------------------------------------------------------------

    def send(
        self,
        kind: int,
        body: bytes,
        members: Sequence[Member],
        ways: Mapping[bytes, Collection[bytes]],
        *,
        key: bytes,
        now: float,
    ) -> list[Effect]:
        """Send a message to all ``members``; ``ways`` says who of them waits at which relay, preferred ones first.

        ``key`` is a fresh secret. What is under way already is not sent again, only asked after.
        """
        if not self.is_active:
            self._ticked_at = now
        content = digest(b"multicast", bytes((kind,)) + body)
        for out in self._outgoing.values():
            if out.content == content:
                return self._remind(out, members, now)
        sealed = seal_message(key, kind, body)
        shape = Shape.fit(len(sealed), sum(not member.may_wait for member in members))
        cut = cut_message(sealed, shape)
        out = _Outgoing(content, encode_control(Announce(cut.root, key, kind, shape)), cut, shape, {}, now)
        while len(self._outgoing) >= self._parameters.outgoing_max:
            self._outgoing.popitem(last=False)
        self._outgoing[cut.root] = out
        self.counters["sent"] += 1
        effects = self._add(out, members, now)
        effects += self._publish(out, ways, now)
        return effects + self._help(out, now)

    def _add(self, out: _Outgoing, members: Iterable[Member], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for address, rtt_s, is_connected, may_wait in members:
            if address != self.own and address not in out.receivers:
                news_at = now + self._parameters.later_s if may_wait else now
                out.receivers[address] = _Receiver(rtt_s, is_connected, may_wait, news_at)
                if is_connected:
                    effects.append(Tell(address, out.announce))
        return effects

    def _remind(self, out: _Outgoing, members: Sequence[Member], now: float) -> list[Effect]:
        """Announce once more: who has it says so, who has lost it (it was started again) gets it again."""
        effects: list[Effect] = [
            Tell(address, out.announce) for address, receiver in out.receivers.items() if receiver.is_told
        ]
        return effects + self._add(out, members, now) + self._help(out, now)

    def _publish(self, out: _Outgoing, ways: Mapping[bytes, Collection[bytes]], now: float) -> list[Effect]:
        reach = {
            relay: {a for a in reached if a in out.receivers and not self._is_shunned(relay, a, now)}
            for relay, reached in ways.items()
        }
        chosen = self._choose(reach)
        everything = (1 << out.shape.count) - 1
        for address, receiver in out.receivers.items():
            relays = [relay for relay in chosen if address in reach[relay]]
            if relays:
                receiver.news_at = now
                self._share_out(receiver, relays, everything)
            elif not receiver.may_wait:
                receiver.news_at = -math.inf  # nothing will come by itself
        return self._give(out, {address: r.shares for address, r in out.receivers.items()}, now)

    @staticmethod
    def _share_out(receiver: _Receiver, relays: Sequence[bytes], numbers: int) -> dict[bytes, int]:
        """Let ``relays`` bring these pieces to a receiver, and return who brings which."""
        shares = dict.fromkeys(relays, 0)
        for number in _numbers(numbers):
            shares[relays[number % len(relays)]] |= 1 << number
        for relay, share in shares.items():
            receiver.shares[relay] = receiver.shares.get(relay, 0) | share
        return shares

    def _give(self, out: _Outgoing, shares: Mapping[bytes, Mapping[bytes, int]], now: float) -> list[Effect]:
        """Give relays what they are to bring to each address."""
        groups: dict[bytes, dict[int, set[bytes]]] = {}
        for address, by_relay in shares.items():
            for relay, share in by_relay.items():
                for number in _numbers(share):
                    groups.setdefault(relay, {}).setdefault(number, set()).add(address)
        effects: list[Effect] = []
        for relay, members in groups.items():
            self.counters["published"] += len(members)
            parts = ((frozenset(members[n]), out.frame(n, is_to_forward=False)) for n in sorted(members))
            effects.append(Publish(out.cut.root, relay, tuple(parts)))
        return effects

    def _choose(self, reach: Mapping[bytes, set[bytes]]) -> list[bytes]:
        """Return the fewest relays that reach as many as can be reached, and one more that shares the work."""
        parameters = self._parameters
        chosen: list[bytes] = []
        covered: set[bytes] = set()
        while len(chosen) < parameters.relays_max:
            best = max(reach, key=lambda relay: len(reach[relay] - covered), default=None)
            if best is None or len(reach[best] - covered) < parameters.relay_members_min:
                break
            chosen.append(best)
            covered |= reach[best]
        for relay, reached in reach.items():
            if not chosen or len(chosen) >= parameters.split_max:
                break
            if relay not in chosen and reached >= covered:
                chosen.append(relay)
        return chosen

    def published(self, root: bytes, relay: bytes, members: Collection[bytes], now: float) -> None:
        """Note that a relay took one more piece for these: they had no reason to hear anything before."""
        out = self._outgoing.get(root)
        if out is not None:
            out.began_at.setdefault(relay, now)
            for address in members:
                receiver = out.receivers.get(address)
                if receiver is not None and (receiver.have or not receiver.is_given):
                    receiver.is_given = True  # the first piece is soon heard of, however many follow
                    receiver.news_at = max(receiver.news_at, now)

    def is_wanted(self, root: bytes, relay: bytes, members: Collection[bytes]) -> bool:
        """Tell whether a part that was to be published still helps anybody."""
        out = self._outgoing.get(root)
        return out is not None and any(
            not receiver.is_done and relay in receiver.shares
            for receiver in map(out.receivers.get, members)
            if receiver is not None
        )

    def publish_failed(self, root: bytes, relay: bytes, now: float) -> list[Effect]:
        """Take the end of a relay in the middle: those who wait for its pieces are helped at once."""
        out = self._outgoing.get(root)
        if out is None:
            return []
        self.counters["publish_failed"] += 1
        lost = [a for a, r in out.receivers.items() if relay in r.shares and not r.is_done]
        effects = self._reroute(out, {address: [relay] for address in lost}, now)
        for address in lost:
            if not out.receivers[address].shares:
                out.receivers[address].news_at = -math.inf
        return effects + self._help(out, now)

    def _reroute(self, out: _Outgoing, failed: Mapping[bytes, Sequence[bytes]], now: float) -> list[Effect]:
        """Let the other relays of each address bring what these relays failed to."""
        again: dict[bytes, dict[bytes, int]] = {}
        for address, relays in failed.items():
            receiver = out.receivers[address]
            lost = 0
            for relay in relays:
                lost |= receiver.shares.pop(relay) & ~receiver.have
                self._shun(relay, address, now)
            if receiver.shares and lost:
                again[address] = self._share_out(receiver, list(receiver.shares), lost)
        if again:
            self.counters["rerouted"] += 1
        return self._give(out, again, now)

    def _is_shunned(self, relay: bytes, address: bytes, now: float) -> bool:
        found = self._shunned.get((relay, address))
        return found is not None and found[1] > now

    def _shun(self, relay: bytes, address: bytes, now: float) -> None:
        times = self._shunned.pop((relay, address), (0, 0.0))[0]
        pause_s = min(self._parameters.shun_s * 2 ** min(times, 16), self._parameters.shun_s_max)
        self._shunned[relay, address] = times + 1, now + pause_s
        if len(self._shunned) > self._parameters.remembered_max:
            self._shunned.popitem(last=False)

    # -- help for those who lack pieces ----------------------------------------------------------------------

    def _help(self, out: _Outgoing, now: float) -> list[Effect]:
        parameters = self._parameters
        stalled = {a: out.receivers[a] for a in self._stalled(out, now)}
        failed: dict[bytes, list[bytes]] = {}
        effects: list[Effect] = []
        for address, receiver in stalled.items():
            bad = [relay for relay, share in receiver.shares.items() if share & ~receiver.have]
            silent = [relay for relay in bad if not receiver.shares[relay] & receiver.have]
            if 0 < len(silent) < len(receiver.shares):
                bad = silent  # the others are at work
            if bad:
                failed[address] = bad
            receiver.rounds += 1
            receiver.news_at = now
            if not receiver.is_heard:  # the announcement may have been lost, or there was no room for it
                effects.append(Tell(address, out.announce))
        effects += self._reroute(out, failed, now)
        stranded = {a: r for a, r in stalled.items() if not (a in failed and r.shares)}
        for receiver in stranded.values():
            receiver.shares.clear()
        swapping = [
            address
            for address, receiver in stranded.items()
            if not receiver.may_wait
            and receiver.rounds <= parameters.swap_rounds_max
            and (receiver.is_heard or receiver.rounds == 1)
        ][:SWAP_MEMBERS_MAX]
        if len(swapping) < parameters.swap_members_min:
            swapping = []
        effects += self._start_swap(out, swapping)
        for address, receiver in stranded.items():
            if address not in swapping and (receiver.is_heard or receiver.rounds == 1):
                effects += self._serve_all(out, address)
        return effects

    def _stalled(self, out: _Outgoing, now: float) -> list[bytes]:
        """Return who has heard nothing new for too long, and who waited until the others were served.

        With the first come those who would follow before long: they are helped by the same upload.
        """
        is_first_served = all(r.is_done or r.may_wait or not r.is_told for r in out.receivers.values())
        patience: dict[bytes, float] = {}
        for address, receiver in out.receivers.items():
            if receiver.is_done or not receiver.is_told:
                continue
            if is_first_served and receiver.may_wait and not receiver.rounds and not receiver.shares:
                patience[address] = math.inf
                continue
            rtt_s = min(receiver.rtt_s, self._parameters.rtt_s_max)
            limit_s = self._parameters.stall_s * 2**receiver.rounds + 2 * rtt_s
            # A relay that has brought nothing at all is not waited for because another brings its share.
            news_at = min(
                (
                    out.began_at[relay]
                    for relay, share in receiver.shares.items()
                    if relay in out.began_at and receiver.have and not share & receiver.have
                ),
                default=receiver.news_at,
            )
            patience[address] = (now - min(news_at, receiver.news_at)) / limit_s
        if not any(used > 1 for used in patience.values()):
            return []
        return [address for address, used in patience.items() if used > _SOON]

    def _start_swap(self, out: _Outgoing, members: list[bytes]) -> list[Effect]:
        if not members:
            return []
        lacking = _numbers(~self._common(out, members) & (1 << out.shape.count) - 1)
        if not lacking:
            return []
        self.counters["swaps"] += 1
        spare = _spare(len(lacking), len(members))
        if out.parity is None and spare and out.shape.size_bytes <= PARITY_MESSAGE_BYTES_MAX:
            out.parity = cut_parity(out.cut.pieces, out.shape, spare)
        parity_root, parity_count = (b"", 0) if out.parity is None else (out.parity.root, len(out.parity.pieces))
        swap = encode_control(Swap(out.cut.root, parity_root, parity_count, tuple(members)))
        order = members[:]
        self._random.shuffle(order)
        numbers = lacking + [out.shape.count + at for at in range(min(spare, parity_count))]
        return [
            *(Tell(address, swap) for address in members),
            *(
                Pass(order[at % len(order)], out.frame(number, is_to_forward=True))
                for at, number in enumerate(numbers)
            ),
        ]

    @staticmethod
    def _common(out: _Outgoing, members: Iterable[bytes]) -> int:
        common = -1
        for address in members:
            common &= out.receivers[address].have
        return common

    def _serve_all(self, out: _Outgoing, address: bytes) -> list[Effect]:
        receiver = out.receivers[address]
        return self._serve(out, address, receiver, ~receiver.have & (1 << out.shape.count) - 1)

    def _serve(self, out: _Outgoing, address: bytes, receiver: _Receiver, bitmap: int) -> list[Effect]:
        limit = out.shape.count * self._parameters.serves_percent_max // 100 - receiver.served
        numbers = [number for number in _numbers(bitmap) if number < out.numbers][: max(limit, 0)]
        receiver.served += len(numbers)
        self.counters["served"] += len(numbers)
        return [Pass(address, out.frame(number, is_to_forward=False)) for number in numbers]

    # -- peers -----------------------------------------------------------------------------------------------

    def peer_joined(self, address: bytes, now: float) -> list[Effect]:
        """Take a new connection: what is under way to this peer is announced again."""
        effects: list[Effect] = []
        for out in self._outgoing.values():
            receiver = out.receivers.get(address)
            if receiver is not None and not receiver.is_done:
                receiver.is_told = True
                receiver.news_at = max(receiver.news_at, now)
                effects.append(Tell(address, out.announce))
        return effects

    def peer_left(self, address: bytes) -> None:
        """Take the end of a peer's last connection."""
        for out in self._outgoing.values():
            if address in out.receivers:
                out.receivers[address].is_told = False

    def control(self, peer: bytes, data: bytes, now: float) -> list[Effect]:
        """Take a control message. Raises DecodeError: then drop the peer."""
        message = decode_control(data)
        match message:
            case Announce():
                return self._on_announce(peer, message, now)
            case Have(root, bitmap):
                out = self._outgoing.get(root)
                receiver = None if out is None else out.receivers.get(peer)
                if out is not None and receiver is not None:
                    receiver.is_heard = True
                    if receiver.is_done:  # it was started again
                        receiver.is_done = out.is_finished = False
                    if bitmap != receiver.have:
                        receiver.have = bitmap
                        receiver.news_at = max(receiver.news_at, now)
                return []
            case Done(root):
                return self._on_done(peer, root, now)
            case Swap():
                return self._on_swap(peer, message, now)
            case Want(root, bitmap):
                return self._on_want(peer, root, bitmap, now)
            case _:
                raise AssertionError(message)

    def _on_done(self, peer: bytes, root: bytes, now: float) -> list[Effect]:
        for incoming in self._of_root(root):
            if peer in incoming.swap:
                incoming.done_by.add(peer)
        out = self._outgoing.get(root)
        receiver = None if out is None else out.receivers.get(peer)
        if out is None or receiver is None or receiver.is_done:
            return []
        receiver.is_done = True
        if not receiver.rounds:
            for relay in receiver.shares:
                self._shunned.pop((relay, peer), None)
        effects = [] if receiver.may_wait else self._help(out, now)  # perhaps those who wait are next
        return effects + self._finish(out, now)

    def _finish(self, out: _Outgoing, now: float) -> list[Effect]:
        missing = sum(not receiver.is_done for receiver in out.receivers.values())
        if out.is_finished or (missing and now - out.began < self._parameters.expiry_s):
            return []
        out.is_finished = True
        self.counters["sent_incomplete" if missing else "sent_complete"] += 1
        return [Finished(out.shape.size_bytes, len(out.receivers), missing, now - out.began)]

    def _on_want(self, peer: bytes, root: bytes, bitmap: int, now: float) -> list[Effect]:
        out = self._outgoing.get(root)
        if out is not None and peer in out.receivers:
            receiver = out.receivers[peer]
            if receiver.rounds < self._parameters.swap_rounds_max:
                # As long as others can help they do. That this one asks says that it needs help, and no more.
                if now - receiver.news_at > self._parameters.stall_s:
                    receiver.news_at = -math.inf
                return []
            receiver.news_at = max(receiver.news_at, now)
            return self._serve(out, peer, receiver, bitmap)
        effects: list[Effect] = []
        for incoming in self._of_root(root):
            if peer not in incoming.swap and peer not in self.trusted:
                continue
            assembly = incoming.assembly
            limit = assembly.shape.count * self._parameters.serves_percent_max // 100 - incoming.served[peer]
            numbers = [number for number in _numbers(bitmap) if number in assembly.pieces][: max(limit, 0)]
            incoming.served[peer] += len(numbers)
            self.counters["served"] += len(numbers)
            effects += [
                Pass(peer, encode_piece(assembly.pieces[number]._replace(is_to_forward=False)))
                for number in numbers
            ]
        return effects

    # -- receiving -------------------------------------------------------------------------------------------

    def _on_announce(self, sender: bytes, message: Announce, now: float) -> list[Effect]:
        root = message.root
        if (sender, root) in self._finished:
            return [Tell(sender, encode_control(Done(root)))]
        known = self._incoming.get((sender, root))
        if known is not None:
            answer = Have(root, known.assembly.bitmap) if known.done_at is None else Done(root)
            return [Tell(sender, encode_control(answer))]
        if not self._has_room(sender, message.shape.size_bytes, now):
            self.counters["refused"] += 1
            return []
        incoming = _Incoming(sender, message.key, message.kind, Assembly(root, message.shape), now, now)
        others = [other for other in self._of_root(root) if other.assembly.shape == message.shape]
        self._incoming[sender, root] = incoming
        self.counters["announced"] += 1
        effects: list[Effect] = [Tell(sender, encode_control(Have(root, 0))), *self._take_early(root, now)]
        for other in others:  # somebody announced the root of another first, and its pieces went there
            for piece in other.assembly.pieces.values():
                if piece.number < message.shape.count and incoming.done_at is None:
                    effects += self._take(incoming, piece, b"", now)
        return effects

    def _has_room(self, sender: bytes, size_bytes: int, now: float) -> bool:
        """Tell whether one more message may begin; complete ones of the same sender make room for it."""
        parameters = self._parameters

        def has_room() -> bool:
            own = [i.assembly.shape.size_bytes for i in self._incoming.values() if i.sender == sender]
            everybody = [
                i.assembly.shape.size_bytes
                for i in self._incoming.values()
                if sender in self.trusted or i.sender not in self.trusted
            ]
            limit = (
                parameters.incoming_bytes_max
                if sender in self.trusted
                else parameters.incoming_bytes_of_strangers_max
            )
            return (
                len(own) < parameters.incoming_per_sender_max
                and sum(own) + size_bytes <= parameters.incoming_bytes_per_sender_max
                and sum(everybody) + size_bytes <= limit
            )

        while not has_room():
            done = next((k for k, i in self._incoming.items() if k[0] == sender and i.done_at is not None), None)
            if done is None:
                return False
            del self._incoming[done]
            self._remember(*done, now)
        return True

    def _on_swap(self, sender: bytes, message: Swap, now: float) -> list[Effect]:
        incoming = self._incoming.get((sender, message.root))
        if incoming is None:
            return []
        assembly = incoming.assembly
        if not assembly.parity_count:
            assembly.parity_root, assembly.parity_count = message.parity_root, message.parity_count
        incoming.swap = tuple(a for a in message.members if a not in (self.own, sender))
        effects = self._take_early(message.root, now)
        for piece in list(incoming.to_forward.values()):
            effects += self._forward(incoming, piece)
        incoming.to_forward.clear()
        return effects

    def peer_piece(self, peer: bytes, data: bytes, now: float) -> list[Effect]:
        """Take a piece from a peer. Raises DecodeError: then drop the peer."""
        effects = self._place(decode_piece(data), peer, peer, now)
        if effects is None:
            return [Blame(peer)]
        self.counters["pieces_by_peer"] += 1
        return effects

    def relay_piece(self, relay: bytes, publisher: bytes, data: bytes, now: float) -> list[Effect]:
        """Take a piece that a relay says ``publisher`` gave it.

        What is no true piece may be the doing of either, so they are not heard together for a while: the publisher
        sees that nothing arrives this way, and takes another.
        """
        pair = relay, publisher
        if self._garbled.get(pair, -math.inf) > now:
            return []
        effects: list[Effect] | None = None
        with suppress(DecodeError):
            effects = self._place(decode_piece(data), b"", publisher, now)
        if effects is None:
            self._garbled[pair] = now + self._parameters.remember_s
            if len(self._garbled) > self._parameters.remembered_max:
                self._garbled.popitem(last=False)
            return []
        self.counters["pieces_by_relay"] += 1
        return effects

    def _place(self, piece: Piece, peer: bytes, source: bytes, now: float) -> list[Effect] | None:
        """Take a piece for every message that has its root; None: it is under none of them."""
        known = self._of_root(piece.root)
        checkable = [incoming for incoming in known if incoming.assembly.knows(piece.number)]
        if not checkable:
            if (source, piece.root) not in self._finished:
                self._keep_early(piece, peer, source, now)
            return []
        effects: list[Effect] = []
        forged = 0
        for incoming in checkable:
            try:
                effects += self._take(incoming, piece, peer, now)
            except PieceForged:
                forged += 1
        if forged == len(checkable):
            self.counters["forged"] += 1
            return None
        return effects

    def _of_root(self, root: bytes) -> list[_Incoming]:
        return [incoming for (_, known), incoming in self._incoming.items() if known == root]

    def _take(self, incoming: _Incoming, piece: Piece, peer: bytes, now: float) -> list[Effect]:
        """Keep and hand on one piece. Raises PieceForged."""
        assembly, effects = incoming.assembly, list[Effect]()
        is_new = assembly.add(piece)
        if piece.is_to_forward and peer == incoming.sender and peer in self.trusted:
            known = assembly.pieces[piece.number]  # the one that was checked
            if incoming.swap:
                effects += self._forward(incoming, known)
            else:
                incoming.to_forward[piece.number] = known
        if not is_new or incoming.done_at is not None:
            self.counters["pieces_twice"] += 1
            return effects
        incoming.news_at = now
        incoming.has_news = True
        if assembly.is_enough:
            return effects + self._complete(incoming, now)
        return effects + self._report(incoming, now)

    def _forward(self, incoming: _Incoming, piece: Piece) -> list[Effect]:
        if piece.number in incoming.forwarded:
            return []
        incoming.forwarded.add(piece.number)
        frame = encode_piece(piece._replace(is_to_forward=False))
        targets = [address for address in incoming.swap if address not in incoming.done_by]
        self._random.shuffle(targets)  # else the first of the list get everything first
        self.counters["forwarded"] += len(targets)
        return [Pass(address, frame) for address in targets]

    def _complete(self, incoming: _Incoming, now: float) -> list[Effect]:
        root = incoming.assembly.root
        incoming.done_at = now
        try:
            body = open_message(incoming.key, incoming.kind, incoming.assembly.sealed())
        except PieceForged:  # every piece is under the root, so it is the sender who lied
            del self._incoming[incoming.sender, root]
            self._remember(incoming.sender, root, now)
            return [Blame(incoming.sender)]
        self.counters["delivered"] += 1
        done = encode_control(Done(root))
        return [
            Deliver(incoming.sender, incoming.kind, body),
            *(Tell(address, done) for address in (incoming.sender, *incoming.swap)),
        ]

    def _report(self, incoming: _Incoming, now: float) -> list[Effect]:
        if not incoming.has_news or now - incoming.told_at < self._parameters.have_s:
            return []
        incoming.has_news, incoming.told_at = False, now
        return [Tell(incoming.sender, encode_control(Have(incoming.assembly.root, incoming.assembly.bitmap)))]

    def _remember(self, sender: bytes, root: bytes, now: float) -> None:
        self._finished[sender, root] = now + self._parameters.remember_s
        if len(self._finished) > self._parameters.remembered_max:
            self._finished.popitem(last=False)

    # -- pieces before their announcement --------------------------------------------------------------------

    def _keep_early(self, piece: Piece, peer: bytes, source: bytes, now: float) -> None:
        if source not in self.trusted:
            return
        parameters = self._parameters
        key = source, piece.root, piece.number
        if key in self._early or self._early_bytes[source] + _held(piece) > parameters.early_bytes_per_source_max:
            return
        self._early[key] = _Early(now + parameters.early_s, piece, peer)
        self._early_bytes[source] += _held(piece)
        while self._early_bytes.total() > parameters.early_bytes_max:
            self._forget_early(next(iter(self._early)))

    def _forget_early(self, key: tuple[bytes, bytes, int]) -> None:
        early = self._early.pop(key)
        self._early_bytes[key[0]] -= _held(early.piece)
        if not self._early_bytes[key[0]]:
            del self._early_bytes[key[0]]

    def _take_early(self, root: bytes, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key, (_, piece, peer) in list(self._early.items()):
            if key[1] != root or not any(i.assembly.knows(piece.number) for i in self._of_root(root)):
                continue
            self._forget_early(key)
            for incoming in self._of_root(root):
                try:
                    effects += self._take(incoming, piece, peer, now)
                except PieceForged:
                    self.counters["forged"] += 1
        return effects

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: help, reports, requests, forgetting."""
        parameters, effects = self._parameters, list[Effect]()
        late_s = max(0.0, now - self._ticked_at - TICK_S)
        self._ticked_at = now
        for root, out in list(self._outgoing.items()):
            pardoned_s = min(late_s, parameters.standstill_s_max - out.pardoned_s)
            out.pardoned_s += pardoned_s
            for receiver in out.receivers.values():
                if receiver.news_at < now:  # while this node stood still nobody could be heard
                    receiver.news_at = min(now, receiver.news_at + pardoned_s)
            if now - out.began >= parameters.expiry_s:
                effects += self._finish(out, now)
                del self._outgoing[root]
            elif not out.is_finished:
                effects += self._help(out, now)
        for key, incoming in list(self._incoming.items()):
            if incoming.done_at is not None:
                if now - incoming.done_at >= parameters.keep_s:
                    del self._incoming[key]
                    self._remember(*key, now)
                continue
            if now - incoming.began >= parameters.expiry_s:
                del self._incoming[key]
                self.counters["expired"] += 1
                continue
            effects += self._report(incoming, now) + self._pull(incoming, now)
        for finished, until in list(self._finished.items()):
            if until > now:
                break
            del self._finished[finished]
        while self._early and next(iter(self._early.values())).until <= now:
            self._forget_early(next(iter(self._early)))
        return effects

    def _pull(self, incoming: _Incoming, now: float) -> list[Effect]:
        parameters = self._parameters
        if incoming.pulls >= parameters.pulls_max:
            return []
        if now - incoming.news_at < parameters.pull_s * 2**incoming.pulls:
            return []
        incoming.pulls += 1
        incoming.news_at = now
        self.counters["pulls"] += 1
        others = sorted(incoming.done_by) or incoming.swap
        source = self._random.choice(others) if others and incoming.pulls % 2 else incoming.sender
        assembly = incoming.assembly
        lacking = ~assembly.bitmap & (1 << assembly.shape.count) - 1
        return [Tell(source, encode_control(Want(assembly.root, lacking)))]


def _held(piece: Piece) -> int:
    """Return what a piece holds in memory, at least."""
    return len(piece.data) + PIECE_BYTES_MIN


def _numbers(bitmap: int) -> list[int]:
    return [number for number in range(bitmap.bit_length()) if bitmap >> number & 1]


def _spare(pieces: int, members: int) -> int:
    """Return how much parity makes up for a third of the members that hand nothing on.

    With n = 3f + 1 members and a sender that reaches them all, f of them may be silent: what the others were given
    must suffice.
    """
    silent = (members - 1) // 3
    for spare in range(PARITY_MAX + 1):
        if spare >= silent * -(-(pieces + spare) // members):
            return spare
    return PARITY_MAX
