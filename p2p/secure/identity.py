"""A node's identity: an account's address, bound to the node's keys by a certificate that the account signs.

The account key may stay offline. The node holds the certificate and one secret. From it derive the X25519 key of
its handshakes and the secp256k1 key that signs its peer records and receipts (network.md 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import Final

from p2p.base.errors import CertificateInvalid, CertificateOutOfTime
from p2p.secure.noise import KEY_BYTES, StaticKey
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SIGNATURE_BYTES, SecretKey, recover_address

__all__ = [
    "CERTIFICATE_BYTES_MAX",
    "CERTIFICATE_LIFE_MS_MAX",
    "PROTOCOL_VERSION",
    "Identity",
    "NodeCertificate",
    "Purpose",
    "Role",
    "account_and_signer",
    "node_keys",
    "prologue",
]

PROTOCOL_VERSION: Final = 1
CERTIFICATE_BYTES_MAX: Final = 224
CERTIFICATE_LIFE_MS_MAX: Final = 30 * 24 * 3_600_000
CLOCK_SKEW_MS_MAX: Final = 24 * 3_600_000
"""Maximum lead of the signer's clock before its certificate looks too long-lived."""

_MAGIC: Final = b"DEKUBE"
_KIND: Final = b"node certificate"


class Role(IntFlag):
    """The roles that a node claims. A claim must be checked against the chain before it is used."""

    VALIDATOR = 1
    WORKER = 2
    RELAY = 4
    ARCHIVE = 8


NO_ROLES: Final = Role(0)


class Purpose(IntEnum):
    """The purpose of a handshake. A handshake for one purpose does not authenticate another."""

    PEER = 1
    RELAY_CONTROL = 2
    CIRCUIT = 3
    SIGNER = 4
    RELAY_FANOUT = 8


def prologue(genesis_hash: bytes, purpose: Purpose) -> bytes:
    """Return the handshake prologue, which must be equal on both sides: protocol, version, chain and purpose."""
    return _MAGIC + bytes((PROTOCOL_VERSION, purpose)) + genesis_hash


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """An account's statement that ``static_key`` and ``signer`` act for it on the network until ``not_after_ms``.

    ``signer`` is the address of the key that signs peer records and receipts while the account key is offline. A
    certificate with a higher ``sequence`` revokes lower ones.
    """

    genesis_hash: bytes
    static_key: bytes
    signer: bytes
    roles: Role
    not_after_ms: int
    sequence: int
    signature: bytes = bytes(SIGNATURE_BYTES)

    @classmethod
    def issue(
        cls,
        account: SecretKey,
        *,
        genesis_hash: bytes,
        static_key: bytes,
        signer: bytes,
        roles: Role,
        now_ms: int,
        sequence: int,
        life_ms: int = CERTIFICATE_LIFE_MS_MAX,
    ) -> NodeCertificate:
        """Return the certificate that ``account`` signs for the public ``static_key`` and the ``signer``."""
        unsigned = cls(genesis_hash, static_key, signer, roles, now_ms + life_ms, sequence)
        return replace(unsigned, signature=account.sign(unsigned.signing_digest()))

    @classmethod
    def from_value(cls, value: object) -> NodeCertificate:
        """Return the certificate of a decoded value. Raises DecodeError; the signature is not checked here."""
        match value:
            case [
                bytes(genesis_hash),
                bytes(static_key),
                bytes(signer),
                int(roles),
                int(not_after_ms),
                int(sequence),
                bytes(signature),
            ] if (
                (len(genesis_hash), len(static_key)) == (HASH_BYTES, KEY_BYTES)
                and (len(signer), len(signature)) == (ADDRESS_BYTES, SIGNATURE_BYTES)
                and 0 <= roles < 2**16
                and 0 <= not_after_ms < 2**63
                and 0 <= sequence < 2**63
            ):
                return cls(genesis_hash, static_key, signer, Role(roles), not_after_ms, sequence, signature)
            case _:
                raise DecodeError("not a node certificate")

    @classmethod
    def decode(cls, data: bytes) -> NodeCertificate:
        """Return the certificate of its canonical bytes. Raises DecodeError."""
        return cls.from_value(decode(data, limit_bytes=CERTIFICATE_BYTES_MAX))

    def to_value(self) -> Value:
        """Return the value of the wire format."""
        return [*self._signed_fields(), self.signature]

    def encode(self) -> bytes:
        """Return the canonical bytes, at most CERTIFICATE_BYTES_MAX."""
        return encode(self.to_value())

    def signing_digest(self) -> bytes:
        """Return what the account signs: everything but the signature."""
        return digest(_KIND, encode(self._signed_fields()))

    def _signed_fields(self) -> list[Value]:
        fields: list[Value] = [self.genesis_hash, self.static_key, self.signer]
        return [*fields, int(self.roles), self.not_after_ms, self.sequence]

    def verify(self, *, genesis_hash: bytes, now_ms: int) -> bytes:
        """Return the address of the account that signed. Raises CertificateInvalid."""
        if self.genesis_hash != genesis_hash:
            raise CertificateInvalid("the certificate is of another chain")
        if not now_ms < self.not_after_ms <= now_ms + CERTIFICATE_LIFE_MS_MAX + CLOCK_SKEW_MS_MAX:
            raise CertificateOutOfTime(f"expired or too long-lived: not after {self.not_after_ms}, now {now_ms}")
        try:
            return recover_address(self.signing_digest(), self.signature)
        except SignatureInvalid:
            raise CertificateInvalid("bad signature") from None


