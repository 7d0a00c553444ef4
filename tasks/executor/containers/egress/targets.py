"""What a request to the proxy of a container asks for: a name and a port, never an address (R131)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from state.primitives.errors import DecodeError
from tasks.kinds.egress import PORT_DEFAULT, is_host_name

__all__ = ["PROXY_HOST", "PROXY_PORT", "Target", "read_authority", "read_url"]

PROXY_HOST: Final = "127.0.0.1"
PROXY_PORT: Final = 3_128
"""Where a container finds its proxy. It is always the same: a restarted node is found again."""
HTTP_PORT: Final = 80
_AUTHORITY: Final = re.compile(rb"([A-Za-z0-9.-]{1,255}):([1-9][0-9]{0,4})")
_URL: Final = re.compile(rb"(?i:http)://([A-Za-z0-9.-]{1,255})(?::([1-9][0-9]{0,4}))?([/?][!-~]*)?")


class Target(NamedTuple):
    """A name in lower case, and a port."""

    host: str
    port: int

    @property
    def entry(self) -> str:
        """The entry of a list that this is."""
        return f"{self.host}:{self.port}"


def _target(host: bytes, port: int) -> Target:
    name = host.decode("ascii").lower()
    if not is_host_name(name):
        raise DecodeError(f"{name[:80]!r} is no host name: addresses and single words are not reached")
    if port > 65_535:
        raise DecodeError(f"{port} is no port")
    return Target(name, port)


def read_authority(text: bytes) -> Target:
    """Return what ``CONNECT`` names. Raises DecodeError."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise DecodeError("CONNECT name:port expected")
    return _target(found[1], int(found[2]))


def read_url(text: bytes) -> tuple[Target, bytes]:
    """Return what the URL of a plain request names, and the path for its server. Raises DecodeError.

    Port 443 is none for plain requests: there the server name of TLS is compared.
    """
    found = _URL.fullmatch(text)
    if found is None:
        raise DecodeError("http://name/path expected; https:// goes by CONNECT")
    port = int(found[2] or HTTP_PORT)
    if port == PORT_DEFAULT:
        raise DecodeError(f"port {PORT_DEFAULT} is for TLS: CONNECT expected")
    path = found[3] or b"/"
    return _target(found[1], port), path if path.startswith(b"/") else b"/" + path
