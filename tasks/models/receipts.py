"""The one form of JSON files in folders of results, and values of their receipts."""

from __future__ import annotations

import json
import re
from typing import Final

from tasks.models.errors import FolderInvalid

__all__ = ["FETCH_AGAIN", "RECEIPT", "json_bytes", "root_of", "told_root"]

RECEIPT: Final = "receipt.json"
FETCH_AGAIN: Final = "Fetch the result again"
_ROOT: Final = re.compile(r"0x[0-9a-f]{64}")


def json_bytes(value: object) -> bytes:
    """Return the one form of a JSON file: sorted, indented, ASCII."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def told_root(value: bytes) -> str:
    """Return a root as files spell it."""
    return "0x" + value.hex()


def root_of(value: object) -> bytes:
    """Return the root of a text. Raises FolderInvalid."""
    if not isinstance(value, str) or not _ROOT.fullmatch(value):
        raise FolderInvalid("a root that is not 0x and 64 hex digits", file=RECEIPT, remedy=FETCH_AGAIN)
    return bytes.fromhex(value[2:])
