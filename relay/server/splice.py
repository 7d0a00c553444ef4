"""Splices two joined data connections of a circuit: bytes pass unchanged in both directions.

If one end reads slowly, the relay stops reading from the other, and TCP slows that sender down. So a circuit holds
a bounded number of bytes here and drops none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from relay.protocol.limits import RelayLimits

__all__ = ["CHECK_BYTES", "UNFUNDED_CHECK_BYTES", "Splice", "set_pace"]

_SO_MAX_PACING_RATE: Final = 47
_PACE_MAX: Final = 2**31 - 1
CHECK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one direction between two checks whether they are paid, whatever the speed of the line ..."""
UNFUNDED_CHECK_BYTES: Final = 256 * 1024
"""... and the same for unfunded payers: many may begin at once, and each may exceed the limits by this much."""
_TCP_LIVE: Final = frozenset({1, 4, 5})
"""TCP states in which the other side may still send: ESTABLISHED, FIN_WAIT1 and FIN_WAIT2."""


def set_pace(sock: socket.socket, bytes_per_s: int) -> None:
    """Let the kernel send at most ``bytes_per_s``; a kernel without support is left as it is."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, min(bytes_per_s, _PACE_MAX))
    except OSError:
        return


class _Direction(asyncio.Protocol):
    """One direction: bytes from ``source`` go to ``sink``, the transport of the other end."""

    __slots__ = ("check_at", "ended", "is_full", "received", "sink", "source", "splice")

    def __init__(self, splice: Splice, source: asyncio.Transport, sink: asyncio.Transport) -> None:
        self.splice = splice
        self.source = source
        self.sink = sink
        self.received = 0
        self.check_at = splice.check_bytes
        self.is_full = False
        """Whether the write buffer of this end is full."""
        self.ended = False
        """Whether this end sends no more; the other direction may continue."""

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
        """Tell whether the kernel knows that this end will send nothing more."""
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

    ``on_end_closed`` is called for the transport of each end that closed, ``on_closed`` once when both have, and
    ``on_check`` after every ``check_bytes`` of either direction.
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
        """Since when the relay holds this circuit; None: it does not."""
        self.lingers_since_ms: int | None = None

    @property
    def bytes_forward(self) -> int:
        """Bytes that the dialler sent."""
        return self.forward.received

    @property
    def bytes_backward(self) -> int:
        """Bytes that the target sent."""
        return self.backward.received

    def start(self, early_forward: bytes, early_backward: bytes) -> None:
        """Begin to pass bytes, first those that arrived with the preambles."""
        for half, early in ((self.forward, early_forward), (self.backward, early_backward)):
            half.source.set_write_buffer_limits(high=self._limits.circuit_buffer_bytes_max)
            half.source.set_protocol(half)
            if early:
                half.data_received(early)
        self._is_held = False
        self.flow()

    def flow(self) -> None:
        """Read from each end while the other has room and the circuit is not held."""
        for half, other in ((self.forward, self.backward), (self.backward, self.forward)):
            if half.source.is_closing():
                continue
            if self._is_held or other.is_full:
                half.source.pause_reading()
            else:
                half.source.resume_reading()

    def hold(self, now_ms: int) -> None:
        """Pass no bytes until ``release``."""
        if self.held_since_ms is None:
            self.held_since_ms = now_ms
            self._is_held = True
            self.flow()

    def release(self) -> None:
        """Pass bytes again."""
        if self.held_since_ms is not None:
            self.held_since_ms = None
            self._is_held = False
            self.flow()

    def is_finished(self) -> bool:
        """Tell whether both ends have ended their direction."""
        return self.forward.ended and self.backward.ended

    def lost(self, half: _Direction) -> None:
        """Handle the close of one end: the other gets the bytes left for it, and then closes too."""
        self._on_end_closed(half.source)
        self._lost += 1
        if self._lost == 2:
            self._on_closed(self)
        else:
            for half in (self.forward, self.backward):
                half.source.close()

    def abort(self) -> None:
        """Close both ends at once and discard unsent bytes."""
        for half in (self.forward, self.backward):
            half.source.abort()

    def sweep(self, now_ms: int) -> str | None:
        """Return why this circuit must be aborted (idle, or its last reader is too slow); None: it goes on."""
        moved = self.forward.received + self.backward.received
        for half in (self.forward, self.backward):
            if half.is_full:
                moved -= half.source.get_write_buffer_size()  # bytes that its reader took count as traffic too
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
            return "lingered"  # one end does not read, and the other closed while the relay does not read from it
        return None
