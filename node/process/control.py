"""The control socket of a running node, for its owner on the same machine. The gateway cannot use it.

The other end is ``rpc.client.control``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from rpc.client.control import (
    LINE_LIMIT_BYTES,
    ControlRefused,
    ControlUnavailable,
    ask_node,
    bound_path,
    short_path,
)
from state.primitives.errors import DekubeError, ProtocolError

__all__ = [
    "ControlCommand",
    "ControlRefused",
    "ControlServer",
    "ControlUnavailable",
    "ask_node",
    "bound_path",
    "short_path",
]

CONNECTIONS_MAX: Final = 16
REQUEST_TIMEOUT_S: Final = 10.0

ControlCommand = Callable[[Mapping[str, Any]], Awaitable[Any]]


class BadRequest(ProtocolError):
    """The control socket does not know this request."""

    code = "bad_request"


class ControlServer:
    """Serves ``commands`` at ``path`` (mode 0600, in a directory that only the owner can enter)."""

    def __init__(self, path: Path, commands: Mapping[str, ControlCommand]) -> None:
        self._path = path
        self._commands = commands
        self._connections = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        self._path.unlink(missing_ok=True)
        listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listener.bind(bound_path(self._path))
        self._path.chmod(0o600)
        listener.listen(CONNECTIONS_MAX)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await trio.serve_listeners(self._serve, [trio.SocketListener(listener)], handler_nursery=nursery)
        finally:
            self._path.unlink(missing_ok=True)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream, self._connections:
            answer: dict[str, Any]
            try:
                with trio.fail_after(REQUEST_TIMEOUT_S):
                    request = orjson.loads(await _read_line(stream))
                if not isinstance(request, dict) or request.get("command") not in self._commands:
                    raise BadRequest(f"commands: {', '.join(self._commands)}")
                answer = {"result": await self._commands[request["command"]](request)}
            except DekubeError as error:
                answer = {"error": {"code": error.code, "message": str(error)}}
            except (ValueError, KeyError, TypeError, trio.TooSlowError) as error:
                answer = {
                    "error": {"code": BadRequest.code, "message": f"malformed request ({type(error).__name__})"}
                }
            except OSError as error:
                answer = {"error": {"code": "io_error", "message": str(error)}}
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the asker left before it asked
            try:
                await stream.send_all(json.dumps(answer).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the asker left


async def _read_line(stream: trio.SocketStream) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = await stream.receive_some(65536)
        data += part
        if not part or len(data) > LINE_LIMIT_BYTES:
            raise ValueError("no request")
    return data
