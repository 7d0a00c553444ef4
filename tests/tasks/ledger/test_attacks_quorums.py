"""Attacks on quorums of containers, with their parameters drawn (docs/attacks.md, N46 to N49)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.prices import TERA
from state.view.accounts import balance_of
from tasks.kinds.container import Metering
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import load_meter
from tasks.ledger.metering_transitions import FINISH_TASK, finish_values
from tasks.ledger.queries import Action
from tasks.ledger.quorum_records import QuorumPhase, SeatState
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.registry import require_node
from tests.tasks.containers import PRICE, host, second_price
from tests.tasks.quorums import Hand, Play, deterministic, end_of_output, result_of, salt_of, seal_of
from tests.tasks.world import QUICK, REQUESTER

SECOND = second_price(PRICE // 2)
TRIALS = 24
HONEST = 6


def paid(play: Play, seat: int) -> int:
    return load_meter(play.world.state, play.seats()[seat]).paid


@pytest.mark.slow
def test_n75_friends_that_ask_least_get_seats_by_their_share_of_weights() -> None:
    """Two machines of two accounts ask least, leave the same lie at once, and run nothing."""
    first = both = forged = 0
    play = Play(*[Hand(run_s=10)] * HONEST)
    world = play.world
    friends = [host(world, 40 + at, price=PRICE // 4) for at in range(2)]
    for friend in friends:
        play.hands[friend] = Hand(b"lie", run_s=10)
    earned = {machine: balance_of(world.state, machine) for machine in play.hands}
    for _ in range(TRIALS):
        while any(require_node(world.state, friend).match_from_ms > world.time_ms for friend in friends):
            world.block(5_000)  # they wait until both may be matched
        play.create()
        found = play.run()
        machines = [seat.machine for seat in found.seats]
        first += machines[0] in friends
        both += machines[0] in friends and machines[1] in friends
        forged += found.result == result_of(end_of_output(b"lie"))
    # Two of eight are friends: a quarter of first seats, one in 28 pairs.
    assert first <= TRIALS * 0.5
    assert both <= TRIALS * 0.15
    assert forged <= TRIALS * 0.3
    gains = {machine: balance_of(world.state, machine) - before for machine, before in earned.items()}
    assert max(gains[friend] for friend in friends) < max(gains[each] for each in play.hands)


@pytest.mark.slow
def test_n46_colluders_of_a_third_of_all_weights_do_not_earn_as_honest_machines_do() -> None:
    """Of nine machines with the same ask three have one lie. Each rests after it was outvoted."""
    play = Play(*[Hand(run_s=60)] * 6, *[Hand(b"lie", run_s=60)] * 3)
    world = play.world
    liars = [machine for machine, hand in play.hands.items() if hand.output == b"lie"]
    earned = {machine: balance_of(world.state, machine) for machine in play.hands}
    for _ in range(20):
        play.create()
        play.run()
    gains = {machine: balance_of(world.state, machine) - earned[machine] for machine in play.hands}
    honest = [gain for machine, gain in gains.items() if machine not in liars]
    lying = [gains[machine] for machine in liars]
    assert sum(lying) * len(honest) < sum(honest) * len(lying)


@settings(max_examples=15, deadline=None)
@given(run_s=st.integers(10, 90), copies=st.sampled_from(["seal", "result"]), guesses=st.integers(0, 5))
def test_n47_what_another_machine_sealed_or_revealed_cannot_be_repeated(
    run_s: int, copies: str, guesses: int
) -> None:
    play = Play(Hand(run_s=run_s), Hand(b"other", run_s=run_s), Hand(run_s=run_s))
    world, task = play.world, play.create()
    seats = play.seats()
    if copies == "seal":
        play.run_until(lambda: bool(world.task(seats[1]).worker))
        copier = world.task(seats[1]).worker
        play.hands[copier] = Hand(seals=False, run_s=10**6)
        play.run_until(lambda: play.quorum.seats[0].state == SeatState.SEALED)
        seal = play.quorum.seats[0].seal
        assert (
            world.send(copier, SEAL_OUTPUT, [seats[1], load_meter(world.state, seats[1]).own_seconds, seal])
            is None
        )
        play.hands[copier] = Hand(silent=frozenset({Action.REVEAL}))
        play.run(QuorumPhase.REVEALING)
        play.run_until(lambda: play.quorum.seats[0].state == SeatState.REVEALED)
        first = play.quorum.seats[0]
        known = [task, first.result, salt_of(first.machine)]  # all that the first one has said by then
        assert world.send(copier, REVEAL_OUTPUT, [seats[1], *known[1:]]) == "meter_mismatch"
        found = play.run()
        assert found.seats[1].state == SeatState.MISSING and paid(play, 1) == 0
        return
    play.run(QuorumPhase.THIRD)
    play.run_until(lambda: world.task(seats[2]).phase == Phase.RUNNING)
    lazy = world.task(seats[2]).worker
    result = play.quorum.seats[0].result
    # It sees both results, and cannot name an output that belongs to one of them.
    assert world.send(lazy, SEAL_OUTPUT, [seats[2], 0, result]) == "wrong_phase"
    assert world.send(lazy, REVEAL_OUTPUT, [seats[2], result, bytes(32)]) == "wrong_phase"
    guess = end_of_output(bytes([guesses]))._replace(output=result)
    assert world.send(lazy, FINISH_TASK, finish_values(seats[2], 0, guess)) is None
    found = play.run()
    assert [seat.state for seat in found.seats] == [SeatState.DIFFERED] * 3
    assert paid(play, 2) == 0  # a quarter of no time


@settings(max_examples=15, deadline=None)
@given(times=st.lists(st.integers(1, 95), min_size=3, max_size=3))
def test_n48_a_random_program_costs_its_requester_and_brings_no_output(times: list[int]) -> None:
    """Each machine finds another output. The requester pays parts of the shortest time, and reads none."""
    play = Play(*(Hand(bytes([at]), run_s=run_s) for at, run_s in enumerate(times)))
    world = play.world
    before = balance_of(world.state, REQUESTER)
    play.create()
    found = play.run()
    assert [seat.state for seat in found.seats] == [SeatState.DIFFERED] * 3
    each = min(times) // 4 * SECOND // TERA
    assert [paid(play, seat) for seat in range(3)] == [each] * 3
    assert before - balance_of(world.state, REQUESTER) >= 3 * each
    ends = [load_meter(world.state, task).end for task in play.seats()]
    assert ends[0] is None and ends[1] is None  # the one that was named last is of no use without another one
    for machine in play.hands:  # and nobody is punished for it
        node = require_node(world.state, machine)
        assert (node.backing, node.match_from_ms) == (QUICK.node_bond_min, 0)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    run_s=st.integers(5, 90), waits_s=st.integers(0, 90), fails_at=st.sampled_from(["", "METER", "REVEAL", "SHOW"])
)
def test_n49_a_partner_that_waits_or_falls_silent_takes_nothing_from_the_others(
    run_s: int, waits_s: int, fails_at: str
) -> None:
    play = Play(*[Hand(run_s=run_s)] * 4)
    world, _ = play.world, play.create(deterministic(metering=Metering("reserved", 30, 0)))
    second = play.seats()[1]
    play.run_until(lambda: bool(world.task(second).worker))
    partner = world.task(second).worker
    silent = frozenset({Action[fails_at]}) if fails_at else frozenset[Action]()
    play.hands[partner] = Hand(run_s=min(95, run_s + waits_s), silent=silent)
    found = play.run()
    assert world.task(play.task).phase == Phase.SETTLED
    assert paid(play, 0) == run_s * SECOND // TERA
    most = (run_s + 2) * 15 // 10 + 10
    assert paid(play, 1) <= most * SECOND // TERA
    if fails_at:
        assert found.seats[1].state == SeatState.MISSING and paid(play, 1) == 0
        assert world.task(second).reason in (Reason.METER_SILENT, Reason.NOT_REVEALED)
    assert require_node(world.state, partner).backing == QUICK.node_bond_min
    assert result_of(Hand().end) == found.result
    assert seal_of(second, partner, Hand().end) != seal_of(play.task, partner, Hand().end)
