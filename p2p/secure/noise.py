"""Noise_XX_25519_ChaChaPoly_SHA256 without I/O (Noise Protocol Framework, revision 34; network.md 3.1).

Only this pattern is implemented. Both sides send their static key encrypted. Only the responder that the initiator
has accepted learns the initiator's key. All-zero Diffie-Hellman outputs are rejected. Ephemeral keys give forward
secrecy.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from p2p.base.errors import FrameInvalid, HandshakeFailed, RecordDamaged

__all__ = [
    "KEY_BYTES",
    "MESSAGE_BYTES_MAX",
    "PROTOCOL_NAME",
    "TAG_BYTES",
    "CipherState",
    "HandshakeState",
    "StaticKey",
]

PROTOCOL_NAME: Final = b"Noise_XX_25519_ChaChaPoly_SHA256"
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 65535
"""Longest Noise message, handshake or transport."""

_NONCE: Final = Struct("<4xQ")
_NONCE_LAST: Final = 2**64 - 1
"""Reserved by the framework for rekeying; no message uses it."""
_PATTERN: Final = (("e",), ("e", "ee", "s", "es"), ("s", "se"))


class StaticKey:
    """An X25519 secret with its public half."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise HandshakeFailed("an X25519 secret has 32 bytes")
        self._hold(X25519PrivateKey.from_private_bytes(secret))

    def _hold(self, secret: X25519PrivateKey) -> None:
        self._secret = secret
        self.public: bytes = secret.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"StaticKey(public={self.public.hex()})"

    @classmethod
    def generate(cls) -> StaticKey:
        """Return a fresh key from the operating system's randomness."""
        key = cls.__new__(cls)
        key._hold(X25519PrivateKey.generate())  # from its bytes the public half would be computed once more
        return key

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes; never print, log or send them."""
        return self._secret.private_bytes_raw()

    def exchange(self, public: bytes) -> bytes:
        """Return the shared secret with ``public``. Raises HandshakeFailed if it is all zeros."""
        try:
            return self._secret.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point of small order, or not 32 bytes
            raise HandshakeFailed("the public key is not usable") from None


class CipherState:
    """One direction of an authenticated channel: a key and the count of messages under it."""

    __slots__ = ("_aead", "_key", "nonce")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._aead = ChaCha20Poly1305(key)
        self.nonce = 0

    def encrypt(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        """Return ``plaintext`` sealed with the next nonce; it is 16 bytes longer."""
        nonce = self.nonce
        if nonce == _NONCE_LAST:
            raise FrameInvalid("the nonces of this key are used up")
        self.nonce = nonce + 1
        return self._aead.encrypt(_NONCE.pack(nonce), plaintext, associated)

    def encrypt_into(self, plaintext: bytes, buffer: memoryview) -> None:
        """Seal into ``buffer``, which is exactly 16 bytes longer."""
        nonce = self.nonce
        if nonce == _NONCE_LAST:
            raise FrameInvalid("the nonces of this key are used up")
        self.nonce = nonce + 1
        self._aead.encrypt_into(_NONCE.pack(nonce), plaintext, b"", buffer)

    def decrypt(self, ciphertext: bytes | memoryview, associated: bytes = b"") -> bytes:
        """Return the plaintext of the next message. Raises FrameInvalid; the nonce is then unchanged."""
        nonce = self.nonce
        if nonce == _NONCE_LAST:
            raise FrameInvalid("the nonces of this key are used up")
        try:
            plaintext = self._aead.decrypt(_NONCE.pack(nonce), ciphertext, associated)
        except (InvalidTag, ValueError):
            raise RecordDamaged("the message is not authentic") from None
        self.nonce = nonce + 1
        return plaintext

    def rekey(self) -> None:
        """Replace the key by a one-way function of it; the nonce continues (section 11.3 of the framework)."""
        self._key = self._aead.encrypt(_NONCE.pack(_NONCE_LAST), bytes(KEY_BYTES), b"")[:KEY_BYTES]
        self._aead = ChaCha20Poly1305(self._key)


class HandshakeState:
    """One side of the three messages: the initiator writes, reads, writes; the responder does the opposite.

    ``ephemeral`` is only for published test vectors. After an exception the state is unusable.
    """

    __slots__ = (
        "_chaining_key",
        "_cipher",
        "_ephemeral",
        "_hash",
        "_initiator",
        "_remote_ephemeral",
        "_static",
        "_step",
        "remote_static",
    )

    def __init__(
        self, *, initiator: bool, static: StaticKey, prologue: bytes = b"", ephemeral: StaticKey | None = None
    ) -> None:
        self._initiator = initiator
        self._static = static
        self._ephemeral = ephemeral
        self._remote_ephemeral = b""
        self.remote_static: bytes = b""
        """The peer's static public key; empty until its message is read."""
        self._step = 0
        self._cipher: CipherState | None = None
        self._chaining_key = PROTOCOL_NAME  # exactly the hash's length, so it stands for itself
        self._hash = PROTOCOL_NAME
        self._mix_hash(prologue)

    @property
    def is_complete(self) -> bool:
        """Whether all three messages were exchanged."""
        return self._step == len(_PATTERN)

    @property
    def is_my_turn(self) -> bool:
        """Whether the next message is this side's to write."""
        return not self.is_complete and (self._step % 2 == 0) == self._initiator

    @property
    def handshake_hash(self) -> bytes:
        """The handshake hash, equal on both sides of the same handshake only; the channel binding once
        complete.
        """
        return self._hash

    def write_message(self, payload: bytes = b"") -> bytes:
        """Return the next handshake message with ``payload`` (in the first message in plaintext)."""
        assert self.is_my_turn, "not this side's turn"
        out = []
        for part in _PATTERN[self._step]:
            if part == "e":
                if self._ephemeral is None:
                    self._ephemeral = StaticKey.generate()
                self._mix_hash(self._ephemeral.public)
                out.append(self._ephemeral.public)
            elif part == "s":
                out.append(self._encrypt_and_hash(self._static.public))
            else:
                self._mix_key(self._exchange(part))
        out.append(self._encrypt_and_hash(payload))
        self._step += 1
        return b"".join(out)

    def read_message(self, message: bytes) -> bytes:
        """Return the payload of the peer's next message. Raises HandshakeFailed."""
        assert not self.is_my_turn and not self.is_complete, "the peer has nothing to say now"
        if len(message) > MESSAGE_BYTES_MAX:
            raise HandshakeFailed("message too long")
        at = 0
        for part in _PATTERN[self._step]:
            if part == "e":
                self._remote_ephemeral = message[at : at + KEY_BYTES]
                at += KEY_BYTES
                if len(message) < at:
                    raise HandshakeFailed("message too short")
                self._mix_hash(self._remote_ephemeral)
            elif part == "s":
                sealed = message[at : at + KEY_BYTES + TAG_BYTES]
                at += KEY_BYTES + TAG_BYTES
                self.remote_static = self._decrypt_and_hash(sealed)
                if len(self.remote_static) != KEY_BYTES:
                    raise HandshakeFailed("message too short")
            else:
                self._mix_key(self._exchange(part))
        payload = self._decrypt_and_hash(message[at:])
        self._step += 1
        return payload

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the ciphers (send, receive) of the finished handshake."""
        assert self.is_complete, "the handshake is not finished"
        first, second = _hkdf(self._chaining_key, b"")
        initiator, responder = CipherState(first), CipherState(second)
        return (initiator, responder) if self._initiator else (responder, initiator)

    def _exchange(self, part: str) -> bytes:
        assert self._ephemeral is not None
        # The first letter names the initiator's key, the second the responder's.
        mine = part[0] if self._initiator else part[1]
        theirs = part[1] if self._initiator else part[0]
        own = self._ephemeral if mine == "e" else self._static
        return own.exchange(self._remote_ephemeral if theirs == "e" else self.remote_static)

    def _mix_hash(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()

    def _mix_key(self, secret: bytes) -> None:
        self._chaining_key, key = _hkdf(self._chaining_key, secret)
        self._cipher = CipherState(key)

    def _encrypt_and_hash(self, plaintext: bytes) -> bytes:
        sealed = plaintext if self._cipher is None else self._cipher.encrypt(plaintext, self._hash)
        self._mix_hash(sealed)
        return sealed

    def _decrypt_and_hash(self, sealed: bytes) -> bytes:
        try:
            plaintext = sealed if self._cipher is None else self._cipher.decrypt(sealed, self._hash)
        except FrameInvalid:
            raise HandshakeFailed("not authentic: another chain, version, purpose or a broken channel") from None
        self._mix_hash(sealed)
        return plaintext


def _hkdf(chaining_key: bytes, secret: bytes) -> tuple[bytes, bytes]:
    temporary = hmac.digest(chaining_key, secret, "sha256")
    first = hmac.digest(temporary, b"\x01", "sha256")
    return first, hmac.digest(temporary, first + b"\x02", "sha256")
