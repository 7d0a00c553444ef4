"""Secrets, logins and private jobs in a real cluster: what its database, its disks and an outsider get to see."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from node.home.options import KubernetesOptions
from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import ImageUnavailable
from tasks.executor.containers.kubernetes.exec_stream import answer_to
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.kubernetes.scripts import agent_script
from tasks.executor.containers.request import Image, InputMount
from tests.container_engine import PASSWORD, running_registry
from tests.kubernetes.machine import NODE, Cluster, busybox_layer, home, push
from tests.node.market.test_sealed_containers import (
    FIRST,
    KEY_FILE,
    ROWS,
    SCRIPT,
    TOKEN,
    Network,
    check_results,
    find,
    forms,
)
from tests.node.market.test_sealed_containers import sources as sources
from tests.node.world import Machine, World, world_with
from tests.p2p.helpers import account

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(32))
LOGIN = ("keeper", PASSWORD)
SECRETS = ContainerSecrets(
    [("LATER", "$(TOKEN) $$"), ("TOKEN", TOKEN)], [("/run/secrets/key.pem", KEY_FILE)], login=LOGIN
)
PLAIN = b"plain-row-of-a-private-input-4711"


@pytest.fixture
def private(cluster: Cluster, tmp_path: Path) -> Iterator[Image]:
    """An image in a registry that asks for a login."""
    if not cluster.is_own:
        pytest.skip("machines of this cluster do not reach a registry of this machine")
    with running_registry(tmp_path / "registry", login=True) as port:
        yield Image(f"127.0.0.1:{port}/private", push(port, busybox_layer(), "private", LOGIN))


def _secrets(cluster: Cluster, namespace: str) -> str:
    return cluster.kubectl("get", "secrets", "-n", namespace, "-o", "name")


async def _until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while True:
            if condition():
                return
            await trio.sleep(0.2)


async def test_secrets_in_a_pod_are_masked_and_gone(cluster: Cluster, private: Image, tmp_path: Path) -> None:
    backend = cluster.shown()
    script = (
        'cd /run/secrets; echo "($TOKEN) [$LATER]"; cat key.pem; base64 key.pem; wc -c < key.pem;'
        "chmod 600 key.pem 2>/dev/null || echo read-only; mount | grep -c 'tmpfs on /run/secrets';"
        "cp /data /scratch/copy; chmod 0 /scratch/copy; until [ -e /output/go ]; do sleep 0.1; done"
    )
    mounts = (InputMount(bytes(32), "/data", len(PLAIN), is_folder=False),)
    request = replace(cluster.request(script, mounts=mounts), image=private, secrets=SECRETS, is_private=True)
    wrong = ContainerSecrets(login=("keeper", "guessed"))
    with pytest.raises(ImageUnavailable, match="authoriz"):
        await backend.prepare(replace(request, secrets=wrong), lambda _progress: None)
    await backend.prepare(request, lambda _progress: None)
    backend.input_path(TASK, 0).parent.mkdir(parents=True)
    backend.input_path(TASK, 0).write_bytes(PLAIN)
    await backend.start(TASK, request)
    assert not backend.folder(TASK).exists(), "plain inputs stay on the node's disk"
    place = backend.place(TASK)
    pods = cluster.kubectl("get", "pods,jobs", "-n", place.namespace, "-o", "json")
    assert not any(form.decode() in pods for value in (TOKEN.encode(), KEY_FILE[:40]) for form in forms(value))
    async with trio.open_nursery() as nursery:
        ended: list[Any] = []

        async def watch() -> None:
            ended.append(await backend.watch(TASK, request, lambda _look: None))

        nursery.start_soon(watch)
        await _until(lambda: not _secrets(cluster, place.namespace))
        # Another node of the market, whose requester has no login, is not given the image that this one brought.
        other = cluster.shown(b"\x2e" * 20)
        with pytest.raises(ImageUnavailable):
            await other.prepare(replace(request, secrets=ContainerSecrets()), lambda _progress: None)
        await other.aclose()
        pod = cluster.kubectl("get", "pods", "-n", place.namespace, "-o", "jsonpath={.items[0].metadata.name}")
        path = f"{place.path}/pods/{pod}"
        assert (await answer_to(backend._api, path, HELPER, agent_script(": > /dekube/disk/output/go")))[0] == 0
    assert ended[0].end is End.EXITED and ended[0].code == 0
    collected = await backend.collect(TASK, request, str(tmp_path / "packed.tar"))
    log = collected.log.decode()
    assert log.startswith("(***) [***]\n") and "read-only" in log and "\n1\n" in log, log
    assert not any(form.decode() in log for value in (TOKEN.encode(), KEY_FILE[:40]) for form in forms(value))
    assert KEY_FILE.splitlines()[1].decode() not in log and f"\n{len(KEY_FILE)}\n" in log
    plain = [name for name in find(home() / "kubelet", (PLAIN,)) if "/volumes/" in name]
    assert len(plain) == 2, "the input and its copy"
    kept = [os.open(name, os.O_RDONLY) for name in plain]  # what is removed can be read on
    assert await backend.wipe(TASK), "not all was overwritten"
    assert [os.read(file, 4_096).strip(b"\0") for file in kept] == [b"", b""]
    for file in kept:
        os.close(file)
    assert not cluster.kubectl("get", "namespaces", "-l", f"dekube.node={NODE.hex()}", "-o", "name")
    assert not find(home() / "etcd", (KEY_FILE.splitlines()[1], PLAIN)), "files of secrets are in the database"
    assert not find(home() / "kubelet", (TOKEN.encode(), KEY_FILE.splitlines()[1], PASSWORD.encode()))
    for name in ("apiserver", "kubelet", "containerd"):
        said = (home() / f"{name}.log").read_bytes()
        assert TOKEN.encode() not in said and PASSWORD.encode() not in said and PLAIN not in said
    await backend.aclose()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path / "world", monkeypatch, {})
    yield made
    made.store.close()


class Clustered(Network):
    """A requester's node, a machine that lends a cluster, and an outsider."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world, self.cluster = world, cluster
        self.machines = {number: Machine(world, number, "compute") for number in range(4)}
        lent = KubernetesOptions(
            enabled=True, kubeconfig=str(cluster.kubeconfig), unisolated_allowed=True,
            helper_image=f"{cluster.repository}@sha256:{cluster.digest.hex()}",
        )  # fmt: skip
        machine = self.machines[FIRST]
        machine.options = replace(machine.options, executor=replace(machine.options.executor, kubernetes=lent))

    def names(self, *, running: bool = False) -> list[str]:
        label = f"dekube.node={account(FIRST).address.hex()},dekube.task!=none"
        return self.cluster.kubectl("get", "namespaces", "-l", label, "-o", "name").split()


