"""Objects of a cluster, how they are compared, and what a pod's status says."""

from __future__ import annotations

import base64
import copy
import io
import json
import math
import tarfile
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.errors import ContainerRefused, EngineError, EngineUnavailable, SettingsDiffer
from tasks.executor.containers.kubernetes.access import decode_kubeconfig, in_cluster
from tasks.executor.containers.kubernetes.comparing import check_made, check_pod
from tasks.executor.containers.kubernetes.data_path import archive_of, pieces_of
from tasks.executor.containers.kubernetes.drift import changed_part, is_policy
from tasks.executor.containers.kubernetes.exec_stream import status_of
from tasks.executor.containers.kubernetes.inventory import pod_amounts
from tasks.executor.containers.kubernetes.manifests import (
    AGENT,
    HELPER,
    MAIN,
    Cluster,
    helper_pod,
    job_body,
    namespace_body,
    namespace_of,
    pod_spec,
    policy_body,
    pull_pod,
    quota_body,
)
from tasks.executor.containers.kubernetes.placement import parse_placement
from tasks.executor.containers.kubernetes.quantities import amount
from tasks.executor.containers.kubernetes.refusals import read_refusal
from tasks.executor.containers.kubernetes.secret_objects import login_body
from tasks.executor.containers.kubernetes.states import Exit, Stage, Trouble, read_pod
from tasks.executor.containers.outages import through_outage
from tasks.executor.containers.request import ContainerRequest, Image, InputMount, Limits
from tests.fuzz.targets.kubernetes import KUBECONFIG, NOW, POD

GPU = "nvidia.com/gpu"
NODE, TASK = b"\x01" * 20, bytes(range(32))
CLUSTER = Cluster(helper_image="example.test/helper@sha256:" + "0" * 64)
PLACE = namespace_of("dekube", NODE, TASK)


def request(**fields: Any) -> ContainerRequest:
    limits = fields.pop("limits", Limits(cores=2, memory_mib=64, disk_mib=64, output_bytes=1, time_limit_s=9))
    return ContainerRequest(Image("example.test/a", bytes(32)), limits, **fields)


REQUESTS = st.builds(
    request,
    command=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
                     max_size=4).map(tuple),
    environment=st.lists(st.sampled_from(["A=$(HOME)", "B=$$x", "C=1000m", "D="]), unique=True).map(tuple),
    mounts=st.sampled_from([(), (InputMount(bytes(32), "/in", 1 << 30, is_folder=False),)]),
    user=st.integers(1, 65_535),
)  # fmt: skip


