from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.errors import RecordInvalid
from p2p.base.limits import NetworkLimits
from p2p.gossip.core import Verdict
from p2p.peers.record_exchange import RecordExchange
from p2p.records.addrbook import BUCKET_ENTRIES_MAX, BUCKETS, AddressBook, group_of
from p2p.records.records import (
    ENDPOINTS_MAX,
    RECORD_BYTES_MAX,
    RECORD_LIFE_MS,
    PeerRecord,
    sign_record,
    verify_record,
)
from p2p.secure.identity import NO_ROLES
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import digest
from tests.p2p.helpers import GENESIS, NOW_MS, account, identity

HOME = Endpoint("192.0.2.1", 30303)
RELAYED = Endpoint("relay.example.net", 7001, account(9).address)


def check(data: bytes, now_ms: int = NOW_MS) -> PeerRecord:
    return verify_record(data, genesis_hash=GENESIS, now_ms=now_ms)


def test_records_are_verified_back_to_the_account() -> None:
    record = sign_record(identity(1), (HOME, RELAYED), now_ms=NOW_MS)
    assert check(record.data) == record
    assert record.address == account(1).address and record.endpoints == (HOME, RELAYED)


def test_endpoints_that_do_not_fit_are_left_out() -> None:
    long = tuple(Endpoint("h" * 60, 60000 + n, account(n).address) for n in range(8))
    record = sign_record(identity(1), long, now_ms=NOW_MS)
    assert len(record.data) <= RECORD_BYTES_MAX and 0 < len(record.endpoints) <= ENDPOINTS_MAX
    assert check(record.data).endpoints == long[: len(record.endpoints)]


def test_a_home_with_both_families_names_both_of_its_relays() -> None:
    """As many relays as it waits at can bring it pieces and circuits, before any of them is named twice."""
    v4, v6 = "203.113.114.115", "2001:db8:1234:5678:9abc:def0:1234:5678"
    direct = (Endpoint(v4, 30303), Endpoint(v6, 30303))
    relays = [
        tuple(Endpoint(host, 40000 + number, account(number).address) for host in (v4, v6)) for number in (7, 8, 9)
    ]

    def named(*endpoints: Endpoint) -> tuple[Endpoint, ...]:
        record = sign_record(identity(1), endpoints, now_ms=NOW_MS)
        assert check(record.data).endpoints == record.endpoints
        return record.endpoints

    one, two, three = relays
    assert named(*direct, *one, *two) == (*direct, one[0], two[0], one[1], two[1])
    assert named(*one, *direct, *two, *three) == (*direct, one[0], two[0], three[0], one[1])
    assert named(*one, *two, *three) == (one[0], two[0], three[0], one[1], two[1], three[1])


def test_a_record_of_more_endpoints_than_a_node_dials_is_refused() -> None:
    many = [str(Endpoint("192.0.2.1", port)) for port in range(1, ENDPOINTS_MAX + 2)]
    raw = decode(sign_record(identity(1), (HOME,), now_ms=NOW_MS).data, limit_bytes=RECORD_BYTES_MAX)
    assert isinstance(raw, list)
    signed = [*raw[:3], many]
    signature = identity(1).signer.sign(digest(b"peer record", encode(signed)))
    with pytest.raises(RecordInvalid):
        check(encode([*signed, signature]))
    signed[3] = many[:-1]
    signature = identity(1).signer.sign(digest(b"peer record", encode(signed)))
    assert len(check(encode([*signed, signature])).endpoints) == ENDPOINTS_MAX


def test_records_of_another_time_chain_or_signer_are_refused() -> None:
    record = sign_record(identity(1), (HOME,), now_ms=NOW_MS)
    with pytest.raises(RecordInvalid):
        check(record.data, NOW_MS + RECORD_LIFE_MS)
    with pytest.raises(RecordInvalid):
        check(record.data, NOW_MS - 2 * 3_600_000)
    with pytest.raises(RecordInvalid):
        verify_record(record.data, genesis_hash=b"h" * 32, now_ms=NOW_MS)
    other = replace(identity(1), signer=identity(2).signer)
    with pytest.raises(RecordInvalid):
        check(sign_record(other, (HOME,), now_ms=NOW_MS).data)
    moved = decode(record.data, limit_bytes=RECORD_BYTES_MAX)
    moved[3] = ["tcp:198.51.100.66:1"]
    with pytest.raises(RecordInvalid):
        check(encode(moved))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_records_are_refused_with_one_error(data: st.DataObject) -> None:
    raw = bytearray(sign_record(identity(1), (HOME, RELAYED), now_ms=NOW_MS).data)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = check(bytes(raw))
    except RecordInvalid:
        return
    # Only a change that is none, or one that names a nobody, can pass: never another content for this account.
    assert (
        found.address != account(1).address
        or bytes(raw) == sign_record(identity(1), (HOME, RELAYED), now_ms=NOW_MS).data
    )


