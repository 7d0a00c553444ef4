"""The accounts of a person: keystore v3 files in one folder, drawn, derived from a mnemonic or imported."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from node.home import read_keystore
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError, KeystoreError
from state.primitives.hd import derive_key, ethereum_path
from state.primitives.keys import SecretKey
from state.primitives.keystore import keystore_address

if TYPE_CHECKING:
    from mnemonic import Mnemonic

__all__ = [
    "MNEMONIC_WORDS",
    "Keyring",
    "Listed",
    "key_of_mnemonic",
    "new_mnemonic",
    "parse_secret",
    "random_key",
]

SUFFIX: Final = ".json"
MNEMONIC_WORDS: Final = (12, 15, 18, 21, 24)
MNEMONIC_CHARACTERS_MAX: Final = 512
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Listed(NamedTuple):
    """An account of a folder."""

    name: str
    address: bytes
    file: Path


class Keyring:
    """The accounts in a folder; who names one may also name any keystore file, or an address in the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def accounts(self) -> list[Listed]:
        """Return the accounts, by name; files that are no keystores are passed over. Raises ConfigError."""
        try:
            files = sorted(self.root.iterdir()) if self.root.exists() else []
        except OSError as error:
            raise ConfigError(f"{self.root}: {error.strerror}") from None
        found = []
        for file in files:
            try:
                address = keystore_address(read_keystore(file)) if file.is_file() else None
            except KeystoreError:
                continue
            if address is not None:
                found.append(Listed(file.name.removesuffix(SUFFIX), address, file))
        return found

    def place(self, name: str) -> Path:
        """Return the file of a new account: a name in this folder, or a file's own path. Raises ConfigError."""
        if _is_path(name):
            return Path(name).expanduser()
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"{name[:64]!r}: a name is of letters, digits, - and _; a file ends in {SUFFIX}")
        return self.root / (name + SUFFIX)

    def find(self, name: str) -> Path:
        """Return the file of an account that is named, by its address, or by its file. Raises ConfigError."""
        if _is_path(name):
            return Path(name).expanduser()
        try:
            address = parse_address(name)
        except DecodeError:
            file = self.place(name)
            if not file.exists():
                raise ConfigError(f"{self.root} has no account {name!r}; see `dekube wallet list`") from None
            return file
        for account in self.accounts():
            if account.address == address:
                return account.file
        raise ConfigError(f"{self.root} has no key of {format_address(address)}")

    def only(self) -> Path:
        """Return the file of the one account there is. Raises ConfigError."""
        match self.accounts():
            case [one]:
                return one.file
            case []:
                raise ConfigError(f"{self.root} has no account; `dekube wallet new NAME` makes one")
            case several:
                names = ", ".join(account.name for account in several)
                raise ConfigError(f"{self.root} has several accounts; name one of {names}")


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(SUFFIX)


def random_key() -> SecretKey:
    """Return a key drawn from the system's randomness."""
    while True:
        try:
            return SecretKey(secrets.token_bytes(32))
        except DecodeError:  # zero or not below the group's order: one in 2^128
            continue


def new_mnemonic(words: int, *, entropy: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """Return a fresh mnemonic of so many English words (BIP-39)."""
    if words not in MNEMONIC_WORDS:
        raise ConfigError(f"a mnemonic has {', '.join(map(str, MNEMONIC_WORDS))} words")
    return str(_english().to_mnemonic(entropy(words * 4 // 3)))


@cache
def _english() -> Mnemonic:
    """Return the reader of mnemonics; making one reads the list of words from its file."""
    from mnemonic import Mnemonic

    return Mnemonic("english")


def key_of_mnemonic(text: str, index: int, *, extra: str = "") -> SecretKey:
    """Return the account at m/44'/60'/0'/0/``index`` of a mnemonic with its ``extra`` passphrase (BIP-39).

    Raises KeystoreError for words that are no mnemonic; it does not repeat them.
    """
    words = " ".join(text.lower().split())
    reader = _english()
    if (
        len(text) > MNEMONIC_CHARACTERS_MAX
        or len(words.split(" ")) not in MNEMONIC_WORDS
        or not reader.check(words)
    ):
        raise KeystoreError("not a mnemonic: 12 to 24 English words whose checksum is right are expected")
    return derive_key(reader.to_seed(words, extra), ethereum_path(index))


def parse_secret(text: str) -> SecretKey:
    """Return the key that 64 hex digits spell. Raises KeystoreError, which does not repeat them."""
    digits = text.strip().removeprefix("0x")
    try:
        if len(digits) != 64 or not digits.isascii() or not digits.isalnum():
            raise ValueError
        return SecretKey(bytes.fromhex(digits))
    except (ValueError, DecodeError):
        raise KeystoreError("not a secret key: 64 hex digits expected") from None
