"""Draining from the command line: it returns when the node has ended, not when it has stopped answering."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import node.cli.run
from node.home.paths import Home

ENDS_SLOWLY = """
import json, os, socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("up", flush=True)
while True:
    connection, _ = listener.accept()
    if line := connection.makefile("rb").readline():
        assert json.loads(line)["params"] == {"on": True, "stop": True}
        connection.sendall(b'{"result": {"empty": false}}\\n')
        connection.close()
        break
listener.close()
os.unlink(sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(node.cli.run, "DRAIN_LOOK_S", 0.01)
    return Home(tmp_path)


def drained(home: Home, lasts_s: float) -> tuple[subprocess.Popen[bytes], int, str]:
    """Drain what stops answering and ends so much later; return it, and what the command said."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS_SLOWLY, home.control, str(lasts_s)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    done = CliRunner().invoke(node.cli.run.node, ["drain", "--home", str(home.root), "--stop", "--wait", "--json"])
    process.stdout.close()
    return process, done.exit_code, done.output if done.exception is None else str(done.exception)


def test_it_waits_for_the_end_of_the_process(home: Home) -> None:
    process, status, said = drained(home, 0.5)
    assert process.wait(0) == 0  # it had ended
    assert (status, json.loads(said)["ended"]) == (0, True)


def test_it_does_not_wait_for_ever(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.cli.run, "END_WAIT_S", 0.1)
    process, status, said = drained(home, 600)
    process.kill()
    process.wait()
    assert status == 1 and "has not ended after 0 s" in said
