"""A container on a real engine reaches the names of its job through its node's proxy, and nothing else (R131)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End
from tasks.executor.containers.egress.proxy import EgressLimits, EgressProxy, EgressUse
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.request import InputMount
from tasks.executor.containers.watchdog import Observation, Processes, Tampered, Watchdog
from tests.container_engine import busybox_tree
from tests.tasks.executor.containers.machine import Machine, no_progress, running_machine
from tests.tasks.executor.containers.public_server import CONTENT, PublicServer, public_server

TASK = b"\x31" * 32
NAMES = ("files.example.net:443", "plain.example.net:80")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    root = tmp_path_factory.mktemp("machine")
    with running_machine(root) as machine:
        tree = busybox_tree(root / "curl")
        copy_program("curl", tree)
        yield replace(machine, image_id=machine.engine.import_tree(tree, "example.test/curl:1"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublicServer]:
    with public_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def copy_program(name: str, tree: Path) -> None:
    """Copy a program of this machine with its libraries into the tree of an image."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"NO {name.upper()} ON THIS MACHINE")
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    for path in (program, *(word for word in libraries if word.startswith("/"))):
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def asking(server: PublicServer) -> str:
    """Return a script that reaches the names of its job, tries others, and shows what it was told."""
    return f"""
        curl -sS --cacert /input/ca.pem https://files.example.net/hello
        curl -sS http://plain.example.net/ ; curl -sS -d 12345 http://plain.example.net/in
        for url in https://other.example.net http://plain.example.net:81 http://{server.address} https://{server.address}
        do curl -sS -o /scratch/said -w '%{{http_code}} %{{http_connect}}\\n' $url ; done
        curl -sS --noproxy '*' -m 3 https://{server.address} ; echo "direct $?"
        env | grep -i _proxy= | sort
    """


def check_said(lines: list[str]) -> None:
    """Check what that script has shown."""
    said = [line for line in lines if not line.startswith("curl: ")]
    assert said[:7] == [
        CONTENT.strip(), CONTENT.strip(), "/in plain.example.net 5", "000 403", "403 000", "400 000", "000 400",
    ], lines  # fmt: skip
    assert said[7].startswith("direct ") and said[7] != "direct 0"
    assert "https_proxy=http://127.0.0.1:3128" in said and "NO_PROXY=localhost,job,127.0.0.1,::1" in said


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another program does."""
    while not is_so():  # noqa: ASYNC110  nothing here tells of it
        await trio.sleep(0.05)


async def test_a_container_reaches_its_names_and_nothing_else(
    machine: Machine, server: PublicServer, tmp_path: Path
) -> None:
    backend = machine.backend(egress=("*.example.net:443", "plain.example.net:80"))
    script = asking(server)
    request = machine.request(script, egress=NAMES, mounts=(InputMount(b"\x05" * 32, "/input/ca.pem", 900),))
    place = backend.disk(TASK).input_path(0)
    place.parent.mkdir(parents=True)
    shutil.copy(server.certificate, place)
    use, watchdog, seen = EgressUse(), Watchdog(), list[Observation]()
    try:
        await backend.prepare(request, no_progress)
        await backend.start(TASK, request)
        async with trio.open_nursery() as nursery:
            proxy = EgressProxy(await backend.proxy_socket(TASK), NAMES, EgressLimits(), use, lookup=server.lookup)
            nursery.start_soon(proxy.run)
            look = await backend.watchdog(TASK, request)
            assert look is not None
            nursery.start_soon(look.run, seen.append)
            ended = await backend.watch(TASK, request, lambda _: None)
            await look.catch_up(seen.append)
            nursery.cancel_scope.cancel()
        lines = (await backend.collect(TASK, request, str(tmp_path / "packed"))).log.decode().splitlines()
    finally:
        await backend.remove(TASK)
        await backend.aclose()
    assert (ended.end, ended.code) == (End.EXITED, 0), lines
    check_said(lines)
    assert use.refused == 4 and use.received_bytes > 2 * len(CONTENT) and use.sent_bytes > 5
    assert any(isinstance(one, Processes) for one in seen), "the watchdog saw nothing"
    effects = [effect for one in seen for effect in watchdog.step(one, 0.0)]
    assert not [effect for effect in effects if isinstance(effect, Tampered)]


async def test_a_container_whose_node_restarts_finds_its_proxy_again(
    machine: Machine, server: PublicServer, tmp_path: Path
) -> None:
    script = """
        until curl -sS http://plain.example.net/; do sleep 0.1; done; echo first
        until test -e /scratch/go; do curl -sS http://plain.example.net/ > /scratch/last || touch /scratch/down
            test -e /scratch/down && curl -sS http://plain.example.net/ && break; sleep 0.1; done; echo again
    """
    request = machine.request(script, egress=NAMES)
    backend = machine.backend(egress=("*:443", "*:80"))
    try:
        await backend.prepare(request, no_progress)
        await backend.start(TASK, request)
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                use = EgressUse()
                proxy = EgressProxy(await backend.proxy_socket(TASK), NAMES, EgressLimits(), use, server.lookup)
                nursery.start_soon(proxy.run)
                await until(lambda: use.received_bytes > 0)
                nursery.cancel_scope.cancel()
            down = backend.disk(TASK).root / "scratch" / "down"
            await until(down.exists)
            await backend.aclose()
            backend = machine.backend(egress=("*:443", "*:80"))  # as a node that starts again
            async with trio.open_nursery() as nursery:
                proxy = EgressProxy(
                    await backend.proxy_socket(TASK), NAMES, EgressLimits(), EgressUse(), server.lookup
                )
                nursery.start_soon(proxy.run)
                ended = await backend.watch(TASK, request, lambda _: None)
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        log = (await backend.collect(TASK, request, str(tmp_path / "packed"))).log.decode()
    finally:
        await backend.remove(TASK)
        await backend.aclose()
    assert (ended.end, ended.code) == (End.EXITED, 0), log
    assert log.splitlines()[-2:] == [CONTENT.strip(), "again"], log


async def test_names_that_the_owner_does_not_let_reach_are_refused(machine: Machine) -> None:
    backend = machine.backend(egress=("files.example.net:443",))
    try:
        with pytest.raises(ContainerRefused, match=r"plain\.example\.net:80"):
            await backend.check(machine.request("true", egress=NAMES))
    finally:
        await backend.aclose()
