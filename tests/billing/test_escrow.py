from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.errors import EscrowUnknown
from billing.escrow import (
    BILLING_EVENTS,
    BURNED,
    HOLDING,
    LOCKED,
    PAID,
    REFUNDED,
    Movement,
    Pool,
    Purpose,
    Vault,
    bill_lines,
    check_escrow,
    check_escrows,
    check_touched_escrows,
    earnings_of,
    escrow_totals,
)
from billing.prices import Role
from state.primitives.codec import decode, encode
from state.primitives.receipts import Event
from state.view import EMPTY, Overlay, Table
from state.view.accounts import InsufficientBalance, balance_of, burned, credit

ID, PAYER, WORKER = b"e" * 32, b"p" * 20, b"w" * 20


def make(funds: int = 1000) -> tuple[Overlay, Vault, list[Event]]:
    state, events = Overlay(EMPTY), list[Event]()
    credit(state, PAYER, funds)
    return state, Vault.create(state, ID, PAYER, events.append, 5), events


def test_each_movement_is_a_line_of_the_bill_and_an_event() -> None:
    state, vault, events = make()
    vault.lock(Pool.PRICE, PAYER, 600, Purpose.PRICE)
    vault.hold(Pool.PRICE, Pool.HOLD, 50, Purpose.WINDOW_HOLD, target_owner=WORKER, subject=0)
    vault.pay(Pool.PRICE, WORKER, 200, Purpose.WINDOW_PAY, Role.COMPUTE, subject=0)
    vault.burn(Pool.PRICE, 30, Purpose.PROTOCOL_FEE)
    vault.refund(Pool.PRICE, PAYER, 320, Purpose.UNSPENT)
    lines = bill_lines(state, ID)
    assert [(line.movement, line.amount, line.subject) for line in lines] == [
        (Movement.LOCKED, 600, None),
        (Movement.HELD, 50, 0),
        (Movement.PAID, 200, 0),
        (Movement.BURNED, 30, None),
        (Movement.REFUNDED, 320, None),
    ]
    assert bill_lines(state, ID, start=3, limit=1) == lines[3:4]
    assert escrow_totals(state, ID) == (600, 50, 200, 320, 30)
    assert (balance_of(state, PAYER), balance_of(state, WORKER), burned(state)) == (720, 200, 30)
    assert earnings_of(state, WORKER) == {Role.COMPUTE: 200}
    topics = [event.topics[0] for event in events]
    assert topics == [LOCKED.topic, PAID.topic, BURNED.topic, REFUNDED.topic]
    assert len({kind.topic for kind in BILLING_EVENTS}) == 4
    check_escrow(state, ID)


def test_a_lock_without_funds_changes_nothing() -> None:
    state, vault, events = make(funds=10)
    with pytest.raises(InsufficientBalance):
        vault.lock(Pool.BOND, PAYER, 11, Purpose.WORKER_BOND, owner=PAYER)
    assert vault.held(Pool.BOND, PAYER) == 0
    assert (balance_of(state, PAYER), bill_lines(state, ID), events) == (10, (), [])


def test_a_pool_cannot_be_overdrawn_and_owners_are_kept_apart() -> None:
    _, vault, _ = make()
    vault.lock(Pool.BOND, PAYER, 100, Purpose.WORKER_BOND, owner=PAYER)
    with pytest.raises(AssertionError):
        vault.refund(Pool.BOND, WORKER, 1, Purpose.BOND_RETURN, owner=WORKER)
    with pytest.raises(AssertionError):
        vault.burn(Pool.BOND, 101, Purpose.WORKER_FINE, owner=PAYER)
    assert vault.owners(Pool.BOND) == (PAYER,)


