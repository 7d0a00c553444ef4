"""What a cluster grants, and what it is told that it lacks: isolation, rights, quotas; gigabytes in and out."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tasks.executor.containers import kubernetes
from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, NotStarted
from tasks.executor.containers.kubernetes.rights import RIGHTS
from tasks.executor.containers.request import InputMount
from tests.kubernetes.enforcer import enforced
from tests.kubernetes.machine import FOLDER, NODE, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(32))
GIB = 1 << 30


async def test_n38_a_cluster_that_ignores_policies_lends_nothing(cluster: Cluster) -> None:
    if not cluster.is_own:
        pytest.skip("whether policies of this cluster hold is its owner's matter")
    backend = cluster.backend(unisolated_allowed=False)
    facts = await backend.probe()
    assert not facts.is_isolated and "has no effect" in facts.missing[0]
    with pytest.raises(ContainerRefused, match="network policies"):
        await backend.check(cluster.request("true"))
    await backend.aclose()


@pytest.mark.nightly
async def test_n38_policies_are_believed_when_both_directions_were_seen(cluster: Cluster) -> None:
    for kinds, told in (
        (("Ingress", "Egress"), ""), (("Ingress",), "denies Egress"), (("Egress",), "denies Ingress"),
    ):  # fmt: skip
        backend = cluster.backend(unisolated_allowed=False)
        async with enforced(cluster, kinds):
            facts = await backend.probe()
        assert facts.is_isolated == (not told), facts.missing
        assert told in "".join(facts.missing)
        await backend.aclose()


def _account(cluster: Cluster, without: str) -> Path:
    """Make the account of docs/kubernetes with one right less; return its kubeconfig."""
    text = (FOLDER.parents[1] / "docs" / "kubernetes" / "account.yaml").read_text()
    assert without in text
    manifest = cluster.folder / "account.yaml"
    manifest.write_text(text.replace(without, "verbs: [watch]") if without else text)
    cluster.kubectl("apply", "-f", str(manifest))
    token = cluster.kubectl("create", "token", "dekube-node", "-n", "dekube").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    kubeconfig = cluster.folder / "account.json"
    kubeconfig.write_text(json.dumps(config))
    return kubeconfig


async def test_each_missing_right_is_named(cluster: Cluster) -> None:
    nothing = cluster.backend(kubeconfig=str(_account(cluster, "verbs: [create, get, list, delete]")))
    missing = (await nothing.probe()).missing
    assert "the right to create namespaces" in missing and "the right to delete pods" in missing
    assert len(missing) < len(RIGHTS)
    await nothing.aclose()
    whole = cluster.shown(kubeconfig=str(_account(cluster, "")))
    assert not (await whole.probe()).missing
    request = cluster.request("echo done")
    await whole.start(TASK, request)  # the rights of the account are enough for a whole life
    ended = await whole.watch(TASK, request, lambda _look: None)
    assert (ended.end, ended.code) == (End.EXITED, 0)
    collected = await whole.collect(TASK, request, str(cluster.folder / "packed.tar"))
    assert collected.log == b"done\n" and collected.outputs is not None
    await whole.remove(TASK)
    await whole.aclose()
    cluster.kubectl("delete", "namespace", "dekube")


async def test_a_refusal_of_admission_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = cluster.shown()
    place = backend.place(TASK)
    make = "tasks.executor.containers.kubernetes.backend.quota_body"
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"limits.memory": "1Mi"}},
    }  # fmt: skip
    monkeypatch.setattr(make, lambda *_: quota)
    with pytest.raises(NotStarted, match=r"exceeded quota: small.*limits\.memory"):
        await backend.start(TASK, cluster.request("true"))
    assert not cluster.kubectl("get", "namespace", place.namespace, "--ignore-not-found")
    await backend.aclose()


async def test_a_foreign_namespace_of_the_same_name_is_left_alone(cluster: Cluster) -> None:
    backend = cluster.shown()
    name = backend.place(TASK).namespace
    cluster.kubectl("create", "namespace", name)
    try:
        with pytest.raises(ContainerRefused, match="not this node's"):
            await backend.start(TASK, cluster.request("true"))
        assert await backend.sweep(frozenset()) == 0
        assert name in cluster.kubectl("get", "namespaces", "-o", "name")
    finally:
        cluster.kubectl("delete", "namespace", name)
    assert NODE.hex()[:12] in name
    await backend.aclose()


async def test_a_namespace_that_does_not_go_keeps_no_other_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes.backend, "REMOVE_S", 0.5)
    backend = cluster.shown()
    stuck, other = (backend.place(bytes((number,)) * 32).namespace for number in (1, 2))
    for name in (stuck, other):
        cluster.kubectl("create", "namespace", name)
        cluster.kubectl("label", "namespace", name, f"dekube.node={NODE.hex()}")
    patch = ("patch", "namespace", stuck, "--type=merge", "-p")
    cluster.kubectl(*patch, '{"metadata":{"finalizers":["dekube.test/kept"]}}')
    backend.folder(TASK).mkdir(parents=True)
    try:
        with pytest.raises(EngineUnavailable, match=stuck):
            await backend.sweep(frozenset())
        assert "Active" not in cluster.kubectl("get", "namespace", other, "--ignore-not-found")
        assert not backend.folder(TASK).exists()
    finally:
        cluster.kubectl(*patch, '{"metadata":{"finalizers":null}}')
        cluster.kubectl("wait", "--for=delete", f"namespace/{stuck}", f"namespace/{other}", "--timeout=60s")
    await backend.aclose()


@pytest.mark.nightly
async def test_a_gigabyte_in_and_out(cluster: Cluster, tmp_path: Path) -> None:
    await _through(cluster, tmp_path, GIB)


async def test_some_pieces_in_and_out(cluster: Cluster, tmp_path: Path) -> None:
    await _through(cluster, tmp_path, 40 << 20)


async def _through(cluster: Cluster, tmp_path: Path, size: int) -> None:
    """Send a file through a container: what comes out is what went in."""
    backend = cluster.shown()
    request = cluster.request(
        "cat /data/file > /output/file; sha256sum < /output/file",
        limits={"disk_mib": size * 5 // 4 >> 20, "output_bytes": size + (1 << 20), "memory_mib": 256},
        mounts=(InputMount(bytes(32), "/data/file", size, is_folder=False),),
    )
    place = backend.input_path(TASK, 0)
    place.parent.mkdir(parents=True)
    sent = hashlib.sha256()
    with place.open("wb") as file:
        for number in range(size >> 20):
            part = hashlib.shake_256(number.to_bytes(8, "big")).digest(1 << 20)
            sent.update(part)
            file.write(part)
    await backend.start(TASK, request)
    ended = await backend.watch(TASK, request, lambda _look: None)
    assert (ended.end, ended.code) == (End.EXITED, 0)
    collected = await backend.collect(TASK, request, str(tmp_path / "packed.tar"))
    assert collected.outputs is not None, collected.why
    assert collected.log.decode().split()[0] == sent.hexdigest()
    with tarfile.open(tmp_path / "packed.tar") as packed:
        found = packed.extractfile("file")
        assert found is not None
        received = hashlib.sha256()
        while part := found.read(1 << 20):
            received.update(part)
        assert received.digest() == sent.digest()
    await backend.remove(TASK)
    await backend.aclose()
