"""Dial-back with real listeners on loopback; networks of other /16 are other loopback addresses."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from p2p.base.dial_policy import DialPolicy
from p2p.base.endpoint import Endpoint
from p2p.base.errors import RequestRefused, RequestTimeout
from p2p.base.netgroups import block_of
from p2p.base.sockets import Connector
from p2p.path.dial_back import (
    METHOD_DIAL_BACK,
    SOURCE_LISTEN,
    DialBack,
    DialBackOptions,
)
from p2p.path.endpoint_status import DialBackAnswer, DialBackResults, EndpointStatus
from p2p.secure.identity import Role
from p2p.service import Network, NetworkConfig
from p2p.session.peerinfo import PeerInfo
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.p2p.helpers import NOW_MS, identity


def info(address: bytes, remote: str) -> PeerInfo:
    host = None if remote.startswith("relay") else remote
    return PeerInfo(address, Role(0), True, f"tcp:{remote}:1", None, 0.0, 0.0, 0, 0, host=host)


def says(host: str, is_reached: bool) -> bytes:
    return DialBackAnswer(host, is_reached).encode()


class Fake:
    """A network whose peers answer as they are told; dial-backs of others are the real thing."""

    def __init__(self, peers: list[PeerInfo], answers: dict[bytes, bytes | Exception]) -> None:
        self.identity = identity(7)
        self.answers = answers
        self.asked: list[bytes] = []
        self._peers = peers
        self.direct: tuple[Endpoint, ...] = (OWN,)
        self.open_ports: tuple[int, ...] = ()
        self.silent: set[str] = set()
        """Hosts from which no connection is seen to come."""
        self.connector = Connector(DialPolicy())
        self.advertised: list[tuple[Endpoint, ...]] = []

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        raise AssertionError("nobody comes this way")

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        assert source == SOURCE_LISTEN
        self.advertised.append(endpoints)

    def peers(self) -> list[PeerInfo]:
        return self._peers

    def peer(self, address: bytes) -> PeerInfo | None:
        return next((info for info in self._peers if info.address == address), None)

    def arrived_at(self, host: str) -> float:
        return -1.0 if host in self.silent else trio.current_time()

    def on_request(self, method: str, handler: object) -> None:
        assert method == METHOD_DIAL_BACK

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


OWN = Endpoint("8.8.4.4", 26_600)
YES, NO = says(OWN.host, True), says(OWN.host, False)


def made(fake: Fake, options: DialBackOptions | None = None) -> DialBack:
    reach = DialBack(options, now_ms=lambda: NOW_MS)
    reach.attach(fake)
    return reach


def reach_of(remotes: dict[bytes, tuple[str, bytes | Exception]]) -> tuple[DialBack, Fake]:
    fake = Fake(
        [info(a, remote) for a, (remote, _) in remotes.items()], {a: said for a, (_, said) in remotes.items()}
    )
    return made(fake), fake


def nowhere(answers: dict[bytes, tuple[str, bytes | Exception]]) -> tuple[DialBack, Fake]:
    """The same, of a node that listens everywhere and was not told where that is."""
    reach, fake = reach_of(answers)
    fake.direct, fake.open_ports = (), (26_600,)
    return reach, fake


async def played(reach: DialBack, fake: Fake, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await reach.run(fake)


async def test_two_networks_make_an_endpoint_public(autojump_clock: object) -> None:
    reach, fake = reach_of({b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)})
    await played(reach, fake, 1)
    assert reach.verdicts == {OWN: EndpointStatus.PUBLIC}
    assert fake.advertised == [(OWN,)]
    assert fake.asked == [b"a", b"b"]


async def test_one_network_is_not_enough_however_many_peers_it_has(autojump_clock: object) -> None:
    reach, fake = reach_of({bytes([i]): (f"192.0.2.{i}", YES) for i in range(1, 9)})
    await played(reach, fake, 200)
    assert reach.verdict(OWN) is EndpointStatus.UNKNOWN
    assert not fake.advertised
    assert len(fake.asked) <= 4  # a minute between two questions to one network


async def test_no_from_two_networks_closes_it_and_relayed_peers_are_not_asked(autojump_clock: object) -> None:
    relay = f"relay:{'ab' * 20}:h:1"
    reach, fake = reach_of({b"r": (relay, YES), b"a": ("192.0.2.1", NO), b"b": ("2001:db8::1", NO)})
    await played(reach, fake, 1)
    assert reach.verdict(OWN) is EndpointStatus.CLOSED
    assert fake.advertised == [()]
    assert b"r" not in fake.asked


async def test_a_port_that_was_closed_since_those_who_reached_it_left_is_found_closed(
    autojump_clock: object,
) -> None:
    first = {b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)}
    then = {bytes([n]): (f"198.{n}.100.1", NO) for n in range(1, 40)}
    reach, fake = reach_of({**first, **then})
    everybody = fake.peers()
    async with trio.open_nursery() as nursery:
        fake._peers = everybody[:2]
        nursery.start_soon(reach.run, fake)
        await trio.sleep(1)
        assert reach.verdict(OWN) is EndpointStatus.PUBLIC
        for at in range(2, len(everybody), 2):  # others, and others again, for ten hours
            fake._peers = everybody[at : at + 2]
            await trio.sleep(2_000)
        assert reach.verdict(OWN) is EndpointStatus.CLOSED
        assert fake.advertised[-1] == ()
        assert len(reach._votes[OWN].said) <= 8 and len(reach._asked_at) <= 8
        nursery.cancel_scope.cancel()


async def test_refusals_say_nothing(autojump_clock: object) -> None:
    reach, fake = reach_of({b"a": ("192.0.2.1", RequestRefused("busy")), b"b": ("203.0.113.1", NO)})
    await played(reach, fake, 100)
    assert not fake.advertised


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_a_network_has_one_voice(said: list[tuple[int, bool]]) -> None:
    votes = DialBackResults(2)
    for network, is_reached in said:
        votes.add(str(network), is_reached)
    last = dict(said)
    yes = sum(last.values())
    is_closed = not yes and len(last) >= 2
    expected = (
        EndpointStatus.PUBLIC if yes >= 2 else EndpointStatus.CLOSED if is_closed else EndpointStatus.UNKNOWN
    )
    assert votes.verdict is expected


def test_networks() -> None:
    assert block_of("192.0.2.1") == block_of("192.0.99.1") != block_of("192.1.2.1")
    assert block_of("2001:db8:1::1") == block_of("2001:db8:ffff::9%eth0") != block_of("2001:db9::1")
    with pytest.raises(ValueError):
        block_of("relay:ab:h:1")


async def test_a_node_that_listens_everywhere_learns_where_it_is(autojump_clock: object) -> None:
    reach, fake = nowhere({b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)})
    assert not reach.is_confirmed
    await played(reach, fake, 1)
    assert reach.verdicts == {OWN: EndpointStatus.PUBLIC} and reach.is_confirmed
    assert fake.advertised == [(OWN,)]


async def test_what_is_learnt_and_closed_is_advertised_at_no_time(autojump_clock: object) -> None:
    reach, fake = nowhere({b"a": ("192.0.2.1", NO), b"b": ("203.0.113.1", NO)})
    await played(reach, fake, 1)
    assert reach.verdicts == {OWN: EndpointStatus.CLOSED} and not reach.is_confirmed
    assert fake.advertised == [()]


async def test_peers_whose_connections_do_not_arrive_confirm_nothing(autojump_clock: object) -> None:
    """Two that lie would have a node behind NAT give its reservations up."""
    reach, fake = nowhere({b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)})
    fake.silent = {"192.0.2.1"}
    await played(reach, fake, 100)
    assert not reach.is_confirmed and not fake.advertised


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "169.254.0.1", "::1"])
async def test_nobody_makes_a_node_advertise_an_inner_address(host: str, autojump_clock: object) -> None:
    yes = says(host, True)
    reach, fake = nowhere({b"a": ("192.0.2.1", yes), b"b": ("203.0.113.1", yes)})
    await played(reach, fake, 100)
    assert not reach.verdicts and not fake.advertised


async def test_a_node_that_is_seen_elsewhere_now_is_no_longer_where_it_was(autojump_clock: object) -> None:
    reach, fake = nowhere({b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)})
    await played(reach, fake, 1)
    moved = says("1.1.1.1", True)
    fake.answers = dict.fromkeys(fake.answers, moved)
    await played(reach, fake, 1_000)
    assert reach.verdicts == {Endpoint("1.1.1.1", OWN.port): EndpointStatus.PUBLIC}
    assert fake.advertised[-1] == (Endpoint("1.1.1.1", OWN.port),)


async def test_who_has_roamed_withdraws_at_once_and_asks_anew(autojump_clock: object) -> None:
    reach, fake = nowhere({b"a": ("192.0.2.1", YES), b"b": ("203.0.113.1", YES)})
    elsewhere = Endpoint("8.8.8.9", OWN.port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reach.run, fake)
        await trio.sleep(30)
        assert fake.advertised == [(OWN,)]
        reach.roamed(frozenset({OWN.host}))
        assert fake.advertised == [(OWN,), ()] and not reach.verdicts
        fake.answers = {b"a": RequestTimeout("on its way"), b"b": says(elsewhere.host, True)}
        await trio.sleep(8)
        fake.answers[b"a"] = says(elsewhere.host, True)
        await trio.sleep(12)
        assert fake.advertised[-1] == (elsewhere,) and reach.is_confirmed
        nursery.cancel_scope.cancel()


async def test_both_families_are_asked_about_however_many_peers_one_has(autojump_clock: object) -> None:
    six = Endpoint("2606:4700::1", OWN.port)
    peers: dict[bytes, tuple[str, bytes | Exception]] = {bytes([n]): (f"{n}.0.0.1", YES) for n in range(60, 70)}
    peers |= {bytes([n]): (f"26{n}::1", says(six.host, True)) for n in (10, 11)}
    reach, fake = nowhere(peers)
    await played(reach, fake, 1)
    assert set(fake.advertised[-1]) == {OWN, six}


async def test_liars_with_many_stories_drive_out_no_truth_and_no_memory(autojump_clock: object) -> None:
    peers: dict[bytes, tuple[str, bytes | Exception]] = {
        bytes([n]): (f"203.{n}.113.1", says(f"9.9.9.{n}", True)) for n in range(40)
    }
    reach, fake = nowhere({b"a": ("192.0.2.1", YES), b"b": ("198.51.100.1", YES), **peers})
    await played(reach, fake, 1)
    assert reach.is_confirmed
    for _ in range(20):
        fake._peers = fake._peers[2:]
        await played(reach, fake, 1)
    assert reach.verdict(OWN) is EndpointStatus.PUBLIC
    assert len(reach.verdicts) <= 4


async def test_a_name_is_confirmed_by_who_reaches_the_port_and_closed_by_nobody(autojump_clock: object) -> None:
    named = Endpoint("node.example.org", OWN.port)
    for said, verdict in ((YES, EndpointStatus.PUBLIC), (NO, EndpointStatus.UNKNOWN)):
        reach, fake = reach_of({b"a": ("192.0.2.1", said), b"b": ("203.0.113.1", said)})
        fake.direct = (named,)
        await played(reach, fake, 100)
        assert reach.verdicts == {named: verdict}


async def test_who_knows_nothing_new_is_asked_more_and_more_seldom(autojump_clock: object) -> None:
    other = says("1.1.1.1", False)  # it sees the node under another address than the one that is advertised
    reach, fake = reach_of({b"a": ("192.0.2.1", other)})
    await played(reach, fake, 24 * 3_600)
    assert 80 < len(fake.asked) < 120


@given(st.binary(max_size=80))
def test_answers_have_one_spelling(data: bytes) -> None:
    try:
        answer = DialBackAnswer.decode(data)
    except DecodeError:
        return
    assert answer.encode() == data


@pytest.mark.parametrize("host", ["", "h", "::ffff:1.2.3.4", "0.0.0.0", "224.0.0.1", "fe80::1%1", "2001:DB8::1"])
def test_what_is_no_address_is_no_answer(host: str) -> None:
    with pytest.raises(DecodeError):
        DialBackAnswer.decode(encode([host, 1]))


async def test_the_asked_one_dials_and_knows_whom_it_reached() -> None:
    listener = Network(NetworkConfig(listen=(("127.0.0.1", 0),)), identity(1), now_ms=lambda: NOW_MS)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        port = listener.bound[0][1]
        one, other = identity(1).address, identity(2).address
        relayed = info(b"relayed", "relay")
        fake = Fake([info(one, "127.0.0.1"), info(other, "127.0.0.1"), relayed], {})
        reach = made(fake, DialBackOptions(timeout_s=20.0))
        question = encode([port])
        assert await reach._serve(one, question) == says("127.0.0.1", True)
        assert await reach._serve(other, question) == says("127.0.0.1", False)  # a listener, but another's
        assert listener.peers() == []
        assert listener.arrived_at("127.0.0.1") > 0 and listener.arrived_at("127.0.0.2") < 0
        for address in (b"relayed", b"unknown"):
            with pytest.raises(RequestRefused):
                await reach._serve(address, question)
        assert await reach._serve(one, question) == says("127.0.0.1", True)
        with pytest.raises(RequestRefused, match="rate limit"):
            await reach._serve(one, question)
        for body in (b"", encode(["h"]), encode([0]), encode([65_536]), encode([port, 1])):
            with pytest.raises(DecodeError):
                await reach._serve(one, body)
        nursery.cancel_scope.cancel()


async def test_a_closed_port_is_a_no() -> None:
    fake = Fake([info(b"a", "127.0.0.1")], {})
    reach = made(fake)
    assert await reach._serve(b"a", encode([1])) == says("127.0.0.1", False)


async def test_a_network_that_listens_everywhere_says_so() -> None:
    for config, direct, open_ports in (
        (NetworkConfig(listen=(("0.0.0.0", 0),)), 0, 1),
        (NetworkConfig(listen=(("0.0.0.0", 0),), advertise=("9.9.9.9:1",)), 1, 0),
        (NetworkConfig(listen=(("127.0.0.1", 0),)), 1, 0),
        (NetworkConfig(), 0, 0),
    ):
        node = Network(config, identity(1), now_ms=lambda: NOW_MS)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            assert (len(node.direct), len(node.open_ports)) == (direct, open_ports)
            nursery.cancel_scope.cancel()
