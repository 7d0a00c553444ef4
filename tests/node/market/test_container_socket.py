"""The socket of a container, with real programs at its other end: honest, clumsy and hostile ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

import node.market.container_socket
from node.market.container_live import POINTS_MAX, Live
from node.market.container_socket import CONNECTIONS_MAX, REQUESTS_BURST, Answer, JobSocket
from state.primitives.errors import DecodeError
from tasks.executor.containers.progress_report import METRICS_MAX, REPORT_BYTES_MAX, ProgressReport, decode_report

FIVE_LINES = """
import http.client, json, os, socket, sys
class Job(http.client.HTTPConnection):
    def connect(self): self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(os.environ["DEKUBE_SOCKET"])
job = Job("job")
job.request("POST", "/progress", json.dumps({"progress": 7, "total": 9, "metrics": {"loss": 0.5}}))
sys.exit(job.getresponse().status != 200)
"""


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[JobSocket, Live]]:
    live = Live()

    def note(body: bytes) -> Answer:
        live.note_report(decode_report(body), 1)
        return Answer()

    made = JobSocket(folder, {("POST", "/progress"): note, ("GET", "/"): lambda _body: Answer(200, {"up": 1})})
    made.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made, live
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what it looks at has no event
        await trio.sleep(0.02)


async def talk(folder: Path, data: bytes, *, ends: bool = True) -> bytes:
    """Send bytes and return what comes back until the other end closes."""
    stream = await trio.open_unix_socket(folder / "job.sock")
    async with stream:
        await stream.send_all(data)
        if ends:
            await stream.send_eof()
        found = b""
        while part := await stream.receive_some(65_536):
            found += part
        return found


def post(body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST /progress HTTP/1.1", b"Host: job", b"Content-Length: %d" % len(body), *headers, b"", body)
    return b"\r\n".join(lines)


async def test_a_program_without_our_package_reports_in_five_lines(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, live):
        environment = {"DEKUBE_SOCKET": str(tmp_path / "job.sock"), "PATH": "/usr/bin:/bin"}
        done = await trio.run_process([sys.executable, "-c", FIVE_LINES], env=environment, check=False)
        assert done.returncode == 0
        assert (live.progress, live.total, live.metrics) == (7, 9, {"loss": 0.5})


async def test_curl_reports(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, live):
        command = ["curl", "-sf", "--unix-socket", str(tmp_path / "job.sock"), "http://job/progress"]
        try:
            await trio.run_process([*command, "-d", '{"progress": 3}'], stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            pytest.skip("curl is not there")
        assert live.progress == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: job\r\nA: " + b"x" * 20_000, b"431"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /progress HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
        (b"POST /progress HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST /other HTTP/1.1\r\nHost: job\r\nContent-Length: 0\r\n\r\n", b"404"),
        (b"DELETE / HTTP/1.1\r\nHost: job\r\n\r\n", b"405"),
        (post(b"x" * (REPORT_BYTES_MAX + 1)), b"413"),
        (post(b'{"progress": -1}'), b"400"),
        (post(b"{" * 4_000), b"400"),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n", b"404"),
    ],
)
async def test_what_is_wrong_is_answered_and_hurts_nobody(tmp_path: Path, data: bytes, status: bytes) -> None:
    async with served(tmp_path) as (made, live):
        answer = await talk(tmp_path, data, ends=False)
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:80]
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert made.refused == 1 and live.progress is None
        assert (await talk(tmp_path, post(b'{"progress": 5}'))).startswith(b"HTTP/1.1 200")
        assert live.progress == 5


async def test_half_a_request_ends_without_an_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, live):
        assert b"HTTP/1.1 200" not in await talk(tmp_path, post(b'{"progress": 5}')[:-3])
        assert live.progress is None


async def test_n42_spam_and_slow_readers_stay_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests beyond the rate are refused, connections beyond the limit closed, and silent ones given up."""
    monkeypatch.setattr(node.market.container_socket, "IDLE_S", 0.5)
    monkeypatch.setattr(node.market.container_socket, "REFUSED_S", 0.01)
    async with served(tmp_path) as (made, live):
        answers = await talk(tmp_path, post(b'{"progress": 1}') * (2 * REQUESTS_BURST), ends=False)
        assert answers.count(b"HTTP/1.1 200") >= REQUESTS_BURST and answers.count(b"HTTP/1.1 429") == 1
        sockets = []
        for _ in range(4 * CONNECTIONS_MAX):  # a backlog of the kernel holds some of them
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                one.connect(str(tmp_path / "job.sock"))
                one.send(b"POST /progress HTTP/1.1\r\n")
            except OSError:
                one.close()
                continue
            sockets.append(one)
            await trio.lowlevel.checkpoint()
        with trio.fail_after(30):
            await until(lambda: made.refused >= 2)
            assert made._open <= CONNECTIONS_MAX
            await until(lambda: not made._open)  # those that say nothing are given up
        for one in sockets:
            one.close()
        with trio.fail_after(30):
            await until(lambda: made._requests.is_full(int(trio.current_time() * 1000)))
        assert (await talk(tmp_path, post(b'{"progress": 2}'))).startswith(b"HTTP/1.1 200")
        assert live.progress == 2


async def test_a_socket_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    for _ in range(2):
        live = Live()
        made = JobSocket(folder, {("GET", "/"): lambda _body: Answer()})
        made.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            assert (folder / "job.sock").is_socket() and live.stage == "waiting"
            nursery.cancel_scope.cancel()


def test_a_series_stays_bounded_and_keeps_its_order() -> None:
    async def report() -> Live:
        live = Live()
        for number in range(3 * POINTS_MAX):
            await trio.sleep(1.5)
            live.note_report(ProgressReport(number, None, "", {"loss": 1.0}), number)
        return live

    live = trio.run(report, clock=trio.testing.MockClock(autojump_threshold=0))
    numbers = [point.number for point in live.points]
    assert len(numbers) <= POINTS_MAX and numbers == sorted(set(numbers)) and numbers[-1] == 3 * POINTS_MAX


async def test_names_of_all_reports_are_bounded_together() -> None:
    live = Live()
    live.note_report(ProgressReport(None, None, "", {f"a{at}": 1.0 for at in range(METRICS_MAX)}), 1)
    with pytest.raises(DecodeError):
        live.note_report(ProgressReport(1, None, "", {"b": 1.0}), 2)
    assert live.progress is None and len(live.metrics) == METRICS_MAX
