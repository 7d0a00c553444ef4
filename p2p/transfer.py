"""Fetching and serving blobs: pieces from several sources at once, each verified before it is written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from p2p.blobs import MANIFEST_BYTES_MAX, PIECE_BYTES, BlobStore, Manifest, PieceInvalid, check_size
from p2p.errors import BlobUnavailable, PeerUnreachable, RequestFailed, RequestRefused
from p2p.limits import NetworkLimits
from p2p.peer import RequestHandler
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.hashing import HASH_BYTES

__all__ = ["METHOD_MANIFEST", "METHOD_PIECE", "BlobTransfer"]

METHOD_MANIFEST: Final = "blob manifest"
METHOD_PIECE: Final = "blob piece"
_BUSY: Final = "busy"
_BUSY_WAIT_S: Final = 0.25
_INDEX_BYTES: Final = 4


class _Request(Protocol):
    async def __call__(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes: ...


class BlobTransfer:
    """The two ends of a transfer over the requests of the network."""

    def __init__(self, store: BlobStore, request: _Request, limits: NetworkLimits) -> None:
        self._store = store
        self._request = request
        self._limits = limits
        self._serving = 0
        self._under_way: dict[bytes, trio.Lock] = {}

    def served(self) -> dict[str, RequestHandler]:
        """Return the methods to serve; their answers belong to the class BULK."""
        return {METHOD_MANIFEST: self._serve_manifest, METHOD_PIECE: self._serve_piece}

    async def fetch(
        self,
        name: bytes,
        sources: Sequence[bytes],
        progress: Callable[[int, int], None] | None,
        limit_bytes: int | None = None,
    ) -> Path:
        """Return the file of the blob once every piece is here. Raises BlobUnavailable."""
        lock = self._under_way.setdefault(name, trio.Lock())
        try:
            async with lock:  # a second caller finds what the first one fetched
                if not self._store.is_complete(name):
                    await self._fetch(name, list(dict.fromkeys(sources)), progress, limit_bytes)
                return self._store.path(name)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._under_way.pop(name, None)

    async def _fetch(
        self,
        name: bytes,
        sources: list[bytes],
        progress: Callable[[int, int], None] | None,
        limit_bytes: int | None,
    ) -> None:
        manifest = self._store.manifest(name) or await self._fetch_manifest(name, sources, limit_bytes)
        check_size(manifest, limit_bytes)
        self._store.hold(name)
        try:
            fetch = _Fetch(self._store, self._request, self._limits, name, manifest, progress)
            await fetch.run(sources)
        finally:
            self._store.release(name)

    async def _fetch_manifest(self, name: bytes, sources: list[bytes], limit_bytes: int | None) -> Manifest:
        reasons = []
        for _ in range(3):
            for source in sources:
                try:
                    data = await self._request(
                        source, METHOD_MANIFEST, name, timeout_s=10.0, limit_bytes=MANIFEST_BYTES_MAX
                    )
                    begin = partial(self._store.begin, data, name=name, limit_bytes=limit_bytes)
                    return await trio.to_thread.run_sync(begin)
                except (RequestFailed, PeerUnreachable, PieceInvalid) as error:
                    reasons.append(f"0x{source.hex()}: {error}")
            await trio.sleep(_BUSY_WAIT_S)
        raise BlobUnavailable("; ".join(reasons[-3:]) or "no source was named")

    # -- serving ---------------------------------------------------------------------------------------------

    async def _serve_manifest(self, peer: bytes, body: bytes) -> bytes:
        manifest = self._store.manifest(body) if self._store.is_complete(body) else None
        if manifest is None:
            raise BlobUnavailable("not here")
        return manifest.encode()

    async def _serve_piece(self, peer: bytes, body: bytes) -> bytes:
        if len(body) != HASH_BYTES + _INDEX_BYTES:
            raise DecodeError("not a piece's name")
        if self._serving >= self._limits.blob_serves_max:
            raise RequestRefused(_BUSY)
        name, index = body[:HASH_BYTES], int.from_bytes(body[HASH_BYTES:], "big")
        self._serving += 1
        try:
            data = await trio.to_thread.run_sync(self._store.read_piece, name, index)
        finally:
            self._serving -= 1
        if data is None:
            raise BlobUnavailable("not here")
        return data


class _Fetch:
    """One blob on its way in."""

    def __init__(
        self,
        store: BlobStore,
        request: _Request,
        limits: NetworkLimits,
        name: bytes,
        manifest: Manifest,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._store = store
        self._request = request
        self._limits = limits
        self._name = name
        self._pieces = len(manifest.hashes)
        self._progress = progress or (lambda _done, _all: None)
        self._waiting: deque[int] = deque()
        self._left: set[int] = set()
        self._error: DekubeError | None = None
        self._asked: Counter[int] = Counter()
        """Pieces under way, with how many sources have been asked."""
        self._failures: Counter[bytes] = Counter()
        self._reasons: dict[bytes, str] = {}
        self._is_complete = False
        self._turn = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self, sources: list[bytes]) -> None:
        self._waiting.extend(self._store.missing(self._name))
        self._left.update(self._waiting)
        self._progress(self._pieces - len(self._left), self._pieces)
        self._is_complete = self._store.is_complete(self._name)
        if not self._is_complete:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._limits.blob_requests_per_source):
                        for source in sources:
                            nursery.start_soon(self._pull, source)
        if self._error is not None:
            raise self._error
        if not self._is_complete:
            raise BlobUnavailable("; ".join(self._reasons.values()) or "no source was named")

    async def _pull(self, source: bytes) -> None:
        busy = 0
        while not self._is_complete and self._failures[source] < self._limits.blob_source_failures_max:
            index = self._next_piece()
            if index is None:
                turn = self._turn
                await turn.wait()
                continue
            try:
                data = await self._request(
                    source,
                    METHOD_PIECE,
                    self._name + index.to_bytes(_INDEX_BYTES, "big"),
                    timeout_s=self._limits.blob_piece_timeout_s,
                    limit_bytes=PIECE_BYTES,
                )
                if await trio.to_thread.run_sync(self._store.write_piece, self._name, index, data):
                    self._is_complete = True
                busy = 0
                self._landed(index)
            except RequestRefused as error:
                self._give_back(index)
                busy += 1
                if str(error) != _BUSY or busy > self._limits.blob_busy_retries_max:
                    self._note(source, str(error), is_fatal=True)
                    return
                await trio.sleep(_BUSY_WAIT_S * min(busy, 8))
            except PieceInvalid as error:
                self._give_back(index)
                self._note(source, str(error), is_fatal=True)  # it lies, or its disk does
                return
            except (RequestFailed, PeerUnreachable) as error:
                self._give_back(index)
                self._note(source, str(error), is_fatal=False)
            except (BlobUnavailable, StoreError) as error:  # our own disk, or the blob was removed under us
                self._error = error
                self._scope.cancel()
                return

    def _next_piece(self) -> int | None:
        """Return a piece that nobody was asked for, else one of the last that only one source was asked for."""
        while self._waiting:
            index = self._waiting.popleft()
            if not self._asked[index]:
                self._asked[index] += 1
                return index
        for index, times in self._asked.items():
            if times == 1:
                self._asked[index] += 1
                return index
        return None

    def _landed(self, index: int) -> None:
        self._asked.pop(index, None)
        self._left.discard(index)
        self._progress(self._pieces - len(self._left), self._pieces)
        if self._is_complete:
            self._scope.cancel()  # what was asked for twice need not be waited for

    def _give_back(self, index: int) -> None:
        if self._asked[index] > 1:
            self._asked[index] -= 1
        elif self._asked.pop(index, 0):
            self._waiting.appendleft(index)
        self._take_turn()

    def _note(self, source: bytes, reason: str, *, is_fatal: bool) -> None:
        self._failures[source] += self._limits.blob_source_failures_max if is_fatal else 1
        self._reasons[source] = f"0x{source.hex()}: {reason}"
        self._take_turn()

    def _take_turn(self) -> None:
        self._turn.set()
        self._turn = trio.Event()
