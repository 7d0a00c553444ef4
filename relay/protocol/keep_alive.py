"""TCP keep-alive for the data connections of circuits, the same on a node and on a relay."""

from __future__ import annotations

import socket
from typing import Final

__all__ = ["keep_alive"]

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
"""The kernel reports a vanished host after 40 s without traffic: 20 s idle, then 4 probes 5 s apart."""


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel detect that the other host is gone, even while nothing is read from the socket."""
    for option, value in _KEEP_ALIVE:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        except (AttributeError, OSError):
            return
