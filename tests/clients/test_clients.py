"""go-ethereum, alloy and web3j, unchanged and compiled, against a network with workers: ``make test-clients``."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.programs import COMPILE, PLACE
from tests.clients.world import world

VARIABLE: Final = "DEKUBE_TEST_CLIENTS"
BLOCKS_VARIABLE: Final = "DEKUBE_TEST_CLIENTS_BLOCKS"
BLOCKS: Final = 2_000
REPORT: Final = PLACE / "report.json"
CLIENT_TIMEOUT_S: Final = 1_500.0

pytestmark = pytest.mark.cluster


def wanted() -> frozenset[str]:
    """Return the clients to run. A machine without their compilers fails."""
    names = frozenset(os.environ.get(VARIABLE, ",".join(COMPILE)).split(","))
    assert names and names <= COMPILE.keys(), f"{VARIABLE}: some of {', '.join(sorted(COMPILE))} expected"
    return names


def play(command: list[str], setting: dict[str, Any]) -> Any:
    """Run a client; return its report."""
    done = subprocess.run(
        command, input=json.dumps(setting), capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-4000:]}"
    return json.loads(done.stdout)


def test_typed_clients_work_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = wanted()
    blocks = int(os.environ.get(BLOCKS_VARIABLE, BLOCKS))
    programs = {name: COMPILE[name]() for name in sorted(names)}
    with world(tmp_path / "net", names) as it, ThreadPoolExecutor(len(names)) as threads:
        running = {
            name: threads.submit(play, command, it.setting(name, blocks)) for name, command in programs.items()
        }
        reports = {name: found.result() for name, found in running.items()}
        settled = len(it.tasks)
    document = {"clients": reports, "tasks_settled": settled, "tasks_failed": it.failed}
    REPORT.write_text(json.dumps(document, indent=1) + "\n")
    failures = [f"{name}: {failure}" for name, report in reports.items() for failure in report["failures"]]
    with capsys.disabled():
        for name, report in reports.items():
            counts = {key: value for key, value in report.items() if type(value) is int}
            print(f"\n{name}: {counts}, {len(report['failures'])} failed")
        print(f"tasks settled meanwhile: {settled}; {REPORT}")
    assert not failures, "\n".join(failures[:50])
    for name, report in reports.items():
        assert (report["blocks"], report["undecodable"]) == (blocks, 0), name
        assert report["native"] > 0, f"{name} met no transaction of a worker"
