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
from tasks.executor.containers.disks import folder_state
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.errors import BadOutputs, FolderChanges
from tasks.executor.containers.outputs import is_unfinished, pack_outputs
from tasks.executor.containers.request import RESTORED, ContainerRequest
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
