"""A small network plugin for the cluster of this machine: policies that deny become rules of iptables.

The cluster that the tests start accepts policies and enforces none. With this beside it, it is one that does.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.kubernetes.machine import Cluster

CHAIN: Final = "KUBE-TEST-POLICIES"
BRIDGED: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


@asynccontextmanager
async def enforced(cluster: Cluster, kinds: tuple[str, ...] = ("Ingress", "Egress")) -> AsyncIterator[None]:
    """Enforce policies of these kinds meanwhile. Skips where bridges do not ask the rules of iptables."""
    if not cluster.is_own or not BRIDGED.exists() or BRIDGED.read_text().strip() != "1":
        pytest.skip("no policy can be enforced here: net.bridge.bridge-nf-call-iptables is not 1")
    _rules("-N", CHAIN)
    _rules("-I", "FORWARD", "-j", CHAIN)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_enforce, cluster, kinds)
            yield
            nursery.cancel_scope.cancel()
    finally:
        _rules("-D", "FORWARD", "-j", CHAIN)
        _rules("-F", CHAIN)
        _rules("-X", CHAIN)


async def _enforce(cluster: Cluster, kinds: tuple[str, ...]) -> None:
    while True:
        rules = await trio.to_thread.run_sync(lambda: sorted(set(_wanted(cluster, kinds))))
        _rules("-F", CHAIN)
        for rule in rules:
            _rules("-A", CHAIN, *rule, "-j", "DROP")
        await trio.sleep(0.5)


def _wanted(cluster: Cluster, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    policies = json.loads(cluster.kubectl("get", "networkpolicies", "-A", "-o", "json"))["items"]
    pods = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"] if policies else []
    for policy in policies:
        for pod in pods:
            address = pod["status"].get("podIP")
            if not address or not _is_meant(policy, pod):
                continue
            if "Egress" in policy["spec"]["policyTypes"] and "Egress" in kinds:
                yield "-s", address
            if "Ingress" in policy["spec"]["policyTypes"] and "Ingress" in kinds:
                yield "-d", address


def _is_meant(policy: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    wanted = policy["spec"]["podSelector"].get("matchLabels", {})
    labels = pod["metadata"].get("labels", {})
    same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and all(labels.get(name) == value for name, value in wanted.items())


def _rules(*arguments: str) -> None:
    subprocess.run(["iptables", "-w", *arguments], check=True, capture_output=True)