def test_an_unknown_escrow_and_one_that_exists() -> None:
    state, vault, events = make()
    vault.lock(Pool.PRICE, PAYER, 1, Purpose.PRICE)
    with pytest.raises(AssertionError):
        Vault.create(state, ID, PAYER, events.append, 5)
    for missing in (
        lambda: escrow_totals(state, b"x" * 32),
        lambda: Vault.load(state, b"x" * 32, events.append, 5),
    ):
        with pytest.raises(EscrowUnknown):
            missing()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Pool), st.integers(0, 400)), max_size=40))
def test_whatever_moves_the_sums_hold(moves: list[tuple[int, Pool, int]]) -> None:
    state, vault, _ = make(funds=5000)
    for kind, pool, wanted in moves:
        amount = min(wanted, balance_of(state, PAYER) if kind == 0 else vault.held(pool))
        match kind:
            case 0:
                vault.lock(pool, PAYER, amount, Purpose.TOP_UP)
            case 1:
                vault.pay(pool, WORKER, amount, Purpose.WINDOW_PAY, Role.COMPUTE)
            case 2:
                vault.refund(pool, PAYER, amount, Purpose.UNSPENT)
            case 3:
                vault.burn(pool, amount, Purpose.PROTOCOL_FEE)
            case _:
                vault.hold(pool, Pool.PRICE, amount, Purpose.HOLD_FORFEIT)
        check_escrows(state)
        record = state.get(bytes([Table.ESCROW]) + ID)
        locked = HOLDING.amount_of(record) if record else 0
        assert balance_of(state, PAYER) + balance_of(state, WORKER) + locked + burned(state) == 5000
        assert locked == sum(vault.held(each) for each in Pool)


def test_a_bill_that_does_not_add_up_is_noticed() -> None:
    state, vault, _ = make()
    vault.lock(Pool.PRICE, PAYER, 600, Purpose.PRICE)
    vault.pay(Pool.PRICE, WORKER, 200, Purpose.WINDOW_PAY, Role.COMPUTE)
    state.delete(bytes([Table.BILL]) + ID + (1).to_bytes(4, "big"))
    with pytest.raises(AssertionError):
        check_escrows(state)


def test_an_escrow_that_a_block_unbalances_is_found_among_its_changes() -> None:
    below, vault, _ = make()
    vault.lock(Pool.PRICE, PAYER, 600, Purpose.PRICE)
    block = Overlay(below)
    check_touched_escrows(block)
    key, record = next((key, value) for key, value in below.changes.items() if key[0] == Table.ESCROW)
    fields = decode(record or b"", limit_bytes=10_000)
    fields[2] += 1  # deposited
    block.put(key, encode(fields))
    with pytest.raises(AssertionError):
        check_touched_escrows(block)


def test_a_block_reads_its_own_lines_of_a_bill_and_may_change_no_older_one() -> None:
    below, vault, _ = make()
    vault.lock(Pool.PRICE, PAYER, 600, Purpose.PRICE)
    vault.pay(Pool.PRICE, WORKER, 100, Purpose.WINDOW_PAY, Role.COMPUTE)
    block = Overlay(below)
    later = Vault.load(block, ID, lambda event: None, 9)
    later.pay(Pool.PRICE, WORKER, 50, Purpose.WINDOW_PAY, Role.COMPUTE)
    check_touched_escrows(block)
    check_escrows(block)
    prefix = bytes([Table.BILL]) + ID
    newest, oldest = (prefix + number.to_bytes(4, "big") for number in (2, 0))
    for key in (newest, oldest):
        kept = block.get(key)
        assert kept is not None
        block.delete(key)
        with pytest.raises(AssertionError):
            check_touched_escrows(block)
        block.put(key, kept)


def test_a_bill_without_its_escrow_is_noticed() -> None:
    below, vault, _ = make()
    vault.lock(Pool.PRICE, PAYER, 600, Purpose.PRICE)
    block = Overlay(below)
    block.delete(bytes([Table.BILL]) + ID + bytes(4))
    with pytest.raises(AssertionError):
        check_touched_escrows(block)
