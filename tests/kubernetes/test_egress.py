"""A container in a pod reaches its job's names through the node's proxy, where a policy denies all (R144)."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End, Ended
from tasks.executor.containers.egress.proxy import EgressLimits, EgressProxy, EgressUse
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.request import ContainerRequest, Image, InputMount
from tests.kubernetes.enforcer import enforced
from tests.kubernetes.machine import Cluster, busybox_layer, push
from tests.tasks.executor.containers.public_server import CONTENT, PublicServer, public_server
from tests.tasks.executor.containers.test_egress_engine import NAMES, asking, check_said

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = b"\x44" * 32
PATTERNS = ("*.example.net:443", "*.example.net:80")
LIAR = """
import os, struct
head = struct.Struct(">IBH")
asked = b"CONNECT 127.0.0.1:6443 HTTP/1.1\\r\\n\\r\\n"
os.write(1, head.pack(1, 1, 0) + head.pack(1, 2, len(asked)) + asked)
said = os.read(0, 4096) + os.read(0, 4096)
open("/dekube/stage/said", "wb").write(said)
os.write(1, head.pack(1, 5, 4) + b"\\xff" * 4 + os.urandom(1 << 16))
"""
"""A program in place of the helper's: it asks the proxy for what no job has, then says what no helper says."""


TAKES_OVER = """
printf %s "$1" > /dekube/stage/egress.py
for p in /proc/[0-9]*; do grep -q [e]gress.py.link $p/cmdline && kill -9 ${p#/proc/}; done
until test -s /dekube/stage/said; do sleep 0.2; done; grep -a -o "HTTP/1.1 [0-9]*" /dekube/stage/said
"""


def curl_layer() -> bytes:
    """Return the layer of BusyBox and Python with curl of this machine and its libraries."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("NO CURL ON THIS MACHINE")
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    file = io.BytesIO(busybox_layer())
    with tarfile.open(fileobj=file, mode="a") as layer:
        names = set(layer.getnames())
        for path in (program, *(word for word in libraries if word.startswith("/"))):
            if path.lstrip("/") not in names:
                layer.add(Path(path).resolve(), path.lstrip("/"))
    return file.getvalue()


def curl_image(cluster: Cluster) -> Image:
    """Return an image with curl in the registry of the cluster's tests."""
    host, _, _ = cluster.repository.partition("/")
    return Image(f"{host}/curl", push(int(host.rpartition(":")[2]), curl_layer(), "curl"))


