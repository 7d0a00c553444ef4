"""What people see of a node that catches up."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from rich.console import Console

from consensus.sync import Progress
from node.cli.status import _health
from node.home.options import LogOptions
from node.sync.core import SyncProgress
from node.sync.progress_bar import LOGGED_S, Outlook, outlook, show_block_sync, show_state_sync
from node.telemetry.logs import configure_logs


class Sync:
    """Fifty blocks a second, of 10,000."""

    def __init__(self) -> None:
        self.begun_s = trio.current_time()

    def progress(self) -> Progress:
        height = min(10_000, int(50 * (trio.current_time() - self.begun_s)))
        return Progress(height, min(10_000, height + 200), 10_000, 50.0, 3)

    def is_syncing(self) -> bool:
        return self.progress().height < 10_000


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(40, 60, 100, 3.0, 2), Outlook(40, 60, 100, 3.0, 20, 2)),
        (Progress(40, 60, 100, 0.0, 2), Outlook(40, 60, 100, 0.0, None, 2)),
        (Progress(100, 100, 100, 0.0, 0), Outlook(100, 100, 100, 0.0, 0, 0)),
        (Progress(101, 101, 100, 2.04, 1), Outlook(101, 101, 100, 2.0, 0, 1)),
    ],
)
def test_the_time_left_is_what_the_peers_claim_over_the_speed(progress: Progress, expected: Outlook) -> None:
    assert outlook(progress) == expected


async def test_without_a_terminal_there_are_lines_of_the_log_and_not_many(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stream = io.StringIO()
    sync = Sync()
    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: show_block_sync(
                    sync.progress, sync.is_syncing, console=Console(file=stream, force_terminal=False)
                )
            )
            await trio.sleep(1_000)
            nursery.cancel_scope.cancel()
    assert stream.getvalue().strip() == ""
    told = [line for line in lines if line["event"] == "syncing the blocks"]
    assert 200 / LOGGED_S - 2 <= len(told) <= 200 / LOGGED_S
    assert {(line["claimed_height"], line["blocks_per_s"], line["peers"]) for line in told} == {(10_000, 50.0, 3)}
    assert all(line["left_s"] == round((10_000 - line["height"]) / 50) for line in told)
    (done,) = [line for line in lines if line["event"] == "the blocks are synced"]
    assert done["height"] == done["blocks"] == 10_000


async def test_a_node_that_no_peer_can_help_says_what_does(autojump_clock: trio.testing.MockClock) -> None:
    stranded = Progress(7, 7, 200_000, 0.0, 8, 150_000)
    with structlog.testing.capture_logs() as lines, trio.move_on_after(100):
        await show_block_sync(lambda: stranded, lambda: True, console=Console(file=io.StringIO()))
    told = [line for line in lines if line["log_level"] == "warning"]
    assert len(told) == 2
    assert (told[0]["needed"], told[0]["oldest"]) == (8, 150_000)
    assert "--checkpoint HEIGHT:HASH" in told[0]["cure"]


async def test_a_node_that_is_not_behind_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    stream = io.StringIO()
    idle = Progress(7, 7, 7, 1.0, 1)
    with structlog.testing.capture_logs() as lines, trio.move_on_after(100):
        await show_block_sync(lambda: idle, lambda: False, console=Console(file=stream, force_terminal=True))
    assert lines == [] and stream.getvalue() == ""


@pytest.mark.slow
async def test_on_a_terminal_there_is_a_bar_and_the_log_passes_above_it(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    console = Console(file=stream, force_terminal=True, width=100)
    before = structlog.get_config()
    sync = Sync()
    try:
        configure_logs(LogOptions(format="json"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: show_block_sync(sync.progress, sync.is_syncing, console=console))
            await trio.sleep(100)
            assert sys.stderr is not stream, "the bar has taken its place"
            structlog.get_logger("test").warning("something else")
            await trio.sleep(200)
            nursery.cancel_scope.cancel()
        assert sys.stderr is stream
    finally:
        structlog.configure(**before)
    text = stream.getvalue()
    assert "catching up" in text and "5000/10000" in text and "50/s" in text and "blocks" in text
    assert "something else" in text and "syncing the blocks" not in text
    assert "the blocks are synced" in text


async def test_a_state_sync_has_a_bar_of_pieces(autojump_clock: trio.testing.MockClock) -> None:
    stream = io.StringIO()
    now: list[SyncProgress | None] = [None]
    with trio.move_on_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: show_state_sync(
                    lambda: now[0], console=Console(file=stream, force_terminal=True, width=100)
                )
            )
            await trio.sleep(1)
            now[0] = SyncProgress("fetching the state", 3_600, 1, 12, 40, 10**6, 3)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert "looking for peers" in stream.getvalue() and "12/40" in stream.getvalue()


@pytest.mark.parametrize(
    ("left_s", "said"), [(59, "59 s left"), (61, "1 min 1 s left"), (7_260, "2 h 1 min left")]
)
def test_the_status_says_how_fast_it_goes_and_how_long_it_takes(left_s: int, said: str) -> None:
    state: dict[str, Any] = {
        "syncing": True, "height": 1_000, "highest": 9_000, "peers": 5, "behind_ms": 10**6,
        "sync": Outlook(1_000, 1_200, 9_000, 120.5, left_s, 4)._asdict(),
    }  # fmt: skip
    assert _health(state) == f"catching up: 1,000 of 9,000 blocks, 120.5 blocks/s from 4 peers, {said}"
    state["sync"] |= {"blocks_per_s": 0.0, "left_s": None}
    assert _health(state) == "catching up: 1,000 of 9,000 blocks"
    state["sync"]["oldest_height"] = 5_000
    assert _health(state).startswith("stuck at block 1,000: the peers ahead keep none before 5,000")
