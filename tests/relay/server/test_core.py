"""The relay's state without sockets: what is promised, refused, counted and forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from p2p.base.endpoint import Endpoint
from relay.protocol.errors import Refusal, RelayProtocolError
from relay.protocol.limits import HostTable, RelayLimits
from relay.protocol.route import Route, SeenRoutes, VerifiedRoute
from relay.protocol.wire import (
    Connect,
    Decline,
    Extend,
    Incoming,
    Offered,
    Park,
    Ping,
    Pong,
    Refused,
    Release,
    Reserve,
    Reserved,
    Restarting,
)
from relay.server.core import Drop, Effect, End, ExtendCircuit, Hold, Join, Refuse, RelayCore, Send
from state.primitives.errors import ConfigError
from state.primitives.token_bucket import TokenBucket
from tests.relay.daemon_process import identity_of

LIMITS = RelayLimits(trusted_networks=())
ALICE, BOB, CAROL = (bytes((n,)) * 20 for n in (1, 2, 3))
HERE, NEXT, BEFORE = (bytes((n,)) * 20 for n in (101, 102, 103))
SIGNED = Route.sign(
    identity_of("alice"), (Endpoint("a", 1, HERE), Endpoint("b", 2, NEXT)), BOB, now_ms=0, nonce=b"n" * 16
)


def check_route(data: bytes) -> VerifiedRoute:
    """Stands for the signatures: the bytes say from whom, by which relays and to whom, and which of many it is."""
    *hops, dialler, target, nonce = data
    relays = tuple(Endpoint("r", 1, bytes((hop,)) * 20) for hop in hops)
    route = replace(SIGNED, hops=relays, target=bytes((target,)) * 20, nonce=bytes((nonce,)) * 16)
    return VerifiedRoute(route, bytes((dialler,)) * 20)


class Relay:
    """A core with its host table, a clock and tokens that count."""

    def __init__(self, limits: RelayLimits = LIMITS) -> None:
        self.hosts = HostTable(limits)
        tokens = itertools.count(1)
        self.core = RelayCore(
            limits,
            self.hosts,
            issue=lambda client, life_s: client,
            random=lambda size: next(tokens).to_bytes(size, "big"),
            address=HERE,
            check_route=check_route,
        )
        self.now_ms = 0

    def join(self, connection: int, address: bytes, ip: str = "192.0.2.1") -> None:
        host = self.hosts.use(ip, self.now_ms)
        assert host is not None
        self.core.control_opened(connection, address, host, f"{ip}:1", self.now_ms)

    def say(self, connection: int, message: object) -> list[Effect]:
        return self.core.control_message(connection, message, self.now_ms)  # type: ignore[arg-type]

    def offer(self, dialler: int, target_address: bytes) -> tuple[bytes, bytes]:
        """Return the tokens (dialler's, target's) of a circuit that was offered."""
        incoming, offered = self.say(dialler, Connect(9, target_address))
        assert isinstance(incoming, Send) and isinstance(incoming.message, Incoming)
        assert isinstance(offered, Send) and isinstance(offered.message, Offered)
        return offered.message.token, incoming.message.token


def refusal_of(effects: list[Effect]) -> Refusal:
    (effect,) = effects
    match effect:
        case Send(_, Refused(_, refusal, _)) | Refuse(_, refusal):
            return refusal
        case _:
            raise AssertionError(effect)


@pytest.fixture
def relay() -> Relay:
    relay = Relay()
    relay.join(1, ALICE)
    relay.join(2, BOB)
    relay.say(2, Reserve(1, 60))
    return relay


def test_a_circuit_is_joined_when_both_ends_have_shown_their_tokens(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    assert mine != theirs
    assert relay.core.data_opened(11, mine) == []
    assert relay.core.data_opened(12, theirs) == [Join(1, 11, 12, ALICE, BOB)]
    assert (relay.core.pending, relay.core.circuits) == (0, 1)
    relay.core.circuit_closed(1)
    assert relay.core.circuits == 0


def test_a_token_serves_once_and_for_nobody_else(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    assert refusal_of(relay.core.data_opened(10, bytes(32))) is Refusal.BAD_TOKEN
    assert relay.core.data_opened(11, mine) == []
    assert refusal_of(relay.core.data_opened(12, mine)) is Refusal.BAD_TOKEN
    relay.core.data_opened(13, theirs)
    assert refusal_of(relay.core.data_opened(14, theirs)) is Refusal.BAD_TOKEN
    assert relay.core.refusals[Refusal.BAD_TOKEN] == 3


def test_connections_that_wait_become_ends_without_another_word(relay: Relay) -> None:
    assert relay.say(2, Park(b"p" * 32)) == []
    assert relay.core.data_opened(20, b"p" * 32) == [Hold(20)]
    assert relay.core.parked == 1
    (offered,) = relay.say(1, Connect(9, BOB))
    assert isinstance(offered, Send) and isinstance(offered.message, Offered)
    assert relay.core.data_opened(11, offered.message.token) == [Join(1, 11, 20, ALICE, BOB)]
    relay.say(2, Park(b"q" * 32))
    relay.core.data_opened(21, b"q" * 32)
    relay.say(1, Park(b"r" * 32))
    relay.core.data_opened(12, b"r" * 32)
    offer, join = relay.say(1, Connect(9, BOB, b"r" * 32))
    assert offer == Send(1, Offered(9, b"r" * 32, LIMITS.pending_ms_max))
    assert join == Join(2, 12, 21, ALICE, BOB)
    assert relay.core.parked == 0


def test_connections_that_wait_are_few_end_with_their_client_and_serve_nobody_else(relay: Relay) -> None:
    for n in range(LIMITS.parked_per_client_max):
        relay.say(2, Park(bytes((n,)) * 32))
        relay.core.data_opened(20 + n, bytes((n,)) * 32)
    assert relay.say(2, Park(b"x" * 32)) == [Refuse(20, Refusal.NO_RESERVATION)]
    assert relay.core.data_opened(30, b"x" * 32) == [Hold(30)]
    assert refusal_of(relay.core.data_opened(31, b"x" * 32)) is Refusal.BAD_TOKEN
    relay.say(1, Park(b"x" * 32))  # another's token
    assert refusal_of(relay.say(1, Connect(9, CAROL, b"x" * 32))) is Refusal.NO_RESERVATION
    assert relay.core.parked == LIMITS.parked_per_client_max
    assert relay.core.data_closed(30) == []
    ended = relay.core.control_closed(2)
    assert [effect.connection for effect in ended if isinstance(effect, Refuse)] == [21, 22, 23]
    assert relay.core.parked == 0


def test_a_route_goes_on_and_comes_to_its_end(relay: Relay) -> None:
    offer, onward = relay.say(1, Extend(5, bytes((101, 102, 1, 2, 7))))
    assert isinstance(offer, Send) and isinstance(offer.message, Offered)
    assert onward == ExtendCircuit(1, Endpoint("r", 1, NEXT), bytes((101, 102, 1, 2, 7)))
    assert relay.core.next_hop_opened(1, 40) == []
    assert relay.core.data_opened(11, offer.message.token) == [Join(1, 11, 40, ALICE, BOB)]
    relay.join(3, BEFORE)
    incoming, offer = relay.say(3, Extend(5, bytes((103, 101, 3, 2, 7))))
    assert isinstance(incoming, Send) and isinstance(incoming.message, Incoming)
    assert incoming.message.source == CAROL, "the dialler, not the relay before"
    assert isinstance(offer, Send) and isinstance(offer.message, Offered)
    relay.core.data_opened(12, offer.message.token)
    assert relay.core.data_opened(13, incoming.message.token) == [Join(2, 12, 13, CAROL, BOB)]


@pytest.mark.parametrize("route", [(101, 102, 2, 2, 7), (103, 101, 1, 2, 7), (102, 103, 1, 2, 7)])
def test_a_route_from_the_wrong_side_or_past_here_is_refused(relay: Relay, route: tuple[int, ...]) -> None:
    assert refusal_of(relay.say(1, Extend(5, bytes(route)))) is Refusal.BAD_ROUTE
    assert relay.core.pending == 0


def test_who_is_refused_further_along_hears_why_even_if_it_comes_late(relay: Relay) -> None:
    offer, _ = relay.say(1, Extend(5, bytes((101, 102, 1, 2, 7))))
    assert isinstance(offer, Send) and isinstance(offer.message, Offered)
    assert relay.core.next_hop_failed(1, Refusal.TARGET_LIMIT) == []
    assert refusal_of(relay.core.data_opened(11, offer.message.token)) is Refusal.TARGET_LIMIT
    assert relay.core.next_hop_failed(1, Refusal.TARGET_LIMIT) == []
    assert refusal_of(relay.core.next_hop_opened(1, 40)) is Refusal.TARGET_TIMEOUT


def test_a_relay_that_drains_tells_all_and_takes_nothing_new(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    assert relay.core.drain(0, 5_000) == [Send(1, Restarting(5_000)), Send(2, Restarting(5_000))]
    for message in (Connect(1, BOB), Reserve(1, 60), Extend(1, bytes((101, 102, 1, 2, 7)))):
        assert refusal_of(relay.say(1, message)) is Refusal.RESTARTING
    relay.core.data_opened(11, mine)
    assert relay.core.data_opened(12, theirs) == [Join(1, 11, 12, ALICE, BOB)], "what was offered is kept"
    relay.say(2, Release())
    assert not relay.core.is_empty
    relay.core.circuit_closed(1)
    assert relay.core.is_empty


def test_a_reservation_expires_unless_renewed(relay: Relay) -> None:
    relay.now_ms = 40_000
    (reply,) = relay.say(2, Reserve(2, 60))
    assert reply == Send(2, Reserved(2, 60, BOB, "192.0.2.1:1"))
    relay.now_ms = 99_999
    relay.say(1, Ping(0))
    relay.core.tick(relay.now_ms)
    relay.offer(1, BOB)
    relay.now_ms = 100_000
    assert refusal_of(relay.say(1, Connect(1, BOB))) is Refusal.NO_RESERVATION  # even before the next tick
    relay.core.tick(relay.now_ms)
    assert relay.core.reservations == 0


def test_life_is_at_most_what_the_relay_gives(relay: Relay) -> None:
    (reply,) = relay.say(1, Reserve(1, 2**32 - 1))
    assert isinstance(reply, Send) and isinstance(reply.message, Reserved)
    assert reply.message.life_s == LIMITS.reservation_s_max
    (reply,) = relay.say(1, Reserve(1, 0))
    assert isinstance(reply, Send) and isinstance(reply.message, Reserved)
    assert reply.message.life_s == 1


def test_who_releases_or_goes_can_be_reached_no_more(relay: Relay) -> None:
    relay.say(2, Release())
    relay.say(2, Release())
    assert refusal_of(relay.say(1, Connect(1, BOB))) is Refusal.NO_RESERVATION
    relay.say(2, Reserve(1, 60))
    mine, _ = relay.offer(1, BOB)
    relay.core.data_opened(11, mine)
    assert relay.core.control_closed(2) == [Refuse(11, Refusal.NO_RESERVATION)]
    assert refusal_of(relay.say(1, Connect(1, BOB))) is Refusal.NO_RESERVATION


def test_a_running_circuit_outlives_its_control_connections(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    relay.core.data_opened(11, mine)
    relay.core.data_opened(12, theirs)
    assert relay.core.control_closed(1) == relay.core.control_closed(2) == []
    assert relay.core.circuits == 1
    relay.core.circuit_closed(1)


def test_a_wait_ends_at_its_deadline(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    relay.core.data_opened(11, mine)
    relay.now_ms = LIMITS.pending_ms_max
    assert relay.core.tick(relay.now_ms) == [Refuse(11, Refusal.TARGET_TIMEOUT)]
    assert refusal_of(relay.core.data_opened(12, theirs)) is Refusal.BAD_TOKEN


def test_a_target_may_decline_and_nobody_for_it(relay: Relay) -> None:
    mine, theirs = relay.offer(1, BOB)
    relay.core.data_opened(11, mine)
    assert relay.say(1, Decline(theirs)) == []
    assert relay.say(2, Decline(bytes(32))) == []
    assert relay.say(2, Decline(theirs)) == [Refuse(11, Refusal.DECLINED)]


def test_the_newest_connection_holds_the_reservation(relay: Relay) -> None:
    relay.join(3, BOB)
    first, second = relay.say(3, Reserve(5, 60))
    assert first == Drop(2, "superseded")
    assert isinstance(second, Send) and second.connection == 3
    assert relay.core.reservations == 1
    incoming, _ = relay.say(1, Connect(1, BOB))
    assert isinstance(incoming, Send) and incoming.connection == 3


def test_the_silent_are_dropped_and_the_talking_kept(relay: Relay) -> None:
    relay.now_ms = LIMITS.control_idle_ms_max - 1
    assert relay.say(1, Ping(7)) == [Send(1, Pong(7))]
    relay.now_ms += 1
    assert relay.core.tick(relay.now_ms) == [Drop(2, "silent")]
    assert relay.core.controls == 1


@pytest.mark.parametrize(
    "message", [Offered(1, bytes(32), 1), Incoming(bytes(32), ALICE, 1), Refused(1, Refusal(1), 0)]
)
def test_a_client_may_not_speak_as_a_relay(relay: Relay, message: object) -> None:
    with pytest.raises(RelayProtocolError):
        relay.say(1, message)


def test_a_flood_of_messages_breaks_the_rules(relay: Relay) -> None:
    with pytest.raises(RelayProtocolError, match="more messages"):
        for _ in range(LIMITS.messages_burst + 1):
            relay.say(1, Ping(0))


class TestQuotas:
    def test_reservations_of_a_host_and_a_network(self) -> None:
        limits = replace(LIMITS, reservations_per_host_max=2, reservations_per_network_max=3)
        relay = Relay(limits)
        for n, ip in enumerate(("192.0.2.1", "192.0.2.1", "192.0.2.2")):
            relay.join(n, bytes((n + 10,)) * 20, ip)
            assert isinstance(relay.say(n, Reserve(1, 60))[0], Send)
        assert relay.core.reservations == 3
        relay.join(5, ALICE, "192.0.2.1")
        assert refusal_of(relay.say(5, Reserve(1, 60))) is Refusal.HOST_LIMIT
        relay.join(6, BOB, "192.0.2.77")
        assert refusal_of(relay.say(6, Reserve(1, 60))) is Refusal.HOST_LIMIT
        relay.join(7, CAROL, "192.0.3.1")
        relay.say(7, Reserve(1, 60))
        assert relay.core.reservations == 4
        relay.core.control_closed(0)  # what ends makes room
        relay.say(6, Reserve(1, 60))
        assert relay.core.reservations == 4

    def test_one_customers_many_v6_addresses_are_one_host(self) -> None:
        relay = Relay(replace(LIMITS, reservations_per_host_max=1))
        relay.join(1, ALICE, "2001:db8:1:2::1")
        relay.join(2, BOB, "2001:db8:1:2:ffff::9")
        relay.join(3, CAROL, "2001:db8:1:3::1")
        relay.say(1, Reserve(1, 60))
        assert refusal_of(relay.say(2, Reserve(1, 60))) is Refusal.HOST_LIMIT
        relay.say(3, Reserve(1, 60))
        assert relay.core.reservations == 2

    def test_a_mapped_v4_address_is_that_host(self) -> None:
        hosts = HostTable(LIMITS)
        assert hosts.use("::ffff:192.0.2.1", 0) is hosts.use("192.0.2.1", 0)

    def test_reservations_in_sum(self) -> None:
        relay = Relay(replace(LIMITS, reservations_max=1))
        relay.join(1, ALICE)
        relay.join(2, BOB)
        relay.say(1, Reserve(1, 60))
        assert relay.say(2, Reserve(1, 60)) == [Send(2, Refused(1, Refusal.RELAY_FULL, 5_000, 100))]
        relay.say(1, Reserve(2, 60))  # its own may be renewed all the same
        assert relay.core.reservations == 1

    @pytest.mark.parametrize(
        ("limits", "refusal"),
        [
            (replace(LIMITS, pending_max=2), Refusal.RELAY_FULL),
            (replace(LIMITS, pending_per_client_max=2), Refusal.CLIENT_LIMIT),
            (replace(LIMITS, circuits_per_client_max=2), Refusal.CLIENT_LIMIT),
            (replace(LIMITS, circuits_per_host_max=2), Refusal.HOST_LIMIT),
            (replace(LIMITS, connects_per_host_burst=2), Refusal.TOO_FAST),
        ],
    )
    def test_circuits(self, limits: RelayLimits, refusal: Refusal) -> None:
        relay = Relay(limits)
        relay.join(1, ALICE)
        for n, address in ((2, BOB), (3, CAROL)):
            relay.join(n, address, "198.51.100.9")
            relay.say(n, Reserve(1, 60))
        relay.offer(1, BOB)
        relay.offer(1, CAROL)
        assert refusal_of(relay.say(1, Connect(1, BOB))) is refusal

    def test_circuits_that_run_in_sum(self) -> None:
        relay = Relay(replace(LIMITS, circuits_max=2))
        relay.join(1, ALICE)
        relay.join(2, BOB, "198.51.100.9")
        relay.say(2, Reserve(1, 60))
        for end in (11, 21):
            mine, theirs = relay.offer(1, BOB)
            relay.core.data_opened(end, mine)
            relay.core.data_opened(end + 1, theirs)
        assert relay.core.circuits == 2
        assert refusal_of(relay.say(1, Connect(1, BOB))) is Refusal.RELAY_FULL

    def test_a_targets_circuits(self) -> None:
        relay = Relay(replace(LIMITS, circuits_per_client_max=1))
        for n, address in ((1, ALICE), (2, BOB), (3, CAROL)):
            relay.join(n, address)
        relay.say(3, Reserve(1, 60))
        relay.offer(1, CAROL)
        assert refusal_of(relay.say(2, Connect(1, CAROL))) is Refusal.TARGET_LIMIT

    def test_hosts_are_forgotten_when_idle_and_never_more_than_allowed(self) -> None:
        hosts = HostTable(replace(LIMITS, hosts_max=2))
        first, second = hosts.use("192.0.2.1", 0), hosts.use("192.0.2.2", 0)
        assert first is not None and second is not None
        first.connections = second.connections = 1
        assert hosts.use("192.0.2.3", 0) is None
        second.connections = 0
        assert hosts.use("192.0.2.3", 999) is None  # searched a moment ago
        assert hosts.use("192.0.2.3", 1_000) is not None
        assert len(hosts) == 2

    def test_trusted_networks_are_exempt_and_must_be_networks(self) -> None:
        hosts = HostTable(RelayLimits())
        local, stranger = hosts.use("127.0.0.1", 0), hosts.use("192.0.2.1", 0)
        assert local is not None and local.is_trusted
        assert stranger is not None and not stranger.is_trusted
        with pytest.raises(ConfigError):
            HostTable(replace(LIMITS, trusted_networks=("not a network",)))


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    bucket = TokenBucket(10, 5, 0)
    assert [bucket.take(0) for _ in range(6)] == [True] * 5 + [False]
    assert not bucket.take(99)
    assert bucket.take(100)
    assert sum(bucket.take(ms) for ms in range(100, 10_101)) == 100
    assert not bucket.is_full(10_101)
    assert bucket.is_full(20_000)


def test_one_host_that_calls_itself_a_relay_cannot_take_all_the_waiting_circuits() -> None:
    relay = Relay(replace(LIMITS, pending_per_host_max=3))
    relay.join(1, BEFORE, "198.51.100.7")
    relay.join(2, BOB)
    relay.say(2, Reserve(1, 60))
    answers = [relay.say(1, Extend(n, bytes((103, 101, 50 + n, 2, n)))) for n in range(4)]
    assert relay.core.pending == 3
    assert refusal_of(answers[3]) is Refusal.HOST_LIMIT
    relay.join(3, ALICE)
    relay.offer(3, BOB)
    assert relay.core.pending == 4, "others are served"


def test_who_asks_too_often_does_not_even_have_its_signatures_checked() -> None:
    relay = Relay(replace(LIMITS, connects_per_host_burst=2))
    relay.join(1, BEFORE, "198.51.100.7")
    answers = [refusal_of(relay.say(1, Extend(n, b"nonsense"))) for n in range(3)]
    assert answers == [Refusal.BAD_ROUTE, Refusal.BAD_ROUTE, Refusal.TOO_FAST]


def test_one_network_cannot_fill_the_memory_of_routes() -> None:
    hosts = HostTable(LIMITS)
    near, same, far = (hosts.use(ip, 0) for ip in ("192.0.2.1", "192.0.2.2", "198.51.100.7"))
    assert near is not None and same is not None and far is not None
    seen = SeenRoutes(4, 2)
    routes = [check_route(bytes((103, 101, 1, 2, nonce))) for nonce in range(6)]
    assert [seen.note(routes[0], near, 0), seen.note(routes[1], same, 0), seen.note(routes[2], near, 0)] == [
        True, True, False,
    ]  # fmt: skip
    assert seen.note(routes[3], far, 0)
    assert not seen.note(routes[0], far, 0), "seen is seen, whoever brings it"
    assert seen.note(routes[4], near, 10**9) and len(seen) == 1


class RelayMachine(RuleBasedStateMachine):
    """Anything clients may do, in any order: the counts hold, and nothing is left when all are gone."""

    controls: Bundle[int] = Bundle("controls")
    tokens: Bundle[bytes] = Bundle("tokens")

    @initialize()
    def start(self) -> None:
        self.limits = replace(
            LIMITS, pending_max=6, pending_per_client_max=3, circuits_max=5, circuits_per_client_max=4,
            reservations_per_host_max=3, reservations_max=5, messages_burst=10_000, connects_per_host_burst=10_000,
        )  # fmt: skip
        self.relay = Relay(self.limits)
        self.numbers = itertools.count(1)
        self.open_controls: set[int] = set()
        self.waiting: set[int] = set()
        self.running: dict[int, tuple[int, int]] = {}
        self.onward: set[int] = set()

    def do(self, effects: Iterable[Effect]) -> list[bytes]:
        found = []
        effects = list(effects)
        ends = [at for at, effect in enumerate(effects) if isinstance(effect, End)]
        assert all(isinstance(effects[at + 1], Join) for at in ends), "only for one that is joined"
        for effect in effects:
            match effect:
                case Send(connection, message):
                    assert connection in self.open_controls
                    if isinstance(message, Offered | Incoming):
                        found.append(message.token)
                case Drop(connection, _):
                    self.open_controls.remove(connection)
                case Refuse(connection, _):
                    self.waiting.remove(connection)
                case Join(circuit, dialler, target):
                    self.waiting -= {dialler, target}
                    self.onward.discard(circuit)
                    self.running[circuit] = (dialler, target)
                case Hold(connection):
                    assert connection in self.waiting
                case ExtendCircuit(circuit, following):
                    assert following.relay == NEXT
                    self.onward.add(circuit)
                case End(circuit, _):
                    del self.running[circuit]
                case _:
                    raise AssertionError(effect)
        return found

    @rule(target=controls, who=st.integers(1, 4), host=st.integers(1, 3))
    def open(self, who: int, host: int) -> int:
        number = next(self.numbers)
        self.relay.join(number, bytes((who,)) * 20, f"{190 + host}.0.2.1")
        self.open_controls.add(number)
        return number

    @rule(control=consumes(controls))
    def close(self, control: int) -> None:
        self.open_controls.discard(control)
        self.do(self.relay.core.control_closed(control))

    @rule(control=controls, life_s=st.integers(0, 100))
    def reserve(self, control: int, life_s: int) -> None:
        if control in self.open_controls:
            self.do(self.relay.say(control, Reserve(1, life_s)))

    @rule(control=controls)
    def release(self, control: int) -> None:
        if control in self.open_controls:
            self.do(self.relay.say(control, Release()))

    @rule(target=tokens, control=controls, who=st.integers(1, 4))
    def connect(self, control: int, who: int) -> MultipleResults[bytes]:
        if control in self.open_controls:
            return multiple(*self.do(self.relay.say(control, Connect(1, bytes((who,)) * 20))))
        return multiple()

    @rule(target=tokens, control=controls, who=st.integers(1, 4), nonce=st.integers(0, 255), parked=tokens)
    def connect_parked(self, control: int, who: int, nonce: int, parked: bytes) -> MultipleResults[bytes]:
        if control in self.open_controls:
            return multiple(*self.do(self.relay.say(control, Connect(1, bytes((who,)) * 20, parked))))
        return multiple()

    @rule(
        target=tokens, control=controls, nonce=st.integers(0, 255), dialler=st.integers(1, 4),
        who=st.integers(1, 4), hops=st.sampled_from([(101, 102), (103, 101), (103, 101, 102), (103, 102)]),
    )  # fmt: skip
    def extend(
        self, control: int, hops: tuple[int, ...], dialler: int, who: int, nonce: int
    ) -> MultipleResults[bytes]:
        if control in self.open_controls:
            return multiple(*self.do(self.relay.say(control, Extend(1, bytes((*hops, dialler, who, nonce))))))
        return multiple()

    @rule(target=controls)
    def open_relay(self) -> int:
        number = next(self.numbers)
        self.relay.join(number, BEFORE, "198.51.100.7")
        self.open_controls.add(number)
        return number

    @rule(pick=st.integers(0, 100), is_reached=st.booleans())
    def go_on(self, pick: int, is_reached: bool) -> None:
        if self.onward:
            circuit = sorted(self.onward)[pick % len(self.onward)]
            self.onward.remove(circuit)
            if is_reached:
                number = next(self.numbers)
                self.waiting.add(number)
                self.do(self.relay.core.next_hop_opened(circuit, number))
            else:
                self.do(self.relay.core.next_hop_failed(circuit, Refusal.NEXT_UNREACHABLE))

    @rule(target=tokens, control=controls)
    def park(self, control: int) -> bytes:
        token = next(self.numbers).to_bytes(32, "little")
        if control in self.open_controls:
            self.do(self.relay.say(control, Park(token)))
        return token

    @rule(control=controls, token=tokens)
    def decline(self, control: int, token: bytes) -> None:
        if control in self.open_controls:
            self.do(self.relay.say(control, Decline(token)))

    @rule(token=tokens)
    def show(self, token: bytes) -> None:
        number = next(self.numbers)
        self.waiting.add(number)
        self.do(self.relay.core.data_opened(number, token))

    @rule(pick=st.integers(0, 100))
    def close_waiting(self, pick: int) -> None:
        if self.waiting:
            number = sorted(self.waiting)[pick % len(self.waiting)]
            self.waiting.remove(number)
            self.do(self.relay.core.data_closed(number))

    @rule(pick=st.integers(0, 100))
    def close_circuit(self, pick: int) -> None:
        if self.running:
            circuit = sorted(self.running)[pick % len(self.running)]
            del self.running[circuit]
            self.relay.core.circuit_closed(circuit)

    @rule(ms=st.integers(1, 40_000))
    def pass_time(self, ms: int) -> None:
        self.relay.now_ms += ms
        self.do(self.relay.core.tick(self.relay.now_ms))

    @invariant()
    def counts_hold(self) -> None:
        core, limits = self.relay.core, self.limits
        assert core.controls == len(self.open_controls)
        assert core.circuits == len(self.running) <= limits.circuits_max
        assert core.pending <= limits.pending_max
        assert core.reservations <= limits.reservations_max
        assert len(self.waiting) <= 2 * core.pending + core.parked
        assert core.parked <= limits.parked_per_client_max * len(self.open_controls)
        hosts = self.relay.hosts._hosts.values()
        assert sum(host.reservations for host in hosts) == core.reservations
        assert sum(host.circuits for host in hosts) == core.circuits + core.pending
        assert all(host.reservations <= limits.reservations_per_host_max for host in hosts)

    def teardown(self) -> None:
        if not hasattr(self, "relay"):
            return
        core = self.relay.core
        for number in list(self.open_controls):
            self.open_controls.discard(number)
            self.do(core.control_closed(number))
        for circuit in list(self.running):
            core.circuit_closed(circuit)
        assert not self.waiting
        assert (core.controls, core.pending, core.circuits, core.reservations) == (0, 0, 0, 0)
        assert not core._clients and not core._tokens and not core._waiting and not core._reserved
        assert not core._parked and not core._held
        assert not len(core._crowds) + len(core._pending_crowds) + len(core._reserved_crowds)
        self.relay.hosts.forget_idle(self.relay.now_ms + 10**9)
        assert len(self.relay.hosts) == 0
        assert not self.relay.hosts._networks


TestRelayMachine = RelayMachine.TestCase
TestRelayMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
