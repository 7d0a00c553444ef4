from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

from node.process.children import Child

SLEEPER = [
    sys.executable,
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()",
]


async def test_exit_status_and_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log.fileno())
        assert await child.wait() == 3
    assert (tmp_path / "log").read_bytes() == b"hello\n"
    child.signal(signal.SIGTERM)  # to one that has ended: nothing happens


async def test_one_that_ignores_the_request_is_ended_after_the_grace() -> None:
    reader, writer = os.pipe()
    child = Child(SLEEPER, log=writer)
    os.close(writer)
    assert await trio.to_thread.run_sync(os.read, reader, 2) == b"up"
    with trio.fail_after(120):
        assert await child.stop(0.05) == -signal.SIGKILL
    os.close(reader)


def test_a_child_does_not_outlive_its_killed_parent() -> None:
    program = (
        "import sys, time; from node.process.children import Child\n"
        f"child = Child({SLEEPER!r}); print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == b"up\n"
    handle = os.pidfd_open(pid)
    parent.kill()
    parent.wait()

    async def ended() -> None:
        with trio.fail_after(120):
            await trio.lowlevel.wait_readable(handle)

    trio.run(ended)
    os.close(handle)
    parent.stdout.close()
