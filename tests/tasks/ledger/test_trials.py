"""Speed trials: what measures a machine's rate, who checks it, what a lie costs, and what a flood delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from state.primitives.codec import Value
from state.view.accounts import balance_of
from tasks.engines.arrays import NumpyArrays
from tasks.engines.trial_runs import LinkRunner
from tasks.ledger.check_fund import fund_balance
from tasks.ledger.deadlines import TRIAL_SLOT, trials_due
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import DAY_MS
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.transitions import RETIRE_NODE, SUSPEND_NODE, UPDATE_NODE, hooks, node_payload
from tasks.ledger.trial_transitions import ASK_TRIAL, COMMIT_TRIAL, JUDGE_TRIAL, SHOW_TRIAL
from tasks.ledger.trials import (
    HALVINGS_MAX,
    TRIALS_PER_BLOCK_MAX,
    TrialPhase,
    TrialRecord,
    asks_from_ms,
    find_round,
    find_trial,
    measured_rate,
    rounds_behind,
    rounds_over,
    trials_to_judge,
)
from tasks.trials import first_state, link_units, next_state, positions_of, root_of, show, shown_to_value
from tests.tasks.world import DKB, QUICK, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
TRIALS: Final = replace(
    QUICK, trial_ms=10_000, trial_slack_ms=3_000, trial_step_ms=20_000, trial_pause_ms=600_000,
    trial_valid_ms=DAY_MS, trial_blocks=1 << 40, trial_first_ms=0, trial_fine=DKB // 100,
    late_fines_per_day_max=DKB,
)  # fmt: skip
"""No trial begins by lot, and a first trial counts whole."""
RATE: Final = 4 * 10**7
"""Of machines that do a few links in a trial."""
WIDTH: Final = 64
LINKS: Final = RATE * TRIALS.trial_ms // 1000 // link_units(WIDTH)


@dataclass
class Trialists:
    """Machines that do what trials ask of them: honest unless a way to cheat is given."""

    world: World
    links: dict[bytes, int] = field(default_factory=dict)
    """How many links a machine does in a trial."""
    late_ms: dict[bytes, int] = field(default_factory=dict)
    cheats: dict[bytes, Callable[[list[bytes]], list[bytes]]] = field(default_factory=dict)
    liars: set[bytes] = field(default_factory=set)
    """Verifiers that say that everything is wrong."""
    accomplices: set[bytes] = field(default_factory=set)
    """Verifiers that say what the machine tells them, which is in ``known``."""
    known: dict[bytes, bytes] = field(default_factory=dict)
    """What gives the second state of two, by both: a machine that invents links chooses it."""
    silent: set[bytes] = field(default_factory=set)
    chains: dict[bytes, list[bytes]] = field(default_factory=dict)

    def trial(self, machine: bytes) -> TrialRecord:
        record = find_trial(self.world.state, machine)
        assert record is not None
        return record

    def act(self, machine: bytes) -> None:
        world, record = self.world, self.trial(machine)
        if machine in self.silent:
            return
        ready_ms = record.begun_ms + world.parameters.trial_ms + self.late_ms.get(machine, 0)
        if record.phase is TrialPhase.RUNNING and world.time_ms >= ready_ms:
            links = self.links.get(machine, LINKS)
            runner, chain = LinkRunner(record.seed, record.width, NumpyArrays()), [first_state(record.seed)]
            while len(chain) <= links:
                chain.append(runner.run(chain[-1]))
            self.chains[machine] = self.cheats[machine](chain) if machine in self.cheats else chain
            states = self.chains[machine]
            commit: list[Value] = [len(states) - 1, root_of(states), 2 * world.parameters.trial_fee]
            assert world.send(machine, COMMIT_TRIAL, commit) is None
        elif record.phase is TrialPhase.SHOWING:
            states = self.chains[machine]
            wanted = positions_of(record.lot, record.links, world.parameters.trial_samples)
            shown = [shown_to_value(link) for link in show(states, wanted)]
            assert world.send(machine, SHOW_TRIAL, [shown]) is None
        elif record.phase is TrialPhase.JUDGING and record.verifier not in self.silent:
            assert world.send(record.verifier, JUDGE_TRIAL, [machine, self.answer(record)]) is None

    def answer(self, record: TrialRecord) -> list[Value]:
        """Return what a verifier answers: for a liar nothing that is true."""
        befores = [record.shown[at : at + 32] for at in range(0, len(record.shown), 64)]
        if record.verifier in self.liars:
            return [record.verifier + bytes(12) for _ in befores]
        if record.verifier in self.accomplices:
            return [self.known[record.shown[at : at + 64]] for at in range(0, len(record.shown), 64)]
        runner = LinkRunner(record.seed, record.width, NumpyArrays())
        return [runner.result(before) for before in befores]

    def run(self, machine: bytes, blocks: int = 120) -> TrialRecord:
        """Go on until the trial of a machine is over."""
        was = self.trial(machine).phase is not TrialPhase.IDLE
        for _ in range(blocks):
            self.world.block()
            self.act(machine)
            is_idle = self.trial(machine).phase is TrialPhase.IDLE
            if was and is_idle:
                return self.trial(machine)
            was = was or not is_idle
        raise AssertionError(f"not within {blocks} blocks: {self.trial(machine)}")


def market(verifiers: int = 3) -> tuple[World, Trialists, bytes]:
    world = World(parameters=TRIALS)
    for at in range(verifiers):
        world.add_machine(90 + at, roles=CHECK)
    machine = world.add_machine(1, roles=WORK, rate=RATE)
    return world, Trialists(world), machine


def play_trials(world: World | None = None) -> World:
    """Play a trial that is asked for, and its check."""
    world = world or World(parameters=TRIALS)
    world.add_machine(90, roles=CHECK)
    machine = world.add_machine(1, roles=WORK, rate=RATE)
    trialists = Trialists(world)
    trialists.run(machine)
    world.block(TRIALS.trial_pause_ms)
    assert world.send(machine, ASK_TRIAL, []) is None
    assert trialists.run(machine).is_checked
    return world


@pytest.mark.parametrize("is_alone", [True, False])
def test_an_offer_of_a_cluster_that_changes_begins_no_trial(is_alone: bool) -> None:
    world = World(parameters=TRIALS)
    world.add_machine(90, roles=CHECK)
    alone = NodeRole.CONTAINER | NodeRole.ONLY_CONTAINERS if is_alone else NodeRole(0)
    machine = world.add_machine(1, roles=WORK | alone, rate=RATE)
    trialists = Trialists(world)
    due_ms = trialists.run(machine).due_ms
    profile = require_node(world.state, machine).profile
    update = node_payload(profile._replace(cores=profile.cores - 1, memory_mib=profile.memory_mib - 1, slots=3), 0)
    assert world.send(machine, UPDATE_NODE, update) is None
    assert (trialists.trial(machine).due_ms == due_ms) is is_alone
    faster = node_payload(profile._replace(rate=RATE + 1), 0)
    assert world.send(machine, UPDATE_NODE, faster) is None
    assert trialists.trial(machine).due_ms != due_ms


def test_a_machine_that_takes_other_jobs_again_is_tried_with_what_it_has_then() -> None:
    """Else it would change its devices while it takes containers alone, and keep the rate of those before."""
    world = World(parameters=TRIALS)
    world.add_machine(90, roles=CHECK)
    alone = WORK | NodeRole.CONTAINER | NodeRole.ONLY_CONTAINERS
    machine = world.add_machine(1, roles=alone, rate=RATE)
    trialists = Trialists(world)
    due_ms = trialists.run(machine).due_ms
    profile = require_node(world.state, machine).profile
    other = profile._replace(cores=profile.cores - 1)
    assert world.send(machine, UPDATE_NODE, node_payload(other, 0)) is None
    assert trialists.trial(machine).due_ms == due_ms
    assert world.send(machine, UPDATE_NODE, node_payload(other._replace(roles=WORK), 0)) is None
    assert trialists.trial(machine).due_ms != due_ms


def rate_of(world: World, machine: bytes) -> int | None:
    return measured_rate(world.state, require_node(world.state, machine), world.time_ms, world.parameters)


def bond_of(world: World, machine: bytes) -> int:
    return require_node(world.state, machine).bond


def test_a_machine_is_matched_when_its_speed_was_measured_and_checked() -> None:
    world, trialists, machine = market()
    task = world.create(spec(match_ms=3_600_000))
    for _ in range(3):
        world.block()
    assert world.task(task).phase == Phase.MATCHING and rate_of(world, machine) is None
    before = balance_of(world.state, machine)
    record = trialists.run(machine)
    assert record.is_checked and record.rate == LINKS * link_units(WIDTH) // 10
    assert rate_of(world, machine) == min(RATE, record.rate)
    assert before - balance_of(world.state, machine) == 2 * TRIALS.trial_fee
    for _ in range(4):
        world.block()
    assert world.task(task).worker == machine
    assert world.task(task).rate == record.rate, "deadlines follow what was measured"


def test_a_claim_of_four_times_the_speed_is_cut_to_what_was_measured() -> None:
    world, trialists, machine = market()
    liar = world.add_machine(2, roles=WORK, rate=4 * RATE)
    record = trialists.run(liar)
    assert record.is_checked and rate_of(world, liar) == record.rate <= RATE < 4 * RATE
    assert bond_of(world, liar) == bond_of(world, machine), "what was claimed costs nothing by itself"


def forged(states: list[bytes]) -> list[bytes]:
    """Three links that were never computed for each that was."""
    return [states[0], *(bytes([at]) * 32 for at in range(3 * len(states))), *states[1:]]


def test_links_that_were_not_computed_cost_a_fine_a_failure_and_the_rate() -> None:
    """A liar that claims four times its links: four are drawn, so one in 256 such trials would pass."""
    world, trialists, liar = market()
    trialists.cheats[liar] = forged
    world.fund(liar, DKB)
    node = require_node(world.state, liar)
    assert world.send(liar, UPDATE_NODE, node_payload(node.profile, DKB)) is None
    bond = bond_of(world, liar)
    record = trialists.run(liar)
    assert (record.rate, record.is_checked) == (0, 0) and rate_of(world, liar) is None
    assert bond - bond_of(world, liar) == TRIALS.trial_fine
    assert require_node(world.state, liar).bad == 1
    assert world.send(liar, ASK_TRIAL, []) == "nothing_due", "the next one comes after a pause"


def test_who_shows_nothing_of_what_it_committed_to_is_fined_as_for_a_wrong_link() -> None:
    world, trialists, liar = market()
    while trialists.trial(liar).phase is not TrialPhase.DRAWING:
        world.block()
        trialists.act(liar)
    trialists.silent.add(liar)
    record = trialists.run(liar)
    assert record.rate == 0 and require_node(world.state, liar).bad == 1


def test_time_beyond_the_slack_counts_so_slow_work_is_no_faster_for_more_links() -> None:
    """Who computes for 30 s instead of 10 has three times the links, and the same rate."""
    _, trialists, slow = market()
    trialists.links[slow], trialists.late_ms[slow] = 2 * LINKS, 13_000
    record = trialists.run(slow)
    assert record.counted_ms >= 20_000 and record.rate <= LINKS * link_units(WIDTH) // 10


def forged_with(trialists: Trialists) -> Callable[[list[bytes]], list[bytes]]:
    """Return a way to invent all links so that an accomplice can name results for them."""

    def forge(states: list[bytes]) -> list[bytes]:
        chain = states[:1]
        while len(chain) < 4 * len(states):
            invented = bytes([len(chain) % 251]) * 32
            chain.append(next_state(chain[-1], invented))
            trialists.known[chain[-2] + chain[-1]] = invented
        return chain

    return forge


def first_drawn(trialists: Trialists, machine: bytes) -> bytes:
    """Go on until the first verifier of a machine's trial is drawn, and return it."""
    for _ in range(60):
        trialists.world.block()
        trialists.act(machine)
        if trialists.trial(machine).verifier:
            return trialists.trial(machine).verifier
    raise AssertionError("no verifier was drawn")


