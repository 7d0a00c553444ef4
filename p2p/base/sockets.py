"""Direct TCP: socket options that keep votes ahead of bulk, and the dialer for ``tcp`` endpoints."""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import trio

from p2p.base.dial_policy import DialPolicy, zone_of
from p2p.base.endpoint import Endpoint
from p2p.base.tcp_info import TCP_INFO_BYTES, TcpInfo

__all__ = [
    "Connector",
    "LowWater",
    "Opener",
    "SocketTuning",
    "TcpDialer",
    "kernel_notes",
    "local_address",
    "pace",
    "tcp_info",
    "tune",
]

USER_TIMEOUT_MS: Final = 20_000
NOTSENT_LOWAT_BYTES: Final = 64 * 1024
"""What the kernel may hold unsent: little, or a vote waits behind it (network.md R7)."""
NOTSENT_LOWAT_BULK_BYTES: Final = 512 * 1024
"""The same for connections with bulk only: fewer and larger writes."""
CONGESTION: Final = b"bbr"
LOW_WATER_BYTES_MIN: Final = 4 * 1024
"""A low-water mark below this is not worth the system call."""
LOW_WATER_BYTES_MAX: Final = 16 * 1024
"""Progress on a slow line is measured in steps of this size."""
_SO_MAX_PACING_RATE: Final = 47
_UNPACED: Final = 2**64 - 1
PACE_BYTES_MIN: Final = 64 * 1024
"""Lowest pacing rate: a slower connection would count as dead."""
_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation. A datagram socket connected to one shows this node's own address and sends
nothing."""
_SYSCTLS: Final = (
    ("net.ipv4.tcp_slow_start_after_idle", "0", "a block after a silence starts slowly"),
    ("net.ipv4.tcp_wmem", 16 * 1024 * 1024, "long fast lines are not filled"),
    ("net.ipv4.tcp_rmem", 16 * 1024 * 1024, "long fast lines are not filled"),
)


OWN_LOOKUPS_MAX: Final = 8
"""Threads that look up names in the owner's options."""
LOOKUPS_MAX: Final = 4
"""Threads that look up names given by others; such a lookup may take as long as the name's owner likes."""
ADDRESSES_MAX: Final = 4
"""Addresses of one name."""
ADDRESS_STAGGER_S: Final = 0.3

CONNECT_ERRORS: Final = (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError)
"""Exceptions of dialling a host with a time limit. ValueError: a name that cannot be encoded."""


class SocketTuning(NamedTuple):
    """The socket options that the kernel accepted."""

    congestion: str
    is_tuned: bool


class SupportsOptions(Protocol):
    """A socket of trio or asyncio; only its options are used."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def tcp_info(sock: trio.socket.SocketType) -> TcpInfo | None:
    """Return the kernel's figures of a connection; None on systems other than Linux and after it has closed."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except (AttributeError, OSError):
        return None
    return TcpInfo.unpack(data) if len(data) == TCP_INFO_BYTES else None


def local_address() -> tuple[str, ...]:
    """Return this machine's source addresses for the Internet, for each IP version."""
    found = []
    for family, probe in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))
                found.append(str(sock.getsockname()[0]))
        except OSError:
            continue
    return tuple(found)


def kernel_notes(proc: Path = Path("/proc/sys")) -> list[str]:
    """Return one sentence for each kernel setting that differs from the advice in docs/operations.md."""
    notes = []
    for name, wanted, cost in _SYSCTLS:
        try:
            value = proc.joinpath(*name.split(".")).read_text().split()[-1]
        except (OSError, IndexError):
            continue
        if value != wanted if isinstance(wanted, str) else not value.isdigit() or int(value) < wanted:
            notes.append(f"{name} is {value}, {wanted} advised: {cost}")
    return notes


def tune(sock: trio.socket.SocketType, *, is_bulk: bool = False) -> SocketTuning:
    """Set the socket options that the system allows; correctness does not depend on them."""
    is_tuned = True
    for level, option, value in (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BULK_BYTES if is_bulk else NOTSENT_LOWAT_BYTES),
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


