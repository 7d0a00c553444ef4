"""Two joined data connections: bytes pass as they are, one kernel flow a circuit and direction.

Back-pressure is the kernel's: a side whose peer reads slowly is itself read no more, so a circuit holds a bounded
number of bytes here and never drops any.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from relay.protocol.limits import RelayLimits

__all__ = ["CHECK_BYTES", "STRANGER_CHECK_BYTES", "Splice", "set_pace"]

_SO_MAX_PACING_RATE: Final = 47
_PACE_MAX: Final = 2**31 - 1
CHECK_BYTES: Final = 4 * 1024 * 1024
"""So much of one direction passes between two looks at whether it is paid, however fast the line ..."""
STRANGER_CHECK_BYTES: Final = 256 * 1024
"""... and so much where its payer is a stranger: many begin at once, and each may pass the bounds by this."""
_TCP_LIVE: Final = frozenset({1, 4, 5})
"""States of a TCP connection whose other side may still send: established, or only this side has ended."""


def set_pace(sock: socket.socket, bytes_per_s: int) -> None:
    """Let the kernel send at most ``bytes_per_s``; without support for it, do nothing."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, min(bytes_per_s, _PACE_MAX))
    except OSError:
        return


class _Direction(asyncio.Protocol):
    """What arrives from one end goes to ``sink``, the transport of the other."""

    __slots__ = ("check_at", "ended", "is_full", "received", "sink", "source", "splice")

    def __init__(self, splice: Splice, source: asyncio.Transport, sink: asyncio.Transport) -> None:
        self.splice = splice
        self.source = source
        self.sink = sink
        self.received = 0
        self.check_at = splice.check_bytes
        self.is_full = False
        """Whether this end takes no more for now."""
        self.ended = False
        """Whether this end sends no more (the other direction may go on)."""

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.sink.write(data)
        if self.received >= self.check_at:
            self.check_at = self.received + self.splice.check_bytes
            self.splice.on_check(self.splice)

    def eof_received(self) -> bool:
        self.ended = True
        if not self.sink.is_closing():
            self.sink.write_eof()
        return not self.splice.is_finished()

    def pause_writing(self) -> None:
        self.is_full = True
        self.splice.flow()

    def resume_writing(self) -> None:
        self.is_full = False
        self.splice.flow()

    def is_cut_off(self) -> bool:
        """Tell whether the kernel knows that nothing more comes from this end, read or not."""
        if self.source.is_closing():
            return True
        try:
            sock: socket.socket = self.source.get_extra_info("socket")
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in _TCP_LIVE
        except (AttributeError, OSError):
            return False

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self.splice.lost(self)


class Splice:
    """Both directions of one circuit.

    ``on_end_closed`` is called for each end's transport, ``on_closed`` once, when both are closed; ``on_check``
    after every ``check_bytes`` of either direction.
    """

    __slots__ = (
        "_is_held",
        "_limits",
        "_lost",
        "_moved_at_ms",
        "_moved_bytes",
        "_on_closed",
        "_on_end_closed",
        "backward",
        "check_bytes",
        "forward",
        "held_since_ms",
        "lingers_since_ms",
        "number",
        "on_check",
        "started_ms",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        dialler: asyncio.Transport,
        target: asyncio.Transport,
        limits: RelayLimits,
        now_ms: int,
        *,
        on_end_closed: Callable[[asyncio.Transport], None],
        on_closed: Callable[[Splice], None],
        on_check: Callable[[Splice], None],
        check_bytes: int = CHECK_BYTES,
    ) -> None:
        self.number = number
        self.check_bytes = check_bytes
        self.started_ms = now_ms
        self.forward = _Direction(self, dialler, target)
        """From the dialler to the target."""
        self.backward = _Direction(self, target, dialler)
        self._limits = limits
        self._on_end_closed = on_end_closed
        self._on_closed = on_closed
        self.on_check = on_check
        self._lost = 0
        self._moved_at_ms = now_ms
        self._moved_bytes = 0
        self._is_held = True
        self.held_since_ms: int | None = None
        """Since when nothing moves because the relay wants it so."""
        self.lingers_since_ms: int | None = None

    @property
    def bytes_forward(self) -> int:
        """Payload that the dialler has sent."""
        return self.forward.received

    @property
    def bytes_backward(self) -> int:
        """Payload that the target has sent."""
        return self.backward.received

    def start(self, early_forward: bytes, early_backward: bytes) -> None:
        """Begin to pass bytes, first those that came with the preambles."""
        for half, early in ((self.forward, early_forward), (self.backward, early_backward)):
            half.source.set_write_buffer_limits(high=self._limits.circuit_buffer_bytes_max)
            half.source.set_protocol(half)
            if early:
                half.data_received(early)
        self._is_held = False
        self.flow()

    def flow(self) -> None:
        """Read from each end as long as the other takes it and the relay carries it."""
        for half, other in ((self.forward, self.backward), (self.backward, self.forward)):
            if half.source.is_closing():
                continue
            if self._is_held or other.is_full:
                half.source.pause_reading()
            else:
                half.source.resume_reading()

    def hold(self, now_ms: int) -> None:
        """Carry nothing until ``release``."""
        if self.held_since_ms is None:
            self.held_since_ms = now_ms
            self._is_held = True
            self.flow()

    def release(self) -> None:
        """Carry again."""
        if self.held_since_ms is not None:
            self.held_since_ms = None
            self._is_held = False
            self.flow()

    def is_finished(self) -> bool:
        """Tell whether both ends have said that they send no more."""
        return self.forward.ended and self.backward.ended

    def lost(self, half: _Direction) -> None:
        """Take the loss of one end: the other gets what is left for it, then its end too."""
        self._on_end_closed(half.source)
        self._lost += 1
        if self._lost == 2:
            self._on_closed(self)
        else:
            for half in (self.forward, self.backward):
                half.source.close()

    def abort(self) -> None:
        """End both sides now, whatever is left."""
        for half in (self.forward, self.backward):
            half.source.abort()

    def sweep(self, now_ms: int) -> str | None:
        """Return why this circuit is to be aborted (idle, or its last reader too slow); None: let it run."""
        moved = self.forward.received + self.backward.received
        for half in (self.forward, self.backward):
            if half.is_full:
                moved -= half.source.get_write_buffer_size()  # what its reader took is movement too
        if moved != self._moved_bytes:
            self._moved_bytes = moved
            self._moved_at_ms = now_ms
        if self._lost:
            if self.lingers_since_ms is None:
                self.lingers_since_ms = now_ms
            elif now_ms - self.lingers_since_ms >= self._limits.circuit_linger_ms_max:
                return "lingered"
        elif now_ms - self._moved_at_ms >= self._limits.circuit_idle_ms_max:
            return "idle"
        elif now_ms - self._moved_at_ms >= self._limits.circuit_linger_ms_max and (
            (self.forward.is_full and self.backward.is_cut_off())
            or (self.backward.is_full and self.forward.is_cut_off())
        ):
            return "lingered"  # one end stands still, and the other, which is not read meanwhile, is gone
        return None
