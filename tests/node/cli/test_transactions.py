"""``dekube tx`` against a gateway: what is staked keeps the key that votes with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

import node.home.keys
from node.cli import group
from node.cli.validators import _state
from node.home.create import create_home
from node.home.keys import load_key
from node.home.load import load_node_options
from node.home.options import KeyOptions, NetworkOptions, NodeOptions, RpcOptions
from node.home.paths import Home
from rpc.client import TransactionRefused
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from state.primitives.vrf import vrf_key_of
from state.transition.staking import load_stake, possession_digest
from state.view.accounts import load_account
from tests.rpc.harness import ALICE, COIN, Node, gateway, served

OLD = SecretKey(b"o" * 32)


@pytest.fixture(autouse=True)
def cheap_keystores(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home.keys, "encrypt_keystore", encrypt)


def possession_of(chain: Node, vote: SecretKey, file: Path) -> Path:
    """Write what `dekube signer possession --json` prints."""
    from state.primitives.votes import VoteKey

    signed = possession_digest(chain.runtime.genesis_hash, ALICE.address, vote.vote_key)
    vrf = vrf_key_of(vote)
    document = {
        "vote_key": vote.vote_key.hex(), "possession": VoteKey(vote).sign_vote(signed).hex(),
        "vrf_key": vrf.public.hex(), "vrf_possession": vrf.prove(signed).hex(),
    }  # fmt: skip
    file.write_text(json.dumps(document))
    return file


@asynccontextmanager
async def validator(
    tmp_path: Path, **parameters: int
) -> AsyncIterator[tuple[Node, Home, Callable[..., Awaitable[Result]]]]:
    """A chain that makes blocks, the home of somebody with coins, and `dekube tx` for it."""
    chain = Node(tmp_path / "db", options=None, epoch_blocks=1_000, **parameters)
    chain.mint()
    home = create_home(
        tmp_path / "home", genesis=chain.genesis, account=ALICE, vote=OLD, passphrase="p",
        options=NodeOptions(
            roles=("validator",), p2p=NetworkOptions(listen="127.0.0.1:0"), rpc=RpcOptions(listen=""),
            keys=KeyOptions(),
        ),
    )  # fmt: skip

    async def make_blocks() -> None:
        while True:
            await trio.sleep(0.1)
            chain.mint()

    async with (
        served(chain, tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)

        async def tx(*arguments: object) -> Result:
            command = ["tx", *map(str, arguments), "--home", str(home.root), "--rpc", it.url]
            run = partial(CliRunner().invoke, group, command, standalone_mode=False)
            return await trio.to_thread.run_sync(run)

        yield chain, home, tx
        nursery.cancel_scope.cancel()
    chain.store.close()


def staked_of(chain: Node) -> tuple[int, bytes]:
    record = load_stake(chain.store, ALICE.address)
    assert record is not None
    return record.amount // COIN, record.vote_key


@pytest.mark.slow
async def test_a_stake_that_the_chain_would_refuse_costs_no_fee_and_what_is_withdrawn_says_when_it_returns(
    tmp_path: Path,
) -> None:
    async with validator(tmp_path) as (chain, _, tx):

        async def refused(*arguments: object) -> str:
            done = await tx(*arguments)
            assert isinstance(done.exception, TransactionRefused)
            return str(done.exception)

        assert (
            await refused("stake", 999) == "999 DKB would be staked; the stake must be at least 1000 DKB, or zero"
        )
        assert await refused("unstake", 1) == "only 0 DKB are staked; unstake at most this amount"
        assert (await tx("stake", 1_500)).exception is None
        assert await refused("unstake", 1_501) == "only 1500 DKB are staked; unstake at most this amount"
        assert (
            await refused("unstake", 600)
            == "900 DKB would be staked; the stake must be at least 1000 DKB, or zero"
        )
        assert load_account(chain.store, ALICE.address).nonce == 1, "nothing else was paid for"
        done = await tx("unstake", 1_500)
        assert "It is on the account again from " in done.output
        assert load_stake(chain.store, ALICE.address) is None or staked_of(chain)[0] == 0


@pytest.mark.slow
async def test_a_stake_that_the_chain_needs_stays_and_the_reason_is_said(tmp_path: Path) -> None:
    async with validator(tmp_path, validators_min=4, unstake_percent_max=10) as (chain, _, tx):
        assert (await tx("stake", 3_000)).exception is None
        assert str((await tx("unstake", 3_000)).exception) == (
            "fewer than 4 other validators would be left (chain.validators_min): all but 1000 DKB can be taken "
            "out, and the rest when another validator has staked (dekube validators); nothing was sent"
        )
        assert str((await tx("unstake", 1_500)).exception) == (
            "within one epoch 10 % of all stake can be taken out (chain.unstake_percent_max): 1000 DKB of it are "
            "left, more from block 1,001 on; nothing was sent"
        )
        assert (await tx("unstake", 600)).exception is None
        assert "400 DKB of it are left" in str((await tx("unstake", 500)).exception)
        assert staked_of(chain)[0] == 2_400


def test_validators_tell_who_votes_now_who_comes_and_who_leaves_when() -> None:
    def state(address: str, jail: Any = None, leaves: Any = None) -> str:
        known = {"address": address, "stake": "1", "jail": jail}
        return _state(known, {"epoch": 5, "last_height": 3_600}, {"A": {}, "B": {}}, {"A": {}, "C": {}}, leaves)

    assert state("A") == "", "votes now and next"
    assert state("A", leaves={"last_height": 7_200}) == "leaves with block 7,200"
    assert state("B") == "leaves with block 3,600"
    assert state("C") == "votes from block 3,601 on"
    assert state("D") == "does not vote yet"
    assert state("B", jail={"until_epoch": 9}) == "jailed until epoch 9, leaves with block 3,600"
    assert state("D", jail={"until_epoch": None}) == "out for ever"


async def test_keys_of_who_has_no_stake_are_not_replaced(tmp_path: Path) -> None:
    async with validator(tmp_path) as (_, home, tx):
        before = home.config.read_text(), sorted(home.root.glob("keys/*"))
        done = await tx("rotate-keys")
        assert (
            str(done.exception) == "the account has no stake, so no key to replace; stake first (dekube tx stake)"
        )
        assert (home.config.read_text(), sorted(home.root.glob("keys/*"))) == before


@pytest.mark.slow
async def test_more_stake_does_not_bring_an_old_key_back(tmp_path: Path) -> None:
    async with validator(tmp_path) as (chain, home, run):

        async def tx(*arguments: object) -> BaseException | None:
            return (await run(*arguments, "--json")).exception

        def staked() -> tuple[int, bytes]:
            return staked_of(chain)

        assert await tx("stake", 2_000) is None
        assert staked() == (2_000, OLD.vote_key)
        assert await tx("rotate-keys") is None
        new = load_key(Home(home.root).path(load_node_options(home).keys.vote_next), "p")
        assert staked() == (2_000, new.vote_key)
        assert await tx("stake", 500) is None
        assert staked() == (2_500, new.vote_key), "the rotation stands"

        # With a signer's keys: the stake is added to with the registered one alone.
        far = SecretKey(b"f" * 32)
        file = possession_of(chain, far, tmp_path / "possession.json")
        assert isinstance(await tx("stake", 100, "--possession", file), ConfigError)
        assert staked() == (2_500, new.vote_key)
        assert await tx("stake", 0, "--possession", file) is None
        assert staked() == (2_500, far.vote_key)
        assert await tx("stake", 100, "--possession", file) is None
        assert isinstance(await tx("stake", 100), ConfigError), "the registered key is not in this home"
        assert staked() == (2_600, far.vote_key)
