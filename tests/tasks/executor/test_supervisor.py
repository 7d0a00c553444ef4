"""Job processes: shut in, watched, and gone when they should be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from tasks.engines.errors import EngineMissing
from tasks.executor import measures
from tasks.executor.errors import IsolationMissing, JobFailed, JobStalled
from tasks.executor.job import ChildFrame, Finished, Hello, Progress, Segment
from tasks.executor.supervisor import ProcessBackend, ProcessOptions, _file_of
from tests.tasks.executor.helpers import children, endless_order, ignore, impostor, job_processes, make_order

ROOT = Path(__file__).parents[3]
HELLO = "from tasks.executor.job import *; job.sendall(encode_frame(Hello('cpu', frozenset())))"


async def test_a_job_says_hello_then_each_segment_then_its_end() -> None:
    heard: list[ChildFrame] = []

    async def listen(message: ChildFrame) -> None:
        heard.append(message)

    await ProcessBackend(ProcessOptions()).run(make_order(), listen)
    assert isinstance(heard[0], Hello)
    segments = [message for message in heard if isinstance(message, Segment)]
    assert [(s.step_from, s.step_to) for s in segments] == [(at, at + 5) for at in range(0, 40, 5)]
    assert all(a.state_root_after == b.state_root_before for a, b in pairwise(segments))
    assert isinstance(heard[-1], Finished)
    assert heard[-1].samples == 20
    assert job_processes() == []


async def test_the_process_is_shut_in_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at from outside while it works."""
    monkeypatch.setenv("DEKUBE_TEST_SECRET", "must not be inherited")
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    granted: list[frozenset[str]] = []
    looked: list[int] = []

    async def listen(message: ChildFrame) -> None:
        match message:
            case Hello(_, isolation):
                granted.append(isolation)
            case Progress():
                (pid,) = job_processes()
                looked.append(pid)
                look_at(pid, granted[0])
                scope.cancel()
            case _:
                pass

    with trio.CancelScope() as scope:
        await ProcessBackend(ProcessOptions(engine="numpy"), tmp_path).run(endless_order(), listen)
    os.close(leaked)
    assert len(looked) == 1
    assert measures.LIMITS in granted[0]
    if os.geteuid() == 0:
        assert measures.USER in granted[0]
    assert os.listdir(tmp_path) == []  # the scratch directory is gone
    assert looked[0] not in children(os.getpid())


def look_at(pid: int, granted: frozenset[str]) -> None:
    process = Path(f"/proc/{pid}")
    status = dict(
        line.split(":\t", 1)
        for line in (process / "status").read_text(encoding="ascii").splitlines()
        if ":\t" in line
    )
    limits = (process / "limits").read_text(encoding="ascii")
    assert any(line.split()[:5] == ["Max", "file", "size", "0", "0"] for line in limits.splitlines())
    assert any(line.split()[:5] == ["Max", "core", "file", "size", "0"] for line in limits.splitlines())
    assert any(line.split()[:4] == ["Max", "processes", "0", "0"] for line in limits.splitlines())
    if measures.USER in granted:
        assert status["Uid"].split() == ["65534"] * 4
        assert status["Gid"].split() == ["65534"] * 4
        assert status["Groups"].strip() == ""
    if measures.PRIVILEGES in granted:
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
    if measures.CALLS in granted:
        assert status["Seccomp"].strip() == "2"
    if os.geteuid() == 0:  # others may not look
        assert b"DEKUBE_TEST_SECRET" not in (process / "environ").read_bytes()
        if measures.NETWORK in granted:
            assert os.readlink(process / "ns/net") != os.readlink("/proc/self/ns/net")
            devices = (process / "net/dev").read_text(encoding="ascii").splitlines()[2:]
            assert [line.split(":")[0].strip() for line in devices] == ["lo"]
        if measures.FILES in granted:
            assert os.listdir(process / "root") == []
        stdin = dict(line.split(":\t") for line in (process / "fdinfo/0").read_text("ascii").splitlines())
        assert int(stdin["flags"], 8) & os.O_ASYNC  # the kernel tells it of its supervisor's end
        open_files = [os.readlink(process / "fd" / entry) for entry in os.listdir(process / "fd")]
        assert len(open_files) <= 5, open_files
        assert sum(name.startswith("socket:") for name in open_files) == 1


