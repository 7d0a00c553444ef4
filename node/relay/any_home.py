"""Keys and gateways of a home of any kind, for commands that accept every kind (``dekube wallet``)."""

from __future__ import annotations

from node.home.kind import kind_of
from node.home.load import load_node_options
from node.home.options import RELAY, SIGNER, KeyOptions
from node.home.paths import Home
from state.primitives.errors import ConfigError
from state.primitives.listen import dial_target

__all__ = ["gateways_of", "keys_of"]


def keys_of(home: Home) -> KeyOptions:
    """Return the key files of ``home``. Raises ConfigError."""
    match kind_of(home.config):
        case "relay":
            from node.relay.home import load_relay_options  # a relay's daemon comes with it

            return load_relay_options(home).keys
        case "signer":
            from node.signer.home import load_signer_options

            return load_signer_options(home.config).keys
        case _:
            return load_node_options(home).keys


def gateways_of(home: Home) -> tuple[str, ...]:
    """Return the gateway of the node in ``home``, or the gateways that the relay in it uses.

    Raises ConfigError.
    """
    kind = kind_of(home.config)
    if kind in (RELAY, SIGNER):
        urls: tuple[str, ...] = ()
        if kind == RELAY:
            from node.relay.home import load_relay_options

            urls = load_relay_options(home).rpc
        if not urls:
            raise ConfigError(f"{home.root}: a {kind} has no gateway; name one with --rpc URL")
        return urls
    listen = load_node_options(home).rpc.listen
    if not listen:
        raise ConfigError(f"{home.root}: this node has no gateway (rpc.listen is empty); name one with --rpc URL")
    return (f"http://{dial_target(listen)}",)
