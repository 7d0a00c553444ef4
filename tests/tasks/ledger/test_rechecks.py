"""A window of which no verdict stands is drawn for again: nobody accepts it by falling silent in a game."""

from __future__ import annotations

import pytest

from billing.escrow import Purpose
from tasks.ledger import queries
from tasks.ledger.disputes import DisputeEnding, load_docket
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeRole
from tasks.proofs import Code
from tests.tasks.ledger.test_disputes import OUTSIDERS, endings, lines, market, until, window_of
from tests.tasks.world import HONEST, Manners, World

SILENT = frozenset({Action.PLAY})
CHECK = NodeRole.VERIFY


def add_verifiers(world: World, count: int, manners: Manners, first: int = 120) -> list[bytes]:
    return [world.add_machine(first + at, roles=CHECK, manners=manners) for at in range(count)]


def test_a_liar_is_not_accepted_because_its_verifier_falls_silent() -> None:
    world, liar, (friend,), task = market(Manners(lies=True), Manners(silent=SILENT))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    (honest,) = add_verifiers(world, 1, HONEST)
    world.run(task, until=lambda record: bool(record.excluded) or record.final_windows > 0)
    assert world.task(task).reason == Reason.LIE_PROVEN and liar in world.task(task).excluded
    assert endings(world, task) == [DisputeEnding.DROPPED, DisputeEnding.ELEMENT_WRONG]
    paid = {line.party for line in lines(world, task, Purpose.LIE_PROVEN)}
    assert {honest, friend} <= paid, "it had found the lie, and could have proven it"


def test_the_next_round_runs_other_segments_with_other_machines() -> None:
    world, _, (friend,), task = market(HONEST, Manners(lies=True, silent=SILENT), final_ms=100_000)
    first = until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    until(world, task, lambda _: endings(world, task) == [DisputeEnding.CHALLENGER_SILENT])
    (honest,) = add_verifiers(world, 1, HONEST)
    second = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert [seat.address for seat in second.verifiers] == [honest] and friend in second.used
    assert second.seen == first.sampled and not set(second.sampled) & set(first.sampled)
    assert (second.opened, second.missed, second.jurors) == ((), (), ()) and second.draws in (1, 2)
    world.run_to(task, Phase.SETTLED)
    fees = {line.party for line in lines(world, task, Purpose.VERIFIER_FEE)}
    assert fees == {honest} and window_of(world, task).phase == WindowPhase.FINAL


def test_where_all_segments_were_opened_they_are_run_again() -> None:
    world, _, _, task = market(HONEST, Manners(lies=True, silent=SILENT), samples=4)
    until(world, task, lambda _: endings(world, task) == [DisputeEnding.CHALLENGER_SILENT])
    add_verifiers(world, 1, HONEST)
    second = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert second.seen == second.sampled == (0, 1, 2, 3)
    world.run_to(task, Phase.SETTLED)


@pytest.mark.parametrize("lies", [True, False])
def test_rounds_without_a_verdict_have_a_bound_and_nobody_is_paid_for_the_window(lies: bool) -> None:
    """Of a liar with friends, and of an honest worker among silent enemies."""
    silent = Manners(lies=not lies, silent=SILENT)
    world, worker, _, task = market(Manners(lies=lies), silent)
    add_verifiers(world, 5, silent)
    world.run_to(task, Phase.FAILED)
    record = world.task(task)
    assert (record.reason, record.final_windows) == (Reason.NO_VERIFIER, 0)
    # Two that are drawn after a silence say the same, and pay for it. Then no machine is left.
    each = [DisputeEnding.DROPPED, *[DisputeEnding.CHALLENGER_SILENT] * 2]
    assert endings(world, task) == each * 2
    assert not lines(world, task, Purpose.WINDOW_PAY) and not lines(world, task, Purpose.LIE_PROVEN)
    assert queries.find_node(world.state, worker) is not None


def test_without_another_verifier_the_task_fails_as_with_draws_in_vain() -> None:
    world, _, _, task = market(Manners(lies=True), Manners(silent=SILENT))
    world.run_to(task, Phase.FAILED)
    assert world.task(task).reason == Reason.NO_VERIFIER and not lines(world, task, Purpose.WINDOW_PAY)


def test_jurors_that_lose_their_games_leave_no_verdict_either() -> None:
    world, _, (blind,), task = market(HONEST, Manners(blind=True), jury=1)
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    (juror,) = add_verifiers(world, 1, Manners(lies=True))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    (honest,) = add_verifiers(world, 1, HONEST, first=150)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING and window.draws > 0)
    assert [seat.address for seat in window.verifiers] == [honest] and {blind, juror} < set(window.used)
    world.run_to(task, Phase.SETTLED)


def test_a_window_whose_verdict_stands_is_not_drawn_for_again_after_a_lost_challenge() -> None:
    world, _, _, task = market(HONEST, HONEST, Manners(lies=True, silent=SILENT))
    world.run_to(task, Phase.SETTLED)
    window = window_of(world, task)
    assert window.draws == 0 and len(window.verifiers) == 1 and not window.seen
    assert {found.code for found in window.verifiers[0].findings or ()} == {Code.COMPUTED}


def test_another_round_has_a_time_of_challenges_of_its_own() -> None:
    """Friends of a liar that fall silent let the time of challenges end; then a friend agrees."""
    friend = Manners(lies=True, silent=SILENT)
    world, worker, _, task = market(HONEST, friend, final_ms=20_000, final_ms_min=20_000)
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    first_ms = load_docket(world.state, task, 0).until_ms
    until(world, task, lambda _: endings(world, task) == [DisputeEnding.CHALLENGER_SILENT])
    add_verifiers(world, 1, HONEST)
    second = until(world, task, lambda window: window.phase == WindowPhase.ACCEPTED)
    assert second.draws in (1, 2) and second.worker == worker
    assert 0 < first_ms < world.time_ms
    assert load_docket(world.state, task, 0).until_ms - world.time_ms > 15_000
    assert world.challenge(OUTSIDERS[0], task, 0, second.sampled[0]) is None
    world.run_to(task, Phase.SETTLED)
    assert endings(world, task)[-1] in (DisputeEnding.SAME_ROOT, DisputeEnding.ELEMENT_RIGHT)
