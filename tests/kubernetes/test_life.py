"""Containers in a real cluster: one life, restarts, and what ends a container."""

from __future__ import annotations

import os
import signal
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.bench.executor import pods_ms
from tasks.executor.containers import kubernetes
from tasks.executor.containers.backend import Collected, End, Ended, Look
from tasks.executor.containers.errors import ContainerRefused, ImageUnavailable, NotStarted
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.log_entries import LogPlace
from tasks.executor.containers.request import ContainerRequest, Image, InputMount
from tests.kubernetes.machine import NODE, Cluster, home

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(32))
ENDED = "jsonpath={.items[*].status.containerStatuses[?(@.state.terminated)].name}"
BEGUN = "echo begun >> /output/lives; "
STOPS_OTHERS = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(one) != os.getpid() and b"|| kill -" in open(f"/proc/{one}/cmdline", "rb").read():
                os.kill(int(one), signal.SIGSTOP)
        except OSError:
            pass
"""


async def _run(
    backend: KubernetesBackend, request: ContainerRequest, packed: Path, task: bytes = TASK
) -> tuple[Ended, Collected]:
    await backend.start(task, request)
    try:
        ended = await backend.watch(task, request, lambda _look: None)
        return ended, await backend.collect(task, request, str(packed))
    finally:
        await backend.remove(task)


@asynccontextmanager
async def _watched(
    backend: KubernetesBackend, request: ContainerRequest, looks: list[Look]
) -> AsyncIterator[list[Ended]]:
    ended: list[Ended] = []

    async def watch() -> None:
        ended.append(await backend.watch(TASK, request, looks.append))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield ended


async def _until(condition: Callable[[], object], limit_s: float = 90) -> None:
    with trio.fail_after(limit_s):
        while True:
            if condition():
                return
            await trio.sleep(0.1)


def _lives(packed: Path) -> bytes:
    with tarfile.open(packed) as found:
        file = found.extractfile("lives")
        assert file is not None
        return file.read()


async def test_a_container_reads_its_inputs_and_leaves_outputs(cluster: Cluster, tmp_path: Path) -> None:
    backend = cluster.shown()
    mounts = (
        InputMount(bytes(32), "/data/file", 6, is_folder=False),
        InputMount(bytes(32), "/data/folder", 1 << 20, is_folder=True),
    )
    request = cluster.request(
        "id -u; cat /data/file; cat /data/folder/inner/one; echo kept > /output/lives; ln -s /etc /output/link;"
        "touch /data/file 2>/dev/null || echo read-only; touch /x 2>/dev/null || echo root-read-only;"
        "ls /var/run/secrets 2>/dev/null || echo no-token;"
        "echo $HOME; touch /scratch/home/a /tmp/b && echo writes; exit 3",
        mounts=mounts,
    )
    await backend.prepare(request, lambda _progress: None)
    (backend.input_path(TASK, 1) / "inner").mkdir(parents=True)
    backend.input_path(TASK, 0).write_text("first\n")
    (backend.input_path(TASK, 1) / "inner" / "one").write_text("second\n")
    ended, collected = await _run(backend, request, tmp_path / "packed.tar")
    assert (ended.end, ended.code) == (End.EXITED, 3)
    assert collected.log.decode().splitlines() == [
        "65534", "first", "second", "read-only", "root-read-only", "no-token", "/scratch/home", "writes",
    ]  # fmt: skip
    assert collected.outputs is not None and collected.outputs.left_out == ("link",), collected.why
    assert _lives(tmp_path / "packed.tar") == b"kept\n"
    assert cluster.kubectl("get", "namespaces", "-l", f"dekube.node={NODE.hex()}", "-o", "name") == ""
    assert not backend.folder(TASK).exists()
    await backend.aclose()


async def test_a_restarted_node_takes_its_container_up_and_can_stop_it(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.shown()
    request = cluster.request(f"trap '' TERM; {BEGUN} while :; do sleep 1; done")
    await first.start(TASK, request)
    await first.aclose()  # nothing of the first is used any more, as after a kill
    assert await cluster.shown(b"\x77" * 20).running() == frozenset(), "another node takes it for its own"
    second, looks = cluster.shown(), list[Look]()
    assert await second.running() == {TASK}
    assert await second.sweep(frozenset((TASK,))) == 0
    async with _watched(second, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        await second.stop(TASK, 1)
    assert (ended[0].end, ended[0].code) == (End.STOPPED, 9)
    collected = await second.collect(TASK, request, str(tmp_path / "packed.tar"))
    assert collected.outputs is not None, collected.why
    assert _lives(tmp_path / "packed.tar") == b"begun\n", "it ran twice"
    assert await second.sweep(frozenset()) == 1
    await second.aclose()


async def test_a_container_that_ends_its_helper_is_stopped_and_named_so(cluster: Cluster, tmp_path: Path) -> None:
    backend, looks = cluster.shown(), list[Look]()
    place = backend.place(TASK)
    others = "for p in /proc/[0-9]*; do n=${p#/proc/}; [ $n = $$ ] || kill -9 $n 2>/dev/null; done;"
    request = cluster.request(f"trap '' TERM; echo alone; while :; do {others} sleep 0.2; done")
    await backend.start(TASK, request)
    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        await _until(lambda: "files" in cluster.kubectl("get", "pods", "-n", place.namespace, "-o", ENDED))
        live = await backend.log(TASK, LogPlace(), 1 << 20)
        assert [entry.text for entry in live.entries] == [b"alone\n"]
        await backend.stop(TASK, 1)
    assert ended[0].end is End.STOPPED, "somebody else is said to have removed it"
    assert (await backend.collect(TASK, request, str(tmp_path / "packed.tar"))).outputs is None
    await backend.remove(TASK)
    await backend.aclose()


@pytest.mark.nightly
async def test_a_container_that_stops_its_helpers_programs_is_stopped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the helper that never answers delays the end once, not at each try."""
    monkeypatch.setattr(kubernetes.backend, "SIGNAL_S", 3.0)
    backend, looks = cluster.shown(), list[Look]()
    request = cluster.request("", command=("/usr/bin/python3", "-c", STOPS_OTHERS), output_path="")
    await backend.start(TASK, request)
    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        with trio.fail_after(120):
            await backend.stop(TASK, 1)
    assert ended[0].end is End.STOPPED
    await backend.remove(TASK)
    await backend.aclose()


