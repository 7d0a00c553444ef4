"""Stake, vote keys, unbonding and its release, the committee."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import InvalidTransaction
from state.primitives.keys import SecretKey
from state.primitives.receipts import Event, Receipt, decode_receipt
from state.primitives.vrf import vrf_key_of
from state.transition.epochs import epoch_of
from state.transition.jail import FOREVER, JailRecord, save_jail
from state.transition.runtime import Execution, Runtime
from state.transition.slashing import bonded
from state.transition.staking import (
    NOTICE_EPOCHS,
    RELEASES_MAX,
    STAKE_KIND,
    STAKED,
    UNBONDED,
    UNBONDINGS_MAX,
    UNSTAKE_KIND,
    UNSTAKED,
    StakeRecord,
    Unbonding,
    largest_stakes,
    list_stakes,
    load_committee,
    load_stake,
    save_stake,
    save_unbonding,
    stake_payload,
    unbondings_of,
    unstake_payload,
    vote_key_owner,
)
from state.view import Overlay
from state.view.accounts import balance_of
from tests.state.transition.chain import COIN, START_MS, USERS, VALIDATORS, Ledger, genesis, signed, transfer

ALICE, BOB = USERS[:2]
VOTE, OTHER_VOTE = SecretKey(b"v" * 32), SecretKey(b"w" * 32)
UNBONDING_MS = 10_000
QUICK = {"block_interval_ms_min": 1, "epoch_blocks": 1, "evidence_epochs": 2}
NOTICE_BLOCKS = NOTICE_EPOCHS + 1
MINIMUM = 1_000 * COIN


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Runtime(genesis(unbonding_ms=UNBONDING_MS, **QUICK), check_invariants=True))


def stake(ledger: Ledger, key: SecretKey, nonce: int, amount: int, vote: SecretKey = VOTE) -> Receipt:
    payload = stake_payload(amount, vote, genesis_hash=ledger.runtime.genesis_hash, address=key.address)
    return only(ledger.step(signed(key, nonce, STAKE_KIND, payload)))


def unstake(ledger: Ledger, key: SecretKey, nonce: int, amount: int) -> Receipt:
    return only(ledger.step(signed(key, nonce, UNSTAKE_KIND, unstake_payload(amount))))


def only(execution: Execution) -> Receipt:
    (receipt,) = execution.receipts
    return decode_receipt(receipt)


def test_stake_leaves_the_free_balance_and_is_on_record(ledger: Ledger) -> None:
    receipt = stake(ledger, ALICE, 0, 2 * MINIMUM)
    assert receipt.events == (STAKED(ALICE.address, VOTE.vote_key, 2 * MINIMUM, 2 * MINIMUM),)
    assert load_stake(ledger.state, ALICE.address) == StakeRecord(
        2 * MINIMUM, VOTE.vote_key, vrf_key_of(VOTE).public, 1
    )
    fee = receipt.gas_used * receipt.effective_gas_price
    assert balance_of(ledger.state, ALICE.address) == 8_000 * COIN - fee
    stake(ledger, ALICE, 1, 5)  # more, for the same key
    assert load_stake(ledger.state, ALICE.address) == StakeRecord(
        2 * MINIMUM + 5, VOTE.vote_key, vrf_key_of(VOTE).public, 1
    )
    stake(ledger, ALICE, 2, 0, OTHER_VOTE)  # nothing more, for another key
    assert load_stake(ledger.state, ALICE.address) == StakeRecord(
        2 * MINIMUM + 5, OTHER_VOTE.vote_key, vrf_key_of(OTHER_VOTE).public, 3
    )
    assert vote_key_owner(ledger.state, VOTE.vote_key) == ALICE.address
    assert [address for address, _ in list_stakes(ledger.state)] == sorted(
        [ALICE.address, *(key.address for key in VALIDATORS)]
    )


def test_a_vote_key_belongs_to_one_account_for_ever(ledger: Ledger) -> None:
    stake(ledger, ALICE, 0, MINIMUM)
    assert stake(ledger, BOB, 0, MINIMUM).reason == "vote_key_taken"
    assert stake(ledger, BOB, 1, MINIMUM, VALIDATORS[0]).reason == "vote_key_taken"
    assert unstake(ledger, ALICE, 1, MINIMUM).status == 1
    assert load_stake(ledger.state, ALICE.address) is None
    assert stake(ledger, BOB, 2, MINIMUM).reason == "vote_key_taken"
    assert stake(ledger, BOB, 3, MINIMUM, OTHER_VOTE).status == 1


def test_a_vote_key_must_be_shown_to_be_held(ledger: Ledger) -> None:
    good = stake_payload(MINIMUM, VOTE, genesis_hash=ledger.runtime.genesis_hash, address=ALICE.address)
    for nonce, payload in enumerate(
        (
            stake_payload(MINIMUM, VOTE, genesis_hash=b"x" * 32, address=ALICE.address),
            stake_payload(MINIMUM, VOTE, genesis_hash=ledger.runtime.genesis_hash, address=BOB.address),
            [good[0], OTHER_VOTE.vote_key, *good[2:]],
            [good[0], b"\xff" * 32, *good[2:]],  # not a point
            [*good[:2], bytes(64), *good[3:]],  # the VRF key alone is shown to be held
            [*good[:3], vrf_key_of(OTHER_VOTE).public, good[4]],
            [*good[:4], bytes(80)],
        )
    ):
        assert only(ledger.step(signed(ALICE, nonce, STAKE_KIND, payload))).reason == "vote_key_not_proven"
    assert load_stake(ledger.state, ALICE.address) is None


def test_stakes_are_never_small(ledger: Ledger) -> None:
    assert stake(ledger, ALICE, 0, MINIMUM - 1).reason == "stake_too_small"
    assert stake(ledger, ALICE, 1, MINIMUM + 10).status == 1
    assert unstake(ledger, ALICE, 2, 11).reason == "stake_too_small"
    assert unstake(ledger, ALICE, 3, MINIMUM + 11).reason == "stake_insufficient"
    assert unstake(ledger, BOB, 0, 1).reason == "stake_insufficient"
    assert unstake(ledger, ALICE, 4, 10).status == 1


def go_on(ledger: Ledger, blocks: int = NOTICE_BLOCKS) -> None:
    """Let the epochs pass for which withdrawn stake waits, in no time."""
    for _ in range(blocks):
        assert returned(ledger.step(after_ms=1)) == []


def returned(execution: Execution) -> list[Event]:
    """Return what the block says of stake that returned."""
    assert execution.block_receipt is not None, "each block ends an epoch"
    return [event for event in decode_receipt(execution.block_receipt).events if event.topics[0] == UNBONDED.topic]


def test_withdrawn_stake_returns_when_its_time_has_come(ledger: Ledger) -> None:
    stake(ledger, ALICE, 0, 3 * MINIMUM)
    receipt = unstake(ledger, ALICE, 1, MINIMUM)
    due_ms = ledger.time_ms + UNBONDING_MS
    assert receipt.events == (UNSTAKED(ALICE.address, MINIMUM, 2 * MINIMUM, due_ms),)
    assert unbondings_of(ledger.state, ALICE.address) == [Unbonding(due_ms, ALICE.address, 1, MINIMUM, 1)]
    free = balance_of(ledger.state, ALICE.address)
    go_on(ledger)
    assert returned(ledger.step(after_ms=UNBONDING_MS - 1 - NOTICE_BLOCKS)) == []
    assert balance_of(ledger.state, ALICE.address) == free
    assert returned(ledger.step(after_ms=1)) == [UNBONDED(ALICE.address, MINIMUM)]
    assert balance_of(ledger.state, ALICE.address) == free + MINIMUM
    assert unbondings_of(ledger.state, ALICE.address) == []
    assert returned(ledger.step(after_ms=UNBONDING_MS)) == []


@pytest.mark.parametrize("epoch_blocks", [1, 2, 5])
def test_a_chain_that_stood_still_returns_no_stake_whose_seat_is_still_taken(epoch_blocks: int) -> None:
    """Else a third of the weight withdraws, stops the chain for that time, and is free to vote twice."""
    parameters = QUICK | {"epoch_blocks": epoch_blocks}
    ledger = Ledger(Runtime(genesis(unbonding_ms=UNBONDING_MS, **parameters), check_invariants=True))
    leaver, chain = VALIDATORS[1], ledger.runtime.chain
    ledger.step(transfer(ALICE, 0, leaver.address, COIN))
    had = balance_of(ledger.state, leaver.address)
    assert unstake(ledger, leaver, 0, 5_000 * COIN).status == 1
    left = epoch_of(ledger.height, chain)
    while epoch_of(ledger.height + 1, chain) <= left + NOTICE_EPOCHS:
        ledger.step(after_ms=UNBONDING_MS)
        assert bonded(ledger.state, leaver.address) == 5_000 * COIN
        assert balance_of(ledger.state, leaver.address) <= had
        committee = load_committee(ledger.state, epoch_of(ledger.height, chain))
        assert committee is not None
        is_seated = committee.seat_of(leaver.address) is not None
        assert is_seated == (epoch_of(ledger.height, chain) < left + NOTICE_EPOCHS)
    ledger.step(after_ms=chain.block_interval_ms_min)
    assert bonded(ledger.state, leaver.address) == 0
    assert unbondings_of(ledger.state, leaver.address) == []
    assert balance_of(ledger.state, leaver.address) > 5_000 * COIN


def test_what_is_put_off_stands_in_the_way_of_nobody(ledger: Ledger) -> None:
    go_on(ledger)
    stake(ledger, ALICE, 0, 3 * MINIMUM)
    changed = Overlay(ledger.state)
    record = load_stake(changed, ALICE.address)
    assert record is not None
    save_stake(changed, ALICE.address, record._replace(amount=record.amount - RELEASES_MAX - 2))
    epoch = ledger.height - 1
    for number in range(RELEASES_MAX):  # all due before the one that nothing is held against
        save_unbonding(changed, Unbonding(1, number.to_bytes(20, "big"), number, 1, epoch))
    save_unbonding(changed, Unbonding(2, BOB.address, 0, 2, 0))
    ledger.state.write(changed.changes)
    assert returned(ledger.step(after_ms=1)) == []
    assert returned(ledger.step(after_ms=1)) == [UNBONDED(BOB.address, 2)]
    blocks = 2
    while not (events := returned(ledger.step(after_ms=1))):
        blocks += 1
    assert len(events) == RELEASES_MAX and blocks == NOTICE_EPOCHS


def test_releases_of_one_block_are_bounded_and_the_rest_follows(ledger: Ledger) -> None:
    count = RELEASES_MAX + 5
    changed = Overlay(ledger.state)
    record = load_stake(changed, VALIDATORS[0].address)
    assert record is not None
    save_stake(changed, VALIDATORS[0].address, record._replace(amount=record.amount - count))
    for number in range(count):
        save_unbonding(changed, Unbonding(ledger.time_ms, number.to_bytes(20, "big"), number, 1))
    ledger.state.write(changed.changes)
    go_on(ledger)
    ledger.step()
    assert sum(balance_of(ledger.state, number.to_bytes(20, "big")) for number in range(count)) == RELEASES_MAX
    ledger.step()
    assert sum(balance_of(ledger.state, number.to_bytes(20, "big")) for number in range(count)) == count


def test_withdrawals_of_one_account_are_bounded(ledger: Ledger) -> None:
    stake(ledger, ALICE, 0, 2 * MINIMUM)
    execution = ledger.step(
        *(signed(ALICE, nonce, UNSTAKE_KIND, [1], gas_limit=60_000) for nonce in range(1, UNBONDINGS_MAX + 2))
    )
    reasons = [decode_receipt(receipt).reason for receipt in execution.receipts]
    assert reasons == [None] * UNBONDINGS_MAX + ["too_many_unbondings"]
    assert len(unbondings_of(ledger.state, ALICE.address)) == UNBONDINGS_MAX
    go_on(ledger)
    ledger.step(after_ms=UNBONDING_MS)
    assert unbondings_of(ledger.state, ALICE.address) == []
    assert unstake(ledger, ALICE, UNBONDINGS_MAX + 2, 1).status == 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (STAKE_KIND, [MINIMUM, b"k" * 31, b"s" * 64]), (STAKE_KIND, [-1, b"k" * 32, b"s" * 64]),
        (STAKE_KIND, [MINIMUM, b"k" * 32, b"s" * 63]), (STAKE_KIND, [2**127, b"k" * 32, b"s" * 64]),
        (STAKE_KIND, []), (UNSTAKE_KIND, [0]), (UNSTAKE_KIND, [2**127]), (UNSTAKE_KIND, [b"1"]),
        (UNSTAKE_KIND, [1, 1]),
    ],
)  # fmt: skip
def test_other_payloads_are_inadmissible(ledger: Ledger, kind: int, payload: list[Any]) -> None:
    with pytest.raises(InvalidTransaction) as error:
        ledger.runtime.check(signed(ALICE, 0, kind, payload))
    assert error.value.code == "invalid_payload"


def test_the_index_by_amount_follows_the_stakes(ledger: Ledger) -> None:
    stake(ledger, ALICE, 0, 6 * MINIMUM)
    stake(ledger, BOB, 0, MINIMUM, OTHER_VOTE)
    validators = sorted(key.address for key in VALIDATORS)
    assert [address for address, _ in largest_stakes(ledger.state, 10)] == [
        ALICE.address, *validators, BOB.address
    ]  # fmt: skip
    assert [address for address, _ in largest_stakes(ledger.state, 2)] == [ALICE.address, validators[0]]
    unstake(ledger, ALICE, 1, 5 * MINIMUM)
    unstake(ledger, BOB, 1, MINIMUM)
    assert [(a, record.amount) for a, record in largest_stakes(ledger.state, 10)] == [
        *((address, 5 * MINIMUM) for address in validators), (ALICE.address, MINIMUM),
    ]  # fmt: skip
    assert sorted(largest_stakes(ledger.state, 10)) == list_stakes(ledger.state)


def test_an_operator_that_is_out_for_ever_stakes_no_more(ledger: Ledger) -> None:
    stake(ledger, ALICE, 0, 2 * MINIMUM)
    changed = Overlay(ledger.state)
    save_jail(changed, ALICE.address, JailRecord(FOREVER, 0))
    ledger.state.write(changed.changes)
    assert stake(ledger, ALICE, 1, MINIMUM).reason == "operator_tombstoned"
    assert stake(ledger, ALICE, 2, 0, OTHER_VOTE).reason == "operator_tombstoned"
    assert unstake(ledger, ALICE, 3, MINIMUM).status == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB]), st.sampled_from(["stake", "unstake", "wait"]),
        st.sampled_from([1, MINIMUM - 1, MINIMUM, 3 * MINIMUM, 20 * MINIMUM]), st.sampled_from([VOTE, OTHER_VOTE]),
    ),
    max_size=14,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_no_sequence_makes_or_loses_money(steps: list[tuple[SecretKey, str, int, SecretKey]]) -> None:
    ledger = Ledger(Runtime(genesis(unbonding_ms=2_500, **QUICK), check_invariants=True))
    nonces = {ALICE: 0, BOB: 0}
    for key, what, amount, vote in steps:
        if what == "wait":
            ledger.step(after_ms=1_300)
            continue
        try:
            if what == "stake":
                stake(ledger, key, nonces[key], amount, vote)
            else:
                unstake(ledger, key, nonces[key], amount)
        except InvalidTransaction as error:
            assert error.code == "insufficient_funds"
        else:
            nonces[key] += 1
        for _, record in list_stakes(ledger.state):
            assert record.amount >= MINIMUM
    for _ in range(NOTICE_BLOCKS):
        ledger.step(after_ms=1)
    ledger.step(after_ms=2_500)
    assert not [entry for key in (ALICE, BOB) for entry in unbondings_of(ledger.state, key.address)]
    assert ledger.time_ms > START_MS
