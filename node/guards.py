"""The record of a vote key's votes, where it lies: begun with the key, and never begun anew by accident."""

from __future__ import annotations

from pathlib import Path

import structlog

from consensus.guard import Guard, GuardMissing, GuardOutdated
from consensus.guard_log import VoteDirectory

__all__ = ["begin_guard", "open_guard", "record_is_empty"]

_log = structlog.get_logger("signer")


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
    accepts_empty: bool,
) -> VoteDirectory:  # fmt: skip
    """Open the guard of a key in its folder. A key that may have voted never votes without its record (3.6).

    The record begins with the key (``begin_guard``); one that is gone, or knows of no vote although the
    key has had a seat, is begun anew only on the operator's word. Raises GuardMissing, GuardOutdated and
    GuardCorrupt.
    """
    directory = VoteDirectory(folder)
    try:
        if not directory.has_guard():
            if not accepts_empty:
                raise GuardMissing(
                    f"{folder}: there is no record of this key's votes; voting without it could get the key "
                    "slashed. Import its watermark (dekube node guard import, dekube signer import), take a new "
                    "vote key, or, if this key has certainly never voted, start once with --accept-empty-guard"
                )
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


def record_is_empty(where: str) -> GuardOutdated:
    """Return the refusal of an empty record of a key that has had a seat."""
    return GuardOutdated(
        f"{where}: the record of this key's votes is empty, but the key has had a seat: votes that it cast may be "
        "missing, and voting now could get it slashed. Import its watermark, or, if it has certainly never voted, "
        "start once with --accept-empty-guard"
    )
