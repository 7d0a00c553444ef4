"""Half of the validators hang for minutes, so that no block comes: no machine pays for that (chain.md R10)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from state.primitives.address import parse_address
from testnet.demonstration import wait_machines
from tests.cluster.network import Network, network, wait_for
from tests.cluster.test_faults import (
    OVER,
    PHASE_PATIENCE_S,
    SETTLE_PATIENCE_S,
    Fault,
    bond_lines,
    client_of,
    post,
    settled_books,
    task_of,
    who_is_hit,
)

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

HANGS_S: Final = 120.0
HANGING: Final = ("validator-2", "validator-3")
"""Two of four: the others have no quorum."""
PARAMETERS: Final[Mapping[str, int]] = {
    "accept_ms": 40_000, "prepare_ms": 60_000, "window_grace_ms": 60_000, "seal_ms_min": 60_000,
    "reveal_ms": 40_000, "opening_extra_ms": 40_000, "audit_bps": 10_000, "verifiers": 2, "verifiers_sure": 2,
    "presence_ms": 90_000,
}  # fmt: skip
"""Each deadline is shorter than the stop, and longer than what a block adds to the steady time."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    deadlines = [
        option for name, number in PARAMETERS.items() for option in ("--parameter", f"tasks.{name}={number}")
    ]
    with network(tmp_path_factory.mktemp("standstill"), "--no-task", *deadlines) as made:
        made.start()
        made.wait_up()
        with client_of(made) as client:
            wait_machines(client)
        yield made


@pytest.mark.parametrize("phase", ["running", "sealing", "revealing", "opening"])
def test_no_honest_machine_pays_for_a_chain_that_stood_still(running: Network, phase: str) -> None:
    with client_of(running) as client:
        before = bond_lines(client)
        failures = {node["address"]: node["failures"] for node in client.items("dekube_getNodes")}
        task = post(running, client, f"standstill {phase}")
        wait_for(
            lambda: who_is_hit(running, client, task, Fault("validator", phase, HANGS_S)), phase,
            patience_s=PHASE_PATIENCE_S,
        )  # fmt: skip
        stood_ms = client.head().stood_still_ms
        hang(running)
        ended = wait_for(
            lambda: found if (found := task_of(client, task)).phase in OVER else None, "the task ends",
            patience_s=SETTLE_PATIENCE_S,
        )  # fmt: skip
        assert ended.phase == "settled"
        assert client.head().stood_still_ms - stood_ms >= (HANGS_S - 30) * 1_000
        books = settled_books(client, task, before)
        after = {node["address"]: node["failures"] for node in client.items("dekube_getNodes")}
        parties = [parse_address(address) for address in after]
    assert books.is_exact
    assert {address: books.gains.get(address, 0) for address in parties if books.gains.get(address, 0) < 0} == {}
    assert all(count <= failures.get(address, 0) for address, count in after.items())


def hang(running: Network) -> None:
    """Stop two validators for ``HANGS_S``."""
    pids = [row["pid"] for row in running.verb("list") if row["name"] in HANGING]
    assert len(pids) == len(HANGING)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(HANGS_S)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
