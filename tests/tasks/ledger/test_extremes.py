"""No deadline raises: windows that cost nothing, lost bonds, an empty fund, and all that parties do wrong.

An exception at the end of a block would stop every node for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Pool, Purpose, Vault
from state.view.accounts import balance_of, burn, debit
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.lifecycle import ENDED, LIVE_WINDOW
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tests.tasks.world import DKB, HONEST, QUICK, WORTH, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
OUTSIDER: Final = b"O" * 20
WORKERS: Final = {
    "honest": HONEST,
    "lies": Manners(lies=True),
    "does not open": Manners(silent=frozenset({Action.OPEN})),
    "does not play": Manners(lies=True, silent=frozenset({Action.PLAY})),
    "serves juries alone": Manners(picky=True),
    "tears its chain": Manners(gap=1),
}
VERIFIERS: Final = {
    "honest": HONEST,
    "lie": Manners(lies=True),
    "fetch nothing": Manners(blind=True),
    "do not reveal": Manners(silent=frozenset({Action.REVEAL})),
}


def lose_bond(world: World, task: bytes, left: int) -> None:
    """Burn the bonds of a task's workers down to ``left``, as fines could."""
    vault = Vault.load(world.state, task, world.events.append, world.height)
    for owner in vault.owners(Pool.BOND):
        amount = max(0, vault.held(Pool.BOND, owner) - left)
        vault.burn(Pool.BOND, amount, Purpose.WORKER_FINE, owner=owner)


def lose_fund(world: World) -> None:
    amount = balance_of(world.state, FUND_ADDRESS)
    debit(world.state, FUND_ADDRESS, amount)
    burn(world.state, amount)


@pytest.mark.parametrize("verifiers", VERIFIERS.values(), ids=VERIFIERS)
@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize(
    ("price", "bond", "fund"),
    [
        pytest.param(1, None, True, marks=pytest.mark.slow, id="for nothing"),
        pytest.param(WORTH // 1000, 0, True, marks=pytest.mark.slow, id="without bonds"),
        pytest.param(WORTH // 1000, 1, False, marks=pytest.mark.slow, id="without a fund"),
        pytest.param(1, 0, False, id="without anything"),
    ],
)
def test_nothing_raises_at_the_end_of_a_block(
    price: int, bond: int | None, fund: bool, worker: Manners, verifiers: Manners
) -> None:
    parameters = replace(QUICK, open_windows_max=4, verifiers_sure=2, draws_max=2)
    world = World(parameters=parameters)
    for name in range(1, 4):
        world.add_machine(
            name, roles=WORK, price=min(price, WORTH // 2000), manners=worker if name < 3 else HONEST
        )
    for name in range(100, 108):
        world.add_machine(name, roles=CHECK, manners=verifiers if name % 2 else HONEST)
    world.fund(OUTSIDER, 100 * DKB)
    task = world.create(spec(total=120, price=price, match_ms=3_600_000))
    proved = 0
    for block in range(160):
        record = world.task(task)
        if record.phase in ENDED:
            break
        if record.next_window > proved:
            proved = record.next_window
            number = record.next_window - 1
            if load_window(world.state, task, number).phase in LIVE_WINDOW and (task, number) in world.published:
                world.challenge(OUTSIDER, task, number, 0, lie=bool(block % 2))
            if bond is not None and proved > 1:
                lose_bond(world, task, bond)
        if not fund and block % 7 == 3:
            lose_fund(world)
        world.act()
        world.block()
    assert proved
