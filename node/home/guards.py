"""The guard of a vote key in its home. It is created with the key, and never replaced by accident."""

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
"""Minimum listening time before the first vote for a node whose record may be an older copy."""
RETIRED_FILE: Final = "votes.retired"
"""Marks a record whose watermark was exported: the key votes elsewhere now."""


class GuardRetired(DekubeError):
    """The watermark of this record was exported, so the key votes elsewhere. Two voters would cost the stake."""

    code = "guard_retired"


def retire_guard(folder: Path, told: str) -> None:
    """Stop the key of a record from voting here, permanently. ``told`` is kept for display."""
    write_whole(folder / RETIRED_FILE, told)


def return_guard(folder: Path) -> None:
    """Undo a retirement after the import of a watermark that covers every vote of the key."""
    (folder / RETIRED_FILE).unlink(missing_ok=True)
    sync_folder(folder)


def is_retired(folder: Path) -> bool:
    """Tell whether the key of a record votes elsewhere."""
    return (folder / RETIRED_FILE).exists()


def begin_guard(folder: Path, chain_hash: bytes, vote_key: bytes) -> None:
    """Create the record of a new key. Do not use it for a lost record: that key may have voted."""
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

    The record is created with the key (``begin_guard``). If it is missing, or is empty although the key had a
    seat, only the operator's explicit consent starts a new one (consensus.md 7.2). A retired record
    (``retire_guard``) is opened only with ``may_be_retired``, for a caller that makes sure that the key does not
    vote. Only an imported watermark reactivates it.

    Anything unusual about an accepted record is logged, with the reason why it is safe. ``listens_ms`` is the
    node's listening time before its first vote, None if unknown. If the returned ``is_behind`` is set, the node
    must listen for at least ``LISTENS_MS_MIN``.

    Raises GuardRetired, GuardMissing, GuardOutdated and GuardCorrupt.
    """
    directory = VoteDirectory(folder)
    try:
        if not may_be_retired:
            _check_not_retired(folder)
        if not directory.has_guard():
            if not accepts_empty:
                raise _record_is_missing(folder)
            directory.create_guard(Guard(chain_hash, vote_key, epoch=tip[0], view=tip[1]))
            _log.warning(
                "the guard starts with an empty record, because the operator allowed it", vote_key=vote_key
            )
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
            _log.warning(
                "the guard continues with an empty record, because the operator allowed it", vote_key=vote_key
            )
    except BaseException:
        directory.close()
        raise
    return directory


def _tell_found(folder: Path, guard: Guard, data: bytes, *, tip: tuple[int, int], listens_ms: int | None) -> bool:
    """Log that a record ends in a torn entry or before the newest final block, and why voting is still safe.

    Returns whether it ends before that block.
    """
    mark = guard.watermark()
    ends = {"record": str(folder), "last_epoch": mark.epoch, "last_view": mark.view}
    torn = len(data[Guard.load(data, mark.genesis_hash, mark.vote_key)[1] :].rstrip(b"\0"))
    if torn:
        _log.warning(
            "the vote record ended in an incomplete entry, which was removed",
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
    """Raise GuardMissing or GuardRetired like ``open_guard``, before a node starts a long sync."""
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
    """Return the error for an empty record of a key that had a seat."""
    return GuardOutdated(
        f"{where}: the record of this key's votes is empty, but the key has had a seat: votes that it cast may be "
        "missing, and voting now could get it slashed. Import its watermark, or, if it has certainly never voted, "
        "start once with --accept-empty-guard"
    )
