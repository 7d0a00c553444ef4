"""The secrets of kubeconfigs: what a support bundle must not contain of the way to a cluster."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml

from node.market.masking import secrets_of_document
from tasks.executor.containers.kubernetes.access import ACCOUNT_FOLDER

__all__ = ["secrets_of_clusters"]

FILE_BYTES_MAX: Final = 1 << 20
USERS_MAX: Final = 1_000
LEAVES_MAX: Final = 1_000
"""Texts of one user: a file of YAML can name one part of it again and again."""
LINE_CHARS_MIN: Final = 16
"""Shorter lines of a key are found in other texts too."""
_DEPTH_MAX: Final = 8
_SECRET_FILES: Final = frozenset({"client-key", "tokenFile"})
_PATHS: Final = _SECRET_FILES | {"client-certificate"}
_PLAIN: Final = frozenset({"username", "command", "apiVersion", "interactiveMode", "name", "as"})
"""Names and words of each kubeconfig: without them no line of a bundle could be read."""


def secrets_of_clusters(kubeconfig: str) -> set[str]:
    """Return what opens clusters: of the node's kubeconfig, of the owner's own one, and of the account of its pod.

    Tokens and keys of all contexts count, and the files that a kubeconfig names. One without form counts whole.
    """
    found: set[str] = set()
    for path in (*((Path(kubeconfig),) if kubeconfig else ()), Path.home() / ".kube" / "config"):
        if text := _text(path):
            found |= _of_kubeconfig(text, path.parent)
    return found | _of_file(ACCOUNT_FOLDER / "token")


def _of_kubeconfig(text: str, folder: Path) -> set[str]:
    try:
        whole = yaml.safe_load(text)
        users, clusters = _entries(whole, "users", "user"), _entries(whole, "clusters", "cluster")
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError):
        return secrets_of_document(text)
    found: set[str] = set()
    for user in users:
        for name in _SECRET_FILES:
            if isinstance(path := user.get(name), str) and path:
                found |= _of_file(folder / path)
        for leaf in islice(
            _leaves({name: one for name, one in user.items() if name not in _PATHS}, 0), LEAVES_MAX
        ):
            found |= _spelled(leaf)
    for cluster in clusters:
        if isinstance(url := cluster.get("proxy-url"), str):
            with suppress(ValueError):
                found |= {unquote(urlsplit(url).password or ""), urlsplit(url).password or ""}
    return found - {""}


def _entries(whole: Any, many: str, one: str) -> list[dict[str, Any]]:
    listed = whole.get(many)
    found = [entry.get(one) for entry in (listed if isinstance(listed, list) else [])[:USERS_MAX]]
    return [entry for entry in found if isinstance(entry, dict)]


def _leaves(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, dict):
        for name, one in value.items():
            if name not in _PLAIN:
                yield from _leaves(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, depth + 1)
    elif isinstance(value, str) and value:
        yield value


def _spelled(secret: str) -> set[str]:
    """Return a secret, what it is in base 64, and the lines of a key."""
    found = {secret}
    with suppress(ValueError):  # no base 64, or no text in it
        found.add(base64.b64decode(secret, validate=True).decode())
    lines = {line for one in found for line in one.splitlines()}
    return found | {line for line in lines if len(line) >= LINE_CHARS_MIN and "-----" not in line}


def _of_file(path: Path) -> set[str]:
    return _spelled(text.strip()) if (text := _text(path)) else set()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode(errors="replace")
    except (OSError, ValueError):
        return ""
