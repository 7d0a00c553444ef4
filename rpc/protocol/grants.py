"""Upload grants: signatures by which an account allows the upload of a blob for a limited time (rpc.md R23)."""

from __future__ import annotations

from typing import Final

from rpc.protocol.errors import RpcError
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError, SignatureInvalid
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address

__all__ = ["GRANT_BLOCKS_MAX", "grant_digest", "make_grant", "read_grant"]

SCHEME: Final = "Dekube "
GRANT_BLOCKS_MAX: Final = 3_600
"""Most blocks for which a grant is valid: about an hour."""
GRANT_LIMIT_BYTES: Final = 128
HEIGHT_LIMIT: Final = 2**63


def grant_digest(genesis_hash: bytes, blob: bytes, until_height: int) -> bytes:
    """Return what an account signs to upload ``blob`` up to a block of the chain of ``genesis_hash``."""
    return digest(b"blob upload", encode([genesis_hash, blob, until_height]))


def make_grant(until_height: int, signature: bytes) -> str:
    """Return the value of the header ``authorization``."""
    return SCHEME + encode([until_height, signature]).hex()


def read_grant(text: str, *, genesis_hash: bytes, blob: bytes, height: int) -> bytes:
    """Return the account that signed for an upload of ``blob``. Raises RpcError ``grant_invalid``."""
    why = "authorization: Dekube and a signature of the account that uploads expected"
    try:
        if not text.startswith(SCHEME) or len(text) > len(SCHEME) + 2 * GRANT_LIMIT_BYTES:
            raise DecodeError(why)
        match decode(bytes.fromhex(text.removeprefix(SCHEME)), limit_bytes=GRANT_LIMIT_BYTES):
            case [int(until), bytes(signature)] if 0 <= until < HEIGHT_LIMIT and len(signature) == SIGNATURE_BYTES:
                if not height <= until <= height + GRANT_BLOCKS_MAX:
                    raise DecodeError(f"the signature is good until block {until}, this is block {height}")
                return recover_address(grant_digest(genesis_hash, blob, until), signature)
            case _:
                raise DecodeError(why)
    except (ValueError, DecodeError, SignatureInvalid) as error:
        raise RpcError("grant_invalid", str(error) if isinstance(error, DekubeError) else why) from None
