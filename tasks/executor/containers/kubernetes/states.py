"""What a pod's status says: where it is in its life, and why it does not go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.kubernetes.manifests import AGENT, HELPER, MAIN, RECEIVER

__all__ = ["Exit", "Pod", "Stage", "Trouble", "read_pod"]

SIGNALS_MAX: Final = 64
_SIGNALLED: Final = 128
_TEXT_MAX: Final = 600
_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
                          "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"})  # fmt: skip
_START: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
                           "StartError", "ContainerCannotRun"})  # fmt: skip
_DISK: Final = ("ephemeral", "emptydir", "local storage", "usage of")


class Stage(Enum):
    """How far a pod is."""

    WAITING = "waiting"
    """It has no machine yet, or its helper's image is on its way."""
    RECEIVING = "receiving"
    """The helper takes the inputs."""
    STARTING = "starting"
    """The inputs are there, and the requester's container is about to start."""
    RUNNING = "running"
    ENDED = "ended"
    """The requester's container has ended; the helper may still be there."""
    GONE = "gone"
    """The pod is over and its container never started."""


class Trouble(Enum):
    """What keeps a pod from going on, or has ended it."""

    NONE = ""
    PULL = "pull"
    START = "start"
    NO_MACHINE = "no machine"
    EVICTED = "evicted"
    DISK = "disk"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class Exit:
    """How the requester's container ended. ``number`` is its exit code, or the signal's where ``is_signal``."""

    number: int
    is_signal: bool
    is_out_of_memory: bool


@dataclass(frozen=True)
class Pod:
    """A pod of a container. ``up_s`` counts from the start of the requester's container to its end, or to now.

    ``late_s``: so long ago a pod that was told to go should have been gone. Its machine does not answer, say.
    """

    name: str
    uid: str
    stage: Stage
    trouble: Trouble
    why: str
    machine: str
    up_s: float
    exit: Exit | None
    has_helper: bool
    is_leaving: bool
    late_s: float


def read_pod(found: Mapping[str, Any], now: datetime) -> Pod:
    """Read a pod as the API server shows it. Raises EngineError for one that has another form."""
    try:
        return _read(found, now)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise EngineError(200, "a pod without the form of a pod") from None


def _read(found: Mapping[str, Any], now: datetime) -> Pod:
    meta, status = found["metadata"], found.get("status") or {}
    main = _state(status.get("containerStatuses"), MAIN)
    receiver = _state(status.get("initContainerStatuses"), RECEIVER)
    helper, agent = (_state(status.get("containerStatuses"), name) for name in (HELPER, AGENT))
    phase, gone_at = str(status.get("phase", "")), _moment(meta.get("deletionTimestamp"))
    ended = main.get("terminated")
    started = _moment((ended or main.get("running") or {}).get("startedAt"))
    trouble, why = _trouble(status, (receiver, main, helper, agent))
    up_s, gone_by = 0.0, None
    if ended is not None and started is not None:
        up_s = max(0.0, ((_moment(ended.get("finishedAt")) or started) - started).total_seconds())
    elif started is not None:
        up_s = max(0.0, (now - started).total_seconds())
    if ended is not None and str(ended.get("reason")) in _START:
        trouble, why = Trouble.START, _text(ended.get("message")) or str(ended.get("reason"))
    elif ended is not None:
        gone_by = _exit(ended)
    stage = Stage.WAITING
    if ended is not None and trouble is not Trouble.START:
        stage = Stage.ENDED
    elif phase in ("Failed", "Succeeded"):
        stage = Stage.ENDED if main.get("running") is not None else Stage.GONE
    elif main.get("running") is not None:
        stage = Stage.RUNNING
    elif receiver.get("terminated") is not None:
        stage = Stage.STARTING
    elif receiver.get("running") is not None:
        stage = Stage.RECEIVING
    return Pod(
        str(meta["name"]), str(meta["uid"]), stage, trouble, why,
        str((found.get("spec") or {}).get("nodeName", "")), up_s, gone_by,
        None not in (helper.get("running"), agent.get("running")) and phase == "Running", gone_at is not None,
        0.0 if gone_at is None else max(0.0, (now - gone_at).total_seconds()),
    )  # fmt: skip


def _state(statuses: Any, name: str) -> Mapping[str, Any]:
    """Return the state of a container: an object with one of ``waiting``, ``running``, ``terminated``."""
    for one in statuses or ():
        if one["name"] == name:
            state = one.get("state") or {}
            return state if isinstance(state, Mapping) else {}
    return {}


def _trouble(status: Mapping[str, Any], states: tuple[Mapping[str, Any], ...]) -> tuple[Trouble, str]:
    reason, message = str(status.get("reason", "")), _text(status.get("message"))
    if reason == "Evicted":
        is_disk = any(one in message.lower() for one in _DISK) and "node was low" not in message.lower()
        return (Trouble.DISK if is_disk else Trouble.EVICTED), message or reason
    if reason == "DeadlineExceeded":
        return Trouble.DEADLINE, message
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return Trouble.EVICTED, _text(condition.get("message")) or str(condition.get("reason", ""))
    if reason in ("NodeLost", "Preempting", "Shutdown", "Terminated", "NodeShutdown"):
        return Trouble.EVICTED, message or reason
    for state in states:
        waiting = state.get("waiting") or {}
        why = str(waiting.get("reason", ""))
        if why in _PULL:
            return Trouble.PULL, f"{why}: {_text(waiting.get('message'))}"
        if why in _START:
            return Trouble.START, f"{why}: {_text(waiting.get('message'))}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Trouble.NO_MACHINE, _text(condition.get("message")) or str(condition.get("reason", ""))
    return Trouble.NONE, ""


def _exit(ended: Mapping[str, Any]) -> Exit:
    code = int(ended.get("exitCode", 0))
    signal = int(ended.get("signal") or 0)
    if not signal and _SIGNALLED < code <= _SIGNALLED + SIGNALS_MAX:
        signal = code - _SIGNALLED
    return Exit(signal or code, bool(signal), ended.get("reason") == "OOMKilled")


def _text(found: Any) -> str:
    return " ".join(str(found or "").split())[:_TEXT_MAX]


def _moment(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError("a time without its zone")
    return found.astimezone(UTC) if found.year > 1 else None
