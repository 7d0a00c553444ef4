from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rpc.process.log_output import CUT, LINE_BYTES_MAX, STALLED_S, LogCollector, LogOutput

WAIT_S = 20.0
PIPE_BYTES = 65_536


def wait_for(what: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.005)


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def fill(self) -> None:
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"x" * 4_096)
        except BlockingIOError:
            pass
        os.set_blocking(self.writer, True)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    for descriptor in (found.reader, found.writer):
        try:
            os.close(descriptor)
        except OSError:
            pass


def test_lines_are_written_whole_and_in_order(pipe: Pipe) -> None:
    output = LogOutput(pipe.writer)
    for number in range(100):
        output.write(f"line {number}\n")
    output.flush(WAIT_S)
    assert os.read(pipe.reader, PIPE_BYTES) == b"".join(b"line %d\n" % number for number in range(100))
    assert output.describe() == {"dropped": 0, "failing": None}


def test_a_full_partition_drops_lines_counts_them_and_says_since_when() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        output = LogOutput(full)
        before_ms = time.time_ns() // 1_000_000
        for _ in range(3):
            output.write("lost\n")
        output.flush(WAIT_S)
        failure = output.failure()
        assert output.dropped == 3 and failure is not None
        assert failure.reason == "No space left on device" and failure.since_ms >= before_ms
        registry = CollectorRegistry()
        registry.register(LogCollector(output))
        text = generate_latest(registry).decode()
        assert "dekube_log_lines_dropped_total 3.0" in text and "dekube_log_failing_since_seconds 0.0" not in text
    finally:
        os.close(full)


def test_a_reader_that_went_away_is_no_end_and_a_later_line_is_tried_again(pipe: Pipe) -> None:
    output = LogOutput(pipe.writer)
    os.close(pipe.reader)
    for _ in range(5):
        output.write("lost\n")
    output.flush(WAIT_S)
    assert output.dropped == 5 and output.failure() is not None
    reader, writer = os.pipe()
    os.dup2(writer, pipe.writer)  # the log is there again
    os.close(writer)
    output.write("found\n")
    output.write("again\n")
    output.flush(WAIT_S)
    assert output.failure() is None and output.dropped == 5
    assert os.read(reader, PIPE_BYTES) == b"found\n(log: 5 lines could not be written)\nagain\n"
    os.close(reader)


def test_a_reader_that_stalls_blocks_no_caller_and_the_queue_is_bounded(pipe: Pipe) -> None:
    output = LogOutput(pipe.writer, queue_lines_max=10)
    pipe.fill()
    output.write("waits\n")
    wait_for(lambda: output._queue.qsize() == 0)  # the thread has taken it, and is blocked
    for _ in range(50):
        output.write("waits or is dropped\n")
    assert output.dropped == 40
    wait_for(lambda: output.failure() is not None)
    failure = output.failure()
    assert failure is not None and failure.reason == "its reader does not read"
    assert time.time_ns() // 1_000_000 - failure.since_ms >= STALLED_S * 1_000
    drained = threading.Event()

    def drain() -> None:
        data = b""
        while b"could not be written" not in data:
            data = os.read(pipe.reader, PIPE_BYTES)
        drained.set()

    threading.Thread(target=drain, daemon=True).start()
    output.flush(WAIT_S)
    assert drained.wait(WAIT_S) and output.failure() is None and output.dropped == 40


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 4_096)
    output = LogOutput(pipe.writer)
    line = "y" * 3_000 + "\n"
    for _ in range(5):
        output.write(line)
    found = b""
    while len(found) < 5 * len(line):
        found += os.read(pipe.reader, PIPE_BYTES)
    output.flush(WAIT_S)
    assert found == line.encode() * 5 and output.dropped == 0


def test_a_line_without_end_is_cut(pipe: Pipe) -> None:
    output = LogOutput(pipe.writer)
    output.write("z" * (LINE_BYTES_MAX * 2) + "\n")
    output.flush(WAIT_S)
    found = os.read(pipe.reader, PIPE_BYTES)
    assert len(found) == LINE_BYTES_MAX and found.endswith(CUT)


SCRIPT = """
from rpc.process.log_output import open_standard_descriptors, configure_structlog
open_standard_descriptors()
configure_structlog("info", "json")
import structlog, sys
opened = open(sys.argv[1], "w")
structlog.get_logger("x").info("hello")
structlog.get_logger("x").critical("the last word")
sys.exit(7)
"""


@pytest.mark.parametrize("stderr", ["full", "closed", "kept"])
def test_a_process_keeps_its_status_and_writes_no_log_into_its_files(stderr: str, tmp_path: object) -> None:
    file = os.path.join(str(tmp_path), "database")
    close = "2>&-" if stderr == "closed" else "2>/dev/full" if stderr == "full" else ""
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {close}', sys.executable, "-c", SCRIPT, file],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 7
    assert os.path.getsize(file) == 0
    if stderr == "kept":
        assert ended.stderr.count(b"\n") == 2 and b"the last word" in ended.stderr