def bads(world: World, *machines: bytes) -> list[int]:
    return [require_node(world.state, machine).bad for machine in machines]


def test_a_verifier_that_always_says_wrong_takes_no_rate_away_earns_nothing_and_is_fined() -> None:
    world, trialists, machine = market(verifiers=3)
    liar = first_drawn(trialists, machine)
    trialists.liars = {liar}
    before = balance_of(world.state, liar)
    record = trialists.run(machine)
    assert record.is_checked and record.rate
    assert bads(world, liar, machine) == [1, 0] and balance_of(world.state, liar) == before


def test_one_answer_against_one_with_nobody_else_marks_nobody_and_leaves_the_rate() -> None:
    world, trialists, machine = market(verifiers=2)
    liar = first_drawn(trialists, machine)
    trialists.liars = {liar}
    record = trialists.run(machine)
    assert record.rate and not record.is_checked
    assert bads(world, liar, machine, *(bytes([at]) * 20 for at in (90, 91))) == [0] * 4


def test_a_verifier_that_computes_nothing_cannot_say_right() -> None:
    """An answer is made of results. The states that the machine shows do not tell them."""
    world, trialists, machine = market(verifiers=3)
    lazy = first_drawn(trialists, machine)
    while trialists.trial(machine).phase is not TrialPhase.JUDGING:
        trialists.act(machine)
        world.block()
    shown = trialists.trial(machine).shown
    guess: list[Value] = [shown[at + 32 : at + 64] for at in range(0, len(shown), 64)]
    assert world.send(lazy, JUDGE_TRIAL, [machine, guess[:2]]) == "bad_evidence"
    assert world.send(lazy, JUDGE_TRIAL, [machine, guess]) is None
    assert trialists.trial(machine).verifier == b"", "its answer counts as wrong: the end of the block draws"
    assert trials_to_judge(world.state, lazy, 9) == []
    assert world.send(lazy, JUDGE_TRIAL, [machine, guess]) == "not_yours", "one answer each"
    world.block()
    assert trialists.trial(machine).verifier not in (b"", lazy)
    assert len(trialists.trial(machine).answers) == 1, "nobody was silent"
    record = trialists.run(machine)
    assert record.is_checked and bads(world, lazy) == [1]


