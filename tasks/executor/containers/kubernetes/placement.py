"""Which machines of a cluster take pods of this node: by labels, taints and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tasks.executor.containers.errors import ContainerRefused

__all__ = ["ANYWHERE", "Placement", "Toleration", "parse_placement", "why_not"]

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TEXTS_MAX: Final = 32
TEXT_CHARS_MAX: Final = 384
"""A label's or a taint's prefix, name and value have 253, 63 and 63 characters at most."""


class Toleration(NamedTuple):
    """A taint of machines that pods of this node tolerate. An empty effect stands for all, an empty key too."""

    key: str
    value: str
    effect: str

    def tolerates(self, taint: Mapping[str, Any]) -> bool:
        """Whether a taint keeps no pod with this away."""
        return (
            (not self.key or taint.get("key") == self.key)
            and (not self.value or (taint.get("value") or "") == self.value)
            and (not self.effect or taint.get("effect") == self.effect)
        )

    def body(self) -> dict[str, str]:
        """Return it as the API has it."""
        made = {"operator": "Equal" if self.value else "Exists"}
        named = {"key": self.key, "value": self.value, "effect": self.effect}
        return made | {name: text for name, text in named.items() if text}


class Placement(NamedTuple):
    """Labels that a machine must have, and taints of machines that are tolerated."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def pod_fields(self) -> dict[str, Any]:
        """Return the fields of a pod that say this."""
        made: dict[str, Any] = {}
        if self.selector:
            made["nodeSelector"] = dict(self.selector)
        if self.tolerations:
            made["tolerations"] = [one.body() for one in self.tolerations]
        return made


ANYWHERE: Final = Placement()


def parse_placement(selector: Sequence[str], tolerations: Sequence[str]) -> Placement:
    """Return labels ``name=value`` and taints ``key=value:Effect``, ``key:Effect`` or ``key``.

    Raises ContainerRefused.
    """
    for name, texts in (("node_selector", selector), ("tolerations", tolerations)):
        if len(texts) > TEXTS_MAX or any(len(text) > TEXT_CHARS_MAX or not text.isprintable() for text in texts):
            raise ContainerRefused(f"executor.kubernetes.{name}: at most {TEXTS_MAX} short lines of text expected")
    pairs = [text.partition("=") for text in selector]
    if any(not name or not equals for name, equals, _ in pairs) or len({pair[0] for pair in pairs}) != len(pairs):
        raise ContainerRefused("executor.kubernetes.node_selector: different labels as name=value expected")
    return Placement(
        tuple(sorted((name, value) for name, _, value in pairs)), tuple(_toleration(text) for text in tolerations)
    )


def _toleration(text: str) -> Toleration:
    name, colon, effect = text.partition(":")
    key, equals, value = name.partition("=")
    if not key or (colon and effect not in _EFFECTS) or (equals and not value):
        raise ContainerRefused(
            f"executor.kubernetes.tolerations: key=value:Effect or key:Effect expected, not {text[:60]!r}"
        )
    return Toleration(key, value, effect)


def why_not(machine: Mapping[str, Any], placement: Placement) -> str:
    """Return why a machine takes no new pod of this node, empty if it does."""
    try:
        meta, spec, status = machine["metadata"], machine.get("spec") or {}, machine["status"]
        labels = meta.get("labels") or {}
        states = {str(one["type"]): str(one["status"]) for one in status.get("conditions") or ()}
        if not isinstance(meta["name"], str) or not isinstance(status["allocatable"], Mapping):
            return "cannot be read"
        if spec.get("unschedulable"):
            return "cordoned"
        if (
            states.get("Ready") != "True"
            or states.get("NetworkUnavailable") == "True"
            or meta.get("deletionTimestamp")
        ):
            return "not ready"
        if any(labels.get(name) != value for name, value in placement.selector):
            return "not selected"
        for taint in spec.get("taints") or ():
            is_tolerated = any(one.tolerates(taint) for one in placement.tolerations)
            if taint["effect"] != "PreferNoSchedule" and not is_tolerated:
                return "tainted"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "cannot be read"
    return ""
