"""A cluster whose webhook changes pods: those that are weaker do not get a byte of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import SettingsDiffer
from tests.kubernetes.machine import NODE, Cluster
from tests.kubernetes.webhook import changing_pods

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(2, 34))
MESH = {
    "name": "mesh", "image": "example.test/mesh", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
    "securityContext": {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
        "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"},
    },
}  # fmt: skip
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("containers", {"op": "add", "path": "/spec/containers/-", "value": MESH}),
    ("readinessProbe", {"op": "add", "path": "/spec/containers/2/readinessProbe",
                        "value": {"exec": {"command": ["/bin/sh", "-c", "cat /scratch/key"]}}}),
    ("networks", {"op": "add", "path": "/metadata/annotations",
                  "value": {"k8s.v1.cni.cncf.io/networks": "host"}}),
)  # fmt: skip


async def test_n65_a_pod_that_a_webhook_has_weakened_gets_no_job(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.is_own:
        pytest.skip("only the API server of a cluster of this machine reaches the webhook")
    backend = cluster.shown()
    request = cluster.request("echo ran", output_path="")
    with changing_pods(cluster, NODE, tmp_path / "webhook") as webhook:
        for name, change in CHANGES:
            webhook.patch = [change]
            with pytest.raises(SettingsDiffer, match=name):
                await backend.start(TASK, request)
            assert await backend.running() == frozenset()
        # What only says where it runs, and who schedules it, changes nothing for the job.
        webhook.patch = [
            {"op": "add", "path": "/metadata/labels/team", "value": "a"},
            {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/os": "linux"}},
            {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a", "operator": "Exists"}},
        ]
        await backend.start(TASK, request)
        ended = await backend.watch(TASK, request, lambda _look: None)
        assert webhook.asked >= 4
    assert (ended.end, ended.code) == (End.EXITED, 0)
    assert (await backend.collect(TASK, request, str(tmp_path / "packed"))).log == b"ran\n"
    await backend.remove(TASK)
    await backend.aclose()