@given(REQUESTS)
def test_every_pod_is_restricted(made: ContainerRequest) -> None:
    spec = pod_spec(made, CLUSTER)
    assert spec["automountServiceAccountToken"] is False and spec["restartPolicy"] == "Never"
    assert not (spec["hostNetwork"] or spec["hostPID"] or spec["hostIPC"])
    for one in [*spec["initContainers"], *spec["containers"]]:
        security = one["securityContext"]
        assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"] and not security["privileged"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert set(one["resources"]["limits"]) == set(one["resources"]["requests"])
    main = spec["containers"][-1]["resources"]
    assert main["limits"] == main["requests"], "a container gets what it asked for, no more and no less"
    assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
    assert all(volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"])
    assert json.loads(json.dumps(spec)) == spec


@given(REQUESTS)
def test_n64_no_command_of_the_node_runs_under_the_user_of_a_container(made: ContainerRequest) -> None:
    spec = pod_spec(made, CLUSTER)
    by_name = {one["name"]: one for one in spec["containers"]}
    assert by_name[HELPER]["securityContext"]["runAsUser"] not in (0, made.user)
    assert by_name[AGENT]["securityContext"]["runAsUser"] == made.user
    assert by_name[HELPER]["securityContext"]["runAsGroup"] != made.user
    programs = {one["name"] for one in by_name[HELPER]["volumeMounts"]}
    assert not programs & {"disk", "inputs", "secrets"}, "it needs none of the container's files"
    shared = {one["name"] for name in (AGENT, MAIN) for one in by_name[name]["volumeMounts"]}
    assert "stage" not in shared, "there the helper's programs are"
    assert [one["name"] for one in spec["containers"]][-1] == MAIN, "nothing starts beside it"


@given(REQUESTS)
def test_no_pod_is_evicted_for_what_its_volumes_may_hold(made: ContainerRequest) -> None:
    spec = pod_spec(made, CLUSTER)
    allowed = sum(amount(one["resources"]["limits"]["ephemeral-storage"]) for one in spec["containers"])
    on_disk = (one["emptyDir"] for one in spec["volumes"] if one["emptyDir"].get("medium") != "Memory")
    assert sum(amount(one["sizeLimit"]) for one in on_disk) <= allowed


@given(REQUESTS)
def test_no_word_of_a_requester_is_expanded(made: ContainerRequest) -> None:
    container = pod_spec(made, CLUSTER)["containers"][-1]
    words = [*container.get("command", ()), *container.get("args", ())]
    assert tuple(word.replace("$$", "$") for word in words) == made.command
    assert all("$" not in word.replace("$$", "") for word in words)


def test_pods_go_where_their_operator_wants_them_and_give_way_to_all_others() -> None:
    placement = parse_placement(("pool=market",), ("gpu=yes:NoSchedule", "spot"))
    made = replace(CLUSTER, placement=placement, priority_class="below", runtime_class="gvisor")
    for spec in (pod_spec(request(), made), helper_pod("a", "true", made, PLACE, 1)["spec"]):
        assert spec["nodeSelector"] == {"pool": "market"}
        assert spec["tolerations"] == [
            {"operator": "Equal", "key": "gpu", "value": "yes", "effect": "NoSchedule"},
            {"operator": "Exists", "key": "spot"},
        ]
        assert (spec["priorityClassName"], spec["preemptionPolicy"]) == ("below", "Never")
        assert spec["runtimeClassName"] == "gvisor"
    assert not {"nodeSelector", "tolerations", "priorityClassName"} & set(pod_spec(request(), CLUSTER))
    spec = pod_spec(request(), made)
    added = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}]
    check_pod(spec, {"spec": {**spec, "tolerations": [*spec["tolerations"], *added]}})
    with pytest.raises(SettingsDiffer, match="tolerations"):
        check_pod(spec, {"spec": {**spec, "tolerations": added}})
    with pytest.raises(SettingsDiffer, match="priorityClassName"):
        check_pod(spec, {"spec": {**spec, "priorityClassName": "above"}})


