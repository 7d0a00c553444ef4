"""Disputes that nodes play by themselves: a chain driven block by block, real processes, restarts in mid-game."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

import node.market.duties
from node.market.challenges import ChallengeRefused
from node.market.duties import DutyService
from node.market.inputs import JobInputs
from node.market.verifier import TaskVerifier
from node.market.worker import Worker
from state.primitives.codec import Value
from state.primitives.receipts import Receipt
from tasks.executor.results import Verdict, WindowResult
from tasks.ledger.dispute_transitions import SEAL_CHALLENGE
from tasks.ledger.disputes import DisputeEnding, DisputePhase, DisputeRecord, load_dispute, load_docket
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import CheckDuty, WorkDuty
from tasks.ledger.registry import require_node
from tasks.proofs import Code, Finding, SegmentLeaf
from tasks.spec import JobSpec
from testnet.scenarios.impostor import LyingDuties
from tests.node.market.test_duties import Market
from tests.node.world import PACE_S, PARAMETERS, Machine, World, world_with
from tests.tasks.executor.helpers import make_spec

SPEC = make_spec(20, 10, 20)
"""One window of two segments, each of which has a false step where a liar does it."""


class MakesThingsUp(TaskVerifier):
    """Claims what nobody computes."""

    async def _check_segment(
        self, task: bytes, spec: JobSpec, inputs: JobInputs, leaf: SegmentLeaf, state: bytes, claimed: bytes
    ) -> Verdict:
        return Verdict(leaf.segment, Code.COMPUTED, b"?" * 32, leaf.state_root_after, leaf.loss_bits, ())


class Inventor(DutyService):
    verifier_type = MakesThingsUp


class LooksAway(TaskVerifier):
    """Says that it computed something, and has not looked at the leaves."""

    async def _findings(self, duty: CheckDuty) -> tuple[Finding, ...]:
        return tuple(Finding(segment, Code.COMPUTED, b"?" * 32, b"?" * 32, 0) for segment in duty.segments)


class Careless(DutyService):
    verifier_type = LooksAway


class Skips(Worker):
    """Begins the second segment of a window in a state that nobody computed."""

    async def _submit_window(self, task: bytes, spec: JobSpec, result: WindowResult) -> None:
        first, second = result.segments
        second = replace(second, state_root_before=b"?" * 32)
        await super()._submit_window(task, spec, replace(result, segments=(first, second)))


class Hides(Skips):
    """Does so, and opens nothing that would show it."""

    async def open(self, duty: WorkDuty) -> None:
        await trio.sleep_forever()


class Hider(DutyService):
    worker_type = Hides


class Skipper(DutyService):
    worker_type = Skips


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    parameters = {
        "tasks.dispute_move_ms": 3_000_000, "tasks.dispute_side_ms": 30_000_000, "tasks.samples": 2,
        "chain.base_fee_initial": 1, "chain.base_fee_min": 1, "tasks.check_fee_min": 1_000,
    }  # fmt: skip
    made = world_with(tmp_path, monkeypatch, parameters)
    yield made
    made.store.close()


def game(world: World, market: Market, number: int = 0) -> DisputeRecord | None:
    if load_docket(world.store, market.task, 0).games <= number:
        return None
    return load_dispute(world.store, market.task, 0, number)


def has_moves(world: World, market: Market, least: int) -> Callable[[], bool]:
    def look() -> bool:
        found = game(world, market)
        return found is not None and found.moves >= least

    return look


def ended(world: World, market: Market, ending: DisputeEnding) -> Callable[[], bool]:
    def look() -> bool:
        found = game(world, market)
        return found is not None and found.ending is ending and found.ended_ms > 0

    return look


async def join(world: World, nursery: trio.Nursery, machine: Machine) -> None:
    """Have a machine come to the market after others were drawn."""
    await nursery.start(machine.network.run)
    async with trio.open_nursery() as registering:
        registering.start_soon(machine.register)
        await world.mint_until(lambda: not registering.child_tasks)
    await nursery.start(machine.run)


@pytest.mark.slow
async def test_a_liar_is_caught_though_both_sides_restart_in_every_move(world: World) -> None:
    liar = Machine(world, 1, "compute", duties=LyingDuties)
    verifier, other = Machine(world, 2, "verify"), Machine(world, 3, "compute")
    market = Market(world, liar, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        for machine in (liar, verifier):
            await nursery.start(machine.run)
        for least in (1, 2, 5, 6):
            await world.mint_until(has_moves(world, market, least))
            for machine in (liar, verifier):
                machine.stop()
                await nursery.start(machine.run)
        await world.mint_until(ended(world, market, DisputeEnding.ELEMENT_WRONG), timeout_s=120)
        window = market.window(0)
        assert window is not None and (window.phase, window.reason) == (WindowPhase.VOID, Reason.LIE_PROVEN)
        assert liar.wallet.address in market.record.excluded
        # Somebody else does the work, and the requester has a result.
        await join(world, nursery, other)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    assert market.record.worker == other.wallet.address
    assert verifier.duties is not None and verifier.duties.dispute_results == {"won": 1}


@pytest.mark.slow
async def test_who_disputes_right_work_pays_for_it(world: World) -> None:
    worker, liar = Machine(world, 1, "compute"), Machine(world, 2, "verify", duties=LyingDuties)
    market = Market(world, worker, liar)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        before = require_node(world.store, liar.wallet.address).bond
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(has_moves(world, market, 1))
        await join(world, nursery, Machine(world, 3, "verify"))  # the loser's verdict does not stand
        await world.mint_until(ended(world, market, DisputeEnding.ELEMENT_RIGHT), timeout_s=120)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    assert require_node(world.store, liar.wallet.address).bond < before
    window = market.window(0)
    assert window is not None and window.phase == WindowPhase.FINAL


@pytest.mark.slow
async def test_a_machine_that_finds_nothing_for_its_side_says_so_and_stays_silent(world: World) -> None:
    worker, inventor = Machine(world, 1, "compute"), Machine(world, 2, "verify", duties=Inventor)
    market = Market(world, worker, inventor)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        for machine in market.machines:
            await nursery.start(machine.run)
        assert inventor.duties is not None

        def is_told() -> bool:
            assert inventor.duties is not None
            return "nothing_to_say" in {trouble["code"] for trouble in inventor.duties.troubles()}

        await world.mint_until(is_told)
        found = game(world, market)
        assert found is not None and found.moves == 1  # the worker's
        [row] = inventor.duties.dispute_rows()
        assert inventor.duties.under_way()[1] == 1  # a node that drains waits for it
        assert (row["side"], row["our_turn"], row["phase"]) == ("challenger", True, "running")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_missed_clock_is_made_up_for_once_the_machine_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    for name, value in {"tasks.dispute_move_ms": 80_000, "tasks.dispute_resume_ms": 10**8}.items():
        monkeypatch.setitem(PARAMETERS, name, value)
    world = World(tmp_path)
    worker, liar = Machine(world, 1, "compute"), Machine(world, 2, "verify", duties=LyingDuties)
    market = Market(world, worker, liar)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(has_moves(world, market, 1))
        await join(world, nursery, Machine(world, 3, "verify"))  # the loser's verdict does not stand
        worker.stop()

        def is_suspended() -> bool:
            found = game(world, market)
            return found is not None and found.phase is DisputePhase.SUSPENDED

        while not is_suspended():  # from here on time runs faster: its clock is long
            world.mint(after_ms=8_000)
            await trio.sleep(PACE_S)
        await nursery.start(worker.run)
        await world.mint_until(ended(world, market, DisputeEnding.ELEMENT_RIGHT), timeout_s=120)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    world.store.close()


@pytest.mark.slow
async def test_an_outsider_challenges_what_differs_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker and verifier lie alike, so that nobody who was drawn says a word."""
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    for name, value in {
        "tasks.dispute_move_ms": 3_000_000, "tasks.final_ms": 3_000_000, "tasks.final_ms_min": 3_000_000,
        "tasks.samples": 2,
    }.items():  # fmt: skip
        monkeypatch.setitem(PARAMETERS, name, value)
    world = World(tmp_path)
    liar = Machine(world, 1, "compute", duties=LyingDuties)
    friend = Machine(world, 2, "verify", duties=LyingDuties)
    outsider = Machine(world, 3, "relay")
    market = Market(world, liar, friend)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        await nursery.start(outsider.network.run)
        for machine in (liar, friend, outsider):
            await nursery.start(machine.run)

        def is_accepted() -> bool:
            window = market.window(0)
            return window is not None and window.phase == WindowPhase.ACCEPTED

        await world.mint_until(is_accepted)
        before = require_node(world.store, friend.wallet.address).bond
        assert outsider.duties is not None
        challenges = outsider.duties.challenges
        with pytest.raises(ChallengeRefused):
            challenges.ask(market.task, 7, is_check_only=False)

        def states() -> list[str]:
            return [row["state"] for row in challenges.rows(market.task)]

        challenges.ask(market.task, None, is_check_only=True)
        await world.mint_until(lambda: states() == ["differs"])
        assert load_docket(world.store, market.task, 0).seals == 0
        send, files = outsider.wallet.send, outsider.home.jobs.parent / "challenges"

        async def keep_back(kind: int, payload: list[Value]) -> Receipt:
            if kind == SEAL_CHALLENGE:
                await trio.sleep_forever()
            return await send(kind, payload)

        with monkeypatch.context() as late:
            late.setattr(outsider.wallet, "send", keep_back)
            challenges.ask(market.task, 0, is_check_only=False)
            await world.mint_until(lambda: any(path.suffix != ".new" for path in files.iterdir()))
            outsider.stop()  # what is sealed is on disk, and not on chain
        await nursery.start(outsider.run)
        await world.mint_until(has_moves(world, market, 3))
        outsider.stop()
        await nursery.start(outsider.run)
        await world.mint_until(ended(world, market, DisputeEnding.ELEMENT_WRONG), timeout_s=120)
        nursery.cancel_scope.cancel()
    assert require_node(world.store, friend.wallet.address).bond < before
    world.store.close()


