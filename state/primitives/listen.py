"""Addresses to listen at, as options write them: "host:port", ":port" for all addresses, several with commas."""

from __future__ import annotations

from typing import Final

from state.primitives.errors import ConfigError

__all__ = ["LISTEN_MAX", "dial_host", "dial_target", "format_host_port", "parse_host_port", "parse_listen"]

LISTEN_MAX: Final = 16
"""Addresses of one option."""
_DIALLED: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not listened at


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port". Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{text!r}: host:port expected")
    return host.strip("[]"), int(port)


def parse_listen(text: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and ports of comma-separated addresses; empty for "". Raises ConfigError."""
    if not text:
        return ()
    parts = text.split(",")
    if len(parts) > LISTEN_MAX:
        raise ConfigError(f"{len(parts)} addresses to listen at; at most {LISTEN_MAX} expected")
    places = tuple(parse_host_port(part.strip()) for part in parts)
    if len(set(places)) < len(places):
        raise ConfigError(f"{text!r}: the same address twice")
    return places


def format_host_port(host: str, port: int) -> str:
    """Return what ``parse_host_port`` reads: host:port, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial_host(host: str) -> str:
    """Return the host to dial on this machine for a listener at ``host``."""
    return _DIALLED.get(host, host)


def dial_target(text: str) -> str:
    """Return the "host:port" to dial on this machine for a listener at ``text``, which is not empty.

    Raises ConfigError.
    """
    host, port = parse_listen(text)[0]
    return format_host_port(dial_host(host), port)