def test_a_process_that_left_the_network_reaches_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = (
            "import socket\nfrom tasks.executor import sandbox\n"
            f"before = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5).close()\n"
            "granted = sandbox.leave_network()\n"
            "try:\n"
            f"    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)\n"
            "    print('reached', len(granted))\n"
            "except OSError:\n"
            "    print('cut off', len(granted))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        )
    assert done.stdout.strip() in {"cut off 1", "reached 0"}
    if os.geteuid() == 0 and done.stdout.strip() == "reached 0":
        pytest.skip("THIS MACHINE GRANTS NO NETWORK NAMESPACE: JOBS ARE NOT CUT OFF HERE")


async def test_a_job_does_not_run_without_the_isolation_that_is_required() -> None:
    options = ProcessOptions(isolation_required=frozenset({"network", "a vault"}))
    with pytest.raises(IsolationMissing, match="a vault"):
        await ProcessBackend(options).run(make_order(), ignore)
    assert job_processes() == []


async def test_probing_tells_what_a_job_gets() -> None:
    found = await ProcessBackend(ProcessOptions()).probe()
    assert found.device in {"cpu:numpy", "cuda:torch"}
    assert (await ProcessBackend(ProcessOptions(engine="numpy")).probe()).device == "cpu:numpy"
    assert measures.LIMITS in found.isolation


async def test_a_job_that_is_cancelled_is_gone() -> None:
    with trio.CancelScope() as scope:

        async def listen(message: ChildFrame) -> None:
            if isinstance(message, Progress):
                scope.cancel()
                await trio.lowlevel.checkpoint()

        await ProcessBackend(ProcessOptions()).run(endless_order(), listen)
    assert scope.cancelled_caught
    assert job_processes() == []


async def test_a_job_that_is_killed_is_a_failure() -> None:
    async def listen(message: ChildFrame) -> None:
        if isinstance(message, Progress):
            for pid in job_processes():
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(JobFailed) as raised:
        await ProcessBackend(ProcessOptions()).run(endless_order(), listen)
    assert raised.value.reason == "died"
    assert "-9" in str(raised.value)


async def test_a_job_beyond_its_memory_is_refused_it() -> None:
    with pytest.raises(JobFailed) as raised:
        await ProcessBackend(ProcessOptions(memory_mib=96)).run(endless_order((12, 1500, 1500, 4)), ignore)
    assert raised.value.reason == "out_of_memory"


async def test_a_job_that_makes_no_step_is_ended() -> None:
    """It goes on sending, but never a step that is new."""

    async def stop(message: ChildFrame) -> None:
        if isinstance(message, Progress):
            for pid in job_processes():
                os.kill(pid, signal.SIGSTOP)

    with pytest.raises(JobStalled):
        await ProcessBackend(ProcessOptions(no_progress_s=1.0)).run(endless_order(), stop)
    assert job_processes() == []


async def test_a_stopped_job_is_ended_long_before_one_that_computes() -> None:
    """It uses no processor time: the time that a long step may take is not waited for."""

    async def stop(message: ChildFrame) -> None:
        if isinstance(message, Progress):
            for pid in job_processes():
                os.kill(pid, signal.SIGSTOP)

    with pytest.raises(JobStalled, match="stopped"), trio.fail_after(60):
        await ProcessBackend(ProcessOptions(quiet_s=1.0)).run(endless_order(), stop)
    assert job_processes() == []


@pytest.mark.slow
async def test_a_job_that_computes_silently_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    silent = "end = time.process_time() + 2.5\nwhile time.process_time() < end: pass"
    last = "job.sendall(encode_frame(Failed('diverged', 'done')))"
    options = ProcessOptions(python=impostor(tmp_path, HELLO, silent, last), quiet_s=1.0)
    with pytest.raises(JobFailed, match="diverged"):
        await ProcessBackend(options).run(make_order(), ignore)


def test_a_model_that_is_handed_over_cannot_be_changed_or_cut() -> None:
    descriptor = _file_of(b"model")
    try:
        for change in (lambda: os.pwrite(descriptor, b"x", 0), lambda: os.pwrite(descriptor, b"x", 5),
                       lambda: os.ftruncate(descriptor, 0)):  # fmt: skip
            with pytest.raises(PermissionError):
                change()
        assert os.read(descriptor, 9) == b"model" and not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


async def test_a_job_is_not_late_where_its_node_stood_still(tmp_path: Path) -> None:
    async def stand_still() -> None:
        await trio.sleep(0.1)
        time.sleep(2.6)  # noqa: ASYNC251 - as a node that is stopped

    async def listen(_message: ChildFrame) -> None:
        nursery.start_soon(stand_still)

    last = "job.sendall(encode_frame(Failed('diverged', 'done')))"
    options = ProcessOptions(python=impostor(tmp_path, HELLO, "time.sleep(1.2)", last), no_progress_s=1.0)
    async with trio.open_nursery() as nursery:
        with pytest.raises(JobFailed, match="diverged"):
            await ProcessBackend(options).run(make_order(), listen)
        nursery.cancel_scope.cancel()


async def test_a_stopped_job_that_is_cancelled_is_gone() -> None:
    async def stop(message: ChildFrame) -> None:
        if isinstance(message, Progress):
            for pid in job_processes():
                os.kill(pid, signal.SIGSTOP)
            scope.cancel()

    with trio.CancelScope() as scope, trio.fail_after(60):
        await ProcessBackend(ProcessOptions()).run(endless_order(), stop)
    assert scope.cancelled_caught
    assert job_processes() == []


async def test_what_an_earlier_life_of_the_node_left_is_ended(tmp_path: Path) -> None:
    """Stopped, and with a child of its own in its group; jobs of another node are not touched."""
    ours, others = tmp_path / "ours", tmp_path / "others"
    program = "import os, time; os.fork(); time.sleep(300)"
    left = [
        subprocess.Popen(  # noqa: ASYNC220 - as the orphan of a node: its parent is another process
            ["/bin/sh", "-c", f'"$0" -c "$1" -m tasks.executor.child 3 {root}/dekube-job-abc numpy & echo $!',
             sys.executable, program],
            start_new_session=True, stdout=subprocess.PIPE, text=True,
        )
        for root in (ours, others)
    ]  # fmt: skip
    pids = []
    for process in left:
        assert process.stdout is not None
        pids.append(int(process.stdout.readline()))
        process.stdout.close()
        process.wait()
    with trio.fail_after(60):
        while any(not children(pid) for pid in pids):  # noqa: ASYNC110 - of processes
            await trio.sleep(0.01)
    groups = [children(pid) for pid in pids]
    os.kill(pids[0], signal.SIGSTOP)
    try:
        assert await ProcessBackend(ProcessOptions(), ours).end_leftovers() == 1 + len(groups[0])
        assert not any(is_alive(pid) for pid in (pids[0], *groups[0]))
        assert all(is_alive(pid) for pid in (pids[1], *groups[1]))
    finally:
        for pid in (*groups[1], pids[1]):
            os.kill(pid, signal.SIGKILL)
    with trio.fail_after(60):
        while any(is_alive(pid) for pid in (*groups[1], pids[1])):  # noqa: ASYNC110 - of processes
            await trio.sleep(0.01)
    assert await ProcessBackend(ProcessOptions(), others).end_leftovers() == 0


async def test_a_job_beyond_its_time_is_ended() -> None:
    with pytest.raises(JobStalled):
        await ProcessBackend(ProcessOptions(wall_s=1.0)).run(endless_order(), ignore)
    assert job_processes() == []


async def test_the_listeners_own_time_is_not_the_jobs(mock_clock: trio.testing.MockClock) -> None:
    """No time passes but while the listener is at work: each time longer than the job may be silent."""
    heard = 0

    async def slow(message: ChildFrame) -> None:
        nonlocal heard
        if isinstance(message, Segment):
            heard += 1
            mock_clock.jump(1)

    await ProcessBackend(ProcessOptions(no_progress_s=0.7)).run(make_order(), slow)
    assert heard == 8


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["job.sendall(b'\\xff' * 4)"], "bad_frame"),
        (["job.sendall(b'\\0\\0\\0\\x05hello')"], "bad_frame"),
        (["from tasks.executor.job import *; job.sendall(encode_frame(Progress(1)))"], "bad_frame"),
        ([HELLO, "job.sendall(encode_frame(Progress(41)))"], "bad_frame"),
        ([HELLO, HELLO], "bad_frame"),
        ([HELLO, "print('sorry'); sys.exit(3)"], "died"),
        ([HELLO, "sys.stdout.write('x' * 3_000_000); sys.stdout.flush(); sys.exit(4)"], "died"),
        ([HELLO, "job.sendall(encode_frame(Failed('diverged', 'at step 1')))"], "diverged"),
        (["sys.exit(5)"], "died"),
    ],
    ids=[
        "oversized",
        "garbage",
        "no hello",
        "too far",
        "two hellos",
        "exits",
        "floods its log",
        "fails",
        "no start",
    ],
)
async def test_a_process_that_misbehaves_is_a_failure(tmp_path: Path, lines: list[str], reason: str) -> None:
    options = ProcessOptions(python=impostor(tmp_path, *lines, "time.sleep(30)"))
    with pytest.raises(JobFailed) as raised:
        await ProcessBackend(options).run(make_order(), ignore)
    assert raised.value.reason == reason
    assert len(str(raised.value)) < 1000
    if "sorry" in str(lines):
        assert "exit status 3: sorry" in str(raised.value)


