"""What a fault costs: arithmetic, correlation, stake before withdrawals, the reporter, no money made or lost."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.receipts import Event
from state.transition.jail import FOREVER, load_jail
from state.transition.slashing import (
    EQUIVOCATED,
    OFFENDERS_MAX,
    PENALTY_MIN,
    SHARE_ONE,
    SLASHED,
    bonded,
    delete_old_offences,
    is_tombstoned,
    is_worse,
    list_slashes,
    load_slash,
    punish,
    rate_of,
    share_of,
    take_bonded,
)
from state.transition.staking import Unbonding, load_stake, save_stake, save_unbonding, unbondings_of
from state.view import Overlay, Table
from state.view.accounts import balance_of, burned
from tests.state.transition.chain import COIN
from tests.state.transition.faults import EPOCH_BLOCKS, EVIDENCE_EPOCHS, MEMBERS, NOBODY, REPORTER, Court


def withdraw(state: Overlay, address: bytes, *amounts: int) -> None:
    """Move parts of a stake to withdrawals that fall due one after the other."""
    for number, amount in enumerate(amounts):
        record = load_stake(state, address)
        assert record is not None
        save_stake(state, address, record._replace(amount=record.amount - amount))
        save_unbonding(state, Unbonding(1_000 + number, address, number, amount))


def test_a_single_small_fault_costs_five_percent_of_which_a_twentieth_is_the_reporters() -> None:
    court = Court([1_000] * 30)
    events: list[Event] = []
    address = court.members[3].address
    punish(court.state, [court.offence(3, 0)], court.block(0), events.append)
    # 3 x 1/30 is 10 %: more than the minimum
    record = load_slash(court.state, address)
    assert record is not None
    assert record.share == share_of(1_000, 30_000) == 33_333_334  # rounded up
    assert (record.rate, record.taken) == (100_000_002, 1_000 * COIN * 100_000_002 // SHARE_ONE)
    reward = record.taken // 20
    assert (record.rewarded, record.base, record.reporter) == (reward, 1_000 * COIN, REPORTER)
    assert balance_of(court.state, REPORTER) == reward
    assert burned(court.state) == record.taken - reward
    assert events == [
        EQUIVOCATED(address, REPORTER, 1, 0, 7),
        SLASHED(address, record.taken, record.taken, reward),
    ]
    jail = load_jail(court.state, address)
    assert jail is not None
    assert jail.until_epoch == FOREVER
    assert is_tombstoned(court.state, address) and not is_tombstoned(court.state, court.members[4].address)
    court.check_supply()


def test_the_rate_is_at_least_the_minimum_and_at_most_everything() -> None:
    assert rate_of([]) == rate_of([1]) == PENALTY_MIN == SHARE_ONE // 20
    assert rate_of([SHARE_ONE // 60]) == PENALTY_MIN
    assert rate_of([SHARE_ONE // 50]) == 3 * SHARE_ONE // 50
    assert rate_of([SHARE_ONE // 6, SHARE_ONE // 6 + 1]) == SHARE_ONE - 4 + 3  # 2 x 166,666,666 + 1, three times
    assert rate_of([SHARE_ONE // 3 + 1]) == rate_of([SHARE_ONE] * 100) == SHARE_ONE


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_rates_agree_with_exact_arithmetic(weights: list[int]) -> None:
    total = sum(weights) + 10**9
    shares = [share_of(weight, total) for weight in weights]
    exact = max(Fraction(1, 20), min(Fraction(1), 3 * Fraction(sum(weights), total)))
    assert 0 <= Fraction(rate_of(shares), SHARE_ONE) - exact <= Fraction(3 * len(weights), SHARE_ONE)
    if 3 * sum(weights) >= total:
        assert rate_of(shares) == SHARE_ONE, "a third of the weight loses everything, whatever rounding does"


def test_who_comes_later_raises_the_penalty_of_who_came_before() -> None:
    court = Court([100] * 10)
    punish(court.state, [court.offence(0, 0)], court.block(0), lambda _: None)
    assert bonded(court.state, court.members[0].address) == 70 * COIN  # 3 x 10 %
    punish(court.state, [court.offence(1, 0)], court.block(1), lambda _: None)
    assert bonded(court.state, court.members[0].address) == 40 * COIN  # 3 x 20 %
    assert bonded(court.state, court.members[1].address) == 40 * COIN
    punish(court.state, [court.offence(2, 1), court.offence(3, 1)], court.block(2), lambda _: None)
    for member in range(4):
        assert bonded(court.state, court.members[member].address) == 0  # 3 x 40 %
        assert load_stake(court.state, court.members[member].address) is None
    assert bonded(court.state, court.members[4].address) == 100 * COIN
    assert burned(court.state) == 380 * COIN and balance_of(court.state, REPORTER) == 20 * COIN
    court.check_supply()


def test_faults_out_of_the_window_do_not_correlate() -> None:
    court = Court([100] * 10)
    punish(court.state, [court.offence(0, 0)], court.block(0), lambda _: None)
    punish(court.state, [court.offence(1, EVIDENCE_EPOCHS)], court.block(EVIDENCE_EPOCHS), lambda _: None)
    assert bonded(court.state, court.members[0].address) == 40 * COIN  # the last epoch of its window
    punish(court.state, [court.offence(2, 1)], court.block(EVIDENCE_EPOCHS + 1), lambda _: None)
    assert bonded(court.state, court.members[0].address) == 40 * COIN
    assert bonded(court.state, court.members[2].address) == 40 * COIN  # of two, not of three
    court.check_supply()


def test_the_window_is_emptied_at_the_ends_of_epochs_and_the_records_stay() -> None:
    court = Court([100] * 10)
    state = court.state
    punish(state, [court.offence(0, 0), court.offence(1, 2)], court.block(2), lambda _: None)

    def in_window() -> int:
        return len(state.scan(bytes([Table.SLASH_WINDOW]), bytes([Table.SLASH_WINDOW + 1]), 100))

    for epoch in range(2, EVIDENCE_EPOCHS):
        delete_old_offences(state, court.block(epoch, offset=EPOCH_BLOCKS), lambda _: None)
    delete_old_offences(state, court.block(EVIDENCE_EPOCHS, offset=EPOCH_BLOCKS - 1), lambda _: None)
    assert in_window() == 2
    delete_old_offences(state, court.block(EVIDENCE_EPOCHS, offset=EPOCH_BLOCKS), lambda _: None)
    assert in_window() == 1  # epoch 7 begins: a fault of epoch 0 can no longer be proven
    delete_old_offences(state, court.block(EVIDENCE_EPOCHS + 2, offset=EPOCH_BLOCKS), lambda _: None)
    assert in_window() == 0
    assert {address for address, _ in list_slashes(state, limit=10)} == {key.address for key in MEMBERS[:2]}
    first, second = sorted(key.address for key in MEMBERS[:2])
    assert [address for address, _ in list_slashes(state, limit=1)] == [first]
    assert [address for address, _ in list_slashes(state, after=first, limit=5)] == [second]
    assert is_tombstoned(state, first)


def test_stake_goes_before_withdrawals_and_the_free_balance_is_never_touched() -> None:
    court = Court([1_000, 100, 100, 100])
    state, address = court.state, MEMBERS[1].address
    withdraw(state, address, 30 * COIN, 20 * COIN, 40 * COIN)
    assert bonded(state, address) == 100 * COIN
    assert take_bonded(state, address, 15 * COIN) == 15 * COIN
    assert load_stake(state, address) is None
    assert [entry.amount for entry in unbondings_of(state, address)] == [25 * COIN, 20 * COIN, 40 * COIN]
    assert take_bonded(state, address, 30 * COIN) == 30 * COIN
    assert [entry.amount for entry in unbondings_of(state, address)] == [15 * COIN, 40 * COIN]
    assert take_bonded(state, address, 1_000 * COIN) == 55 * COIN
    assert unbondings_of(state, address) == []
    assert take_bonded(state, address, 1) == take_bonded(state, REPORTER, 7) == take_bonded(state, address, 0) == 0
    with pytest.raises(AssertionError):
        take_bonded(state, address, -1)


def test_who_withdrew_everything_pays_from_the_withdrawal() -> None:
    court = Court([100] * 10)
    address = MEMBERS[0].address
    withdraw(court.state, address, 60 * COIN, 40 * COIN)
    punish(court.state, [court.offence(0, 0)], court.block(3), lambda _: None)
    assert [entry.amount for entry in unbondings_of(court.state, address)] == [30 * COIN, 40 * COIN]
    court.check_supply()


def test_who_has_nothing_left_is_out_for_ever_all_the_same() -> None:
    court = Court([100] * 10)
    address = MEMBERS[0].address
    withdraw(court.state, address, 100 * COIN)
    for entry in unbondings_of(court.state, address):
        save_unbonding(court.state, entry._replace(amount=0))
    events: list[Event] = []
    punish(court.state, [court.offence(0, 0)], court.block(3), events.append)
    assert events == [EQUIVOCATED(address, REPORTER, 1, 0, 7)]
    assert is_tombstoned(court.state, address)
    record = load_slash(court.state, address)
    assert record is not None and (record.base, record.taken) == (0, 0)


@pytest.mark.parametrize("reporter", [NOBODY, MEMBERS[0].address, bytes(18) + b"\x07\x04"])
def test_the_offender_nobody_and_a_system_address_are_paid_nothing(reporter: bytes) -> None:
    court = Court([100] * 10)
    before = balance_of(court.state, reporter)
    punish(court.state, [court.offence(0, 0, reporter=reporter)], court.block(0), lambda _: None)
    assert balance_of(court.state, reporter) == before
    assert burned(court.state) == 30 * COIN
    court.check_supply()


def test_each_reporter_is_paid_for_its_own_offender_also_when_the_penalty_rises() -> None:
    court = Court([100] * 10)
    other = b"\xbb" * 20
    punish(court.state, [court.offence(0, 0)], court.block(0), lambda _: None)
    punish(court.state, [court.offence(1, 0, reporter=other)], court.block(0), lambda _: None)
    assert balance_of(court.state, REPORTER) == balance_of(court.state, other) == 3 * COIN


def test_a_fault_of_a_smaller_seat_does_not_shield_from_one_of_a_larger() -> None:
    """Whoever is about to break the chain could else report itself first, for a fault of its first days."""
    court = Court([100] * 10)
    state, small = court.state, court.offence(0, 0)._replace(weight=1, reporter=MEMBERS[5].address)
    assert is_worse(state, small)
    punish(state, [small], court.block(2), lambda _: None)
    address = court.members[0].address
    assert bonded(state, address) == 95 * COIN
    large = court.offence(0, 1)._replace(fault=2, view=9, weight=400)
    assert not is_worse(state, small) and not is_worse(state, small._replace(epoch=2)) and is_worse(state, large)
    events: list[Event] = []
    punish(state, [large], court.block(2), events.append)
    assert bonded(state, address) == 0
    record = load_slash(state, address)
    assert record is not None
    assert record[:4] == (2, 1, 9, court.block(2).height) and record.share == large.share
    assert (record.base, record.taken, record.reporter) == (100 * COIN, 100 * COIN, MEMBERS[5].address)
    assert record.rewarded == 5 * COIN
    assert events == [
        EQUIVOCATED(address, REPORTER, 2, 1, 9),
        SLASHED(address, 95 * COIN, 100 * COIN, 5 * COIN - 5 * COIN // 20),
    ]
    # What others do correlates with the larger fault, and in the window of the larger alone.
    punish(state, [court.offence(1, 1)._replace(weight=1)], court.block(2), lambda _: None)
    assert bonded(state, court.members[1].address) == 0
    assert len(state.scan(bytes([Table.SLASH_WINDOW]), bytes([Table.SLASH_WINDOW + 1]), 9)) == 2
    punish(state, [small, large], court.block(2), events.append)
    assert len(events) == 2, "nothing that adds nothing is punished"
    court.check_supply()


def test_more_offenders_than_are_counted_cost_a_bounded_amount_of_work() -> None:
    court = Court([100] * 10)
    state = court.state
    offence = court.offence(0, 0)
    crowd = [offence._replace(operator=number.to_bytes(20, "big"), epoch=1) for number in range(OFFENDERS_MAX)]
    punish(state, [offence, *crowd], court.block(1), lambda _: None)
    # The oldest is not among the newest OFFENDERS_MAX any more, but pays the rate of the day all the same.
    assert bonded(state, offence.operator) == 0
    assert is_tombstoned(state, offence.operator)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 5_000), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
    st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, EVIDENCE_EPOCHS), st.integers(1, 100)),
        max_size=16,
        unique_by=lambda fault: (fault[0], fault[2]),
    ),
)
def test_the_order_of_proofs_makes_no_difference(
    stakes: list[int], order: random.Random, faults: list[tuple[int, int, int]]
) -> None:
    faults = [fault for fault in faults if fault[0] < len(stakes)]
    outcomes = []
    for shuffled in (False, True):
        court = Court(stakes)
        if shuffled:
            order.shuffle(faults)
        groups = [[fault] for fault in faults] if shuffled else [faults]
        for group in groups:
            offences = [  # of one operator too, from epochs in which it had another part of the weight
                court.offence(member, epoch)._replace(weight=part, committee_weight=1_000)
                for member, epoch, part in group
            ]
            punish(court.state, offences, court.block(EVIDENCE_EPOCHS), lambda _: None)
        court.check_supply()
        outcomes.append(
            (
                [bonded(court.state, key.address) for key in court.members],
                burned(court.state),
                balance_of(court.state, REPORTER),
                list_slashes(court.state, limit=100),
            )
        )
    assert outcomes[0] == outcomes[1]
    for member, *_ in faults:
        record = load_slash(court.state, court.members[member].address)
        assert record is not None
        assert record.taken == record.base * record.rate // SHARE_ONE
        assert record.taken * 20 >= record.base - 20


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fault", "withdraw", "release", "boundary"]), st.integers(0, 5), st.integers(0, 3),
        st.integers(1, 300 * COIN),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), STEPS)
def test_no_sequence_makes_or_loses_money(stakes: list[int], steps: list[tuple[str, int, int, int]]) -> None:
    court = Court(stakes)
    state, epoch = court.state, 0
    number = 0
    for what, member, back, amount in steps:
        key = court.members[member % len(stakes)]
        match what:
            case "fault":
                offence = court.offence(member % len(stakes), max(0, epoch - back), reporter=MEMBERS[back].address)
                weighed = offence._replace(weight=1 + amount % offence.committee_weight)
                punish(state, [weighed], court.block(epoch), lambda _: None)
            case "withdraw":
                record = load_stake(state, key.address)
                if record is not None:
                    part = min(amount, record.amount)
                    save_stake(state, key.address, record._replace(amount=record.amount - part))
                    save_unbonding(state, Unbonding(epoch, key.address, number, part))
                    number += 1
            case "release":
                for hook in court.runtime.hooks:
                    hook(state, court.block(epoch)._replace(time_ms=max(0, epoch - 2)), lambda _: None)
            case _:
                delete_old_offences(state, court.block(epoch, offset=EPOCH_BLOCKS), lambda _: None)
                epoch += 1
        court.check_supply()
    for address, slashed in list_slashes(state, limit=100):
        assert 0 <= slashed.rewarded <= slashed.taken <= slashed.base
        if slashed.reporter == address:
            assert slashed.rewarded == 0
