"""What the kernel holds for a client: bounded, counted with what the process holds, and dropped by a reset.

A socket keeps up to megabytes that its client does not read, and goes on keeping them after it was closed. Here
the kernel takes little more than it can send at once, the rest waits where it is counted
(``rpc.gateway.memory_quota``), and a connection that is given up ends with a reset, which frees both.
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
    "LOOK_S",
    "NOTSENT_LOWAT_BYTES",
    "READ_BYTES_PER_S_MIN",
    "SEND_DEADLINE_S",
    "USER_TIMEOUT_S",
    "UnsentBytes",
    "bound_kernel",
    "reset",
]

SEND_DEADLINE_S: Final = 30.0
"""After so long in which a client takes nothing of what is unsent it is thrown out."""
READ_BYTES_PER_S_MIN: Final = 16 * 1024
"""What is unsent when a connection is closed has that time, and for each so many bytes a second more."""
LOOK_S: Final = 5.0
"""How often it is looked whether what is unsent is read."""
NOTSENT_LOWAT_BYTES: Final = 32 * 1024
"""What the kernel takes beyond what it has sent."""
USER_TIMEOUT_S: Final = SEND_DEADLINE_S + 2 * LOOK_S
"""After so long without progress the kernel gives up by itself: what was closed here with bytes unsent."""
_INT: Final = struct.Struct("i")
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
_TCP_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = struct.Struct("=120xQ")


def bound_kernel(listener: socket.socket) -> None:
    """Bound what the kernel holds for each connection that ``listener`` will accept: they inherit its options."""
    for option, value in (
        ("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BYTES),
        ("TCP_USER_TIMEOUT", int(1_000 * USER_TIMEOUT_S)),
    ):
        with contextlib.suppress(AttributeError, OSError):  # no Linux: what follows counts and drops all the same
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection at once; what is unsent is dropped, in the kernel too."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    transport.abort()  # type: ignore[attr-defined]


class UnsentBytes:
    """Finds the connection whose client does not read, and counts what the kernel holds of it.

    A transport that is closed waits until what was written is taken: without an end, where nobody reads it.
    """

    __slots__ = ("_acked", "_is_closing", "_size", "_sock", "_transport", "_until", "_whole_until", "held")

    def __init__(self, transport: asyncio.Transport, held: HeldBytes | None = None) -> None:
        self._transport = transport
        self._sock: Any = transport.get_extra_info("socket")
        self.held = held
        self._is_closing = False
        self._size = 0
        self._acked = 0
        """Bytes that the client's machine has confirmed, since the connection began."""
        self._until: float | None = None
        """When it is thrown out, unless it reads."""
        self._whole_until = 0.0
        """The same for one that is closed, however it reads."""

    def paused(self) -> None:
        """Count what is unsent, of which there is much."""
        self._count(self._transport.get_write_buffer_size())

    def resumed(self) -> None:
        """Note that the client has taken what there was."""
        self._until = None
        if self.held is not None:
            self.held.keep(0)

    def look(self, now: float) -> None:
        """Throw the client out if its time is over; what is taken bit by bit has more, unless it is the last."""
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
        if self.held is None or self.held.keep(size):
            return True
        reset(self._transport)
        return False

    def _ask_kernel(self) -> tuple[int, int, int]:
        """Return the bytes that were not confirmed, those that came and are not read here, those confirmed."""
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