def test_an_accomplice_of_a_forger_cannot_have_an_honest_verifier_fined() -> None:
    """The second one said "right" of invented links, and the honest first one was fined for it."""
    world, trialists, forger = market(verifiers=3)
    trialists.cheats[forger] = forged_with(trialists)
    honest = first_drawn(trialists, forger)
    accomplice = min({bytes([at]) * 20 for at in (90, 91, 92)} - {honest})
    trialists.accomplices = {accomplice}
    record = trialists.run(forger)
    assert bads(world, honest) == [0]
    assert (record.rate, *bads(world, forger, accomplice)) == (0, 1, 1)


def test_an_accomplice_that_is_drawn_first_does_not_pass_a_forger_alone() -> None:
    """It did: a third of accomplices passed 4 of 10 forged trials. Two of them have to be drawn now: 1 of 4."""
    world, trialists, forger = market(verifiers=3)
    trialists.cheats[forger] = forged_with(trialists)
    accomplice = first_drawn(trialists, forger)
    trialists.accomplices = {accomplice}
    record = trialists.run(forger)
    assert (record.rate, *bads(world, forger, accomplice)) == (0, 1, 1)


@pytest.mark.parametrize("verifiers", [1, 2, 3])
def test_right_links_are_right_by_two_answers_or_by_one_where_nobody_else_can_be_drawn(verifiers: int) -> None:
    world, trialists, machine = market(verifiers)
    before = {bytes([90 + at]) * 20: balance_of(world.state, bytes([90 + at]) * 20) for at in range(verifiers)}
    record = trialists.run(machine)
    assert record.is_checked and rate_of(world, machine) == record.rate > 0
    paid = [balance_of(world.state, who) - had for who, had in before.items()]
    deciding = min(2, verifiers)
    assert sorted(paid, reverse=True) == [TRIALS.trial_fee] * deciding + [0] * (verifiers - deciding)


