"""Where strangers may send this node, and that their slow names keep nothing else waiting."""

from __future__ import annotations

import socket
import threading
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from p2p.base.dial_policy import DialPolicy, Zone, zone_of
from p2p.base.endpoint import Endpoint
from p2p.base.sockets import LOOKUPS_MAX, Connector
from p2p.records.records import sign_record
from p2p.service import Network, NetworkConfig, dial_policy_of
from tests.p2p.helpers import NOW_MS, identity

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@given(ADDRESSES)
def test_without_anything_named_only_what_is_reached_from_everywhere_is_dialled(
    address: IPv4Address | IPv6Address,
) -> None:
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
    expected = inner.is_global and not inner.is_multicast and not inner.is_unspecified and not inner.is_loopback
    assert DialPolicy().may_dial(str(address)) == expected


@given(st.ip_addresses(v=4))
def test_an_address_in_the_clothes_of_the_other_family_is_the_same_address(address: IPv4Address) -> None:
    assert zone_of(f"::ffff:{address}") == zone_of(str(address))


@pytest.mark.parametrize(
    ("named", "machine", "inner"),
    [
        ((), False, False),
        (("8.8.8.8", "node.example.org", "0.0.0.0", "::"), False, False),
        (("127.0.0.1",), True, False),
        (("localhost",), True, False),
        (("192.168.7.1",), False, True),
        (("fd00::1",), False, True),
        (("validator-0",), False, True),
        (("::1", "10.0.0.1"), True, True),
    ],
)
def test_the_zones_that_the_owner_names_are_open_and_no_others(
    named: tuple[str, ...], machine: bool, inner: bool
) -> None:
    made = DialPolicy(named)
    assert [made.may_dial(host) for host in ("127.8.0.1", "::1")] == [machine] * 2
    assert [made.may_dial(host) for host in ("10.1.2.3", "169.254.169.254", "fe80::1", "100.64.0.1")] == [
        inner
    ] * 4
    assert made.may_dial("1.1.1.1") and not made.may_dial("0.0.0.0") and not made.may_dial("224.0.0.1")


def test_a_host_named_later_opens_itself_alone() -> None:
    made = DialPolicy()
    made.name("10.0.0.1")
    assert made.may_dial("10.0.0.1") and not made.may_dial("10.0.0.2")
    assert zone_of("node.example.org") is None and zone_of("127.0.0.1") is Zone.MACHINE


def test_a_configuration_names_its_hosts() -> None:
    relay = Endpoint("10.0.0.1", 1, b"r" * 20)
    assert not dial_policy_of(NetworkConfig(listen=(("0.0.0.0", 1),))).may_dial("127.0.0.1")
    assert dial_policy_of(NetworkConfig(listen=(("127.0.0.1", 0),))).may_dial("127.0.0.1")
    assert dial_policy_of(NetworkConfig(bootstrap=("127.0.0.1:5",))).may_dial("127.0.0.2")
    assert dial_policy_of(NetworkConfig(), [relay]).may_dial("10.9.9.9")
    assert dial_policy_of(NetworkConfig(dial_inner=True)).may_dial("10.9.9.9")


async def test_a_name_is_judged_by_what_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, *_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ("127.0.0.1", "9.9.9.9")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    made = Connector(DialPolicy(["own.example.org"]))
    assert await made.look_up("strange.example.org") == ["9.9.9.9"]
    assert await made.look_up("own.example.org") == ["127.0.0.1", "9.9.9.9"]
    with pytest.raises(OSError, match="no address"):
        await made.look_up("127.0.0.1")


async def test_slow_names_of_strangers_keep_neither_the_chains_threads_nor_the_owners_names_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty names that take for ever, given up and asked again: as many threads wait as are kept for them."""
    answer, waiting = threading.Event(), threading.Semaphore(0)
    counts = {"now": 0, "most": 0}
    lock = threading.Lock()

    def slow(host: str, *_: Any) -> list[Any]:
        if host != "own.example.org":
            with lock:
                counts["now"] += 1
                counts["most"] = max(counts["most"], counts["now"])
            waiting.release()
            answer.wait(60)
            with lock:
                counts["now"] -= 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("9.9.9.9", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    made = Connector(DialPolicy(["own.example.org"]))
    free = trio.to_thread.current_default_thread_limiter()
    try:
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(made.look_up, f"h{number}.example.org")
            for _ in range(LOOKUPS_MAX):
                await trio.to_thread.run_sync(waiting.acquire)
            assert free.borrowed_tokens == 0
            assert await made.look_up("own.example.org") == ["9.9.9.9"]
            nursery.cancel_scope.cancel()
        assert free.borrowed_tokens == 0 and counts["most"] == LOOKUPS_MAX
    finally:
        answer.set()


async def test_of_several_addresses_the_one_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    def found(host: str, *_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ("127.0.0.2", "127.0.0.1")]

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda h, *a: found(h) if h == "two" else real(h, *a))
    made = Connector(DialPolicy(["localhost"]))
    async with await made.connect("two", port) as stream:
        assert stream.socket.getpeername()[0] == "127.0.0.1"
    await listeners[0].aclose()
    with pytest.raises(OSError):
        await made.connect("two", port)


async def test_a_strangers_record_leads_to_no_door_inside() -> None:
    """The same record, of a listener on loopback: who listens in the open does not knock there."""
    doors = await trio.open_tcp_listeners(0, host="127.0.0.1")
    door = Endpoint("127.0.0.1", doors[0].socket.getsockname()[1])
    record = sign_record(identity(9), (door,), now_ms=NOW_MS)
    node = Network(NetworkConfig(), identity(1), now_ms=lambda: NOW_MS)
    inner = Network(NetworkConfig(dial_inner=True), identity(2), now_ms=lambda: NOW_MS)
    knocked = trio.Event()

    async def wait() -> None:
        async with await doors[0].accept():
            knocked.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await nursery.start(node.run)
        node.parts.book.add(record, source=b"s" * 20)
        while node.counters["dials_failed"] < 2:  # noqa: ASYNC110 - has no event
            await trio.sleep(0.1)
        assert not knocked.is_set()
        await nursery.start(inner.run)
        inner.parts.book.add(record, source=b"s" * 20)
        await knocked.wait()
        nursery.cancel_scope.cancel()
