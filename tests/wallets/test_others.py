"""ethers, viem and cast, unchanged, against a gateway while blocks are made."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from state.primitives.keys import SecretKey
from tests.rpc.harness import ALICE, BOB, CAROL, COIN, DAVE, Gateway, Node, gateway, hexed, served
from tests.wallets.tools import SCRIPTS, cast, installed

BLOCK_S = 0.3
LIMIT_S = 120
KEYS = {ALICE.address: 3, BOB.address: 4, CAROL.address: 5}
STAKING = "0x0000000000000000000000000000000000000704"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed: of the clients only web3.py is run",
)


def secret_of(key: SecretKey) -> str:
    return "0x" + bytes([KEYS[key.address]]).hex() * 32


@asynccontextmanager
async def chain(path: Path) -> AsyncIterator[Gateway]:
    """A gateway to a node that makes a block now and then."""
    node = Node(path / "db")

    async def make_blocks() -> None:
        while True:
            await trio.sleep(BLOCK_S)
            node.mint()

    async with (
        served(node, path / "s") as backend,
        gateway(backend, path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)
        yield it
        nursery.cancel_scope.cancel()


async def run(*command: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(LIMIT_S):
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_library_works_unchanged(script: str, tmp_path: Path) -> None:
    place = await trio.to_thread.run_sync(installed)
    key = ALICE if script == "ethers.mjs" else BOB
    async with chain(tmp_path) as it:
        done = await run(
            "node", str(place / script), it.url, it.websocket_url, secret_of(key), hexed(DAVE.address)
        )
    assert done.returncode == 0, done.stderr.decode()


async def test_cast_works_unchanged(tmp_path: Path) -> None:
    await trio.to_thread.run_sync(installed)
    program = cast()
    if program is None:
        pytest.skip("cast is not made for this machine")
    async with chain(tmp_path) as it:

        async def ask(*words: str) -> str:
            done = await run(str(program), *words, "--rpc-url", it.url)
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout.decode().strip()

        assert await ask("chain-id") == "7"
        assert int(await ask("balance", hexed(CAROL.address))) == 10_000 * COIN
        for kind in ((), ("--legacy",)):
            sent = await ask("send", *kind, "--private-key", secret_of(CAROL), "--value", "5", hexed(DAVE.address))
            assert "1 (success)" in sent
        assert await ask("nonce", hexed(CAROL.address)) == "2"
        assert await ask("balance", hexed(DAVE.address)) == "10"
        assert int(await ask("gas-price")) > 0
        assert "parentHash" in await ask("block", "latest")
        assert await ask("code", STAKING) == "0xfe"
        assert (await ask("call", STAKING, "stakeOf(address)(uint256,bytes32,bytes32)", hexed(DAVE.address)))[
            0
        ] == "0"
        refused = await run(
            str(program), "send", "--rpc-url", it.url, "--private-key", secret_of(CAROL), STAKING,
            "unstake(uint256)", "5",
        )  # fmt: skip
        assert refused.returncode
        assert b"execution reverted: stake_insufficient" in refused.stderr
