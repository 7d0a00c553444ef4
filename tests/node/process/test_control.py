from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from node.process.control import ControlRefused, ControlServer, ControlUnavailable, ask_node
from state.primitives.errors import StoreError


async def echo(request: Mapping[str, Any]) -> Any:
    return request["text"]


async def fail(_request: Mapping[str, Any]) -> Any:
    raise StoreError("it is broken")


def raw(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


async def test_answers_refusals_and_rubbish(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "c.sock"
    await nursery.start(ControlServer(path, {"echo": echo, "fail": fail}).run)
    assert path.stat().st_mode & 0o777 == 0o600
    run = trio.to_thread.run_sync
    assert await run(lambda: ask_node(path, "echo", text="hi")) == "hi"
    with pytest.raises(ControlRefused, match="broken") as refused:
        await run(lambda: ask_node(path, "fail"))
    assert refused.value.code == "store_error"
    for rubbish in (b"\n", b"[]\n", b"{}\n", b"[" * 5000 + b"\n", b'{"verb": "echo"}\n', b"no line"):
        assert b"bad_request" in await run(lambda data=rubbish: raw(path, data))  # type: ignore[misc]
    assert await run(lambda: ask_node(path, "echo", text="still here")) == "still here"


def test_no_node_is_said(tmp_path: Path) -> None:
    with pytest.raises(ControlUnavailable):
        ask_node(tmp_path / "none.sock", "echo")
