"""Private containers, secrets and logins on a real engine and a chain: who reads what, and what is left of it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from node.home.options import DockerOptions
from node.market.machine import describe_machine
from node.market.task_keys import METHOD_TASK_KEY
from rpc.client.containers import ContainerJob, make_container, seal_job
from rpc.client.errors import NoResult
from rpc.client.sealing import open_results
from state.primitives.codec import Value, encode
from state.primitives.errors import DekubeError
from state.primitives.keys import SecretKey
from state.view.accounts import load_account
from tasks.custody.container_keys import LOG, OUTPUT
from tasks.custody.secrets import ContainerSecrets
from tasks.custody.wraps import public_key_of
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.docker import DockerOptions as EngineOptions
from tasks.executor.containers.errors import ImageUnavailable
from tasks.executor.containers.masking import MASK
from tasks.executor.containers.request import Image
from tasks.kinds.container import ContainerPart, ExitKind
from tasks.kinds.folders import unpack
from tasks.ledger.lifecycle import Phase
from tasks.ledger.meter_records import ContainerEnd, load_meter
from tasks.ledger.records import load_spec, load_task
from tasks.ledger.transitions import CREATE_TASK, REGISTER_NODE, node_payload, task_id_of
from tasks.requests.containing import ContainerRequest
from tasks.requests.reading import request_of
from tasks.spec import container_of, encode_spec
from tests.container_engine import PASSWORD, running_registry, skip_without
from tests.node.market.test_containers import PRICE, RATE_MIN
from tests.node.world import COIN, Machine, World, world_of_containers
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, no_progress, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine
from tests.tasks.executor.containers.test_matrix import push

REQUESTER, FIRST, OUTSIDER, SECOND = 0, 1, 2, 3
TOKEN = "tok-5b1f93aXq7+/hidden"
KEY_FILE = b"-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END KEY-----\n"
ROWS = b"rows of a patient, which nobody else may read; " * 40
SCRIPT = (
    'cat /data/rows.txt > /output/copy; echo "token $TOKEN"; printf %s "$TOKEN" | base64;'
    'printf %s "$TOKEN" | fold -w 6;'
    'echo; cat /run/secrets/key.pem; printf "user:%s" "$TOKEN" | base64; mount | grep -c "tmpfs on /run/secrets";'
    "touch /run/secrets/x 2>/dev/null || echo read-only; sleep 3; echo done"
)

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_of_containers(tmp_path, monkeypatch, {}) as made:
        yield made


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    skip_without("docker-registry")
    with running_machine(tmp_path / "lent") as machine:
        yield machine


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A requester's folder with a job's files; its values are in the environment and in a file."""
    folder = tmp_path / "requester"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows.txt").write_bytes(ROWS)
    (folder / "key.pem").write_bytes(KEY_FILE)
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("MY_USER", "keeper")
    monkeypatch.setenv("MY_PASSWORD", PASSWORD)
    return folder


