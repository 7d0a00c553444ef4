"""Quorums of machines that run one container: what is compared, who is paid, and when (R113 to R117)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Purpose, bill_lines, escrow_totals
from billing.prices import TERA
from state.primitives.errors import DecodeError
from state.view import Table
from state.view.accounts import balance_of
from tasks.kinds.container import ExitKind, Metering
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import load_meter
from tasks.ledger.metering_transitions import FINISH_TASK, finish_values
from tasks.ledger.queries import Action
from tasks.ledger.quorum_records import QUORUM_LIMIT_BYTES, QuorumPhase, SeatState
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import CANCEL_TASK, GIVE_UP_TASK
from tasks.spec import decode_spec, encode_spec
from tests.tasks.containers import PRICE, STORED, container, host, second_price
from tests.tasks.quorums import RUN_S, Hand, Play, deterministic, end_of_output, result_of, salt_of, seal_of
from tests.tasks.world import QUICK, REQUESTER, spec

SECOND = second_price(PRICE // 2)


def pay_of(play: Play, task: bytes) -> int:
    lines = bill_lines(play.world.state, task)
    return sum(line.amount for line in lines if line.purpose in (Purpose.METERED, Purpose.DISK))


def states(play: Play) -> list[SeatState]:
    return [seat.state for seat in play.quorum.seats]


def test_two_machines_agree_and_both_are_paid_and_the_third_is_never_called() -> None:
    play = Play(Hand(), Hand(), Hand())
    before = balance_of(play.world.state, REQUESTER)
    play.create()
    locked = before - balance_of(play.world.state, REQUESTER)
    play.run(QuorumPhase.REVEALING)
    assert [pay_of(play, task) for task in play.seats()] == [0, 0, 0]  # nothing moves before the comparison
    play.run()
    assert play.refused == []
    assert states(play) == [SeatState.AGREED, SeatState.AGREED, SeatState.IDLE]
    phases = [(play.world.task(task).phase, play.world.task(task).reason) for task in play.seats()]
    done = (Phase.SETTLED, Reason.CONTAINER_EXITED)
    assert phases == [done, done, (Phase.CANCELLED, Reason.SEAT_UNNEEDED)]
    paid = [load_meter(play.world.state, task).paid for task in play.seats()]
    assert paid == [RUN_S * SECOND // TERA] * 2 + [0]
    assert [pay_of(play, task) for task in play.seats()] == paid
    assert all(escrow_totals(play.world.state, task).locked == 0 for task in play.seats())
    spent = before - balance_of(play.world.state, REQUESTER)
    assert sum(paid) <= spent < locked
    for machine in play.hands:
        assert require_node(play.world.state, machine).busy_slots == 0
    assert len({seat.machine for seat in play.quorum.seats[:2]}) == 2


@pytest.mark.parametrize("liar", [0, 1])
def test_a_liar_is_outvoted_by_the_third_and_is_not_paid_and_loses_nothing(liar: int) -> None:
    play = Play(Hand(), Hand(), Hand())
    play.create()
    play.run(QuorumPhase.REVEALING)
    machine = play.quorum.seats[liar].machine
    # It left something else: what it sealed is played again with another output.
    other = Play(*(Hand(b"wrong") if each == machine else Hand() for each in play.hands))
    other.create()
    found = other.run()
    assert found.seats[liar].machine == machine  # the draw of a world is the same each time
    expected = [SeatState.AGREED] * 3
    expected[liar] = SeatState.DIFFERED
    assert states(other) == expected
    assert [other.world.task(task).phase for task in other.seats()] == [Phase.SETTLED] * 3
    lost = other.seats()[liar]
    assert other.world.task(lost).reason == Reason.OUTPUT_DIFFERS
    assert pay_of(other, lost) == 0 and load_meter(other.world.state, lost).end is None
    assert all(pay_of(other, task) > 0 for at, task in enumerate(other.seats()) if at != liar)
    node = require_node(other.world.state, machine)
    assert (node.backing, node.bad, node.failures) == (QUICK.node_bond_min, 0, 0)
    assert node.match_from_ms > other.world.time_ms  # it has a pause
    assert other.is_over() and other.refused == []


def test_all_differ_and_each_is_paid_a_quarter_of_the_shortest_time() -> None:
    play = Play(Hand(b"a", run_s=80), Hand(b"b", run_s=60), Hand(b"c", run_s=70))
    play.create()
    play.run()
    assert states(play) == [SeatState.DIFFERED] * 3
    reasons = {(play.world.task(task).phase, play.world.task(task).reason) for task in play.seats()}
    assert reasons == {(Phase.FAILED, Reason.NO_MAJORITY)}
    paid = [load_meter(play.world.state, task).paid for task in play.seats()]
    assert len(set(paid)) == 1 and paid[0] == 60 // 4 * SECOND // TERA
    ends = [load_meter(play.world.state, task).end for task in play.seats()]
    assert ends[:2] == [None, None]  # whoever is not paid names no output


def test_a_failure_that_both_find_is_paid_and_fails_the_task() -> None:
    play = Play(Hand(code=3), Hand(code=3))
    play.create()
    play.run()
    assert states(play)[:2] == [SeatState.AGREED] * 2
    assert play.world.task(play.task).phase == Phase.FAILED
    assert play.world.task(play.task).reason == Reason.CONTAINER_EXITED


def test_an_exit_code_that_differs_is_a_difference() -> None:
    play = Play(Hand(), Hand(code=1), Hand(kind=ExitKind.OUT_OF_MEMORY))
    play.create()
    play.run()
    assert states(play) == [SeatState.DIFFERED] * 3


def test_without_a_machine_of_another_owner_it_ends_and_pays_what_was_metered() -> None:
    play = Play(Hand(run_s=10**6))
    play.create(deterministic(match_ms=30_000))
    play.run()
    assert play.world.task(play.task).phase == Phase.CANCELLED
    assert play.world.task(play.task).reason == Reason.NO_PARTNER
    assert load_meter(play.world.state, play.task).paid > 0
    assert play.is_over()


def test_level_one_needs_an_output_folder_and_a_container() -> None:
    job = deterministic()
    assert decode_spec(encode_spec(job)) == job and job.is_quorum and job.is_metered
    bare = job.changed(storage=job.part.storage._replace(output="", output_bytes_max=0))  # type: ignore[union-attr]
    with pytest.raises(DecodeError, match="level 1 compares"):
        decode_spec(encode_spec(bare))
    with pytest.raises(DecodeError, match="none with level 1"):
        decode_spec(encode_spec(job.changed(checkpoint=STORED)))
    with pytest.raises(DecodeError, match="level 0 or 1"):
        decode_spec(encode_spec(job._replace(level=2)))
    with pytest.raises(DecodeError, match="level 3"):
        decode_spec(encode_spec(spec()._replace(level=1)))


def sealed_first(play: Play) -> tuple[bytes, bytes]:
    """Return the seat that has sealed, and the one that works: which machine has which seat is drawn."""
    at = states(play).index(SeatState.SEALED)
    return play.seats()[at], play.seats()[1 - at]


def test_words_out_of_turn_are_refused() -> None:
    play = Play(Hand(), Hand(run_s=90))
    world, quorum = play.world, play.create()
    play.run_until(lambda: SeatState.SEALED in states(play))
    task, other = sealed_first(play)
    first, second = world.task(task).worker, world.task(other).worker
    end = end_of_output(b"right")
    assert world.send(first, SEAL_OUTPUT, [task, 65, seal_of(task, first, end)]) == "wrong_phase"
    assert world.send(second, SEAL_OUTPUT, [task, 65, seal_of(task, second, end)]) == "not_yours"
    assert world.send(first, REVEAL_OUTPUT, [task, result_of(end), salt_of(first)]) == "wrong_phase"
    assert world.send(first, FINISH_TASK, finish_values(task, 65, end)) == "wrong_phase"
    assert world.send(second, FINISH_TASK, finish_values(other, 5, end)) == "wrong_phase"  # it has to seal
    assert world.send(second, SEAL_OUTPUT, [other, 900, seal_of(other, second, end)]) == "meter_ahead"
    assert world.send(first, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) == "wrong_phase"
    assert (
        world.send(REQUESTER, CANCEL_TASK, [play.seats()[1]]) == "wrong_phase"
    )  # the first seat stands for the whole
    play.run(QuorumPhase.REVEALING)
    assert world.send(REQUESTER, CANCEL_TASK, [quorum]) == "wrong_phase"
    assert world.send(first, REVEAL_OUTPUT, [task, b"x" * 32, salt_of(first)]) == "meter_mismatch"
    assert world.send(first, REVEAL_OUTPUT, [task, result_of(end), salt_of(first)]) is None
    assert world.send(first, REVEAL_OUTPUT, [task, result_of(end), salt_of(first)]) == "already_revealed"
    play.run(QuorumPhase.SHOWING)
    assert world.send(first, FINISH_TASK, finish_values(task, 65, end_of_output(b"x"))) == "meter_mismatch"
    assert world.send(first, FINISH_TASK, finish_values(task, 64, end)) == "meter_mismatch"
    assert world.send(first, FINISH_TASK, finish_values(task, 65, end)) is None
    assert world.send(first, FINISH_TASK, finish_values(task, 65, end)) == "not_yours"
    play.run()
    alone = world.create(container())
    play.run_until(lambda: world.task(alone).phase == Phase.RUNNING)
    machine = world.task(alone).worker
    assert world.send(machine, SEAL_OUTPUT, [alone, 1, b"s" * 32]) == "kind_mismatch"
    assert world.send(machine, REVEAL_OUTPUT, [alone, b"s" * 32, b"s" * 32]) == "kind_mismatch"


def test_a_requester_that_cancels_pays_what_was_metered() -> None:
    play = Play(Hand(run_s=20), Hand(run_s=10**6))
    world, task = play.world, play.create()
    play.run_until(lambda: SeatState.SEALED in states(play))
    sealed, stopped = sealed_first(play)
    for _ in range(12):
        play.act()
        world.block()
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.send(REQUESTER, CANCEL_TASK, [task]) == "wrong_phase"
    play.run()
    assert load_meter(world.state, sealed).paid == 20 * SECOND // TERA
    assert load_meter(world.state, stopped).paid > 20 * SECOND // TERA
    for seat in (sealed, stopped):
        assert world.task(seat).phase == Phase.CANCELLED
        assert world.task(seat).reason == Reason.REQUESTER_CANCELLED


def test_the_third_is_called_for_a_machine_that_is_lost_and_seals_as_no_result_is_known() -> None:
    play = Play(Hand(), Hand(), Hand())
    play.create(deterministic(metering=Metering("reserved", 30, 0)))
    second = play.seats()[1]
    play.run_until(lambda: bool(play.world.task(second).worker))
    lost = play.world.task(second).worker
    play.hands[lost] = Hand(silent=frozenset({Action.METER}))
    found = play.run()
    assert states(play) == [SeatState.AGREED, SeatState.MISSING, SeatState.AGREED]
    assert found.seats[2].seal
    assert [play.world.task(task).phase for task in play.seats()] == [Phase.SETTLED] * 3
    assert play.world.task(second).reason == Reason.METER_SILENT
    node = require_node(play.world.state, lost)
    assert (node.backing, node.bad, node.failures) == (QUICK.node_bond_min, 0, 0)
    assert pay_of(play, second) == 0


def test_machines_of_one_owner_or_of_the_requester_share_no_quorum() -> None:
    """The two lowest asks have one owner, and a third one is the requester's."""
    play = Play(Hand(), Hand())
    twin = host(play.world, 9, operator=next(iter(play.hands)), price=PRICE // 4)
    own = host(play.world, 10, operator=REQUESTER, price=PRICE // 8)
    play.hands |= {twin: Hand(b"twin"), own: Hand(b"own")}
    play.create()
    found = play.run(QuorumPhase.REVEALING)
    machines = {seat.machine for seat in found.seats if seat.machine}
    assert twin in machines and own not in machines and next(iter(play.hands)) not in machines


_SILENCE = st.sampled_from([Action.ACCEPT, Action.START, Action.METER, Action.REVEAL, Action.SHOW])
_HANDS = st.builds(
    Hand, output=st.sampled_from([b"right", b"right", b"right", b"a", b"b"]), run_s=st.integers(0, 130),
    silent=st.frozensets(_SILENCE, max_size=1), seals=st.sampled_from([True, True, True, False]),
    code=st.sampled_from([0, 0, 1]),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    hands=st.lists(_HANDS, min_size=1, max_size=6), cancel_at=st.integers(0, 250), leave_at=st.integers(0, 250),
    seed=st.randoms(use_true_random=False),
)  # fmt: skip
def test_whatever_machines_and_requester_do_it_ends_and_all_sums_hold(
    hands: list[Hand], cancel_at: int, leave_at: int, seed: Random
) -> None:
    """``World.block`` checks all money. Nobody loses a bond, and who is not paid names no output."""
    play = Play(*hands)
    world = play.world
    before = balance_of(world.state, REQUESTER)
    task = play.create(deterministic(match_ms=120_000))
    for at in range(3_000):
        size = len(world.state.get(bytes([Table.TASK]) + task + b"\x07") or b"")
        assert size <= QUORUM_LIMIT_BYTES
        if play.is_over():
            break
        if at == cancel_at:
            world.send(REQUESTER, CANCEL_TASK, [task])
        if at == leave_at:
            worker = world.task(left := seed.choice(play.seats())).worker
            if worker:
                world.send(worker, GIVE_UP_TASK, [left, int(Reason.WORKER_LEFT)])
        order = list(play.hands.items())
        seed.shuffle(order)
        play.hands = dict(order)
        play.act()
        world.block(seed.choice([500, 1_000, 4_000]))
    else:
        raise AssertionError(f"still {play.quorum}")
    found = play.quorum
    assert found.phase == QuorumPhase.ENDED and found.due_ms == 0
    assert len({seat.machine for seat in found.seats if seat.machine}) == sum(
        bool(seat.machine) for seat in found.seats
    )
    meters = [load_meter(world.state, seat) for seat in play.seats()]
    for seat, meter, task_id in zip(found.seats, meters, play.seats(), strict=True):
        assert escrow_totals(world.state, task_id).locked == 0
        if found.result and found.ending != Phase.CANCELLED:
            assert (meter.paid > 0) <= (seat.state == SeatState.AGREED)
            assert (meter.end is not None) <= (seat.result == found.result or not seat.seal)
    assert before - balance_of(world.state, REQUESTER) <= 3 * (max(meter.paid for meter in meters) * 2 + 10**18)
    agreed = [seat for seat in found.seats if seat.state == SeatState.AGREED]
    assert len({seat.result for seat in agreed}) <= 1
    for machine in play.hands:
        node = require_node(world.state, machine)
        assert (node.bad, node.failures, node.busy_slots) == (0, 0, 0)
