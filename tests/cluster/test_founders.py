"""A chain of one's own: founders who know of each other by files alone make blocks."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from node.home.create import rewrite_options
from node.home.load import load_node_options
from node.home.paths import Home
from rpc.client import Client
from state.primitives.errors import DekubeError
from tests.cluster.network import dekube, wait_for
from tests.cluster.ports import free_ports

pytestmark = pytest.mark.cluster

FOUNDERS = 4
BLOCKS = 3


def said(*arguments: object) -> dict[str, str]:
    done = dekube(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def test_founders_found_a_chain_and_make_blocks(tmp_path: Path) -> None:
    homes = [tmp_path / f"home-{n}" for n in range(FOUNDERS)]
    draft, genesis = tmp_path / "draft.json", tmp_path / "genesis.json"
    said(
        *("genesis", "draft", "--name", "own", "--chain-id", 4242, "--out", draft),
        *("--parameter", "consensus.doppelganger_ms=0"),  # else they listen for a minute first
    )
    founders = [
        said("genesis", "found", "--home", home, "--draft", draft, "--stake", 2_000, "--unattended")
        for home in homes
    ]
    sealed = said(
        "genesis", "seal", draft, *(root / "founder.json" for root in homes), "--out", genesis,
    )  # fmt: skip
    base = free_ports()
    first = f"{founders[0]['address']}@tcp:127.0.0.1:{base}"
    for n, root in enumerate(homes):
        bootstrap = ("--bootstrap", first) if n else ()
        said("init", "--home", root, "--genesis", genesis, "--role", "validator", *bootstrap)
        home = Home(root)
        options, at = load_node_options(home), base + 3 * n
        options = replace(
            options,
            p2p=replace(options.p2p, listen=f"127.0.0.1:{at}"),
            rpc=replace(options.rpc, listen=f"127.0.0.1:{at + 1}"),
            metrics=replace(options.metrics, listen=f"127.0.0.1:{at + 2}"),
        )
        rewrite_options(home, options)
    with ExitStack() as stack:
        for root in homes:
            log = stack.enter_context((root / "log").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "node", "node", "run", "--home", str(root)],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        def heights() -> list[int] | None:
            found = []
            for n in range(FOUNDERS):
                try:
                    with Client(f"http://127.0.0.1:{base + 3 * n + 1}") as client:
                        found.append(int(client.call("eth_blockNumber"), 16))
                except DekubeError:
                    return None
            return found if min(found) >= BLOCKS else None

        wait_for(heights, f"{BLOCKS} blocks at every founder")
        with Client(f"http://127.0.0.1:{base + 1}") as client:
            assert client.call("dekube_genesis")["hash"] == sealed["hash"]
            assert int(client.call("eth_chainId"), 16) == 4242
