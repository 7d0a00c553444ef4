"""Machines: registration, bonds, cool-downs, retirement, and who is matched and drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isqrt
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.codec import Value
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.signing import personal_digest, wallet_form
from state.view import Overlay
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.calls import bids_due, hold_call
from tasks.ledger.fading import COUNT, faded
from tasks.ledger.lifecycle import Phase
from tasks.ledger.matching import draw_segments, draw_verifiers, draw_weighted
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import load_task
from tasks.ledger.registration import operator_words
from tasks.ledger.registry import (
    Gpu,
    NodeProfile,
    NodeRecord,
    NodeRole,
    NodeStatus,
    candidates,
    is_limited,
    require_node,
    save_node,
)
from tasks.ledger.reputation import draw_weight, mark_decline, mark_failure, mark_success, reputation_milli
from tasks.ledger.transitions import (
    GIVE_UP_TASK,
    REGISTER_NODE,
    RETIRE_NODE,
    SUSPEND_NODE,
    UPDATE_NODE,
    node_payload,
)
from tasks.spec import RATE_MAX
from tests.tasks.world import DKB, QUICK, START_MS, WORTH, Manners, World, spec

NODE = b"n" * 20
PROFILE = NodeProfile(NODE, NodeRole.COMPUTE, (), 8, 16_000, 16, WORTH // 2000, 10**10, 1, 0, (), "1")


def funded() -> World:
    world = World()
    world.fund(NODE, 100 * DKB)
    return world


def test_a_node_locks_its_bond_and_gets_it_back_after_retiring() -> None:
    world = funded()
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, QUICK.node_bond_min - 1)) == "payment_missing"
    assert world.send(NODE, UPDATE_NODE, node_payload(PROFILE, 0)) == "node_unknown"
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 101 * DKB)) == "insufficient_funds"
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB)) is None
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB)) == "node_known"
    assert world.send(NODE, UPDATE_NODE, node_payload(PROFILE._replace(cores=9), 5 * DKB)) is None
    node = queries.find_node(world.state, NODE)
    assert node is not None and (node.bond, node.profile.cores) == (15 * DKB, 9)
    assert balance_of(world.state, NODE) == 85 * DKB
    assert world.send(NODE, RETIRE_NODE, []) is None
    assert world.send(NODE, RETIRE_NODE, []) == "wrong_phase"
    assert candidates(world.state, NodeRole.COMPUTE, bytes(8), 10) == []
    world.block(QUICK.retire_ms - 1)
    world.block()
    assert queries.find_node(world.state, NODE) is not None
    world.block()
    assert queries.find_node(world.state, NODE) is None
    assert balance_of(world.state, NODE) == 100 * DKB
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB)) is None


def test_a_verifier_that_owes_a_verdict_is_not_let_go() -> None:
    world = World(replace(QUICK, seal_ms_min=20 * QUICK.retire_ms))
    world.add_machine(1, roles=NodeRole.COMPUTE)
    verifier = world.add_machine(2, roles=NodeRole.VERIFY, manners=Manners(silent=frozenset(Action)))
    task = world.create()
    world.run(task, until=lambda record: queries.verification_duties(world.state, verifier) != [])
    assert world.send(verifier, RETIRE_NODE, []) is None
    for _ in range(10):
        world.block(QUICK.retire_ms)
    assert queries.find_node(world.state, verifier) is not None
    for _ in range(30):
        world.block(QUICK.retire_ms)
    assert queries.find_node(world.state, verifier) is None
    world.machines.pop(verifier)
    assert world.send(verifier, REGISTER_NODE, node_payload(PROFILE._replace(operator=verifier), 10 * DKB)) is None
    assert require_node(world.state, verifier).bad > 0


def test_a_node_with_a_task_is_not_let_go_before_it_ends() -> None:
    world = World()
    machines = [world.add_machine(at) for at in (1, 2)]
    task = world.create(spec(total=2000, window=20))
    worker = world.run_to(task, Phase.RUNNING).worker
    assert worker in machines
    assert world.send(worker, RETIRE_NODE, []) is None
    for _ in range(30):
        world.act()
        world.block()
    assert queries.find_node(world.state, worker) is not None


def test_a_suspended_node_is_neither_offered_nor_drawn_and_keeps_all_else() -> None:
    world = World()
    off, worker, other = (world.add_machine(at, price=at) for at in (1, 2, 3))
    mark_failure(world.state, off, world.time_ms - QUICK.cool_down_ms, world.events.append, QUICK)
    before = require_node(world.state, off)
    assert world.send(off, SUSPEND_NODE, []) is None
    assert world.send(off, SUSPEND_NODE, []) == "wrong_phase"
    assert world.send(b"x" * 20, SUSPEND_NODE, []) == "node_unknown"
    assert require_node(world.state, off) == before._replace(status=NodeStatus.SUSPENDED, seen_ms=world.time_ms), (
        "bond, record and pauses stay"
    )
    for role in (NodeRole.COMPUTE, NodeRole.VERIFY):
        assert off not in [node.address for node in candidates(world.state, role, bytes(8), 10)]
    task = world.create()
    assert world.run_to(task, Phase.SETTLED).worker in (worker, other), "the suspended one is the cheapest"
    for number in range(3):
        window = queries.task_windows(world.state, task)[number]
        assert off not in [seat.address for seat in window.verifiers]
    for _ in range(3):
        world.block(QUICK.retire_ms)
    assert world.send(off, UPDATE_NODE, node_payload(before.profile, 0)) is None
    back = require_node(world.state, off)
    assert (back.status, back.bond, back.bad) == (NodeStatus.ACTIVE, before.bond, before.bad)
    assert off in [node.address for node in candidates(world.state, NodeRole.COMPUTE, bytes(8), 10)]


def test_a_node_that_is_suspended_keeps_its_duties_and_pays_for_what_it_does_not_do() -> None:
    world = World()
    world.add_machine(1)
    world.add_machine(2)
    task = world.create(spec(total=2000, window=20))
    worker = world.run_to(task, Phase.RUNNING).worker
    assert world.send(worker, SUSPEND_NODE, []) is None
    assert len(queries.work_duties(world.state, worker, QUICK)) == 1
    assert world.send(worker, RETIRE_NODE, []) is None, "its owner may still want out"
    world.time_ms = world.task(task).deadline_ms
    world.block()
    assert world.task(task).phase == Phase.DEGRADED
    assert require_node(world.state, worker).bad == 1
    assert world.send(worker, SUSPEND_NODE, []) == "wrong_phase", "that would take back the retirement"


def test_updating_ends_the_retirement() -> None:
    world = funded()
    world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB))
    world.send(NODE, RETIRE_NODE, [])
    assert world.send(NODE, UPDATE_NODE, node_payload(PROFILE, 0)) is None
    for _ in range(3):
        world.block(QUICK.retire_ms)
    assert queries.find_node(world.state, NODE) is not None
    assert len(candidates(world.state, NodeRole.COMPUTE, bytes(8), 10)) == 1


def test_a_node_that_was_not_seen_is_not_matched_until_it_renews() -> None:
    world = World(replace(QUICK, registration_valid_ms=60_000))
    first, second = world.add_machine(1), world.add_machine(2)
    world.block(61_000)
    task = world.create()
    for _ in range(5):
        world.block()
    assert world.task(task).phase == Phase.MATCHING
    for address in (first, second):
        node = queries.find_node(world.state, address)
        assert node is not None
        world.send(address, UPDATE_NODE, node_payload(node.profile, 0))
    world.run_to(task, Phase.SETTLED)


def test_pauses_double_and_success_ends_them() -> None:
    parameters = replace(QUICK, cool_down_ms=1_000, cool_down_doublings_max=2, reputation_charge_min=5)
    world = World(parameters)
    node = world.add_machine(1)
    for pause_ms in (1_000, 2_000, 4_000, 4_000, 4_000):
        mark_failure(world.state, node, START_MS, world.events.append, parameters)
        assert require_node(world.state, node).cool_down_until_ms == START_MS + pause_ms
    mark_decline(world.state, node, START_MS, 0, parameters)
    mark_success(world.state, node, 4, START_MS, parameters, is_worker=True)
    record = require_node(world.state, node)
    assert (record.failures, record.declines, record.good, record.valid_streak, record.proved) == (0, 0, 0, 0, 4)
    for is_worker in (False, True):
        mark_success(world.state, node, 7, START_MS, parameters, is_worker=is_worker)
    record = require_node(world.state, node)
    assert (record.bad, record.good, record.valid_streak, record.proved) == (5, 2, 2, 11)


@given(moves=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), max_size=30))
def test_the_pause_after_a_decline_follows_what_it_cost_and_is_bounded(moves: list[tuple[int, int]]) -> None:
    parameters = TaskParameters()
    world = World(parameters)
    node, now_ms = world.add_machine(1), START_MS
    for gap_ms, held_ms in moves:
        before, now_ms = require_node(world.state, node), now_ms + gap_ms
        mark_decline(world.state, node, now_ms, held_ms, parameters)
        after = require_node(world.state, node)
        least_ms = parameters.decline_ms + held_ms
        assert after.match_from_ms >= max(before.match_from_ms, now_ms + least_ms)
        most_ms = least_ms << parameters.decline_doublings_max
        assert after.match_from_ms <= max(before.match_from_ms, now_ms + most_ms)
        if now_ms - before.match_from_ms >= parameters.decline_memory_ms:
            assert (after.declines, after.match_from_ms) == (1, now_ms + least_ms)
        assert before._replace(declines=after.declines, match_from_ms=after.match_from_ms) == after


@given(
    count=st.integers(0, 10**12), from_ms=st.integers(0, 10**13), half_life_ms=st.integers(64, 10**11),
    steps=st.lists(st.integers(0, 10**10), max_size=20),
)  # fmt: skip
def test_a_count_fades_the_same_however_often_it_is_looked_at(
    count: int, from_ms: int, half_life_ms: int, steps: list[int]
) -> None:
    at_ms, left = from_ms, count
    for step_ms in steps:
        left, at_ms = faded(left, at_ms, at_ms + step_ms, half_life_ms), at_ms + step_ms
    at_once = faded(count, from_ms, at_ms, half_life_ms)
    assert at_once - len(steps) - 1 <= left <= at_once <= count
    tick_ms = half_life_ms // 64
    halved = faded(count, from_ms, from_ms + 64 * tick_ms, half_life_ms)
    assert halved == count // 2
    assert faded(count, from_ms, from_ms + 32 * tick_ms, half_life_ms) == isqrt(count * count // 2) or count < 2


@pytest.mark.parametrize(
    ("change", "limited"),
    [
        ({}, False),
        ({"cores": 7}, True),
        ({"memory_mib": 63_999}, True),
        ({"pcie_lanes": 15}, True),
        ({"gpus": ()}, False),
    ],
)
def test_the_admission_rule(change: dict[str, object], limited: bool) -> None:
    profile = PROFILE._replace(gpus=(Gpu("a", 16_000),) * 2, cores=8, memory_mib=64_000, pcie_lanes=16)
    assert is_limited(profile._replace(**change)) == limited  # type: ignore[arg-type]


def test_a_job_of_several_gpus_goes_to_a_machine_that_has_them() -> None:
    world = World()
    world.add_machine(1, price=10**12)
    world.add_machine(2, gpus=1, price=10**12)
    fit = world.add_machine(3, gpus=2)
    task = world.create(spec(gpus=2))
    assert world.run_to(task, Phase.ASSIGNED).worker == fit


def test_the_lowest_ask_has_the_task_then_the_better_record_and_too_dear_is_out() -> None:
    world = World()
    world.add_machine(1, price=WORTH // 1000 + 1)
    world.add_machine(2, price=WORTH // 1100)
    cheap = world.add_machine(3, price=WORTH // 4000)
    assert world.run_to(world.create(), Phase.ASSIGNED).worker == cheap
    world.add_machine(4, price=WORTH // 1999)
    world.add_machine(5, price=WORTH // 2000, rate=RATE_MAX)  # what it says of its speed counts for nothing
    proven = world.add_machine(6, price=WORTH // 2000)
    save_node(world.state, require_node(world.state, proven)._replace(good_faded=50 * COUNT))
    assert world.run_to(world.create(), Phase.ASSIGNED).worker == proven


def test_a_machine_gets_no_more_tasks_than_it_has_slots() -> None:
    world = World()
    world.add_machine(1, slots=2, roles=NodeRole.COMPUTE, manners=Manners(silent=frozenset(Action)))
    world.add_machine(2, roles=NodeRole.VERIFY)
    tasks = [world.create() for _ in range(3)]
    world.block()
    assert Counter(world.task(task).phase for task in tasks) == {Phase.ASSIGNED: 2, Phase.MATCHING: 1}
    worker = next(world.task(task).worker for task in tasks if world.task(task).worker)
    given = next(task for task in tasks if world.task(task).worker)
    assert world.send(worker, GIVE_UP_TASK, [given, 14]) is None
    world.block(2_000)
    world.block()
    assert world.task(tasks[2]).phase == Phase.ASSIGNED


def test_one_transient_fault_weighs_less_than_a_record() -> None:
    world = funded()
    world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB))
    node = queries.find_node(world.state, NODE)
    assert node is not None
    assert reputation_milli(node) == 500
    assert (
        reputation_milli(node._replace(good_faded=20 * COUNT, bad_faded=COUNT))
        > reputation_milli(node)
        > reputation_milli(node._replace(bad_faded=COUNT))
    )


def test_the_index_is_walked_around_from_any_start() -> None:
    world = World()
    names = {world.add_machine(at) for at in range(1, 12)}
    for start in range(20):
        found = candidates(world.state, NodeRole.VERIFY, digest(b"seed", bytes([start])), 100)
        assert {node.address for node in found} == names and len(found) == len(names)
        assert len(candidates(world.state, NodeRole.VERIFY, digest(b"seed", bytes([start])), 4)) == 4


def test_draws_follow_the_weights_and_repeat_with_the_seed() -> None:
    counts: Counter[int] = Counter()
    for at in range(2_000):
        seed = digest(b"seed", at.to_bytes(4, "big"))
        drawn = draw_weighted(seed, [1, 3, 6], 1)
        assert drawn == draw_weighted(seed, [1, 3, 6], 1)
        counts[drawn[0]] += 1
    assert [round(counts[at] / 200) for at in range(3)] == [1, 3, 6]
    assert sorted(draw_weighted(b"s" * 32, [5, 5, 5], 9)) == [0, 1, 2]
    parties = [(b"a", b"o"), (b"b", b"o", b"s"), (b"c", b"s"), (b"d",)]  # one party in common is enough
    for number in range(20):
        together = set(draw_weighted(digest(b"parties", bytes([number])), [1] * 4, 4, parties))
        assert 3 in together and together - {3} in ({0, 2}, {1})
    assert draw_segments(b"s" * 32, 3, 4) == (0, 1, 2)
    picks: Counter[int] = Counter()
    for at in range(1_000):
        segments = draw_segments(digest(b"seed", at.to_bytes(4, "big")), 8, 2)
        assert len(set(segments)) == 2 and segments == tuple(sorted(segments))
        picks.update(segments)
    assert all(200 < picks[at] < 300 for at in range(8))


RECORDS: Final = st.tuples(st.integers(0, 10**9), st.integers(0, 10**8))


def recorded(node: NodeRecord, bond: int, record: tuple[int, int]) -> NodeRecord:
    return node._replace(bond=bond, good_faded=record[0], bad_faded=record[1])


@given(parts=st.lists(st.tuples(st.integers(1, 1 << 100), RECORDS), min_size=1, max_size=8))
def test_no_bond_weighs_more_in_parts_than_whole(parts: list[tuple[int, tuple[int, int]]]) -> None:
    """Each outcome counts for one key, so the whole has the outcomes of all its parts, or of the best."""
    base = funded_node()
    nodes = [recorded(base, bond, record) for bond, record in parts]
    best = max(parts, key=lambda part: reputation_milli(recorded(base, *part)))[1]
    whole = recorded(base, sum(bond for bond, _ in parts), best)
    assert (
        sum(draw_weight(node, node.backing) for node in nodes)
        <= draw_weight(whole, whole.backing)
        <= 4 * whole.bond
    )
    assert draw_weight(recorded(base, whole.bond, (0, 0)), whole.bond) == whole.bond, "who is new has the least"


def test_verifiers_are_drawn_by_bond_times_reputation() -> None:
    world = World()
    names = [world.add_machine(at, roles=NodeRole.VERIFY) for at in range(1, 6)]
    records = [(10, 0, 0), (10, 2, 0), (10, 8, 0), (10, 38, 0), (20, 38, 20)]
    pool = [
        recorded(require_node(world.state, name), bond * DKB, (good * COUNT, bad * COUNT))
        for name, (bond, good, bad) in zip(names, records, strict=True)
    ]
    assert [draw_weight(node, node.backing) // (10 * DKB) for node in pool] == [1, 2, 3, 4, 2]
    counts: Counter[bytes] = Counter()
    for at in range(6_000):
        [drawn] = draw_verifiers(digest(b"seed", at.to_bytes(4, "big")), pool, 1, 10**6, QUICK)
        counts[drawn.address] += 1
    for name, weight in zip(names, (1, 2, 3, 4, 2), strict=True):
        assert abs(counts[name] - 500 * weight) < 120, counts


def funded_node() -> NodeRecord:
    world = funded()
    assert world.send(NODE, REGISTER_NODE, node_payload(PROFILE, 10 * DKB)) is None
    return require_node(world.state, NODE)


def test_after_offers_in_vain_bonds_and_not_words_decide_who_is_offered_a_task() -> None:
    world = World()
    loud = world.add_machine(1, roles=NodeRole.COMPUTE, price=1, rate=RATE_MAX)
    bonded = world.add_machine(2, roles=NodeRole.COMPUTE)
    world.add_machine(3, roles=NodeRole.VERIFY)
    payload = node_payload(require_node(world.state, bonded).profile, 8 * QUICK.node_bond_min)
    assert world.send(bonded, UPDATE_NODE, payload) is None
    task = world.create()

    def offers(vain_offers: int) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for at in range(400):
            world.seed, state = at, Overlay(world.state)
            scope = Scope(state, world.context(), lambda _event: None, QUICK)
            case = Case.load(scope, task)
            case.change(vain_offers=vain_offers)
            case.save()
            hold_call(scope, bids_due(state, world.time_ms, QUICK))
            found[load_task(state, task).worker] += 1
        return found

    assert offers(QUICK.offers_ranked - 1) == {loud: 400}
    assert 15 <= offers(QUICK.offers_ranked)[loud] <= 75  # a tenth of the bonds


def test_nobody_can_name_an_operator_that_has_not_signed_for_this_machine_on_this_chain() -> None:
    world = funded()
    owner, other = SecretKey(b"\x01" * 32), SecretKey(b"\x02" * 32)
    genesis_hash = world.context().genesis_hash

    def signed(key: SecretKey, node: bytes, chain: bytes) -> bytes:
        return wallet_form(key.sign(personal_digest(operator_words(chain, node))))

    def offer(consent: bytes, operator: bytes = owner.address) -> list[Value]:
        return node_payload(PROFILE._replace(operator=operator, consent=consent), 10 * DKB)

    good = signed(owner, NODE, genesis_hash)
    for consent in (
        b"", bytes(65), signed(other, NODE, genesis_hash), signed(owner, b"m" * 20, genesis_hash),
        signed(owner, NODE, b"h" * 32),
    ):  # fmt: skip
        assert world.send(NODE, REGISTER_NODE, offer(consent)) == "operator_unproved"
    assert world.send(NODE, REGISTER_NODE, offer(good, operator=NODE)) == "operator_unproved"
    assert world.send(NODE, REGISTER_NODE, offer(good)) is None
    node = queries.find_node(world.state, NODE)
    assert node is not None and node.profile.operator == owner.address
    assert world.send(NODE, UPDATE_NODE, offer(b"", operator=other.address)) == "operator_unproved"
    assert world.send(NODE, UPDATE_NODE, node_payload(PROFILE, 0)) is None
