"""secp256k1 keys: recoverable ECDSA for transactions and certificates, BIP340 Schnorr for votes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from coincurve import PrivateKey, PublicKeyXOnly
from coincurve._libsecp256k1 import ffi, lib

from state.primitives.address import address_of
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES, keccak

__all__ = [
    "GROUP_ORDER",
    "SECRET_BYTES",
    "SIGNATURE_BYTES",
    "VOTE_KEY_BYTES",
    "VOTE_SIGNATURE_BYTES",
    "SecretKey",
    "is_vote_key",
    "recover_address",
    "recover_addresses",
    "verify_vote",
]

SECRET_BYTES: Final = 32
SIGNATURE_BYTES: Final = 65
"""r (32), s (32, at most half the group order), recovery id (1: 0 or 1)."""
VOTE_KEY_BYTES: Final = 32
VOTE_SIGNATURE_BYTES: Final = 64

GROUP_ORDER: Final = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""Order of the curve's group; secrets are from 1 to below it."""
_HALF_ORDER_BYTES: Final = (GROUP_ORDER // 2).to_bytes(32, "big")
_NO_AUX_RAND: Final = bytes(32)
_KEYS_REMEMBERED: Final = 512
"""Vote keys that are kept as points: those of a few committees."""
_UNCOMPRESSED: Final = 2  # SECP256K1_EC_UNCOMPRESSED
_CONTEXT: Final = ffi.gc(
    lib.secp256k1_context_create(1),  # SECP256K1_CONTEXT_NONE: recovery and verification need no tables
    lib.secp256k1_context_destroy,
)


class SecretKey:
    """A secp256k1 secret key with its account address."""

    __slots__ = ("_key", "address", "public_key", "vote_key")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES or not 0 < int.from_bytes(secret, "big") < GROUP_ORDER:
            raise DecodeError("not a secp256k1 secret key")
        self._key = PrivateKey(secret)
        self.public_key: bytes = self._key.public_key.format(compressed=False)
        """Uncompressed, 65 bytes."""
        self.address: bytes = address_of(self.public_key)
        self.vote_key: bytes = self.public_key[1:33]
        """The x-only key of BIP340, 32 bytes."""

    def __repr__(self) -> str:
        return f"SecretKey(address=0x{self.address.hex()})"

    @property
    def secret(self) -> bytes:
        """The 32 bytes that must never be printed, logged or sent."""
        return self._key.secret

    def sign(self, digest: bytes) -> bytes:
        """Return the recoverable signature (65 bytes, low s, RFC 6979 nonce) of a 32-byte digest."""
        return self._key.sign_recoverable(digest, hasher=None)

    def sign_vote(self, digest: bytes) -> bytes:
        """Return the BIP340 signature (64 bytes) of a 32-byte digest; deterministic (consensus.md 3.1)."""
        return self._key.sign_schnorr(digest, _NO_AUX_RAND)


class _Scratch:
    """What is recovered into; of one recovery at a time, since the library runs without the interpreter's lock."""

    def __init__(self) -> None:
        self.recoverable = ffi.new("secp256k1_ecdsa_recoverable_signature *")
        self.public = ffi.new("secp256k1_pubkey *")
        self.out = ffi.new("unsigned char[65]")
        self.point = ffi.buffer(self.out, 65)
        self.out_length = ffi.new("size_t *", 65)


_free: Final[list[_Scratch]] = []
"""Those that nobody uses now; there are as many as threads that ever recovered at once."""
_parse: Final = lib.secp256k1_ecdsa_recoverable_signature_parse_compact
_recover: Final = lib.secp256k1_ecdsa_recover
_serialize: Final = lib.secp256k1_ec_pubkey_serialize


def recover_address(digest: bytes, signature: bytes) -> bytes:
    """Return the address whose key signed the 32-byte ``digest``.

    Raises SignatureInvalid for a wrong length, a high s (malleable), a recovery id over 1 or no such key.
    """
    # The library reads as many bytes as these have, whatever they have.
    if len(digest) != HASH_BYTES or len(signature) != SIGNATURE_BYTES:
        raise SignatureInvalid("not a digest and a signature")
    scratch = _take_scratch()
    found = _address_of(scratch, digest, signature)
    _free.append(scratch)
    if found is None:
        raise SignatureInvalid("no key can be recovered from this signature")
    return found


def recover_addresses(batch: bytes) -> bytes:
    """Recover many at once: ``batch`` is digest (32) + signature (65) for each, the answer 20 bytes for each.

    Twenty zero bytes stand for a signature from which no key can be recovered (no key has that address).
    Raises SignatureInvalid when ``batch`` is not a whole number of entries.
    """
    if len(batch) % _ENTRY_BYTES:
        raise SignatureInvalid("not a whole number of digests and signatures")
    scratch = _take_scratch()
    found = b"".join(
        _address_of(scratch, batch[at : at + HASH_BYTES], batch[at + HASH_BYTES : at + _ENTRY_BYTES]) or _NOBODY
        for at in range(0, len(batch), _ENTRY_BYTES)
    )
    _free.append(scratch)
    return found


def _take_scratch() -> _Scratch:
    try:
        return _free.pop()  # in one step: no other thread comes between
    except IndexError:
        return _Scratch()


def _address_of(scratch: _Scratch, digest: bytes, signature: bytes) -> bytes | None:
    """Return the signer's address, None where there is none; both have their right lengths."""
    recoverable, public = scratch.recoverable, scratch.public
    parity = signature[64]
    if (
        parity <= 1
        and signature[32:64] <= _HALF_ORDER_BYTES
        and _parse(_CONTEXT, recoverable, signature, parity)
        and _recover(_CONTEXT, public, recoverable, digest)
        and _serialize(_CONTEXT, scratch.out, scratch.out_length, public, _UNCOMPRESSED)
    ):
        return keccak(scratch.point[1:65])[12:]
    return None


_ENTRY_BYTES: Final = HASH_BYTES + SIGNATURE_BYTES
_NOBODY: Final = bytes(20)


def is_vote_key(vote_key: bytes) -> bool:
    """Tell whether votes of this x-only key can be verified: it is the x coordinate of a point."""
    if len(vote_key) != VOTE_KEY_BYTES:
        return False
    try:
        PublicKeyXOnly(vote_key)
    except ValueError:
        return False
    return True


def verify_vote(vote_key: bytes, digest: bytes, signature: bytes) -> bool:
    """Tell whether ``signature`` (64 bytes) is BIP340-valid for the x-only ``vote_key`` and 32-byte ``digest``."""
    if len(vote_key) != VOTE_KEY_BYTES or len(signature) != VOTE_SIGNATURE_BYTES or len(digest) != 32:
        return False
    try:
        return _point_of(vote_key).verify(signature, digest)
    except ValueError:  # not the x coordinate of a point
        return False


@lru_cache(maxsize=_KEYS_REMEMBERED)
def _point_of(vote_key: bytes) -> PublicKeyXOnly:
    """Return the key of a seat, which is looked for again with each of its votes. Raises ValueError."""
    return PublicKeyXOnly(vote_key)
