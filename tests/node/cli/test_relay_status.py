"""``dekube relay status``: a relay that runs, one that does not, and what is no relay."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from node.cli import group
from node.cli.relay_status import METRICS_LIMIT_BYTES, NUMBERS, parse_counts
from node.home.create import create_home
from node.home.options import NodeOptions
from node.home.paths import Home
from node.relay.home import RelayHomeOptions
from rpc.client.control import ControlUnavailable
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tests.node.home.test_create import GENESIS

KEY = SecretKey(b"a" * 32)
PATIENCE_S = 60


def make_home(root: Path, options: RelayHomeOptions | NodeOptions) -> Home:
    return create_home(
        root, genesis=GENESIS, options=options, account=KEY, vote=None, passphrase="p", scrypt_n=2
    )  # fmt: skip


@contextmanager
def running(home: Home) -> Iterator[None]:
    """A relay's process that listens."""
    process = subprocess.Popen([sys.executable, "-m", "node", "relay", "run", "--home", str(home.root)])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not home.ready.exists():
            assert time.monotonic() < deadline and process.poll() is None, "the relay does not start"
            time.sleep(0.05)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def status(home: Home, *options: str) -> Result:
    return CliRunner().invoke(
        group, ["relay", "status", "--home", str(home.root), *options], standalone_mode=False
    )


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server with one fixed answer; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)


def write_ready(home: Home, document: Any) -> None:
    home.ready.parent.mkdir(parents=True, exist_ok=True)
    home.ready.write_text(document if isinstance(document, str) else json.dumps(document))


def counts(**changed: object) -> bytes:
    """What a relay tells that has just been started, with some numbers changed; None: left out."""
    numbers: dict[str, object] = {**dict.fromkeys(sorted(NUMBERS), 0), **changed}
    return "".join(f"dekube_relay_{name} {n}\n" for name, n in numbers.items() if n is not None).encode()


def http(body: bytes, code: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def test_a_relay_that_runs_and_one_that_has_ended(tmp_path: Path) -> None:
    home = make_home(tmp_path / "r", RelayHomeOptions(listen="127.0.0.1:0", metrics="127.0.0.1:0"))
    before = status(home)
    assert isinstance(before.exception, ControlUnavailable)
    assert str(before.exception) == f"no relay runs in {home.root}; `dekube relay run` starts it"
    with running(home):
        ready = json.loads(home.ready.read_text())
        told = status(home, "--check", "--json")
        assert told.exception is None
        found = json.loads(told.output)
        assert (found["address"], found["relay"]) == (format_address(KEY.address), ready["relay"])
        assert (found["reservations"], found["circuits"], found["load_percent"]) == (0, 0, 0)
        assert found["refusals_total"].keys() >= {"relay_full", "unpaid"}
        shown = status(home).output
        assert f"Relay {format_address(KEY.address)}" in shown
        assert "well: 0 % of what it may carry" in shown
        assert "not known before the first connection" in shown
    assert isinstance(status(home).exception, ControlUnavailable)


def test_a_relay_without_metrics_says_why_nothing_is_told(tmp_path: Path) -> None:
    home = make_home(tmp_path / "r", RelayHomeOptions(listen="127.0.0.1:0", metrics=""))
    with running(home):
        assert "set `metrics`" in str(status(home).exception)


def test_the_home_of_a_node_is_told_apart(tmp_path: Path) -> None:
    home = make_home(tmp_path / "n", NodeOptions())
    for document in (None, {"pid": 1, "rpc": "http://127.0.0.1:1"}):
        if document is not None:
            write_ready(home, document)
        error = status(home).exception
        assert isinstance(error, ConfigError)
        assert "this is the home of a node, not of a relay" in str(error)


@pytest.mark.parametrize("document", ["", "{", "[]", "{}", "[" * 4_096, '{"relay": 1}', "\xff" * 5_000])
def test_a_damaged_record_of_the_start_is_named(tmp_path: Path, document: str) -> None:
    home = make_home(tmp_path / "r", RelayHomeOptions())
    write_ready(home, document)
    error = status(home).exception
    assert isinstance(error, ConfigError)
    assert str(home.ready) in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"220 ready\r\n", http(b""), http(b"hello"), http(counts(), "404 Not Found"),
        http(counts(next_hop_links=None)), http(b"\xff"),
        http(counts(circuits="NaN")), http(counts(circuits="1e999")),
        http(counts(bbr='{a="1"} 1')), http(b"#" * METRICS_LIMIT_BYTES + b"\n" + counts()),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + counts(),
    ],
)  # fmt: skip
def test_what_is_no_relay_is_told_by_a_stable_code(tmp_path: Path, answer: bytes) -> None:
    home = make_home(tmp_path / "r", RelayHomeOptions())
    with answering(answer) as port:
        write_ready(home, {"relay": "h:1", "address": "0x", "metrics": f"127.0.0.1:{port}"})
        error = status(home).exception
        assert isinstance(error, ControlUnavailable)
        assert error.code == "node_unavailable"
        assert f"127.0.0.1:{port}" in str(error)


def test_a_full_relay_fails_the_check_and_is_shown(tmp_path: Path) -> None:
    home = make_home(tmp_path / "r", RelayHomeOptions())
    labels = (
        b'dekube_relay_refusals_total{reason="relay_full"} 3\ndekube_relay_refusals_total{reason="unpaid"} 0\n'
    )
    body = counts(load_percent=100, reservations=1, bytes_total=12_345_678, hosts=1, bbr=0) + labels
    with answering(http(body)) as port:
        write_ready(home, {"relay": "h:1", "address": "0x", "metrics": f"0.0.0.0:{port}"})
        done = status(home, "--check")
        assert done.return_value == 1
        told = " ".join(done.output.split())
        for part in ("full, takes nobody new: 100 %", "1 client reached", "12.3 MB", "3 relay_full", "not BBR"):
            assert part in told
        assert status(home).exception is None


def test_counts_are_told_by_name_and_by_label() -> None:
    body = counts(next_hop_links=2) + b'dekube_relay_drops_total{reason="a"} 1\ndekube_other 7\nx{a="1",b="2"} 1\n'
    found = parse_counts(body)
    assert (found["next_hop_links"], found["drops_total"]) == (2, {"a": 1})
    assert "other" not in found
    assert list(found) == sorted(found)
