"""Asks found by bits: the same matches and prices as where each pair is looked at, and little work (R92)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.prices import work_price
from tasks.ledger.ask_index import AskIndex
from tasks.ledger.auction import CHANGED_MAX, Ask, Bid, FundedFor, clear
from tasks.ledger.audits import bond_floor
from tasks.ledger.bit_sets import Thresholds, bits_of, places_of
from tasks.ledger.bond_index import BondIndex, units_for
from tasks.ledger.fitting import Needs, Traits
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.settlement import Bonds
from tests.tasks.ledger.plain_auction import clear_plainly, meets
from tests.tasks.world import spec

RICH: Final = 10**9
NEEDS: Final = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 21))
def test_thresholds_are_the_places_of_what_is_at_least_a_value(values: list[int], least: int) -> None:
    found = Thresholds(values).at_least(least)
    expected = [at for at, value in enumerate(values) if value >= least]
    assert list(bits_of(found)) == places_of(found) == expected


MACHINES: Final = st.integers(1, 12).map(lambda at: bytes([at]))


@st.composite
def books(draw: st.DrawFn) -> tuple[list[Ask], list[Bid]]:
    asks = [
        Ask(
            bytes([at]), draw(st.integers(1, 12)), draw(st.integers(0, 3)), draw(st.integers(0, 150)),
            Traits(
                *draw(NEEDS), draw(st.integers(80, 120)), draw(st.sampled_from([0, 0, 4, 8])),
                draw(st.sampled_from([0, 5, 9])),
                draw(st.sampled_from([(), (), ("*.b.c:1",), ("*:1", "a.b.c:1")])),
                draw(st.sampled_from([0, 0, 64, 128, 256, 320])),
            ),
            draw(st.integers(0, 1)), bytes([at]), bytes([draw(st.integers(1, 4))]),
        )
        for at in range(1, 1 + draw(st.integers(0, 12)))
    ]  # fmt: skip
    bids = []
    for at in range(1, 1 + draw(st.integers(0, 14))):
        name, least = bytes([at]), draw(st.sampled_from([0, 0, 90, 100]))
        needs = Needs(
            *draw(NEEDS), (least, least + draw(st.sampled_from([1000, 1000, 15]))),
            draw(st.sampled_from([0, 0, 4, 6])), draw(st.sampled_from([0, 0, 0, 6])),
            draw(st.sampled_from([(), (), (), ("a.b.c:1",), ("*.b.c:1", "b.c:1")])),
            draw(st.sampled_from([0, 64, 128, 320])),
        )  # fmt: skip
        bid = Bid(name, draw(st.integers(1, 16)), needs, draw(st.frozensets(MACHINES, max_size=2)), name)
        members = draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
        if members:
            bid = bid._replace(group=name, members=members, spares=draw(st.integers(0, 2)))
        else:
            drawn = draw(st.one_of(st.none(), st.none(), st.lists(MACHINES).map(tuple)))
            group = draw(st.sampled_from([b"", b"", b"g"]))
            bid = bid._replace(drawn=drawn, then_lowest=draw(st.booleans()), group=group)
        bids.append(bid)
    return asks, bids


def bond_of(bid: Bid, ask: Ask, price: int) -> int | None:
    """A bond that differs for each pair; some pairs may not be, for a reason that no order shows."""
    if not bid.members and bid.task[0] * 7 % 5 == ask.machine[0] % 5:
        return None
    return 2 * price * (1 + bid.task[0] % 5) + ask.traits.rate // 10


def in_excess(asks: Sequence[Ask], funds: Sequence[int]) -> FundedFor:
    """Groups exactly; for other bids also asks that may not have the job."""

    def funded_for(bid: Bid) -> int:
        bonds = (bond_of(bid, ask, ask.price) for ask in asks)
        can = (bond is None or bond <= most for bond, most in zip(bonds, funds, strict=True))
        return sum(1 << at for at, is_funded in enumerate(can) if is_funded)

    return funded_for


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(book=books(), few=st.sampled_from([0, 1, CHANGED_MAX]))
def test_a_call_by_bits_is_the_call_by_pairs(book: tuple[list[Ask], list[Bid]], few: int) -> None:
    asks, bids = book
    expected = clear_plainly(asks, bids, bond_of)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tasks.ledger.auction.CHANGED_MAX", few)  # sorted again after each match, or never
        assert clear(asks, bids, bond_of) == expected
        assert clear(asks, bids, bond_of, in_excess) == expected


@pytest.mark.slow
@given(book=books())
def test_an_index_finds_the_asks_that_meet_a_bid_at_its_limit(book: tuple[list[Ask], list[Bid]]) -> None:
    asks, bids = book
    index = AskIndex(asks)
    for bid in bids:
        expected = [at for at, ask in enumerate(asks) if ask.price <= bid.limit and meets(ask, bid)]
        assert places_of(index.meeting(bid)) == expected


def named(at: int) -> bytes:
    return at.to_bytes(4, "big") * 5


@pytest.mark.parametrize("slots", [1, 64])
def test_few_pairs_are_looked_at_however_many_could_not_be(slots: int) -> None:
    """Each match changes what a machine can lock. Later bids want that machine first, and it cannot back them."""
    asked = Counter[str]()

    def bond(bid: Bid, ask: Ask, price: int) -> int:
        asked["pairs"] += 1
        return 10

    def by_funds(_asks: Sequence[Ask], funds: Sequence[int]) -> FundedFor:
        asked["sorted"] += 1
        found = Thresholds(funds).at_least(10)
        return lambda _bid: found

    asks = [Ask(named(at), 1, slots, 19, Traits(9, 9, 9), 0, named(at)) for at in range(100)]
    asks += [Ask(named(at), 1, slots, 9, Traits(9, 9, 9), 0, named(at)) for at in range(100, 512)]
    bids = [Bid(named(at), 10, Needs(), frozenset(), named(at)) for at in range(128)]
    outcome = clear(asks, bids, bond, by_funds)
    assert len(outcome.matches) == 100
    assert len(outcome.outbid) == 28
    # A match, its price, a rival; and machines that matches have changed since they were sorted.
    assert asked["pairs"] <= 4 * len(bids) + (CHANGED_MAX + 1) * len(bids)
    assert asked["sorted"] <= 1 + 100 // CHANGED_MAX


# Bonds


@given(st.integers(0, 10**30), st.integers(1, 10**25))
def test_a_machine_backs_the_units_whose_price_its_money_covers(amount: int, price: int) -> None:
    most = units_for(amount, price)
    assert work_price(most, price) <= amount < work_price(most + 1, price)


MACHINE: Final = st.tuples(
    st.one_of(st.integers(1, 100), st.integers(1, 10**20)),  # price
    st.one_of(st.integers(0, 5), st.integers(0, 1 << 50)),  # rate
    st.integers(0, 3_000),  # what its money is of a bond near by, in thousandths
    st.one_of(st.just(0), st.integers(0, 10**22)),  # proved
)


@settings(max_examples=150, deadline=None)
@given(
    machines=st.lists(MACHINE, max_size=20), windows=st.integers(1, 80), left=st.integers(0, 80),
    limit=st.integers(1, 10**20), base_fee=st.integers(0, 10**12), new_windows=st.sampled_from([0, 1, 10]),
    rate_min=st.sampled_from([0, 1000, 1 << 30]), open_max=st.sampled_from([1, 3, 64]),
)  # fmt: skip
def test_the_machines_that_back_a_job_are_those_whose_money_covers_the_bond(
    machines: list[tuple[int, int, int, int]], windows: int, left: int, limit: int, base_fee: int,
    new_windows: int, rate_min: int, open_max: int,
) -> None:  # fmt: skip
    parameters = replace(TaskParameters(), open_windows_max=open_max, new_windows=new_windows)
    made = spec(total=20 * windows - 7, segment=5, window=20, price=limit)
    made = made._replace(requirements=made.requirements._replace(rate_min=rate_min))
    bonds = Bonds(made, max(0, windows - left), parameters)
    usual, new = (bond_floor(base_fee, is_new=is_new, parameters=parameters) for is_new in (False, True))
    asks, funds, expected = [], [], []
    for at, (price, rate, part, proved) in enumerate(machines):
        asks.append(Ask(bytes([at]), price, 1, 0, Traits(rate=rate), 0, bytes([at])))
        bond = bonds.at(price, rate, usual)
        charge = work_price(made.window_units(0), price)
        worth = max(charge, bonds.least_worth)
        if bond < new and proved < new_windows * worth:
            bond = new
        funds.append(max(0, bond + (part - 1_500) // 500) if part % 2 else bond * part // 1_000)
        expected.append(bond <= funds[-1])
    index = BondIndex(asks, [machine[3] for machine in machines], (usual, new), parameters)
    found = index.backers(index.backing_of(bonds), index.funds(funds))
    assert places_of(found) == [at for at, is_backed in enumerate(expected) if is_backed]


def test_a_job_has_as_many_classes_of_machines_as_its_bonds_cover_windows() -> None:
    made = spec(total=4_000_000, segment=1_000, window=20_000, price=10**16)
    asks = [Ask(named(at), 1, 1, 0, Traits(rate=1 << at // 8), 0, named(at)) for at in range(400)]
    index = BondIndex(asks, [0] * len(asks), (0, 0), TaskParameters())
    classes = index.backing_of(Bonds(made, 0, TaskParameters())).classes
    assert 3 < len(classes) <= TaskParameters().open_windows_max
    assert sum(each.machines for each in classes) == (1 << len(asks)) - 1
    units = [each.units for each in classes]
    assert units == sorted(set(units))
