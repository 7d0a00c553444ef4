"""The client against real gateways, blocking and on both event loops; a gateway ends between send and wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio

from rpc.client import AsyncClient, Client, ClientError, TransactionRefused
from rpc.client.contracts import parse_argument
from state.primitives.signing import sign_legacy
from state.transition.staking import UNSTAKE_KIND
from tests.rpc.harness import ALICE, BOB, CAROL, CHAIN_ID, COIN, DAVE, FEE, Gateway, Node, gateway, served

pytestmark = pytest.mark.slow

BLOCK_S = 0.1


@asynccontextmanager
async def chain(path: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways to a node that makes blocks."""
    node = Node(path / "db")
    node.mint()

    async def make_blocks() -> None:
        while True:
            await trio.sleep(BLOCK_S)
            node.mint()

    async with (
        served(node, path / "a") as one,
        served(node, path / "b") as other,
        gateway(one, path / "a") as first,
        gateway(other, path / "b") as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)
        yield first, second
        nursery.cancel_scope.cancel()


def use_blocking(url: str) -> None:
    with Client(url) as client:
        assert client.chain().chain_id == CHAIN_ID
        before = client.account(CAROL.address)
        receipt = client.transfer(CAROL, DAVE.address, 5 * COIN)
        after = client.account(CAROL.address)
        assert after.at.height >= receipt.block.height
        assert before.balance - after.balance == 5 * COIN + receipt.fee
        assert (after.nonce, after.pending_nonce) == (before.nonce + 1, before.nonce + 1)
        with pytest.raises(TransactionRefused) as refused:
            client.send(CAROL, UNSTAKE_KIND, [5])
        assert refused.value.reason == "stake_insufficient"
        with pytest.raises(ClientError) as caught:
            client.transfer(DAVE, CAROL.address, 10**9 * COIN)
        assert caught.value.reason == "insufficient_funds"

        told = client.subscribe("heads", from_height=1)
        assert [next(told).at.height for _ in range(5)] == [1, 2, 3, 4, 5]

        stake_of = client.function("staking", "stakeOf")
        arguments = [parse_argument(parameter, "0x" + CAROL.address.hex()) for parameter in stake_of.inputs]
        assert client.view(stake_of, arguments)["amount"] == 0
        with pytest.raises(ClientError) as caught:
            client.write(CAROL, client.function("staking", "unstake"), [5])
        assert caught.value.reason == "stake_insufficient"
        legacy = sign_legacy(
            CAROL,
            chain_id=CHAIN_ID,
            nonce=after.nonce + 1,
            to=DAVE.address,
            value=1,
            gas_limit=21_000,
            gas_price=FEE,
        )
        assert client.wait(legacy).succeeded
        assert client.balance(DAVE.address) >= 5 * COIN + 1, "others send to it too"
        sent = [found.transaction for found in client.history(CAROL.address) if found.transaction]
        assert [found.nonce for found in sent] == [2, 1, 0]


async def use(url: str, key_number: int) -> None:
    key = (ALICE, BOB)[key_number]
    async with AsyncClient(url) as client:
        before = await client.account(key.address)
        receipt = await client.transfer(key, DAVE.address, COIN)
        after = await client.account(key.address)
        assert before.balance - after.balance == COIN + receipt.fee
        with pytest.raises(ClientError) as caught:
            await client.call("dekube_getBalance", address="0x")
        assert caught.value.reason == "invalid_params"
        heights = []
        async with aclosing(client.subscribe("heads", from_height=1)) as told:  # type: ignore[type-var]
            async for news in told:
                heights.append(news.at.height)
                if len(heights) == 5:
                    break
        assert heights == [1, 2, 3, 4, 5]
        found = await anext(client.history(key.address))
        assert found.transaction is not None
        assert found.transaction.hash == receipt.transaction_hash
        assert found.change_of("balance") == after.balance - before.balance


async def test_the_same_client_blocks_and_runs_on_both_event_loops(tmp_path: Path) -> None:
    def on_asyncio(use: Callable[[str, int], Awaitable[None]], url: str) -> None:
        async def main() -> None:
            await use(url, 1)

        asyncio.run(main())

    async with chain(tmp_path) as (first, _), trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, use_blocking, first.url)
        nursery.start_soon(use, first.url, 0)
        nursery.start_soon(trio.to_thread.run_sync, on_asyncio, use, first.url)


async def test_a_gateway_may_end_between_send_and_wait_and_under_a_subscription(tmp_path: Path) -> None:
    async with chain(tmp_path) as (first, second), AsyncClient(first.url, second.url) as client:
        raw = await client.sign(ALICE, 1, [DAVE.address, COIN])
        await client.submit(raw)
        seen = []
        async with aclosing(client.subscribe("heads", from_height=1)) as told:  # type: ignore[type-var]
            async for news in told:
                seen.append(news.at.height)
                if len(seen) == 3:
                    first.process.kill()
                    receipt = await client.wait(raw)
                if len(seen) > 3 and news.at.height > receipt.block.height:
                    break
        assert receipt.succeeded
        assert seen == list(range(1, len(seen) + 1))
        assert client.core.url.startswith(second.url)
        assert await client.balance(DAVE.address) == COIN
