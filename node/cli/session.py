"""Data that commands which use a chain share: the gateways and the signing key."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from node.cli.arguments import PathName, WholeNumber
from node.cli.options import DEFAULT_HOME, account_of_home, open_key, parse_home
from node.cli.progress_client import ProgressClient
from node.cli.responses import checked_responses
from node.home.keyring import Keyring, address_in
from node.home.load import load_genesis
from node.home.paths import Home
from node.relay.any_home import gateways_of, keys_of
from rpc.client import Client
from state.primitives.address import parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.keys import SecretKey

__all__ = [
    "Session",
    "endorsing_options",
    "new_key_options",
    "reading_options",
    "session_options",
    "signing_options",
    "wallet_options",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Session:
    """The gateways to use and, for signing commands, the key."""

    home: Home
    urls: tuple[str, ...]
    key_name: str | None
    passphrase_file: Path | None
    chain_id: int | None = None

    @property
    def keyring(self) -> Keyring:
        """The user's accounts, beside those of the node."""
        return Keyring(self.home.root / "wallet")

    def gateways(self) -> tuple[str, ...]:
        """Return the gateways to use: those of --rpc, else those of the home. Raises ConfigError."""
        return self.urls or self._own_gateways()

    def client(self) -> Client:
        """Return a client of the gateways that reports long waits."""
        control = None if self.urls else self.home.control
        return ProgressClient(*self.gateways(), control=control, chain_id=self.signed_for())

    def signed_for(self) -> int | None:
        """Return the chain ID to sign for: --chain-id, else the home's; None if only a gateway knows it."""
        if self.chain_id is None and os.path.lexists(self.home.genesis):  # a broken link is told, not ignored
            return load_genesis(self.home.genesis).chain_id
        return self.chain_id

    def control(self) -> Path | None:
        """Return the control socket of the node in the home; None if --rpc names other gateways or no node runs.

        Bulk data then goes over the gateway.
        """
        return self.home.control if not self.urls and self.home.control.exists() else None

    def key(self, name: str | None = None) -> SecretKey:
        """Return the signing key: ``name`` or --key, else that of the home, else the only account."""
        name = name or self.key_name
        if name is None and self.home.config.exists():
            return account_of_home(self.home, self.passphrase_file)
        return open_key(self._keystore_path(name), self.passphrase_file)

    def address(self, name: str | None = None, *, known: bool = True) -> bytes:
        """Return the address of the account that ``key`` would return. It is not opened if its file names the
        address.

        Without ``known``, ``name`` may be any address.
        """
        name = name or self.key_name
        if name is not None and not known:
            try:
                return parse_address(name)
            except DecodeError as error:
                if name.startswith("0x"):
                    raise DecodeError(f"{name[:64]!r}: {error}") from None
        if name is None and self.home.config.exists():
            place = self.home.path(keys_of(self.home).account)
        else:
            place = self._keystore_path(name)
        named = address_in(place)
        return named if named is not None else self.key(name).address

    def _keystore_path(self, name: str | None) -> Path:
        """Return the keystore of an account of the wallet. Raises ConfigError."""
        if name is not None:
            return self.keyring.find(name)
        if not self.keyring.accounts():
            raise ConfigError(
                f"{self.home.root} has no node and its wallet has no account. Give another --home, "
                "an address or a keystore file, or create an account with `dekube wallet new NAME`"
            )
        return self.keyring.only()

    def _own_gateways(self) -> tuple[str, ...]:
        if not self.home.config.exists():
            raise ConfigError(f"{self.home.root}: not a node's home; give a gateway with --rpc URL")
        return gateways_of(self.home)


_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "passphrase_file": click.option(
        "--passphrase-file",
        type=PathName(allow_dash=True),
        help='File (mode 0600) with the key\'s passphrase; "-" reads standard input. Default:'
        " prompt; if stdin is not a terminal, read one line.",
    ),
    "key": click.option(
        "--key",
        metavar="NAME",
        help="Sign with this wallet account or keystore file. Default: the account of the node in --home.",
    ),
    "chain_id": click.option(
        "--chain-id",
        type=WholeNumber(1, 2**63 - 1),
        help="Chain ID to sign for. Default: from the genesis in --home, else from the gateway.",
    ),
    "rpc": click.option(
        "--rpc",
        multiple=True,
        metavar="URL",
        help="URL of the gateway to query; repeat for fallbacks. Default: the gateway of the node in --home.",
    ),
    "home": click.option("--home", default=DEFAULT_HOME, show_default=True, help="Home folder of the node."),
}


def _shared_options(*names: str) -> Callable[[_Function], _Function]:
    """Return a decorator that adds the shared options of these names; the function gets ``session``."""

    def decorate(function: _Function) -> _Function:
        def wrapped(
            home: str, rpc: tuple[str, ...] = (), key: str | None = None, passphrase_file: Path | None = None,
            chain_id: int | None = None, **arguments: Any,
        ) -> Any:  # fmt: skip
            root = parse_home(home)
            with checked_responses():
                return function(session=Session(root, rpc, key, passphrase_file, chain_id), **arguments)

        wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
        wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for name, option in _OPTIONS.items():
            if name in names:
                option(wrapped)
        return wrapped  # type: ignore[return-value]

    return decorate


session_options: Final = _shared_options("home", "rpc", "chain_id", "key", "passphrase_file")
"""For a command that signs and submits."""
reading_options: Final = _shared_options("home", "rpc")
"""For a command that queries a gateway and signs nothing."""
endorsing_options: Final = _shared_options("home", "rpc", "key", "passphrase_file")
"""For a command that signs for the chain of its gateway and submits nothing."""
signing_options: Final = _shared_options("home", "key", "passphrase_file")
"""For a command that signs offline."""
new_key_options: Final = _shared_options("home", "passphrase_file")
"""For a command that creates or opens the account named by its argument."""
wallet_options: Final = _shared_options("home")
"""For a command that only reads files of the home."""
