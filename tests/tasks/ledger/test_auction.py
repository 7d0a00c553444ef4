"""The auction alone: nobody pays or gets what it did not agree to, and only scarcity raises a price."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.ledger.auction import Ask, Bid, FundedFor, Outcome, clear
from tasks.ledger.fitting import RATE_TOP, Needs, Traits
from tests.tasks.ledger.plain_auction import meets

RICH: Final = 10**9
NEEDS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))


def ask(
    name: int, price: int, *, slots: int = 1, funds: int = RICH, needs: tuple[int, int, int] = (0, 0, 0)
) -> Ask:
    return Ask(bytes([name]) * 20, price, slots, funds, Traits(*needs), standing=0, tie=bytes([name]))


def bid(name: int, limit: int, *, needs: tuple[int, int, int] = (0, 0, 0), barred: Sequence[int] = ()) -> Bid:
    excluded = frozenset(bytes([machine]) * 20 for machine in barred)
    gpus, memory_mib, rate_min = needs
    wants = Needs(gpus, memory_mib, (rate_min, RATE_TOP))
    return Bid(bytes([name]) * 32, limit, wants, barred=excluded, tie=bytes([name]))


def units(order: Bid) -> int:
    return 1 + order.task[0] % 5


def bond(order: Bid, _machine: Ask, price: int) -> int:
    return 2 * price * units(order)


def books(most: int = 12) -> st.SearchStrategy[tuple[list[Ask], list[Bid]]]:
    asks = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3), st.integers(0, 300), NEEDS), max_size=most)
    bids = st.lists(st.tuples(st.integers(1, 25), NEEDS, st.lists(st.integers(1, 6), max_size=2)), max_size=most)

    def made(pair: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]) -> tuple[list[Ask], list[Bid]]:
        asks = [
            ask(at + 1, price, slots=slots, funds=funds, needs=needs)
            for at, (price, slots, funds, needs) in enumerate(pair[0])
        ]
        bids = [
            bid(at + 1, limit, needs=needs, barred=barred) for at, (limit, needs, barred) in enumerate(pair[1])
        ]
        return asks, bids

    return st.tuples(asks, bids).map(made)


def admits(machine: Ask, order: Bid) -> bool:
    return (
        machine.price <= order.limit
        and meets(machine, order)
        and bond(order, machine, machine.price) <= machine.funds
    )


def left(outcome: Outcome, asks: Sequence[Ask]) -> list[Ask]:
    """The machines with a slot and the funds that they have left."""
    taken = Counter(match.ask.machine for match in outcome.matches)
    locked: Counter[bytes] = Counter()
    for match in outcome.matches:
        locked[match.ask.machine] += bond(match.bid, match.ask, match.price)
    return [
        each._replace(slots=each.slots - taken[each.machine], funds=each.funds - locked[each.machine])
        for each in asks
        if each.slots > taken[each.machine]
    ]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(book=books())
def test_nobody_pays_more_than_its_bid_or_gets_less_than_its_ask(book: tuple[list[Ask], list[Bid]]) -> None:
    asks, bids = book
    outcome = clear(asks, bids, bond)
    taken, locked = Counter[bytes](), Counter[bytes]()
    for match in outcome.matches:
        assert match.ask.price <= match.price <= match.bid.limit
        assert meets(match.ask, match.bid)
        taken[match.ask.machine] += 1
        locked[match.ask.machine] += bond(match.bid, match.ask, match.price)
    assert all(taken[each.machine] <= each.slots and locked[each.machine] <= each.funds for each in asks)
    ends = [match.bid for match in outcome.matches] + [*outcome.outbid, *outcome.unmet]
    assert sorted(ends) == sorted(bids)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(book=books())
def test_only_scarcity_raises_a_price(book: tuple[list[Ask], list[Bid]]) -> None:
    asks, bids = book
    outcome = clear(asks, bids, bond)
    free = left(outcome, asks)
    for match in outcome.matches:
        if match.price == match.ask.price:
            continue
        assert any(loser.limit >= match.price and admits(match.ask, loser) for loser in outcome.outbid)
        assert not any(admits(spare, match.bid) and spare.price < match.price for spare in free)
    # No bid goes without beside a machine that would take it.
    for loser in (*outcome.outbid, *outcome.unmet):
        assert not any(admits(spare, loser) for spare in free)
    assert not any(admits(each, loser) for loser in outcome.unmet for each in asks)


@settings(max_examples=200, deadline=None)
@given(book=books(), seed=st.integers(0, 1000))
def test_the_order_of_what_is_given_changes_nothing(book: tuple[list[Ask], list[Bid]], seed: int) -> None:
    asks, bids = book
    chance = random.Random(seed)
    mixed = clear(chance.sample(asks, len(asks)), chance.sample(bids, len(bids)), bond)
    assert mixed == clear(asks, bids, bond)


def test_the_highest_bid_comes_first_and_ties_are_drawn_and_then_by_record() -> None:
    low, high, even = bid(1, 5), bid(2, 9), bid(3, 5)
    outcome = clear([ask(1, 4), ask(2, 3)], [low, high, even], bond)
    assert [(match.bid, match.ask.price) for match in outcome.matches] == [(high, 3), (low, 4)]
    assert outcome.outbid == (even,)
    proven = ask(3, 3)._replace(standing=900)
    assert clear([ask(1, 3), ask(2, 3), proven], [high], bond).matches[0].ask == proven


def test_who_went_without_sets_the_price_but_never_above_the_own_bid_or_a_spare_machine() -> None:
    def price(asks: list[Ask], bids: list[Bid]) -> int:
        return clear(asks, bids, bond).matches[0].price

    assert price([ask(1, 2)], [bid(1, 9)]) == 2
    assert price([ask(1, 2)], [bid(1, 9), bid(2, 6)]) == 6
    assert price([ask(1, 2)], [bid(1, 9), bid(2, 1)]) == 2
    assert price([ask(1, 2)], [bid(1, 9), bid(2, 9)]) == 9
    # The loser needs what only this machine has; the winner could go elsewhere for 4.
    strong, rare = ask(1, 2, needs=(0, 2, 0)), bid(2, 8, needs=(0, 2, 0))
    assert price([strong, ask(2, 4)], [bid(1, 9), rare]) == 4
    assert price([strong, ask(2, 4)], [bid(1, 9), rare._replace(barred=frozenset({strong.machine}))]) == 2


def test_a_machine_that_cannot_lock_the_bond_for_a_higher_price_gets_its_ask() -> None:
    poor = ask(1, 2, funds=bond(bid(1, 9), ask(1, 2), 2))
    assert clear([poor], [bid(1, 9), bid(2, 6)], bond).matches[0].price == 2


def test_a_drawn_bid_takes_the_first_machine_of_its_draw_whatever_that_asks() -> None:
    dear, cheap = ask(1, 7), ask(2, 1)
    drawn = bid(1, 9)._replace(drawn=(bytes([9]) * 20, dear.machine, cheap.machine))
    (match,) = clear([dear, cheap], [drawn], bond).matches
    assert (match.ask, match.price) == (dear, 7)
    assert clear([dear, cheap], [drawn._replace(drawn=())], bond).unmet


MANY: Final = 128


def decoys(limit: int) -> list[Bid]:
    """Bids for jobs whose bond nobody can lock: they end without a cost."""
    return [bid(at, limit)._replace(tie=bytes([at, 1])) for at in range(100, 100 + MANY)]


def bond_of_decoys(order: Bid, machine: Ask, price: int) -> int:
    return 10 * RICH if order.task[0] >= 100 else bond(order, machine, price)


def test_bids_that_no_machine_can_back_keep_no_machine_from_a_job_that_it_can() -> None:
    small = bid(1, 5)
    outcome = clear([ask(1, 2)], [*decoys(9), small], bond_of_decoys)
    assert [match.bid for match in outcome.matches] == [small]


def test_bids_that_no_machine_can_back_hide_no_rival_from_the_price() -> None:
    """A requester would otherwise pay the ask, whatever those who go without would have paid."""
    mine, rival = bid(1, 10), bid(2, 8)
    outcome = clear([ask(1, 2)], [mine, *decoys(9), rival], bond_of_decoys)
    assert [(match.bid, match.price) for match in outcome.matches] == [(mine, 8)]
    assert outcome.outbid == (rival,)


@pytest.mark.parametrize("funds", [0, RICH // 2])
def test_machines_without_money_hide_nobody_and_the_work_is_bounded(funds: int) -> None:
    """The dearest call: machines that every bid would take first, none of which can lock a bond."""
    calls = 0

    def counted(order: Bid, machine: Ask, price: int) -> int:
        nonlocal calls
        calls += 1
        return RICH if machine.price == 1 else bond(order, machine, price)

    def named(at: int) -> bytes:
        return at.to_bytes(4, "big") * 5

    asks = [Ask(named(at), 1, 1, funds, Traits(9, 9, 9), 0, named(at)) for at in range(1000)]
    asks += [Ask(named(at), 5, 1, RICH, Traits(9, 9, 9), 0, named(at)) for at in range(1000, 1050)]
    bids = [
        Bid(at.to_bytes(4, "big") * 8, 10, Needs(), frozenset(), at.to_bytes(4, "big")) for at in range(MANY)
    ]  # fmt: skip

    def funded_by(asks: Sequence[Ask], funds: Sequence[int]) -> FundedFor:
        rich = sum(1 << at for at, most in enumerate(funds) if most >= RICH)
        return lambda bid: rich

    assert len(clear(asks, bids, counted, funded_by).matches) == 50
    assert calls <= 4 * len(bids)


# What shading one's own order gains


def even(asks: Sequence[int], limits: Sequence[int]) -> tuple[list[Ask], list[Bid]]:
    """A market where every machine admits every job."""
    return [ask(at + 1, price) for at, price in enumerate(asks)], [
        bid(at + 1, at_most) for at, at_most in enumerate(limits)
    ]


def _free(*_given: object) -> int:
    return 0


def income(outcome: Outcome, machine: bytes, cost: int) -> int:
    return sum(match.price - cost for match in outcome.matches if match.ask.machine == machine)


def saving(outcome: Outcome, task: bytes, value: int) -> int:
    return sum(value - match.price for match in outcome.matches if match.bid.task == task)


PRICES: Final = st.lists(st.integers(1, 15), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(asks=PRICES, limits=PRICES, at=st.integers(0, 4))
def test_a_lower_bid_than_the_job_is_worth_gains_nothing(asks: list[int], limits: list[int], at: int) -> None:
    machines, bids = even(asks, limits)
    mine = bids[at % len(bids)]
    honest = saving(clear(machines, bids, _free), mine.task, mine.limit)
    others = [each for each in bids if each != mine]
    for shaded in range(1, mine.limit):
        outcome = clear(machines, [*others, mine._replace(limit=shaded)], _free)
        # Among different bids for the last machines, who wins may take a cheaper ask; it saves no more than that.
        assert saving(outcome, mine.task, mine.limit) <= max(honest, mine.limit - min(asks))
        if len(set(asks)) == 1:
            assert saving(outcome, mine.task, mine.limit) <= honest


@settings(max_examples=200, deadline=None)
@given(asks=PRICES, limits=PRICES, at=st.integers(0, 4))
def test_a_higher_ask_gains_at_most_up_to_the_next_machine_or_the_lowest_bid_that_wins(
    asks: list[int], limits: list[int], at: int
) -> None:
    machines, bids = even(asks, limits)
    mine = machines[at % len(machines)]
    honest = clear(machines, bids, _free)
    spare = [each.price for each in left(honest, machines) if each != mine]
    others = [each for each in machines if each != mine]
    for shaded in range(mine.price + 1, 16):
        outcome = clear([*others, mine._replace(price=shaded)], bids, _free)
        for match in outcome.matches:
            if match.ask.machine != mine.machine:
                continue
            assert match.price <= match.bid.limit
            paid_before = max((each.price for each in honest.matches), default=0)
            assert match.price <= max(paid_before, min(spare, default=match.bid.limit))
