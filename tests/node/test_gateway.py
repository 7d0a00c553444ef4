from __future__ import annotations

from pathlib import Path

import pytest
import trio

import node.gateway
from node.children import Child
from node.config import LogOptions, RpcOptions


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
    with trio.fail_after(10):
        await started.wait()
