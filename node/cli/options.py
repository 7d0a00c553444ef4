"""Options that many commands share: the node's home, keys and passphrases, the node to query."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from node.cli.terminal import STDIO
from node.home.files import read_bounded
from node.home.paths import Home
from state.primitives.errors import ConfigError, KeystoreError

if TYPE_CHECKING:  # what opens keys is loaded where one is opened
    from state.primitives.keys import SecretKey

__all__ = [
    "DEFAULT_HOME",
    "account_of_home",
    "announce_key_generation",
    "ask_home",
    "ask_new_passphrase",
    "ask_passphrase",
    "confirm",
    "confirm_at_terminal",
    "home_option",
    "is_at_terminal",
    "open_key",
    "parse_home",
    "read_input",
    "read_secret",
    "relay_home_option",
    "signer_home_option",
    "yes_option",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
DEFAULT_HOME: Final = "~/.dekube"
TERMINAL: Final = "/dev/tty"
_TAKEN: Final = "node.cli.stdin_taken"
LINE_LIMIT_BYTES: Final = 4096
_INSTEAD: Final = (
    "put it into a file of mode 0600 (keys/passphrase in a home, or --passphrase-file), or let "
    "`init --unattended` generate one"
)
_NOT_UTF8: Final = "the input is not UTF-8; change the encoding of the terminal or file"
ASK_S: Final = 10.0
"""Timeout of a query at the control socket."""


def _home_option_of(kind: str) -> Callable[[_Function], _Function]:
    """Return the decorator that adds ``--home``; the function gets ``home`` as a Home."""
    return click.option(
        "--home",
        default=DEFAULT_HOME,
        show_default=True,
        callback=lambda _ctx, _param, value: parse_home(value),
        help=f"Home folder of the {kind}.",
    )


def parse_home(text: str) -> Home:
    """Return the home in the folder ``text``. Raises BadParameter for an empty text."""
    path = os.path.expanduser(text)
    if not path.strip():
        raise click.BadParameter("the path is empty; name a folder", param_hint="--home")
    if path.startswith("~"):
        raise click.BadParameter(f"{text!r}: no user of this name", param_hint="--home")
    return Home(Path(path).absolute())


home_option: Final = _home_option_of("node")
relay_home_option: Final = _home_option_of("relay")
signer_home_option: Final = _home_option_of("signer")


def ask_home(home: Home, command: str, *, timeout_s: float = ASK_S, **fields: Any) -> Any:
    """Query the node that runs in ``home``; return its answer.

    Raises ControlUnavailable if none answers, ConfigError for a home of another kind.
    """
    from rpc.client.control import ControlUnavailable, ask_node

    try:
        return ask_node(home.control, command, timeout_s=timeout_s, **fields)
    except ControlUnavailable:
        if home.config.exists():
            from node.home.kind import check_home_kind
            from node.home.options import NODE

            check_home_kind(home.config, NODE)
        raise


def ask_passphrase(file: Path | None, prompt: str = "Passphrase") -> str:
    """Return the passphrase in ``file``, or prompt for it (``prompt_secret``). It is never on the command line."""
    return read_secret(file, prompt)


def read_secret(file: Path | None, prompt: str, *, instead: str = "") -> str:
    """Return the secret in the first line of ``file`` (mode 0600; "-" is standard input), or prompt without echo.

    ``instead`` is as in ``prompt_secret``. Raises KeystoreError.
    """
    if file is None:
        return prompt_secret(prompt, instead=instead)
    if str(file) != STDIO:
        from node.home.keys import read_passphrase

        return read_passphrase(file, _asked(prompt))
    line = _piped_line()
    if line is None:
        raise KeystoreError(f"standard input has no line with the {_asked(prompt)}")
    return line


def _piped_line() -> str | None:
    """Return the next line of standard input without its end; None at the end. Raises KeystoreError."""
    try:
        line = "" if sys.stdin is None else sys.stdin.buffer.readline(LINE_LIMIT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeystoreError(_NOT_UTF8) from None
    except OSError:
        line = ""
    return line.rstrip("\r\n") if line else None


def read_input(file: Path, limit_bytes: int) -> bytes:
    """Return the content of ``file``, or of standard input for "-". Raises ConfigError."""
    try:
        if str(file) == STDIO:
            if (context := click.get_current_context(silent=True)) is not None:
                context.meta[_TAKEN] = True
            data = b"" if sys.stdin is None else sys.stdin.buffer.read(limit_bytes + 1)
        else:
            data = read_bounded(file, limit_bytes)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise ConfigError(f"{file}: too large: more than {limit_bytes} bytes")
    return data


def ask_new_passphrase(file: Path | None) -> str:
    """Return the passphrase in ``file``, or prompt twice for a new one.

    Raises KeystoreError, also for an empty one.
    """
    prompt = "New passphrase"
    passphrase = prompt_secret(prompt, twice=True) if file is None else read_secret(file, prompt)
    if not passphrase:
        raise KeystoreError("the new passphrase is empty; an empty one would not protect the key")
    return passphrase


def prompt_secret(prompt: str = "Passphrase", *, twice: bool = False, instead: str = "") -> str:
    """Prompt for a secret without echo; if standard input is not a terminal, read its next line.

    If the command reads standard input for something else (``read_input``), the terminal is prompted in any case.
    Raises KeystoreError if there is neither a terminal nor a line. ``instead`` then names other ways to give the
    secret; default: those for a passphrase of keys.
    """
    context = click.get_current_context(silent=True)
    is_taken = context is not None and context.meta.get(_TAKEN, False)
    if (sys.stdin is not None and sys.stdin.isatty()) or (is_taken and _has_terminal()):
        try:
            return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True))
        except UnicodeDecodeError:  # its text has what was typed
            raise KeystoreError(_NOT_UTF8) from None
    line = None if is_taken else _piped_line()
    if line is None:
        raise KeystoreError(
            f"no terminal to prompt for the {_asked(prompt)}, and standard input is empty: {instead or _INSTEAD}"
        )
    return line


def is_at_terminal() -> bool:
    """Tell whether the user can be prompted: standard input and standard error are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def confirm_at_terminal(question: str) -> None:
    """Ask for confirmation at a terminal. Without a terminal the command continues."""
    if is_at_terminal():
        click.confirm(question, abort=True, err=True)


