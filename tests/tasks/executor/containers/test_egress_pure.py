"""What the proxy of a container decides: addresses, targets, server names; and what is hostile (R131)."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.executor.containers.egress import proxy as proxying
from tasks.executor.containers.egress.addresses import ADDRESSES_MAX, chosen_addresses, is_public, parse_network
from tasks.executor.containers.egress.client_hello import HELLO_BYTES_MAX, HelloReader
from tasks.executor.containers.egress.proxy import EgressLimits, EgressProxy, EgressUse
from tasks.executor.containers.egress.targets import Target, read_authority, read_url
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.executor.containers.settings import environment_of

NEVER: Final = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
    "169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1", "192.0.2.1", "224.0.0.1",
    "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::8.8.8.8",
    "64:ff9b::808:808", "64:ff9b:1::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::1", "3fff::1", "fec0::1", "", "localhost", "8.8.8.8 ", "0x7f.1",
    "2130706433",
)  # fmt: skip


@pytest.mark.parametrize("address", NEVER)
def test_an_address_that_is_not_public_is_never_reached(address: str) -> None:
    assert not is_public(address)
    assert chosen_addresses([address]) == []


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_is_reached_is_global_for_the_library_too(address: ipaddress.IPv4Address) -> None:
    if is_public(str(address)):
        assert address.is_global and not address.is_multicast


def test_networks_that_the_owner_bars_are_not_reached() -> None:
    barred = [parse_network("8.8.8.0/24"), parse_network("2606:4700::/32")]
    networks = tuple(one for one in barred if one is not None)
    assert is_public("8.8.8.8") and is_public("2606:4700::1") and parse_network("8.8.8.8/24") is None
    assert not is_public("8.8.8.8", networks) and not is_public("2606:4700::1", networks)
    assert is_public("8.8.4.4", networks)


def test_few_addresses_are_tried_in_turn() -> None:
    found = ["1.1.1.1", "10.0.0.1", "1.1.1.2", "2606:4700::1", "1.1.1.1", "1.1.1.3", "1.1.1.4"]
    assert chosen_addresses(found) == ["1.1.1.1", "2606:4700::1", "1.1.1.2", "1.1.1.3"]
    assert len(chosen_addresses(found)) == ADDRESSES_MAX


def test_targets_are_names_with_ports() -> None:
    assert read_authority(b"PyPI.org:443") == Target("pypi.org", 443)
    assert read_url(b"http://deb.debian.org/x?y=%20#") == (Target("deb.debian.org", 80), b"/x?y=%20#")
    assert read_url(b"HTTP://a.b:8080") == (Target("a.b", 8080), b"/")
    assert read_url(b"http://a.b?q") == (Target("a.b", 80), b"/?q")


@pytest.mark.parametrize(
    "text",
    [
        b"127.0.0.1:443", b"127.1:443", b"2130706433:443", b"[::1]:443", b"localhost:443", b"a.b", b"a.b:",
        b"a.b:0",
        b"a.b:65536", b"a.b:443 ", b"a.b.:443", b"u@a.b:443", b"a.b:443\r\nX: y", b"a..b:443",
        b"a_b.c:443", b"\xff.b:1",
    ],
)  # fmt: skip
def test_other_targets_are_refused(text: bytes) -> None:
    with pytest.raises(DecodeError):
        read_authority(text)
    with pytest.raises(DecodeError):
        read_url(b"http://" + text + b"/ x")
    with pytest.raises(DecodeError):
        read_url(b"https://a.b/")
    with pytest.raises(DecodeError):
        read_url(b"http://a.b:443/")


def hello(name: str | None) -> bytes:
    """What this machine's own TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def records(message: bytes, size: int) -> bytes:
    """A message of a handshake in records of ``size`` bytes."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def read_server_name(data: bytes) -> str | None:
    return HelloReader().feed(data)


HELLO: Final = hello("Files.Example.NET")


def test_the_server_name_is_found_however_the_bytes_are_cut() -> None:
    assert read_server_name(HELLO) == "files.example.net"
    assert read_server_name(HELLO + b"more") == "files.example.net"
    assert all(read_server_name(HELLO[:at]) is None for at in range(len(HELLO)))
    for size in (1, 7, 100):
        assert read_server_name(records(HELLO[5:], size)) == "files.example.net"


def test_bytes_that_come_one_by_one_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may send each byte in a record of its own: what was read is not read again for every byte."""
    taken, take = list[bool](), HelloReader._take_record

    def noting(reader: HelloReader) -> bool:
        taken.append(take(reader))
        return taken[-1]

    monkeypatch.setattr(HelloReader, "_take_record", noting)
    data, reader = records(HELLO[5:], 1), HelloReader()
    found = [reader.feed(data[at : at + 1]) for at in range(len(data))]
    assert found == [None] * (len(data) - 1) + ["files.example.net"] and reader.data == data
    assert taken.count(True) == len(HELLO) - 5 and taken.count(False) < len(data)