@contextmanager
def routed(address: str) -> Iterator[None]:
    """Let pods of this machine reach an address meanwhile, as those of most clusters do."""
    rules = [("FORWARD", way, address, "-j", "ACCEPT") for way in ("-d", "-s")]
    for rule in rules:
        subprocess.run(["iptables", "-w", "-I", *rule], check=True, capture_output=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-D", *rule], capture_output=True)


@asynccontextmanager
async def attended(
    backend: KubernetesBackend, request: ContainerRequest, use: EgressUse, server: PublicServer,
    limits: EgressLimits = EgressLimits(),  # noqa: B008  a frozen value
) -> AsyncIterator[list[Ended]]:  # fmt: skip
    """Watch a container and serve its proxy as its node does, until the context ends: then the node is gone."""
    ended: list[Ended] = []
    async with trio.open_nursery() as nursery:
        listening = await backend.proxy_socket(TASK)
        nursery.start_soon(EgressProxy(listening, request.egress, limits, use, server.lookup).run)

        async def watch() -> None:
            ended.append(await backend.watch(TASK, request, lambda _: None))

        nursery.start_soon(watch)
        yield ended
        nursery.cancel_scope.cancel()


async def log_has(cluster: Cluster, backend: KubernetesBackend, word: str) -> None:
    """Wait until the container has written a word."""
    namespace = backend.place(TASK).namespace
    with trio.fail_after(60):
        words = ("logs", "-n", namespace, "-l", f"dekube.task={TASK.hex()[:32]}", "-c", "main", "--tail=-1")
        while word not in cluster.kubectl(*words, check=False):  # noqa: ASYNC110  another program writes it
            await trio.sleep(0.2)


async def has_ended(ended: list[Ended]) -> None:
    """Wait until the container has ended."""
    with trio.fail_after(120):
        while not ended:  # noqa: ASYNC110  the watch fills it
            await trio.sleep(0.1)


async def test_a_pod_that_is_denied_all_traffic_reaches_its_names_and_nothing_else(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Before and after a restart of its node. It cannot enter its helper; who does gains nothing (N66)."""
    with public_server(tmp_path / "server") as server, routed(server.address):
        direct = f"curl -sS -o /dev/null --noproxy '*' -m 1 http://{server.address}/"
        script = f"""
            until {direct}; do sleep 0.2; done; echo open
            while {direct}; do sleep 0.2; done; echo shut
            {asking(server)}
            echo asked; until test -e /scratch/go; do sleep 0.1; done
            until curl -sS http://plain.example.net/; do sleep 0.2; done; echo again
            for p in /proc/[0-9]*; do
              grep -q [e]gress.py $p/cmdline || continue
              ls $p/root/dekube/stage && echo GOT; kill -STOP ${{p#/proc/}} && echo GOT
            done
            until test -e /scratch/end; do sleep 0.1; done
        """
        request = replace(
            cluster.request(script, egress=NAMES), image=curl_image(cluster),
            mounts=(InputMount(b"\x05" * 32, "/input/ca.pem", server.certificate.stat().st_size),),
        )  # fmt: skip
        backend = cluster.shown(egress=PATTERNS)
        place = backend.input_path(TASK, 0)
        place.parent.mkdir(parents=True)
        shutil.copy(server.certificate, place)
        use, later = EgressUse(), EgressUse()
        await backend.start(TASK, request)
        async with attended(backend, request, use, server):
            await log_has(cluster, backend, "open")  # no policy is enforced here: the pod passes its proxy by
            async with enforced(cluster):
                await log_has(cluster, backend, "asked")
        await backend.aclose()
        backend = cluster.shown(egress=PATTERNS)  # as a node that starts again
        pod = ("-n", backend.place(TASK).namespace, "job/container", "-c", "main")
        async with attended(backend, request, later, server) as ended:
            cluster.kubectl("exec", *pod, "--", "touch", "/scratch/go")
            await log_has(cluster, backend, "again")
            helper = ("exec", *pod[:-1], HELPER, "--", "/bin/sh", "-c", TAKES_OVER, "sh", LIAR)
            lied = await trio.to_thread.run_sync(lambda: cluster.kubectl(*helper))
            cluster.kubectl("exec", *pod, "--", "touch", "/scratch/end")
            await has_ended(ended)
        lines = (await backend.collect(TASK, request, str(tmp_path / "packed"))).log.decode().splitlines()
        await backend.remove(TASK)
        await backend.aclose()
    assert (ended[0].end, ended[0].code) == (End.EXITED, 0), lines
    lines = [line for line in lines if not line.startswith(("curl: ", "ls: ", "sh: "))]
    assert lines[:2] == ["open", "shut"]
    check_said(lines[2:])
    assert lines[-3:] == ["asked", CONTENT.strip(), "again"] and lied == "HTTP/1.1 400\n"
    assert use.refused == 4 and use.received_bytes > 2 * len(CONTENT) and use.sent_bytes > 5
    assert later.received_bytes >= len(CONTENT) and later.refused >= 1


async def test_names_that_the_owner_does_not_let_reach_are_refused(cluster: Cluster) -> None:
    backend = cluster.shown(egress=("files.example.net:443",))
    with pytest.raises(ContainerRefused, match=r"plain\.example\.net:80"):
        await backend.check(cluster.request("true", egress=NAMES))
    await backend.aclose()
