"""Secrets of a container: values for its environment, files, and a login for its registry, in one blob (R100).

The blob has one of few sizes, so that its size says little. Sealed, it travels like any other blob.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from tasks.custody.container_keys import secrets_key
from tasks.custody.errors import SecretsInvalid, StreamInvalid
from tasks.custody.streams import open_stream, seal_stream, stream_size
from tasks.kinds.container import SECRETS_SEALED_BYTES

__all__ = [
    "FOLDER",
    "NO_SECRETS",
    "SECRETS_MAX",
    "ContainerSecrets",
    "check_secret_name",
    "check_secret_path",
    "decode_secrets",
    "encode_secrets",
    "open_secrets",
    "seal_secrets",
]

FOLDER: Final = "/run/secrets"
SECRETS_MAX: Final = 64
NAME_LENGTH_MAX: Final = 128
LOGIN_LENGTH_MAX: Final = 4_096
SIZES: Final = (4_096, 16_384, 65_536)
_LENGTH_BYTES: Final = 4
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
assert tuple(map(stream_size, SIZES)) == SECRETS_SEALED_BYTES


class ContainerSecrets:
    """Values by name of a variable, contents by path, and user and password of a registry; shown nowhere."""

    def __init__(
        self, variables: Iterable[tuple[str, str]] = (), files: Iterable[tuple[str, bytes]] = (),
        login: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Raises SecretsInvalid, without a value."""
        self.variables, self.files = tuple(sorted(variables)), tuple(sorted(files))
        self.login = login
        _check_names([name for name, _ in self.variables], check_secret_name)
        _check_names([path for path, _ in self.files], check_secret_path)
        if len(self.variables) + len(self.files) > SECRETS_MAX:
            raise SecretsInvalid(f"{SECRETS_MAX} secrets at most")
        for name, value in self.variables:
            if "\0" in value:
                raise SecretsInvalid(f"{name}: the value of a variable has no byte 0")
        if login is not None and (not all(login) or ":" in login[0] or max(map(len, login)) > LOGIN_LENGTH_MAX):
            raise SecretsInvalid("the login of a registry has a user without a colon, and a password")

    def __bool__(self) -> bool:
        return bool(self.variables or self.files or self.login)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContainerSecrets) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return f"ContainerSecrets({len(self.variables)} variables, {len(self.files)} files)"

    def _all(self) -> tuple[Any, ...]:
        return self.variables, self.files, self.login

    @property
    def values(self) -> tuple[bytes, ...]:
        """Every value that must not be shown."""
        login = () if self.login is None else (self.login[1].encode(),)
        return (
            *(value.encode() for _, value in self.variables), *(content for _, content in self.files), *login,
        )  # fmt: skip


def _check_names(names: list[str], check: Any) -> None:
    if len(set(names)) != len(names):
        raise SecretsInvalid("a name of a secret occurs twice")
    for name in names:
        check(name)


def check_secret_name(name: str) -> None:
    """Raise SecretsInvalid unless a secret may be a variable of this name."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise SecretsInvalid(f"{name[:40]!r} is no name of a variable")
    if name.startswith("DEKUBE_"):
        raise SecretsInvalid(f"{name[:40]}: names with DEKUBE_ are the machine's own")


def check_secret_path(path: str) -> None:
    """Raise SecretsInvalid unless a secret may be a file at this path."""
    folder, _, name = path.rpartition("/")
    if folder != FOLDER or len(name) > NAME_LENGTH_MAX or not _FILE.fullmatch(name):
        raise SecretsInvalid(f"{path[:80]!r}: a file of a secret lies in {FOLDER}, as {FOLDER}/key")


NO_SECRETS: Final = ContainerSecrets()


def encode_secrets(secrets: ContainerSecrets) -> bytes:
    """Return secrets as bytes of one of ``SIZES``. Raises SecretsInvalid for more than the largest."""
    login: list[Value] = [] if secrets.login is None else [*secrets.login]
    try:
        body = encode([[list(one) for one in secrets.variables], [list(one) for one in secrets.files], login])
    except UnicodeEncodeError:
        raise SecretsInvalid("the value of a variable is not Unicode") from None
    size = _size_for(len(body))
    if size is None:
        raise SecretsInvalid(f"the secrets have more than {SIZES[-1] - _LENGTH_BYTES} bytes with their names")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body + bytes(size - len(body) - _LENGTH_BYTES)


def _size_for(length: int) -> int | None:
    return next((size for size in SIZES if length + _LENGTH_BYTES <= size), None)


def decode_secrets(data: bytes) -> ContainerSecrets:
    """Read secrets. Raises SecretsInvalid, without a value."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    end = _LENGTH_BYTES + length
    if len(data) not in SIZES or _size_for(length) != len(data) or any(data[end:]):
        raise SecretsInvalid("secrets of another size than their length has")
    try:
        value = decode(data[_LENGTH_BYTES:end], limit_bytes=SIZES[-1])
    except DecodeError:
        raise SecretsInvalid("secrets that cannot be read") from None
    match value:
        case [list(variables), list(files), list(login)] if len(login) in (0, 2) and {str}.issuperset(
            map(type, login)
        ):
            found = ContainerSecrets(
                _pairs(variables, str), _pairs(files, bytes), (login[0], login[1]) if login else None
            )
            if found.variables != tuple(map(tuple, variables)) or found.files != tuple(map(tuple, files)):
                raise SecretsInvalid("secrets are sorted by name")
            return found
    raise SecretsInvalid("secrets of another form")


def _pairs(items: list[Any], kind: type) -> Iterator[tuple[str, Any]]:
    for item in items:
        match item:
            case [str(name), value] if type(value) is kind:
                yield name, value
            case _:
                raise SecretsInvalid("a secret is a name and a value")


def seal_secrets(key: bytes, salt: bytes, secrets: ContainerSecrets) -> bytes:
    """Return sealed secrets, under the key of their task. Raises SecretsInvalid."""
    return b"".join(seal_stream(secrets_key(key), salt, [encode_secrets(secrets)]))


def open_secrets(key: bytes, sealed: bytes) -> ContainerSecrets:
    """Return the secrets of a blob. Raises SecretsInvalid."""
    try:
        return decode_secrets(b"".join(open_stream(secrets_key(key), [sealed])))
    except StreamInvalid as error:
        raise SecretsInvalid(str(error)) from None
