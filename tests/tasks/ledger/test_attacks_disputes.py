"""Attacks on disputes, by the names of their findings: what each costs, and that it gains nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Pool, Purpose, Vault
from billing.prices import share, share_up
from state.view.accounts import balance_of
from tasks.dispute.commitments import StepRecord
from tasks.dispute.moves import ShowRecords, encode_move
from tasks.ledger import queries
from tasks.ledger.dispute_transitions import MOVE, RESUME_DISPUTE
from tasks.ledger.disputes import (
    OUTSIDERS_AT_ONCE_MAX,
    DisputeEnding,
    DisputePhase,
    has_disputes,
    load_docket,
    save_dispute,
)
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import require_node, save_node
from tasks.ledger.transitions import POKE
from tests.tasks.ledger.test_disputes import OUTSIDERS, bond_of, endings, lines, market, phases, until, window_of
from tests.tasks.signed import CHECK, KEYS, WORK, SignedWorld
from tests.tasks.world import HONEST, QUICK, WORTH, Manners, World, spec

SILENT: Final = frozenset({Action.PLAY})


@pytest.mark.parametrize("honest", [1, 3])
def test_a9_no_majority_of_verifiers_passes_garbage(honest: int) -> None:
    """Colluding verifiers agree with a forged window, and outnumber the honest ones or are as many."""
    friends = 5 if honest == 1 else 3
    world, _, verifiers, task = market(Manners(lies=True), *[Manners(lies=True)] * friends, *[HONEST] * honest)
    record = world.run(task, until=lambda record: bool(record.excluded))
    assert record.reason == Reason.LIE_PROVEN and record.final_windows == 0
    assert lines(world, task, Purpose.WINDOW_PAY) == []
    for friend in verifiers[:friends]:
        assert require_node(world.state, friend).bad == 1
    for verifier in verifiers[friends:]:
        node = require_node(world.state, verifier)
        assert (node.bad, node.bond) == (0, QUICK.node_bond_min)


def test_a9_jurors_do_not_decide_what_was_computed() -> None:
    """A verifier cannot fetch, and all but one of the jurors agree with a forged segment: that one has a game."""
    parameters = replace(QUICK, jury=5)
    world = World(parameters=parameters)
    liar = world.add_machine(1, roles=WORK, manners=Manners(lies=True), price=WORTH // 10_000)
    world.add_machine(100, roles=CHECK, manners=Manners(blind=True))
    task = world.create(spec(total=20))
    world.run(task, until=lambda task: task.next_window == 1)
    for _ in range(QUICK.draw_blocks + 1):
        world.block()
    for at in range(5):
        world.add_machine(101 + at, roles=CHECK, manners=Manners(lies=at > 0))
    record = world.run(task, until=lambda record: bool(record.excluded))
    assert record.reason == Reason.LIE_PROVEN and liar in record.excluded
    assert len(window_of(world, task).jurors) == 5


def test_n2_slow_games_of_ones_own_do_not_keep_an_outsider_from_its_turn() -> None:
    """The liar's friends fill the places for outsiders twice, never move, and lose ever larger bonds."""
    world, liar, _, task = market(Manners(lies=True), Manners(lies=True))
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    junk = (b"w" * 32, b"s" * 32)
    for at in range(2 * OUTSIDERS_AT_ONCE_MAX):
        assert world.challenge(OUTSIDERS[at], task, 0, at % 4, root=junk) is None
    honest = OUTSIDERS[-1]
    assert world.challenge(honest, task, 0, 0) is None
    bond = bond_of(world, task, liar)
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN, blocks=800)
    lost = sum(line.amount for line in lines(world, task, Purpose.CHALLENGE_LOST))
    assert lost >= 4 * share_up(bond, 1_000) + 4 * share_up(bond, 2_000)
    paid = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == honest]
    assert sum(line.amount for line in paid) >= share(bond, 1_000)


