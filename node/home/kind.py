"""What lives in a home: a node, a relay or a signer, as its options tell, for whoever takes one for another."""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from node.home.config import CONFIG_LIMIT_BYTES
from node.home.files import read_bounded
from state.primitives.errors import ConfigError
from state.primitives.listen import reached_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from node.home.config import KeyOptions
    from node.home.paths import Home

__all__ = ["NODE", "RELAY", "SIGNER", "check_kind", "expected", "gateways_of", "keys_of", "kind_of"]

NODE: Final = "node"
RELAY: Final = "relay"
SIGNER: Final = "signer"
_OPTIONS: Final = {
    NODE: "node.home.config:NodeOptions",
    RELAY: "node.relay.home:RelayHomeOptions",
    SIGNER: "node.signer.home:SignerHomeOptions",
}
"""The options of each, loaded where they are asked about."""
_COMMANDS: Final = {
    NODE: "`dekube node run` runs it, `dekube status` says how it does",
    RELAY: "`dekube relay run` runs it, `dekube relay --help` lists its commands, and for those of its account "
    "(dekube wallet) --rpc URL names a gateway",
    SIGNER: "`dekube signer run` runs it, `dekube signer --help` lists its commands; the node that it votes for "
    "has a home of its own",
}


def kind_of(config: Path) -> str:
    """Return what has the options in ``config``: "node", "relay" or "signer"; empty where that cannot be told."""
    try:
        data = read_bounded(config, CONFIG_LIMIT_BYTES)
        if len(data) > CONFIG_LIMIT_BYTES:
            return ""
        names = set(tomllib.loads(data.decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError):
        return ""
    known = {kind: len(names & {f.name for f in dataclasses.fields(_options(kind))}) for kind in _OPTIONS}
    most = max(known.values())
    found = [kind for kind, count in known.items() if count == most]
    return found[0] if len(found) == 1 else ""


def check_kind(config: Path, kind: str) -> None:
    """Raise ConfigError where ``config`` is of something else than ``kind``: it says of what, and its commands."""
    found = kind_of(config)
    if found not in ("", kind):
        raise ConfigError(f"{config.parent}: this is the home of a {found}, not of a {kind}; {_COMMANDS[found]}")


@contextmanager
def expected(config: Path, kind: str) -> Iterator[None]:
    """Where the options of ``kind`` in ``config`` cannot be read, say first whether they are another's."""
    try:
        yield
    except ConfigError:
        check_kind(config, kind)
        raise


def keys_of(home: Home) -> KeyOptions:
    """Return where the keys are of whatever lives in ``home``: each has an account. Raises ConfigError."""
    try:
        return home.load_options().keys
    except ConfigError:  # what else there is takes longer to load
        match kind_of(home.config):
            case "relay":
                from node.relay.home import load_relay_options

                return load_relay_options(home).keys
            case "signer":
                from node.signer.home import load_signer_options

                return load_signer_options(home.config).keys
            case _:
                raise


def gateways_of(home: Home) -> tuple[str, ...]:
    """Return the gateway of the node in ``home``, or those that the relay there asks. Raises ConfigError."""
    try:
        listen = home.load_options().rpc.listen
    except ConfigError:
        match kind_of(home.config):
            case "relay" as kind:
                from node.relay.home import load_relay_options

                if urls := load_relay_options(home).rpc:
                    return urls
            case "signer" as kind:
                pass
            case _:
                raise
        raise ConfigError(
            f"{home.root}: a {kind} lives here, which has no gateway of its own; --rpc URL names one to ask"
        ) from None
    if not listen:
        raise ConfigError(f"{home.root}: this node has no gateway (rpc.listen); name one with --rpc")
    return (f"http://{reached_at(listen)}",)


def _options(kind: str) -> Any:
    module, _, name = _OPTIONS[kind].partition(":")
    return getattr(importlib.import_module(module), name)