def pace(sock: trio.socket.SocketType, bytes_per_s: int | None) -> None:
    """Limit the send rate of a connection in the kernel; None: no limit."""
    value = _UNPACED if bytes_per_s is None else max(bytes_per_s, PACE_BYTES_MIN)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, value.to_bytes(8, sys.byteorder))
    except OSError:
        pass  # no Linux of 64 bits: what should be slowed is not, and what it is tried for comes out as before


class LowWater:
    """Wakes the reader of a socket when a whole record has probably arrived, not at each packet.

    Part of a record is of no use, and on a slow line each of its packets arrives alone: 700 per megabyte. The end
    of a connection and a full window wake the reader in any case.
    """

    __slots__ = ("_limit", "_mark", "_socket")

    def __init__(self, sock: SupportsOptions | None, *, limit: int = LOW_WATER_BYTES_MAX) -> None:
        self._socket = sock
        self._mark = 1
        self._limit = limit

    def expect(self, lacking: int) -> None:
        """Set the number of missing bytes of the current record; 0 if none has begun."""
        mark = 1 if lacking < LOW_WATER_BYTES_MIN else min(lacking, self._limit)
        if mark == self._mark or self._socket is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        except OSError:
            self._socket = None  # closed, or of a system without it: each packet wakes
        self._mark = mark


@cache
def is_paced() -> bool:
    """Whether the kernel accepts BBR here: one flow then fills a line."""
    name = getattr(socket, "TCP_CONGESTION", None)
    if name is None:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, name, CONGESTION)
        except OSError:
            return False
    return True


def _family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


Opener = Callable[[str, int], Awaitable[trio.SocketStream]]
"""Opens a TCP connection to a host and port. Raises OSError; the caller sets the time limit."""


class Connector:
    """Opens TCP connections to hosts by name or address that ``dial_policy`` allows.

    A small number of threads resolves names, separate for the owner's names and for those given by others: an
    abandoned lookup occupies its thread until the system gives up.
    """

    def __init__(self, dial_policy: DialPolicy) -> None:
        self.dial_policy = dial_policy
        self._own = trio.CapacityLimiter(OWN_LOOKUPS_MAX)
        self._strangers = trio.CapacityLimiter(LOOKUPS_MAX)

    async def look_up(self, host: str, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[str]:
        """Return the addresses of a host that may be dialled. Raises OSError if there are none."""
        is_named = self.dial_policy.is_named(host)
        if zone_of(host) is not None:
            found = [host] if family in (socket.AF_UNSPEC, _family_of(host)) else []
        else:
            look = partial(socket.getaddrinfo, host, None, family, socket.SOCK_STREAM)
            limiter = self._own if is_named else self._strangers
            answers = await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=limiter)
            found = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        allowed = [address for address in found if is_named or self.dial_policy.may_dial(address)]
        if not allowed:
            raise OSError(f"{host}: no address that this node may dial")
        return allowed[:ADDRESSES_MAX]

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        """Return a stream to the first address that answers. Raises OSError; the caller sets the time limit."""
        addresses = await self.look_up(host)
        if len(addresses) == 1:
            return await trio.open_tcp_stream(addresses[0], port)
        won: trio.SocketStream | None = None
        error: OSError | None = None

        async def attempt(address: str, failed: trio.Event) -> None:
            nonlocal won, error
            try:
                stream = await trio.open_tcp_stream(address, port)
            except OSError as problem:
                error = problem
                failed.set()
                return
            if won is None:
                won = stream
                nursery.cancel_scope.cancel()
            else:
                await trio.aclose_forcefully(stream)

        try:
            async with trio.open_nursery() as nursery:
                for address in addresses:
                    failed = trio.Event()
                    nursery.start_soon(attempt, address, failed)
                    with trio.move_on_after(ADDRESS_STAGGER_S):
                        await failed.wait()
        except BaseException:
            if won is not None:
                await trio.aclose_forcefully(won)
            raise
        if won is None:
            raise error or OSError(f"{host}:{port}: no address answered")
        return won


class TcpDialer:
    """Dials ``tcp:host:port`` through a connector; without one, any host is allowed."""

    def __init__(self, connector: Connector | None = None) -> None:
        self._connector = connector or Connector(DialPolicy(is_inner=True))

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a tuned stream. Raises OSError."""
        stream = await self._connector.connect(endpoint.host, endpoint.port)
        tune(stream.socket)
        return stream
