"""`docker compose up` on a real engine that this test starts: the network as containers, one task settled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
BASE_IMAGE = "dekube-test-base:bookworm"
IMAGE = "dekube-node:test"
SETTLED_TIMEOUT_S = 600
RPC_PORT = 18545
FAUCET_PORT = 18600


class Engine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{root}/docker.sock",
            "DOCKER_CONFIG": str(root / "config"),
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_PROJECT_NAME": "dekubetest",
            "DEKUBE_IMAGE": IMAGE,
            "RPC_PORT": str(RPC_PORT),
            "FAUCET_PORT": str(FAUCET_PORT),
        }
        plugins = root / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(Path(sys.executable).parent / "docker-compose")
        self.log = (root / "dockerd.log").open("wb")
        self.process = subprocess.Popen(
            [
                "dockerd", f"--host=unix://{root}/docker.sock", f"--data-root={root}/data",
                f"--exec-root={root}/exec", f"--pidfile={root}/pid", "--bridge=none",
            ],
            stdout=self.log, stderr=subprocess.STDOUT,
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
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "version"], env=self.environment, capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.root / "dockerd.log").read_text(errors="replace")[-2000:]
                pytest.skip(f"no container engine can run on this machine: {log}")
            time.sleep(0.3)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    missing = [name for name in ("dockerd", "docker", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no container engine: root and {', '.join(missing) or 'nothing else'} needed")
    root = tmp_path_factory.mktemp("engine")
    engine = Engine(root)
    try:
        engine.wait()
        build_base_image(engine, root)
        subprocess.run(["make", "wheels"], cwd=ROOT, check=True)
        engine.docker("build", "--network=none", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "-t", IMAGE, ".")
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(root, ignore_errors=True)


def build_base_image(engine: Engine, root: Path) -> None:
    system = root / "base"
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(system)],
        check=True, stdout=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    archive = subprocess.Popen(["tar", "-C", str(system), "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(
        ["docker", "import", "-", BASE_IMAGE], stdin=archive.stdout, check=True, env=engine.environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert archive.wait() == 0


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
