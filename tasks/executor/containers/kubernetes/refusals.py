"""Why the Job of a container has no pod: what its controller was answered, as an event tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.manifests import TaskNamespace

__all__ = ["is_passing", "read_refusal", "refusal_of"]

EVENTS_READ_MAX: Final = 20
_TEXT_MAX: Final = 600
_PASSING: Final = ("serviceaccount", "status unknown for quota", "timeout", "timed out")


def is_passing(text: str) -> bool:
    """Whether a refusal goes by itself: a namespace is new, or a part of the cluster was slow."""
    return any(one in text for one in _PASSING)


async def refusal_of(api: ClusterApi, place: TaskNamespace) -> str:
    """Return why the cluster makes no pod for the Job of a place, empty if nothing tells it or it passes.

    A dry run does not find all of it: a server that has not yet heard of a quota lets a pod through. Raises
    EngineUnavailable, EngineError.
    """
    chosen = "involvedObject.kind=Job,reason=FailedCreate"
    found = await api.get(f"{place.path}/events", fieldSelector=chosen, limit=str(EVENTS_READ_MAX))
    return read_refusal(found)


def read_refusal(found: Mapping[str, Any]) -> str:
    """Return the text of the first event that will not pass."""
    items = found.get("items")
    for one in items[:EVENTS_READ_MAX] if isinstance(items, list) else ():
        if isinstance(one, Mapping) and one.get("reason") == "FailedCreate":
            text = " ".join(str(one.get("message") or "").split())[:_TEXT_MAX]
            if text and not is_passing(text):
                return text
    return ""
