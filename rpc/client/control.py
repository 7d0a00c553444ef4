"""Client of a local node's control socket, for commands that only the node's owner may give.

One line of JSON each way. Files are named by path, since both ends are the same user of the same machine: the node
reads what it is given and writes what it fetches.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from state.primitives.errors import ConfigError, DekubeError

__all__ = [
    "LINE_LIMIT_BYTES", "ControlRefused", "ControlUnavailable", "ask_node", "bound_path", "read_answer",
    "short_path",
]  # fmt: skip

LINE_LIMIT_BYTES: Final = 1024 * 1024
SOCKET_PATH_BYTES_MAX: Final = 107


class ControlUnavailable(DekubeError):
    """No node answers at its control socket."""

    code = "node_unavailable"


class ControlRefused(DekubeError):
    """The node refused a request; ``code`` is the error's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # that of the error on the other side


def short_path(path: Path) -> str:
    """Return the shorter spelling of ``path``: a Unix socket's path is limited to 107 bytes."""
    return min(str(path), os.path.relpath(path), key=len)


def bound_path(path: Path) -> str:
    """Return the spelling to bind a Unix socket at ``path`` by. Raises ConfigError where it is too long."""
    short = short_path(path)
    if len(os.fsencode(short)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"{path}: too long for a Unix socket ({SOCKET_PATH_BYTES_MAX} bytes at most); use a shorter folder"
        )
    return short


def ask_node(control: Path, command: str, *, timeout_s: float = 600.0, **fields: Any) -> Any:
    """Ask the node whose control socket is ``control``; return its answer.

    Raises ControlUnavailable when no node answers, ControlRefused with the node's own code.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(short_path(control))
            connection.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
            line = connection.makefile("rb").readline(LINE_LIMIT_BYTES)
        except OSError as error:
            raise ControlUnavailable(
                f"no node answers at {control} ({error.strerror or error}); `dekube node run` starts it"
            ) from None
    return read_answer(line, control)


def read_answer(line: bytes, control: Path) -> Any:
    """Return the result in a line of the node. Raises ControlRefused, or ControlUnavailable for what is none."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlUnavailable(f"no node answers at {control} ({error})") from None
    match answer:
        case {"error": {"code": str(code), "message": str(message)}}:
            raise ControlRefused(code, message)
        case {"result": result}:
            return result
        case _:
            raise ControlUnavailable(f"what answers at {control} is no node")
