"""Brings the secrets of a container into a cluster, and takes away again what its API keeps of them."""

from __future__ import annotations

from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.errors import EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.comparing import check_made
from tasks.executor.containers.kubernetes.exec_stream import answer_of
from tasks.executor.containers.kubernetes.manifests import TaskNamespace
from tasks.executor.containers.kubernetes.secret_objects import (
    IN_HELPER,
    LOGIN,
    VARIABLES,
    archive_of_files,
    login_body,
    variables_body,
)
from tasks.executor.containers.request import ContainerRequest

__all__ = ["forget_objects", "put_login", "put_variables", "send_files"]


async def put_login(api: ClusterApi, place: TaskNamespace, request: ContainerRequest) -> None:
    """Give the kubelet the login for the image's registry, if there is one. Raises SettingsDiffer, EngineError."""
    if request.secrets.login is not None:
        body = login_body(request.image, request.secrets.login, place.labels)
        check_made(body, await api.create(f"{place.path}/secrets", body))


async def put_variables(api: ClusterApi, place: TaskNamespace, request: ContainerRequest) -> None:
    """Give the kubelet the values of secret variables, if there are any. Raises SettingsDiffer, EngineError."""
    if request.secrets.variables:
        body = variables_body(request.secrets, place.labels)
        check_made(body, await api.create(f"{place.path}/secrets", body))


async def forget_objects(api: ClusterApi, place: TaskNamespace, secrets: ContainerSecrets) -> None:
    """Delete what the two functions above made. Raises EngineUnavailable, EngineError."""
    if secrets.variables:
        await api.delete(f"{place.path}/secrets/{VARIABLES}")
    if secrets.login is not None:
        await api.delete(f"{place.path}/secrets/{LOGIN}")


async def send_files(api: ClusterApi, pod: str, container: str, secrets: ContainerSecrets) -> None:
    """Put the files of secrets into the memory of a pod; sent again, they replace themselves.

    They are the input of a command, never words of it: the API server's log of calls keeps words. Raises
    EngineUnavailable where they did not arrive, EngineError.
    """
    if secrets.files:
        packed = archive_of_files(secrets.files)
        code, told = await answer_of(api, pod, container, _unpack(len(packed)), (packed,))
        if code:
            raise EngineUnavailable(f"the files of secrets did not arrive (code {code}) {told[:100]!r}")


def _unpack(size: int) -> str:
    return f"""
set -e
umask 022
cd {IN_HELPER}
rm -f ./*
head -c {size} | tar -xof -
"""
