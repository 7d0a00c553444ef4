from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
import trio

import node.gateway
from node.children import Child
from node.config import LogOptions, RpcOptions
from node.gateway import keep_gateway
from rpc.backend import Backend
from tests.rpc.harness import Node
from tests.tasks.executor.helpers import children


async def test_a_gateway_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, tmp_path: Path
) -> None:
    started = trio.Event()
    tries = 0

    def start(_document: str) -> Child:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BlockingIOError("no more processes")
        started.set()
        return Child(["sleep", "60"])

    monkeypatch.setattr(node.gateway, "_start", start)
    monkeypatch.setattr(node.gateway, "DELAY_S_MIN", 0.01)
    nursery.start_soon(node.gateway.keep_gateway, RpcOptions(), tmp_path / "s", LogOptions())
    with trio.fail_after(120):
        await started.wait()


def gateways() -> list[int]:
    found = []
    for pid in children(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"rpc.gateway" in command:
            found.append(pid)
    return found


async def another(seen: list[int]) -> int:
    """Wait for a gateway that was not there before."""
    while True:
        found = [pid for pid in gateways() if pid not in seen]
        assert len(found) <= 1
        if found:
            return found[0]
        await trio.sleep(0.02)


async def test_a_killed_gateway_is_started_again_and_the_last_one_ends_with_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.gateway, "DELAY_S_MIN", 0.05)
    served = Node(tmp_path / "chain")
    seen: list[int] = []
    with tempfile.TemporaryDirectory(prefix="gw") as folder, trio.fail_after(120):
        socket = Path(folder) / "socket"
        backend = Backend(served.view, socket)
        async with trio.open_nursery() as nursery:
            await nursery.start(backend.run)
            nursery.start_soon(keep_gateway, RpcOptions(listen="127.0.0.1:0"), socket, LogOptions(level="warning"))
            for _ in range(3):
                found = await another(seen)
                seen.append(found)
                os.kill(found, signal.SIGKILL)
            await another(seen)
            await backend.wait_gateway()  # the last one works
            nursery.cancel_scope.cancel()
    assert len(set(seen)) == 3
    assert gateways() == []
    served.store.close()
