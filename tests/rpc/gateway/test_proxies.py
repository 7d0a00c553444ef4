"""Gateways behind proxies: who is believed about who asks, and what follows for budgets."""

from __future__ import annotations

import ipaddress
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.limits import Proxies
from rpc.gateway.process import GatewayOptions
from rpc.process.limits import raise_descriptor_limit
from state.primitives.errors import ConfigError
from tests.rpc.harness import Gateway, Node, gateway, served
from tests.rpc.raw import call

MINE, OTHER = "203.0.113.5", "203.0.113.6"
DEAR = call("eth_getBlockReceipts", "latest")
REFUSED = (WebSocketException, OSError)
"""A connection that is cut off as it opens: the client sees it at one step or another."""
"""Costs more than one unit."""
ADDRESSES = st.ip_addresses().map(str)


@given(st.binary(max_size=100), ADDRESSES)
def test_only_the_last_entry_of_the_header_names_the_client(before: bytes, client: str) -> None:
    assert Proxies.client_of(before + b"," + client.encode()) == client
    assert Proxies.client_of(before + b", " + client.encode() + b" ") == client


@given(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), st.integers(0, 65535))
def test_entries_may_have_a_port(v4: str, v6: str, port: int) -> None:
    assert Proxies.client_of(f"{v4}:{port}".encode()) == v4
    assert Proxies.client_of(f"[{v6}]:{port}".encode()) == Proxies.client_of(f"[{v6}]".encode()) == v6


@given(st.binary(max_size=100) | st.text("0123456789abcdef:.[]%, \xb2", max_size=40).map(str.encode))
def test_whatever_else_a_header_says_is_an_address_or_nothing(said: bytes) -> None:
    found = Proxies.client_of(said)
    assert found is None or ipaddress.ip_address(found)


def test_what_is_no_address_is_nothing() -> None:
    for said in (b"", b",", b"unknown", b"1.2.3.4,", b"1.2.3.4:x", b"[1.2.3.4]", b"[::1]x", b"[::1", b"1" * 65):
        assert Proxies.client_of(said) is None, said


def test_networks_of_proxies() -> None:
    proxies = Proxies(("10.0.0.0/8", "::1", "2001:db8::/32"))
    assert all(map(proxies.include, ("10.9.9.9", "::ffff:10.1.2.3", "::1", "2001:db8:1::2")))
    assert not any(map(proxies.include, ("11.0.0.1", "127.0.0.1", "::2", "", "localhost")))
    assert not Proxies(()).include("10.0.0.1")
    for wrong in ("10.0.0.1/8", "anywhere", ""):
        with pytest.raises(ConfigError, match="trusted_proxies"):
            Proxies((wrong,))


def test_connections_are_counted_for_clients_not_for_their_proxy() -> None:
    doors = ConnectionLimiter(ConnectionOptions(4, 1, trusted_proxies=("10.0.0.1",)))
    assert all(doors.acquire("10.0.0.1", is_proxy=True) for _ in range(3))
    assert doors.transfer_connection("10.0.0.1", MINE)
    assert not doors.transfer_connection("10.0.0.1", MINE), "its one place is taken"
    assert not doors.acquire(MINE)
    assert doors.acquire(OTHER)
    assert not doors.acquire("10.0.0.1", is_proxy=True), "the bound of all holds for proxies too"
    for caller in (MINE, OTHER, "10.0.0.1", "10.0.0.1"):
        doors.release(caller)
    assert doors.open == 0
    assert doors.acquire(MINE)


def limited(proxies: tuple[str, ...]) -> GatewayOptions:
    """Each address may ask one dear question: no units flow in while a test runs."""
    return GatewayOptions(
        "",
        dispatch=DispatchOptions(rate_per_s=1e-9, burst=1),  # type: ignore[arg-type]
        connections=ConnectionOptions(connections_per_address_max=2, trusted_proxies=proxies),
    )


async def is_served(it: Gateway, *headers: tuple[str, str]) -> bool:
    response = await it.http.post(it.url + "/", content=DEAR, headers=httpx.Headers(list(headers)))
    answer = response.json()
    assert "result" in answer or answer["error"]["code"] == -32005, answer
    return "result" in answer


