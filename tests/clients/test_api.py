"""The official OpenAI client for Node, unchanged, against ``dekube api``: ``make test-clients``."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.clients.programs import HERE, PLACE, fresh, run
from tests.cluster.api_server import WORDS, ApiServer, batch_lines, rows_of, write_model
from tests.cluster.network import network, wait_for

BUDGET: Final = "60"
PATIENCE_S: Final = 150
CLIENT_TIMEOUT_S: Final = 400.0

pytestmark = pytest.mark.cluster


def installed() -> Path:
    """Return the folder with the program and the client that its lock file names."""
    target = PLACE / "node"
    lock = HERE / "node" / "package-lock.json"
    if not (target / "node_modules").exists() or (target / lock.name).read_bytes() != lock.read_bytes():
        fresh("node")
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target)
    shutil.copy(HERE / "node" / "api.mjs", target)
    return target


def test_the_client_for_node_tunes_a_model_and_asks_it(tmp_path: Path) -> None:
    place = installed()
    with network(tmp_path / "net", "--workers", "1", "--no-task") as net:
        net.start()
        net.wait_up()
        wait_for(lambda: len(net.call("validator-0", "dekube_getNodes")["items"]) == 5, "machines are registered")
        server = ApiServer(net.root / "validator-0", BUDGET, write_model(tmp_path / "model"))
        server.start()
        try:
            setting = {
                "base_url": server.base_url, "key": server.key, "patience_s": PATIENCE_S,
                "rows": rows_of().decode(), "broken": (rows_of(WORDS * 2) + b"\n{broken\n").decode(),
                "lines": "\n".join(map(json.dumps, batch_lines("MODEL"))),
            }  # fmt: skip
            done = subprocess.run(
                ["node", "api.mjs"], cwd=place, input=json.dumps(setting), capture_output=True, text=True,
                timeout=CLIENT_TIMEOUT_S, check=False,
            )  # fmt: skip
        finally:
            server.end()
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert (report["answers"], report["events"]) == (len(WORDS), 8)
