"""Images from files on a real engine: what is refused, what is kept, and what goes again (R146, R147)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.executor.containers import images as images_module
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.errors import (
    ContainerRefused,
    DigestMismatch,
    ImageTooLarge,
    ImageUnavailable,
    NoRoom,
)
from tasks.executor.containers.request import ContainerRequest, Image
from tasks.kinds.image_archives import read_image
from tests.container_engine import busybox_tree
from tests.tasks.executor.containers.machine import Machine, no_progress, run, running_machine
from tests.tasks.images import config_of, docker_save, layout, named, tar, tree_layer

TASK = bytes(range(32))

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tree_layer(busybox_tree(tmp_path_factory.mktemp("tree")))


def request_for(machine: Machine, data: bytes, script: str = "cat /name") -> ContainerRequest:
    image = read_image(io.BytesIO(data))
    return replace(
        machine.request(script),
        image=Image("archive", image.digest),
        archive=image.digest,
        archive_bytes=len(data),
    )


def own_images(machine: Machine) -> set[str]:
    told = machine.engine.docker("images", "--all", "--no-trunc", "--format", "{{.ID}}")
    return set(told.split()) - {machine.image_id}


@pytest.mark.parametrize("form", ["layout", "nested", "plain", "docker"])
async def test_each_form_runs_what_was_named(machine: Machine, base: bytes, tmp_path: Path, form: str) -> None:
    layers = (base, tar({"name": form.encode()}), base)
    data = {
        "layout": lambda: layout(layers), "nested": lambda: layout(layers, is_nested=True),
        "plain": lambda: layout(layers, is_gzip=False), "docker": lambda: docker_save(layers),
    }[form]()  # fmt: skip
    archive, backend = tmp_path / "image.tar", machine.backend()
    archive.write_bytes(data)
    request = request_for(machine, data)
    await backend.load(request, archive)
    again = machine.backend()  # a node that starts again
    assert await again.has_image(request)
    went = await run(again, TASK, request, tmp_path / "packed")
    assert (went.ended.code, went.log) == (0, form)
    assert named(config_of(layers)) in own_images(machine)
    await backend.aclose()
    await again.aclose()


async def test_the_longest_unused_go_and_the_owners_stay(machine: Machine, base: bytes, tmp_path: Path) -> None:
    backend, archive = machine.backend(), tmp_path / "image.tar"
    backend._images._kept_bytes_max = 3 * len(base)
    before = own_images(machine)
    for number in range(4):
        data = layout((base, tar({"name": str(number).encode(), "more": bytes(len(base))})))
        archive.write_bytes(data)
        request = request_for(machine, data)
        await backend.load(request, archive)
        await backend.prepare(request, no_progress)
        assert await backend.has_image(request)
    first = request_for(machine, layout((base, tar({"name": b"0", "more": bytes(len(base))}))))
    assert not await backend.has_image(first), "it was the longest unused one"
    assert len(own_images(machine) - before) < 4
    assert machine.image_id in machine.engine.docker("images", "--no-trunc", "--format", "{{.ID}}")
    with pytest.raises(ImageUnavailable, match="gone"):
        await backend.prepare(first, no_progress)
    await backend.aclose()


async def test_what_is_not_what_was_named_is_not_loaded(
    machine: Machine, base: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, archive = machine.backend(), tmp_path / "image.tar"
    data = layout((base, tar({"name": b"refused"})), is_gzip=False)
    request, before = request_for(machine, data), own_images(machine)

    async def refused(error: type[Exception], wanted: ContainerRequest, content: bytes) -> None:
        archive.write_bytes(content)
        with pytest.raises(error):
            await backend.load(wanted, archive)
        assert own_images(machine) == before and not await backend.has_image(wanted)

    await refused(DigestMismatch, request, layout((base, tar({"name": b"another"}))))
    for content in (data[: len(data) // 2], data.replace(b"refused", b"REFUSED"), bytes(1024)):
        await refused(ImageUnavailable, request, content)
    await refused(ContainerRefused, replace(request, archive_bytes=17 << 30), data)
    monkeypatch.setattr(images_module, "DISK_SPARE_BYTES", 1 << 60)
    await refused(NoRoom, request, data)
    monkeypatch.undo()
    backend._images._bytes_max = len(base)
    await refused(ImageTooLarge, request, data)
    await backend.aclose()
    strict = machine.backend(images=("docker.io/library/*",))
    archive.write_bytes(data)
    with pytest.raises(ContainerRefused, match="other images"):
        await strict.load(request, archive)
    await strict.aclose()


async def test_an_image_that_its_owner_removed_is_loaded_again(
    machine: Machine, base: bytes, tmp_path: Path
) -> None:
    backend: DockerBackend = machine.backend()
    archive, data = tmp_path / "image.tar", layout((base, tar({"name": b"again"})))
    archive.write_bytes(data)
    request = request_for(machine, data)
    for _ in range(2):
        await backend.load(request, archive)
        machine.engine.docker("rmi", "-f", named(config_of((base, tar({"name": b"again"})))))
        assert not await backend.has_image(request)
    with pytest.raises(DigestMismatch):
        await backend.start(TASK, request)
    await backend.aclose()
