"""``dekube bench network``: four validators as processes of this machine under a load of transfers.

Clients post batches of signed transfers to the four gateways, as wallets would, and look for them in final blocks.
The whole path of a real transaction is measured. At most ``rate`` are sent per second and at most ``window`` wait
to be final. So the figures are the throughput of a busy network, and the time to finality that its users see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import trio

from node.bench.transfers import BALANCE, secret_of
from node.telemetry.cpu_accounting import STAGES
from rpc.client import Client
from state.primitives.errors import DekubeError
from testnet.cluster import Cluster, lay_out
from testnet.load import LoadPlan, prepare
from testnet.plan import CHAIN_ID, Member, Plan

__all__ = ["run"]

CONNECTIONS_PER_GATEWAY: Final = 2
SENDERS_PER_CONNECTION: Final = 128
CATCH_UP_S: Final = 60.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class LoadFailed(DekubeError):
    """The load process ended without figures, or the validators disagree."""

    code = "load_failed"


def run(
    *, seconds: int = 60, rate: int = 4_000, window: int = 6_000, validators: int = 4, base_port: int = 28_400
) -> dict[str, float]:
    """Measure for ``seconds`` and return the figures.

    ``transactions_per_s`` are those that a client saw final within the time. Finality runs from the submission
    until the client sees the block. ``cpu_share_*`` are shares of the processor time of all validators with their
    children. ``verify`` and ``gateway`` are processes, the others are stages of the node process
    (node/telemetry/cpu_accounting.py); ``other`` is the rest. ``compact_proposals_sent`` are blocks sent as short
    ids, ``_rebuilt`` receivers that rebuilt them from their pools, ``_whole`` receivers that needed the whole
    block. The benchmark fails unless all validators end with the same block.
    """
    with tempfile.TemporaryDirectory(prefix="dekube-network-") as name:
        folder = Path(name)
        connections = CONNECTIONS_PER_GATEWAY * validators
        prepare(
            folder, chain_id=CHAIN_ID, connections=connections, senders=SENDERS_PER_CONNECTION,
            count=rate * seconds, processes=len(os.sched_getaffinity(0)),
        )  # fmt: skip
        senders = (secret_of(number).address for number in range(connections * SENDERS_PER_CONNECTION))
        plan = lay_out(
            folder / "network", validators=validators, workers=0, seed=1, base_port=base_port,
            allocations=tuple((address, BALANCE) for address in senders),
        )  # fmt: skip
        gateways = [(at.host, at.rpc_port) for at in (member.placement for member in _validators(plan))]
        (folder / "load.json").write_text(json.dumps(LoadPlan(gateways, connections, seconds, rate, window)))
        return trio.run(_measure, folder, plan)


def _validators(plan: Plan) -> list[Member]:
    return [member for member in plan.members if member.role == "validator"]


async def _measure(folder: Path, plan: Plan) -> dict[str, float]:
    cluster = Cluster(folder / "network", plan, report=lambda line: print(line, file=sys.stderr))
    figures: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.run)
        await _wait_gateways(plan)
        pids = [status.pid for status in cluster.status() if status.role == "validator" and status.pid is not None]
        figures = await trio.to_thread.run_sync(_load, folder, plan, pids)
        cluster.down()
        nursery.cancel_scope.cancel()
    return figures


async def _wait_gateways(plan: Plan) -> None:
    """Wait until each gateway answers and the first block is final."""
    for member in _validators(plan):
        with trio.fail_after(CATCH_UP_S):
            while True:
                try:
                    head = await trio.to_thread.run_sync(_call, member, "dekube_head")
                    if head["at"]["height"] > 0:
                        break
                except DekubeError:
                    pass
                await trio.sleep(0.1)


def _call(member: Member, method: str, *params: Any) -> Any:
    with Client(f"http://{member.placement.host}:{member.placement.rpc_port}") as client:
        return client.call(method, *params)


def _load(folder: Path, plan: Plan, pids: list[int]) -> dict[str, float]:
    """Run the load process beside the network; return its figures and the processor time by stage."""
    members = _validators(plan)
    command = [sys.executable, "-m", "testnet.load", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        before = _cpu(members, pids)
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
    after = _cpu(members, pids)
    if not line:
        raise LoadFailed("the load process ended without its figures")
    answer = json.loads(line)
    _check_agreement(members, answer["height"])
    figures: dict[str, float] = answer["figures"]
    spent = {stage: after[stage] - before[stage] for stage in after}
    total = max(sum(spent.values()), 1e-9)
    count = max(figures["transactions_final"], 1)
    figures["validators_cpu_us_per_transaction"] = total / count * 1e6
    for stage, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        figures[f"cpu_share_{stage}"] = seconds / total
    events = [dict(_counted(member, "network_events", "event")) for member in members]
    for way in ("sent", "rebuilt", "whole"):
        figures[f"compact_proposals_{way}"] = sum(counted.get(f"compact_{way}", 0.0) for counted in events)
    return figures


def _check_agreement(members: list[Member], height: int) -> None:
    """Fail unless all validators have the same block at ``height``.

    Its header carries the state root before it.
    """
    seen = set()
    for member in members:
        block = None
        for _ in range(int(CATCH_UP_S * 10)):
            block = _call(member, "dekube_getBlock", height)["block"]
            if block is not None:
                break
            trio.from_thread.run(trio.sleep, 0.1)
        seen.add(block["hash"] if block else None)
    if len(seen) != 1 or None in seen:
        raise LoadFailed(f"the validators do not agree on block {height}: {seen}")


def _cpu(members: list[Member], pids: list[int]) -> dict[str, float]:
    """Return CPU seconds by stage and by child process of all validators."""
    spent = dict.fromkeys((*STAGES, "verify", "gateway"), 0.0)
    for member, pid in zip(members, pids, strict=True):
        own, stages = _seconds_of(pid, ended_children=True), dict(_counted(member, "stage_cpu_seconds", "stage"))
        counted = sum(seconds for stage, seconds in stages.items() if stage != "other")
        for stage, seconds in stages.items():
            spent[stage] += own - counted if stage == "other" else seconds
        for child in _children(pid):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            kind = "verify" if b"signature_worker" in command else "gateway" if b"gateway" in command else "other"
            spent[kind] += _seconds_of(child)
    return spent


def _counted(member: Member, counter: str, label: str) -> Iterator[tuple[str, float]]:
    at = member.placement
    with urllib.request.urlopen(f"http://{at.host}:{at.metrics_port}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"dekube_{counter}_total{{"):
                yield line.partition(f'{label}="')[2].partition('"')[0], float(line.rpartition(" ")[2])


def _children(pid: int) -> list[int]:
    known = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [one for one in known if (fields := _stat(one)) and int(fields[1]) == pid]


def _seconds_of(pid: int, *, ended_children: bool = False) -> float:
    """Return the CPU seconds of a process and of its ended children, so that the sum never decreases."""
    fields = _stat(pid)[11 : 15 if ended_children else 13]
    return sum(map(int, fields)) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
