"""What a cluster says, and the kubeconfig by which it is reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from state.primitives.errors import DecodeError
from tasks.executor.containers.errors import ContainerRefused, EngineError
from tasks.executor.containers.kubernetes.access import decode_kubeconfig
from tasks.executor.containers.kubernetes.api import decode_object
from tasks.executor.containers.kubernetes.egress_link import check_egress_head
from tasks.executor.containers.kubernetes.exec_stream import status_of
from tasks.executor.containers.kubernetes.inventory import Inventory, Stock, take_stock
from tasks.executor.containers.kubernetes.link import USAGE, Frame, FrameReader, decode_use, encode_frame
from tasks.executor.containers.kubernetes.refusals import read_refusal
from tasks.executor.containers.kubernetes.states import read_pod
from tests.fuzz.targets.base import Target

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KUBECONFIG = b"""apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443", certificate-authority-data: "Y2E="}}]
users: [{name: u, user: {token: abc}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
PROXIED = KUBECONFIG.replace(b'6443"', b'6443", proxy-url: "http://u:p@proxy.example:3128"')
POD = json.dumps({
    "metadata": {"name": "container-x", "uid": "1", "labels": {}},
    "spec": {"nodeName": "m"},
    "status": {
        "phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": [{"name": "inputs", "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [
            {"name": "main", "state": {"terminated": {
                "exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-01-02T03:04:00Z",
                "finishedAt": "2026-01-02T03:04:04Z",
            }}},
            {"name": "outputs", "state": {"running": {"startedAt": "2026-01-02T03:04:00Z"}}},
            {"name": "files", "state": {"running": {"startedAt": "2026-01-02T03:04:00Z"}}},
        ],
    },
}).encode()  # fmt: skip
STATUS = b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"4"}]}}'
REFUSAL = b'{"items":[{"reason":"FailedCreate","message":"pods \\"a\\" is forbidden: exceeded quota: b"}]}'
MACHINE = json.dumps({
    "metadata": {"name": "m", "labels": {"nvidia.com/gpu.product": "A", "nvidia.com/gpu.memory": "40960"}},
    "spec": {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "2"},
    },
}).encode()  # fmt: skip
ASKING = json.dumps({
    "metadata": {"name": "p", "namespace": "n"},
    "spec": {
        "nodeName": "m", "overhead": {"cpu": "10m"},
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        "containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi", "nvidia.com/gpu": "1"}}}],
    },
    "status": {"phase": "Running", "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]},
}).encode()  # fmt: skip
HERE = "tasks.executor.containers.kubernetes"


def stocked(data: bytes) -> Inventory:
    """Count a machine and a pod of the same form: neither ever ends the count."""
    found = decode_object(data)
    return take_stock([found], [found], Stock("ours"))


FRAMES = b"".join(map(encode_frame, (
    Frame(1, 1), Frame(1, 2, b"GET / HTTP/1.1\r\n\r\n"), Frame(1, 3), Frame(0, 5, bytes(16)), Frame(1, 4),
)))  # fmt: skip
EGRESS_FRAMES = b"".join(map(encode_frame, (
    Frame(1, 1), Frame(1, 2, b"CONNECT a.b:443 HTTP/1.1\r\n\r\n"), Frame(1, 5, bytes(4)), Frame(1, 3), Frame(0, 6),
)))  # fmt: skip


def _read_frames(data: bytes) -> None:
    for frame in FrameReader().feed(data):
        if frame.kind == USAGE:
            decode_use(frame.data)


def targets() -> Iterator[tuple[str, Target]]:
    yield "a kubeconfig", Target(
        lambda data: decode_kubeconfig(data, Path("/nowhere")), (KUBECONFIG, PROXIED),
        (f"{HERE}.access:decode_kubeconfig", f"{HERE}.proxying:decode_proxy"), (ContainerRefused,), cost=8,
    )  # fmt: skip
    yield (
        "an inventory of a cluster",
        Target(stocked, (MACHINE, ASKING), (f"{HERE}.inventory:take_stock",), (EngineError,)),
    )
    yield "a pod of a cluster", Target(
        lambda data: read_pod(decode_object(data), NOW), (POD,),
        (f"{HERE}.api:decode_object", f"{HERE}.states:read_pod"), (EngineError,),
    )  # fmt: skip
    yield "why a Job has no pod", Target(
        lambda data: read_refusal(decode_object(data)), (REFUSAL,),
        (f"{HERE}.api:decode_object", f"{HERE}.refusals:read_refusal"), (EngineError,),
    )  # fmt: skip
    yield "frames of a helper", Target(
        _read_frames, (FRAMES, encode_frame(Frame(0, 5))),
        (f"{HERE}.link:FrameReader.feed", f"{HERE}.link:decode_use", f"{HERE}.link:check_head"), (DecodeError,),
    )  # fmt: skip
    yield "frames of a helper's egress", Target(
        lambda data: FrameReader(check_egress_head).feed(data), (EGRESS_FRAMES,),
        (f"{HERE}.link:FrameReader.feed", f"{HERE}.egress_link:check_egress_head"), (DecodeError,),
    )  # fmt: skip
    yield (
        "the end of a command in a pod",
        Target(status_of, (STATUS, b'{"status":"Success"}'), (f"{HERE}.exec_stream:status_of",), (EngineError,)),
    )
