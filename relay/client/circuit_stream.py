"""One end of a circuit on trio: a TCP stream that counts its bytes, for receipts and reputation."""

from __future__ import annotations

from collections.abc import Callable

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.transport import TransportFault

__all__ = ["CircuitStream"]


class CircuitStream(trio.abc.HalfCloseableStream):
    """A joined data connection. ``socket`` is for options and statistics; its bytes are not counted."""

    def __init__(
        self,
        stream: trio.SocketStream,
        endpoint: Endpoint,
        target: bytes | None,
        on_closed: Callable[[CircuitStream], None],
        on_fault: Callable[[CircuitStream, TransportFault], None],
    ) -> None:
        self.socket = stream.socket
        self.endpoint = endpoint
        """The path that was dialled, or the relay of an incoming circuit."""
        self.target = target
        """The node that was dialled; None for an incoming circuit."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.opened_at = self.heard_at = trio.current_time()
        """``heard_at``: when bytes last arrived."""
        self.silent_since: float | None = None
        """When the first bytes since the last arrival were sent; None: nothing was sent since then."""
        self._stream = stream
        self._on_closed = on_closed
        self._on_doubt = on_fault
        self._is_closed = False

    def __repr__(self) -> str:
        return f"CircuitStream({self.endpoint})"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; see ``trio.abc.SendStream``."""
        if self.silent_since is None:
            self.silent_since = trio.current_time()
        await self._stream.send_all(data)
        self.bytes_sent += len(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait; see ``trio.abc.SendStream``."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """End this direction."""
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive; see ``trio.abc.ReceiveStream``."""
        data = await self._stream.receive_some(max_bytes)
        if data:
            self.bytes_received += len(data)
            self.heard_at = trio.current_time()
            self.silent_since = None
        return data

    def report_fault(self, report_fault: TransportFault) -> None:
        """Report what was wrong with the transport of this circuit."""
        self._on_doubt(self, report_fault)

    async def aclose(self) -> None:
        """Close."""
        if not self._is_closed:
            self._is_closed = True
            self._on_closed(self)
        await self._stream.aclose()
