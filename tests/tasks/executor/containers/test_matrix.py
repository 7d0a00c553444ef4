"""Containers that fill, flood and fork; registries with and without a login; images that are other ones."""

from __future__ import annotations

import base64
import json
import logging
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End, PullProgress
from tasks.executor.containers.disks import image_bytes
from tasks.executor.containers.docker import DockerBackend, DockerOptions
from tasks.executor.containers.engine import Engine, RegistryLogin
from tasks.executor.containers.errors import (
    ContainerRefused,
    DigestMismatch,
    EngineUnavailable,
    ImageTooLarge,
    ImageUnavailable,
    NoRoom,
    NotStarted,
    SettingsDiffer,
)
from tasks.executor.containers.images import Images
from tasks.executor.containers.log_stream import LOG_BYTES_MAX
from tasks.executor.containers.logins import read_logins
from tasks.executor.containers.request import ContainerRequest, Image
from tests.container_engine import PASSWORD, running_registry, skip_without
from tests.tasks.executor.containers.machine import NODE, OTHER_NODE, Machine, no_progress, run, running_machine

pytestmark = pytest.mark.nightly

TASK = b"\x03" * 32


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


async def test_a_full_disk_ends_the_job_and_spares_the_machine(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    sizes: list[int] = []

    def look() -> None:
        sizes.append((backend.disk(TASK).folder / "disk.img").stat().st_size)

    request = machine.request("cat /dev/zero > /scratch/tmp/fill", limits={"disk_mib": 24})
    went = await run(backend, TASK, request, tmp_path / "packed", look)
    assert went.ended.end is End.OUT_OF_DISK, went
    assert sizes == [image_bytes(24)], "the file of the disk is as large as when it was made"
    await backend.aclose()


async def test_outputs_above_their_limit_are_not_kept(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    request = machine.request("dd if=/dev/zero of=/output/a bs=1M count=4; truncate -s 900G /output/sparse; true")
    went = await run(backend, TASK, request, tmp_path / "packed")
    assert went.ended.end is End.EXITED
    assert went.collected.outputs is None and "more than" in went.collected.why
    assert not went.packed.exists()
    await backend.aclose()


async def test_links_and_pipes_among_outputs_are_left_out(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    request = machine.request(
        "cd /output; ln -s /etc/passwd a; ln -s ../../.. up; mkfifo pipe; mkdir d; echo x > d/kept;"
        "ln d/kept hard; ln -s /proc/self/environ env; chmod 4777 d/kept; rm -rf /output; true"
    )
    went = await run(backend, TASK, request, tmp_path / "packed")
    assert went.collected.outputs is not None, went
    with tarfile.open(went.packed) as packed:
        assert all(one.isreg() or one.isdir() for one in packed)
        assert not [one for one in packed if one.mode & 0o6000]
    await backend.aclose()


async def test_a_folder_that_became_a_link_gives_no_file_of_the_machine(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    request = machine.request(
        "mkdir /output/d; echo x > /output/d/kept; ln -s /etc /output/etc; ln -s / /output/root"
    )
    went = await run(backend, TASK, request, tmp_path / "packed")
    with tarfile.open(went.packed) as packed:
        assert packed.getnames() == ["d", "d/kept"]
    assert went.collected.outputs is not None and set(went.collected.outputs.left_out) == {"etc", "root"}
    await backend.aclose()


async def test_a_flood_of_output_ends_the_job(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    went = await run(backend, TASK, machine.request("yes flood"), tmp_path / "packed")
    assert went.ended.end is End.LOG_LIMIT, went
    assert 0 < len(went.collected.log) <= LOG_BYTES_MAX
    await backend.aclose()


async def test_a_fork_bomb_leaves_the_engine_at_work(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    request = machine.request(
        "bomb() { bomb | bomb & }; bomb; sleep 60", limits={"memory_mib": 96, "time_limit_s": 10, "grace_s": 1}
    )
    went = await run(backend, TASK, request, tmp_path / "packed")
    assert went.ended.end in (End.TIME_LIMIT, End.OUT_OF_MEMORY, End.EXITED), went
    assert went.ended.up_s < 60
    after = await run(backend, TASK, machine.request("echo well"), tmp_path / "packed")
    assert after.log == "well\n"
    await backend.aclose()


async def test_a_command_that_is_not_there_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    request = machine.request("", command=("/no/such/program",))
    facts = await backend.probe()
    if facts.has_init:
        went = await run(backend, TASK, request, tmp_path / "packed")
        assert (went.ended.end, went.ended.code) == (End.EXITED, 127)
    backend._facts = replace(facts, has_init=False)
    with pytest.raises(NotStarted, match="no such file"):
        await backend.start(TASK, request)
    assert await backend.running() == frozenset()
    assert not backend.disk(TASK).folder.exists()
    await backend.aclose()


async def test_a_job_on_gpus_is_refused_without_their_runtime(machine: Machine) -> None:
    backend = machine.backend(gpus=("GPU-0",))
    with pytest.raises(ContainerRefused, match="GPU"):
        await backend.prepare(machine.request("true", limits={"gpus": 1}), no_progress)
    await backend.aclose()


async def test_the_operator_chooses_images_users_and_disk(machine: Machine) -> None:
    backend = machine.backend(images=("other/*",))
    with pytest.raises(ContainerRefused, match="operator"):
        await backend.prepare(machine.request("true"), no_progress)
    await backend.aclose()
    backend = machine.backend(images=("example.test/*",), root_allowed=False)
    with pytest.raises(ContainerRefused, match="user 0"):
        await backend.prepare(machine.request("true", user=0), no_progress)
    with pytest.raises(NoRoom):
        await backend.prepare(machine.request("true", limits={"disk_mib": 4096}), no_progress)
    await backend.aclose()


async def test_two_nodes_share_an_engine_and_touch_nothing_of_each_other(machine: Machine) -> None:
    ours, theirs = machine.backend(), machine.backend(OTHER_NODE)
    request = machine.request("sleep 60")
    await theirs.prepare(request, no_progress)
    await theirs.start(TASK, request)
    # A container of a third owner, from an image that brings our label along.
    labels = f"--label=dekube.node={NODE.hex()}", f"--label=dekube.task={TASK.hex()}"
    run_third = "run", "--detach", "--network=none", "--name=third"
    machine.engine.docker(*run_third, *labels, machine.image_id, "/bin/sleep", "60")
    assert await ours.running() == frozenset()
    assert await ours.sweep(frozenset()) == 0
    await ours.remove(TASK)
    assert await theirs.running() == {TASK}
    assert json.loads(machine.engine.docker("inspect", "third"))[0]["State"]["Running"]
    await theirs.stop(TASK, 0)
    await theirs.remove(TASK)
    machine.engine.docker("rm", "--force", "third")
    await ours.aclose()
    await theirs.aclose()


async def test_a_container_that_somebody_pauses_or_removes_is_told(machine: Machine) -> None:
    backend, request = machine.backend(), machine.request("sleep 600")
    await backend.prepare(request, no_progress)
    await backend.start(TASK, request)
    name = machine.engine.docker("ps", "--format", "{{.Names}}").strip()
    looks: list[bool] = []
    machine.engine.docker("pause", name)
    with trio.move_on_after(2):
        await backend.watch(TASK, request, lambda look: looks.append(look.is_up))
    assert looks and not any(looks)
    machine.engine.docker("rm", "--force", name)
    assert (await backend.watch(TASK, request, lambda _look: None)).end is End.LOST
    await backend.remove(TASK)
    await backend.aclose()


async def test_a_disk_that_the_engine_does_not_see_is_found(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a node whose mounts are its own: the file that proves the disk is not there."""
    monkeypatch.setattr("tasks.executor.containers.docker.MARKER", "scratch/elsewhere")
    backend, request = machine.backend(), machine.request("true")
    await backend.prepare(request, no_progress)
    with pytest.raises(SettingsDiffer, match="mounts"):
        await backend.start(TASK, request)
    assert await backend.running() == frozenset()
    await backend.aclose()


async def test_no_engine_is_told(tmp_path: Path) -> None:
    backend = DockerBackend(DockerOptions(socket=str(tmp_path / "none")), NODE, tmp_path)
    with pytest.raises(EngineUnavailable):
        await backend.probe()


# Images and registries


def push(machine: Machine, port: int, name: str = "image") -> Image:
    """Push an image of its own to the registry and return its name by digest; the engine has it no longer."""
    tag = f"127.0.0.1:{port}/team/{name}:1"
    tree = machine.folder.parent / "tree"
    (tree / "name").write_text(f"{port} {name}")
    machine.engine.import_tree(tree, tag)
    machine.engine.docker("push", tag)
    (reference,) = json.loads(machine.engine.docker("inspect", tag))[0]["RepoDigests"]
    machine.engine.docker("rmi", tag, check=False)
    assert reference.partition("@")[2] not in machine.engine.docker("images", "--digests")
    repository, _, digest = reference.partition("@sha256:")
    return Image(repository, bytes.fromhex(digest))


async def test_an_image_is_pulled_by_digest_and_runs(machine: Machine, tmp_path: Path) -> None:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=False) as port:
        image = push(machine, port)
        backend = machine.backend()
        request = replace(machine.request("echo pulled"), image=image)
        went = await run(backend, TASK, request, tmp_path / "packed")
        assert went.log == "pulled\n"
        await check_sweep(machine, image)
        with pytest.raises(ImageUnavailable):
            await backend.prepare(replace(request, image=Image(image.repository, b"\7" * 32)), no_progress)
        await backend.aclose()


async def check_sweep(machine: Machine, image: Image) -> None:
    """The pulled image goes, the one that was there before stays."""
    engine = Engine(str(machine.engine.socket))
    folder = machine.folder / NODE.hex()[:8] / "images"
    images = Images(engine, NODE, folder, {}, bytes_max=1 << 30, kept_bytes_max=0)
    assert await images.sweep() == 1
    assert machine.engine.docker("images", "--quiet", "--no-trunc").split() == [machine.image_id]
    assert image.name not in machine.engine.docker("images", "--digests")
    await engine.aclose()


async def test_an_image_that_is_gone_before_the_start_is_found(machine: Machine, tmp_path: Path) -> None:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=False) as port:
        image = push(machine, port, "gone")
        backend = machine.backend()
        request = replace(machine.request("true"), image=image)
        await backend.prepare(request, no_progress)
        for name in (image.reference, f"dekube-{NODE.hex()[:16]}:{image.digest.hex()}"):
            machine.engine.docker("rmi", name)
        with pytest.raises(DigestMismatch):
            await backend.start(TASK, request)
        await backend.aclose()


async def test_a_registry_that_serves_another_image_is_refused(machine: Machine, tmp_path: Path) -> None:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=False) as port:
        image = push(machine, port, "changed")
        digest = image.digest.hex()
        data = (
            tmp_path
            / "registry"
            / "data"
            / "docker"
            / "registry"
            / "v2"
            / "blobs"
            / "sha256"
            / digest[:2]
            / digest
            / "data"
        )
        data.write_bytes(data.read_bytes().replace(b'"size"', b' "size"', 1))
        backend = machine.backend()
        with pytest.raises((DigestMismatch, ImageUnavailable)) as caught:
            await backend.prepare(replace(machine.request("true"), image=image), no_progress)
        assert await backend.running() == frozenset()
        print(caught.value)
        await backend.aclose()


async def test_an_image_above_the_limit_is_not_fetched(machine: Machine, tmp_path: Path) -> None:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=False) as port:
        image = push(machine, port, "large")
        backend = machine.backend(image_gib=0)
        seen: list[PullProgress] = []
        with pytest.raises(ImageTooLarge):
            await backend.prepare(replace(machine.request("true"), image=image), seen.append)
        assert image.name not in machine.engine.docker("images", "--digests")
        await backend.aclose()


async def test_a_registry_with_a_login_gets_it_and_nobody_else(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without("docker-registry")
    caplog.set_level(logging.DEBUG)
    with running_registry(tmp_path / "registry", login=True) as port:
        auths = {
            "auths": {f"127.0.0.1:{port}": {"auth": base64.b64encode(f"keeper:{PASSWORD}".encode()).decode()}}
        }
        for place in (tmp_path / "config.json", machine.engine.root / "config" / "config.json"):
            place.touch(0o600)
            place.write_text(json.dumps(auths))
        image = push(machine, port, "private")
        request = replace(machine.request("echo private"), image=image)
        await check_refused(machine, request, {})
        await check_refused(machine, request, {image.registry: RegistryLogin(image.registry, "keeper", "wrong")})
        logins = read_logins(tmp_path / "config.json")
        backend = DockerBackend(
            DockerOptions(socket=str(machine.engine.socket), disk_gib=4), NODE, tmp_path / "node", logins
        )
        went = await run(backend, TASK, request, tmp_path / "packed")
        assert went.log == "private\n"
        await backend.aclose()
        (tmp_path / "config.json").chmod(0o644)
        with pytest.raises(ContainerRefused, match="chmod"):
            read_logins(tmp_path / "config.json")
        encoded = auths["auths"][f"127.0.0.1:{port}"]["auth"]
        said = caplog.text + "".join(capsys.readouterr()) + (machine.engine.root / "dockerd.log").read_text()
        done = await trio.run_process(["ps", "-eo", "args"], capture_stdout=True)
        commands = done.stdout.decode()
        for secret in (PASSWORD, encoded):
            assert secret not in said and secret not in commands


async def check_refused(machine: Machine, request: ContainerRequest, logins: dict[str, RegistryLogin]) -> None:
    backend = DockerBackend(
        DockerOptions(socket=str(machine.engine.socket), disk_gib=4), NODE, machine.folder / "refused", logins
    )
    with pytest.raises(ImageUnavailable):
        await backend.prepare(request, no_progress)
    await backend.aclose()
