"""Verifiable random function ECVRF-EDWARDS25519-SHA512-TAI (RFC 9381, section 5 and 5.5), over libsodium.

Its output is unique for a key and an input, so a leader cannot choose the randomness it adds to the chain; it can
only withhold its block (consensus.md 11.1). Points are added and multiplied by libsodium; scalars are plain
integers, which is not constant in time: one proof a led block, over public input, gives an observer of the
process nothing that its memory would not.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha512
from typing import Final

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import CryptoError

from state.primitives.errors import DecodeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey

__all__ = [
    "OUTPUT_BYTES",
    "VRF_KEY_BYTES",
    "VRF_PROOF_BYTES",
    "VrfKey",
    "is_vrf_key",
    "vrf_key_of",
    "vrf_output",
    "vrf_verify",
]

VRF_KEY_BYTES: Final = 32
VRF_PROOF_BYTES: Final = 80
"""Gamma (32), c (16), s (32)."""
OUTPUT_BYTES: Final = 64

_SUITE: Final = b"\x03"
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_PRIME: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _PRIME) % _PRIME
_CHALLENGE_BYTES: Final = 16
_IDENTITY: Final = (1).to_bytes(32, "little")
_REMEMBERED: Final = 128
"""Cached results: a block's proof is checked several times."""


class VrfKey:
    """A VRF secret of 32 bytes (an Ed25519 seed); ``public`` is its key."""

    __slots__ = ("_nonce_key", "_scalar", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != VRF_KEY_BYTES:
            raise DecodeError("not a VRF secret key")
        expanded = bytearray(sha512(seed).digest())
        expanded[0] &= 248
        expanded[31] = expanded[31] & 127 | 64
        self._scalar = int.from_bytes(expanded[:32], "little")
        self._nonce_key = bytes(expanded[32:])
        self.public: bytes = crypto_scalarmult_ed25519_base_noclamp(_scalar(self._scalar % _ORDER))

    def __repr__(self) -> str:
        return f"VrfKey(public={self.public.hex()})"

    def prove(self, alpha: bytes) -> bytes:
        """Return the proof (80 bytes) of this key's output for ``alpha`` (RFC 9381, 5.1)."""
        point = _hash_to_point(self.public, alpha)
        gamma = crypto_scalarmult_ed25519_noclamp(_scalar(self._scalar % _ORDER), point)
        nonce = int.from_bytes(sha512(self._nonce_key + point).digest(), "little") % _ORDER
        commitments = (
            crypto_scalarmult_ed25519_base_noclamp(_scalar(nonce)),
            crypto_scalarmult_ed25519_noclamp(_scalar(nonce), point),
        )
        challenge = _challenge(self.public, point, gamma, *commitments)
        response = (nonce + int.from_bytes(challenge, "little") * self._scalar) % _ORDER
        return gamma + challenge + _scalar(response)


def is_vrf_key(public: bytes) -> bool:
    """Return whether ``public`` is a valid VRF key: the canonical encoding of a point of the main subgroup."""
    return len(public) == VRF_KEY_BYTES and _is_point(public)


def vrf_key_of(secret: SecretKey) -> VrfKey:
    """Return the VRF key derived from the secret of a vote key; both are stored and rotated together."""
    return VrfKey(digest(b"vrf-seed", secret.secret))


@lru_cache(maxsize=_REMEMBERED)
def vrf_verify(public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
    """Return the output (64 bytes) when ``proof`` is that of ``public`` for ``alpha``, else None (RFC 9381, 5.3).

    Keys of small order are refused, so the output is unique for every key.
    """
    if len(public) != VRF_KEY_BYTES or len(proof) != VRF_PROOF_BYTES:
        return None
    gamma, challenge, response = proof[:32], proof[32:48], proof[48:]
    if int.from_bytes(response, "little") >= _ORDER:
        return None
    try:
        if not _is_point(public) or not _is_point(gamma):
            return None
        point = _hash_to_point(public, alpha)
        c = challenge.ljust(32, b"\0")
        if not int.from_bytes(response, "little") or not int.from_bytes(c, "little"):
            return None  # libsodium does not multiply by zero; nobody meets it by chance
        u = crypto_core_ed25519_sub(
            crypto_scalarmult_ed25519_base_noclamp(response), crypto_scalarmult_ed25519_noclamp(c, public)
        )
        v = crypto_core_ed25519_sub(
            crypto_scalarmult_ed25519_noclamp(response, point), crypto_scalarmult_ed25519_noclamp(c, gamma)
        )
        if _challenge(public, point, gamma, u, v) != challenge:
            return None
    except (CryptoError, RuntimeError, ValueError):
        return None
    return _output(gamma)


@lru_cache(maxsize=_REMEMBERED)
def vrf_output(proof: bytes) -> bytes:
    """Return the output of a proof that was verified before (RFC 9381, 5.2). Raises DecodeError for no point."""
    if len(proof) != VRF_PROOF_BYTES or not _is_point(proof[:32]):
        raise DecodeError("not a VRF proof")
    return _output(proof[:32])


def _output(gamma: bytes) -> bytes:
    return sha512(_SUITE + b"\x03" + _cleared(gamma) + b"\0").digest()


def _scalar(number: int) -> bytes:
    return number.to_bytes(32, "little")


def _is_point(data: bytes) -> bool:
    """Whether libsodium takes it: canonical, on the curve, in the main subgroup, not of small order."""
    return bool(crypto_core_ed25519_is_valid_point(data))


def _cleared(point: bytes) -> bytes:
    """Multiply by the cofactor 8 by doubling: libsodium multiplies no points outside the subgroup."""
    for _ in range(3):
        point = crypto_core_ed25519_add(point, point)
    return point


def _challenge(*points: bytes) -> bytes:
    """Return the challenge over Y, H, Gamma, U, V (5.4.3)."""
    return sha512(_SUITE + b"\x02" + b"".join(points) + b"\0").digest()[:_CHALLENGE_BYTES]


@lru_cache(maxsize=_REMEMBERED)
def _hash_to_point(public: bytes, alpha: bytes) -> bytes:
    """Return the point of ``alpha``: try and increment (5.4.1.1)."""
    for counter in range(256):
        candidate = sha512(_SUITE + b"\x01" + public + alpha + bytes((counter,)) + b"\0").digest()[:32]
        if _is_on_curve(candidate):
            point = _cleared(candidate)
            if point != _IDENTITY:
                return point
    raise AssertionError("256 hashes in a row are no points: chance 2^-256")


def _is_on_curve(data: bytes) -> bool:
    """Whether ``data`` decodes to a point of the whole curve (RFC 8032, 5.1.3)."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= _PRIME:
        return False
    # x * x is a quotient, and that is a square where the product is: the denominator is never zero.
    square = (y * y - 1) * (_D * y * y + 1) % _PRIME
    if square == 0:
        return sign == 0
    return pow(square, (_PRIME - 1) // 2, _PRIME) == 1
