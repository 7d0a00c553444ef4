"""Options that many commands share: the node's home, keys and their passphrases, the node to ask."""

from __future__ import annotations

import getpass
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from node.cli.output import parse_amount
from node.places import Home
from state.primitives.errors import ConfigError, KeystoreError

if TYPE_CHECKING:  # what opens keys is loaded where one is opened
    from state.primitives.keys import SecretKey

__all__ = [
    "AMOUNT",
    "DEFAULT_HOME",
    "FEE",
    "account_of_home",
    "ask_line",
    "ask_new_passphrase",
    "ask_passphrase",
    "home_option",
    "open_key",
    "read_input",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
DEFAULT_HOME: Final = "~/.dekube"
STDIN: Final = "-"
LINE_LIMIT_BYTES: Final = 4096


class _Amount(click.ParamType[int]):
    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else parse_amount(str(value))


AMOUNT: Final = _Amount()


GWEI_DIGITS: Final = 9
GWEI: Final = 10**GWEI_DIGITS
_FEE: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))? ?gwei|([0-9]{1,24}) ?wei")


class _Fee(click.ParamType[int]):
    name = "fee"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _FEE.fullmatch(str(value))
        if found is None:
            raise click.BadParameter(f"{value!r} is not a fee for a unit of gas; write 2.5gwei or 2500000000wei")
        gwei, fraction, wei = found.groups()
        return int(wei) if wei else int(gwei) * GWEI + int((fraction or "").ljust(GWEI_DIGITS, "0"))


FEE: Final = _Fee()


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
    return ask_line(file, prompt)


def ask_line(file: Path | None, prompt: str) -> str:
    """Return the secret in the first line of ``file`` (mode 0600; "-" is standard input), or ask for it unseen.

    Raises KeystoreError.
    """
    if file is None:
        return ask_unseen(prompt)
    if str(file) != STDIN:
        from node.home import read_passphrase

        return read_passphrase(file)
    try:
        line = sys.stdin.buffer.readline(LINE_LIMIT_BYTES).decode()
    except UnicodeDecodeError:
        line = ""
    if not line:
        raise KeystoreError("standard input has no line for a secret")
    return line.rstrip("\r\n")


def read_input(file: Path, limit_bytes: int) -> bytes:
    """Return the content of ``file``, or of standard input for "-". Raises ConfigError."""
    try:
        if str(file) == STDIN:
            data = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with file.open("rb") as stream:
                data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise ConfigError(f"{file}: more than {limit_bytes} bytes")
    return data


def ask_new_passphrase(file: Path | None) -> str:
    """Return the passphrase in ``file``, or ask for a new one twice."""
    if file is not None:
        return ask_line(file, "")
    return ask_unseen("New passphrase", twice=True)


def ask_unseen(prompt: str = "Passphrase", *, twice: bool = False) -> str:
    """Ask at the terminal for what nobody may see. Raises KeystoreError where nobody is there to ask."""
    try:
        with warnings.catch_warnings():
            if not sys.stdin.isatty():  # nothing that is read there is shown anywhere
                warnings.simplefilter("ignore", getpass.GetPassWarning)
            return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True))
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise KeystoreError(
            "no terminal to ask for the passphrase: it can stand in a file of mode 0600 (keys/passphrase in a "
            "home, --passphrase-file), and `init --unattended` draws one"
        ) from None


def open_key(path: Path, passphrase_file: Path | None) -> SecretKey:
    """Return the key in a keystore file. Raises KeystoreError, before it asks where there is no such file."""
    from node.home import load_key, read_keystore

    read_keystore(path)
    return load_key(path, ask_passphrase(passphrase_file, f"Passphrase of {path.name}"))


def account_of_home(home: Home) -> SecretKey:
    """Return the account key of the node in ``home``. Raises ConfigError or KeystoreError."""
    options = home.load_options()
    path = home.path(options.keys.account)
    if not path.exists():
        raise ConfigError(f"{path}: no account key; `dekube init` makes one")
    return open_key(path, home.passphrase_file(options.keys))
