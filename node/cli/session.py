"""What commands that talk to a chain share: the gateways to ask and the key to sign with."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from node.cli.options import DEFAULT_HOME, account_of_home, open_key
from node.home import Home
from rpc.client import Client
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey

__all__ = ["Session", "session_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Session:
    """The gateways to ask and, where a command signs, whose key."""

    home: Home
    urls: tuple[str, ...]
    key_file: Path | None
    passphrase_file: Path | None

    def client(self) -> Client:
        """Return a client of the gateways."""
        return Client(*(self.urls or (self._own_gateway(),)))

    def key(self) -> SecretKey:
        """Return the key that signs: that of --key, else the account of the home."""
        if self.key_file is not None:
            return open_key(self.key_file, self.passphrase_file)
        return account_of_home(self.home)

    def _own_gateway(self) -> str:
        listen = self.home.load_options().rpc.listen
        if not listen:
            raise ConfigError(f"{self.home.root}: this node has no gateway (rpc.listen); name one with --rpc")
        return "http://" + listen.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  the other way round


def session_options(function: _Function) -> _Function:
    """Add --home, --rpc, --key and --passphrase-file; the function gets ``session``."""

    def wrapped(
        home: str, rpc: tuple[str, ...], key: Path | None, passphrase_file: Path | None, **arguments: Any
    ) -> Any:
        root = Home(Path(os.path.expanduser(home)).absolute())
        return function(session=Session(root, rpc, key, passphrase_file), **arguments)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option(
            "--passphrase-file", type=click.Path(path_type=Path), help="File with the passphrase of --key."
        ),
        click.option(
            "--key", type=click.Path(path_type=Path), help="Keystore that signs; else the home's account."
        ),
        click.option(
            "--rpc",
            multiple=True,
            metavar="URL",
            help="Gateway to ask; else that of the node in --home. Of several, another is asked when one fails.",
        ),
        click.option("--home", default=DEFAULT_HOME, show_default=True, help="Folder of the node."),
    ):
        option(wrapped)
    return wrapped  # type: ignore[return-value]
