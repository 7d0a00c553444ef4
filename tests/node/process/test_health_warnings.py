"""A node that nobody answers, and one whose clock is wrong, say so."""

from __future__ import annotations

import structlog
import trio
import trio.testing

from node.process.health_warnings import (
    ALONE_S,
    CLOCK_BLOCKS,
    CLOCK_OFF_MS_MIN,
    ClockWatch,
    log_genesis_countdown,
    warn_without_peers,
)


async def warnings_of(peers: list[str], connected_after_s: float) -> list[str]:
    async def wait_peers(_count: int) -> None:
        await trio.sleep(connected_after_s)

    with structlog.testing.capture_logs() as logs:
        await warn_without_peers(wait_peers, peers, b"g" * 32)
    return [str(line["event"]) for line in logs]


async def test_who_finds_no_peer_is_told_what_to_look_at(autojump_clock: trio.testing.MockClock) -> None:
    [said] = await warnings_of(["0xA@tcp:h:1"], ALONE_S + 1)
    assert "that genesis.json is that of the network" in said
    assert await warnings_of(["0xA@tcp:h:1"], ALONE_S - 1) == []
    assert await warnings_of([], 1e9) == [], "a founder waits for others"


async def test_the_log_counts_down_to_a_genesis_that_lies_ahead(autojump_clock: trio.testing.MockClock) -> None:
    def now_ms() -> int:
        return 10**12 + int(trio.current_time() * 1000)

    with structlog.testing.capture_logs() as logs:
        await log_genesis_countdown(now_ms() + 90_000, lambda: 0, now_ms)
    left_s = [line["begins_in_s"] for line in logs]
    assert left_s[0] == 90 and left_s[-1] == 1 and left_s == sorted(left_s, reverse=True) and len(left_s) < 15
    with structlog.testing.capture_logs() as logs:
        await log_genesis_countdown(now_ms() - 2 * 86_400_000, lambda: 0, now_ms)
        await log_genesis_countdown(now_ms() - 2 * 86_400_000, lambda: 1, now_ms)
        await log_genesis_countdown(now_ms() - 1_000, lambda: 0, now_ms)
    assert [line["past_s"] for line in logs] == [2 * 86_400]


def offs(*offsets_ms: int) -> tuple[list[bool], int]:
    watch = ClockWatch()
    return [watch.note(10**12, 10**12 + offset) for offset in offsets_ms], watch.off_ms


def test_a_wrong_clock_is_known_after_some_blocks_and_told_once() -> None:
    for off in (3_600_000, -3_600_000):
        news, off_ms = offs(*[off] * (CLOCK_BLOCKS + 3))
        assert off_ms == off
        assert news == [False] * (CLOCK_BLOCKS - 1) + [True] + [False] * 3


def test_blocks_that_are_late_now_and_then_say_nothing_of_the_clock() -> None:
    assert offs(*[60_000] * (CLOCK_BLOCKS - 1), 900)[1] == 0
    assert offs(*[CLOCK_OFF_MS_MIN - 1] * CLOCK_BLOCKS)[1] == 0
    assert offs(*[60_000, -60_000] * CLOCK_BLOCKS)[1] == 0


def test_a_clock_that_was_set_is_right_again() -> None:
    assert offs(*[60_000] * CLOCK_BLOCKS, 500)[1] == 0
