"""A record that the disk has changed is reported as damage by every reader, never as a wallet's fault."""

from __future__ import annotations

import pytest

from state.primitives.errors import RecordDamaged
from state.transition.epochs import load_epoch, load_tally
from state.transition.runtime import Runtime
from state.transition.staking import UNSTAKE_KIND, unbondings_of, unstake_payload
from state.view.accounts import balance_of
from tests.state.transition.chain import COIN, USERS, VALIDATORS, Ledger, Memory, genesis, signed, transfer

EPOCH_BLOCKS = 5


def grown() -> Ledger:
    """A chain at the last block but one of an epoch, with money under way."""
    ledger = Ledger(Runtime(genesis(epoch_blocks=EPOCH_BLOCKS)))
    ledger.step(transfer(USERS[0], 0, VALIDATORS[0].address, COIN))
    ledger.step(signed(VALIDATORS[0], 0, UNSTAKE_KIND, unstake_payload(5 * COIN)))
    for nonce in range(1, 2 * EPOCH_BLOCKS - 3):
        ledger.step(transfer(USERS[0], nonce, USERS[1].address, COIN))
    return ledger


GROWN = grown()
KEYS = sorted(GROWN.state.entries)


def go_on(ledger: Ledger) -> None:
    """Execute over the end of the epoch, and read what wallets ask for."""
    for nonce in (2 * EPOCH_BLOCKS - 3, 2 * EPOCH_BLOCKS - 2, 2 * EPOCH_BLOCKS - 1):
        block = ledger.input()
        checked = [ledger.runtime.check(transfer(USERS[0], nonce, USERS[1].address, COIN))]
        ledger.runtime.check_body(ledger.state, block.base_fee, checked)
        execution = ledger.runtime.execute(ledger.state, block, checked)
        ledger.state.write(execution.changes)
        ledger.height, ledger.time_ms = block.height, block.time_ms
    for key in (*USERS, *VALIDATORS):
        balance_of(ledger.state, key.address)
        unbondings_of(ledger.state, key.address)
    for epoch in range(5):
        load_epoch(ledger.state, epoch, ledger.runtime.chain)
        load_tally(ledger.state, epoch)


@pytest.mark.parametrize("damage", ["empty", "short", "long"])
def test_a_record_of_another_length_is_damage_or_not_read(damage: str) -> None:
    found = 0
    for key in KEYS:
        value = GROWN.state.entries[key]
        bad = {"empty": b"", "short": value[:-1], "long": value + b"\1"}[damage]
        if bad == value:
            continue
        ledger = Ledger(GROWN.runtime)
        ledger.state = Memory({**GROWN.state.entries, key: bad})
        ledger.height, ledger.time_ms = GROWN.height, GROWN.time_ms
        try:
            go_on(ledger)
        except RecordDamaged as error:
            assert error.code == "store_damaged" and "damaged" in str(error)
            found += 1
    assert found > len(KEYS) // 2


def test_without_damage_it_goes_on() -> None:
    ledger = Ledger(GROWN.runtime)
    ledger.state = Memory(dict(GROWN.state.entries))
    ledger.height, ledger.time_ms = GROWN.height, GROWN.time_ms
    go_on(ledger)
