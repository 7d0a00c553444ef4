"""Cheats, liars and sleepers on both sides: who is paid, who is not, and what becomes of the task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from billing.escrow import Movement, Pool, Purpose, escrow_totals
from billing.prices import share
from state.primitives.codec import Value
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import Opened, load_window
from tasks.ledger.registry import NodeRecord, NodeRole
from tasks.ledger.seats import agrees
from tasks.ledger.transitions import (
    OPEN_WINDOW,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    SUBMIT_WINDOW,
    UPDATE_NODE,
    node_payload,
)
from tasks.proofs import (
    Code,
    Finding,
    findings_to_value,
    make_opening,
    opening_to_value,
    verdict_seal,
    window_proof_to_value,
)
from tests.tasks.world import HONEST, QUICK, WORTH, Manners, World, leaves_of, proof_of, salt, spec, work_of

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE


def market(
    worker: Manners, verifiers: list[Manners], *, workers: int = 2, parameters: TaskParameters = QUICK
) -> tuple[World, bytes, list[bytes]]:
    """A world whose first worker is the cheapest, so it is matched first; further workers are honest."""
    world = World(parameters=parameters)
    first = world.add_machine(1, roles=WORK, manners=worker, price=WORTH // 10_000)
    for name in range(2, workers + 1):
        world.add_machine(name, roles=WORK)
    checking = [world.add_machine(100 + at, roles=CHECK, manners=each) for at, each in enumerate(verifiers)]
    return world, first, checking


def node_of(world: World, address: bytes) -> NodeRecord:
    node = queries.find_node(world.state, address)
    assert node is not None
    return node


def paid_to(world: World, task: bytes, address: bytes) -> list[Purpose]:
    lines = queries.bill(world.state, task).lines
    return [line.purpose for line in lines if line.movement == Movement.PAID and line.party == address]


def test_a_cheating_worker_is_found_unpaid_and_replaced() -> None:
    world, cheat, verifiers = market(Manners(lies=True), [HONEST] * 5)
    task = world.create()
    record = world.run(task, until=lambda task: task.reason == Reason.LIE_PROVEN)
    assert record.phase == Phase.DEGRADED and cheat in record.excluded
    assert (record.next_window, record.state_root) == (0, spec().init_root)
    node = queries.find_node(world.state, cheat)
    assert node is not None and (node.bad, node.valid_streak, node.failures) == (1, 0, 1)
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker == bytes([2]) * 20
    assert paid_to(world, task, cheat) == []
    # The whole bond is lost, and is divided as market.md 7.8 says.
    lines = queries.bill(world.state, task).lines
    assert [line.purpose for line in lines if line.party == cheat and line.pool == Pool.BOND] == [
        Purpose.WORKER_BOND, Purpose.LIE_PROVEN,
    ]  # fmt: skip
    bond = next(line.amount for line in lines if line.party == cheat)
    shares = [line for line in lines if line.purpose == Purpose.LIE_PROVEN]
    fees = [line.amount for line in lines if line.purpose == Purpose.VERIFIER_FEE and line.pool == Pool.BOND]
    assert sum(line.amount for line in shares) + sum(fees) == bond
    assert [line.amount for line in shares if line.movement == Movement.REFUNDED] == [share(bond, 1_000)]
    (winner,) = {line.party for line in shares if line.movement == Movement.PAID}
    assert winner in verifiers
    assert max(line.amount for line in shares if line.party == winner) == share(bond, 3_500)
    assert next(line.amount for line in shares if line.movement == Movement.BURNED) >= share(bond, 2_000)
    assert Purpose.VERIFIER_FEE in paid_to(world, task, winner)


def test_a_worker_that_turns_to_cheating_forfeits_what_was_held_of_its_pay() -> None:
    world, worker, _ = market(HONEST, [HONEST] * 5)
    task = world.create(spec(total=100))
    world.run(task, until=lambda task: task.final_windows == 2)
    world.machines[worker] = Manners(lies=True)
    world.run(task, until=lambda task: task.reason == Reason.LIE_PROVEN)
    lines = queries.bill(world.state, task).lines
    held = sum(line.amount for line in lines if line.purpose == Purpose.WINDOW_HOLD)
    from_hold = [line for line in lines if line.movement == Movement.PAID and line.pool.name == "HOLD"]
    back = sum(line.amount for line in lines if line.purpose == Purpose.HOLD_FORFEIT)
    assert from_hold and held == back + sum(line.amount for line in from_hold)
    world.run_to(task, Phase.SETTLED)
    assert Purpose.HOLD_RELEASE not in paid_to(world, task, worker)


def test_a_lying_verifier_does_not_take_the_workers_pay() -> None:
    for liar in (Manners(lies=True), Manners(blind=True)):
        world, worker, verifiers = market(HONEST, [liar], workers=1)
        task = world.create()
        world.run(task, until=lambda task: task.next_window == 1)
        for _ in range(QUICK.draw_blocks + 1):
            world.block()
        assert load_window(world.state, task, 0).verifiers
        for name in range(101, 106):
            world.add_machine(name, roles=CHECK)
        record = world.run_to(task, Phase.SETTLED)
        assert record.worker == worker
        window = load_window(world.state, task, 0)
        assert window.reason == Reason.CHALLENGE_OVER and bool(window.missed) == liar.blind
        assert [line.subject for line in queries.bill(world.state, task).lines if line.party == verifiers[0]] == []
        node = queries.find_node(world.state, verifiers[0])
        assert node is not None and (node.bad > 0) == liar.lies  # who could not fetch is not blamed
        assert (node.bond < QUICK.node_bond_min - 10**15) == liar.lies  # it may pay jurors


def test_without_a_jury_the_window_is_unpaid_and_nobody_is_blamed() -> None:
    world, worker, verifiers = market(HONEST, [Manners(blind=True)], workers=1)
    task = world.create()
    record = world.run(task, until=lambda task: task.reason == Reason.DISPUTE_UNRESOLVED)
    assert record.phase == Phase.DEGRADED and worker in record.excluded
    for address in (worker, *verifiers):
        node = queries.find_node(world.state, address)
        assert node is not None and node.bad == 0
    assert paid_to(world, task, worker) == []


@pytest.mark.parametrize("action", [Action.SEAL, Action.REVEAL])
def test_silent_verifiers_are_fined_and_others_drawn(action: Action) -> None:
    world, _, silent = market(HONEST, [Manners(silent=frozenset({action}))])
    assert world.send(silent[0], UPDATE_NODE, node_payload(node_of(world, silent[0]).profile, 10**18)) is None
    task = world.create()
    world.run(task, until=lambda record: record.next_window > 0)
    while not load_window(world.state, task, 0).verifiers:
        world.block()
    for name in range(110, 113):
        world.add_machine(name, roles=CHECK)
    world.run(task, until=lambda _: node_of(world, silent[0]).failures > 0)
    fined = node_of(world, silent[0])
    fee = load_window(world.state, task, 0).fee
    assert (fined.bond, fined.bad) == (QUICK.node_bond_min + 10**18 - fee, 1)
    assert fee > 0 and fined.cool_down_until_ms > world.time_ms - 1_000
    world.run_to(task, Phase.SETTLED)
    # Whoever stays silent loses its seat, and what it may have of others later it does not use either.
    seats = [seat.address for number in range(3) for seat in load_window(world.state, task, number).verifiers]
    assert len(seats) == 3 and silent[0] not in seats
    assert paid_to(world, task, silent[0]) == []


def test_a_task_that_nobody_can_check_fails_without_blame_and_refunds() -> None:
    world, worker, _verifiers = market(HONEST, [Manners(silent=frozenset({Action.SEAL}))])
    task = world.create()
    record = world.run_to(task, Phase.FAILED)
    assert record.reason == Reason.NO_VERIFIER
    node = queries.find_node(world.state, worker)
    assert node is not None and (node.bad, node.busy_slots) == (0, 0)
    totals = escrow_totals(world.state, task)
    assert (totals.locked, totals.paid, totals.burned) == (0, 0, 0)


def test_a_worker_that_does_not_open_loses_the_window_and_verifiers_are_paid() -> None:
    world, worker, verifiers = market(Manners(silent=frozenset({Action.OPEN})), [HONEST] * 3)
    task = world.create()
    record = world.run(task, until=lambda task: task.reason == Reason.NOT_OPENED)
    assert record.phase == Phase.DEGRADED and worker in record.excluded
    assert any(paid_to(world, task, address) == [Purpose.VERIFIER_FEE] for address in verifiers)
    assert paid_to(world, task, worker) == []


def test_a_newcomers_windows_have_more_verifiers_and_cost_it_nothing() -> None:
    parameters = replace(QUICK, verifiers_sure=3, new_windows=2)
    world, _worker, _verifiers = market(HONEST, [HONEST] * 5, parameters=parameters)
    task = world.create(spec(total=100, price=WORTH // 4_000))
    world.run_to(task, Phase.SETTLED)
    lines = queries.bill(world.state, task).lines
    counts = [len(load_window(world.state, task, number).verifiers) for number in range(5)]
    assert counts[0] == 3 and counts[-1] == 1
    for number, count in enumerate(counts):
        window = load_window(world.state, task, number)
        mine = sum(
            line.amount for line in lines
            if line.subject == number and line.purpose in (Purpose.WINDOW_PAY, Purpose.WINDOW_HOLD)
        )  # fmt: skip
        fees = [
            line.amount for line in lines if line.subject == number and line.purpose == Purpose.VERIFIER_FEE
        ]  # fmt: skip
        assert mine == window.charge
        assert sum(fees) == window.fee * count


def test_the_leader_of_the_block_that_draws_cannot_move_the_draw() -> None:
    """It knows the beacon of its block before it fills it, and may have nodes to add to or to retire."""
    drawn = set()
    for more in range(8):
        world, _worker, verifiers = market(HONEST, [HONEST] * 6)
        task = world.create()
        world.run(task, until=lambda task: task.next_window == 1)
        for _ in range(QUICK.draw_blocks):
            world.block()
            assert load_window(world.state, task, 0).phase == WindowPhase.PROVED
        if more:
            payload = node_payload(node_of(world, verifiers[0]).profile, more * 10**17)
            assert world.send(verifiers[0], UPDATE_NODE, payload) is None
        world.block()
        window = load_window(world.state, task, 0)
        assert window.phase == WindowPhase.SEALING
        drawn.add((window.sampled, tuple(seat.address for seat in window.verifiers)))
    assert len(drawn) == 1


def test_no_verifier_of_the_same_operator_nor_the_requester() -> None:
    world = World()
    operator = b"o" * 20
    worker = world.add_machine(1, operator=operator)
    world.add_machine(2, roles=CHECK, operator=operator)
    world.add_machine(3, roles=CHECK, operator=b"R" * 20)
    world.add_machine(4, roles=CHECK, operator=worker)
    task = world.create()
    world.run_to(task, Phase.EXPIRED)  # no one may check, so no one is matched
    honest = world.add_machine(5, roles=CHECK)
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    seats = [seat for number in range(3) for seat in load_window(world.state, task, number).verifiers]
    assert {seat.address for seat in seats} == {honest}


def test_windows_become_final_in_order_and_only_so_many_are_open() -> None:
    parameters = replace(QUICK, open_windows_max=2, final_ms=20_000)
    world, worker, _ = market(HONEST, [HONEST] * 3, parameters=parameters)
    task = world.create(spec(total=120))
    record = world.run(task, until=lambda task: task.next_window == 2)
    assert record.deadline_ms == 0
    (duty,) = [
        duty for duty in queries.work_duties(world.state, worker, parameters) if duty.action == Action.COMPUTE
    ]
    assert duty.blocked
    leaves = leaves_of(spec(total=120), 2, record.state_root)
    proof = proof_of(spec(total=120), task, 2, leaves)
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(proof)]) == "too_many_open_windows"
    record = world.run(task, until=lambda task: task.final_windows >= 1)
    assert record.deadline_ms > world.time_ms
    world.run_to(task, Phase.SETTLED)


@pytest.mark.parametrize("final_ms", [3_000, 150_000])
def test_a_proven_lie_voids_all_windows_of_its_worker_that_are_not_final(final_ms: int) -> None:
    parameters = replace(QUICK, final_ms=final_ms, final_ms_min=final_ms)
    world, worker, _ = market(HONEST, [HONEST] * 6, parameters=parameters)
    task = world.create(spec(total=120))
    world.run(task, until=lambda task: task.next_window == 1)
    world.machines[worker] = Manners(lies=True)
    world.act()
    world.machines[worker] = HONEST  # continues in good faith from its own wrong state
    record = world.run(task, until=lambda task: task.reason == Reason.LIE_PROVEN)
    assert record.next_window == record.final_windows == (final_ms < 10_000)
    first = load_window(world.state, task, 0)
    assert first.phase == (WindowPhase.FINAL if record.final_windows else WindowPhase.VOID)
    assert load_window(world.state, task, 1).reason == Reason.LIE_PROVEN
    record = world.run_to(task, Phase.SETTLED, blocks=800)
    assert (load_window(world.state, task, 0).worker == worker) == (final_ms < 10_000)
    assert record.worker != worker


# What is refused


def proving(world: World) -> tuple[bytes, bytes]:
    task = world.create()
    return task, world.run_to(task, Phase.RUNNING).worker


def test_a_proof_must_continue_the_task() -> None:
    world, worker, _ = market(HONEST, [HONEST])
    task, _ = proving(world)
    job = spec()
    good = proof_of(job, task, 0, leaves_of(job, 0, job.init_root))
    for bad, code in (
        (good._replace(window=1), "proof_mismatch"),
        (good._replace(step_to=19), "proof_mismatch"),
        (good._replace(state_root_in=b"x" * 32), "proof_mismatch"),
        (good._replace(segments=3), "proof_mismatch"),
        (good._replace(task=b"x" * 32), "task_unknown"),
    ):
        assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(bad)]) == code
    assert world.send(b"x" * 20, SUBMIT_WINDOW, [window_proof_to_value(good)]) == "not_yours"
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(good)]) is None
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(good)]) == "proof_mismatch"


def test_seals_and_reveals_bind_their_authors() -> None:
    parameters = replace(QUICK, verifiers=2, samples=4)
    world, worker, _ = market(HONEST, [HONEST] * 2, parameters=parameters)
    task, _ = proving(world)
    world.act()
    for _ in range(QUICK.draw_blocks + 1):
        world.block()
    window = load_window(world.state, task, 0)
    assert window.phase == WindowPhase.SEALING and len(window.verifiers) == 2
    first, second = (seat.address for seat in window.verifiers)
    findings = tuple(Finding(at, Code.COMPUTED, b"p" * 32, b"s" * 32, 0) for at in window.sampled)
    nonce = b"n" * 32
    sealed = verdict_seal(task, 0, first, findings, nonce)

    def reveal(sender: bytes, shown: tuple[Finding, ...]) -> str | None:
        payload: list[Value] = [task, 0, findings_to_value(shown), nonce]
        return world.send(sender, REVEAL_VERDICT, payload)

    assert world.send(worker, SEAL_VERDICT, [task, 0, sealed]) == "not_yours"
    assert world.send(first, SEAL_VERDICT, [task, 7, sealed]) == "window_unknown"
    assert reveal(first, findings) == "wrong_phase"
    assert world.send(first, SEAL_VERDICT, [task, 0, sealed]) is None
    assert world.send(first, SEAL_VERDICT, [task, 0, sealed]) == "already_sealed"
    assert world.send(second, SEAL_VERDICT, [task, 0, sealed]) is None  # copied: it cannot be revealed
    assert reveal(first, findings[:1]) == "bad_evidence"
    assert reveal(first, (findings[0], findings[1]._replace(state_root_after=b"o" * 32))) == "bad_evidence"
    assert reveal(second, findings) == "bad_evidence"
    assert reveal(first, findings) is None
    assert reveal(first, findings) == "already_revealed"


def test_a_verifier_agrees_if_state_work_and_losses_are_all_the_same() -> None:
    opened = Opened(3, b"b" * 32, b"s" * 32, b"w" * 32, 7)
    found = Finding(3, Code.COMPUTED, b"w" * 32, b"s" * 32, 7)
    assert agrees(found, opened)
    for other in (
        found._replace(code=Code.UNAVAILABLE),
        found._replace(work_digest=b"x" * 32),
        found._replace(state_root_after=b"x" * 32),
        found._replace(loss_bits=8),
    ):
        assert not agrees(other, opened)


def test_an_opening_must_be_of_the_committed_leaves() -> None:
    world, worker, _ = market(Manners(silent=frozenset({Action.OPEN})), [HONEST])
    task = world.create()
    world.run(task, until=lambda task: task.next_window > 0 and (
        load_window(world.state, task.id, 0).phase == WindowPhase.OPENING
    ))  # fmt: skip
    window = load_window(world.state, task, 0)
    leaves = world.published[task, 0]
    good = [make_opening(leaves, at, work_of(leaves[at]), salt(leaves[at].step_from)) for at in window.sampled]

    def send(openings: list[Value], sender: bytes = worker) -> str | None:
        return world.send(sender, OPEN_WINDOW, [task, 0, openings])

    values: list[Value] = [opening_to_value(opening) for opening in good]
    assert send(values, b"x" * 20) == "not_yours"
    assert send(values[:1]) == "bad_evidence"
    for bad in (
        good[0]._replace(salt=b"x" * 32),
        good[0]._replace(work_digest=b"x" * 32),
        good[0]._replace(siblings=()),
        good[0]._replace(leaf=good[0].leaf._replace(state_root_after=b"x" * 32)),
    ):
        assert send([opening_to_value(bad), *values[1:]]) == "bad_evidence"
    assert send(values) is None
    assert load_window(world.state, task, 0).phase == WindowPhase.ACCEPTED
