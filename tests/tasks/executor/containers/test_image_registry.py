"""Images that a node pushes to the registry of a cluster: a real registry, and answers of hostile ones (R147)."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.executor.containers.backend import LoadsImages
from tasks.executor.containers.errors import (
    ContainerRefused,
    DigestMismatch,
    EngineUnavailable,
    ImageTooLarge,
    ImageUnavailable,
)
from tasks.executor.containers.kubernetes import registry_backend
from tasks.executor.containers.kubernetes.backend import KubernetesBackend, KubernetesOptions
from tasks.executor.containers.kubernetes.image_registry import ImageRegistry
from tasks.executor.containers.kubernetes.registry_backend import ClusterWithRegistry
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.kinds.image_archives import ArchivedImage, read_image
from tests.container_engine import running_registry, skip_without
from tests.tasks.images import docker_save, layout, tar

LAYERS = (tar({"bin/a": b"a" * 3000}), tar({"bin/b": b"b"}), tar({"bin/a": b"a" * 3000}))
LIMITS = Limits(cores=1, memory_mib=64, disk_mib=32, output_bytes=1, time_limit_s=9)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=False) as port:
        yield f"http://127.0.0.1:{port}"


def request_for(data: bytes, key: bytes, **more: Any) -> ContainerRequest:
    image = Image("archive", read_image(io.BytesIO(data)).digest)
    return ContainerRequest(image, LIMITS, archive=key, archive_bytes=len(data), **more)


@pytest.mark.parametrize("make", [layout, docker_save])
async def test_what_is_pushed_has_the_digest_that_was_named(url: str, make: Callable[..., bytes]) -> None:
    file = io.BytesIO(make(LAYERS))
    image, registry = read_image(file), ImageRegistry(f"{url}/team/dekube")
    name = f"manifests/sha256:{image.digest.hex()}"
    await registry.check()
    assert not await registry.has("archive", name)
    for _ in range(2):  # what is there is not sent again
        await registry.push("archive", image, file)
    assert await registry.has("archive", name)
    async with httpx.AsyncClient(trust_env=False) as client:
        base = f"{url}/v2/team/dekube/archive"
        found = await client.get(f"{base}/{name}", headers={"Accept": image.media_type})
        assert found.content == image.manifest and found.headers["Content-Type"] == image.media_type
        for layer in image.layers:
            assert len((await client.get(f"{base}/blobs/{layer.name}")).content) == layer.size_bytes
    assert await registry.remove("archive", image.digest)
    assert not await registry.has("archive", name)
    assert await registry.remove("archive", image.digest), "what is gone is removed"


async def test_a_cluster_has_images_for_the_tasks_that_brought_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def granted(_backend: object, _request: ContainerRequest) -> object:
        return None

    monkeypatch.setattr(KubernetesBackend, "check", granted)
    registry = ImageRegistry(f"{url}/dekube")
    backend = ClusterWithRegistry(KubernetesOptions(disk_gib=1), b"n" * 20, tmp_path / "node", registry)
    assert isinstance(backend, LoadsImages)
    archive, data = tmp_path / "image.tar", layout(LAYERS)
    archive.write_bytes(data)
    public, private = request_for(data, b"b" * 32), request_for(data, b"k" * 32, is_private=True)
    assert not await backend.has_image(public)
    await backend.load(public, archive)
    assert await backend.has_image(public) and not await backend.has_image(private)
    await backend.load(private, archive)
    placed = backend._placed(private).image.repository
    assert placed.startswith(f"{registry.place}/") and len(placed.rpartition("/")[2]) == 32, "nobody guesses it"
    await registry.remove(placed.rpartition("/")[2], private.image.digest)
    await backend.load(private, archive)
    assert backend._placed(private).image.repository == placed, "nobody deletes what was pushed before"
    assert backend._placed(public).image.reference == f"{registry.place}/archive@{public.image.name}"
    stranger = replace(public, archive=b"", image=Image(registry.repository("archive"), public.image.digest))
    with pytest.raises(ContainerRefused, match="brought"):
        await backend.check(stranger)
    for wrong, error in (
        (replace(public, archive=b"x" * 32, image=Image("archive", bytes(32))), DigestMismatch),
        (replace(public, archive_bytes=2 << 30), ContainerRefused),
    ):
        with pytest.raises(error):
            await backend.load(wrong, archive)
    backend._image_bytes_max = 100
    with pytest.raises(ImageTooLarge):
        await backend.load(replace(public, archive_bytes=1), archive)
    monkeypatch.setattr(registry_backend, "UNUSED_S", -1.0)
    (backend._pushed / "gone-meanwhile").symlink_to("nothing")
    await backend._sweep_pushed()
    assert await backend.has_image(public) and not await backend.has_image(private)
    with pytest.raises(ImageUnavailable):
        backend._placed(private)


@pytest.mark.parametrize(
    "text", ["", "host/path", "ftp://a/b", "https://host", "https://u:pass@host/x", "https://h/UP"]
)
def test_what_is_no_registry_is_refused(text: str) -> None:
    with pytest.raises(ContainerRefused, match="registry") as refused:
        ImageRegistry(text)
    assert "pass" not in str(refused.value), "a log has a password"


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (401, {}, ImageUnavailable), (202, {"Location": "http://169.254.169.254/x"}, ImageUnavailable),
        (202, {}, ImageUnavailable), (500, {}, ImageUnavailable), (307, {"Location": "/x"}, ImageUnavailable),
        (0, {}, EngineUnavailable),
    ],
)  # fmt: skip
async def test_a_registry_that_misbehaves_gets_nothing_beyond_its_host(
    status: int, headers: dict[str, str], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if not status:
            raise httpx.ConnectError("no route")
        return httpx.Response(404 if request.method == "HEAD" else status, headers=headers)

    client = httpx.AsyncClient

    @asynccontextmanager
    async def made(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with client(transport=httpx.MockTransport(answer), **options) as found:
            yield found

    monkeypatch.setattr(httpx, "AsyncClient", made)
    file = io.BytesIO(layout(LAYERS))
    image: ArchivedImage = read_image(file)
    with pytest.raises(error):
        await ImageRegistry("https://registry.test/a").push("archive", image, file)
    assert set(asked) == {"registry.test"}
