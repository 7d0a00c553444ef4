"""A container that does what it can to keep its pod from ending: it is ended all the same, in bounded time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import trio

from tasks.executor.containers.backend import End, Look
from tasks.executor.containers.kubernetes import helper_agent, scripts
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

STOPS_ITS_AGENT: Final = """
for p in /proc/[0-9]*; do grep -q '[a]gent.py.serve' $p/cmdline && kill -STOP ${p#/proc/} && echo stopped; done
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


async def test_n64_a_container_that_stops_its_agent_loses_its_outputs_and_keeps_nobody(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine says how it ended, and is paid. The time that an agent may be silent is cut short here."""
    waits, program = f"SILENCE_S = {helper_agent.SILENCE_S}", scripts._program
    assert waits in program("helper_agent.py")
    monkeypatch.setattr(scripts, "_program", lambda name: program(name).replace(waits, "SILENCE_S = 3.0"))
    backend, request = cluster.shown(), cluster.request(STOPS_ITS_AGENT)
    await backend.start(TASK, request)
    ended = await backend.watch(TASK, request, lambda _look: None)
    with trio.fail_after(30):
        collected = await backend.collect(TASK, request, str(tmp_path / "packed"))
    assert (ended.end, collected.log, collected.outputs) == (End.EXITED, b"stopped\n", None)
    assert str(helper_agent.NO_AGENT) in collected.why
    with trio.fail_after(60):
        await backend.remove(TASK)
    await backend.aclose()
