"""Owners that take their machines back: containers go on at the next machine, on a real engine."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from billing.escrow import Movement, Purpose, bill_lines
from node.home.options import DockerOptions
from node.market.container_checkpoints import KEPT_MS, CheckpointNote, ContainerCheckpoints
from node.market.machine import describe_machine, stays_until
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.view.accounts import load_account
from tasks.executor.containers.disks import ContainerDisk
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.docker import DockerOptions as EngineOptions
from tasks.kinds.container import Checkpoint, ContainerPart, Image, Metering, Process, Storage
from tasks.ledger.checkpoint_records import Checkpoints, load_checkpoints
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.meter_records import MeterRecord, load_meter
from tasks.ledger.records import TaskRecord, load_task
from tasks.ledger.transitions import CREATE_TASK, REGISTER_NODE, node_payload, task_id_of
from tasks.spec import Requirements, container_job, encode_spec
from tests.node.world import COIN, Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine

TICK_S = 10
EVERY_S = 10
RATE_MIN = 10**9
PRICE = 10**16
SCRIPT = """
save() { echo $n > /state/n.tmp; mv /state/n.tmp /state/n; }
trap 'save; exit 0' TERM
n=0; [ -f /state/n ] && n=$(cat /state/n)
echo "resumed=$DEKUBE_RESUMED from=$n" >> /state/log
while [ $n -lt LAST ]; do n=$((n+1)); save; sleep 1; done
cp /state/log /output/log; cp /state/n /output/n
"""

FALLS = """
if [ "$DEKUBE_RESUMED" = 1 ]; then cat /state/kept && exit 0; exit 1; fi
sleep 5; echo kept > /state/kept; exit 75
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {"tasks.decline_ms": 1_000})
    yield made
    made.store.close()
    for disk in tmp_path.glob("node */data/containers/*/disk"):
        ContainerDisk(disk.parent).remove()


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


