"""Jobs that tune a model, by nodes: rows and model come from the network, and cheats are found (market.md R74)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import node.market.blob_search
import node.market.duties
import node.market.inputs
import node.market.worker
from billing.escrow import Purpose, escrow_totals
from node.market.duties import DutyService
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.key_files import KeyFiles
from node.market.task_keys import TaskKeys
from state.primitives.manifests import manifest_of
from tasks.custody.sealed import seal_input
from tasks.engines.input_blobs import join_tensors
from tasks.engines.tuning import Tuner, first_state
from tasks.evaluations import evaluations_of, show_losses
from tasks.kinds.finetune import TrainingLoop
from tasks.ledger import queries
from tasks.ledger.custody_records import Terms
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.records import load_window
from tasks.ledger.registry import require_node
from tasks.programs.finetune import row_tensors
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code
from tasks.spec import JobSpec, Schedule, decode_spec, encode_spec
from testnet.scenarios.impostor import CoarseDuties, FastDuties, LyingDuties, SkippingDuties
from tests.node.market.test_custody import CUSTODY
from tests.node.market.test_duties import Market
from tests.node.market.test_private import PrivateMarket
from tests.node.world import Machine, World, world_with
from tests.tasks.executor.helpers import BLOB, make_spec
from tests.tasks.generated import generated
from tests.tasks.programs.engines import engine
from tests.tasks.tuned import STEPS, tuned

_SPEC, PLAN, MADE = tuned()
ROWS = join_tensors(row_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)


def job(rows: bytes = ROWS, model: bytes = MODEL, *, window: int = STEPS, seed: bytes = _SPEC.seed) -> JobSpec:
    """Return a job that names these blobs."""
    part: Any = _SPEC.part
    spec = _SPEC.changed(
        dataset=part.dataset._replace(blob=name_of(rows)), model=part.model._replace(blob=name_of(model)),
        schedule=Schedule(STEPS, 3, window), seed=seed,
    )  # fmt: skip
    plan: Any = spec.plan()
    return decode_spec(encode_spec(spec.changed(init_root=first_state(plan).root(plan))))


def name_of(content: bytes) -> bytes:
    from io import BytesIO

    return manifest_of(BytesIO(content)).blob_id


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    parameters = {
        "tasks.dispute_move_ms": 3_000_000, "tasks.dispute_side_ms": 30_000_000, "tasks.samples": 2,
        "chain.base_fee_initial": 1, "chain.base_fee_min": 1, "tasks.check_fee_min": 1_000,
    }  # fmt: skip
    made = world_with(tmp_path, monkeypatch, parameters)
    yield made
    made.store.close()


async def started(world: World, nursery: trio.Nursery, *machines: Machine) -> tuple[Market, Machine]:
    """Return a market, and the node of its requester, which has no role."""
    holder, market = Machine(world, 0, "relay"), Market(world, *machines)
    for machine in (holder, *machines):
        await nursery.start(machine.network.run)
    await market.register()
    return market, holder


def put(machine: Machine, *blobs: bytes) -> None:
    assert machine.network.blobs is not None
    for blob in blobs:
        machine.network.blobs.pin(machine.network.blobs.add(blob))


def has(machine: Machine, content: bytes) -> bool:
    assert machine.network.blobs is not None
    return machine.network.blobs.is_complete(name_of(content))


@pytest.mark.slow
async def test_a_model_is_tuned_checked_and_paid_and_no_second_task_fetches_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requester gives rows and model to the worker alone, and withholds them from who checks."""
    asked = list[tuple[bytes, bytes]]()
    bring = Inputs._bring

    async def noting(self: Inputs, name: bytes, *args: Any) -> None:
        asked.append((self._own, name))
        await bring(self, name, *args)

    monkeypatch.setattr(Inputs, "_bring", noting)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, ROWS, MODEL)
        await nursery.start(worker.run)
        await market.post(job(window=3))
        await world.mint_until(lambda: market.window(0) is not None)
        assert holder.network.blobs is not None and worker.network.blobs is not None
        for content in (ROWS, MODEL):
            holder.network.blobs.remove(name_of(content))
        await nursery.start(verifier.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await world.mint_until(lambda: escrow_totals(world.store, market.task).locked == 0)
        duties = worker.duties
        assert duties is not None
        await world.mint_until(lambda: duties._promises.blobs_of({market.task}) == frozenset())
        windows = [load_window(world.store, market.task, number) for number in range(2)]
        for window in windows:
            assert window.phase == WindowPhase.FINAL
            assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}
        direct = Tuner(PLAN, MADE.model, MADE.data, engine("numpy"), first_state(PLAN))
        direct.run_steps(STEPS)
        assert windows[-1].proof.state_root_out == direct.state().root(PLAN)
        assert Purpose.VERIFIER_FEE in market.paid(verifier) and Purpose.WINDOW_PAY in market.paid(worker)
        fetched = {(worker.wallet.address, name_of(MODEL)), (verifier.wallet.address, name_of(MODEL))}
        assert fetched <= set(asked)

        asked.clear()
        put(holder, ROWS)
        await market.post(job(seed=b"s" * 32))
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        assert market.record.worker == worker.wallet.address
        assert name_of(MODEL) not in {name for _, name in asked}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wrong", ["missing", "other"])
