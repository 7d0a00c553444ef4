"""Finds wrong clocks: this machine's or a validator's, and the difference.

A node requests the clocks of connected validators, as NTP does. An answer counts for the middle of the round trip,
so its error is at most half of it. The clock of a validator that is not connected, or answers falsely, shows in
its block times: a leader's clock is ahead by at least as much as the time of its block at arrival. The clock of
most of the committee's weight counts as right.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import structlog
import trio

from state.primitives.address import format_address
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, DekubeError

__all__ = [
    "CLOCK_METHOD",
    "OFF_MS_MIN",
    "ClockOffset",
    "ClockSkew",
    "SkewEstimate",
    "decode_clock",
    "serve_clock",
    "wall_ms",
]

_log = structlog.get_logger("node")

CLOCK_METHOD: Final = "clock"
OFF_MS_MIN: Final = 500
"""Clocks that differ by at least this much are reported."""
ASK_EVERY_S: Final = 10.0
ASK_FIRST_S: Final = 2.0
"""First request after the start, when the first peers are connected."""
ASK_TIMEOUT_S: Final = 5.0
ASKED_AT_ONCE_MAX: Final = 8
ANSWERS_KEPT: Final = 3
"""Of these the answer with the shortest round trip counts."""
ANSWER_VALID_S: Final = 60.0
BLOCK_VALID_S: Final = 120.0
_CLOCK_BYTES: Final = 8
_WALL_MS_MAX: Final = 2**48


class ClockOffset(NamedTuple):
    """A validator with a wrong clock. ``ahead_ms`` is negative if it is behind."""

    address: bytes
    ahead_ms: int


class SkewEstimate(NamedTuple):
    """How far this machine's clock is ahead (0: right or unknown), and the validators with wrong clocks."""

    own_ahead_ms: int
    seats: tuple[ClockOffset, ...]


class _Answer(NamedTuple):
    at_s: float
    ahead_ms: int
    rtt_ms: int


class ClockNetwork(Protocol):
    """The part of the network that is used here."""

    def peer(self, address: bytes) -> object | None:
        """Return the connection to an address."""
        ...

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float = 10.0, limit_bytes: int = 1024 * 1024
    ) -> bytes:
        """Return a peer's answer."""
        ...


def wall_ms() -> int:
    """Return this machine's clock."""
    return time.time_ns() // 1_000_000


async def serve_clock(_peer: bytes, _body: bytes) -> bytes:
    """Answer a peer's request for this machine's clock."""
    await trio.lowlevel.checkpoint()
    return wall_ms().to_bytes(_CLOCK_BYTES, "big")


def decode_clock(data: bytes) -> int:
    """Return a clock in milliseconds. Raises DecodeError."""
    found = int.from_bytes(data, "big")
    if len(data) != _CLOCK_BYTES or found >= _WALL_MS_MAX:
        raise DecodeError("not a clock: 8 bytes of milliseconds expected")
    return found


