"""The proxy through which a container reaches the names of its job, and nothing else (market.md R131).

It listens inside the container's network (``entering``) and connects from the node's. CONNECT carries TLS, whose
server name is compared where the port is 443; plain requests go one to a connection. A stranger's program is at
one end and a stranger's server at the other: everything is bounded, and nothing that they send ends the node.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import h11
import structlog
import trio

from state.primitives.errors import DecodeError
from state.primitives.token_bucket import TokenBucket
from tasks.executor.containers.egress.addresses import Network, chosen_addresses
from tasks.executor.containers.egress.client_hello import HELLO_BYTES_MAX, HelloReader
from tasks.executor.containers.egress.targets import Target, read_authority, read_url
from tasks.kinds.egress import PORT_DEFAULT, is_covered

__all__ = ["EgressLimits", "EgressProxy", "EgressUse", "Resolve", "resolve"]

_log = structlog.get_logger("containers")

CONNECTIONS_MAX: Final = 64
"""Connections of a container at once."""
CONNECTIONS_PER_S: Final = 32
CONNECTIONS_BURST: Final = 128
HEAD_BYTES_MAX: Final = 16 << 10
"""Bytes of a request's head: registries send tokens of some KiB."""
HEAD_S: Final = 10.0
"""How long a whole head may take, and a whole ClientHello."""
LOOKUPS_MAX: Final = 4
"""Look-ups of a container at once. They have threads of their own: a slow one delays nobody else."""
LOOKUP_S: Final = 10.0
CONNECT_S: Final = 10.0
IDLE_S: Final = 300.0
"""A connection on which nothing moves for so long is closed."""
SEND_S: Final = 10.0
DRAIN_S: Final = 0.5
RATE_BURST_S: Final = 0.25
_CHUNK_BYTES: Final = 64 << 10
_HEAD_CHUNK_BYTES: Final = 4 << 10
_DRAIN_CHUNKS_MAX: Final = 16
_HOP_HEADERS: Final = frozenset(
    {b"connection", b"host", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"http2-settings"}
)
"""Headers for the proxy alone, and ``Host``, which the URL says; ``Proxy-*`` too."""
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
"""What a connection raises whose other end went away, or does nothing."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name. Raises OSError."""


async def resolve(name: str) -> Sequence[str]:
    """Return the addresses of a name as this machine looks them up. No search domain is tried. Raises OSError."""
    return await trio.to_thread.run_sync(look_up, name, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))


def look_up(name: str) -> Sequence[str]:
    """Return the addresses of a name; blocks. Raises OSError."""
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True)
class EgressLimits:
    """What a machine's owner allows each container beside names: bytes both ways, and how many of them a second.

    ``barred`` are networks that no name leads into, beside those that never may.
    """

    bytes_max: int = 64 << 30
    bytes_per_s: int = 125_000_000
    barred: tuple[Network, ...] = ()


