"""The text form of addresses at which nodes can be reached, in records, options and on the command line.

See network.md 2.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from state.primitives.address import parse_address
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["ENDPOINT_CHARACTERS_MAX", "Endpoint", "parse_bootstrap"]

ENDPOINT_CHARACTERS_MAX: Final = 128
_TEXT: Final = re.compile(
    r"(?:tcp|relay:(?P<relay>[0-9a-f]{40})):"
    r"(?P<host>[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?|\[(?=[0-9a-f.]*:)[0-9a-f:.]{2,45}\])"
    r":(?P<port>[1-9][0-9]{0,4})"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a node can be reached: ``tcp:host:port``, or ``relay:<relay address, hex>:host:port``.

    With ``relay`` set, host and port are the relay's. IPv6 hosts have brackets in the text form only. ``via`` is
    the endpoint of another relay through which that relay is reached: a path over two relays, or over three if
    ``via`` has a ``via`` too. The dialling node makes such a path. No record contains it, and no text form parses
    to it.
    """

    host: str
    port: int
    relay: bytes | None = None
    via: Endpoint | None = None
    is_punched: bool = False
    """A direct connection that both ends agree on (``p2p.path.hole_punch``); host and port are then unused."""

    @property
    def scheme(self) -> str:
        """The key of the dialer that serves this endpoint: ``tcp``, ``relay`` or ``punch``."""
        if self.is_punched:
            return "punch"
        return "tcp" if self.relay is None else "relay"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of its canonical text. Raises DecodeError."""
        found = _TEXT.fullmatch(text) if len(text) <= ENDPOINT_CHARACTERS_MAX else None
        if found is None or int(found["port"]) > 65535:
            raise DecodeError("not an endpoint: tcp:host:port or relay:<address>:host:port expected")
        relay = None if found["relay"] is None else bytes.fromhex(found["relay"])
        return cls(found["host"].strip("[]"), int(found["port"]), relay)

    @classmethod
    def named(cls, text: str) -> Endpoint:
        """Return the endpoint that a user typed, with or without ``tcp:``. Raises DecodeError."""
        return cls.parse(text if text.startswith(("tcp:", "relay:")) else f"tcp:{text}")

    def __str__(self) -> str:
        if self.is_punched:
            return "punch"
        host = f"[{self.host}]" if ":" in self.host else self.host
        prefix = "tcp" if self.relay is None else f"relay:{self.relay.hex()}"
        text = f"{prefix}:{host}:{self.port}"
        return text if self.via is None else f"{text} via {self.via}"

    @property
    def hops(self) -> tuple[Endpoint, ...]:
        """The relays of the path, the dialler's own first; none for a direct endpoint."""
        if self.relay is None:
            return ()
        last = replace(self, via=None)
        return (last,) if self.via is None else (*self.via.hops, last)


def parse_bootstrap(text: str) -> tuple[bytes | None, Endpoint]:
    """Return a bootstrap peer's address, if given, and its endpoint. Raises ConfigError."""
    name, at, where = text.rpartition("@")
    try:
        address = parse_address(name) if at else None
        endpoint = Endpoint.named(where)
    except DecodeError as error:
        raise ConfigError(f"bootstrap peer {text!r}: {error}") from None
    return address, endpoint
