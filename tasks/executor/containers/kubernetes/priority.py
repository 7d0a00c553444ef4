"""The PriorityClass of this node's pods: below the cluster's own work, which takes their room when it needs it."""

from __future__ import annotations

from typing import Any, Final

from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.kubernetes.api import ClusterApi

__all__ = ["PRIORITY", "lack_of_priority", "priority_body"]

PRIORITY: Final = -1_000
"""Below 0, which pods without a class have. Autoscalers start no machine for pods below -10."""
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


def priority_body(name: str) -> dict[str, Any]:
    """Return the class, whose pods give way and make nobody give way."""
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
        "value": PRIORITY, "preemptionPolicy": "Never", "globalDefault": False,
        "description": "Containers of the DEKUBE market: they give way to all other work of this cluster.",
    }  # fmt: skip


async def lack_of_priority(api: ClusterApi, name: str) -> str:
    """Make the class if it is not there; return what is wrong with it or missing, empty if it is as it must be.

    Raises EngineUnavailable, EngineError.
    """
    classes = {str((one.get("metadata") or {}).get("name")): one for one in await api.list(_CLASSES)}
    found = classes.get(name)
    if found is None:
        try:
            found = await api.create(_CLASSES, priority_body(name))
        except EngineError as error:
            return f"the PriorityClass {name}, or the right to create it ({error})"
    others = (one.get("value") for one in classes.values() if one.get("globalDefault"))
    usual = next((value for value in others if isinstance(value, int)), 0)
    value = found.get("value")
    if not isinstance(value, int) or value >= usual:
        return f"a PriorityClass {name} below the cluster's own work: {value} is not below {usual}"
    if found.get("preemptionPolicy") != "Never":
        return f"preemptionPolicy Never of the PriorityClass {name}: its pods would take the room of others"
    return ""
