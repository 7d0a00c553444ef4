"""Opens the files of a database, and checks their format and the free space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import plyvel

from state.primitives.errors import StoreError
from state.store.errors import StoreDamaged, StoreIncompatible, StoreLocked, StoreOfAnotherChain, StoreUnavailable
from state.store.library_errors import reported
from state.store.log_tail import cut_tail
from state.store.options import StoreOptions
from state.store.records import FORMAT, FORMAT_VERSION

__all__ = ["check_format", "check_free", "holds_database", "open_database"]

CURRENT_FILE: Final = "CURRENT"
"""Names the newest list of the files of a LevelDB."""


def holds_database(path: Path) -> bool:
    """Tell whether the directory ``path`` has files of a database, damaged or not. Raises StoreUnavailable.

    ``open_database`` begins a database in any other folder, so commands that only read one ask this first.
    """
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from None
    return any(name == CURRENT_FILE or name.endswith((".ldb", ".log")) for name in names)


def open_database(path: Path, options: StoreOptions) -> Any:
    """Open the files in the directory ``path``, or begin them there.

    A record that a power loss left half written at the end of the log is cut off, with the zeros behind it, and a
    warning says how much.
    Raises StoreLocked, StoreDamaged or StoreUnavailable.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = os.listdir(path)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from None
    if CURRENT_FILE not in names and any(name.endswith((".ldb", ".log")) for name in names):
        raise StoreDamaged(f"{path}: the file CURRENT is lost; `dekube db repair` moves the database aside")
    try:
        return _open(path, options)
    except StoreDamaged:
        try:
            is_mended = cut_tail(path)
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}") from None
        if not is_mended:
            raise
    return _open(path, options)


def _open(path: Path, options: StoreOptions) -> Any:
    with reported():
        return plyvel.DB(
            str(path),
            create_if_missing=True,
            paranoid_checks=True,
            write_buffer_size=options.write_buffer_bytes,
            lru_cache_size=options.block_cache_bytes,
            max_open_files=options.open_files_max,
            bloom_filter_bits=10,
            block_size=1024,  # small reads at random: what is checksummed for one value
            compression=None,  # hashes do not shrink
        )


def check_free(path: Path) -> None:
    """Raise StoreLocked while a process has the database in ``path`` open; what else is wrong is left alone.

    A directory that is renamed under its owner goes on being written to, and no lock tells of it any more.
    """
    if not path.is_dir():
        return
    try:
        with reported():  # the lock is the first thing that is asked for, whatever the rest looks like
            plyvel.DB(str(path), create_if_missing=False, paranoid_checks=True).close()
    except StoreLocked:
        raise StoreLocked(f"{path}: in use; stop the node first") from None
    except StoreError:
        pass


def check_format(db: Any, chain_hash: bytes) -> None:
    """Check that the database is of this chain and format; an empty one becomes so.

    Raises StoreDamaged, StoreIncompatible or StoreOfAnotherChain.
    """
    form: bytes | None = db.get(FORMAT, verify_checksums=True)
    if form is None:
        with db.iterator(include_value=False) as keys:
            if next(keys, None) is not None:
                raise StoreDamaged("the database does not name its chain")
        form = bytes([FORMAT_VERSION]) + chain_hash
        db.put(FORMAT, form, sync=True)
    if form[:1] != bytes([FORMAT_VERSION]):
        raise StoreIncompatible(f"the database has format {form[0]}, this version reads {FORMAT_VERSION}")
    if form[1:] != chain_hash:
        raise StoreOfAnotherChain(f"the database is of chain {form[1:].hex()}, not of {chain_hash.hex()}")
