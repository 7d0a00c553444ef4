"""The sender's side of a multicast, without I/O: chooses the route of the pieces and helps receivers that lack
some.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from p2p.base.randomness import RandomSource
from p2p.multicast.pieces import (
    PARITY_MAX,
    PARITY_MESSAGE_BYTES_MAX,
    Piece,
    PieceLayout,
    PieceSet,
    encode_piece,
    make_parity_pieces,
    seal_message,
    split_message,
)
from p2p.multicast.wire import (
    ASK_SOURCES_MAX,
    SWAP_MEMBERS_MAX,
    TICK_S,
    Announce,
    Ask,
    Effect,
    Finished,
    Member,
    MulticastParameters,
    Publish,
    SendControl,
    SendPiece,
    Swap,
    encode_control,
    numbers_of,
)
from state.primitives.hashing import digest

__all__ = ["Sending"]

_SOON: Final = 0.5
"""Share of its patience after which a receiver is helped together with one whose patience has ended."""


@dataclass(slots=True)
class _Receiver:
    rtt_s: float
    is_told: bool
    may_wait: bool
    news_at: float
    shares: dict[bytes, int] = field(default_factory=dict)
    """The pieces that each relay should deliver, as bits."""
    have: int = 0
    is_heard: bool = False
    """Whether it answered the announcement. Nothing is uploaded for a receiver that does not answer."""
    is_given: bool = False
    """Whether a relay accepted a piece for it."""
    is_done: bool = False
    is_left_to_others: bool = False
    """Whether relays serve others but not this receiver, which will request pieces from those."""
    tried: dict[bytes, int] = field(default_factory=dict)
    """Pieces assigned to relays that had failed for this receiver before; it is helped as if they would fail
    again."""
    rounds: int = 0
    served: int = 0
    passed: int = 0
    """The pieces given to its connection, and of these the ones that it should forward."""
    marked: int = 0
    moved_at: float = -math.inf
    """When it last got something from its connection, or reported something."""


@dataclass(slots=True)
class _Outgoing:
    content: bytes
    announce: bytes
    cut: PieceSet
    layout: PieceLayout
    receivers: dict[bytes, _Receiver]
    began: float
    began_at: dict[bytes, float] = field(default_factory=dict)
    """When each relay accepted its first piece."""
    pardoned_s: float = 0.0
    parity: PieceSet | None = None
    loads: Counter[bytes] = field(default_factory=Counter)
    """Pieces for which each receiver was named as a source."""
    is_finished: bool = False

    def frame(self, number: int, *, is_to_forward: bool) -> bytes:
        count = self.layout.count
        if number < count:
            cut, at = self.cut, number
        else:
            assert self.parity is not None
            cut, at = self.parity, number - count
        return encode_piece(Piece(self.cut.root, number, cut.proofs[at].siblings, cut.pieces[at], is_to_forward))

    @property
    def numbers(self) -> int:
        return self.layout.count + (0 if self.parity is None else len(self.parity.pieces))

    @property
    def everything(self) -> int:
        """The data pieces, as bits."""
        return (1 << self.layout.count) - 1

    @property
    def holders_min(self) -> int:
        """The number of receivers of which at least one is honest."""
        return sum(not receiver.may_wait for receiver in self.receivers.values()) // 3 + 1

    def lacks(self, receiver: _Receiver) -> int:
        return 0 if receiver.is_done else ~receiver.have & self.everything


class Sending:
    """The messages that this node sends."""

    def __init__(
        self, own: bytes, random: RandomSource, parameters: MulticastParameters, counters: Counter[str]
    ) -> None:
        self._own = own
        self._random = random
        self._parameters = parameters
        self._counters = counters
        self._outgoing: OrderedDict[bytes, _Outgoing] = OrderedDict()
        self._shunned: OrderedDict[tuple[bytes, bytes], tuple[int, float]] = OrderedDict()
        """(relay, receiver): consecutive failures, and until when the relay is not used for the receiver."""
        self._ticked_at = math.inf
        """Time of the last check of waiting receivers; infinite while there were none."""

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return bool(self._outgoing)

    @property
    def is_urgent(self) -> bool:
        """Whether a receiver still waits."""
        return any(not out.is_finished for out in self._outgoing.values())

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
        if not self.is_urgent:
            self._ticked_at = now
        content = digest(b"multicast", bytes((kind,)) + body)
        for out in self._outgoing.values():
            if out.content == content:
                return self._remind(out, members, now)
        sealed = seal_message(key, kind, body)
        layout = PieceLayout.fit(len(sealed), sum(not member.may_wait for member in members))
        cut = split_message(sealed, layout)
        out = _Outgoing(content, encode_control(Announce(cut.root, key, kind, layout)), cut, layout, {}, now)
        while len(self._outgoing) >= self._parameters.outgoing_max:
            self._outgoing.popitem(last=False)
        self._outgoing[cut.root] = out
        self._counters["sent"] += 1
        effects = self._add(out, members, now)
        effects += self._publish(out, routes, now)
        return effects + self._help(out, now)

    def _add(self, out: _Outgoing, members: Iterable[Member], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for address, rtt_s, is_connected, may_wait in members:
            if address != self._own and address not in out.receivers:
                news_at = now + self._parameters.later_s if may_wait else now
                out.receivers[address] = _Receiver(rtt_s, is_connected, may_wait, news_at)
                if is_connected:
                    effects.append(SendControl(address, out.announce))
        return effects

    def _remind(self, out: _Outgoing, members: Sequence[Member], now: float) -> list[Effect]:
        """Announce once more: receivers with the message report it; a receiver that restarted gets it again."""
        effects: list[Effect] = [
            SendControl(address, out.announce) for address, receiver in out.receivers.items() if receiver.is_told
        ]
        return effects + self._add(out, members, now) + self._help(out, now)

    def _publish(self, out: _Outgoing, routes: Mapping[bytes, Collection[bytes]], now: float) -> list[Effect]:
        reach = {
            relay: {a for a in reached if a in out.receivers and not self._is_shunned(relay, a, now)}
            for relay, reached in routes.items()
        }
        chosen = self._choose(reach)
        for address, receiver in out.receivers.items():
            relays = [relay for relay in chosen if address in reach[relay]]
            if relays:
                receiver.news_at = now
                self._share_out(receiver, relays, out.everything)
            elif not receiver.may_wait:
                receiver.is_left_to_others = bool(chosen)
                receiver.news_at = now if chosen else -math.inf  # nothing will come by itself
                # One copy more costs no upload, and perhaps it was the receiver that was slow, or its line.
                waits_at = [relay for relay in chosen if address in routes[relay]]
                receiver.tried = self._shares_of(waits_at, out.everything)
        return self._give(out, {address: r.shares or r.tried for address, r in out.receivers.items()}, now)

    @staticmethod
    def _shares_of(relays: Sequence[bytes], numbers: int) -> dict[bytes, int]:
        """Return which of ``relays`` delivers which of these pieces."""
        shares = dict.fromkeys(relays, 0)
        for number in numbers_of(numbers) if relays else ():
            shares[relays[number % len(relays)]] |= 1 << number
        return shares

    def _share_out(self, receiver: _Receiver, relays: Sequence[bytes], numbers: int) -> dict[bytes, int]:
        """Assign these pieces for a receiver to ``relays``; return the assignment."""
        shares = self._shares_of(relays, numbers)
        for relay, share in shares.items():
            receiver.shares[relay] = receiver.shares.get(relay, 0) | share
        return shares

    def _give(self, out: _Outgoing, shares: Mapping[bytes, Mapping[bytes, int]], now: float) -> list[Effect]:
        """Publish the pieces assigned to each relay."""
        groups: dict[bytes, dict[int, set[bytes]]] = {}
        for address, by_relay in shares.items():
            for relay, share in by_relay.items():
                for number in numbers_of(share):
                    groups.setdefault(relay, {}).setdefault(number, set()).add(address)
        effects: list[Effect] = []
        for relay, members in groups.items():
            self._counters["published"] += len(members)
            parts = ((frozenset(members[n]), out.frame(n, is_to_forward=False)) for n in sorted(members))
            effects.append(Publish(out.cut.root, relay, tuple(parts)))
        return effects

    def _choose(self, reach: Mapping[bytes, set[bytes]]) -> list[bytes]:
        """Return the fewest relays that reach nearly all reachable receivers, and one more to share the load."""
        parameters = self._parameters
        chosen: list[bytes] = []
        covered: set[bytes] = set()
        while len(chosen) < parameters.relays_max:
            best = max(reach, key=lambda relay: len(reach[relay] - covered), default=None)
            few = max(parameters.relay_members_min, len(covered) * parameters.relay_percent_min // 100)
            if best is None or len(reach[best] - covered) < few:
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
        """Note that a relay accepted one more piece for these receivers; before that they could not report any."""
        out = self._outgoing.get(root)
        if out is not None:
            out.began_at.setdefault(relay, now)
            for address in members:
                receiver = out.receivers.get(address)
                if receiver is not None and (receiver.have or not receiver.is_given):
                    receiver.is_given = True  # the first piece is soon heard of, however many follow
                    receiver.news_at = max(receiver.news_at, now)

    def is_wanted(self, root: bytes, relay: bytes, members: Collection[bytes]) -> bool:
        """Whether publishing a piece still helps any receiver."""
        out = self._outgoing.get(root)
        return out is not None and any(
            not receiver.is_done and relay in receiver.shares
            for receiver in map(out.receivers.get, members)
            if receiver is not None
        )

    def publish_failed(self, root: bytes, relay: bytes, now: float) -> list[Effect]:
        """Note that a relay failed while publishing; its receivers are helped at once."""
        out = self._outgoing.get(root)
        if out is None:
            return []
        self._counters["publish_failed"] += 1
        lost = [a for a, r in out.receivers.items() if relay in r.shares and not r.is_done]
        effects = self._reroute(out, {address: [relay] for address in lost}, now, {})
        for address in lost:
            if not out.receivers[address].shares:
                out.receivers[address].news_at = -math.inf
        return effects + self._help(out, now)

    def _reroute(
        self, out: _Outgoing, failed: Mapping[bytes, Sequence[bytes]], now: float, asked: Mapping[bytes, int]
    ) -> list[Effect]:
        """Assign the failed relays' pieces to the other relays of each receiver, except pieces requested from
        other receivers.
        """
        again: dict[bytes, dict[bytes, int]] = {}
        for address, relays in failed.items():
            receiver = out.receivers[address]
            lost = 0
            for relay in relays:
                lost |= receiver.shares.pop(relay) & ~receiver.have & ~asked.get(address, 0)
                self._shun(relay, address, now)
            if receiver.shares and lost:
                again[address] = self._share_out(receiver, list(receiver.shares), lost)
        if again:
            self._counters["rerouted"] += 1
        return self._give(out, again, now)

    def _is_shunned(self, relay: bytes, address: bytes, now: float) -> bool:
        found = self._shunned.get((relay, address))
        return found is not None and found[1] > now

    def _shun(self, relay: bytes, address: bytes, now: float) -> None:
        times = self._shunned.pop((relay, address), (0, 0.0))[0]
        pause_s = min(self._parameters.relay_backoff_s * 2 ** min(times, 16), self._parameters.relay_backoff_s_max)
        self._shunned[relay, address] = times + 1, now + pause_s
        if len(self._shunned) > self._parameters.remembered_max:
            self._shunned.popitem(last=False)

    # -- help for those who lack pieces ----------------------------------------------------------------------

    def _help(self, out: _Outgoing, now: float) -> list[Effect]:
        parameters = self._parameters
        stalled = {a: out.receivers[a] for a in self._stalled(out, now)}
        if not stalled:
            return []
        failed: dict[bytes, list[bytes]] = {}
        asked: dict[bytes, int] = {}
        held = self._held(out, -(-len(stalled) // 3))
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
                effects.append(SendControl(address, out.announce))
            if receiver.rounds == 1 and not receiver.may_wait:
                asked[address], told = self._ask(out, address, out.lacks(receiver) & held)
                effects += told
        effects += self._reroute(out, failed, now, asked)
        stranded = {a: r for a, r in stalled.items() if not (a in failed and r.shares)}
        rest: dict[bytes, int] = {}
        for address, receiver in stranded.items():
            receiver.shares.clear()
            missing = out.lacks(receiver) & ~asked.get(address, 0) & ~self._under_way(receiver, now)
            if missing and (receiver.is_heard or receiver.rounds == 1):
                rest[address] = missing
        swapping = [
            address
            for address in rest
            if not stranded[address].may_wait and stranded[address].rounds <= parameters.swap_rounds_max
        ][:SWAP_MEMBERS_MAX]
        if len(swapping) < parameters.swap_members_min:
            swapping = []
        effects += self._start_swap(out, {address: rest[address] for address in swapping}, now)
        for address, missing in rest.items():
            if address not in swapping:
                effects += self._serve(out, address, missing, now)
        return effects

    @staticmethod
    def _held(out: _Outgoing, holders_min: int) -> int:
        """Return the pieces that enough receivers have; fewer sources would be slow."""
        holders = [r for r in out.receivers.values() if r.is_told and not r.may_wait]
        least = holders_min - sum(r.is_done for r in holders)
        if least <= 0:
            return out.everything
        counts = Counter(number for r in holders if not r.is_done for number in numbers_of(r.have))
        return sum(1 << number for number, count in counts.items() if count >= least) & out.everything

    def _ask(self, out: _Outgoing, address: bytes, bitmap: int) -> tuple[int, list[Effect]]:
        """Choose sources for these pieces, the least loaded first; return the pieces of each."""
        if not bitmap:
            return 0, []
        holders = [
            (not r.is_done, out.loads[a], self._random.random(), a, bitmap & ~out.lacks(r))
            for a, r in out.receivers.items()
            if r.is_told and not r.may_wait and a != address and bitmap & ~out.lacks(r)
        ]
        chosen = [(a, has) for *_, a, has in sorted(holders)[:ASK_SOURCES_MAX]]
        shares: Counter[bytes] = Counter()
        asked = 0
        for at, number in enumerate(numbers_of(bitmap)):
            turn = at % len(chosen)
            source = next((a for a, has in chosen[turn:] + chosen[:turn] if has >> number & 1), None)
            if source is not None:
                shares[source] |= 1 << number
                out.loads[source] += 1
                asked |= 1 << number
        self._counters["asks"] += 1
        return asked, [SendControl(address, encode_control(Ask(out.cut.root, tuple(shares.items()))))]

    def _under_way(self, receiver: _Receiver, now: float) -> int:
        """Return the pieces in its connection; after long silence they count as lost."""
        if now - receiver.moved_at > self._parameters.resend_s:
            receiver.passed = receiver.marked = 0
        return receiver.passed & ~receiver.have

    def _stalled(self, out: _Outgoing, now: float) -> list[bytes]:
        """Return the receivers without news for too long, and those that waited for others to be served first.

        Receivers that would follow soon are included, so that one upload helps them too.
        """
        is_first_served = all(r.is_done or r.may_wait or not r.is_told for r in out.receivers.values())
        is_held = sum(r.is_done and not r.may_wait for r in out.receivers.values()) >= out.holders_min
        others_at = max(
            (r.news_at for r in out.receivers.values() if not r.is_left_to_others and not r.may_wait),
            default=-math.inf,
        )
        patience: dict[bytes, float] = {}
        for address, receiver in out.receivers.items():
            if receiver.is_done or not receiver.is_told:
                continue
            is_due = is_held if receiver.is_left_to_others else is_first_served and receiver.may_wait
            if is_due and not receiver.rounds and not receiver.shares:
                patience[address] = math.inf
                continue
            if receiver.is_left_to_others and not receiver.rounds:  # as long as the others get on
                receiver.news_at = max(receiver.news_at, min(others_at, out.began + self._parameters.later_s))
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

    def _start_swap(self, out: _Outgoing, lacking_by: Mapping[bytes, int], now: float) -> list[Effect]:
        """Send each piece that any of these lacks to one of them, unless it is already being sent to one."""
        members = list(lacking_by)
        lacking = under_way = 0
        for bitmap in lacking_by.values():
            lacking |= bitmap
        for receiver in out.receivers.values():
            if receiver.is_told:
                under_way |= self._under_way(receiver, now) & receiver.marked
        numbers = numbers_of(lacking & ~under_way)
        if not numbers:
            return []
        self._counters["swaps"] += 1
        spare = _spare(len(numbers), len(members))
        if out.parity is None and spare and out.layout.size_bytes <= PARITY_MESSAGE_BYTES_MAX:
            out.parity = make_parity_pieces(out.cut.pieces, out.layout, spare)
        parity_root, parity_count = (b"", 0) if out.parity is None else (out.parity.root, len(out.parity.pieces))
        swap = encode_control(Swap(out.cut.root, parity_root, parity_count, tuple(members)))
        order = members[:]
        self._random.shuffle(order)
        parity = [out.layout.count + at for at in range(min(spare, parity_count))]
        numbers += [number for number in parity if not under_way >> number & 1]
        effects: list[Effect] = [SendControl(address, swap) for address in members]
        for at, number in enumerate(numbers):
            address = order[at % len(order)]
            out.receivers[address].marked |= 1 << number
            effects.append(self._pass(out, address, number, now, is_to_forward=True))
        return effects

    def _pass(
        self, out: _Outgoing, address: bytes, number: int, now: float, *, is_to_forward: bool = False
    ) -> Effect:
        receiver = out.receivers[address]
        receiver.passed |= 1 << number
        receiver.moved_at = now
        return SendPiece(address, out.frame(number, is_to_forward=is_to_forward))

    def _serve(self, out: _Outgoing, address: bytes, bitmap: int, now: float) -> list[Effect]:
        receiver = out.receivers[address]
        limit = out.layout.count * self._parameters.serves_percent_max // 100 - receiver.served
        wanted = bitmap & (1 << out.numbers) - 1 & ~self._under_way(receiver, now)
        numbers = numbers_of(wanted)[: max(limit, 0)]
        receiver.served += len(numbers)
        self._counters["served"] += len(numbers)
        return [self._pass(out, address, number, now) for number in numbers]

    def pass_failed(self, address: bytes, piece: Piece) -> None:
        """Note that a receiver's connection did not accept a piece."""
        _, receiver = self._find(address, piece.root)
        if receiver is not None:
            receiver.passed &= ~(1 << piece.number)
            receiver.marked &= ~(1 << piece.number)

    # -- what receivers say ----------------------------------------------------------------------------------

    def peer_joined(self, address: bytes, now: float) -> list[Effect]:
        """Note a new connection: messages in flight to this peer are announced again."""
        effects: list[Effect] = []
        for out in self._outgoing.values():
            receiver = out.receivers.get(address)
            if receiver is not None and not receiver.is_done:
                receiver.is_told = True
                receiver.passed = receiver.marked = 0
                receiver.news_at = max(receiver.news_at, now)
                effects.append(SendControl(address, out.announce))
        return effects

    def peer_left(self, address: bytes) -> None:
        """Note that the last connection to a peer has ended."""
        for out in self._outgoing.values():
            if address in out.receivers:
                receiver = out.receivers[address]
                receiver.is_told = False
                receiver.passed = receiver.marked = 0

    def have(self, peer: bytes, root: bytes, bitmap: int, now: float) -> None:
        """Process a receiver's report."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None:
            return
        receiver.is_heard = True
        if receiver.is_done:  # it was started again
            receiver.is_done = out.is_finished = False
            receiver.passed = receiver.marked = 0
        if bitmap != receiver.have:
            if receiver.tried and not receiver.rounds:  # they do bring them
                receiver.shares, receiver.tried, receiver.is_left_to_others = receiver.tried, {}, False
            receiver.have = bitmap
            receiver.news_at = max(receiver.news_at, now)
            receiver.moved_at = now

    def done(self, peer: bytes, root: bytes, now: float) -> list[Effect]:
        """Note that a receiver has the message."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None or receiver.is_done:
            return []
        receiver.is_done = True
        if not receiver.rounds:
            for relay in receiver.shares or receiver.tried:
                self._shunned.pop((relay, peer), None)
        effects = [] if receiver.may_wait else self._help(out, now)  # perhaps those who wait are next
        return effects + self._finish(out, now)

    def want(self, peer: bytes, root: bytes, bitmap: int, now: float) -> list[Effect] | None:
        """Process a receiver's request; return None if it is not for an own message."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None:
            return None
        if receiver.rounds < self._parameters.swap_rounds_max:
            # As long as others can help they do. That this one asks says that it needs help, and no more.
            if now - receiver.news_at > self._parameters.stall_s:
                receiver.news_at = -math.inf
            return []
        receiver.news_at = max(receiver.news_at, now)
        return self._serve(out, peer, bitmap, now)

    def _find(self, peer: bytes, root: bytes) -> tuple[_Outgoing | None, _Receiver | None]:
        out = self._outgoing.get(root)
        return out, None if out is None else out.receivers.get(peer)

    def _finish(self, out: _Outgoing, now: float) -> list[Effect]:
        missing = sum(not receiver.is_done for receiver in out.receivers.values())
        if out.is_finished or (missing and now - out.began < self._parameters.expiry_s):
            return []
        out.is_finished = True
        self._counters["sent_incomplete" if missing else "sent_complete"] += 1
        return [Finished(out.layout.size_bytes, len(out.receivers), missing, now - out.began)]

    def tick(self, now: float) -> list[Effect]:
        """Help the receivers that are due, and forget finished messages."""
        parameters, effects = self._parameters, list[Effect]()
        late_s = max(0.0, now - self._ticked_at - TICK_S)
        self._ticked_at = now if self.is_urgent else math.inf
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
        return effects


def _spare(pieces: int, members: int) -> int:
    """Return the number of parity pieces that compensates for a third of the members that forward nothing.

    With n = 3f + 1 members and a sender that reaches them all, f of them may be silent. The pieces given to the
    others must suffice.
    """
    silent = (members - 1) // 3
    for spare in range(PARITY_MAX + 1):
        if spare >= silent * -(-(pieces + spare) // members):
            return spare
    return PARITY_MAX
