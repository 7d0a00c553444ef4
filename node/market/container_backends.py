"""The back end for containers that a node's options choose: a Docker engine, or a Kubernetes cluster."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from node.home.config import mirrors_of, parse_egress
from node.home.options import ExecutorOptions
from tasks.executor.containers import docker
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.logins import read_logins

if TYPE_CHECKING:
    from tasks.executor.containers.kubernetes import backend as kubernetes

__all__ = ["backend_of"]


def backend_of(options: ExecutorOptions, node: bytes, folder: Path) -> ContainerBackend:
    """Return the back end. Raises ContainerRefused for a bad file of logins, or where both are to be lent."""
    if options.kubernetes.enabled:
        if options.docker.enabled:
            raise ContainerRefused("executor.docker and executor.kubernetes: a node lends one of them")
        return cluster_of(options, node, folder)
    lent = options.docker
    chosen = docker.DockerOptions(
        lent.socket, lent.images, lent.disk_gib, lent.image_gib, lent.root_allowed, lent.gpus, parse_egress(lent),
        mirrors_of(lent),
    )  # fmt: skip
    logins = read_logins(Path(lent.logins)) if lent.logins else {}
    return docker.DockerBackend(chosen, node, folder, logins)


def cluster_of(options: ExecutorOptions, node: bytes, folder: Path) -> kubernetes.KubernetesBackend:
    """Return the back end of the cluster that is lent.

    Raises ContainerRefused for a prefix, a registry or a file of logins that cannot be.
    """
    lent = options.kubernetes
    found = import_module(
        "tasks.executor.containers.kubernetes.backend"
    )  # a node without a cluster needs none of it
    chosen = found.KubernetesOptions(
        lent.kubeconfig, lent.prefix, lent.images, lent.helper_image, lent.runtime_class, lent.gpu_resource,
        lent.gpus, lent.disk_gib, lent.unisolated_allowed, lent.node_selector, lent.tolerations,
        lent.priority_class, lent.storage_class, lent.reserve_percent, lent.reserve_gpus, parse_egress(lent),
        mirrors_of(lent),
    )  # fmt: skip
    made: kubernetes.KubernetesBackend
    if lent.registry:
        pushing = import_module("tasks.executor.containers.kubernetes.registry_backend")
        found_logins = read_logins(Path(lent.logins)) if lent.logins else None
        pairs = None if found_logins is None else {name: one.pair() for name, one in found_logins.items()}
        made = pushing.ClusterWithRegistry(chosen, node, folder, pushing.ImageRegistry(lent.registry, pairs))
    else:
        made = found.KubernetesBackend(chosen, node, folder)
    return made
