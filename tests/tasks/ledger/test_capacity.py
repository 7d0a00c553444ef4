"""Verifiers are drawn for what they have time for, may decline, and no load takes their bonds: signed acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tasks.ledger import queries
from tasks.ledger.capacity import declines_left
from tasks.ledger.lifecycle import ENDED, Phase, WindowPhase
from tasks.ledger.parameters import DAY_MS, TaskParameters
from tasks.ledger.queries import Action, CheckDuty
from tasks.ledger.records import load_window
from tasks.ledger.registry import require_node
from tasks.ledger.seats import seal_time
from tasks.ledger.transitions import DECLINE_SEAT, UPDATE_NODE, node_payload
from tests.tasks.signed import CHECK, KEYS, REQUESTER_KEY, WORK, SignedWorld
from tests.tasks.world import DKB, HONEST, QUICK, Manners, spec

PARAMETERS: Final = replace(
    QUICK, seal_slack=3, reveal_ms=60_000, draw_retry_ms=20_000, accept_ms=60_000, prepare_ms=60_000
)
SEGMENT_STEPS: Final = 100_000 // spec().step_ms
"""Near the bound: 100 of at most 120 s on one slow core."""
JUNK: Final = spec(
    total=2 * SEGMENT_STEPS, segment=SEGMENT_STEPS, window=2 * SEGMENT_STEPS, match_ms=3_600_000
)  # fmt: skip
CHECK_MS: Final = 2 * SEGMENT_STEPS * JUNK.step_ms
"""What one core takes for the two segments of a window of ``JUNK``."""
IDLE: Final = Manners(silent=frozenset(Action))


class SlowVerifiers:
    """Honest machines that do one check after the other, on one core and the slowest line each."""

    def __init__(self, world: SignedWorld, machines: list[bytes], check_ms: int = CHECK_MS) -> None:
        self.world, self.machines, self.check_ms = world, machines, check_ms
        self.free_ms = dict.fromkeys(machines, 0)
        self.done_ms: dict[tuple[bytes, bytes], int] = {}

    def act(self) -> None:
        for machine in self.machines:
            for duty in queries.verification_duties(self.world.state, machine):
                if duty.action == Action.REVEAL or self._is_done(machine, duty):
                    self.world.check(machine, duty, HONEST)

    def _is_done(self, machine: bytes, duty: CheckDuty) -> bool:
        if (machine, duty.task) not in self.done_ms:
            self.free_ms[machine] = max(self.world.time_ms, self.free_ms[machine]) + self.check_ms
            self.done_ms[machine, duty.task] = self.free_ms[machine]
        return self.done_ms[machine, duty.task] <= self.world.time_ms


def test_a3_windows_near_the_segment_bound_cost_honest_verifiers_nothing() -> None:
    """Twelve windows at once for two verifiers, each of which can check three in the time to seal."""
    world = SignedWorld(PARAMETERS)
    worker = world.join(KEYS[1], world.profile(KEYS[1], roles=WORK, slots=16))
    machines = [world.join(key, world.profile(key, roles=CHECK)) for key in KEYS[2:4]]
    verifiers = SlowVerifiers(world, machines)
    tasks = [world.create(JUNK) for _ in range(12)]
    for _ in range(400):
        world.block(20_000)
        for duty in queries.work_duties(world.state, worker, PARAMETERS):
            world.work(worker, duty, HONEST)
        verifiers.act()
        if all(world.task(task).phase in ENDED for task in tasks):
            break
    nodes = [require_node(world.state, machine) for machine in machines]
    assert [node.bad for node in nodes] == [0, 0], "an honest verifier was drawn for more than it can do"
    assert all(node.bond >= PARAMETERS.node_bond_min for node in nodes)
    assert {world.task(task).phase for task in tasks} == {Phase.SETTLED}, "and every window is checked"


def test_checks_that_fetch_large_states_for_little_work_cost_honest_verifiers_nothing() -> None:
    """Eight windows at once for two verifiers, each of which fetches the states of one at a time."""
    parameters = replace(PARAMETERS, seal_bytes_per_s=1024)
    job = spec(total=40, match_ms=3_600_000)
    time = seal_time(job, parameters.samples, parameters)
    assert time.fetch_ms > 10 * time.work_ms
    world = SignedWorld(parameters)
    worker = world.join(KEYS[1], world.profile(KEYS[1], roles=WORK, slots=16))
    machines = [world.join(key, world.profile(key, roles=CHECK)) for key in KEYS[2:4]]
    verifiers = SlowVerifiers(world, machines, time.fetch_ms + time.work_ms)
    tasks = [world.create(job) for _ in range(8)]
    for _ in range(1_000):
        world.block(5_000)
        for duty in queries.work_duties(world.state, worker, parameters):
            world.work(worker, duty, HONEST)
        verifiers.act()
        if all(world.task(task).phase in ENDED for task in tasks):
            break
    nodes = [require_node(world.state, machine) for machine in machines]
    assert [node.bad for node in nodes] == [0, 0], "an honest verifier was drawn for more than it can fetch"
    assert [node.owed_ms for node in nodes] == [0, 0]
    assert {world.task(task).phase for task in tasks} == {Phase.SETTLED}, "and every window is checked"


def drawn(parameters: TaskParameters, verifiers: int) -> tuple[SignedWorld, bytes, bytes]:
    """Return a market with a window whose verifiers are drawn, its task, and one of them."""
    world = SignedWorld(parameters)
    world.join(KEYS[1], world.profile(KEYS[1], roles=WORK))
    for key in KEYS[2 : 2 + verifiers]:
        world.join(key, world.profile(key, roles=CHECK), manners=IDLE)
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window == 1 and seats(world, task) != [])
    return world, task, seats(world, task)[0]


def seats(world: SignedWorld, task: bytes) -> list[bytes]:
    return [seat.address for seat in load_window(world.state, task, 0).verifiers]


def test_a_declined_seat_costs_nothing_and_goes_to_another_machine() -> None:
    world, task, first = drawn(QUICK, 3)
    window = load_window(world.state, task, 0)
    before = require_node(world.state, first)
    assert before.owed_ms > 0
    assert world.send(REQUESTER_KEY.address, DECLINE_SEAT, [task, 0]) == "not_yours"
    assert world.send(first, DECLINE_SEAT, [task, 0]) is None
    declined_at = world.height
    after = require_node(world.state, first)
    assert (after.bond, after.bad, after.failures) == (before.bond, before.bad, before.failures)
    assert (after.owed_ms, after.seat_declines) == (0, 1)
    assert world.send(first, DECLINE_SEAT, [task, 0]) == "not_yours"
    assert queries.verification_duties(world.state, first) == []
    while world.height < declined_at + QUICK.draw_blocks:
        assert seats(world, task) == []
        world.block()
    (second,) = seats(world, task)
    assert second != first and require_node(world.state, second).owed_ms == before.owed_ms
    world.machines = dict.fromkeys(world.machines, HONEST)
    assert world.run_to(task, Phase.SETTLED).final_windows == 1
    assert window.draws == load_window(world.state, task, 0).draws, "that is no draw in vain"
    assert all(require_node(world.state, machine).owed_ms == 0 for machine in world.machines)


def test_the_other_verifiers_of_a_window_go_on_while_a_seat_is_filled() -> None:
    world, task, first = drawn(replace(QUICK, verifiers=3, verifiers_sure=3), 4)
    others = [machine for machine in seats(world, task) if machine != first]
    assert world.send(first, DECLINE_SEAT, [task, 0]) is None
    for machine in others:
        (duty,) = [duty for duty in all_duties(world, task, machine) if duty.action == Action.SEAL]
        world.check(machine, duty, HONEST)
    assert load_window(world.state, task, 0).phase == WindowPhase.SEALING
    world.machines = dict.fromkeys(world.machines, HONEST)
    world.run_to(task, Phase.SETTLED)
    assert set(seats(world, task)) == set(world.machines) - {first, KEYS[1].address}


def all_duties(world: SignedWorld, task: bytes, machine: bytes) -> list[CheckDuty]:
    """Return what a machine began before the seat beside it was declined."""
    window = load_window(world.state, task, 0)
    return [
        CheckDuty(task, 0, Action.SEAL, window.sampled, window.deadline_ms, b"", False, window.height, False, b"")
        for seat in window.verifiers
        if seat.address == machine
    ]


def test_seats_are_declined_soon_and_not_too_often() -> None:
    parameters = replace(QUICK, decline_seat_ms=5_000, declines_per_day=1)
    world, task, first = drawn(parameters, 3)
    world.block(5_000)
    assert world.send(first, DECLINE_SEAT, [task, 0]) == "decline_too_late"
    world, task, first = drawn(parameters, 1)
    assert world.send(first, DECLINE_SEAT, [task, 0]) is None
    again = world.create(spec(total=20))
    world.run(again, until=lambda record: record.next_window == 1 and seats(world, again) != [])
    assert world.send(first, DECLINE_SEAT, [again, 0]) == "too_many_declines"
    machine = require_node(world.state, first)
    today = machine.day * DAY_MS
    assert [declines_left(machine, now, parameters) for now in (today, today + DAY_MS - 1, today + DAY_MS)] == [
        0,
        0,
        1,
    ]
    world.block(DAY_MS)
    assert require_node(world.state, first).bad == 1, "then it is late like any other"


def test_fines_for_late_verdicts_end_at_what_a_day_may_cost_and_at_the_least_bond() -> None:
    fee = load_window(drawn(QUICK, 1)[0].state, drawn(QUICK, 1)[1], 0).fee
    for bond, per_day in ((0, DKB), (fee // 2, DKB), (DKB, fee // 4), (DKB, DKB)):
        world = SignedWorld(replace(QUICK, late_fines_per_day_max=per_day, draws_max=1))
        world.join(KEYS[1], world.profile(KEYS[1], roles=WORK))
        offer = world.profile(KEYS[2], roles=CHECK)
        silent = world.join(KEYS[2], offer, manners=IDLE)
        assert world.send(silent, UPDATE_NODE, node_payload(offer, bond)) is None
        task = world.create(spec(total=20))
        world.run_to(task, Phase.FAILED)
        node = require_node(world.state, silent)
        fines = min(per_day, bond, load_window(world.state, task, 0).fee)
        assert (node.bond, node.bad) == (QUICK.node_bond_min + bond - fines, 1)
        assert node.owed_ms == 0
