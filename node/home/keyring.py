"""A user's accounts: keystore v3 files in one folder, generated, derived from a mnemonic or imported."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from node.home.keys import read_keystore
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError, KeystoreError
from state.primitives.hd import HARDENED, derive_key, ethereum_path
from state.primitives.keys import SecretKey
from state.primitives.keystore import keystore_address

if TYPE_CHECKING:
    from mnemonic import Mnemonic

__all__ = [
    "MNEMONIC_WORDS",
    "Keyring",
    "ListedAccount",
    "address_in",
    "check_keystore",
    "key_at_path",
    "key_of_mnemonic",
    "new_mnemonic",
    "parse_path",
    "parse_secret",
    "random_key",
]

SUFFIX: Final = ".json"
MNEMONIC_WORDS: Final = (12, 15, 18, 21, 24)
MNEMONIC_CHARACTERS_MAX: Final = 512
PATH_LEVELS_MAX: Final = 10
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LISTED_BYTES_MAX: Final = 250
"""Maximum length of a listed file name, suffix included."""
_PATH: Final = re.compile(rf"m(?:/(?:0|[1-9][0-9]{{0,9}})'?){{1,{PATH_LEVELS_MAX}}}")


class ListedAccount(NamedTuple):
    """An account in a folder.

    ``name`` identifies it there; if it has no plain name, it is the path of the file.
    """

    name: str
    address: bytes
    file: Path


class Keyring:
    """The accounts in a folder.

    A caller may also name a keystore file by its path, or an account by its address.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def accounts(self) -> list[ListedAccount]:
        """Return the accounts by name. Files that are no keystores are skipped. Raises ConfigError."""
        try:
            files = sorted(self.root.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self.root}: {error.strerror}") from None
        found = []
        for file in files:
            try:
                address = keystore_address(read_keystore(file)) if file.is_file() else None
            except KeystoreError:
                continue
            if address is not None:
                names = (file.name.removesuffix(SUFFIX), file.name)
                name = next((name for name in names if self._named(name) == file), str(file))
                found.append(ListedAccount(name, address, file))
        return found

    def _named(self, name: str) -> Path | None:
        """Return the file with that ``name`` in this folder; None if there is none.

        Other wallets use other file names (UTC--2022-05-19T04-21-29.990117000Z--19e7e3...). So any name is allowed
        that stays in this folder and is not an address.
        """
        if (
            _is_path(name) or _is_hex(name) or not name.isprintable() or "\\" in name or name[:1] in ("", ".")
            or len(name.encode()) > _LISTED_BYTES_MAX
        ):  # fmt: skip
            return None
        places = (self.root / (name + SUFFIX), self.root / name)
        return next((place for place in places if place.is_file()), None)

    def place(self, name: str) -> Path:
        """Return the path of a new account in this folder; accounts elsewhere are not listed.

        Raises ConfigError.
        """
        if _is_path(name):
            raise ConfigError(
                f"{name[:64]!r}: a name expected, not the path of a file: accounts are kept in {self.root}; "
                "`dekube wallet export NAME --out FILE` writes one elsewhere"
            )
        if _is_hex(name):
            raise ConfigError(f"{name[:64]!r}: a name must not begin with 0x; that is an address")
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"{name[:64]!r}: the name of an account has 1 to 64 letters, digits, - and _")
        return self.root / (name + SUFFIX)

    def find(self, name: str) -> Path:
        """Return the file of an account by its name, address or file. Raises ConfigError."""
        if _is_path(name):
            return Path(name).expanduser()
        try:
            address = parse_address(name)
        except DecodeError as error:
            if _is_hex(name):
                raise ConfigError(f"{name[:64]!r}: {error}") from None
            if (file := self._named(name)) is not None:
                return file
            self.place(name)
            raise ConfigError(f"{self.root} has no account {name!r}; see `dekube wallet list`") from None
        for account in self.accounts():
            if account.address == address:
                return account.file
        raise ConfigError(f"{self.root} has no key of {format_address(address)}")

    def only(self) -> Path:
        """Return the file of the only account. Raises ConfigError if there is none or more than one."""
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


