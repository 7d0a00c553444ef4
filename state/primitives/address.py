"""Twenty-byte addresses as Ethereum derives them, with the mixed-case checksum of EIP-55 in text."""

from __future__ import annotations

import re
from typing import Final

from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak

__all__ = ["ADDRESS_BYTES", "address_of", "format_address", "parse_address"]

ADDRESS_BYTES: Final = 20
_HEX_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")


def address_of(public_key: bytes) -> bytes:
    """Return the address of an uncompressed secp256k1 key: 65 bytes with the leading 0x04, or the 64 after it."""
    point = public_key[1:] if len(public_key) == 65 else public_key
    if len(point) != 64:
        raise DecodeError("not an uncompressed public key")
    return keccak(point)[12:]


def format_address(address: bytes) -> str:
    """Return ``address`` as 0x-prefixed hex with the checksum of EIP-55."""
    digits = address.hex()
    checksum = keccak(digits.encode()).hex()
    return "0x" + "".join(d.upper() if int(c, 16) >= 8 else d for d, c in zip(digits, checksum, strict=False))


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
