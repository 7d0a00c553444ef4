"""The call auction: which ask each bid takes, and at what price (market.md 6.2). Pure: it reads no state.

Bids are served from the highest limit down. Each takes the lowest ask that admits it. A match costs the ask,
unless somebody who went without would have paid more for that machine, and no machine that is left free would do
the job for less. A group is one bid for several machines of like speed: it gets all of them or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tasks.ledger.ask_index import AskIndex
from tasks.ledger.bands import Offer, cheapest_band, rate_top, seats_of
from tasks.ledger.bit_sets import bits_of, places_of
from tasks.ledger.fitting import Needs, Traits

__all__ = [
    "CHANGED_MAX", "RIVALS_LOOKED_MAX", "Ask", "Bid", "BondOf", "FundedBy", "FundedFor", "Match",
    "Outcome", "clear", "in_order",
]  # fmt: skip


RIVALS_LOOKED_MAX: Final = 4
"""Winners without which it is tried whether a group that went without would have had its machines."""
CHANGED_MAX: Final = 32
"""Machines whose money matches change before all asks are sorted by what is left; each bid may look at them."""


class Ask(NamedTuple):
    """What a machine offers: ``slots`` jobs at ``price`` or more per 10^12 units, backed by ``funds`` for bonds.

    ``traits`` are what it has for a job. ``standing`` orders equal prices, the highest first; ``tie`` is drawn and
    differs for each. ``owner`` is who is behind it.
    """

    machine: bytes
    price: int
    slots: int
    funds: int
    traits: Traits
    standing: int
    tie: bytes
    owner: bytes = b""


class Bid(NamedTuple):
    """A job that pays ``limit`` per 10^12 units at most, and what it needs. ``tie`` is drawn and differs for each.

    It is never matched with ``barred`` machines. Where ``drawn`` is not None, it takes the first of these machines
    that admits it, whatever they ask, and with ``then_lowest`` the lowest ask if none of them does. A machine has
    one of the bids of one ``group``. A bid with ``members`` is a group: it takes so many machines and ``spares``,
    of which no two have one owner.
    """

    task: bytes
    limit: int
    needs: Needs
    barred: frozenset[bytes]
    tie: bytes
    drawn: tuple[bytes, ...] | None = None
    then_lowest: bool = False
    group: bytes = b""
    members: int = 0
    spares: int = 0


class Match(NamedTuple):
    """A bid, the ask that it takes, and the price per 10^12 units."""

    bid: Bid
    ask: Ask
    price: int


class Outcome(NamedTuple):
    """Matches in the order of bids; ``outbid`` are those that others left no machine, ``unmet`` the rest."""

    matches: tuple[Match, ...]
    outbid: tuple[Bid, ...]
    unmet: tuple[Bid, ...]


BondOf = Callable[[Bid, Ask, int], int | None]
"""The bond that a machine locks for a job at a price; it never falls as the price rises. None if the machine may
not have the job for a reason that the orders do not show."""
FundedFor = Callable[[Bid], int]
"""The set of asks (``ask_index``) that can lock the bond of a bid at their own price. For a group it is exact. For
another bid it may have more asks: those are looked at one by one."""
FundedBy = Callable[[Sequence[Ask], Sequence[int]], FundedFor]
"""Makes a ``FundedFor`` of the asks in their order and of what each of them can lock."""

_Taken = tuple[Bid, Sequence[tuple[int, int]]]
"""A bid, and the asks that it takes with their bonds, in the order of its seats."""


class _Call:
    """One call under way; asks and bids are numbered in their order."""

    def __init__(
        self, asks: Sequence[Ask], bids: Sequence[Bid], bond_of: BondOf, funded_by: FundedBy
    ) -> None:  # fmt: skip
        self.asks = in_order(asks)
        self.bids = sorted(bids, key=lambda bid: (-bid.limit, bid.tie))
        self.bond_of = bond_of
        self.index = AskIndex(self.asks)
        self.slots = [ask.slots for ask in self.asks]
        self.funds = [ask.funds for ask in self.asks]
        self.begun = sum(1 << at for at, ask in enumerate(self.asks) if ask.slots)
        self.open = self.begun
        """Asks that have a slot."""
        self.taken = 0
        """Asks that have got a job."""
        self.given: dict[bytes, int] = {}
        """Asks that have a seat of a group."""
        self.pressed: dict[tuple[bytes, int], int] = {}
        """Of a winner and one of its asks, the highest limit of a group that would have had its machines else."""
        self.rivals: dict[int, int] = {}
        """Of an ask with a job, the highest limit of a bid without a machine that it would have admitted."""
        self._funded_by = funded_by
        self._funded_first = self._funded = funded_by(self.asks, list(self.funds))
        self._changed = 0
        """Asks whose money has changed since ``_funded`` was made."""
        self._meeting: dict[bytes, int] = {}
        self._backed: dict[bytes, int] = {}
        self._group_bonds: dict[tuple[bytes, int], int] = {}

    # Sets of asks

    def _meets(self, bid: Bid) -> int:
        """Return the asks that have what ``bid`` needs, at its limit or less."""
        found = self._meeting.get(bid.task)
        if found is None:
            found = self._meeting[bid.task] = self.index.meeting(bid)
        return found

    def _backers(self, bid: Bid) -> int:
        """Return those of them that could have locked the bond, had the call not given them others."""
        found = self._backed.get(bid.task)
        if found is None:
            found = self._meets(bid)
            found = self._backed[bid.task] = found & self._funded_first(bid) if found else 0
        return found

    def _free(self, bid: Bid) -> int:
        """Return the asks for ``bid`` that have a slot, and may have the money for it."""
        found = self._meets(bid) & self.open
        if bid.group:
            found &= ~self.given.get(bid.group, 0)
        return found & self._funded(bid) if found else 0

    def _sort_funds(self) -> None:
        """Look at what machines have left, if so many have changed that bids would look at each of them."""
        if self._changed.bit_count() > CHANGED_MAX:
            self._funded = self._funded_by(self.asks, list(self.funds))
            self._changed = 0

    # Matches

    def _bond(self, bid: Bid, at: int) -> int | None:
        """Return the bond for ``bid`` at the ask's price, or None where the machine may not or cannot lock it."""
        ask = self.asks[at]
        bond = self.bond_of(bid, ask, ask.price)
        return None if bond is None or bond > self.funds[at] else bond

    def _could(self, bid: Bid, at: int) -> bool:
        """Tell whether the machine would have had the job, had the call not given it others."""
        ask = self.asks[at]
        bond = self.bond_of(bid, ask, ask.price)
        return bond is not None and bond <= ask.funds

    def _choice(self, bid: Bid) -> Iterator[int]:
        free = self._free(bid)
        for machine in bid.drawn or ():
            at = self.index.number.get(machine, -1)
            if at >= 0 and free >> at & 1:
                yield at
        if bid.drawn is None or bid.then_lowest:
            yield from bits_of(free)

    def take(self, bid: Bid) -> tuple[int, int] | None:
        """Give ``bid`` an ask; return that and the bond, or None."""
        self._sort_funds()
        for at in self._choice(bid):
            bond = self._bond(bid, at)
            if bond is not None:
                self._give(bid, at, bond)
                return at, bond
        return None

    def _give(self, bid: Bid, at: int, bond: int) -> None:
        ask = 1 << at
        self.slots[at] -= 1
        self.funds[at] -= bond
        self.taken |= ask
        self._changed |= ask
        if not self.slots[at]:
            self.open &= ~ask
        if bid.group:
            self.given[bid.group] = self.given.get(bid.group, 0) | ask

    def take_all(self, bid: Bid) -> list[tuple[int, int]] | None:
        """Give a group all the asks that it needs, in the order of its seats; return them with bonds, or None."""
        self._sort_funds()
        found = self._seats(bid, self.open, self.funds)
        if found is None:
            return None
        taken = [(offer.at, self._group_bond(bid, offer.at)) for offer in found]
        for at, bond in taken:
            self._give(bid, at, bond)
        return taken

    def _group_bond(self, bid: Bid, at: int) -> int:
        """Return the bond of an ask that backs a group, at the ask's price."""
        known = self._group_bonds.get((bid.task, at))
        if known is None:
            ask = self.asks[at]
            known = self._group_bonds[bid.task, at] = self.bond_of(bid, ask, ask.price) or 0
        return known

    def _seats(self, bid: Bid, opened: int, funds: Sequence[int]) -> list[Offer] | None:
        """Return the offers that a group takes of asks with a slot; ``funds`` is what each of them has left."""
        found = self._backers(bid) & opened
        for at in bits_of(found & self.taken):
            if self._group_bond(bid, at) > funds[at]:
                found ^= 1 << at
        if found.bit_count() < bid.members + bid.spares:
            return None
        asks = self.asks
        offers = [Offer(at, (ask := asks[at]).price, ask.traits.rate, ask.owner) for at in places_of(found)]
        band = cheapest_band(offers, bid.members, bid.spares)
        return None if band is None else seats_of(band, bid.members, bid.spares)

    # Prices

    def press(self, loser: Bid, taken: Sequence[_Taken]) -> None:
        """Note of which winner a group without machines would have had those that it lacked.

        One alone is looked for, among the last that were served. If a group counted for each machine that it
        might use, an impossible one would raise all prices to its limit.
        """
        for bid, given in list(reversed(taken))[:RIVALS_LOOKED_MAX]:
            theirs = sum(1 << at for at, _ in given)
            if not theirs & self._backers(loser):
                continue  # nothing that it could use comes back
            funds = list(self.funds)
            for at, bond in given:
                funds[at] += bond
            found = self._seats(loser, self.open | theirs, funds)
            if found is not None:
                for offer in found:
                    if theirs >> offer.at & 1:
                        key = bid.task, offer.at
                        self.pressed[key] = max(loser.limit, self.pressed.get(key, 0))
                return

    def spare_price(self, bid: Bid, given: Sequence[tuple[int, int]]) -> int:
        """Return the lowest ask left free that a group could have had in its band, or its limit."""
        low = min(self.asks[at].traits.rate for at, _ in given)
        found = self._backers(bid) & self.open & self.index.rates.within(low, rate_top(low))
        for at in bits_of(found & ~sum(1 << at for at, _ in given)):
            if not self.taken >> at & 1 or self._group_bond(bid, at) <= self.funds[at]:
                return self.asks[at].price
        return bid.limit

    def note_rivals(self, losers: Sequence[Bid]) -> None:
        """Note for each ask with a job the highest limit of ``losers`` that it admits; they are in order."""
        left = self.taken
        for bid in losers:
            if not left:
                return
            if not bid.members:
                for at in bits_of(self._backers(bid) & left & self.index.at_most(bid.limit - 1)):
                    if self._could(bid, at):
                        self.rivals[at] = bid.limit
                        left ^= 1 << at

    def _spare(self, bid: Bid, below: int, taken: int) -> int:
        """Return the lowest ask that is left free and admits ``bid``, or ``below`` if there is none lower.

        What the bid passed over before the ask that it took is not free for it: no slot and no money came back.
        """
        found = self._free(bid) & self.index.at_most(below)
        for at in bits_of(found >> taken << taken if bid.drawn is None else found):
            if self._bond(bid, at) is not None:
                return self.asks[at].price
        return below

    def price(self, bid: Bid, at: int, bond: int, spare: int | None = None) -> int:
        """Return what a match costs, and note the bond at that price. ``spare`` is ``spare_price`` of a group."""
        ask = self.asks[at]
        price = min(bid.limit, max(self.rivals.get(at, 0), self.pressed.get((bid.task, at), 0)))
        if price > ask.price:
            price = self._spare(bid, price, at) if spare is None else min(price, spare)
        if price <= ask.price:
            return ask.price
        raised = self.bond_of(bid, ask, price)
        if raised is None or raised - bond > self.funds[at]:
            return ask.price
        self.funds[at] -= raised - bond
        return price

    def is_outbid(self, bid: Bid) -> bool:
        """Tell whether a machine would have had the job, had others not taken its slots."""
        if bid.members:
            return self._seats(bid, self.begun, [ask.funds for ask in self.asks]) is not None
        return any(self._could(bid, at) for at in bits_of(self._backers(bid) & self.taken))