def test_n4_who_cuts_the_line_of_an_honest_worker_loses_more_than_it_gets() -> None:
    """An outsider challenges falsely and cuts the accused's line until its clock is missed."""
    world, worker, _, task = market(HONEST, HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    attacker = OUTSIDERS[0]
    before = balance_of(world.state, attacker)
    assert world.challenge(attacker, task, 0, window.sampled[0], lie=True) is None
    until(world, task, lambda _: phases(world, task) == [DisputePhase.RUNNING])
    world.machines[worker] = Manners(silent=frozenset(Action))
    until(world, task, lambda _: phases(world, task) == [DisputePhase.SUSPENDED])
    assert require_node(world.state, worker).bad == 0  # silence is not a lie
    world.machines[worker] = HONEST
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker == worker and endings(world, task) == [DisputeEnding.ELEMENT_RIGHT]
    bond, charge = bond_of(world, task, worker), window.charge
    got = share_up(charge, QUICK.dispute_resume_bps)
    assert balance_of(world.state, attacker) - before == got - share_up(bond, 1_000) < 0
    paid = [line for line in lines(world, task, Purpose.CHALLENGE_LOST) if line.party == worker]
    assert sum(line.amount for line in paid) >= got  # the line costs its owner nothing in the end


def test_n10_random_roots_on_every_window_cost_their_bonds() -> None:
    """On an honest worker's windows each is lost; on a liar's the root is another than the winner's."""
    junk = (b"w" * 32, b"s" * 32)
    world, worker, _, task = market(HONEST, HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert world.challenge(OUTSIDERS[0], task, 0, window.sampled[0], root=junk) is None
    world.run_to(task, Phase.SETTLED)
    assert sum(line.amount for line in lines(world, task, Purpose.CHALLENGE_LOST)) == share_up(
        bond_of(world, task, worker), 1_000
    )
    world, liar, _, task = market(Manners(lies=True), HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert world.challenge(OUTSIDERS[0], task, 0, min(window.sampled), root=junk) is None
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    (burned,) = lines(world, task, Purpose.CHALLENGE_LOST)
    assert (burned.amount, burned.movement) == (share_up(bond_of(world, task, liar), 1_000), Movement.BURNED)
    assert OUTSIDERS[0] not in {line.party for line in lines(world, task, Purpose.LIE_PROVEN)}


@pytest.mark.parametrize("is_early", [True, False])
def test_n10_a_copied_root_earns_nothing(is_early: bool) -> None:
    """One outsider seals what the verifier has revealed, after it; another had sealed the same before."""
    world, liar, _, task = market(Manners(lies=True), HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    if is_early:
        assert world.challenge(OUTSIDERS[0], task, 0, min(window.sampled)) is None
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    assert world.challenge(OUTSIDERS[1], task, 0, min(window.sampled)) is None  # by what it saw on chain
    world.run(task, until=lambda record: record.reason == Reason.LIE_PROVEN)
    shared = {line.party for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.PAID}
    assert (OUTSIDERS[0] in shared) == is_early and OUTSIDERS[1] not in shared
    back = {line.party for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.CHALLENGE}
    assert OUTSIDERS[1] in back and liar in world.task(task).excluded


def test_giving_up_one_game_in_the_block_of_another_ones_proof_saves_nothing() -> None:
    """A proof of a lie is settled before whatever else ended in the block."""
    world, liar, _, task = market(Manners(lies=True), HONEST, HONEST)
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    for _ in range(200):
        ended = [game for game in queries.disputes(world.state, task, 0) if game.phase is DisputePhase.OVER]
        if ended:
            break
        world.act(lambda machines: sorted(machines, reverse=True))
        if not any(game.phase is DisputePhase.OVER for game in queries.disputes(world.state, task, 0)):
            world.block()
    for duty in queries.dispute_duties(world.state, liar, world.parameters):
        world.send(liar, MOVE, [task, 0, duty.game, duty.number, b"\x80"])
    assert world.send(liar, POKE, [task]) == "nothing_due", "the end of the block settles, not the liar"
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN


@pytest.mark.parametrize("seed", range(3))
def test_random_disputes_in_the_real_runtime_end_for_the_truth(seed: int) -> None:
    """Signed transactions, each in a block of its own: no forged window becomes final, no honest one is lost."""
    chance = random.Random(seed)
    parameters = replace(
        QUICK, verifiers=2, verifiers_sure=2, dispute_move_ms=30_000, dispute_side_ms=600_000, reveal_ms=20_000,
        seal_ms_min=30_000, final_ms=20_000, final_ms_min=20_000, accept_ms=30_000, prepare_ms=60_000,
    )  # fmt: skip
    world = SignedWorld(parameters)
    workers, verifiers, outsiders = KEYS[1:4], KEYS[4:9], KEYS[9:11]
    for at, key in enumerate(workers):
        lies = Manners(lies=at == seed % 2)
        world.join(key, world.profile(key, roles=WORK, price=WORTH // (10_000 - 1_000 * at)), lies)
    for key in verifiers:
        world.join(key, world.profile(key, roles=CHECK), Manners(lies=chance.random() < 0.3))
    task = world.create(spec(total=40, match_ms=3_600_000))
    challenged = False
    for _ in range(400):
        record = world.task(task)
        if record.phase in (Phase.SETTLED, Phase.FAILED):
            break
        if record.next_window and not challenged:
            challenged = (
                world.challenge(outsiders[0].address, task, 0, chance.randrange(4), lie=chance.random() < 0.5)
                is None
            )
        world.act()
        world.block()
    record = world.task(task)
    assert record.phase == Phase.SETTLED, record
    for number in range(record.final_windows):
        worker = load_window(world.state, task, number).worker
        assert not world.machines[worker].lies
        assert load_docket(world.state, task, number).is_idle
    assert challenged


JUNK: Final = encode_move(ShowRecords((StepRecord(b"r" * 32, b"w" * 32, 0),)))
"""Another number of records than is due: who shows them contradicts itself."""


def test_a_caught_worker_that_contradicts_itself_loses_all_of_its_bond() -> None:
    """It pays a tenth of that for a game that it could only lose, and the verifier that caught it gets nothing."""
    world, liar, (verifier,), task = market(Manners(lies=True, silent=SILENT), HONEST)
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    (duty,) = queries.dispute_duties(world.state, liar, world.parameters)
    bond = bond_of(world, task, liar)
    assert world.send(liar, MOVE, [task, 0, duty.game, duty.number, JUNK]) is None
    world.block()
    assert endings(world, task) == [DisputeEnding.ACCUSED_INCONSISTENT]
    assert world.task(task).reason == Reason.LIE_PROVEN
    assert Vault.load(world.state, task, world.events.append, 0).held(Pool.BOND, liar) == 0
    shares = lines(world, task, Purpose.LIE_PROVEN)
    assert sum(line.amount for line in shares if line.party == verifier) >= share(bond, 3_500)


SLOW_GAMES: Final = replace(QUICK, dispute_move_ms=10**7, dispute_side_ms=10**8, dispute_resume_ms=10**7)


def two_windows_in_dispute(worker: Manners, *verifiers: Manners) -> tuple[World, bytes, bytes]:
    """A world in which the first two windows of a worker are disputed, and no move was made."""
    count = len(verifiers)
    world = World(parameters=replace(SLOW_GAMES, verifiers=count, verifiers_sure=count))
    first = world.add_machine(1, roles=WORK, manners=worker, price=WORTH // 10_000)
    for at, each in enumerate(2 * verifiers):
        world.add_machine(100 + at, roles=CHECK, manners=each)
    task = world.create(spec(total=40, match_ms=80_000_000))
    for _ in range(300):
        world.block()
        for address, manners in sorted(world.machines.items()):
            for duty in queries.work_duties(world.state, address, world.parameters):
                world.work(address, duty, manners)
            for check in queries.verification_duties(world.state, address):
                world.check(address, check, manners)
        if world.task(task).next_window == 2 and all(
            load_window(world.state, task, number).phase == WindowPhase.DISPUTED for number in (0, 1)
        ):
            return world, first, task
    raise AssertionError("the windows are not disputed")


def play_game(world: World, task: bytes, window: int, game: int) -> DisputeEnding:
    """Play one game alone until a move has ended it, in the block under way; return how."""
    for _ in range(300):
        for address in world.machines:
            for duty in queries.dispute_duties(world.state, address, world.parameters):
                if (duty.window, duty.game) == (window, game):
                    world.play(address, duty)
        dispute = queries.disputes(world.state, task, window)[game]
        if dispute.phase is DisputePhase.OVER:
            return dispute.ending
        world.block()
    raise AssertionError("the game does not end")


def test_a_proof_about_a_later_window_is_settled_before_an_earlier_one_is_void() -> None:
    """In the block of the proof, what the worker did not open voids the window before: the proof went with it."""
    world, liar, task = two_windows_in_dispute(Manners(lies=True), HONEST)
    bond = bond_of(world, task, liar)
    assert play_game(world, task, 1, 0).is_proof
    first = load_window(world.state, task, 0)
    case = Case.load(Scope(world.state, world.context(), world.events.append, world.parameters), task)
    case.put_window(
        first._replace(phase=WindowPhase.OPENING, reason=Reason.OPENING_LATE, deadline_ms=world.time_ms - 1)
    )
    case.save()
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN
    assert queries.disputes(world.state, task, 1)[0].ending.is_proof
    taken = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.pool == Pool.BOND]
    assert sum(line.amount for line in taken) >= share(bond, 9_000)


@pytest.mark.parametrize("window", [0, 1])
def test_a_game_that_was_lost_is_paid_for_also_if_the_window_ends_otherwise_in_that_block(window: int) -> None:
    """A false verifier loses its game about a window, and the worker contradicts itself about the first one."""
    liar = Manners(lies=True)
    world, worker, task = two_windows_in_dispute(HONEST, liar, liar)
    assert play_game(world, task, window, 0) is DisputeEnding.ELEMENT_RIGHT
    loser = queries.disputes(world.state, task, window)[0].challenger
    before = require_node(world.state, loser)
    (duty,) = (
        duty
        for duty in queries.dispute_duties(world.state, worker, world.parameters)
        if (duty.window, duty.game) == (0, 1)
    )
    assert world.send(worker, MOVE, [task, 0, 1, duty.number, JUNK]) is None
    world.block()
    assert world.task(task).excluded == (worker,)
    after = require_node(world.state, loser)
    assert (
        before.bond - after.bond == share_up(bond_of(world, task, worker), 1_000) and after.bad == before.bad + 1
    )
    fees = [line for line in lines(world, task, Purpose.VERIFIER_FEE) if line.party == loser]
    assert [line.subject for line in fees if line.subject == window] == []


def test_a_sealed_challenge_in_the_block_of_a_proof_does_not_delay_it() -> None:
    world, _, _, task = market(Manners(lies=True), HONEST, final_ms=10**6, final_ms_min=10**6)
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    assert play_game(world, task, 0, 0).is_proof
    assert world.challenge(OUTSIDERS[0], task, 0, 0) is None
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN


def test_a_move_that_comes_after_its_clock_has_run_out_is_refused() -> None:
    """The end of the block has not suspended the game yet."""
    world, worker, _, task = market(Manners(silent=SILENT), Manners(lies=True, silent=SILENT))
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    (duty,) = queries.dispute_duties(world.state, worker, world.parameters)
    world.block(duty.deadline_ms - world.time_ms)
    assert world.send(worker, MOVE, [task, 0, 0, 0, JUNK]) == "move_refused"
    assert phases(world, task) == [DisputePhase.RUNNING]
    world.block()
    assert phases(world, task) == [DisputePhase.SUSPENDED]
    (duty,) = queries.dispute_duties(world.state, worker, world.parameters)
    world.block(duty.deadline_ms - world.time_ms)
    assert world.send(worker, RESUME_DISPUTE, [task, 0, 0, duty.resume_price]) == "move_refused"


def test_who_pokes_a_void_window_is_not_before_a_proof_about_another_one() -> None:
    """A worker fires what voids its first window ahead of the last move about its second one, in one block."""
    world, liar, task = two_windows_in_dispute(Manners(lies=True), HONEST)
    case = Case.load(Scope(world.state, world.context(), world.events.append, world.parameters), task)
    case.put_window(
        load_window(world.state, task, 0)._replace(
            phase=WindowPhase.OPENING, reason=Reason.OPENING_LATE, deadline_ms=world.time_ms - 1
        )
    )
    case.save()
    assert world.send(liar, POKE, [task]) == "nothing_due"


def test_a_verifier_with_the_least_bond_pays_for_the_time_that_it_delays_a_window() -> None:
    """It said something else than it found, and never moves: it had no pause meanwhile, and lost nothing."""
    world, worker, (bad,), task = market(HONEST, Manners(lies=True, silent=SILENT))
    until(world, task, lambda _: phases(world, task) == [DisputePhase.SUSPENDED])
    node = require_node(world.state, bad)
    assert (node.bad, node.bond) == (1, QUICK.node_bond_min) and node.cool_down_until_ms > world.time_ms
    world.run(task, until=lambda _: endings(world, task) == [DisputeEnding.CHALLENGER_SILENT])
    assert QUICK.node_bond_min - require_node(world.state, bad).bond == share_up(
        bond_of(world, task, worker), 1_000
    )


def test_seals_end_a_fixed_time_after_the_opening_and_an_outsider_has_less_time_to_resume() -> None:
    """One outsider after another sealed while the game of the one before stood still: a day each, without end."""
    day = 24 * 3_600_000
    world, _, _, task = market(HONEST, HONEST, dispute_resume_ms=day, final_ms=60_000, final_ms_min=60_000)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    junk = (b"w" * 32, b"s" * 32)
    assert world.challenge(OUTSIDERS[0], task, 0, window.sampled[0], root=junk) is None
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    opened_ms = world.time_ms
    assert load_docket(world.state, task, 0).until_ms == opened_ms + 60_000
    until(world, task, lambda _: phases(world, task) == [DisputePhase.SUSPENDED])
    (dispute,) = queries.disputes(world.state, task, 0)
    assert dispute.deadline_ms <= world.time_ms + day // 8
    world.block(60_000)
    assert world.challenge(OUTSIDERS[1], task, 0, window.sampled[0], root=junk) == "challenge_closed"
    world.block(day // 8)
    record = world.run_to(task, Phase.SETTLED)
    assert record.changed_ms < opened_ms + day // 6


def test_a_window_in_dispute_stops_no_other_task_of_its_worker() -> None:
    world, worker, (false,), task = market(
        Manners(silent=SILENT), Manners(lies=True, silent=SILENT), dispute_resume_ms=10**7
    )
    node = require_node(world.state, worker)
    save_node(world.state, node._replace(profile=node.profile._replace(slots=2)))
    until(world, task, lambda _: phases(world, task) == [DisputePhase.SUSPENDED])
    world.machines[false] = HONEST
    other = world.create(spec(total=20, match_ms=80_000_000))
    assert world.run_to(other, Phase.SETTLED).worker == worker
    assert window_of(world, task).phase == WindowPhase.DISPUTED


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_window_that_stands_on_a_lie_is_paid_only_if_a_verifier_found_it_right(is_checked: bool) -> None:
    """A liar's friend proves windows of nothing on the lost one, and was paid for them out of the liar's bond."""
    world, _, task = two_windows_in_dispute(Manners(lies=True), HONEST)
    friend = world.add_machine(2, roles=WORK)
    second = load_window(world.state, task, 1)
    opened = tuple(
        one._replace(
            work_digest=found.work_digest, state_root_after=found.state_root_after, loss_bits=found.loss_bits
        )
        for one, found in zip(second.opened, second.verifiers[0].findings or (), strict=True)
    )
    case = Case.load(Scope(world.state, world.context(), world.events.append, world.parameters), task)
    case.put_window(second._replace(worker=friend, opened=opened if is_checked else ()))
    case.save()
    assert play_game(world, task, 0, 0).is_proof
    world.block()
    paid = [line.amount for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == friend]
    assert bool(sum(paid)) == is_checked


def test_a_verifier_that_lost_its_own_game_does_not_share_a_liars_bond() -> None:
    """It was wrong about one segment, and found what the winner found about another one."""
    world, _, task = two_windows_in_dispute(Manners(lies=True), HONEST, HONEST)
    window = load_window(world.state, task, 0)
    lost, won = (seat.address for seat in window.verifiers)
    games = queries.disputes(world.state, task, 0)
    assert [game.challenger for game in games] == [lost, won]
    save_dispute(
        world.state, games[0]._replace(phase=DisputePhase.OVER, ending=DisputeEnding.ELEMENT_RIGHT, deadline_ms=0)
    )
    assert play_game(world, task, 0, 1).is_proof
    world.block()
    parties = {line.party for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.PAID}
    assert won in parties and lost not in parties


def test_gas_of_a_winner_is_a_small_part_of_the_bond_whatever_the_base_fee_was() -> None:
    world, liar, task = two_windows_in_dispute(Manners(lies=True), HONEST)
    (game,) = queries.disputes(world.state, task, 0)
    save_dispute(world.state, game._replace(base_fee=10**18))
    assert play_game(world, task, 0, 0).is_proof
    world.block()
    bond = bond_of(world, task, liar)
    mine = sum(line.amount for line in lines(world, task, Purpose.LIE_PROVEN) if line.party == game.challenger)
    assert mine == share(bond, 3_500) + share(bond, 500)


def test_records_of_disputes_are_deleted_after_their_task_ended() -> None:
    world, _, _, task = market(HONEST, *[Manners(lies=True)] * 5, HONEST)
    world.run_to(task, Phase.SETTLED)
    assert has_disputes(world.state, task) and queries.disputes(world.state, task, 0)
    world.block(QUICK.bond_release_ms)
    for _ in range(3):
        world.block()
    assert not has_disputes(world.state, task)
    assert queries.disputes(world.state, task, 0) == []
