"""A validator whose clock is 4 s ahead: what it costs the chain, and who is told of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from testnet.cluster import lay_out
from tests.cluster.network import Network, dekube, network, wait_for
from tests.cluster.playing import build_disturb, tell

pytestmark = pytest.mark.cluster

VALIDATORS = [f"validator-{i}" for i in range(4)]
AHEAD = "validator-2"
AHEAD_MS = 4_000
OFF_BY_MS = 250
"""What an answer may be wrong by on a busy machine."""
TURNS = 2
"""Of all four leaders."""
# The timers of a network without parameters of its own, but for the wait of an empty block.
TIMES = {"consensus.leader_ms": 2_000, "consensus.advance_ms": 3_500, "consensus.idle_ms": 0}
SHARE_MIN = 0.6
"""Of the speed without a wrong clock. An ordinary view takes 1 s. This seat's block is allowed after 2 s: four
blocks in five seconds are 0.8. With each of its views nullified, after 3 s, it would be three in six: 0.5."""


def blocks_per_s(net: Network, name: str) -> float:
    """Measure over whole turns of the leaders, from one new block to another."""
    first = net.height(name)
    net.wait_height(name, first + 1)
    begun_s, first = time.monotonic(), net.height(name)
    net.wait_height(name, first + len(VALIDATORS) * TURNS)
    return (net.height(name) - first) / (time.monotonic() - begun_s)


def test_a_leader_with_a_clock_ahead_costs_its_own_views_a_time_out_and_everybody_names_it(tmp_path: Path) -> None:
    root = tmp_path / "net"
    library = build_disturb(tmp_path)
    with network(root, "--no-task", "--workers", "0") as net:
        lay_out(root, validators=4, workers=0, seed=1, base_port=net.base_port, parameters=TIMES)
        tell(root / AHEAD, step_ms=AHEAD_MS)
        os.environ["LD_PRELOAD"] = str(library)
        try:
            net.start()
        finally:
            del os.environ["LD_PRELOAD"]
        net.wait_up()
        net.wait_height("validator-0", 1)
        slow = blocks_per_s(net, "validator-0")
        address = net.status(AHEAD)["address"]
        for name in VALIDATORS:
            if name == AHEAD:
                continue
            [off] = wait_for(lambda name=name: net.status(name)["clocks"], f"{name} names a clock")  # type: ignore[misc]
            assert off["validator"] == address and abs(off["ahead_ms"] - AHEAD_MS) <= OFF_BY_MS, name
            assert net.status(name)["clock_off_ms"] == 0, f"{name}'s own clock is right"
        own_ms = wait_for(lambda: net.status(AHEAD)["clock_off_ms"], "its own node knows")
        assert abs(own_ms - AHEAD_MS) <= OFF_BY_MS and not net.status(AHEAD)["clocks"]
        shown = dekube("status", "--home", root / "validator-0").stdout
        assert f"{address} is {AHEAD_MS / 1000:.1f} s ahead" in shown, shown
        shown = dekube("status", "--home", root / AHEAD).stdout
        assert f"the clock of this machine is {AHEAD_MS / 1000:.1f} s ahead of the validators': set it" in shown, (
            shown
        )
        tell(root / AHEAD)  # set right
        net.wait_height("validator-0", net.height("validator-0") + 2)
        fast = blocks_per_s(net, "validator-0")
        print(f"{slow:.2f} blocks/s with the clock {AHEAD_MS} ms ahead, {fast:.2f} with it right")
        assert slow >= SHARE_MIN * fast
        net.check_agreement(*VALIDATORS)
