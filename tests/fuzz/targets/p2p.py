"""Decoders of the peers: handshake, frames, gossip, records of peers, pieces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import cast

import trio

from p2p.base.endpoint import Endpoint, parse_bootstrap
from p2p.base.errors import FrameInvalid, HandshakeFailed, RecordInvalid
from p2p.base.limits import NetworkLimits, ReceiveMemory
from p2p.base.observed_address import ObservedAddress
from p2p.gossip.core import Gossip
from p2p.multicast.core import Multicast
from p2p.multicast.pieces import (
    MESSAGE_BYTES_MAX,
    SEAL_BYTES,
    Piece,
    PieceLayout,
    decode_piece,
    encode_piece,
    split_message,
)
from p2p.multicast.wire import Announce, Ask, Done, Have, Swap, Want, encode_control
from p2p.path.endpoint_status import DialBackAnswer
from p2p.path.hole_punch import PunchMessage
from p2p.records.addrbook import AddressBook
from p2p.records.records import sign_record, verify_record
from p2p.records.revocations import Revocations
from p2p.secure.channel import Channel, HelloKind
from p2p.secure.channel import Hello as PeerHello
from p2p.secure.frame import TrafficClass, frame, frames
from p2p.secure.handshake import Handshake
from p2p.secure.identity import NodeCertificate, Purpose, prologue
from p2p.secure.noise import HandshakeState, StaticKey
from p2p.secure.record import RecordReader
from p2p.session.bulk_streams import BulkIn, BulkOut, BulkStream, WindowLimits
from p2p.session.mux import Message, Mux, MuxLimits
from p2p.session.requests import KIND_REFUSAL, KIND_REQUEST, KIND_RESPONSE, Requests
from state.primitives.codec import encode
from state.primitives.errors import (
    ConfigError,
    DecodeError,
)
from tests.fuzz.targets.base import Target, canonical, of_text
from tests.fuzz.targets.samples import (
    PEER,
    RAW,
)
from tests.fuzz.targets.wires import fresh_sessions
from tests.p2p.helpers import GENESIS, NOW_MS, identity

RECORD = sign_record(identity(1), (Endpoint("h", 1), Endpoint("::1", 2), Endpoint("r.example", 3, b"r" * 20)),
                     now_ms=NOW_MS)  # fmt: skip


OURS = identity(1)


def read_frames(data: bytes) -> None:
    """Cut a record's plaintext."""
    assert b"".join(frame(cls, kind, stream, body) for cls, kind, stream, body in frames(data)) == data


def read_mux(data: bytes) -> None:
    """Give authentic hostile plaintexts to a connection."""
    one, other = fresh_sessions()
    mux = Mux(Channel(other))
    for at in range(0, len(data), 60_000):
        body = one.send.encrypt(data[at : at + 60_000])
        mux.receive(len(body).to_bytes(2, "big") + body)
        assert mux.reassembly_bytes <= mux.limits.reassembly_bytes_max


def read_multicast(data: bytes) -> None:
    """Give a control message to a core that knows nobody."""
    core = Multicast(b"o" * 20, random=Random(0))
    core.control(b"p" * 20, data, 0.0)
    assert core.held_bytes <= MESSAGE_BYTES_MAX + SEAL_BYTES


def read_bulk_stream(data: bytes) -> None:
    """Give authentic hostile plaintexts to a bulk connection."""
    one, other = fresh_sessions()
    account = ReceiveMemory(2**40).open(2**26, lambda: None)
    incoming = BulkIn(account, message_bytes_max=2**20, limits=WindowLimits())
    outgoing = BulkOut(queue_bytes_max=1, message_bytes_max=1, window_bytes=1)
    connection = BulkStream(Channel(other), outgoing, incoming)
    for at in range(0, len(data), 60_000):
        body = one.send.encrypt(data[at : at + 60_000])
        connection.receive(len(body).to_bytes(2, "big") + body)
        assert incoming.held_bytes <= 2**20


def read_sealed(data: bytes) -> None:
    """Give bytes to a connection as they come from a wire that somebody changes."""
    _, other = fresh_sessions()
    for _ in RecordReader(other.receive).receive(data):
        raise AssertionError("a forged record")


def first_message() -> bytes:
    """An initiator's hello that is the same in each process."""
    noise = HandshakeState(
        initiator=True, static=identity(0).static, prologue=prologue(GENESIS, Purpose.PEER),
        ephemeral=StaticKey(b"e" * 32),
    )  # fmt: skip
    message = noise.write_message()
    return len(message).to_bytes(2, "big") + message


