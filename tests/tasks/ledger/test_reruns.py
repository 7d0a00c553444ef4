"""A worker that is silent when it is caught: drawn machines run the segment again (market.md 7.8, R27)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

import tests.tasks.world
from billing.escrow import Movement, Pool, Purpose, Vault
from billing.prices import share, share_up
from tasks.ledger.dispute_transitions import SEAL_CHALLENGE
from tasks.ledger.disputes import DisputeEnding, DisputePhase, load_docket
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import require_node
from tasks.proofs import SegmentLeaf
from tasks.spec import JobSpec
from tests.tasks.ledger.test_disputes import OUTSIDERS, bond_of, endings, lines, phases, window_of
from tests.tasks.signed import CHECK, WORK
from tests.tasks.world import DKB, HONEST, QUICK, WORTH, Manners, World, spec

NO_ANSWER: Final = frozenset({Action.PLAY})
NO_OPENING: Final = frozenset({Action.OPEN})
LIAR: Final = Manners(lies=True, silent=NO_ANSWER)
FALSE: Final = Manners(lies=True)


def market(worker: Manners, verifiers: list[Manners], drawn: list[Manners]) -> tuple[World, bytes, bytes]:
    """A world in which ``verifiers`` check the one window, and ``drawn`` are there for what comes after."""
    count = len(verifiers)
    world = World(
        parameters=replace(QUICK, verifiers=count, verifiers_sure=count, final_ms=100_000, final_ms_min=100_000)
    )
    first = world.add_machine(1, roles=WORK, manners=worker, price=WORTH // 10_000)
    for at, each in enumerate(verifiers):
        world.add_machine(100 + at, roles=CHECK, manners=each)
    for outsider in OUTSIDERS:
        world.fund(outsider, 10_000 * DKB)
    task = world.create(spec(total=20, match_ms=80_000_000))
    world.run(task, until=lambda record: record.next_window > 0 and bool(window_of(world, task).verifiers))
    for at, each in enumerate(drawn):
        world.add_machine(150 + at, roles=CHECK, manners=each)
    return world, first, task


def bond_left(world: World, task: bytes, worker: bytes) -> int:
    return Vault.load(world.state, task, world.events.append, 0).held(Pool.BOND, worker)


def excluded(world: World, task: bytes) -> Reason:
    return world.run(task, until=lambda record: bool(record.excluded), blocks=600).reason


def lost_silently(world: World, task: bytes) -> int:
    return sum(line.amount for line in lines(world, task, Purpose.WORKER_FINE))


def test_a_caught_worker_that_does_not_answer_loses_all_of_its_bond() -> None:
    world, liar, task = market(LIAR, [HONEST], [HONEST, HONEST])
    verifier = window_of(world, task).verifiers[0].address
    assert excluded(world, task) == Reason.LIE_PROVEN
    bond = bond_of(world, task, liar)
    assert endings(world, task) == [DisputeEnding.RERUN_WRONG]
    assert bond_left(world, task, liar) == 0
    paid = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.PAID]
    fees = sum(line.amount for line in lines(world, task, Purpose.JUROR_FEE))
    assert 0 < fees < bond // 10
    mine = sum(line.amount for line in paid if line.party == verifier)
    assert mine >= share(bond - fees, 3_500)
    # The drawn ones have their fee and no share: nothing is offered for one result.
    assert {seat.address for seat in window_of(world, task).jurors}.isdisjoint(line.party for line in paid)
    assert require_node(world.state, liar).bad == 1


@pytest.mark.parametrize("drawn", [[FALSE, HONEST], [FALSE, FALSE], [HONEST], []])
def test_one_machine_or_two_that_differ_convict_nobody(drawn: list[Manners]) -> None:
    """A friend among the drawn, only friends, or nobody to draw: silence costs a tenth."""
    world, liar, task = market(LIAR, [HONEST], drawn)
    assert excluded(world, task) == Reason.ANSWER_MISSING
    assert lost_silently(world, task) == share_up(
        bond_of(world, task, liar) - sum(line.amount for line in lines(world, task, Purpose.JUROR_FEE)), 1_000
    )
    assert not lines(world, task, Purpose.LIE_PROVEN)
    refuted = drawn == [FALSE, FALSE]
    assert endings(world, task) == [DisputeEnding.RERUN_REFUTED if refuted else DisputeEnding.ACCUSED_SILENT]


def test_machines_that_differ_are_followed_by_others() -> None:
    world, liar, task = market(LIAR, [HONEST], [FALSE, HONEST, HONEST, HONEST])
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0


def test_a_false_challenger_of_a_worker_whose_line_is_cut_convicts_nobody() -> None:
    """The drawn machines find what the worker had committed to: it loses a tenth, and so does the challenger."""
    world, worker, task = market(Manners(silent=NO_ANSWER), [FALSE], [HONEST, HONEST])
    world.run(task, until=lambda _: window_of(world, task).phase == WindowPhase.SEALING)
    assert world.challenge(OUTSIDERS[0], task, 0, 0, root=(b"w" * 32, b"s" * 32)) is None
    bad = window_of(world, task).verifiers[0].address
    assert excluded(world, task) == Reason.ANSWER_MISSING
    assert set(endings(world, task)) == {DisputeEnding.RERUN_REFUTED}
    bond = bond_of(world, task, worker)
    assert lost_silently(world, task) <= share_up(bond, 1_000)
    burned = lines(world, task, Purpose.CHALLENGE_LOST)
    assert [(line.amount, line.movement) for line in burned] == [(share_up(bond, 1_000), Movement.BURNED)]
    node = require_node(world.state, bad)
    assert (node.bond, node.bad) == (QUICK.node_bond_min, 1)
    assert bad not in {line.party for line in lines(world, task, Purpose.VERIFIER_FEE)}


def test_a_friends_game_that_lapses_first_drops_no_other() -> None:
    """A friend of the liar has a game about another root, in which the liar falls silent as well."""
    world, liar, task = market(LIAR, [Manners(lies=True), HONEST], [HONEST, HONEST])
    world.run(task, until=lambda _: window_of(world, task).phase == WindowPhase.SEALING)
    junk = (b"w" * 32, b"s" * 32)
    for at in range(4):
        assert world.challenge(OUTSIDERS[at], task, 0, 0, root=junk) is None
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0
    burned = lines(world, task, Purpose.CHALLENGE_LOST)
    assert len([line for line in burned if line.movement == Movement.BURNED]) == 4


def test_a_worker_that_does_not_open_what_a_verifier_found_wrong_has_a_day_and_loses_all_of_its_bond() -> None:
    world, liar, task = market(Manners(lies=True, silent=NO_OPENING), [HONEST], [HONEST, HONEST])
    verifier = window_of(world, task).verifiers[0].address
    world.run(task, until=lambda _: window_of(world, task).reason == Reason.OPENING_LATE)
    assert window_of(world, task).deadline_ms > world.time_ms + QUICK.dispute_resume_ms - 2_000
    assert excluded(world, task) == Reason.LIE_PROVEN
    assert endings(world, task) == [DisputeEnding.RERUN_WRONG] and bond_left(world, task, liar) == 0
    paid = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == verifier]
    assert sum(line.amount for line in paid) >= share(bond_of(world, task, liar), 3_000)


def test_an_outsider_is_heard_when_a_worker_does_not_open() -> None:
    """The drawn verifier is the liar's friend. The liar sees a seal and does not open."""
    world, liar, task = market(Manners(lies=True, silent=NO_OPENING | NO_ANSWER), [FALSE], [HONEST, HONEST])
    world.run(task, until=lambda _: window_of(world, task).phase == WindowPhase.SEALING)
    assert world.challenge(OUTSIDERS[0], task, 0, 2) is None
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0
    paid = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == OUTSIDERS[0]]
    assert sum(line.amount for line in paid) >= share(bond_of(world, task, liar), 900)
    back = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.party == OUTSIDERS[0]]
    assert len(back) == 1