@given(
    st.one_of(
        st.text(max_size=140),
        st.from_regex(r"(tcp|relay:[0-9a-f]{40}):[a-z0-9.\[\]:-]{0,40}:[0-9]{1,6}", fullmatch=True),
    )
)
def test_endpoints_have_one_spelling_or_none(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except DecodeError:
        return
    assert str(endpoint) == text and 0 < endpoint.port < 65536


def book(seed: int = 0) -> AddressBook:
    return AddressBook(key=seed.to_bytes(32, "big"), genesis_hash=GENESIS)


def fake(number: int, endpoint: Endpoint, sequence: int = 1) -> PeerRecord:
    """A record as the book sees it: verified elsewhere."""
    certificate = replace(identity(0).certificate, sequence=1)
    address = number.to_bytes(20, "big")
    return PeerRecord(address, certificate, sequence, NOW_MS + RECORD_LIFE_MS, (endpoint,), b"")


def test_newer_records_replace_older_ones_only() -> None:
    addresses = book()
    assert addresses.add(fake(1, HOME, sequence=5), source=b"")
    assert not addresses.add(fake(1, RELAYED, sequence=5), source=b"")
    assert not addresses.add(fake(1, RELAYED, sequence=4), source=b"")
    assert addresses.add(fake(1, RELAYED, sequence=6), source=b"")
    found = addresses.get(fake(1, HOME).address)
    assert found is not None and found.endpoints == (RELAYED,)


@pytest.mark.slow
def test_one_corner_of_the_network_cannot_fill_the_book_or_drive_out_known_peers() -> None:
    addresses = book()
    known = [fake(n, Endpoint(f"10.{n}.0.1", 1)) for n in range(60)]
    for record in known:
        assert addresses.add(record, source=b"")
        addresses.succeeded(record.address)
    for number in range(1000, 2000):  # one /16, one teller
        addresses.add(fake(number, Endpoint(f"203.0.{number % 250}.{number // 250}", 1)), source=b"sybil")
    assert len(addresses) <= len(known) + BUCKET_ENTRIES_MAX
    assert all(record.address in addresses for record in known)
    random = Random(1)
    for number in range(4000, 8_000):  # everything from everywhere: bounded all the same
        host = ".".join(str(random.randrange(1, 255)) for _ in range(4))
        addresses.add(fake(number, Endpoint(host, 1)), source=random.randbytes(20))
    assert len(addresses) <= BUCKETS * BUCKET_ENTRIES_MAX
    assert all(record.address in addresses for record in known)


def test_a_host_that_is_met_under_many_names_does_not_fill_the_book() -> None:
    """Anybody can sign records as any number of nodes, each with a foreign place before its own."""
    addresses, random = book(), Random(1)
    here = Endpoint("203.0.113.7", 1)
    for number in range(1, 3_000):
        elsewhere = Endpoint(".".join(str(random.randrange(1, 255)) for _ in range(4)), 1)
        record = replace(fake(number, elsewhere), endpoints=(elsewhere, here))
        if addresses.add(record, source=random.randbytes(20)):
            addresses.succeeded(record.address, here)
    assert sum(addresses.has_met(record.address) for record in addresses.records()) <= 8 * BUCKET_ENTRIES_MAX
    honest = [fake(10_000 + n, Endpoint(f"{n % 250 + 1}.{n // 250 + 1}.0.1", 1)) for n in range(1_000)]
    for record in honest:
        addresses.add(record, source=random.randbytes(20))
        addresses.succeeded(record.address, record.endpoints[0])
    assert sum(addresses.has_met(record.address) for record in honest) > 750


def test_those_of_one_relay_keep_their_places_over_a_restart() -> None:
    addresses = book()
    for number in range(60):
        record = sign_record(identity(number), (RELAYED,), now_ms=NOW_MS)
        assert addresses.add(record, source=account(number + 100).address) or len(addresses) > BUCKET_ENTRIES_MAX
        addresses.succeeded(record.address, RELAYED)
    again = book(1)
    again.load(addresses.encode(), now_ms=NOW_MS)
    assert len(again) > BUCKET_ENTRIES_MAX and len(again) >= len(addresses) - 8


@pytest.mark.slow
def test_the_committee_has_its_places_however_full_the_book_is() -> None:
    seats = [fake(9_000 + n, Endpoint(f"198.51.100.{n}", 1)) for n in range(100)]
    kept = {record.address for record in seats}
    addresses = AddressBook(key=bytes(32), genesis_hash=GENESIS, is_kept=kept.__contains__)
    random = Random(1)
    for number in range(1, 3_500):
        host = ".".join(str(random.randrange(1, 255)) for _ in range(4))
        addresses.add(fake(number, Endpoint(host, 1)), source=random.randbytes(20))
        addresses.succeeded(number.to_bytes(20, "big"))
    for record in seats:
        assert addresses.add(record, source=b"")
        addresses.succeeded(record.address, record.endpoints[0])
        addresses.failed(record.address)
    for number in range(10_000, 11_000):
        host = ".".join(str(random.randrange(1, 255)) for _ in range(4))
        addresses.add(fake(number, Endpoint(host, 1)), source=random.randbytes(20))
    assert all(record.address in addresses for record in seats)
    assert len(addresses) <= BUCKETS * BUCKET_ENTRIES_MAX + len(seats)


def test_peers_that_never_answer_are_forgotten_and_asked_last() -> None:
    addresses = book()
    for number in (1, 2):
        addresses.add(fake(number, Endpoint(f"10.{number}.0.1", 1)), source=b"")
    bad, good = fake(1, HOME).address, fake(2, HOME).address
    addresses.failed(bad)
    assert addresses.candidates(Random(1), exclude=()) == [good, bad]
    assert addresses.candidates(Random(1), exclude=[good]) == [bad]
    for _ in range(8):
        addresses.failed(bad)
    assert bad not in addresses and len(addresses) == 1


def test_the_book_is_kept_over_a_restart_and_checked_again() -> None:
    addresses = book()
    records = [sign_record(identity(n), (HOME,), now_ms=NOW_MS) for n in range(5)]
    for record in records:
        addresses.add(record, source=b"")
    data = addresses.encode()
    again = book(1)
    again.load(data, now_ms=NOW_MS)
    assert {r.address for r in again.records()} == {r.address for r in records}
    later = book(2)
    later.load(data, now_ms=NOW_MS + RECORD_LIFE_MS)
    assert len(later) == 0
    again.expire(NOW_MS + RECORD_LIFE_MS)
    assert len(again) == 0
    for damaged in (b"", b"\xff", data[:-1], encode([1]), encode([[b"x", 3]])):
        with pytest.raises(DecodeError):
            book().load(damaged, now_ms=NOW_MS)


def test_groups_are_networks_not_addresses() -> None:
    assert group_of(Endpoint("192.0.2.1", 1)) == group_of(Endpoint("192.0.99.2", 5))
    assert group_of(Endpoint("192.0.2.1", 1)) != group_of(Endpoint("192.1.2.1", 1))
    assert group_of(Endpoint("2001:db8::1", 1)) == group_of(Endpoint("2001:db8:5::1", 1))
    assert group_of(RELAYED) == group_of(replace(RELAYED, port=2)) != group_of(HOME)
    assert identity(1, roles=NO_ROLES).certificate.roles == NO_ROLES


def test_anchors_are_kept_over_a_restart_and_are_few() -> None:
    book = AddressBook(key=b"k" * 32, genesis_hash=GENESIS)
    records = [sign_record(identity(n), (Endpoint(f"10.{n}.0.1", 1),), now_ms=NOW_MS) for n in range(1, 6)]
    for record in records:
        assert book.add(verify_record(record.data, genesis_hash=GENESIS, now_ms=NOW_MS), source=b"")
    names = [record.address for record in records]
    book.set_anchors(names[:4])
    again = AddressBook(key=b"other" * 6, genesis_hash=GENESIS)
    again.load(book.encode(), now_ms=NOW_MS)
    assert sorted(again.anchors) == sorted(names[:2])
    untried = {again.untried(Random(n), exclude=()) for n in range(40)}
    assert untried == set(names[2:])  # of the anchors we know
    again.failed(names[2])
    assert again.untried(Random(1), exclude=names[3:]) is None


def keeper(
    number: int,
    now_ms: Callable[[], int],
    told: list[bytes],
    blame: Callable[[bytes], None] = lambda address: None,
) -> RecordExchange:
    return RecordExchange(
        AddressBook(key=bytes([number]) * 32, genesis_hash=GENESIS),
        path=None,
        identity=lambda: identity(number),
        limits=NetworkLimits(),
        random=Random(number),
        now_ms=now_ms,
        publish=told.append,
        blame=blame,
        is_kept=lambda address: False,
        log=lambda *args, **kwargs: None,
    )


async def test_a_flood_of_junk_hides_no_record_of_a_node_that_we_know(autojump_clock: object) -> None:
    """An honest peer passes on what anybody signs, and the record of a node that has moved comes the same way."""
    told: list[bytes] = []
    friend = keeper(2, lambda: NOW_MS, told)
    me = keeper(1, lambda: NOW_MS, [])
    honest = account(3).address
    friend.advertise("listen", (HOME,))
    friend.sign()
    assert await me.validate(honest, told[-1]) is Verdict.ACCEPT
    me.book.succeeded(account(2).address)
    strangers = [sign_record(identity(100 + n), (HOME,), now_ms=NOW_MS) for n in range(250)]
    verdicts = [await me.validate(honest, record.data) for record in strangers]
    assert verdicts[-1] is Verdict.LATER and Verdict.REJECT not in verdicts
    friend.advertise("listen", (RELAYED,))
    friend.sign()
    assert await me.validate(honest, told[-1]) is Verdict.ACCEPT
    # A node that we never met comes through by another peer, as its own, and after a while by the same one.
    late = sign_record(identity(90), (RELAYED,), now_ms=NOW_MS)
    assert await me.validate(honest, late.data) is Verdict.LATER
    # However much it has passed on itself.
    junk = [sign_record(identity(400 + n), (HOME,), now_ms=NOW_MS) for n in range(250)]
    assert [await me.validate(late.address, record.data) for record in junk][-1] is Verdict.LATER
    assert await me.validate(late.address, late.data) is Verdict.ACCEPT
    await trio.sleep(1)
    later = sign_record(identity(91), (RELAYED,), now_ms=NOW_MS)
    assert await me.validate(honest, later.data) is Verdict.ACCEPT


async def test_a_record_that_ends_on_its_way_is_not_held_against_who_passed_it_on() -> None:
    """Whoever signs a record says when it ends, and could else have honest nodes ban each other."""
    told: list[bytes] = []
    author, clock = keeper(2, lambda: NOW_MS, told), [NOW_MS]
    me = keeper(1, lambda: clock[0], [])
    author.advertise("listen", (HOME,))
    author.sign()
    honest = account(3).address
    for now_ms in (
        NOW_MS + RECORD_LIFE_MS,  # by the time it comes, or by this clock, it has ended
        NOW_MS - 2 * 3_600_000,  # by this clock it lasts too long
        NOW_MS + 40 * 24 * 3_600_000,  # nor is the certificate in it valid
    ):
        clock[0] = now_ms
        assert await me.validate(honest, told[-1]) is Verdict.IGNORE
    clock[0] = NOW_MS
    assert await me.validate(honest, told[-1][:-1] + bytes([told[-1][-1] ^ 1])) is Verdict.REJECT
    assert await me.validate(honest, told[-1]) is Verdict.ACCEPT


class Giver:
    """A peer that is asked for records."""

    def __init__(self, records: list[bytes]) -> None:
        self.address = account(3).address
        self.requests = self
        self.answer = encode(list(records))

    async def ask(self, _method: str, _body: bytes, *, timeout_s: float, limit_bytes: int) -> bytes:
        return self.answer


async def test_a_peer_that_gives_a_record_which_has_just_ended_is_not_blamed_and_the_others_count(
    autojump_clock: object,
) -> None:
    ended = sign_record(identity(4), (HOME,), now_ms=NOW_MS - RECORD_LIFE_MS)
    good = sign_record(identity(5), (HOME,), now_ms=NOW_MS)
    blamed: list[bytes] = []
    for records, is_fault in (([ended.data, good.data], False), ([good.data[:-1]], True)):
        me = keeper(1, lambda: NOW_MS, [], blame=blamed.append)
        peers: Any = [Giver(records)]
        with trio.move_on_after(1):
            await me.run(peers.copy, trio.Event)
        assert (account(5).address in me.book) is not is_fault
        assert bool(blamed) is is_fault


async def test_records_that_have_ended_are_given_to_nobody() -> None:
    clock = [NOW_MS]
    me = keeper(1, lambda: clock[0], [])
    record = sign_record(identity(4), (HOME,), now_ms=NOW_MS)
    assert await me.validate(account(3).address, record.data) is Verdict.ACCEPT
    assert await me.serve(account(3).address, b"") != encode([])
    clock[0] += RECORD_LIFE_MS
    assert await me.serve(account(3).address, b"") == encode([])


async def test_nobody_floods_others_with_records_of_its_own(autojump_clock: object) -> None:
    told: list[bytes] = []
    one, me = keeper(2, lambda: NOW_MS, told), keeper(1, lambda: NOW_MS, [])
    one.advertise("listen", (HOME,))
    for _ in range(40):
        one.sign()
    via = [account(10 + n % 5).address for n in range(40)]
    verdicts = [await me.validate(sender, data) for sender, data in zip(via, told, strict=True)]
    assert verdicts[0] is Verdict.ACCEPT and verdicts[-1] is Verdict.IGNORE
    await trio.sleep(10)
    one.sign()
    assert await me.validate(via[0], told[-1]) is Verdict.ACCEPT


async def test_old_words_of_a_node_take_nothing_of_the_ration_of_its_next_one(autojump_clock: object) -> None:
    told: list[bytes] = []
    one, me = keeper(2, lambda: NOW_MS, told), keeper(1, lambda: NOW_MS, [])
    one.advertise("listen", (HOME,))
    for _ in range(30):
        one.sign()
    liar = account(9).address
    assert await me.validate(liar, told[29]) is Verdict.ACCEPT
    for old in told[:29]:
        assert await me.validate(liar, old) is Verdict.IGNORE
    one.sign()
    assert await me.validate(account(10).address, told[30]) is Verdict.ACCEPT


def test_ways_that_are_no_more_are_forgotten() -> None:
    me = keeper(1, lambda: NOW_MS, [])
    for number in range(1, 1_000):
        source = f"relay {number}"
        assert me.advertise(source, (Endpoint("192.0.2.1", number, account(9).address),))
        assert me.advertise(source, ()) and not me.advertise(source, ())
    assert me.advertise("listen", (HOME,)) and not me.advertise("listen", (HOME,))
    me.sign()
    assert me.own is not None and me.own.endpoints == (HOME,)
    assert len(me._endpoints) == 1


async def test_what_is_told_within_one_millisecond_or_by_an_earlier_clock_is_still_news() -> None:
    told: list[bytes] = []
    one, other = keeper(1, lambda: NOW_MS, told), keeper(2, lambda: NOW_MS, [])
    for endpoints in ((HOME,), (HOME, RELAYED), (RELAYED,)):
        assert one.advertise("relay", endpoints)
        one.sign()
        assert await other.validate(account(1).address, told[-1]) is Verdict.ACCEPT
        known = other.book.get(account(1).address)
        assert known is not None and known.endpoints == endpoints
    told_later: list[bytes] = []
    again = keeper(1, lambda: NOW_MS - 60_000, told_later)  # restarted, the clock set back by a minute
    again.advertise("relay", (HOME,))
    again.sign()
    assert await other.validate(account(1).address, told_later[-1]) is Verdict.IGNORE
    await again.validate(account(2).address, told[-1])  # an echo of what we said before
    again.sign()
    assert await other.validate(account(1).address, told_later[-1]) is Verdict.ACCEPT
