"""For servers beside the gateway: a fast path that takes no request, so all of them go through ASGI."""

from __future__ import annotations

from typing import Any

from rpc.gateway.dispatch import Caller
from rpc.gateway.fast_path import DirectRequest
from rpc.gateway.memory_quota import MemoryQuota
from rpc.protocol.errors import RpcError

__all__ = ["AsgiOnly"]


class AsgiOnly:
    """Admits no request to the fast path. ``body_bytes_max`` is the longest body that the application reads."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.memory_quota = MemoryQuota()

    def admit(self, _headers: Any) -> None:
        """Return None: ASGI answers."""
        return

    def answer(self, _body: bytes | bytearray, _caller: Caller) -> Any:
        """Is not called."""
        raise AssertionError(DirectRequest)

    def begin(self, _body: bytes | bytearray, _caller: Caller) -> Any:
        """Is not called."""
        raise AssertionError(DirectRequest)

    def charge(self, _caller: str, _units: int) -> float:
        """Is not called."""
        raise AssertionError(DirectRequest)

    def refuse(self, _error: RpcError, _body: bytes | bytearray = b"") -> bytes:
        """Is not called."""
        raise AssertionError(DirectRequest)