async def test_a_model_that_is_withheld_or_false_costs_its_worker_nothing(
    world: World, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.inputs, "FETCH_QUIET_S", 0.5)
    monkeypatch.setattr(node.market.worker, "FETCH_TRIES", 1)
    monkeypatch.setattr(node.market.blob_search, "WAIT_S", 0.5)
    worker, model = Machine(world, 1, "compute"), bytes(len(MODEL))
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, Machine(world, 2, "verify"))
        await nursery.start(worker.run)
        put(holder, ROWS, *((model,) if wrong == "other" else ()))
        before = require_node(world.store, worker.wallet.address)
        await market.post(job(model=model))
        await world.mint_until(lambda: market.record.complaints == (worker.wallet.address,))
        nursery.cancel_scope.cancel()
    after = require_node(world.store, worker.wallet.address)
    assert (after.bond, after.bad, after.failures, after.declines) == (before.bond, 0, 0, 0)
    assert after.cool_down_until_ms == before.cool_down_until_ms


@pytest.mark.nightly
async def test_a_job_that_generates_is_run_and_checked_with_the_model_that_nodes_fetch(world: World) -> None:
    spec, plan, made = generated(segment=3)
    prompts = join_tensors(prompt_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.model)
    part: Any = spec.part
    named = {"dataset": name_of(prompts), "model": name_of(model)}
    spec = spec.changed(**{name: getattr(part, name)._replace(blob=blob) for name, blob in named.items()})
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, prompts, model)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    window = load_window(world.store, market.task, 0)
    assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}


@pytest.mark.nightly
async def test_validation_losses_stand_in_the_proofs_of_a_job_that_nodes_run(world: World) -> None:
    """Batches of two that are added up, evaluations, and the best adapters; each window is checked."""
    spec, plan, made = tuned(updates=4, samples=3, loop=TrainingLoop(2, 2, 1), window=6)
    part: Any = spec.part
    spec = spec.changed(
        dataset=part.dataset._replace(blob=name_of(ROWS)), model=part.model._replace(blob=name_of(MODEL))
    )
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, ROWS, MODEL)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    direct = Tuner(plan, made.model, made.data, engine("numpy"), first_state(plan))
    for number, step in enumerate((6, 10)):
        direct.run_steps(step - direct.step)
        window, state = load_window(world.store, market.task, number), direct.state()
        assert window.proof.state_root_out == state.root(plan)
        assert window.proof.losses == show_losses(spec, state)
        assert {f.code for seat in window.verifiers for f in seat.findings or ()} <= {Code.COMPUTED}
    assert window.proof.losses is not None
    assert [one.update for one in evaluations_of(spec, 10, window.proof.losses.content)] == [2, 4]


