"""A real HTTP proxy on this machine, with a login: Debian's tinyproxy."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

USER: Final = "owner"
PASSWORD: Final = "s3cret-of-the-proxy"
START_S: Final = 30


@dataclass(frozen=True)
class HttpProxy:
    """A proxy at a port of the loopback."""

    port: int
    log: Path

    def url(self, password: str = PASSWORD) -> str:
        """Return its URL with the login."""
        return f"http://{USER}:{password}@127.0.0.1:{self.port}"

    def targets(self) -> list[str]:
        """Return what it was asked to reach: hosts with their ports, or URLs."""
        asked = [line for line in self.log.read_text().splitlines() if "Request (file descriptor" in line]
        return [line.split()[-2] for line in asked]


@contextmanager
def running_proxy(folder: Path) -> Iterator[HttpProxy]:
    """Start a proxy. Skips, and says so, where there is none."""
    program = shutil.which("tinyproxy")
    if program is None:
        pytest.skip("NO TINYPROXY ON THIS MACHINE")
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = folder / "proxy.log"
    (folder / "proxy.conf").write_text(
        f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\nBasicAuth {USER} {PASSWORD}\n"
        f'LogFile "{log}"\nLogLevel Connect\n'
    )
    process = subprocess.Popen([program, "-d", "-c", str(folder / "proxy.conf")], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the proxy did not start"
                time.sleep(0.05)
        yield HttpProxy(port, log)
    finally:
        process.terminate()
        process.wait(30)
