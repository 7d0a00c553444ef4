"""A cluster for tests: any by KUBECONFIG, else one of this machine, and a registry with a BusyBox image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tasks.executor.containers.kubernetes.backend import KubernetesBackend, KubernetesOptions
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tests.container_engine import running_registry

FOLDER: Final = Path(__file__).parent
NODE: Final = b"\x1d" * 20
LIMITS: Final = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=1 << 20, time_limit_s=300, grace_s=2)
UP_S: Final = 1_800
WORKER_NUMBERS: Final = 10
"""Numbers of clusters from one process that runs tests to the next."""
APPLETS: Final = (
    "sh", "tar", "head", "tail", "sha256sum", "mv", "rm", "mkdir", "cat", "ls", "grep", "sleep", "stat", "kill",
    "nc", "echo", "dd", "id", "touch", "wget", "yes", "true", "df", "cp", "ln", "mkfifo", "seq", "ps", "ip",
    "base64", "fold", "mount", "chmod", "wc", "find", "printf",
)  # fmt: skip
MODULES: Final = (
    "__future__, encodings.idna, hashlib, http.client, json, os, select, signal, socket, stat, struct, sys, "
    "tarfile, time"
)


@dataclass(frozen=True)
class Cluster:
    """A cluster, and an image that its machines can pull; it is the helper's and the requester's."""

    kubeconfig: Path
    repository: str
    digest: bytes
    folder: Path
    is_own: bool

    def backend(self, node: bytes = NODE, **options: Any) -> KubernetesBackend:
        """Return a back end as a node that just started has it."""
        options.setdefault("unisolated_allowed", True)
        options.setdefault("kubeconfig", str(self.kubeconfig))
        options.setdefault("helper_image", f"{self.repository}@sha256:{self.digest.hex()}")
        return KubernetesBackend(KubernetesOptions(**options), node, self.folder / node.hex()[:8])

    def request(self, script: str, *, limits: dict[str, int] | None = None, **fields: Any) -> ContainerRequest:
        """Return a container that runs a script of the shell."""
        fields.setdefault("command", ("/bin/sh", "-c", script))
        return ContainerRequest(Image(self.repository, self.digest), replace(LIMITS, **(limits or {})), **fields)

    def evict(self, namespace: str, pod: str) -> None:
        """Ask the cluster to take a pod off its machine, as a drain does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        file = self.folder / "eviction.json"
        file.write_text(json.dumps(body))
        self.kubectl("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", "-f", str(file))

    def told(self) -> str:
        """Say which cluster this is."""
        versions = json.loads(self.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
        nodes = [one.split() for one in self.kubectl("get", "nodes", "--no-headers", "-o", "wide").splitlines()]
        where = "started by the tests" if self.is_own else f"of {self.kubeconfig}"
        return f"Kubernetes {versions}, {len(nodes)} machines, {nodes[0][-1]}, {where}"

    def shown(self, node: bytes = NODE, **options: Any) -> KubernetesBackend:
        """Return a back end that needs no canary pods: they take a while, and have their own test."""
        made = self.backend(node, **options)
        made.shown = (False, "not looked at by this test")
        return made

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl, which only tests use."""
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments], capture_output=True, text=True, timeout=120
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout


def script(*arguments: str) -> str:
    """Run the program that starts a cluster on this machine."""
    done = subprocess.run(
        ["bash", str(FOLDER / "cluster"), *arguments], capture_output=True, text=True, timeout=UP_S,
        env={**os.environ, "KUBE_HOME": str(home()), "KUBE_NUMBER": str(number())},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"NO KUBERNETES RUNS ON THIS MACHINE: {done.stderr[-1500:]}")
    return done.stdout.strip()


def number() -> int:
    """Return which cluster of this machine is used: each process that runs tests has one of its own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return int(os.environ.get("KUBE_NUMBER", "0")) + WORKER_NUMBERS * int(worker)


def home() -> Path:
    """Return the folder of the cluster of this machine."""
    given, own = os.environ.get("KUBE_HOME", ""), number()
    if given and own < WORKER_NUMBERS:
        return Path(given)
    return Path((given or "/tmp/kube-test") + (f"-{own}" if own else ""))


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a cluster. One that was started here is stopped afterwards. Skips, and says so, where none can run."""
    given, image = os.environ.get("KUBECONFIG", ""), os.environ.get("DEKUBE_TEST_IMAGE", "")
    if given:
        if not image:
            pytest.skip("KUBECONFIG IS SET: DEKUBE_TEST_IMAGE MUST NAME BUSYBOX WITH PYTHON, NAME@sha256:DIGEST")
        repository, _, name = image.partition("@sha256:")
        yield Cluster(Path(given), repository, bytes.fromhex(name), folder, is_own=False)
        return
    missing = [name for name in ("busybox", "docker-registry", "gcc", "openssl") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"NO KUBERNETES: ROOT AND {', '.join(missing).upper() or 'NOTHING ELSE'} NEEDED")
    was_up = (home() / "kubelet.pid").exists()
    kubeconfig = Path(script("up").splitlines()[-1])
    try:
        with running_registry(folder / "registry", login=False) as port:
            digest = push(port, busybox_layer())
            yield Cluster(kubeconfig, f"127.0.0.1:{port}/busybox", digest, folder, is_own=True)
    finally:
        if not was_up:
            script("down")


def busybox_layer() -> bytes:
    """Return a layer with BusyBox and its names, and the Python of this machine with a few of its modules."""
    program = shutil.which("busybox")
    assert program is not None
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as layer:

        def add(path: str, mode: int = 0o755, data: bytes | None = None, link: str = "") -> None:
            info = tarfile.TarInfo(path)
            info.mode = mode
            if link:
                info.type, info.linkname = tarfile.SYMTYPE, link
            elif data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            layer.addfile(info, io.BytesIO(data) if data is not None else None)

        for folder in ("bin", "etc", "scratch", "output", "dekube", "var", "var/tmp"):
            add(folder)
        add("tmp", 0o1777)
        add("bin/busybox", data=Path(program).read_bytes())
        for applet in APPLETS:
            add(f"bin/{applet}", link="busybox")
        for path, source in _python_files().items():
            add(path, data=source.read_bytes())
    return file.getvalue()


def _python_files() -> dict[str, Path]:
    """Return the files of this machine's Python that the helper needs, by their paths in an image."""
    listed = "print(sys.executable, *(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', '')))"
    python, *modules = _told(shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-c",
                             f"import {MODULES}; {listed}").split()  # fmt: skip
    needed = _libraries(python)
    files = {one for one in modules if one.endswith(".py") or _libraries(one) <= needed}
    return {one.lstrip("/"): Path(one) for one in sorted(files | needed | {python})}


def _libraries(program: str) -> set[str]:
    return set(re.findall(r"(/\S+) \(0x", _told("ldd", program)))


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def push(port: int, layer: bytes, name: str = "busybox", login: tuple[str, str] | None = None) -> bytes:
    """Put an image of one layer into a registry; return the digest of its manifest."""
    packed = gzip.compress(layer, 1, mtime=0)
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin:/usr/bin:/usr/local/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_named(layer)]},
    }).encode()  # fmt: skip
    base = f"http://127.0.0.1:{port}/v2/{name}"
    with httpx.Client(trust_env=False, timeout=60, auth=login) as client:
        for blob in (packed, config):
            place = client.post(f"{base}/blobs/uploads/").raise_for_status().headers["Location"]
            client.put(f"{place}&digest={_named(blob)}", content=blob).raise_for_status()
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                       "digest": _named(config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(packed),
                        "digest": _named(packed)}],
        }).encode()  # fmt: skip
        client.put(f"{base}/manifests/1", content=manifest, headers={"Content-Type": kind}).raise_for_status()
    return hashlib.sha256(manifest).digest()


def _named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