def test_a_disk_of_a_storage_class_is_the_only_claim() -> None:
    made = replace(CLUSTER, storage_class="fast")
    spec = pod_spec(request(), made)
    assert [name for volume in spec["volumes"] for name in volume if name != "name"].count("ephemeral") == 1
    claim = spec["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "fast" and claim["resources"]["requests"]["storage"] == "64Mi"
    assert quota_body(PLACE, made)["spec"]["hard"]["persistentvolumeclaims"] == "1"
    assert quota_body(PLACE, CLUSTER)["spec"]["hard"]["persistentvolumeclaims"] == "0"
    here, there = (pod_amounts(pod_spec(request(), one), GPU).disk for one in (CLUSTER, made))
    assert here - there == 64 << 20, "its disk is not the machine's"


def test_what_a_pod_asks_for_is_what_is_counted() -> None:
    limits = Limits(cores=2, memory_mib=256, disk_mib=64, output_bytes=1, time_limit_s=9, gpus=3)
    found = pod_amounts(pod_spec(request(limits=limits), CLUSTER), GPU)
    assert (found.millicores, found.memory, found.gpus, found.pods) == (2_200, 384 << 20, 3, 1)


@given(REQUESTS)
def test_a_job_makes_one_pod(made: ContainerRequest) -> None:
    spec = job_body(made, CLUSTER, PLACE)["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)


def test_n38_all_traffic_is_denied_both_ways() -> None:
    policy = policy_body(PLACE)["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    labels = namespace_body(PLACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert all(len(name) <= 63 for name in (PLACE.namespace, *labels.values()))


def test_what_a_server_made_is_compared() -> None:
    ordered = job_body(request(), CLUSTER, PLACE)
    made = copy.deepcopy(ordered)
    made["metadata"]["uid"] = "1"
    made["spec"]["template"]["spec"]["containers"][-1]["resources"]["limits"]["cpu"] = "2"
    made["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    del made["spec"]["template"]["spec"]["hostNetwork"]
    check_made(ordered, made)


@pytest.mark.parametrize(
    "path", [("hostNetwork",), ("containers", 0, "image"), ("volumes",), ("shareProcessNamespace",),
             ("securityContext", "runAsUser"), ("containers", 0, "securityContext", "capabilities", "drop")],
)  # fmt: skip
def test_each_difference_is_found(path: tuple[Any, ...]) -> None:
    ordered = pod_spec(request(), CLUSTER)
    made = copy.deepcopy(ordered)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    was = inner[path[-1]]
    inner[path[-1]] = not was if isinstance(was, bool) else [*was, {}] if isinstance(was, list) else 0
    with pytest.raises(SettingsDiffer):
        check_pod(ordered, {"spec": made})


def test_what_was_added_to_a_container_is_found() -> None:
    ordered = pod_spec(request(), CLUSTER)
    for name, value in (("lifecycle", {"postStart": {}}), ("envFrom", [{}]), ("ports", [{}])):
        made = copy.deepcopy(ordered)
        made["containers"][0][name] = value
        with pytest.raises(SettingsDiffer):
            check_pod(ordered, {"spec": made})


def _pod(**status: Any) -> dict[str, Any]:
    found = json.loads(POD)
    found["status"] |= status
    return dict(found)


def _main(**state: Any) -> list[dict[str, Any]]:
    others: list[dict[str, Any]] = [{"name": name, "state": {"running": {}}} for name in (HELPER, AGENT)]
    return [{"name": "main", "state": state}, *others]


def test_the_end_of_a_container_is_read() -> None:
    pod = read_pod(json.loads(POD), NOW)
    assert pod.stage is Stage.ENDED and pod.up_s == 4 and pod.has_helper
    assert pod.exit == Exit(9, is_signal=True, is_out_of_memory=True)


@pytest.mark.parametrize(
    ("status", "stage", "trouble"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "Usage of EmptyDir volume \"disk\" exceeds the limit",
          "containerStatuses": []}, Stage.GONE, Trouble.DISK),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage.",
          "containerStatuses": []}, Stage.GONE, Trouble.EVICTED),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, Stage.ENDED, Trouble.EVICTED),
        ({"containerStatuses": _main(waiting={"reason": "ErrImagePull", "message": "no"})}, Stage.STARTING,
         Trouble.PULL),
        ({"containerStatuses": _main(waiting={"reason": "RunContainerError"})}, Stage.STARTING, Trouble.START),
        ({"containerStatuses": _main(terminated={"reason": "StartError", "exitCode": 128}), "phase": "Running"},
         Stage.STARTING, Trouble.START),
        ({"containerStatuses": _main(running={"startedAt": "2026-01-02T03:04:00Z"})}, Stage.RUNNING, Trouble.NONE),
        ({"containerStatuses": [], "initContainerStatuses": [], "phase": "Pending",
          "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1"}]}, Stage.WAITING,
         Trouble.NO_MACHINE),
    ],
)  # fmt: skip
def test_each_state_of_a_pod_is_named(status: dict[str, Any], stage: Stage, trouble: Trouble) -> None:
    pod = read_pod(_pod(**status), NOW)
    assert (pod.stage, pod.trouble) == (stage, trouble)


NAMES = st.sampled_from(["name", "uid", "phase", "state", "reason", "conditions", "containerStatuses"])
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner),
)