def test_an_honest_worker_that_cannot_open_loses_a_tenth_at_most() -> None:
    """A false verifier says that its leaf differs, or an outsider seals junk and does not open that."""
    world, worker, task = market(Manners(silent=NO_OPENING), [FALSE], [HONEST, HONEST])
    assert excluded(world, task) == Reason.NOT_OPENED
    bond = bond_of(world, task, worker)
    assert (
        share_up(bond, 900) <= lost_silently(world, task) <= share_up(bond, 1_000) + window_of(world, task).charge
    )
    assert endings(world, task) == [DisputeEnding.RERUN_REFUTED]
    world, worker, task = market(Manners(silent=NO_OPENING), [HONEST], [])
    world.run(task, until=lambda _: window_of(world, task).phase == WindowPhase.SEALING)
    assert world.send(OUTSIDERS[0], SEAL_CHALLENGE, [task, 0, b"s" * 32, 1_000 * DKB]) is None
    assert excluded(world, task) == Reason.NOT_OPENED and endings(world, task) == []
    assert lost_silently(world, task) >= share_up(bond_of(world, task, worker), 900)
    assert load_docket(world.state, task, 0).is_idle


def test_a_worker_may_still_open_within_its_day() -> None:
    world, worker, task = market(Manners(silent=NO_OPENING), [FALSE, HONEST], [])
    world.run(task, until=lambda _: window_of(world, task).reason == Reason.OPENING_LATE)
    world.machines[worker] = HONEST
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker == worker and endings(world, task) == [DisputeEnding.ELEMENT_RIGHT]


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_false_sum_of_losses_is_a_lie_about_which_anybody_can_play(
    is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is right, and so is the work: an outsider had found the same root, and lost its bond."""
    honest = tests.tasks.world.leaves_of
    world, _, task = market(HONEST, [HONEST], [HONEST, HONEST])
    sampled = window_of(world, task).sampled
    wrong = next(at for at in range(4) if (at in sampled) == is_drawn)

    def leaves(job: JobSpec, window: int, root_in: bytes, **manners: Any) -> list[SegmentLeaf]:
        found = honest(job, window, root_in, **manners)
        return [leaf._replace(loss_bits=leaf.loss_bits ^ (leaf.segment == wrong)) for leaf in found]

    monkeypatch.setattr(tests.tasks.world, "leaves_of", leaves)
    world, liar, task = market(HONEST, [HONEST], [HONEST, HONEST])
    assert window_of(world, task).sampled == sampled
    world.run(task, until=lambda _: window_of(world, task).phase == WindowPhase.SEALING)
    if not is_drawn:
        assert world.challenge(OUTSIDERS[0], task, 0, wrong) is None
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0
    assert endings(world, task) == [DisputeEnding.RERUN_WRONG]


def test_nobody_moves_in_a_game_that_waits_for_drawn_machines() -> None:
    world, liar, task = market(LIAR, [HONEST], [HONEST, HONEST])
    world.run(task, until=lambda _: phases(world, task) == [DisputePhase.SILENT], blocks=600)
    world.machines[liar] = Manners(lies=True)
    assert world.challenge(OUTSIDERS[0], task, 0, 1) is None
    assert excluded(world, task) == Reason.LIE_PROVEN
    assert load_window(world.state, task, 0).rerun != ()


# A verifier that falls silent (R43)

CUT: Final = Manners(silent=NO_ANSWER)
GONE: Final = Manners(lies=True, silent=NO_ANSWER)


@pytest.mark.parametrize("drawn", [[HONEST, HONEST], [HONEST, FALSE], [FALSE, HONEST]])
def test_a_verifier_whose_line_is_cut_is_replaced_and_one_honest_machine_proves_the_lie(
    drawn: list[Manners],
) -> None:
    world, liar, task = market(Manners(lies=True), [CUT], drawn)
    verifier = window_of(world, task).verifiers[0].address
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0
    assert endings(world, task)[0] == DisputeEnding.DROPPED
    assert any(ending.is_proof for ending in endings(world, task))
    paid = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == verifier]
    assert paid and not lines(world, task, Purpose.CHALLENGE_LOST)[1:]
    assert require_node(world.state, verifier).bond == QUICK.node_bond_min


@pytest.mark.parametrize("drawn", [[HONEST, HONEST], [HONEST], []])
def test_a_false_verifier_that_falls_silent_loses_a_tenth_and_delays_little(drawn: list[Manners]) -> None:
    world, worker, task = market(HONEST, [GONE], drawn)
    bad = window_of(world, task).verifiers[0].address
    until = {DisputePhase.SUSPENDED}
    world.run(task, until=lambda _: set(phases(world, task)) == until, blocks=600)
    since_ms = world.time_ms
    world.run(task, until=lambda _: bool(endings(world, task)) and DisputeEnding.NONE not in endings(world, task))
    assert endings(world, task) == [DisputeEnding.CHALLENGER_SILENT]
    assert world.time_ms - since_ms < QUICK.dispute_move_ms + 3 * (QUICK.seal_ms_min + 10_000)
    lost = QUICK.node_bond_min - require_node(world.state, bad).bond
    fees = sum(line.amount for line in lines(world, task, Purpose.JUROR_FEE))
    assert lost >= share_up(bond_of(world, task, worker), 1_000)
    if len(drawn) == 2:
        record = world.run_to(task, Phase.SETTLED, blocks=600)
        assert record.worker == worker and not lost_silently(world, task)
        assert lost >= fees


def test_two_friends_that_are_drawn_after_a_silence_rob_no_honest_worker() -> None:
    """With the worker's own silence they could. Here each of them has to play, and loses."""
    world, worker, task = market(HONEST, [GONE], [FALSE, FALSE])
    for at in range(2):
        world.add_machine(180 + at, roles=CHECK)
        world.machines[bytes([180 + at]) * 20] = HONEST
    record = world.run_to(task, Phase.SETTLED, Phase.FAILED, blocks=900)
    assert not lines(world, task, Purpose.LIE_PROVEN) and not lost_silently(world, task)
    assert not any(ending.is_proof or ending == DisputeEnding.RERUN_WRONG for ending in endings(world, task))
    assert worker not in record.excluded


def test_machines_that_were_drawn_for_a_silence_and_fall_silent_are_not_replaced_again() -> None:
    world, worker, task = market(HONEST, [GONE, HONEST], [GONE, GONE])
    record = world.run_to(task, Phase.SETTLED, Phase.FAILED, blocks=900)
    assert (record.phase, record.worker) == (Phase.SETTLED, worker)
    # Each of them backed the first one, and pays for that itself.
    assert endings(world, task) == [DisputeEnding.DROPPED] + [DisputeEnding.CHALLENGER_SILENT] * 2


def test_a_liar_that_serves_nobody_refutes_no_verifier_whose_line_it_cut() -> None:
    world, _, task = market(Manners(lies=True), [CUT], [Manners(blind=True), Manners(blind=True)])
    verifier = window_of(world, task).verifiers[0].address
    world.run(task, until=lambda _: bool(endings(world, task)) and endings(world, task)[0] != 0, blocks=600)
    assert endings(world, task)[0] == DisputeEnding.DROPPED
    assert require_node(world.state, verifier).bond == QUICK.node_bond_min
    assert window_of(world, task).phase != WindowPhase.ACCEPTED


def test_a_worker_and_a_verifier_may_be_silent_in_the_same_window() -> None:
    world, liar, task = market(LIAR, [HONEST, CUT], [HONEST, HONEST])
    assert excluded(world, task) == Reason.LIE_PROVEN and bond_left(world, task, liar) == 0
