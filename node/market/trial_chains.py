"""The chain of a speed trial on disk: a node that is killed goes on with it, and shows its links later."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from state.primitives.hashing import HASH_BYTES, digest
from tasks.executor.linking import RESULTS_MAX
from tasks.trials import LINKS_MAX, first_state, next_state

__all__ = ["TrialChains", "read_chain"]

_CHECK_BYTES: Final = 8
_RECORD_BYTES_MAX: Final = HASH_BYTES * RESULTS_MAX
_FILE_BYTES_MAX: Final = LINKS_MAX * (HASH_BYTES + _CHECK_BYTES + 2)
_NAME: Final = re.compile(r"[0-9a-f]{64}")


class TrialChains:
    """A file for each trial, named by its seed: records of results, each with its length and a check. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, seed: bytes) -> list[bytes]:
        """Return the states of a chain, as far as its file is whole; what follows is cut off."""
        path = self._path(seed)
        try:
            if path.stat().st_size > _FILE_BYTES_MAX:
                path.unlink()
            content = path.read_bytes()
        except FileNotFoundError:
            return [first_state(seed)]
        states, whole = read_chain(seed, content)
        if whole < len(content):
            os.truncate(path, whole)
        return states

    def idle_s(self, seed: bytes, now: float) -> float:
        """Return how long ago the file grew last by the clock of this machine, 0 for a chain without one."""
        try:
            return max(0.0, now - self._path(seed).stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def append(self, seed: bytes, results: Sequence[bytes]) -> None:
        """Add results of further links, RESULTS_MAX at most."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        joined = b"".join(results)
        with open(self._path(seed), "ab") as file:
            file.write(len(joined).to_bytes(2, "big") + joined + _check(seed, joined))

    def flush(self, seed: bytes) -> None:
        """Return when the file is on the disk: what is committed to has to be shown."""
        with open(self._path(seed), "ab") as file:
            os.fsync(file.fileno())

    def keep_only(self, seed: bytes) -> None:
        """Remove the files of all other trials."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name) and path.name != seed.hex():
                path.unlink(missing_ok=True)

    def _path(self, seed: bytes) -> Path:
        return self._folder / seed.hex()


def read_chain(seed: bytes, content: bytes) -> tuple[list[bytes], int]:
    """Return the states of a chain and how much of its file is whole: records end at one that is damaged."""
    states, at = [first_state(seed)], 0
    while at < len(content) and len(states) <= LINKS_MAX:
        size = int.from_bytes(content[at : at + 2], "big")
        results = content[at + 2 : at + 2 + size]
        check = content[at + 2 + size : at + 2 + size + _CHECK_BYTES]
        if not 0 < size <= _RECORD_BYTES_MAX or size % HASH_BYTES or check != _check(seed, results):
            break
        for each in range(0, size, HASH_BYTES):
            states.append(next_state(states[-1], results[each : each + HASH_BYTES]))
        at += 2 + size + _CHECK_BYTES
    return states[: LINKS_MAX + 1], at


def _check(seed: bytes, results: bytes) -> bytes:
    return digest(b"trial-file", seed + results)[:_CHECK_BYTES]
