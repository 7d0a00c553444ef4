"""A node that sells a whole cluster: many tasks at once, never more than there is, and its owner's work first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

import node.market.cluster_offers
import tasks.executor.containers.kubernetes.backend
import tasks.executor.containers.kubernetes.manifests
import tasks.executor.containers.kubernetes.selling
from node.home.options import RegistryOptions
from node.market.machine import keep_rate
from state.view.accounts import load_account
from tasks.kinds.container import ContainerPart, ExitKind, Metering, Process, Storage
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeProfile, NodeRecord, NodeRole, load_node
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import Requirements, container_job, encode_spec
from tests.kubernetes.machine import Cluster, script
from tests.kubernetes.test_chain import Clustered
from tests.node.market.test_containers import PRICE, RATE_MIN, REQUESTER, TICK_S
from tests.node.world import COIN, World, world_with
from tests.p2p.helpers import account

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(node.market.cluster_offers, "LOOK_S", 0.5)
    monkeypatch.setattr(node.market.cluster_offers, "GROW_S", 1.0)
    monkeypatch.setattr(tasks.executor.containers.kubernetes.selling, "KNOWN_S", 0.5)
    monkeypatch.setattr(tasks.executor.containers.kubernetes.selling, "TAKING_SHARE", 1)
    monkeypatch.setattr(tasks.executor.containers.kubernetes.backend, "are_policies_enforced", not_looked_at)
    if (os.cpu_count() or 1) < 4:  # two containers of one core each have room on a machine of two cores
        monkeypatch.setattr(tasks.executor.containers.kubernetes.manifests, "HELPER_MILLICORES", 0)
    made = world_with(tmp_path, monkeypatch, {"tasks.decline_ms": 1_000})
    yield made
    made.store.close()


async def not_looked_at(*_: object) -> tuple[bool, str]:
    """Stand in for the canary pods, which take a while and have their own test."""
    return False, "not looked at by this test"


class Provider(Clustered):
    """A node that registers by itself and sells what the cluster has."""

    def __init__(self, world: World, cluster: Cluster, number: int = 1, **options: Any) -> None:
        super().__init__(world, cluster, number)
        lent = replace(self.machine.options.executor.kubernetes, **options)
        executor = replace(self.machine.options.executor, kubernetes=lent)
        self.machine.options = replace(
            self.machine.options, executor=executor, registry=RegistryOptions(auto_register=True)
        )

    async def begin(self, nursery: trio.Nursery) -> None:
        """Start the node, and wait until the registry has what it offers."""
        await nursery.start(self.machine.network.run)
        self.machine.home.rate.parent.mkdir(parents=True, exist_ok=True)
        keep_rate(self.machine.home.rate, RATE_MIN)
        await nursery.start(self.machine.run)
        await self.world.mint_until(lambda: self.record_of_machine is not None, timeout_s=60)
        lacks = NodeRole.UNISOLATED | NodeRole.NO_ROOT
        assert self.profile.roles & lacks == lacks, "this cluster enforces no policy, and no pod has user 0"

    @property
    def record_of_machine(self) -> NodeRecord | None:
        """What the registry knows of the machine."""
        return load_node(self.world.store, self.machine.wallet.address)

    @property
    def profile(self) -> NodeProfile:
        """What the machine offers."""
        found = self.record_of_machine
        assert found is not None
        return found.profile

    async def offering(self, cores: int) -> None:
        """Wait until so many cores are offered."""
        await self.world.mint_until(lambda: self.profile.cores == cores, timeout_s=60)

    async def order(self, text: str, *, gpus: int = 0, cores: int = 1, ticks: int = 6) -> bytes:
        part = ContainerPart(
            self.image(), Process(("/bin/sh", "-c", text), (), 65_534), Storage((), "", 0, 32), cores,
            Metering("reserved", 3_600, 8), allows=self.allows,
        )  # fmt: skip
        spec = container_job(
            part, ticks=ticks, tick_s=TICK_S, max_price_per_tera_unit=PRICE,
            requirements=Requirements(gpus, 64, RATE_MIN), match_ms=30_000_000,
        )  # fmt: skip
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        await self._send(REQUESTER, CREATE_TASK, [encode_spec(spec)])
        return task_id_of(account(REQUESTER).address, nonce)


def owners_pod(cluster: Cluster, name: str, cores: str = "1500m") -> None:
    """Start a pod of the cluster's owner, with the priority that pods have by default."""
    image = f"{cluster.repository}@sha256:{cluster.digest.hex()}"
    spec = {
        "containers": [{
            "name": "own", "image": image, "command": ["/bin/sh", "-c", "sleep 600 & wait"],
            "resources": {"requests": {"cpu": cores}},
        }],
        "terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "automountServiceAccountToken": False,
    }  # fmt: skip
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    file = cluster.folder / f"{name}.json"
    file.write_text(json.dumps(body))
    cluster.kubectl("apply", "-f", str(file))


