"""Worker and verifiers on a chain driven block by block: real jobs in processes, blobs over memory streams."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

import node.market.duties
import node.market.inputs
import node.market.worker
import p2p.blob.transfer
from billing.escrow import Movement, Purpose, escrow_totals
from node.market.cancellation import work_while
from node.market.duties import DutyService
from node.market.inputs import InputUnavailable, JobInputs, Supply
from node.market.promises import Published
from node.market.task_keys import WindowSeal
from node.market.verifier import TaskVerifier
from node.market.wallet import TransactionLost
from node.market.worker import Worker
from p2p.base.limits import NetworkLimits
from state.primitives.codec import Value
from state.primitives.errors import DekubeError, RecordDamaged
from state.primitives.genesis import read_parameters
from state.primitives.manifests import PIECE_BYTES, manifest_of
from state.primitives.receipts import Receipt
from state.store.cache import Cache
from state.store.records import STATE
from state.view.accounts import load_account
from tasks.claims import Fault
from tasks.engines.state import TrainingState
from tasks.executor.errors import JobFailed
from tasks.executor.job import Train
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult
from tasks.executor.supervisor import Listener
from tasks.ledger import queries
from tasks.ledger.claims import load_claim
from tasks.ledger.lifecycle import ENDED, Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, CheckDuty, WorkDuty
from tasks.ledger.records import TaskRecord, WindowRecord, load_spec_bytes, load_task, load_window
from tasks.ledger.registry import load_node, require_node
from tasks.ledger.seats import seal_time
from tasks.ledger.transitions import (
    CREATE_TASK,
    DEMAND_RESULT,
    GIVE_UP_TASK,
    SEAL_VERDICT,
    task_id_of,
)
from tasks.proofs import Code, Finding
from tasks.spec import JobSpec, encode_spec
from tests.node.world import COIN, PARAMETERS, Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, DATA, make_diverging, make_spec

REQUESTER = 9


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing comes, nobody waits long for it; what comes may seem not to on a loaded machine."""
    monkeypatch.setattr(node.market.inputs, "FETCH_QUIET_S", 0.5)
    monkeypatch.setattr(node.market.worker, "FETCH_TRIES", 3)
    monkeypatch.setattr(TaskVerifier, "_fetch_s", lambda *_: 1.0)


class Market:
    """Machines on a world, and one task."""

    def __init__(self, world: World, *machines: Machine) -> None:
        self.world, self.machines, self.task = world, machines, b""
        self.unconnected: set[Machine] = set()
        """Machines whose network is started later, if ever."""

    async def start(self, nursery: trio.Nursery, spec: JobSpec, content: bytes = BLOB) -> None:
        """Start the networks, put the data set everywhere, register, post the task; nobody does duties yet.

        ``content`` is what the job names as its data set.
        """
        for machine in self.machines:
            if machine not in self.unconnected:
                await nursery.start(machine.network.run)
            assert machine.network.blobs is not None
            blob = machine.network.blobs.add(content)
            machine.network.blobs.pin(blob)
        await self.register()
        await self.post(spec.changed(dataset=spec.dataset._replace(blob=blob)))

    async def register(self) -> None:
        """Put all machines into the registry."""
        async with trio.open_nursery() as registering:
            for machine in self.machines:
                registering.start_soon(machine.register)
            await self.world.mint_until(lambda: not registering.child_tasks)

    async def post(self, spec: JobSpec) -> None:
        """Post a task, which is the market's from then on."""
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        async with trio.open_nursery() as posting:
            payload: list[Value] = [encode_spec(spec)]
            posting.start_soon(self.world.wallet(REQUESTER).send, CREATE_TASK, payload)
            await self.world.mint_until(lambda: not posting.child_tasks)
        self.task = task_id_of(account(REQUESTER).address, nonce)

    @property
    def record(self) -> TaskRecord:
        return load_task(self.world.store, self.task)

    def window(self, number: int) -> WindowRecord | None:
        try:
            return load_window(self.world.store, self.task, number)
        except DekubeError:
            return None

    def paid(self, machine: Machine) -> list[Purpose]:
        lines = queries.bill(self.world.store, self.task).lines
        mine = (line for line in lines if line.movement == Movement.PAID and line.party == machine.wallet.address)
        return [line.purpose for line in mine]


def work_duty(world: World, machine: Machine) -> WorkDuty:
    parameters = read_parameters(TaskParameters, "tasks", world.runtime.genesis)
    [duty] = queries.work_duties(world.store, machine.wallet.address, parameters)
    return duty


def names_under(directory: Path) -> set[str]:
    return {name for _, directories, files in os.walk(directory) for name in (*directories, *files)}