class ClockSkew:
    """Measured clocks of the committee; ``run`` requests them."""

    def __init__(
        self,
        network: ClockNetwork,
        committee: Callable[[], Committee],
        own: bytes,
        *,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._network = network
        self._committee = committee
        self._own = own
        self._now_ms = now_ms
        self._answers: dict[bytes, deque[_Answer]] = {}
        self._blocks: dict[bytes, tuple[float, int]] = {}
        self._told: set[bytes] = set()

    def note_block(self, leader: bytes, ahead_ms: int) -> None:
        """Note that a new block's time, its leader's clock, was this far ahead when the block arrived."""
        self._blocks[leader] = trio.current_time(), ahead_ms

    async def run(self) -> None:
        """Request clocks periodically. Log each wrong clock once, and again when it is right."""
        await trio.sleep(ASK_FIRST_S)
        while True:
            await self.ask()
            self._tell()
            await trio.sleep(ASK_EVERY_S)

    async def ask(self) -> None:
        """Request the clocks of the connected validators."""
        addresses = {seat.address for seat in self._committee().seats}
        tables: tuple[dict[bytes, Any], ...] = (self._answers, self._blocks)
        for table in tables:
            for gone in [known for known in table if known not in addresses]:
                del table[gone]
        limiter = trio.CapacityLimiter(ASKED_AT_ONCE_MAX)
        async with trio.open_nursery() as nursery:
            for address in sorted(addresses - {self._own}):
                if self._network.peer(address) is not None:
                    nursery.start_soon(self._ask, address, limiter)

    async def _ask(self, address: bytes, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            before_s, before_ms = trio.current_time(), self._now_ms()
            try:
                data = await self._network.request(
                    address, CLOCK_METHOD, b"", timeout_s=ASK_TIMEOUT_S, limit_bytes=_CLOCK_BYTES
                )
                theirs_ms = decode_clock(data)
            except DekubeError:
                return  # an older version, or a peer that is gone: its blocks tell
            after_s = trio.current_time()
            rtt_ms = round((after_s - before_s) * 1000)
            answers = self._answers.setdefault(address, deque(maxlen=ANSWERS_KEPT))
            answers.append(_Answer(after_s, theirs_ms - before_ms - rtt_ms // 2, rtt_ms))

    def estimate(self) -> SkewEstimate:
        """Return which clocks are wrong."""
        committee, now_s = self._committee(), trio.current_time()
        known = {self._own: _Answer(now_s, 0, 0)}
        for address, answers in self._answers.items():
            valid = [answer for answer in answers if answer.at_s > now_s - ANSWER_VALID_S]
            if valid:
                known[address] = min(valid, key=lambda answer: answer.rtt_ms)
        weighed = [
            (known[seat.address].ahead_ms, seat.weight) for seat in committee.seats if seat.address in known
        ]
        right_ms = _median(weighed)
        off = []
        for seat in committee.seats:
            answer, block = known.get(seat.address), self._blocks.get(seat.address)
            ahead_ms = answer.ahead_ms - right_ms if answer is not None else 0
            if answer is not None and abs(ahead_ms) <= answer.rtt_ms // 2:
                ahead_ms = 0  # it may be the line's two ways that differ
            if block is not None and block[0] > now_s - BLOCK_VALID_S:
                ahead_ms = max(ahead_ms, block[1] - right_ms) if block[1] - right_ms >= OFF_MS_MIN else ahead_ms
            if abs(ahead_ms) >= OFF_MS_MIN and seat.address != self._own:
                off.append(ClockOffset(seat.address, ahead_ms))
        return SkewEstimate(-right_ms if abs(right_ms) >= OFF_MS_MIN else 0, tuple(off))

    def _tell(self) -> None:
        own_ahead_ms, seats = self.estimate()
        off = {seat.address: seat.ahead_ms for seat in seats}
        if own_ahead_ms:
            off[self._own] = own_ahead_ms
        for address, ahead_ms in off.items():
            if address in self._told:
                continue
            if address == self._own:
                _log.warning("this machine's clock differs from that of the validators: set it", ahead_ms=ahead_ms)
            else:
                _log.warning(
                    "a validator's clock is wrong: its blocks arrive late or are refused",
                    validator=format_address(address), ahead_ms=ahead_ms,
                )  # fmt: skip
        for address in self._told - set(off):
            _log.info("the clock is right again", validator=format_address(address))
        self._told = set(off)


def _median(weighed: list[tuple[int, int]]) -> int:
    """Return the weighted median. If the two halves differ, the value nearest to 0, which is this clock."""
    weighed = sorted(weighed)
    half, below = sum(weight for _, weight in weighed), 0
    low = high = 0
    is_low_found = False
    for value, weight in weighed:
        below += weight
        if not is_low_found and 2 * below >= half:
            low, is_low_found = value, True
        if 2 * below > half:
            high = value
            break
    return max(low, min(0, high)) if low <= high else low
