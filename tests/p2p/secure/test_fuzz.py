"""Changed bytes into every decoder that a stranger's bytes reach: typed errors or the one canonical spelling."""

from collections.abc import Callable
from random import Random

import pytest

from p2p.base.endpoint import Endpoint
from p2p.base.errors import RecordInvalid
from p2p.blob.store import Manifest
from p2p.records.records import sign_record, verify_record
from p2p.secure.channel import Channel
from p2p.secure.frame import frame, frames
from p2p.secure.handshake import Handshake
from p2p.secure.identity import NodeCertificate, Purpose
from p2p.session.mux import Mux
from state.primitives.errors import ProtocolError
from tests.p2p.helpers import GENESIS, NOW_MS, identity, sessions

ROUNDS = 1500


def mutated(random: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.randint(1, 5)):
        match random.randrange(4):
            case 0 if out:
                out[random.randrange(len(out))] = random.randrange(256)
            case 1 if out:
                del out[random.randrange(len(out)) :]
            case 2:
                out[random.randrange(len(out) + 1) : 0] = random.randbytes(random.randint(1, 9))
            case _:
                at = random.randrange(len(out) + 1)
                out += out[at : at + random.randint(0, 40)]
    return bytes(out)


def read_frames(data: bytes) -> None:
    assert b"".join(frame(cls, kind, stream, body) for cls, kind, stream, body in frames(data)) == data


def read_certificate(data: bytes) -> None:
    assert NodeCertificate.decode(data).encode() == data


def read_manifest(data: bytes) -> None:
    assert Manifest.decode(data).encode() == data


def read_record(data: bytes) -> None:
    assert verify_record(data, genesis_hash=GENESIS, now_ms=NOW_MS).data == data


def read_hello(data: bytes) -> None:
    responder = Handshake(identity(1), Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    assert len(responder.receive(data)) < 1024 and responder.session is None


SEEDS: dict[str, tuple[bytes, Callable[[bytes], None]]] = {
    "frames": (frame(1, 2, 3, b"body") + frame(0, 0xF0, 0, bytes(8)) + frame(4, 1, 0, b""), read_frames),
    "certificate": (identity(1).certificate.encode(), read_certificate),
    "manifest": (Manifest(2**20 + 1, (b"a" * 32, b"b" * 32)).encode(), read_manifest),
    "record": (sign_record(identity(1), (Endpoint("h", 1),), now_ms=NOW_MS).data, read_record),
    "hello": (
        Handshake(identity(0), Purpose.PEER, is_initiator=True, now_ms=NOW_MS).start(),
        read_hello,
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_changed_bytes_raise_typed_errors_only(name: str) -> None:
    seed, read = SEEDS[name]
    random = Random(name)
    read(seed)
    refused = 0
    for _ in range(ROUNDS if name != "hello" else ROUNDS // 5):
        try:
            read(mutated(random, seed))
        except (ProtocolError, RecordInvalid):
            refused += 1
    assert refused > 0


def test_changed_authentic_plaintexts_never_exceed_the_memory_promised() -> None:
    random = Random(3)
    whole = frame(2, 1, 0, b"gossip") + frame(1, 1, 7, (90_000).to_bytes(4, "big") + bytes(50))
    for _ in range(300):
        one, other = sessions()
        receiver = Mux(Channel(other))
        try:
            for _ in range(5):
                body = one.send.encrypt(mutated(random, whole))
                receiver.receive(len(body).to_bytes(2, "big") + body)
                assert receiver.reassembly_bytes <= receiver.limits.reassembly_bytes_max
        except ProtocolError:
            continue
