"""Decoders of the relays: their protocol, fan-out, routes and receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import cast

from prometheus_client import CollectorRegistry

from billing.relay import Receipt as Carried
from p2p.base.endpoint import Endpoint
from relay.payment.receipts import StoredReceipt
from relay.protocol import fanout as fanout_wire
from relay.protocol.errors import Refusal, RelayProtocolError
from relay.protocol.link_state import LinkMeasurement, LinkState
from relay.protocol.route import NONCE_BYTES, Route
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
)
from relay.protocol.wire import decode_message as decode_relay_message
from relay.protocol.wire import encode_message as encode_relay_message
from relay.server.telemetry import HTTP_REQUEST_BYTES_MAX, HttpAnswerer
from state.primitives.keys import SIGNATURE_BYTES
from tests.fuzz.targets.base import Target, canonical
from tests.fuzz.targets.samples import CARRIED
from tests.fuzz.targets.wires import fresh_sessions
from tests.p2p.helpers import NOW_MS, identity

TOKEN = b"\x07" * 32
VOUCHER = Voucher.issue(identity(3), client=b"c" * 20, not_after_ms=NOW_MS)
HOPS = (Endpoint("r.example", 3, b"r" * 20), Endpoint("::2", 4, b"q" * 20))
ROUTE = replace(
    Route.sign(identity(3), HOPS, b"t" * 20, now_ms=NOW_MS, nonce=b"n" * NONCE_BYTES),
    signature=b"s" * SIGNATURE_BYTES,
)
"""The same in each process; its decoder looks at no signature."""
LINK_STATE = LinkState.sign(
    identity(3), {b"r" * 20: LinkMeasurement(20_000, 10**7), b"q" * 20: LinkMeasurement(1, 0)}, now_ms=NOW_MS
)
RELAYED = (
    Reserve(1, 60), Release(), Connect(2, b"t" * 20), Decline(TOKEN), Ping(5), Pong(5),
    Reserved(1, 60, VOUCHER.encode(), "192.0.2.1:7"), Offered(2, TOKEN, 5_000), Incoming(TOKEN, b"s" * 20, 5_000),
    Refused(2, Refusal.RELAY_FULL, 100, 99, ("relay:" + "ab" * 20 + ":h:1",)), Connect(2, b"t" * 20, TOKEN),
    Extend(3, ROUTE.encode(), TOKEN), Park(TOKEN), Pay(CARRIED.encode()), AskLinkState(4), Terms(10**16, 4, 5, 6),
    Charged(7), Restarting(8), LinkStateReply(4, LINK_STATE.encode()),
)  # fmt: skip


def read_fanout(data: bytes) -> None:
    """Give bytes, and authentic hostile plaintexts, to a connection for fan-out."""
    one, other = fresh_sessions()
    body = one.send.encrypt(data[: fanout_wire.MESSAGE_BYTES_MAX])
    fanout_wire.FanoutChannel(other).receive(len(body).to_bytes(2, "big") + body)
    with suppress(RelayProtocolError):
        fanout_wire.FanoutChannel(fresh_sessions()[1]).receive(data)


def read_control_records(data: bytes) -> None:
    """Give bytes, and authentic hostile plaintexts, to a control connection."""
    one, other = fresh_sessions()
    channel = ControlChannel(other)
    body = one.send.encrypt(data[:MESSAGE_BYTES_MAX])
    for message in channel.receive(len(body).to_bytes(2, "big") + body):
        assert encode_relay_message(message) == data
    with suppress(RelayProtocolError):
        ControlChannel(other).receive(data)


class _Reader:
    """What a transport is to a reader that answers: the bytes count, not where they go."""

    def __init__(self) -> None:
        self.is_over = False
        self.written = b""

    def write(self, data: bytes) -> None:
        assert not self.is_over
        self.written += data

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over


def read_metrics_request(data: bytes) -> None:
    """Ask for metrics with any bytes, in two parts: one answer at most."""
    answerer, transport = HttpAnswerer(CollectorRegistry()), _Reader()
    answerer._transport = cast(asyncio.Transport, transport)
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        answerer.data_received(part)
    assert transport.written.count(b"HTTP/1.1") <= 1
    assert transport.is_over or len(data) <= HTTP_REQUEST_BYTES_MAX


def targets() -> Iterator[tuple[str, Target]]:
    fanout = (
        fanout_wire.Subscribe((b"p" * 20,)), fanout_wire.Group(1, (b"m" * 20, b"n" * 20)),
        fanout_wire.Publish(1, 60_000), fanout_wire.Ping(3), fanout_wire.Delivery(b"p" * 20, 60_000),
        fanout_wire.Pong(3),
    )  # fmt: skip
    yield "fan-out message", Target(
        canonical(fanout_wire.decode_fanout, fanout_wire.encode_fanout),
        tuple(fanout_wire.encode_fanout(message) for message in fanout), ("relay.protocol.fanout:decode_fanout",),
    )  # fmt: skip
    yield "fan-out records", Target(
        read_fanout, (fanout_wire.encode_fanout(fanout[3]), b"\xff\xff" + bytes(200)),
        ("relay.protocol.fanout:FanoutChannel.receive",),
        (RelayProtocolError,), cost=10,
    )  # fmt: skip
    yield "relay records", Target(
        read_control_records, tuple(encode_relay_message(message) for message in RELAYED[:4]),
        ("relay.protocol.wire:ControlChannel.receive",), (RelayProtocolError,),
    )  # fmt: skip
    yield "question for a relay's metrics", Target(
        read_metrics_request, (b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /healthz HTTP/1.0\r\n\r\n"),
        ("relay.server.telemetry:HttpAnswerer.data_received",), (),
    )  # fmt: skip
    yield "relay message", Target(
        canonical(decode_relay_message, encode_relay_message),
        tuple(encode_relay_message(message) for message in RELAYED),
        ("relay.protocol.wire:decode_message",),
    )  # fmt: skip
    yield (
        "relay voucher",
        Target(
            canonical(Voucher.decode, Voucher.encode), (VOUCHER.encode(),), ("relay.protocol.wire:Voucher.decode",)
        ),
    )
    yield "relay route", Target(
        canonical(Route.decode, Route.encode), (ROUTE.encode(),), ("relay.protocol.route:Route.decode",),
    )  # fmt: skip
    yield "relay links", Target(
        canonical(LinkState.decode, LinkState.encode), (LINK_STATE.encode(),),
        ("relay.protocol.link_state:LinkState.decode", "relay.protocol.link_state:_link_measurement"),
    )  # fmt: skip
    yield "relay receipt", Target(
        canonical(Carried.decode, Carried.encode), (CARRIED.encode(),), ("billing.relay:Receipt.decode",),
    )  # fmt: skip
    yield "stored relay receipt", Target(
        canonical(StoredReceipt.decode, StoredReceipt.encode),
        (StoredReceipt(CARRIED, identity(3).certificate.encode()).encode(),),
        ("relay.payment.receipts:StoredReceipt.decode", "relay.payment.receipts:ReceiptStore.load"),
    )  # fmt: skip
