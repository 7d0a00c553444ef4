"""How the sockets of control connections and circuits are set up, at both ends (NETWORK.md, section 6)."""

from __future__ import annotations

import socket
from typing import Final, Protocol

__all__ = ["set_pace", "tune"]

CONGESTION_CONTROL: Final = b"bbr"
USER_TIMEOUT_MS: Final = 20_000
"""Unacknowledged data for so long ends the connection."""
NOTSENT_BYTES: Final = 65_536
_TCP_USER_TIMEOUT: Final = 18
_TCP_NOTSENT_LOWAT: Final = 25
_TCP_CONGESTION: Final = 13
_SO_MAX_PACING_RATE: Final = 47


class _Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...


def tune(connection: _Socket) -> bool:
    """Set what the kernel allows; return whether it gave BBR (an unprivileged process may have to do without)."""
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, USER_TIMEOUT_MS),
        (socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOTSENT_BYTES),
    ):
        try:
            connection.setsockopt(level, option, value)
        except OSError:  # another platform, or not a TCP socket: all of these are improvements only
            continue
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, CONGESTION_CONTROL)
    except OSError:
        return False
    return True


def set_pace(connection: _Socket, bytes_per_s: int) -> None:
    """Let the kernel send at most ``bytes_per_s``; without support for it, do nothing."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, min(bytes_per_s, 2**31 - 1))
    except OSError:
        return
