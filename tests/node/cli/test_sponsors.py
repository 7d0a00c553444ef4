"""``dekube worker terms``, ``sponsor`` and ``unsponsor`` against a gateway: both sides see the terms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

import node.home.keys
import tests.rpc.harness
from node.chain.runtime import make_runtime
from node.cli import group
from node.home.create import create_home
from node.home.options import NetworkOptions, NodeOptions, RegistryOptions, RpcOptions
from rpc.client import Client, TransactionRefused
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import REGISTER_NODE, node_payload
from tests.rpc.harness import ALICE, BOB, COIN, Node, gateway, served
from tests.tasks.test_codecs import PROFILE

Dekube = Callable[..., Awaitable[Result]]
MACHINE = format_address(ALICE.address)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home.keys, "encrypt_keystore", encrypt)
    monkeypatch.setattr(tests.rpc.harness, "Runtime", make_runtime)  # with the kinds of the market


def register(url: str) -> None:
    """Register the machine without a bond, as its node does."""
    profile = PROFILE._replace(operator=ALICE.address, consent=b"")
    with Client(url) as client:
        assert client.send(ALICE, REGISTER_NODE, node_payload(profile, 0)).succeeded


@asynccontextmanager
async def chain_of(tmp_path: Path) -> AsyncIterator[tuple[Node, str, Dekube, Dekube]]:
    """A chain, and ``dekube worker`` of a machine's owner and of somebody with money."""
    chain = Node(tmp_path / "db", options=None, epoch_blocks=1_000)
    chain.mint()

    async def make_blocks() -> None:
        while True:
            await trio.sleep(0.1)
            chain.mint()

    async def worker(home: Path, url: str, *arguments: object) -> Result:
        command = ["worker", *map(str, arguments), "--home", str(home), "--rpc", url]
        return await trio.to_thread.run_sync(partial(CliRunner().invoke, group, command, standalone_mode=False))

    async with (
        served(chain, tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)
        homes = []
        for name, key in (("owner", ALICE), ("sponsor", BOB)):
            options = NodeOptions(
                roles=("verify",), p2p=NetworkOptions(listen="127.0.0.1:0"), rpc=RpcOptions(listen=""),
                registry=RegistryOptions(sponsored=True),
            )  # fmt: skip
            create_home(
                tmp_path / name, genesis=chain.genesis, account=key, vote=None, passphrase="p", options=options
            )
            homes.append(partial(worker, tmp_path / name, it.url))
        yield chain, it.url, homes[0], homes[1]
        nursery.cancel_scope.cancel()
    chain.store.close()


async def test_a_machine_without_a_bond_finds_a_sponsor_and_lets_it_go(tmp_path: Path) -> None:
    async with chain_of(tmp_path) as (chain, url, owner, sponsor):

        async def done(by: Dekube, *arguments: object) -> str:
            result = await by(*arguments)
            assert result.exception is None, result.exception
            return result.output

        async def refused(by: Dekube, *arguments: object) -> str:
            result = await by(*arguments)
            assert isinstance(result.exception, ConfigError | TransactionRefused)
            return str(result.exception)

        assert "is not registered" in await refused(owner, "terms", MACHINE, "--share", "10")
        await trio.to_thread.run_sync(register, url)
        assert require_node(chain.store, ALICE.address).bond == 0
        assert "does not accept you" in await refused(sponsor, "sponsor", MACHINE, "--amount", "10")
        assert "only " in await refused(sponsor, "terms", MACHINE, "--share", "10")
        terms = ("--share", "12.5", "--withhold", "50", "--until", "10")
        who = format_address(BOB.address)
        await done(owner, "terms", MACHINE, "--sponsor", who, *terms, "--yes")
        await done(owner, "terms", MACHINE, "--share", "10", "--yes")
        node = require_node(chain.store, ALICE.address)
        assert (node.sponsor, node.share_bps, node.withhold_bps, node.withhold_to) == (
            BOB.address, 1_000, 5_000, 10 * COIN,
        )  # fmt: skip
        assert f"{who} may bond for it" in await done(owner, "show")
        assert "payment_missing" in await refused(sponsor, "sponsor", MACHINE, "--amount", "9", "--yes")
        await done(sponsor, "sponsor", MACHINE, "--amount", "10", "--yes")
        assert f"10 DKB of {who}, for 10 % of its pay" in " ".join((await done(owner, "show")).split())
        assert "terms_bound" in await refused(owner, "terms", MACHINE, "--no-sponsor", "--share", "0", "--yes")
        assert "at most this amount" in await refused(sponsor, "unsponsor", MACHINE, "11", "--yes")
        await done(sponsor, "unsponsor", MACHINE, "10", "--yes")
        node = require_node(chain.store, ALICE.address)
        assert (node.sponsored, node.leaving, node.backing) == (10 * COIN, 10 * COIN, 0)
        assert "return after" in " ".join((await done(owner, "show")).split())


async def test_a_share_is_a_percentage(tmp_path: Path) -> None:
    for text in ("101", "-1", "1.234", "x", "1e1", "100.01"):
        result = CliRunner().invoke(group, ["worker", "terms", MACHINE, "--share", text], standalone_mode=False)
        assert "is not a share" in str(result.exception), text
