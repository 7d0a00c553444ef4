"""The checkpoint folder of a container on a real engine: of one moment, without links, bounded, and restored."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import Ended
from tasks.executor.containers.disks import ContainerDisk, folder_state
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.errors import BadOutputs, FolderChanges, NoRoom
from tasks.executor.containers.outputs import is_unfinished, pack_outputs
from tasks.executor.containers.request import RESTORED, ContainerRequest
from tasks.kinds.disk_room import disk_bytes
from tasks.kinds.folders import ArchiveInvalid, unpack
from tests.tasks.executor.containers.machine import Machine, running_machine

TASK = b"\x01" * 32


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("checkpoints")) as made:
        yield made


def request(machine: Machine, script: str, size: int = 1 << 20) -> ContainerRequest:
    return replace(machine.request(script), checkpoint_path="/state", checkpoint_bytes=size)


async def packed(backend: DockerBackend, wanted: ContainerRequest, folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint; a folder has no bytes."""
    place = folder / "packed"
    await backend.snapshot(TASK, wanted, str(place))
    with tarfile.open(place) as found:
        files = {one.name: found.extractfile(one) for one in found}
        return {name: b"" if file is None else file.read() for name, file in files.items()}


async def until(name: str, folder: Path) -> None:
    with trio.fail_after(30):
        while not (folder / name).exists():  # noqa: ASYNC110  the engine tells nothing of files
            await trio.sleep(0.05)


@pytest.mark.slow
async def test_what_is_whole_is_stored_while_the_container_runs(machine: Machine, tmp_path: Path) -> None:
    script = """
    mkdir /state/deep; echo whole > /state/deep/a; echo half > /state/b.tmp
    ln -s /etc/passwd /state/link; ln -s / /state/root; mkfifo /state/pipe; touch /state/done
    while :; do echo more >> /state/b.tmp; done
    """
    backend, wanted = machine.backend(), request(machine, script)
    await backend.prepare(wanted, lambda _: None)
    await backend.start(TASK, wanted)
    try:
        folder = backend.disk(TASK).root / "checkpoint"
        await until("done", folder)
        assert await packed(backend, wanted, tmp_path) == {"deep": b"", "deep/a": b"whole\n", "done": b""}
    finally:
        await backend.remove(TASK)
        await backend.aclose()


@pytest.mark.slow
async def test_a_folder_that_changes_or_is_too_large_is_not_stored(machine: Machine, tmp_path: Path) -> None:
    script = "touch /state/done; while :; do echo more > /state/a; echo other > /state/a; done"
    backend, wanted = machine.backend(), request(machine, script)
    await backend.prepare(wanted, lambda _: None)
    await backend.start(TASK, wanted)
    try:
        await until("done", backend.disk(TASK).root / "checkpoint")
        with pytest.raises(FolderChanges):
            await packed(backend, wanted, tmp_path)
    finally:
        await backend.remove(TASK)
    wanted = request(machine, "head -c 200000 /dev/zero > /state/x; touch /state/done; sleep 60", 100_000)
    await backend.start(TASK, wanted)
    try:
        await until("done", backend.disk(TASK).root / "checkpoint")
        with pytest.raises(BadOutputs):
            await packed(backend, wanted, tmp_path)
        assert not (tmp_path / "packed").exists()
    finally:
        await backend.remove(TASK)
        await backend.aclose()


@pytest.mark.slow
async def test_a_restored_folder_belongs_to_the_container(machine: Machine, tmp_path: Path) -> None:
    script = """
    [ "$DEKUBE_RESUMED" = 1 ] && [ "$DEKUBE_CHECKPOINT" = /state ] || exit 3
    [ "$(cat /state/deep/a)" = kept ] || exit 4
    set -ex
    echo new >> /state/deep/a; mv /state/deep/a /state/b; /state/run; chmod 600 /state/b; touch /state/deep/c
    """
    backend = machine.backend()
    wanted = replace(request(machine, script), is_resumed=True)
    await backend.prepare(wanted, lambda _: None)
    ready = backend.folder(TASK) / RESTORED
    (ready / "deep").mkdir(parents=True)
    (ready / "deep" / "a").write_text("kept\n")
    (ready / "run").write_text("#!/bin/sh\ntrue\n")
    (ready / "run").chmod(0o755)
    await backend.start(TASK, wanted)
    try:
        ended: Ended = await backend.watch(TASK, wanted, lambda _: None)
        assert ended.code == 0, (await backend.collect(TASK, wanted, str(tmp_path / "out"))).log
        found = await packed(backend, wanted, tmp_path)  # it has ended; its folder is still there
        assert found["b"] == b"kept\nnew\n" and "deep/c" in found and not any(ready.iterdir())
    finally:
        await backend.remove(TASK)
        await backend.aclose()


