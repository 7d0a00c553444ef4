"""Multicast without I/O: one message to many receivers, in pieces, through relays and between the receivers.

The sender announces the Merkle root and the key to every receiver over its own connection. The pieces take the
cheapest of these routes:

- *relays*: each piece leaves the sender once, and the relays that the receivers reserved send copies;
- *ask*: a receiver without a working relay is told which other receivers have the pieces, and requests them;
- *swap*: a piece that few receivers have goes to one receiver each, which forwards it to the others;
- *pull*: a receiver requests the pieces that are still missing by number.

A receiver reports what it has, so the sender soon notices a relay that is dead, slow or censoring. It then uses
another relay, or swap, for those that lack pieces. Every piece is verified under the announced root before it is
kept or forwarded. To the receiver, the whole message is one that the announcer sent.

The caller passes monotonic seconds, calls ``tick`` every ``pause_s`` while ``is_active``, and carries out the
effects in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from p2p.base.randomness import RandomSource
from p2p.multicast.pieces import decode_piece
from p2p.multicast.receive import Receiving
from p2p.multicast.send import Sending
from p2p.multicast.wire import (
    FORGET_S,
    TICK_S,
    Announce,
    Ask,
    Done,
    Effect,
    Have,
    Member,
    MulticastParameters,
    Swap,
    Want,
    decode_control,
)

__all__ = ["Multicast"]


class Multicast:
    """Messages that one node sends and receives in pieces; ``own`` is its address."""

    def __init__(self, own: bytes, *, random: RandomSource, parameters: MulticastParameters | None = None) -> None:
        self.counters: Counter[str] = Counter()
        """Events by name since the start, for metrics."""
        bounds = parameters or MulticastParameters()
        self._sending = Sending(own, random, bounds, self.counters)
        self._receiving = Receiving(own, random, bounds, self.counters)

    @property
    def trusted(self) -> frozenset[bytes]:
        """The peers whose marked pieces this node forwards; see ``Receiving``."""
        return self._receiving.trusted

    @trusted.setter
    def trusted(self, addresses: frozenset[bytes]) -> None:
        self._receiving.trusted = addresses

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return self._sending.is_active or self._receiving.is_active

    @property
    def pause_s(self) -> float:
        """Time from one tick to the next."""
        return TICK_S if self._sending.is_urgent or self._receiving.is_urgent else FORGET_S

    @property
    def held_bytes(self) -> int:
        """Memory reserved for others' messages, and memory of pieces without an announcement."""
        return self._receiving.held_bytes

    def send(
        self,
        kind: int,
        body: bytes,
        members: Sequence[Member],
        routes: Mapping[bytes, Collection[bytes]],
        *,
        key: bytes,
        now: float,
    ) -> list[Effect]:
        """Send a message to all ``members``; ``routes`` has the receivers that wait at each relay, preferred ones
        first.

        ``key`` is a fresh secret. A message that is already in flight is not sent again; its status is requested.
        """
        return self._sending.send(kind, body, members, routes, key=key, now=now)

    def published(self, root: bytes, relay: bytes, members: Collection[bytes], now: float) -> None:
        """Note that a relay accepted one more piece for these receivers."""
        self._sending.published(root, relay, members, now)

    def is_wanted(self, root: bytes, relay: bytes, members: Collection[bytes]) -> bool:
        """Whether publishing a piece still helps any receiver."""
        return self._sending.is_wanted(root, relay, members)

    def publish_failed(self, root: bytes, relay: bytes, now: float) -> list[Effect]:
        """Note that a relay failed while publishing; its receivers are helped at once."""
        return self._sending.publish_failed(root, relay, now)

    def peer_joined(self, address: bytes, now: float) -> list[Effect]:
        """Note a new connection: messages in flight to this peer are announced again."""
        return self._sending.peer_joined(address, now)

    def peer_left(self, address: bytes) -> None:
        """Note that the last connection to a peer has ended."""
        self._sending.peer_left(address)

    def control(self, peer: bytes, data: bytes, now: float) -> list[Effect]:
        """Process a control message. Raises DecodeError: then drop the peer."""
        message = decode_control(data)
        match message:
            case Announce():
                return self._receiving.announce(peer, message, now)
            case Have(root, bitmap):
                self._sending.have(peer, root, bitmap, now)
                return []
            case Done(root):
                self._receiving.done(peer, root)
                return self._sending.done(peer, root, now)
            case Swap():
                return self._receiving.swap(peer, message, now)
            case Ask():
                return self._receiving.ask(peer, message)
            case Want(root, bitmap):
                effects = self._sending.want(peer, root, bitmap, now)
                return self._receiving.want(peer, root, bitmap) if effects is None else effects
            case _:
                raise AssertionError(message)

    def peer_piece(self, peer: bytes, data: bytes, now: float) -> list[Effect]:
        """Process a piece from a peer. Raises DecodeError: then drop the peer."""
        return self._receiving.peer_piece(peer, data, now)

    def relay_piece(self, relay: bytes, publisher: bytes, data: bytes, now: float) -> list[Effect]:
        """Process a piece that a relay attributes to ``publisher``."""
        return self._receiving.relay_piece(relay, publisher, data, now)

    def pass_failed(self, address: bytes, frame: bytes) -> None:
        """Note that a peer's connection had no room for a piece."""
        self._sending.pass_failed(address, decode_piece(frame))

    def tick(self, now: float) -> list[Effect]:
        """Send due help, reports and requests, and forget expired messages."""
        return self._sending.tick(now) + self._receiving.tick(now)
