"""The socket of a container in a pod: the node's own, with its limits, over a link that is made again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.market.container_attendance import Attendance
from node.market.container_live import Live
from tasks.executor.containers.backend import End, Ended
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.request import ContainerRequest
from tests.kubernetes.machine import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = bytes(range(32))
ASK = """
import http.client, json, os, socket, sys, time
class Here(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["DEKUBE_SOCKET"])
def ask(method, path, body=None):
    here = Here("job", timeout=60)
    try:
        here.request(method, path, body)
        answer = here.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        here.close()
def report(**fields):
    return ask("POST", "/progress", json.dumps(fields))
"""


@asynccontextmanager
async def attended(
    backend: KubernetesBackend, request: ContainerRequest, live: Live, *, starts: bool
) -> AsyncIterator[list[Ended]]:
    """Do what a node does for a container, until the context ends: then the node is gone."""
    ended: list[Ended] = []
    with Attendance(backend, TASK, live) as attendance:
        if starts:
            await backend.start(TASK, request)

        async def watch() -> None:
            ended.append(await backend.watch(TASK, request, lambda look: live.note_up(look.up_s)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attendance.run)
            nursery.start_soon(watch)
            yield ended
            nursery.cancel_scope.cancel()


async def _until(condition: Callable[[], object]) -> None:
    with trio.fail_after(180):
        while True:
            if condition():
                return
            await trio.sleep(0.1)


async def test_a_pod_reports_at_its_socket_and_goes_on_after_its_link_and_its_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The first line of the container is a report; a link that is cut and another node are only a wait."""
    script = (
        "print(report(progress=1, total=9, metrics={'loss': 0.5}), flush=True)\n"
        f"print(ask('GET', '/')[1]['task'] == '{TASK.hex()}', ask('GET', '/x')[0], flush=True)\n"
        "print(report(progress=-1), ask('POST', '/progress', 'x' * 9000)[0], flush=True)\n"
        "try: open(os.path.dirname(os.environ['DEKUBE_SOCKET']) + '/other', 'w')\n"
        "except OSError as error: print(error.strerror, flush=True)\n"
        "eats = b'x' * (24 << 20); begun = time.process_time()\n"
        "while time.process_time() < begun + 2: pass\n"
        "number, again = 2, 0\n"
        "while number < 1000:\n"
        "    try: number = report(progress=number)[1]['progress'] + 1; time.sleep(0.1)\n"
        "    except OSError: again += 1; time.sleep(0.1)\n"
    )
    request = cluster.request("", command=("/usr/bin/python3", "-c", ASK + script), output_path="")
    first, live = cluster.shown(), Live()
    async with attended(first, request, live, starts=True):
        await _until(lambda: (live.progress or 0) > 5 and live.memory_bytes > 24 << 20)
        assert (live.metrics, live.total) == ({"loss": 0.5}, 9)
        assert live.memory_bytes < 64 << 20
        await _until(lambda: (used := first.links[TASK].usage()) is not None and used.cpu_s >= 2)
        was, namespace = live.progress or 0, first.place(TASK).namespace
        pod = cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").strip()
        cut = "for p in /proc/[0-9]*; do grep -q link $p/cmdline 2>/dev/null && kill -9 ${p#/proc/}; done"
        cluster.kubectl("exec", "-n", namespace, pod, "-c", "outputs", "--", "sh", "-c", cut, check=False)
        await _until(lambda: (live.progress or 0) > was + 5)
    await first.aclose()
    second, later = cluster.shown(), Live()
    async with attended(second, request, later, starts=False) as ended:
        await _until(lambda: (later.progress or 0) > was + 5)
        await second.stop(TASK, 1)
        await _until(lambda: ended)
    assert (ended[0].end, ended[0].code) == (End.STOPPED, 15)
    log = (await second.collect(TASK, request, str(tmp_path / "packed.tar"))).log.decode().splitlines()
    assert log[:4] == [
        "(200, {'progress': 1})", "True 404",
        "(400, {'error': 'progress: a whole number from 0 to 9007199254740991 expected'}) 413",
        "Read-only file system",
    ]  # fmt: skip
    await second.remove(TASK)
    assert not second.socket_folder(TASK).exists()
    await second.aclose()


async def test_n50_a_container_neither_enters_its_helper_nor_lies_beyond_its_own_figures(cluster: Cluster) -> None:
    """The helper has another user. Its agent can be taken over: what it measures is then a lie, and no more."""
    script = (
        "def of(*words):\n"
        "    found = []\n"
        "    for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: has = set(open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0'))\n"
        "        except OSError: continue\n"
        "        if has.issuperset(words): found.append(int(p))\n"
        "    return found\n"
        "while not of(b'link'): time.sleep(0.1)\n"
        "helper = of(b'/dekube/stage/socket.py', b'serve')[0]\n"
        "agent = of(b'/dekube/agent/agent.py', b'serve')[0]\n"
        "for attempt in (\n"
        "    lambda: open(f'/proc/{helper}/root/dekube/stage/socket.py', 'w'),\n"
        "    lambda: open(f'/proc/{helper}/mem', 'rb'), lambda: os.listdir(f'/proc/{helper}/fd'),\n"
        "    lambda: open(f'/proc/{helper}/environ').read(), lambda: os.kill(helper, 19),\n"
        "    lambda: [os.kill(one, 19) for one in of(b'link')],\n"
        "    lambda: os.listdir(f'/proc/{agent}/root/dekube/stage'),\n"
        "):\n"
        "    try: print('GOT', attempt(), flush=True)\n"
        "    except OSError as error: print(type(error).__name__, flush=True)\n"
        "os.kill(agent, 19)\n"
        "place = f'/proc/{agent}/root/dekube/agent/use'\n"
        "os.unlink(place)\n"
        "os.symlink('/dekube/stage/socket.py', place); time.sleep(6)\n"
        "os.unlink(place); os.mkfifo(place); time.sleep(6)\n"
        "os.unlink(place); open(place, 'wb').write(b'\\xff' * 17); time.sleep(6)\n"
        "open(place, 'wb').write(bytes(8) + (12345).to_bytes(8, 'big')); time.sleep(6)\n"
        "print(report(progress=5), flush=True)\n"
    )
    request = cluster.request("", command=("/usr/bin/python3", "-c", ASK + script), output_path="")
    backend, live = cluster.shown(), Live()
    async with attended(backend, request, live, starts=True) as ended:
        await _until(lambda: backend.links)
        link = backend.links[TASK]
        await _until(lambda: (used := link.usage()) is not None and used.memory_bytes == 12345)
        await _until(lambda: ended)
        assert link.made == 1, "it cut the link"
    assert (ended[0].end, ended[0].code) == (End.EXITED, 0)
    log = (await backend.collect(TASK, request, "/nowhere")).log.decode().splitlines()
    assert log == ["PermissionError"] * 6 + ["FileNotFoundError", "(200, {'progress': 5})"]
    assert live.progress == 5
    await backend.remove(TASK)
    await backend.aclose()
