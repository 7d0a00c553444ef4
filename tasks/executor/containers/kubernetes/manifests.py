"""The objects of one container in a cluster, as they are ordered.

A task has a namespace of its own with Pod Security ``restricted``, a policy that denies all traffic both ways, a
quota of one pod, and a Job with that pod. The pod has the requester's container and three of the helper's image.
The first receives the inputs before the requester's container starts. The agent has the user of that container:
it reads its files and signals its processes. The helper has another user. It serves the socket, and it is the only
one that the node's commands enter once the requester's container runs (R142).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tasks.custody.secrets import FOLDER as SECRETS_FOLDER
from tasks.executor.containers.kubernetes.placement import ANYWHERE, Placement
from tasks.executor.containers.kubernetes.scripts import (
    COPY,
    RECEIVE,
    agent_command,
    serve_command,
    wait_for_sockets,
)
from tasks.executor.containers.kubernetes.secret_objects import (
    IN_HELPER,
    LOGIN,
    VOLUME,
    variable_source,
    volume_body,
)
from tasks.executor.containers.mirrors import NO_MIRRORS, Mirrors
from tasks.executor.containers.request import SCRATCH_PATH, ContainerRequest
from tasks.executor.containers.settings import CHECKPOINT_FOLDER, PROCESSES_MAX, SOCKET_PATH, environment_of
from tasks.kinds.disk_room import BLOCK_BYTES, ENTRIES_MAX, ENTRY_BYTES, inodes_of

__all__ = [
    "AGENT",
    "HELPER",
    "LABEL_NODE",
    "LABEL_TASK",
    "MAIN",
    "RECEIVER",
    "Cluster",
    "TaskNamespace",
    "copy_room",
    "helper_pod",
    "helper_user",
    "job_body",
    "namespace_body",
    "namespace_of",
    "policy_body",
    "pull_pod",
    "quota_body",
]

LABEL_NODE: Final = "dekube.node"
LABEL_TASK: Final = "dekube.task"
ANNOTATION_TASK: Final = "dekube/task"
MANAGED: Final = "app.kubernetes.io/managed-by"
MAIN: Final = "main"
HELPER: Final = "outputs"
AGENT: Final = "files"
RECEIVER: Final = "inputs"
JOB: Final = "container"
NAME_BYTES_MAX: Final = 63
HELPER_MEMORY_MIB: Final = 64
EGRESS_MEMORY_MIB: Final = 96
"""Of a helper with a door for egress: windows and buffers of all its connections."""
HELPER_MILLICORES: Final = 100
HELPER_MILLICORES_MAX: Final = 1_000
"""A helper is quick when it moves data, and asks for little while it waits."""
STAGE_MIB: Final = 256
"""Room for pieces of the inputs that arrived and are not yet unpacked."""
SOCKET_MIB: Final = 1
AGENT_MIB: Final = 1
HELPER_PROCESSES: Final = 64
"""Processes of the pod that are not the requester's."""
NAMES_MIB: Final = 48
"""Room for the list of the files of a checkpoint: 65,536 lines, with names of 32 MiB (``helper_folder``)."""
HELPER_USER: Final = 65_533
LOG_MIB: Final = 64
"""What a container's log may take of its node's disk, beside the container's own disk."""
GRACE_S: Final = 5
"""How long a pod that is removed has to end: its container was asked to end before."""
LEAVE_S: Final = 120
"""How long a pod with a checkpoint has to end where the cluster takes it away: to write and to hand it over."""
START_SPARE_S: Final = 6 * 3_600
"""How much longer than its container a pod may live: for the images, the inputs and the outputs."""
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  paths inside the container


@dataclass(frozen=True)
class Cluster:
    """What an operator chose for the containers of this node in a cluster."""

    prefix: str = "dekube"
    helper_image: str = ""
    runtime_class: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    placement: Placement = ANYWHERE
    priority_class: str = ""
    storage_class: str = ""
    mirrors: Mirrors = NO_MIRRORS

    def pod_fields(self) -> dict[str, Any]:
        """Return the fields that all pods of this node have."""
        made = self.placement.pod_fields()
        if self.runtime_class:
            made["runtimeClassName"] = self.runtime_class
        if self.priority_class:
            made |= {"priorityClassName": self.priority_class, "preemptionPolicy": "Never"}
        return made


