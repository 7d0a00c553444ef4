"""Images that come as files, on a real engine and a chain: loaded, kept, sealed, and gone again (R146, R147)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from node.market.containers import request_of
from rpc.client.containers import make_container
from state.view.accounts import load_account
from tasks.custody.container_keys import LOG
from tasks.executor.containers.docker import DockerBackend
from tasks.executor.containers.docker import DockerOptions as EngineOptions
from tasks.kinds.container import ExitKind
from tasks.kinds.image_archives import read_image
from tasks.ledger.records import load_spec, load_task
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.requests.containing import ContainerRequest
from tasks.requests.reading import request_of as job_of
from tasks.spec import container_of, encode_spec
from tests.container_engine import busybox_tree
from tests.node.market.test_containers import PRICE, RATE_MIN
from tests.node.market.test_sealed_containers import FIRST, OUTSIDER, REQUESTER, Network, opened
from tests.node.world import World, world_of_containers
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine
from tests.tasks.images import layout, tar, tree_layer

SECRET = b"weights that nobody else may have; " * 40

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_of_containers(tmp_path, monkeypatch, {}) as made:
        yield made


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


def job(image: Path, script: str, **more: Any) -> dict[str, Any]:
    return {"image": str(image), "command": ["/bin/sh", "-c", script], "minutes": 30, "tick_s": 10, **more}


def images(lent: EngineMachine) -> list[str]:
    return lent.engine.docker("images", "--all", "--no-trunc", "--format", "{{.ID}} {{.Repository}}").splitlines()


async def test_n69_an_image_from_a_file_runs_and_a_private_one_is_nobody_elses(
    world: World, lent: EngineMachine, tmp_path: Path
) -> None:
    """From `docker save` to its end; then N69 with a private one."""
    network = Network(world, lent)
    saved, private = tmp_path / "image.tar", tmp_path / "private.tar"
    lent.engine.docker("save", "-o", str(saved), f"{REPOSITORY}:1")
    lent.engine.docker("rmi", f"{REPOSITORY}:1")
    tree = busybox_tree(tmp_path / "tree")
    private.write_bytes(layout((tree_layer(tree), tar({"opt/weights": SECRET}))))
    assert images(lent) == []
    async with trio.open_nursery() as nursery:
        await network.start(nursery, FIRST)
        for number in range(2):  # the second one finds it there
            task = await network.post(job(saved, "echo ran; sleep 2"))
            await network.settled(task)
            end = network.end(task)
            assert (end.kind, end.code) == (ExitKind.EXITED, 0), await network.fetch(REQUESTER, end.logs)
            assert await network.fetch(OUTSIDER, end.logs) == b"ran\n"
            part = network.part(task)
            with saved.open("rb") as file:
                found = read_image(file)
            assert part.image.digest == found.digest
            assert [line.split()[0] for line in images(lent)] == [f"sha256:{found.config_digest.hex()}"], number
        await check_unfetched(network, saved)
        await check_private(network, private)
        nursery.cancel_scope.cancel()


async def check_unfetched(network: Network, image: Path) -> None:
    """A blob of more bytes than its task says costs the task a machine, and that machine's node goes on."""
    asked = job_of({"kind": "container", "rate": RATE_MIN, "memory_mib": 64, "disk_mib": 32, **job(image, "true")})
    assert isinstance(asked, ContainerRequest)
    spec = make_container(asked, max_price=PRICE, match_ms=600_000).spec
    part, content = container_of(spec), b"more than is said" * 99
    blob = network.store(REQUESTER).add(content)
    short = part.image._replace(digest=b"\1" * 32, blob=blob, size_bytes=len(content) - 1)
    nonce = load_account(network.world.store, account(REQUESTER).address).nonce
    await network.send(REQUESTER, CREATE_TASK, [encode_spec(spec._replace(part=part._replace(image=short)))])
    task, machine = task_id_of(account(REQUESTER).address, nonce), account(FIRST).address
    await network.world.mint_until(lambda: machine in load_task(network.world.store, task).complaints)


async def check_private(network: Network, private: Path) -> None:
    """N69: what anybody fetches is ciphertext, and no other task gets the image from the machine's store."""
    world, lent = network.world, network.lent
    before = set(images(lent))
    task = await network.post(job(private, "head -c 7 /opt/weights; sleep 4", private=True))
    await world.mint_until(lambda: bool(network.names(running=True)), timeout_s=60)
    spec = load_spec(world.store, task)
    sealed = await network.fetch(OUTSIDER, container_of(spec).image.blob)
    assert SECRET[:16] not in sealed and b"index.json" not in sealed
    folder = network.machines[FIRST].home.jobs.parent / "containers"
    options = EngineOptions(socket=str(lent.engine.socket), disk_gib=4)
    backend = DockerBackend(options, account(FIRST).address, folder)
    own = request_of(spec, 60)
    assert await backend.has_image(own)
    for stranger in (container_of(spec).image.blob, b"\1" * 32):
        assert not await backend.has_image(replace(own, archive=stranger, is_private=False))
    await backend.aclose()
    await network.settled(task)
    end = network.end(task)
    log = opened(container_of(spec), account(REQUESTER), await network.fetch(REQUESTER, end.logs), task, LOG)
    assert (end.kind, end.code, log) == (ExitKind.EXITED, 0, SECRET[:7])
    await world.mint_until(lambda: set(images(lent)) == before)
    left = [path.name for path in await trio.to_thread.run_sync(lambda: list(folder.iterdir()))]
    assert not [name for name in left if "image" in name and name != "images"], "a plain archive is left"
    with private.open("rb") as file:
        assert read_image(file).digest == container_of(spec).image.digest
