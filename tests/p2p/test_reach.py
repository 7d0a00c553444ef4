"""Dial-back with real listeners on loopback; networks of other /16 are other loopback addresses."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import RequestRefused
from p2p.identity import Role
from p2p.peer import PeerInfo
from p2p.reach import METHOD_DIAL_BACK, SOURCE_LISTEN, Reach, ReachOptions, Verdict, Votes, network_of
from p2p.service import Network, NetworkConfig
from p2p.transport import Endpoint
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.p2p.helpers import NOW_MS, identity


def info(address: bytes, remote: str) -> PeerInfo:
    return PeerInfo(address, Role(0), True, remote, None, 0.0, 0.0, 0, 0)


class Fake:
    """A network whose peers answer as they are told; dial-backs of others are the real thing."""

    def __init__(self, peers: list[PeerInfo], answers: dict[bytes, bytes | Exception]) -> None:
        self.identity = identity(7)
        self.answers = answers
        self.asked: list[bytes] = []
        self._peers = peers
        self.direct = (OWN,)
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


OWN = Endpoint("198.51.100.7", 26_600)


def made(fake: Fake, options: ReachOptions | None = None) -> Reach:
    reach = Reach(options, now_ms=lambda: NOW_MS)
    reach.attach(fake)
    return reach


def reach_of(remotes: dict[bytes, tuple[str, bytes | Exception]]) -> tuple[Reach, Fake]:
    fake = Fake(
        [info(a, remote) for a, (remote, _) in remotes.items()], {a: said for a, (_, said) in remotes.items()}
    )
    return made(fake), fake


async def played(reach: Reach, fake: Fake, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await reach.run(fake)


async def test_two_networks_make_an_endpoint_public(autojump_clock: object) -> None:
    reach, fake = reach_of({b"a": ("192.0.2.1", b"\1"), b"b": ("203.0.113.1", b"\1")})
    await played(reach, fake, 1)
    assert reach.verdicts == {OWN: Verdict.PUBLIC}
    assert fake.advertised == [(OWN,)]
    assert fake.asked == [b"a", b"b"]


async def test_one_network_is_not_enough_however_many_peers_it_has(autojump_clock: object) -> None:
    reach, fake = reach_of({bytes([i]): (f"192.0.2.{i}", b"\1") for i in range(1, 9)})
    await played(reach, fake, 200)
    assert reach.verdict(OWN) is Verdict.UNKNOWN
    assert not fake.advertised
    assert len(fake.asked) <= 4  # a minute between two questions to one network


async def test_no_from_two_networks_closes_it_and_relayed_peers_are_not_asked(autojump_clock: object) -> None:
    relay = f"relay:{'ab' * 20}:h:1"
    reach, fake = reach_of({b"r": (relay, b"\1"), b"a": ("192.0.2.1", b"\0"), b"b": ("2001:db8::1", b"\0")})
    await played(reach, fake, 1)
    assert reach.verdict(OWN) is Verdict.CLOSED
    assert fake.advertised == [()]
    assert b"r" not in fake.asked


async def test_refusals_say_nothing(autojump_clock: object) -> None:
    reach, fake = reach_of({b"a": ("192.0.2.1", RequestRefused("busy")), b"b": ("203.0.113.1", b"\0")})
    await played(reach, fake, 100)
    assert not fake.advertised


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_a_network_has_one_voice(said: list[tuple[int, bool]]) -> None:
    votes = Votes(2)
    for network, is_reached in said:
        votes.add(str(network), is_reached)
    last = dict(said)
    yes = sum(last.values())
    expected = Verdict.PUBLIC if yes >= 2 else Verdict.CLOSED if not yes and len(last) >= 2 else Verdict.UNKNOWN
    assert votes.verdict is expected


def test_networks() -> None:
    assert network_of("192.0.2.1") == network_of("192.0.99.1") != network_of("192.1.2.1")
    assert network_of("2001:db8:1::1") == network_of("2001:db8:ffff::9%eth0") != network_of("2001:db9::1")
    with pytest.raises(ValueError):
        network_of("relay:ab:h:1")


async def test_the_asked_one_dials_and_knows_whom_it_reached() -> None:
    listener = Network(NetworkConfig(listen=(("127.0.0.1", 0),)), identity(1), now_ms=lambda: NOW_MS)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        there = Endpoint("127.0.0.1", listener.bound[0][1])
        one, other = identity(1).address, identity(2).address
        fake = Fake([info(one, "127.0.0.1"), info(other, "127.0.0.1"), info(b"far", "127.0.0.2")], {})
        reach = made(fake, ReachOptions(timeout_s=20.0))
        question = encode([str(there)])
        assert await reach._serve(one, question) == b"\1"
        assert await reach._serve(other, question) == b"\0"  # a listener, but another's
        assert listener.peers() == []
        with pytest.raises(RequestRefused):
            await reach._serve(b"far", question)  # a third party's door
        with pytest.raises(RequestRefused):
            await reach._serve(b"unknown", question)
        with pytest.raises(RequestRefused):
            await reach._serve(one, encode([f"relay:{'ab' * 20}:127.0.0.1:1"]))
        assert await reach._serve(one, question) == b"\1"
        with pytest.raises(RequestRefused, match="too often"):
            await reach._serve(one, question)
        for body in (b"", encode([1]), encode(["tcp:h"]), encode([str(there), 1])):
            with pytest.raises(DecodeError):
                await reach._serve(one, body)
        nursery.cancel_scope.cancel()


async def test_a_closed_port_is_a_no() -> None:
    fake = Fake([info(b"a", "127.0.0.1")], {})
    reach = made(fake)
    assert await reach._serve(b"a", encode(["tcp:127.0.0.1:1"])) == b"\0"
