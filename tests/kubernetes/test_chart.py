"""Our node as a pod of the cluster that it lends: installed by the chart, killed in mid-job, and removed again."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpc.client import Client
from tests.cluster.network import Network, run_here, wait_for
from tests.kubernetes.chart import POD, RELEASE, WORKER, Release, chain_for, released
from tests.kubernetes.machine import Cluster
from tests.kubernetes.node_image import HOME

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
SCRIPT = "echo begun; cat /in/text > /output/copy; sleep 20; echo done"
RUN_S = 120.0


def test_the_chart_runs_a_node_that_takes_a_task_and_shows_no_key(cluster: Cluster, tmp_path: Path) -> None:
    with chain_for(cluster, tmp_path / "net") as net, released(cluster, net, tmp_path) as release:
        try:
            task = take_a_task(release, net, tmp_path)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{release.told()}") from None
        check_result(net, task, tmp_path / "result")
        check_no_key_is_shown(release, net, tmp_path / "volume")
        check_doctor(release)
        release.helm("uninstall", RELEASE, "--wait")
        assert release.kubectl("get", "pvc", "-o", "name").split() == [f"persistentvolumeclaim/home-{POD}"]


@pytest.mark.nightly
def test_an_upgrade_goes_on_with_the_same_home(cluster: Cluster, tmp_path: Path) -> None:
    with chain_for(cluster, tmp_path / "net") as net, released(cluster, net, tmp_path) as release:
        wait_for(lambda: height(release) > 0, "the pod's node follows the chain", patience_s=RUN_S)
        home, pod, before = secret_of_home(release), uid(release), height(release)
        release.values["config"]["log"] = {"level": "debug"}
        release.install()
        assert uid(release) != pod and secret_of_home(release) == home
        assert 'log.level = "debug"' in release.kubectl(
            "exec", POD, "-c", "node", "--", "cat", f"{HOME}/config.toml"
        )
        assert height(release) >= before


def height(release: Release) -> int:
    told = release.dekube("status", "--home", HOME, "--json", check=False)
    return int(json.loads(told)["height"]) if told else 0


def secret_of_home(release: Release) -> str:
    """Return a hash of what the node drew for its home at its first start."""
    return release.kubectl("exec", POD, "-c", "node", "--", "sha256sum", f"{HOME}/keys/node-secret")


def take_a_task(release: Release, net: Network, folder: Path) -> str:
    """Have the node in the pod run a container; the pod is killed in mid-run. Return the task."""
    rate = wait_for(lambda: rate_of_cluster(net), "the pod's node is registered", patience_s=RUN_S)
    cluster, job = release.cluster, folder / "container.yaml"
    job.write_text(
        f"kind: container\nimage: {cluster.repository}@sha256:{cluster.digest.hex()}\nallow: [unisolated]\n"
        f"command: [/bin/sh, -c, '{SCRIPT}']\nmounts:\n  - {{source: text, path: /in/text}}\noutput: /output\n"
        "output_mib: 1\nbudget: 100 DKB\ncores: 1\nmemory_mib: 64\ndisk_mib: 32\nminutes: 2\ntick_s: 10\n"
        f"grace_s: 300\nrate: {rate}\n"
    )
    (folder / "text").write_text("a text\n")
    watched = subprocess.Popen(
        [sys.executable, "-m", "node", "task", "create", "-f", str(job), "--watch", "--home",
         str(net.root / "validator-0")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        (container,) = wait_for(lambda: running(release), "the container runs", patience_s=RUN_S)
        before = uid(release)
        release.kubectl("delete", "pod", POD, "--grace-period=0", "--force")
        assert running(release) == [container]
        wait_for(lambda: uid(release) not in ("", before), "the node's pod is made anew", patience_s=RUN_S)
        said, _ = watched.communicate(timeout=2 * RUN_S)
    except BaseException:
        watched.terminate()
        print(watched.communicate()[0])  # what the command said, for whoever reads why this failed
        raise
    assert watched.returncode == 0, said
    (task,) = [one["id"] for one in run_here("task", "list", "--all", "--home", net.root / "validator-0")["items"]]
    return str(task)


def rate_of_cluster(net: Network) -> int:
    with Client(net.url("validator-0")) as client:
        nodes = list(client.items("dekube_getNodes"))
    return next((int(one["rate"]) for one in nodes if "container" in one["roles"]), 0)


def running(release: Release) -> list[str]:
    """Return the ids of requesters' containers that run in the cluster."""
    path = '{range .items[*]}{.status.containerStatuses[?(@.name=="main")].containerID}{" "}{end}'
    return release.cluster.kubectl(
        "get", "pods", "-A", "-l", "dekube.task,dekube.task!=none", "--field-selector=status.phase=Running",
        "-o", f"jsonpath={path}",
    ).split()  # fmt: skip


def uid(release: Release) -> str:
    return release.kubectl("get", "pod", POD, "-o", "jsonpath={.metadata.uid}", check=False)


def check_result(net: Network, task: str, folder: Path) -> None:
    told = run_here("task", "result", task, "--out", folder, "--home", net.root / "validator-0")
    assert (told["phase"], told["exit"], told["code"]) == ("settled", "exited", 0)
    assert told["seconds"] >= 15 and int(told["paid"]) > 0
    assert told["logs"] == "begun\ndone\n", "begun a second time"
    assert (folder / "copy").read_text() == "a text\n"


def check_no_key_is_shown(release: Release, net: Network, volume: Path) -> None:
    """N56: whoever reads values, the release's record, ConfigMaps, pods or the home's volume learns no key."""
    keys = net.root / WORKER / "keys"
    passphrase = (keys / "passphrase").read_text().strip()
    ciphertext = json.loads((keys / "account.json").read_text())["crypto"]["ciphertext"]
    shown = release.kubectl("get", "configmaps,pods,statefulsets", "-o", "json")
    for record in json.loads(release.kubectl("get", "secrets", "-l", "owner=helm", "-o", "json"))["items"]:
        shown += gzip.decompress(base64.b64decode(base64.b64decode(record["data"]["release"]))).decode()
    assert "dekube-keys" in shown  # the name alone
    token = release.kubectl("exec", POD, "-c", "node", "--", "cat",
                            "/var/run/secrets/kubernetes.io/serviceaccount/token")  # fmt: skip
    assert len(token) > 100
    for secret in (passphrase, ciphertext, token):
        assert secret not in shown
    if release.cluster.is_own:
        files = [path.read_bytes() for path in volume.rglob("*") if path.is_file()]
        assert (volume / "data" / "chain").is_dir()
        assert not any(secret.encode() in file for file in files for secret in (passphrase, ciphertext, token))


def check_doctor(release: Release) -> None:
    """The doctor in the pod names the rights that its account loses, and no other: it has run a task."""
    role = json.loads(
        release.kubectl("get", "clusterroles", "-l", "app.kubernetes.io/name=dekube-node", "-o", "json")
    )
    (role,) = role["items"]
    rules: list[dict[str, Any]] = [one for one in role["rules"] if "pods/exec" not in one["resources"]]
    release.kubectl(
        "patch", "clusterrole", role["metadata"]["name"], "--type=merge", "-p", json.dumps({"rules": rules})
    )
    told = release.dekube("worker", "doctor", "--home", HOME, check=False)
    told = " ".join(told.split())
    assert "the right to create pods/exec" in told, told
    assert told.count("the right to") == told.count("pods/exec") == 2, told
