"""Two machines with the key of one validator: the second finds the first before it votes, and says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli import EXIT_NEEDS_OPERATOR
from node.home.create import rewrite_options
from node.home.keys import read_passphrase, save_key
from node.home.load import load_node_options
from node.home.paths import Home
from state.primitives.keys import SecretKey
from tests.cluster.network import Network, network, parameters

pytestmark = pytest.mark.cluster

TWICE = "validator-3"
LISTENS_S = 2
LISTENS = f"{LISTENS_S}|30"
"""Beside a record that is behind the chain a node listens longer."""
TEXT = (
    "dekube: doppelganger: another process votes with this key: epoch 0, view VIEW. This node did not cast that "
    "vote, which WHEN. It refuses to vote: two processes that vote with one key can contradict each other, and "
    "the stake is slashed for that. Find the other process and stop it. It may have ended already. Or this "
    "machine cast the vote, and its record of votes was lost or replaced by an older copy (`dekube node guard "
    "show` tells what the record knows). Once no other machine runs with this key, start again: `dekube node "
    "run`. It listens for SOME s or more before it votes [doppelganger]"
)
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
WHEN = rf"(was heard at {TIME}|is in a certificate of a block of {TIME}, \d+ s ago)"


def with_key_of(net: Network, name: str, to: Path) -> Home:
    """Make a home of another account with vote key and record of votes of a validator that stands still."""
    shutil.copytree(net.root / name, to, ignore=shutil.ignore_patterns("run", "*.sock"))
    home, base = Home(to), net.base_port + 30
    options = load_node_options(home)
    account = home.path(options.keys.account)
    account.unlink()
    save_key(account, SecretKey(b"d" * 32), read_passphrase(home.path(options.keys.passphrase_file)))
    options = replace(
        options,
        p2p=replace(options.p2p, listen=f"127.0.0.1:{base}"),
        rpc=replace(options.rpc, listen=f"127.0.0.1:{base + 1}"),
        metrics=replace(options.metrics, listen=f"127.0.0.1:{base + 2}"),
    )
    rewrite_options(home, options)
    return home


def test_the_second_process_of_a_validator_does_not_vote_and_says_why(tmp_path: Path) -> None:
    times = parameters(1_000, doppelganger_ms=LISTENS_S * 1_000, doppelganger_views=4)
    with network(tmp_path / "net", "--no-task", "--workers", "0", *times) as net:
        net.start()
        net.wait_up()
        net.wait_height(TWICE, 2)
        net.verb("stop", TWICE)
        home = with_key_of(net, TWICE, tmp_path / "double")
        net.verb("restart", TWICE)
        net.wait_height(TWICE, net.height("validator-0") + 1)
        ended = subprocess.run(
            [sys.executable, "-m", "node", "node", "run", "--home", str(home.root)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ended.returncode == EXIT_NEEDS_OPERATOR, ended.stderr
        *_, said = ended.stderr.splitlines()
        for pattern, word in ((r"view \d+", "view VIEW"), (WHEN, "WHEN"), (rf"for ({LISTENS}) s", "for SOME s")):
            said = re.sub(pattern, word, said)
        assert said == TEXT
        height = net.height("validator-0")
        net.wait_height(TWICE, height + 5)
        assert net.state(TWICE) == "running", "the first process goes on"
        net.check_agreement("validator-0", TWICE)