def announce_key_generation(*, as_json: bool) -> None:
    """Announce a delay of some seconds: the work factor of a keystore file takes a second for each key."""
    if not as_json:
        click.echo("Making keys; this takes some seconds ...", err=True)


def yes_option(function: _Function) -> _Function:
    """Add ``--yes`` to a command that asks before it changes something; the function gets ``yes``."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(function)


def confirm(question: str, *, yes: bool) -> None:
    """Continue with ``yes``, or after confirmation at a terminal. Raises UsageError without both."""
    if yes:
        return
    if not is_at_terminal():
        raise click.UsageError(
            f"{question} There is no terminal to ask at: add --yes to confirm. Nothing was changed."
        )
    click.confirm(question, abort=True, err=True)


def _asked(prompt: str) -> str:
    """Return what ``prompt`` asks for, as part of a sentence."""
    what = prompt.removeprefix("New ").partition(" (")[0]
    return what[:1].lower() + what[1:]


def _has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def open_key(path: Path, passphrase_file: Path | None) -> SecretKey:
    """Return the key in a keystore file. Raises KeystoreError; a missing file is reported before any prompt."""
    from node.home.keyring import check_keystore
    from node.home.keys import load_key

    check_keystore(path)
    return load_key(path, ask_passphrase(passphrase_file, f"Passphrase of {path.name}"))


def account_of_home(home: Home, passphrase_file: Path | None = None) -> SecretKey:
    """Return the account key of ``home``, opened with the user's passphrase file or the home's own.

    Raises ConfigError or KeystoreError.
    """
    from node.relay.any_home import keys_of

    keys = keys_of(home)
    path = home.path(keys.account)
    if not path.exists():
        raise ConfigError(f"{path}: no account key; create the home with `dekube init`")
    return open_key(path, passphrase_file or home.passphrase_file(keys))