def read_hello(data: bytes) -> None:
    """Give bytes to a responder that waits for a hello."""
    responder = Handshake(OURS, Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    assert len(responder.receive(data)) < 2048
    assert responder.session is None


def read_handshake_payload(data: bytes) -> None:
    """Check what a peer says under the encryption of the handshake."""
    responder = _waiting_responder()
    address, certificate, features = responder._check_peer(data)
    assert encode([certificate.to_value(), features]) == data
    assert len(address) == 20


@cache
def _waiting_responder() -> Handshake:
    initiator = Handshake(identity(0), Purpose.PEER, is_initiator=True, now_ms=NOW_MS)
    responder = Handshake(identity(1), Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    responder.receive(initiator.receive(responder.receive(initiator.start())))
    return responder


def read_gossip(data: bytes) -> None:
    """Give a message to the gossip core, which never raises and keeps its bounds."""
    core = Gossip(random=Random(1), now=1000.0)
    core.subscribe("tx", 100_000)
    core.peer_joined(b"p" * 20, outbound=True)
    core.receive(b"p" * 20, data, 1000.0)
    core.heartbeat(1001.0)
    core.receive(b"p" * 20, data, 1001.5)
    assert core.score(b"p" * 20) <= 1_000_000


def read_peer_request(data: bytes) -> None:
    """Read a request, its answer and a refusal as a connection does."""
    said: list[tuple[TrafficClass, int, bytes]] = []

    def say(*message: TrafficClass | int | bytes) -> bool:
        said.append(cast(tuple[TrafficClass, int, bytes], message))
        return True

    async def say_when_room(*_message: TrafficClass | int | bytes) -> None:
        raise AssertionError("an answer to a method that nobody serves")

    requests = Requests(
        b"p" * 20, limits=NetworkLimits(), classes=MuxLimits().classes, served=lambda _method: None,
        say=say, say_when_room=say_when_room,
    )  # fmt: skip
    for kind in (KIND_RESPONSE, KIND_REFUSAL):
        try:
            requests.take(Message(TrafficClass.REQUEST, kind, data), cast(trio.Nursery, None))
        except FrameInvalid:
            pass
    requests.take(Message(TrafficClass.REQUEST, KIND_REQUEST, data), cast(trio.Nursery, None))
    assert [kind for _, kind, _ in said] == [KIND_REFUSAL]


def read_revocations(data: bytes) -> None:
    """Load the newest certificates that an earlier run knew."""
    known = Revocations(known_max=4)
    known.load(data, now_ms=NOW_MS)
    assert len(known) <= 4


def read_book(data: bytes) -> None:
    """Load an address book."""
    book = AddressBook(key=b"key", genesis_hash=GENESIS)
    book.load(data, now_ms=NOW_MS)
    assert len(book) <= 1


def targets() -> Iterator[tuple[str, Target]]:
    yield "node certificate", Target(
        canonical(NodeCertificate.decode, NodeCertificate.encode), (identity(1).certificate.encode(),),
        ("p2p.secure.identity:NodeCertificate.decode", "p2p.secure.identity:NodeCertificate.from_value"),
    )  # fmt: skip
    yield "hello", Target(
        read_hello, (first_message(),),
        ("p2p.secure.noise:HandshakeState.read_message", "p2p.secure.handshake:Handshake.receive"),
        (HandshakeFailed,), cost=10,
    )  # fmt: skip
    yield "handshake payload", Target(
        read_handshake_payload, (encode([identity(0).certificate.to_value(), 0]),),
        ("p2p.secure.handshake:Handshake._check_peer", "p2p.secure.identity:NodeCertificate.verify"),
        (HandshakeFailed,),
    )  # fmt: skip
    whole = frame(1, 2, 3, b"body") + frame(0, 0xF0, 0, bytes(8)) + frame(4, 1, 0, b"")
    parts = frame(2, 1, 0, b"gossip") + frame(1, 1, 7, (90_000).to_bytes(4, "big") + bytes(50))
    yield "frames", Target(read_frames, (whole, parts), ("p2p.secure.frame:frames",), (FrameInvalid,))
    bulk_connections = b"".join(
        frame(0, kind, 0, body)
        for kind, body in ((0xFA, b"\0\1\2\3"), (0xFB, b"\1\0\2\2"), (0xFC, bytes(24)), (0xFD, bytes(16)))
    )
    yield "mux", Target(
        read_mux, (parts, whole, bulk_connections),
        (
            "p2p.session.mux:Mux.receive", "p2p.session.mux:Mux._take_fragment",
            "p2p.session.mux:Mux._take_control",
            "p2p.session.path_offers:decode_offer", "p2p.session.path_offers:decode_request",
            "p2p.secure.channel:Channel.feed",
        ),
        (FrameInvalid,), cost=20,
    )  # fmt: skip
    yield "bulk stream", Target(
        read_bulk_stream, (frame(4, 1, 1, bytes(4) + b"bulk"), whole),
        ("p2p.session.bulk_streams:BulkStream.receive", "p2p.session.bulk_streams:BulkIn.take"), (FrameInvalid,),
        cost=20,
    )  # fmt: skip
    yield "conversation hello", Target(
        canonical(PeerHello.decode, PeerHello.encode), (PeerHello(HelloKind.RESUME, bytes(16), 1, 2).encode(),),
        ("p2p.secure.channel:Hello.decode",), (FrameInvalid,),
    )  # fmt: skip
    yield "sealed record", Target(
        read_sealed, (b"\0\x20" + bytes(32), b"\xff\xff" + bytes(200)),
        ("p2p.secure.record:RecordReader.receive", "p2p.secure.record:RecordReader.feed"),
        (FrameInvalid,),
    )  # fmt: skip
    gossip = (
        encode([1, "tx", [RAW, b"x"]]), encode([2, ["tx", "record"]]), encode([3, "tx", [b"i" * 20, b"j" * 20]]),
        encode([4, [b"i" * 20]]), encode([4, "tx"]), encode([5, "tx"]), encode([6, "tx", 60]),
        encode([7, [b"i" * 20]]),
    )  # fmt: skip
    yield (
        "gossip",
        Target(
            read_gossip, gossip, ("p2p.gossip.core:Gossip._receive", "p2p.gossip.core:Gossip.receive"), (), cost=2
        ),
    )
    yield "peer request", Target(
        read_peer_request, (encode([1, "blob", 1000, b"body"]), bytes(8) + b"busy"),
        (
            "p2p.session.requests:Requests.take", "p2p.session.requests:Requests._on_request",
            "p2p.session.requests:Requests._on_response", "p2p.session.requests:Requests._on_refusal",
        ),
        (DecodeError, FrameInvalid),
    )  # fmt: skip
    yield "peer record", Target(
        canonical(lambda data: verify_record(data, genesis_hash=GENESIS, now_ms=NOW_MS), lambda found: found.data),
        (RECORD.data,), ("p2p.records.records:verify_record",), (RecordInvalid,),
    )  # fmt: skip
    book = AddressBook(key=b"key", genesis_hash=GENESIS)
    book.add(RECORD, source=b"")
    newest = encode([[b"a" * 20, 5, b"k" * 32, 2**62, 1], [b"b" * 20, 5, b"k" * 32, 2**62, 0]])
    yield "newest certificates", Target(read_revocations, (newest,), ("p2p.records.revocations:Revocations.load",))
    yield "address book", Target(read_book, (book.encode(),), ("p2p.records.addrbook:AddressBook.load",))
    yield (
        "endpoint",
        Target(
            canonical(lambda data: Endpoint.parse(data.decode("utf-8", "replace")), lambda e: str(e).encode()),
            (b"tcp:h.example:26656", b"tcp:[::1]:1", b"relay:" + b"ab" * 20 + b":h:1"),
            ("p2p.base.endpoint:Endpoint.parse",),
        ),
    )
    seen = ObservedAddress.of("192.0.2.1", 4_000)
    yield (
        "observed address",
        Target(
            canonical(ObservedAddress.decode, ObservedAddress.encode),
            (seen.encode(), ObservedAddress.of("2001:db8::1", 1).encode()),
            ("p2p.base.observed_address:ObservedAddress.decode",),
        ),
    )
    yield (
        "dial-back answer",
        Target(
            canonical(DialBackAnswer.decode, DialBackAnswer.encode),
            (DialBackAnswer("192.0.2.1", True).encode(), DialBackAnswer("2001:db8::1", False).encode()),
            ("p2p.path.endpoint_status:DialBackAnswer.decode",),
        ),
    )
    yield (
        "punch word",
        Target(
            canonical(PunchMessage.decode, PunchMessage.encode),
            (PunchMessage(bytes(16), seen).encode(), PunchMessage(bytes(16)).encode()),
            ("p2p.path.hole_punch:PunchMessage.decode",),
        ),
    )
    yield (
        "bootstrap",
        Target(of_text(parse_bootstrap), (PEER, b"h:1"), ("p2p.base.endpoint:parse_bootstrap",), (ConfigError,)),
    )
    multicast = (
        Announce(bytes(32), bytes(32), 2, PieceLayout(100_000, 4_096)), Have(bytes(32), 5), Done(bytes(32)),
        Swap(bytes(32), bytes(32), 3, (b"m" * 20, b"n" * 20)), Swap(bytes(32), b"", 0, ()), Want(bytes(32), 6),
        Ask(bytes(32), ((b"m" * 20, 5), (b"n" * 20, 2))),
    )  # fmt: skip
    yield "multicast", Target(
        read_multicast, tuple(encode_control(message) for message in multicast),
        ("p2p.multicast.wire:decode_control", "p2p.multicast.core:Multicast.control"), cost=2,
    )  # fmt: skip
    cut = split_message(bytes(5_000), PieceLayout(5_000, 1_024))
    pieces = tuple(
        encode_piece(Piece(cut.root, number, cut.proofs[number].siblings, data, bool(number)))
        for number, data in enumerate(cut.pieces[:2])
    )
    yield "piece", Target(canonical(decode_piece, encode_piece), pieces, ("p2p.multicast.pieces:decode_piece",))
