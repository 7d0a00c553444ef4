"""What a machine of a cluster has, as its API tells: whether it is large enough for a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.executor.containers.kubernetes.manifests import HELPER_MEMORY_MIB, HELPER_MILLICORES
from tasks.executor.containers.kubernetes.quantities import amount

__all__ = ["machine_for"]


def machine_for(
    found: Mapping[str, Any], cores: int = 0, memory_mib: int = 0, disk_mib: int = 0, gpus: int = 0,
    resource: str = "nvidia.com/gpu",
) -> bool:  # fmt: skip
    """Whether a machine is large enough for a container with its helper, were it empty, and takes new pods."""
    spec, status = found.get("spec"), found.get("status")
    if not isinstance(status, Mapping) or (isinstance(spec, Mapping) and spec.get("unschedulable")):
        return False
    conditions = status.get("conditions")
    ready = any(
        isinstance(one, Mapping) and (one.get("type"), one.get("status")) == ("Ready", "True")
        for one in (conditions if isinstance(conditions, list) else ())
    )
    has = status.get("allocatable")
    if not ready or not isinstance(has, Mapping):
        return False
    helpers = 1 if cores else 0
    return (
        amount(has.get("cpu")) >= cores * 1_000 + helpers * HELPER_MILLICORES
        and amount(has.get("memory")) >= (memory_mib + helpers * HELPER_MEMORY_MIB << 20) * 1_000
        and amount(has.get("ephemeral-storage")) >= (disk_mib << 20) * 1_000
        and amount(has.get(resource)) >= gpus * 1_000
    )
