"""Opens listening sockets, on IPv4 and IPv6 if no host is given."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["open_sockets"]

BACKLOG: Final = 128
PORT_TRIES: Final = 16
"""Tries to find a port that is free in both families, if any port is accepted."""
_NO_FAMILY: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))
"""Errors on a machine with only one of the two families."""


def open_sockets(addresses: Iterable[tuple[str, int]], *, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listen at each (host, port); without a host on all addresses of IPv4 and IPv6.

    Port 0 means one free port for both. Raises OSError; no socket is then open.
    """
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        undo.callback(_close, opened)
        for host, port in addresses:
            opened += _open(host, port, backlog)
        undo.pop_all()
    return opened


def _close(opened: list[socket.socket]) -> None:
    for one in opened:
        one.close()


def _open(host: str, port: int, backlog: int) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, str(error)) from None
    # IPv4 first: it is what a process shows that shows one address.
    addresses = sorted({(family, str(where[0])) for family, _, _, _, where in found})
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            return _open_all(addresses, port, backlog)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or not tries_left:
                raise
    raise AssertionError


def _open_all(addresses: Sequence[tuple[int, str]], port: int, backlog: int) -> list[socket.socket]:
    opened: list[socket.socket] = []
    lacking: OSError | None = None
    with contextlib.ExitStack() as undo:
        undo.callback(_close, opened)
        for family, host in addresses:
            try:
                opened.append(socket.create_server((host, port), family=family, backlog=backlog))
            except OSError as error:
                if error.errno not in _NO_FAMILY or len(addresses) == 1:
                    raise
                lacking = error
            else:
                port = opened[-1].getsockname()[1]
        if not opened:
            raise lacking or OSError(errno.EADDRNOTAVAIL, "no address")
        undo.pop_all()
    return opened
