"""The call auction by its definition: each pair of a bid and an ask is looked at by itself (market.md 6.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.ledger.auction import RIVALS_LOOKED_MAX, Ask, Bid, BondOf, Match, Outcome
from tasks.ledger.bands import Offer, cheapest_band, rate_top, seats_of
from tasks.ledger.fitting import lack

__all__ = ["clear_plainly", "meets"]

_Taken = tuple[Bid, Sequence[tuple[int, int]]]
"""A bid, and the asks that it takes with their bonds, in the order of its seats."""


def meets(ask: Ask, bid: Bid) -> bool:
    """Tell whether the machine has what a job needs and is not barred, whatever either pays."""
    return ask.machine not in bid.barred and lack(ask.traits, bid.needs) is None


class _Call:
    """One call under way; asks and bids are numbered in their order."""

    def __init__(self, asks: Sequence[Ask], bids: Sequence[Bid], bond_of: BondOf) -> None:
        self.asks = sorted(asks, key=lambda ask: (ask.price, -ask.standing, ask.tie))
        self.bids = sorted(bids, key=lambda bid: (-bid.limit, bid.tie))
        self.bond_of = bond_of
        self.number = {ask.machine: at for at, ask in enumerate(self.asks)}
        self.slots = [ask.slots for ask in self.asks]
        self.funds = [ask.funds for ask in self.asks]
        self.given: set[tuple[bytes, int]] = set()
        """Groups and asks that have one of their seats."""
        self.pressed: dict[tuple[bytes, int], int] = {}
        """Of a winner and one of its asks, the highest limit of a group that would have had its machines else."""
        self._group_bonds: dict[bytes, list[int | None]] = {}

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

    def _free(self, bid: Bid, below: int, first: int = 0) -> Iterator[int]:
        """Yield the asks of at most ``below`` that have a slot and what ``bid`` needs, the lowest first."""
        slots = self.slots
        for at in range(first, len(self.asks)):
            ask = self.asks[at]
            if ask.price > below:
                return
            if slots[at] and meets(ask, bid) and (not bid.group or (bid.group, at) not in self.given):
                yield at

    def _choice(self, bid: Bid) -> Iterator[int]:
        if bid.drawn is None:
            return self._free(bid, bid.limit)
        free = list(self._free(bid, bid.limit))
        first = [at for machine in bid.drawn if (at := self.number.get(machine, -1)) in free]
        return iter([*first, *free] if bid.then_lowest else first)

    def take(self, bid: Bid) -> tuple[int, int] | None:
        """Give ``bid`` an ask; return that and the bond, or None."""
        for at in self._choice(bid):
            bond = self._bond(bid, at)
            if bond is not None:
                self._give(bid, at, bond)
                return at, bond
        return None

    def _give(self, bid: Bid, at: int, bond: int) -> None:
        self.slots[at] -= 1
        self.funds[at] -= bond
        if bid.group:
            self.given.add((bid.group, at))

    def take_all(self, bid: Bid) -> list[tuple[int, int]] | None:
        """Give a group all the asks that it needs, in the order of its seats; return them with bonds, or None."""
        found = self._seats(bid, self.slots, self.funds)
        if found is None:
            return None
        bonds = self._bonds(bid)
        taken = [(offer.at, bonds[offer.at] or 0) for offer in found]
        for at, bond in taken:
            self._give(bid, at, bond)
        return taken

    def _bonds(self, bid: Bid) -> list[int | None]:
        """Return the bond of each ask for a group at the ask's price, None where it does not admit the group."""
        known = self._group_bonds.get(bid.task)
        if known is None:
            known = self._group_bonds[bid.task] = [
                self.bond_of(bid, ask, ask.price) if ask.price <= bid.limit and meets(ask, bid) else None
                for ask in self.asks
            ]
        return known

    def _seats(self, bid: Bid, slots: Sequence[int], funds: Sequence[int]) -> list[Offer] | None:
        offers = [
            Offer(at, self.asks[at].price, self.asks[at].traits.rate, self.asks[at].owner)
            for at, bond in enumerate(self._bonds(bid))
            if bond is not None and slots[at] and bond <= funds[at]
        ]
        band = cheapest_band(offers, bid.members, bid.spares)
        return None if band is None else seats_of(band, bid.members, bid.spares)

    def press(self, loser: Bid, taken: Sequence[_Taken]) -> None:
        """Note of which winner a group without machines would have had those that it lacked.

        One alone is looked for, among the last that were served. If a group counted for each machine that it
        might use, an impossible one would raise all prices to its limit.
        """
        for bid, given in list(reversed(taken))[:RIVALS_LOOKED_MAX]:
            slots, funds = list(self.slots), list(self.funds)
            for at, bond in given:
                slots[at] += 1
                funds[at] += bond
            found = self._seats(loser, slots, funds)
            if found is not None:
                theirs = {at for at, _ in given}
                for at in theirs.intersection(offer.at for offer in found):
                    key = bid.task, at
                    self.pressed[key] = max(loser.limit, self.pressed.get(key, 0))
                return

    def spare_price(self, bid: Bid, given: Sequence[tuple[int, int]]) -> int:
        """Return the lowest ask left free that a group could have had in its band, or its limit."""
        low = min(self.asks[at].traits.rate for at, _ in given)
        own = {at for at, _ in given}
        for at, bond in enumerate(self._bonds(bid)):
            is_free = bond is not None and at not in own and self.slots[at] > 0 and bond <= self.funds[at]
            if is_free and low <= self.asks[at].traits.rate <= rate_top(low):
                return self.asks[at].price
        return bid.limit

    def _rival(self, at: int, losers: Sequence[Bid]) -> int:
        """Return the highest limit of ``losers`` that the machine admits, 0 for none; they are in order."""
        ask = self.asks[at]
        for bid in losers:
            if bid.limit <= ask.price:
                return 0
            if not bid.members and meets(ask, bid) and self._could(bid, at):
                return bid.limit
        return 0

    def _spare(self, bid: Bid, below: int, taken: int) -> int:
        """Return the lowest ask that is left free and admits ``bid``, or ``below`` if there is none lower.

        What the bid passed over before the ask that it took is not free for it: no slot and no money came back.
        """
        for at in self._free(bid, below, taken if bid.drawn is None else 0):
            if self._bond(bid, at) is not None:
                return self.asks[at].price
        return below

    def price(self, bid: Bid, at: int, bond: int, losers: Sequence[Bid], spare: int | None = None) -> int:
        """Return what a match costs, and note the bond at that price. ``spare`` is ``spare_price`` of a group."""
        ask = self.asks[at]
        price = min(bid.limit, max(self._rival(at, losers), self.pressed.get((bid.task, at), 0)))
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
            slots, funds = [ask.slots for ask in self.asks], [ask.funds for ask in self.asks]
            return self._seats(bid, slots, funds) is not None
        for at, ask in enumerate(self.asks):
            if ask.price > bid.limit:
                return False
            if ask.slots > self.slots[at] and meets(ask, bid) and self._could(bid, at):
                return True
        return False


def _listed(found: tuple[int, int] | None) -> list[tuple[int, int]] | None:
    return None if found is None else [found]


def clear_plainly(asks: Sequence[Ask], bids: Sequence[Bid], bond_of: BondOf) -> Outcome:
    """Match bids with asks, as ``clear`` does."""
    call = _Call(asks, bids, bond_of)
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
    matches: list[Match] = []
    for bid, given in taken:
        spare = call.spare_price(bid, given) if bid.members else None
        matches += [Match(bid, call.asks[at], call.price(bid, at, bond, losers, spare)) for at, bond in given]
    outbid = [bid for bid in losers if call.is_outbid(bid)]
    beaten = {bid.task for bid in outbid}
    unmet = tuple(bid for bid in losers if bid.task not in beaten)
    return Outcome(tuple(matches), tuple(outbid), unmet)
