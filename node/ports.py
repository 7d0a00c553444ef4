"""Addresses to listen at: whether one can be had, what its owner is told where not, how one is written."""

from __future__ import annotations

import errno
import os
import socket

from node.config import parse_host_port
from state.primitives.errors import ConfigError

__all__ = ["cannot_listen", "check_listen", "format_host_port", "is_taken"]


def cannot_listen(option: str, listen: str, error: OSError) -> ConfigError:
    """Return what a person is told whose option names an address that cannot be had."""
    is_taken = error.errno == errno.EADDRINUSE
    why = os.strerror(errno.EADDRINUSE) if is_taken else error.strerror or str(error)
    advice = "; another program has that port (`ss -ltnp` names it): end it, or name another port" * is_taken
    return ConfigError(f"{option}: cannot listen on {listen}: {why}{advice}")


def check_listen(option: str, listen: str) -> None:
    """Raise ConfigError where nobody could listen now: an operator looks at a start, and not at logs after it."""
    host, port = parse_host_port(listen)
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise cannot_listen(option, listen, error) from None


def is_taken(listen: str) -> bool:
    """Tell whether another program listens at ``listen`` now, as far as that can be told by trying."""
    host, port = parse_host_port(listen)
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def format_host_port(host: str, port: int) -> str:
    """Return what ``node.config.parse_host_port`` reads: host:port, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
