"""The record of a vote key's votes, where it lies: begun with the key, and never begun anew by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from consensus.guard import Guard, GuardMissing, GuardOutdated
from consensus.guard_log import GUARD_FILE, VoteDirectory
from node.home import sync_folder, write_whole
from state.primitives.errors import DekubeError

__all__ = [
    "GuardRetired",
    "begin_guard",
    "check_record",
    "is_retired",
    "open_guard",
    "record_is_empty",
    "retire_guard",
    "return_guard",
]

_log = structlog.get_logger("signer")

RETIRED_FILE: Final = "votes.retired"
"""Beside a record whose watermark was exported: the key votes elsewhere now."""


class GuardRetired(DekubeError):
    """The watermark of this record was exported, so that the key votes elsewhere: two would cost the stake."""

    code = "guard_retired"


def retire_guard(folder: Path, told: str) -> None:
    """Let the key of a record vote here no more, over every restart; ``told`` is kept for people."""
    write_whole(folder / RETIRED_FILE, told)


def return_guard(folder: Path) -> None:
    """Take a retirement back: a watermark has come that stands for every vote of the key."""
    (folder / RETIRED_FILE).unlink(missing_ok=True)
    sync_folder(folder)


def is_retired(folder: Path) -> bool:
    """Tell whether the key of a record votes elsewhere."""
    return (folder / RETIRED_FILE).exists()


def begin_guard(folder: Path, chain_hash: bytes, vote_key: bytes) -> None:
    """Begin the record of a key that was drawn just now; one whose record is gone may have voted."""
    directory = VoteDirectory(folder)
    try:
        if not directory.has_guard():
            directory.create_guard(Guard(chain_hash, vote_key))
    finally:
        directory.close()


def open_guard(
    folder: Path, chain_hash: bytes, vote_key: bytes, *, may_have_voted: bool, tip: tuple[int, int],
    accepts_empty: bool, may_be_retired: bool = False,
) -> VoteDirectory:  # fmt: skip
    """Open the guard of a key in its folder. A key that may have voted never votes without its record (3.6).

    The record begins with the key (``begin_guard``); one that is gone, or knows of no vote although the
    key has had a seat, is begun anew only on the operator's word. One that is retired (``retire_guard``) is opened
    for who sees to it that the key does not vote (``may_be_retired``), and no word of the operator but an imported
    watermark brings it back. Raises GuardRetired, GuardMissing, GuardOutdated and GuardCorrupt.
    """
    directory = VoteDirectory(folder)
    try:
        if not may_be_retired:
            _check_not_retired(folder)
        if not directory.has_guard():
            if not accepts_empty:
                raise _record_is_missing(folder)
            directory.create_guard(Guard(chain_hash, vote_key, epoch=tip[0], view=tip[1]))
            _log.warning("the guard begins with an empty record, on the operator's word", vote_key=vote_key)
        guard = directory.load_guard(chain_hash, vote_key)
        if guard.is_fresh and may_have_voted:
            if not accepts_empty:
                raise record_is_empty(str(folder))
            guard.raise_floor(*tip)
            directory.guard.replace(guard.image())
            _log.warning("the guard goes on from an empty record, on the operator's word", vote_key=vote_key)
    except BaseException:
        directory.close()
        raise
    return directory


def check_record(folder: Path, *, accepts_empty: bool) -> None:
    """Raise GuardMissing or GuardRetired where ``open_guard`` would: before a node takes long to sync."""
    _check_not_retired(folder)
    if not accepts_empty and not (folder / GUARD_FILE).exists():
        raise _record_is_missing(folder)


def _check_not_retired(folder: Path) -> None:
    if is_retired(folder):
        raise GuardRetired(
            f"{folder}: the watermark of this vote key was exported, so that it votes elsewhere: voting here "
            "too would get it slashed. Where it has moved: take `validator` out of roles in config.toml and "
            "remove the key. Where it was a mistake, and no machine has imported the file: import it here "
            "again (dekube node guard import); else export it there first"
        )


def _record_is_missing(folder: Path) -> GuardMissing:
    return GuardMissing(
        f"{folder}: there is no record of this key's votes; voting without it could get the key "
        "slashed. Import its watermark (dekube node guard import, dekube signer import), take a new "
        "vote key, or, if this key has certainly never voted, start once with --accept-empty-guard"
    )


def record_is_empty(where: str) -> GuardOutdated:
    """Return the refusal of an empty record of a key that has had a seat."""
    return GuardOutdated(
        f"{where}: the record of this key's votes is empty, but the key has had a seat: votes that it cast may be "
        "missing, and voting now could get it slashed. Import its watermark, or, if it has certainly never voted, "
        "start once with --accept-empty-guard"
    )
