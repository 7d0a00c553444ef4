"""A container on a network of processes, with a real engine: its node is killed in mid-run and takes it up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc.client import Client
from tests.cluster.network import Network, network, parameters, run_here, wait_for
from tests.tasks.executor.containers.machine import REPOSITORY, Machine, running_machine

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SMALL = ("--validators", "3", "--workers", "1", "--no-task", *parameters(10_000), "--parameter", "tasks.call_ms=0")
RUN_S = 60.0
SCRIPT = "cat /in/text; echo step 3 of 9 >&2; sleep 25; cp /in/text /output/copy; echo done"


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[Machine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


def test_a_container_from_a_file_outlives_kill_9_of_its_node(lent: Machine, tmp_path: Path) -> None:
    """`task create -f container.yaml --watch`, then `task result`, through a node that never had the output."""
    with network(tmp_path / "net", *SMALL) as net:
        net.start()
        net.wait_up()
        lend(net, lent)
        rate = wait_for(lambda: rate_of_host(net), "a machine that lends its engine", patience_s=RUN_S)
        job = tmp_path / "container.yaml"
        job.write_text(
            f"kind: container\nimage: {REPOSITORY}@{lent.image_id}\ncommand: [/bin/sh, -c, '{SCRIPT}']\n"
            "mounts:\n  - {source: text, path: /in/text}\noutput: /output\noutput_mib: 1\nbudget: 100 DKB\n"
            f"cores: 1\nmemory_mib: 64\ndisk_mib: 32\nminutes: 2\ntick_s: 10\ngrace_s: 300\nrate: {rate}\n"
            "idle_minutes: 2\nprogress_pattern: 'step '\n"
        )
        (tmp_path / "text").write_text("a text\n")
        watched = subprocess.Popen(
            [sys.executable, "-m", "node", "task", "create", "-f", str(job), "--watch", "--home",
             str(net.root / "validator-0")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            kill_its_node(net, lent)
            said, _ = watched.communicate(timeout=2 * RUN_S)
        except BaseException:
            watched.terminate()
            print(watched.communicate()[0])  # what the command said, for whoever reads why this failed
            raise
        assert watched.returncode == 0, said
        (task,) = [
            one["id"] for one in run_here("task", "list", "--all", "--home", net.root / "validator-0")["items"]
        ]
        check_result(net, task, tmp_path / "result")
        wait_for(lambda: not names(lent, every=True), "the container is removed")
        net.check_agreement("validator-0", "validator-1", "worker-0")


def lend(net: Network, lent: Machine) -> None:
    """Have the worker lend the engine from its next start on."""
    net.verb("stop", "worker-0")
    with (net.root / "worker-0" / "config.toml").open("a") as file:
        file.write(f'\n[executor.docker]\nenabled = true\nsocket = "{lent.engine.socket}"\ndisk_gib = 4\n')
    net.verb("restart", "worker-0")


def rate_of_host(net: Network) -> int:
    """Return the rate of the machine that lends its engine, once it is registered so."""
    with Client(net.url("validator-0")) as client:
        nodes = list(client.items("dekube_getNodes"))
    return next((int(one["rate"]) for one in nodes if "container" in one["roles"]), 0)


def kill_its_node(net: Network, lent: Machine) -> None:
    """Kill the node once a tick is metered; the container goes on meanwhile."""
    (name,) = wait_for(lambda: names(lent), "the container runs", patience_s=RUN_S)
    wait_for(lambda: own_seconds(net), "a tick is metered", patience_s=RUN_S)
    (item,) = net.call("validator-0", "dekube_getTasks")["items"]
    follows = subprocess.Popen(
        [sys.executable, "-m", "node", "task", "logs", item["id"], "--follow", "--home",
         str(net.root / "validator-0")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    live = run_here("task", "show", item["id"], "--home", net.root / "validator-0")["live"]
    assert (live["stage"], live["progress"]) == ("running", 3) and live["memory_bytes"], live
    net.verb("kill", "worker-0")
    assert names(lent) == [name]
    net.verb("restart", "worker-0")
    said, errors = follows.communicate(timeout=2 * RUN_S)
    assert said == "a text\ndone\n", errors  # it went on where it was, over the kill of its node
    assert "step 3 of 9" in errors


def own_seconds(net: Network) -> int:
    (item,) = net.call("validator-0", "dekube_getTasks")["items"]
    meter: dict[str, Any] = net.call("validator-0", "dekube_getTask", item["id"])["task"]["meter"]
    return int(meter["own_seconds"])


def names(lent: Machine, *, every: bool = False) -> list[str]:
    which = ("--all",) if every else ()
    return lent.engine.docker("ps", *which, "--format", "{{.Names}}").split()


def check_result(net: Network, task: str, folder: Path) -> None:
    told = run_here("task", "result", task, "--out", folder, "--home", net.root / "validator-0")
    assert (told["phase"], told["exit"], told["code"], told["proved"]) == ("settled", "exited", 0, False)
    assert told["seconds"] >= 20 and int(told["paid"]) > 0
    assert sorted(told["logs"].splitlines()) == ["a text", "done", "step 3 of 9"]
    assert (folder / "copy").read_text() == "a text\n"
    lines = folder.with_name("result.metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["progress"] for line in lines] == [3]
