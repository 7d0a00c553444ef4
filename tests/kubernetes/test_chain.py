"""A machine that lends a cluster, on a chain driven block by block: from a posted task to its result."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import trio

from node.home.options import KubernetesOptions
from tasks.executor.containers.egress import proxy
from tasks.kinds.container import Allowance, Checkpoint, ExitKind, Image
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.lifecycle import Phase
from tests.kubernetes.machine import Cluster
from tests.node.market.test_containers import INPUT, TICK_S, Lending
from tests.node.world import Machine, World, world_with
from tests.tasks.executor.containers.public_server import CONTENT, public_server

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


class Clustered(Lending):
    """One machine that lends a cluster which enforces no policy."""

    allows = int(Allowance.LEAVING | Allowance.UNISOLATED)

    def __init__(
        self, world: World, cluster: Cluster, number: int = 1, *, egress: tuple[str, ...] = ()
    ) -> None:  # fmt: skip
        self.world, self.cluster = world, cluster
        self.machine = Machine(world, number, "compute")
        lent = KubernetesOptions(
            enabled=True, kubeconfig=str(cluster.kubeconfig), unisolated_allowed=True,
            helper_image=f"{cluster.repository}@sha256:{cluster.digest.hex()}", egress=egress,
        )  # fmt: skip
        executor = replace(self.machine.options.executor, kubernetes=lent)
        self.machine.options = replace(self.machine.options, executor=executor)

    def image(self) -> Image:
        return Image(self.cluster.repository, self.cluster.digest)

    def names(self, *, running: bool = False) -> list[str]:
        """Return the namespaces of the machine's tasks, or of those whose container runs."""
        label = f"dekube.node={self.machine.wallet.address.hex()},dekube.task!=none"
        if not running:
            return self.cluster.kubectl("get", "namespaces", "-l", label, "-o", "name").split()
        path = (
            '{range .items[*]}{.status.containerStatuses[?(@.name=="main")].state.running.startedAt}{"\\n"}{end}'
        )
        return self.cluster.kubectl("get", "pods", "-A", "-l", label, "-o", f"jsonpath={path}").split()


async def test_a_task_runs_in_a_cluster_survives_its_node_and_is_paid(
    world: World, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches a name by its node before and after."""
    get = "wget -q -O - http://plain.example.net/"
    get = f"until {get}; do sleep 0.2; done"
    script = f"cat /input > /output/copy; {get}; echo begun; sleep 20; {get}; echo done"
    lending = Clustered(world, cluster, egress=("*:80",))
    with public_server(tmp_path / "server") as server:
        monkeypatch.setattr(proxy, "look_up", lambda _name: [server.address])
        async with trio.open_nursery() as nursery:
            blob = await lending.start(nursery)
            await nursery.start(lending.machine.run)
            task = await lending.post(script, blob, egress=("plain.example.net:80",))
            await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=120)
            await trio.sleep(1)
            lending.machine.stop()  # the node goes down, the container goes on
            await trio.sleep(1)
            assert len(lending.names()) == 1
            await nursery.start(lending.machine.run)
            await world.mint_until(lambda: lending.record(task).phase is Phase.SETTLED, timeout_s=180)
            meter = lending.meter(task)
            assert meter.end is not None
            assert (meter.end.kind, meter.end.code) == (ExitKind.EXITED, 0)
            log = lending.read(meter.end.logs).decode()
            assert log == f"{CONTENT}begun\n{CONTENT}done\n", "begun a second time"
            with tarfile.open(fileobj=BytesIO(lending.read(meter.end.output))) as packed:
                file = packed.extractfile("copy")
                assert file is not None and file.read() == INPUT
            assert meter.seconds >= TICK_S and meter.paid > 0
            await world.mint_until(lambda: not lending.names(), timeout_s=60)
            nursery.cancel_scope.cancel()


@pytest.mark.nightly
async def test_what_a_container_saves_as_its_cluster_takes_it_away_is_on_the_chain(
    world: World, cluster: Cluster
) -> None:
    lending = Clustered(world, cluster)
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        script = "trap 'echo 9 > /state/step; exit 0' TERM; while :; do sleep 0.2; done"
        task = await lending.post(script, blob, checkpoint=Checkpoint("/state", 3_600, 1 << 20))
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=180)
        await world.mint_until(lambda: lending.meter(task).seconds > 0, timeout_s=180)
        namespace = lending.names()[0].partition("/")[2]
        pod = cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").strip().partition("/")[2]
        cluster.evict(namespace, pod)
        await world.mint_until(lambda: lending.record(task).phase is not Phase.RUNNING, timeout_s=180)
        latest = load_checkpoints(world.store, task).latest
        assert latest is not None and latest.worker == lending.machine.wallet.address
        with tarfile.open(fileobj=BytesIO(lending.read(latest.blob))) as packed:
            file = packed.extractfile("step")
            assert file is not None and file.read() == b"9\n"
        await world.mint_until(lambda: not lending.names(), timeout_s=90)
        nursery.cancel_scope.cancel()
