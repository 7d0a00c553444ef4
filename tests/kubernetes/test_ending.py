"""A container that does what it can to keep its pod from ending: it is ended all the same, in bounded time."""

from __future__ import annotations

from typing import Final

import pytest
import trio

from tasks.executor.containers.backend import End, Look
from tasks.executor.containers.kubernetes.exec_stream import answer_of
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.log_entries import LogPlace
from tests.kubernetes.machine import Cluster
from tests.kubernetes.test_life import TASK, _until, _watched

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
ENTRIES: Final = 12
STOPS_ENTERING: Final = """
import os, signal
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
last, held = os.getpid(), set()
print("begun", flush=True)
while True:
    for one in range(last + 1, last + 60):  # the numbers that the next processes of the pod get
        try: os.kill(one, signal.SIGSTOP)
        except OSError: continue
        if one in held: continue
        try: words = open(f"/proc/{one}/cmdline", "rb").read()
        except OSError: words = b""
        if b"init" in words.split(b"\\0"):
            held.add(one)
            print("held", one, words, flush=True)
        else:
            os.kill(one, signal.SIGKILL)
            last = max(last, one - 30)
"""


async def test_n64_a_container_that_stops_what_enters_its_pod_is_ended(cluster: Cluster) -> None:
    """It stops each process of the pod that is still the runtime's, and kills all others that it can."""
    backend, looks = cluster.shown(), list[Look]()
    request = cluster.request("", command=("/usr/bin/python3", "-c", STOPS_ENTERING), output_path="")
    await backend.start(TASK, request)
    async with _watched(backend, request, looks) as ended:
        await _until(lambda: looks and looks[-1].is_up)
        path = f"{backend.place(TASK).path}/pods/" + cluster.kubectl(
            "get", "pods", "-n", backend.place(TASK).namespace, "-o", "jsonpath={.items[0].metadata.name}"
        )
        for _ in range(ENTRIES):
            assert await answer_of(backend._api, path, HELPER, "echo entered") == (0, b"entered\n")
        said = (await backend.log(TASK, LogPlace(), 1 << 20)).entries
        with trio.fail_after(120):
            await backend.stop(TASK, 1)
    assert ended[0].end is End.STOPPED and [one.text for one in said] == [b"begun\n"]
    with trio.fail_after(60):
        await backend.remove(TASK)
    await backend.aclose()
