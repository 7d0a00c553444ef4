"""A real S3 server for tests: versitygw on a folder, built once by Go into a cache of this user."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS, SECRET = "test-access", "test-secret-that-is-never-printed"
START_S = 30.0


def server_binary() -> Path:
    """Return the server's program, built if it is not in the cache.

    Skips the test, with the reason, where it cannot be built.
    """
    given = os.environ.get("DEKUBE_TEST_VERSITYGW")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dekube-tests"
    cache.mkdir(parents=True, exist_ok=True)
    binary = cache / "versitygw-v1.8.0" / "versitygw"
    with (cache / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            if shutil.which("go") is None:
                pytest.skip("no S3 server: Go, which builds versitygw, is not installed")
            environment = {**os.environ, "GOBIN": str(binary.parent), "GOTOOLCHAIN": "auto"}
            done = subprocess.run(["go", "install", MODULE], env=environment, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no S3 server: versitygw cannot be built here: {done.stderr[-300:]}")
    return binary


@contextmanager
def s3_server(root: Path) -> Iterator[str]:
    """Run the server on the buckets (folders) of ``root``; give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(server_binary()), "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET, "--quiet",
        "posix", str(root),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None and time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Cutter:
    """A TCP relay that cuts all connections for good once ``limit_bytes`` have passed in one direction."""

    def __init__(self, target: str, limit_bytes: int) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target, self.left = (host, int(port)), limit_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock, self._open = threading.Lock(), set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                with self._lock:
                    self.left -= len(data)
                    if self.left <= 0:
                        break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
