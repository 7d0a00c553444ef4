"""Creates homes: keys, genesis and config.toml on disk, for ``dekube init`` and similar commands."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from node.home.config import dump_options
from node.home.config_edit import edit_options
from node.home.files import write_private, write_whole
from node.home.keys import save_key
from node.home.kind import kind_of
from node.home.options import NODE, KeyOptions, NodeOptions
from node.home.paths import CONFIG_FILE, GENESIS_FILE, Home
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, genesis_hash, genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.keystore import SCRYPT_N

if TYPE_CHECKING:
    from node.home.config import HomeOptions

    class _KeyedOptions(HomeOptions, Protocol):
        """Options of a home that has keys; every kind has."""

        @property
        def keys(self) -> KeyOptions:
            """The files of its keys."""
            ...


__all__ = [
    "adopt_genesis",
    "check_new_home",
    "check_no_keys",
    "create_founder",
    "create_home",
    "rewrite_options",
]

NAMED_MAX: Final = 3
"""Maximum number of files that an error names."""
_OF_A_HOME: Final = frozenset(
    {
        *("keys", "data", "run", "wallet", "light", "faucet.db", GENESIS_FILE, GENESIS_FILE + ".new"),
        *(CONFIG_FILE + ".new", "lost+found"),
    }
)
"""Files of an interrupted ``init``, of other commands that use the same folder, and of the file system."""


def create_home(
    root: Path, *, genesis: Genesis, options: _KeyedOptions, account: SecretKey, vote: SecretKey | None,
    passphrase: str, scrypt_n: int = SCRYPT_N, keep_passphrase: bool = True, is_new_vote_key: bool = True,
) -> Home:  # fmt: skip
    """Write a new home of a node, a signer or a relay.

    Only a new vote key gets an empty guard; any other key may have voted. Raises ConfigError if the home exists:
    keys are never overwritten.
    """
    home = Home(root)
    _make_keys(home, options.keys, account, vote, passphrase, scrypt_n, keep_passphrase=keep_passphrase)
    _complete(home, genesis, options, vote.vote_key if vote is not None and is_new_vote_key else None)
    return home


def create_founder(
    root: Path, *, account: SecretKey, vote: SecretKey, founder: str, passphrase: str, scrypt_n: int = SCRYPT_N,
    keep_passphrase: bool = True,
) -> Home:  # fmt: skip
    """Write the keys of a founder's home and its ``founder`` file, before the genesis exists.

    ``adopt_genesis`` completes the home. Raises ConfigError if keys exist.
    """
    home = Home(root)
    _make_keys(home, KeyOptions(), account, vote, passphrase, scrypt_n, keep_passphrase=keep_passphrase)
    write_whole(home.founder, founder)
    return home


def adopt_genesis(home: Home, *, genesis: Genesis, options: NodeOptions, vote_key: bytes) -> None:
    """Complete a founder's home with guard, genesis and options. Raises ConfigError if it is complete already."""
    if home.config.exists():
        raise ConfigError(f"{home.root}: this is already the home of a node; nothing was changed")
    _complete(home, genesis, options, vote_key)


def check_no_keys(home: Home) -> None:
    """Raise ConfigError if keys exist, before the user is asked for a new passphrase."""
    root = home.root
    if home.config.exists():
        raise ConfigError(
            f"{root}: this is already the home of a {kind_of(home.config) or NODE}; nothing was changed"
        )
    if home.founder.exists():
        raise ConfigError(f"{root}: a founder's keys are here ({home.founder}); nothing was changed")
    if any((root / "keys").glob("*")):
        raise ConfigError(
            f"{root}: there are keys but no {CONFIG_FILE}: an init was interrupted. Nothing was changed. "
            f"Move {root / 'keys'} away to start again"
        )


def check_new_home(home: Home) -> None:
    """Raise ConfigError unless a new home can be created: no keys, and no foreign files in the folder.

    Files that other commands keep beside a home (wallet accounts, a light client) are allowed.
    """
    check_no_keys(home)
    try:
        others = sorted(name for name in os.listdir(home.root) if name not in _OF_A_HOME)
    except FileNotFoundError:
        return
    if others:
        named = ", ".join(ascii(name)[1:-1] for name in others[:NAMED_MAX])
        more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
        raise ConfigError(
            f"{home.root}: the folder is not empty ({named}{more}); a home needs a folder of its own. Nothing was "
            "changed"
        )


def _make_keys(
    home: Home, keys: KeyOptions, account: SecretKey, vote: SecretKey | None, passphrase: str, scrypt_n: int,
    *, keep_passphrase: bool,
) -> None:  # fmt: skip
    check_no_keys(home)
    root = home.root
    for directory in (root, root / "keys", root / "data", root / "run"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if stat.S_IMODE(directory.stat().st_mode) & 0o077:
            with suppress(PermissionError):  # another user's, shared with this one on purpose
                directory.chmod(0o700)
    if keep_passphrase and keys.passphrase_file:
        write_private(home.path(keys.passphrase_file), passphrase + "\n")
    save_key(home.path(keys.account), account, passphrase, scrypt_n=scrypt_n)
    if vote is not None:
        save_key(home.path(keys.vote), vote, passphrase, scrypt_n=scrypt_n)


def _complete(home: Home, genesis: Genesis, options: _KeyedOptions, new_vote_key: bytes | None) -> None:
    if new_vote_key is not None:
        from node.home.guards import begin_guard  # with it comes the consensus, which few commands need

        begin_guard(home.guard, genesis_hash(genesis), new_vote_key)
    write_whole(home.genesis, genesis_to_json(genesis))
    write_whole(home.config, dump_options(options))  # last: a home without it is unfinished


def rewrite_options(home: Home, options: NodeOptions) -> None:
    """Change the options of the home to ``options``, durably; the user's comments stay.

    Raises ConfigError, which names the file; nothing is changed then.
    """
    text = home.config.read_text() if home.config.exists() else dump_options(options)
    try:
        edited = edit_options(text, options)
    except ConfigError as error:
        raise ConfigError(f"{home.config}: {error}") from None
    write_whole(home.config, edited)
