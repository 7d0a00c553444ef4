"""Errors of JSON-RPC: a number of JSON-RPC, a stable reason, and fields for programs (rpc.md 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from state.primitives.errors import DekubeError

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LIMIT_EXCEEDED",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "RESOURCE_NOT_FOUND",
    "RESOURCE_UNAVAILABLE",
    "SERVER_ERROR",
    "HeightNotReached",
    "HeightUnknown",
    "NodeUnavailable",
    "Pruned",
    "RpcError",
    "as_rpc_error",
    "fields_to_json",
    "number_of",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000
RESOURCE_NOT_FOUND: Final = -32001
RESOURCE_UNAVAILABLE: Final = -32002
LIMIT_EXCEEDED: Final = -32005

_NUMBERS: Final[Mapping[str, int]] = {
    "parse_error": PARSE_ERROR,
    "invalid_request": INVALID_REQUEST,
    "method_not_found": METHOD_NOT_FOUND,
    "invalid_params": INVALID_PARAMS,
    "internal_error": INTERNAL_ERROR,
    "pruned": RESOURCE_NOT_FOUND,
    "height_unknown": RESOURCE_NOT_FOUND,
    "not_found": RESOURCE_NOT_FOUND,
    "task_unknown": RESOURCE_NOT_FOUND,
    "escrow_unknown": RESOURCE_NOT_FOUND,
    "node_unavailable": RESOURCE_UNAVAILABLE,
    "height_not_reached": RESOURCE_UNAVAILABLE,
    "limit_exceeded": LIMIT_EXCEEDED,
}


def number_of(reason: str) -> int:
    """Return the JSON-RPC error number for a stable reason; what a rule refused is -32000, as wallets expect."""
    return _NUMBERS.get(reason, SERVER_ERROR)


class RpcError(DekubeError):
    """A JSON-RPC error: ``number`` and ``message``, and ``reason`` and ``fields`` in its data."""

    def __init__(self, reason: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.fields = fields

    @property
    def number(self) -> int:
        """The JSON-RPC error number."""
        return number_of(self.reason)

    def to_json(self) -> dict[str, Any]:
        """Return the error object of JSON-RPC."""
        return {"code": self.number, "message": self.message, "data": {"reason": self.reason, **self.fields}}


class Pruned(DekubeError):
    """The requested height is older than what this node stores; ``oldest_height`` is the oldest stored."""

    code: ClassVar[str] = "pruned"

    def __init__(self, *, height: int, oldest_height: int) -> None:
        super().__init__(f"height {height} is pruned, the oldest is {oldest_height}")
        self.height = height
        self.oldest_height = oldest_height


class HeightUnknown(DekubeError):
    """The requested height is above the newest finalised one."""

    code: ClassVar[str] = "height_unknown"

    def __init__(self, *, height: int, newest_height: int) -> None:
        super().__init__(f"height {height} is not final yet, the newest is {newest_height}")
        self.height = height
        self.newest_height = newest_height


class HeightNotReached(DekubeError):
    """``min_height`` was not reached within the time that a request may wait for it."""

    code: ClassVar[str] = "height_not_reached"

    def __init__(self, *, height: int, min_height: int) -> None:
        super().__init__(f"this node is at height {height}, below min_height {min_height}")
        self.height = height
        self.min_height = min_height


class NodeUnavailable(DekubeError):
    """The gateway is not connected to its node."""

    code: ClassVar[str] = "node_unavailable"

    def __init__(self) -> None:
        super().__init__("the node does not answer at the moment, try again soon")


def as_rpc_error(error: DekubeError) -> RpcError:
    """Return any typed error as an answer: its code is the reason, its public values are the fields."""
    if isinstance(error, RpcError):
        return error
    fields = [
        (name, value)
        for name, value in vars(error).items()
        if type(value) in (int, str) and not name.startswith("_")
    ]
    return RpcError(error.code, str(error) or error.code, **fields_to_json(fields))


def fields_to_json(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of an error for its data: heights as numbers, other integers as decimal strings."""
    return {
        name: str(value) if type(value) is int and not name.endswith("height") else value
        for name, value in fields
        if name not in ("reason", "message")  # the error's own code and text stand there
    }
