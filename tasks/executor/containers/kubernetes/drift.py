"""Whether somebody else changes a running container's objects: its pod, or the policy that shuts it in.

A cluster has other writers: people, controllers, other programs. The API server gives the last one its way. So
what was ordered is looked at again while the container runs. A policy is made anew. A pod that is another one
than before is not what its requester pays for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
import trio

from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.manifests import TaskNamespace, policy_body

__all__ = ["DriftWatch", "changed_part", "is_policy"]

_log = structlog.get_logger("containers")

POLICY_S: Final = 5.0
"""Time between two looks at the policy."""
_CONFLICT: Final = 409
_PARTS: Final = (
    "containers", "initContainers", "ephemeralContainers", "volumes", "hostNetwork", "hostPID", "hostIPC",
    "securityContext", "shareProcessNamespace", "runtimeClassName",
)  # fmt: skip
"""What of a pod may not change; a cluster may add tolerations, say."""


def changed_part(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the name of the first part of a pod that is not what it was, empty if all are."""
    one, other = before.get("spec") or {}, now.get("spec") or {}
    return next((name for name in _PARTS if (one.get(name) or None) != (other.get(name) or None)), "")


def is_policy(ordered: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a policy is the ordered one: whatever was added to it would let something through."""
    spec = found.get("spec")
    if not isinstance(spec, Mapping):
        return False
    return bool(
        {name: value for name, value in spec.items() if value or name in ordered["spec"]} == ordered["spec"]
    )


class DriftWatch:
    """Looks at the objects of one container while it runs."""

    def __init__(self, api: ClusterApi, place: TaskNamespace) -> None:
        self._api, self._place = api, place
        self._pod: Mapping[str, Any] | None = None
        self._looked_at = float("-inf")
        self.mended = 0
        """How often the policy was made anew."""

    async def look(self, pod: Mapping[str, Any]) -> str:
        """Take the pod as it is now; return which part of it somebody changed, empty if nobody did."""
        if self._pod is None:
            self._pod = pod
        if trio.current_time() >= self._looked_at + POLICY_S:
            self._looked_at = trio.current_time()
            try:
                await self._mend()
            except EngineUnavailable:
                pass  # the look at the pod waits for the API server
            except EngineError as error:
                if error.status != _CONFLICT:  # else somebody else was quicker: the next look sees what is there
                    _log.warning("a policy cannot be looked at", namespace=self._place.namespace, error=str(error))
        return changed_part(self._pod, pod)

    async def _mend(self) -> None:
        """Make the policy anew if it is not as ordered. Raises EngineUnavailable, EngineError."""
        body = policy_body(self._place)
        path = f"{self._place.policies}/{body['metadata']['name']}"
        found = await self._api.find(path)
        if found is not None and is_policy(body, found):
            return
        why = "it is gone" if found is None else "it denies less"
        _log.warning("somebody changed the policy of a container", namespace=self._place.namespace, why=why)
        if found is not None:
            await self._api.delete(path)
        await self._api.create(self._place.policies, body)
        self.mended += 1