async def test_n52_a_private_container_in_a_cluster_leaves_ciphertext_alone(
    world: World, cluster: Cluster, private: Image, sources: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    network = Clustered(world, cluster)
    async with trio.open_nursery() as nursery:
        await network.start(nursery, FIRST)
        task = await network.post(
            {
                "image": private.reference, "command": ["/bin/sh", "-c", SCRIPT], "output": "/output",
                "output_mib": 1, "minutes": 30, "tick_s": 10, "private": True, "allow": ["unisolated"],
                "mounts": [{"source": str(sources / "data"), "path": "/data"}],
                "secrets": [
                    {"env": "TOKEN", "from": "env:MY_TOKEN"},
                    {"path": "/run/secrets/key.pem", "from": f"file:{sources / 'key.pem'}"},
                ],
                "registry": {"user": "env:MY_USER", "password": "env:MY_PASSWORD"},
            }
        )  # fmt: skip
        await network.settled(task)
        await check_results(network, task, tmp_path)
        duties = network.machines[FIRST].duties
        assert duties is not None
        await world.mint_until(lambda: duties.keys.task_key(task) is None)
        await world.mint_until(lambda: not network.names(), timeout_s=60)
        nursery.cancel_scope.cancel()
    world.store.close()
    values = (TOKEN.encode(), PASSWORD.encode(), KEY_FILE.splitlines()[1], ROWS[:40])
    assert not find(world.path, values), "a data directory has a plain value"
    assert not find(home() / "kubelet", values), "the machine of the cluster has a plain value"
    assert not find(home() / "etcd", values[2:]), "the database of the cluster has a file"
    said = "".join(capfd.readouterr())
    for value in values:
        assert not any(form.decode() in said for form in forms(value)), "a log has a plain value"
    assert base64.b64encode(PASSWORD.encode()).decode() not in said
