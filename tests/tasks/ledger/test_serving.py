"""What was missed of a window: juries run all of it again, and who serves nobody loses its bond (R50, R51)."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import Final

import pytest

from billing.escrow import Movement, Pool, Purpose
from tasks.ledger import queries
from tasks.ledger.disputes import DisputeEnding
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action, CheckDuty
from tasks.ledger.records import Seat, WindowRecord, load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.serving import ENLARGED_JURY, is_upheld
from tasks.ledger.serving_transitions import SERVE_WINDOW
from tasks.proofs import Code, Finding
from tests.tasks.world import HONEST, QUICK, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
BLIND: Final = Manners(blind=True)
NO_OPENING: Final = frozenset({Action.OPEN})
NO_ANSWER: Final = frozenset({Action.SERVE})


class Selective(World):
    """A worker serves ``served`` alone, and ``shown`` of its segments to all others."""

    served: frozenset[bytes] = frozenset()
    shown: frozenset[int] = frozenset()
    is_hiding = False

    def findings(self, duty: CheckDuty, manners: Manners) -> tuple[Finding, ...]:
        found = super().findings(duty, manners)
        window = load_window(self.state, duty.task, duty.window)
        mine = next(
            seat.address for seat in (*window.verifiers, *window.jurors)
            if not seat.seal and self.machines[seat.address] is manners
        )  # fmt: skip
        if not self.is_hiding or mine in self.served:
            return found
        hidden = [at for at in duty.segments if at not in self.shown]
        return tuple(
            Finding(one.segment, Code.UNAVAILABLE, bytes(32), bytes(32), 0) if one.segment in hidden else one
            for one in found
        )


def market(worker: Manners, others: int = 20, **changes: int) -> tuple[Selective, bytes, bytes, list[bytes]]:
    """A task of one window whose worker has these manners, and machines that check."""
    world = Selective(parameters=replace(QUICK, bond_windows_bps=400_000, **changes))
    machine = world.add_machine(1, roles=WORK, manners=replace(worker))
    checkers = [world.add_machine(100 + at, roles=CHECK, manners=replace(HONEST)) for at in range(others)]
    for _ in range(2 * QUICK.draw_blocks + 1):
        world.block()
    return world, machine, world.create(spec(total=20)), checkers


def window_of(world: World, task: bytes) -> WindowRecord:
    return load_window(world.state, task, 0)


def run_until(world: World, task: bytes, *phases: WindowPhase, unserved: int = 0) -> WindowRecord:
    def is_there() -> bool:
        if not world.task(task).next_window:
            return False
        window = window_of(world, task)
        return window.phase in phases and window.unserved == unserved

    world.run(task, until=lambda _: is_there())
    return window_of(world, task)


def burned(world: World, task: bytes, purpose: Purpose) -> int:
    lines = queries.bill(world.state, task).lines
    return sum(line.amount for line in lines if (line.movement, line.purpose) == (Movement.BURNED, purpose))


def bond_locked(world: World, task: bytes) -> int:
    lines = queries.bill(world.state, task).lines
    return sum(line.amount for line in lines if (line.movement, line.pool) == (Movement.LOCKED, Pool.BOND))


def assert_lost_all(world: World, task: bytes, worker: bytes) -> None:
    """The bond of the worker is burned, but for what checks of the window cost; it was paid nothing."""
    lines = queries.bill(world.state, task).lines
    fees = sum(
        line.amount for line in lines if (line.movement, line.pool) == (Movement.PAID, Pool.BOND)
    )  # fmt: skip
    fines = burned(world, task, Purpose.WORKER_FINE)
    assert burned(world, task, Purpose.NOT_SERVED) == bond_locked(world, task) - fees - fines > 0
    assert 4 * burned(world, task, Purpose.NOT_SERVED) > bond_locked(world, task)
    assert not any(line.party == worker and line.movement == Movement.PAID for line in lines)
    assert window_of(world, task).phase == WindowPhase.VOID


@pytest.mark.parametrize("manners", [HONEST, Manners(silent=NO_ANSWER), Manners(silent=NO_OPENING | NO_ANSWER)])
def test_a_worker_that_serves_nobody_loses_its_bond_whether_it_answers_opens_or_not(manners: Manners) -> None:
    world, worker, task, _ = market(manners)
    world.is_hiding = True
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED)
    assert_lost_all(world, task, worker)
    assert worker in world.task(task).excluded


def test_a_worker_whose_first_jury_denies_all_is_upheld_by_the_larger_one_and_loses_no_bond() -> None:
    world, worker, task, checkers = market(HONEST)
    run_until(world, task, WindowPhase.SEALING)
    (seat,) = window_of(world, task).verifiers
    world.machines[seat.address] = replace(BLIND)
    run_until(world, task, WindowPhase.JURY_SEALING)
    for juror in window_of(world, task).jurors:
        world.machines[juror.address] = replace(BLIND)
    asked = run_until(world, task, WindowPhase.DOUBTED, unserved=1)
    assert asked.reason == Reason.NOT_SERVED and len(asked.jurors) == 3
    assert asked.deadline_ms > world.time_ms
    assert world.send(checkers[0], SERVE_WINDOW, [task, 0]) == "not_yours"
    assert world.send(worker, SERVE_WINDOW, [task, 0]) is None
    assert world.send(worker, SERVE_WINDOW, [task, 0]) == "wrong_phase"  # once
    window = run_until(world, task, WindowPhase.JURY_SEALING, unserved=4)
    assert len(window.jurors) == ENLARGED_JURY and window.jurors[:3] == asked.jurors
    world.run_to(task, Phase.SETTLED)
    assert burned(world, task, Purpose.NOT_SERVED) == burned(world, task, Purpose.WORKER_FINE) == 0
    node = queries.find_node(world.state, worker)
    assert node is not None and node.bad == 0
    # It pays those that it asked for; the first jury is paid as before.
    jurors = [line for line in queries.bill(world.state, task).lines if line.purpose == Purpose.JUROR_FEE]
    assert len(jurors) == ENLARGED_JURY - 3


@pytest.mark.parametrize("friends", [5, 6])
def test_two_fifths_of_the_larger_jury_suffice(friends: int) -> None:
    world, worker, task, _ = market(HONEST)
    world.is_hiding = True
    run_until(world, task, WindowPhase.DOUBTED, unserved=1)
    assert world.send(worker, SERVE_WINDOW, [task, 0]) is None
    window = run_until(world, task, WindowPhase.JURY_SEALING, unserved=4)
    world.served = frozenset(seat.address for seat in window.jurors[3 : 3 + friends])
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED or record.phase == Phase.SETTLED)
    assert (world.task(task).phase == Phase.SETTLED) == (friends == 6)


def test_an_answer_after_the_time_of_an_opening_costs_what_a_late_opening_costs() -> None:
    world, worker, task, _ = market(Manners(silent=NO_ANSWER))
    world.is_hiding = True
    window = run_until(world, task, WindowPhase.DOUBTED, unserved=1)
    world.block(QUICK.reveal_ms + 1_000)
    world.is_hiding = False
    assert world.send(worker, SERVE_WINDOW, [task, 0]) is None
    assert burned(world, task, Purpose.WORKER_FINE) == window.charge * QUICK.opening_fine_bps // 10_000 > 0
    world.run_to(task, Phase.SETTLED)
    assert burned(world, task, Purpose.NOT_SERVED) == 0


def test_after_its_time_the_bond_is_burned_and_no_answer_is_taken() -> None:
    world, worker, task, _ = market(Manners(silent=NO_ANSWER))
    world.is_hiding = True
    window = run_until(world, task, WindowPhase.DOUBTED, unserved=1)
    world.block(window.deadline_ms - world.time_ms)
    assert world.send(worker, SERVE_WINDOW, [task, 0]) == "wrong_phase"
    world.block()
    assert_lost_all(world, task, worker)


def test_a_juror_that_gets_one_segment_alone_has_not_fetched_the_window() -> None:
    """A jury re-ran one segment: a worker served an honest one, and forged the others."""
    world, worker, task, _ = market(HONEST, samples=4)
    world.is_hiding, world.shown = True, frozenset({0})
    window = run_until(world, task, WindowPhase.JURY_SEALING)
    assert window.missed == tuple(segment for segment in window.sampled if segment) and len(window.missed) > 1
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED)
    assert_lost_all(world, task, worker)


def test_a_forger_that_serves_a_jury_has_a_game_with_each_of_its_members() -> None:
    world, worker, task, _ = market(Manners(lies=True))
    world.is_hiding = True
    run_until(world, task, WindowPhase.DOUBTED, unserved=1)
    world.is_hiding = False
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    assert burned(world, task, Purpose.LIE_PROVEN) > 0
    node = queries.find_node(world.state, worker)
    assert node is not None and node.bad == 1


@pytest.mark.parametrize("opens", [True, False])
def test_a_forger_that_falls_silent_in_a_game_and_serves_nobody_then_loses_its_bond(opens: bool) -> None:
    """The machines that are drawn after a silence cannot run the segment again: it was a tenth of the bond."""
    silent = frozenset({Action.PLAY, Action.SERVE} | (set() if opens else {Action.OPEN}))
    world, worker, task, _ = market(Manners(lies=True, silent=silent))
    run_until(world, task, WindowPhase.OPENING)
    world.is_hiding = True
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED)
    assert_lost_all(world, task, worker)


def test_a_false_challenge_of_a_friend_is_no_way_around_the_jury() -> None:
    """A contested window that is not opened cost a tenth of the bond, and the friend's challenge another one."""
    world, worker, task, _ = market(Manners(silent=NO_OPENING | NO_ANSWER | {Action.PLAY}))
    friend = b"F" * 20
    world.fund(friend, 10**24)
    world.is_hiding = True
    window = run_until(world, task, WindowPhase.REVEALING)
    shown = next(at for at in range(window.proof.segments) if at not in window.sampled)
    assert world.challenge(friend, task, 0, shown, lie=True) is None
    world.shown = frozenset({shown})
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED)
    assert_lost_all(world, task, worker)
    endings = {dispute.ending for dispute in queries.disputes(world.state, task, 0)}
    assert endings == {DisputeEnding.RERUN_REFUTED}


