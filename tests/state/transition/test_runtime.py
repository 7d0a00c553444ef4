"""Admission, bodies, fees, receipts, all or nothing, and no money made or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import ConfigError, InvalidBlock, InvalidTransaction, ProtocolError
from state.primitives.genesis import ChainParameters
from state.primitives.merkle import merkle_proof, merkle_root, verify_merkle_proof
from state.primitives.receipts import Event, EventType, Receipt, decode_receipt
from state.primitives.transactions import Transaction, decode_transaction
from state.transition import runtime as runtime_module
from state.transition.fees import demand_of, effective_price, next_base_fee
from state.transition.lane import Room
from state.transition.rules import BlockContext, Context, Rule
from state.transition.runtime import Checked, Runtime
from state.transition.transfer import TRANSFER_GAS
from state.view import EMPTY, Overlay, Reader, Table
from state.view.accounts import (
    Account,
    InsufficientBalance,
    account_key,
    balance_of,
    burn,
    burned,
    credit,
    debit,
    load_account,
    nonce_of,
    save_account,
)
from tests.state.transition.chain import (
    CHAIN_ID,
    COIN,
    FEE,
    KEYS,
    USERS,
    VALIDATORS,
    VRF,
    Ledger,
    Memory,
    genesis,
    signed,
    transfer,
)

ALICE, BOB, CAROL, DAVE = USERS
LEADER = VALIDATORS[0].address
NOISE_KIND, NOISE_GAS = 0x70, 50_000
NOTED: Final = EventType(bytes(18) + b"\x07\x7f", "Noted(uint256 value)")


class Refused(ProtocolError):
    code = "refused_here"


def _noise(state: Overlay, payload: list[int], context: Context) -> None:
    """Move money, leave marks and an event, then refuse when told to: what must be undone wholly."""
    credit(state, bytes(20), 1)
    debit(state, context.sender, 1)
    state.put(bytes([Table.TASK]) + b"mark", b"new")
    state.delete(bytes([Table.TASK]) + b"old")
    context.emit(NOTED(payload[0]))
    if payload[0]:
        raise Refused


NOISE: Final[Rule[Any]] = Rule(NOISE_KIND, "noise", NOISE_GAS, lambda p: p, lambda _: 1, _noise)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Runtime(genesis(), rules=[NOISE], check_invariants=True))


def receipts(execution: Any) -> list[Receipt]:
    return [decode_receipt(receipt) for receipt in execution.receipts]


# Accounts


def test_credit_and_debit_move_the_balance_alone() -> None:
    state = Overlay(EMPTY)
    save_account(state, b"a" * 20, Account(3, 10))
    credit(state, b"a" * 20, 5)
    debit(state, b"a" * 20, 15)
    assert load_account(state, b"a" * 20) == Account(3, 0)
    with pytest.raises(InsufficientBalance) as error:
        debit(state, b"a" * 20, 1)
    assert (error.value.code, error.value.balance, error.value.needed) == ("insufficient_funds", 0, 1)
    assert state.get(account_key(b"a" * 20)) == bytes(7) + b"\x03" + bytes(16)


def test_an_empty_account_has_no_record() -> None:
    state = Overlay(EMPTY)
    credit(state, b"a" * 20, 0)
    assert state.changes == {}
    credit(state, b"a" * 20, 1)
    debit(state, b"a" * 20, 1)
    assert state.get(account_key(b"a" * 20)) is None
    for wrong in (credit, debit):
        with pytest.raises(AssertionError):
            wrong(state, b"a" * 20, -1)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**127 - 1))
def test_account_records_keep_every_value(nonce: int, balance: int) -> None:
    state = Overlay(EMPTY)
    save_account(state, b"a" * 20, Account(nonce, balance))
    assert load_account(state, b"a" * 20) == Account(nonce, balance)


# Admission


def alter(transaction: Transaction, **fields: Any) -> Transaction:
    changed = decode_transaction(transaction.raw)
    changed.sender = transaction.sender
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"chain_id": 8}, "wrong_chain_id", "invalid chain id for signer"),
        ({"kind": 0x99}, "unknown_kind", "transaction type not supported"),
        ({"gas_limit": TRANSFER_GAS - 1}, "intrinsic_gas_too_low", "intrinsic gas too low"),
        ({"gas_limit": 300_000_001}, "exceeds_block_gas_limit", "exceeds block gas limit"),
        (
            {"max_priority_fee_per_gas": FEE + 1},
            "tip_above_fee_cap",
            "max priority fee per gas higher than max fee",
        ),
        ({"max_fee_per_gas": 999}, "fee_cap_too_low", "max fee per gas less than block base fee"),
        ({"payload": [b"a" * 20]}, "invalid_payload", "transfer"),
        ({"payload": [b"a" * 19, 1]}, "invalid_payload", "transfer"),
        ({"payload": [b"a" * 20, -1]}, "invalid_payload", "transfer"),
        ({"payload": [b"a" * 20, 2**127]}, "invalid_payload", "transfer"),
        ({"payload": [bytes(18) + b"\x07\x01", 1]}, "invalid_payload", "system address"),
        ({"raw": bytes(2**20 + 1)}, "oversized_data", "oversized data"),
        ({"sender": b""}, "signature_invalid", "invalid sender"),
        ({"sender": bytes(20)}, "signature_invalid", "invalid sender"),
    ],
)
def test_what_is_inadmissible_says_why(ledger: Ledger, fields: dict[str, Any], code: str, text: str) -> None:
    good = transfer(ALICE, 0, BOB.address, 1)
    assert ledger.runtime.check(good).cost_max == 1 + TRANSFER_GAS * FEE
    with pytest.raises(InvalidTransaction, match=text) as error:
        ledger.runtime.check(alter(good, **fields))
    assert error.value.code == code


def body_error(ledger: Ledger, *transactions: Transaction) -> ProtocolError:
    with pytest.raises((InvalidTransaction, InvalidBlock)) as error:
        ledger.step(*transactions)
    return error.value


def test_a_body_keeps_nonces_funds_and_fees(ledger: Ledger) -> None:
    ledger.step(transfer(ALICE, 0, BOB.address, 1))
    to = BOB.address
    too_low = body_error(ledger, transfer(ALICE, 0, to, 1))
    assert (too_low.code, str(too_low)) == ("nonce_too_low", "nonce too low: next nonce 1, tx nonce 0")
    assert "nonce too high" in str(body_error(ledger, transfer(ALICE, 2, to, 1)))
    assert "nonce too low" in str(body_error(ledger, transfer(ALICE, 1, to, 1), transfer(ALICE, 1, to, 2)))
    assert "max fee per gas less than block base fee" in str(
        body_error(ledger, transfer(ALICE, 1, to, 1, fee=5000))
    )
    half = 5_000 * COIN
    assert "insufficient funds for gas * price + value" in str(
        body_error(ledger, transfer(ALICE, 1, to, half), transfer(ALICE, 2, to, half))
    )
    # Money that arrives inside the block does not count: whoever checked the body need not execute it.
    nobody = KEYS[0]
    assert "insufficient funds" in str(
        body_error(ledger, transfer(ALICE, 1, nobody.address, COIN), transfer(nobody, 0, to, 1))
    )
    ledger.step(transfer(ALICE, 1, to, half), transfer(ALICE, 2, to, half // 2))


def test_a_body_keeps_the_limits_of_the_block() -> None:
    transactions = [transfer(ALICE, nonce, BOB.address, 1) for nonce in range(4)]
    size = sum(len(transaction.raw) for transaction in transactions)
    for parameter, limit in (
        ("transactions_max", 3),
        ("body_bytes_max", size - 1),
        ("block_gas_limit", 4 * TRANSFER_GAS - 1),
    ):
        extra = {"block_gas_target": TRANSFER_GAS} if parameter == "block_gas_limit" else {}
        small = Ledger(Runtime(genesis(**{parameter: limit}, **extra)))
        assert body_error(small, *transactions).code == "invalid_block"
        checked = [small.runtime.check(transaction) for transaction in transactions]
        assert small.runtime.select(small.state, FEE // 2, checked) == checked[:3]
        small.step(*transactions[:3])


@pytest.mark.parametrize("parameter", ["transactions_max", "block_gas_limit"])
def test_a_full_body_ends_the_look_through_the_pool(parameter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Checked] = []
    fits = Room.fits

    def look(room: Room, checked: Checked) -> bool:
        looked.append(checked)
        return fits(room, checked)

    monkeypatch.setattr(Room, "fits", look)
    limit, extra = (3, {}) if parameter == "transactions_max" else (4 * TRANSFER_GAS - 1, {"block_gas_target": 1})
    small = Ledger(Runtime(genesis(**{parameter: limit}, **extra)))
    checked = [small.runtime.check(transfer(ALICE, nonce, BOB.address, 1)) for nonce in range(9)]
    assert small.runtime.select(small.state, FEE // 2, checked) == checked[:3] == looked


def test_so_many_that_do_not_fit_end_the_look_through_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "MISFITS_MAX", 2)
    first, *others = (transfer(ALICE, nonce, BOB.address, 1) for nonce in (0, 1 << 40, 1 << 40, 1))
    assert len(others[0].raw) > len(others[-1].raw)
    small = Ledger(Runtime(genesis(body_bytes_max=len(first.raw) + len(others[-1].raw))))
    for offered, chosen in (([first, *others[1:]], 2), ([first, *others], 1)):
        checked = [small.runtime.check(transaction) for transaction in offered]
        assert len(small.runtime.select(small.state, FEE // 2, checked)) == chosen


def test_a_generous_gas_limit_takes_no_room_from_others() -> None:
    ledger = Ledger(Runtime(genesis(block_gas_limit=4 * TRANSFER_GAS, block_gas_target=TRANSFER_GAS)))
    wide = [transfer(ALICE, nonce, BOB.address, 1, gas_limit=4 * TRANSFER_GAS) for nonce in range(5)]
    checked = [ledger.runtime.check(transaction) for transaction in wide]
    assert ledger.runtime.select(ledger.state, FEE // 2, checked) == checked[:4]
    assert ledger.step(*wide[:4]).gas_used == 4 * TRANSFER_GAS


# Execution


def test_a_transfer_costs_base_fee_and_tip(ledger: Ledger) -> None:
    base_fee = ledger.runtime.base_fee(ledger.state)
    execution = ledger.step(transfer(ALICE, 0, BOB.address, 3 * COIN, gas_limit=90_000, tip=7))
    price = base_fee + 7
    assert receipts(execution) == [Receipt(1, TRANSFER_GAS, price, None, ())]
    assert balance_of(ledger.state, ALICE.address) == 9_997 * COIN - TRANSFER_GAS * price
    assert balance_of(ledger.state, BOB.address) == 10_003 * COIN
    assert balance_of(ledger.state, LEADER) == TRANSFER_GAS * 7
    assert burned(ledger.state) == TRANSFER_GAS * base_fee
    assert (execution.gas_used, nonce_of(ledger.state, ALICE.address)) == (TRANSFER_GAS, 1)


def test_a_transfer_to_oneself_moves_nothing_but_the_fee(ledger: Ledger) -> None:
    base_fee = ledger.runtime.base_fee(ledger.state)
    ledger.step(transfer(ALICE, 0, ALICE.address, COIN))
    assert balance_of(ledger.state, ALICE.address) == 10_000 * COIN - TRANSFER_GAS * base_fee


def test_what_a_rule_refuses_is_undone_but_for_the_fee(ledger: Ledger) -> None:
    ledger.state.write({bytes([Table.TASK]) + b"old": b"kept"})
    base_fee = ledger.runtime.base_fee(ledger.state)
    execution = ledger.step(
        signed(ALICE, 0, NOISE_KIND, [1]), signed(BOB, 0, NOISE_KIND, [0]), transfer(ALICE, 1, BOB.address, 1)
    )
    failed, noted, moved = receipts(execution)
    assert failed == Receipt(0, NOISE_GAS, base_fee, "refused_here", ())
    assert (noted.status, noted.events) == (1, (NOTED(0),))
    assert moved.events == ()
    assert nonce_of(ledger.state, ALICE.address) == 2
    assert balance_of(ledger.state, ALICE.address) == 10_000 * COIN - (NOISE_GAS + TRANSFER_GAS) * base_fee - 1
    assert balance_of(ledger.state, bytes(20)) == 1

    alone = Ledger(ledger.runtime)
    alone.state.write({bytes([Table.TASK]) + b"old": b"kept"})
    alone.step(signed(ALICE, 0, NOISE_KIND, [1]))
    assert alone.state.get(bytes([Table.TASK]) + b"old") == b"kept"
    assert alone.state.get(bytes([Table.TASK]) + b"mark") is None


def test_execution_refuses_a_body_that_was_never_checked(ledger: Ledger) -> None:
    poor = KEYS[1]
    for transaction in (transfer(ALICE, 1, BOB.address, 1), transfer(poor, 0, BOB.address, 1)):
        checked = ledger.runtime.check(transaction)
        with pytest.raises(InvalidBlock):
            ledger.runtime.execute(ledger.state, ledger.input(), [checked])
    with pytest.raises(InvalidBlock, match="no seat 2"):
        ledger.step(seat=2)


def test_events_of_hooks_are_the_last_leaf() -> None:
    def hook(_state: Overlay, block: BlockContext, emit: Callable[[Event], None]) -> None:
        if block.height == 2:
            emit(NOTED(block.height))

    ledger = Ledger(Runtime(genesis(), hooks=[hook]))
    first = ledger.step(transfer(ALICE, 0, BOB.address, 1))
    assert (first.block_receipt, first.leaves) == (None, first.receipts)
    second = ledger.step(transfer(ALICE, 1, BOB.address, 1))
    assert second.block_receipt is not None
    assert decode_receipt(second.block_receipt).events == (NOTED(2),)
    assert second.receipt_root == merkle_root(second.leaves)
    for index, leaf in enumerate(second.leaves):
        assert verify_merkle_proof(second.receipt_root, leaf, merkle_proof(second.leaves, index))
    assert ledger.step().receipt_root == bytes(32)


def test_a_hook_that_raises_is_a_bug_and_nobodys_fault() -> None:
    def hook(state: Overlay, _block: BlockContext, _emit: Callable[[Event], None]) -> None:
        debit(state, b"z" * 20, 1)

    with pytest.raises(AssertionError, match="insufficient_funds"):
        Ledger(Runtime(genesis(), hooks=[hook])).step()


def test_money_from_nothing_is_noticed() -> None:
    def mint(state: Overlay, _block: BlockContext, _emit: Callable[[Event], None]) -> None:
        credit(state, b"z" * 20, 1)

    def double_burn(state: Overlay, _block: BlockContext, _emit: Callable[[Event], None]) -> None:
        burn(state, 1)

    for hook in (mint, double_burn):
        runtime = Runtime(genesis(), hooks=[hook], check_invariants=True)
        with pytest.raises(AssertionError, match="out of nothing"):
            Ledger(runtime).step()


def test_invariants_are_asked_at_every_block() -> None:
    heights: list[int] = []

    def invariant(state: Reader) -> None:
        heights.append(nonce_of(state, ALICE.address))

    ledger = Ledger(Runtime(genesis(), invariants=[invariant], check_invariants=True))
    ledger.step(transfer(ALICE, 0, BOB.address, 1))
    ledger.step()
    assert heights == [1, 1]


def test_a_dry_run_changes_nothing(ledger: Ledger) -> None:
    before = dict(ledger.state.entries)
    dry = ledger.runtime.dry_run
    block = ledger.input()
    assert dry(ledger.state, block, ledger.runtime.check(transfer(ALICE, 0, BOB.address, 1))).status == 1
    refused = dry(ledger.state, block, ledger.runtime.check(signed(ALICE, 0, NOISE_KIND, [1])))
    assert (refused.status, refused.reason) == (0, "refused_here")
    with pytest.raises(InvalidTransaction, match="nonce too high"):
        dry(ledger.state, block, ledger.runtime.check(transfer(ALICE, 4, BOB.address, 1)))
    assert ledger.state.entries == before


def test_the_beacon_follows_the_chain(ledger: Ledger) -> None:
    seen = []
    for _ in range(3):
        seen.append(ledger.runtime.context(ledger.state, ledger.input()).beacon)
        ledger.step()
    assert len(set(seen)) == 3
    block = ledger.input()
    beacon = ledger.runtime.context(ledger.state, block).beacon
    other = block._replace(vrf_proof=VRF.prove(b"of another view"))
    assert ledger.runtime.context(ledger.state, other).beacon != beacon
    # A leader chooses time, view and content of its block, but not the beacon.
    chosen = block._replace(time_ms=block.time_ms + 7, view=block.view + 1, voters_bitmap=b"\1", signal=9)
    assert ledger.runtime.context(ledger.state, chosen).beacon == beacon


def test_a_block_without_a_vrf_output_cannot_be_executed(ledger: Ledger) -> None:
    for proof in (b"", bytes(80), b"\xff" * 80):
        with pytest.raises(InvalidBlock, match="VRF"):
            ledger.runtime.execute(ledger.state, ledger.input()._replace(vrf_proof=proof), [])


# Fees


def test_the_base_fee_follows_demand() -> None:
    chain = Runtime(genesis()).chain
    target = chain.block_gas_target
    assert next_base_fee(10**9, target, chain) == 10**9
    assert next_base_fee(10**9, 2 * target, chain) == 1_125_000_000
    assert next_base_fee(10**9, 0, chain) == 875_000_000
    assert next_base_fee(chain.base_fee_min, target + 1, chain) == chain.base_fee_min + 1
    assert next_base_fee(chain.base_fee_min, 0, chain) == chain.base_fee_min


def test_a_body_that_is_full_of_whatever_makes_the_next_block_dearer() -> None:
    """Kinds weigh the same whatever their size: by gas alone, filling all blocks would become cheaper."""
    transactions = [transfer(ALICE, nonce, BOB.address, 1) for nonce in range(20)]
    size = sum(len(transaction.raw) for transaction in transactions)
    for parameter, limit in (("transactions_max", 20), ("body_bytes_max", size)):
        ledger = Ledger(Runtime(genesis(**{parameter: limit})))
        before = ledger.runtime.base_fee(ledger.state)
        full = ledger.step(*transactions[:19])
        assert full.gas_used < ledger.runtime.chain.block_gas_target // 100
        assert before < full.next_base_fee <= before + before // 8
        assert ledger.step().next_base_fee < full.next_base_fee
        assert ledger.step(transactions[19]).next_base_fee < full.next_base_fee


@given(st.integers(0, 300_000_000), st.integers(0, 1024 * 1024), st.integers(0, 7_000))
def test_the_demand_is_above_the_target_where_any_limit_of_a_block_is_near(
    gas: int, size: int, count: int
) -> None:
    chain = ChainParameters()
    is_near = size * 10 > chain.body_bytes_max * 9 or count * 10 > chain.transactions_max * 9
    demand = demand_of(gas, size, count, chain)
    assert gas <= demand <= 2 * chain.block_gas_target
    assert (demand > chain.block_gas_target) == (is_near or gas > chain.block_gas_target)


@given(st.integers(ChainParameters().base_fee_min, 2**90), st.integers(0, 300_000_000))
def test_the_base_fee_moves_by_an_eighth_at_most(base_fee: int, gas: int) -> None:
    chain = replace(Runtime(genesis()).chain)
    after = next_base_fee(base_fee, gas, chain)
    assert after >= chain.base_fee_min
    assert abs(after - base_fee) <= max(1, base_fee // 8)
    assert (after > base_fee) == (gas > chain.block_gas_target)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_the_price_is_within_the_cap(base_fee: int, fee: int, tip: int) -> None:
    price = effective_price(base_fee, fee, tip)
    assert price <= fee
    if fee >= base_fee:
        assert base_fee <= price <= base_fee + tip


# The genesis


def test_a_genesis_that_cannot_be_used_is_refused() -> None:
    for parameter, value in (
        ("block_gas_target", 0),
        ("block_gas_target", 300_000_001),
        ("body_bytes_max", 0),
        ("body_bytes_max", 8 * 1024 * 1024),
        ("transactions_max", 2_000_000),
        ("base_fee_min", 0),
        ("base_fee_initial", 1),
        ("validators_max", 0),
        ("unbonding_ms", 2**48),
        ("unbonding_ms", 14 * 24 * 3_600_000 - 1),
        ("evidence_epochs", 1),
        ("epoch_blocks", 0),
        ("history_heights", 0),
        ("time_ahead_ms_max", 2**48),
        ("unknown", 1),
    ):
        with pytest.raises(ConfigError, match=f"chain.{parameter}"):
            Runtime(genesis(**{parameter: value}))
    with pytest.raises(ConfigError, match=r"genesis: chain\.validators_max is 0, but must be from 1 to "):
        Runtime(genesis(validators_max=0))
    with pytest.raises(
        ConfigError, match=r"chain\.base_fee_min is 100000000, but may be 1 at most, which is chain\.base"
    ):
        Runtime(genesis(base_fee_initial=1))
    rich = replace(genesis(), allocations=((ALICE.address, 2**127),))
    with pytest.raises(ConfigError, match=r"170141183460469241731\.[0-9]+ DKB in all; below"):
        Runtime(rich).genesis_changes()


# Everything at once: conservation, and the body check of chain.md 6.4

TRANSFERS = st.lists(
    st.tuples(
        st.integers(0, 3),  # sender
        st.integers(0, 4),  # recipient; 4 is a stranger
        st.sampled_from([0, 1, COIN, 3_000 * COIN, 9_999 * COIN]),
        st.sampled_from([10**9, 2 * 10**9, 10**12, 10**17]),  # fee cap; the last one nearly empties an account
        st.sampled_from([0, 1, 10**8, 10**9]),
        st.sampled_from([0, 0, 0, 0, 1, -1]),  # error in the nonce
        st.sampled_from([0, 0, 1, 2]),  # transfer, noise that works, noise that fails
    ),
    max_size=9,
)


@settings(max_examples=120, deadline=None)
@given(st.lists(TRANSFERS, min_size=1, max_size=3))
def test_whatever_passes_the_check_of_a_body_can_pay(blocks: list[list[Any]]) -> None:
    ledger = Ledger(Runtime(genesis(), rules=[NOISE], check_invariants=True))
    runtime = ledger.runtime
    for wishes in blocks:
        next_nonce = {user: nonce_of(ledger.state, user.address) for user in USERS}
        offered: list[Checked] = []
        for sender, recipient, value, fee, tip, error, shape in wishes:
            user = USERS[sender]
            nonce = max(0, next_nonce[user] + error)
            to = [*(user.address for user in USERS), b"s" * 20][recipient]
            if shape:
                transaction = signed(user, nonce, NOISE_KIND, [shape - 1], gas_limit=NOISE_GAS, fee=fee, tip=tip)
            else:
                transaction = transfer(user, nonce, to, value, fee=fee, tip=tip)
            next_nonce[user] += 1
            offered.append(runtime.check(transaction))
        block = ledger.input()
        chosen = runtime.select(ledger.state, block.base_fee, offered)
        runtime.check_body(ledger.state, block.base_fee, chosen)
        if len(chosen) < len(offered):
            with pytest.raises(InvalidTransaction):
                runtime.check_body(ledger.state, block.base_fee, offered)
        before = {user: load_account(ledger.state, user.address) for user in USERS}
        execution = runtime.execute(ledger.state, block, chosen)  # raises if one could not pay
        assert len(execution.receipts) == len(chosen)
        ledger.state.write(execution.changes)
        ledger.height, ledger.time_ms = block.height, block.time_ms
        runtime.check_whole_supply(ledger.state)
        for user, account in before.items():
            mine = [checked for checked in chosen if checked.transaction.sender == user.address]
            assert nonce_of(ledger.state, user.address) == account.nonce + len(mine)
            assert balance_of(ledger.state, user.address) >= account.balance - sum(c.cost_max for c in mine)


def test_the_same_block_gives_the_same_changes_in_the_same_order() -> None:
    runtime = Runtime(genesis(), rules=[NOISE])
    transactions = [
        transfer(ALICE, 0, BOB.address, 1),
        signed(CAROL, 0, NOISE_KIND, [0]),
        signed(DAVE, 0, NOISE_KIND, [1]),
    ]
    first, second = (Ledger(runtime).step(*transactions) for _ in range(2))
    assert first == second
    assert list(first.changes) == list(second.changes)
    assert runtime.genesis.chain_id == CHAIN_ID
    assert Memory(first.changes).entries