@pytest.mark.slow
async def test_an_outsider_that_finds_what_the_worker_found_challenges_nothing(world: World) -> None:
    worker, outsider = Machine(world, 1, "compute"), Machine(world, 3, "relay")
    market = Market(world, worker, Machine(world, 2, "verify"))  # the verifier is not there
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        await nursery.start(outsider.network.run)
        for machine in (worker, outsider):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.window(0) is not None)
        assert outsider.duties is not None
        challenges = outsider.duties.challenges
        challenges.ask(market.task, None, is_check_only=False)
        await world.mint_until(lambda: [row["state"] for row in challenges.rows(market.task)] == ["agrees"])
        assert load_docket(world.store, market.task, 0).seals == 0
        nursery.cancel_scope.cancel()


async def test_a_verifier_shows_leaves_that_do_not_fit_though_it_restarts_before(world: World) -> None:
    skipper, verifier = Machine(world, 1, "compute", duties=Skipper), Machine(world, 2, "verify")
    market = Market(world, skipper, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: (window := market.window(0)) is not None and bool(window.verifiers))

        def is_sealed() -> bool:
            window = market.window(0)
            return window is not None and all(seat.seal for seat in window.verifiers)

        await world.mint_until(is_sealed)
        verifier.stop()
        await nursery.start(verifier.run)
        await world.mint_until(ended(world, market, DisputeEnding.COMMITMENT_BROKEN))
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None and (window.phase, window.reason) == (WindowPhase.VOID, Reason.LIE_PROVEN)
    assert [found.code for seat in window.verifiers for found in seat.findings or ()] == [Code.BROKEN] * 2
    assert skipper.wallet.address in market.record.excluded


async def test_an_outsider_shows_leaves_that_do_not_fit_once_verdicts_are_sealed(world: World) -> None:
    skipper, outsider = Machine(world, 1, "compute", duties=Hider), Machine(world, 3, "relay")
    verifier = Machine(world, 2, "verify", duties=Careless)
    market = Market(world, skipper, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, SPEC)
        await nursery.start(outsider.network.run)
        for machine in (skipper, outsider):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.window(0) is not None)
        assert outsider.duties is not None
        challenges = outsider.duties.challenges

        def states() -> list[str]:
            return [row["state"] for row in challenges.rows(market.task)]

        challenges.ask(market.task, None, is_check_only=True)
        await world.mint_until(lambda: states() == ["differs"])
        challenges.ask(market.task, None, is_check_only=False)
        await world.mint_until(lambda: "shown once" in challenges.rows(market.task)[0]["detail"])
        await nursery.start(verifier.run)
        await world.mint_until(lambda: states() == ["shown"])
        await world.mint_until(ended(world, market, DisputeEnding.COMMITMENT_BROKEN))
        nursery.cancel_scope.cancel()
    found = game(world, market)
    assert found is not None and found.challenger == outsider.wallet.address
