"""Images that a node pushes to the registry of a cluster: a real registry, and answers of hostile ones (R147)."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from tasks.executor.containers.backend import KeepsImages, LoadsImages
from tasks.executor.containers.errors import (
    ContainerRefused,
    DigestMismatch,
    EngineUnavailable,
    ImageTooLarge,
    ImageUnavailable,
)
from tasks.executor.containers.kubernetes import pushed_images
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


@pytest.mark.slow
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


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that starts each container at once: what is looked at is its registry."""

    async def nothing(*_arguments: object) -> int:
        return 0

    for name in ("check", "prepare", "start", "remove", "sweep"):
        monkeypatch.setattr(KubernetesBackend, name, nothing)


@pytest.mark.slow
async def test_a_cluster_has_images_for_the_tasks_that_brought_them(
    url: str, tmp_path: Path, granted: None
) -> None:
    registry = ImageRegistry(f"{url}/dekube")
    backend = ClusterWithRegistry(KubernetesOptions(disk_gib=1), b"n" * 20, tmp_path / "node", registry)
    assert isinstance(backend, LoadsImages) and isinstance(backend, KeepsImages)
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
    (backend._notes.folder / "gone-meanwhile").symlink_to("nothing")
    await backend.sweep(frozenset())
    assert await backend.has_image(public) and not await backend.has_image(private)
    with pytest.raises(ImageUnavailable):
        backend._placed(private)


class Node:
    """A node's back end, its archive and what two tasks order; ``again`` is its next life."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder, self.registry = folder, ImageRegistry(f"{url}/dekube")
        self.archive, data = folder / "image.tar", layout(LAYERS)
        self.archive.write_bytes(data)
        self.public, self.same = request_for(data, b"b" * 32), request_for(data, b"c" * 32)
        self.private = request_for(data, b"k" * 32, is_private=True)
        self.again()

    def again(self) -> None:
        self.backend = ClusterWithRegistry(
            KubernetesOptions(disk_gib=1), b"n" * 20, self.folder / "node", self.registry
        )

    async def bring(self, task: bytes, request: ContainerRequest) -> None:
        await self.backend.keep_image(task, request)
        if not await self.backend.has_image(request):
            await self.backend.load(request, self.archive)
        await self.backend.prepare(request, lambda _progress: None)

    async def has(self, request: ContainerRequest) -> bool:
        """Whether a kubelet can pull the image where the node says it is."""
        with suppress(ImageUnavailable):
            name = self.backend._placed(request).image.repository.rpartition("/")[2]
            return await self.registry.has(name, f"manifests/{request.image.name}")
        return False


A, B = b"\x0a" * 32, b"\x0b" * 32


@pytest.fixture
def node(url: str, tmp_path: Path, granted: None) -> Node:
    return Node(url, tmp_path)


async def test_n80_the_first_of_two_private_tasks_leaves_the_image_to_the_second(node: Node) -> None:
    await node.bring(A, node.private)
    await node.bring(B, node.private)
    await node.backend.start(A, node.private)
    assert await node.has(node.private), "the second one is about to pull it"
    node.again()  # who needs it is on the disk
    await node.backend.remove(A)
    await node.backend.sweep(frozenset({B}))
    assert await node.has(node.private)
    await node.backend.start(B, node.private)
    assert not await node.has(node.private), "nobody needs it any more"


@pytest.mark.parametrize("leave", ["remove", "sweep"])
async def test_n80_a_private_image_goes_with_the_last_task_that_did_not_start(node: Node, leave: str) -> None:
    await node.bring(A, node.private)
    await node.bring(B, node.private)
    await node.backend.remove(A)
    assert await node.has(node.private)
    if leave == "remove":
        await node.backend.remove(B)
    else:
        node.again()  # killed before it could
        await node.backend.sweep(frozenset())
    assert not await node.has(node.private) and list(node.backend._notes.folder.iterdir()) == []


async def test_n80_two_public_archives_of_one_image_do_not_take_it_from_each_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed_images, "IMAGES_KEPT", 1)
    await node.bring(A, node.public)
    await node.backend.start(A, node.public)
    await node.backend.keep_image(B, node.same)
    assert not await node.backend.has_image(node.same), "nobody has looked into this archive"
    await node.bring(B, node.same)
    await node.backend.sweep(frozenset({B}))  # one of the two notes is beyond the limit
    assert len(list(node.backend._notes.folder.iterdir())) == 1 and await node.has(node.same)
    monkeypatch.setattr(pushed_images, "IMAGES_KEPT", 0)
    await node.backend.sweep(frozenset({B}))
    assert await node.has(node.same), "a task is about to pull it"
    await node.backend.remove(B)
    assert not await node.has(node.same)


async def test_n80_who_comes_while_an_image_is_deleted_pushes_it_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.bring(A, node.private)
    asked, go_on, remove = trio.Event(), trio.Event(), node.registry.remove

    async def slowly(name: str, digest: bytes) -> bool:
        asked.set()
        await go_on.wait()
        return await remove(name, digest)

    monkeypatch.setattr(node.registry, "remove", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.backend.start, A, node.private)
        await asked.wait()
        nursery.start_soon(node.bring, B, node.private)
        await trio.testing.wait_all_tasks_blocked(0.05)
        go_on.set()
    assert await node.has(node.private)


async def test_n80_an_image_that_could_not_be_deleted_is_deleted_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_name: str, _digest: bytes) -> bool:
        raise EngineUnavailable("no route")

    await node.bring(A, node.private)
    with monkeypatch.context() as patched:
        patched.setattr(node.registry, "remove", away)
        await node.backend.start(A, node.private)
    assert await node.has(node.private)
    node.again()
    await node.backend.sweep(frozenset({A}))  # it runs, and needs its image no more
    assert not await node.has(node.private)


async def test_n80_a_damaged_note_is_forgotten_and_made_anew(node: Node) -> None:
    await node.bring(A, node.private)
    [note] = node.backend._notes.folder.iterdir()
    for text in (
        "",
        "[]",
        '["../other", true, "00", true, []]',
        '["archive", true, "zz", true, ["a"]]',
        "[" * 5000,
    ):
        note.write_text(text)
        assert not await node.backend.has_image(node.private)
        await node.bring(A, node.private)
        assert await node.has(node.private)


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
