"""A node's home: configuration, genesis and keys on disk, made by ``dekube init``, opened by ``node run``."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from node.home.config import KeyOptions, NodeOptions, dump_options
from node.home.config_edit import edit_options
from node.home.files import read_bounded
from node.home.paths import CONFIG_FILE, GENESIS_FILE, Home
from state.primitives.errors import ConfigError, KeystoreError
from state.primitives.genesis import (
    GENESIS_LIMIT_BYTES,
    Genesis,
    genesis_from_json,
    genesis_hash,
    genesis_to_json,
)
from state.primitives.keys import SECRET_BYTES, SecretKey
from state.primitives.keystore import KEYSTORE_LIMIT_BYTES, SCRYPT_N, decrypt_keystore, encrypt_keystore

__all__ = [
    "Home",
    "adopt_genesis",
    "check_new_home",
    "check_no_keys",
    "create_founder",
    "create_home",
    "load_key",
    "node_secret",
    "read_passphrase",
    "rewrite_options",
    "save_key",
    "sync_folder",
    "write_private",
    "write_whole",
]

SECRET_FILE_LIMIT_BYTES: Final = 64 * 1024
UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
NAMED_MAX: Final = 3
"""Files that an error names of those in a folder."""
_OF_A_HOME: Final = frozenset(
    {
        *("keys", "data", "run", "wallet", "light", "faucet.db", GENESIS_FILE, GENESIS_FILE + ".new"),
        *(CONFIG_FILE + ".new", "lost+found"),
    }
)
"""What an interrupted ``init`` leaves, what other commands keep in the same folder, what a file system has."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class _Options(DataclassInstance, Protocol):
        """Options of whatever lives in a home."""

        @property
        def keys(self) -> KeyOptions:
            """Where its keys are."""
            ...


def load_genesis(path: Path, *, is_draft: bool = False) -> Genesis:
    """Return the genesis in ``path``, or the draft of one. Raises ConfigError."""
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


def create_home(
    root: Path, *, genesis: Genesis, options: _Options, account: SecretKey, vote: SecretKey | None,
    passphrase: str, scrypt_n: int = SCRYPT_N, keep_passphrase: bool = True, is_new_vote_key: bool = True,
) -> Home:  # fmt: skip
    """Write a new home, of a node, a signer or a relay.

    Only a new vote key gets an empty guard: any other may have voted.
    Raises ConfigError when one is already there: keys are never overwritten.
    """
    home = Home(root)
    _make_keys(home, options.keys, account, vote, passphrase, scrypt_n, keep_passphrase=keep_passphrase)
    _complete(home, genesis, options, vote.vote_key if vote is not None and is_new_vote_key else None)
    return home


def create_founder(
    root: Path, *, account: SecretKey, vote: SecretKey, founder: str, passphrase: str, scrypt_n: int = SCRYPT_N,
    keep_passphrase: bool = True,
) -> Home:  # fmt: skip
    """Write the keys of a home whose chain is not founded yet, and its ``founder`` file.

    ``adopt_genesis`` goes on from there.

    Raises ConfigError when keys are already there.
    """
    home = Home(root)
    _make_keys(home, KeyOptions(), account, vote, passphrase, scrypt_n, keep_passphrase=keep_passphrase)
    write_whole(home.founder, founder)
    return home


def adopt_genesis(home: Home, *, genesis: Genesis, options: NodeOptions, vote_key: bytes) -> None:
    """Make the home of a founder whole: its guard, the genesis, its options. Raises ConfigError when it is."""
    if home.config.exists():
        raise ConfigError(f"{home.root}: a node lives here already; nothing was changed")
    _complete(home, genesis, options, vote_key)


def check_no_keys(home: Home) -> None:
    """Raise ConfigError where keys are already: before anybody is asked for a passphrase of new ones."""
    root = home.root
    if home.config.exists():
        from node.home.kind import NODE, kind_of

        raise ConfigError(f"{root}: a {kind_of(home.config) or NODE} lives here already; nothing was changed")
    if home.founder.exists():
        raise ConfigError(f"{root}: a founder's keys are here ({home.founder}); nothing was changed")
    if any((root / "keys").glob("*")):
        raise ConfigError(
            f"{root}: keys are here, but no {CONFIG_FILE}, as an init leaves them that was cut off; nothing was "
            f"changed. Move {root / 'keys'} away to begin anew"
        )


