"""A Docker engine that a test starts for itself, with a socket and data of its own: no other one is touched."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
START_S: Final = 60
BUSYBOX: Final = "busybox"
UNIX_PIPE: Final = "unix_pipe"
"""A program of the image that talks to a Unix socket."""
TURNS: Final = Path(tempfile.gettempdir()) / "dekube-test-engines.lock"
"""Two engines that start at once both write the kernel's tables of packets, and one of them gives up."""
NO_PROXIES: Final = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "")


class Engine:
    """``dockerd`` in the folder ``root``, with ``options`` beside those that keep it apart."""

    def __init__(
        self, root: Path, environment: Mapping[str, str] = NO_PROXIES, options: tuple[str, ...] = ()
    ) -> None:
        self.root, self.options = root, options
        self.sockets = Path(tempfile.mkdtemp(prefix="dke-"))  # the path of a Unix socket has 107 bytes at most
        self.socket = self.sockets / "docker.sock"
        self.environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(root / "config"),
            "DOCKER_BUILDKIT": "0",
            **environment,
        }
        plugins = root / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(Path(sys.executable).parent / "docker-compose")
        self.log = (root / "dockerd.log").open("wb")
        self._turn = TURNS.open("wb")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        root = self.root
        fcntl.flock(self._turn, fcntl.LOCK_EX)  # until it answers
        return subprocess.Popen(
            [
                "dockerd", f"--host=unix://{self.socket}", f"--data-root={root}/data",
                f"--exec-root={self.sockets}/exec", f"--pidfile={root}/pid", "--bridge=none", *self.options,
            ],
            stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **NO_PROXIES},
        )  # fmt: skip

    def docker(self, *arguments: str, timeout_s: float = 600, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def wait(self) -> None:
        try:
            self._wait()
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while subprocess.run(["docker", "version"], env=self.environment, capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.root / "dockerd.log").read_text(errors="replace")[-2000:]
                pytest.skip(f"NO CONTAINER ENGINE CAN RUN ON THIS MACHINE: {log}")
            time.sleep(0.3)

    def import_tree(self, tree: Path, name: str, *changes: str) -> str:
        """Make an image of a folder and return its id."""
        archive = subprocess.Popen(["tar", "-C", str(tree), "-c", "."], stdout=subprocess.PIPE)
        done = subprocess.run(
            ["docker", "import", *(f"--change={one}" for one in changes), "-", name],
            stdin=archive.stdout, check=True, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        assert archive.wait() == 0
        return done.stdout.strip()

    def pause(self) -> None:
        """End the engine as its service does; what it has stays on the disk."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Start the engine again, after ``pause``."""
        self.process = self._start()
        self.wait()

    def stop(self) -> None:
        self.pause()
        self.log.close()
        self._turn.close()
        for line in Path("/proc/self/mounts").read_text().splitlines():  # what an engine that failed leaves
            if line.split()[1].startswith((str(self.root), str(self.sockets))):
                subprocess.run(["umount", "--lazy", line.split()[1]], capture_output=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


def skip_without(*programs: str) -> None:
    """Skip the test, and say why, where no engine can be started."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"NO CONTAINER ENGINE: ROOT AND {', '.join(missing).upper() or 'NOTHING ELSE'} NEEDED")


@contextmanager
def running_engine(
    root: Path, environment: Mapping[str, str] = NO_PROXIES, options: tuple[str, ...] = ()
) -> Iterator[Engine]:
    """Start an engine in ``root`` and stop it afterwards. Skips where none can run."""
    engine = Engine(root, environment, options)
    try:
        engine.wait()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(root, ignore_errors=True)


def busybox_tree(root: Path) -> Path:
    """Return a folder for an image: BusyBox, ``unix_pipe``, a setuid copy for ``su``, empty passwords."""
    (root / "bin").mkdir(parents=True)
    program = shutil.which(BUSYBOX)
    assert program is not None
    shutil.copy(program, root / "bin" / BUSYBOX)
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in applets:
        if name not in (BUSYBOX, "su"):
            (root / "bin" / name).symlink_to(BUSYBOX)
    shutil.copy(program, root / "bin" / "su")
    (root / "bin" / "su").chmod(0o4755)
    subprocess.run(
        ["gcc", "-O1", "-static", "-o", root / "bin" / UNIX_PIPE, ROOT / "tests" / "unix_pipe.c"], check=True
    )
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_text("root::0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    return root


HTPASSWD: Final = "keeper:$2b$05$CAaXiV4YsFY5/Ut9lBEqfOnTjDfpRTOfDZw5u3faWxzDghmyN7LHe\n"
"""User and password of the registry with a login, as bcrypt."""
PASSWORD: Final = "correct horse"


@contextmanager
def running_registry(root: Path, *, login: bool) -> Iterator[int]:
    """Start a registry on the loopback interface and yield its port."""
    root.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    auth = ""
    if login:
        (root / "htpasswd").write_text(HTPASSWD)
        auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {root}/htpasswd\n"
    (root / "config.yml").write_text(
        f"version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {root}/data\n"
        "  delete:\n    enabled: true\n"
        f"http:\n  addr: 127.0.0.1:{port}\n{auth}"
    )
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(root / "config.yml")], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (root / "log").read_text()
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)
