"""What the tests on emulated networks share."""

from __future__ import annotations

import pytest

from testnet.wan.emulator import WanUnavailable
from testnet.wan.lab import check_machine

TWO_HOMES = """
[hosts.GA]
nat = "cone"
[hosts.A]
behind = "GA"
[hosts.GB]
nat = "cone"
[hosts.B]
behind = "GB"
"""
"""Hosts of a topology: A and B, each behind a NAT of its own."""


def need_emulation() -> None:
    """Skip the test where this machine has no emulated networks."""
    try:
        check_machine()
    except WanUnavailable as error:
        pytest.skip(f"NO EMULATED NETWORKS HERE: {error}")
