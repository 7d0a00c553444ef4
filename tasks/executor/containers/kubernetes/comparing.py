"""Whether a cluster made what was ordered: the API server, its admission plugins and webhooks may change objects.

A pod is compared strictly (R143). What was ordered must be there, and what nobody ordered is refused, unless it
is a default of Kubernetes, or only says where and when the pod runs. So a field of a later version of Kubernetes
is refused until it is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tasks.executor.containers.errors import SettingsDiffer
from tasks.executor.containers.kubernetes.quantities import amount

__all__ = ["check_made", "check_pod"]

_SHOWN_MAX: Final = 300
_ANY: Final[frozenset[Any]] = frozenset()
_CONTAINERS: Final = ("containers", "initContainers")
_ADDED: Final[dict[str, frozenset[Any]]] = {
    # where and when it runs, and who schedules it
    "nodeName": _ANY, "nodeSelector": _ANY, "affinity": _ANY, "topologySpreadConstraints": _ANY,
    "schedulerName": _ANY, "priority": _ANY, "priorityClassName": _ANY, "preemptionPolicy": _ANY,
    "overhead": _ANY, "readinessGates": _ANY, "schedulingGates": _ANY,
    # an account whose token is not mounted, and logins of the cluster for images
    "serviceAccountName": _ANY, "serviceAccount": _ANY, "imagePullSecrets": _ANY,
    # defaults
    "securityContext.fsGroupChangePolicy": frozenset({"Always", "OnRootMismatch"}),
    "securityContext.supplementalGroupsPolicy": frozenset({"Merge", "Strict"}),
    "hostUsers": frozenset({True, False}),
    **{f"{kind}.{name}": values for kind in _CONTAINERS for name, values in {
        "terminationMessagePath": frozenset({"/dev/termination-log"}),
        "resizePolicy": _ANY,
        "securityContext.procMount": frozenset({"Default"}),
        "volumeMounts.mountPropagation": frozenset({"None"}),
        "volumeMounts.recursiveReadOnly": frozenset({"Disabled", "IfPossible", "Enabled"}),
    }.items()},
    "volumes.ephemeral.volumeClaimTemplate.spec.volumeMode": frozenset({"Filesystem"}),
}  # fmt: skip
"""What may be there though it was not ordered: paths below the specification, and the values that are known."""
_ANNOTATIONS: Final = re.compile(
    r"container\.apparmor\.security\.beta\.kubernetes\.io/|(container\.)?seccomp\.security\.alpha\.kubernetes\.io/"
    r"|(k8s\.)?v1\.(cni\.cncf|multus-cni)\.io/(networks|default-network)$|io\.kubernetes\.cri|io\.containerd\."
    r"|cdi\.k8s\.io/|.*\.nri\.containerd\.io"
)
"""Annotations by which a runtime or a network plugin gives a pod other filters, networks, devices or settings."""


def check_made(ordered: Mapping[str, Any], made: Mapping[str, Any], where: str = "") -> None:
    """Compare an object with its order. Raises SettingsDiffer with the path of the first difference.

    A server may add fields that were not ordered, but no element to a list: no container, volume or capability.
    """
    _check(ordered, made, where or str(ordered.get("kind", "")), None)


def check_pod(ordered: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    """Compare a pod with the specification that was ordered.

    Raises SettingsDiffer with the path of the first difference, also for what nobody ordered.
    """
    spec = pod.get("spec")
    # Each cluster adds tolerations of its own: for machines that fail, and for those with GPUs.
    wanted = {name: value for name, value in ordered.items() if name != "tolerations"}
    if not isinstance(spec, Mapping):
        raise SettingsDiffer("Pod.spec: none")
    _check(wanted, {name: value for name, value in spec.items() if name != "tolerations"}, "Pod.spec", "")
    for one in ordered.get("tolerations", ()):
        if one not in (spec.get("tolerations") or ()):
            raise SettingsDiffer(f"Pod.spec.tolerations: {one!r} is missing")
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    for name in annotations:
        if _ANNOTATIONS.match(str(name)):
            raise SettingsDiffer(f"Pod.metadata.annotations: {name}"[:_SHOWN_MAX])


def _check(ordered: Any, made: Any, path: str, strict: str | None) -> None:
    """Compare; with ``strict``, the path without numbers, fields that were not ordered are looked at too."""
    if isinstance(ordered, Mapping):
        if not isinstance(made, Mapping):
            if not ordered and made is None:
                return
            raise SettingsDiffer(f"{path}: {made!r}"[:_SHOWN_MAX])
        for name, value in ordered.items():
            inner = _below(strict, name)
            is_free = _ADDED.get(inner or "") is _ANY  # labels of machines beside those that were ordered, say
            _check(value, made.get(name), f"{path}.{name}", None if is_free else inner)
        if strict is not None:
            _check_added(ordered, made, path, strict)
    elif isinstance(ordered, list):
        if not ordered and made is None:
            return
        if not isinstance(made, list) or len(made) != len(ordered):
            raise SettingsDiffer(f"{path}: {made!r}"[:_SHOWN_MAX])
        for number, (one, other) in enumerate(zip(ordered, made, strict=True)):
            _check(one, other, f"{path}[{number}]", strict)
    elif ordered is False or ordered == "":
        if made is not None and made is not False and made != "":
            raise SettingsDiffer(f"{path}: {made!r}"[:_SHOWN_MAX])
    elif not _is_same(ordered, made):
        raise SettingsDiffer(f"{path}: {made!r}"[:_SHOWN_MAX])


def _check_added(ordered: Mapping[str, Any], made: Mapping[str, Any], path: str, strict: str) -> None:
    for name, value in made.items():
        if name in ordered or value is None or value is False or value in ("", [], {}):
            continue
        known = _ADDED.get(_below(strict, str(name)) or "")
        if known is None or (known and not (isinstance(value, str | bool) and value in known)):
            raise SettingsDiffer(f"{path}.{name}: {value!r} was not ordered"[:_SHOWN_MAX])


def _below(strict: str | None, name: str) -> str | None:
    return None if strict is None else f"{strict}.{name}" if strict else name


def _is_same(ordered: Any, made: Any) -> bool:
    if isinstance(ordered, str) and isinstance(made, str):
        return ordered == made or 0 != amount(ordered) == amount(made)  # ``1000m`` comes back as ``1``
    return type(ordered) is type(made) and bool(ordered == made)
