"""Steady time: chain time without the times in which the chain stood still (chain.md R10).

A header's time follows the clocks of validators. It jumps when no block came for minutes. Nobody could send
anything meanwhile. So rules that set somebody a deadline count in steady time, which a block moves on by a bounded
step.
"""

from __future__ import annotations

from typing import Final

from state.primitives.errors import RecordDamaged
from state.primitives.genesis import ChainParameters
from state.view import Overlay, Reader, Table

__all__ = ["save_steady_time", "steady_time", "stood_still_ms"]

_KEY: Final = bytes([Table.CHAIN]) + b"steady-time"
_TIME_BYTES: Final = 8


def _load(state: Reader) -> tuple[int, int] | None:
    """Return chain time and steady time of the newest block, None at the genesis. Raises RecordDamaged."""
    record = state.get(_KEY)
    if record is None:
        return None
    time_ms, steady_ms = (int.from_bytes(part, "big") for part in (record[:_TIME_BYTES], record[_TIME_BYTES:]))
    if len(record) != 2 * _TIME_BYTES or steady_ms > time_ms:
        raise RecordDamaged("the record of the steady time is damaged")
    return time_ms, steady_ms


def steady_time(state: Reader, time_ms: int, chain: ChainParameters) -> int:
    """Return the steady time of a block at ``time_ms``, whose parent left ``state``.

    It is that of the parent and the time between both, ``steady_interval_ms_max`` at most. The first block has the
    time of its header.
    """
    last = _load(state)
    if last is None:
        return time_ms
    return last[1] + min(max(time_ms - last[0], 0), chain.steady_interval_ms_max)


def save_steady_time(state: Overlay, time_ms: int, steady_ms: int) -> None:
    """Note both times of the block that leaves this state."""
    state.put(_KEY, time_ms.to_bytes(_TIME_BYTES, "big") + steady_ms.to_bytes(_TIME_BYTES, "big"))


def stood_still_ms(state: Reader) -> int:
    """Return for how long the chain stood still up to ``state``: its chain time less its steady time."""
    last = _load(state)
    return 0 if last is None else last[0] - last[1]
