"""Values of secrets, read where their owner keeps them: the environment, a file, or the system's keyring (R100).

No error shows a value. A value lives in this process alone until it is sealed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tasks.custody.errors import SecretsInvalid
from tasks.custody.secrets import ContainerSecrets
from tasks.requests.containing import ContainerRequest, SecretSource
from tasks.requests.errors import RequestInvalid

__all__ = ["read_secrets"]

VALUE_BYTES_MAX: Final = 48 * 1024


def read_secrets(request: ContainerRequest) -> ContainerSecrets:
    """Return the values of a request's secrets. Raises RequestInvalid, which names the source and no value."""
    seal = request.seal
    variables, files = list[tuple[str, str]](), list[tuple[str, bytes]]()
    try:
        for wanted in seal.secrets:
            value = _value(wanted.source)
            if wanted.is_file:
                files.append((wanted.target, value))
            else:
                variables.append((wanted.target, _text(wanted.source, value)))
        login = None
        if seal.login is not None:
            user, password = (_text(source, _value(source)) for source in seal.login)
            login = user, password
        return ContainerSecrets(variables, files, login)
    except SecretsInvalid as error:
        raise RequestInvalid(str(error), file=request.file, field="secrets", code=error.code) from None


def _value(source: SecretSource) -> bytes:
    """Return a value. Raises SecretsInvalid."""
    match source.kind:
        case "env":
            value = os.environb.get(source.name.encode())
        case "file":
            value = _of_file(Path(source.name))
        case _:
            value = _of_keyring(source.name)
    if not value:
        raise SecretsInvalid(f"{source.kind}:{source.name}: there is no such value, or it is empty")
    if len(value) > VALUE_BYTES_MAX:
        raise SecretsInvalid(f"{source.kind}:{source.name}: more than {VALUE_BYTES_MAX} bytes")
    return value


def _text(source: SecretSource, value: bytes) -> str:
    """Return a value as text, without the end of its last line where it comes from a file."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise SecretsInvalid(
            f"{source.kind}:{source.name}: not UTF-8; give it to the container as a file"
        ) from None
    return text.removesuffix("\n").removesuffix("\r") if source.kind == "file" else text


def _of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretsInvalid(f"file:{path}: {error.strerror}") from None


def _of_keyring(name: str) -> bytes | None:
    """Return what the system's keyring has for SERVICE/USER, None if it has nothing."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise SecretsInvalid(
            "keyring: install the extra `keyring` for it: pip install dekube-node[keyring]"
        ) from None
    service, _, user = name.rpartition("/")
    try:
        value = keyring.get_password(service, user)
    except KeyringError as error:  # its text names the back end
        raise SecretsInvalid(f"keyring:{name}: {type(error).__name__}: is a keyring unlocked here?") from None
    return None if value is None else value.encode()
