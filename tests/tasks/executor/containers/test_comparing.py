"""What a cluster may change of a pod, and what it may not: each change that opens a door is found (R143)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.executor.containers.errors import SettingsDiffer
from tasks.executor.containers.kubernetes.comparing import check_pod
from tasks.executor.containers.kubernetes.manifests import MAIN, pod_spec
from tasks.executor.containers.kubernetes.placement import parse_placement
from tasks.executor.containers.request import ContainerRequest
from tests.tasks.executor.containers.test_kubernetes_pure import CLUSTER, REQUESTS, request

HOST: Final = {"name": "host", "hostPath": {"path": "/"}}
TOKEN: Final = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
POD_CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"hostNetwork": True}, {"hostPID": True}, {"hostIPC": True}, {"hostAliases": [{"ip": "1.2.3.4"}]},
    {"automountServiceAccountToken": True}, {"enableServiceLinks": True}, {"shareProcessNamespace": False},
    {"runtimeClassName": "weaker"}, {"resourceClaims": [{"name": "gpu"}]}, {"dnsPolicy": "ClusterFirst"},
    {"dnsConfig": {"nameservers": ["1.2.3.4"]}}, {"hostname": "other"}, {"activeDeadlineSeconds": 1},
    {"ephemeralContainers": [{"name": "debug", "image": "other"}]}, {"restartPolicy": "Always"},
    {"terminationGracePeriodSeconds": 100_000}, {"a_field_of_later": 1},
)  # fmt: skip
SECURITY: Final[tuple[dict[str, Any], ...]] = (
    {"runAsUser": 0}, {"runAsGroup": 0}, {"runAsNonRoot": False}, {"seccompProfile": {"type": "Unconfined"}},
    {"seccompProfile": {"type": "Localhost", "localhostProfile": "open"}},
    {"seLinuxOptions": {"type": "spc_t"}}, {"appArmorProfile": {"type": "Unconfined"}},
    {"windowsOptions": {"hostProcess": True}},
)  # fmt: skip
POD_SECURITY: Final[tuple[dict[str, Any], ...]] = (
    *SECURITY, {"supplementalGroups": [0]}, {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
    {"fsGroup": 0}, {"fsGroupChangePolicy": "a later one"},
)  # fmt: skip
CONTAINER_SECURITY: Final[tuple[dict[str, Any], ...]] = (
    *SECURITY, {"privileged": True}, {"allowPrivilegeEscalation": True}, {"readOnlyRootFilesystem": False},
    {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, {"capabilities": {"drop": []}},
    {"capabilities": None}, {"procMount": "Unmasked"},
)  # fmt: skip
CONTAINER_CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"image": "other"}, {"command": ["/other"]}, {"args": ["other"]}, {"workingDir": "/other"},
    {"envFrom": [{"secretRef": {"name": "other"}}]}, {"ports": [{"containerPort": 1, "hostPort": 1}]},
    {"readinessProbe": {"exec": {"command": ["a"]}}}, {"livenessProbe": {"exec": {"command": ["a"]}}},
    {"startupProbe": {"exec": {"command": ["a"]}}}, {"lifecycle": {"preStop": {"exec": {"command": ["a"]}}}},
    {"volumeDevices": [{"name": "disk", "devicePath": "/dev/sda"}]}, {"restartPolicy": "Always"},
    {"imagePullPolicy": "Never"}, {"stdin": True}, {"tty": True}, {"terminationMessagePath": "/scratch/said"},
    {"securityContext": None}, {"resources": {}}, {"a_field_of_later": {"one": 1}},
)  # fmt: skip
DEFAULTS: Final[dict[str, Any]] = {
    "nodeName": "machine-1", "schedulerName": "default-scheduler", "serviceAccountName": "default",
    "serviceAccount": "default", "priority": -1_000, "imagePullSecrets": [{"name": "of-the-cluster"}],
    "affinity": {"nodeAffinity": {}}, "hostUsers": False,
}  # fmt: skip


def hostile(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what somebody could make of a pod, each with its name."""

    def changed() -> dict[str, Any]:
        return copy.deepcopy(spec)

    for change in POD_CHANGES:
        yield str(change), changed() | change
    for change in POD_SECURITY:
        made = changed()
        made["securityContext"] |= change
        yield f"securityContext {change}", made
    for kind in ("initContainers", "containers"):
        for number, _ in enumerate(spec[kind]):
            for change in (*CONTAINER_CHANGES, *({"securityContext": one} for one in CONTAINER_SECURITY)):
                made = changed()
                one = made[kind][number]
                inner = change.get("securityContext")
                one |= {"securityContext": one["securityContext"] | inner} if inner else change
                yield f"{one['name']}: {change}", made
            for name, value in (
                ("env", {"name": "LD_PRELOAD", "value": "/scratch/a.so"}),
                ("volumeMounts", {"name": "disk", "mountPath": "/other"}),
            ):
                made = changed()
                made[kind][number][name] = [*(made[kind][number].get(name) or []), value]
                yield f"{name} {value}", made
            for change in ({"mountPropagation": "Bidirectional"}, {"subPathExpr": "$(A)"}, {"mountPath": "/x"}):
                made = changed()
                made[kind][number]["volumeMounts"][0] |= change
                yield str(change), made
        made = changed()
        made[kind].append({"name": "mesh", "image": "mesh"})
        yield f"one more of {kind}", made
    for volume in (HOST, TOKEN):
        yield str(volume), changed() | {"volumes": [*spec["volumes"], volume]}
        made = changed()
        made["volumes"][0] = {
            "name": made["volumes"][0]["name"],
            **{k: v for k, v in volume.items() if k != "name"},
        }
        yield f"{volume} in place of a disk", made
    made = changed()
    made["volumes"][0]["hostPath"] = HOST["hostPath"]
    yield "a path beside a disk", made


