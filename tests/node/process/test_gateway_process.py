from __future__ import annotations

import json
import os
import signal
import tempfile
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
import trio
import trio.testing

import node.process.gateway_process
from node.home.options import LogOptions, RpcOptions
from node.process.children import Child
from node.process.gateway_process import GatewayProcess, gateway_document, keep_gateway
from rpc.backend.server import Backend
from rpc.gateway.process import options_from_json
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

    monkeypatch.setattr(node.process.gateway_process, "_start", start)
    monkeypatch.setattr(node.process.gateway_process, "DELAY_S_MIN", 0.01)
    nursery.start_soon(node.process.gateway_process.keep_gateway, RpcOptions(), tmp_path / "s", LogOptions())
    with trio.fail_after(120):
        await started.wait()


async def test_a_gateway_that_ends_again_and_again_is_told_and_waits_longer_each_time(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, tmp_path: Path
) -> None:
    lives = iter([0.0] * 12 + [70.0, 0.0, inf])
    starts: list[float] = []

    class Mayfly:
        async def wait(self) -> int:
            starts.append(trio.current_time())
            await trio.sleep(next(lives))
            return 78

        async def stop(self, _grace_s: float) -> int:
            return 78

    monkeypatch.setattr(node.process.gateway_process, "_start", lambda _document: Mayfly())
    gateway = GatewayProcess()
    nursery.start_soon(keep_gateway, RpcOptions(), tmp_path / "s", LogOptions(), None, gateway)
    told = [gateway.describe()]
    while len(starts) < 15:
        await trio.sleep(0.25)
        told.append(gateway.describe())
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 70.5, 1]  # well for a minute: as if new
    assert max(state["failures"] for state in told) == 12
    assert {"running": False, "failures": 12} in told
    await trio.sleep(61)
    assert gateway.describe() == {"running": True, "failures": 0}


def test_the_gateway_is_told_what_the_options_say_and_keeps_its_own_for_the_rest(tmp_path: Path) -> None:
    options = RpcOptions(
        listen="[::1]:7", cors=("a",), hosts=("h",), units_per_s=2, units_burst=3, requests_per_address_max=4,
        connections_max=5, connections_per_address_max=6, trusted_proxies=("10.0.0.0/8",),
        subscriptions_per_address_max=7, filters_per_address_max=8, ready_peers_min=9,
    )  # fmt: skip
    told = gateway_document(options, tmp_path / "s", LogOptions(level="debug", format="json"))
    read = options_from_json(json.dumps(told))
    assert (read.socket, read.listen) == (str(tmp_path / "s"), ("[::1]:7",))
    assert (read.cors, read.hosts, read.log_level, read.log_format) == (("a",), ("h",), "debug", "json")
    assert (read.dispatch.rate_per_s, read.dispatch.burst, read.dispatch.requests_per_caller_max) == (2, 3, 4)
    assert (read.connections.connections_max, read.connections.connections_per_address_max) == (5, 6)
    assert read.connections.trusted_proxies == ("10.0.0.0/8",)
    assert read.session.subscriptions_per_address_max == 7 and read.node.filters_per_caller_max == 8
    assert read.ready_peers_min == 9 and read.blobs == options_from_json('{"socket": ""}').blobs


def gateways() -> list[int]:
    found = []
    for pid in children(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"rpc.gateway.process" in command:
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


@pytest.mark.slow
async def test_a_killed_gateway_is_started_again_and_the_last_one_ends_with_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.process.gateway_process, "DELAY_S_MIN", 0.05)
    served = Node(tmp_path / "chain")
    seen: list[int] = []
    with tempfile.TemporaryDirectory(prefix="gw") as folder, trio.fail_after(120):
        socket = Path(folder) / "socket"
        backend = Backend(served.view, served, socket)
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
