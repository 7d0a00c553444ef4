"""Reads the options and the genesis of a node's home."""

from __future__ import annotations

import shlex
from pathlib import Path

from node.home.config import load_options
from node.home.files import read_bounded
from node.home.options import NodeOptions
from node.home.paths import Home
from state.primitives.errors import ConfigError
from state.primitives.genesis import GENESIS_LIMIT_BYTES, Genesis, genesis_from_json

__all__ = ["load_genesis", "load_node_options"]


def load_node_options(home: Home) -> NodeOptions:
    """Return the options of the node in ``home``. Raises ConfigError."""
    if home.founder.exists() and not home.config.exists():
        raise ConfigError(
            f"{home.root}: this home has a founder's keys, but no genesis yet. `dekube genesis seal` makes the "
            f"genesis; then `dekube init --home {shlex.quote(str(home.root))} --genesis FILE --role validator` "
            "completes the home"
        )
    return load_options(home.config)


def load_genesis(path: Path, *, is_draft: bool = False) -> Genesis:
    """Return the genesis in ``path``. Raises ConfigError, also for a draft."""
    try:
        data = read_bounded(path, GENESIS_LIMIT_BYTES)
        if len(data) > GENESIS_LIMIT_BYTES:
            raise ConfigError("file too large")
        text = data.decode("utf-8-sig")
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; the genesis of a network (JSON) expected") from None
    try:
        return genesis_from_json(text, is_draft=is_draft)
    except ConfigError as error:
        if not is_draft and _is_draft(text):
            raise ConfigError(
                f"{path}: the draft of a genesis, without founders yet: `dekube genesis seal` makes a genesis of "
                "it and their files, `dekube genesis show --draft` shows it"
            ) from None
        raise ConfigError(f"{path}: {error}") from None


def _is_draft(text: str) -> bool:
    try:
        return not genesis_from_json(text, is_draft=True).validators
    except ConfigError:
        return False