@settings(max_examples=20)
@given(REQUESTS, st.data())
def test_n65_each_change_that_opens_a_door_is_found(made: ContainerRequest, data: st.DataObject) -> None:
    spec = pod_spec(made, CLUSTER)
    _, other = data.draw(st.sampled_from(list(hostile(spec))), label="change")
    with pytest.raises(SettingsDiffer):
        check_pod(spec, {"spec": other})


def test_n65_each_of_them_is_found_in_one_pod() -> None:
    spec, found = pod_spec(request(command=()), CLUSTER), list[str]()
    every = list(hostile(spec))
    for name, other in every:
        try:
            check_pod(spec, {"spec": other})
        except SettingsDiffer:
            continue
        found.append(name)
    assert found == [] and len(every) > 100


def _inner(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _inner(one)
    elif isinstance(value, list):
        for one in value:
            yield from _inner(one)


@given(REQUESTS, st.data())
def test_n65_no_unknown_field_is_taken_anywhere(made: ContainerRequest, data: st.DataObject) -> None:
    spec = pod_spec(made, CLUSTER)
    other = copy.deepcopy(spec)
    place = data.draw(st.sampled_from(list(_inner(other))), label="place")
    place["aFieldOfLater"] = data.draw(st.sampled_from([1, 0, "a", True, [1], {"a": 1}]))
    with pytest.raises(SettingsDiffer, match="aFieldOfLater"):
        check_pod(spec, {"spec": other})


@pytest.mark.parametrize(
    "name", ["k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", "cdi.k8s.io/gpu",
             f"container.apparmor.security.beta.kubernetes.io/{MAIN}"],
)  # fmt: skip
def test_n65_no_annotation_gives_a_pod_another_network_or_filter(name: str) -> None:
    spec = pod_spec(request(), CLUSTER)
    with pytest.raises(SettingsDiffer, match="annotations"):
        check_pod(spec, {"metadata": {"annotations": {name: "x"}}, "spec": spec})


@given(REQUESTS)
def test_what_clusters_add_to_each_pod_is_taken(made: ContainerRequest) -> None:
    spec = pod_spec(made, CLUSTER)
    other = copy.deepcopy(spec) | DEFAULTS
    other["tolerations"] = [
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}
    ]
    other["securityContext"]["supplementalGroupsPolicy"] = "Merge"
    for one in [*other["initContainers"], *other["containers"]]:
        one |= {"terminationMessagePath": "/dev/termination-log", "workingDir": "", "ports": []}
        one["volumeMounts"][0]["recursiveReadOnly"] = "Disabled"
        for name in ("stdin", "tty"):
            one.pop(name, None)
    check_pod(spec, {"metadata": {"annotations": {"cni.projectcalico.org/podIP": "1.2.3.4"}}, "spec": other})


def test_a_cluster_adds_labels_of_machines_to_those_that_were_ordered_and_takes_none_away() -> None:
    spec = pod_spec(request(), replace(CLUSTER, placement=parse_placement(("pool=market",), ())))
    check_pod(spec, {"spec": spec | {"nodeSelector": {"pool": "market", "arch": "amd64"}}})
    with pytest.raises(SettingsDiffer, match=r"nodeSelector\.pool"):
        check_pod(spec, {"spec": spec | {"nodeSelector": {"arch": "amd64"}}})
