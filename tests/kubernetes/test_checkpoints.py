"""Checkpoints of a container in a pod: restored, stored while it runs, and out of a pod that is taken away."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End, Ended, Look
from tasks.executor.containers.errors import BadOutputs
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.log_entries import LogPlace
from tasks.executor.containers.request import RESTORED, ContainerRequest
from tests.kubernetes.machine import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(1, 33))
ZEROS = 3_000_000
SCRIPT = """
echo "resumed=$DEKUBE_RESUMED step=$(cat /state/step) inner=$(cat /state/inner/file) at=$DEKUBE_CHECKPOINT"
trap 'sleep 2; echo 9 > /state/step.tmp; mv /state/step.tmp /state/step; exit 0' TERM
ln -s /etc/passwd /state/link; echo half > /state/half.tmp; echo 8 > /state/step
head -c 3000000 /dev/zero > /state/zeros
while :; do echo more >> /state/half.tmp; sleep 0.1; done
"""


def _held(packed: Path) -> dict[str, bytes]:
    with tarfile.open(packed) as found:
        return {one.name: file.read() for one in found if (file := found.extractfile(one)) is not None}


async def _stored(backend: KubernetesBackend, request: ContainerRequest, packed: Path) -> dict[str, bytes]:
    found = await backend.snapshot(TASK, request, str(packed))
    assert "link" in found.left_out or found.files < 3
    return _held(packed)


async def test_a_checkpoint_is_restored_stored_and_leaves_a_pod_that_is_evicted(
    cluster: Cluster, tmp_path: Path
) -> None:
    backend, looks, ended = cluster.shown(), list[Look](), list[Ended]()
    request = cluster.request(
        SCRIPT, output_path="", checkpoint_path="/state", checkpoint_bytes=4 << 20, is_resumed=True
    )
    restored = backend.folder(TASK) / RESTORED
    (restored / "inner").mkdir(parents=True)
    (restored / "inner" / "file").write_text("kept")
    (restored / "step").write_text("7")
    await backend.start(TASK, request)
    assert restored.is_dir() and not list(restored.iterdir()), "the node keeps a second copy"
    packed, place = tmp_path / "packed", backend.place(TASK)

    async def watch() -> None:
        ended.append(await backend.watch(TASK, request, looks.append))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with trio.fail_after(120):
            held = await _stored(backend, request, packed)
            while len(held.get("zeros", b"")) < ZEROS:
                await trio.sleep(0.5)
                held = await _stored(backend, request, packed)
        assert held == {"inner/file": b"kept", "step": b"8\n", "zeros": bytes(ZEROS)}
        small = type(request)(request.image, request.limits, checkpoint_path="/state", checkpoint_bytes=1 << 20)
        with pytest.raises(BadOutputs, match="more than"):
            await backend.snapshot(TASK, small, str(packed))
        pod = cluster.kubectl("get", "pods", "-n", place.namespace, "-o", "name").strip().partition("/")[2]
        cluster.evict(place.namespace, pod)
    assert ended[0].end is End.EVICTED and 2 <= ended[0].up_s < 120
    assert (await _stored(backend, request, packed))["step"] == b"9\n", "what it saved at SIGTERM"
    part = await backend.log(TASK, LogPlace(), 1 << 20)
    assert [one.text for one in part.entries] == [b"resumed=1 step=7 inner=kept at=/state\n"]
    with trio.fail_after(60):  # its pod would have lived for two minutes
        await backend.remove(TASK)
    await backend.aclose()


async def test_a_program_that_writes_each_second_is_stored_each_time(cluster: Cluster, tmp_path: Path) -> None:
    """Its folder is copied in its pod: how long the way to the cluster takes does not matter."""
    backend, packed = cluster.shown(), tmp_path / "packed"
    script = f"""
head -c {24 << 20} /dev/urandom > /state/large
put() {{ echo $n > /state/new.tmp; mv /state/new.tmp /state/$1; }}
n=0; while :; do n=$((n+1)); put a; put b; sleep 1; done
"""
    request = cluster.request(
        script, output_path="", checkpoint_path="/state", checkpoint_bytes=48 << 20, is_private=True
    )
    await backend.start(TASK, request)
    times = list[float]()
    with trio.fail_after(120):
        while len(times) < 3:
            began = trio.current_time()
            await backend.snapshot(TASK, request, str(packed))
            held = _held(packed)
            if len(held.get("large", b"")) == 24 << 20 and "b" in held:
                times.append(trio.current_time() - began)
                assert int(held["a"]) - int(held["b"]) in (0, 1), "of two moments"
    print(f"stored 3 times of 3 in {', '.join(f'{one:.1f}' for one in times)} s")
    await backend.stop(TASK, 0)
    assert await backend.wipe(TASK), "the copy too"
    await backend.aclose()