async def test_two_tasks_bring_the_same_image_at_once(cluster: Cluster) -> None:
    backend = cluster.shown()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(backend.prepare, cluster.request("true"), lambda _progress: None)
    assert cluster.kubectl("get", "namespaces", "-l", f"dekube.node={NODE.hex()}", "-o", "name") == ""
    await backend.aclose()


async def test_an_evicted_container_is_named_and_never_started_again(cluster: Cluster) -> None:
    backend, looks = cluster.shown(), list[Look]()
    request = cluster.request("sleep 600")
    await backend.start(TASK, request)
    place = backend.place(TASK)
    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        pod = cluster.kubectl("get", "pods", "-n", place.namespace, "-o", "name").strip().partition("/")[2]
        cluster.evict(place.namespace, pod)
    assert ended[0].end in (End.EVICTED, End.LOST)
    names = cluster.kubectl("get", "pods", "-n", place.namespace, "-o", "name")
    assert pod in names or not names, "a second pod was made"
    assert await backend.running() == {TASK}, "a restarted node would begin it again"
    await backend.remove(TASK)
    await backend.aclose()


async def test_an_outage_of_the_api_server_ends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.is_own:
        pytest.skip("only the API server of a cluster of this machine is stopped")
    await _outage(cluster, tmp_path, 8)


@pytest.mark.nightly
async def test_a_minute_without_the_api_server_ends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.is_own:
        pytest.skip("only the API server of a cluster of this machine is stopped")
    await _outage(cluster, tmp_path, 60)


