"""`docker compose up` on a real engine that this test starts: the network as containers, one task settled."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container_engine import Engine, running_engine, skip_without

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
BASE_IMAGE = "dekube-test-base:bookworm"
IMAGE = "dekube-node:test"
SETTLED_TIMEOUT_S = 600
RPC_PORT = 18545
FAUCET_PORT = 18600


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    skip_without("dockerd", "docker", "debootstrap")
    root = tmp_path_factory.mktemp("engine")
    names = {
        "COMPOSE_PROJECT_NAME": "dekubetest",
        "DEKUBE_IMAGE": IMAGE,
        "RPC_PORT": str(RPC_PORT),
        "FAUCET_PORT": str(FAUCET_PORT),
    }
    with running_engine(root, names) as engine:
        build_base_image(engine, root)
        subprocess.run(["make", "wheels"], cwd=ROOT, check=True)
        engine.docker("build", "--network=none", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "-t", IMAGE, ".")
        yield engine


def build_base_image(engine: Engine, root: Path) -> None:
    system = root / "base"
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(system)],
        check=True, stdout=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    engine.import_tree(system, BASE_IMAGE)


def containers(engine: Engine) -> dict[str, dict[str, object]]:
    lines = engine.docker("compose", "ps", "--all", "--format", "json").splitlines()
    return {row["Service"]: row for row in map(json.loads, lines)}


def test_the_network_settles_a_task_as_containers(engine: Engine) -> None:
    try:
        engine.docker("compose", "up", "--detach", "--no-build", timeout_s=900)
        deadline = time.monotonic() + SETTLED_TIMEOUT_S
        while containers(engine)["task"]["State"] != "exited":
            assert time.monotonic() < deadline, engine.docker("compose", "logs", "--tail", "40")[-8000:]
            time.sleep(2)
        rows = containers(engine)
        task_log = engine.docker("compose", "logs", "--no-log-prefix", "task")
        assert rows["task"]["ExitCode"] == 0, task_log
        assert "SETTLED" in task_log
        for name, row in rows.items():
            if name in ("layout", "task"):
                continue
            assert row["State"] == "running", f"{name}: {row}"
            if name != "relay-0":
                assert row["Health"] == "healthy", f"{name}: {row}"
        assert engine.docker("compose", "exec", "validator-1", "id", "-u").strip() == "10001"
        check_rpc_is_published()
        check_the_faucet_has_coins()
        check_a_member_returns_after_a_kill(engine)
    finally:
        engine.docker("compose", "down", "--volumes", "--timeout", "20", check=False)


def check_rpc_is_published() -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{RPC_PORT}/healthz", timeout=10) as answer:
        assert answer.status == 200


def check_the_faucet_has_coins() -> None:
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{FAUCET_PORT}/", timeout=10) as answer:
            if int(json.loads(answer.read())["balance"]):
                return
        assert time.monotonic() < deadline
        time.sleep(1)


def check_a_member_returns_after_a_kill(engine: Engine) -> None:
    def height() -> int:
        return int(json.loads(engine.docker("compose", "exec", "validator-2", "dekube", "status", "--home",
                                            "/home/dekube", "--json"))["height"])  # fmt: skip

    before = height()
    engine.docker("compose", "kill", "--signal", "KILL", "validator-2")
    engine.docker("compose", "start", "validator-2")
    deadline = time.monotonic() + 120
    while containers(engine)["validator-2"]["Health"] != "healthy":
        assert time.monotonic() < deadline, engine.docker("compose", "logs", "--tail", "40", "validator-2")
        time.sleep(2)
    assert height() >= before
