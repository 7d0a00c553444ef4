"""Processor time of a transaction over HTTP in foundry's anvil, a node written in Rust, and in this node, in
turns.

``python -m node.bench.peer ANVIL`` with the path of its program (npm: @foundry-rs/anvil-linux-amd64, the version
in docs/benchmarks.md). Both get the same EIP-1559 transfers from the same clients; anvil is one process, this node
two. Neither figure contains blocks: anvil makes none meanwhile, and the cost of this node's is subtracted. anvil
keeps no state on disk and has no consensus, so this compares only the cost of acceptance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from node.bench.clients import CONNECTIONS, LoadGenerator
from node.bench.lone_node import CHAIN_ID, SENDERS, cpu_s, key_of, lone_node, one_processor
from rpc.client import Client
from state.primitives.errors import DekubeError

__all__ = ["main"]

ACCOUNTS: Final = 5_000
PORT: Final = 28_699
SUBMISSIONS_PER_S: Final = 12_000
PATIENCE_S: Final = 30.0
WINDOW_MS_MAX: Final = 2_000
"""This node keeps no more transactions in its pool than arrive in this time."""


class _Variant(NamedTuple):
    name: str
    size: int
    connections: int


_VARIANTS: Final = (
    _Variant("one_a_request", 1, CONNECTIONS),
    _Variant("of_64_connections", 1, 64),
    _Variant("in_batches_of_100", 100, CONNECTIONS),
)


@contextmanager
def _anvil(program: Path) -> Iterator[tuple[int, LoadGenerator]]:
    command = [str(program), "--port", str(PORT), "--chain-id", str(CHAIN_ID), "--no-mining", "--silent"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        with Client(f"http://127.0.0.1:{PORT}") as client:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    client.call("eth_chainId")
                    break
                except DekubeError:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise
                    time.sleep(0.1)
            for number in range(SENDERS):
                client.call("anvil_setBalance", "0x" + key_of(number).address.hex(), hex(10**24))
        yield process.pid, LoadGenerator(PORT, ACCOUNTS, lambda: (cpu_s(process.pid), 0.0))
    finally:
        process.kill()
        process.wait()


def measure(program: Path, rounds: int, window_s: float) -> dict[str, float]:
    """Return medians of the processor time of a transaction, of this node and of anvil, measured in alternating
    windows.
    """
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory,
        lone_node(Path(directory), ACCOUNTS) as lone,
        _anvil(program) as (anvil, peer),
        one_processor(lone.node.pid, lone.gateway.pid, anvil),
    ):
        ours = LoadGenerator(lone.port, ACCOUNTS, lone.spent_s)
        for number in range(rounds + 1):
            for variant in _VARIANTS:
                ours.wait_empty_pool()
                for name, load in (("dekube", ours), ("anvil", peer)):
                    source = load.submit(int(window_s * SUBMISSIONS_PER_S), variant.size, is_ethereum=True)
                    cost = load.flood(source, window_s, variant.connections)
                    if number:  # the first round warms
                        found.setdefault(f"{name}_cpu_us_{variant.name}", []).append(cost.us / variant.size)
                        found.setdefault(f"{name}_per_s_{variant.name}", []).append(cost.per_s * variant.size)
    return {name: statistics.median(values) for name, values in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m node.bench.peer", description=__doc__)
    parser.add_argument("anvil", type=Path, help="program of anvil")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--window-ms", type=int, default=500)
    given = parser.parse_args(arguments)
    if not 0 < given.window_ms <= WINDOW_MS_MAX or given.rounds < 1:
        parser.error(f"rounds from 1 on, windows of 1 to {WINDOW_MS_MAX} ms")
    print(json.dumps(measure(given.anvil, given.rounds, given.window_ms / 1000)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
