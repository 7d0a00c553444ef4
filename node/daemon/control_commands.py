"""The owner's commands at the control socket of a running node (``node.process.control``)."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from node.daemon.admin import Admin
from node.daemon.running import RunningNode

__all__ = ["control_commands"]


def control_commands(node: RunningNode, admin: Admin) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]]:
    """Return the commands by their names."""
    blobs = node.network.blobs
    assert blobs is not None, "every node has a blob store"

    async def add_blob(request: Mapping[str, Any]) -> Any:
        name = await trio.to_thread.run_sync(blobs.add_file, Path(str(request["path"])))
        blobs.pin(name)
        return {"blob": name.hex()}

    async def fetch_blob(request: Mapping[str, Any]) -> Any:
        name = bytes.fromhex(request["blob"])
        sources = [bytes.fromhex(source) for source in request["sources"]]
        path = await node.network.fetch_blob(name, sources)
        blobs.hold(name)  # a copy of gigabytes takes its time
        try:
            target = await trio.to_thread.run_sync(shutil.copyfile, path, Path(str(request["path"])))
        finally:
            blobs.release(name)
        return {"bytes": target.stat().st_size}

    async def share_key(request: Mapping[str, Any]) -> Any:
        task = bytes.fromhex(request["task"])
        found = await node.duties.shares.share_out(task, int(request["threshold"]), int(request["holders"]))
        return {"holders": [machine.hex() for machine in found]}

    async def sign_view(request: Mapping[str, Any]) -> Any:
        task, public = bytes.fromhex(request["task"]), bytes.fromhex(request["public"])
        until, signature = node.duties.views.sign(task, public)
        return {"until": until, "signature": signature.hex()}

    async def stop(_request: Mapping[str, Any]) -> Any:
        node.stop()
        return {}

    return {
        "add_blob": add_blob,
        "fetch_blob": fetch_blob,
        "admin": admin.command,
        "share_key": share_key,
        "sign_view": sign_view,
        "status": lambda _request: node.status(),
        "stop": stop,
    }
