"""Three machines run one container on a real engine and a chain, and one of them lies (R113 to R116)."""

from __future__ import annotations

import tarfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import trio

from billing.escrow import earnings_of
from billing.prices import Role
from node.home.options import DockerOptions
from node.market.container_files import ContainerFiles, ContainerNote
from node.market.machine import describe_machine
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from state.view.accounts import load_account
from tasks.executor.containers.backend import Collected
from tasks.executor.containers.request import ContainerRequest
from tasks.kinds.container import ContainerPart, ExitKind, Image, Metering, Mount, MountForm, Process, Storage
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import ContainerEnd, load_meter
from tasks.ledger.quorum_records import (
    SEATS,
    QuorumPhase,
    QuorumRecord,
    SeatState,
    load_quorum,
    quorum_seat_task,
    seat_number,
)
from tasks.ledger.records import load_task
from tasks.ledger.transitions import CREATE_TASK, REGISTER_NODE, node_payload, task_id_of
from tasks.spec import LEVEL_QUORUM, Requirements, container_job, encode_spec
from tests.node.world import COIN, Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine

REQUESTER = 9
INPUT = b"input of the container"
RIGHT, WRONG = b"INPUT OF THE CONTAINER", b"input OF the CONTAINER"
SCRIPT = "tr a-z A-Z < /input > /output/upper; date; sleep 1"
RATE_MIN = 10**9
PRICE = 10**16
FIRST = 1

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


Collecting = Callable[[bytes, ContainerRequest, str], Awaitable[Collected]]