@given(ANYTHING)
def test_a_pod_of_another_form_is_refused(status: Any) -> None:
    try:
        read_pod({"metadata": {"name": "a", "uid": "b"}, "status": status}, datetime.now(UTC))
    except EngineError:
        pass


def test_a_kubeconfig_is_read_and_no_command_of_it_is_run() -> None:
    access = decode_kubeconfig(KUBECONFIG, Path("/"))
    assert (access.server, access.token, access.ca_pem) == ("https://10.0.0.1:6443", "abc", b"ca")
    assert "abc" not in repr(access)
    for bad in (b"user: {exec: {command: sh}}", b"user: {username: a, password: b}"):
        with pytest.raises(ContainerRefused, match="not taken"):
            decode_kubeconfig(KUBECONFIG.replace(b"user: {token: abc}", bad), Path("/"))
    for server in (
        b"http://10.0.0.1:6443",
        b"https://[10.0.0.1",
        b"https://10.0.0.1:port",
        b"https://10.0.0.1:70000",
    ):
        with pytest.raises(ContainerRefused, match="https"):
            decode_kubeconfig(KUBECONFIG.replace(b"https://10.0.0.1:6443", server), Path("/"))


async def test_an_outage_is_waited_for_and_told_and_not_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    away: list[float] = []

    async def call(until: float) -> str:
        if trio.current_time() < until:
            raise EngineUnavailable("away")
        return "there"

    def is_away() -> None:
        away.append(trio.current_time())

    began = trio.current_time()
    assert await through_outage(partial(call, began + 5), 10, 2, is_away) == "there"
    assert [at - began for at in away] == [0, 2, 4]
    with pytest.raises(EngineUnavailable):
        await through_outage(partial(call, math.inf), 10, 2)
    assert 10 < trio.current_time() - began - 6 <= 14


def test_the_account_of_a_pod_is_read(tmp_path: Path) -> None:
    with pytest.raises(ContainerRefused, match="does not run in a pod"):
        in_cluster(tmp_path, {})
    (tmp_path / "ca.crt").write_text("ca")
    (tmp_path / "token").write_text("first\n")
    access = in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert (access.server, access.bearer()) == ("https://[fd00::1]:6443", "first")
    (tmp_path / "token").write_text("second")
    assert access.bearer() == "second", "a renewed token is not seen"


def test_the_end_of_a_command_is_read() -> None:
    assert status_of(b'{"status":"Success"}') == 0
    assert status_of(b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}') == 7
    with pytest.raises(EngineError):
        status_of(b'{"status":"Failure","message":"container not found"}')


@pytest.mark.parametrize(
    ("text", "thousandths"), [("1", 1000), ("100m", 100), ("1Ki", 1024_000), ("x", 0), ("", 0)]
)
def test_quantities(text: str, thousandths: int) -> None:
    assert amount(text) == thousandths


@given(st.lists(st.binary(max_size=3 << 10), max_size=4), st.integers(1, 2048))
def test_the_archive_of_inputs_is_the_same_each_time(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], size: int
) -> None:
    folder = tmp_path_factory.mktemp("inputs")
    places = []
    for number, content in enumerate(contents):
        place = folder / str(number)
        if number % 2:
            place.mkdir()
            (place / ("ä" * 60)).write_bytes(content)
        else:
            place.write_bytes(content)
        places.append(place)
    whole = b"".join(archive_of(places))
    assert whole == b"".join(archive_of(places)) == b"".join(pieces_of(archive_of(places)))
    with tarfile.open(fileobj=io.BytesIO(whole)) as packed:
        files = [packed.extractfile(one) for one in packed if one.isreg()]
        assert [file.read() for file in files if file is not None] == contents


def _failed(message: str) -> dict[str, str]:
    return {"reason": "FailedCreate", "message": message}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([_failed('pods "a" is forbidden:\nexceeded quota: small')], "exceeded quota"),
        ([_failed("status unknown for quota: small")], ""),
        ([_failed("no serviceaccount yet"), _failed("no")], "no"),
        ([{"reason": "Other", "message": "exceeded quota"}, 1, None, {"reason": "FailedCreate"}], ""),
        (None, ""),
    ],
    ids=["quota", "quota is new", "first passes", "others", "none"],
)  # fmt: skip
def test_the_refusal_of_a_job_is_read_from_its_events(items: object, expected: str) -> None:
    found = read_refusal({"items": items})
    assert expected in found and bool(found) == bool(expected) and "\n" not in found


