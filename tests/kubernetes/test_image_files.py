"""Images from files in a real cluster: pushed to its owner's registry, run by digest, and gone again (R147)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.kubernetes.backend import KubernetesOptions
from tasks.executor.containers.kubernetes.image_registry import ImageRegistry
from tasks.executor.containers.kubernetes.registry_backend import ClusterWithRegistry
from tasks.executor.containers.request import Image
from tasks.kinds.image_archives import read_image
from tests.container_engine import PASSWORD, running_registry
from tests.kubernetes.machine import NODE, Cluster, busybox_layer
from tests.tasks.images import layout, tar

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(32))


@pytest.fixture(params=["no login", "a login"])
def registry(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[ImageRegistry]:
    if not cluster.is_own:
        pytest.skip("ITS REGISTRY IS NOT KNOWN")
    if request.param == "no login":
        yield ImageRegistry(f"http://{cluster.repository.partition('/')[0]}/pushed")
        return
    with running_registry(tmp_path / "registry", login=True) as port:
        host = f"127.0.0.1:{port}"
        yield ImageRegistry(f"http://{host}/pushed", {host: ("keeper", PASSWORD)})


async def test_a_private_image_from_a_file_runs_by_its_digest_and_leaves_the_registry(
    registry: ImageRegistry, cluster: Cluster, tmp_path: Path
) -> None:
    options = KubernetesOptions(
        kubeconfig=str(cluster.kubeconfig), unisolated_allowed=True,
        helper_image=f"{cluster.repository}@sha256:{cluster.digest.hex()}",
    )  # fmt: skip
    backend = ClusterWithRegistry(options, NODE, tmp_path / "node", registry)
    backend.shown = (False, "not looked at by this test")
    assert (await backend.probe()).has_archives
    data, archive = layout((busybox_layer(), tar({"opt/words": b"from a file"}))), tmp_path / "image.tar"
    archive.write_bytes(data)
    digest = read_image(io.BytesIO(data)).digest
    request = replace(
        cluster.request("cat /opt/words; sleep 3"), image=Image("archive", digest), archive=b"k" * 32,
        archive_bytes=len(data), is_private=True,
    )  # fmt: skip
    assert not await backend.has_image(request)
    await backend.keep_image(TASK, request)
    await backend.load(request, archive)
    assert await backend.has_image(request)
    repository = backend._placed(request).image.repository
    with pytest.raises(ContainerRefused, match="brought"):
        await backend.check(replace(request, archive=b"", is_private=False, image=Image(repository, digest)))
    await backend.prepare(request, lambda _progress: None)
    await backend.start(TASK, request)
    try:
        pods = cluster.kubectl("get", "pods", "-n", backend.place(TASK).namespace, "-o", "json")
        [pod] = json.loads(pods)["items"]
        [ran] = [one for one in pod["status"]["containerStatuses"] if one["name"] == "main"]
        assert ran["imageID"].endswith(f"sha256:{digest.hex()}")
        assert not await backend.has_image(request), "a kubelet asks for it no more"
        assert not await registry.has(repository.rpartition("/")[2], f"manifests/sha256:{digest.hex()}")
        with trio.fail_after(120):
            ended = await backend.watch(TASK, request, lambda _look: None)
        assert cluster.kubectl("get", "secrets", "-n", backend.place(TASK).namespace, "-o", "name") == ""
        found = await backend.collect(TASK, request, str(tmp_path / "packed"))
        assert (ended.end, ended.code, found.log) == (End.EXITED, 0, b"from a file")
    finally:
        await backend.remove(TASK)
        await backend.aclose()
