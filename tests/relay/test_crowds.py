"""A relay that is full: no block of addresses keeps the others out, however many hosts and networks it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.limits import HalfOpenSlot
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Purpose
from p2p.session.connection import run_handshake
from relay.protocol.errors import Refusal
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.protocol.wire import (
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    Connect,
    ControlChannel,
    Extend,
    Incoming,
    Message,
    Offered,
    Park,
    Reserve,
    Reserved,
    Terms,
)
from relay.server.admission import ConnectionAdmission
from relay.server.core import Drop, Effect, End, Join, Refuse, Send
from tests.relay.daemon_process import DaemonProcess, identity_of
from tests.relay.nodes import wait_until
from tests.relay.server.test_core import LIMITS, Relay, refusal_of


def name(number: int) -> bytes:
    return number.to_bytes(20, "big")


def crowded(limits: RelayLimits, *, hosts: int) -> Relay:
    """Return a relay where a target is reserved and a crowd of so many hosts, one a /48, is connected."""
    relay = Relay(limits)
    relay.join(1, name(1), "198.51.100.1")
    relay.say(1, Reserve(1, 60))
    for number in range(hosts):
        relay.join(100 + number, name(100 + number), f"2a00:1:{number:x}::1")
    relay.join(2, name(2), "203.0.113.1")
    return relay


def test_pending_circuits_of_one_block_make_room_for_another_s() -> None:
    relay = crowded(replace(LIMITS, pending_max=8), hosts=12)
    for number in range(12):
        answer = relay.say(100 + number, Connect(1, name(1)))
        assert (len(answer) == 2) == (number < 8)
    effects = relay.say(2, Connect(1, name(1)))
    assert relay.core.pending == 8 and relay.core.refusals[Refusal.RELAY_FULL] == 4
    assert len(effects) == 2
    # And it is not pushed out again.
    assert refusal_of(relay.say(108, Connect(1, name(1)))) is Refusal.RELAY_FULL


def join(relay: Relay, control: int, target: bytes = name(1)) -> list[Effect]:
    """Return what follows when both ends of a circuit that ``control`` asks for have come."""
    mine, theirs = relay.offer(control, target)
    end = 1000 + 2 * relay.core._number
    assert relay.core.data_opened(end, mine) == []
    return relay.core.data_opened(end + 1, theirs)


def test_circuits_that_run_make_room_too_once_the_newcomer_s_is_joined() -> None:
    relay = crowded(replace(LIMITS, circuits_max=4), hosts=5)
    joined = [effect for number in range(4) for effect in join(relay, 100 + number)]
    assert [type(effect) for effect in joined] == [Join] * 4
    last = joined[-1]
    assert isinstance(last, Join)
    mine, theirs = relay.offer(2, name(1))
    assert relay.core.data_opened(11, mine) == []
    assert (relay.core.circuits, relay.core.pending) == (4, 1), "on top, until it is really there"
    ended, joining = relay.core.data_opened(12, theirs)
    assert ended == End(last.circuit, "evicted") and isinstance(joining, Join)
    relay.core.circuit_closed(last.circuit)  # the shell says so when both ends are closed
    assert (relay.core.circuits, relay.core.pending) == (4, 0)
    assert refusal_of(relay.say(104, Connect(1, name(1)))) is Refusal.RELAY_FULL


def test_who_finds_no_room_any_more_when_it_is_joined_is_told_so() -> None:
    relay = crowded(replace(LIMITS, circuits_max=3), hosts=3)
    for number in range(3):
        join(relay, 100 + number)
    relay.join(3, name(3), "203.0.113.2")
    offers = [relay.offer(control, name(1)) for control in (2, 3)]
    ended, _ = [
        effect for end, token in enumerate(offers[0]) for effect in relay.core.data_opened(11 + end, token)
    ]
    assert isinstance(ended, End)
    answers = [effect for end, token in enumerate(offers[1]) for effect in relay.core.data_opened(21 + end, token)]
    assert answers == [Refuse(21, Refusal.RELAY_FULL), Refuse(22, Refusal.RELAY_FULL)]
    assert (relay.core.circuits, relay.core.pending) == (3, 0)


def test_a_circuit_that_waits_for_a_parked_connection_alone_takes_its_place_when_it_comes() -> None:
    relay = crowded(replace(LIMITS, circuits_max=2), hosts=2)
    for number in range(2):
        join(relay, 100 + number)
    relay.say(1, Park(b"p" * 32))
    relay.core.data_opened(30, b"p" * 32)
    (offered,) = relay.say(2, Connect(1, name(1)))
    assert isinstance(offered, Send) and isinstance(offered.message, Offered)
    assert [type(effect) for effect in relay.core.data_opened(31, offered.message.token)] == [End, Join]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans(), st.booleans()), max_size=60))
def test_who_only_asks_ends_nothing_that_runs(attack: list[tuple[int, int, bool, bool]]) -> None:
    """Connects and Extends from any number of blocks, with one end shown or none, at a relay that is full."""
    relay = crowded(replace(LIMITS, circuits_max=4, pending_max=6), hosts=4)
    relay.join(3, bytes([1]) * 20, "198.51.100.3")
    relay.say(3, Reserve(1, 60))  # for routes
    running = [effect.circuit for number in range(4) for effect in join(relay, 100 + number)]  # type: ignore[union-attr]
    for count, (block, network, is_route, is_shown) in enumerate(attack):
        number = 1000 + count
        relay.join(number, bytes([103 if is_route else 150 + count]) * 20, f"2b00:{block:x}:{network:x}::1")
        route = bytes((103, 101, 150 + count, 1, count))
        effects = relay.say(number, Extend(1, route) if is_route else Connect(1, name(1)))
        for effect in [*effects]:
            if is_shown and isinstance(effect, Send) and isinstance(effect.message, Offered):
                effects += relay.core.data_opened(5_000 + count, effect.message.token)
        assert not any(isinstance(effect, End | Join) for effect in effects)
        assert relay.core.pending <= 6
    assert relay.core.circuits == 4 and set(relay.core._running) == set(running)


def test_a_payer_whose_own_circuit_makes_room_for_its_next_one_is_still_counted() -> None:
    relay = Relay(replace(LIMITS, pending_max=4, pending_per_client_max=3))
    payer = 50
    for target in (2, 3):
        relay.join(target, bytes([target]) * 20, f"198.51.100.{target}")
        relay.say(target, Reserve(1, 60))
    for hop, host in ((103, "91.1.1.1"), (104, "92.1.1.1"), (105, "91.1.2.1")):
        relay.join(hop, bytes([hop]) * 20, host)

    def extend(hop: int, dialler: int, nonce: int) -> list[Effect]:
        target = 3 if dialler == payer else 2
        return relay.say(hop, Extend(nonce, bytes((hop, 101, dialler, target, nonce))))

    for number in (1, 2, 3):
        extend(105, 60 + number, number)
    extend(103, payer, 10)
    extend(104, payer, 11)
    assert relay.core.pending == 4  # one that waits is the payer's, its first has made room
    relay.core.control_closed(105)
    for nonce in (12, 13):
        extend(104, payer, nonce)
    assert relay.core.pending == 3
    assert refusal_of(extend(104, payer, 14)) is Refusal.CLIENT_LIMIT


def test_reservations_make_room_too() -> None:
    relay = crowded(replace(LIMITS, reservations_max=4), hosts=5)
    for number in range(5):
        relay.say(100 + number, Reserve(1, 60))
    assert relay.core.reservations == 4 and relay.core.refusals[Refusal.RELAY_FULL] == 2  # the target has one
    dropped, answer = relay.say(2, Reserve(1, 60))
    assert dropped == Drop(102, "evicted") and isinstance(answer.message, Reserved)  # type: ignore[union-attr]
    assert relay.core.is_reserved(name(2), 0) and relay.core.is_reserved(name(1), 0)


def test_one_network_has_a_bound_of_its_own() -> None:
    relay = Relay(replace(LIMITS, circuits_per_network_max=3, pending_per_network_max=2))
    relay.join(1, name(1), "198.51.100.1")
    relay.say(1, Reserve(1, 60))
    for number in range(4):
        relay.join(100 + number, name(100 + number), f"2a00:1:1:{number:x}::1")
    for number in range(2):
        mine, theirs = relay.offer(100 + number, name(1))
        if not number:
            relay.core.data_opened(11, mine)
            relay.core.data_opened(12, theirs)
    relay.offer(102, name(1))
    assert refusal_of(relay.say(103, Connect(1, name(1)))) is Refusal.HOST_LIMIT
    relay.core.circuit_closed(1)
    assert refusal_of(relay.say(103, Connect(1, name(1)))) is Refusal.HOST_LIMIT  # two wait
    relay.now_ms = 10_000
    relay.core.tick(relay.now_ms)
    relay.offer(103, name(1))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=60))
def test_whoever_is_alone_in_its_block_keeps_its_circuit(attack: list[tuple[int, int, bool]]) -> None:
    relay = crowded(replace(LIMITS, circuits_max=8, pending_max=6), hosts=0)
    mine, theirs = relay.offer(2, name(1))
    relay.core.data_opened(11, mine)
    relay.core.data_opened(12, theirs)
    for count, (block, network, is_joined) in enumerate(attack):
        relay.join(1000 + count, name(1000 + count), f"2a00:{block:x}:{network:x}::1")
        effects = relay.say(1000 + count, Connect(1, name(1)))
        assert all(isinstance(e, Refuse | Send) for e in effects)
        tokens = [
            e.message.token for e in effects if isinstance(e, Send) and isinstance(e.message, Offered | Incoming)
        ]
        for end, token in enumerate(tokens if is_joined else ()):
            effects += relay.core.data_opened(5_000 + 2 * count + end, token)
        ended = [effect.circuit for effect in effects if isinstance(effect, End)]
        assert relay.core.circuits <= 8 and relay.core.pending <= 6
        assert 1 not in ended and 1 in relay.core._running


class Caller:
    """A client that dials from one address of this machine."""

    def __init__(self, who: str, stream: trio.SocketStream) -> None:
        self.who, self.stream = who, stream
        self.channel: ControlChannel | None = None

    @classmethod
    async def dial(cls, daemon: DaemonProcess, who: str, host: str) -> Caller:
        stream = await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address=host)
        caller = cls(who, stream)
        handshake = Handshake(
            identity_of(who), Purpose.RELAY_CONTROL, is_initiator=True, now_ms=time.time_ns() // 1_000_000
        )
        caller.channel = ControlChannel(await run_handshake(stream, handshake, preamble=CONTROL_PREAMBLE))
        return caller

    async def ask(self, message: Message) -> Message:
        assert self.channel is not None
        await self.stream.send_all(self.channel.seal(message))
        while True:
            for heard in self.channel.receive(bytes(await self.stream.receive_some())):
                if not isinstance(heard, Terms):
                    return heard


async def test_a_relay_full_of_one_block_takes_a_newcomer_of_another(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(connections_max=12, connections_per_network_max=6, trusted_networks=[])
    with trio.fail_after(120):
        crowd = [await Caller.dial(daemon, f"crowd {n}", f"127.10.{n % 4}.{n + 1}") for n in range(12)]
        with pytest.raises((trio.BrokenResourceError, OSError, Exception)):
            await Caller.dial(daemon, "one more", "127.10.9.9")
        honest = await Caller.dial(daemon, "honest", "127.20.0.1")
        assert isinstance(await honest.ask(Reserve(1, 60)), Reserved)
        for n in range(6):
            with pytest.raises((trio.BrokenResourceError, OSError, Exception)):
                await Caller.dial(daemon, f"more {n}", f"127.10.{n}.99")
        assert isinstance(await honest.ask(Reserve(2, 60)), Reserved)
        dialler = await Caller.dial(daemon, "dialler", "127.21.0.1")
        assert isinstance(await dialler.ask(Connect(1, identity_of("honest").address)), Offered)
        await wait_until(lambda: daemon.metrics()['dekube_relay_drops_total{reason="evicted"}'] == 2)
        assert daemon.metrics()["dekube_relay_connections"] == 12
        for caller in (*crowd, honest, dialler):
            await trio.aclose_forcefully(caller.stream)


class Gate:
    """A door that is full of one block, and what it has dropped."""

    def __init__(self, places_max: int) -> None:
        limits = replace(LIMITS, connections_max=places_max, half_open_max=4)
        self.dropped: list[tuple[object, str]] = []
        self.door = ConnectionAdmission(
            limits, HostTable(limits), lambda who, why, _ip: self.dropped.append((who, why))
        )
        for number in range(places_max):
            transport, host, place = self.knock(f"91.1.{number}.1")
            assert self.door.promote(transport, f"91.1.{number}.1", host, place)

    def knock(self, ip: str) -> tuple[asyncio.Transport, HostUse, HalfOpenSlot]:
        transport = asyncio.Transport()
        answer = self.door.admit(transport, ip, 0)
        assert not isinstance(answer, str)
        return transport, *answer


def test_nobody_has_to_go_for_those_who_have_proved_nothing() -> None:
    gate = Gate(6)
    strangers = [(f"{50 + number}.7.1.1", gate.knock(f"{50 + number}.7.1.1")) for number in range(8)]
    assert [why for _, why in gate.dropped] == ["half_open_lost"] * 4 and gate.door.half_open == 4
    for transport, _ in gate.dropped:
        ip, (_, host, place) = next(stranger for stranger in strangers if stranger[1][0] is transport)
        gate.door.handshake_ended(host, place)
        gate.door.connection_closed(transport)  # type: ignore[arg-type]
    gate.dropped.clear()
    assert gate.door.admit(asyncio.Transport(), "91.1.77.1", 0) == "connections"
    for at, (ip, (transport, host, place)) in enumerate(strangers[4:]):
        assert gate.door.promote(transport, ip, host, place)
        assert [why for _, why in gate.dropped] == ["evicted"] * (at + 1)


def test_three_blocks_that_use_up_the_rate_leave_a_part_of_it_to_others() -> None:
    limits = replace(LIMITS, accepts_burst=300, half_open_max=1_000)
    door = ConnectionAdmission(limits, HostTable(limits), lambda *_: None)
    answers = [
        door.admit(asyncio.Transport(), f"{50 + block}.7.{number % 250}.{number // 250}", 0)
        for number in range(300)
        for block in range(3)
    ]
    assert sum(not isinstance(answer, str) for answer in answers) == limits.accepts_burst
    assert "rate" in answers
    for number in (1, 2):
        assert not isinstance(door.admit(asyncio.Transport(), f"91.1.{number}.1", 0), str)
    assert door.admit(asyncio.Transport(), "91.1.3.1", 0) == "rate"


def test_who_has_proved_itself_when_nobody_gives_way_any_more_is_turned_away() -> None:
    gate = Gate(2)
    first, second = (gate.knock(ip) for ip in ("50.7.1.1", "51.7.1.1"))
    assert gate.door.promote(first[0], "50.7.1.1", *first[1:])
    assert not gate.door.promote(second[0], "51.7.1.1", *second[1:])
    assert [why for _, why in gate.dropped] == ["evicted", "refused_connections"]
    assert gate.dropped[1][0] is second[0]


async def test_connections_that_prove_nothing_end_none_of_a_full_relay(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(connections_max=4, trusted_networks=[])
    with trio.fail_after(120):
        crowd = [await Caller.dial(daemon, f"crowd {n}", f"127.10.{n}.1") for n in range(4)]
        silent = [
            await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address=f"127.{20 + n}.0.1")
            for n in range(4)
        ]
        for stream in silent[:2]:
            await stream.send_all(DATA_PREAMBLE + bytes(32))  # a token of nobody
            assert await stream.receive_some() == bytes((Refusal.BAD_TOKEN,))
        await wait_until(lambda: daemon.metrics()["dekube_relay_half_open"] == 2)
        for caller in crowd:
            assert isinstance(await caller.ask(Reserve(1, 60)), Reserved)
        honest = await Caller.dial(daemon, "honest", "127.30.0.1")
        assert isinstance(await honest.ask(Reserve(1, 60)), Reserved)
        assert daemon.metrics()['dekube_relay_drops_total{reason="evicted"}'] == 1
        for stream in (*silent, honest.stream, *(caller.stream for caller in crowd)):
            await trio.aclose_forcefully(stream)


async def test_half_open_connections_of_one_block_make_room(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(half_open_max=6, half_open_per_host_max=2, trusted_networks=[], handshake_ms_max=60_000)
    with trio.fail_after(120):
        silent = [
            await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address=f"127.10.{n}.1") for n in range(9)
        ]
        honest = await Caller.dial(daemon, "honest", "127.20.0.1")
        assert isinstance(await honest.ask(Reserve(1, 60)), Reserved)
        await wait_until(lambda: daemon.metrics()["dekube_relay_half_open"] <= 6)
        assert daemon.metrics()['dekube_relay_drops_total{reason="half_open_lost"}'] >= 3
        for stream in (*silent, honest.stream):
            await trio.aclose_forcefully(stream)
