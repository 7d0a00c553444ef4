"""Twenty-byte addresses as Ethereum derives them, with the mixed-case checksum of EIP-55 in text (chain.md 3)."""

from __future__ import annotations

import re
from typing import Final

from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak

__all__ = ["ADDRESS_BYTES", "address_of", "format_address", "parse_address"]

ADDRESS_BYTES: Final = 20
_PAIRS: Final = tuple(
    tuple((digits[0].upper() if upper & 2 else digits[0]) + (digits[1].upper() if upper & 1 else digits[1])
          for digits in (f"{byte:02x}" for byte in range(256)))
    for upper in range(4)
)  # fmt: skip
"""The digits of each byte with neither, the second, the first or both in upper case."""
_UPPER: Final = bytes((byte >> 6 & 2) | (byte >> 3 & 1) for byte in range(256))
"""Which of two digits are in upper case for a byte of the checksum: those whose half is 8 or more."""
_HEX_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")


def address_of(public_key: bytes) -> bytes:
    """Return the address of an uncompressed secp256k1 key: 65 bytes with the leading 0x04, or the 64 after it."""
    point = public_key[1:] if len(public_key) == 65 else public_key
    if len(point) != 64:
        raise DecodeError("not an uncompressed public key")
    return keccak(point)[12:]


def format_address(address: bytes) -> str:
    """Return ``address`` as 0x-prefixed hex with the checksum of EIP-55."""
    upper = keccak(address.hex().encode())[: len(address)].translate(_UPPER)
    return "0x" + "".join([_PAIRS[which][byte] for which, byte in zip(upper, address, strict=False)])


def parse_address(text: str) -> bytes:
    """Return the 20 bytes of ``text``; mixed case must carry the right checksum.

    Raises DecodeError.
    """
    if not _HEX_ADDRESS.fullmatch(text):
        raise DecodeError("not an address: 0x and 40 hex digits expected")
    digits = text[2:]
    address = bytes.fromhex(digits)
    if digits not in (digits.lower(), digits.upper()) and format_address(address) != text:
        raise DecodeError("address checksum does not match (EIP-55): a digit is mistyped")
    return address
