"""Direct TCP: options that keep votes ahead of bulk, and the dialer for ``tcp`` endpoints."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

import trio

from p2p.transport import Endpoint

__all__ = ["SocketTuning", "TcpDialer", "tune"]

USER_TIMEOUT_MS: Final = 20_000
NOTSENT_LOWAT_BYTES: Final = 64 * 1024
"""What the kernel may hold unsent: little, or a vote waits behind it (NETWORK.md, section 3)."""
CONGESTION: Final = b"bbr"


class SocketTuning(NamedTuple):
    """What the kernel granted."""

    congestion: str
    is_tuned: bool


def tune(sock: trio.socket.SocketType) -> SocketTuning:
    """Set what this platform and its administrator allow; nothing here is needed for correctness."""
    is_tuned = True
    for level, option, value in (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BYTES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    ):
        try:
            sock.setsockopt(level, getattr(socket, option), value)
        except (AttributeError, OSError):
            is_tuned = False
    congestion = ""
    name = getattr(socket, "TCP_CONGESTION", None)
    if name is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, name, CONGESTION)
        except OSError:
            is_tuned = False  # not in net.ipv4.tcp_allowed_congestion_control
        try:
            congestion = sock.getsockopt(socket.IPPROTO_TCP, name, 16).rstrip(b"\0").decode("ascii", "replace")
        except OSError:
            pass
    return SocketTuning(congestion, is_tuned)


class TcpDialer:
    """Dials ``tcp:host:port``."""

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a tuned stream. Raises OSError."""
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        tune(stream.socket)
        return stream