def test_where_nobody_is_left_for_a_larger_jury_the_window_is_not_paid_and_the_bond_stays() -> None:
    world, worker, task, _ = market(HONEST, others=4)
    world.is_hiding = True
    world.run(task, until=lambda record: record.reason == Reason.WORK_REJECTED)
    assert burned(world, task, Purpose.NOT_SERVED) == 0
    assert not any(line.party == worker and line.movement == Movement.PAID for line in queries.bill(
        world.state, task
    ).lines)  # fmt: skip


def _lost(world: World, window: WindowRecord, fetching: float) -> float:
    """Return how often the bond is lost if each juror says with this chance that it could fetch."""
    first = world.parameters.jury

    def chance(seats: int, of: int) -> float:
        return comb(of, seats) * fetching**seats * (1 - fetching) ** (of - seats)

    def upheld(votes: int, jurors: int) -> bool:
        seat = Seat(bytes(20), b"", None)
        unserved = 0 if jurors == first else 1 + first
        return is_upheld(window._replace(jurors=(seat,) * jurors, unserved=unserved), votes)

    return sum(
        chance(early, first) * chance(late, ENLARGED_JURY - first)
        for early in range(first + 1)
        for late in range(ENLARGED_JURY - first + 1)
        if not upheld(early, first) and not upheld(early + late, ENLARGED_JURY)
    )


@pytest.mark.parametrize(
    ("league", "forger", "honest"),
    [(0.1, 0.97, 0.0), (0.25, 0.75, 0.0006), (1 / 3, 0.52, 0.0066), (0.45, 0.21, 0.061)],
)
def test_how_often_a_forger_and_an_honest_worker_lose_their_bonds(
    league: float, forger: float, honest: float
) -> None:
    world, _, task, _ = market(HONEST)
    window = run_until(world, task, WindowPhase.SEALING)
    assert _lost(world, window, league) == pytest.approx(forger, abs=0.005)
    assert _lost(world, window, 1 - league) == pytest.approx(honest, abs=0.0005)
