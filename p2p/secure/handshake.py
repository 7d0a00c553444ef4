"""The handshake of two nodes, without I/O: Noise XX with the node certificates as payloads (network.md 3.1).

On the wire each message follows its length (u16). A node that dials a known address stops before it reveals its
own identity to any other node. At most HANDSHAKE_MESSAGE_BYTES_MAX are stored of an unauthenticated peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2p.base.errors import CertificateInvalid, HandshakeFailed, WrongPeer
from p2p.secure.identity import Identity, NodeCertificate, Purpose, prologue
from p2p.secure.noise import CipherState, HandshakeState
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["HANDSHAKE_MESSAGE_BYTES_MAX", "Handshake", "Session"]

HANDSHAKE_MESSAGE_BYTES_MAX: Final = 1024
FEATURES_BITS: Final = 64


@dataclass(slots=True)
class Session:
    """A finished handshake: the address of the peer, and the keys of both directions."""

    address: bytes
    certificate: NodeCertificate
    features: int
    send: CipherState
    receive: CipherState
    channel_binding: bytes
    """The handshake hash: equal on both sides, and different on every other connection."""
    rest: bytes
    """Bytes received after the handshake: the start of the first record."""
    is_initiator: bool


class Handshake:
    """One side of the handshake. Send what ``start`` and ``receive`` return until ``session`` is set."""

    def __init__(
        self,
        identity: Identity,
        purpose: Purpose,
        *,
        is_initiator: bool,
        now_ms: int,
        expected: bytes | None = None,
        features: int = 0,
    ) -> None:
        self._identity = identity
        self._is_initiator = is_initiator
        self._now_ms = now_ms
        self._expected = expected
        self._payload = encode([identity.certificate.to_value(), features])
        self._noise = HandshakeState(
            initiator=is_initiator, static=identity.static, prologue=prologue(identity.genesis_hash, purpose)
        )
        self._buffer = bytearray()
        self._peer: tuple[bytes, NodeCertificate, int] | None = None
        self.session: Session | None = None
        """None until the last message has been written or read."""

    def start(self) -> bytes:
        """Return the bytes to send first: the initiator's hello, nothing for the responder."""
        return _framed(self._noise.write_message()) if self._is_initiator else b""

    def receive(self, data: bytes) -> bytes:
        """Process bytes from the peer; return the bytes to send. Raises HandshakeFailed: then drop the peer."""
        assert self.session is None, "the handshake is finished"
        self._buffer += data
        out = []
        while self.session is None and len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if size > HANDSHAKE_MESSAGE_BYTES_MAX:
                raise HandshakeFailed(f"message of {size} bytes, limit {HANDSHAKE_MESSAGE_BYTES_MAX}")
            if len(self._buffer) < 2 + size:
                break
            message = bytes(self._buffer[2 : 2 + size])
            del self._buffer[: 2 + size]
            out.append(self._step(message))
        return b"".join(out)

    def _step(self, message: bytes) -> bytes:
        payload = self._noise.read_message(message)
        if self._noise.remote_static:
            self._peer = self._check_peer(payload)
        answer = b""
        if self._noise.is_my_turn:
            # The responder's answer to the hello, or the initiator's last word to a peer that it has checked.
            answer = _framed(self._noise.write_message(self._payload))
        if self._noise.is_complete:
            assert self._peer is not None
            send, receive = self._noise.split()
            address, certificate, features = self._peer
            rest = bytes(self._buffer)
            self._buffer.clear()
            self.session = Session(
                address, certificate, features, send, receive, self._noise.handshake_hash, rest, self._is_initiator
            )
        return answer

    def _check_peer(self, payload: bytes) -> tuple[bytes, NodeCertificate, int]:
        try:
            value = decode(payload, limit_bytes=HANDSHAKE_MESSAGE_BYTES_MAX)
            match value:
                case [list(inner), int(features)] if 0 <= features < 2**FEATURES_BITS:
                    certificate = NodeCertificate.from_value(inner)
                case _:
                    raise DecodeError("not a handshake payload")
        except DecodeError as error:
            raise HandshakeFailed(str(error)) from None
        if certificate.static_key != self._noise.remote_static:
            raise CertificateInvalid("the certificate is for another transport key")
        address = certificate.verify(genesis_hash=self._identity.genesis_hash, now_ms=self._now_ms)
        if self._expected is not None and address != self._expected:
            raise WrongPeer(f"expected 0x{self._expected.hex()}, found 0x{address.hex()}")
        return address, certificate, features


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message
