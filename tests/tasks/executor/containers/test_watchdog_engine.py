"""The watchdog on a real engine: what others do to a container, and what it makes of that."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.watchdog import (
    EngineCall,
    Gap,
    Note,
    Observation,
    Processes,
    Settings,
    Sign,
    Tampered,
    Watchdog,
)
from tests.tasks.executor.containers.machine import Machine, no_progress, running_machine

SCRIPT = "echo secret > /scratch/secret; trap 'exit 0' TERM; while :; do sleep 0.2; done"

pytestmark = pytest.mark.slow


@pytest.fixture
def task() -> bytes:
    return b"\x01" * 32


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with running_machine(tmp_path) as made:
        yield made


class Watched:
    """A container that runs, and what its watchdog sees."""

    def __init__(self, machine: Machine, backend: DockerBackend, task: bytes, name: str, init: int) -> None:
        self.machine, self.backend, self.task, self.name, self.init = machine, backend, task, name, init
        self.dog = Watchdog()
        self.seen: list[Observation] = []
        self.notes: list[str] = []
        self.tampered: Tampered | None = None
        self._news = trio.Event()

    def on_seen(self, seen: Observation) -> None:
        self.seen.append(seen)
        for effect in self.dog.step(seen, trio.current_time()):
            if isinstance(effect, Note):
                self.notes.append(effect.text)
            elif isinstance(effect, Tampered):
                self.tampered = effect
        self._news.set()
        self._news = trio.Event()

    async def until(self, found: Callable[[], object]) -> None:
        with trio.fail_after(60):
            while not found():
                await self._news.wait()

    async def sign(self) -> Sign:
        """Wait for the sign of tampering."""
        await self.until(lambda: self.tampered is not None)
        assert self.tampered is not None
        return self.tampered.sign

    async def looks(self, count: int = 2) -> None:
        """Wait for looks at the processes, and at the settings."""
        before = len(self.seen)
        await self.until(lambda: sum(isinstance(one, Processes) for one in self.seen[before:]) >= count)
        await self.until(lambda: any(isinstance(one, Settings) for one in self.seen))

    async def docker(self, *arguments: str) -> None:
        await trio.to_thread.run_sync(lambda: self.machine.engine.docker(*arguments))


@asynccontextmanager
async def watched(machine: Machine, task: bytes, backend: DockerBackend | None = None) -> Any:
    """Start a container and its watch."""
    own = backend or machine.backend()
    request = machine.request(SCRIPT)
    await own.prepare(request, no_progress)
    await own.start(task, request)
    try:
        (name,) = machine.engine.docker("ps", "--format", "{{.Names}}").split()
        init = int(machine.engine.docker("inspect", "--format", "{{.State.Pid}}", name))
        found = Watched(machine, own, task, name, init)
        looker = await own.watchdog(task, request)
        assert looker is not None and not looker.is_adopted
        async with trio.open_nursery() as nursery:
            nursery.start_soon(looker.run, found.on_seen)
            yield found
            nursery.cancel_scope.cancel()
    finally:
        await own.remove(task)


async def quiet(watched: Watched, tmp_path: Path) -> None:
    """Do what owners and monitors do; none of it is tampering."""
    name = watched.name
    for arguments in (
        ("ps",), ("inspect", name), ("logs", name), ("stats", "--no-stream"), ("top", name), ("diff", name),
        ("pause", name), ("unpause", name), ("update", "--cpus", "0.5", name), ("container", "ls", "-s"),
        ("images",), ("system", "df", "-v"),
    ):  # fmt: skip
        await watched.docker(*arguments)
    await watched.backend.set_share(watched.task, 2)
    for path in ("status", "stat", "cgroup", "mountinfo", "smaps_rollup"):  # as monitors read them
        (Path("/proc") / str(watched.init) / path).read_text()
    disk = next(watched.machine.folder.glob("*/*/disk.img"))
    backup = tmp_path / "backup"
    await trio.to_thread.run_sync(shutil.copyfile, disk, backup)  # a backup reads the file of the disk
    await watched.looks(3)


async def test_daily_life_is_no_sign_and_a_program_of_a_stranger_is(
    machine: Machine, tmp_path: Path, task: bytes
) -> None:
    async with watched(machine, task) as found:
        await quiet(found, tmp_path)
        assert found.tampered is None
        assert any("limits" in note for note in found.notes) or any("update" in note for note in found.notes)
        assert not any(isinstance(one, Gap) for one in found.seen), found.seen
        own = [one for one in found.seen if isinstance(one, EngineCall) and one.is_own]
        assert [one.action for one in own] == ["update"], "the share that this node set, and nothing else"
        await found.docker("exec", found.name, "cat", "/scratch/secret")
        assert (await found.sign()) is Sign.EXEC
        await found.backend.kill(task)
        image = next(machine.folder.glob("*/*/disk.img"))
        await trio.run_process(["sync", "-f", str(image.parent / "disk")])
        with image.open("rb") as kept:  # the same blocks, whoever still holds the file
            assert await trio.to_thread.run_sync(lambda: b"secret\n" in image.read_bytes())
            assert await found.backend.wipe(task)
            assert not image.parent.exists()
            assert not any(kept.read()), "nothing but zeros"
    assert not machine.engine.docker("ps", "--all", "--quiet")


def enter(watched: Watched, *options: str) -> subprocess.Popen[bytes]:
    command = ["nsenter", "-t", str(watched.init), *options, "sleep", "30"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def trace(watched: Watched) -> subprocess.Popen[bytes]:
    command = ["strace", "-f", "-o", os.devnull, "-p", str(watched.init)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sign", "arguments"),
    [
        (Sign.EXEC, ("exec", "--detach", "NAME", "sleep", "1")),
        (Sign.COPY, ("cp", "NAME:/scratch/secret", "-")),
        (Sign.COMMIT, ("commit", "NAME", "example.test/stolen:1")),
        (Sign.EXPORT, ("export", "--output", "FILE", "NAME")),
    ],
)
async def test_calls_that_read_the_job_are_signs(
    machine: Machine, tmp_path: Path, task: bytes, sign: Sign, arguments: tuple[str, ...]
) -> None:
    async with watched(machine, task) as found:
        await quiet(found, tmp_path)
        assert found.tampered is None
        names = {
            "NAME": found.name,
            "FILE": str(tmp_path / "out.tar"),
            "NAME:/scratch/secret": f"{found.name}:/scratch/secret",
        }
        await found.docker(*(names.get(one, one) for one in arguments))
        assert (await found.sign()) is sign


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["both", "files", "processes", "tracer"])
async def test_processes_that_enter_or_trace_are_signs(machine: Machine, task: bytes, way: str) -> None:
    async with watched(machine, task) as found:
        await found.looks()
        options = {"both": ("-m", "-p"), "files": ("-m",), "processes": ("-p",)}
        process = trace(found) if way == "tracer" else enter(found, *options[way])
        try:
            sign = await found.sign()
        finally:
            process.kill()
            process.wait()
        assert sign is (Sign.TRACER if way == "tracer" else Sign.STRANGER)


@pytest.mark.nightly
async def test_an_engine_that_restarts_is_a_gap_and_no_sign(tmp_path: Path, task: bytes) -> None:
    """With ``live-restore`` a container outlives its engine; what is asked after that is seen again."""
    with running_machine(tmp_path, options=("--live-restore",)) as machine:
        async with watched(machine, task) as found:
            await found.looks()
            await trio.to_thread.run_sync(machine.engine.pause)
            await trio.to_thread.run_sync(machine.engine.restart)
            await found.until(lambda: any(isinstance(one, Gap) for one in found.seen))
            await found.looks()
            assert found.tampered is None
            await found.docker("exec", found.name, "true")
            await found.until(lambda: found.tampered is not None)


@pytest.mark.nightly
async def test_a_container_that_is_taken_up_again_is_watched_from_then_on(machine: Machine, task: bytes) -> None:
    backend, request = machine.backend(), machine.request(SCRIPT)
    await backend.prepare(request, no_progress)
    await backend.start(task, request)
    (name,) = machine.engine.docker("ps", "--format", "{{.Names}}").split()
    init = int(machine.engine.docker("inspect", "--format", "{{.State.Pid}}", name))
    again = machine.backend()  # the node's next life
    looker = await again.watchdog(task, request)
    assert looker is not None and looker.is_adopted
    machine.engine.docker("exec", name, "true")
    later = Watched(machine, again, task, name, init)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(looker.run, later.on_seen)
        await later.looks(3)
        assert later.tampered is None, "nobody knows whose call that was"
        await later.docker("exec", name, "true")
        await later.until(lambda: later.tampered is not None)
        nursery.cancel_scope.cancel()
    await again.remove(task)