def test_a_hello_without_a_name_or_with_two_is_refused() -> None:
    with pytest.raises(DecodeError, match="0 server names"):
        read_server_name(hello(None))
    one = b"\0\x0a\0\x08\0\0\x05a.b.c"
    with pytest.raises(DecodeError, match="2 server names"):
        read_server_name(_with_extensions(b"\0\0" + one + b"\0\0" + one))
    assert read_server_name(_with_extensions(b"\0\0" + one)) == "a.b.c"


def _with_extensions(extensions: bytes) -> bytes:
    body = (
        b"\x03\x03"
        + bytes(32)
        + b"\0"
        + b"\0\x02\x13\x01"
        + b"\x01\0"
        + len(extensions).to_bytes(2, "big")
        + extensions
    )
    return records(b"\x01" + len(body).to_bytes(3, "big") + body, 1 << 14)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x", b"\x15\x03\x01\0\x02\x01\0", b"\x16\x03\x01\0\x05\x02\0\0\x01\0",
     b"\x16\x03\x01\0\0", b"\x16\x03\x01\xff\xff" + bytes(9),
     HELLO[:5] + b"\x01\xff\xff\xff" + bytes(HELLO_BYTES_MAX)],
)  # fmt: skip
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        read_server_name(data)


@given(st.binary(max_size=600), st.integers(0, len(HELLO)))
def test_damaged_hellos_end_in_a_name_a_wait_or_a_refusal(noise: bytes, at: int) -> None:
    try:
        found = read_server_name(HELLO[:at] + noise)
    except DecodeError:
        return
    assert found is None or found.isascii()


# The proxy, with a server on this machine in the place of one on the Internet

NAMES: Final = ("files.example.net:443", "files.example.net:80", "files.example.net:8080")
LIMITS: Final = EgressLimits()


