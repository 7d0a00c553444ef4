"""web3.py and eth-account, unchanged, against a gateway: what a person who writes Python for Ethereum does.

Each client library has a module of its own here; they share the node of ``tests.rpc.harness``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from eth_account import Account
from web3 import AsyncWeb3, Web3
from web3.exceptions import ContractLogicError, TransactionNotFound, Web3RPCError
from web3.providers.persistent import WebSocketProvider

from rpc.ethereum.contracts import abi_json
from state.primitives.keys import SecretKey
from state.transition.staking import STAKING_ADDRESS, stake_payload
from tasks.ledger.events import EVENTS
from tests.rpc.harness import (
    ALICE,
    BOB,
    CAROL,
    CHAIN_ID,
    COIN,
    DAVE,
    Gateway,
    Node,
    gateway,
    hexed,
    mint,
    served,
)

_T = TypeVar("_T")


async def off(function: Callable[..., _T], *args: Any) -> _T:
    """Let the library wait in a thread: the node answers from this one."""
    return await trio.to_thread.run_sync(function, *args)


def web3_of(it: Gateway) -> Any:
    """Untyped: the library's own types differ from what it returns in batches and filters."""
    return Web3(Web3.HTTPProvider(it.url))


def account_of(key: SecretKey) -> Any:
    account = Account.from_key(bytes([KEY_BYTES[key.address]]) * 32)
    assert bytes.fromhex(account.address[2:]) == key.address
    return account


KEY_BYTES = {key.address: number for number, key in enumerate((ALICE, BOB, CAROL, DAVE), 3)}


def staking_of(w3: Any) -> Any:
    return w3.eth.contract(
        address=Web3.to_checksum_address(hexed(STAKING_ADDRESS)), abi=abi_json(STAKING_ADDRESS, (), EVENTS)
    )


def stake_arguments(node: Node, key: SecretKey) -> list[Any]:
    return stake_payload(0, key, genesis_hash=node.runtime.genesis_hash, address=key.address)[1:]


