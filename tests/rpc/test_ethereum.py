"""The Ethereum namespace of a real gateway process, as wallets and client libraries use it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from web3._utils.error_formatters_utils import raise_contract_logic_error_on_revert
from web3.exceptions import ContractLogicError

from rpc.backend.store_view import describe
from rpc.client import ClientError
from rpc.ethereum import render
from rpc.ethereum.contracts import VIEWS, abi_json
from rpc.ethereum.logs import bloom_of
from rpc.ethereum.params import BLOCK, FILTER, SYNC_WAIT, SYNC_WAIT_MS
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.gateway.process import GatewayOptions
from rpc.methods.log_filter import LogFilter
from rpc.methods.parameters import parameters_of
from rpc.methods.poll_filters import FILTERS_PER_CALLER_MAX, LIFETIME_S, PollFilters
from rpc.protocol.errors import RpcError
from state.primitives.abi import AbiValue, Function, encode_values
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.receipts import Event
from state.primitives.transactions import decode_transaction, sign_transaction
from state.transition.runtime import Runtime
from state.transition.staking import STAKE_KIND, STAKED, STAKING_ADDRESS, UNBONDED, stake_payload
from state.transition.transfer import TRANSFER_GAS
from state.view import EMPTY, Overlay
from tasks.ledger.events import EVENTS
from tasks.ledger.parameters import TaskParameters
from tests.ethereum import rlp, sign_dynamic, sign_legacy
from tests.fuzz.mutate import mutate
from tests.rpc.gateway.test_websocket_server import Socket
from tests.rpc.harness import (
    ALICE,
    BOB,
    CAROL,
    CHAIN_ID,
    COIN,
    DAVE,
    FEE,
    Node,
    gateway,
    genesis,
    hexed,
    mint,
    served,
    transfer,
)
from tests.rpc.validate import validate

COMPONENTS = DOCUMENT["components"]["schemas"]
ETHEREUM = {
    name for name, method in METHOD_TABLE.items() if method.group == "ethereum" and not method.needs_session
}
NOWHERE = "0x" + "00" * 32
EMPTY_LIST_ROOT = hexed(keccak(rlp(b"")))
UNSTAKE = Function("unstake(uint256 amount)")
STAKE_OF = Function("stakeOf(address validator)")
STAKE = Function("stake(bytes32 voteKey, bytes possession, bytes32 vrfKey, bytes vrfPossession)")


def who(key: SecretKey) -> str:
    return hexed(key.address)


def number(text: str) -> int:
    return int(text, 16)


def stake_data(node: Node, key: SecretKey) -> bytes:
    _, *arguments = stake_payload(0, key, genesis_hash=node.runtime.genesis_hash, address=key.address)
    values = [item for item in arguments if isinstance(item, bytes)]
    return STAKE.encode(*values)


def dynamic(key: SecretKey, nonce: int, to: bytes, value: int = 0, data: bytes = b"", **more: Any) -> bytes:
    options = {"fee": FEE, "chain_id": CHAIN_ID} | more
    return sign_dynamic(key, nonce=nonce, to=to, value=value, data=data, **options)


def legacy(key: SecretKey, nonce: int, to: bytes, value: int = 0, data: bytes = b"", **more: Any) -> bytes:
    options = {"price": FEE, "chain_id": CHAIN_ID} | more
    return sign_legacy(key, nonce=nonce, to=to, value=value, data=data, **options)


async def test_every_method_answers_as_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        call = it.checked_call
        # Who and where
        assert await call("eth_chainId") == hex(CHAIN_ID)
        assert await call("net_version") == str(CHAIN_ID)
        assert await call("net_listening") is True
        assert (await call("web3_clientVersion")).startswith("dekube/test/linux-")
        assert await call("web3_sha3", "0x") == hexed(keccak(b""))
        assert await call("eth_accounts") == []
        assert await call("net_peerCount") == "0x1"
        assert set(await call("rpc_modules")) == {name.replace(".", "_").split("_")[0] for name in METHOD_TABLE}
        assert await call("eth_syncing") is False
        assert await call("eth_blockNumber") == "0x0"
        rules = (await call("eth_config"))["current"]
        assert rules["systemContracts"]["STAKING_ADDRESS"] == hexed(STAKING_ADDRESS)
        genesis = await call("eth_getBlockByNumber", "latest", True)
        assert (genesis["number"], genesis["hash"]) == ("0x0", hexed(node.runtime.genesis_hash))
        assert await call("eth_getBlockByHash", genesis["hash"], False) == genesis
        assert await call("eth_getBlockReceipts", "0x0") == []
        for name, block in (("Number", "0x0"), ("Hash", genesis["hash"])):
            assert (await call(f"eth_getHeaderBy{name}", block)).items() <= genesis.items()
        assert (genesis["transactionsRoot"], genesis["receiptsRoot"]) == (EMPTY_LIST_ROOT, EMPTY_LIST_ROOT)

        # Transactions of every form
        price, tip = await call("eth_gasPrice"), await call("eth_maxPriorityFeePerGas")
        assert number(price) > node.view.head().base_fee_next
        assert tip == "0x0"
        estimate = await call("eth_estimateGas", {"from": who(ALICE), "to": who(DAVE), "value": "0x5"})
        assert estimate == hex(TRANSFER_GAS)
        raws = [
            dynamic(ALICE, 0, DAVE.address, 5 * COIN, tip=7),
            legacy(BOB, 0, DAVE.address, 3, b"note"),
            dynamic(BOB, 1, STAKING_ADDRESS, 2_000 * COIN, stake_data(node, BOB), gas=600_000),
            transfer(CAROL, 0, DAVE.address, 9),
            dynamic(ALICE, 1, STAKING_ADDRESS, 0, UNSTAKE.encode(1), gas=100_000),
        ]
        hashes = [await call("eth_sendRawTransaction", hexed(raw)) for raw in raws]
        assert hashes == [hexed(keccak(raw)) for raw in raws]
        assert await call("eth_getTransactionCount", who(BOB), "pending") == "0x2"
        assert await call("eth_getTransactionCount", who(BOB), "latest") == "0x0"
        waiting = await call("eth_getTransactionByHash", hashes[0])
        assert {waiting[name] for name in ("blockHash", "blockNumber", "transactionIndex")} == {None}
        assert await call("eth_getTransactionReceipt", hashes[0]) is None
        assert await call("txpool_status") == {"pending": "0x5", "queued": "0x0"}
        pool = await call("txpool_content")
        assert pool["pending"][who(ALICE)]["0"] == waiting
        assert {sender: sorted(items) for sender, items in pool["pending"].items()} == {
            who(ALICE): ["0", "1"], who(BOB): ["0", "1"], who(CAROL): ["0"]
        }  # fmt: skip
        assert pool["queued"] == {}
        assert (await call("txpool_contentFrom", who(ALICE)))["pending"] == pool["pending"][who(ALICE)]
        lines = await call("txpool_inspect")
        assert lines["pending"][who(BOB)]["0"] == f"{who(DAVE)}: 3 wei + 21000 gas × {FEE} wei"
        pending_filter = await call("eth_newPendingTransactionFilter", False)
        error = await it.error("eth_newPendingTransactionFilter", True)
        assert (error["code"], "whole transactions are not told" in error["message"]) == (-32602, True)
        assert await call("eth_getFilterChanges", pending_filter) == []
        gapped = hexed(dynamic(CAROL, 5, DAVE.address, 1))
        came = [await call("eth_sendRawTransaction", gapped)]
        assert await call("eth_getFilterChanges", pending_filter) == came
        assert await call("eth_getFilterChanges", pending_filter) == []
        assert list((await call("txpool_content"))["queued"][who(CAROL)]) == ["5"]
        assert list((await call("txpool_contentFrom", who(CAROL)))["queued"]) == ["5"]
        assert await call("txpool_status") == {"pending": "0x5", "queued": "0x1"}
        assert (await it.error("eth_getFilterLogs", pending_filter))["code"] == -32000
        logs_filter = await call("eth_newFilter", {"address": hexed(STAKING_ADDRESS)})
        block_filter = await call("eth_newBlockFilter")
        await mint(it, node)

        # The block
        block = await call("eth_getBlockByNumber", "latest", True)
        assert await call("eth_getBlockByHash", block["hash"], True) == block
        for tag in ("safe", "finalized", "pending", "0x1"):
            assert await call("eth_getBlockByNumber", tag, True) == block
        shown = {item["hash"]: item for item in block["transactions"]}
        assert set(shown) == set(hashes)
        assert (await call("eth_getBlockByNumber", "0x1", False))["transactions"] == list(shown)
        assert [shown[hash_]["type"] for hash_ in hashes] == ["0x2", "0x0", "0x2", "0x0", "0x2"]
        native = shown[hashes[3]]
        assert (native["to"], native["value"], native["input"]) == (who(DAVE), "0x9", "0x")
        assert (native["from"], native["v"], native["r"], native["s"]) == (who(CAROL), "0x0", "0x0", "0x0")
        assert block["transactionsRoot"] not in (NOWHERE, EMPTY_LIST_ROOT)
        assert (block["parentHash"], block["gasLimit"]) == (genesis["hash"], hex(30_000_000))
        seat = node.voting.leader(1)
        assert block["miner"] == hexed(node.voting.seats[seat].address)
        for name, at in (("Number", "0x1"), ("Hash", block["hash"])):
            head = await call(f"eth_getHeaderBy{name}", at)
            assert head.items() <= block.items()
            assert head.keys() >= {"hash", "logsBloom", "gasUsed"}
            assert not head.keys() & {"transactions", "uncles"}
        assert await call("eth_getHeaderByNumber", "0x9") is None
        assert await call("eth_getBlockTransactionCountByNumber", "0x1") == "0x5"
        assert await call("eth_getBlockTransactionCountByHash", block["hash"]) == "0x5"
        assert await call("eth_getUncleCountByBlockNumber", "0x1") == "0x0"
        assert await call("eth_getUncleCountByBlockHash", block["hash"]) == "0x0"
        assert await call("eth_getUncleByBlockNumberAndIndex", "0x1", "0x0") is None
        assert await call("eth_getUncleByBlockHashAndIndex", block["hash"], "0x0") is None
        for name, place in (("Number", "0x1"), ("Hash", block["hash"])):
            found = await call(f"eth_getTransactionByBlock{name}AndIndex", place, "0x2")
            assert found == block["transactions"][2]
            assert await call(f"eth_getTransactionByBlock{name}AndIndex", place, "0x9") is None

        # Receipts: gas times price and value are what left the account
        receipts = {hash_: await call("eth_getTransactionReceipt", hash_) for hash_ in hashes}
        assert await call("eth_getBlockReceipts", "latest") == [receipts[hash_] for hash_ in shown]
        assert [receipts[hash_]["status"] for hash_ in hashes] == ["0x1"] * 4 + ["0x0"]
        assert sum(number(r["gasUsed"]) for r in receipts.values()) == number(block["gasUsed"])
        spent = {who(key): 0 for key in (ALICE, BOB, CAROL)}
        for hash_, receipt in receipts.items():
            assert shown[hash_] == await call("eth_getTransactionByHash", hash_)
            assert shown[hash_]["from"] == receipt["from"]
            assert shown[hash_]["to"] == receipt["to"]
            spent[receipt["from"]] += number(receipt["gasUsed"]) * number(receipt["effectiveGasPrice"])
            spent[receipt["from"]] += number(shown[hash_]["value"])
        for address, amount in spent.items():
            assert number(await call("eth_getBalance", address, "latest")) == 10_000 * COIN - amount
            assert number(await call("eth_getBalance", address, "0x0")) == 10_000 * COIN
            assert (
                number(await call("eth_getBalance", address, {"blockHash": block["hash"]}))
                == 10_000 * COIN - amount
            )
        assert await call("eth_getBalance", who(DAVE)) == hex(5 * COIN + 12)

        # Logs
        logs = await call("eth_getLogs", {"fromBlock": "0x0", "address": who(DAVE)})
        assert logs == []
        logs = await call(
            "eth_getLogs", {"fromBlock": "0x1", "toBlock": "latest", "address": hexed(STAKING_ADDRESS)}
        )
        assert logs == receipts[hashes[2]]["logs"] == await call("eth_getLogs", {"blockHash": block["hash"]})
        assert {log["blockTimestamp"] for log in logs} == {block["timestamp"]}
        assert logs == await call("eth_getFilterChanges", logs_filter)
        assert await call("eth_getFilterChanges", logs_filter) == []
        assert await call("eth_getFilterLogs", logs_filter) == logs
        assert await call("eth_getFilterChanges", block_filter) == [block["hash"]]
        assert await call("eth_uninstallFilter", logs_filter) is True
        assert await call("eth_uninstallFilter", logs_filter) is False

        # Calls
        assert await call("eth_getCode", hexed(STAKING_ADDRESS), "latest") == "0xfe"
        assert await call("eth_getCode", who(BOB), "latest") == "0x"
        assert await call("eth_getStorageAt", hexed(STAKING_ADDRESS), "0x0", "latest") == NOWHERE
        asked = {"to": hexed(STAKING_ADDRESS), "data": hexed(STAKE_OF.encode(BOB.address))}
        answer = bytes.fromhex((await call("eth_call", asked, "latest"))[2:])
        assert int.from_bytes(answer[:32], "big") == 2_000 * COIN
        before = bytes.fromhex((await call("eth_call", asked, "0x0"))[2:])
        assert before == bytes(96)
        assert await call("eth_call", {"to": who(BOB), "data": "0x12345678"}, "latest") == "0x"
        weight = await call(
            "eth_estimateGas",
            {"from": who(BOB), "to": hexed(STAKING_ADDRESS), "input": hexed(UNSTAKE.encode(500 * COIN))},
            "latest",
        )
        assert weight == hex(60_000)

        published = (await call("dekube_getContracts"))["contracts"]
        assert [item["name"] for item in published] == ["registry", "tasks", "billing", "staking"]
        assert published[3]["abi"] == abi_json(STAKING_ADDRESS, (), EVENTS)

        # Fees
        await mint(it, node, 2)
        empty = await call("eth_getBlockByNumber", "latest", True)
        assert (empty["transactionsRoot"], empty["receiptsRoot"]) == (EMPTY_LIST_ROOT, EMPTY_LIST_ROOT)
        history = await call("eth_feeHistory", "0xa", "latest", [20.0, 50])
        assert history["oldestBlock"] == "0x0"
        assert (len(history["baseFeePerGas"]), len(history["gasUsedRatio"]), len(history["reward"])) == (5, 4, 4)
        assert history["reward"][2] == ["0x0", "0x0"]
        short = await call("eth_feeHistory", 2, "0x2", None)
        assert "reward" not in short
        assert "reward" not in await call("eth_feeHistory", "0x2", "latest", [])
        nothing = {"oldestBlock": "0x0", "baseFeePerGas": [], "gasUsedRatio": []}
        assert await call("eth_feeHistory", "0x0", "latest", [50]) == nothing
        assert short["baseFeePerGas"] == history["baseFeePerGas"][1:4]

        # Send and wait in one
        answers: list[Any] = []
        taken, submit = trio.Event(), node.submit

        def take(raw: bytes, sender: bytes) -> bytes:
            hash_ = submit(raw, sender)
            taken.set()
            return hash_

        monkeypatch.setattr(node, "submit", take)

        async def send() -> None:
            raw = hexed(dynamic(CAROL, 1, DAVE.address, 1))
            answers.append(await call("eth_sendRawTransactionSync", raw))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await taken.wait()
            await mint(it, node)
        assert answers[0]["status"] == "0x1"
        assert ETHEREUM - it.checked == set()
        late = hexed(dynamic(CAROL, 2, DAVE.address, 1))
        error = await it.error("eth_sendRawTransactionSync", late, 1)
        assert (error["code"], error["data"]) == (4, hexed(keccak(bytes.fromhex(late[2:]))))
        gap = hexed(dynamic(CAROL, 4, DAVE.address, 1))
        error = await it.error("eth_sendRawTransactionSync", gap)  # at once: it would wait for nothing
        assert (error["code"], error["data"]) == (5, hexed(keccak(bytes.fromhex(gap[2:]))))


async def test_a_client_can_make_the_signed_bytes_of_what_it_is_shown(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        to = DAVE.address
        raws = dynamic(ALICE, 0, to, 5, b"n", tip=3), legacy(BOB, 0, to, 3)
        for raw in raws:
            await it.call("eth_sendRawTransaction", hexed(raw))
        await mint(it, node)
        one, two = [await it.call("eth_getTransactionByHash", hexed(keccak(raw))) for raw in raws]

        def fields(shown: Any, *names: str) -> list[Any]:
            return [
                bytes.fromhex(shown[name][2:]) if name in ("to", "input") else number(shown[name])
                for name in names
            ]

        first = fields(
            one, "chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "to", "value", "input"
        )
        assert b"\2" + rlp([*first, [], *fields(one, "yParity", "r", "s")]) == raws[0]
        assert rlp(fields(two, "nonce", "gasPrice", "gas", "to", "value", "input", "v", "r", "s")) == raws[1]


async def test_a_native_transaction_is_shown_as_the_legacy_one_of_the_same_meaning(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        stakes = stake_payload(2_000 * COIN, BOB, genesis_hash=node.runtime.genesis_hash, address=BOB.address)
        native = {"chain_id": CHAIN_ID, "gas_limit": 600_000, "max_fee_per_gas": FEE}
        raw = sign_transaction(BOB, nonce=0, kind=STAKE_KIND, payload=stakes, **native)
        hash_ = await it.call("eth_sendRawTransaction", hexed(raw))
        waiting = await it.checked_call("eth_getTransactionByHash", hash_)
        await mint(it, node)
        shown = await it.checked_call("eth_getTransactionByHash", hash_)
        receipt = await it.checked_call("eth_getTransactionReceipt", hash_)
        for found in (waiting, shown):
            assert [found[name] for name in ("type", "v", "r", "s")] == ["0x0"] * 4
            assert (found["from"], found["to"]) == (who(BOB), hexed(STAKING_ADDRESS))
            assert (found["value"], found["input"]) == (hex(2_000 * COIN), hexed(stake_data(node, BOB)))
            assert not found.keys() & {"yParity", "maxFeePerGas", "maxPriorityFeePerGas", "accessList"}
        assert (receipt["type"], receipt["to"], receipt["status"]) == ("0x0", hexed(STAKING_ADDRESS), "0x1")
        own = (await it.call("dekube_getTransaction", hash_))["transaction"]
        assert (own["kind"], own["payload"][0]) == (STAKE_KIND, str(2_000 * COIN))


@pytest.mark.parametrize(
    ("kind", "payload", "to"),
    [
        (0xFFFF, [1], "0x" + "00" * 18 + "0700"),  # of a later version
        (STAKE_KIND, ["later"], hexed(STAKING_ADDRESS)),
    ],
)
def test_what_this_version_cannot_read_is_no_creation_of_a_contract(kind: int, payload: Any, to: str) -> None:
    raw = sign_transaction(
        ALICE, chain_id=CHAIN_ID, nonce=0, kind=kind, payload=payload, gas_limit=1, max_fee_per_gas=1
    )
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    runtime = Runtime(genesis())
    what = describe(
        runtime, address=b"", roles=(), version="", parameters={"chain": runtime.chain, "tasks": TaskParameters()}
    )
    shown = render.transaction(transaction, what, None)
    assert (shown["type"], shown["to"], shown["value"], shown["input"]) == ("0x0", to, "0x0", hexed(raw))
    validate(shown, COMPONENTS["EthTransaction"], COMPONENTS)


async def test_a_block_is_named_in_every_form_of_eip_1898(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        await mint(it, node, 2)
        newest = await it.call("eth_getBlockByNumber", "0x2", False)
        genesis = await it.call("eth_getBlockByNumber", "0x0", False)
        good: list[tuple[Any, Any]] = [
            ({"blockHash": newest["hash"]}, newest),
            ({"blockHash": newest["hash"], "requireCanonical": True}, newest),
            ({"blockHash": newest["hash"], "blockNumber": None}, newest),
            *(({"blockNumber": tag}, newest) for tag in ("latest", "pending", "safe", "finalized", "0x2")),
            ({"blockNumber": "0x2", "requireCanonical": False}, newest),
            ({"blockNumber": "earliest"}, genesis),
        ]
        for block, expected in good:
            validate(block, BLOCK.schema, COMPONENTS)
            assert await it.call("eth_getBlockByNumber", block, False) == expected
            assert await it.call("eth_getBlockReceipts", block) == []
            await it.call("eth_getBalance", who(ALICE), block)
        bad: list[tuple[Any, str]] = [
            ({}, "an object with blockHash or blockNumber"),
            ({"blockNumber": "newest"}, "a quantity expected"),
            ({"blockNumber": 2}, "a quantity expected"),
            ({"blockNumber": newest["hash"]}, "a quantity"),
            ({"blockHash": newest["hash"], "blockNumber": "0x2"}, "cannot specify both"),
            ({"blockHash": newest["hash"], "requireCanonical": "yes"}, "requireCanonical"),
            ({"blockNumber": "latest", "block": 1}, "a block expected"),
        ]
        for block, text in bad:
            error = await it.error("eth_getBlockReceipts", block)
            assert (error["code"], text in error["message"]) == (-32602, True), error


REFUSED: list[tuple[Callable[[], bytes], int, str]] = [
    # what is sent, code, what the message contains
    (lambda: legacy(ALICE, 0, DAVE.address, 1, chain_id=8), -32000, "invalid chain id"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 10_000 * COIN), -32000, "insufficient funds for gas * price + value"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 2**255), -32000, "insufficient funds for gas * price + value"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 1, gas=20_999), -32000, "intrinsic gas too low"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 1, gas=10**12), -32000, "exceeds block gas limit"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 1, fee=1), -32000, "max fee per gas less than block base fee"),
    (lambda: dynamic(ALICE, 0, b"", 1), -32000, "contract creation is not supported"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 1, access=[[DAVE.address, []]]), -32000, "access lists"),
    (lambda: b"\1" + dynamic(ALICE, 0, DAVE.address, 1)[1:], -32000, "transaction type not supported"),
    (lambda: dynamic(ALICE, 0, DAVE.address, 1) + b"\0", -32000, ""),
    (lambda: dynamic(ALICE, 0, STAKING_ADDRESS, 1), 3, "execution reverted: unknown function"),
    (lambda: dynamic(ALICE, 0, STAKING_ADDRESS, 0, UNSTAKE.encode(1)[:-1], gas=60_000), 3, "unstake: call data"),
]  # fmt: skip


async def test_refusals_have_the_words_that_clients_know_and_change_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for make, code, text in REFUSED:
            error = await it.error("eth_sendRawTransaction", hexed(make()))
            assert (error["code"], text in error["message"]) == (code, True), error
            assert node.pool.pending_count == node.pool.queued_count == 0
        unprotected = rlp([0, FEE, 21_000, DAVE.address, 1, b"", 27, 1, 1])
        error = await it.error("eth_sendRawTransaction", hexed(unprotected))
        assert "only replay-protected (EIP-155) transactions allowed over RPC" in error["message"]
        tip = dynamic(ALICE, 0, DAVE.address, 1, tip=FEE + 1)
        assert (await it.error("eth_sendRawTransaction", hexed(tip)))["code"] == -32000

        first = dynamic(ALICE, 0, DAVE.address, 1)
        await it.call("eth_sendRawTransaction", hexed(first))
        assert "already known" in (await it.error("eth_sendRawTransaction", hexed(first)))["message"]
        cheap = dynamic(ALICE, 0, DAVE.address, 2, fee=FEE + 1)
        message = (await it.error("eth_sendRawTransaction", hexed(cheap)))["message"]
        assert "replacement transaction underpriced" in message
        await mint(it, node)
        late = await it.error("eth_sendRawTransaction", hexed(dynamic(ALICE, 0, DAVE.address, 3)))
        assert (late["code"], "nonce too low" in late["message"]) == (-32000, True)
        # A gap is waited for.
        await it.call("eth_sendRawTransaction", hexed(dynamic(ALICE, 2, DAVE.address, 1)))
        assert await it.call("eth_getTransactionCount", who(ALICE), "pending") == "0x1"

        unknown = await it.error("eth_sendTransaction", {})
        assert unknown["code"] == -32601
        assert "the method eth_sendTransaction does not exist/is not available" in unknown["message"]


async def test_changed_transactions_are_refused_with_a_code_or_are_somebody_elses(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    known = [
        dynamic(ALICE, 0, DAVE.address, 5, b"note"),
        legacy(BOB, 0, DAVE.address, 3),
        dynamic(BOB, 0, STAKING_ADDRESS, 2_000 * COIN, stake_data(node, BOB), gas=600_000),
        transfer(CAROL, 0, DAVE.address, 9),
    ]
    random = Random("wallets")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        raws = {mutate(random, random.choice(known), known)[:4096] for _ in range(600)} - set(known)
        requests = [
            {"jsonrpc": "2.0", "id": number, "method": "eth_sendRawTransaction", "params": [hexed(raw)]}
            for number, raw in enumerate(raws)
        ]
        for answer in await it.raw(requests):
            assert answer["error"]["code"] in (-32000, 3), answer
        assert node.pool.pending_count == node.pool.queued_count == 0
        for key in (ALICE, BOB, CAROL):
            assert await it.call("eth_getTransactionCount", who(key), "pending") == "0x0"


async def test_who_asks_for_many_blocks_pays_for_many(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=1, burst=23))
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        await mint(it, node, 120)
        for _ in range(2):  # 21 units each, of which 11 for the blocks
            assert await it.call("eth_getLogs", {"fromBlock": "0x1"}) == []
        error = await it.error("eth_getLogs", {"fromBlock": "0x78"})
        assert (error["code"], error["data"]["reason"]) == (-32005, "limit_exceeded")


async def test_a_revert_carries_its_reason_as_solidity_would(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    staking = hexed(STAKING_ADDRESS)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for request, reason in (
            ({"to": staking, "data": "0x01020304"}, "unknown function"),
            ({"to": staking}, "unknown function"),
            ({"to": staking, "data": hexed(STAKE_OF.selector + b"\1" * 32)}, "stakeOf: call data"),
            ({"to": staking, "data": hexed(STAKE_OF.encode(ALICE.address)), "value": "0x1"}, "takes no value"),
            ({"to": staking, "data": hexed(UNSTAKE.encode(1))}, "stake_insufficient"),
            ({"to": staking, "data": hexed(UNSTAKE.encode(1)), "value": "0x1"}, "unstake takes no value"),
            ({"to": "0x" + "0" * 37 + "702", "data": hexed(Function("taskOf(bytes32 task)").encode(bytes(32)))},
             "task_unknown"),
            ({"to": staking, "value": "0x1", "data": hexed(stake_data(node, ALICE))}, "stake_too_small"),
        ):  # fmt: skip
            error = await it.error("eth_call", {"from": who(ALICE)} | request, "latest")
            assert error["code"] == 3, error
            assert reason in error["message"]
            assert error["message"].startswith("execution reverted: ")
            text = error["message"].removeprefix("execution reverted: ")
            (parameter,) = Function("f(string reason)").parameters
            assert error["data"] == "0x08c379a0" + encode_values((parameter,), (text,)).hex()
        error = await it.error(
            "eth_estimateGas", {"from": who(ALICE), "to": staking, "data": hexed(UNSTAKE.encode(1))}
        )
        assert (error["code"], "stake_insufficient" in error["message"]) == (3, True)
        error = await it.error("eth_estimateGas", {"from": who(DAVE), "to": who(ALICE), "value": "0x1"})
        assert (error["code"], "insufficient funds" in error["message"]) == (-32000, True)
        for method in ("eth_call", "eth_estimateGas"):
            assert (await it.error(method, {"data": "0x60006000fd"}))["code"] == -32000
            for nobody in ({}, {"from": "0x" + "0" * 40}):
                write = {"to": staking, "data": hexed(UNSTAKE.encode(1))} | nobody
                error = await it.error(method, write)
                assert (error["code"], error["message"]) == (
                    3,
                    "execution reverted: from: who writes must be named",
                )
                # what wallets try on any contract, without saying who they are
                for to in (staking, "0x" + "0" * 37 + "7ff"):
                    for probe in ("0x95d89b41", "0x01ffc9a7" + "80ac58cd".ljust(64, "0"), "0xdeadbeef", "0x"):
                        error = await it.error(method, {"to": to, "data": probe} | nobody)
                        assert (error["code"], error["message"]) == (3, "execution reverted: unknown function")
                error = await it.error(method, write | {"data": hexed(UNSTAKE.encode(1)[:-1])})
                assert error["message"].startswith("execution reverted: unstake: call data"), error
            # who has no coins learns why it would fail, unless it offers a price for gas that it cannot pay
            poor = {"from": who(DAVE), "to": staking, "data": hexed(UNSTAKE.encode(1))}
            error = await it.error(method, poor)
            assert (error["code"], error["message"]) == (3, "execution reverted: stake_insufficient")
            for price in (FEE, 2**255):
                error = await it.error(method, poor | {"maxFeePerGas": hex(price)})
                assert (error["code"], "insufficient funds for gas" in error["message"]) == (-32000, True)
            error = await it.error(method, poor | {"gasPrice": "0x1"})
            assert (error["code"], "less than block base fee" in error["message"]) == (-32000, True)
            stake = {
                "from": who(DAVE),
                "to": staking,
                "value": hex(5_000 * COIN),
                "data": hexed(stake_data(node, DAVE)),
            }
            error = await it.error(method, stake)
            assert (error["code"], "insufficient funds" in error["message"]) == (-32000, True)
        # A view is estimated, or reverts with its own reason, as in a call.
        for name, answer in (
            ("stakeOf", hex(TRANSFER_GAS)),
            ("taskOf", "task_unknown"),
            ("nodeOf", "node_unknown"),
        ):
            view = next(item for item in VIEWS if item.function.name == name)
            data = hexed(view.function.encode(*[bytes(32 if name == "taskOf" else 20)]))
            request = {"from": who(ALICE), "to": hexed(view.contract), "data": data}
            for block in ("latest", "0x0"):
                if name == "stakeOf":
                    assert await it.call("eth_estimateGas", request, block) == answer
                    continue
                error = await it.error("eth_estimateGas", request, block)
                assert error["message"] == f"execution reverted: {answer}"
                assert error == await it.error("eth_call", request, block)
        request = {"to": staking, "data": hexed(STAKE_OF.encode(ALICE.address)), "gas": "0x5207"}
        assert (await it.error("eth_estimateGas", request))["message"].startswith("intrinsic gas too low")


async def test_a_view_that_reverts_says_nothing_of_the_insides(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    view = next(item for item in VIEWS if item.function.name == "budgetOf")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for junk in (b"", b"\xa0", b"\xf6\xf6", b"\xff", b"junk"):
            request = {"to": hexed(view.contract), "data": hexed(view.function.encode(junk))}
            for method in ("eth_call", "eth_estimateGas"):
                error = await it.error(method, request)
                said = "execution reverted: budgetOf: an argument is not canonical CBOR"
                assert (error["code"], error["message"]) == (3, said)


async def test_what_is_not_there_is_null_and_what_is_malformed_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        await mint(it, node, 3)
        absent: tuple[tuple[Any, ...], ...] = (
            ("eth_getBlockByNumber", "0x99", False),
            ("eth_getBlockByHash", NOWHERE, False),
            ("eth_getTransactionByHash", NOWHERE),
            ("eth_getTransactionReceipt", NOWHERE),
            ("eth_getBlockReceipts", "0x99"),
            ("eth_getBlockTransactionCountByNumber", "0x99"),
            ("eth_getTransactionByBlockNumberAndIndex", "0x1", "0x0"),
        )
        for name, *params in absent:
            assert await it.call(name, *params) is None
        malformed: tuple[tuple[Any, ...], ...] = (
            ("eth_getBalance", who(ALICE), "0x01"),
            ("eth_getBalance", who(ALICE), "0x"),
            ("eth_getBalance", who(ALICE), 1),
            ("eth_getBalance", who(ALICE), "newest"),
            ("eth_getBalance", who(ALICE), {"blockHash": "0x1"}),
            ("eth_getBalance", "0x12"),
            ("eth_getBalance",),
            ("eth_getBlockByNumber", {"blockHash": NOWHERE + "00"}, False),
            ("eth_getLogs", {"fromBlock": "0x3", "toBlock": "0x1"}),
            ("eth_getLogs", {"toBlock": "0x9"}),
            ("eth_getLogs", {"blockHash": NOWHERE, "fromBlock": "0x1"}),
            ("eth_getLogs", {"topics": [None] * 5}),
            ("eth_estimateGas", {"to": who(ALICE), "value": "0x00"}),
            ("eth_call", {"to": who(ALICE), "data": "0x01", "input": "0x02"}),
            ("eth_feeHistory", "-0x1", "latest", []),
            ("eth_feeHistory", "0x1", "latest", [50, 20]),
            ("eth_sendRawTransaction", "0x0"),
        )
        for name, *params in malformed:
            assert (await it.error(name, *params))["code"] == -32602, (name, params)
        assert (await it.error("eth_getBalance", who(ALICE), "0x99"))["code"] == -32001
        gone = await it.error("eth_getFilterChanges", "0x1")
        assert (gone["code"], gone["message"]) == (-32000, "filter not found")
        answers = await it.raw([{"jsonrpc": "2.0", "id": n, "method": "eth_chainId"} for n in range(50)])
        assert {answer["id"]: answer["result"] for answer in answers} == dict.fromkeys(range(50), hex(CHAIN_ID))


async def test_logs_are_found_by_address_and_topics_in_many_blocks(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    keys = (ALICE, BOB, CAROL)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for key in keys:
            data = stake_data(node, key)
            raw = dynamic(key, 0, STAKING_ADDRESS, 1_500 * COIN, data, gas=600_000)
            await it.call("eth_sendRawTransaction", hexed(raw))
            await mint(it, node, 4)

        def places(logs: Any) -> list[int]:
            return [number(log["blockNumber"]) for log in logs]

        everything = {"fromBlock": "earliest", "toBlock": "latest"}
        by_bob = hexed(bytes(12) + BOB.address)
        by_carol = hexed(bytes(12) + CAROL.address)
        for _ in range(2):  # the second time from the kept blooms
            assert places(await it.call("eth_getLogs", everything)) == [1, 5, 9]
            for topics, found in (
                ([hexed(STAKED.topic)], [1, 5, 9]),
                ([None, by_bob], [5]),
                ([hexed(STAKED.topic), [by_bob, by_carol]], [5, 9]),
                ([[hexed(STAKED.topic), NOWHERE], None], [1, 5, 9]),
                ([by_bob], []),
                ([None, None, None, None], []),
                ([], [1, 5, 9]),
                ([[None, by_bob]], [1, 5, 9]),
            ):
                assert places(await it.call("eth_getLogs", everything | {"topics": topics})) == found, topics
            assert places(await it.call("eth_getLogs", {"fromBlock": "0x2", "toBlock": "0x5"})) == [5]
            some = [hexed(STAKING_ADDRESS), who(DAVE)]
            assert places(await it.call("eth_getLogs", everything | {"address": some})) == [1, 5, 9]
        block = await it.call("eth_getBlockByNumber", "0x5", False)
        assert number(block["logsBloom"]) == bloom_of(
            STAKED(BOB.address, BOB.vote_key, 1_500 * COIN, 1_500 * COIN)
        )


async def test_heads_and_logs_come_over_a_websocket_in_order(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        await mint(it, node, 2)
        socket = await Socket.open(it)
        heads = (await socket.call("eth_subscribe", "newHeads", binary=True))["result"]
        wanted = {"address": hexed(STAKING_ADDRESS), "topics": []}
        logs = (await socket.call("eth_subscribe", "logs", wanted))["result"]
        for key in (ALICE, BOB):
            raw = dynamic(key, 0, STAKING_ADDRESS, 1_500 * COIN, stake_data(node, key), gas=600_000)
            await it.call("eth_sendRawTransaction", hexed(raw))
        await mint(it, node, 3)
        news: dict[str, list[Any]] = {heads: [], logs: []}
        while len(news[heads]) < 3 or len(news[logs]) < 2:
            message = socket.news.pop(0) if socket.news else await socket.receive()
            assert message.keys() == {"jsonrpc", "method", "params"}
            assert message["method"] == "eth_subscription"
            news[message["params"]["subscription"]].append(message["params"]["result"])
        for head, height in zip(news[heads], (3, 4, 5), strict=True):
            validate(head, COMPONENTS["EthHeader"], COMPONENTS)
            block = await it.call("eth_getBlockByNumber", hex(height), False)
            assert {name: block[name] for name in head} == head
        assert news[logs] == await it.call("eth_getLogs", {"fromBlock": "0x3"})
        assert (await socket.call("eth_unsubscribe", logs))["result"] is True
        assert (await socket.call("eth_unsubscribe", logs))["result"] is False
        assert (await it.error("eth_subscribe", "newHeads"))["code"] == -32601
        await socket.close()


async def test_what_a_block_did_itself_is_told_under_the_hash_of_the_block(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", epoch_blocks=4, evidence_epochs=2, unbonding_ms=20_000)
    raws = (
        dynamic(BOB, 0, STAKING_ADDRESS, 2_000 * COIN, stake_data(node, BOB), gas=600_000),
        dynamic(BOB, 1, STAKING_ADDRESS, 0, UNSTAKE.encode(2_000 * COIN), gas=100_000),
    )
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for raw in raws:
            await it.call("eth_sendRawTransaction", hexed(raw))
        await mint(it, node, 25)
        paid = {"fromBlock": "0x1", "topics": [hexed(UNBONDED.topic), hexed(bytes(12) + BOB.address)]}
        [log] = await it.call("eth_getLogs", paid)
        assert number(log["data"]) == 2_000 * COIN
        block = await it.call("eth_getBlockByHash", log["blockHash"], False)
        assert log["transactionHash"] == block["hash"]
        assert number(log["transactionIndex"]) == len(block["transactions"])
        assert number(block["logsBloom"]) & bloom_of(Event(STAKING_ADDRESS, (UNBONDED.topic,), b"")) > 0
        assert await it.call("eth_getTransactionReceipt", log["transactionHash"]) is None


async def test_the_state_of_the_last_blocks_answers_by_number(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for nonce in range(4):
            await it.call("eth_sendRawTransaction", hexed(dynamic(ALICE, nonce, DAVE.address, 1)))
            await mint(it, node)
        for height in range(5):
            assert await it.call("eth_getBalance", who(DAVE), hex(height)) == hex(height)
            assert await it.call("eth_getTransactionCount", who(ALICE), hex(height)) == hex(height)


EVENT = st.builds(
    Event,
    st.binary(min_size=20, max_size=20),
    st.lists(st.sampled_from([bytes([n]) * 32 for n in range(4)]), min_size=1, max_size=4).map(tuple),
    st.just(b""),
)
TOPICS = st.lists(
    st.none() | st.frozensets(st.sampled_from([bytes([n]) * 32 for n in range(4)]), min_size=1), max_size=4
).map(tuple)


@given(st.lists(EVENT, max_size=5), TOPICS, st.booleans())
def test_a_bloom_never_hides_an_event(events: list[Event], topics: Any, by_address: bool) -> None:
    addresses = frozenset(event.address for event in events[:1]) if by_address else frozenset()
    wanted = LogFilter(addresses, topics)
    bloom = bloom_of(*events)
    may = all(any(mask & bloom == mask for mask in some) for some in wanted.masks())
    assert may or not any(map(wanted.matches, events))


def test_a_bloom_is_that_of_ethereum() -> None:
    # An address alone, from the definition: the low 11 bits of the first three pairs of bytes of its hash.
    address = b"\x11" * 20
    hashed = keccak(address)
    expected = 0
    for at in (0, 2, 4):
        expected |= 1 << ((hashed[at] << 8 | hashed[at + 1]) % 2048)
    assert bloom_of(Event(address, (), b"")) == expected


def test_filters_are_bounded_and_forgotten() -> None:
    now = 0.0
    filters = PollFilters(lambda: now, secrets.randbits)
    kept = [filters.add("a", None, first=1, last=None, start=1) for _ in range(FILTERS_PER_CALLER_MAX)]
    with pytest.raises(RpcError) as refused:
        filters.add("a", None, first=1, last=None, start=1)
    assert refused.value.number == -32005
    filters.add("b", None, first=1, last=None, start=1)
    assert filters.remove(kept[0])
    kept[0] = filters.add("a", None, first=1, last=None, start=1)
    now = LIFETIME_S - 1
    filters.get(kept[5])
    now = LIFETIME_S + 1
    assert filters.get(kept[5]).next == 1
    assert len(filters) == 1
    with pytest.raises(RpcError):
        filters.get(kept[6])
    assert not filters.remove(kept[6])
    filters.add("a", None, first=1, last=None, start=1)


def test_views_answer_on_an_empty_state_or_revert() -> None:
    parameters = parameters_of(())
    arguments: dict[str, AbiValue] = {"address": b"a" * 20, "bytes32": b"b" * 32, "bytes": b"", "uint8": 1}
    for view in VIEWS:
        values = [arguments[parameter.type] for parameter in view.function.parameters]
        try:
            answer = view.answer(Overlay(EMPTY), parameters, values)
        except Exception as error:
            assert getattr(error, "code", None) in (
                "node_unknown",
                "task_unknown",
                "escrow_unknown",
                "decode_error",
            )
        else:
            assert len(answer) == 32 * len(view.function.results)


def test_the_abi_names_every_function_and_event_once() -> None:
    names = set()
    for contract in {view.contract for view in VIEWS}:
        document = abi_json(contract, (), EVENTS)
        json.dumps(document)
        for item in document:
            key = (contract, item["type"], item["name"])
            assert key not in names
            names.add(key)
    assert (STAKING_ADDRESS, "function", "stake") in names
    assert (STAKING_ADDRESS, "event", "Staked") in names
    assert len([name for name in names if name[1] == "event"]) == len(EVENTS)


async def test_what_is_estimated_is_what_would_be_taken(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    staking = hexed(STAKING_ADDRESS)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        plain = {"from": who(ALICE), "to": who(BOB), "value": "0x1"}
        call = {
            "from": who(ALICE), "to": staking, "value": hex(1_500 * COIN), "data": hexed(stake_data(node, ALICE)),
        }  # fmt: skip
        enough = {"gas": hex(2**40), "maxFeePerGas": hex(FEE), "maxPriorityFeePerGas": "0x1", "type": "0x2"}
        for request in (plain, call):
            least = await it.call("eth_estimateGas", request)
            for more in (
                enough,  # much gas is only the most that is wanted
                {"gas": least, "gasPrice": hex(FEE), "type": "0x0", "accessList": []},
                {"chainId": hex(node.runtime.genesis.chain_id), "nonce": "0x0", "maxPriorityFeePerGas": "0x5"},
            ):
                assert await it.call("eth_estimateGas", request | more) == least
            for more, code, text in (
                ({"maxFeePerGas": "0x1"}, -32000, "max fee per gas less than block base fee"),
                ({"gasPrice": "0x1"}, -32000, "max fee per gas less than block base fee"),
                ({"maxFeePerGas": hex(FEE), "maxPriorityFeePerGas": hex(FEE + 1)}, -32000,
                 "max priority fee per gas higher than max fee per gas"),
                ({"gas": hex(int(least, 16) - 1)}, -32000, "intrinsic gas too low"),
                ({"accessList": [{"address": who(BOB), "storageKeys": []}]}, -32000, "access lists are not"),
                ({"type": "0x3"}, -32000, "transaction type not supported"),
                ({"authorizationList": []}, -32000, "transaction type not supported: 0x4"),
                ({"maxFeePerBlobGas": "0x1"}, -32000, "transaction type not supported: 0x3"),
                ({"chainId": "0x1"}, -32000, "invalid chain id"),
                ({"gasPrice": hex(FEE), "maxFeePerGas": hex(FEE)}, -32602, "both gasPrice and"),
                ({"value": hex(2**255)}, -32000, "insufficient funds for gas * price + value"),
            ):  # fmt: skip
                error = await it.error("eth_estimateGas", request | more)
                assert (error["code"], text in error["message"]) == (code, True), (more, error)
        # What is lent to a call that offers no price is in no number that is told.
        poor = {"from": who(DAVE), "to": staking, "value": hex(COIN), "data": hexed(stake_data(node, DAVE))}
        error = await it.error("eth_estimateGas", poor)
        [fields] = error["data"]
        assert (fields["balance"], fields["needed"]) == ("0", str(COIN)), error


async def test_of_what_may_revert_nothing_else_looks_like_a_revert(tmp_path: Path) -> None:
    """web3.py takes any object as data of these methods for a revert, whatever code and text say."""
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=1, burst=200))
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        revert = await it.error("eth_call", {"to": hexed(STAKING_ADDRESS), "data": "0x01020304", "from": who(BOB)})
        failures = [
            await it.error(method, *params)
            for method in ("eth_call", "eth_estimateGas")
            for params in (
                [{"from": who(DAVE), "to": who(BOB), "value": "0x1"}],
                [{"data": "0x6000"}],
                [{"to": who(BOB)}, "0x3e8"],
                [{"to": who(BOB)}, "0x" + "de" * 32],
                [{"to": "0x12"}],
                [{"to": who(BOB)}, "latest", {who(BOB): {"balance": "0x1"}}],
                [],
            )
        ]
        many = [
            {"jsonrpc": "2.0", "id": number, "method": "eth_call", "params": [{"to": who(BOB)}]}
            for number in range(200)
        ]
        failures += [answer["error"] for answer in await it.raw(many) if "error" in answer]
        assert failures[-1]["code"] == -32005
        for error in failures:
            [fields] = error["data"]
            assert fields["reason"]
            assert ClientError(error).reason == fields["reason"]
            raise_contract_logic_error_on_revert({"id": 1, "jsonrpc": "2.0", "error": error})
        assert revert["data"].startswith("0x08c379a0")
        with pytest.raises(ContractLogicError, match="unknown function"):
            raise_contract_logic_error_on_revert({"id": 1, "jsonrpc": "2.0", "error": revert})


async def test_a_call_moves_no_more_than_the_sender_has(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        pays = {"to": who(BOB), "value": "0x1"}
        assert await it.call("eth_call", pays) == "0x", "nobody in particular"
        assert await it.call("eth_call", pays | {"from": who(ALICE)}) == "0x"
        assert await it.call("eth_call", {"to": who(BOB), "from": who(DAVE)}, "latest", None, {}) == "0x"
        for sender, value in ((DAVE, "0x1"), (ALICE, hex(2**256 - 1))):
            error = await it.error("eth_call", pays | {"from": who(sender), "value": value})
            assert (error["code"], "insufficient funds" in error["message"]) == (-32000, True)


def test_a_time_that_is_not_allowed_stands_for_the_usual_one() -> None:
    allowed: tuple[tuple[Any, int], ...] = ((1, 1), ("0x3e8", 1_000), (SYNC_WAIT_MS, SYNC_WAIT_MS))
    for asked, found in allowed:
        assert SYNC_WAIT.read(asked) == found
    others: tuple[Any, ...] = (0, -1, 60_000, 10**30, 1.5, True, "1000", "0x", "0x01", [], {}, "0x" + "f" * 70)
    for other in others:
        assert SYNC_WAIT.read(other) == SYNC_WAIT_MS, other


def test_null_among_topics_hides_nothing_that_is_malformed() -> None:
    for topics in ([[None, "0x12"]], [[None, 7]], [[None] * 1_001]):
        with pytest.raises(ValueError):
            FILTER.read({"topics": topics})
