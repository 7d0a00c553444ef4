"""The chart, applied to a cluster by Helm, and a chain on this machine whose nodes the pods can reach."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from testnet.cluster import lay_out
from tests.clients.programs import CannotCompile, go_program
from tests.cluster.network import Network, network
from tests.kubernetes.machine import Cluster, number
from tests.kubernetes.node_image import ROOT, push_node_image

CHART: Final = ROOT / "docs" / "kubernetes" / "chart"
HELM: Final = "v3.22.0"
NAMESPACE: Final = "dekube-chart"
RELEASE: Final = "dekube"
POD: Final = f"{RELEASE}-0"
WORKER: Final = "worker-0"
STORAGE: Final = "dekube-chart"
LOOPBACK: Final = "127.0.0.1"
HELM_S: Final = 600
UP_S: Final = 240
CHAIN: Final = {
    "chain.epoch_blocks": 10_000, "chain.block_interval_ms_min": 300, "consensus.block_interval_ms": 300,
    "consensus.idle_ms": 100, "consensus.leader_ms": 1_000, "consensus.advance_ms": 2_000, "tasks.call_ms": 0,
}  # fmt: skip


def helm_program() -> Path:
    """Return Helm, compiled once into a cache of this user. Skips, and says why, where it cannot be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dekube-tests"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"helm-{HELM}" / "helm"
    with (cache / "helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            try:
                go, environment = go_program()
            except (CannotCompile, OSError) as error:
                pytest.skip(f"NO HELM IS COMPILED HERE: {error}")
            settings = {
                **os.environ,
                **environment,
                "GOBIN": str(program.parent),
                "GOFLAGS": "",
                "CGO_ENABLED": "0",
            }
            done = subprocess.run(
                [str(go), "install", "-trimpath", "-ldflags", "-s -w", f"helm.sh/helm/v3/cmd/helm@{HELM}"],
                env=settings, capture_output=True, text=True, timeout=HELM_S,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"NO HELM IS COMPILED HERE: {done.stderr[-600:]}")
    return program


def helm(*arguments: str, check: bool = True, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm with files of its own in a folder."""
    places = (
        {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")} if folder else {}
    )
    done = subprocess.run(
        [str(helm_program()), *arguments], capture_output=True, text=True, timeout=UP_S + 30,
        env={**os.environ, **places},
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done


@dataclass
class Release:
    """One installation of the chart in a cluster."""

    cluster: Cluster
    folder: Path
    values: dict[str, Any] = field(default_factory=dict)

    def install(self) -> None:
        """Install or upgrade, and wait until the node is ready."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(self.values))
        try:
            self.helm("upgrade", "--install", RELEASE, str(CHART), "-f", str(file), "--wait", f"--timeout={UP_S}s")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def helm(self, *arguments: str) -> str:
        """Run Helm in the release's namespace."""
        return helm(*arguments, f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}",
                    folder=self.folder).stdout  # fmt: skip

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl in the release's namespace."""
        return self.cluster.kubectl("--namespace", NAMESPACE, *arguments, check=check)

    def dekube(self, *arguments: str, check: bool = True) -> str:
        """Run a command in the node's pod."""
        return self.kubectl("exec", POD, "-c", "node", "--", "dekube", *arguments, check=check)

    def told(self) -> str:
        """Return what the cluster says of the node's pod."""
        said = self.kubectl("get", "events", check=False)[-3000:]
        for which in ((), ("--previous",)):
            lines = self.kubectl("logs", POD, "-c", "node", *which, check=False).splitlines()
            said += "\n".join([line for line in lines if '"final"' not in line][-30:])[-4000:]
        return said


@contextmanager
def chain_for(cluster: Cluster, folder: Path) -> Iterator[Network]:
    """Yield three validators that pods can dial, and the home of a worker that does not run on this machine."""
    host = address_for(cluster)
    with network(folder, "--validators", "3", "--workers", "1", "--no-task", "--without", WORKER) as net:
        lay_out(folder, validators=3, workers=1, seed=1, base_port=net.base_port, parameters=CHAIN)
        plan = [("relay-0", 0), *((f"validator-{number}", number + 1) for number in range(3))]
        ports = {name: net.base_port + 3 * place for name, place in plan}
        for name in (*ports, WORKER):
            config = folder / name / "config.toml"
            text = config.read_text()
            for port in ports.values():
                text = text.replace(f"{LOOPBACK}:{port}", f"{host}:{port}")
            config.write_text(text)
        net.start()
        net.wait_up()
        yield net
        net.interrupt()


def address_for(cluster: Cluster) -> str:
    """Return the address of this machine for pods. Skips where nobody named it."""
    if cluster.is_own:
        return f"10.243.{number()}.1"
    given = os.environ.get("DEKUBE_TEST_ADDRESS", "")
    if not given:
        pytest.skip("KUBECONFIG IS SET: DEKUBE_TEST_ADDRESS MUST BE AN ADDRESS OF THIS MACHINE FOR PODS")
    return given


def image_for(cluster: Cluster) -> dict[str, str]:
    """Return the image of our node. Skips where it must be named and is not."""
    if cluster.is_own:
        server = cluster.repository.partition("/")[0]
        return {"repository": f"{server}/dekube-node", "digest": push_node_image(int(server.rpartition(":")[2]))}
    repository, _, digest = os.environ.get("DEKUBE_TEST_NODE_IMAGE", "").partition("@")
    if not digest:
        pytest.skip(
            "KUBECONFIG IS SET: DEKUBE_TEST_NODE_IMAGE MUST NAME AN IMAGE OF THE NODE, REPOSITORY@sha256:DIGEST"
        )
    return {"repository": repository, "digest": digest}


@contextmanager
def released(cluster: Cluster, net: Network, folder: Path) -> Iterator[Release]:
    """Yield the chart installed for the worker of a network; its namespace goes with the block."""
    if not cluster.is_own and "(default)" not in cluster.kubectl("get", "storageclasses", "--no-headers"):
        pytest.skip("THIS CLUSTER HAS NO DEFAULT STORAGE CLASS: NO VOLUME FOR THE HOME OF A NODE")
    release = Release(cluster, folder, values_for(cluster, net))
    home = folder / "volume"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    _apply(release, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    try:
        if cluster.is_own:
            _give_a_volume(release, home)
        keys = net.root / WORKER / "keys"
        release.kubectl("create", "secret", "generic", "dekube-keys", f"--from-file={keys / 'account.json'}",
                        f"--from-file={keys / 'passphrase'}")  # fmt: skip
        release.kubectl(
            "create", "configmap", "dekube-genesis", f"--from-file={net.root / WORKER / 'genesis.json'}"
        )
        release.install()
        yield release
    finally:
        release.helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        if cluster.is_own:
            cluster.kubectl("delete", "persistentvolume,storageclass", STORAGE)
            shutil.rmtree(home)


def values_for(cluster: Cluster, net: Network) -> dict[str, Any]:
    """Return the values for the worker of a network."""
    options = tomllib.loads((net.root / WORKER / "config.toml").read_text())
    return {
        "image": image_for(cluster), "genesis": {"configMap": "dekube-genesis"}, "keys": {"secret": "dekube-keys"},
        "config": {
            "p2p": {name: options["p2p"][name] for name in ("listen", "bootstrap", "relays")},
            "registry": {"stake": str(options["registry"]["stake"])},
            "executor": {"kubernetes": {"unisolated_allowed": True}},
        },
        "home": {"size": "2Gi", "storageClass": STORAGE if cluster.is_own else ""},
    }  # fmt: skip


def _give_a_volume(release: Release, home: Path) -> None:
    """Make what a storage class makes elsewhere: a volume, which is a folder of the one machine."""
    home.mkdir()
    machine = release.cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    _apply(release, {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": STORAGE},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    })  # fmt: skip
    names = {"key": "kubernetes.io/hostname", "operator": "In", "values": [machine]}
    _apply(release, {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": STORAGE},
        "spec": {
            "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(home)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [names]}]}},
        },
    })  # fmt: skip


def _apply(release: Release, body: dict[str, Any]) -> None:
    file = release.folder / f"{body['kind']}.json"
    file.write_text(json.dumps(body))
    release.cluster.kubectl("apply", "-f", str(file))