async def test_a_process_that_repeats_a_step_is_ended(tmp_path: Path) -> None:
    endless = "while True: job.sendall(encode_frame(Progress(1))); time.sleep(0.05)"
    options = ProcessOptions(python=impostor(tmp_path, HELLO, endless), no_progress_s=1.0)
    with pytest.raises(JobStalled):
        await ProcessBackend(options).run(make_order(), ignore)


async def test_what_a_process_started_is_ended_with_it(tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    lines = (
        HELLO,
        "pid = os.fork()",
        "if pid == 0: time.sleep(60); os._exit(0)",
        f"open({str(marker)!r}, 'w').write(str(pid))",
        "job.sendall(encode_frame(Failed('diverged', 'done')))",
    )
    with pytest.raises(JobFailed):
        await ProcessBackend(ProcessOptions(python=impostor(tmp_path, *lines))).run(make_order(), ignore)
    grandchild = int(marker.read_text(encoding="ascii"))
    with trio.fail_after(120):
        while is_alive(grandchild):  # noqa: ASYNC110 - of a process
            await trio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ends_with_its_node(program: str) -> bool:
    """Kill a node, whose ``program`` tells the job's process; return whether that ends too."""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        assert is_alive(pid)
        node.kill()
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    alive = is_alive(pid)
    if alive:
        os.kill(pid, signal.SIGKILL)
    return not alive


def test_a_job_ends_when_its_node_is_killed() -> None:
    program = (
        "import trio\n"
        "from tasks.executor.job import Progress\n"
        "from tasks.executor.supervisor import ProcessBackend, ProcessOptions\n"
        "from tests.tasks.executor.helpers import endless_order, job_processes\n"
        "async def listen(message):\n"
        "    if isinstance(message, Progress): print(*job_processes(), flush=True)\n"
        "trio.run(ProcessBackend(ProcessOptions()).run, endless_order(), listen)\n"
    )
    assert ends_with_its_node(program)


def test_a_stopped_job_ends_when_its_node_is_killed() -> None:
    program = (
        "import os, signal, trio\n"
        "from tasks.executor.job import Progress\n"
        "from tasks.executor.supervisor import ProcessBackend, ProcessOptions\n"
        "from tests.tasks.executor.helpers import endless_order, job_processes\n"
        "async def listen(message):\n"
        "    if isinstance(message, Progress):\n"
        "        for pid in job_processes(): os.kill(pid, signal.SIGSTOP); print(pid, flush=True)\n"
        "trio.run(ProcessBackend(ProcessOptions()).run, endless_order(), listen)\n"
    )
    assert ends_with_its_node(program)


def test_a_job_in_the_middle_of_a_long_step_ends_when_its_node_is_killed(tmp_path: Path) -> None:
    """It hears nothing then, however long the step takes that a stranger asked for."""
    python = impostor(
        tmp_path, "from tasks.executor import sandbox", "sandbox.end_with(0)", HELLO,
        "while True: sum(range(10**6))",
    )  # fmt: skip
    program = (
        "import os, trio\n"
        "from tasks.executor.supervisor import ProcessBackend, ProcessOptions\n"
        "from tests.tasks.executor.helpers import children, endless_order\n"
        "async def listen(message):\n"
        "    print(*children(os.getpid()), flush=True)\n"
        f"options = ProcessOptions(python={python!r})\n"
        "trio.run(ProcessBackend(options).run, endless_order(), listen)\n"
    )
    assert ends_with_its_node(program)


@pytest.mark.slow
async def test_torch_runs_jobs_or_is_named_as_missing() -> None:
    backend = ProcessBackend(ProcessOptions(engine="torch"))
    if find_spec("torch") is not None:
        assert (await backend.probe()).device in {"cpu:torch", "cuda:torch"}
    else:
        with pytest.raises(EngineMissing, match="ml"):
            await backend.run(make_order(), ignore)
