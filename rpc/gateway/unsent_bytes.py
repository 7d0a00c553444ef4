"""Bounds the unsent bytes of connections in the kernel, and disconnects clients that do not read.

A socket buffers up to megabytes that its client does not read, even after it was closed. Here the kernel accepts
little more than it can send at once; the rest waits in the process, where it is counted
(``rpc.gateway.memory_quota``). A connection is ended by a reset, which frees both buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Any, Final

from rpc.gateway.memory_quota import HeldBytes

__all__ = [
    "CHECK_S",
    "NOTSENT_LOWAT_BYTES",
    "READ_BYTES_PER_S_MIN",
    "SEND_DEADLINE_S",
    "USER_TIMEOUT_S",
    "UnsentBytes",
    "bound_kernel",
    "reset",
]

SEND_DEADLINE_S: Final = 30.0
"""A client that reads nothing of its unsent bytes for this long is disconnected."""
READ_BYTES_PER_S_MIN: Final = 16 * 1024
"""Unsent bytes of a closed connection have ``SEND_DEADLINE_S`` and one second for each so many bytes."""
CHECK_S: Final = 5.0
"""How often each connection is checked."""
NOTSENT_LOWAT_BYTES: Final = 32 * 1024
"""How many bytes the kernel accepts beyond what it has sent."""
USER_TIMEOUT_S: Final = SEND_DEADLINE_S + 2 * CHECK_S
"""After this time without progress the kernel drops a closed connection by itself."""
_INT: Final = struct.Struct("i")
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
_TCP_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = struct.Struct("=120xQ")


def bound_kernel(listener: socket.socket) -> None:
    """Bound what the kernel buffers for each connection that ``listener`` accepts; they inherit its options."""
    for option, value in (
        ("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BYTES),
        ("TCP_USER_TIMEOUT", int(1_000 * USER_TIMEOUT_S)),
    ):
        with contextlib.suppress(AttributeError, OSError):  # no Linux: what follows counts and drops all the same
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection at once, and drop its unsent bytes, in the kernel too."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    transport.abort()  # type: ignore[attr-defined]


class UnsentBytes:
    """Counts the unsent bytes of one connection, and resets it if its client does not read.

    A closed transport would wait without limit for a client that does not read.
    """

    __slots__ = ("_acked", "_is_closing", "_size", "_sock", "_transport", "_until", "_whole_until", "held")

    def __init__(self, transport: asyncio.Transport, held: HeldBytes | None = None) -> None:
        self._transport = transport
        self._sock: Any = transport.get_extra_info("socket")
        self.held = held
        self._is_closing = False
        self._size = 0
        self._acked = 0
        """Bytes that the client's machine has acknowledged since the connection began."""
        self._until: float | None = None
        """When the connection is reset unless the client reads."""
        self._whole_until = 0.0
        """When a closed connection is reset even if the client reads."""

    def paused(self) -> None:
        """Count the unsent bytes: the write buffer is full."""
        self._count(self._transport.get_write_buffer_size())

    def resumed(self) -> None:
        """Count nothing: the client has read the write buffer."""
        self._until = None
        if self.held is not None:
            self.held.resize(0)

    def check(self, now: float) -> None:
        """Reset the connection if its time is over. Progress extends the time, unless the connection is closed."""
        unsent, unread, acked = self._ask_kernel()
        size, is_closing = self._transport.get_write_buffer_size() + unsent, self._transport.is_closing()
        if not self._count(size + unread):
            return
        if is_closing and not self._is_closing:
            self._until, self._whole_until = None, now + SEND_DEADLINE_S + size / READ_BYTES_PER_S_MIN
        if not size and not is_closing:
            self._until = None
        elif self._until is None or acked != self._acked or size < self._size:
            self._until = now + SEND_DEADLINE_S
        elif now >= self._until:
            reset(self._transport)
        if is_closing and now >= self._whole_until:
            reset(self._transport)
        self._size, self._is_closing, self._acked = size, is_closing, acked

    def _count(self, size: int) -> bool:
        if self.held is None or self.held.resize(size):
            return True
        reset(self._transport)
        return False

    def _ask_kernel(self) -> tuple[int, int, int]:
        """Return the bytes not acknowledged, the received bytes not read here, and the bytes acknowledged."""
        if self._sock is None:
            return 0, 0, 0
        try:
            handle = self._sock.fileno()
            unsent = _INT.unpack(fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(_INT.size)))[0]
            unread = _INT.unpack(fcntl.ioctl(handle, termios.FIONREAD, bytes(_INT.size)))[0]
            if not unsent:
                return 0, unread, 0
            told = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return unsent, unread, _BYTES_ACKED.unpack(told)[0]
        except (OSError, ValueError, AttributeError, struct.error):  # closed meanwhile, or an old kernel
            return 0, 0, 0
