"""Containers on a network of processes, with a real engine: nodes are killed in mid-run, and the work goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc.client import Client
from tasks.executor.containers.disks import ContainerDisk
from tests.cluster.network import Network, network, parameters, run_here, wait_for
from tests.tasks.executor.containers.machine import REPOSITORY, Machine, running_machine

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SMALL = ("--validators", "3", "--workers", "1", "--no-task", *parameters(10_000), "--parameter", "tasks.call_ms=0")
LARGER = ("--validators", "4", "--workers", "2", *SMALL[4:])
OWNER, WORKERS = "validator-3", ("worker-0", "worker-1")
RUN_S = 60.0
TOKEN, TEXT = "tok-5b1f93aXq7-hidden", "rows of a patient, which nobody else may read\n"
COUNTING = (
    "n=0; [ -f /state/n ] && read n < /state/n; echo $DEKUBE_RESUMED >> /state/begun; echo token $TOKEN;"
    "while [ $n -lt 30 ]; do n=$((n+1)); echo $n > /state/n.tmp; mv /state/n.tmp /state/n; sleep 1; done;"
    "cp /in/text /output/copy; cp /state/begun /output/begun"
)
SCRIPT = "cat /in/text; echo step 3 of 9 >&2; sleep 25; cp /in/text /output/copy; echo done"


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[Machine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine
    for disk in tmp_path.glob("net/*/data/containers/*/disk"):
        ContainerDisk(disk.parent).remove()


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


def test_a_private_container_outlives_its_requesters_node_and_its_machine(
    lent: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`task quote`, `create --holders`, `keep` and `result` of a job with a secret and sealed checkpoints."""
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    with network(tmp_path / "net", *LARGER) as net:
        net.start()
        net.wait_up()
        for name in WORKERS:
            lend(net, lent, name)
        rate = wait_for(lambda: rate_of_host(net, len(WORKERS)), "two machines lend the engine", patience_s=RUN_S)
        job, home = tmp_path / "private.yaml", net.root / OWNER
        job.write_text(
            f"kind: container\nimage: {REPOSITORY}@{lent.image_id}\ncommand: [/bin/sh, -c, '{COUNTING}']\n"
            "mounts:\n  - {source: text, path: /in/text}\noutput: /output\noutput_mib: 1\nbudget: 100 DKB\n"
            f"cores: 1\nmemory_mib: 64\ndisk_mib: 32\nminutes: 10\ntick_s: 10\ngrace_s: 10\nrate: {rate}\n"
            "checkpoint: {path: /state, every_s: 10, max_mib: 1}\nprivate: true\n"
            "secrets:\n  - {env: TOKEN, from: env:MY_TOKEN}\n"
        )
        (tmp_path / "text").write_text(TEXT)
        quoted = run_here("task", "quote", "-f", job, "--home", home)
        assert quoted["machines_reading"] == quoted["spec"]["metering"]["retries"] + 1
        created = run_here("task", "create", "-f", job, "--holders", 2, "--yes", "--home", home)
        assert len(created["holders"]) == 2
        task = created["task"]
        assert len(run_here("task", "keep", task, "--holders", 3, "--yes", "--home", home)["holders"]) == 3
        net.verb("kill", OWNER)
        gone = lose_its_machine(net, lent, task)
        phase = wait_for(lambda: ended(net, task), "the task ends", patience_s=4 * RUN_S)
        assert phase == "settled"
        net.verb("restart", OWNER)
        net.call(OWNER, "dekube_getTask", task)  # once its gateway is up
        told = run_here("task", "result", task, "--out", tmp_path / "result", "--home", home)
        assert (told["phase"], told["exit"], told["code"]) == ("settled", "exited", 0)
        assert TOKEN not in told["logs"] and "***" in told["logs"]
        assert (tmp_path / "result" / "copy").read_text() == TEXT
        assert (tmp_path / "result" / "begun").read_text().split() == ["0", "1"]
        net.verb("restart", gone)
        kept = net.root / gone / "data" / "containers"
        wait_for(lambda: not [*kept.glob("*/disk.img"), *kept.glob("sockets/*")], "what it had is wiped")
        net.check_agreement("validator-0", "validator-1", gone)
        net.interrupt()
        found = [path for path in net.root.rglob("*") if path.is_file() and has_value(path)]
        assert not found, "a value lies in a folder of a node"


def lose_its_machine(net: Network, lent: Machine, task: str) -> str:
    """Kill the machine of a task and its container, once a checkpoint is stored; return its name."""

    def stored() -> dict[str, Any] | None:
        found: dict[str, Any] = net.call("validator-0", "dekube_getTask", task)["task"]
        return found if (found["meter"].get("checkpoint") or {}).get("blob") else None

    record = wait_for(stored, "a checkpoint is stored", patience_s=2 * RUN_S)
    gone = next(name for name in WORKERS if net.status(name)["address"] == record["worker"])
    net.verb("kill", gone)
    lent.engine.docker("rm", "-f", *names(lent))
    return gone


def ended(net: Network, task: str) -> str | None:
    phase = str(net.call("validator-0", "dekube_getTask", task)["task"]["phase"])
    return phase if phase in ("settled", "failed", "cancelled", "expired") else None


def has_value(path: Path) -> bool:
    data = path.read_bytes()
    return any(value.encode() in data for value in (TOKEN, TEXT.strip()))


def lend(net: Network, lent: Machine, name: str = "worker-0") -> None:
    """Have a worker lend the engine from its next start on."""
    net.verb("stop", name)
    with (net.root / name / "config.toml").open("a") as file:
        file.write(f'\n[executor.docker]\nenabled = true\nsocket = "{lent.engine.socket}"\ndisk_gib = 4\n')
    net.verb("restart", name)


def rate_of_host(net: Network, machines: int = 1) -> int:
    """Return the lowest rate of the machines that lend an engine, once so many are registered so."""
    with Client(net.url("validator-0")) as client:
        nodes = list(client.items("dekube_getNodes"))
    rates = [int(one["rate"]) for one in nodes if "container" in one["roles"]]
    return min(rates) if len(rates) == machines else 0


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
