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
import tasks.executor.containers.kubernetes.manifests
import tasks.executor.containers.kubernetes.selling
from node.home.options import RegistryOptions
from node.market.machine import keep_rate
from state.view.accounts import load_account
from tasks.kinds.container import ContainerPart, ExitKind, Process, Storage
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeProfile, NodeRole, load_node
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import Requirements, container_job, encode_spec
from tests.kubernetes.machine import Cluster, script
from tests.kubernetes.test_chain import Clustered
from tests.node.market.test_containers import PRICE, RATE_MIN, REQUESTER, RESERVED, TICK_S
from tests.node.world import World, world_with
from tests.p2p.helpers import account

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(node.market.cluster_offers, "LOOK_S", 0.5)
    monkeypatch.setattr(node.market.cluster_offers, "GROW_S", 1.0)
    monkeypatch.setattr(tasks.executor.containers.kubernetes.selling, "KNOWN_S", 0.5)
    if (os.cpu_count() or 1) < 4:  # two containers of one core each have room on a machine of two cores
        monkeypatch.setattr(tasks.executor.containers.kubernetes.manifests, "HELPER_MILLICORES", 0)
    made = world_with(tmp_path, monkeypatch, {"tasks.decline_ms": 1_000})
    yield made
    made.store.close()


class Provider(Clustered):
    """A node that registers by itself and sells what the cluster has."""

    def __init__(self, world: World, cluster: Cluster, number: int = 1, **options: Any) -> None:
        super().__init__(world, cluster)
        if number != 1:
            self.machine = type(self.machine)(world, number, "compute")
        lent = replace(self.machine.options.executor.kubernetes, **options)
        if number != 1:
            lent = replace(Clustered(world, cluster).machine.options.executor.kubernetes, **options)
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
        await self.world.mint_until(lambda: self.profile is not None and self.profile.cores > 0, timeout_s=60)
        assert self.profile is not None
        lacks = NodeRole.UNISOLATED | NodeRole.NO_ROOT
        assert self.profile.roles & lacks == lacks, "this cluster enforces no policy, and no pod has user 0"

    @property
    def profile(self) -> NodeProfile | None:
        found = load_node(self.world.store, self.machine.wallet.address)
        return None if found is None else found.profile

    async def order(self, text: str, *, gpus: int = 0, cores: int = 1, ticks: int = 6) -> bytes:
        part = ContainerPart(
            self.image(), Process(("/bin/sh", "-c", text), (), 65_534), Storage((), "", 0, 32), cores, RESERVED,
            allows=self.allows,
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
            profile = lending.profile
            assert profile is not None and profile.roles & NodeRole.ONLY_CONTAINERS
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