class Proxied:
    """A proxy whose look-ups a test answers; ``dialled`` are the addresses that it connected to."""

    def __init__(self, found: Sequence[str], limits: EgressLimits, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found, self.dialled, self.lookups = list(found), list[str](), list[str]()
        self.use = EgressUse()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self.proxy = EgressProxy(listening, NAMES, limits, self.use, self.lookup)
        self.origin = socket.create_server(("127.0.0.1", 0))
        self.origin.setblocking(False)
        monkeypatch.setattr(proxying, "_connected", self.connected)
        monkeypatch.setattr(proxying, "_is_own", lambda _address: False)

    async def lookup(self, name: str) -> Sequence[str]:
        self.lookups.append(name)
        if not self.found:
            raise OSError("no such name")
        return self.found

    async def connected(self, address: str, _port: int) -> trio.SocketStream:
        """Connect to the server of the test, whatever the address is."""
        self.dialled.append(address)
        return await trio.open_tcp_stream(*self.origin.getsockname())

    async def accept(self) -> trio.SocketStream:
        connection, _ = await trio.socket.from_stdlib_socket(self.origin.dup()).accept()
        return trio.SocketStream(connection)

    async def ask(self, data: bytes) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        await stream.send_all(data)
        return stream

    async def answer(self, data: bytes) -> bytes:
        """Return all that comes back until the end."""
        stream, found = await self.ask(data), b""
        with trio.fail_after(30):
            while part := await stream.receive_some():
                found += part
        return found


@asynccontextmanager
async def proxied(
    monkeypatch: pytest.MonkeyPatch, *found: str, limits: EgressLimits = LIMITS
) -> AsyncIterator[Proxied]:
    one = Proxied(found or ["44.0.0.1"], limits, monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.proxy.run)
        yield one
        nursery.cancel_scope.cancel()
    one.origin.close()


def connect(entry: str) -> bytes:
    return f"CONNECT {entry} HTTP/1.1\r\nHost: {entry}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (connect("other.example.net:443"), 403, "is not among what this job may reach"),
        (connect("files.example.net:22"), 403, "is not among what this job may reach"),
        (connect("169.254.169.254:80"), 400, "is no host name"),
        (connect("127.0.0.1:8545"), 400, "is no host name"),
        (connect("[::1]:443"), 400, "name:port expected"),
        (b"GET / HTTP/1.1\r\nHost: files.example.net\r\n\r\n", 400, "expected"),
        (b"GET https://files.example.net/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "CONNECT"),
        (b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: x\r\n\r\n", 400, "is no host name"),
        (b"CONNECT files.example.net:443 HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431, ""),
        (b"\x16\x03\x01 nonsense \r\n\r\n", 400, ""),
    ],
)
async def test_n60_nothing_is_looked_up_for_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, data: bytes, status: int, said: str
) -> None:
    """A name that is not in the job is never looked up, so look-ups carry nothing out."""
    async with proxied(monkeypatch) as one:
        found = await one.answer(data)
    assert found.startswith(f"HTTP/1.1 {status} ".encode()) and said in found.decode()
    assert (one.lookups, one.dialled, one.use.refused) == ([], [], 1)


@pytest.mark.parametrize("found", [["169.254.169.254"], ["127.0.0.1", "::1"], ["10.0.0.1"], ["64:ff9b::a00:1"]])
async def test_n60_a_name_of_an_inner_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    """A name of the job that leads to the machine, its neighbours or its cloud."""
    async with proxied(monkeypatch, *found) as one:
        assert (await one.answer(connect("files.example.net:443"))).startswith(b"HTTP/1.1 403 no public address")
    assert one.dialled == []


async def test_the_machines_own_address_is_refused() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    port = listening.getsockname()[1]
    with pytest.raises(OSError, match="of this machine"):
        await proxying._connected("127.0.0.1", port)
    assert proxying._is_own("127.0.0.1")
    listening.close()


async def test_n60_a_name_is_looked_up_once_and_connected_to_as_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name whose second answer would be another address is not asked a second time."""
    async with proxied(monkeypatch, "44.0.0.1") as one:
        client = await one.ask(connect("files.example.net:8080"))
        server = await one.accept()
        one.found = ["127.0.0.1"]
        await client.send_all(b"ping")
        await client.send_eof()
        assert await server.receive_some() == b"ping"
        await server.aclose()
    assert (one.lookups, one.dialled) == (["files.example.net"], ["44.0.0.1"])


async def test_n61_tls_goes_to_the_server_that_connect_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONNECT to one name, and TLS to another one behind the same address."""
    async with proxied(monkeypatch) as one:
        for first in (hello("other.example.net"), hello(None), b"SSH-2.0-tunnel\r\n"):
            client = await one.ask(connect("files.example.net:443"))
            server = await one.accept()
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200 ")
            await client.send_all(first)
            with trio.fail_after(10):
                assert await server.receive_some() == b"", "bytes have passed"
            await client.aclose()
        client = await one.ask(connect("files.example.net:443"))
        server = await one.accept()
        for at in range(0, len(HELLO), 50):
            await client.send_all(HELLO[at : at + 50])
        got = b""
        while len(got) < len(HELLO):
            got += await server.receive_some()
        assert got == HELLO
        await server.send_all(b"hello")
        found = b""
        while not found.endswith(b"hello"):
            found += await client.receive_some()
    assert one.use.refused == 3 and one.use.sent_bytes == len(HELLO) and one.use.received_bytes == 5


async def test_n61_a_plain_request_is_made_again_from_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Host header for another site, and a second request behind the first one."""
    data = (
        b"POST http://files.example.net/in HTTP/1.1\r\nHost: other.example.net\r\nProxy-Authorization: x\r\n"
        b"Connection: keep-alive\r\nContent-Length: 4\r\n\r\nbody"
        b"GET http://other.example.net/ HTTP/1.1\r\nHost: other.example.net\r\n\r\n"
    )
    async with proxied(monkeypatch) as one:
        client = await one.ask(data)
        server = await one.accept()
        got = b""
        while b"body" not in got:
            got += await server.receive_some()
        await server.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await server.aclose()
        found = b""
        with trio.fail_after(10):
            while part := await client.receive_some():
                found += part
    assert found.endswith(b"\r\n\r\nok")
    assert got.lower().count(b"host:") == 1 and b"host: files.example.net\r\n" in got.lower()
    assert b"other" not in got and b"proxy-" not in got.lower() and b"connection: close" in got.lower()


async def test_n61_a_request_with_two_lengths_has_one_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that believed Content-Length would take what comes behind it for a second request."""
    data = (
        b"POST http://files.example.net/in HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    )
    async with proxied(monkeypatch) as one:
        client = await one.ask(data)
        server = await one.accept()
        got = b""
        with trio.fail_after(10):
            while not got.endswith(b"0\r\n\r\n"):
                got += await server.receive_some()
        await server.aclose()
        await client.aclose()
    assert b"transfer-encoding: chunked\r\n" in got.lower() and b"content-length" not in got.lower()
    assert got.endswith(b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n")


async def test_a_refused_head_is_answered_without_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch) as one:
        found = await one.answer(b"HEAD http://other.example.net/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 403 ") and found.endswith(b"\r\n\r\n")


async def test_slow_heads_and_many_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "HEAD_S", 0.3)
    monkeypatch.setattr(proxying, "CONNECTIONS_MAX", 4)
    async with proxied(monkeypatch) as one:
        slow = [await one.ask(b"CONNECT files") for _ in range(4)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        late = await one.ask(b"")
        with trio.fail_after(10):
            assert await late.receive_some() == b"", "a fifth connection is closed at once"
            for stream in slow:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 408 ")
            for stream in (*slow, late):
                await stream.aclose()
        assert (await one.answer(connect("a.example.net:443"))).startswith(b"HTTP/1.1 403 ")


async def test_a_container_that_has_moved_its_bytes_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch, limits=EgressLimits(bytes_max=1000)) as one:
        client = await one.ask(connect("files.example.net:8080"))
        server = await one.accept()
        await client.send_all(b"x" * 800)
        with trio.fail_after(10):
            while await server.receive_some():
                if one.use.sent_bytes == 800:
                    break
            await server.send_all(b"y" * 300)
            with pytest.raises(trio.BrokenResourceError):
                while await server.receive_some():
                    pass
                raise trio.BrokenResourceError
    assert one.use.bytes <= 1000


async def test_an_idle_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "IDLE_S", 0.3)
    async with proxied(monkeypatch) as one:
        client = await one.ask(connect("files.example.net:8080"))
        server = await one.accept()
        with trio.fail_after(10):
            assert await server.receive_some() == b""
            while await client.receive_some():
                pass


async def test_a_name_that_cannot_be_looked_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch) as one:
        one.found = []
        found = await one.answer(connect("files.example.net:443"))
    assert found.startswith(b"HTTP/1.1 502 no such name")


REQUEST: Final = ContainerRequest(
    Image("a/b", bytes(32)), Limits(1, 64, 32, 0, 60), egress=("pypi.org:443",), environment=("HTTPS_PROXY=own",)
)


def test_programs_are_told_of_the_proxy_unless_the_job_says_otherwise() -> None:
    found = dict(one.split("=", 1) for one in environment_of(REQUEST))
    assert found["HTTPS_PROXY"] == "own" and "https_proxy" not in found
    assert found["HTTP_PROXY"] == found["http_proxy"] == "http://127.0.0.1:3128"
    assert "HTTP_PROXY" not in dict(one.split("=", 1) for one in environment_of(ContainerRequest(*REQUEST_PARTS)))


REQUEST_PARTS: Final = REQUEST.image, REQUEST.limits
