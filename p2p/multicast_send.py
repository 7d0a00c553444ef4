"""The sender's side of a multicast, without I/O: which way the pieces go, and help for those who lack some."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from p2p.multicast_wire import (
    SWAP_MEMBERS_MAX,
    TICK_S,
    Announce,
    Effect,
    Finished,
    Member,
    MulticastParameters,
    Pass,
    Publish,
    Swap,
    Tell,
    encode_control,
    numbers_of,
)
from p2p.pieces import (
    PARITY_MAX,
    PARITY_MESSAGE_BYTES_MAX,
    Cut,
    Piece,
    Shape,
    cut_message,
    cut_parity,
    encode_piece,
    seal_message,
)
from state.primitives.hashing import digest

__all__ = ["Sending"]

_SOON: Final = 0.5
"""Part of its patience after which a receiver is helped together with one that has lost it."""


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


class Sending:
    """The messages that this node sends."""

    def __init__(
        self, own: bytes, random: Random, parameters: MulticastParameters, counters: Counter[str]
    ) -> None:
        self._own = own
        self._random = random
        self._parameters = parameters
        self._counters = counters
        self._outgoing: OrderedDict[bytes, _Outgoing] = OrderedDict()
        self._shunned: OrderedDict[tuple[bytes, bytes], tuple[int, float]] = OrderedDict()
        """(relay, receiver): failures in a row, and until when the one is not used for the other."""
        self._ticked_at = -math.inf

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return bool(self._outgoing)

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
        if not self._outgoing:
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
        self._counters["sent"] += 1
        effects = self._add(out, members, now)
        effects += self._publish(out, ways, now)
        return effects + self._help(out, now)

    def _add(self, out: _Outgoing, members: Iterable[Member], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for address, rtt_s, is_connected, may_wait in members:
            if address != self._own and address not in out.receivers:
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
        for number in numbers_of(numbers):
            shares[relays[number % len(relays)]] |= 1 << number
        for relay, share in shares.items():
            receiver.shares[relay] = receiver.shares.get(relay, 0) | share
        return shares

    def _give(self, out: _Outgoing, shares: Mapping[bytes, Mapping[bytes, int]], now: float) -> list[Effect]:
        """Give relays what they are to bring to each address."""
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
        self._counters["publish_failed"] += 1
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
            self._counters["rerouted"] += 1
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
        lacking = numbers_of(~self._common(out, members) & (1 << out.shape.count) - 1)
        if not lacking:
            return []
        self._counters["swaps"] += 1
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
        numbers = [number for number in numbers_of(bitmap) if number < out.numbers][: max(limit, 0)]
        receiver.served += len(numbers)
        self._counters["served"] += len(numbers)
        return [Pass(address, out.frame(number, is_to_forward=False)) for number in numbers]

    # -- what receivers say ----------------------------------------------------------------------------------

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

    def have(self, peer: bytes, root: bytes, bitmap: int, now: float) -> None:
        """Take a receiver's report."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None:
            return
        receiver.is_heard = True
        if receiver.is_done:  # it was started again
            receiver.is_done = out.is_finished = False
        if bitmap != receiver.have:
            receiver.have = bitmap
            receiver.news_at = max(receiver.news_at, now)

    def done(self, peer: bytes, root: bytes, now: float) -> list[Effect]:
        """Take a receiver's word that it has the message."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None or receiver.is_done:
            return []
        receiver.is_done = True
        if not receiver.rounds:
            for relay in receiver.shares:
                self._shunned.pop((relay, peer), None)
        effects = [] if receiver.may_wait else self._help(out, now)  # perhaps those who wait are next
        return effects + self._finish(out, now)

    def want(self, peer: bytes, root: bytes, bitmap: int, now: float) -> list[Effect] | None:
        """Take a receiver's request; None: it is none of ours."""
        out, receiver = self._find(peer, root)
        if out is None or receiver is None:
            return None
        if receiver.rounds < self._parameters.swap_rounds_max:
            # As long as others can help they do. That this one asks says that it needs help, and no more.
            if now - receiver.news_at > self._parameters.stall_s:
                receiver.news_at = -math.inf
            return []
        receiver.news_at = max(receiver.news_at, now)
        return self._serve(out, peer, receiver, bitmap)

    def _find(self, peer: bytes, root: bytes) -> tuple[_Outgoing | None, _Receiver | None]:
        out = self._outgoing.get(root)
        return out, None if out is None else out.receivers.get(peer)

    def _finish(self, out: _Outgoing, now: float) -> list[Effect]:
        missing = sum(not receiver.is_done for receiver in out.receivers.values())
        if out.is_finished or (missing and now - out.began < self._parameters.expiry_s):
            return []
        out.is_finished = True
        self._counters["sent_incomplete" if missing else "sent_complete"] += 1
        return [Finished(out.shape.size_bytes, len(out.receivers), missing, now - out.began)]

    def tick(self, now: float) -> list[Effect]:
        """Help who is due, and forget what is over."""
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
        return effects


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
