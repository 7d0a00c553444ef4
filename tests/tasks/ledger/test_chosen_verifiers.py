"""Requesters that choose who verifies: who is drawn, and what friends among them cannot take (R166 to R168)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Purpose, check_escrows
from state.primitives.errors import DecodeError
from state.view import Overlay
from state.view.accounts import balance_of
from tasks.kinds.verifiers import BOND_MAX, NAMES_MAX, Verifiers
from tasks.ledger import queries
from tasks.ledger.disputes import load_docket, save_docket
from tasks.ledger.endings import final_at, let_pass
from tasks.ledger.lifecycle import Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRecord, NodeRole
from tasks.ledger.settlement import pay_void_verifiers
from tasks.ledger.transitions import UPDATE_NODE, node_payload
from tasks.spec import JobSpec, decode_spec, encode_spec, read_checked_spec
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
SURE: Final = replace(QUICK, draws_max=3)
"""Each window is audited."""


def job(verifiers: Verifiers) -> JobSpec:
    return spec().changed(verifiers=verifiers)


def node_of(world: World, address: bytes) -> NodeRecord:
    node = queries.find_node(world.state, address)
    assert node is not None
    return node


def seats_of(world: World, task: bytes) -> set[bytes]:
    windows = range(world.task(task).next_window)
    return {seat.address for number in windows for seat in load_window(world.state, task, number).verifiers}


def market(count: int, friends: Manners = HONEST) -> tuple[World, bytes, list[bytes]]:
    world = World(parameters=SURE)
    worker = world.add_machine(1, roles=WORK, price=WORTH // 10_000)
    checking = [
        world.add_machine(100 + at, roles=CHECK, manners=friends if at < 2 else HONEST) for at in range(count)
    ]
    return world, worker, checking


# The form


@pytest.mark.parametrize(
    "verifiers",
    [Verifiers(1), Verifiers(BOND_MAX), Verifiers(0, (b"a" * 20,)), Verifiers(0, (b"a" * 20, b"b" * 20))],
)
def test_a_choice_is_read_as_it_was_written(verifiers: Verifiers) -> None:
    data = encode_spec(job(verifiers))
    assert decode_spec(data) == read_checked_spec(data) == job(verifiers)
    assert data != encode_spec(spec())


@pytest.mark.parametrize(
    "verifiers",
    [
        Verifiers(-1), Verifiers(BOND_MAX + 1), Verifiers(1, (b"a" * 20,)), Verifiers(0, (b"a" * 19,)),
        Verifiers(0, (b"b" * 20, b"a" * 20)), Verifiers(0, (b"a" * 20, b"a" * 20)), Verifiers(True),
        Verifiers(0, tuple(bytes([at]) * 20 for at in range(NAMES_MAX + 1))), Verifiers(0, ("a" * 20,)),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_other_choices_are_refused(verifiers: Verifiers) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(job(verifiers)))


# Who is drawn


def test_named_machines_alone_verify() -> None:
    world, _, checking = market(6)
    task = world.create(job(Verifiers(0, (checking[1], checking[4]))))
    world.run_to(task, Phase.SETTLED)
    assert seats_of(world, task) <= {checking[1], checking[4]} and seats_of(world, task)


def test_the_machines_of_a_named_operator_verify() -> None:
    world, _, checking = market(5)
    boss = b"\x77" * 20
    theirs = world.add_machine(120, roles=CHECK, operator=boss)
    task = world.create(job(Verifiers(0, (boss,))))
    world.run_to(task, Phase.SETTLED)
    assert seats_of(world, task) == {theirs} and theirs not in checking


def test_a_named_machine_is_found_wherever_it_stands_in_the_index() -> None:
    world = World(parameters=replace(SURE, candidates_max=2))
    world.add_machine(1, roles=WORK, price=WORTH // 10_000)
    checking = sorted(world.add_machine(100 + at, roles=CHECK) for at in range(20))
    for named in (checking[0], checking[10], checking[19]):
        task = world.create(job(Verifiers(0, (named,))))
        world.run_to(task, Phase.SETTLED)
        assert seats_of(world, task) == {named}


def test_machines_with_the_bond_that_was_asked_for_verify() -> None:
    world, _, checking = market(4)
    rich = [world.add_machine(120 + at, roles=CHECK) for at in range(2)]
    for address in rich:
        node = node_of(world, address)
        assert world.send(address, UPDATE_NODE, node_payload(node.profile, 100 * DKB)) is None
    least = min(node_of(world, address).backing for address in rich)
    assert least > max(node_of(world, address).backing for address in checking)
    task = world.create(job(Verifiers(least)))
    world.run_to(task, Phase.SETTLED)
    assert seats_of(world, task) <= set(rich) and seats_of(world, task)


def test_neither_worker_nor_requester_verifies_because_it_is_named() -> None:
    world, worker, _ = market(3)
    task = world.create(job(Verifiers(0, tuple(sorted((worker, REQUESTER))))))
    record = world.run_to(task, Phase.SETTLED)
    assert not seats_of(world, task) and record.final_windows == 3


def test_a_lie_that_a_named_machine_finds_costs_the_bond() -> None:
    world = World(parameters=SURE)
    liar = world.add_machine(1, roles=WORK, price=WORTH // 10_000, manners=Manners(lies=True))
    world.add_machine(2, roles=WORK)
    checking = [world.add_machine(100 + at, roles=CHECK) for at in range(4)]
    task = world.create(job(Verifiers(0, (checking[0],))))
    world.run(task, until=lambda task: task.reason == Reason.LIE_PROVEN)
    assert liar in world.task(task).excluded and node_of(world, liar).bad == 1


# What friends cannot take


@pytest.mark.parametrize("silent", [Action.SEAL, Action.REVEAL])
def test_n83_the_silence_of_chosen_verifiers_takes_no_pay_of_a_worker(silent: Action) -> None:
    """N83: a requester names machines of its friends, which have the states and give no verdict."""
    world, worker, checking = market(6, Manners(silent=frozenset({silent})))
    task = world.create(job(Verifiers(0, tuple(sorted(checking[:2])))))
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == 3
    lines = queries.bill(world.state, task).lines
    paid = [line for line in lines if line.movement == Movement.PAID and line.party == worker]
    assert {line.subject for line in paid if line.purpose is Purpose.WINDOW_PAY} == {0, 1, 2}
    assert {load_window(world.state, task, at).phase for at in range(3)} == {WindowPhase.FINAL}


def test_n83_chosen_verifiers_that_lie_lose_their_games_and_the_worker_is_paid() -> None:
    world, worker, checking = market(6, Manners(lies=True))
    task = world.create(job(Verifiers(0, tuple(sorted(checking[:2])))))
    record = world.run_to(task, Phase.SETTLED, blocks=1_500)
    assert record.final_windows == 3 and node_of(world, worker).bad == 0
    assert any(node_of(world, liar).bad for liar in checking[:2])


def test_n84_friends_that_verify_each_other_have_no_record_by_it() -> None:
    """N84: worker, requester and verifiers are one; garbage that they confirm is no reputation."""
    world, worker, checking = market(6)
    before = [node_of(world, address) for address in (worker, *checking)]
    task = world.create(job(Verifiers(0, tuple(sorted(checking[:2])))))
    world.run_to(task, Phase.SETTLED)
    assert seats_of(world, task)
    for old in before:
        new = node_of(world, old.address)
        assert (new.good, new.proved, new.valid_streak) == (old.good, old.proved, old.valid_streak)
    task = world.create()  # what anybody may verify counts
    world.run_to(task, Phase.SETTLED)
    assert node_of(world, worker).good > before[0].good


def test_n83_outsiders_have_the_whole_time_of_challenges_after_chosen_verifiers_fell() -> None:
    """R168: it begins when the window passes, also if it had begun before and is over."""
    world, _, checking = market(6, Manners(silent=frozenset({Action.OPEN})))
    task = world.create(job(Verifiers(0, tuple(sorted(checking)))))
    world.run(task, until=lambda _: task_has_verdicts(world, task))
    case = Case.load(Scope(Overlay(world.state), world.context(), lambda _event: None, SURE), task)
    docket = load_docket(case.state, task, 0)
    save_docket(case.state, task, 0, docket._replace(until_ms=case.now - 1))
    let_pass(case, case.window(0), WindowEvent.AGREE)
    assert case.window(0).deadline_ms == final_at(case, case.window(0)) > case.now + 1


@pytest.mark.parametrize("is_chosen", [False, True])
def test_n85_a_void_window_pays_no_chosen_verifier_out_of_the_fund(is_chosen: bool) -> None:
    """N85: where nobody is to blame for a void window, a requester would send the fund's money to its friends."""
    world, _, checking = market(6, Manners(silent=frozenset({Action.OPEN})))
    task = world.create(job(Verifiers(0, tuple(sorted(checking)))) if is_chosen else None)
    world.run(task, until=lambda _: task_has_verdicts(world, task))
    state = Overlay(world.state)
    case = Case.load(Scope(state, world.context(), lambda _event: None, SURE), task)
    before = [balance_of(state, address) for address in checking]
    pay_void_verifiers(case, case.window(0), blamed=b"")
    case.save()
    gained = sum(balance_of(state, address) for address in checking) - sum(before)
    assert (gained > 0) is not is_chosen
    check_escrows(state)


def task_has_verdicts(world: World, task: bytes) -> bool:
    if not world.task(task).next_window:
        return False
    window = load_window(world.state, task, 0)
    return window.phase is WindowPhase.OPENING and all(seat.findings for seat in window.verifiers)
