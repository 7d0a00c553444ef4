"""What an account needs in a cluster, one by one, and which of it the API server does not grant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.kubernetes.api import ClusterApi

__all__ = ["RIGHTS", "Right", "missing_rights"]

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Right:
    """A verb on a resource of an API group; ``inner`` is its subresource."""

    verb: str
    resource: str
    group: str = ""
    inner: str = ""

    @property
    def text(self) -> str:
        """As an operator writes it into a role."""
        resource = f"{self.resource}/{self.inner}" if self.inner else self.resource
        return f"the right to {self.verb} {resource}" + (f" ({self.group})" if self.group else "")


RIGHTS: Final = (
    *(Right(verb, "namespaces") for verb in ("create", "get", "list", "delete")),
    *(Right(verb, "pods") for verb in ("create", "get", "list", "delete")),
    Right("get", "pods", inner="log"),
    Right("get", "pods", inner="exec"),
    Right("create", "pods", inner="exec"),
    *(Right(verb, "jobs", "batch") for verb in ("create", "list")),
    *(Right(verb, "networkpolicies", "networking.k8s.io") for verb in ("create", "get", "delete")),
    Right("create", "resourcequotas"),
    Right("list", "events"),
    *(Right(verb, "secrets") for verb in ("create", "delete")),
    Right("list", "nodes"),
    Right("list", "priorityclasses", "scheduling.k8s.io"),
)
"""What docs/kubernetes/ grants, and no more: Secrets are made and removed, never read, and no role is."""


async def missing_rights(api: ClusterApi) -> list[str]:
    """Return the rights that the account lacks, in words. Raises EngineUnavailable, EngineError."""
    missing = []
    for right in RIGHTS:
        asked = {"verb": right.verb, "group": right.group, "resource": right.resource, "subresource": right.inner}
        body = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }  # fmt: skip
        status = (await api.create(_REVIEWS, body)).get("status")
        if not isinstance(status, dict):
            raise EngineError(200, "a review of access without its answer")
        if status.get("allowed") is not True:
            missing.append(right.text)
    return missing
