"""A node's network options, and the dial policy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from p2p.base.dial_policy import DialPolicy
from p2p.base.endpoint import Endpoint, parse_bootstrap
from p2p.base.limits import NetworkLimits
from p2p.gossip.core import GossipParameters
from p2p.multicast.wire import MulticastParameters
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["NetworkConfig", "dial_policy_of"]


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """A node's network options."""

    listen: tuple[tuple[str, int], ...] = ()
    """(host, port) pairs; port 0 uses a free one, see ``Network.bound``."""
    advertise: tuple[str, ...] = ()
    """Endpoints announced to others. Empty: those of ``listen`` that are not wildcards."""
    bootstrap: tuple[str, ...] = ()
    """``0x<address>@host:port``, ``host:port``, or either with a whole endpoint: see ``parse_bootstrap``."""
    data_dir: Path | None = None
    """Directory of the address book across restarts; None: it is not kept."""
    dial_inner: bool = False
    """Dial private and loopback addresses that others name. Implied if the options above name such addresses."""
    blob_dir: Path | None = None
    blob_budget_bytes: int = 16 * 1024**3
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    gossip: GossipParameters = field(default_factory=GossipParameters)
    multicast: MulticastParameters = field(default_factory=MulticastParameters)

    def advertised(self) -> tuple[Endpoint, ...]:
        """Return the endpoints of ``advertise``. Raises ConfigError."""
        return tuple(_endpoint(text) for text in self.advertise)


def dial_policy_of(config: NetworkConfig, relays: Iterable[Endpoint] = ()) -> DialPolicy:
    """Return which hosts a node with these options dials if others name them. Raises ConfigError."""
    listen = [host for host, _ in config.listen if host]
    first = [parse_bootstrap(text)[1] for text in config.bootstrap]
    endpoints = (*first, *config.advertised(), *relays)
    return DialPolicy([*listen, *(endpoint.host for endpoint in endpoints)], is_inner=config.dial_inner)


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.named(text)
    except DecodeError as error:
        raise ConfigError(f"advertised endpoint {text!r}: {error}") from None
