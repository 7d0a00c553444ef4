"""Disputes through transactions: each ending, the clocks, sealed challenges, and who pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Line, Movement, Pool, Purpose, Vault
from billing.prices import share, share_up
from state.primitives.codec import Value, encode
from state.view import EMPTY, Overlay, Table
from tasks.dispute.clock import Clock
from tasks.dispute.game import MOVES_MAX, Side
from tasks.dispute.moves import MOVE_LIMIT_BYTES, Pick, encode_move
from tasks.dispute.records import GAME_LIMIT_BYTES
from tasks.ledger import disputes as records
from tasks.ledger import queries
from tasks.ledger.audits import check_floor
from tasks.ledger.dispute_transitions import MOVE, OPEN_CHALLENGE, RESUME_DISPUTE, SEAL_CHALLENGE
from tasks.ledger.disputes import (
    DISPUTE_LIMIT_BYTES,
    RELEASED_MOVES_MAX,
    RUNNING_MAX,
    SEALS_MAX,
    Challenger,
    DisputeEnding,
    DisputePhase,
    DisputeRecord,
    Docket,
    SealedChallenge,
    add_move,
    load_docket,
    load_moves,
    release_moves,
    schedule_release,
)
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.records import Opened, WindowRecord, load_window
from tasks.ledger.registry import NodeRole, bond_id, candidates, require_node, save_node
from tests.tasks.world import DKB, HONEST, QUICK, WORTH, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
OUTSIDERS: Final = tuple(bytes([200 + at]) * 20 for at in range(SEALS_MAX + 1))
SILENT: Final = frozenset({Action.PLAY})


def market(worker: Manners, *verifiers: Manners, **given: int) -> tuple[World, bytes, list[bytes], bytes]:
    """A world with one worker, verifiers, outsiders with money, and a task of one window."""
    count = len(verifiers)
    world = World(parameters=replace(QUICK, verifiers=count, verifiers_sure=count, **given))
    first = world.add_machine(1, roles=WORK, manners=worker, price=WORTH // 10_000)
    checking = [world.add_machine(100 + at, roles=CHECK, manners=each) for at, each in enumerate(verifiers)]
    for outsider in OUTSIDERS:
        world.fund(outsider, 10_000 * DKB)
    return world, first, checking, world.create(spec(total=20))


def window_of(world: World, task: bytes) -> WindowRecord:
    return load_window(world.state, task, 0)


def until(world: World, task: bytes, test: Callable[[WindowRecord], bool]) -> WindowRecord:
    world.run(task, until=lambda record: record.next_window > 0 and test(window_of(world, task)))
    return window_of(world, task)


def endings(world: World, task: bytes) -> list[DisputeEnding]:
    return [dispute.ending for dispute in queries.disputes(world.state, task, 0)]


def lines(world: World, task: bytes, purpose: Purpose) -> list[Line]:
    return [line for line in queries.bill(world.state, task).lines if line.purpose == purpose]


def bond_of(world: World, task: bytes, worker: bytes) -> int:
    return next(line.amount for line in lines(world, task, Purpose.WORKER_BOND) if line.party == worker)


# Verifiers


def test_each_verifier_that_differs_has_a_game_of_its_own_and_the_window_waits_for_all() -> None:
    world, worker, _, task = market(HONEST, Manners(lies=True), Manners(lies=True), HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    docket = load_docket(world.state, task, 0)
    assert docket.running == (0, 1)
    found = queries.disputes(world.state, task, 0)
    assert {dispute.challenger for dispute in found} < {seat.address for seat in window.verifiers}
    assert {dispute.segment for dispute in found} == {min(window.sampled)}
    assert window.deadline_ms == min(dispute.deadline_ms for dispute in found)
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker == worker and set(endings(world, task)) == {DisputeEnding.ELEMENT_RIGHT}
    assert len(window_of(world, task).verifiers) == 1  # those who lost earn no fee


def test_a_verifier_that_loses_pays_half_of_a_tenth_to_the_accused() -> None:
    world, worker, (liar,), task = market(HONEST, Manners(lies=True))
    before = require_node(world.state, liar).bond
    world.run_to(task, Phase.SETTLED, Phase.FAILED)
    owed = share_up(bond_of(world, task, worker), 1_000)
    node = require_node(world.state, liar)
    assert (before - node.bond, node.bad) == (owed, 1)
    paid = sum(
        line.amount
        for line in queries.bill(world.state, bond_id(liar)).lines
        if line.purpose == Purpose.CHALLENGE_LOST
    )
    assert paid == owed // 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_verifiers_that_found_the_lie_share_the_bond_evenly(count: int) -> None:
    world, liar, verifiers, task = market(Manners(lies=True), *[HONEST] * count)
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    bond = bond_of(world, task, liar)
    shares = lines(world, task, Purpose.LIE_PROVEN)
    fees = sum(line.amount for line in lines(world, task, Purpose.VERIFIER_FEE) if line.pool == Pool.BOND)
    assert sum(line.amount for line in shares) + fees == bond and fees
    paid = {line.party: line.amount for line in shares if line.movement == Movement.PAID and line.amount > 10**9}
    assert paid.keys() == set(verifiers)
    whole = share(bond, 3_500) if count == 1 else 2 * share(bond, 2_500)
    assert abs(sum(paid.values()) - whole) < 10**9 and max(paid.values()) - min(paid.values()) < 10**9
    assert sum(line.amount for line in shares if line.movement == Movement.REFUNDED) == (
        share(bond, 1_000) if count == 1 else 0
    )


def test_a_verifier_that_agreed_with_a_lie_is_slashed_and_unpaid() -> None:
    world, liar, (friend, honest), task = market(
        Manners(lies=True), Manners(lies=True), HONEST, dispute_equal_fees=1_000
    )
    before = require_node(world.state, friend).bond
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    node = require_node(world.state, friend)
    assert before - node.bond == 1_000 * check_floor(1, QUICK) and node.bad == 1
    parties = {line.party for line in queries.bill(world.state, task).lines if line.movement == Movement.PAID}
    assert honest in parties and friend not in parties
    assert require_node(world.state, liar).bad == 1


# Clocks


@pytest.mark.parametrize("resumes", [False, True])
def test_an_accused_that_misses_its_clock_may_resume_once_and_then_wins_with_the_truth(resumes: bool) -> None:
    world, worker, (verifier,), task = market(Manners(silent=SILENT), Manners(lies=True))
    window = until(world, task, lambda _: phases(world, task) == [DisputePhase.SUSPENDED])
    assert window.phase == WindowPhase.DISPUTED
    due = share_up(window.charge, QUICK.dispute_resume_bps)
    assert world.send(verifier, RESUME_DISPUTE, [task, 0, 0, due]) == "not_yours"
    assert world.send(worker, RESUME_DISPUTE, [task, 0, 0, due - 1]) == "payment_missing"
    assert world.send(worker, MOVE, [task, 0, 0, 0, encode_move(Pick(0))]) == "wrong_phase"
    if not resumes:
        bond = bond_of(world, task, worker)
        world.run(task, until=lambda record: record.reason == Reason.ANSWER_MISSING)
        assert endings(world, task) == [DisputeEnding.ACCUSED_SILENT]
        (fine,) = lines(world, task, Purpose.WORKER_FINE)
        assert (fine.amount, fine.movement) == (share_up(bond, 1_000), Movement.BURNED)
        assert worker in world.task(task).excluded and not lines(world, task, Purpose.LIE_PROVEN)
        assert [line.party for line in lines(world, task, Purpose.VERIFIER_FEE)] == [verifier]
        return
    world.machines[worker] = HONEST
    world.run_to(task, Phase.SETTLED, Phase.FAILED)
    assert endings(world, task) == [DisputeEnding.ELEMENT_RIGHT]
    (first, *_) = lines(world, task, Purpose.DISPUTE_RESUMED)[1:]
    assert (first.party, first.amount) == (verifier, due)


def test_a_side_resumes_once_only() -> None:
    world, worker, _, task = market(Manners(silent=SILENT), Manners(lies=True))
    until(world, task, lambda window: phases(world, task) == [DisputePhase.SUSPENDED])
    due = share_up(window_of(world, task).charge, QUICK.dispute_resume_bps)
    assert world.send(worker, RESUME_DISPUTE, [task, 0, 0, due]) is None
    assert world.send(worker, RESUME_DISPUTE, [task, 0, 0, due]) == "wrong_phase"
    begun_ms = world.time_ms
    world.run(task, until=lambda _: phases(world, task) == [DisputePhase.SILENT])
    assert world.time_ms - begun_ms <= QUICK.dispute_move_ms + 2_000  # no second day


def phases(world: World, task: bytes) -> list[DisputePhase]:
    return [dispute.phase for dispute in queries.disputes(world.state, task, 0)]


def test_moves_are_taken_in_turn_once_a_block_and_by_their_numbers() -> None:
    world, worker, (verifier,), task = market(Manners(silent=SILENT), Manners(lies=True, silent=SILENT))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    (duty,) = queries.dispute_duties(world.state, worker, world.parameters)
    assert queries.dispute_duties(world.state, verifier, world.parameters) == []
    junk = encode_move(Pick(0))
    assert world.send(worker, MOVE, [task, 0, 7, 0, junk]) == "dispute_unknown"
    assert world.send(worker, MOVE, [task, 9, 0, 0, junk]) == "window_unknown"
    assert world.send(verifier, MOVE, [task, 0, 0, 0, junk]) == "not_yours"
    assert world.send(worker, MOVE, [task, 0, 0, 1, junk]) == "move_refused"
    assert world.send(worker, MOVE, [task, 0, 0, 0, junk]) == "move_refused"  # another kind is due
    assert world.send(worker, MOVE, [task, 0, 0, 0, b"\xff"]) == "decode_error"
    assert load_moves(world.state, task, 0, 0) == []
    world.play(worker, duty)
    assert len(load_moves(world.state, task, 0, 0)) == 1
    assert queries.dispute_moves(world.state, task, 0, 0) == load_moves(world.state, task, 0, 0)
    (answer,) = queries.dispute_duties(world.state, verifier, world.parameters)
    world.play(verifier, answer)  # in the same block
    assert len(load_moves(world.state, task, 0, 0)) == 1
    world.block()
    world.play(verifier, answer)
    assert len(load_moves(world.state, task, 0, 0)) == 2


def test_moves_are_deleted_over_blocks_once_their_game_is_over() -> None:
    world, _, _, task = market(HONEST, Manners(lies=True))
    until(world, task, lambda _: endings(world, task) == [DisputeEnding.ELEMENT_RIGHT])
    world.block()
    world.block()
    assert load_moves(world.state, task, 0, 0) == [] == queries.dispute_moves(world.state, task, 0, 0)
    state = Overlay(EMPTY)
    games = [largest_dispute()._replace(number=number, moves=MOVES_MAX) for number in range(3)]
    for game in games:
        for at in range(MOVES_MAX):
            add_move(state, game._replace(moves=at), b"m")
        schedule_release(state, game)
    blocks = 0
    while any(state.scan(bytes([Table.DISPUTE_RELEASE]), bytes([Table.DISPUTE_RELEASE + 1]), 1)):
        before = len(state.scan(bytes([Table.DISPUTE]), bytes([Table.DISPUTE + 1]), 10_000))
        release_moves(state)
        assert before - len(state.scan(bytes([Table.DISPUTE]), bytes([Table.DISPUTE + 1]), 10_000)) <= (
            RELEASED_MOVES_MAX
        )
        blocks += 1
    assert blocks == -(-3 * MOVES_MAX // RELEASED_MOVES_MAX)


# Sealed challenges


@pytest.mark.parametrize("is_sampled", [True, False])
def test_an_outsider_proves_a_lie_that_the_drawn_verifier_covers(is_sampled: bool) -> None:
    world, liar, (friend,), task = market(Manners(lies=True), Manners(lies=True))
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    segment = next(at for at in range(4) if (at in window.sampled) == is_sampled)
    before = world.time_ms
    assert world.challenge(OUTSIDERS[0], task, 0, segment) is None
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    assert world.time_ms > before and endings(world, task)[0].is_proof
    bond = bond_of(world, task, liar)
    shares = lines(world, task, Purpose.LIE_PROVEN)
    mine = sum(line.amount for line in shares if line.party == OUTSIDERS[0])
    assert share(bond, 1_000) <= mine
    assert [line.amount for line in lines(world, task, Purpose.BOND_RETURN) if line.party == OUTSIDERS[0]] == [
        share_up(bond, 1_000)
    ]
    assert require_node(world.state, friend).bad == is_sampled


def test_challenges_cost_ever_more_and_end_with_their_time() -> None:
    world, worker, _, task = market(HONEST, HONEST, final_ms=100_000, final_ms_min=100_000)
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    bond = bond_of(world, task, worker)
    for at in range(SEALS_MAX):
        due = share_up(bond, 1_000) << at // 4
        assert world.challenge(OUTSIDERS[at], task, 0, 0, bond=due - 1) == "payment_missing"
        assert world.challenge(OUTSIDERS[at], task, 0, 0, bond=due + 5, is_opened=False) is None
    assert world.challenge(OUTSIDERS[-1], task, 0, 0) == "challenge_closed"
    window = until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    assert [at for at, _ in load_docket(world.state, task, 0).called] == [0, 1, 2, 3]
    world.run_to(task, Phase.SETTLED, blocks=600)
    burned = [line.amount for line in lines(world, task, Purpose.CHALLENGE_LOST)]
    assert burned == [share_up(bond, 1_000) << at // 4 for at in range(SEALS_MAX)]
    assert window.charge and window_of(world, task).phase == WindowPhase.FINAL
    assert world.challenge(OUTSIDERS[0], task, 0, 0) == "wrong_phase"


def test_a_late_challenge_extends_the_time_once() -> None:
    world, _, _, task = market(HONEST, HONEST, final_ms=100_000, final_ms_min=100_000)
    window = until(world, task, lambda window: window.phase == WindowPhase.ACCEPTED)
    first_ms = window.deadline_ms
    while world.time_ms < first_ms - 5_000:
        world.block()
    assert world.challenge(OUTSIDERS[0], task, 0, 0, is_opened=False) is None
    docket = load_docket(world.state, task, 0)
    assert (docket.until_ms, docket.extended) == (first_ms + 2 * QUICK.dispute_side_ms, 1)
    until(world, task, lambda window: window.phase == WindowPhase.ACCEPTED)
    assert window_of(world, task).deadline_ms == docket.until_ms
    while world.time_ms < docket.until_ms - 2_000:
        world.block()
    assert world.challenge(OUTSIDERS[1], task, 0, 0, is_opened=False) is None
    assert load_docket(world.state, task, 0).until_ms == docket.until_ms
    until(world, task, lambda window: window.phase == WindowPhase.FINAL)


def test_what_is_opened_must_be_what_was_sealed_and_called() -> None:
    world, _, _, task = market(HONEST, HONEST, final_ms=100_000, final_ms_min=100_000)
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert world.challenge(OUTSIDERS[0], task, 0, 1, lie=True, is_opened=False) is None
    made: list[Value] = list(world.challenges[task, 0, 0][1:6])
    good: list[Value] = [task, 0, 0, *made]
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, good) == "challenge_unknown"  # not called yet
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    assert world.send(OUTSIDERS[1], OPEN_CHALLENGE, good) == "not_yours"
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, [*good[:-1], b"x" * 32]) == "bad_evidence"
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, [*good[:3], 2, *good[4:]]) == "bad_evidence"
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, [task, 0, 1, *made]) == "challenge_unknown"
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, good) is None
    assert world.send(OUTSIDERS[0], OPEN_CHALLENGE, good) == "challenge_unknown"
    assert world.send(OUTSIDERS[0], SEAL_CHALLENGE, [b"x" * 32, 0, b"s" * 32, 5]) == "task_unknown"


def test_a_challenge_that_says_what_the_worker_opens_is_lost() -> None:
    world, worker, _, task = market(HONEST, HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    unseen = next(at for at in range(4) if at not in window.sampled)
    assert world.challenge(OUTSIDERS[0], task, 0, window.sampled[0]) is None
    assert world.challenge(OUTSIDERS[1], task, 0, unseen) is None
    world.run_to(task, Phase.SETTLED)
    assert endings(world, task) == [DisputeEnding.SAME_ROOT] * 2
    bond = share_up(bond_of(world, task, worker), 1_000)
    lost = lines(world, task, Purpose.CHALLENGE_LOST)
    assert sorted(line.amount for line in lost if line.movement == Movement.PAID) == [bond // 2] * 2
    assert {line.party for line in lost if line.movement == Movement.PAID} == {worker}
    assert sum(line.amount for line in lost) == 2 * bond


def test_bonds_of_challenges_return_when_the_window_is_void_without_them() -> None:
    world, _, _, task = market(HONEST, Manners(silent=frozenset({Action.SEAL})))
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    for at in range(6):
        assert world.challenge(OUTSIDERS[at], task, 0, at % 4) is None
    world.run(task, until=lambda record: record.reason == Reason.NO_VERIFIER)
    returned = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.CHALLENGE]
    assert [line.party for line in returned] == list(OUTSIDERS[:6])
    assert load_docket(world.state, task, 0).is_idle


# The largest records


AMOUNT: Final = (1 << 127) - 1
MANY: Final = (1 << 32) - 1
MS: Final = 1 << 48


def largest_dispute() -> DisputeRecord:
    return DisputeRecord(
        b"t" * 32, MANY, MANY, Challenger.OUTSIDER, b"c" * 20, MANY, 255, b"w" * 32, b"s" * 32, (1 << 64) - 1,
        Opened(255, b"b" * 32, b"s" * 32, b"w" * 32, (1 << 64) - 1), DisputePhase.OVER, DisputeEnding.SAME_ROOT,
        b"g" * GAME_LIMIT_BYTES, MOVES_MAX, Clock(Side.CHALLENGER, MS, MS, MS), MS, 3, MANY, MS, MS, AMOUNT,
    )  # fmt: skip


def test_no_record_of_a_dispute_is_above_its_bound() -> None:
    state = Overlay(EMPTY)
    records.save_dispute(state, largest_dispute())
    docket = Docket(
        MANY, MANY, MANY, MANY, MANY, ((MANY, MS),) * records.OUTSIDERS_AT_ONCE_MAX, (MANY,) * RUNNING_MAX, MS, 1,
        (MANY,) * records.SILENT_MAX, MANY, MANY,
    )  # fmt: skip
    records.save_docket(state, b"t" * 32, MANY, docket)
    seal = SealedChallenge(b"a" * 20, b"s" * 32, AMOUNT, MANY, 1)
    records.save_seal(state, b"t" * 32, MANY, MANY, seal)
    assert records.load_dispute(state, b"t" * 32, MANY, MANY) == largest_dispute()
    assert load_docket(state, b"t" * 32, MANY) == docket
    assert records.load_seal(state, b"t" * 32, MANY, MANY) == seal
    limits = records.SEAL_LIMIT_BYTES, records.DOCKET_LIMIT_BYTES, DISPUTE_LIMIT_BYTES
    sizes = sorted(len(value or b"") for value in state.changes.values())
    for size, limit in zip(
        sizes, (records.SEAL_LIMIT_BYTES, records.DOCKET_LIMIT_BYTES, DISPUTE_LIMIT_BYTES), strict=True
    ):
        assert limit // 2 < size <= limit, (size, limits)
    with pytest.raises(AssertionError, match="games run"):
        records.save_docket(state, b"t" * 32, 0, docket._replace(running=(1,) * (RUNNING_MAX + 1)))


def test_a_move_has_a_bound() -> None:
    world, worker, _, task = market(HONEST, HONEST)
    with pytest.raises(Exception, match="expected"):
        world.send(worker, MOVE, [task, 0, 0, 0, b"m" * (MOVE_LIMIT_BYTES + 1)])
    assert encode([]) and world.task(task)


def test_a_sponsor_that_withdraws_stays_at_risk_for_a_lost_game() -> None:
    world, worker, (liar,), task = market(HONEST, Manners(lies=True))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    node = require_node(world.state, liar)
    # As if all of its bond were a sponsor's, which has announced its withdrawal.
    vault = Vault.load(world.state, bond_id(liar), world.events.append, 0)
    vault.hold(Pool.BOND, Pool.BOND, node.bond, Purpose.SPONSOR_BOND, owner=liar, target_owner=OUTSIDERS[0])
    save_node(
        world.state,
        node._replace(bond=0, sponsored=node.bond, leaving=node.bond, leaves_ms=1 << 45, sponsor=OUTSIDERS[0]),
    )
    world.run_to(task, Phase.FAILED)
    after = require_node(world.state, liar)
    assert node.bond - after.sponsored == share_up(bond_of(world, task, worker), 1_000)
    assert liar not in {one.address for one in candidates(world.state, CHECK, bytes(32), 9)}


def test_the_first_moves_have_the_time_of_a_run_and_those_about_a_trace_that_of_hashing_it() -> None:
    world, worker, (verifier,), task = market(Manners(silent=SILENT), Manners(lies=True, silent=SILENT))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    job = spec(total=20)
    run = world.parameters.seal_slack * job.schedule.segment_steps * job.step_ms
    assert run > 0
    for side in (worker, verifier):
        (dispute,) = queries.disputes(world.state, task, 0)
        since = dispute.clock.since_ms
        assert dispute.deadline_ms - since == QUICK.dispute_move_ms + run
        (duty,) = queries.dispute_duties(world.state, side, world.parameters)
        world.play(side, duty)
        world.block()
    (dispute,) = queries.disputes(world.state, task, 0)
    assert dispute.deadline_ms - dispute.clock.since_ms == QUICK.dispute_move_ms
    clock = Clock(Side.ACCUSED, 5, 10, 20)
    assert clock.given(Side.ACCUSED, 7) == Clock(Side.ACCUSED, 5, 17, 20)
    assert clock.given(Side.CHALLENGER, 7) == Clock(Side.ACCUSED, 5, 10, 27)