async def test_six_tasks_share_two_gpus(world: World, cluster: Cluster) -> None:
    if not cluster.is_own:
        pytest.skip("only the cluster of this machine announces devices that are not there")
    script("gpus", "2")
    lending = Provider(world, cluster, gpus=2)
    try:
        async with trio.open_nursery() as nursery:
            await lending.begin(nursery)
            await world.mint_until(lambda: len(lending.profile.gpus) == 2, timeout_s=60)
            profile = lending.profile
            assert profile.roles & NodeRole.ONLY_CONTAINERS
            assert (len(profile.gpus), profile.gpus[0].model, profile.slots) == (2, "nvidia.com/gpu", 2)
            tasks = [await lending.order("sleep 2; echo done", gpus=1) for _ in range(6)]
            most = 0

            def are_done() -> bool:
                nonlocal most
                records = [lending.record(task) for task in tasks]
                most = max(most, sum(record.phase is Phase.RUNNING for record in records))
                return all(record.phase is Phase.SETTLED for record in records)

            await world.mint_until(are_done, timeout_s=240)
            assert most == 2, "two at a time"
            for task in tasks:
                assert not lending.record(task).excluded, "nothing was declined or left"
                end = lending.meter(task).end
                assert end is not None and (end.kind, end.code) == (ExitKind.EXITED, 0)
            await world.mint_until(lambda: not lending.names(), timeout_s=60)
            nursery.cancel_scope.cancel()
    finally:
        script("gpus", "0")


async def test_n55_the_owners_work_comes_first_and_a_cordoned_machine_is_not_offered(
    world: World, cluster: Cluster
) -> None:
    if not cluster.is_own:
        pytest.skip("a cluster of somebody else is not filled, nor are its machines cordoned")
    first, second = Provider(world, cluster), Provider(world, cluster, 2)
    try:
        async with trio.open_nursery() as nursery:
            await first.begin(nursery)
            await world.mint_until(lambda: first.profile.cores > 0, timeout_s=60)
            whole = first.profile.cores
            assert whole > 0
            task = await first.order("sleep 8; echo done", ticks=30)
            await world.mint_until(lambda: bool(first.names(running=True)), timeout_s=90)
            owners_pod(cluster, "owners-work", f"{1_000 * whole - 500}m")
            await world.mint_until(lambda: bool(first.record(task).excluded), timeout_s=60)
            await world.mint_until(lambda: not first.names(), timeout_s=60)
            assert cluster.kubectl("get", "pod", "owners-work", "-o", "jsonpath={.status.phase}") == "Running"
            left = first.record_of_machine
            assert left is not None
            assert (left.failures, left.bad, left.bond) == (0, 0, 10 * COIN), "it is nobody's fault"
            await second.begin(nursery)
            await first.offering(0)
            assert second.profile.cores == 0, "nothing is free"
            assert first.record(task).phase not in (Phase.RUNNING, Phase.SETTLED)
            cluster.kubectl("delete", "pod", "owners-work", "--wait=false")
            await world.mint_until(lambda: first.record(task).phase is Phase.SETTLED, timeout_s=120)
            meter = first.meter(task)
            assert meter.end is not None and meter.end.worker == second.machine.wallet.address
            assert meter.end.code == 0 and meter.paid > 0
            await world.mint_until(lambda: not second.names(), timeout_s=60)
            await first.offering(whole)
            cluster.kubectl("cordon", "node-1")
            await first.offering(0)
            cluster.kubectl("uncordon", "node-1")
            await first.offering(whole)
            nursery.cancel_scope.cancel()
    finally:
        cluster.kubectl("uncordon", "node-1")
        cluster.kubectl("delete", "pod", "owners-work", "--ignore-not-found", "--wait=false")
