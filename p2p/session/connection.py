"""One authenticated connection: sends whole records, receives bytes, and ends without blocking its users."""

from __future__ import annotations

import secrets
from math import inf
from typing import Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import ConnectionUnused, HandshakeFailed
from p2p.base.sockets import LOW_WATER_BYTES_MAX, LowWater, pace, tcp_info, tune
from p2p.base.tcp_info import TcpInfo
from p2p.base.transport import TransportFault
from p2p.secure.channel import Channel, ChannelFrame, Hello
from p2p.secure.handshake import Handshake, Session
from p2p.session.bulk_pacing import BulkPacing
from p2p.session.liveness import Pings
from p2p.session.path_offers import OfferedPath
from state.primitives.errors import ProtocolError

__all__ = ["Connection", "ConnectionLost", "run_handshake"]

_READ_BYTES: Final = 256 * 1024
_MUCH_BYTES: Final = 4 * LOW_WATER_BYTES_MAX
_HANDSHAKE_READ_BYTES: Final = 4_096
_BYE_S: Final = 0.2
_RETIRED_S: Final = 0.01
_PING_BYTES: Final = 8


async def run_handshake(
    stream: trio.abc.Stream, handshake: Handshake, *, preamble: bytes = b"", heard: bytes = b""
) -> Session:
    """Complete a handshake on a stream. ``preamble`` precedes its first message; ``heard`` was already read.

    Raises HandshakeFailed and its subclasses; errors of the stream pass through. The caller closes the stream.
    """
    out = preamble + handshake.start()
    if heard:
        out += handshake.receive(heard)
    while True:
        if out:
            await stream.send_all(out)
        if handshake.session is not None:
            return handshake.session
        data = await stream.receive_some(_HANDSHAKE_READ_BYTES)
        if not data:
            raise HandshakeFailed("the peer closed the stream during the handshake")
        out = handshake.receive(bytes(data))


class ConnectionLost(Exception):
    """The stream ended, broke or was retired. The caller sends unfinished data elsewhere."""


