"""Custody moves no unit wrongly and ends, whatever requesters, workers and custodians do and whenever."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Purpose
from state.view import Table
from tasks.custody.inputs import find_plain_fault, plain_claim_to_value
from tasks.ledger.custody_records import INPUT_WINDOW, find_custody, find_terms
from tasks.ledger.custody_transitions import CLAIM_PLAIN, RECEIVE_CUSTODY, TAKE_CUSTODY
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import CANCEL_TASK
from tests.tasks.keepers import KEPT, TASK_KEY, KeptWorld
from tests.tasks.ledger.test_bounds import check_sizes
from tests.tasks.ledger.test_conservation import GAPS_MS, MANNERS, disturb, settle
from tests.tasks.strays import crooked_job
from tests.tasks.world import DKB, HONEST, REQUESTER, WORTH, Manners, spec

pytestmark = pytest.mark.slow

OUTSIDER: Final = b"\x66" * 20
ALL: Final = NodeRole.COMPUTE | NodeRole.VERIFY | NodeRole.STORAGE
BLOCKS: Final = 110
DATA: Final = crooked_job()
"""A job, and bytes of its data set's form that are not under its root."""
EXPECTED: Final = frozenset({
    Phase.SETTLED, Purpose.CUSTODY, Purpose.CUSTODY_PAY, Purpose.CUSTODY_BOND, Purpose.CUSTODY_LOST,
    Purpose.CUSTODY_DEMAND, Purpose.LIE_PROVEN, Reason.LIE_PROVEN, Reason.INPUT_INVALID,
})  # fmt: skip
"""What the histories must have had in them."""


def play_kept(seed: int) -> Counter[Reason | Purpose | Phase]:
    """Play a market of random manners with custody; return what happened how often."""
    chance = random.Random(seed)
    parameters = replace(
        KEPT, bond_release_ms=50_000, custody_ms=chance.choice((20_000, 300_000)),
        custody_copies=chance.choice((1, 2, 4)), custody_misses_per_day=chance.choice((0, 3, 100)),
        custody_fee_min=chance.choice((0, 10**12)), custody_bond_bps=chance.choice((0, 10_000)),
        custody_price_per_gib_hour=chance.choice((0, 10**13, 10**6 * DKB)), draw_blocks=chance.choice((1, 2)),
        verifiers=chance.choice((1, 2)), decline_fine=chance.choice((0, 10**17)),
    )  # fmt: skip
    world = KeptWorld(parameters, seed=seed)
    world.fund(OUTSIDER, 10 * DKB)
    for name in range(1, chance.randrange(6, 16)):
        roles = chance.choice((ALL, NodeRole.STORAGE, NodeRole.COMPUTE | NodeRole.VERIFY))
        world.add_machine(name, roles=roles, manners=chance.choice(MANNERS[:-2]), slots=chance.randrange(1, 3))
    tasks = [world.create(spec())]
    for _ in range(BLOCKS):
        if len(tasks) < 5 and chance.random() < 0.1:
            tasks.append(
                world.create(DATA[0]._replace(max_price_per_tera_unit=WORTH // chance.choice((1000, 1500))))
            )
            if chance.random() < 0.6:
                world.keep_input(tasks[-1], DATA[1], manner=chance.choice(("right", "right", "garbage")))
        world.manner = chance.choice(("right", "right", "right", "garbage", "other"))
        for silent in (world.unsigning, world.unanswering):
            silent.clear()
            silent |= {machine for machine in world.machines if chance.random() < 0.3}
        world.act(lambda machines: chance.sample(machines, chance.randrange(len(machines) + 1)))
        if chance.random() < 0.2:
            disturb(world, tasks, chance.choice(list(world.machines)), chance.randrange(1, 10**6))
        for _ in range(3):
            stir(world, chance.choice(tasks), chance)
        if chance.random() < 0.05:
            world.machines[chance.choice(list(world.machines))] = chance.choice((HONEST, *MANNERS[:-2]))
        world.block(chance.choice(GAPS_MS))
    check_sizes(world.state)
    return wind_down(world, tasks)


def stir(world: KeptWorld, task: bytes, chance: random.Random) -> None:
    """Send something about the custody of a task that may or may not be allowed."""
    window = chance.choice((0, 1, 2, INPUT_WINDOW))
    record = find_custody(world.state, task, window)
    if record is None:
        if window == INPUT_WINDOW:
            world.keep_input(task, DATA[1])
        else:
            world.end(task, window)
        return
    machine = chance.choice([*world.machines, OUTSIDER])
    match chance.randrange(7):
        case 0 | 1:
            holders = [holder.address for holder in record.holders] or [machine]
            world.demand(task, window, chance.choice(holders))
        case _ if window == INPUT_WINDOW:
            stir_input(world, task, world.task(task).worker or machine, chance)
        case 2:
            world.end(task, window)
        case 3 if (task, window) in world.outputs:
            world.reveal(task, window, 0, machine, chance.choice((TASK_KEY, b"x" * 32)))
        case 4 if (task, window) in world.outputs:
            world.mismatch(task, window, 0, machine)
        case 5 if (task, window) in world.outputs:
            world.answer(task, window, machine, chance.randrange(2))
        case _:
            world.send(machine, TAKE_CUSTODY, [task, window, record.bond])
            world.send(machine, RECEIVE_CUSTODY, [task, window])


def stir_input(world: KeptWorld, task: bytes, sender: bytes, chance: random.Random) -> None:
    """Claim something about the input of a task, or cancel it."""
    match chance.randrange(10):
        case 0:
            world.claim_keyed(task, b"no cipher", b"", sender)
        case 1 | 2:
            world.claim_garbage(task, 1, sender)
        case 3:
            claim = find_plain_fault(task, *DATA)
            assert claim is not None
            world.send(sender, CLAIM_PLAIN, [plain_claim_to_value(claim)])
        case 4:
            world.send(REQUESTER, CANCEL_TASK, [task])
        case _:
            pass


def wind_down(world: KeptWorld, tasks: list[bytes]) -> Counter[Reason | Purpose | Phase]:
    """Let time pass until all custody is over, and check that nothing of it is left."""
    for machine in world.machines:
        world.machines[machine] = Manners(silent=frozenset(Action))
    for _ in range(400):
        world.block(60_000)
        records = [world.task(task) for task in tasks]
        live = [terms.live for task in tasks if (terms := find_terms(world.state, task)) is not None]
        if all(record.phase in ENDED and not record.deadline_ms for record in records) and not any(live):
            break
    for task in tasks:
        terms = find_terms(world.state, task)
        assert terms is None or (terms.live, terms.reserved) == (0, 0)
    for prefix in (bytes([Table.CUSTODY]) + b"W", bytes([Table.CUSTODY]) + b"A", bytes([Table.TASK_INDEX]) + b"C"):
        assert world.state.scan(prefix, prefix[:-1] + bytes([prefix[-1] + 1]), 1) == []
    return settle(world, tasks)


def test_random_markets_with_custody_end_with_every_unit_accounted_for() -> None:
    seen: Counter[Reason | Purpose | Phase] = Counter()
    for seed in range(10):
        seen += play_kept(seed)
    assert seen.keys() >= EXPECTED, EXPECTED - seen.keys()
