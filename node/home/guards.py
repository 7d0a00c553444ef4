"""The record of a vote key's votes, where it lies: begun with the key, and never begun anew by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from consensus.guard import Guard, GuardMissing, GuardOutdated
from consensus.guard_log import GUARD_FILE, VoteDirectory
from node.home.files import sync_folder, write_whole
from state.primitives.errors import DekubeError

__all__ = [
    "LISTENS_MS_MIN",
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

LISTENS_MS_MIN: Final = 30_000
"""How long a node with a record that may be an older copy listens before it votes, also where others need not."""
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
    accepts_empty: bool, may_be_retired: bool = False, listens_ms: int | None = None,
) -> VoteDirectory:  # fmt: skip
    """Open the guard of a key in its folder. A key that may have voted never votes without its record.

    See consensus.md 7.2.

    The record begins with the key (``begin_guard``); one that is gone, or knows of no vote although the
    key has had a seat, is begun anew only on the operator's word. One that is retired (``retire_guard``) is opened
    for who sees to it that the key does not vote (``may_be_retired``), and no word of the operator but an imported
    watermark brings it back. What is unusual of a record that is accepted is logged, and why it is safe;
    ``listens_ms`` is how long the node listens before it votes, None where that is not known; ``is_behind`` of
    what is returned asks for ``LISTENS_MS_MIN`` at least. Raises GuardRetired, GuardMissing, GuardOutdated and
    GuardCorrupt.
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
        data = directory.guard.read()
        guard = directory.load_guard(chain_hash, vote_key)
        directory.is_behind = _tell_found(
            folder, guard, data, tip=tip if may_have_voted else (0, 0), listens_ms=listens_ms
        )
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


def _tell_found(folder: Path, guard: Guard, data: bytes, *, tip: tuple[int, int], listens_ms: int | None) -> bool:
    """Log that a record ends in a torn entry, or before the newest final block, and why voting with it is safe.

    Return whether it ends before that block.
    """
    mark = guard.watermark()
    ends = {"record": str(folder), "last_epoch": mark.epoch, "last_view": mark.view}
    torn = len(data[Guard.load(data, mark.genesis_hash, mark.vote_key)[1] :].rstrip(b"\0"))
    if torn:
        _log.warning(
            "the record of votes ended in an incomplete entry, which was cut off",
            bytes=torn, **ends,
            safe_because="an entry is on the disk before its vote leaves, so a vote whose entry a crash has cut "
            "was never sent; a vote of this key that the record lacks ends the node that hears it (doppelganger)",
        )  # fmt: skip
    # At the beginning of an epoch the final block is of the one before.
    is_behind = not guard.is_fresh and tip[1] > 0 and (mark.epoch, mark.view) < tip
    if is_behind:
        listens = "a vote of this key that the record lacks ends the node that hears it (doppelganger)"
        if listens_ms is not None:
            listens = (
                f"the node listens for {max(listens_ms, LISTENS_MS_MIN) // 1000} s or more first, and {listens}"
            )
        _log.warning(
            "the record of votes ends before the newest final block: an older copy of it, or the node has "
            "followed without a vote since",
            final_epoch=tip[0], final_view=tip[1], **ends,
            safe_because=f"no vote is cast in a view up to the final one; {listens}",
        )  # fmt: skip
    return is_behind


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
