"""A node's snapshots on disk: one is made after each epoch while the node runs. The newest few are kept."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Final

from consensus.wire import decode_certificate
from node.sync.messages import (
    HEADERS_MAX,
    MANIFEST_LIMIT_BYTES,
    PIECES_MAX,
    Manifest,
    Offer,
    decode_manifest,
    encode_manifest,
)
from state.primitives.blocks import decode_header
from state.primitives.errors import DecodeError, StoreError
from state.primitives.hashing import HASH_BYTES, digest
from state.store import Pruned, Store, StoreUnavailable, cut_state
from state.store.snapshots import PIECE_BYTES, START_BYTES

__all__ = ["SNAPSHOTS_KEPT", "SnapshotKeeper"]

SNAPSHOTS_KEPT: Final = 3
_PAUSE_S: Final = 0.002
_MANIFEST: Final = "manifest"
_DIGESTS: Final = "digests"


class SnapshotKeeper:
    """Makes snapshots of ``store`` in ``directory`` and reads them; from any thread.

    ``kept`` 0 makes none. A snapshot with a missing file or a wrong byte is removed when that is found, and never
    served.
    """

    def __init__(
        self, store: Store, directory: Path, *, kept: int = SNAPSHOTS_KEPT, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._store = store
        self._directory = directory
        self._kept = kept
        self._piece_bytes = piece_bytes
        self._making = threading.Lock()
        self._stop = threading.Event()
        self._known: dict[int, tuple[Offer, tuple[bytes, ...]]] = {}
        """By height: the offer and the digests of the pieces."""
        self._unfit = 0
        self._load()

    def offers(self) -> list[Offer]:
        """Return the available snapshots, newest first."""
        known = self._known.copy()  # other threads add and remove
        return [known[height][0] for height in sorted(known, reverse=True)]

    def stop(self) -> None:
        """Stop making a snapshot, because the node ends."""
        self._stop.set()

    def due(self) -> int | None:
        """Return the height whose snapshot should be made now, or None.

        That is the newest end of an epoch with a readable state and a final next block.
        """
        store, tip = self._store, self._store.tip.height
        height = (tip - 1) // store.epoch_blocks * store.epoch_blocks
        if not self._kept or height <= 0 or height < store.oldest_state or height in (self._unfit, *self._known):
            return None
        return height

    def make(self, height: int) -> Offer | None:
        """Make the snapshot of the state after ``height``. Returns None if it cannot be proven or was stopped.

        Works in the calling thread, with many pauses. Raises StoreError.
        """
        with self._making:
            if height in self._known:
                return self._known[height][0]
            proof = self._proof(height)
            if proof is None:
                return None
            final, new = self._directory / str(height), self._directory / f"{height}.new"
            try:
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir(parents=True)
                starts: list[bytes] = []
                digests: list[bytes] = []
                view = self._store.view(height)
                for piece in cut_state(view, new / "scratch", piece_bytes=self._piece_bytes, pause=self._pause):
                    (new / str(len(starts))).write_bytes(piece.data)
                    starts.append(piece.start[:START_BYTES])
                    digests.append(digest(b"sync-piece", piece.data))
                    if len(starts) > PIECES_MAX:
                        self._unfit = height
                        return None
                manifest = proof._replace(starts=tuple(starts))
                (new / _DIGESTS).write_bytes(b"".join(digests))
                (new / _MANIFEST).write_bytes(encode_manifest(manifest))
                shutil.rmtree(final, ignore_errors=True)
                new.rename(final)
            except _Stopped:
                return None
            except OSError as error:
                raise StoreUnavailable(f"{new}: {error.strerror}") from None
            finally:
                shutil.rmtree(new, ignore_errors=True)
            offer = Offer(height, manifest.plan_hash, len(starts))
            self._known[height] = (offer, tuple(digests))
            for old in sorted(self._known)[: -self._kept]:
                self._drop(old)
            return offer

    def manifest(self, height: int) -> bytes | None:
        """Return the manifest of a snapshot; None if it is not here."""
        if height not in self._known:
            return None
        data = self._read(height, _MANIFEST)
        return data if data is not None and len(data) <= MANIFEST_LIMIT_BYTES else None

    def piece(self, height: int, number: int) -> bytes | None:
        """Return a piece of a snapshot; None if it is not here."""
        known = self._known.get(height)
        if known is None or number >= len(known[1]):
            return None
        data = self._read(height, str(number))
        if data is not None and digest(b"sync-piece", data) != known[1][number]:
            self._drop(height)  # damaged: it would cost this node its good name
            return None
        return data

    def _read(self, height: int, name: str) -> bytes | None:
        try:
            return (self._directory / str(height) / name).read_bytes()
        except OSError:
            self._drop(height)
            return None

    def _drop(self, height: int) -> None:
        self._known.pop(height, None)
        shutil.rmtree(self._directory / str(height), ignore_errors=True)

    def _pause(self) -> None:
        if self._stop.is_set():
            raise _Stopped
        time.sleep(_PAUSE_S)  # the event loop and the execution of blocks come first

    def _proof(self, height: int) -> Manifest | None:
        """Return headers and certificate that prove the state after ``height``, without the pieces."""
        boundary, following = self._store.height(height), self._store.certificate(height + 1)
        if boundary is None or not boundary.header or following is None:
            return None
        try:
            certificate = decode_certificate(following)
            headers = []
            for above in range(height + 1, height + 1 + HEADERS_MAX):
                record = self._store.height(above)
                if record is None:
                    return None
                headers.append(decode_header(record.header))
                if record.block_hash == certificate.block_hash:
                    return Manifest(decode_header(boundary.header), tuple(headers), certificate, ())
        except DecodeError as error:
            raise StoreError(f"the headers after height {height} do not decode: {error}") from None
        return None

    def _load(self) -> None:
        """Load the snapshots of earlier processes. Unfinished ones and those of another chain are removed."""
        try:
            names = sorted(path.name for path in self._directory.iterdir()) if self._directory.is_dir() else []
        except OSError as error:
            raise StoreUnavailable(f"{self._directory}: {error.strerror}") from None
        for name in names:
            path = self._directory / name
            if not name.isascii() or not name.isdigit() or len(name) > 15:
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                manifest = decode_manifest((path / _MANIFEST).read_bytes())
                joined = (path / _DIGESTS).read_bytes()
            except (OSError, DecodeError):
                shutil.rmtree(path, ignore_errors=True)
                continue
            digests = tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
            record = self._record(manifest.height)
            if (
                manifest.height != int(name)
                or len(digests) != len(manifest.starts)
                or manifest.boundary.genesis_hash != self._store.genesis_hash
                or record != manifest.state_root
            ):
                shutil.rmtree(path, ignore_errors=True)
                continue
            self._known[manifest.height] = (
                Offer(manifest.height, manifest.plan_hash, len(digests)),
                digests,
            )
        for old in sorted(self._known)[: -self._kept] if self._kept else list(self._known):
            self._drop(old)

    def _record(self, height: int) -> bytes | None:
        """Return the stored state root. None if a rollback removed the height."""
        try:
            record = self._store.height(height)
        except Pruned:
            return None
        return None if record is None else record.state_root


class _Stopped(Exception):
    """The node ended while a snapshot was made."""