async def test_connect_balances_and_both_kinds_of_sends(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        w3 = web3_of(it)
        alice, bob, dave = account_of(ALICE), account_of(BOB), Web3.to_checksum_address(hexed(DAVE.address))

        def look() -> None:
            assert w3.is_connected()
            assert w3.eth.chain_id == CHAIN_ID
            assert w3.net.version == str(CHAIN_ID)
            assert w3.eth.get_balance(alice.address) == 10_000 * COIN
            assert w3.eth.block_number == 0
            assert w3.eth.get_block("latest")["number"] == 0
            with pytest.raises(TransactionNotFound):
                w3.eth.get_transaction_receipt(b"\0" * 32)

        await off(look)

        def send_dynamic() -> Any:
            block = w3.eth.get_block("latest")
            tip = w3.eth.max_priority_fee
            request = {
                "to": dave, "value": 3 * COIN, "nonce": w3.eth.get_transaction_count(alice.address),
                "chainId": w3.eth.chain_id, "maxFeePerGas": 2 * block["baseFeePerGas"] + tip,
                "maxPriorityFeePerGas": tip, "gas": w3.eth.estimate_gas({"from": alice.address, "to": dave}),
            }  # fmt: skip
            return w3.eth.send_raw_transaction(alice.sign_transaction(request).raw_transaction)

        def send_legacy() -> Any:
            request = {
                "to": dave, "value": COIN, "nonce": w3.eth.get_transaction_count(bob.address, "pending"),
                "chainId": w3.eth.chain_id, "gasPrice": w3.eth.gas_price, "gas": 21_000, "data": b"hello",
            }  # fmt: skip
            return w3.eth.send_raw_transaction(bob.sign_transaction(request).raw_transaction)

        hashes = [await off(send_dynamic), await off(send_legacy)]
        assert (await off(w3.eth.get_transaction_count, bob.address, "pending")) == 1
        await mint(it, node, 2)

        def check() -> None:
            for hash_, sender, kind, value in zip(hashes, (alice, bob), (2, 0), (3 * COIN, COIN), strict=True):
                receipt = w3.eth.wait_for_transaction_receipt(hash_, timeout=10)
                assert (receipt["status"], receipt["gasUsed"], receipt["from"]) == (1, 21_000, sender.address)
                sent = w3.eth.get_transaction(hash_)
                assert (sent["type"], sent["value"], sent["to"]) == (kind, value, dave)
                spent = receipt["gasUsed"] * receipt["effectiveGasPrice"] + value
                assert w3.eth.get_balance(sender.address) == 10_000 * COIN - spent
            assert w3.eth.get_balance(dave) == 4 * COIN
            assert w3.eth.get_balance(dave, 0) == 0
            whole = w3.eth.get_block(1, full_transactions=True)
            assert {item["hash"] for item in whole["transactions"]} == set(hashes)
            assert len(w3.eth.get_block_receipts(1)) == 2
            assert w3.eth.get_transaction_by_block(1, 0)["hash"] in hashes
            assert len(w3.eth.fee_history(2, "latest", [10, 90])["baseFeePerGas"]) == 3
            with pytest.raises(Web3RPCError, match="nonce too low"):
                request = {
                    "to": dave, "value": 1, "nonce": 0, "chainId": CHAIN_ID, "gasPrice": 10**10, "gas": 21_000,
                }  # fmt: skip
                w3.eth.send_raw_transaction(alice.sign_transaction(request).raw_transaction)
            with w3.batch_requests() as batch:
                for key in (ALICE, BOB, CAROL, DAVE):
                    batch.add(w3.eth.get_balance(Web3.to_checksum_address(hexed(key.address))))
                batch.add(w3.eth.get_block(1))
                answers = batch.execute()
            assert answers[2:4] == [10_000 * COIN, 4 * COIN]
            assert answers[4]["hash"] == whole["hash"]

        await off(check)


async def test_a_system_contract_is_used_like_any_contract(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        w3 = web3_of(it)
        staking, carol = staking_of(w3), account_of(CAROL)
        blocks = await off(w3.eth.filter, "latest")
        told = await off(lambda: staking.events.Staked.create_filter(from_block="latest"))

        def stake() -> Any:
            assert w3.eth.get_code(staking.address) == b"\xfe"
            request = staking.functions.stake(*stake_arguments(node, CAROL)).build_transaction(
                {"from": carol.address, "value": 2_000 * COIN, "nonce": 0}
            )
            return w3.eth.send_raw_transaction(carol.sign_transaction(request).raw_transaction)

        hash_ = await off(stake)
        block_hash = await mint(it, node)

        def check() -> None:
            receipt = w3.eth.wait_for_transaction_receipt(hash_, timeout=10)
            assert (receipt["status"], receipt["to"]) == (1, staking.address)
            [event] = staking.events.Staked().process_receipt(receipt)
            assert event["args"]["validator"] == carol.address
            assert event["args"]["total"] == 2_000 * COIN
            assert [log["args"] for log in staking.events.Staked().get_logs(from_block=0)] == [event["args"]]
            assert [log["args"] for log in told.get_new_entries()] == [event["args"]]
            assert blocks.get_new_entries() == [block_hash]
            amount, vote_key, _ = staking.functions.stakeOf(carol.address).call()
            assert (amount, vote_key) == (2_000 * COIN, CAROL.vote_key)
            assert staking.functions.stakeOf(carol.address).call(block_identifier=0)[0] == 0
            assert staking.functions.minimumStake().call() == node.runtime.chain.stake_min
            with pytest.raises(ContractLogicError, match="stake_insufficient"):
                staking.functions.unstake(5_000 * COIN).call({"from": carol.address})
            with pytest.raises(ContractLogicError, match="stake_insufficient"):
                staking.functions.unstake(5_000 * COIN).build_transaction({"from": carol.address, "nonce": 1})

        await off(check)


async def test_heads_and_logs_over_a_websocket(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        ready = trio.Event()
        token = trio.lowlevel.current_trio_token()

        async def follow() -> list[int]:
            heights = []
            async with AsyncWeb3(WebSocketProvider(it.websocket_url)) as w3:
                assert await w3.eth.chain_id == CHAIN_ID
                await w3.eth.subscribe("newHeads")
                token.run_sync_soon(ready.set)
                async for message in w3.socket.process_subscriptions():
                    heights.append(message["result"]["number"])
                    if len(heights) == 3:
                        break
            return heights

        heights: list[int] = []

        async def run() -> None:
            heights.extend(await off(lambda: asyncio.run(asyncio.wait_for(follow(), 30))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await ready.wait()
            await mint(it, node, 3)
        assert heights == [1, 2, 3]
