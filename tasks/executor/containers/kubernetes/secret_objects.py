"""Secrets of a container in a cluster: which objects carry them, for how long, and files that no object carries.

Files go over a stream into memory of the pod: the API server stores nothing of them. Variables and a login for a
registry are read by the kubelet, which takes them from Secrets alone. These exist from the order until the
container runs. So an administrator, or a backup of the cluster's database, may have them (decision 0123).
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any, Final

from tasks.custody.secrets import FOLDER, ContainerSecrets
from tasks.executor.containers.request import Image

__all__ = [
    "IN_HELPER",
    "LOGIN",
    "VARIABLES",
    "VOLUME",
    "archive_of_files",
    "login_body",
    "variable_source",
    "variables_body",
    "volume_body",
]

VARIABLES: Final = "variables"
LOGIN: Final = "login"
VOLUME: Final = "secrets"
IN_HELPER: Final = "/dekube/secrets"
"""Where the helper that receives inputs has the files; the requester's container has them in ``FOLDER``."""
MEMORY_MIB: Final = 1
"""Room for files: 65,536 bytes at most, each in pages of memory of its own."""
_DOCKER_IO: Final = "https://index.docker.io/v1/"


def _secret(name: str, labels: Mapping[str, str], kind: str, values: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Secret", "type": kind, "immutable": True,
        "metadata": {"name": name, "labels": dict(labels)},
        "data": {key: base64.b64encode(value).decode() for key, value in values.items()},
    }  # fmt: skip


def variables_body(secrets: ContainerSecrets, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret with the values of variables."""
    return _secret(VARIABLES, labels, "Opaque", {name: value.encode() for name, value in secrets.variables})


def variable_source(name: str) -> dict[str, Any]:
    """Return the variable of a container whose value is in the Secret: its specification shows the name alone."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": VARIABLES, "key": name}}}


def login_body(image: Image, login: tuple[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret with which the kubelet pulls from the registry of an image, and from no other."""
    user, password = login
    registry = _DOCKER_IO if image.registry == "docker.io" else image.registry
    entry = {
        "username": user, "password": password, "auth": base64.b64encode(f"{user}:{password}".encode()).decode()
    }  # fmt: skip
    content = json.dumps({"auths": {registry: entry}}).encode()
    return _secret(LOGIN, labels, "kubernetes.io/dockerconfigjson", {".dockerconfigjson": content})


def volume_body() -> dict[str, Any]:
    """Return the volume of the files: memory, which counts for the container that writes it."""
    return {"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": f"{MEMORY_MIB}Mi"}}


def archive_of_files(files: tuple[tuple[str, bytes], ...]) -> bytes:
    """Return the tar of the files, as the helper unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in files:
            folder, _, name = path.rpartition("/")
            assert folder == FOLDER, "the path of a secret was checked as it was read"
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o444
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