class Hosts:
    """Machines of different owners on one engine; each keeps its containers apart by its address."""

    def __init__(self, world: World, lent: EngineMachine, count: int) -> None:
        self.world, self.lent = world, lent
        self.machines = [Machine(world, number, "compute") for number in range(FIRST, FIRST + count)]
        docker = DockerOptions(enabled=True, socket=str(lent.engine.socket), disk_gib=1)
        for machine in self.machines:
            executor = replace(machine.options.executor, docker=docker)
            machine.options = replace(machine.options, executor=executor)

    async def start(self, nursery: trio.Nursery) -> bytes:
        """Start all machines; return the name of the input, which all hold."""
        name = b""
        for machine in self.machines:
            await nursery.start(machine.network.run)
            assert machine.network.blobs is not None
            name = machine.network.blobs.add(INPUT)
            profile = describe_machine(machine.wallet.address, machine.options, RATE_MIN, containers=True)
            await self.send(machine.number, REGISTER_NODE, node_payload(profile, 100 * COIN))
            await nursery.start(machine.run)
        return name

    async def send(self, number: int, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(number).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    async def post(self, blob: bytes) -> bytes:
        """Post a container that is declared deterministic; return the id of its first seat."""
        part = ContainerPart(
            Image(REPOSITORY, bytes.fromhex(self.lent.image_id.removeprefix("sha256:"))),
            Process(("/bin/sh", "-c", SCRIPT), (), 65_534),
            Storage((Mount("/input", blob, len(INPUT), MountForm.FILE),), "/output", 1 << 20, 32), 1,
            Metering("reserved", 3_600, 0),
        )  # fmt: skip
        spec = container_job(
            part, ticks=6, tick_s=10, max_price_per_tera_unit=PRICE, requirements=Requirements(0, 64, RATE_MIN),
            match_ms=600_000, level=LEVEL_QUORUM,
        )  # fmt: skip
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        await self.send(REQUESTER, CREATE_TASK, [encode_spec(spec)])
        return task_id_of(account(REQUESTER).address, nonce)

    def quorum(self, task: bytes) -> QuorumRecord:
        return load_quorum(self.world.store, task)

    def earned(self, number: int) -> int:
        return earnings_of(self.world.store, account(number).address).get(Role.COMPUTE, 0)

    def read(self, number: int, name: bytes) -> bytes:
        blobs = self.machines[number - FIRST].network.blobs
        assert blobs is not None
        return blobs.read(name)

    def left(self) -> list[str]:
        """Return containers and disks that are still there."""
        names = self.lent.engine.docker("ps", "--all", "--format", "{{.Names}}").split()
        folders = [machine.home.jobs.parent / "containers" for machine in self.machines]
        return names + [str(disk) for folder in folders for disk in folder.glob("*/disk.img")]

    def has_lied(self) -> None:
        """Have the machine of a first seat change what its container left, as a node with other code would."""
        for machine in self.machines:
            assert machine.duties is not None and machine.duties.containers is not None
            backend = machine.duties.containers._backend

            async def forge(
                task: bytes, request: ContainerRequest, packed: str, collect: Collecting = backend.collect
            ) -> Collected:
                found = await collect(task, request, packed)
                if not seat_number(self.world.store, task):
                    await trio.to_thread.run_sync(_change, Path(packed))
                return found

            backend.collect = forge  # type: ignore[method-assign]


def _change(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes().replace(RIGHT, WRONG))


async def test_the_requester_gets_the_right_output_and_the_liar_is_not_paid(
    world: World, lent: EngineMachine
) -> None:
    hosts = Hosts(world, lent, 3)
    async with trio.open_nursery() as nursery:
        blob = await hosts.start(nursery)
        hosts.has_lied()
        task = await hosts.post(blob)
        await world.mint_until(lambda: hosts.quorum(task).phase is QuorumPhase.THIRD, timeout_s=90)
        seats = [quorum_seat_task(task, seat) for seat in range(SEATS)]
        assert [load_meter(world.store, seat).end for seat in seats] == [None] * 3  # no output is named yet
        assert [hosts.earned(machine.number) for machine in hosts.machines] == [0] * 3
        await world.mint_until(lambda: hosts.quorum(task).phase is QuorumPhase.ENDED, timeout_s=90)
        found = hosts.quorum(task)
        assert [seat.state for seat in found.seats] == [SeatState.DIFFERED, SeatState.AGREED, SeatState.AGREED]
        liar = next(one.number for one in hosts.machines if one.wallet.address == found.seats[0].machine)
        honest = [one.number for one in hosts.machines if one.number != liar]
        assert load_task(world.store, task).phase is Phase.SETTLED
        assert load_task(world.store, task).reason is Reason.OUTPUT_DIFFERS
        assert hosts.earned(liar) == 0 and all(hosts.earned(number) > 0 for number in honest)
        assert load_meter(world.store, task).end is None  # what the liar left has no name on the chain
        for seat in (1, 2):
            end = load_meter(world.store, seats[seat]).end
            assert end is not None and (end.kind, end.code) == (ExitKind.EXITED, 0)
            number = next(one.number for one in hosts.machines if one.wallet.address == end.worker)
            with tarfile.open(fileobj=BytesIO(hosts.read(number, end.output))) as packed:
                file = packed.extractfile("upper")
                assert file is not None and file.read() == RIGHT
        counted = [machine.duties.containers for machine in hosts.machines if machine.duties is not None]
        assert sum(one.agreed for one in counted if one is not None) == 1  # the third machine shows no seal
        assert sum(one.sealed for one in counted if one is not None) == 2  # the third came after the results
        await world.mint_until(lambda: not hosts.left(), timeout_s=60)
        nursery.cancel_scope.cancel()


def test_the_salt_of_a_seal_outlives_a_restart(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs", budget_bytes=1 << 20)
    note = ContainerNote(5, 1_000, ContainerEnd(ExitKind.EXITED, 0, blobs.add(b"out"), 3, b"", 0, b""), b"s" * 32)
    ContainerFiles(tmp_path / "notes", blobs).put(b"\1" * 32, note)
    assert ContainerFiles(tmp_path / "notes", blobs).get(b"\1" * 32) == note
