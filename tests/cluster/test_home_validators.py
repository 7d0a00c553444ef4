"""Validators at home behind NAT, no port open: they agree on blocks through relays, also when one relay dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testnet.wan.emulator import WanUnavailable
from testnet.wan.lab import Lab, check_machine, load_plan
from testnet.wan.network import HomeNetwork, lay_out_homes
from tests.cluster.network import wait_for

pytestmark = pytest.mark.cluster


def heights(network: HomeNetwork) -> list[int]:
    statuses = [network.status(host) for host in network.validators]
    return [-1 if status is None else int(status["height"]) for status in statuses]


def test_validators_that_nobody_can_dial_agree_on_blocks(tmp_path: Path) -> None:
    try:
        check_machine()
    except WanUnavailable as error:
        pytest.skip(f"NO EMULATED NETWORKS HERE: {error}")
    with Lab(load_plan("validators"), f"v{os.getpid()}") as lab:
        network = lay_out_homes(lab, tmp_path / "net")
        with network.running() as processes:
            wait_for(lambda: min(heights(network)) >= 3, "blocks are final at every home")
            processes["R1"].kill()
            height = max(heights(network))
            wait_for(lambda: min(heights(network)) >= height + 3, "blocks go on without a relay")
            assert all(process.poll() is None for host, process in processes.items() if host != "R1")