@dataclass(frozen=True)
class TaskNamespace:
    """Where a task's objects are: the namespace, and the labels by which they are found again."""

    namespace: str
    labels: Mapping[str, str]
    task: str

    @property
    def path(self) -> str:
        """The namespace in the API."""
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs(self) -> str:
        """The namespace's Jobs in the API."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    @property
    def policies(self) -> str:
        """The namespace's network policies in the API."""
        return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"


def namespace_of(prefix: str, node: bytes, task: bytes) -> TaskNamespace:
    """Return where the container of a task is. A name has 63 letters at most, so it has half of the task's id."""
    name = f"{prefix}-{node.hex()[:12]}-{task.hex()[:32]}"
    assert len(name) <= NAME_BYTES_MAX, "the prefix was checked when the options were read"
    labels = {LABEL_NODE: node.hex(), LABEL_TASK: task.hex()[:32], MANAGED: "dekube"}
    return TaskNamespace(name, labels, task.hex())


def namespace_body(place: TaskNamespace, *, level: str = "restricted") -> dict[str, Any]:
    """Return the namespace, in which pods that are not ``restricted`` are refused."""
    security = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn", "audit")}
    versions = {f"pod-security.kubernetes.io/{mode}-version": "latest" for mode in ("enforce", "warn", "audit")}
    return {
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": place.namespace, "labels": {**place.labels, **security, **versions},
            "annotations": {ANNOTATION_TASK: place.task},
        },
    }  # fmt: skip


