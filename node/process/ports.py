"""Addresses to listen at: whether one can be had, what its owner is told where not, how one is written."""

from __future__ import annotations

import errno
import os
import socket

from p2p.base.listening import open_sockets
from state.primitives.errors import ConfigError
from state.primitives.listen import format_host_port, parse_listen

__all__ = ["cannot_listen", "check_listen", "format_host_port", "is_taken", "listen_at"]


def cannot_listen(option: str, listen: str, error: OSError) -> ConfigError:
    """Return what a person is told whose option names an address that cannot be had."""
    is_taken = error.errno == errno.EADDRINUSE
    why = os.strerror(errno.EADDRINUSE) if is_taken else error.strerror or str(error)
    advice = "; another program has that port (`ss -ltnp` names it): end it, or name another port" * is_taken
    return ConfigError(f"{option}: cannot listen on {listen}: {why}{advice}")


def check_listen(option: str, listen: str) -> None:
    """Raise ConfigError where nobody could listen now: an operator looks at a start, and not at logs after it."""
    for listener in listen_at(option, listen):
        listener.close()


def listen_at(option: str, listen: str) -> list[socket.socket]:
    """Return sockets that listen at ``listen``, the value of ``option``. Raises ConfigError."""
    try:
        return open_sockets(parse_listen(listen))
    except OSError as error:
        raise cannot_listen(option, listen, error) from None


def is_taken(listen: str) -> bool:
    """Tell whether another program listens at ``listen`` now, as far as that can be told by trying."""
    try:
        for listener in open_sockets(parse_listen(listen)):
            listener.close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