def _is_hex(name: str) -> bool:
    return name[:2] in ("0x", "0X")


def address_in(path: Path) -> bytes | None:
    """Return the address in a keystore file; None if it has none. Raises KeystoreError."""
    try:
        return keystore_address(read_keystore(path))
    except KeystoreError as error:
        text = str(error).removeprefix("keystore: ")
        raise KeystoreError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def check_keystore(path: Path) -> None:
    """Check a keystore file's fields before it is opened. Raises KeystoreError, which names file and field."""
    text = read_keystore(path)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise KeystoreError(f"{path}: not valid JSON{place}; a keystore file (version 3) is expected") from None
    address_in(path)
    document = {str(name).lower(): value for name, value in json.loads(text).items()}
    wanted = ["cipher", "cipherparams.iv", "ciphertext", "kdf", "kdfparams.salt", "kdfparams.dklen", "mac"]
    if _field(document, "crypto.kdf") == "scrypt":
        wanted += ["kdfparams.n", "kdfparams.r", "kdfparams.p"]
    for name in ("crypto", *(f"crypto.{name}" for name in wanted)):
        if _field(document, name) is None:
            raise KeystoreError(f"{path}: {name} is missing")


def _field(document: Any, name: str) -> Any:
    for part in name.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def random_key() -> SecretKey:
    """Return a key from the system's random source."""
    while True:
        try:
            return SecretKey(secrets.token_bytes(32))
        except DecodeError:  # zero or not below the group's order: one in 2^128
            continue


def new_mnemonic(words: int, *, entropy: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """Return a new mnemonic of this many English words (BIP-39)."""
    if words not in MNEMONIC_WORDS:
        raise ConfigError(f"a mnemonic has {', '.join(map(str, MNEMONIC_WORDS))} words")
    return str(_english().to_mnemonic(entropy(words * 4 // 3)))


@cache
def _english() -> Mnemonic:
    """Return the reader of mnemonics. Creating one reads the word list from its file."""
    from mnemonic import Mnemonic

    return Mnemonic("english")


def key_of_mnemonic(text: str, index: int, *, extra: str = "") -> SecretKey:
    """Return the account at m/44'/60'/0'/0/``index`` of a mnemonic. Raises as ``key_at_path``."""
    return key_at_path(text, ethereum_path(index), extra=extra)


def key_at_path(text: str, path: Sequence[int], *, extra: str = "") -> SecretKey:
    """Return the account at ``path`` of a mnemonic with its ``extra`` passphrase (BIP-39).

    Raises KeystoreError for an invalid mnemonic; the error does not contain it.
    """
    words = " ".join(text.lower().split())
    reader = _english()
    if (
        len(text) > MNEMONIC_CHARACTERS_MAX
        or len(words.split(" ")) not in MNEMONIC_WORDS
        or not reader.check(words)
    ):
        raise KeystoreError("not a mnemonic: 12 to 24 English words with a valid checksum are expected")
    return derive_key(reader.to_seed(words, extra), path)


def parse_path(text: str) -> tuple[int, ...]:
    """Return the indices of a path (BIP-32) such as m/44'/60'/1'/0/0. Raises ConfigError."""
    levels = text.split("/")[1:] if _PATH.fullmatch(text) else []
    numbers = [int(level.removesuffix("'")) for level in levels]
    if not numbers or max(numbers) >= HARDENED:
        raise ConfigError(
            f"{text[:64]!r} is not a path; write one such as m/44'/60'/1'/0/0: at most {PATH_LEVELS_MAX} numbers "
            "below 2^31, ' after those that are hardened"
        )
    return tuple(
        number + HARDENED if level.endswith("'") else number for number, level in zip(numbers, levels, strict=True)
    )


def parse_secret(text: str) -> SecretKey:
    """Return the key written as 64 hex digits. Raises KeystoreError, which does not contain them."""
    digits = text.strip().removeprefix("0x")
    try:
        if len(digits) != 64 or not digits.isascii() or not digits.isalnum():
            raise ValueError
        return SecretKey(bytes.fromhex(digits))
    except (ValueError, DecodeError):
        raise KeystoreError("not a secret key: 64 hex digits expected") from None
