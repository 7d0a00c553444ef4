"""Containers of a pod that take what they can: processes, disk, files, log, memory. Each ends by name (R165)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio

from tasks.executor.containers.backend import End, Ended
from tasks.executor.containers.kubernetes import manifests
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.outputs import FILES_MAX
from tasks.executor.containers.request import ContainerRequest
from tests.container_engine import ROOT
from tests.kubernetes.machine import Cluster, home

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
ENDS_S: Final = 150
"""How long an abuse may last on a busy machine; a kubelet looks at disks each 10 s."""
_MIB: Final = 1 << 20

FORKS: Final = """
import os, signal, time
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(name, signal.SIG_IGN)
print("begun", flush=True)
for _ in range(9):
    try:
        os.fork()
    except OSError:
        pass
    time.sleep(0.5)
time.sleep(600)
"""
"""It doubles 9 times and no more: where no bound holds, the machine of these tests has 512 processes. A faster one
is out of memory before it is counted, which has a name too."""
FILES: Final = """
import os, time
print("begun", flush=True)
for folder in range(30):
    os.mkdir(f"/scratch/{folder}")
    for number in range(1_000):
        os.close(os.open(f"/scratch/{folder}/{number}", os.O_CREAT))
time.sleep(600)
"""
"""More than a disk of 64 MiB has room for. Who makes millions within seconds is out of memory first: the kernel
counts what it keeps of files for the container."""


class Abuse(NamedTuple):
    """A command, how it ends, and the words of its log that say why."""

    command: tuple[str, ...]
    end: End
    says: str
    limits: dict[str, int]


def _shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def _python(script: str) -> tuple[str, ...]:
    return ("/usr/bin/python3", "-c", script)


ABUSES: Final = {
    "a fork bomb": Abuse(_python(FORKS), End.SIGNALLED, "more processes than", {"memory_mib": 512}),
    "millions of files": Abuse(_python(FILES), End.OUT_OF_DISK, "more files than", {"memory_mib": 256}),
    "a full disk": Abuse(
        _shell("echo begun; dd if=/dev/zero of=/scratch/large bs=1M count=200; sleep 600"), End.OUT_OF_DISK, "", {}
    ),
    "a full temporary folder": Abuse(
        _shell("echo begun; dd if=/dev/zero of=/tmp/large bs=1M count=200; sleep 600"), End.OUT_OF_DISK, "", {}
    ),
    "a bomb of memory": Abuse(_shell("echo begun; a=x; while :; do a=$a$a; done"), End.OUT_OF_MEMORY, "", {}),
    "memory by files": Abuse(
        _shell("echo begun; exec dd if=/dev/zero of=/dev/shm/large bs=64M count=20"), End.OUT_OF_MEMORY, "", {}
    ),
}  # fmt: skip


async def _ended(
    backend: KubernetesBackend, task: bytes, request: ContainerRequest, packed: Path
) -> tuple[Ended, str]:
    await backend.start(task, request)
    with trio.fail_after(ENDS_S):
        ended = await backend.watch(task, request, lambda _look: None)
        collected = await backend.collect(task, request, str(packed))
    return ended, collected.log.decode()


@pytest.mark.nightly
async def test_n82_abuses_end_by_name_and_hurt_nobody(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "PROCESSES_MAX", 200)  # a bomb passes it before it hurts who runs these tests
    backend = cluster.shown()
    image = f"{cluster.repository}@sha256:{cluster.digest.hex()}"
    lives = "while :; do sleep 0.2; done"  # of the cluster's own: two of ours need more than two cores
    cluster.kubectl("run", "neighbour", f"--image={image}", "--command", "--", "/bin/sh", "-c", lives)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/neighbour", "--timeout=90s")
    before = shutil.disk_usage(home()).free if cluster.is_own else 0
    try:
        async with trio.open_nursery() as nursery:
            for number, (name, abuse) in enumerate(ABUSES.items()):
                task, began = bytes((number,)) * 32, trio.current_time()
                request = cluster.request("", command=abuse.command, output_path="", limits=abuse.limits)
                ended, log = await _ended(backend, task, request, tmp_path / "packed")
                assert (ended.end, abuse.says in log) == (abuse.end, True), (name, ended, log)
                assert "begun" in log, name
                print(f"{name}: {ended.end.value} after {trio.current_time() - began:.0f} s")
                nursery.start_soon(backend.remove, task)
        state = cluster.kubectl("get", "pod", "neighbour", "-o", "jsonpath={.status.containerStatuses[0]}")
        assert json.loads(state)["restartCount"] == 0 and "running" in json.loads(state)["state"], "it runs on"
        # The machine starts the next one, and has its disk back.
        assert (await _ended(backend, task, cluster.request("echo next"), tmp_path / "next"))[1] == "next\n"
        if cluster.is_own:
            assert shutil.disk_usage(home()).free > before - 512 * _MIB
    finally:
        cluster.kubectl("delete", "pod", "neighbour", "--grace-period=1")
        for number in range(len(ABUSES)):
            await backend.remove(bytes((number,)) * 32)
        await backend.aclose()


async def test_n82_a_log_without_end_is_bounded_on_the_machine_and_for_who_reads_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    backend, task = cluster.shown(), b"\x4c" * 32
    request = cluster.request(f"echo begun; yes {'x' * 200} | head -c {600 * _MIB}; echo over", output_path="")
    try:
        ended, log = await _ended(backend, task, request, tmp_path / "packed")
        # It ends by itself, or its cluster takes it for what its log takes of the disk.
        assert ended.end in (End.EXITED, End.OUT_OF_DISK), ended
        assert len(log) <= 2 * _MIB
        if cluster.is_own:
            kept = sum(path.lstat().st_size for path in _files(home() / "logs"))
            assert kept < 1_024 * _MIB
            print(f"a log of 600 MiB: {ended.end.value}, {kept >> 20} MiB on the machine")
    finally:
        await backend.remove(task)
        await backend.aclose()


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where) / name for name in names)


def test_the_abuses_are_those_of_the_document() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| abuse in a pod \| ([^|]+) \|", text, re.MULTILINE)
    assert {name for names in rows for name in names.split("; ")} == {*ABUSES, "a log without end"}


def test_the_bounds_of_a_pod_are_those_of_an_engine(cluster: Cluster) -> None:
    small, large = (manifests.bounds_of(cluster.request("", limits={"disk_mib": size})) for size in (64, 10_240))
    assert small["processes_max"] == large["processes_max"] and small["files_max"] < large["files_max"]
    assert large["files_max"] > FILES_MAX
