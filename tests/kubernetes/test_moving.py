"""A job that moves between an engine and pods finds the same folder in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.request import RESTORED, ContainerRequest
from tasks.kinds.folders import unpack
from tests.kubernetes.machine import Cluster
from tests.node.market.test_sealed_containers import sources as sources
from tests.tasks.executor.containers.machine import Machine as EngineMachine
from tests.tasks.executor.containers.machine import no_progress, running_machine

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(2, 34))
SMALL_FILES = 300

FILL = f"""
set -e; cd /state; mkdir -p deep/er empty; echo text > deep/er/a; printf '\\001\\377' > 'b ü'; chmod 640 deep/er/a
echo '#!/bin/sh' > run; chmod 750 run; ln -s deep/er/a link; ln deep/er/a hard; mkfifo pipe; echo half > c.tmp
dd if=/dev/zero of=holes bs=1 count=1 seek=3000000 2>/dev/null
n=0; while [ $n -lt {SMALL_FILES} ]; do : > "deep/$n"; n=$((n+1)); done
touch done; sleep 600
"""
LOOK = f"""
cd /state; [ "$DEKUBE_RESUMED" = 1 ] || exit 3
[ "$(cat deep/er/a)" = text ] && [ "$(cat hard)" = text ] && [ -x run ] && [ -d empty ] || exit 4
[ "$(stat -c %s holes)" = 3000001 ] && [ "$(ls deep | wc -l)" = {SMALL_FILES + 1} ] || exit 5
[ ! -e link ] && [ ! -e pipe ] && [ ! -e c.tmp ] || exit 6
[ "$(stat -c %u:%g deep/er/a)" = "$(id -u):$(id -g)" ] && : >> deep/er/a && : > new && rm new || exit 7
sleep 600
"""
"""What each machine has to find, whichever back end stored it: names, bytes, programs, folders, and an owner that
may write. Links, pipes and unfinished files are left out, holes are zeros."""


@pytest.fixture
def lent(tmp_path: Path, cluster: Cluster) -> Iterator[EngineMachine]:
    """An engine beside the cluster, which pulls from the same registry."""
    if not cluster.is_own:
        pytest.skip("an engine of this machine does not reach the registry of this cluster")
    with running_machine(tmp_path / "lent") as machine:
        yield machine


async def _stored(backend: ContainerBackend, request: ContainerRequest, packed: Path) -> bytes:
    """Start a container, wait until it is done or looks well, store its folder, and remove it."""
    await backend.prepare(request, no_progress)
    await backend.make_disk(TASK, request)
    await backend.start(TASK, request)
    try:
        with trio.fail_after(60):
            while True:
                found = await backend.snapshot(TASK, request, str(packed))
                if found.files > SMALL_FILES + 5:  # ``done`` is the last of them
                    break
                await trio.sleep(0.3)
        if request.is_resumed:
            with trio.move_on_after(2):  # it ends at once with another code where something is missing
                ended = await backend.watch(TASK, request, lambda _look: None)
                raise AssertionError((ended.code, (await backend.collect(TASK, request, str(packed) + "x")).log))
        return await trio.Path(packed).read_bytes()
    finally:
        await backend.remove(TASK)


async def test_a_folder_is_the_same_on_an_engine_in_a_pod_and_on_an_engine_again(
    cluster: Cluster, lent: EngineMachine, tmp_path: Path
) -> None:
    engine, pods = lent.backend(), cluster.shown()
    fields: dict[str, Any] = {"output_path": "", "checkpoint_path": "/state", "checkpoint_bytes": 8 << 20}
    packed: list[bytes] = []
    backends: tuple[ContainerBackend, ...] = (engine, pods, engine)
    for at, backend in enumerate(backends):
        request = cluster.request(LOOK if at else FILL, **fields, is_resumed=bool(at))
        if at:
            before = tmp_path / f"before {at}"
            before.write_bytes(packed[-1])
            with before.open("rb") as file:
                unpack(file, backend.folder(TASK) / RESTORED, limit_bytes=8 << 20, disk_limit_bytes=64 << 20)
        packed.append(await _stored(backend, request, tmp_path / f"packed {at}"))
    assert packed[0] == packed[1] == packed[2], "a folder changed as it moved"
    await engine.aclose()
    await pods.aclose()