def check_new_home(home: Home) -> None:
    """Raise ConfigError unless a new home may be made: where no keys are, in a folder with nothing of others.

    What commands keep beside a home (accounts of the wallet, a light client) may be there already.
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


def _complete(home: Home, genesis: Genesis, options: DataclassInstance, new_vote_key: bytes | None) -> None:
    if new_vote_key is not None:
        from node.home.guards import begin_guard  # with it comes the consensus, which few commands need

        begin_guard(home.guard, genesis_hash(genesis), new_vote_key)
    write_whole(home.genesis, genesis_to_json(genesis))
    write_whole(home.config, dump_options(options))  # last: a home without it is unfinished


def rewrite_options(home: Home, options: NodeOptions) -> None:
    """Put ``options`` in the place of those of the home, durably.

    What a person wrote beside them stays; a file that is written too unusually for that stays as config.toml.old.
    """
    text = home.config.read_text() if home.config.exists() else ""
    edited = edit_options(text, options)
    if edited is None:
        write_whole(home.config.with_name(home.config.name + ".old"), text)
    write_whole(home.config, dump_options(options) if edited is None else edited)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write or replace a file durably: after a crash it holds the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".new")
    with _removed_if_cut_off(temporary), temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


@contextmanager
def _removed_if_cut_off(path: Path) -> Iterator[None]:
    """Remove a new file that cannot be written whole, and name it in the error: a full disk names none."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner may read, durably and whole. Raises ConfigError when it exists."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; nothing was changed") from None
    with _removed_if_cut_off(path), os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def save_key(path: Path, key: SecretKey, passphrase: str, *, scrypt_n: int = SCRYPT_N) -> None:
    """Write ``key`` as a keystore v3 file of mode 0600. Raises ConfigError when the file exists."""
    text = encrypt_keystore(
        key,
        passphrase,
        salt=secrets.token_bytes(32),
        iv=secrets.token_bytes(16),
        identifier=secrets.token_bytes(16),
        scrypt_n=scrypt_n,
    )
    write_private(path, text)


def load_key(path: Path, passphrase: str) -> SecretKey:
    """Return the key in the keystore file ``path``. Raises KeystoreError, which names the file."""
    text = read_keystore(path)
    try:
        return decrypt_keystore(text, passphrase)
    except KeystoreError as error:
        raise KeystoreError(f"{path}: {str(error).removeprefix('keystore: ')}") from None


def read_keystore(path: Path) -> str:
    """Return the text of a keystore file. Raises KeystoreError."""
    try:
        data = read_bounded(path, KEYSTORE_LIMIT_BYTES)
        if len(data) > KEYSTORE_LIMIT_BYTES:
            raise KeystoreError(f"{path}: file too large")
        return data.decode()
    except OSError as error:
        raise KeystoreError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise KeystoreError(f"{path}: {error}") from None


def node_secret(home: Home) -> bytes:
    """Return the secret behind the node's transport keys, drawn at the first call and kept (mode 0600).

    Peers know the keys from the certificate that the account signs over them, so nothing but this file and the
    account's keystore ties them to the node. Raises ConfigError when the file is damaged.
    """
    path = home.root / "keys" / "node-secret"
    if not path.exists():
        write_private(path, secrets.token_bytes(32).hex() + "\n")
    try:
        secret = bytes.fromhex(read_bounded(path, SECRET_FILE_LIMIT_BYTES).decode().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{path}: not a secret of {SECRET_BYTES} bytes; remove it to draw a new one")
    return secret


def read_passphrase(path: Path, what: str = "passphrase") -> str:
    """Return the secret in a file of one line that only its owner can read; ``what`` names it in errors.

    A byte order mark (editors of Windows write one) is no part of it. Raises KeystoreError, also for an empty line
    and for a second one, of which nobody knows whether it was meant to count.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise KeystoreError(f"{path}: a folder; a file with the {what} in one line is expected")
        if mode & 0o077:
            raise KeystoreError(f"{path}: others can read the {what} (mode {mode & 0o777:04o}); chmod 600 it")
        data = read_bounded(path, SECRET_FILE_LIMIT_BYTES)
    except OSError as error:
        raise KeystoreError(f"{path}: {error.strerror}") from None
    if len(data) > SECRET_FILE_LIMIT_BYTES:
        raise KeystoreError(f"{path}: file too large; one line with the {what} is expected")
    if data[:2] in UTF_16_MARKS:
        raise KeystoreError(f"{path}: UTF-16 text; save the {what} as UTF-8")
    try:
        first, *more = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise KeystoreError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if lines := sum(1 for line in more if line.strip()):
        raise KeystoreError(f"{path}: {lines + 1} lines found; the {what} is expected in one line, alone")
    if not first:
        found = "the file is empty" if not data else "the first line is empty"
        raise KeystoreError(f"{path}: {found}; the {what} is expected in it")
    return first
