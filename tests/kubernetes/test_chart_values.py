"""What the chart makes of values: a configuration that the node takes, and refusals that name the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.home.load import load_node_options
from node.home.paths import Home
from tests.kubernetes.chart import CHART, helm

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
DIGEST = f"sha256:{'1f' * 32}"
LEAST: dict[str, Any] = {
    "image": {"repository": "registry.example:5000/node", "digest": DIGEST},
    "genesis": {"configMap": "genesis"}, "keys": {"secret": "keys"},
}  # fmt: skip
TASKS: dict[str, Any] = {
    "nodeSelector": {"pool": "market"}, "storageClass": "fast",
    "mirrors": {"docker.io": "mirror.example/hub", "quay.io/org": "127.0.0.1:5000"},
    "egress": ["*.pypi.org", "deb.debian.org:80"],
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "for", "value": "market", "effect": "NoExecute"},
    ],
}  # fmt: skip
BOOTSTRAP = "0x5B920898D49BACF0671EFA738bE4D5fce1B926a5@tcp:10.0.0.1:26656"
CONFIG: dict[str, Any] = {
    "p2p": {"bootstrap": [BOOTSTRAP], "uplink_mbit_per_s": 10_000},
    "registry": {"stake": "1000000000000000000000"}, "log": {"level": "debug"},
    "executor": {"kubernetes": {"gpus": 2, "images": ['docker.io/library/*', 'a"quote']}},
}  # fmt: skip


def rendered(folder: Path, values: dict[str, Any], *, check: bool = True) -> tuple[list[dict[str, Any]], str]:
    """Return the objects that the chart makes of values, and what Helm said instead."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    done = helm("template", "dekube", str(CHART), "--namespace=market", "--kube-version=1.34", "-f", str(file),
                check=check, folder=folder)  # fmt: skip
    return [one for one in yaml.safe_load_all(done.stdout) if one], done.stderr


def test_the_node_takes_the_configuration_that_values_make(tmp_path: Path) -> None:
    made, _ = rendered(tmp_path, LEAST | {"tasks": TASKS, "config": CONFIG})
    (text,) = [one["data"]["config.toml"] for one in made if one["kind"] == "ConfigMap"]
    (tmp_path / "config.toml").write_text(text)
    options = load_node_options(Home(tmp_path))
    lent = options.executor.kubernetes
    assert (lent.enabled, lent.kubeconfig, lent.gpus, lent.storage_class) == (True, "", 2, "fast")
    assert lent.images == ("docker.io/library/*", 'a"quote')
    assert lent.helper_image == f"registry.example:5000/node@{DIGEST}"
    assert lent.node_selector == ("pool=market",)
    assert lent.tolerations == ("nvidia.com/gpu:NoSchedule", "for=market:NoExecute")
    assert lent.mirrors == ("docker.io=mirror.example/hub", "quay.io/org=127.0.0.1:5000")
    assert lent.egress == ("*.pypi.org", "deb.debian.org:80")
    assert options.registry.stake == 10**21 and options.p2p.uplink_mbit_per_s == 10_000
    assert options.p2p.bootstrap == (BOOTSTRAP,) and options.roles == ("compute",)
    assert (options.metrics.listen, options.keys.account) == (":9100", "/run/dekube/keys/account.json")
    (priority,) = [one for one in made if one["kind"] == "PriorityClass"]
    assert priority["metadata"]["name"] == lent.priority_class and priority["value"] < 0


def test_an_unknown_option_is_told_by_the_node(tmp_path: Path) -> None:
    made, _ = rendered(tmp_path, LEAST | {"config": {"p2p": {"bootstrp": []}}})
    (text,) = [one["data"]["config.toml"] for one in made if one["kind"] == "ConfigMap"]
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(Exception, match=r"bootstrp.*bootstrap"):
        load_node_options(Home(tmp_path))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"image": {"repository": "a/b", "digest": "latest"}}, "/image/digest"),
        ({"image": {"repository": f"a/b@{DIGEST}", "digest": DIGEST}}, "/image/repository"),
        ({"keys": {"secret": "keys", "passphrase_text": "a secret"}}, "passphrase_text"),
        ({"keys": {"secret": ""}}, "/keys/secret"),
        ({"config": {"metrics": {"listen": ":1"}}}, "/config/metrics"),
        ({"config": {"keys": {"account": "/other"}}}, "/config/keys"),
        ({"config": {"p2p": {'a" = 1\nroles': 1}}}, "/config"),
        ({"config": {"executor": {"kubernetes": {"kubeconfig": "/x"}}}}, "/config/executor/kubernetes/kubeconfig"),
        ({"tasks": {"priorityClass": {"value": 0}}}, "/tasks/priorityClass/value"),
        ({"tasks": {"tolerations": [{"operator": "Exists"}]}}, "/tasks/tolerations"),
        ({"tasks": {"egress": "pypi.org"}}, "/tasks/egress"),
        ({"tasks": {"mirrors": {"docker.io": ""}}}, "/tasks/mirrors"),
        ({"proxy": {"https": "http://user:word@proxy.example:3128"}}, "/proxy/https"),
        ({"proxy": {"https": "http://proxy.example:3128", "secret": "proxy"}}, "/proxy"),
        ({"home": {"size": "much"}}, "/home/size"),
        ({"replicas": 2}, "replicas"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], told: str, tmp_path: Path) -> None:
    made, said = rendered(tmp_path, LEAST | values, check=False)
    assert not made and told in said, said


def test_a_login_of_a_proxy_is_in_no_object(tmp_path: Path) -> None:
    """The pod names a Secret; a proxy without a login may stand in the values."""

    def variables(proxy: dict[str, str]) -> dict[str, Any]:
        made, _ = rendered(tmp_path, LEAST | {"proxy": proxy})
        (found,) = [one for one in made if one["kind"] == "StatefulSet"]
        (node,) = found["spec"]["template"]["spec"]["containers"]
        return {one["name"]: one.get("value", one.get("valueFrom")) for one in node["env"]}

    url = "http://proxy.example:3128"
    assert variables({"http": url, "https": url, "none": ".svc"}).items() >= {
        "HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": ".svc"
    }.items()  # fmt: skip
    made = variables({"secret": "proxy", "none": ".svc"})
    assert made["HTTPS_PROXY"] == {"secretKeyRef": {"name": "proxy", "key": "https", "optional": True}}
    assert made["HTTP_PROXY"] == {"secretKeyRef": {"name": "proxy", "key": "http", "optional": True}}


def test_nothing_of_a_pod_is_less_than_restricted(tmp_path: Path) -> None:
    made, _ = rendered(tmp_path, LEAST)
    (found,) = [one for one in made if one["kind"] == "StatefulSet"]
    assert found["spec"]["replicas"] == 1
    pod = found["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(pod)
    assert pod["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["image"].endswith(DIGEST)
        has_token = any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
        assert has_token == (container["name"] == "node")
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"]