def policy_body(
    place: TaskNamespace, name: str = "deny-all", types: tuple[str, ...] = ("Ingress", "Egress"),
    pods: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a policy that denies all traffic of these types for some pods, for all pods where none are named."""
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": dict(place.labels)},
        "spec": {"podSelector": {"matchLabels": dict(pods)} if pods else {}, "policyTypes": list(types)},
    }  # fmt: skip


def quota_body(place: TaskNamespace, cluster: Cluster) -> dict[str, Any]:
    """Return a quota of one pod and of nothing that opens a door: no service, and no storage but its disk."""
    claims = "1" if cluster.storage_class else "0"
    hard = {"pods": "1", "services": "0", "persistentvolumeclaims": claims, "count/jobs.batch": "1"}
    return {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "one-pod", "labels": dict(place.labels)}, "spec": {"hard": hard},
    }  # fmt: skip


def helper_user(user: int) -> int:
    """Return the user of the helper: not that of the container, which could stop what enters the helper."""
    return HELPER_USER if user != HELPER_USER else HELPER_USER - 1


def _security(user: int) -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "privileged": False,
        "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip


def _limits(millicores: int, memory_mib: int, disk_mib: int) -> dict[str, str]:
    return {
        "cpu": f"{millicores}m" if millicores else "0",
        "memory": f"{memory_mib}Mi",
        "ephemeral-storage": f"{disk_mib}Mi",
    }


def _resources(**values: str) -> dict[str, Any]:
    return {"limits": dict(values), "requests": dict(values)}


def _helper(
    name: str, image: str, script: str, user: int, mounts: list[dict[str, Any]],
    memory_mib: int = HELPER_MEMORY_MIB,
) -> dict[str, Any]:  # fmt: skip
    requests = _limits(HELPER_MILLICORES, memory_mib, LOG_MIB)
    return {
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", script],
        "securityContext": _security(user), "volumeMounts": mounts, "terminationMessagePolicy": "File",
        "resources": {"limits": requests | {"cpu": f"{HELPER_MILLICORES_MAX}m"}, "requests": requests},
    }  # fmt: skip


def _mount(volume: str, path: str, *, inner: str = "", read_only: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"name": volume, "mountPath": path, "readOnly": read_only}
    return made | ({"subPath": inner} if inner else {})


def main_container(request: ContainerRequest, cluster: Cluster) -> dict[str, Any]:
    """Return the requester's container."""
    limits = request.limits
    mounts = [_mount("disk", SCRATCH_PATH, inner="scratch"), _mount("shm", "/dev/shm")]  # noqa: S108
    mounts += [_mount("disk", path, inner="scratch/tmp") for path in _TEMPORARY]
    if request.output_path:
        mounts.append(_mount("disk", request.output_path, inner="output"))
    if request.checkpoint_path:
        mounts.append(_mount("disk", request.checkpoint_path, inner=CHECKPOINT_FOLDER))
    mounts.append(_mount("socket", SOCKET_PATH, read_only=True))
    for number, mount in enumerate(request.mounts):
        mounts.append(_mount("inputs", mount.path, inner=str(number), read_only=True))
    if request.secrets.files:
        mounts.append(_mount(VOLUME, SECRETS_FOLDER, read_only=True))
    # A pod is evicted when its volumes and logs exceed its containers' limits together, so inputs count too.
    here_mib = 0 if cluster.storage_class else limits.disk_mib
    stored_mib = here_mib + _inputs_mib(request) + STAGE_MIB + LOG_MIB
    if request.checkpoint_path:
        stored_mib += _copy_mib(request)
    given = _limits(limits.cores * 1_000, limits.memory_mib, stored_mib)
    if limits.gpus:
        given[cluster.gpu_resource] = str(limits.gpus)
    body: dict[str, Any] = {
        # ``Always``: an image that the login of another task brought is asked for at its registry by each task.
        "name": MAIN, "image": cluster.mirrors.source(request).reference, "imagePullPolicy": "Always",
        "securityContext": _security(request.user), "volumeMounts": mounts, "terminationMessagePolicy": "File",
        "env": _variables(request),
        "resources": _resources(**given), "stdin": False, "tty": False,
    }  # fmt: skip
    if request.command:
        body["command"] = [_literal(request.command[0])]
        body["args"] = [_literal(one) for one in request.command[1:]]
    return body


def _variables(request: ContainerRequest) -> list[dict[str, Any]]:
    """Return the variables; of those that are secret the name alone."""
    secret = {name for name, _ in request.secrets.variables}
    found = [text.partition("=") for text in environment_of(request, has_socket=True)]
    return [
        variable_source(name) if name in secret else {"name": name, "value": _literal(value)}
        for name, _, value in found if not (request.limits.gpus and name == "NVIDIA_VISIBLE_DEVICES")
    ]  # fmt: skip


def _inputs_mib(request: ContainerRequest) -> int:
    """Return the room for unpacked inputs: of a packed folder each file and folder may take a block more."""
    size = 0
    for mount in request.mounts:
        entries = min(ENTRIES_MAX, mount.size_bytes // ENTRY_BYTES + 1) if mount.is_folder else 1
        size += mount.size_bytes + entries * (BLOCK_BYTES + ENTRY_BYTES)
    return 1 + -(-size // (1 << 20))


def bounds_of(request: ContainerRequest) -> dict[str, int]:
    """Return how many processes, and files on its disk, a container may have: those of one on an engine (R165)."""
    restored = ENTRIES_MAX if request.checkpoint_path else 0
    return {
        "processes_max": PROCESSES_MAX + HELPER_PROCESSES,
        "files_max": inodes_of(request.limits.disk_mib, restored),
    }


def copy_room(request: ContainerRequest) -> int:
    """Return what the copy of a checkpoint takes at most (R149); a larger folder is not stored."""
    spare = ENTRIES_MAX * (BLOCK_BYTES + ENTRY_BYTES)
    return min(request.checkpoint_bytes + spare, request.limits.disk_mib << 20)


def _copy_mib(request: ContainerRequest) -> int:
    """Return the room for a copy of the checkpoint folder, and for the list of its names."""
    return -(-copy_room(request) // (1 << 20)) + NAMES_MIB


def _literal(text: str) -> str:
    """Return a text that the kubelet does not expand: it replaces ``$(NAME)``, and ``$$`` by ``$``."""
    return text.replace("$", "$$")


def pod_spec(request: ContainerRequest, cluster: Cluster) -> dict[str, Any]:
    """Return the pod of a container."""
    limits, user = request.limits, request.user
    disk, stage = _mount("disk", "/dekube/disk"), _mount("stage", "/dekube/stage")
    inputs, socket = _mount("inputs", "/dekube/inputs"), _mount("socket", "/dekube/socket")
    receives = [inputs, disk, stage, *([_mount(VOLUME, IN_HELPER)] if request.secrets.files else ())]
    receiver = _helper(RECEIVER, cluster.helper_image, RECEIVE, user, receives)
    # It reads the outputs; of a private container it overwrites them at the end, and the inputs.
    reads = [disk, inputs] if request.is_private else [_mount("disk", "/dekube/disk", read_only=True)]
    door, stays = _mount("agent", "/dekube/agent"), bool(request.checkpoint_path)
    copies = [_mount("copy", COPY)] if request.checkpoint_path else []
    agent = _helper(AGENT, cluster.helper_image, "", user, [*reads, door, *copies]) | {
        "command": [_literal(word) for word in agent_command(stays=stays, **bounds_of(request))],
    }
    memory_mib = EGRESS_MEMORY_MIB if request.egress else HELPER_MEMORY_MIB
    helper = _helper(HELPER, cluster.helper_image, "", helper_user(user), [stage, socket, door], memory_mib) | {
        "command": [_literal(word) for word in serve_command(stays=stays, egress=bool(request.egress))],
        # The kubelet starts containers one after the other, each when the hook of the one before has ended.
        "lifecycle": {
            "postStart": {"exec": {"command": ["/bin/sh", "-c", wait_for_sockets(egress=bool(request.egress))]}}
        },
    }

    def volume(name: str, size_mib: int, medium: str = "") -> dict[str, Any]:
        return {
            "name": name,
            "emptyDir": {"sizeLimit": f"{size_mib}Mi"} | ({"medium": medium} if medium else {}),
        }

    def claim(name: str, size_mib: int) -> dict[str, Any]:
        asked = {
            "accessModes": ["ReadWriteOnce"], "storageClassName": cluster.storage_class,
            "resources": {"requests": {"storage": f"{size_mib}Mi"}},
        }  # fmt: skip
        return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": asked}}}

    spec: dict[str, Any] = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "hostNetwork": False, "hostPID": False, "hostIPC": False, "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": LEAVE_S if request.checkpoint_path else GRACE_S, "dnsPolicy": "Default",
        "securityContext": {  # the pod's first process has this user: a container may not trace it
            "runAsNonRoot": True, "runAsUser": helper_user(user), "runAsGroup": helper_user(user), "fsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [receiver], "containers": [agent, helper, main_container(request, cluster)],
        "volumes": [
            claim("disk", limits.disk_mib) if cluster.storage_class else volume("disk", limits.disk_mib),
            volume("inputs", _inputs_mib(request)), volume("stage", STAGE_MIB),
            volume("socket", SOCKET_MIB), volume("agent", AGENT_MIB),
            *([volume("copy", _copy_mib(request))] if request.checkpoint_path else ()),
            volume("shm", max(1, limits.memory_mib // 2), "Memory"),
            *([volume_body()] if request.secrets.files else ()),
        ],
    }  # fmt: skip
    if request.secrets.login is not None:
        spec["imagePullSecrets"] = [{"name": LOGIN}]
    return spec | cluster.pod_fields()


def pod_body(request: ContainerRequest, cluster: Cluster, place: TaskNamespace) -> dict[str, Any]:
    """Return the pod alone, to ask the API server whether it would admit it."""
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": JOB, "labels": dict(place.labels)}, "spec": pod_spec(request, cluster),
    }  # fmt: skip


def helper_pod(name: str, script: str, cluster: Cluster, place: TaskNamespace, user: int) -> dict[str, Any]:
    """Return a pod of its own with the helper's image, to look at the cluster with."""
    container = _helper("helper", cluster.helper_image, script, user, [])
    spec: dict[str, Any] = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1, "containers": [container],
    }  # fmt: skip
    spec |= cluster.pod_fields()
    labels = {**place.labels, "dekube.canary": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def pull_pod(request: ContainerRequest, cluster: Cluster, place: TaskNamespace) -> dict[str, Any]:
    """Return a pod that brings an image to a machine of the cluster and runs nothing of it.

    Its command is in no image, so the container is made and fails to start.
    """
    made = _helper(MAIN, cluster.mirrors.source(request).reference, "", request.user, [])
    body = helper_pod(MAIN, "", cluster, place, request.user)
    body["spec"]["containers"] = [
        made | {"command": ["/dekube-no-such-program"], "imagePullPolicy": "Always"}
    ]  # fmt: skip
    if request.secrets.login is not None:
        body["spec"]["imagePullSecrets"] = [{"name": LOGIN}]
    return body


def job_body(request: ContainerRequest, cluster: Cluster, place: TaskNamespace) -> dict[str, Any]:
    """Return the Job, which makes one pod and never a second one."""
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": JOB, "labels": dict(place.labels), "annotations": {ANNOTATION_TASK: place.task}},
        "spec": {
            "backoffLimit": 0, "completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": request.limits.time_limit_s + START_SPARE_S,
            "template": {
                "metadata": {"labels": dict(place.labels), "annotations": {ANNOTATION_TASK: place.task}},
                "spec": pod_spec(request, cluster),
            },
        },
    }  # fmt: skip