class Connection:
    """A stream whose handshake is complete."""

    def __init__(
        self,
        session: Session,
        stream: trio.abc.Stream,
        *,
        remote: str,
        endpoint: Endpoint | None = None,
        is_direct: bool = False,
    ) -> None:
        self.session = session
        self.channel = Channel(session)
        self.remote = remote
        self.endpoint = endpoint
        """The dialled endpoint; None for an inbound connection."""
        self.offered_path: OfferedPath | None = None
        """For one that the peer opened on request: the number of its path."""
        self.is_direct = is_direct
        self.since = trio.current_time()
        self.used_at = self.since
        self.rtt_s: float | None = None
        self.least_rtt_s = inf
        """The shortest round trip."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.is_retired = False
        self.is_broken = True
        """Whether it ended without a decision of this node."""
        self.is_stalled = False
        """Whether either end gave it up because it stalled."""
        self.ended = trio.Event()
        self._stream = stream
        self._reading = trio.CancelScope()
        self._writing = trio.CancelScope()
        self._is_mid_record = False
        self._counted = 0, 0
        self._paced: int | None = None
        self._pacing = BulkPacing()
        self._pings = Pings()
        self._low_water = LowWater(self._socket)
        self._read_bytes = 0
        """The bytes of the last read."""

    def __repr__(self) -> str:
        return f"Connection({self.endpoint or self.remote})"

    @property
    def is_outbound(self) -> bool:
        """Whether this node dialled it."""
        return self.session.is_initiator

    @property
    def is_sending(self) -> bool:
        """Whether a write is in progress, or was when the connection broke."""
        return self._is_mid_record

    async def send(self, data: bytes | bytearray | memoryview, *, timeout_s: float) -> None:
        """Send whole records. Raises ConnectionLost, trio.TooSlowError."""
        if self.is_retired:
            raise ConnectionLost
        self._is_mid_record = True
        try:
            with trio.CancelScope(deadline=trio.current_time() + timeout_s) as self._writing:
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            raise ConnectionLost from None
        if self._writing.cancelled_caught:
            if self.is_retired:
                raise ConnectionLost
            raise trio.TooSlowError
        self._is_mid_record = False
        self.bytes_out += len(data)

    async def receive(self, size_max: int = _READ_BYTES) -> bytes:
        """Return the next bytes, at most ``size_max``. Raises ConnectionLost at the end."""
        if self.is_retired:
            raise ConnectionLost
        data: bytes | bytearray = b""
        # Where a read brings much, packets do not come one by one, and the calls would cost more than they save.
        self._low_water.expect(self.channel.lacking if self._read_bytes < _MUCH_BYTES else 0)
        try:
            with trio.CancelScope() as self._reading:
                data = await self._stream.receive_some(size_max)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            raise ConnectionLost from None
        if not data or self.is_retired:
            raise ConnectionLost
        self._read_bytes = len(data)
        self.bytes_in += self._read_bytes
        return data if isinstance(data, bytes) else bytes(data)

    async def send_hello(self, hello: Hello, *, timeout_s: float) -> None:
        """Send the first record. Raises ConnectionLost, trio.TooSlowError."""
        await self.send(self.channel.seal(hello.encode()), timeout_s=timeout_s)

    async def receive_hello(self) -> Hello:
        """Return the hello of the peer. Raises ConnectionUnused, HandshakeFailed, FrameInvalid."""
        try:
            while (plaintext := self.channel.next_plaintext()) is None:
                self.channel.feed(await self.receive())
        except ConnectionLost:
            raise ConnectionUnused("the peer closed the connection before its hello") from None
        return Hello.decode(plaintext)

    def new_ping(self, now: float) -> bytes:
        """Return the token of a ping to send on this connection now."""
        token = secrets.token_bytes(_PING_BYTES)
        self._pings.ask(token, now)
        return token

    def take_pong(self, token: bytes, now: float) -> float | None:
        """Process the answer to a ping: update ``rtt_s``, and return how long the answer took."""
        took_s = self._pings.answered(token, now)
        self.rtt_s = self._pings.rtt_s
        return took_s

    def retire(self) -> None:
        """End the connection; its readers and writers get ConnectionLost."""
        self.is_retired = True
        self._reading.cancel()
        self._writing.cancel()

    async def is_dead(self, timeout_s: float) -> bool:
        """Wait on a retired connection for a record of the peer; return whether none arrived.

        The end of the stream proves nothing: a relay that drops all data may also end the stream.
        """
        self._low_water.expect(0)
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    data = await self._stream.receive_some(_READ_BYTES)
                    if not data:
                        break
                    self.channel.feed(bytes(data))
                    if self.channel.next_plaintext() is not None:
                        return False
                except trio.BusyResourceError:  # who read on it has not noticed yet that it is retired
                    await trio.sleep(_RETIRED_S)
                except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError):
                    break
            await trio.sleep_forever()
        return True

    async def leave(self, received: int) -> None:
        """Send an acknowledgement, then close: it shows the other end, which suspects the connection, that it
        works.
        """
        self.channel.say(ChannelFrame.ACK, received.to_bytes(8, "big"))
        await self.aclose(goodbye=self.channel.seal())

    async def aclose(self, *, goodbye: bytes = b"") -> None:
        """Retire and close, after a last record unless another one is partly written."""
        is_clean = not self._is_mid_record and not self.is_retired
        self.retire()
        if goodbye and is_clean:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _BYE_S):
                try:
                    await self._stream.send_all(goodbye)
                except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                    pass
        self.ended.set()
        await trio.aclose_forcefully(self._stream)

    async def part(self) -> None:
        """Close after a BYE."""
        self.channel.say(ChannelFrame.BYE)
        await self.aclose(goodbye=self.channel.seal())

    def report_fault(self, fault: TransportFault) -> None:
        """Report a fault to the transport of the stream, if it takes reports."""
        report = getattr(self._stream, "report_fault", None)
        if report is not None:
            report(fault)

    def make_bulk(self) -> None:
        """Let the kernel buffer more unsent data: no vote waits behind it on this connection."""
        if self._socket is not None:
            tune(self._socket, is_bulk=True)

    def pace(self, bytes_per_s: int | None) -> None:
        """Limit the send rate to the next hop; None: no limit."""
        if self._socket is not None and bytes_per_s != self._paced:
            self._paced = bytes_per_s
            pace(self._socket, bytes_per_s)

    def pacing_rate(self, now: float, *, is_needed: bool) -> int | None:
        """Return the rate limit of a bulk connection beside votes, in bytes per second; None: no limit.

        Called at each tick; ``is_needed`` while votes are exchanged and the connection has data to send.
        """
        info = self.tcp_info() if is_needed else None
        if info is None:
            self._pacing.let_go()
            return None
        return self._pacing.tick(now, acked_bytes=info.bytes_acked, waiting_s=info.rtt_s - info.min_rtt_s)

    def tcp_info(self) -> TcpInfo | None:
        """Return the kernel's figures of the connection to the next hop: the peer, or a relay."""
        return None if self._socket is None else tcp_info(self._socket)

    def take_losses(self) -> tuple[int, int]:
        """Return the numbers of retransmitted and of sent segments since the last call.

        They concern the next hop, as far as the kernel reports them.
        """
        info = self.tcp_info()
        if info is None:
            return 0, 0
        (again, sent), self._counted = self._counted, (info.retransmits, info.segments)
        return info.retransmits - again, info.segments - sent

    @property
    def _socket(self) -> trio.socket.SocketType | None:
        """The underlying socket, if any: a direct connection's, or that of a circuit to its first relay."""
        found = getattr(self._stream, "socket", None)
        return found if isinstance(found, trio.socket.SocketType) else None

    @property
    def remote_host(self) -> str | None:
        """The other end's address, if the connection is direct."""
        if self._socket is None or not self.is_direct:
            return None
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return None

    @property
    def local_host(self) -> str | None:
        """The own address of this connection, if known."""
        if self._socket is None:
            return None
        try:
            return str(self._socket.getsockname()[0])
        except OSError:
            return None
