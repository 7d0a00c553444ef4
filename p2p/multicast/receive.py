"""The receiver's side of a multicast, without I/O: verifies, keeps, forwards and requests pieces."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from p2p.base.errors import PieceForged
from p2p.base.randomness import RandomSource
from p2p.multicast.pieces import (
    PARITY_MESSAGE_BYTES_MAX,
    PIECE_BYTES_MIN,
    Assembly,
    Piece,
    decode_piece,
    encode_piece,
    open_message,
)
from p2p.multicast.wire import (
    Announce,
    Ask,
    Deliver,
    Done,
    Effect,
    Have,
    MulticastParameters,
    ReportFault,
    SendControl,
    SendPiece,
    Swap,
    Want,
    encode_control,
    numbers_of,
)
from state.primitives.errors import DecodeError

__all__ = ["Receiving"]


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
    """Marked pieces that arrived before the list of their receivers."""
    forwarded: set[int] = field(default_factory=set)
    done_by: set[bytes] = field(default_factory=set)
    served: Counter[bytes] = field(default_factory=Counter)
    asked: int = 0
    """Pieces that the sender told this node to request from others."""
    pulls: int = 0
    done_at: float | None = None


class _Early(NamedTuple):
    until: float
    piece: Piece
    peer: bytes
    """The peer that delivered it; empty: a relay."""


class Receiving:
    """The messages that others send to this node.

    ``trusted`` (set by the caller) are the peers that are accountable for the work that they cause. Pieces that
    they mark are forwarded, and their pieces are kept before the announcement arrives. Input of other peers fills
    separate limits only.
    """

    def __init__(
        self, own: bytes, random: RandomSource, parameters: MulticastParameters, counters: Counter[str]
    ) -> None:
        self.trusted: frozenset[bytes] = frozenset()
        self._own = own
        self._random = random
        self._parameters = parameters
        self._counters = counters
        self._incoming: OrderedDict[tuple[bytes, bytes], _Incoming] = OrderedDict()
        self._finished: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()
        self._early: OrderedDict[tuple[bytes, bytes, int], _Early] = OrderedDict()
        self._early_bytes: Counter[bytes] = Counter()
        self._garbled: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()
        """(relay, publisher): until when pieces from this pair are ignored."""

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return bool(self._incoming or self._early)

    @property
    def is_urgent(self) -> bool:
        """Whether a message is incomplete."""
        return any(incoming.done_at is None for incoming in self._incoming.values())

    @property
    def held_bytes(self) -> int:
        """Memory reserved for others' messages, and memory of pieces without an announcement."""
        announced = sum(incoming.assembly.layout.size_bytes for incoming in self._incoming.values())
        return announced + self._early_bytes.total()

    def announce(self, sender: bytes, message: Announce, now: float) -> list[Effect]:
        """Process an announcement, and the pieces that arrived before it."""
        root = message.root
        if (sender, root) in self._finished:
            return [SendControl(sender, encode_control(Done(root)))]
        known = self._incoming.get((sender, root))
        if known is not None:
            answer = Have(root, known.assembly.bitmap) if known.done_at is None else Done(root)
            return [SendControl(sender, encode_control(answer))]
        if not self._has_room(sender, message.layout.size_bytes, now):
            self._counters["refused"] += 1
            return []
        incoming = _Incoming(sender, message.key, message.kind, Assembly(root, message.layout), now, now)
        others = [other for other in self._of_root(root) if other.assembly.layout == message.layout]
        self._incoming[sender, root] = incoming
        self._counters["announced"] += 1
        effects: list[Effect] = [SendControl(sender, encode_control(Have(root, 0))), *self._take_early(root, now)]
        for other in others:  # somebody announced the root of another first, and its pieces went there
            for piece in other.assembly.pieces.values():
                if piece.number < message.layout.count and incoming.done_at is None:
                    effects += self._take(incoming, piece, b"", now)
        return effects

    def _has_room(self, sender: bytes, size_bytes: int, now: float) -> bool:
        """Whether one more message may begin; complete ones of the same sender are dropped for it."""
        parameters = self._parameters

        def has_room() -> bool:
            own = [i.assembly.layout.size_bytes for i in self._incoming.values() if i.sender == sender]
            everybody = [
                i.assembly.layout.size_bytes
                for i in self._incoming.values()
                if sender in self.trusted or i.sender not in self.trusted
            ]
            limit = (
                parameters.incoming_bytes_max
                if sender in self.trusted
                else parameters.incoming_bytes_of_untrusted_max
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

    def swap(self, sender: bytes, message: Swap, now: float) -> list[Effect]:
        """Process the list of receivers to which marked pieces are forwarded."""
        incoming = self._incoming.get((sender, message.root))
        if incoming is None or sender not in self.trusted:  # only trusted senders may name peers to send to
            return []
        assembly = incoming.assembly
        if not assembly.parity_count and assembly.layout.size_bytes <= PARITY_MESSAGE_BYTES_MAX:
            assembly.parity_root, assembly.parity_count = message.parity_root, message.parity_count
        incoming.swap = tuple(a for a in message.members if a not in (self._own, sender))
        effects = self._take_early(message.root, now)
        for piece in list(incoming.to_forward.values()):
            effects += self._forward(incoming, piece)
        incoming.to_forward.clear()
        return effects

    def ask(self, sender: bytes, message: Ask) -> list[Effect]:
        """Request each missing piece from one of the receivers that the sender names."""
        incoming = self._incoming.get((sender, message.root))
        if incoming is None or incoming.done_at is not None or sender not in self.trusted:
            return []
        assembly = incoming.assembly
        wanted = ~assembly.bitmap & (1 << assembly.layout.count) - 1
        limit = assembly.layout.count * self._parameters.serves_percent_max // 100
        effects: list[Effect] = []
        for address, bitmap in message.sources:
            bits = bitmap & wanted
            if not bits or address == self._own or incoming.asked + bits.bit_count() > limit:
                continue
            wanted &= ~bits
            incoming.asked += bits.bit_count()
            effects.append(SendControl(address, encode_control(Want(message.root, bits))))
        self._counters["asked"] += len(effects)
        return effects

    def done(self, peer: bytes, root: bytes) -> None:
        """Note that a peer needs no more of a message."""
        for incoming in self._of_root(root):
            if peer in incoming.swap:
                incoming.done_by.add(peer)

    def want(self, peer: bytes, root: bytes, bitmap: int) -> list[Effect]:
        """Answer a peer's request for pieces of others' messages."""
        effects: list[Effect] = []
        for incoming in self._of_root(root):
            if peer not in incoming.swap and peer not in self.trusted:
                continue
            assembly = incoming.assembly
            limit = assembly.layout.count * self._parameters.serves_percent_max // 100 - incoming.served[peer]
            numbers = [number for number in numbers_of(bitmap) if number in assembly.pieces][: max(limit, 0)]
            incoming.served[peer] += len(numbers)
            self._counters["served"] += len(numbers)
            effects += [
                SendPiece(peer, encode_piece(assembly.pieces[number]._replace(is_to_forward=False)))
                for number in numbers
            ]
        return effects

    def peer_piece(self, peer: bytes, data: bytes, now: float) -> list[Effect]:
        """Process a piece from a peer. Raises DecodeError: then drop the peer."""
        effects = self._place(decode_piece(data), peer, peer, now)
        if effects is None:
            return [ReportFault(peer)]
        self._counters["pieces_by_peer"] += 1
        return effects

    def relay_piece(self, relay: bytes, publisher: bytes, data: bytes, now: float) -> list[Effect]:
        """Process a piece that a relay attributes to ``publisher``.

        An invalid piece may be the fault of either. So pieces from this pair are ignored for a while. The
        publisher then sees that nothing arrives this way, and uses another relay.
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
        self._counters["pieces_by_relay"] += 1
        return effects

    def _place(self, piece: Piece, peer: bytes, source: bytes, now: float) -> list[Effect] | None:
        """Add a piece to every message that has its root; return None if no root matches."""
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
            self._counters["forged"] += 1
            if source not in self.trusted or any(incoming.sender == source for incoming in checkable):
                return None
            # The root does not hold the shape: who announced it to us perhaps named another one to the source, or
            # has no part in the message at all. One of those who are trusted is not blamed on its word.
            if (source, piece.root) not in self._finished:
                self._keep_early(piece, peer, source, now)
            return []
        return effects

    def _of_root(self, root: bytes) -> list[_Incoming]:
        return [incoming for (_, known), incoming in self._incoming.items() if known == root]

    def _take(self, incoming: _Incoming, piece: Piece, peer: bytes, now: float) -> list[Effect]:
        """Keep and forward one piece. Raises PieceForged."""
        assembly, effects = incoming.assembly, list[Effect]()
        is_new = assembly.add(piece)
        if piece.is_to_forward and peer == incoming.sender and peer in self.trusted:
            known = assembly.pieces[piece.number]  # the one that was checked
            if incoming.swap:
                effects += self._forward(incoming, known)
            else:
                incoming.to_forward[piece.number] = known
        if not is_new or incoming.done_at is not None:
            self._counters["pieces_twice"] += 1
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
        self._counters["forwarded"] += len(targets)
        return [SendPiece(address, frame) for address in targets]

    def _complete(self, incoming: _Incoming, now: float) -> list[Effect]:
        root = incoming.assembly.root
        incoming.done_at = now
        try:
            body = open_message(incoming.key, incoming.kind, incoming.assembly.sealed())
        except PieceForged:  # every piece is under the root, so it is the sender who lied
            del self._incoming[incoming.sender, root]
            self._remember(incoming.sender, root, now)
            return [ReportFault(incoming.sender)]
        self._counters["delivered"] += 1
        done = encode_control(Done(root))
        return [
            Deliver(incoming.sender, incoming.kind, body),
            *(SendControl(address, done) for address in (incoming.sender, *incoming.swap)),
        ]

    def _report(self, incoming: _Incoming, now: float) -> list[Effect]:
        if not incoming.has_news or now - incoming.told_at < self._parameters.have_s:
            return []
        incoming.has_news, incoming.told_at = False, now
        return [
            SendControl(incoming.sender, encode_control(Have(incoming.assembly.root, incoming.assembly.bitmap)))
        ]

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
            is_placed = False
            for incoming in self._of_root(root):
                try:
                    effects += self._take(incoming, piece, peer, now)
                    is_placed = True
                except PieceForged:
                    self._counters["forged"] += 1
                    is_placed |= incoming.sender == key[0]
            if is_placed:  # else somebody else announced the root, in a shape of his own
                self._forget_early(key)
        return effects

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Send due reports and requests, and forget expired messages."""
        parameters, effects = self._parameters, list[Effect]()
        for key, incoming in list(self._incoming.items()):
            if incoming.done_at is not None:
                if now - incoming.done_at >= parameters.keep_s:
                    del self._incoming[key]
                    self._remember(*key, now)
                continue
            if now - incoming.began >= parameters.expiry_s:
                del self._incoming[key]
                self._counters["expired"] += 1
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
        self._counters["pulls"] += 1
        others = sorted(incoming.done_by) or incoming.swap
        source = self._random.choice(others) if others and incoming.pulls % 2 else incoming.sender
        assembly = incoming.assembly
        lacking = ~assembly.bitmap & (1 << assembly.layout.count) - 1
        return [SendControl(source, encode_control(Want(assembly.root, lacking)))]


def _held(piece: Piece) -> int:
    """Return the minimum memory of a piece."""
    return len(piece.data) + PIECE_BYTES_MIN
