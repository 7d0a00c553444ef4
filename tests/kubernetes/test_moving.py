"""A job that moves between an engine and pods: the same folder in each, and owners who leave in turn."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from billing.escrow import Movement, Purpose, bill_lines
from node.home.options import DockerOptions, KubernetesOptions
from node.market.container_seals import RunKey
from tasks.custody.container_keys import LOG, OUTPUT, open_checkpoint
from tasks.custody.errors import StreamInvalid
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.request import RESTORED, ContainerRequest
from tasks.kinds.container import ExitKind
from tasks.kinds.folders import unpack
from tasks.ledger.lifecycle import Phase
from tasks.ledger.meter_records import load_meter
from tasks.ledger.records import load_task
from tests.kubernetes.machine import Cluster, home
from tests.node.market.test_sealed_checkpoints import (
    DAY_MS,
    KEEPERS,
    Away,
    check_ciphertext,
    check_no_value_lies_open,
    check_nothing_is_left,
    key_of,
)
from tests.node.market.test_sealed_containers import (
    FIRST,
    KEY_FILE,
    OUTSIDER,
    REQUESTER,
    ROWS,
    SECOND,
    TOKEN,
    find,
    forms,
    opened,
)
from tests.node.market.test_sealed_containers import sources as sources
from tests.node.world import Machine, World, world_of_containers
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import Machine as EngineMachine
from tests.tasks.executor.containers.machine import no_progress, running_machine

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(2, 34))
THIRD, FOURTH = 7, 8
ON_ENGINES, IN_PODS = (FIRST, THIRD), (SECOND, FOURTH)
EVERY_S = 10
SMALL_FILES = 300
VALUES = (TOKEN.encode(), KEY_FILE.splitlines()[1], ROWS[:40])

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

COUNT = """
save() { echo "$n $state" > /state/n.tmp; mv /state/n.tmp /state/n; }
trap 'save; exit 0' TERM
state=$(head -c 30 /data/rows.txt)
n=0; [ -f /state/n ] && read n rest < /state/n
echo "resumed=$DEKUBE_RESUMED from=$n" >> /state/log; echo "token $TOKEN"; cat /run/secrets/key.pem
while [ $n -lt 30 ]; do n=$((n+1)); save; sleep 3; done
cp /state/log /output/log; cp /data/rows.txt /output/rows
"""


@pytest.fixture
def lent(tmp_path: Path, cluster: Cluster) -> Iterator[EngineMachine]:
    """An engine beside the cluster, which pulls from the same registry."""
    if not cluster.is_own:
        pytest.skip("an engine of this machine does not reach the registry of this cluster")
    with running_machine(tmp_path / "lent") as machine:
        yield machine


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_of_containers(tmp_path, monkeypatch, {"tasks.decline_ms": 1_000}) as made:
        yield made


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


class Moving(Away):
    """Two machines that lend an engine and two that lend a cluster; a requester that is away, and keepers."""

    def __init__(self, world: World, lent: EngineMachine, cluster: Cluster) -> None:
        super().__init__(world, lent)
        self.cluster = cluster
        image = f"{cluster.repository}@sha256:{cluster.digest.hex()}"
        self.machines |= {number: Machine(world, number, "compute") for number in (SECOND, THIRD, FOURTH)}
        docker = DockerOptions(enabled=True, socket=str(lent.engine.socket), disk_gib=4, notice_s=10)
        pods = KubernetesOptions(
            enabled=True, kubeconfig=str(cluster.kubeconfig), unisolated_allowed=True, helper_image=image,
            notice_s=10,
        )  # fmt: skip
        for number in (*ON_ENGINES, *IN_PODS):
            machine = self.machines[number]
            lends = {"docker": docker} if number in ON_ENGINES else {"kubernetes": pods}
            executor = replace(machine.options.executor, **lends)
            machine.options = replace(machine.options, executor=executor)
        self.taken: set[int] = set()

    async def lend(self, nursery: trio.Nursery, number: int) -> None:
        """Start a machine, and register it."""
        await nursery.start(self.live, number)
        duties = self.machines[number].duties
        assert duties is not None
        duties.is_taken_back = lambda: number in self.taken
        await self.register(number)

    def left(self, number: int) -> list[str]:
        """Return what a machine's engine or cluster still has of its containers."""
        if number in ON_ENGINES:
            return self.names()
        label = f"dekube.node={account(number).address.hex()},dekube.task!=none"
        return self.cluster.kubectl("get", "namespaces", "-l", label, "-o", "name").split()

    async def running(self, task: bytes, number: int) -> None:
        address = account(number).address

        def runs() -> bool:
            record = load_task(self.world.store, task)
            return record.phase is Phase.RUNNING and record.worker == address

        await self.world.mint_until(runs, timeout_s=180)