def account_and_signer(data: bytes, genesis_hash: bytes, now_ms: int) -> tuple[bytes, bytes]:
    """Return the account and the signing key's address of an encoded node certificate.

    Raises DecodeError, CertificateInvalid.
    """
    certificate = NodeCertificate.decode(data)
    return certificate.verify(genesis_hash=genesis_hash, now_ms=now_ms), certificate.signer


@dataclass(frozen=True, slots=True)
class Identity:
    """The keys of a node, from its node secret, and the certificate for them."""

    static: StaticKey
    signer: SecretKey
    certificate: NodeCertificate
    address: bytes

    @classmethod
    def create(
        cls,
        account: SecretKey,
        *,
        genesis_hash: bytes,
        now_ms: int,
        node_secret: bytes,
        roles: Role = NO_ROLES,
        sequence: int | None = None,
    ) -> Identity:
        """Return an identity that ``account`` certifies at ``now_ms``.

        ``node_secret`` has 32 bytes. ``sequence`` defaults to the time, so a later certificate revokes this one.
        """
        static, signer = node_keys(node_secret)
        certificate = NodeCertificate.issue(
            account,
            genesis_hash=genesis_hash,
            static_key=static.public,
            signer=signer.address,
            roles=roles,
            now_ms=now_ms,
            sequence=now_ms if sequence is None else sequence,
        )
        return cls(static, signer, certificate, account.address)

    @classmethod
    def load(cls, node_secret: bytes, certificate: NodeCertificate, *, now_ms: int) -> Identity:
        """Return the identity of a node with an offline account key. Raises CertificateInvalid."""
        static, signer = node_keys(node_secret)
        if (static.public, signer.address) != (certificate.static_key, certificate.signer):
            raise CertificateInvalid("the certificate is for another node secret")
        address = certificate.verify(genesis_hash=certificate.genesis_hash, now_ms=now_ms)
        return cls(static, signer, certificate, address)

    @property
    def genesis_hash(self) -> bytes:
        """The chain this identity is for."""
        return self.certificate.genesis_hash


def node_keys(node_secret: bytes) -> tuple[StaticKey, SecretKey]:
    """Return the transport key and the signing key derived from a node's secret (32 bytes)."""
    return StaticKey(digest(b"node static", node_secret)), SecretKey(digest(b"node signer", node_secret))
