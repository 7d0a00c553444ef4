"""A validator whose key is with a signer: it votes through it, waits for it, and both may be killed any time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from consensus.guard import Guard
from consensus.guard_log import GUARD_FILE
from node.cli import EXIT_NEEDS_OPERATOR
from node.home.config import dump_options
from node.home.create import create_home
from node.home.options import SignerOptions
from node.home.paths import Home
from node.process.control import ask_node
from node.signer.home import SignerHomeOptions
from state.primitives.address import format_address
from state.primitives.errors import DekubeError
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey
from testnet.cluster import write_home
from testnet.plan import Placement, make_plan, member_names
from tests.cluster.network import wait_for
from tests.cluster.ports import free_ports
from tests.node.signer.world import signer_process

pytestmark = pytest.mark.cluster


@contextmanager
def node_process(home: Home, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "node", "node", "run", "--home", str(home.root)],
            cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stderr=output, stdout=output,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def height(home: Home) -> int:
    try:
        return int(ask_node(home.control, "status", timeout_s=10)["height"])
    except DekubeError:
        return -1


def test_a_validator_votes_through_its_signer_over_tcp_and_both_may_be_killed(tmp_path: Path) -> None:
    port = free_ports()
    placements = {
        name: Placement("127.0.0.1", "127.0.0.1", port, port + 1, port + 2) for name in member_names(1, 0)
    }
    now_ms = time.time_ns() // 1_000_000  # of an old chain it would ask for the newest state first
    plan = make_plan(validators=1, workers=0, seed=5, time_ms=now_ms, placements=placements)
    member = next(member for member in plan.members if member.vote is not None)
    assert member.vote is not None and member.options is not None
    home = Home(tmp_path / "node")
    write_home(home.root, member, plan)
    account = SecretKey(b"s" * 32)
    options = SignerHomeOptions(
        listen=f"127.0.0.1:{port + 3}", clients=(format_address(member.account.address),)
    )  # fmt: skip
    signer = create_home(
        tmp_path / "signer", genesis=plan.genesis, account=account, vote=member.vote, is_new_vote_key=True,
        passphrase="p", options=options, scrypt_n=2,
    )  # fmt: skip
    elsewhere = SignerOptions(
        f"{format_address(account.address)}@tcp:{options.listen}", "0x" + member.vote.vote_key.hex()
    )  # fmt: skip
    home.config.write_text(dump_options(replace(member.options, signer=elsewhere)))
    log = tmp_path / "log"
    with node_process(home, log) as process:  # the key is here as well: one of the two must go
        assert process.wait(60) == 78 and b"must not be here" in log.read_bytes()
    home.path(member.options.keys.vote).unlink()
    shutil.rmtree(home.guard)

    with node_process(home, log) as process:
        with signer_process(signer):
            wait_for(lambda: height(home) >= 3, "blocks with a signer's votes")
        stood = height(home)
        assert process.poll() is None
        with signer_process(signer):
            wait_for(lambda: height(home) >= stood + 3, "blocks after the signer was killed")
            process.kill()
            process.wait()
            with node_process(home, log):
                wait_for(lambda: height(home) >= stood + 6, "blocks after the node was killed")
    with node_process(home, log) as process:
        wait_for(lambda: height(home) >= stood + 6, "a node without its signer follows")
        assert process.poll() is None
        whose = genesis_hash(plan.genesis), member.vote.vote_key
        guard, _ = Guard.load((signer.guard / GUARD_FILE).read_bytes(), *whose)
        assert guard.watermark().view > stood
        (signer.guard / GUARD_FILE).write_bytes(Guard(*whose).image())  # a record begun anew
        with signer_process(signer):
            assert process.wait(60) == EXIT_NEEDS_OPERATOR
    assert b"[guard_outdated]" in log.read_bytes()
