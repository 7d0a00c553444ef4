"""``dekube tx`` against a gateway: what is staked keeps the key that votes with it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

import node.home
from node.cli import group
from node.config import KeyOptions, NetworkOptions, NodeOptions, RpcOptions
from node.home import Home, create_home, load_key
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from state.primitives.vrf import vrf_key_of
from state.transition.staking import load_stake, possession_digest
from tests.rpc.harness import ALICE, COIN, Node, gateway, served

OLD = SecretKey(b"o" * 32)


@pytest.fixture(autouse=True)
def cheap_keystores(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home, "encrypt_keystore", encrypt)


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


async def test_more_stake_does_not_bring_an_old_key_back(tmp_path: Path) -> None:
    chain = Node(tmp_path / "db", epoch_blocks=1_000)
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

    def staked() -> tuple[int, bytes]:
        record = load_stake(chain.store, ALICE.address)
        assert record is not None
        return record.amount // COIN, record.vote_key

    async with (
        served(chain, tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)

        async def tx(*arguments: object) -> BaseException | None:
            command = ["tx", *map(str, arguments), "--home", str(home.root), "--rpc", it.url, "--json"]
            run = partial(CliRunner().invoke, group, command, standalone_mode=False)
            done = await trio.to_thread.run_sync(run)
            return done.exception

        assert await tx("stake", 2_000) is None
        assert staked() == (2_000, OLD.vote_key)
        assert await tx("rotate-keys") is None
        new = load_key(Home(home.root).path(home.load_options().keys.vote_next), "p")
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
        nursery.cancel_scope.cancel()
    chain.store.close()
