"""A group on real nodes: each member computes a job of its own in a process, and is checked and paid alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from billing.escrow import escrow_totals
from node.market.posting import start_roots
from state.primitives.genesis import read_parameters
from state.view.accounts import load_account
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_records import find_custody
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.group_records import GroupPhase, GroupRecord, group_id_of, load_group, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CREATE_GROUP
from tasks.ledger.groups import seats_budget
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import TaskRecord, load_spec, load_task
from tasks.ledger.transitions import GIVE_UP_TASK
from tasks.spec import JobSpec, encode_spec
from tests.node.market.test_custody import CUSTODY
from tests.node.market.test_duties import REQUESTER, Market
from tests.node.market.test_private import PrivateMarket
from tests.node.world import Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, make_spec


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


class GroupMarket(Market):
    """Machines on a world, and one group."""

    members, spares = 2, 1

    async def post(self, spec: JobSpec) -> None:
        sender = account(REQUESTER).address
        parameters = read_parameters(TaskParameters, "tasks", self.world.runtime.genesis)
        self.task = group_id_of(sender, load_account(self.world.store, sender).nonce)
        due = seats_budget(spec, self.members - 1, self.spares, parameters)
        roots = [*start_roots(spec, self.members), *[b""] * self.spares]
        posted: list[tuple[int, list[Any]]] = [
            (CREATE_GROUP, [encode_spec(spec), self.members, self.spares]), (ADD_SEATS, [self.task, roots, due]),
        ]  # fmt: skip
        for kind, payload in posted:
            await self._send(kind, payload)

    async def _send(self, kind: int, payload: list[Any]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(REQUESTER).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    @property
    def group(self) -> GroupRecord:
        return load_group(self.world.store, self.task)

    def seat(self, number: int) -> TaskRecord:
        return load_task(self.world.store, seat_task(self.task, number))


@pytest.mark.slow
async def test_members_compute_jobs_of_their_own_and_a_spare_takes_the_place_of_one(world: World) -> None:
    workers = [Machine(world, number, "compute") for number in (1, 2, 3)]
    verifier = Machine(world, 4, "verify")
    market = GroupMarket(world, *workers, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(20, 5, 10), BLOB)
        for machine in (*workers, verifier):
            await nursery.start(machine.run)

        def is_standing_by() -> bool:
            return market.group.standby == 1 and market.seat(1).phase == Phase.RUNNING

        await world.mint_until(is_standing_by, timeout_s=120)
        spare, lost = market.seat(2).worker, market.seat(1).worker
        leaver = next(machine for machine in workers if machine.wallet.address == lost)
        leaver.stop()
        async with trio.open_nursery() as leaving:
            payload: list[Any] = [market.seat(1).id, int(Reason.WORKER_LEFT)]
            leaving.start_soon(leaver.wallet.send, GIVE_UP_TASK, payload)
            await world.mint_until(lambda: not leaving.child_tasks)
        await world.mint_until(lambda: market.group.phase == GroupPhase.ENDED, timeout_s=180)
        nursery.cancel_scope.cancel()
    members = [market.seat(number) for number in range(2)]
    assert [task.phase for task in members] == [Phase.SETTLED] * 2
    assert members[1].worker == spare
    assert len({task.final_root for task in members}) == 2
    jobs = [load_spec(world.store, task.id) for task in members]
    assert len({job.seed for job in jobs}) == len({job.init_root for job in jobs}) == 2
    for task in members:
        totals = escrow_totals(world.store, task.id)
        assert totals.deposited == totals.locked + totals.paid + totals.refunded + totals.burned


class PrivateGroupMarket(PrivateMarket):
    """A private group of two members and a spare: all seats have the keys of seat 0 (R79)."""

    async def post_sealed(self, spec: JobSpec, key_root: bytes, parameters: TaskParameters) -> None:
        wallet = self.machines[-1].wallet
        self.task = group_id_of(wallet.address, load_account(self.world.store, wallet.address).nonce)
        roots, due = [*start_roots(spec, 2), b""], seats_budget(spec, 1, 1, parameters)
        amounts = [custody_budget(spec, parameters)] * 2 + [0]
        asks = [[seat_task(self.task, seat), key_root, 1, amount] for seat, amount in enumerate(amounts)]
        posted: list[tuple[int, list[Any]]] = [
            (CREATE_GROUP, [encode_spec(spec), 2, 1]), (ASK_CUSTODY, asks[0]),
            (ADD_SEATS, [self.task, roots, due]), (ASK_CUSTODY, asks[1]), (ASK_CUSTODY, asks[2]),
        ]  # fmt: skip
        for kind, payload in posted:
            await self._send(kind, payload)

    async def _send(self, kind: int, payload: list[Any]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.machines[-1].wallet.send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    def seat(self, number: int) -> TaskRecord:
        return load_task(self.world.store, seat_task(self.task, number))


@pytest.mark.nightly
async def test_the_members_of_a_private_group_have_one_data_set_and_its_spare_reads_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with(tmp_path, monkeypatch, CUSTODY)
    workers = [Machine(world, number, "compute") for number in (1, 2, 3)]
    others = [Machine(world, 4, "verify"), *(Machine(world, number, "storage") for number in (5, 6))]
    requester = Machine(world, 9, "relay")
    market = PrivateGroupMarket(world, *workers, *others, requester)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        stood = False

        def is_over() -> bool:
            nonlocal stood
            stood = stood or market.seat(2).phase == Phase.STANDBY
            return load_group(world.store, market.task).phase == GroupPhase.ENDED

        await world.mint_until(is_over, timeout_s=180)
        nursery.cancel_scope.cancel()
    assert stood, "the spare had the data set"
    assert [market.seat(number).phase for number in range(2)] == [Phase.SETTLED] * 2
    assert market.seat(0).final_root != market.seat(1).final_root
    for number in range(2):
        assert find_custody(world.store, market.seat(number).id, 0) is not None
    world.store.close()
