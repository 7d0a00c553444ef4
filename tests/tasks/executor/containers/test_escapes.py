"""A container that tries the usual ways out (escapes.sh), as nobody and as user 0 without capabilities."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.market.container_socket import JobSocket
from tasks.executor.containers.backend import End
from tasks.executor.containers.egress.proxy import EgressLimits, EgressProxy, EgressUse
from tasks.executor.containers.request import NOBODY, InputMount
from tests.container_engine import ROOT
from tests.tasks.executor.containers.machine import Machine, run, running_machine
from tests.tasks.executor.containers.public_server import public_server

pytestmark = pytest.mark.nightly

MARK = "dekube-mark-outside"
TASK = b"\x02" * 32
ASK = (
    'ask() { printf \'%s %s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\' "$1" "$2" | nc -w 5 127.0.0.1 3128'
    " | grep -q '^HTTP/1.1 200'; }"
)
"""Sends a request to the proxy; succeeds on an answer of 200."""


def attempts() -> dict[str, str]:
    """Return the commands by name."""
    lines = (Path(__file__).parent / "escapes.sh").read_text(encoding="utf-8").splitlines()
    return dict(line.split("|", 1) for line in lines if line and not line.startswith("#"))


def documented() -> set[str]:
    """Return the attempts in the table of docs/security.md: that with three columns."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {name for kind, names, _ in rows if kind.startswith("container: ") for name in names.split("; ")}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
def outside() -> Iterator[None]:
    """A process of the machine that a container could see."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", MARK])
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("user", [NOBODY, 0])
async def test_no_container_gets_out(machine: Machine, tmp_path: Path, user: int) -> None:
    secret = machine.folder / "secret"
    machine.folder.mkdir(exist_ok=True)
    secret.write_text("key")
    secret.chmod(0o644)
    names = {"HOST_SECRET": str(secret), "HOST_SOCKET": str(machine.engine.socket), "HOST_MARK": MARK[:-1] + "[e]"}
    with public_server(tmp_path / "server") as server, socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        names |= {"HOST_PORT": str(port), "NET_ADDRESS": server.address, "NET_OWN": server.own_address}
        entries = tuple(
            sorted(
                f"{name}.example.net:{number}"
                for name, number in (
                    ("files", 443), ("home", 443), ("meta", 443), ("host", port), ("own", port)
                )
            )
        )  # fmt: skip
        backend = machine.backend(egress=("*:443", f"*:{port}"))
        source = backend.disk(TASK).input_path(0)
        source.parent.mkdir(parents=True)
        source.write_bytes(b"input")
        source.chmod(0o666)
        JobSocket(backend.socket_folder(TASK), {}).open()

        async def serve() -> None:
            listening = await backend.proxy_socket(TASK)
            await EgressProxy(listening, entries, EgressLimits(), EgressUse(), server.lookup).run()

        script = "\n".join(
            f"if ( {code} ) </dev/null >/scratch/said 2>&1; then echo 'GOT {at}'; else echo 'refused {at}'; fi"
            for at, code in enumerate(attempts().values())
        )
        request = machine.request(
            f"{ASK}\n{script}\nask CONNECT files.example.net:443 && echo 'its own name answers'",
            environment=tuple(f"{name}={value}" for name, value in names.items()),
            mounts=(InputMount(b"\x05" * 32, "/input/file", 5),), user=user, egress=entries,
        )  # fmt: skip
        try:
            went = await run(backend, TASK, request, tmp_path / "packed", beside=serve)
        finally:
            await backend.aclose()
    assert (went.ended.end, went.ended.code) == (End.EXITED, 0), went
    *lines, last = went.log.splitlines()
    assert last == "its own name answers", last
    assert len(lines) == len(attempts()), went.log
    found = dict(zip(attempts(), (line.split()[0] for line in lines), strict=True))
    assert {name: got for name, got in found.items() if got != "refused"} == {}
    assert len(found) == len(lines)


def test_the_attempts_are_those_of_the_document() -> None:
    assert set(attempts()) == documented()
