"""Fetches and serves blobs: pieces from several sources at once, each verified before it is written.

See network.md 9.

Each source is asked for twice the bandwidth-delay product of its line, so it never idles. A source that does not
answer in time is asked for half as much.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Final, Protocol

import trio

from p2p.base.errors import BlobUnavailable, PeerBusy, PeerUnreachable, RequestFailed, RequestRefused
from p2p.base.limits import NetworkLimits
from p2p.blob.store import MANIFEST_BYTES_MAX, PIECE_BYTES, BlobStore, Manifest, PieceInvalid, check_size
from p2p.session.requests import RequestHandler
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.hashing import HASH_BYTES

__all__ = ["METHOD_MANIFEST", "METHOD_PIECE", "BlobTransfer"]

METHOD_MANIFEST: Final = "blob manifest"
METHOD_PIECE: Final = "blob piece"
_BUSY: Final = PeerBusy.code
_BUSY_WAIT_S: Final = 0.25
_IDLE_S: Final = 2.0
"""A peer without a request for this long is no longer being served."""
_SILENT_S: Final = 2.0
"""Time after the last request for a piece until another source is asked for it too."""
_INDEX_BYTES: Final = 4
_MANIFEST_S: Final = 10.0
_MANIFEST_STAGGER_S: Final = 0.5
"""Time after the request to one source until the next source is asked for the manifest; at once after a
failure."""
_MANIFEST_ASKED_MAX: Final = 8
"""Sources asked for the manifest at the same time."""
_MANIFEST_ROUNDS: Final = 3


class _Request(Protocol):
    async def __call__(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes: ...


class BlobTransfer:
    """Both ends of a transfer, over requests of the network."""

    def __init__(
        self,
        store: BlobStore,
        request: _Request,
        limits: NetworkLimits,
        *,
        rtt_s: Callable[[bytes], float | None] = lambda _address: None,
        credit: Callable[[bytes], None] = lambda _address: None,
        blame: Callable[[bytes], None] = lambda _address: None,
    ) -> None:
        """``credit`` takes the peer that sent a valid piece, ``blame`` the peer that sent an invalid one."""
        self._store = store
        self._request = request
        self._limits = limits
        self._rtt_s = rtt_s
        self._credit = credit
        self._blame = blame
        self._serving = 0
        self._turns: OrderedDict[bytes, _Turn] = OrderedDict()
        """Peers being served, the longest served first."""
        self._paced_until = -inf
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
            fetch = _Fetch(
                self._store, self._request, self._limits, name, manifest, progress, self._rtt_s,
                self._credit, self._blame,
            )  # fmt: skip
            await fetch.run(sources)
        finally:
            self._store.release(name)

    async def _fetch_manifest(self, name: bytes, sources: list[bytes], limit_bytes: int | None) -> Manifest:
        """Return the first valid manifest; slow or lying sources delay the others little."""
        reasons: list[str] = []
        liars: set[bytes] = set()
        for at in range(_MANIFEST_ROUNDS):
            if at:
                await trio.sleep(_BUSY_WAIT_S)
            asked = [source for source in sources if source not in liars]
            manifest = await self._ask_all(name, asked, limit_bytes, reasons, liars)
            if manifest is not None:
                return manifest
        raise BlobUnavailable("; ".join(reasons[-3:]) or "no source given")

    async def _ask_all(
        self, name: bytes, sources: list[bytes], limit_bytes: int | None, reasons: list[str], liars: set[bytes]
    ) -> Manifest | None:
        """Request a manifest from the sources one after the other; return the first valid one."""
        manifest: Manifest | None = None
        failure: DekubeError | None = None
        room = trio.CapacityLimiter(_MANIFEST_ASKED_MAX)

        async def ask(source: bytes, failed: trio.Event) -> None:
            nonlocal manifest, failure
            async with room:
                try:
                    data = await self._request(
                        source, METHOD_MANIFEST, name, timeout_s=_MANIFEST_S, limit_bytes=MANIFEST_BYTES_MAX
                    )
                    begin = partial(self._store.begin, data, name=name, limit_bytes=limit_bytes)
                    manifest = await trio.to_thread.run_sync(begin)
                    nursery.cancel_scope.cancel()
                except (RequestFailed, PeerUnreachable, PieceInvalid) as error:
                    reasons.append(f"0x{source.hex()}: {error}")
                    if isinstance(error, PieceInvalid):
                        liars.add(source)
                        self._blame(source)
                    failed.set()
                except (BlobUnavailable, StoreError) as error:  # it is true, and there is no room for it here
                    failure = error
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for source in sources:
                failed = trio.Event()
                nursery.start_soon(ask, source, failed)
                with trio.move_on_after(_MANIFEST_STAGGER_S):
                    await failed.wait()
        if manifest is None and failure is not None:
            raise failure
        return manifest

    # -- serving ---------------------------------------------------------------------------------------------

    async def _serve_manifest(self, peer: bytes, body: bytes) -> bytes:
        manifest = self._store.manifest(body) if self._store.is_complete(body) else None
        if manifest is None:
            raise BlobUnavailable("this node does not have the blob")
        return manifest.encode()

    async def _serve_piece(self, peer: bytes, body: bytes) -> bytes:
        if len(body) != HASH_BYTES + _INDEX_BYTES:
            raise DecodeError("malformed request for a piece")
        if self._serving >= self._limits.blob_serves_max or not self._has_turn(peer):
            raise PeerBusy("already serving as many peers as allowed")  # its code is what the other end hears
        name, index = body[:HASH_BYTES], int.from_bytes(body[HASH_BYTES:], "big")
        self._serving += 1
        try:
            data = await trio.to_thread.run_sync(self._store.read_piece, name, index)
            if data is not None:
                await self._pace(len(data))
        finally:
            self._serving -= 1
        if data is None:
            raise BlobUnavailable("this node does not have the blob")
        return data

    def _has_turn(self, peer: bytes) -> bool:
        """Whether a peer is served now: few peers at once, each for its turn."""
        now, turn_s = trio.current_time(), self._limits.blob_turn_s
        turn = self._turns.get(peer)
        if turn is None:
            for known, held in list(self._turns.items()):
                # Idle ones are removed, and busy ones whose turn is over.
                if now - held.asked_at >= _IDLE_S or (
                    len(self._turns) >= self._limits.blob_peers_served_max and now - held.began >= turn_s
                ):
                    del self._turns[known]
            if len(self._turns) >= self._limits.blob_peers_served_max:
                return False
            turn = self._turns[peer] = _Turn(now, now)
        turn.asked_at = now
        return True

    async def _pace(self, size_bytes: int) -> None:
        """Wait until the rate limit for blobs has room."""
        rate = self._limits.blob_upload_bytes_per_s
        if rate:
            now = trio.current_time()
            self._paced_until = max(self._paced_until, now) + size_bytes / rate
            await trio.sleep(self._paced_until - now)


@dataclass(slots=True)
class _Turn:
    began: float
    asked_at: float


@dataclass(slots=True)
class _Source:
    """Number of pieces requested from one source at once."""

    window: int
    landed_at: float | None = None
    rate: float = 0.0
    """Bytes per second, smoothed."""

    def landed(self, size_bytes: int, now: float, rtt_s: float | None, window_max: int) -> None:
        """Note a piece; set the window to twice the bandwidth-delay product."""
        if self.landed_at is not None and now > self.landed_at:
            rate = size_bytes / (now - self.landed_at)
            self.rate = rate if not self.rate else 0.75 * self.rate + 0.25 * rate
        self.landed_at = now
        if rtt_s is not None:
            wanted = 1 + ceil(2 * self.rate * rtt_s / PIECE_BYTES)
            self.window = max(self.window, min(wanted, window_max))

    def timed_out(self) -> None:
        """Halve the window."""
        self.window = max(1, self.window // 2)
        self.landed_at = None


class _Fetch:
    """One blob being fetched."""

    def __init__(
        self,
        store: BlobStore,
        request: _Request,
        limits: NetworkLimits,
        name: bytes,
        manifest: Manifest,
        progress: Callable[[int, int], None] | None,
        rtt_s: Callable[[bytes], float | None],
        credit: Callable[[bytes], None],
        blame: Callable[[bytes], None],
    ) -> None:
        self._credit = credit
        self._blame = blame
        self._store = store
        self._request = request
        self._limits = limits
        self._rtt_s = rtt_s
        self._sources: dict[bytes, _Source] = {}
        self._name = name
        self._pieces = len(manifest.hashes)
        self._progress = progress or (lambda _done, _all: None)
        self._waiting: deque[int] = deque()
        self._left: set[int] = set()
        self._error: DekubeError | None = None
        self._asked: dict[int, dict[bytes, float]] = {}
        """Pieces in flight, with the sources and times of their requests."""
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
                limits = self._limits
                pulls = max(limits.blob_requests_per_source, limits.blob_requests_per_source_max)
                self._sources = {source: _Source(limits.blob_requests_per_source) for source in sources}
                async with trio.open_nursery() as nursery:
                    for place in range(pulls):
                        for source in sources:
                            nursery.start_soon(self._pull, source, place)
        if self._error is not None:
            raise self._error
        if not self._is_complete:
            raise BlobUnavailable("; ".join(self._reasons.values()) or "no source given")

    async def _pull(self, source: bytes, place: int) -> None:
        """Request pieces from one source, one after the other, while its window allows it."""
        busy = 0
        state = self._sources[source]
        while not self._is_complete and self._failures[source] < self._limits.blob_source_failures_max:
            index = self._next_piece(source) if place < state.window else None
            if index is None:
                turn = self._turn
                with trio.move_on_after(_SILENT_S):
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
                self._credit(source)
                busy = 0
                window = state.window
                state.landed(
                    len(data),
                    trio.current_time(),
                    self._rtt_s(source),
                    self._limits.blob_requests_per_source_max,
                )
                self._landed(index)
                if state.window > window:
                    self._take_turn()
            except RequestRefused as error:
                self._give_back(index, source)
                busy += 1
                if str(error) != _BUSY or busy > self._limits.blob_busy_retries_max:
                    self._note(source, str(error), is_fatal=True)
                    return
                await trio.sleep(_BUSY_WAIT_S * min(busy, 8))
            except PieceInvalid as error:
                self._give_back(index, source)
                self._note(source, str(error), is_fatal=True)
                self._blame(source)  # what it reads from its own disk it checks itself
                return
            except (RequestFailed, PeerUnreachable) as error:
                state.timed_out()
                self._give_back(index, source)
                self._note(source, str(error), is_fatal=False)
            except (BlobUnavailable, StoreError) as error:  # our own disk, or the blob was removed under us
                self._error = error
                self._scope.cancel()
                return

    def _next_piece(self, source: bytes) -> int | None:
        """Return a piece that was not requested yet, else one of the last pieces that this source was not asked
        for.

        One of the last pieces is requested from two sources, and from one more each time that all of them are
        silent: a source may be gone, and a dial to it may take long.
        """
        now = trio.current_time()
        while self._waiting:
            index = self._waiting.popleft()
            if index not in self._asked:
                self._asked[index] = {source: now}
                return index
        for index, asked in self._asked.items():
            if source not in asked and (len(asked) < 2 or now - max(asked.values()) >= _SILENT_S):
                asked[source] = now
                return index
        return None

    def _landed(self, index: int) -> None:
        self._asked.pop(index, None)
        self._left.discard(index)
        self._progress(self._pieces - len(self._left), self._pieces)
        if self._is_complete:
            self._scope.cancel()  # what was asked for twice need not be waited for

    def _give_back(self, index: int, source: bytes) -> None:
        asked = self._asked.get(index, {})
        if asked.pop(source, None) is not None and not asked:
            del self._asked[index]
            self._waiting.appendleft(index)
        self._take_turn()

    def _note(self, source: bytes, reason: str, *, is_fatal: bool) -> None:
        self._failures[source] += self._limits.blob_source_failures_max if is_fatal else 1
        self._reasons[source] = f"0x{source.hex()}: {reason}"
        self._take_turn()

    def _take_turn(self) -> None:
        self._turn.set()
        self._turn = trio.Event()