def in_order(asks: Sequence[Ask]) -> list[Ask]:
    """Return asks in the order in which a bid takes them: lower prices first, then better records, then by lot."""
    return sorted(asks, key=lambda ask: (ask.price, -ask.standing, ask.tie))


def _listed(found: tuple[int, int] | None) -> list[tuple[int, int]] | None:
    return None if found is None else [found]


def _one_by_one(bond_of: BondOf) -> FundedBy:
    """Return what looks at each pair of a bid and an ask."""

    def funded_by(asks: Sequence[Ask], funds: Sequence[int]) -> FundedFor:
        def funded_for(bid: Bid) -> int:
            bonds = (bond_of(bid, ask, ask.price) for ask in asks)
            can = (bond is not None and bond <= most for bond, most in zip(bonds, funds, strict=True))
            return sum(1 << at for at, is_funded in enumerate(can) if is_funded)

        return funded_for

    return funded_by


def clear(
    asks: Sequence[Ask], bids: Sequence[Bid], bond_of: BondOf, funded_by: FundedBy | None = None
) -> Outcome:  # fmt: skip
    """Match bids with asks. The order in which they are given changes nothing.

    A bid takes a slot whose machine can lock the bond beside what it locks for earlier bids of the call. The
    price is ``max(own ask, min(own limit, highest limit without a machine that this one admits, lowest ask left
    free that admits this bid))``. Where the machine cannot lock the bond for more than its ask, it is the ask.

    Every pair counts: with a bound on failures, bids that nobody can back would hide machines and other bids. No
    pair is looked at by itself: ``funded_by`` finds the asks that can back a bid together. Beside that ``bond_of``
    is asked for the ask of each match, its price and its rival, and for each bid of ``CHANGED_MAX`` asks at most
    and of those that ``funded_by`` names in excess. Without ``funded_by`` it is asked for each pair.
    """
    call = _Call(asks, bids, bond_of, funded_by or _one_by_one(bond_of))
    taken: list[_Taken] = []
    losers: list[Bid] = []
    for bid in call.bids:
        found = call.take_all(bid) if bid.members else _listed(call.take(bid))
        if found is None:
            losers.append(bid)
        else:
            taken.append((bid, found))
    for bid in losers:
        if bid.members:
            call.press(bid, taken)
    call.note_rivals(losers)
    matches: list[Match] = []
    for bid, given in taken:
        spare = call.spare_price(bid, given) if bid.members else None
        matches += [Match(bid, call.asks[at], call.price(bid, at, bond, spare)) for at, bond in given]
    outbid = [bid for bid in losers if call.is_outbid(bid)]
    beaten = {bid.task for bid in outbid}
    unmet = tuple(bid for bid in losers if bid.task not in beaten)
    return Outcome(tuple(matches), tuple(outbid), unmet)
