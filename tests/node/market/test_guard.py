"""Several containers of one machine: none of them is another's use of the machine by others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio

import node.market.tampering
from node.chain.ledger import NodeLedger
from node.market.tampering import SHARES, Guard
from node.market.wallet import Wallet
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.executor.containers.watchdog import Observation, Policy, Share

REQUEST = ContainerRequest(Image("example.test/a", bytes(32)), Limits(1, 64, 64, 1, 9))
HERE, ELSEWHERE = b"h" * 32, b"e" * 32


class Looker:
    """Sees nothing."""

    def __init__(self, namespace: str, *, is_adopted: bool) -> None:
        self._namespace, self.is_adopted = namespace, is_adopted

    def namespace(self) -> str:
        return self._namespace

    async def run(self, _on_seen: Callable[[Observation], None]) -> None:
        await trio.sleep_forever()

    async def catch_up(self, _on_seen: Callable[[Observation], None]) -> None:
        await trio.lowlevel.checkpoint()


class Containers:
    """Two containers, one of which has the process that uses a card."""

    def __init__(self, player: int, *, is_adopted: bool = False) -> None:
        self.shares: list[tuple[bytes, int]] = []
        self._player, self._is_adopted = player, is_adopted

    async def watchdog(self, task: bytes, _request: ContainerRequest) -> Looker:
        name = os.readlink(f"/proc/{self._player}/ns/pid") if task == HERE else "pid:[1]"
        return Looker(name, is_adopted=self._is_adopted)

    async def set_share(self, task: bytes, shares: int) -> None:
        self.shares.append((task, shares))


@pytest.fixture
def player() -> Iterator[int]:
    """Yield a process of this machine that is no descendant of the test's: the one that made it has ended."""
    told = subprocess.run(
        ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, check=True, timeout=60
    )
    process = int(told.stdout)
    yield process
    os.kill(process, signal.SIGKILL)


@pytest.fixture
def looks(player: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a card that is used by one process; each look at it adds a line to a file."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\necho >> {tmp_path}/looks\necho '# gpu pid type sm fb'\necho 0 {player} C 97 9000\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(node.market.tampering, "USE_S", 0.01)
    return tmp_path / "looks"


async def _are(looks: Path, count: int) -> bool:
    path = trio.Path(looks)
    return await path.exists() and len(await path.read_text()) >= count


async def _watch(containers: Containers, looks: Path, tasks: tuple[bytes, ...]) -> list[tuple[bytes, int]]:
    """Watch over containers for some looks at the use of each; return the shares that they were given."""
    backend = cast(ContainerBackend, containers)
    guard = Guard(cast(NodeLedger, None), cast(Wallet, None), backend, looks.parent / "reports", Policy())

    async def work() -> None:
        while not await _are(looks, 6 * len(tasks)):  # noqa: ASYNC110 - a program writes the file
            await trio.sleep(0.01)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(guard.watch, task, REQUEST, work)
    return containers.shares


async def test_a_card_that_another_container_of_this_machine_uses_is_not_used_by_others(
    player: int, looks: Path
) -> None:
    assert await _watch(Containers(player), looks, (ELSEWHERE,)) == [(ELSEWHERE, SHARES[Share.LEAST])]
    await trio.Path(looks).unlink()
    assert await _watch(Containers(player), looks, (HERE, ELSEWHERE)) == []


async def test_a_container_that_is_taken_up_again_has_its_whole_share(player: int, looks: Path) -> None:
    containers = Containers(player, is_adopted=True)
    assert await _watch(containers, looks, (HERE,)) == [(HERE, SHARES[Share.WHOLE])]