@dataclass
class EgressUse:
    """What a container has sent and received through its proxy, and how much was refused it."""

    sent_bytes: int = 0
    received_bytes: int = 0
    connections: int = 0
    refused: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of both ways."""
        return self.sent_bytes + self.received_bytes


class _Refused(Exception):
    """An answer of the proxy: a status of HTTP, a short reason, and a text."""

    def __init__(self, status: int, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.status, self.reason = status, reason


class _Spent(Exception):
    """The container has used up its bytes."""


@dataclass
class _Tunnel:
    """A connection both of whose ends are open."""

    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def note_move(self) -> None:
        """Note that a byte moved: it may stand still for ``IDLE_S`` from now on."""
        self.scope.deadline = trio.current_time() + IDLE_S


class EgressProxy:
    """The proxy of one container. ``entries`` are the names of its job that the machine's owner lets it reach."""

    def __init__(
        self, listening: socket.socket, entries: Collection[str], limits: EgressLimits, use: EgressUse,
        lookup: Resolve = resolve,
    ) -> None:  # fmt: skip
        self._listening, self._entries, self._limits = listening, frozenset(entries), limits
        self.use, self._lookup = use, lookup
        self._accepts = TokenBucket(CONNECTIONS_PER_S, CONNECTIONS_BURST, _now_ms())
        self._lookups = trio.Semaphore(LOOKUPS_MAX)
        self._open = 0
        self._free_at = 0.0
        """When the rate lets the next byte pass."""

    async def run(self) -> None:
        """Serve until cancelled, and close the socket then."""
        listening = trio.socket.from_stdlib_socket(self._listening)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self._accepts.reserve(_now_ms()))
                    try:
                        connection, _ = await listening.accept()
                    except OSError as error:  # too many open files: the others of this node come first
                        _log.warning("a connection of a container was not accepted", error=str(error))
                        await trio.sleep(1)
                        continue
                    if self._open >= CONNECTIONS_MAX:
                        self.use.refused += 1
                        connection.close()
                        continue
                    self._open += 1
                    nursery.start_soon(self._serve, trio.SocketStream(connection))
        finally:
            listening.close()

    async def _serve(self, client: trio.SocketStream) -> None:
        """Serve one connection, whatever comes."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.use.connections += 1
        try:
            await self._serve_one(http, client)
        except _Refused as refused:
            self.use.refused += 1
            await _answer(http, client, refused)
        except h11.RemoteProtocolError as error:
            self.use.refused += 1
            await _answer(http, client, _Refused(error.error_status_hint, "not a request", str(error)[:200]))
        except (*_GONE, h11.LocalProtocolError, _Spent):
            pass  # either end went away, or is cut off
        finally:
            self._open -= 1
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await client.aclose()

    async def _serve_one(self, http: h11.Connection, client: trio.SocketStream) -> None:
        with trio.move_on_after(HEAD_S) as head:
            event = await _next(http, client)
        if head.cancelled_caught:
            raise _Refused(408, "too slow", f"a whole head within {HEAD_S:.0f} s expected")
        if not isinstance(event, h11.Request):
            return  # it said nothing
        if self.use.bytes >= self._limits.bytes_max:
            raise _Refused(
                403, "bytes used up", f"this machine lets a container move {self._limits.bytes_max} bytes"
            )
        try:
            if event.method == b"CONNECT":
                target, path = read_authority(event.target), b""
            else:
                target, path = read_url(event.target)
        except DecodeError as error:
            raise _Refused(400, "no target", str(error)) from None
        if not is_covered(target.entry, self._entries):
            raise _Refused(
                403, "not in egress of the job",
                f"{target.entry} is not among what this job may reach: {', '.join(sorted(self._entries))}",
            )  # fmt: skip
        server = await self._dial(target)
        try:
            if path:
                await self._forward(http, client, server, event, target, path)
            else:
                await self._connect(http, client, server, target)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await server.aclose()

    # The server

    async def _dial(self, target: Target) -> trio.SocketStream:
        """Connect to an address of a name that was looked at: it is not looked up a second time."""
        try:
            async with self._lookups:
                with trio.fail_after(LOOKUP_S):
                    found = await self._lookup(target.host)
        except (OSError, UnicodeError, trio.TooSlowError):
            raise _Refused(502, "no such name", f"{target.host} cannot be looked up") from None
        addresses = [one for one in chosen_addresses(found, self._limits.barred) if not _is_own(one)]
        if not addresses:
            raise _Refused(403, "no public address", f"{target.host} has no address on the public Internet")
        for address in addresses:
            with suppress(OSError, trio.TooSlowError), trio.fail_after(CONNECT_S):
                return await _connected(address, target.port)
        raise _Refused(502, "no answer", f"{target.entry} does not answer")

    async def _connect(
        self, http: h11.Connection, client: trio.SocketStream, server: trio.SocketStream, target: Target
    ) -> None:
        """Carry bytes both ways, after a look at the first ones."""
        with trio.fail_after(SEND_S):
            await client.send_all(http.send(h11.Response(status_code=200, headers=[], reason=b"connected")))
        first, _ = http.trailing_data
        if target.port == PORT_DEFAULT:
            first = await self._hello(client, first, target)
        await self._pass_on(server, first, is_sent=True)
        await self._carry(_Tunnel(client, server))

    async def _hello(self, client: trio.SocketStream, first: bytes, target: Target) -> bytes:
        """Return the first bytes of a client once they name the server that it was let to. Else it is cut off."""
        reader, name = HelloReader(), None
        with trio.move_on_after(HEAD_S):
            try:
                while (name := reader.feed(first)) is None:
                    first = await client.receive_some(HELLO_BYTES_MAX - len(reader.data))
                    if not first:
                        return b""
            except DecodeError:
                name = ""
            if name == target.host:
                return bytes(reader.data)
        self.use.refused += 1
        raise trio.ClosedResourceError("another server name than CONNECT's, or none")

    async def _forward(
        self, http: h11.Connection, client: trio.SocketStream, server: trio.SocketStream, request: h11.Request,
        target: Target, path: bytes,
    ) -> None:  # fmt: skip
        """Send one plain request on, made again from its parts, and return what comes until the end."""
        to_server = h11.Connection(h11.CLIENT)
        dropped = _HOP_HEADERS
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            dropped |= {b"content-length"}  # a server that believed it would see a second request (RFC 9112, 6.1)
        kept = [
            (name, value) for name, value in request.headers
            if name not in dropped and not name.startswith(b"proxy-")
        ]  # fmt: skip
        host = target.host if target.port == 80 else target.entry
        headers = [(b"host", host.encode()), *kept, (b"connection", b"close")]
        data = to_server.send(h11.Request(method=request.method, target=path, headers=headers))
        await self._pass_on(server, data or b"", is_sent=True)
        while True:
            with trio.fail_after(IDLE_S):
                if http.they_are_waiting_for_100_continue:
                    await client.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])))
                event = await _next(http, client)
            if isinstance(event, h11.Data):
                await self._pass_on(server, to_server.send(h11.Data(data=event.data)) or b"", is_sent=True)
            elif isinstance(event, h11.EndOfMessage):
                await self._pass_on(server, to_server.send(h11.EndOfMessage()) or b"", is_sent=True)
                break
            else:
                return
        await self._carry(_Tunnel(client, server), is_sending=False)

    # Bytes

    async def _pass_on(self, stream: trio.SocketStream, data: bytes, *, is_sent: bool) -> None:
        """Send bytes on when the rate lets them pass. Raises _Spent beyond the container's bytes."""
        if self.use.bytes + len(data) > self._limits.bytes_max:
            raise _Spent
        if is_sent:
            self.use.sent_bytes += len(data)
        else:
            self.use.received_bytes += len(data)
        now = trio.current_time()
        self._free_at = max(self._free_at, now - RATE_BURST_S) + len(data) / self._limits.bytes_per_s
        await trio.sleep(max(0.0, self._free_at - now))
        with trio.fail_after(IDLE_S):
            await stream.send_all(data)

    async def _carry(self, tunnel: _Tunnel, *, is_sending: bool = True) -> None:
        """Carry bytes until both ends are done, one breaks, or nothing moves."""
        tunnel.note_move()
        with tunnel.scope:
            async with trio.open_nursery() as ways:
                if is_sending:
                    ways.start_soon(self._copy, tunnel, True)
                ways.start_soon(self._copy, tunnel, False)

    async def _copy(self, tunnel: _Tunnel, is_sent: bool) -> None:
        source, sink = (tunnel.client, tunnel.server) if is_sent else (tunnel.server, tunnel.client)
        try:
            while data := await source.receive_some(_CHUNK_BYTES):
                tunnel.note_move()
                await self._pass_on(sink, data, is_sent=is_sent)
                tunnel.note_move()
            await sink.send_eof()
        except (*_GONE, _Spent):
            tunnel.scope.cancel()


