"""A process that is shut in like a job's, and tries the usual ways out (tests/tasks/executor/escapes.py)."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.executor import measures

ROOT = Path(__file__).parents[3]
ORDINARY = 12_345
"""A user with no rights at all."""


def documented(mode: str) -> set[str]:
    """Return the attempts in the table of docs/security.md."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+;[^|]+) \|$", text, re.MULTILINE)
    return {name for kind, names in rows if mode == "early" or kind != "NumPy alone" for name in names.split("; ")}


@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize("user", ["own", "ordinary"])
def test_no_attempt_to_escape_succeeds(mode: str, user: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As the node's user or root, and as an ordinary user; with Python's modules loaded early and late."""
    if user == "ordinary" and os.geteuid() != 0:
        pytest.skip("THE TESTS RUN AS AN ORDINARY USER: THE OTHER CASE IS THIS ONE")
    folder = tmp_path_factory.mktemp("out")
    for above in (folder, *folder.parents[:3]):
        if above.stat().st_uid == os.geteuid() and above != Path("/tmp"):
            above.chmod(0o755)
    scratch, secret = folder / "scratch", folder / "home" / "secret"
    scratch.mkdir()
    scratch.chmod(0o777)
    secret.parent.mkdir()
    secret.write_text("key", encoding="ascii")
    os.chmod(secret, 0o644)
    identity = None if user == "own" else ORDINARY
    with (
        socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):  # fmt: skip
        port = server.getsockname()[1]
        unix.bind(str(folder / "s"))
        os.chmod(folder / "s", 0o777)
        unix.listen()
        abstract.bind(f"\0dekube-escape-{port}")
        abstract.listen()
        lifeline, ours = os.pipe()
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-s", "-B", "-m", "tests.tasks.executor.escapes", mode, str(scratch),
                 str(secret), str(port), str(folder / "s")],
                stdin=lifeline, capture_output=True, text=True, timeout=60, cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DEKUBE_SECRET": "key"},
                user=identity, group=identity, extra_groups=None if identity is None else [],
            )  # fmt: skip
        finally:
            os.close(lifeline)
            os.close(ours)
    if user == "ordinary" and done.returncode != 0 and "ermission" in done.stderr:
        pytest.skip("THIS INSTALLATION CANNOT BE READ BY OTHER USERS: NO ESCAPE OF AN ORDINARY USER WAS TRIED")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    granted = set(told["granted"])
    missing = {measures.INSTALLATION, measures.CALLS} - granted
    if missing:
        pytest.skip(f"THIS MACHINE DOES NOT GRANT {', '.join(sorted(missing)).upper()}: JOBS ARE NOT SHUT IN HERE")
    assert {measures.NETWORK, measures.PRIVILEGES, measures.LIMITS} <= granted
    assert (measures.FILES in granted) == (mode == "early")
    assert {name: got for name, got in told["found"].items() if got != "refused"} == {}
    assert set(told["found"]) == documented(mode)
    assert not [path for path in folder.rglob("*") if path.name not in {"scratch", "home", "secret", "s"}]
