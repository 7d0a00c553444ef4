"""Jail: operators that are excluded from committees for some epochs or permanently (consensus.md R13, R14)."""

from __future__ import annotations

from typing import Final, NamedTuple

from state.primitives.codec import encode
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record

__all__ = ["FOREVER", "JailRecord", "is_jailed", "list_jails", "load_jail", "save_jail"]

FOREVER: Final = 2**32 - 1
"""Value of ``until_epoch`` for an operator with a proven fault: it never gets a seat again, with any key."""
RECORD_LIMIT_BYTES: Final = 64

_JAIL: Final = bytes([Table.JAIL])
_PAGE: Final = 256


class JailRecord(NamedTuple):
    """An operator gets no seat before ``until_epoch``; it was jailed ``times`` times in a row."""

    until_epoch: int
    times: int


def load_jail(state: Reader, operator: bytes) -> JailRecord | None:
    """Return the jail record of an operator, or None. Raises RecordDamaged."""
    data = state.get(_JAIL + operator)
    return None if data is None else _record(operator, data)


def _record(operator: bytes, data: bytes) -> JailRecord:
    return read_record(
        data,
        lambda value: JailRecord(*items_of(value, int, int)),
        what=f"what is held against 0x{operator.hex()}",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def list_jails(state: Reader) -> list[tuple[bytes, JailRecord]]:
    """Return all operators with a jail record, by address."""
    found: list[tuple[bytes, JailRecord]] = []
    start, stop = _JAIL, bytes([Table.JAIL + 1])
    while page := state.scan(start, stop, _PAGE):
        found += [(key[1:], _record(key[1:], data)) for key, data in page]
        start = page[-1][0] + b"\0"
    return found


def save_jail(state: Overlay, operator: bytes, record: JailRecord | None) -> None:
    """Write the jail record of an operator, or delete it if ``record`` is None."""
    if record is None:
        state.delete(_JAIL + operator)
    else:
        state.put(_JAIL + operator, encode(record))


def is_jailed(state: Reader, operator: bytes, epoch: int) -> bool:
    """Return whether an operator is excluded from the committee of ``epoch``."""
    record = load_jail(state, operator)
    return record is not None and epoch < record.until_epoch
