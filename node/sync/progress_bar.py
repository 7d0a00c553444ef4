"""Shows the progress of a sync: a bar on a terminal, otherwise a log line from time to time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog
import trio

from consensus.sync import Progress
from node.sync.core import SyncProgress

__all__ = ["Outlook", "outlook", "show_block_sync", "show_state_sync"]

_log = structlog.get_logger("sync")

REFRESH_S: Final = 0.2
LOGGED_S: Final = 10.0
"""Interval of progress lines in the log."""
STRANDED_LOGGED_S: Final = 60.0
"""Interval of the warning that no peer keeps the blocks that the node needs."""


class Outlook(NamedTuple):
    """Progress of block sync and its estimated end; ``left_s`` is None while it is unknown.

    ``claimed_height`` is the peers' unproven claim, ``proven_height`` the highest with a verified certificate.
    ``oldest_height`` is 0 unless no peer ahead keeps the next block. Then it is the first height that they claim
    to keep.
    """

    height: int
    proven_height: int
    claimed_height: int
    blocks_per_s: float
    left_s: int | None
    peers: int
    oldest_height: int = 0


def outlook(progress: Progress) -> Outlook:
    """Return the progress of block sync."""
    missing, speed = progress.claimed_height - progress.height, progress.blocks_per_s
    left_s = round(missing / speed) if speed > 0 else None
    return Outlook(
        progress.height,
        progress.proven_height,
        progress.claimed_height,
        round(speed, 1),
        left_s if missing > 0 else 0,
        progress.peers,
        progress.oldest_height,
    )


async def show_block_sync(
    progress: Callable[[], Progress], is_syncing: Callable[[], bool], *, console: Any = None
) -> None:
    """Tell how far the blocks are whenever the node is behind, until cancelled."""
    screen = _console(console)
    while True:
        if is_syncing():
            await _show_once(progress, is_syncing, screen)
        await trio.sleep(REFRESH_S)


async def _show_once(progress: Callable[[], Progress], is_syncing: Callable[[], bool], console: Any) -> None:
    told_s, warned_s = trio.current_time(), -math.inf
    with _bar(console, "blocks", "{task.fields[speed]}") as bar:
        first = progress().height
        task = bar.add_task("catching up", total=None, speed="")
        while is_syncing():
            now = outlook(progress())
            bar.update(
                task,
                completed=now.height,
                total=now.claimed_height,
                speed=f"{now.blocks_per_s:,.0f}/s" if now.blocks_per_s else "",
                refresh=True,
            )
            if not console.is_terminal and trio.current_time() - told_s >= LOGGED_S:
                told_s = trio.current_time()
                _log.info("syncing the blocks", **now._asdict())
            if now.oldest_height and trio.current_time() - warned_s >= STRANDED_LOGGED_S:
                warned_s = trio.current_time()
                _log.warning(
                    "no peer that is ahead keeps the blocks that this node needs",
                    needed=now.height + 1,
                    oldest=now.oldest_height,
                    cure="start with --checkpoint HEIGHT:HASH to sync the state first, or name a peer with "
                    "all blocks (store.profile = archive) in p2p.bootstrap",
                )
            await trio.sleep(REFRESH_S)
    height = progress().height
    if height > first:
        _log.info("the blocks are synced", height=height, blocks=height - first)


async def show_state_sync(progress: Callable[[], SyncProgress | None], *, console: Any = None) -> None:
    """Show the progress of a state sync on the terminal, until cancelled. The sync itself writes the log lines."""
    with _bar(_console(console), "pieces") as bar:
        task = bar.add_task("looking for peers", total=None)
        while True:
            now = progress()
            if now is not None:
                bar.update(task, description=now.stage, completed=now.pieces_done, total=now.pieces or None)
            bar.refresh()
            await trio.sleep(REFRESH_S)


def _console(given: Any) -> Any:
    from rich.console import Console

    return Console(stderr=True) if given is None else given


def _bar(console: Any, unit: str, *more: str) -> Any:
    """Return a bar that allows log lines above it; None without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        *(TextColumn(text) for text in more), TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal, auto_refresh=False,
    )  # fmt: skip
