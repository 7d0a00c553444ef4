"""The owner's methods: what they do, who may call them, and that no gateway has them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import structlog
import trio

from node.chain.mempool import Mempool, MempoolOptions
from node.daemon.admin import DOCUMENT, TABLE, Admin, serve_admin
from node.home.config import load_options
from node.home.options import LogOptions
from node.process.drain import Drain, RemainingWork
from node.telemetry.logs import configure_logs
from rpc.gateway.method_table import METHOD_TABLE
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.transactions import decode_transaction
from state.view.accounts import Account
from tests.p2p.test_service import Wires, in_memory, memory_endpoint, running
from tests.rpc import harness
from tests.rpc.validate import validate


class Owned:
    """A node as far as most methods need it: a real network in memory, a real mempool."""

    def __init__(self, wires: Wires) -> None:
        self.network = in_memory(1, wires)
        self.other = in_memory(2, wires)
        self.account = SimpleNamespace(address=self.network.identity.address)
        self.changes = 0
        self.ledger = SimpleNamespace(
            mempool=Mempool(MempoolOptions(), lambda _address: Account(0, 10**30)), on_pool_changed=self._changed
        )
        self.drain = Drain()
        self.under_way = RemainingWork(
            is_offered=True, tasks=1, checks=0, running=1, transactions=0, is_serving=True
        )
        self.stopped = trio.Event()
        self.stop = self.stopped.set
        self.admin = Admin(cast(Any, self))

    def _changed(self) -> None:
        self.changes += 1

    async def status(self) -> Any:
        return {"height": 7}

    def remaining_work(self) -> RemainingWork:
        return self.under_way

    async def call(self, name: str, *params: Any) -> Any:
        result = await self.admin.call(name, list(params))
        validate(result, TABLE[name].result, {}, name)
        return result


@asynccontextmanager
async def owned() -> AsyncIterator[Owned]:
    wires = Wires()
    node = Owned(wires)
    async with running(node.network, node.other, wires=wires):
        yield node


def text_of(node: Owned) -> str:
    endpoint = memory_endpoint(2)
    return f"{format_address(node.other.identity.address)}@tcp:{endpoint.host}:{endpoint.port}"


async def test_peers_are_dialled_dropped_kept_away_and_let_in_again() -> None:
    async with owned() as node:
        other = node.other.identity.address
        shown = format_address(other)
        assert await node.call("admin_getPeers") == []
        await node.call("admin_connectPeer", text_of(node))
        with trio.fail_after(120):
            await node.network.wait_peers(1)
        [peer] = await node.call("admin_getPeers")
        assert (peer["address"], peer["outbound"]) == (shown, True)

        assert await node.call("admin_banPeer", shown, "noise", 60) == {"left_s": pytest.approx(60, abs=2)}
        assert [item["address"] for item in await node.call("admin_getBans")] == [shown]
        with trio.fail_after(120):
            while await node.call("admin_getPeers"):
                await trio.lowlevel.checkpoint()
        assert await node.call("admin_connectPeer", text_of(node)) == {"connected": False}
        assert not node.network.is_connected(other)
        assert await node.call("admin_unbanPeer", shown) == {"was_banned": True}
        assert await node.call("admin_unbanPeer", shown) == {"was_banned": False}
        assert await node.call("admin_getBans") == []
        await node.call("admin_connectPeer", text_of(node))
        with trio.fail_after(120):
            await node.network.wait_peers(1)
        assert await node.call("admin_disconnectPeer", shown) == {"was_connected": True}
        own = format_address(node.account.address)
        for name, *params in (("admin_banPeer", own), ("admin_connectPeer", "x"), ("admin_connectPeer", shown)):
            with pytest.raises(Exception, match="invalid params"):
                await node.admin.call(name, params)


async def test_the_mempool_is_emptied(tmp_path: Path) -> None:
    chain = harness.Node(tmp_path / "db")
    async with owned() as node:
        hashes = []
        for nonce in range(3):
            raw = decode_transaction(harness.transfer(harness.ALICE, nonce, harness.BOB.address, 1))
            raw.recover_sender()
            node.ledger.mempool.add(chain.runtime.check(raw))
            hashes.append(harness.hexed(raw.hash))
        assert await node.call("admin_dropTransaction", hashes[0]) == {"dropped": True}
        assert await node.call("admin_dropTransaction", hashes[0]) == {"dropped": False}
        assert (node.ledger.mempool.pending_count, node.ledger.mempool.queued_count) == (0, 2)
        assert await node.call("admin_clearMempool") == {"dropped": 2}
        assert (len(node.ledger.mempool), node.ledger.mempool.size_bytes, node.changes) == (0, 0, 3)


async def test_draining_is_begun_looked_at_and_ended() -> None:
    async with owned() as node:
        assert not (await node.call("admin_getDrain"))["draining"]
        begun = await node.call("admin_drain")
        assert (begun["draining"], begun["empty"], begun["tasks"], begun["stops_when_empty"]) == (
            True,
            False,
            1,
            False,
        )
        assert node.drain.is_on
        node.under_way = RemainingWork(
            is_offered=False, tasks=0, checks=0, running=0, transactions=0, is_serving=False
        )
        assert (await node.call("admin_getDrain"))["empty"]
        assert (await node.call("admin_drain", True, True))["stops_when_empty"]
        ended = await node.call("admin_drain", False)
        assert (ended["draining"], ended["empty"], ended["stops_when_empty"]) == (False, False, False)


async def test_the_log_level_changes_for_loggers_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        configure_logs(LogOptions(level="warning", format="json"))
        logger = structlog.get_logger("test")
        logger.info("one")
        logger.warning("two")
        async with owned() as node:
            assert await node.call("admin_setLogLevel", "debug") == {"before": "warning", "level": "debug"}
            logger.debug("three")
            assert (await node.call("admin_setLogLevel", "error"))["before"] == "debug"
            logger.warning("four")
            logger.error("five")
            with pytest.raises(Exception, match="one of debug"):
                await node.admin.call("admin_setLogLevel", ["loud"])
    finally:
        structlog.configure(**before)
        logging.getLogger().handlers.clear()
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert [event for event in events if event != "log level set"] == ["two", "three", "five"]


async def test_the_port_takes_the_owner_alone(tmp_path: Path, nursery: trio.Nursery) -> None:
    token_file = tmp_path / "run" / "admin.token"
    async with owned() as node:
        port = await nursery.start(serve_admin, node.admin, "127.0.0.1:0", token_file)
        assert token_file.stat().st_mode & 0o777 == 0o600
        token = {"authorization": f"Bearer {token_file.read_text().strip()}"}
        url = f"http://127.0.0.1:{port}/"
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "method": "admin_status"}
        async with httpx.AsyncClient(timeout=20) as http:

            async def post(content: Any, headers: dict[str, str], path: str = "") -> tuple[int, Any]:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                answer = await http.post(url + path, content=data, headers=headers)
                return answer.status_code, answer.json()

            assert await post(body, token) == (200, {"jsonrpc": "2.0", "id": 5, "result": {"height": 7}})
            for headers, status in (
                ({}, 401),
                ({"authorization": "Bearer x"}, 401),
                ({"authorization": token["authorization"] + "0"}, 401),
                (token | {"origin": "http://localhost"}, 403),
                (token | {"host": "evil.example"}, 403),
            ):
                assert (await post(body, headers))[0] == status, headers
            assert (await post(body, token, "x"))[0] == 404
            assert (await post(b" " * 70_000, token))[0] == 413
            assert (await http.get(url, headers=token)).status_code == 501
            for content, code in (
                (b"", -32700),
                (b"[" * 60_000, -32700),
                (b"\xff", -32700),
                ([body], -32600),
                (body | {"id": [1]}, -32600),
                (body | {"method": "eth_chainId"}, -32601),
                (body | {"method": "admin_banPeer", "params": ["0x1"]}, -32602),
                (body | {"method": "admin_getValidator"}, -32603),  # this one has no consensus: a bug ends nothing
            ):
                status, answer = await post(content, token)
                assert (status, answer["error"]["code"]) == (200, code), content
            assert (await post(body | {"method": "rpc.discover"}, token))[1]["result"] == DOCUMENT
            assert (await post(body | {"method": "admin_stop"}, token))[1]["result"] == {}
        await node.stopped.wait()
        nursery.cancel_scope.cancel()


def test_nothing_of_the_owner_is_at_the_gateway_and_all_of_it_is_described() -> None:
    assert {method["name"] for method in DOCUMENT["methods"]} == set(TABLE)
    assert not any(name.startswith("admin") for name in METHOD_TABLE)
    assert not set(TABLE) & set(METHOD_TABLE) - {"rpc.discover"}


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "192.0.2.1:1", "[::]:1", "example.org:1", "127.0.0.1"])
def test_other_addresses_than_loopback_are_refused(tmp_path: Path, listen: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'kind = "node"\n[admin]\nlisten = "{listen}"\n')
    with pytest.raises(ConfigError):
        load_options(file)
    file.write_text('kind = "node"\n[admin]\nlisten = "127.0.0.1:0"\n')
    assert load_options(file).admin.listen == "127.0.0.1:0"