def test_no_value_of_a_secret_is_in_a_pod() -> None:
    secrets = ContainerSecrets(
        [("HOME", "value-1"), ("TOKEN", "value-2")], [("/run/secrets/a", b"value-3")], ("u", "value-4")
    )
    made = request(secrets=secrets, environment=("PLAIN=x",))
    for body in (job_body(made, CLUSTER, PLACE), pull_pod(made, CLUSTER, PLACE)):
        assert "value-" not in json.dumps(body)
    spec = pod_spec(made, CLUSTER)
    main = next(one for one in spec["containers"] if one["name"] == MAIN)
    sources = {one["name"]: one.get("valueFrom") for one in main["env"]}
    assert len(sources) == len(main["env"]) and sources["TOKEN"] == {
        "secretKeyRef": {"name": "variables", "key": "TOKEN"}
    }
    assert sources["HOME"] and sources["PLAIN"] is None
    assert {"name": "secrets", "mountPath": "/run/secrets", "readOnly": True} in main["volumeMounts"]
    assert {"medium": "Memory", "sizeLimit": "1Mi"} in [one["emptyDir"] for one in spec["volumes"]]
    assert spec["imagePullSecrets"] == [{"name": "login"}] and main["imagePullPolicy"] == "Always"
    changed = copy.deepcopy(spec)
    next(one for one in changed["containers"] if one["name"] == MAIN)["env"] = [
        {"name": one["name"], "value": "seen"} for one in main["env"]
    ]  # fmt: skip
    with pytest.raises(SettingsDiffer):
        check_pod(spec, {"spec": changed})


@pytest.mark.parametrize(
    ("repository", "registry"),
    [("docker.io/library/a", "https://index.docker.io/v1/"), ("library/a", "https://index.docker.io/v1/"),
     ("example.test:5000/a", "example.test:5000")],
)  # fmt: skip
def test_a_login_is_for_the_registry_of_the_image(repository: str, registry: str) -> None:
    body = login_body(Image(repository, bytes(32)), ("user", "pass:word"), PLACE.labels)
    auths = json.loads(base64.b64decode(body["data"][".dockerconfigjson"]))["auths"]
    assert list(auths) == [registry]
    assert base64.b64decode(auths[registry]["auth"]) == b"user:pass:word"
    assert body["immutable"] and body["type"] == "kubernetes.io/dockerconfigjson"


@pytest.mark.parametrize(
    "change", [{"egress": [{}]}, {"ingress": [{}]}, {"podSelector": {"matchLabels": {"a": "b"}}},
               {"policyTypes": ["Ingress"]}, {"policyTypes": None}],
)  # fmt: skip
def test_n51_a_policy_that_denies_less_is_another_one(change: dict[str, Any]) -> None:
    ordered = policy_body(PLACE)
    made = copy.deepcopy(ordered)
    made["metadata"]["uid"], made["spec"]["egress"] = "1", []
    assert is_policy(ordered, made)
    made["spec"] |= change
    assert not is_policy(ordered, made) and not is_policy(ordered, {"spec": None})


def test_n51_each_part_of_a_pod_that_others_change_is_named() -> None:
    before = {"spec": pod_spec(request(), CLUSTER)}
    now = copy.deepcopy(before)
    now["spec"]["tolerations"] = [{"key": "a"}]
    now["spec"]["ephemeralContainers"] = []
    assert changed_part(before, now) == ""
    now["spec"]["ephemeralContainers"] = [{"name": "debugger"}]
    assert changed_part(before, now) == "ephemeralContainers"
    now["spec"]["containers"][-1]["image"] = "other"
    assert changed_part(before, now) == "containers"
