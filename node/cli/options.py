"""Options that many commands share: the node's home, keys and their passphrases, the node to ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from node.home import Home, load_key, read_passphrase
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey

__all__ = ["DEFAULT_HOME", "account_of_home", "ask_new_passphrase", "ask_passphrase", "home_option", "open_key"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
DEFAULT_HOME: Final = "~/.dekube"


def home_option(function: _Function) -> _Function:
    """Add ``--home``; the function gets ``home`` as a Home."""
    return click.option(
        "--home",
        default=DEFAULT_HOME,
        show_default=True,
        callback=lambda _ctx, _param, value: Home(Path(os.path.expanduser(value)).absolute()),
        help="Folder of the node.",
    )(function)


def ask_passphrase(file: Path | None, prompt: str = "Passphrase") -> str:
    """Return the passphrase in ``file``, or ask for it; it is never taken from the command line."""
    if file is not None:
        return read_passphrase(file)
    return str(click.prompt(prompt, hide_input=True, err=True))


def ask_new_passphrase(file: Path | None) -> str:
    """Return the passphrase in ``file``, or ask for a new one twice."""
    if file is not None:
        return read_passphrase(file)
    return str(click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True))


def open_key(path: Path, passphrase_file: Path | None) -> SecretKey:
    """Return the key in a keystore file. Raises KeystoreError."""
    return load_key(path, ask_passphrase(passphrase_file, f"Passphrase of {path.name}"))


def account_of_home(home: Home) -> SecretKey:
    """Return the account key of the node in ``home``. Raises ConfigError or KeystoreError."""
    options = home.load_options()
    file = home.path(options.keys.passphrase_file) if options.keys.passphrase_file else None
    path = home.path(options.keys.account)
    if not path.exists():
        raise ConfigError(f"{path}: no account key; `dekube init` makes one")
    return open_key(path, file if file is not None and file.exists() else None)