async def test_a_header_from_an_untrusted_address_changes_nothing(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    async with served(node, path) as backend, gateway(backend, path, limited(("10.0.0.0/8",))) as it:
        assert await is_served(it, ("x-forwarded-for", MINE))
        for name in ("x-forwarded-for", "forwarded", "x-real-ip", "x-client-ip"):
            assert not await is_served(it, (name, f"for={OTHER}" if name == "forwarded" else OTHER)), name
        rest = await it.http.get(it.url + "/v1/blocks/1/receipts", headers={"x-forwarded-for": OTHER})
        assert rest.status_code == 429
        async with httpx.AsyncClient() as second:  # the two connections that an address may have
            assert (await second.get(it.url + "/healthz")).status_code == 200
            with pytest.raises(REFUSED):
                await open_socket(it, OTHER)


async def test_users_behind_a_trusted_proxy_have_budgets_of_their_own(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    async with served(node, path) as backend, gateway(backend, path, limited(("127.0.0.1",))) as it:
        assert await is_served(it, ("x-forwarded-for", MINE))
        assert not await is_served(it, ("x-forwarded-for", MINE))
        assert not await is_served(it, ("x-forwarded-for", f"{OTHER}, {MINE}")), "what its client claims"
        assert not await is_served(it, ("x-forwarded-for", OTHER), ("x-forwarded-for", MINE))
        assert not await is_served(it, ("x-forwarded-for", MINE), ("forwarded", f"for={OTHER}"))
        assert await is_served(it, ("x-forwarded-for", f"{MINE}, {OTHER}"))
        # over the same connection: another's request, and one that the proxy says nothing of
        assert await is_served(it)
        assert not await is_served(it)
        assert not await is_served(it, ("x-forwarded-for", "unknown")), "the proxy's own budget"
        # the ways that do not go by the short one
        third = {"x-forwarded-for": "2001:db8::7"}
        assert (await it.http.get(it.url + "/v1/blocks/1/receipts", headers=third)).status_code == 404
        third = {"x-forwarded-for": "2001:db8::8"}
        assert (await it.http.get(it.url + "/v1/blocks/1/receipts", headers=third)).status_code == 429, "one site"


@pytest.mark.slow
async def test_websockets_through_a_proxy_are_those_of_its_clients(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    async with served(node, path) as backend, gateway(backend, path, limited(("127.0.0.1",))) as it:
        sockets = [await open_socket(it, client) for client in (MINE, MINE, OTHER, OTHER)]
        with pytest.raises(REFUSED):
            sockets.append(await open_socket(it, f"{OTHER}, {MINE}"))
        assert [await ask(connection) for connection in sockets] == [True, False, True, False]
        await trio.to_thread.run_sync(sockets.pop(0).close)
        with trio.fail_after(120):
            while True:  # until the gateway has seen that its place is free
                try:
                    sockets.append(await open_socket(it, MINE))
                except REFUSED:
                    continue
                break
        assert not await ask(sockets[-1])
        await close(sockets)


async def open_socket(it: Gateway, forwarded: str) -> ClientConnection:
    return await trio.to_thread.run_sync(
        lambda: connect(
            it.websocket_url, additional_headers={"X-Forwarded-For": forwarded}, open_timeout=20, legacy=True
        )
    )


async def ask(connection: ClientConnection) -> bool:
    await trio.to_thread.run_sync(connection.send, DEAR.decode())
    return "result" in json.loads(await trio.to_thread.run_sync(lambda: connection.recv(20)))


async def close(sockets: list[ClientConnection]) -> None:
    for connection in sockets:
        await trio.to_thread.run_sync(connection.close)


# Open files

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
from rpc.process.limits import raise_descriptor_limit
print(raise_descriptor_limit(200), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("hard", "expected"), [(4096, "200 200 4096"), (128, "128 128 128")])
def test_open_files_are_raised_as_far_as_the_machine_lets(hard: int, expected: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the machine allows fewer")
    run = subprocess.run([sys.executable, "-c", LIMITED.format(hard=hard)], capture_output=True, check=True)
    assert run.stdout.decode().strip() == expected


def test_what_is_enough_is_left_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_descriptor_limit(16) == 16
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


async def test_a_gateway_takes_more_connections_than_the_shell_allows_files(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    options = replace(limited(()), connections=ConnectionOptions(connections_per_address_max=0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, before[1]))  # inherited by the gateway
    try:
        async with served(node, path) as backend, gateway(backend, path, options) as it:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            streams = [await trio.open_tcp_stream("127.0.0.1", it.port) for _ in range(200)]
            assert await is_served(it)
            for stream in streams:
                await trio.aclose_forcefully(stream)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
