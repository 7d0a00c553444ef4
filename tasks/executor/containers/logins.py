"""Logins for registries: the ``auths`` of a file like Docker's ``config.json``. It starts no helper."""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tasks.executor.containers.engine import RegistryLogin
from tasks.executor.containers.errors import ContainerRefused

__all__ = ["decode_logins", "read_logins"]

FILE_BYTES_MAX: Final = 1 << 20
_INDEX_NAMES: Final = frozenset({"https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io"})


def read_logins(path: Path) -> Mapping[str, RegistryLogin]:
    """Return the logins by registry. Raises ContainerRefused if others may read the file, or for another form."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ContainerRefused(f"{path}: other users can read it (chmod 600)")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ContainerRefused(f"{path}: {error.strerror}") from None
    return decode_logins(data)


def decode_logins(data: bytes) -> Mapping[str, RegistryLogin]:
    """Return the logins of a file's contents by registry. Raises ContainerRefused, without its contents."""
    refused = ContainerRefused("the file of logins is not like Docker's config.json")
    if len(data) > FILE_BYTES_MAX:
        raise refused
    try:
        auths = json.loads(data)["auths"]
        return {_registry(name): _login(_registry(name), entry) for name, entry in auths.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise refused from None


def _registry(name: str) -> str:
    if name in _INDEX_NAMES:
        return "docker.io"
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _login(registry: str, entry: Mapping[str, Any]) -> RegistryLogin:
    user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    if not colon:
        raise ValueError("no colon")
    return RegistryLogin(registry, user, password)
