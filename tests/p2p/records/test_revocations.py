"""A later certificate revokes an earlier one wherever it was heard of, and over restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits
from p2p.records.records import sign_record
from p2p.records.revocations import Revocations
from p2p.secure.identity import CERTIFICATE_LIFE_MS_MAX, Identity
from p2p.service import Network, NetworkConfig
from relay.protocol.errors import Refusal
from relay.protocol.wire import Release, Reserve
from relay.server.core import Drop, Send
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.p2p.helpers import GENESIS, NOW_MS, account
from tests.p2p.test_service import Wires, connect_raw, running, wires
from tests.relay.server.test_core import LIMITS, Relay, refusal_of

__all__ = ["wires"]

A, B = account(0).address, account(1).address


def bob(sequence: int, secret: int) -> Identity:
    return Identity.create(
        account(1), genesis_hash=GENESIS, now_ms=NOW_MS, sequence=sequence, node_secret=bytes([secret]) * 32
    )


STOLEN, RENEWED, NEW = bob(5, 1), bob(6, 1), bob(7, 2)


def test_older_certificates_of_other_keys_are_revoked_and_renewed_ones_are_not() -> None:
    known = Revocations()
    assert not known.note(B, RENEWED.certificate, is_met=False)
    assert not known.is_revoked(B, STOLEN.certificate)  # the clock was set back: the keys are the same
    assert known.note(B, NEW.certificate, is_met=False)
    assert known.is_revoked(B, STOLEN.certificate) and known.is_revoked(B, RENEWED.certificate)
    assert not known.note(B, STOLEN.certificate, is_met=True) and known.is_revoked(B, STOLEN.certificate)
    assert not known.is_revoked(B, NEW.certificate) and not known.is_revoked(A, STOLEN.certificate)


def test_what_is_known_is_kept_over_a_restart_for_as_long_as_it_matters() -> None:
    known = Revocations()
    known.note(B, NEW.certificate, is_met=True)
    assert known.has_changed
    data = known.encode()
    assert not known.has_changed
    again = Revocations()
    again.load(data, now_ms=NOW_MS)
    assert again.is_revoked(B, STOLEN.certificate)
    again.expire(NOW_MS + CERTIFICATE_LIFE_MS_MAX)
    assert len(again) == 0
    for damaged in (
        b"",
        data[:-1],
        encode([1]),
        encode([[B, 1, b"short", 2, 0]]),
        encode([[B, 1, bytes(32), 2, 2]]),
    ):
        with pytest.raises(DecodeError):
            Revocations().load(damaged, now_ms=NOW_MS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans()), max_size=80))
def test_strangers_cannot_make_it_grow_nor_drive_out_the_committee(notes: list[tuple[int, int, bool]]) -> None:
    known = Revocations(is_kept=lambda address: address == B, known_max=5)
    known.note(B, NEW.certificate, is_met=False)
    for who, sequence, is_met in notes:
        known.note(bytes([who]) * 20, replace(STOLEN.certificate, sequence=sequence), is_met=is_met)
        assert len(known) <= 5 and known.is_revoked(B, STOLEN.certificate)


def alone(wires: Wires, data_dir: Path | None = None) -> Network:
    return Network(
        NetworkConfig(limits=NetworkLimits(), data_dir=data_dir), Identity.create(
            account(0), genesis_hash=GENESIS, now_ms=NOW_MS, node_secret=bytes(32)
        ), dialers={"relay": wires}, now_ms=lambda: NOW_MS, random=Random(0),
    )  # fmt: skip


async def test_a_stolen_key_is_refused_by_who_has_heard_of_its_successor(
    wires: Wires, tmp_path: Path, autojump_clock: object
) -> None:
    """The owner is not connected; a record of its new certificate came by gossip, and the node has restarted."""
    alice = alone(wires, tmp_path)
    record = sign_record(NEW, (Endpoint("192.0.2.1", 1),), now_ms=NOW_MS)
    async with running(alice, wires=wires):
        await alice.parts.records.validate(bytes(20), record.data)
    again = alone(wires, tmp_path)
    async with running(again, wires=wires):
        again.parts.book.remove(B)  # it need not be in the book any more
        await connect_raw(again, STOLEN)
        await trio.sleep(1)
        assert not again.is_connected(B) and again.counters["refused_revoked"] == 1
        await connect_raw(again, NEW)
        await again.wait_peers(1)


async def test_who_holds_a_stolen_key_is_dropped_when_its_successor_is_heard_of(
    wires: Wires, autojump_clock: object
) -> None:
    alice = alone(wires)
    async with running(alice, wires=wires):
        await connect_raw(alice, STOLEN)
        await alice.wait_peers(1)
        await alice.parts.records.validate(bytes(20), sign_record(NEW, (), now_ms=NOW_MS).data)
        await trio.sleep(1)
        assert not alice.is_connected(B) and alice.counters["closed_certificate_revoked"] == 1
        # Nor does its record replace the owner's.
        stale = sign_record(STOLEN, (Endpoint("192.0.2.9", 1),), now_ms=NOW_MS + 1)
        await alice.parts.records.validate(bytes(20), stale.data)
        assert alice.record(B) is None or alice.record(B) != stale


def test_a_relay_reserves_for_no_older_certificate_than_it_has_seen() -> None:
    relay = Relay()
    host = relay.hosts.use("192.0.2.1", 0)
    assert host is not None
    for number, who in enumerate((NEW, STOLEN, NEW)):
        relay.core.control_opened(number, B, host, "", 0, who.certificate)
    assert isinstance(relay.say(0, Reserve(1, 60))[0], Send)
    assert relay.say(1, Reserve(1, 60)) == [Drop(1, "revoked")]
    assert relay.core.is_reserved(B, 0)
    relay.core.control_closed(0)
    relay.core.control_opened(3, B, host, "", 0, STOLEN.certificate)
    assert relay.say(3, Reserve(1, 60)) == [Drop(3, "revoked")]  # also when the owner is away
    assert isinstance(relay.say(2, Reserve(1, 60))[0], Send)


def test_those_that_are_kept_are_not_walked_past_each_time_another_comes() -> None:
    asked = 0

    def is_kept(address: bytes) -> bool:
        nonlocal asked
        asked += 1
        return address[0] == 1

    known = Revocations(is_kept=is_kept, known_max=600)
    for first, count in ((1, 300), (2, 3_000)):
        for number in range(count):
            who = bytes([first]) + number.to_bytes(19, "big")
            known.note(who, NEW.certificate, is_met=True)
    assert len(known) == 600
    assert asked <= 2 * 3_000
    assert all(known.is_revoked(b"\1" + number.to_bytes(19, "big"), STOLEN.certificate) for number in range(300))


def test_a_relay_remembers_the_certificates_of_those_who_get_a_reservation_until_they_end() -> None:
    relay = Relay(replace(LIMITS, reservations_per_host_max=1))
    host = relay.hosts.use("192.0.2.1", 0)
    assert host is not None
    relay.join(0, A)
    relay.say(0, Reserve(1, 60))
    relay.core.control_opened(1, B, host, "", 0, NEW.certificate)
    assert refusal_of(relay.say(1, Reserve(1, 60))) is Refusal.HOST_LIMIT
    relay.core.control_opened(2, B, host, "", 0, STOLEN.certificate)
    assert refusal_of(relay.say(2, Reserve(1, 60))) is Refusal.HOST_LIMIT  # the newer one was not noted
    relay.say(0, Release())
    relay.say(1, Reserve(1, 60))
    assert relay.say(2, Reserve(1, 60)) == [Drop(2, "revoked")]
    relay.core.control_closed(1)
    relay.core.expire(NOW_MS + CERTIFICATE_LIFE_MS_MAX)
    relay.core.control_opened(3, B, host, "", 0, STOLEN.certificate)
    assert isinstance(relay.say(3, Reserve(1, 60))[0], Send)
