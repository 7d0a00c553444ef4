"""Answers and refusals of the Ethereum namespace to the letter, as clients match them (rpc.md 5 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpc.gateway.method_table import METHOD_TABLE, missing_method_hint
from state.primitives.blocks import decode_header
from state.primitives.keys import SecretKey
from state.primitives.transactions import CALL_KIND, decode_transaction
from state.transition.staking import STAKING_ADDRESS
from tests.ethereum import rlp
from tests.rpc.gateway.test_websocket_server import Socket
from tests.rpc.harness import ALICE, BOB, COIN, DAVE, FEE, Gateway, Node, gateway, hexed, mint, served
from tests.rpc.test_ethereum import UNSTAKE, dynamic, legacy, who

ZEROS = "0x" + "00" * 32
DEAD = "0x" + "00" * 28 + "deadbeef"
NOBODY_YET = "0xc1cadaffffffffffffffffffffffffffffffffff"
SOMEBODY = "0xaa00000000000000000000000000000000000000"

# Questions of the public test vectors whose answers do not depend on the chain.
ANSWERS: list[tuple[str, list[Any], Any]] = [
    ("eth_getBlockByHash", [DEAD, True], None),
    ("eth_getBlockByNumber", ["0x3e8", True], None),
    ("eth_getTransactionByHash", [DEAD], None),
    ("eth_getTransactionByHash", [ZEROS], None),
    ("eth_getTransactionReceipt", [DEAD], None),
    ("eth_getTransactionReceipt", [ZEROS], None),
    ("eth_getBlockReceipts", [DEAD], None),
    ("eth_getBlockReceipts", ["0x3e8"], None),
    ("eth_getBalance", [NOBODY_YET, "latest"], "0x0"),
    ("eth_getTransactionCount", [NOBODY_YET, "latest"], "0x0"),
    ("eth_getCode", [NOBODY_YET, "latest"], "0x"),
    ("eth_getStorageAt", [NOBODY_YET, "0x01" + "00" * 31, "latest"], ZEROS),
    ("eth_syncing", [], False),
    ("eth_estimateGas", [{"from": SOMEBODY, "to": "0x" + "01" + "00" * 19}], "0x5208"),
]
LOG_RANGE = {"address": None, "fromBlock": "0x2", "toBlock": "0x1", "topics": None}
REFUSALS: list[tuple[str, list[Any], int, str]] = [
    # vectors
    ("eth_getLogs", [LOG_RANGE], -32602, "invalid block range params"),
    (
        "eth_getLogs",
        [{"blockHash": DEAD, "fromBlock": "0x3", "toBlock": "0x4"}],
        -32602,
        "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other",
    ),
    ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x38"}], -32602, "beyond current head block"),
    (
        "eth_getStorageAt",
        [SOMEBODY, "0xasdf", "latest"],
        -32602,
        "unable to decode storage key: hex string invalid",
    ),
    (
        "eth_getStorageAt",
        [SOMEBODY, "0x" + "0" * 65, "latest"],
        -32602,
        "unable to decode storage key: hex string too long, want at most 32 bytes",
    ),
    # not there, in the words by which clients tell
    *(
        (name, [], -32601, f"the method {name} does not exist/is not available")
        for name in (
            "eth_sendTransaction", "eth_sign", "eth_signTransaction", "eth_coinbase", "eth_getWork",
            "eth_getProof", "eth_fillTransaction", "eth_createAccessList", "eth_simulateV1", "personal_sign",
            "personal_newAccount", "engine_newPayloadV1", "wallet_addEthereumChain", "debug_traceTransaction",
            "trace_block", "admin_peers", "admin_stop", "eth_nothing", "miner_start",
        )
    ),
    ("eth_subscribe", ["newHeads"], -32601, "does not exist/is not available over HTTP, use a WebSocket"),
    ("eth_subscribe", ["syncing"], -32601, "does not exist/is not available over HTTP, use a WebSocket"),
    ("eth_unsubscribe", [], -32601, "does not exist/is not available over HTTP, use a WebSocket"),
    ("eth_getProof", [SOMEBODY, [], "latest"], -32601, "dekube_getAccountProof"),
    # parameters
    ("eth_getBalance", [], -32602, "missing parameter address"),
    ("eth_getBalance", [SOMEBODY, "latest", 1], -32602, "at most 2 expected"),
    ("eth_getBalance", [SOMEBODY[:-1]], -32602, "an address expected"),
    ("eth_getBalance", [SOMEBODY, "0x0001"], -32602, "without leading zeros"),
    ("eth_getBalance", [SOMEBODY, "0x3e8"], -32001, "height 1000 is not final yet"),
    ("eth_getBalance", [SOMEBODY, {"blockHash": DEAD}], -32001, "header not found"),
    ("eth_getBalance", [SOMEBODY, DEAD], -32001, "header not found"),
    ("eth_getLogs", [{"fromBlock": DEAD}], -32602, "a number in hex or a tag"),
    ("eth_getLogs", [{"blockHash": DEAD}], -32001, "unknown block"),
    # filters
    ("eth_getFilterChanges", ["0x1"], -32000, "filter not found"),
    ("eth_getFilterLogs", ["0x1"], -32000, "filter not found"),
    # calls
    ("eth_call", [{"data": "0x6000"}, "latest"], -32000, "contract creation is not supported"),
    ("eth_estimateGas", [{"data": "0x6000"}], -32000, "contract creation is not supported"),
    (
        "eth_estimateGas",
        [{"from": SOMEBODY, "to": NOBODY_YET, "value": "0x1"}],
        -32000,
        "insufficient funds for gas * price + value",
    ),
    ("eth_call", [{"to": hexed(STAKING_ADDRESS), "data": "0x01020304", "from": SOMEBODY}, "latest"], 3,
     "execution reverted: unknown function"),
]  # fmt: skip

UNPROTECTED = rlp([0, FEE, 21_000, DAVE.address, 1, b"", 27, 1, 1])
HALF = 0x7FFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFF_5D576E73_57A4501D_DFE92F46_681B20A0
BLOB = b"\3" + rlp([1, 0, 0, FEE, 21_000, DAVE.address, 0, b"", [], 0, [], 0, 1, 1])


def high(key: SecretKey) -> bytes:
    """A transfer with the other s of its signature, which other chains took once."""
    raw = decode_transaction(legacy(key, 0, DAVE.address, 1))
    r, s = (int.from_bytes(raw.signature[at : at + 32], "big") for at in (0, 32))
    v = 35 + 2 * raw.chain_id + 1 - raw.signature[64]
    return rlp([0, FEE, 21_000, DAVE.address, 1, b"", v, r, 2 * HALF + 1 - s])


# Refused at the door: code, text, and neither nonce nor pool moves.
UNSENT: list[tuple[str, Callable[[], bytes], int, str]] = [
    ("balance", lambda: dynamic(ALICE, 0, DAVE.address, 10_000 * COIN), -32000,
     "insufficient funds for gas * price + value"),
    ("no account", lambda: dynamic(DAVE, 0, ALICE.address, 1), -32000,
     "insufficient funds for gas * price + value"),
    ("little gas", lambda: dynamic(ALICE, 0, DAVE.address, 1, gas=20_999), -32000, "intrinsic gas too low"),
    ("much gas", lambda: dynamic(ALICE, 0, DAVE.address, 1, gas=30_000_001), -32000, "exceeds block gas limit"),
    ("much gas, legacy", lambda: legacy(ALICE, 0, DAVE.address, 1, gas=30_000_001), -32000,
     "exceeds block gas limit"),
    ("tip", lambda: dynamic(ALICE, 0, DAVE.address, 1, tip=FEE + 1), -32000,
     "max priority fee per gas higher than max fee per gas"),
    ("fee cap", lambda: dynamic(ALICE, 0, DAVE.address, 1, fee=1), -32000,
     "max fee per gas less than block base fee"),
    ("chain", lambda: legacy(ALICE, 0, DAVE.address, 1, chain_id=8), -32000, "invalid chain id for signer"),
    ("unprotected", lambda: UNPROTECTED, -32000,
     "only replay-protected (EIP-155) transactions allowed over RPC"),
    ("type 1", lambda: b"\1" + dynamic(ALICE, 0, DAVE.address, 1)[1:], -32000,
     "transaction type not supported"),
    ("type 1 again", lambda: b"\1" + dynamic(ALICE, 0, DAVE.address, 1)[1:], -32000,
     "transaction type not valid"),
    ("type 3", lambda: BLOB, -32000, "transaction type not supported"),
    ("type 3 of 131 kB", lambda: BLOB + bytes(131_072), -32000, "transaction type not supported"),
    ("too long", lambda: legacy(ALICE, 0, DAVE.address, 1) + bytes(131_072), -32602, "bytes, at most"),
    ("type 4", lambda: b"\4" + BLOB[1:], -32000, "transaction type not supported"),
    ("creation", lambda: dynamic(ALICE, 0, b"", 1), -32000, "contract creation is not supported"),
    ("access list", lambda: dynamic(ALICE, 0, DAVE.address, 1, access=[[DAVE.address, []]]), -32000,
     "access lists"),
    ("high s", lambda: high(ALICE), -32000, ""),
    ("bytes after", lambda: legacy(ALICE, 0, DAVE.address, 1) + b"\0", -32000, ""),
    ("padded quantity", lambda: rlp([b"\0", FEE, 21_000, DAVE.address, 1, b"", 49, 1, 1]), -32000, ""),
    ("no bytes", lambda: b"", -32000, "a transaction of 0 bytes"),
    ("unknown function", lambda: dynamic(ALICE, 0, STAKING_ADDRESS, 1), 3,
     "execution reverted: unknown function"),
    ("short data", lambda: dynamic(ALICE, 0, STAKING_ADDRESS, 0, UNSTAKE.encode(1)[:-1], gas=60_000), 3,
     "execution reverted: unstake: call data"),
    ("wrong value", lambda: dynamic(ALICE, 0, STAKING_ADDRESS, 1, UNSTAKE.encode(1), gas=60_000), 3,
     "execution reverted: unstake takes no value"),
]  # fmt: skip


async def ids_come_back_as_they_were_sent(it: Gateway) -> None:
    good: list[Any] = [0, -1, 2**53 + 1, 2**64 - 1, "\u00fc\n\x00", "", None, 1.5, "x" * 256]
    bad: list[Any] = [2**64, 1e300, -1e17, [], {}, True, "x" * 257]
    for identifier in good:
        answer = await it.raw({"jsonrpc": "2.0", "id": identifier, "method": "eth_chainId"})
        assert answer == {"jsonrpc": "2.0", "id": identifier, "result": "0x7"}
    for identifier in bad:
        answer = await it.raw({"jsonrpc": "2.0", "id": identifier, "method": "eth_chainId"})
        assert (answer["id"], answer["error"]["code"]) == (None, -32600), identifier


async def test_the_words_are_those_that_clients_match(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        await mint(it, node, 2)
        await ids_come_back_as_they_were_sent(it)
        for name, params, answer in ANSWERS:
            assert await it.call(name, *params) == answer, (name, params)
        for name, params, code, text in REFUSALS:
            error = await it.error(name, *params)
            assert (error["code"], text in error["message"]) == (code, True), (name, params, error)

        for method in ("eth_sendRawTransaction", "eth_sendRawTransactionSync"):
            for what, make, code, text in UNSENT:
                error = await it.error(method, hexed(make()))
                assert (error["code"], text in error["message"]) == (code, True), (what, error)
                assert len(node.pool) == 0, what
        for key in (ALICE, BOB):
            assert await it.call("eth_getTransactionCount", who(key), "pending") == "0x0"

        first = dynamic(ALICE, 0, DAVE.address, 1)
        hash_ = await it.call("eth_sendRawTransaction", hexed(first))
        for raw, text in (
            (first, "already known"),
            (dynamic(ALICE, 0, DAVE.address, 2, fee=FEE * 109 // 100), "replacement transaction underpriced"),
            (dynamic(ALICE, 1_000, DAVE.address, 1), "nonce too high"),
        ):
            error = await it.error("eth_sendRawTransaction", hexed(raw))
            assert (error["code"], text in error["message"]) == (-32000, True), error
        assert [item.transaction.raw for item in node.pool.take(9)] == [first]
        await mint(it, node)
        error = await it.error("eth_sendRawTransaction", hexed(dynamic(ALICE, 0, DAVE.address, 3)))
        assert (error["code"], error["message"]) == (-32000, "nonce too low: next nonce 1, tx nonce 0")
        assert (await it.call("eth_getTransactionReceipt", hash_))["status"] == "0x1"

        # Gas that a wallet guesses is taken, and what is not used is not paid.
        guess = dynamic(ALICE, 1, DAVE.address, 1, gas=30_000_000 * 35 // 100)
        hash_ = await it.call("eth_sendRawTransaction", hexed(guess))
        await mint(it, node)
        assert (await it.call("eth_getTransactionReceipt", hash_))["gasUsed"] == "0x5208"


async def test_a_block_with_more_gas_than_a_transaction_may_ask_for_shows_its_own_limit(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", block_gas_limit=200_000, block_gas_target=100_000)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        genesis = await it.call("eth_getBlockByNumber", "0x0", False)
        assert genesis["gasLimit"] == hex(200_000), "never more than the chain's own"
        error = await it.error("eth_sendRawTransaction", hexed(dynamic(ALICE, 0, DAVE.address, 1, gas=200_001)))
        assert (error["code"], "exceeds block gas limit" in error["message"]) == (-32000, True)


async def test_the_miner_is_who_led_in_every_epoch(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", epoch_blocks=4, evidence_epochs=2, unbonding_ms=20_000)
    leaders = []
    for _ in range(14):
        node.mint()
        header = decode_header(node.store.tip.header)
        info = node.chain.epoch_info(header.epoch)
        assert info is not None
        leaders.append(hexed(info.committee.seats[header.proposer_seat].address))
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for height, leader in enumerate(leaders, 1):
            assert (await it.call("eth_getBlockByNumber", hex(height), False))["miner"] == leader
    assert len({*leaders}) == 2


async def test_the_mempool_is_told_over_a_websocket(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        await mint(it, node)
        await it.call("eth_sendRawTransaction", hexed(dynamic(BOB, 0, DAVE.address, 1)))  # before anybody listens
        socket = await Socket.open(it)
        for wanted in (True, {"address": who(BOB)}):
            refused = await socket.call("eth_subscribe", "newPendingTransactions", wanted)
            assert refused["error"]["code"] == -32602
        assert (await socket.call("eth_subscribe", "logs", True))["error"]["code"] == -32602
        first = (await socket.call("eth_subscribe", "newPendingTransactions"))["result"]
        second = (await socket.call("eth_subscribe", "newPendingTransactions", False))["result"]
        sent = [
            await it.call("eth_sendRawTransaction", hexed(dynamic(ALICE, nonce, DAVE.address, 1)))
            for nonce in range(5)
        ]
        told: dict[str, list[str]] = {first: [], second: []}
        while len(told[first]) < 5 or len(told[second]) < 5:
            message = socket.news.pop(0) if socket.news else await socket.receive()
            assert message["method"] == "eth_subscription"
            told[message["params"]["subscription"]].append(message["params"]["result"])
        assert told == {first: sent, second: sent}
        assert (await socket.call("eth_unsubscribe", first))["result"] is True
        await socket.close()


@pytest.mark.parametrize("name", ["eth_sign", "personal_sign", "debug_traceCall", "engine_x", "admin_peers"])
def test_what_is_not_there_says_what_is(name: str) -> None:
    assert missing_method_hint(name)
    assert name not in METHOD_TABLE
    assert missing_method_hint("eth_nonsense") == missing_method_hint("") == ""


def test_the_kind_of_a_call_is_that_of_ethereums_forms_alone() -> None:
    assert decode_transaction(dynamic(ALICE, 0, DAVE.address, 1)).kind == CALL_KIND