def test_two_false_answers_that_differ_do_not_support_each_other() -> None:
    world, trialists, machine = market(verifiers=2)
    trialists.liars = {bytes([at]) * 20 for at in (90, 91)}
    record = trialists.run(machine)
    assert record.rate == 0 and bads(world, machine) == [0], "it may ask again after the pause"


def ten_on_one_device() -> tuple[World, Trialists, list[bytes]]:
    """Return ten machines of as many operators, and a verifier. A round comes as soon as one is over."""
    world = World(parameters=replace(TRIALS, trial_blocks=1, trial_pause_ms=3_600_000))
    world.add_machine(90, roles=CHECK)
    return world, Trialists(world), [world.add_machine(at + 1, roles=WORK, rate=RATE) for at in range(10)]


def test_one_device_that_answers_for_ten_machines_has_a_tenth_for_each_in_a_round() -> None:
    """Trials by lot came one by one: each of the ten had the whole device for its own trial."""
    world, trialists, machines = ten_on_one_device()
    done = dict.fromkeys(machines, 0.0)
    for _ in range(80):
        world.block()
        tried = [each for each in machines if trialists.trial(each).phase is TrialPhase.RUNNING]
        for each in tried:  # of what the device does in a second, in equal parts
            done[each] += LINKS / 10 / len(tried)
            trialists.links[each] = max(1, int(done[each]))
        for each in machines:
            trialists.act(each)
            if trialists.trial(each).phase is not TrialPhase.RUNNING:
                done[each] = 0
        if all(trialists.trial(each).cap for each in machines):
            break
    rates = [trialists.trial(each).cap for each in machines]
    whole = LINKS * link_units(WIDTH) // 10
    assert min(rates) > 0 and max(rates) <= whole // 4 and sum(rates) <= whole * 3 // 2


