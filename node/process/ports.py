"""Listening addresses: checks whether they are available, and explains why not."""

from __future__ import annotations

import errno
import os
import socket

from p2p.base.listening import open_sockets
from state.primitives.errors import ConfigError
from state.primitives.listen import format_host_port, parse_listen

__all__ = ["cannot_listen", "check_listen", "format_host_port", "is_taken", "listen_at"]


def cannot_listen(option: str, listen: str, error: OSError) -> ConfigError:
    """Return the error for an option whose listening address is not available."""
    is_taken = error.errno == errno.EADDRINUSE
    why = os.strerror(errno.EADDRINUSE) if is_taken else error.strerror or str(error)
    advice = "; another program has that port (`ss -ltnp` names it): end it, or name another port" * is_taken
    return ConfigError(f"{option}: cannot listen on {listen}: {why}{advice}")


def check_listen(option: str, listen: str) -> None:
    """Raise ConfigError if ``listen`` is not available now, so that the operator sees it at the start."""
    for listener in listen_at(option, listen):
        listener.close()


def listen_at(option: str, listen: str) -> list[socket.socket]:
    """Return sockets that listen at ``listen``, the value of ``option``. Raises ConfigError."""
    try:
        return open_sockets(parse_listen(listen))
    except OSError as error:
        raise cannot_listen(option, listen, error) from None


def is_taken(listen: str) -> bool:
    """Tell whether another program listens at ``listen`` now, as far as a trial can tell."""
    try:
        for listener in open_sockets(parse_listen(listen)):
            listener.close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