def test_the_state_of_a_folder_follows_no_link_and_sees_each_change(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "secret").write_text("x")
    (folder / "link").symlink_to(other)
    (folder / "a").write_text("1")
    (folder / "b.tmp").write_text("1")
    before = folder_state(folder)
    assert [os.path.basename(name) for name, *_ in before] == ["link", "a"]
    (folder / "b.tmp").write_text("22")
    assert folder_state(folder) == before
    (folder / "c").write_text("2")
    (folder / "c").replace(folder / "a")
    assert folder_state(folder) != before


def test_unfinished_files_are_left_out_by_their_names() -> None:
    archive, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for name in ("state", "state/a", "state/a.tmp"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == "state" else tarfile.REGTYPE
            made.addfile(info)
    archive.seek(0)
    told = pack_outputs(archive, out, 1 << 20, leaves_unfinished=True)
    assert (told.files, told.left_out) == (1, ("a.tmp",))
    assert is_unfinished("x/y.tmp") and not is_unfinished("x.tmp/y")


@pytest.mark.parametrize("size_mib", [16, 100, 511, 512, 1_024])
def test_a_disk_has_the_bytes_and_the_files_that_were_ordered(size_mib: int, tmp_path: Path) -> None:
    """What the file system itself takes comes on top: a checkpoint of a pod may fill all of its disk."""
    if os.geteuid():
        pytest.skip("root's rights needed")
    disk = ContainerDisk(tmp_path / "task")
    ready = tmp_path / "task" / RESTORED
    ready.mkdir(parents=True)
    for number in range(50):
        (ready / str(number)).touch()
    try:
        disk.make(size_mib, {"scratch": 0o777})
        found = os.statvfs(disk.root)
        assert found.f_bavail * found.f_frsize >= size_mib << 20
        assert found.f_favail >= (size_mib << 20) // (4_096 if size_mib < 512 else 16_384)
    finally:
        disk.remove()


@pytest.mark.slow
def test_the_largest_checkpoint_of_many_small_files_is_restored(tmp_path: Path) -> None:
    """16 MiB hold 32,768 empty files by R149: eight times as many as a file system of that size has by itself."""
    if os.geteuid():
        pytest.skip("root's rights needed")
    disk, size_mib = ContainerDisk(tmp_path / "task"), 16
    ready, count = tmp_path / "task" / RESTORED, (size_mib << 20) // 512 - 16
    ready.mkdir(parents=True)
    for number in range(count - 9):
        (ready / f"{number:0200}").touch()
    assert disk_bytes([0] * count) <= size_mib << 20
    try:
        disk.make(size_mib, {"scratch": 0o777, "checkpoint": 0o777})
        disk.restore("checkpoint", 65_534)
        assert sum(1 for _ in (disk.root / "checkpoint").iterdir()) == count - 9
        full, place = (size_mib << 20) - disk_bytes([0] * count), disk.root / "checkpoint" / "full"
        place.write_bytes(bytes(full))
    finally:
        disk.remove()


def test_n70_a_folder_that_no_ordered_disk_holds_is_neither_stored_nor_restored(tmp_path: Path) -> None:
    """Its tar has few bytes. On the disk of the next machine each file takes a block, and its start would fail."""
    files, limit = 600, 1 << 20
    archive, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for number in range(files):
            info = tarfile.TarInfo(f"state/{number}")
            info.size = 1
            made.addfile(info, io.BytesIO(b"x"))
    archive.seek(0)
    told = pack_outputs(archive, out, limit, leaves_unfinished=True)
    assert told.files == files and out.tell() <= limit < files * 4_096
    archive.seek(0)
    with pytest.raises(BadOutputs, match="on the disk"):
        pack_outputs(archive, io.BytesIO(), limit, leaves_unfinished=True, disk_limit_bytes=limit)
    with pytest.raises(ArchiveInvalid, match="on a disk"):  # a machine named it all the same
        unpack(out, tmp_path / "restored", limit_bytes=limit, disk_limit_bytes=limit)
    assert not (tmp_path / "restored").exists()


@pytest.mark.slow
async def test_a_machine_whose_drive_is_full_knows_it_before_the_start(machine: Machine) -> None:
    """The disk is made before the meter begins, and is the one that the container has."""
    backend, wanted = machine.backend(), replace(request(machine, "[ -f /state/kept ]"), is_resumed=True)
    await backend.prepare(wanted, lambda _: None)
    large = replace(wanted, limits=replace(wanted.limits, disk_mib=1 << 24))
    with pytest.raises(NoRoom):
        await backend.make_disk(TASK, large)
    ready = backend.folder(TASK) / RESTORED
    ready.mkdir(parents=True, exist_ok=True)
    (ready / "kept").write_text("1")
    await backend.make_disk(TASK, wanted)
    assert not any(ready.iterdir()) and (backend.disk(TASK).root / "checkpoint" / "kept").exists()
    await backend.start(TASK, wanted)
    try:
        assert (await backend.watch(TASK, wanted, lambda _: None)).code == 0
    finally:
        await backend.remove(TASK)
        await backend.aclose()
