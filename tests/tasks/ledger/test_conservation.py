"""Money is neither made nor lost, and every task ends, whatever machines and requesters do and whenever."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from billing.escrow import Purpose, check_escrows, escrow_totals
from state.primitives.codec import Value
from tasks.ledger import queries
from tasks.ledger.bonds import SET_TERMS, SPONSOR_NODE, WITHDRAW_SPONSOR
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.queries import Action
from tasks.ledger.registry import bond_id
from tasks.ledger.transitions import (
    CANCEL_TASK,
    DECLINE_SEAT,
    DEMAND_RESULT,
    GIVE_UP_TASK,
    HEARTBEAT,
    POKE,
    RESUME_TASK,
    RETIRE_NODE,
    SET_PAYOUT,
    SUSPEND_NODE,
    TOP_UP_TASK,
    UPDATE_NODE,
    node_payload,
)
from tests.tasks.strays import STRAY, stray_job
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

pytestmark = pytest.mark.slow

MANNERS: Final = (
    *[HONEST] * 9, Manners(lies=True), Manners(blind=True), Manners(picky=True), Manners(forgetful=True),
    *(Manners(silent=frozenset({action})) for action in Action if action != Action.METER),
    Manners(silent=frozenset(Action)),
    Manners(claims=6), Manners(claims=22, forges=True),
)  # fmt: skip
GAPS_MS: Final = (500, *[1_000] * 12, 3_000, 7_000, 40_000, 130_000)


def disturb(world: World, tasks: list[bytes], machine: bytes, choice: int) -> None:
    """Do something that may or may not be allowed; what few tasks allow, to one that does if there is one."""
    task = tasks[choice % len(tasks)]
    fitting = {2: (Phase.PAUSED,), 6: (Phase.SETTLED, Phase.CANCELLED)}.get(choice % 10, ())
    task = next((one for one in reversed(tasks) if world.task(one).phase in fitting), task)
    match choice % 10:
        case 9:
            for number in world.task(task).open_windows:
                segment = choice % len(world.published[task, number])
                junk = (b"w" * 32, b"s" * 32) if choice % 7 == 0 else None
                world.challenge(
                    machine if choice % 2 else REQUESTER, task, number, segment, lie=choice % 3 == 0, root=junk,
                    is_opened=choice % 5 > 0,
                )  # fmt: skip
                world.show_break(machine, task, number)
        case 0:
            world.send(REQUESTER, CANCEL_TASK, [task])
        case 1:
            world.send(REQUESTER, TOP_UP_TASK, [task, choice])
            back(world, machine, choice)
        case 2:
            world.send(REQUESTER, RESUME_TASK, [task])
        case 3:
            reasons = (Reason.INPUT_UNAVAILABLE, Reason.WORKER_LEFT, Reason.JOB_UNFIT)
            world.send(machine, GIVE_UP_TASK, [task, int(reasons[choice % 3])])
        case 4:
            world.send(machine, POKE, [task])
            world.send(machine, HEARTBEAT, [])
        case 5:
            world.send(machine, SUSPEND_NODE if choice % 16 > 7 else RETIRE_NODE, [])
        case 7:
            for duty in queries.verification_duties(world.state, machine):
                world.send(machine, DECLINE_SEAT, [duty.task, duty.window])
        case 6:
            world.send(REQUESTER, DEMAND_RESULT, [task, choice * DKB])
            world.send(machine, SET_PAYOUT, [machine, machine if choice % 2 else REQUESTER])
        case _:
            node = queries.find_node(world.state, machine)
            if node is not None:
                profile = node.profile
                if choice % 2:
                    profile = profile._replace(price_per_tera_unit=max(1, WORTH // 1000 * (choice % 13) // 10))
                payload: list[Value] = node_payload(profile, choice % 3 * DKB)
                world.send(machine, UPDATE_NODE, payload)


def back(world: World, machine: bytes, choice: int) -> None:
    """Have the requester bond for a machine, or take that back, on terms that may not be allowed."""
    node = queries.find_node(world.state, machine)
    if node is None:
        return
    terms: list[Value] = [choice % 4 * 1_000, choice % 3 * 3_000, choice % 5 * 10 * DKB]
    world.send(node.payout, SET_TERMS, [machine, REQUESTER, *terms])
    world.send(REQUESTER, SPONSOR_NODE, [machine, *terms, choice % 7 * 10 * DKB + 1])
    world.send(REQUESTER, WITHDRAW_SPONSOR, [machine, choice % 2 * node.sponsored])


def settle(world: World, tasks: list[bytes]) -> Counter[Reason | Purpose | Phase]:
    """Let time pass until nothing is due, and check that nothing is left; return what happened how often."""
    for machine in world.machines:
        world.machines[machine] = Manners(silent=frozenset(Action))
    for _ in range(400):
        world.block(60_000)
        records = [world.task(task) for task in tasks]
        if all(record.phase in ENDED and not record.deadline_ms for record in records):
            break
    for record in records:
        assert record.phase in ENDED, record
        totals = escrow_totals(world.state, record.id)
        assert totals.locked == 0
        assert totals.paid + totals.refunded + totals.burned == totals.deposited
        assert (record.phase == Phase.SETTLED) == (record.final_windows == 3)
        assert len(record.excluded) <= world.parameters.excluded_max
        assert record.attempts <= world.parameters.attempts_max
    for machine in world.machines:
        node = queries.find_node(world.state, machine)
        assert node is None or node.busy_slots == 0
        assert escrow_totals(world.state, bond_id(machine)).locked == (node.bond + node.sponsored if node else 0)
        assert queries.work_duties(world.state, machine, world.parameters) == []
        assert queries.verification_duties(world.state, machine) == []
    seen: Counter[Reason | Purpose | Phase] = Counter(record.phase for record in records)
    for record in records:
        seen.update(entry.reason for entry in queries.task_history(world.state, record.id))
        seen.update(window.reason for window in queries.task_windows(world.state, record.id))
        seen.update(line.purpose for line in queries.bill(world.state, record.id).lines)
    return seen


SEEDS_FROM: Final = (17, 64)
SEEDS: Final = 12
EXPECTED: Final = frozenset({
    Phase.SETTLED, Phase.CANCELLED, Phase.FAILED, Phase.EXPIRED, Purpose.JUROR_FEE, Purpose.KILL_FEE,
    Purpose.WORKER_FINE, Purpose.TOP_UP, Purpose.DEMAND, Purpose.HOLD_RELEASE, Purpose.HOLD_FORFEIT,
    Purpose.BOND_RETURN, Reason.REQUESTER_RESUMED, Reason.WINDOW_TIMEOUT, Reason.WORKER_LEFT,
    Reason.NO_REPLACEMENT, Reason.RESULT_DELIVERED,
})  # fmt: skip
"""What each part of the histories must have had in it."""
RARE: Final = frozenset({
    Reason.WORK_REJECTED, Reason.LIE_PROVEN, Reason.ANSWER_MISSING, Purpose.CHALLENGE_LOST, Purpose.LIE_PROVEN,
    Purpose.DISPUTE_RESUMED, Reason.INPUT_INVALID, Purpose.PREPARATION,
})  # fmt: skip
"""What the first part must have had besides."""


@pytest.mark.parametrize("part", range(2))
def test_random_markets_end_with_every_unit_accounted_for(part: int) -> None:
    seen: Counter[Reason | Purpose | Phase] = Counter()
    for seed in range(SEEDS_FROM[part], SEEDS_FROM[part] + SEEDS):
        seen += play(seed)
    expected = EXPECTED if part else EXPECTED | RARE
    assert seen.keys() >= expected, expected - seen.keys()


def play(seed: int) -> Counter[Reason | Purpose | Phase]:
    chance = random.Random(seed)
    parameters = replace(
        QUICK, bond_release_ms=100_000, verifiers=chance.choice((1, 2, 3)), new_windows=chance.choice((0, 2)),
        excluded_max=chance.choice((1, 2, 64)), attempts_max=chance.choice((1, 2, 16)),
        offers_ranked=chance.choice((0, 2)), bond_floor_bps=chance.choice((0, 2_500)),
        call_ms=chance.choice((0, 3_000)), order_blocks=chance.choice((0, 1, 2)),
        bids_per_call=chance.choice((2, 128)), decline_fine=chance.choice((0, 10**17)),
    )  # fmt: skip
    world = World(replace(parameters, verifiers_sure=3), seed=seed)
    for name in range(1, chance.randrange(3, 18)):
        world.add_machine(name, manners=chance.choice(MANNERS), slots=chance.randrange(1, 3))
    tasks = [world.create(spec())]
    world.strays[stray_job().dataset.blob] = STRAY
    for _ in range(120):
        if len(tasks) < 6 and chance.random() < 0.1:
            job = spec(price=WORTH // chance.choice((1000, 1500, 4000)))
            tasks.append(world.create(stray_job(job=job) if len(tasks) == 4 else job))
        world.act(lambda machines: chance.sample(machines, chance.randrange(len(machines) + 1)))
        if chance.random() < 0.25:
            disturb(world, tasks, chance.choice(list(world.machines)), chance.randrange(1, 10**6))
        if chance.random() < 0.05:
            world.machines[chance.choice(list(world.machines))] = chance.choice(MANNERS)
        world.block(chance.choice(GAPS_MS))
    return settle(world, tasks)


class Market(RuleBasedStateMachine):
    """The same, with steps that Hypothesis picks and shrinks."""

    @initialize(manners=st.lists(st.sampled_from(MANNERS), min_size=2, max_size=6), seed=st.integers(0, 1000))
    def open(self, manners: list[Manners], seed: int) -> None:
        self.world = World(seed=seed)
        for at, each in enumerate(manners):
            self.world.add_machine(at + 1, manners=each)
        self.tasks = [self.world.create()]

    @rule()
    def act(self) -> None:
        self.world.act()

    @rule(gap_ms=st.sampled_from(GAPS_MS))
    def pass_time(self, gap_ms: int) -> None:
        self.world.block(gap_ms)

    @rule(gap_ms=st.sampled_from(GAPS_MS), blocks=st.integers(2, 8))
    def go_on(self, gap_ms: int, blocks: int) -> None:
        for _ in range(blocks):
            self.world.act()
            self.world.block(gap_ms)

    @rule(choice=st.integers(1, 1000), at=st.integers(0, 5))
    def disturb(self, choice: int, at: int) -> None:
        machines = list(self.world.machines)
        disturb(self.world, self.tasks, machines[at % len(machines)], choice)

    @rule(at=st.integers(0, 5), manners=st.sampled_from(MANNERS))
    def change_manners(self, at: int, manners: Manners) -> None:
        machines = list(self.world.machines)
        self.world.machines[machines[at % len(machines)]] = manners

    @invariant()
    def money_is_conserved(self) -> None:
        if hasattr(self, "world"):
            self.world.check_money()
            check_escrows(self.world.state)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            settle(self.world, self.tasks)


TestMarket = Market.TestCase
TestMarket.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
