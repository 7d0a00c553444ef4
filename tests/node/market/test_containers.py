"""A machine that runs containers on a real engine, on a chain driven block by block."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import trio

import tasks.executor.containers.docker
from billing.prices import work_price
from node.home.options import DockerOptions
from node.market.container_files import KEPT_MS, ContainerFiles, ContainerNote
from node.market.machine import describe_machine
from node.market.task_views import METHOD_VIEW, TaskViews
from p2p.base.errors import RequestRefused
from p2p.blob.store import BlobStore
from rpc.protocol.task_views import ViewQuestion, ViewRefused, encode_question, open_view, view_digest
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.view.accounts import load_account
from tasks.custody.wraps import public_key_of
from tasks.executor.containers.log_entries import LogPlace
from tasks.kinds.container import (
    Allowance,
    Checkpoint,
    ContainerPart,
    ExitKind,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    Storage,
)
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import ContainerEnd, MeterRecord, load_meter
from tasks.ledger.records import TaskRecord, load_spec, load_task
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK, REGISTER_NODE, node_payload, task_id_of
from tasks.spec import Requirements, container_job, encode_spec
from tests.node.world import COIN, Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine

REQUESTER = 9
INPUT = b"input of the container"
TICK_S = 10
RATE_MIN = 10**9
PRICE = 10**16
RESERVED = Metering("reserved", 3_600, 0)
_BODY = '{"progress": 5, "total": 9, "metrics": {"loss": 0.25}}'
REPORT = (
    f"printf 'POST /progress HTTP/1.1\\r\\nHost: job\\r\\nContent-Length: {len(_BODY)}\\r\\n\\r\\n{_BODY}'"
    " | unix_pipe $DEKUBE_SOCKET > /scratch/said"
)

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


class Lending:
    """One machine that lends its engine, and the tasks that are posted to it."""

    def __init__(self, world: World, lent: EngineMachine, *, egress: tuple[str, ...] = ()) -> None:
        self.world, self.lent = world, lent
        self.machine = Machine(world, 1, "compute")
        docker = DockerOptions(enabled=True, socket=str(lent.engine.socket), disk_gib=4, egress=egress)
        executor = replace(self.machine.options.executor, docker=docker)
        self.machine.options = replace(self.machine.options, executor=executor)

    async def start(self, nursery: trio.Nursery) -> bytes:
        """Start the network, keep the input, register; return the input's name."""
        await nursery.start(self.machine.network.run)
        blobs = self.machine.network.blobs
        assert blobs is not None
        name = blobs.add(INPUT)
        profile = describe_machine(
            self.machine.wallet.address, self.machine.options, RATE_MIN, containers=True, egress=True
        )
        await self._send(self.machine.number, REGISTER_NODE, node_payload(profile, 100 * COIN))
        return name

    async def _send(self, number: int, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(number).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    allows = int(Allowance.LEAVING)
    """What tasks put up with."""

    def image(self) -> Image:
        """Return the image of tasks."""
        return Image(REPOSITORY, bytes.fromhex(self.lent.image_id.removeprefix("sha256:")))

    async def post(
        self, script: str, blob: bytes, *, ticks: int = 6, digest: bytes = b"", metering: Metering = RESERVED,
        egress: tuple[str, ...] = (), checkpoint: Checkpoint | None = None,
    ) -> bytes:  # fmt: skip
        """Post a container; return the task's id."""
        image = Image(REPOSITORY, digest) if digest else self.image()
        part = ContainerPart(
            image, Process(("/bin/sh", "-c", script), (), 65_534, egress),
            Storage((Mount("/input", blob, len(INPUT), MountForm.FILE),), "/output", 1 << 20, 32), 1,
            metering, checkpoint, allows=self.allows,
        )  # fmt: skip
        spec = container_job(
            part, ticks=ticks, tick_s=TICK_S, max_price_per_tera_unit=PRICE,
            requirements=Requirements(0, 64, RATE_MIN), match_ms=600_000,
        )  # fmt: skip
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        await self._send(REQUESTER, CREATE_TASK, [encode_spec(spec)])
        return task_id_of(account(REQUESTER).address, nonce)

    async def cancel(self, task: bytes) -> None:
        await self._send(REQUESTER, CANCEL_TASK, [task])

    def record(self, task: bytes) -> TaskRecord:
        return load_task(self.world.store, task)

    def meter(self, task: bytes) -> MeterRecord:
        return load_meter(self.world.store, task)

    def read(self, name: bytes) -> bytes:
        assert self.machine.network.blobs is not None
        return self.machine.network.blobs.read(name)

    def names(self, *, running: bool = False) -> list[str]:
        which = () if running else ("--all",)
        return self.lent.engine.docker("ps", *which, "--format", "{{.Names}}").split()


async def test_a_container_runs_survives_its_node_and_is_paid(world: World, lent: EngineMachine) -> None:
    lending = Lending(world, lent)
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        task = await lending.post(f"cat /input > /output/copy; echo begun; {REPORT}; sleep 14; echo done", blob)
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
        await check_seen(lending, nursery, task)
        lending.machine.stop()  # the node goes down, the container goes on
        await trio.sleep(1)
        (name,) = lending.names()
        await nursery.start(lending.machine.run)
        await world.mint_until(lambda: lending.record(task).phase is Phase.SETTLED, timeout_s=120)
        meter = lending.meter(task)
        assert meter.end is not None
        assert (meter.end.kind, meter.end.code) == (ExitKind.EXITED, 0)
        assert lending.read(meter.end.logs) == b"begun\ndone\n"
        with tarfile.open(fileobj=BytesIO(lending.read(meter.end.output))) as packed:
            file = packed.extractfile("copy")
            assert file is not None and file.read() == INPUT
        assert meter.seconds >= TICK_S and meter.paid > 0
        assert lending.machine.duties is not None
        containers = lending.machine.duties.containers
        assert containers is not None and (containers.started, containers.adopted) == (0, 1), "begun a second time"
        await world.mint_until(lambda: name not in lending.names())
        await check_paid_to_the_second(lending, blob)
        await check_stopped(lending, blob)
        await check_failed(lending, blob)
        nursery.cancel_scope.cancel()


def question(world: World, task: bytes, number: int, secret: bytes, after: LogPlace = LogPlace()) -> bytes:  # noqa: B008
    """A question about a task, signed by an account."""
    public, until = public_key_of(secret), world.ledger.head().height + 9
    signed = view_digest(world.runtime.genesis_hash, task, public, until)
    return encode_question(ViewQuestion(public, until, account(number).sign(signed), after, 1 << 16, 0))


async def check_seen(lending: Lending, nursery: trio.Nursery, task: bytes) -> None:
    """Its requester sees log and progress of the running container over another node; nobody else does."""
    world, secret = lending.world, b"s" * 32
    gateway = Machine(world, 2, "compute")
    await nursery.start(gateway.network.run)
    views = TaskViews(world.ledger, gateway.network, gateway.wallet, lambda: None)
    with trio.fail_after(30):
        while True:
            worker, sealed = await views.task_view(task, question(world, task, REQUESTER, secret))
            view = open_view(sealed, secret, task=task, worker=worker)
            if view.progress is not None and view.log.entries and view.memory_bytes:
                break
            await trio.sleep(0.3)
    assert worker == lending.machine.wallet.address
    assert (view.stage, view.progress, view.total, view.metrics) == ("running", 5, 9, {"loss": 0.25})
    assert [entry.text for entry in view.log.entries] == [b"begun\n"] and view.points[-1].progress == 5
    worker, sealed = await views.task_view(task, question(world, task, REQUESTER, secret, view.log.place))
    assert not open_view(sealed, secret, task=task, worker=worker).log.entries
    with pytest.raises(DecodeError):
        open_view(sealed, b"x" * 32, task=task, worker=worker)
    with pytest.raises(ViewRefused):
        await views.task_view(task, question(world, task, 2, secret))
    body = encode([task, question(world, task, 2, secret)])
    with pytest.raises(RequestRefused, match="view_refused"):  # a node that does not check carries it in vain
        await gateway.network.request(worker, METHOD_VIEW, body)


@pytest.mark.nightly
async def test_an_engine_that_stops_ends_no_node(
    world: World, lent: EngineMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duty fails and is tried again; the engine has killed the container, which is told with its signal."""
    monkeypatch.setattr(tasks.executor.containers.docker, "ENGINE_PATIENCE_S", 1.0)
    lending = Lending(world, lent)
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        task = await lending.post("echo begun; sleep 600", blob)
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
        await trio.to_thread.run_sync(lent.engine.pause)
        duties = lending.machine.duties
        assert duties is not None
        await world.mint_until(
            # The end may be on chain already: the engine answers while it stops its containers.
            lambda: (
                lending.record(task).phase is Phase.FAILED
                or any(found["code"] == "engine_unavailable" for found in duties.troubles())
            ),
            timeout_s=60,
        )
        await trio.to_thread.run_sync(lent.engine.restart)
        await world.mint_until(lambda: lending.record(task).phase is Phase.FAILED, timeout_s=60)
        end = lending.meter(task).end
        assert end is not None and end.kind is ExitKind.SIGNALLED and lending.read(end.logs) == b"begun\n"
        folder = lending.machine.home.jobs.parent / "containers"
        await world.mint_until(lambda: not list(folder.glob("*/disk.img")), timeout_s=60)
        nursery.cancel_scope.cancel()


async def check_paid_to_the_second(lending: Lending, blob: bytes) -> None:
    """A program that knows nothing of us reads the clock at its beginning and at its end, in mid-tick."""
    task = await lending.post("date +%s > /output/began; sleep 13; date +%s > /output/ended", blob)
    await lending.world.mint_until(lambda: lending.record(task).phase is Phase.SETTLED, timeout_s=120)
    meter = lending.meter(task)
    assert meter.end is not None
    with tarfile.open(fileobj=BytesIO(lending.read(meter.end.output))) as packed:
        began, ended = (int(packed.extractfile(name).read()) for name in ("began", "ended"))  # type: ignore[union-attr]
    assert ended - began - 1 <= meter.seconds <= ended - began + 2, "its own start and end are beside"
    spec = load_spec(lending.world.store, task)
    price = work_price(meter.seconds * spec.step_units, lending.record(task).price_per_tera_unit)
    assert abs(meter.paid - price) <= 2


async def check_stopped(lending: Lending, blob: bytes) -> None:
    """Its requester stops a container that would never end: what it wrote until then is kept."""
    task = await lending.post("trap 'exit 0' TERM; echo x > /output/x; while :; do sleep 1; done", blob)
    await lending.world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
    await trio.sleep(2)
    await lending.cancel(task)
    await lending.world.mint_until(lambda: lending.record(task).phase is Phase.CANCELLED, timeout_s=60)
    meter = lending.meter(task)
    assert meter.end is not None and meter.end.kind is ExitKind.STOPPED and meter.end.output
    await lending.world.mint_until(lambda: not lending.names())


async def check_failed(lending: Lending, blob: bytes) -> None:
    """A failed run is told with its code; an image that is not to be had costs nothing."""
    task = await lending.post("echo wrong >&2; exit 7", blob)
    await lending.world.mint_until(lambda: lending.record(task).phase is Phase.FAILED, timeout_s=60)
    meter = lending.meter(task)
    assert meter.end is not None and (meter.end.kind, meter.end.code) == (ExitKind.EXITED, 7)
    assert lending.read(meter.end.logs) == b"wrong\n"
    task = await lending.post("true", blob, digest=b"\x07" * 32)
    duties = lending.machine.duties
    assert duties is not None
    await lending.world.mint_until(
        lambda: any(found["task"] == task.hex() and "image" in found["error"] for found in duties.troubles())
        or lending.record(task).phase in (Phase.EXPIRED, Phase.FAILED),
        timeout_s=60,
    )  # fmt: skip
    assert not lending.meter(task).paid
    assert lending.record(task).phase is not Phase.RUNNING
    assert Reason.STARTED  # the phases above are all that can follow


def test_notes_keep_the_blobs_of_an_end_for_a_day(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs", budget_bytes=1 << 20)
    output, logs = blobs.add(b"output"), blobs.add(b"logs")
    files = ContainerFiles(tmp_path / "notes", blobs)
    end = ContainerEnd(ExitKind.EXITED, 0, output, 6, logs, 4, b"")
    files.put(b"\1" * 32, ContainerNote(5, 1_000, end))
    files.put(b"\2" * 32, ContainerNote())
    (tmp_path / "notes" / ("a" * 64 + ".new")).write_bytes(b"half")
    (tmp_path / "notes" / ("b" * 64)).write_bytes(b"damaged")
    again = ContainerFiles(tmp_path / "notes", blobs)
    assert again.get(b"\1" * 32) == ContainerNote(5, 1_000, end)
    assert again.get(b"\2" * 32) == ContainerNote()
    assert blobs.kept_bytes() == 10
    again.tidy(1_000 + KEPT_MS - 1, frozenset())
    assert again.get(b"\2" * 32) is None and again.get(b"\1" * 32) is not None
    again.tidy(1_000 + KEPT_MS, frozenset())
    assert again.get(b"\1" * 32) is None


@pytest.mark.nightly
async def test_a_container_that_stands_still_is_ended_and_paid_until_then(
    world: World, lent: EngineMachine
) -> None:
    """With the meter ``progress``: a counter in the log moves for a while, then stands still for a tick."""
    lending = Lending(world, lent)
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        script = "for i in 1 2 3 4; do echo step $i of 9; sleep 3; done; sleep 600"
        metering = Metering("progress", 3_600, 0, TICK_S, "step ")
        task = await lending.post(script, blob, ticks=30, metering=metering)
        await world.mint_until(lambda: lending.record(task).phase is Phase.FAILED, timeout_s=120)
        meter = lending.meter(task)
        assert meter.end is not None and meter.end.kind is ExitKind.IDLE
        assert meter.seconds in (TICK_S, 2 * TICK_S), "whole ticks up to a tick after the last move"
        assert lending.read(meter.end.logs).count(b"step") == 4
        nursery.cancel_scope.cancel()
