"""Validators of which some pairs never connect agree on blocks as if they did: others pass their words on."""

from __future__ import annotations

import itertools
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from node.process.control import ask_node
from tests.cluster.network import Network, network, wait_for

pytestmark = pytest.mark.cluster

WORKER = "worker-0"
ALL = [f"validator-{i}" for i in range(4)]
APART = ((0, 1), (2, 3))
WINDOW_BLOCKS = 6
TRIES = 4


def counted(net: Network, name: str) -> float:
    """Return the sum of a counter over all validators."""
    total = 0.0
    for member in ALL:
        port = int(net.url(member).rpartition(":")[2]) + 1
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
    return total


def owner(net: Network, name: str, method: str, *params: object) -> object:
    control = net.root / name / "run" / "control.sock"
    return ask_node(control, "admin", timeout_s=20, method=method, params=list(params))


def events(net: Network, name: str) -> float:
    return counted(net, f'dekube_network_events_total{{event="{name}"}}')


def peers(net: Network, name: str) -> set[str]:
    found = owner(net, name, "admin_getPeers")
    assert isinstance(found, list)
    return {str(peer["address"]) for peer in found}


def heights(net: Network) -> list[int]:
    return [net.height(name) for name in ALL]


def part(net: Network, one: str, other: str) -> None:
    """Let two nodes keep each other away."""
    for name, away in ((one, other), (other, one)):
        owner(net, name, "admin_banPeer", str(net.status(away)["address"]))


def check_pace(net: Network) -> None:
    """Check that blocks follow each other without a view that somebody waits in vain for."""

    def have(height: int) -> bool:
        return min(heights(net)) >= height

    costs = []
    for _ in range(TRIES):  # a busy machine makes time-outs of its own
        began, before = max(heights(net)), counted(net, "sdbft_view_timeouts_total{")
        wait_for(partial(have, began + WINDOW_BLOCKS), "blocks go on")
        costs.append(counted(net, "sdbft_view_timeouts_total{") - before)
        if not costs[-1]:
            break
    assert min(costs) == 0, f"views that timed out: {costs}"


def test_who_has_no_connection_to_another_seat_costs_no_view(tmp_path: Path) -> None:
    with network(tmp_path / "net", "--no-task", "--workers", "1") as net:
        net.start("--without", "relay-0")
        net.wait_up()
        wait_for(lambda: min(heights(net)) >= 2, "blocks are final everywhere")
        addresses = [str(net.status(name)["address"]) for name in ALL]
        for one, other in APART:
            part(net, ALL[one], ALL[other])
        for one, other in itertools.permutations(range(4), 2):
            is_apart = (one, other) in APART or (other, one) in APART
            assert (addresses[other] in peers(net, ALL[one])) != is_apart
        check_pace(net)
        assert events(net, "vote_relay_forward") > 0 and events(net, "vote_relay_proposals_taken") > 0
        assert events(net, "vote_relay_reject") == events(net, "vote_relay_proposals_false") == 0

        # Now one of them has nobody left but a node without a seat.
        port = int(net.url(ALL[3]).rpartition(":")[2]) - 1
        owner(net, WORKER, "admin_connectPeer", f"{addresses[3]}@tcp:127.0.0.1:{port}")
        wait_for(lambda: addresses[3] in peers(net, WORKER), "the worker is connected to it")
        for other in (0, 1):
            part(net, ALL[3], ALL[other])
        assert peers(net, ALL[3]) == {str(net.status(WORKER)["address"])}
        check_pace(net)
        assert events(net, "vote_relay_reject") == events(net, "vote_relay_proposals_false") == 0
        net.check_agreement(*ALL)