def test_a_trial_that_is_asked_for_gives_no_more_than_the_last_round_measured() -> None:
    world, trialists, (machine, *_) = ten_on_one_device()
    trialists.links[machine] = LINKS // 10
    while not trialists.trial(machine).cap:
        world.block()
        trialists.act(machine)
    world._hooks = hooks(replace(world.parameters, trial_blocks=1 << 40))  # no round from here on
    low = trialists.trial(machine) if trialists.trial(machine).phase is TrialPhase.IDLE else trialists.run(machine)
    trialists.links[machine] = LINKS
    world.block(DAY_MS * 1 // 2)
    if trialists.trial(machine).phase is TrialPhase.IDLE:
        assert world.send(machine, ASK_TRIAL, []) is None
    high = trialists.run(machine)
    assert high.rate > 5 * low.rate and not high.in_round and rate_of(world, machine) == low.cap


def twelve_in_a_round() -> tuple[World, Trialists, bytes, TrialRecord]:
    """Return a world in whose last block a round began, and a machine whose turn comes in the next one."""
    world = World(parameters=replace(TRIALS, trial_pause_ms=1))
    world.add_machine(90, roles=CHECK)
    trialists, machines = Trialists(world), [world.add_machine(at + 1, roles=WORK, rate=RATE) for at in range(12)]
    while not all(trialists.trial(each).rate for each in machines):
        world.block()
        for each in machines:
            trialists.act(each)
    world._hooks = hooks(replace(world.parameters, trial_blocks=1))
    world.block()
    world._hooks = hooks(world.parameters)  # this one round
    waiting = [each for each in machines if trialists.trial(each).phase is TrialPhase.IDLE]
    assert len(waiting) == 4 and find_round(world.state) is not None
    return world, trialists, waiting[0], trialists.trial(waiting[0])


def test_n17_a_machine_that_sees_a_round_begin_cannot_ask_for_a_trial_of_its_own_before_its_turn() -> None:
    """It was tried alone then, and the round passed it over: its trial was under way."""
    world, trialists, machine, _ = twelve_in_a_round()
    assert world.send(machine, ASK_TRIAL, []) is None
    world.block()
    record = trialists.trial(machine)
    assert record.phase is TrialPhase.RUNNING and record.in_round


@pytest.mark.parametrize("way", ["suspends", "retires", "no role"])
def test_n17_a_machine_that_leaves_the_market_before_its_turn_has_missed_the_round(way: str) -> None:
    """It came back when the round was over, with the rate that it had."""
    world, trialists, machine, before = twelve_in_a_round()
    profile = require_node(world.state, machine).profile
    if way == "no role":
        payload = node_payload(profile._replace(roles=CHECK), 0)
        assert world.send(machine, UPDATE_NODE, payload) is None
    else:
        assert world.send(machine, SUSPEND_NODE if way == "suspends" else RETIRE_NODE, []) is None
    world.block()
    assert world.send(machine, UPDATE_NODE, node_payload(profile, 0)) is None
    after = trialists.trial(machine)
    assert before.rate > 0 and (after.rate, after.misses) == (0, before.misses + 1)
    assert rate_of(world, machine) is None


def test_who_misses_rounds_waits_twice_as_long_each_time_before_it_can_ask() -> None:
    """Otherwise the ten miss each round, and ask one by one."""
    world, trialists, (machine, *_) = ten_on_one_device()
    trialists.silent.add(machine)
    before = 0
    for _ in range(3):
        record = trialists.run(machine, 200)
        assert record.misses > before and record.rate == 0
        before = record.misses
        assert asks_from_ms(record, world.parameters) == record.begun_ms + (3_600_000 << before)
    trialists.silent.clear()
    assert trialists.run(machine).misses == 0


def test_nothing_of_a_trial_can_be_computed_before_its_block() -> None:
    world, trialists, machine = market()
    other = world.add_machine(2, roles=WORK, rate=RATE)
    first = trialists.run(machine)
    world.block(TRIALS.trial_pause_ms)
    assert world.send(machine, ASK_TRIAL, []) is None
    world.block()
    again = trialists.trial(machine)
    assert len({first.seed, again.seed, trialists.trial(other).seed}) == 3
    runners = [LinkRunner(seed, WIDTH, NumpyArrays()) for seed in (first.seed, again.seed)]
    assert runners[0].result(bytes(32)) != runners[1].result(bytes(32)), "both matrices follow from the seed"
    assert runners[0].result(bytes(32)) != runners[0].result(b"x" * 32)


def test_a_machine_at_work_that_misses_a_trial_loses_no_task_and_gets_no_mark() -> None:
    world = World(parameters=replace(TRIALS, trial_pause_ms=1))
    for name in (90, 91):
        world.add_machine(name, roles=CHECK)
    machine = world.add_machine(1, roles=WORK, rate=RATE)
    trialists = Trialists(world)
    trialists.run(machine)
    task = world.create(spec())
    world.run_to(task, Phase.RUNNING)
    assert world.task(task).worker == machine and world.send(machine, ASK_TRIAL, []) is None
    rate = world.task(task).rate
    world.block()
    assert trialists.trial(machine).phase is TrialPhase.RUNNING
    ended = world.run_to(task, Phase.SETTLED)
    assert (ended.worker, ended.rate) == (machine, rate)
    trialists.silent.add(machine)
    assert trialists.run(machine).rate == 0 and bads(world, machine) == [0]


def test_trials_that_are_asked_for_drain_no_fund_and_come_once_in_a_pause() -> None:
    world, trialists, machine = market()
    fund = fund_balance(world.state)
    trialists.run(machine)
    for _ in range(3):
        assert world.send(machine, ASK_TRIAL, []) == "nothing_due"
        world.block(TRIALS.trial_pause_ms)
        assert world.send(machine, ASK_TRIAL, []) is None
        trialists.liars = {bytes([at]) * 20 for at in (90, 91, 92)}
        trialists.run(machine)
    assert fund_balance(world.state) >= fund + 4 * TRIALS.trial_fee


def test_a_machine_that_refuses_trials_is_matched_with_nothing_and_not_marked() -> None:
    world, trialists, machine = market()
    trialists.silent.add(machine)
    task = world.create(spec(match_ms=3_600_000))
    record = trialists.run(machine)
    assert record.rate == 0 and bads(world, machine) == [0]
    for _ in range(4):
        world.block()
    assert world.task(task).phase == Phase.MATCHING


def test_a_machine_that_claims_no_rate_has_none() -> None:
    """Its links would be narrow, and narrow links have more units a second on some machines."""
    world, trialists, _ = market()
    modest = world.add_machine(2, roles=WORK, rate=0)
    record = trialists.run(modest)
    assert record.rate and rate_of(world, modest) is None


def test_a_verifier_finds_what_it_is_to_judge_and_nothing_else() -> None:
    world, trialists, machine = market()
    verifiers = [bytes([at]) * 20 for at in (90, 91, 92)]
    while trialists.trial(machine).phase is not TrialPhase.JUDGING:
        assert all(trials_to_judge(world.state, each, 8) == [] for each in verifiers)
        world.block()
        trialists.act(machine)
    drawn = trialists.trial(machine).verifier
    assert trials_to_judge(world.state, drawn, 8) == [trialists.trial(machine)]
    trialists.run(machine)
    assert trials_to_judge(world.state, drawn, 8) == []


def test_silent_verifiers_are_replaced_and_a_machine_without_a_partner_has_an_unchecked_rate() -> None:
    _, trialists, machine = market(verifiers=2)
    trialists.silent = {bytes([at]) * 20 for at in (90, 91)}
    record = trialists.run(machine)
    assert record.rate and not record.is_checked
    alone, others, lone = market(verifiers=0)
    record = others.run(lone)
    assert record.rate and not record.is_checked
    task = alone.create(spec())
    alone.block()
    assert alone.task(task).phase == Phase.MATCHING, "nobody could check its windows either"


def test_a_rate_expires_and_is_measured_again_before_that() -> None:
    world, trialists, machine = market()
    first = trialists.run(machine)
    world.block(DAY_MS * 4 // 5)
    assert rate_of(world, machine) is not None and trialists.trial(machine).phase is TrialPhase.IDLE
    world.block(DAY_MS // 20)
    second = trialists.run(machine)
    assert second.measured_ms > first.measured_ms + DAY_MS * 4 // 5
    trialists.silent.add(machine)
    world.block(DAY_MS * 21 // 25)
    missed = trialists.run(machine)
    assert missed.rate == 0 and rate_of(world, machine) is None, "who is not there for a trial has no rate"


def test_rounds_come_when_nobody_knows_and_take_each_machine_once() -> None:
    """A borrowed machine would have to stand by all the time."""
    world = World(parameters=replace(TRIALS, trial_blocks=60, trial_pause_ms=1 << 40, trial_valid_ms=1 << 40))
    trialists = Trialists(world)
    machines = [world.add_machine(at + 1, roles=WORK, rate=RATE) for at in range(12)]
    trialists.silent = set(machines)
    rounds: list[set[bytes]] = []
    was = False
    for _ in range(300):
        world.block()
        tried = {each for each in machines if trialists.trial(each).in_round and trialists.trial(each).begun_ms
                 == world.time_ms - 1_000}  # fmt: skip
        assert len(tried) <= TRIALS_PER_BLOCK_MAX
        if tried and not was:
            rounds.append(set())
        if tried:
            rounds[-1] |= tried
        was = bool(tried)
    assert 1 < len(rounds) < 12
    assert all(len(each) > 8 for each in rounds), "but those whose last trial still runs"


def test_a_flood_of_machines_delays_trials_and_no_block_does_more_of_them() -> None:
    world, trialists, machine = market()
    trialists.run(machine)
    before = rate_of(world, machine)
    flood = [world.add_machine(at, roles=WORK, rate=RATE) for at in range(10, 70)]
    begun = []
    for _ in range(10):
        was = len(trials_due(world.state, TRIAL_SLOT, world.time_ms, 1_000))
        world.block()
        begun.append(was - len(trials_due(world.state, TRIAL_SLOT, world.time_ms - 1_000, 1_000)))
    assert max(begun) <= TRIALS_PER_BLOCK_MAX and sum(begun) >= len(flood)
    assert rate_of(world, machine) == before, "a rate that was measured outlasts what others queue for"


def test_prices_versions_and_lower_rates_begin_no_trial_and_a_higher_rate_does() -> None:
    world, trialists, machine = market()
    trialists.run(machine)
    world.block(TRIALS.trial_pause_ms)
    profile = require_node(world.state, machine).profile
    for same in (profile._replace(price_per_tera_unit=7), profile._replace(rate=RATE // 2)):
        assert world.send(machine, UPDATE_NODE, node_payload(same, 0)) is None
        world.block()
        assert trialists.trial(machine).phase is TrialPhase.IDLE
    assert world.send(machine, UPDATE_NODE, node_payload(profile._replace(rate=2 * RATE), 0)) is None
    world.block()
    assert trialists.trial(machine).phase is TrialPhase.RUNNING


def test_a_machine_that_retires_leaves_no_trial_behind() -> None:
    world, trialists, machine = market()
    while trialists.trial(machine).phase is not TrialPhase.DRAWING:
        world.block()
        trialists.act(machine)
    assert world.send(machine, RETIRE_NODE, []) is None
    for _ in range(3):
        world.block(TRIALS.retire_ms)
    assert find_trial(world.state, machine) is None


def test_what_is_sent_at_another_time_or_by_others_is_refused() -> None:
    world, trialists, machine = market()
    assert world.send(machine, COMMIT_TRIAL, [1, b"r" * 32, 2 * TRIALS.trial_fee]) == "wrong_phase"
    world.block()
    assert world.send(machine, COMMIT_TRIAL, [1, b"r" * 32, 1]) == "payment_missing"
    assert world.send(machine, SHOW_TRIAL, [[[0, b"s" * 32, b"s" * 32, [], []]]]) == "wrong_phase"
    assert world.send(machine, ASK_TRIAL, []) == "wrong_phase"
    assert world.send(bytes([90]) * 20, JUDGE_TRIAL, [machine, [bytes(32)]]) == "wrong_phase"
    while trialists.trial(machine).phase is not TrialPhase.SHOWING:
        trialists.act(machine)
        world.block()
    (first,) = show(trialists.chains[machine], [0])
    for links in ([first], [first._replace(after=b"x" * 32)] * 4):
        assert world.send(machine, SHOW_TRIAL, [[shown_to_value(link) for link in links]]) == "bad_evidence"
    trialists.act(machine)
    assert trialists.trial(machine).phase is TrialPhase.JUDGING
    assert world.send(machine, JUDGE_TRIAL, [machine, [bytes(32)] * 4]) == "not_yours"
    quiet = World()
    quiet.add_machine(1, roles=WORK)
    assert quiet.send(bytes([1]) * 20, ASK_TRIAL, []) == "trials_off"


def test_the_check_fund_has_no_less_after_a_trial_than_before() -> None:
    world, trialists, machine = market()
    before = fund_balance(world.state)
    trialists.run(machine)
    assert fund_balance(world.state) == before, "two verifiers have what the machine paid"


def hold_round(world: World, trialists: Trialists, machines: list[bytes]) -> None:
    """Have one round come, and all who are tried in it go through it."""
    world._hooks = hooks(replace(world.parameters, trial_blocks=1))
    world.block()
    world._hooks = hooks(world.parameters)
    assert find_round(world.state) is None
    for _ in range(120):
        for each in machines:
            trialists.act(each)
        world.block()
        if all(trialists.trial(each).phase is TrialPhase.IDLE for each in machines):
            return
    raise AssertionError([trialists.trial(each).phase for each in machines])


def test_each_round_that_a_machine_is_not_tried_in_halves_its_rate() -> None:
    """Ten machines with one device were off in turn: nine in each round, and each had a whole device's rate."""
    world, trialists, machine = market()
    other = world.add_machine(2, roles=WORK, rate=RATE)
    trialists.run(machine)
    while trialists.trial(other).phase is not TrialPhase.IDLE:
        world.block()
        trialists.act(other)
    hold_round(world, trialists, [machine, other])
    whole = rate_of(world, machine)
    assert whole is not None and rate_of(world, other) == whole
    profile = require_node(world.state, other).profile
    for missed in range(1, 5):
        assert world.send(other, SUSPEND_NODE, []) is None
        hold_round(world, trialists, [machine])
        assert world.send(other, UPDATE_NODE, node_payload(profile, 0)) is None
        assert rate_of(world, machine) == whole
        assert rate_of(world, other) == whole >> min(missed, HALVINGS_MAX)
    world.block(TRIALS.trial_pause_ms)
    assert world.send(other, ASK_TRIAL, []) is None
    trialists.run(other)
    assert rate_of(world, other) == whole >> HALVINGS_MAX, "to ask for a trial does not mend it"
    late = world.add_machine(3, roles=WORK, rate=RATE)
    trialists.run(late)
    assert rate_of(world, late) == whole, "no round was since it came"
    hold_round(world, trialists, [machine, other, late])
    assert rate_of(world, other) == whole


def test_a_machine_that_is_busy_in_one_round_has_what_the_round_before_it_measured() -> None:
    """Wall time counts, so other work on a processor cuts a round; a cut by two rounds in a row stands."""
    world, trialists, machine = market()
    trialists.run(machine)
    hold_round(world, trialists, [machine])
    whole = rate_of(world, machine)
    assert whole is not None
    for expected in (whole, whole // 4):
        trialists.links[machine] = LINKS // 4
        hold_round(world, trialists, [machine])
        assert trialists.trial(machine).cap <= whole // 4 + 1
        trialists.links[machine] = LINKS
        world.block(TRIALS.trial_pause_ms)
        assert world.send(machine, ASK_TRIAL, []) is None
        trialists.run(machine)
        assert abs((rate_of(world, machine) or 0) - expected) <= whole // 8


def test_a_trial_that_is_asked_for_just_before_a_round_is_one_of_it() -> None:
    world, trialists, machine = market()
    trialists.run(machine)
    hold_round(world, trialists, [machine])
    world.block(TRIALS.trial_pause_ms)
    assert world.send(machine, ASK_TRIAL, []) is None
    world.block()
    assert trialists.trial(machine).phase is TrialPhase.RUNNING and not trialists.trial(machine).in_round
    trialists.links[machine] = LINKS // 2
    hold_round(world, trialists, [machine])
    assert trialists.trial(machine).cap < trialists.trial(machine).cap_before
    assert rounds_behind(world.state, trialists.trial(machine)) == 0


# Machines that no round has measured (R81)


def first_trials(count: int) -> tuple[World, Trialists, list[bytes]]:
    """Return machines that were tried one by one, as one device could answer for all of them."""
    world = World(parameters=replace(TRIALS, trial_first_ms=120_000, trial_pause_ms=3_600_000))
    world.add_machine(90, roles=CHECK)
    world.add_machine(91, roles=CHECK)
    trialists, machines = Trialists(world), []
    for at in range(count):
        machines.append(world.add_machine(at + 1, roles=WORK, rate=RATE))
        trialists.run(machines[-1])
    return world, trialists, machines


def test_n18_a_device_that_is_tried_alone_for_each_of_three_machines_has_less_than_one_rate() -> None:
    """Each of the three had all of it until the first round, eight hours later."""
    world, trialists, machines = first_trials(3)
    alone = [trialists.trial(machine).rate for machine in machines]
    counts = [rate_of(world, machine) for machine in machines]
    assert counts == [rate >> 3 for rate in alone] and sum(rate or 0 for rate in counts) < min(alone) // 2


def test_a_round_comes_for_machines_that_none_has_measured_and_not_for_others() -> None:
    world, trialists, machines = first_trials(2)
    begun = trialists.trial(machines[0]).measured_ms
    while not all(trialists.trial(machine).in_round for machine in machines):
        world.block()
    assert 120_000 <= world.time_ms - begun <= 125_000
    for machine in machines:
        trialists.run(machine)
    assert [rate_of(world, machine) for machine in machines] == [trialists.trial(at).rate for at in machines]
    over = rounds_over(world.state)
    for _ in range(20):
        world.block(60_000)
    assert rounds_over(world.state) == over, "all are measured"
    newcomer = world.add_machine(9, roles=WORK, rate=RATE)
    trialists.run(newcomer)
    for _ in range(5):
        world.block(60_000)
    assert rounds_over(world.state) == over + 1


def test_many_newcomers_have_one_round() -> None:
    world, trialists, machines = first_trials(4)
    trialists.silent = set(machines)  # they miss it, and are as they were
    for _ in range(20):
        world.block(20_000)
    assert rounds_over(world.state) == 1
    assert {rate_of(world, machine) for machine in machines} == {None}
