"""Whose clock is wrong is known by all nodes, and by its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import structlog
import trio
import trio.testing

from node.telemetry.clock_skew import (
    ASK_EVERY_S,
    ASK_FIRST_S,
    OFF_MS_MIN,
    ClockOffset,
    ClockSkew,
    decode_clock,
    serve_clock,
    wall_ms,
)
from p2p.base.errors import RequestRefused
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DecodeError

SEATS = [bytes([number + 1]) * 20 for number in range(4)]
COMMITTEE = Committee(Seat(address, address + bytes(12), address + bytes(12), 1) for address in SEATS)
STRANGER = b"s" * 20


class Peers:
    """Validators with clocks of their own, at the other end of a line; the time of all is the virtual one."""

    def __init__(self, ahead_ms: Mapping[bytes, int | None], rtt_s: float = 0.0) -> None:
        self.ahead_ms, self.rtt_s = dict(ahead_ms), rtt_s

    def peer(self, address: bytes) -> object | None:
        return self if address in self.ahead_ms else None

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float = 10.0, limit_bytes: int = 1024
    ) -> bytes:
        await trio.sleep(self.rtt_s / 2)
        ahead_ms = self.ahead_ms[address]
        if ahead_ms is None:
            raise RequestRefused("method_unknown")
        now_ms = virtual_ms() + ahead_ms
        await trio.sleep(self.rtt_s / 2)
        return now_ms.to_bytes(8, "big")


def virtual_ms() -> int:
    return 10**12 + int(trio.current_time() * 1000)


def clocks_of(own: bytes, peers: Peers, own_ahead_ms: int = 0) -> ClockSkew:
    return ClockSkew(peers, lambda: COMMITTEE, own, now_ms=lambda: virtual_ms() + own_ahead_ms)


async def test_a_seat_with_a_wrong_clock_is_named_with_its_error(autojump_clock: trio.testing.MockClock) -> None:
    for ahead_ms in (600, 4_000, -4_000, 3_600_000):
        for own, others in ((SEATS[0], SEATS[1:]), (STRANGER, SEATS)):
            clocks = clocks_of(own, Peers(dict.fromkeys(others, 0) | {SEATS[2]: ahead_ms}, rtt_s=0.1))
            await clocks.ask()
            own_ms, [off] = clocks.estimate()
            assert (own_ms, off.address) == (0, SEATS[2]) and abs(off.ahead_ms - ahead_ms) <= 2


async def test_the_one_that_is_wrong_is_told_by_its_own_node(autojump_clock: trio.testing.MockClock) -> None:
    for ahead_ms in (600, 4_000, -4_000):
        clocks = clocks_of(SEATS[2], Peers(dict.fromkeys(SEATS, 0), rtt_s=0.1), own_ahead_ms=ahead_ms)
        await clocks.ask()
        own_ms, others = clocks.estimate()
        assert abs(own_ms - ahead_ms) <= 2 and not others, "the others are right"


async def test_what_is_less_than_half_a_second_or_than_the_line_allows_is_not_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocks = clocks_of(SEATS[0], Peers(dict.fromkeys(SEATS, 0) | {SEATS[2]: OFF_MS_MIN - 1}))
    await clocks.ask()
    assert clocks.estimate() == (0, ())
    clocks = clocks_of(SEATS[0], Peers(dict.fromkeys(SEATS, 0) | {SEATS[2]: 700}, rtt_s=1.6))
    await clocks.ask()
    assert clocks.estimate() == (0, ())


async def test_of_two_that_differ_the_own_clock_is_taken_for_right(autojump_clock: trio.testing.MockClock) -> None:
    clocks = clocks_of(SEATS[0], Peers({SEATS[1]: 4_000}))
    await clocks.ask()
    assert clocks.estimate() == (0, (ClockOffset(SEATS[1], 4_000),))


async def test_the_blocks_tell_of_a_seat_that_is_not_connected_or_lies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocks = clocks_of(SEATS[0], Peers({SEATS[1]: 0, SEATS[2]: None, SEATS[3]: 0}))
    await clocks.ask()
    clocks.note_block(SEATS[2], 3_900)
    clocks.note_block(SEATS[3], 2_000)
    clocks.note_block(SEATS[1], -5_000)
    assert clocks.estimate() == (0, (ClockOffset(SEATS[2], 3_900), ClockOffset(SEATS[3], 2_000))), (
        "a block that comes late is the line's or its leader's, not the clock's"
    )
    clocks.note_block(SEATS[2], -20)
    clocks.note_block(SEATS[3], -20)
    assert clocks.estimate() == (0, ()), "set right"


async def test_it_is_logged_once_and_when_it_is_right_again(autojump_clock: trio.testing.MockClock) -> None:
    peers = Peers(dict.fromkeys(SEATS, 0) | {SEATS[2]: 4_000})
    clocks = clocks_of(SEATS[0], peers)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clocks.run)
            await trio.sleep(ASK_FIRST_S + 3.5 * ASK_EVERY_S)
            peers.ahead_ms[SEATS[2]] = 0
            await trio.sleep(4 * ASK_EVERY_S)
            nursery.cancel_scope.cancel()
    assert [(line["log_level"], line.get("ahead_ms")) for line in logs] == [("warning", 4_000), ("info", None)]
    assert "validator" in logs[0]


async def test_a_clock_is_eight_bytes() -> None:
    before_ms = wall_ms()
    assert before_ms <= decode_clock(await serve_clock(b"p" * 20, b"")) <= wall_ms()
    for data in (b"", bytes(7), bytes(9), b"\xff" * 8):
        with pytest.raises(DecodeError):
            decode_clock(data)
