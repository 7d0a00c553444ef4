"""A signer's home: its vote keys, the nodes that may use it, and its listening address."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from consensus.signer import KEYS_MAX
from node.home.config import dump_options, load_table, parse_listen
from node.home.files import write_whole
from node.home.guards import begin_guard
from node.home.keys import load_key, save_key
from node.home.load import load_genesis
from node.home.options import SIGNER, KeyOptions, LogOptions, listen_option
from node.home.paths import Home
from state.primitives.address import parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey

__all__ = [
    "SignerHomeOptions",
    "add_signer_key",
    "check_signer_options",
    "load_signer_options",
    "signer_socket",
    "vote_keys_of",
]

SOCKET_FILE: Final = "run/signer.sock"


@dataclass(frozen=True, slots=True)
class SignerHomeOptions:
    """Options of ``dekube signer run`` in config.toml."""

    KIND: ClassVar[str] = SIGNER

    listen: str = listen_option()
    """host:port for nodes on other machines. Empty: only the Unix socket in the home."""
    clients: tuple[str, ...] = ()
    """Addresses (0x...) of the nodes that may use ``listen``."""
    votes: tuple[str, ...] = ()
    """Files of further vote keys beside ``keys.vote``. Each has its own guard (``dekube signer add-key``)."""
    keys: KeyOptions = field(default_factory=KeyOptions)
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def vote_files(self) -> tuple[str, ...]:
        """The files of all vote keys, beginning with the first key."""
        return (self.keys.vote, *self.votes)


def load_signer_options(path: Path) -> SignerHomeOptions:
    """Return the options of a signer's home. Raises ConfigError."""
    options = load_table(path, SignerHomeOptions)
    try:
        return check_signer_options(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_signer_options(options: SignerHomeOptions) -> SignerHomeOptions:
    """Check the options and return them. Raises ConfigError."""
    files = options.vote_files
    if len(set(files)) != len(files) or len(files) > KEYS_MAX:
        raise ConfigError(f"votes: each key once, and at most {KEYS_MAX} in all")
    if options.listen:
        parse_listen(options.listen)
        if not options.clients:
            raise ConfigError("clients: empty, so no node may use listen; add the node's address")
    try:
        for client in options.clients:
            parse_address(client)
    except DecodeError as error:
        raise ConfigError(f"clients: {error}") from None
    return options


def signer_socket(home: Home) -> Path:
    """Return the Unix socket of the signer in ``home``."""
    return home.root / SOCKET_FILE


def add_signer_key(home: Home, vote: SecretKey, *, is_new_key: bool, passphrase: str) -> None:
    """Add a vote key to a signer's home; the next start serves it.

    Only a new key gets an empty guard. Raises ConfigError for a key that is there already.
    """
    options = load_signer_options(home.config)
    file = f"keys/vote-{vote.vote_key[:8].hex()}.json"
    if home.path(file).exists() or vote.vote_key in (key.vote_key for key in vote_keys_of(home, passphrase)):
        raise ConfigError(f"{home.root}: this vote key is here already; nothing was changed")
    options = check_signer_options(replace(options, votes=(*options.votes, file)))
    folder = home.own_guard_of(vote.vote_key)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if is_new_key:
        begin_guard(folder, genesis_hash(load_genesis(home.genesis)), vote.vote_key)
    save_key(home.path(file), vote, passphrase)
    write_whole(home.config, dump_options(options))


def vote_keys_of(home: Home, passphrase: str) -> list[SecretKey]:
    """Return the vote keys of a signer's home, in order. Raises ConfigError, KeystoreError."""
    return [load_key(home.path(file), passphrase) for file in load_signer_options(home.config).vote_files]
