from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.prices import (
    ROLE_WEIGHTS,
    TERA,
    Budget,
    Role,
    hour_price,
    share,
    share_up,
    split,
    split_roles,
    work_price,
    work_price_up,
)

AMOUNTS = st.integers(0, 10**30)
WEIGHTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=12).filter(any)
MEMBERS = st.dictionaries(st.binary(min_size=20, max_size=20), st.integers(0, 10**6), max_size=4)


@given(AMOUNTS, WEIGHTS)
def test_a_split_loses_no_unit_and_is_fair_to_one_unit(amount: int, weights: list[int]) -> None:
    parts = split(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert part * sum(weights) - amount * weight + sum(weights) - 1 >= 0
        assert abs(part * sum(weights) - amount * weight) < sum(weights)


def test_units_left_over_go_to_the_largest_remainders_and_then_to_the_earlier() -> None:
    assert split(10, [1, 1, 1]) == (4, 3, 3)
    assert split(100, [80, 8, 5]) == (86, 9, 5)
    assert split(1, [1, 2]) == (0, 1)


@given(AMOUNTS, st.dictionaries(st.sampled_from(Role), MEMBERS, max_size=5))
def test_a_split_by_roles_sums_exactly_and_pays_only_contributors(
    amount: int, contributions: dict[Role, dict[bytes, int]]
) -> None:
    if not any(sum(members.values()) for members in contributions.values()):
        return
    parts = split_roles(amount, contributions)
    assert sum(part for _, _, part in parts) == amount
    assert all(contributions[role][address] for role, address, part in parts if part)
    present = [role for role, members in contributions.items() if sum(members.values())]
    for role in present:
        got = sum(part for each, _, part in parts if each == role)
        weight, whole = ROLE_WEIGHTS[role], sum(ROLE_WEIGHTS[each] for each in present)
        assert abs(got * whole - amount * weight) < whole


@given(st.lists(AMOUNTS, min_size=1, max_size=20), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_budget_covers_the_shares_of_any_parts_of_its_price(
    parts: list[int], verification: int, fee: int
) -> None:
    budget = Budget.of(sum(parts), verification_bps=verification, fee_bps=fee)
    assert sum(share(part, verification) for part in parts) <= budget.verification
    assert sum(share(part, fee) for part in parts) <= budget.fee
    assert budget.total == budget.price + budget.verification + budget.fee


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(1, 10**20))
def test_parts_of_a_work_never_cost_more_than_the_whole(parts: list[int], price: int) -> None:
    assert sum(work_price(part, price) for part in parts) <= work_price(sum(parts), price)
    assert sum(work_price_up(part, price) for part in parts) >= work_price_up(sum(parts), price)


@given(st.integers(0, 10**18), AMOUNTS)
def test_what_is_locked_for_work_covers_it_and_is_less_than_one_unit_more(units: int, price: int) -> None:
    assert 0 <= work_price_up(units, price) - work_price(units, price) <= 1
    assert work_price(TERA, price) == work_price_up(TERA, price) == price


def test_an_hour_costs_what_a_machine_gets_done_in_it() -> None:
    assert hour_price(4 * 10**10, 25 * 10**14) == 36 * 10**16  # 0.36 DKB: the default price on a core of that rate
    assert hour_price(0, 25 * 10**14) == 0


@given(AMOUNTS, st.integers(0, 10_000))
def test_shares_round_away_from_who_pays_and_towards_who_locks(amount: int, bps: int) -> None:
    assert share(amount, bps) <= share_up(amount, bps) <= share(amount, bps) + 1
