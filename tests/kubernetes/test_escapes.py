"""A container in a pod that tries the usual ways out: those of an engine's, and those of a cluster's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tasks.executor.containers.backend import End
from tasks.executor.containers.request import InputMount
from tests.container_engine import ROOT
from tests.kubernetes.machine import Cluster, home
from tests.tasks.executor.containers.test_escapes import attempts

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = b"\x0e" * 32
MARK: Final = "dekube-mark-outside"
OF_ENGINES: Final = frozenset({"the engine's socket"})
"""Attempts at Docker's own parts."""
NETWORK: Final = (
    "an interface beside loopback", "a route", "a public address", "a name service",
    "the proxies of other containers", "the address of a cloud's metadata", "the machine's loopback",
)  # fmt: skip
"""Where a cluster enforces no policy, these are not shown."""
BY_PROXY: Final = re.compile(r"\bask\b|3128")
READY: Final = """
mkdir -p /scratch/bin && /bin/busybox --install -s /scratch/bin; PATH=$PATH:/scratch/bin
of() {
  for p in /proc/[0-9]*; do
    tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q "$1" && echo ${p#/proc/} && return
  done
}
helper() { of '[/]dekube/stage/socket.py serve'; }
agent() { of '[/]dekube/agent/agent.py serve'; }
test -n "$(helper)" && test -n "$(agent)" && which mknod unshare nsenter chroot losetup || exit 9
"""
"""The attempts have their programs and find those whom they attack, or the test fails."""


def own_attempts() -> dict[str, str]:
    """Return the commands that only a pod tries, by name."""
    lines = (Path(__file__).parent / "escapes.sh").read_text(encoding="utf-8").splitlines()
    return dict(line.split("|", 1) for line in lines if line and not line.startswith("#"))


def all_attempts() -> dict[str, str]:
    """Return the commands that a pod tries where no policy is enforced, by name."""
    of_engine = {
        name: code for name, code in attempts().items()
        if name not in OF_ENGINES and name not in NETWORK and not BY_PROXY.search(code)
    }  # fmt: skip
    return of_engine | own_attempts()


async def test_no_pod_gets_out(cluster: Cluster, tmp_path: Path) -> None:
    secret = home() / "secret"
    if cluster.is_own:
        secret.write_text("key")
        secret.chmod(0o644)
    outside = subprocess.Popen(  # noqa: ASYNC220  it only waits
        [sys.executable, "-c", "import time; time.sleep(600)", MARK]
    )
    tried = all_attempts()
    script = "\n".join(
        f"if ( {code} ) </dev/null >/scratch/said 2>&1; then echo 'GOT {at}'; else echo 'refused {at}'; fi"
        for at, code in enumerate(tried.values())
    )
    names = {"HOST_SECRET": str(secret), "HOST_HOME": str(home()), "HOST_MARK": MARK[:-1] + "[e]"}
    backend = cluster.shown()
    request = cluster.request(
        f"{READY}\n{script}", environment=tuple(f"{name}={value}" for name, value in names.items()),
        mounts=(InputMount(b"\x05" * 32, "/input/file", 5, is_folder=False),), output_path="",
    )  # fmt: skip
    source = backend.input_path(TASK, 0)
    source.parent.mkdir(parents=True)
    source.write_bytes(b"input")
    try:
        await backend.start(TASK, request)
        ended = await backend.watch(TASK, request, lambda _look: None)
        log = (await backend.collect(TASK, request, str(tmp_path / "packed"))).log.decode()
    finally:
        outside.kill()
        outside.wait()
        await backend.remove(TASK)
        await backend.aclose()
        if cluster.is_own:
            os.unlink(secret)
    lines = [line.split() for line in log.splitlines() if line.startswith(("GOT ", "refused "))]
    assert (ended.end, ended.code, len(lines)) == (End.EXITED, 0, len(tried)), log
    found = dict(zip(tried, (line[0] for line in lines), strict=True))
    assert {name: got for name, got in found.items() if got != "refused"} == {}
    assert len(tried) >= 40
    print(f"{len(tried)} attempts, none succeeds; not enforced here: {'; '.join(NETWORK)}")


def test_the_attempts_of_pods_are_those_of_the_document() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert {name for kind, names, _ in rows if kind.startswith("pod: ") for name in names.split("; ")} == set(
        own_attempts()
    )
