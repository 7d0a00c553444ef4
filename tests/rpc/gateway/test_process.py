"""A real gateway process against a real store, runtime and mempool."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from consensus.votes import certificate_checks, verify_checks
from consensus.wire import decode_certificate
from rpc.client import Call, Client, ClientError, GatewayUnreachable
from rpc.gateway.connections import ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.gateway.process import GatewayOptions
from rpc.methods.schema import make_cursor
from rpc.protocol.records import KnownNode
from state.primitives.blocks import decode_header, header_hash
from state.primitives.codec import encode
from state.primitives.committee import Committee
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload, unstake_payload
from state.trie.proof import verify_proof
from state.view.accounts import account_key, load_account
from tests.rpc.harness import (
    ALICE,
    BOB,
    CAROL,
    COIN,
    DAVE,
    VALIDATORS,
    Gateway,
    Node,
    gateway,
    hexed,
    served,
    transfer,
)

pytestmark = pytest.mark.slow


def stake(node: Node, key: SecretKey, nonce: int, amount: int) -> bytes:
    payload = stake_payload(amount, key, genesis_hash=node.runtime.genesis_hash, address=key.address)
    return transfer(key, nonce, b"", 0, kind=STAKE_KIND, payload=payload, gas_limit=600_000)


async def test_every_method_answers_as_its_schema_says(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    sent = transfer(ALICE, 0, BOB.address, 5 * COIN)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        call = it.checked_call
        result = await call("dekube_sendTransaction", hexed(sent))
        assert result["hash"] == hexed(decode_transaction(sent).hash)
        await call("dekube_sendTransaction", hexed(stake(node, BOB, 0, 2_000 * COIN)))
        page = await call("dekube_getMempool", None, 1)
        assert (page["pending"], [item["kind_name"] for item in page["items"]]) == (2, ["stake"])
        rest = await call("dekube_getMempool", page["next"])
        assert ([item["hash"] for item in rest["items"]], rest["next"]) == ([result["hash"]], None)
        refused = await it.error("dekube_getMempool", make_cursor(["mempool", -1]))
        assert refused["data"]["reason"] == "invalid_params"
        waiting = await call("dekube_getTransaction", result["hash"])
        assert waiting["transaction"]["block"] is None
        assert waiting["transaction"]["from"] == (await call("dekube_getAccount", hexed(ALICE.address)))["address"]
        node.mint()
        unstake = transfer(
            BOB, 1, b"", 0, kind=UNSTAKE_KIND, payload=unstake_payload(500 * COIN), gas_limit=100_000
        )
        await call("dekube_sendTransaction", hexed(unstake))
        node.mint(2)

        receipt = (await call("dekube_waitForReceipt", result["hash"]))["receipt"]
        assert (receipt["succeeded"], receipt["kind_name"], receipt["block"]["height"]) == (True, "transfer", 1)
        assert (await call("dekube_getReceipt", result["hash"]))["receipt"] == receipt
        alice = await call("dekube_getAccount", hexed(ALICE.address))
        assert int(alice["balance"]) == 10_000 * COIN - 5 * COIN - int(receipt["fee"])
        assert (alice["nonce"], alice["pending_nonce"]) == (1, 1)
        assert (await call("dekube_getBalance", hexed(ALICE.address)))["balance"] == alice["balance"]
        before = await call("dekube_getBalance", hexed(ALICE.address), 0)
        assert before["balance"] == str(10_000 * COIN)
        assert before["at"] == {"height": 0, "hash": hexed(node.runtime.genesis_hash)}
        bob = await call("dekube_getAccount", address=hexed(BOB.address))
        assert bob["stake"]["amount"] == str(1_500 * COIN)
        assert [item["amount"] for item in bob["unbonding"]] == [str(500 * COIN)]
        assert (await call("dekube_getNonce", hexed(BOB.address)))["nonce"] == 2

        whole = (await call("dekube_getBlock", 1, True))["block"]
        assert [item["kind_name"] for item in whole["transactions"]] == ["transfer", "stake"]
        assert whole["transactions"][0]["raw"] == hexed(sent)
        short = (await call("dekube_getBlock", whole["hash"]))["block"]
        assert short["transactions"] == [item["hash"] for item in whole["transactions"]]
        assert short["gas_used"] == sum(
            item["gas_used"] for item in (await call("dekube_getBlockReceipts", 1))["receipts"]
        )
        assert (await call("dekube_getBlock"))["block"]["height"] == 3
        assert (await call("dekube_getBlock", "earliest"))["block"]["height"] == 1
        assert (await call("dekube_getBlock", 99))["block"] is None
        assert (await call("dekube_getBlock", "0x" + "00" * 32))["block"] is None
        events = (await call("dekube_getBlockReceipts", 1))["receipts"][1]["events"]
        assert events[0]["name"] == "Staked"
        assert events[0]["values"]["amount"] == str(2_000 * COIN)

        first = await call("dekube_getBlocks", None, 2)
        assert [item["height"] for item in first["items"]] == [3, 2]
        node.mint()
        second = await call("dekube_getBlocks", first["next"], 2)
        assert [item["height"] for item in second["items"]] == [1]
        assert second["next"] is None
        assert (await call("dekube_getBlocks", limit=2))["items"][0]["height"] == 4

        history = await call("dekube_getAccountHistory", hexed(BOB.address), None, 2)
        assert [item["transaction"]["kind_name"] for item in history["items"]] == ["unstake", "stake"]
        older = await call("dekube_getAccountHistory", hexed(BOB.address), history["next"])
        assert [item["transaction"]["hash"] for item in older["items"]] == [result["hash"]]
        assert older["next"] is None

        dry = await call("dekube_simulateTransaction", hexed(transfer(ALICE, 1, BOB.address, 1)))
        assert dry["succeeded"] is True
        dry = await call(
            "dekube_estimate",
            **{"from": hexed(ALICE.address), "kind": 3, "payload": hexed(encode(unstake_payload(1)))},
        )
        assert (dry["succeeded"], dry["reason"]) == (False, "stake_insufficient")

        assert [item["address"] for item in (await call("dekube_getValidators"))["validators"]] == sorted(
            [item["address"] for item in (await call("dekube_getValidators"))["validators"]], key=str.lower
        )
        seats = (await call("dekube_getCommittee"))["seats"]
        assert (await call("dekube_getEpoch"))["committee_hash"] == (await call("dekube_getCommittee"))["hash"]
        assert [seat["address"].lower() for seat in seats] == [hexed(key.address) for key in VALIDATORS]
        assert (await call("dekube_getPeers"))["peers"][0]["address"].lower() == hexed(DAVE.address)
        node.known = [
            KnownNode(key, ("relay",), ("tcp:h:1", f"relay:{'ab' * 20}:r:2"), 1_000, 2_000, n % 2)
            for n, key in enumerate(sorted(key.address for key in (*VALIDATORS, DAVE)))
        ]
        network = await call("dekube_getNetwork", None, 2)
        assert network["known"] == len(node.known) and len(network["items"]) == 2
        assert network["reachability"]["endpoints"] == [{"endpoint": "tcp:h:1", "verdict": "public"}]
        assert network["items"][0]["endpoints"] == ["tcp:h:1"]
        assert [relay["endpoint"] for relay in network["items"][0]["relays"]] == ["tcp:r:2"]
        items = network["items"]
        while network["next"] is not None:
            network = await call("dekube_getNetwork", network["next"], 2)
            items = items + network["items"]
        assert [bytes.fromhex(item["address"][2:]) for item in items] == [known.address for known in node.known]
        refused = await it.error("dekube_getNetwork", make_cursor(["network", b"short"]))
        assert refused["data"]["reason"] == "invalid_params"
        stakes = {item["address"].lower(): item["stake"] for item in items}
        assert stakes[hexed(DAVE.address)] is None
        assert all(int(stakes[hexed(key.address)]) > 0 for key in VALIDATORS)
        supply = await call("dekube_getSupply")
        assert int(supply["supply"]) == int(supply["issued"]) - int(supply["burned"]) < 40_000 * COIN
        assert (await call("dekube_quote"))["kinds"][0]["name"] == "transfer"
        assert (await call("dekube_genesis"))["parameters"]["chain.block_gas_limit"] == "300000000"
        assert (await call("dekube_chainInfo"))["genesis_hash"] == hexed(node.runtime.genesis_hash)
        assert (await call("dekube_head"))["at"]["height"] == 4
        assert (await call("dekube_status"))["oldest_block_height"] == 1
        assert await call("rpc.discover") == json.loads(json.dumps(DOCUMENT))

        # A value and its absence, checked with nothing but the committee.
        for key in (account_key(ALICE.address), account_key(DAVE.address)):
            proof = await call("dekube_getProof", hexed(key))
            check_proof(node.voting, node.runtime.genesis_hash, key, proof)
        path = await call("dekube_getHeader", 2)
        assert header_hash(decode_header(bytes.fromhex(path["headers"][0][2:]))).hex() == (
            await call("dekube_getBlock", 2)
        )["block"]["hash"].removeprefix("0x")
        assert (await call("dekube_getHeaders", 2, 2))["headers"][0] == path["headers"][0]
        placed = (await call("dekube_getTransactionProof", result["hash"]))["transaction"]
        assert (placed["height"], placed["index"], placed["raw"]) == (1, 0, hexed(sent))
        assert (await call("dekube_getReceiptProof", result["hash"]))["receipt"]["raw"] == hexed(sent)
        for absent in ("dekube_getTransactionProof", "dekube_getReceiptProof"):
            assert None in (await call(absent, "0x" + "00" * 32)).values()
        assert (await call("dekube_getEpochRecord", 0))["record"] is None
        assert (await call("dekube_getEpochRecords", 0))["records"] == []
        assert await call("dekube_getAccountProof", hexed(ALICE.address), 1)
        assert (await call("dekube_getSlash", hexed(ALICE.address)))["slash"] is None
        assert (await call("dekube_getSlashes"))["items"] == []
        assert (await call("dekube_getEvidence", 1))["evidence"] == []

        native = {name for name, method in METHOD_TABLE.items() if not method.needs_session}
        elsewhere = {
            name for name in native if METHOD_TABLE[name].group in ("tasks", "nodes", "billing", "ethereum")
        }
        elsewhere |= {"dekube_submitEvidence", "dekube_submitFork"}  # test_evidence.py
        assert native - elsewhere - it.checked == set()

        status, text = await get(it, "/v1/blocks/1")
        assert (status, text["block"]["hash"]) == (200, whole["hash"])
        assert (await get(it, "/v1/blocks/1?transactions=true"))[1]["block"] == whole
        assert (await get(it, "/v1/blocks/77"))[0] == 404
        assert (await get(it, "/v1/blocks/pending"))[0] == 400
        assert (await get(it, f"/v1/accounts/{hexed(ALICE.address)}?height=0"))[1]["balance"] == str(10_000 * COIN)
        assert (await get(it, f"/v1/accounts/{hexed(ALICE.address)}?height=50"))[0] == 404
        assert (await get(it, "/v1/blocks?limit=1&bogus=1"))[1]["error"]["data"]["reason"] == "invalid_params"
        assert (await get(it, "/status"))[1]["at"]["height"] == 4
        assert "/v1/blocks/{block}" in (await get(it, "/openapi.json"))[1]["paths"]
        assert (await get(it, "/openrpc.json"))[1]["openrpc"]
        assert "dekube_getBalance" in (await it.http.get(it.url + "/docs")).text
        metrics = (await it.http.get(it.url + "/metrics")).text
        assert 'dekube_rpc_requests_total{method="dekube_getBlock",outcome="ok"}' in metrics
        assert await it.http.get(it.url + "/healthz")


async def get(it: Gateway, path: str) -> tuple[int, Any]:
    response = await it.http.get(it.url + path)
    return response.status_code, response.json()


def check_proof(committee: Committee, genesis_hash: bytes, key: bytes, proof: Any) -> None:
    headers = [bytes.fromhex(item[2:]) for item in proof["headers"]]
    first = decode_header(headers[0])
    assert first.height == proof["at"]["height"] + 1
    assert hexed(first.state_root) == proof["state_root"]
    value = None if proof["value"] is None else bytes.fromhex(proof["value"][2:])
    raw = bytes.fromhex(proof["proof"][2:])
    assert verify_proof(first.state_root, key, value, raw)
    assert not verify_proof(first.state_root, key, b"more", raw)
    certificate = decode_certificate(bytes.fromhex(proof["certificate"][2:]))
    assert certificate.block_hash == header_hash(decode_header(headers[-1]))
    assert verify_checks(certificate_checks(committee, genesis_hash, certificate))


async def test_errors_are_those_of_the_table_and_change_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", history_heights=2)
    node.mint(6)
    good = transfer(ALICE, 0, BOB.address, 1)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:

        async def expect(number: int, reason: str, text: str, method: str, *params: Any, **named: Any) -> Any:
            error = await it.error(method, *params, **named)
            assert (error["code"], error["data"]["reason"]) == (number, reason), error
            assert text in error["message"], error
            return error["data"]

        await expect(-32601, "method_not_found", "the method eth_foo does not exist/is not available", "eth_foo")
        await expect(-32601, "method_not_found", "does not exist/is not available", "dekube_subscribe", "heads")
        await expect(-32602, "invalid_params", "missing parameter address", "dekube_getBalance")
        await expect(-32602, "invalid_params", "address", "dekube_getBalance", "0x12")
        who = hexed(ALICE.address)
        pruned = await expect(-32001, "pruned", "pruned", "dekube_getBalance", who, 3)
        assert pruned == {"reason": "pruned", "height": 3, "oldest_height": 4}
        await expect(-32001, "height_unknown", "newest is 6", "dekube_getBalance", who, 7)
        await expect(-32001, "height_unknown", "newest is 6", "dekube_getHeader", 7)
        await expect(-32602, "invalid_params", "height", "dekube_getHeader", 0)
        await expect(-32602, "invalid_params", "limit", "dekube_getEpochRecords", 0, 33)
        await expect(-32001, "height_unknown", "newest is 6", "dekube_getAccountProof", who, 6)
        await expect(-32602, "invalid_params", "cursor", "dekube_getBlocks", make_cursor(["history", b"x", 1, 1]))
        await expect(-32602, "invalid_params", "cursor", "dekube_getBlocks", make_cursor(["blocks", 99]))
        await expect(-32602, "invalid_params", "limit", "dekube_getBlocks", None, 101)

        async def refuse(reason: str, text: str, raw: bytes) -> None:
            await expect(-32000, reason, text, "dekube_sendTransaction", hexed(raw))

        to = BOB.address
        node.pool.add(node.runtime.check(checked(transfer(CAROL, 0, to, 1))))
        node.mint()
        await refuse("nonce_too_low", "nonce too low", transfer(CAROL, 0, to, 2))
        await refuse(
            "insufficient_funds", "insufficient funds for gas * price + value", transfer(ALICE, 0, to, 10**23)
        )
        await refuse("insufficient_funds", "insufficient funds for gas * price + value", transfer(DAVE, 0, to, 0))
        await refuse("intrinsic_gas_too_low", "intrinsic gas too low", transfer(ALICE, 0, to, 1, gas_limit=1))
        await refuse(
            "exceeds_block_gas_limit", "exceeds block gas limit", transfer(ALICE, 0, to, 1, gas_limit=10**10)
        )
        await refuse(
            "fee_cap_too_low", "max fee per gas less than block base fee", transfer(ALICE, 0, to, 1, fee=1)
        )
        await refuse("wrong_chain_id", "chain", transfer(ALICE, 0, to, 1, chain_id=8))
        await refuse("unknown_kind", "transaction type not supported", transfer(ALICE, 0, to, 1, kind=999))
        await refuse("invalid_payload", "invalid payload", transfer(ALICE, 0, to, 1, payload=[1]))
        await refuse("not_supported", "transaction type not supported", b"\x03" + good[1:])
        await refuse("decode_error", "", good + b"\0")
        await refuse("signature_invalid", "", good[:-1] + b"\5")
        high = bytearray(good)
        high[-33:-1] = (2**255 + 5).to_bytes(32, "big")
        await refuse("signature_invalid", "", bytes(high))
        assert len(node.pool) == 0
        await it.call("dekube_sendTransaction", hexed(good))
        await refuse("already_known", "already known", good)
        await refuse(
            "replacement_underpriced",
            "replacement transaction underpriced",
            transfer(ALICE, 0, to, 2, fee=2 * 10**9 + 1),
        )
        assert len(node.pool) == 1

        # min_height: waits, then says how far the node is.
        data = await expect(
            -32002, "height_not_reached", "min_height", "dekube_getBalance", address=who, min_height=50
        )
        assert data == {"reason": "height_not_reached", "height": 7, "min_height": 50}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.call, "dekube_getBalance", who, None, 8)
            await trio.sleep(0.1)
            node.mint()

        # A long poll ends with nothing when the time is over, with the receipt when there is one.
        unknown = await it.call("dekube_waitForReceipt", "0x" + "ab" * 32, 50)
        assert (unknown["receipt"], unknown["pending"]) == (None, False)
        last = hexed(decode_transaction(transfer(BOB, 0, to, 1)).hash)
        found: list[Any] = []

        async def wait() -> None:
            found.append(await it.call("dekube_waitForReceipt", last, 20_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await it.call("dekube_sendTransaction", hexed(transfer(BOB, 0, to, 1)))
            node.mint()
        assert found[0]["receipt"]["transaction_hash"] == last


def checked(raw: bytes) -> Any:
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    return transaction


async def test_batches_and_malformed_requests(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    options = GatewayOptions("", dispatch=DispatchOptions(body_bytes_max=200_000))
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:

        async def code(body: bytes | str) -> Any:
            response = await it.post(body)
            assert response.status_code == 200
            answer = response.json()
            answer = answer[0] if type(answer) is list else answer
            assert answer["id"] is None
            return answer["error"]["code"]

        assert await code("") == -32700
        assert await code("{") == -32700
        assert await code(b"\xff\xfe") == -32700
        assert await code("[" * 50_000) == -32700
        assert await code("[" * 100_000) == -32600, "more values than any batch has: not read"
        assert await code('{"a":' * 2_000 + "1" + "}" * 2_000) == -32700
        assert await code("7") == -32600
        assert await code("[]") == -32600
        assert await code(json.dumps([1] * 1_001)) == -32600
        assert await code(b" " * 200_001) == -32600
        assert await code(json.dumps({"jsonrpc": "2.0", "id": {}, "method": "dekube_head"})) == -32600
        assert await code(json.dumps({"jsonrpc": "1.0", "method": "dekube_head"})) == -32600
        assert await code(json.dumps({"jsonrpc": "2.0", "id": None, "method": 5})) == -32600

        request = {"jsonrpc": "2.0", "id": "x", "method": "dekube_head"}
        assert (await it.raw(request | {"id": 1.5}))["id"] == 1.5
        assert (await it.raw(request | {"id": "ü"}))["id"] == "ü"
        notification = await it.post(json.dumps({"jsonrpc": "2.0", "method": "dekube_head"}))
        assert (notification.status_code, notification.content) == (200, b"")
        assert (await it.post(json.dumps([{"jsonrpc": "2.0", "method": "dekube_head"}]))).content == b""

        address = hexed(ALICE.address)
        batch = [
            {
                "jsonrpc": "2.0",
                "id": n,
                "method": "dekube_getBalance",
                "params": [hexed(bytes(19) + bytes([n % 250]))],
            }
            for n in range(500)
        ]
        last: list[Any] = [
            {"jsonrpc": "2.0", "method": "dekube_getBalance", "params": [address]},
            {"jsonrpc": "2.0", "id": "no", "method": "nope"},
            {"jsonrpc": "2.0", "id": "block", "method": "dekube_getBlock", "params": [1, True]},
        ]
        answers = await it.raw([*batch, *last, 5])
        by_id = {answer["id"]: answer for answer in answers}
        assert len(answers) == 503
        assert all(by_id[n]["result"]["balance"] == "0" for n in range(500))
        assert by_id["no"]["error"]["code"] == -32601
        assert by_id["block"]["result"]["block"]["height"] == 1
        assert by_id[None]["error"]["code"] == -32600


async def test_doors_limits_hosts_and_origins(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    options = GatewayOptions(
        "",
        cors=("https://wallet.example",),
        hosts=("node.example",),
        dispatch=DispatchOptions(rate_per_s=20, burst=30),
        connections=ConnectionOptions(connections_per_address_max=6, first_request_s=0.3),
    )
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        body = '{"jsonrpc":"2.0","id":1,"method":"dekube_head"}'
        assert (await it.post(body, host="evil.example")).status_code == 403
        assert (await it.post(body, host="node.example:8545")).status_code == 200
        assert (await it.post(body, host="localhost")).status_code == 200
        allowed = await it.post(body, origin="https://wallet.example")
        assert allowed.headers["access-control-allow-origin"] == "https://wallet.example"
        other = await it.post(body, origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
        preflight = await it.http.options(it.url, headers={"origin": "https://wallet.example"})
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-headers"] == "content-type, authorization, range"
        asked = {"access-control-request-headers": "content-type,x-requested-with"}
        preflight = await it.http.options(it.url, headers={"origin": "https://wallet.example", **asked})
        assert preflight.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
        assert preflight.headers["access-control-allow-origin"] == "https://wallet.example"

        # A flood from one address is told when to come back, and served again then.
        # In one batch: a loaded machine asks no faster than units flow.
        answers = await it.raw([{"jsonrpc": "2.0", "id": at, "method": "dekube_head"} for at in range(200)])
        limited = next(answer["error"] for answer in answers if "error" in answer)
        assert limited["code"] == -32005
        assert "limit exceeded" in limited["message"]
        await trio.sleep(limited["data"]["retry_after_s"] + 0.2)
        assert "result" in (await it.post(body)).json()

        # Connections over the limit are closed, those that say nothing too.
        idle = [await trio.open_tcp_stream("127.0.0.1", it.port) for _ in range(8)]
        with trio.fail_after(120):
            for stream in idle:
                try:
                    assert await stream.receive_some(1) == b""
                except trio.BrokenResourceError:
                    pass
        slow = await trio.open_tcp_stream("127.0.0.1", it.port)
        await slow.send_all(b"POST / HTTP/1.1\r\nhost: localhost\r\nx: ")
        with trio.fail_after(120):
            try:
                assert await slow.receive_some(1) == b""
            except trio.BrokenResourceError:
                pass
        assert (await it.http.get(it.url + "/healthz")).status_code == 200


async def test_gateway_outlives_the_node_and_the_node_the_gateway(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    path = tmp_path / "s"
    async with served(node, path) as backend, gateway(backend, path) as it:
        assert (await it.call("dekube_head"))["at"]["height"] == 1
        # The gateway is killed; the node serves the next one.
        it.process.send_signal(signal.SIGKILL)
        async with gateway(backend_after(backend), path) as second:
            node.mint()
            found = await second.call("dekube_getBalance", address=hexed(ALICE.address), min_height=2)
            assert found["at"]["height"] == 2
    # The node goes; the gateway says so and finds the next one.
    options = replace(GatewayOptions(""), ready_peers_min=1)
    async with served(node, path) as backend:
        manager = gateway(backend, path, options)
        it = await manager.__aenter__()
    try:
        with trio.fail_after(120):
            while (await it.http.get(it.url + "/readyz")).status_code == 200:
                pass  # until the end of the connection has reached the gateway
        error = await it.error("dekube_head")
        assert (error["code"], error["data"]["reason"]) == (-32002, "node_unavailable")
        assert (await it.http.get(it.url + "/healthz")).status_code == 200
        assert (await it.http.get(it.url + "/readyz")).status_code == 503
        async with served(node, path) as backend:
            with trio.fail_after(120):
                await backend.wait_gateway()
            assert (await it.call("dekube_head"))["at"]["height"] == 2
            assert (await it.http.get(it.url + "/readyz")).json()["ready"] is True
            node.disk_free_mib = 255
            assert (await it.http.get(it.url + "/readyz")).json()["reason"] == "disk"
            node.highest = 100
            assert (await it.http.get(it.url + "/readyz")).json()["reason"] == "behind"
            node.highest, node.peer_list = 0, []
            assert (await it.http.get(it.url + "/readyz")).json()["reason"] == "few_peers"
    finally:
        await manager.__aexit__(None, None, None)


def backend_after(backend: Any) -> Any:
    """Forget the gateway that was killed, so that waiting means waiting for the next."""
    backend._gateway_known = trio.Event()
    return backend


async def test_what_is_kept_never_grows_stale(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    rng = random.Random(5)
    people = (ALICE, BOB, CAROL, DAVE)
    nonces = dict.fromkeys(people, 0)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for _ in range(40):
            for key in rng.sample(people[:3], rng.randrange(3)):
                raw = transfer(key, nonces[key], rng.choice(people).address, rng.randrange(COIN))
                nonces[key] += 1
                node.pool.add(node.runtime.check(checked(raw)))
            node.mint(rng.randrange(1, 12))  # more than one piece of news tells of, now and then
            height = node.store.tip.height
            ask = {"jsonrpc": "2.0", "method": "dekube_getBalance"}
            batch = [
                ask | {"id": at, "params": [hexed(key.address), None, height]} for at, key in enumerate(people)
            ]
            for answer in await it.raw(batch):
                assert answer["result"]["at"]["height"] == height
                expected = load_account(node.store, people[answer["id"]].address).balance
                assert int(answer["result"]["balance"]) == expected


async def test_client(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:

        def use() -> None:
            with Client(it.url) as client:
                assert client.call("dekube_head")["at"]["height"] == 1
                assert client.call("dekube_getBalance", address=hexed(ALICE.address))["balance"]
                with pytest.raises(ClientError) as caught:
                    client.call("dekube_getBalance", hexed(ALICE.address), 9)
                assert caught.value.reason == "height_unknown"
                assert caught.value.fields == {"height": 9, "newest_height": 1}
                first, second = client.batch([Call("dekube_head"), Call("nope")])
                assert first["at"]["height"] == 1
                assert isinstance(second, ClientError)

        await trio.to_thread.run_sync(use)
        port = it.port
    with pytest.raises(GatewayUnreachable):
        Client(f"http://127.0.0.1:{port}", timeout_s=2).call("dekube_head")
    with pytest.raises(ConfigError):
        Client("ftp://x")