async def _outage(cluster: Cluster, tmp_path: Path, seconds: int) -> None:
    """Stop the API server's process for some seconds, in which the container ends."""
    backend, looks = cluster.shown(), list[Look]()
    request = cluster.request(f"{BEGUN} sleep {seconds // 2}; echo done")
    await backend.start(TASK, request)
    server = int((home() / "apiserver.pid").read_text())
    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        os.kill(server, signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            os.kill(server, signal.SIGCONT)
    assert (ended[0].end, ended[0].code) == (End.EXITED, 0)
    collected = await backend.collect(TASK, request, str(tmp_path / "packed.tar"))
    assert collected.log == b"done\n" and _lives(tmp_path / "packed.tar") == b"begun\n"
    await backend.remove(TASK)
    await backend.aclose()


async def test_ends_have_names(cluster: Cluster) -> None:
    backend = cluster.shown()
    # The shell's own memory: a child that the kernel ends would leave the shell alive.
    eats = "a=x; while :; do a=$a$a; done"
    ends = ((eats, End.OUT_OF_MEMORY, 9), ("kill -15 $$", End.SIGNALLED, 15), ("exec /none", End.EXITED, 127))
    async with trio.open_nursery() as nursery:
        for number, (script, end, code) in enumerate(ends):
            task, request = bytes((number,)) * 32, cluster.request(script, output_path="")
            await backend.start(task, request)
            ended = await backend.watch(task, request, lambda _look: None)
            nursery.start_soon(backend.remove, task)  # which takes seconds; the next one starts
            assert (ended.end, ended.code) == (end, code), script
    await backend.aclose()


async def test_what_a_cluster_refuses_is_told(cluster: Cluster) -> None:
    backend = cluster.shown()
    with pytest.raises(NotStarted, match="no such file or directory"):
        await backend.start(TASK, cluster.request("", command=("/no-such-program",)))
    with pytest.raises(ContainerRefused, match="user 0"):
        await backend.check(cluster.request("true", user=0))
    other = cluster.request("true")
    absent = type(other)(type(other.image)(other.image.repository, b"\x01" * 32), other.limits)
    with pytest.raises(ImageUnavailable, match="NotFound"):
        await backend.prepare(absent, lambda _progress: None)
    assert cluster.kubectl("get", "namespaces", "-l", f"dekube.node={NODE.hex()}", "-o", "name") == ""
    await backend.aclose()


async def test_n51_what_others_change_in_a_running_container_is_seen(cluster: Cluster) -> None:
    """Its policy is made anew, however it was changed; a container whose image is another one is given up."""
    backend, looks = cluster.shown(), list[Look]()
    request = cluster.request("sleep 600", output_path="")
    await backend.start(TASK, request)
    namespace = backend.place(TASK).namespace

    def selector() -> str:
        path = "jsonpath={.items[*].spec}"
        return cluster.kubectl("get", "networkpolicies", "-n", namespace, "-o", path)

    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        ordered = selector()
        assert "Ingress" in ordered
        cluster.kubectl("delete", "networkpolicies", "--all", "-n", namespace)
        await _until(lambda: selector() == ordered)
        for change in ('{"spec":{"egress":[{}]}}', '{"spec":{"podSelector":{"matchLabels":{"none":"x"}}}}'):
            cluster.kubectl("patch", "networkpolicy", "deny-all", "-n", namespace, "-p", change)
            assert selector() != ordered
            await _until(lambda: selector() == ordered)
        assert not ended
        pod = cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").strip()
        cluster.kubectl("set", "image", "-n", namespace, pod, f"main={request.image.repository}:1")
    assert ended[0].end is End.LOST
    await backend.remove(TASK)
    await backend.aclose()


async def test_the_benchmark_measures_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    found = await pods_ms(tmp_path, str(cluster.kubeconfig), Image(cluster.repository, cluster.digest), 1)
    print(f"ms from the order to the first line, and to remove a pod: {found}")
    assert all(first > 0 and removed > 0 for first, removed in found) and len(found) == 1
