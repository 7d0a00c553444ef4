from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

# The three event loops that services run on, each told to stop by SIGTERM.
LOOPS = {
    "trio": """
import trio
from node.process.signals import stop_on_signal
import structlog
async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, structlog.get_logger("t"), nursery.cancel_scope.cancel)
        print("ready", flush=True)
trio.run(main)
""",
    "uvloop": """
import asyncio, signal, uvloop
async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print("ready", flush=True)
    await stopped.wait()
uvloop.run(main())
""",
}
START = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started with (nohup)
from rpc.process.log_output import configure_structlog, open_standard_descriptors
from rpc.process.signals import ignore_log_signals
open_standard_descriptors()
ignore_log_signals()
import sys
sys.stdin.readline()  # told to go on: what was sent until here came before logs and loop were there
configure_structlog("info", "json")
"""
END = "sys.exit(5)\n"
ROTATION = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def started(script: str, *, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
    )
    deadline_s = time.monotonic() + 20
    wanted = (1 << (signal.SIGUSR2 - 1)) | (1 << (signal.SIGUSR1 - 1))
    while True:  # until the handlers stand
        with open(f"/proc/{process.pid}/status") as status:
            caught = int(next(line for line in status if line.startswith("SigCgt")).split()[1], 16)
        if caught & wanted == wanted:
            return process
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize("loop", list(LOOPS))
def test_signals_of_log_rotation_end_no_service_at_any_moment(loop: str) -> None:
    process = started(START + LOOPS[loop] + END)
    for number in ROTATION:
        process.send_signal(number)
        time.sleep(0.02)  # equal signals would be told once; these differ, but each shall be handled by itself
    go_on(process)
    for number in ROTATION:
        process.send_signal(number)
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 5, stderr
    for number in ROTATION:
        assert stderr.count(f"{number.name}".encode()) == 2, stderr


def test_a_closed_terminal_ends_a_service_in_order() -> None:
    master, slave = pty.openpty()
    process = started(START + LOOPS["trio"] + END, stderr=slave)
    go_on(process)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=20)
    assert process.returncode == 5
    os.close(master)
    os.close(slave)


def test_children_inherit_nothing_that_is_ignored() -> None:
    script = START.replace("sys.stdin.readline()", "pass") + (
        "import subprocess\nsys.exit(-subprocess.run(['sh', '-c', 'kill -USR1 $$; exit 0']).returncode)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert ended.returncode == signal.SIGUSR1
