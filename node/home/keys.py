"""Keys and passphrases on disk: keystore files, the passphrase file, and the secret for the transport keys."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.home.files import read_bounded, write_private
from state.primitives.errors import ConfigError, KeystoreError
from state.primitives.keys import SECRET_BYTES, SecretKey
from state.primitives.keystore import KEYSTORE_LIMIT_BYTES, SCRYPT_N, decrypt_keystore, encrypt_keystore

if TYPE_CHECKING:
    from node.home.paths import Home

__all__ = ["load_key", "node_secret", "read_keystore", "read_passphrase", "save_key"]

SECRET_FILE_LIMIT_BYTES: Final = 64 * 1024
UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


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
    """Return the secret from which the transport keys derive. It is drawn at the first call and kept (mode 0600).

    Peers learn the transport keys from the certificate that the account signs. So only this file and the account's
    keystore connect these keys with the node. Raises ConfigError if the file is damaged.
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
    """Return the secret in a one-line file that only its owner can read. ``what`` names it in errors.

    A byte order mark (some Windows editors write one) is ignored. Raises KeystoreError, also for an empty line and
    for a second line, which may be a mistake.
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