class Network:
    """A requester's node, machines that lend one engine, and an outsider."""

    def __init__(self, world: World, lent: EngineMachine) -> None:
        self.world, self.lent = world, lent
        self.machines = {number: Machine(world, number, "compute") for number in range(4)}
        for number in (FIRST, SECOND):
            machine = self.machines[number]
            docker = DockerOptions(enabled=True, socket=str(lent.engine.socket), disk_gib=4)
            machine.options = replace(machine.options, executor=replace(machine.options.executor, docker=docker))

    async def start(self, nursery: trio.Nursery, *numbers: int) -> None:
        """Start all networks, the requester's node, and the machines of these numbers."""
        for machine in self.machines.values():
            await nursery.start(machine.network.run)
        for number in (REQUESTER, *numbers):
            await nursery.start(self.machines[number].run)
        for number in numbers:
            await self.register(number)

    async def register(self, number: int) -> None:
        machine = self.machines[number]
        profile = describe_machine(machine.wallet.address, machine.options, RATE_MIN, containers=True)
        await self.send(number, REGISTER_NODE, node_payload(profile, 100 * COIN))

    async def send(self, number: int, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(number).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    async def post(self, fields: dict[str, Any]) -> bytes:
        """Make, seal and post a container as a client does; return the task's id."""
        request = request_of(
            {"kind": "container", "rate": RATE_MIN, "memory_mib": 64, "disk_mib": 32, "grace_s": 3_600, **fields}
        )
        assert isinstance(request, ContainerRequest)
        job = seal_job(make_container(request, max_price=PRICE, match_ms=600_000), account(REQUESTER))
        assert isinstance(job, ContainerJob)
        for blob in job.blobs:
            self.store(REQUESTER).add_file(blob.path)
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        await self.send(REQUESTER, CREATE_TASK, [encode_spec(job.spec)])
        return task_id_of(account(REQUESTER).address, nonce)

    def store(self, number: int) -> Any:
        blobs = self.machines[number].network.blobs
        assert blobs is not None
        return blobs

    def phase(self, task: bytes) -> Phase:
        return load_task(self.world.store, task).phase

    def part(self, task: bytes) -> ContainerPart:
        return container_of(load_spec(self.world.store, task))

    def end(self, task: bytes) -> ContainerEnd:
        found = load_meter(self.world.store, task).end
        assert found is not None
        return found

    def names(self, *, running: bool = False) -> list[str]:
        which = () if running else ("--all",)
        return self.lent.engine.docker("ps", *which, "--format", "{{.Names}}").split()

    async def fetch(self, number: int, name: bytes) -> bytes:
        """Fetch a blob as any node may that has heard its name."""
        network = self.machines[number].network
        sources = [machine.network.identity.address for machine in self.machines.values()]
        await network.fetch_blob(name, sources, limit_bytes=1 << 24)
        return bytes(self.store(number).read(name))

    async def settled(self, task: bytes) -> None:
        ended = (Phase.SETTLED, Phase.FAILED, Phase.CANCELLED, Phase.EXPIRED)
        await self.world.mint_until(lambda: self.phase(task) in ended, timeout_s=120)


def opened(part: ContainerPart, key: SecretKey, sealed: bytes, task: bytes, what: str) -> bytes:
    return b"".join(open_results(part, key, [sealed], task=task, what=what))


def forms(value: bytes) -> set[bytes]:
    """Return what a value may look like on a disk."""
    return {value, value.hex().encode(), json.dumps(value.decode())[1:-1].encode()} | {
        base64.b64encode(bytes(before) + value)[4:-4] for before in range(3)
    }


def find(root: Path, values: tuple[bytes, ...]) -> list[str]:
    """Return the files below a folder that have one of the values, in any form."""
    wanted = set[bytes]().union(*map(forms, values))
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            found += [str(path)] if any(form in data for form in wanted) else []
    return found


async def test_n35_a_private_container_with_secrets_and_a_login_leaves_ciphertext_alone(
    world: World, lent: EngineMachine, sources: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    network = Network(world, lent)
    with running_registry(tmp_path / "registry", login=True) as port:
        config = lent.engine.root / "config" / "config.json"
        login = base64.b64encode(f"keeper:{PASSWORD}".encode()).decode()
        config.write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": login}}}))
        image = push(lent, port, "private")
        config.unlink()
        async with trio.open_nursery() as nursery:
            await network.start(nursery, FIRST)
            task = await network.post(
                {
                    "image": image.reference, "command": ["/bin/sh", "-c", SCRIPT], "output": "/output",
                    "output_mib": 1, "minutes": 30, "tick_s": 10, "private": True,
                    "mounts": [{"source": str(sources / "data"), "path": "/data"}],
                    "secrets": [
                        {"env": "TOKEN", "from": "env:MY_TOKEN"},
                        {"path": "/run/secrets/key.pem", "from": f"file:{sources / 'key.pem'}"},
                    ],
                    "registry": {"user": "env:MY_USER", "password": "env:MY_PASSWORD"},
                }
            )  # fmt: skip
            await network.world.mint_until(lambda: bool(network.names(running=True)), timeout_s=60)
            await check_a_stranger_gets_no_image(network, image)
            await network.settled(task)
            await check_results(network, task, tmp_path)
            await network.world.mint_until(lambda: not network.names())
            await check_nothing_is_left(network, task)
            nursery.cancel_scope.cancel()
    world.store.close()
    values = (TOKEN.encode(), PASSWORD.encode(), KEY_FILE.splitlines()[1], ROWS[:40])
    assert not find(world.path, values), "a data directory has a plain value"
    assert not find(lent.engine.root, (PASSWORD.encode(), KEY_FILE.splitlines()[1]))
    # Docker keeps variables in its records of a container; freed pages of a database may still have them.
    assert {Path(name).name for name in find(lent.engine.root, (TOKEN.encode(),))} <= {"meta.db"}
    said = "".join(capfd.readouterr())
    for value in values:
        assert not any(form.decode() in said for form in forms(value)), "a log has a plain value"


async def check_a_stranger_gets_no_image(network: Network, image: Image) -> None:
    """The image is on the engine, and its name is on the chain: that alone gives it to nobody (N37)."""
    folder = network.machines[FIRST].home.jobs.parent / "containers"
    options = EngineOptions(socket=str(network.lent.engine.socket), disk_gib=4)
    backend = DockerBackend(options, account(FIRST).address, folder)
    request = replace(network.lent.request("cat /name"), image=image)
    with pytest.raises(ImageUnavailable):
        await backend.prepare(request, no_progress)
    wrong = ContainerSecrets(login=("keeper", "guessed"))
    with pytest.raises(ImageUnavailable):
        await backend.prepare(replace(request, secrets=wrong), no_progress)
    await backend.aclose()


async def check_results(network: Network, task: bytes, tmp_path: Path) -> None:
    """What anybody can fetch is ciphertext (N35); the requester opens it."""
    part, end = network.part(task), network.end(task)
    assert (end.kind, end.code) == (ExitKind.EXITED, 0), opened(
        part, account(REQUESTER), await network.fetch(REQUESTER, end.logs), task, LOG
    )
    named = [name for name, _ in part.blobs] + [end.output, end.logs]
    assert len(named) == 4
    for name in named:
        found = await network.fetch(OUTSIDER, name)
        for plain in (ROWS[:20], TOKEN.encode(), KEY_FILE[:20], b"done", b"copy"):
            assert plain not in found
    log = opened(part, account(REQUESTER), await network.fetch(REQUESTER, end.logs), task, LOG)
    lines = log.decode().split()
    assert (
        TOKEN not in log.decode()
        and lines[:2] == ["token", "***"]
        and lines[-1] == "done"
        and "read-only" in lines
    )
    assert "1" in lines, "the files of secrets are not in memory"
    assert log.count(MASK) >= 5 and KEY_FILE.splitlines()[1] not in log
    output = opened(part, account(REQUESTER), await network.fetch(REQUESTER, end.output), task, OUTPUT)
    unpack(io.BytesIO(output), tmp_path / "out", limit_bytes=1 << 20)
    assert (tmp_path / "out" / "copy").read_bytes() == ROWS
    for stranger in (FIRST, OUTSIDER):
        with pytest.raises(NoResult):
            opened(part, account(stranger), await network.fetch(OUTSIDER, end.output), task, OUTPUT)


async def check_nothing_is_left(network: Network, task: bytes) -> None:
    """The machine has forgotten key, secrets, container and image."""
    duties = network.machines[FIRST].duties
    assert duties is not None
    await network.world.mint_until(lambda: duties.keys.task_key(task) is None)
    folder = network.machines[FIRST].home.jobs.parent / "containers"
    await network.world.mint_until(lambda: not list(folder.glob("*/disk.img")))
    assert str(folder) not in await trio.Path("/proc/mounts").read_text()
    assert "team/private" not in network.lent.engine.docker("images", "--digests")


async def test_n36_the_next_machine_gets_the_key_and_the_first_one_gets_it_no_more(
    world: World, lent: EngineMachine, sources: Path
) -> None:
    """N36: a machine that has left asks again with its one-time key, and opens no result of the next one."""
    network = Network(world, lent)
    async with trio.open_nursery() as nursery:
        await network.start(nursery, FIRST)
        task = await network.post(
            {
                "image": f"{REPOSITORY}@{lent.image_id}", "output": "/output", "output_mib": 1, "minutes": 30,
                "command": ["/bin/sh", "-c", "echo $TOKEN > /output/copy; sleep 3"], "tick_s": 10,
                "secrets": [{"env": "TOKEN", "from": "env:MY_TOKEN"}], "private": True, "retries": 1,
            }
        )  # fmt: skip
        await world.mint_until(lambda: bool(network.names(running=True)), timeout_s=60)
        first = network.machines[FIRST].duties
        assert first is not None
        key = await trio.to_thread.run_sync(first.keys.task_key, task)
        assert key is not None
        lent.engine.docker("rm", "-f", *network.names())
        await world.mint_until(lambda: network.phase(task) is not Phase.RUNNING, timeout_s=60)
        await nursery.start(network.machines[SECOND].run)
        await network.register(SECOND)
        second = account(SECOND).address
        await world.mint_until(lambda: load_task(world.store, task).worker == second, timeout_s=60)
        one_time = b"1" * 32
        question = encode([task, 0, public_key_of(one_time)])
        with pytest.raises(DekubeError, match="not_entitled"):
            await network.machines[FIRST].network.request(account(REQUESTER).address, METHOD_TASK_KEY, question)
        await network.settled(task)
        part, end = network.part(task), network.end(task)
        assert (end.kind, end.code) == (ExitKind.EXITED, 0)
        output = await network.fetch(OUTSIDER, end.output)
        assert TOKEN.encode() in opened(part, account(REQUESTER), output, task, OUTPUT)
        with pytest.raises(NoResult):
            opened(part, account(FIRST), output, task, OUTPUT)
        assert key not in output
        nursery.cancel_scope.cancel()