async def _next(http: h11.Connection, client: trio.SocketStream) -> h11.Event | type[h11.PAUSED]:
    """Return the next event of a client that is not a wait for bytes. Raises RemoteProtocolError."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await client.receive_some(_HEAD_CHUNK_BYTES))
    return event  # type: ignore[return-value]  # NEED_DATA is gone


async def _connected(address: str, port: int) -> trio.SocketStream:
    """Return a connection to exactly this address. Raises OSError."""
    made = trio.socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        await made.connect((address, port))
        if made.getsockname()[0] == made.getpeername()[0]:
            raise OSError("an address of this machine")
        return trio.SocketStream(made)
    except BaseException:
        made.close()
        raise


def _is_own(address: str) -> bool:
    """Tell whether an address is this machine's own: one would connect from the same. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # no route: a connection fails too


async def _answer(http: h11.Connection, client: trio.SocketStream, refused: _Refused) -> None:
    """Answer with a refusal where the client still waits for an answer."""
    with suppress(*_GONE, h11.LocalProtocolError):
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{refused}\n".encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body))),
            ("connection", "close"),
        ]  # fmt: skip
        head = h11.Response(status_code=refused.status, headers=headers, reason=refused.reason.encode())
        data = http.send(head) or b""
        with suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
            data += (http.send(h11.Data(data=body)) or b"") + (http.send(h11.EndOfMessage()) or b"")
        with trio.move_on_after(SEND_S):
            await client.send_all(data)
            await client.send_eof()
        with trio.move_on_after(DRAIN_S):  # closing before would take the answer back
            for _ in range(_DRAIN_CHUNKS_MAX):
                if not await client.receive_some(_CHUNK_BYTES):
                    return


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