@pytest.mark.nightly
async def test_a_job_ends_early_by_its_losses_is_checked_and_its_rest_returns(world: World) -> None:
    """After 25 of 30 steps (R87), in the middle of a segment of the second window."""
    spec, plan, made = tuned(updates=12, samples=3, loop=TrainingLoop(2, 2, 1, 1), window=20)
    part: Any = spec.part
    spec = spec.changed(
        dataset=part.dataset._replace(blob=name_of(ROWS)), model=part.model._replace(blob=name_of(MODEL))
    )
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, ROWS, MODEL)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await world.mint_until(lambda: escrow_totals(world.store, market.task).locked == 0)
        nursery.cancel_scope.cancel()
    direct = Tuner(plan, made.model, made.data, engine("numpy"), first_state(plan))
    direct.run_steps(30)
    window = load_window(world.store, market.task, 1)
    assert (direct.step, window.proof.step_to, window.proof.segments) == (25, 25, 3)
    assert window.proof.state_root_out == market.record.final_root == direct.state().root(plan)
    findings = {f.segment: f.code for seat in window.verifiers for f in seat.findings or ()}
    assert set(findings.values()) <= {Code.COMPUTED} and (not findings or 2 in findings)
    assert Purpose.UNSPENT in {line.purpose for line in queries.bill(world.store, market.task).lines}


class PrivateTuning(PrivateMarket):
    """A private market whose job tunes a public model with encrypted rows."""

    dataset = ROWS

    def job(self) -> JobSpec:
        return job(window=3)


@pytest.mark.nightly
async def test_rows_are_encrypted_and_the_model_is_public_in_a_private_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with(tmp_path, monkeypatch, CUSTODY)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    requester = Machine(world, 9, "relay")
    put(requester, MODEL)
    market = PrivateTuning(world, worker, verifier, *keepers, requester)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        assert market.record.worker == worker.wallet.address
        for machine in (worker, verifier):
            assert has(machine, MODEL) and not has(machine, ROWS)
            store = machine.network.blobs
            assert store is not None and ROWS[: len(ROWS) // 2] not in store.read(market.task_spec.dataset.blob)
        nursery.cancel_scope.cancel()
    world.store.close()


class KeysOfNames(TaskKeys):
    """Keys that are the names of their tasks, all of which are private."""

    def terms(self, task: bytes) -> Terms | None:
        return Terms(bytes(32), 1, 1, 0, 0, 0, 0, 0)

    def input_key(self, task: bytes, number: int) -> bytes:
        return task


async def test_a_cipher_in_memory_is_opened_by_the_key_of_its_own_task_alone(world: World) -> None:
    """Else a worker takes a task whose data set nobody else can decrypt, and loses its bond for not serving it."""
    machine, own, other = Machine(world, 1, "compute"), b"a" * 32, b"b" * 32
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.network.run)
        await nursery.start(machine.run)
        assert machine.duties is not None and machine.network.blobs is not None
        inputs, files = machine.duties._inputs, KeyFiles(machine.home.root / "keys", "key", b"s" * 32)
        inputs.keys = KeysOfNames(world.ledger, machine.network, machine.wallet.address, b"s" * 32, files)
        for spec, content in ((make_spec(10, 10, 10), BLOB), (job(), ROWS)):
            blob = machine.network.blobs.add(seal_input(own, spec.dataset.root, content).blob)
            sealed = spec.changed(dataset=spec.dataset._replace(blob=blob))
            assert await inputs.dataset(sealed, Supply(list), own) == content
            with pytest.raises(InputUnavailable):
                await inputs.dataset(sealed, Supply(list), other)
        nursery.cancel_scope.cancel()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "cheat",
    [LyingDuties, FastDuties, SkippingDuties, CoarseDuties],
)
async def test_a_worker_that_trains_otherwise_is_found_and_not_paid(
    world: World, cheat: type[DutyService]
) -> None:
    """One value of an adapter is false, rate or model are others, or a step is left out."""
    liar, verifier = Machine(world, 1, "compute", duties=cheat), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, liar, verifier)
        put(holder, ROWS, MODEL)
        for machine in (liar, verifier):
            await nursery.start(machine.run)
        await market.post(job())

        def is_void() -> bool:
            window = market.window(0)
            return window is not None and window.phase == WindowPhase.VOID

        await world.mint_until(is_void, timeout_s=120)
        nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None and window.reason == Reason.LIE_PROVEN
    assert liar.wallet.address in market.record.excluded and market.paid(liar) == []
    assert verifier.duties is not None and verifier.duties.dispute_results == {"won": 1}
