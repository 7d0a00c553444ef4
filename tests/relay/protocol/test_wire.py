from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.secure.handshake import Handshake
from p2p.secure.identity import Purpose, Role
from relay.protocol.errors import Refusal, RelayProtocolError
from relay.protocol.route import ROUTE_BYTES_MAX
from relay.protocol.wire import (
    MESSAGE_BYTES_MAX,
    AskLinkState,
    Charged,
    Connect,
    ControlChannel,
    Decline,
    Extend,
    Incoming,
    LinkStateReply,
    Message,
    Offered,
    Park,
    Pay,
    Ping,
    Pong,
    Refused,
    Release,
    Reserve,
    Reserved,
    Restarting,
    Terms,
    Voucher,
    decode_message,
    encode_message,
)
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.relay.daemon_process import account_of, identity_of

NUMBER = st.integers(0, 2**32 - 1)
SIZE = st.integers(0, 2**63 - 1)
TOKEN = st.binary(min_size=32, max_size=32)
PARKED = st.just(b"") | TOKEN
ADDRESS = st.binary(min_size=20, max_size=20)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Reserve, NUMBER, NUMBER),
    st.just(Release()),
    st.builds(Connect, NUMBER, ADDRESS, PARKED),
    st.builds(Extend, NUMBER, st.binary(max_size=ROUTE_BYTES_MAX), PARKED),
    st.builds(Park, TOKEN),
    st.builds(Pay, st.binary(max_size=300)),
    st.builds(AskLinkState, NUMBER),
    st.builds(Terms, st.integers(0, 2**96 - 1), SIZE, NUMBER, SIZE),
    st.builds(Charged, SIZE),
    st.builds(Restarting, NUMBER),
    st.builds(LinkStateReply, NUMBER, st.binary(max_size=600)),
    st.builds(Decline, TOKEN),
    st.builds(Ping, NUMBER),
    st.builds(Pong, NUMBER),
    st.builds(Reserved, NUMBER, NUMBER, st.binary(max_size=200), st.text("0123456789.:[]", max_size=64)),
    st.builds(Offered, NUMBER, TOKEN, NUMBER),
    st.builds(Incoming, TOKEN, ADDRESS, NUMBER),
    st.builds(
        Refused,
        NUMBER,
        st.sampled_from(Refusal),
        NUMBER,
        st.integers(0, 100),
        st.lists(st.text("relay:0123", max_size=128), max_size=4).map(tuple),
    ),
)


@given(MESSAGES)
def test_every_message_has_one_spelling(message: Message) -> None:
    data = encode_message(message)
    assert len(data) <= MESSAGE_BYTES_MAX
    assert decode_message(data) == message


def test_the_strategy_knows_every_message() -> None:
    seen: set[type] = set()

    @settings(max_examples=300, database=None)
    @given(MESSAGES)
    def collect(message: Message) -> None:
        seen.add(type(message))

    collect()
    assert seen == set(get_args(Message))


@settings(max_examples=400)
@given(MESSAGES, st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 2))
def test_mutated_messages_raise_nothing_but_decode_error(message: Message, at: int, byte: int, how: int) -> None:
    data = bytearray(encode_message(message))
    at %= len(data)
    if how == 0:
        data[at] = byte
    elif how == 1:
        data.insert(at, byte)
    else:
        del data[at]
    try:
        decoded = decode_message(bytes(data))
    except DecodeError:
        return
    assert encode_message(decoded) == data


@given(st.binary(max_size=600))
def test_any_bytes_are_a_message_a_voucher_or_a_decode_error(data: bytes) -> None:
    for decode in (decode_message, Voucher.decode):
        try:
            decode(data)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    "value",
    [
        [1, -1, 5],
        [1, 2**32, 5],
        [3, 1, bytes(19)],
        [4, bytes(31)],
        [2, 0],
        [7],
        [3, 1, bytes(20)],
        [3, 1, bytes(20), bytes(31)],
        [7, 1, bytes(1025), b""],
        [8, bytes(31)],
        [9, bytes(321)],
        [20, 2**96, 1, 1, 1],
        [20, 1, -1, 1, 1],
        [22, 2**63],
        [19, 1, 1, 0, 101, []],
        [19, 1, 1, 0, 1, ["a"] * 5],
        [19, 1, 1, 0, 1, [b"a"]],
        [16, 1, 1, b"", "x" * 65],
        [17, 1, bytes(33), 0],
        [18, bytes(32), bytes(21), 0],
        [19, 1, 99, 0, 0, []],
        [],
        None,
        [5, "0"],
    ],
)
def test_what_is_out_of_bounds_is_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        decode_message(encode(value))  # type: ignore[arg-type]


def channels() -> tuple[ControlChannel, ControlChannel]:
    """Return the two ends (client, relay) of a control channel after its handshake."""
    client = Handshake(identity_of("client"), Purpose.RELAY_CONTROL, is_initiator=True, now_ms=_now_ms())
    relay = Handshake(
        identity_of("relay", Role.RELAY), Purpose.RELAY_CONTROL, is_initiator=False, now_ms=_now_ms()
    )
    relay.receive(client.receive(relay.receive(client.start())))
    assert client.session is not None and relay.session is not None
    return ControlChannel(client.session), ControlChannel(relay.session)


def _now_ms() -> int:
    return identity_of("clock").certificate.sequence


@settings(max_examples=40, deadline=None)
@given(st.lists(MESSAGES, max_size=8), st.integers(1, 50))
def test_messages_arrive_in_order_however_the_stream_is_cut(messages: list[Message], step: int) -> None:
    client, relay = channels()
    data = b"".join(client.seal(message) for message in messages)
    received: list[Message] = []
    for at in range(0, len(data), step):
        received += relay.receive(data[at : at + step])
    assert received == messages


def test_a_changed_repeated_or_oversized_record_ends_the_channel() -> None:
    client, relay = channels()
    good = client.seal(Ping(1))
    changed = good[:-1] + bytes((good[-1] ^ 1,))
    with pytest.raises(RelayProtocolError):
        relay.receive(changed)
    client, relay = channels()
    good = client.seal(Ping(1))
    assert relay.receive(good) == [Ping(1)]
    with pytest.raises(RelayProtocolError):
        relay.receive(good)
    client, relay = channels()
    with pytest.raises(RelayProtocolError, match="65535"):
        relay.receive(b"\xff\xff")  # refused by its length, before anything is kept
    with pytest.raises(RelayProtocolError):
        channels()[1].receive(b"\x00\x00")


def test_a_voucher_is_the_relays_word_for_one_client_until_its_end() -> None:
    relay, client = identity_of("relay", Role.RELAY), account_of("client").address
    voucher = Voucher.issue(relay, client=client, not_after_ms=1000)
    assert Voucher.decode(voucher.encode()) == voucher
    voucher.check(relay.address, relay.certificate, client=client, now_ms=999)
    other = identity_of("other relay", Role.RELAY)
    forged = Voucher.issue(other, client=client, not_after_ms=1000)
    for bad, who, now_ms in (
        (voucher, client, 1000),
        (voucher, account_of("thief").address, 0),
        (replace(voucher, not_after_ms=2000), client, 0),
        (replace(voucher, signature=bytes(65)), client, 0),
        (replace(forged, relay=relay.address), client, 0),
        (forged, client, 0),
    ):
        with pytest.raises(RelayProtocolError):
            bad.check(relay.address, relay.certificate, client=who, now_ms=now_ms)
