"""Shared parts of the benchmarks on emulated networks: rates by iperf3 and by the product, gaps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from testnet.wan.emulator import WanUnavailable
from testnet.wan.fleet import NODE_PORT, Agent, relay_of
from testnet.wan.lab import Lab, check_machine, destroy, labs

__all__ = [
    "LATE_PERCENT_MAX",
    "bulk_rate",
    "bulk_rate_and_settling",
    "can_emulate",
    "has_iperf",
    "iperf",
    "lab_name",
    "lateness_of",
    "longest_gap_s",
    "node_at",
    "percentile",
    "say",
    "verdict",
]

LATE_PERCENT_MAX: Final = 1.0
"""Share of packets delivered more than 2 ms late above which a run is marked as unreliable."""
IPERF_PORT: Final = 5_201
_LAB_OF_PROCESS: Final = re.compile(r"(?:gossip|paths|relay|transp)-([0-9]+)")
_NS: Final = 1_000_000_000
SETTLED_PART: Final = 0.8


def can_emulate() -> bool:
    """Tell whether this machine can create labs; if not, print why."""
    try:
        check_machine()
    except WanUnavailable as error:
        say(f"left out: {error}")
        return False
    return True


def lab_name(bench: str) -> str:
    """Return a name for the lab of a benchmark, unique for each process, so that two may run at once.

    Labs of killed benchmarks are removed.
    """
    for name in labs():
        left = _LAB_OF_PROCESS.fullmatch(name)
        if left is not None and not Path(f"/proc/{left[1]}").exists():
            destroy(name)
    return f"{bench[:6]}-{os.getpid()}"


def say(line: str) -> None:
    """Print the progress of a benchmark."""
    print(line, file=sys.stderr, flush=True)


def iperf(
    lab: Lab, sender: str, receiver: str, congestion: str, *, seconds: int, warm_s: int = 2, at: str = ""
) -> float:
    """Return the payload rate of one TCP flow in Mbit/s by iperf3.

    ``at``: the address to dial if it is not the receiver's own (a forwarded port).
    """
    server = lab.popen(receiver, ["iperf3", "-s", "-1", "-J"], stdout=subprocess.PIPE, text=True)
    try:
        _wait_listening(lab, receiver)
        dialled = at or str(lab.plan.address4(receiver))
        options = ["-C", congestion, "-t", str(seconds), "-O", str(warm_s), "-J"]
        lab.run(sender, ["iperf3", "-c", dialled, *options], timeout=seconds + warm_s + 60)
        said, _ = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    parts = [part["sum"] for part in json.loads(said)["intervals"] if not part["sum"].get("omitted")]
    return float(sum(part["bytes"] for part in parts) * 8 / sum(part["seconds"] for part in parts) / 1e6)


def has_iperf() -> bool:
    """Tell whether iperf3 is available; if not, print how to install it."""
    if shutil.which("iperf3") is None:
        say("left out, plain TCP: iperf3 is lacking (Debian: apt-get install iperf3)")
        return False
    return True


def _wait_listening(lab: Lab, host: str) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if f":{IPERF_PORT} " in lab.run(host, ["ss", "-Hltn"]).stdout:
            return
        time.sleep(0.05)


def node_at(lab: Lab, host: str) -> str:
    """Return the path to the node of a public host."""
    return f"{lab.plan.address4(host)}:{NODE_PORT}"


def relays_at(lab: Lab, *hosts: str) -> tuple[str, ...]:
    """Return these relays as agents accept them."""
    return tuple(relay_of(lab, host) for host in hosts)


def bulk_rate(sender: Agent, receiver: Agent, *, seconds: float, warm_s: float) -> float:
    """Return the payload rate of one bulk stream at the receiver in Mbit/s, after ``warm_s``."""
    return bulk_rate_and_settling(sender, receiver, seconds=seconds, warm_s=warm_s)[0]


def bulk_rate_and_settling(
    sender: Agent, receiver: Agent, *, seconds: float, warm_s: float
) -> tuple[float, float]:
    """Return the rate after ``warm_s`` as ``bulk_rate``, and when it was first nearly reached, in seconds."""
    began = receiver.ask("heard", peer=sender.name)["at"]
    flood = sender.begin("flood", peer=receiver.name)
    try:
        time.sleep(warm_s)
        before = receiver.ask("heard", peer=sender.name)
        time.sleep(seconds)
        after = receiver.ask("heard", peer=sender.name)
    finally:
        sender.ask("stop", peer=receiver.name)
    sender.finish(flood)
    rate = float(after["bulk_bytes"] * 8e3 / (after["at"] - before["at"]))
    of_second: Counter[int] = Counter()
    for at, size in (*before["bulk"], *after["bulk"]):
        of_second[(at - began) // _NS] += size
    reached = [second + 1 for second, size in of_second.items() if size * 8 / 1e6 >= SETTLED_PART * rate]
    return rate, float(min(reached, default=0))


def longest_gap_s(times_ns: Iterable[int], *, since_ns: int, until_ns: int) -> float:
    """Return the longest time without an arrival between two moments; the whole time if nothing arrived."""
    inside = sorted(t for t in times_ns if since_ns <= t <= until_ns)
    return max(b - a for a, b in zip([since_ns, *inside], [*inside, until_ns], strict=True)) / _NS


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which ``percent`` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def lateness_of(lab: Lab) -> dict[str, float]:
    """Return the emulator's timing quality in this run as figures."""
    late = lab.lateness()
    return {
        "emulator_late_percent": round(late.over_2_ms_percent, 3),
        "emulator_late_max_ms": round(late.max_ms, 2),
    }


def verdict(figures: dict[str, float]) -> dict[str, float]:
    """Print which runs had too much emulator delay to be reliable; return them."""
    late = figures.get("emulator_late_percent", 0.0)
    if late > LATE_PERCENT_MAX:
        say(f"MARKED: {late:.2f} % of the packets came more than 2 ms late; this machine was too busy, repeat it")
    return figures