class Owners:
    """Machines 1 and up lend one engine; the requester has node 0."""

    def __init__(self, world: World, lent: EngineMachine, count: int) -> None:
        self.world, self.lent = world, lent
        docker = DockerOptions(enabled=True, socket=str(lent.engine.socket), disk_gib=4, notice_s=10)
        self.requester = Machine(world, 0, "verify")
        self.machines = [Machine(world, at, "compute") for at in range(1, count + 1)]
        for machine in self.machines:
            executor = replace(machine.options.executor, docker=docker)
            machine.options = replace(machine.options, executor=executor)
        self.taken: set[bytes] = set()

    async def start(self, nursery: trio.Nursery) -> None:
        for machine in (self.requester, *self.machines):
            await nursery.start(machine.network.run)
        for machine in self.machines:
            await self.register(machine)
        for machine in (self.requester, *self.machines):
            await nursery.start(machine.run)
            assert machine.duties is not None
            machine.duties.is_taken_back = lambda who=machine.wallet.address: who in self.taken  # type: ignore[misc]

    async def register(self, machine: Machine) -> None:
        profile = describe_machine(machine.wallet.address, machine.options, RATE_MIN, containers=True)
        assert profile.notice_ms == 10_000
        await self.send(machine.number, REGISTER_NODE, node_payload(profile, 100 * COIN))

    async def send(self, number: int, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(number).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    async def post(
        self, seconds: int, *, ticks: int = 12, script: str = SCRIPT, again: tuple[int, ...] = ()
    ) -> bytes:
        part = ContainerPart(
            Image(REPOSITORY, bytes.fromhex(self.lent.image_id.removeprefix("sha256:"))),
            Process(("/bin/sh", "-c", script.replace("LAST", str(seconds))), (), 65_534),
            Storage((), "/output", 1 << 20, 32), 1, Metering("reserved", 3_600, 8, again=again),
            Checkpoint("/state", EVERY_S, 1 << 20),
        )  # fmt: skip
        spec = container_job(
            part, ticks=ticks, tick_s=TICK_S, max_price_per_tera_unit=PRICE,
            requirements=Requirements(0, 64, RATE_MIN), match_ms=600_000,
        )  # fmt: skip
        nonce = load_account(self.world.store, account(0).address).nonce
        await self.send(0, CREATE_TASK, [encode_spec(spec)])
        return task_id_of(account(0).address, nonce)

    def record(self, task: bytes) -> TaskRecord:
        return load_task(self.world.store, task)

    def meter(self, task: bytes) -> MeterRecord:
        return load_meter(self.world.store, task)

    def stored(self, task: bytes) -> Checkpoints:
        return load_checkpoints(self.world.store, task)

    async def running(self, task: bytes, *besides: bytes) -> Machine:
        """Wait until a machine other than ``besides`` runs the container."""
        world = self.world

        def runs() -> bool:
            record = self.record(task)
            return record.phase is Phase.RUNNING and record.worker not in besides

        await world.mint_until(runs, timeout_s=90)
        return next(one for one in self.machines if one.wallet.address == self.record(task).worker)

    def has_copy(self, blob: bytes) -> bool:
        blobs = self.requester.network.blobs
        return blobs is not None and blobs.is_complete(blob)


@asynccontextmanager
async def started_owners(world: World, lent: EngineMachine, count: int) -> AsyncIterator[Owners]:
    owners = Owners(world, lent, count)
    async with trio.open_nursery() as nursery:
        await owners.start(nursery)
        yield owners
        nursery.cancel_scope.cancel()


async def turns(owners: Owners, task: bytes, leavers: int, *, is_sudden: bool = False) -> list[bytes]:
    """Have ``leavers`` machines leave in turn, each after a checkpoint of its own; return their addresses."""
    gone: list[bytes] = []
    for _ in range(leavers):
        machine = await owners.running(task, *gone)
        address = machine.wallet.address

        def has_stored(address: bytes = address) -> bool:
            latest = owners.stored(task).latest
            return latest is not None and latest.worker == address and owners.has_copy(latest.blob)

        await owners.world.mint_until(has_stored, timeout_s=90)
        owners.taken.add(address)
        await owners.world.mint_until(lambda address=address: owners.record(task).worker != address, timeout_s=90)  # type: ignore[misc]
        gone.append(address)
        if is_sudden:  # what it stored last is to be had from the requester's node alone
            latest = owners.stored(task).latest
            assert latest is not None
            await owners.world.mint_until(lambda blob=latest.blob: owners.has_copy(blob), timeout_s=90)  # type: ignore[misc]
            machine.stop()
            assert machine.network.blobs is not None
            machine.network.blobs.unpin(latest.blob, "checkpoint")
            machine.network.blobs.discard(latest.blob)
    return gone


def check_bill(owners: Owners, task: bytes, gone: list[bytes], seconds: int) -> None:
    meter, stored = owners.meter(task), owners.stored(task)
    assert owners.record(task).phase is Phase.SETTLED
    assert meter.end is not None and meter.end.code == 0
    assert [run.worker for run in stored.runs[:-1]] == gone
    assert all(run.lost <= EVERY_S for run in stored.runs)
    assert meter.seconds == sum(run.seconds - run.lost for run in stored.runs)
    assert meter.seconds >= seconds
    paid = sum(
        line.amount for line in bill_lines(owners.world.store, task)
        if line.purpose in (Purpose.METERED, Purpose.DISK) and line.movement is Movement.PAID
    )  # fmt: skip
    assert paid + stored.closing + stored.open == meter.paid > 0  # the last interval's waits after the end
    blobs = next(one for one in owners.machines if one.wallet.address == meter.end.worker).network.blobs
    assert blobs is not None
    with tarfile.open(fileobj=BytesIO(blobs.read(meter.end.output))) as packed:
        file = packed.extractfile("log")
        assert file is not None
        begun = [line.split() for line in file.read().decode().splitlines()]
    assert [line[0] for line in begun] == ["resumed=0", *["resumed=1"] * len(gone)]
    counts = [int(line[1].removeprefix("from=")) for line in begun]
    assert counts[0] == 0 and all(one < other for one, other in pairwise(counts)), counts


@pytest.mark.slow
async def test_an_owner_takes_its_machine_back_and_the_job_goes_on_elsewhere(
    world: World, lent: EngineMachine
) -> None:
    async with started_owners(world, lent, 2) as owners:
        task = await owners.post(16)
        gone = await turns(owners, task, 1, is_sudden=True)
        await world.mint_until(lambda: owners.record(task).phase is Phase.SETTLED, timeout_s=120)
        check_bill(owners, task, gone, 14)


@pytest.mark.nightly
@pytest.mark.slow
async def test_two_machines_say_that_a_checkpoint_cannot_be_had_before_a_third_begins_without_it(
    world: World, lent: EngineMachine
) -> None:
    async with started_owners(world, lent, 4) as owners:
        task = await owners.post(12)
        gone = await turns(owners, task, 1, is_sudden=True)
        latest, copies = owners.stored(task).latest, owners.requester.network.blobs
        assert latest is not None and copies is not None
        copies.remove(latest.blob)
        reasons: list[Reason] = []

        def is_begun() -> bool:
            record = owners.record(task)
            if record.phase is Phase.DEGRADED and record.vain_offers > len(reasons):
                reasons.append(Reason(record.reason))
            return record.phase is Phase.RUNNING

        await world.mint_until(is_begun, timeout_s=240)
        found = owners.stored(task)
        assert reasons[-2:] == [Reason.CHECKPOINT_MISSED] * 2
        assert found.latest is None and [run.worker for run in found.runs[:-1]] == gone
        assert owners.record(task).excluded == tuple(gone), "both may come back"
        await world.mint_until(lambda: owners.record(task).phase is Phase.SETTLED, timeout_s=120)


@pytest.mark.slow
async def test_a_job_that_fails_with_a_code_of_its_list_goes_on_elsewhere(
    world: World, lent: EngineMachine
) -> None:
    async with started_owners(world, lent, 2) as owners:
        task = await owners.post(2, script=FALLS, again=(75,))
        first = (await owners.running(task)).wallet.address
        second = (await owners.running(task, first)).wallet.address
        await world.mint_until(lambda: owners.record(task).phase in ENDED, timeout_s=120)
        meter, stored = owners.meter(task), owners.stored(task)
        assert owners.record(task).phase is Phase.SETTLED and meter.end is not None
        assert (meter.end.code, meter.end.worker) == (0, second)
        assert [run.worker for run in stored.runs] == [first, second]
        assert stored.runs[0].lost == 0, "its last checkpoint was not stored before it said how it ended"


@pytest.mark.nightly
@pytest.mark.slow
async def test_three_owners_take_their_machines_back_in_turn(world: World, lent: EngineMachine) -> None:
    async with started_owners(world, lent, 4) as owners:
        task = await owners.post(50, ticks=30)
        gone = await turns(owners, task, 3)
        await world.mint_until(lambda: owners.record(task).phase is Phase.SETTLED, timeout_s=240)
        check_bill(owners, task, gone, 45)


def test_notes_keep_checkpoints_for_a_day(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs", budget_bytes=1 << 20)
    first, second = blobs.add(b"first"), blobs.add(b"second!")
    backend = DockerBackend(EngineOptions(), b"n" * 20, tmp_path / "engine")

    def made() -> ContainerCheckpoints:
        return ContainerCheckpoints(None, None, None, blobs, backend, tmp_path / "notes", None)  # type: ignore[arg-type]

    notes = made()
    notes._put(b"\1" * 32, CheckpointNote(1_000, False, (second, first)))
    notes._put(b"\2" * 32, CheckpointNote(1_000, True, (second,)))
    (tmp_path / "notes" / ("a" * 64 + ".new")).write_bytes(b"half")
    (tmp_path / "notes" / ("b" * 64)).write_bytes(b"damaged")
    again = made()
    assert again.is_leaving(b"\2" * 32) and not again.is_leaving(b"\1" * 32)
    assert blobs.kept_bytes() == 12
    again.tidy(1_000 + KEPT_MS - 1, frozenset())
    assert blobs.kept_bytes() == 12
    again.tidy(1_000 + KEPT_MS, frozenset({b"\2" * 32}))
    assert blobs.kept_bytes() == 7
    again.tidy(1_000 + KEPT_MS, frozenset())
    assert blobs.kept_bytes() == 0 and not list((tmp_path / "notes").iterdir())


def test_the_time_that_an_owner_names_becomes_steady_time() -> None:
    from node.home.options import ExecutorOptions, NodeOptions

    def options(until: str) -> NodeOptions:
        return NodeOptions(executor=ExecutorOptions(docker=DockerOptions(until=until)))

    assert stays_until(options(""), 500, 0) == 0
    assert stays_until(options("1970-01-01T00:00:10+00:00"), 500, 4_000) == 6_500
    assert stays_until(options("1970-01-01T00:00:10+00:00"), 500, 10_000) == 0
    for wrong in ("tomorrow", "2027-01-01T00:00"):
        with pytest.raises(ConfigError, match=r"executor.docker.until"):
            stays_until(options(wrong), 0, 0)
