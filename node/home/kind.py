"""The kind of a home. The first option of each config.toml says what the home belongs to.

A command that is given the home of another kind reports it and names the right commands.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from node.home.files import read_bounded
from node.home.options import NODE, RELAY, SIGNER
from state.primitives.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CONFIG_LIMIT_BYTES",
    "KIND_OPTION",
    "check_home_kind",
    "check_kind",
    "kind_of",
    "made_by",
]

CONFIG_LIMIT_BYTES: Final = 1024 * 1024
KIND_OPTION: Final = "kind"
SHOWN_MAX: Final = 40
"""Characters of a wrong kind that an error shows."""


class _Commands(NamedTuple):
    made_by: str
    advice: str


_COMMANDS: Final = {
    NODE: _Commands("dekube init", "`dekube node run` runs it, `dekube status` shows its state"),
    RELAY: _Commands(
        "dekube relay init",
        "`dekube relay run` runs it, `dekube relay --help` lists its commands; for commands of its account "
        "(dekube wallet), name a gateway with --rpc URL",
    ),
    SIGNER: _Commands(
        "dekube signer init",
        "`dekube signer run` runs it, `dekube signer --help` lists its commands; the node that it votes for has a "
        "home of its own",
    ),
}


def made_by(kind: str) -> str:
    """Return the command that creates a home of this kind."""
    return _COMMANDS[kind].made_by


def check_kind(config: Path, document: Mapping[str, Any], kind: str) -> None:
    """Raise ConfigError unless ``document``, the content of ``config``, belongs to a home of this kind."""
    found = document.get(KIND_OPTION)
    if found is None:
        raise ConfigError(
            f'{config}: the option {KIND_OPTION} is missing; put {KIND_OPTION} = "{kind}" before all tables'
        )
    if not isinstance(found, str) or found not in _COMMANDS:
        raise ConfigError(
            f"{config}: {KIND_OPTION} = {str(found)[:SHOWN_MAX]!r}: one of {', '.join(_COMMANDS)} expected"
        )
    if found != kind:
        raise ConfigError(
            f"{config.parent}: this is the home of a {found}, not of a {kind}; {_COMMANDS[found].advice}"
        )


def check_home_kind(config: Path, kind: str) -> None:
    """Raise ConfigError if ``config`` belongs to a home of another kind; an unreadable file raises nothing."""
    if kind_of(config):
        check_kind(config, _read(config), kind)


def kind_of(config: Path) -> str:
    """Return "node", "relay" or "signer"; an empty string if the file is missing, broken or names no kind."""
    found = _read(config).get(KIND_OPTION)
    return found if isinstance(found, str) and found in _COMMANDS else ""


def _read(config: Path) -> dict[str, Any]:
    try:
        data = read_bounded(config, CONFIG_LIMIT_BYTES)
        return tomllib.loads(data.decode("utf-8-sig")) if len(data) <= CONFIG_LIMIT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