@pytest.mark.nightly
async def test_three_owners_take_back_an_engine_a_cluster_and_an_engine_and_nobody_reads_a_secret(
    world: World, lent: EngineMachine, cluster: Cluster, sources: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A private job with secrets whose requester is killed at once; its result opens the next day."""
    moving, order = Moving(world, lent, cluster), (FIRST, SECOND, THIRD, FOURTH)
    async with trio.open_nursery() as nursery:
        for number in (REQUESTER, OUTSIDER, *KEEPERS):
            await nursery.start(moving.live, number)
        await moving.register_keepers()
        task = await moving.post(job(cluster, sources))
        await moving.keep(task)
        moving.kill(REQUESTER)
        await moving.lend(nursery, FIRST)
        keys, named, seen = list[RunKey](), list[bytes](), ""
        for run, (number, following) in enumerate(pairwise(order)):
            await moving.running(task, number)
            keys.append(RunKey(await key_of(moving, number, task), run))
            await moving.checkpoint_of(task, number)
            if number in IN_PODS:
                seen += shown(cluster, number)
            await moving.lend(nursery, following)
            moving.taken.add(number)
            await world.mint_until(
                lambda number=number: load_task(world.store, task).worker != account(number).address,  # type: ignore[misc]
                timeout_s=120,
            )
            latest = moving.stored(task).latest
            assert latest is not None
            named.append(latest.blob)
            await moving.kept(latest.blob)
            await check_ciphertext(moving, [*(name for name, _ in moving.part(task).blobs), latest.blob])
            await world.mint_until(lambda number=number: not moving.left(number), timeout_s=90)  # type: ignore[misc]
            moving.kill(number)  # what it stored last is to be had from the keepers alone
        await moving.running(task, FOURTH)
        await moving.checkpoint_of(task, FOURTH)
        seen += shown(cluster, FOURTH)
        check_keys(moving, keys, named)
        await moving.settled(task)
        end = moving.end(task)
        assert (moving.phase(task), end.kind, end.code) == (Phase.SETTLED, ExitKind.EXITED, 0)
        await moving.kept(end.output, end.logs)
        whole = load_meter(world.store, task).paid  # what the last interval earned waits after the end (R139)
        await world.mint_until(lambda: sum(paid_of(moving, task).values()) == whole, timeout_s=60)
        check_bill(moving, task, order)
        moving.kill(FOURTH)
        world.mint(after_ms=DAY_MS)
        moving.renew(REQUESTER)
        await nursery.start(moving.live, REQUESTER)
        await check_result(moving, task, tmp_path / "result")
        await check_ciphertext(moving, [end.output, end.logs])
        for number in order:
            moving.renew(number)
            await nursery.start(moving.live, number)
        await check_nothing_is_left(moving, task)
        await world.mint_until(lambda: not any(map(moving.left, order)), timeout_s=120)
        # A kubelet unmounts the memory of a pod that is gone a little later.
        await world.mint_until(lambda: not find(home() / "kubelet", VALUES), timeout_s=60)
        nursery.cancel_scope.cancel()
    world.store.close()
    check_no_value_lies_open(moving, "".join(capfd.readouterr()), tmp_path)
    check_cluster(seen)


def job(cluster: Cluster, sources: Path) -> dict[str, Any]:
    return {
        "image": f"{cluster.repository}@sha256:{cluster.digest.hex()}", "output": "/output", "output_mib": 1,
        "minutes": 30, "command": ["/bin/sh", "-c", COUNT], "tick_s": 10, "private": True, "retries": 4,
        "allow": ["unisolated"], "mounts": [{"source": str(sources / "data"), "path": "/data"}],
        "checkpoint": {"path": "/state", "every_s": EVERY_S, "max_mib": 1},
        "secrets": [
            {"env": "TOKEN", "from": "env:MY_TOKEN"},
            {"path": "/run/secrets/key.pem", "from": f"file:{sources / 'key.pem'}"},
        ],
    }  # fmt: skip


def shown(cluster: Cluster, number: int) -> str:
    """Return all that the cluster shows of a machine's containers while they run: events and what they are of."""
    label, found = f"dekube.node={account(number).address.hex()}", ""
    for name in cluster.kubectl("get", "namespaces", "-l", label, "-o", "name").split():
        kinds = "pods,jobs,configmaps,secrets,events,resourcequotas,networkpolicies"
        found += cluster.kubectl("get", kinds, "-n", name.partition("/")[2], "-o", "yaml")
    assert "kind: Pod" in found and "kind: Event" in found
    return found


def check_keys(moving: Moving, keys: list[RunKey], named: list[bytes]) -> None:
    """Each key opens what its machine stored and what was before, and none of what came later (N58)."""
    for number, key in enumerate(keys):
        for run, blob in enumerate(named):
            sealed = moving.store(OUTSIDER if moving.store(OUTSIDER).is_complete(blob) else KEEPERS[0])
            if not sealed.is_complete(blob):
                continue  # the chain names the last two, and so many are kept
            data = sealed.read(blob)
            if run <= number:
                assert ROWS[:30] in b"".join(open_checkpoint(key.key, key.run, [data]))
            else:
                with pytest.raises(StreamInvalid):
                    list(open_checkpoint(key.key, key.run, [data]))


def paid_of(moving: Moving, task: bytes) -> dict[bytes, int]:
    """Return what the lines of the bill say that each machine was paid for seconds."""
    paid = {run.worker: 0 for run in moving.stored(task).runs}
    for line in bill_lines(moving.world.store, task):
        if line.purpose in (Purpose.METERED, Purpose.DISK) and line.movement is Movement.PAID:
            paid[line.party] += line.amount
    return paid


def check_bill(moving: Moving, task: bytes, order: tuple[int, ...]) -> None:
    """At most an interval was lost each time, and each machine has lines of its own for what it is paid."""
    meter, runs = load_meter(moving.world.store, task), moving.stored(task).runs
    assert [run.worker for run in runs] == [account(number).address for number in order]
    assert all(run.lost <= EVERY_S for run in runs), runs
    assert meter.seconds == sum(run.seconds - run.lost for run in runs) >= 80
    paid = paid_of(moving, task)
    assert sum(paid.values()) == meter.paid and all(paid.values()), paid
    prices = {paid[run.worker] // (run.seconds - run.lost) for run in runs}
    assert max(prices) - min(prices) <= 1, "a second that is kept has one price, whoever gave it"


async def check_result(moving: Moving, task: bytes, folder: Path) -> None:
    part, end = moving.part(task), moving.end(task)
    output = opened(part, account(REQUESTER), await moving.fetch(REQUESTER, end.output), task, OUTPUT)
    packed = folder.with_name("result.tar")
    packed.write_bytes(output)
    with packed.open("rb") as file:
        unpack(file, folder, limit_bytes=1 << 20)
    assert (folder / "rows").read_bytes() == ROWS
    begun = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert [line[0] for line in begun] == ["resumed=0", *["resumed=1"] * 3]
    counts = [int(line[1].removeprefix("from=")) for line in begun]
    assert counts[0] == 0 and all(one < other for one, other in pairwise(counts)), counts
    log = opened(part, account(REQUESTER), await moving.fetch(REQUESTER, end.logs), task, LOG)
    assert b"token ***" in log and TOKEN.encode() not in log
    packed.unlink()


def check_cluster(seen: str) -> None:
    """Search what the cluster showed, its machine's disk, its database and its logs."""
    for value in VALUES:
        assert not any(form.decode() in seen for form in forms(value)), "the cluster shows a value"
        assert base64.b64encode(value).decode() not in seen
    assert not find(home() / "kubelet", VALUES), "the machine of the cluster has a value"
    assert not find(home() / "etcd", VALUES[1:]), "the database of the cluster has a file"
    for name in ("apiserver", "kubelet", "containerd"):
        said = (home() / f"{name}.log").read_bytes()
        assert not any(value in said for value in VALUES), f"{name} has written a value to its log"
