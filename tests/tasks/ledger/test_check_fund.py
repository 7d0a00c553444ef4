"""The check fund under attack: what is put down, and who bears it where windows are void (market.md R31)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.escrow import Pool, Purpose, Vault, escrow_totals
from state.view import EMPTY, Overlay
from state.view.accounts import credit
from tasks.ledger.check_fund import FUND_ADDRESS, fund_balance, pay_in, put_down, take_back
from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import Action
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import GIVE_UP_TASK
from tests.tasks.world import DKB, QUICK, WORTH, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
LONG: Final = replace(QUICK, open_windows_max=64, opening_extra_ms=600_000, check_fund_float=1_000 * DKB)
WORKERS: Final = 9
LIMIT: Final = WORTH // 100
PAYER: Final = b"p" * 20


def is_proved(windows: int, record: TaskRecord) -> bool:
    return record.next_window >= windows


@given(st.integers(0, 250), st.integers(0, 60), st.integers(0, 40))
def test_what_the_fund_has_above_two_floats_is_burned(balance: int, paid: int, put_down_before: int) -> None:
    """Both what a window pays in and what comes back of a check. No unit is made or lost."""
    parameters, state, taken = replace(QUICK, check_fund_float=100), Overlay(EMPTY), min(put_down_before, balance)
    credit(state, FUND_ADDRESS, balance)
    credit(state, PAYER, paid)
    vault = Vault.create(state, b"e" * 32, PAYER, lambda _event: None, 1)
    vault.lock(Pool.VERIFICATION, PAYER, paid, Purpose.VERIFICATION)
    assert put_down(state, vault, taken)
    pay_in(state, vault, paid, 0, parameters)
    after = balance - taken
    kept = min(paid, max(0, 200 - after))
    assert fund_balance(state) == after + kept
    take_back(state, vault, taken, 0, parameters)
    back = min(taken, max(0, 200 - after - kept))
    assert fund_balance(state) == after + kept + back
    assert not vault.total(Pool.VERIFICATION) and not vault.total(Pool.CHECK)
    burned = paid - kept + taken - back
    assert (escrow_totals(state, b"e" * 32).burned if paid or taken else 0) == burned


@pytest.mark.nightly
def test_windows_that_stand_on_a_silent_workers_cost_the_fund_nothing_when_they_are_void() -> None:
    """The first worker never opens its window. Its friends prove others on it, which are checked and then void."""
    world = World(parameters=LONG)
    for name in range(100, 130):
        world.add_machine(name, roles=CHECK)
    silent = Manners(silent=frozenset({Action.OPEN}))
    world.add_machine(1, roles=WORK, rate=1, price=1, manners=silent)
    task = world.create(spec(total=800, segment=20, price=LIMIT))
    for number in range(WORKERS):
        done = world.task(task).next_window + (3 if number else 1)
        world.run(task, until=partial(is_proved, done))
        world.add_machine(2 + number, roles=WORK, rate=1, price=LIMIT)
        assert world.send(world.task(task).worker, GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)]) is None
    top = world.task(task).next_window
    world.run(task, until=lambda record: record.next_window < top - 5, blocks=800)
    assert fund_balance(world.state) >= 1_000 * DKB