class Lying(Worker):
    """Claims another result than its job had, in leaves that fit together."""

    async def _submit_window(self, task: bytes, spec: JobSpec, result: WindowResult) -> None:
        last = replace(result.segments[-1], state_root_after=b"?" * 32)
        await super()._submit_window(task, spec, replace(result, segments=(*result.segments[:-1], last)))


class Halting(Worker):
    """Has a disk that turns out damaged as it tries a job."""

    async def _try(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        raise RecordDamaged("the record of a window")


class Withholding(Worker):
    """Keeps the result to itself."""

    def _check_kept(self, published: Published) -> None:
        self._blobs.remove(published.output)


class Evicting(Worker):
    """Has a store in which its first result gives way to something else before it is pinned."""

    is_full = True

    def _store_state(self, result: WindowResult, number: int, seal: WindowSeal | None) -> bytes:
        name = super()._store_state(result, number, seal)
        if self.is_full and number == len(result.segments):
            self.is_full = False
            self._blobs.remove(name)
        return name


class Swindling(Worker):
    """Delivers the state before its work as the one after it."""

    def _store_state(self, result: WindowResult, number: int, seal: WindowSeal | None) -> bytes:
        return super()._store_state(result, number % len(result.segments), seal)


class Liar(DutyService):
    worker_type = Lying


class Halted(DutyService):
    worker_type = Halting


class Withholder(DutyService):
    worker_type = Withholding


class Evictor(DutyService):
    worker_type = Evicting


class Swindler(DutyService):
    worker_type = Swindling


@pytest.mark.slow
async def test_a_task_is_run_checked_and_paid_though_both_sides_restart_in_its_middle(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(40, 5, 10))
        await nursery.start(worker.run)
        await world.mint_until(lambda: market.window(0) is not None)
        # The worker goes down with a window proved; its last has to wait until a verifier comes.
        worker.stop()
        await nursery.start(verifier.run)

        def is_sealed() -> bool:
            window = market.window(0)
            return window is not None and any(seat.seal for seat in window.verifiers)

        await world.mint_until(is_sealed)
        # So does the verifier, between its seal and its opening of it.
        verifier.stop()
        await nursery.start(verifier.run)
        await nursery.start(worker.run)
        assert worker.duties is not None
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await world.mint_until(lambda: not list((worker.home.jobs.parent / "promises").iterdir()))
        await world.mint_until(lambda: escrow_totals(world.store, market.task).locked == 0)
        await world.mint_until(lambda: names_under(worker.home.jobs) <= {".scratch"})  # nothing of the job is kept
        nursery.cancel_scope.cancel()
    assert [market.record.worker, market.record.final_windows] == [worker.wallet.address, 4]
    for number in range(4):
        window = market.window(number)
        assert window is not None and window.phase == WindowPhase.FINAL
        assert [f.code for seat in window.verifiers for f in seat.findings or ()] == [Code.COMPUTED]
    assert Purpose.VERIFIER_FEE in market.paid(verifier)
    assert len(market.paid(worker)) >= 2
    totals = escrow_totals(world.store, market.task)
    assert totals.locked == 0
    assert totals.deposited == totals.paid + totals.refunded + totals.burned


async def rejected(world: World, market: Market) -> WindowRecord:
    """Run a task of one window until that is void, as it must be for its work; return the window."""

    def is_void() -> bool:
        window = market.window(0)
        return window is not None and window.phase == WindowPhase.VOID

    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(is_void, timeout_s=120)
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None and window.reason in (Reason.WORK_REJECTED, Reason.NOT_SERVED)
    return window


async def test_a_worker_that_alters_a_leaf_is_found_and_not_paid(world: World) -> None:
    worker = Machine(world, 1, "compute", duties=Liar)
    verifiers = [Machine(world, number, "verify") for number in (2, 3)]
    market = Market(world, worker, *verifiers)
    window = await rejected(world, market)
    assert {seat.address for seat in window.jurors} < {machine.wallet.address for machine in verifiers}
    assert worker.wallet.address in market.record.excluded
    assert market.paid(worker) == []
    known = load_node(world.store, worker.wallet.address)
    assert known is not None and (known.bad, known.failures) == (1, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("duties", [Withholder, Swindler])
async def test_a_worker_is_not_paid_for_a_result_that_nobody_can_have(
    world: World, duties: type[DutyService]
) -> None:
    worker = Machine(world, 1, "compute", duties=duties)
    verifiers = [Machine(world, number, "verify") for number in (2, 3)]
    market = Market(world, worker, *verifiers)
    window = await rejected(world, market)
    seats = (*window.verifiers, *window.jurors)
    assert {finding.code for seat in seats for finding in seat.findings or ()} == {Code.UNAVAILABLE}
    assert market.paid(worker) == []
    for machine in verifiers:
        known = load_node(world.store, machine.wallet.address)
        assert known is not None and known.bad == 0


@pytest.mark.slow
async def test_a_window_is_proved_when_its_blobs_are_there(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute", duties=Evictor), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None
    assert [f.code for seat in window.verifiers for f in seat.findings or ()] == [Code.COMPUTED]


@pytest.mark.slow
async def test_a_verdict_is_found_once_for_its_first_seal_may_be_on_its_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second result could not be revealed under the first seal, and the verifier would be fined."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    send, seals = verifier.wallet.send, list[list[Value]]()

    async def lose(kind: int, payload: list[Value]) -> Receipt:
        if kind != SEAL_VERDICT:
            return await send(kind, payload)
        seals.append(payload)
        if len(seals) == 1:
            raise TransactionLost("for now")
        return await send(kind, seals[0])  # which was not lost after all

    monkeypatch.setattr(verifier.wallet, "send", lose)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: len(seals) == 1)
        assert verifier.duties is not None

        async def nothing_there(duty: CheckDuty) -> tuple[Finding, ...]:
            return tuple(Finding(segment, Code.UNAVAILABLE, bytes(32), bytes(32), 0) for segment in duty.segments)

        monkeypatch.setattr(verifier.duties._verifier, "_find", nothing_there)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED)
        nursery.cancel_scope.cancel()
    assert seals == [seals[0]] * len(seals)
    assert Purpose.VERIFIER_FEE in market.paid(verifier)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
async def test_a_result_is_delivered_on_demand_or_its_worker_pays(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not kept:
        request.getfixturevalue("impatient")
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    monkeypatch.setattr(node.market.inputs, "FETCH_PAUSE_S", 0.1)
    monkeypatch.setitem(PARAMETERS, "tasks.bond_release_ms", 10**9)
    world = World(tmp_path)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        window = market.window(0)
        assert window is not None and verifier.network.blobs is not None and worker.network.blobs is not None
        verifier.network.blobs.remove(window.proof.output_blob)  # long evicted
        if not kept:
            worker.network.blobs.remove(window.proof.output_blob)
        demanding: list[Value] = [market.task, COIN]
        nursery.start_soon(world.wallet(REQUESTER).send, DEMAND_RESULT, demanding)
        judged = (WindowPhase.FINAL, WindowPhase.LOST)
        await world.mint_until(lambda: (now := market.window(0)) is not None and now.phase not in judged)
        await world.mint_until(lambda: (now := market.window(0)) is not None and now.phase in judged)
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None
    if kept:
        assert (window.phase, window.reason) == (WindowPhase.FINAL, Reason.RESULT_DELIVERED)
        assert verifier.network.blobs.is_complete(window.proof.output_blob), "who tried has a copy"
    else:
        assert (window.phase, window.reason) == (WindowPhase.LOST, Reason.RESULT_LOST)
    assert Purpose.JUROR_FEE in market.paid(verifier)
    world.store.close()


async def test_slow_is_not_unavailable_until_the_time_is_over(world: World) -> None:
    content = bytes(range(256)) * (8 * PIECE_BYTES // 256)
    slow = NetworkLimits(blob_upload_bytes_per_s=4 * PIECE_BYTES)
    holder, asker = Machine(world, 1, "compute", limits=slow), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        for machine in (holder, asker):
            await nursery.start(machine.network.run)
            await nursery.start(machine.run)
        assert holder.network.blobs is not None and asker.network.blobs is not None and asker.duties is not None
        name = holder.network.blobs.add(content)
        sources = [holder.wallet.address]
        until = trio.current_time() + 1.0
        with pytest.raises(InputUnavailable):
            await asker.duties._inputs.obtain(name, Supply(lambda: sources, until), len(content))
        # What came is kept, and each piece is a reason to wait for the next.
        await asker.duties._inputs.obtain(name, Supply(lambda: sources), len(content))
        assert asker.network.blobs.read(name) == content
        # It is here, so nobody asks for the time.
        await asker.duties._inputs.obtain(name, Supply(lambda: sources, until), len(content))
        with pytest.raises(InputUnavailable, match="limit"):
            await asker.duties._inputs.obtain(name, Supply(lambda: sources), len(content) - 1)
        # A check with all its time waits for its states; one with little left keeps half of it for the rest.
        job, time = make_spec(10, 10, 10), seal_time(make_spec(10, 10, 10), 2, asker.duties._parameters)
        duty = CheckDuty(b"t" * 32, 0, Action.SEAL, (0, 1), 0, b"", False, 1)
        for left_ms, expected_ms in (
            (time.fetch_ms + time.run_ms, time.fetch_ms + time.run_ms // 2), (1_000, 500), (-1_000, 0),
        ):  # fmt: skip
            due = duty._replace(deadline_ms=world.ledger.head().time_ms + left_ms)
            assert asker.duties._verifier._fetch_s(due, job) == pytest.approx(expected_ms / 1000, abs=0.002)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_worker_that_starts_again_is_waited_for_before_it_is_said_not_to_serve(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lose its bond for the task, though it is back long before a verdict is due."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    fetch, tries = verifier.network.fetch_blob, 0

    async def counted(*arguments: Any, **options: Any) -> Path:
        nonlocal tries
        tries += 1
        return await fetch(*arguments, **options)

    monkeypatch.setattr(p2p.blob.transfer, "_MANIFEST_S", 0.1)  # dialling who is away takes its time
    monkeypatch.setattr(p2p.blob.transfer, "_MANIFEST_ROUNDS", 1)
    monkeypatch.setattr(verifier.network, "fetch_blob", counted)
    async with trio.open_nursery() as nursery:
        await nursery.start(verifier.network.run)
        market.unconnected.add(verifier)
        async with trio.open_nursery() as going_down:
            await market.start(going_down, make_spec(10, 10, 10))
            await going_down.start(worker.run)
            await world.mint_until(lambda: market.window(0) is not None)
            going_down.cancel_scope.cancel()
        await nursery.start(verifier.run)
        await world.mint_until(lambda: tries > node.market.inputs.FETCH_TRIES_MAX)
        assert (window := market.window(0)) is not None and not any(seat.seal for seat in window.verifiers)
        back = Machine(world, 1, "compute")
        await nursery.start(back.network.run)
        await nursery.start(back.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED)
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None and not window.missed
    assert [f.code for seat in window.verifiers for f in seat.findings or ()] == [Code.COMPUTED]


async def test_a_fetch_whose_time_passed_while_the_process_stood_still_is_tried_once_more(world: World) -> None:
    """What a verifier says of a worker must not come from its own absence."""
    holder, asker = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    content, held = bytes(range(256)) * (2 * PIECE_BYTES // 256), trio.Event()
    async with trio.open_nursery() as nursery:
        for machine in (holder, asker):
            await nursery.start(machine.network.run)
            await nursery.start(machine.run)
        assert holder.network.blobs is not None and asker.network.blobs is not None and asker.duties is not None
        inputs, name = asker.duties._inputs, manifest_of(BytesIO(content)).blob_id

        async def obtain() -> None:
            supply = Supply(lambda: [holder.wallet.address], trio.current_time() + 0.5, tries=None)
            await inputs.obtain(name, supply, len(content))
            held.set()

        nursery.start_soon(obtain)
        await trio.sleep(0.25)  # it has asked, and there was nothing
        holder.network.blobs.add(content)
        time.sleep(0.5 + 1.5 * node.market.inputs.LATE_S)  # noqa: ASYNC251 - as a process that is stopped
        with trio.fail_after(30):
            await held.wait()
        assert asker.network.blobs.read(name) == content
        # Nobody waits for what did not come while it ran.
        missing, until = b"?" * 32, trio.current_time() + 0.3
        with pytest.raises(InputUnavailable):
            await inputs.obtain(missing, Supply(lambda: [holder.wallet.address], until, tries=None), 1)
        assert trio.current_time() == pytest.approx(until, abs=node.market.inputs.LATE_S)
        nursery.cancel_scope.cancel()


async def test_states_that_nobody_has_keep_no_others_from_coming(world: World) -> None:
    """One by one the first would take the time of all, and each of them would be said to be missing."""
    holder, asker = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        for machine in (holder, asker):
            await nursery.start(machine.network.run)
            await nursery.start(machine.run)
        assert holder.network.blobs is not None and asker.duties is not None
        names = [b"?" * 32, holder.network.blobs.add(bytes(100)), holder.network.blobs.add(bytes(200))]
        supply = Supply(lambda: [holder.wallet.address], trio.current_time() + 1.0, tries=None)
        missing = await asker.duties._inputs.obtain_all(names, supply, 200)
        assert list(missing) == names[:1]
        nursery.cancel_scope.cancel()


async def test_what_is_damaged_here_is_fetched_from_others(world: World) -> None:
    """Else a verifier would say that a window cannot be had, and pay for its own disk, with its worker."""
    holder, asker = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        for machine in (holder, asker):
            await nursery.start(machine.network.run)
            await nursery.start(machine.run)
        here = asker.network.blobs
        assert holder.network.blobs is not None and here is not None and asker.duties is not None
        inputs, supply, spec = asker.duties._inputs, Supply(lambda: [holder.wallet.address]), make_spec(10, 10, 10)
        for content in (bytes(2 * PIECE_BYTES), BLOB):
            name = holder.network.blobs.add(content)
            assert here.add(content) == name
            here.path(name).write_bytes(b"?" * len(content))
            if content is BLOB:
                job = spec.changed(dataset=spec.dataset._replace(blob=name))
                assert await inputs.dataset(job, supply, bytes(32)) == content
            else:
                assert await inputs.fetch(name, supply, len(content)) == content
            assert here.read(name) == content
        nursery.cancel_scope.cancel()


async def test_the_journal_of_a_task_that_was_given_away_does_not_stay(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(40, 5, 10))
        await nursery.start(worker.run)
        assert worker.duties is not None

        async def endless(*_arguments: object, **_more: object) -> None:
            await trio.sleep_forever()

        worker.duties._executor.run_task = endless  # type: ignore[assignment,method-assign]
        await world.mint_until(lambda: market.record.phase == Phase.RUNNING)
        worker.stop()
        assert market.task.hex() in names_under(worker.home.jobs)
        leave: list[Value] = [market.task, int(Reason.WORKER_LEFT)]
        nursery.start_soon(worker.wallet.send, GIVE_UP_TASK, leave)
        await world.mint_until(lambda: market.record.phase == Phase.DEGRADED)
        await nursery.start(worker.run)
        await world.mint_until(lambda: names_under(worker.home.jobs) <= {".scratch"})
        assert market.record.phase not in ENDED
        nursery.cancel_scope.cancel()


async def test_a_damaged_record_ends_the_node_instead_of_being_tried_for_ever(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        await world.mint_until(lambda: market.record.worker == worker.wallet.address)
        spec = load_spec_bytes(world.store, market.task)
        [key] = [key for key, value in world.store.scan(b"", b"\xff" * 40, 10_000) if value == spec]
        world.store._db.put(STATE + key, b"damaged")
        world.store._values = Cache(0)
        with trio.fail_after(30), pytest.RaisesGroup(pytest.RaisesExc(RecordDamaged, match="specification")):
            await worker.run()
        nursery.cancel_scope.cancel()


async def test_damage_that_a_trial_meets_gives_no_task_up(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute", duties=Halted), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        nursery.start_soon(world.keep_minting)
        with trio.fail_after(60), pytest.RaisesGroup(RecordDamaged):
            await worker.run()
        nursery.cancel_scope.cancel()
    assert market.record.phase == Phase.PREPARING


async def test_damage_that_is_met_while_work_is_wanted_is_told(world: World) -> None:
    worker = Machine(world, 1, "compute")
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)

        def is_wanted() -> bool:
            raise RecordDamaged("the record of a task")

        assert worker.duties is not None
        with trio.fail_after(30), pytest.raises(RecordDamaged):
            await work_while(worker.duties._ledger, is_wanted, trio.sleep_forever)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("impatient")
async def test_a_replacement_that_cannot_have_the_state_to_go_on_from_declines_without_a_fine(
    world: World,
) -> None:
    machines = [Machine(world, 1, "compute"), Machine(world, 2, "compute"), Machine(world, 3, "verify")]
    market = Market(world, *machines)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(40, 5, 10))
        await nursery.start(machines[2].run)
        for machine in machines[:2]:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.window(0) is not None)
        first = next(machine for machine in machines if machine.wallet.address == market.record.worker)
        second = next(machine for machine in machines[:2] if machine is not first)
        for machine in machines:
            machine.stop()
        # A window that waits for its block is proved beside the leave: what goes is what was proved after both.
        async with trio.open_nursery() as leaving:
            leave: list[Value] = [market.task, int(Reason.WORKER_LEFT)]
            leaving.start_soon(first.wallet.send, GIVE_UP_TASK, leave)
            await world.mint_until(lambda: not leaving.child_tasks)
        for number in range(market.record.next_window):
            for machine in machines:
                window = market.window(number)
                assert window is not None and machine.network.blobs is not None
                machine.network.blobs.remove(window.proof.output_blob)
        await nursery.start(second.run)
        await world.mint_until(lambda: second.wallet.address in market.record.excluded)
        nursery.cancel_scope.cancel()
    [entry] = [
        entry for entry in queries.task_history(world.store, market.task) if entry.actor == second.wallet.address
        and entry.after == Phase.DEGRADED
    ]  # fmt: skip
    assert entry.reason == Reason.INPUT_UNAVAILABLE
    fines = [line for line in queries.bill(world.store, market.task).lines if line.purpose == Purpose.WORKER_FINE]
    assert [line.party for line in fines if line.party == second.wallet.address] == []
    known = load_node(world.store, second.wallet.address)
    assert known is not None and known.bad == 0


@pytest.mark.usefixtures("impatient")
async def test_states_that_nobody_serves_are_a_finding_and_not_a_stop(world: World) -> None:
    worker = Machine(world, 1, "compute", alone=True)
    verifiers = [Machine(world, number, "verify", alone=True) for number in (2, 3)]
    market = Market(world, worker, *verifiers)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)

        def findings() -> list[Code]:
            window = market.window(0)
            seats = () if window is None else (*window.verifiers, *window.jurors)
            return [finding.code for seat in seats for finding in seat.findings or ()]

        await world.mint_until(lambda: bool(findings()), timeout_s=120)
        nursery.cancel_scope.cancel()
    assert set(findings()) == {Code.UNAVAILABLE}
    assert market.paid(worker) == []


async def test_a_job_that_does_not_fit_itself_costs_its_workers_nothing(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10)._replace(init_root=bytes(32)))
        await nursery.start(worker.run)
        await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
        # Nothing of the job is kept.
        await world.mint_until(lambda: {at.name for at in worker.home.jobs.rglob("*")} <= {".scratch"})
        nursery.cancel_scope.cancel()
    assert market.record.reason == Reason.JOB_UNFIT
    known = load_node(world.store, worker.wallet.address)
    assert known is not None and (known.bad, known.failures, known.busy_slots) == (0, 0, 0)
    purposes = {line.purpose for line in queries.bill(world.store, market.task).lines}
    assert Purpose.BOND_RETURN in purposes and Purpose.WORKER_FINE not in purposes


def spoiled() -> bytes:
    """Return a data set of the right form that is not the one under the root of the job."""
    other = dataclasses.replace(DATA, features=bytes(len(DATA.features)))
    return other.encode()


@pytest.mark.parametrize("stray", ["table", "another", "too large"])
async def test_a_worker_proves_by_itself_that_a_data_set_is_none_and_is_paid(
    world: World, monkeypatch: pytest.MonkeyPatch, stray: str
) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    content = {"table": b"5.1,3.5,1.4,0.2\n" * 300, "another": spoiled(), "too large": bytes(60_000)}[stray]
    if stray == "too large":
        monkeypatch.setattr(node.market.inputs, "DATASET_BLOB_BYTES_MAX", 50_000)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await market.start(nursery, make_spec(10, 5, 10), content)
            before = load_node(world.store, worker.wallet.address)
            await nursery.start(worker.run)
            await world.mint_until(lambda: market.record.phase == Phase.FAILED)
            assert worker.duties is not None
            duties = worker.duties
            await world.mint_until(lambda: duties.market_events["task_claimed"] == 1)
            nursery.cancel_scope.cancel()
    assert market.record.reason == Reason.INPUT_INVALID
    assert Purpose.PREPARATION in market.paid(worker) and Purpose.CLAIM_GAS in market.paid(worker)
    claim = load_claim(world.store, market.task)
    assert claim is not None and claim.fault == (Fault.ROOT if stray == "another" else Fault.SIZE)
    after = load_node(world.store, worker.wallet.address)
    assert before is not None and after is not None
    assert (after.match_from_ms, after.bad, after.declines) == (before.match_from_ms, 0, 0)
    assert any(line.get("code") == "job_unfit" and "proven on chain" in line["error"] for line in logs)


async def test_a_job_that_would_be_late_is_not_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        monkeypatch.setattr(node.market.worker, "PACE_MARGIN", 1e9)  # as on a machine so much slower
        await nursery.start(worker.run)
        await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
        nursery.cancel_scope.cancel()
    assert (market.record.reason, market.record.started_ms) == (Reason.JOB_UNFIT, 0)


@pytest.mark.parametrize("lack", ["memory", "room for blobs", "funds"])
async def test_a_job_that_this_machine_has_no_room_for_is_declined(
    world: World, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        blobs = worker.network.blobs
        assert blobs is not None
        match lack:
            case "memory":
                monkeypatch.setattr(node.market.worker, "available_memory_bytes", lambda: 1 << 20)
            case "room for blobs":  # results of tasks that have ended wait there for their requesters
                blobs._budget_bytes = needs_of(make_spec(10, 5, 10), open_windows_max=3).blobs + 10_000
                blobs.pin(blobs.add(bytes(10_000)))
            case _:  # for the bond, and not for what is to be said once the job runs
                monkeypatch.setattr(node.market.worker, "balance_of", lambda *_: work_duty(world, worker).bond + 1)
        with structlog.testing.capture_logs() as logs:
            await nursery.start(worker.run)
            await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
            await world.mint_until(lambda: any(line.get("code") == "job_unfit" for line in logs))
            duties = worker.duties
            assert duties is not None and duties.market_events["task_declined"] == 1
            await world.mint_until(lambda: duties.parked_tasks() == 1)  # nobody else is there to take it
        nursery.cancel_scope.cancel()
    assert [line["error"].startswith(lack) for line in logs if line.get("code") == "job_unfit"] == [True]
    assert market.record.reason == Reason.WORKER_DECLINED
    assert Purpose.WORKER_BOND not in {line.purpose for line in queries.bill(world.store, market.task).lines}


@pytest.mark.slow
async def test_a_verifier_without_room_declines_its_seat_and_the_next_one_checks(world: World) -> None:
    worker, *verifiers = Machine(world, 1, "compute"), Machine(world, 2, "verify"), Machine(world, 3, "verify")
    market = Market(world, worker, *verifiers)

    def declined() -> list[int]:
        return [require_node(world.store, machine.wallet.address).seat_declines for machine in verifiers]

    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        await nursery.start(worker.run)
        for machine in verifiers:
            await nursery.start(machine.run)
            assert machine.duties is not None
            # Whoever is drawn first has a full disk; who is drawn in its place has room.
            machine.duties._verifier._free_bytes = lambda: 0 if not any(declined()) else 1 << 40
        await world.mint_until(lambda: market.record.phase in ENDED)
        counted = [m.duties.market_events["seat_declined"] for m in verifiers if m.duties is not None]
        nursery.cancel_scope.cancel()
    assert market.record.phase == Phase.SETTLED
    assert sorted(declined()) == [0, 1] and counted == declined()
    paid = [Purpose.VERIFIER_FEE in market.paid(machine) for machine in verifiers]
    assert paid == [not count for count in counted]
    assert {require_node(world.store, machine.wallet.address).bad for machine in verifiers} == {0}


@pytest.mark.slow
async def test_a_worker_that_was_off_opens_its_window_in_the_extension(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)

    def is_in(phase: WindowPhase, reason: Reason | None = None) -> bool:
        window = market.window(0)
        return window is not None and window.phase == phase and reason in (None, window.reason)

    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await world.mint_until(lambda: is_in(WindowPhase.REVEALING))
        worker.stop()
        await world.mint_until(lambda: is_in(WindowPhase.OPENING))
        world.mint(after_ms=PARAMETERS["tasks.reveal_ms"] + 1)
        assert is_in(WindowPhase.OPENING, Reason.OPENING_LATE)
        await nursery.start(worker.run)
        await world.mint_until(lambda: market.record.phase in ENDED)
        assert worker.duties is not None and worker.duties.market_events["opening_late"] == 1
        nursery.cancel_scope.cancel()
    assert market.record.phase == Phase.SETTLED
    fines = [
        line.amount for line in queries.bill(world.store, market.task).lines if line.purpose == Purpose.WORKER_FINE
    ]
    window = market.window(0)
    assert window is not None and fines == [-(-window.charge * 500 // 10_000)]


@pytest.mark.slow
async def test_a_verifier_that_may_decline_no_more_checks_and_pays_for_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARAMETERS, "tasks.declines_per_day", 0)
    world = World(tmp_path)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        await nursery.start(worker.run)
        before = load_account(world.store, verifier.wallet.address).nonce
        await nursery.start(verifier.run)
        assert verifier.duties is not None
        verifier.duties._verifier._free_bytes = lambda: 0
        await world.mint_until(lambda: market.record.phase in ENDED)
        nursery.cancel_scope.cancel()
    assert market.record.phase == Phase.SETTLED
    assert load_account(world.store, verifier.wallet.address).nonce == before + 2  # a seal and its opening
    world.store.close()


@pytest.mark.slow
async def test_a_job_that_diverges_is_claimed_checked_and_ends_with_the_state_before(world: World) -> None:
    """Nobody says anything else on chain: the worker proves the window, the verifier runs it again."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    spec = make_diverging()
    async with trio.open_nursery() as nursery:
        await market.start(nursery, spec)
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await world.mint_until(lambda: market.record.phase in ENDED)
        assert worker.duties is not None and worker.duties.market_events["task_claimed"] == 1
        nursery.cancel_scope.cancel()
    record, window = market.record, load_window(world.store, market.task, 0)
    assert (record.phase, record.reason, record.final_windows) == (Phase.FAILED, Reason.JOB_DIVERGED, 1)
    claim = window.proof.diverged
    assert claim is not None and (claim.step, window.proof.segments) == (10, 3)
    (seat,) = window.verifiers
    assert seat.findings is not None and seat.findings[-1].state_root_after == window.proof.state_root_out
    blobs = worker.network.blobs
    assert blobs is not None
    state = TrainingState.decode(blobs.read(window.proof.output_blob), spec.plan())
    assert (state.step, state.root(spec.plan()), record.final_root) == (10, claim.state_before, claim.state_before)
    upheld = load_claim(world.store, market.task)
    assert upheld is not None and upheld.place == (claim.store, claim.row, claim.column)
    assert {Purpose.PREPARATION, Purpose.WINDOW_PAY} <= set(market.paid(worker))
    known = load_node(world.store, worker.wallet.address)
    assert known is not None and (known.good, known.bad, known.declines) == (0, 0, 0)


async def test_a_job_whose_process_keeps_being_killed_is_given_up_and_each_end_told(world: World) -> None:
    """The requester does not wait for the deadline; log and status say what happened."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 5, 10))
        with structlog.testing.capture_logs() as logs:
            await nursery.start(worker.run)
            assert worker.duties is not None
            executor = worker.duties._executor
            whole = executor.run_process

            async def die(order: Train, listener: Listener) -> None:
                if not order.evaluate:  # its trial
                    return await whole(order, listener)
                raise JobFailed(reason="died", text="exit status -9 (SIGKILL)")

            executor.run_process = die  # type: ignore[method-assign]
            executor._options = replace(executor._options, restarts_max=100)
            await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
        nursery.cancel_scope.cancel()
    ends = [line for line in logs if line["event"] == "the process of a job ended by itself"]
    assert [line["times"] for line in ends] == list(range(1, 10))
    assert [line["given_up"] for line in ends] == [False] * 8 + [True]
    assert worker.duties.job_ends == 9
    assert (market.record.phase, market.record.reason) == (Phase.DEGRADED, Reason.WORKER_LEFT)


async def test_a_check_ends_with_its_deadline_and_frees_the_machine(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    begun, ended = trio.Event(), trio.Event()

    async def endless(*_arguments: object, **_more: object) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        for machine in market.machines:
            await nursery.start(machine.run)
        assert verifier.duties is not None
        verifier.duties._executor.verify_segment = endless  # type: ignore[assignment,method-assign]
        await world.mint_until(begun.is_set)
        assert verifier.duties.under_way()[2] == 1
        world.mint(after_ms=PARAMETERS["tasks.seal_ms_min"])
        await world.mint_until(ended.is_set)
        await world.mint_until(lambda: verifier.duties is not None and verifier.duties.under_way()[2] == 0)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_another_worker_goes_on_from_the_state_of_the_one_that_left(world: World) -> None:
    begun: list[tuple[bytes, bool]] = []
    """By whom the task was taken up, and whether from a state of another."""

    class NotingWorker(Worker):
        async def _supply(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> tuple[JobInputs, bytes | None]:
            inputs, start = await super()._supply(task, spec, duty)
            begun.append((self._wallet.address, start is not None))
            return inputs, start

    class Noting(DutyService):
        worker_type = NotingWorker

    machines = [Machine(world, number, "compute", duties=Noting) for number in (1, 2)]
    machines.append(Machine(world, 3, "verify"))
    market = Market(world, *machines)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(40, 5, 10))
        for machine in machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.window(0) is not None)
        first = next(machine for machine in machines if machine.wallet.address == market.record.worker)
        first.stop()
        giving: list[Value] = [market.task, int(Reason.WORKER_LEFT)]
        nursery.start_soon(first.wallet.send, GIVE_UP_TASK, giving)
        await world.mint_until(lambda: market.record.worker != first.wallet.address)
        await nursery.start(first.run)  # its window is still to be opened
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    second = next(m for m in machines[:2] if m is not first)
    windows = [market.window(number) for number in range(4)]
    assert all(window is not None and window.phase == WindowPhase.FINAL for window in windows)
    workers = [window.worker for window in windows if window is not None]
    assert workers[0] == first.wallet.address
    assert workers[-1] == second.wallet.address
    assert begun[0] == (first.wallet.address, False) and (second.wallet.address, True) in begun
    assert {Purpose.WINDOW_PAY} <= set(market.paid(second))
