"""Serves epoch records and snapshots to new nodes. Snapshots are made at the ends of epochs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
import trio

from node.sync.messages import (
    CHUNK,
    MANIFEST,
    OFFERS,
    RECORDS,
    RECORDS_LIMIT_BYTES,
    RECORDS_MAX,
    Offer,
    decode_asked,
    encode_offers,
    encode_records,
)
from node.sync.snapshot_keeper import SnapshotKeeper
from p2p.secure.frame import TrafficClass
from state.primitives.errors import DekubeError
from state.primitives.token_bucket import RateLimiter
from state.store import HeightUnknown, Pruned, Store, StoreUnavailable

__all__ = ["ServingNetwork", "SyncServer"]

_log = structlog.get_logger("sync")

PIECES_OF_ONE_PER_S: Final = 4.0
PIECES_OF_ONE_BURST: Final = 16.0
PIECES_PER_S: Final = 12.0
"""About 12 MB/s to all peers together."""
PIECES_BURST: Final = 32.0
SMALL_OF_ONE_PER_S: Final = 4.0
SMALL_OF_ONE_BURST: Final = 32.0
SMALL_PER_S: Final = 24.0
"""Offers, pages of records and manifests to all peers together. Each may have half a megabyte."""
SMALL_BURST: Final = 128.0
READS_MAX: Final = 4
"""Pieces read from disk at the same time."""

Handler = Callable[[bytes, bytes], Awaitable[bytes]]


class SnapshotUnknown(DekubeError):
    """A snapshot or piece that this node does not have (any more)."""

    code = "snapshot_unknown"


class ServerBusy(DekubeError):
    """The peer, or all peers together, exceed the rate limit."""

    code = "busy"


class ServingNetwork(Protocol):
    """The part of ``p2p.service.Network`` that is used here."""

    def on_request(self, method: str, handler: Handler, *, cls: TrafficClass = TrafficClass.REQUEST) -> None:
        """Answer requests of a method."""
        ...


class SyncServer:
    """Answers peers' requests and makes snapshots. ``run`` lasts as long as the node."""

    def __init__(self, store: Store, keeper: SnapshotKeeper, network: ServingNetwork) -> None:
        self._store = store
        self._keeper = keeper
        self._wake = trio.Event()
        self._pieces_of_one = RateLimiter(per_s=PIECES_OF_ONE_PER_S, burst=PIECES_OF_ONE_BURST)
        self._pieces = RateLimiter(per_s=PIECES_PER_S, burst=PIECES_BURST)
        self._small_of_one = RateLimiter(per_s=SMALL_OF_ONE_PER_S, burst=SMALL_OF_ONE_BURST)
        self._small = RateLimiter(per_s=SMALL_PER_S, burst=SMALL_BURST)
        self._reads = trio.CapacityLimiter(READS_MAX)
        network.on_request(OFFERS, self._offers)
        network.on_request(RECORDS, self._records)
        network.on_request(MANIFEST, self._manifest)
        network.on_request(CHUNK, self._piece, cls=TrafficClass.BULK)

    def on_commit(self) -> None:
        """Check whether a snapshot is due. Call it after each commit."""
        self._wake.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make snapshots when they are due, until cancelled. Raises StoreDamaged."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._end_with_the_node)
            task_status.started()
            await self._make_snapshots()

    async def _end_with_the_node(self, task_status: trio.TaskStatus[None]) -> None:
        """Stop making a snapshot when the node ends: nothing may read a database that is being closed."""
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._keeper.stop()

    async def _make_snapshots(self) -> None:
        refused = 0
        while True:
            self._wake = trio.Event()
            height = self._keeper.due()
            if height is not None and height != refused:
                begun_s = trio.current_time()
                try:
                    offer = await trio.to_thread.run_sync(self._keeper.make, height)
                except StoreUnavailable as error:  # the chain goes on without; the disk may have room later
                    refused = height
                    _log.warning(
                        "the snapshot could not be made; check the disk. The next epoch's is tried again",
                        height=height,
                        error=str(error),
                    )
                except (Pruned, HeightUnknown):
                    refused = height  # blocks came faster than the snapshot began
                else:
                    if offer is not None:
                        _log.info(
                            "snapshot made", height=height, pieces=offer.pieces,
                            seconds=round(trio.current_time() - begun_s, 1),
                        )  # fmt: skip
            await self._wake.wait()

    async def make_now(self) -> Offer | None:
        """Make the snapshot that is due and return it, or the newest one if none is due. Raises StoreError."""
        height = self._keeper.due()
        made = None if height is None else await trio.to_thread.run_sync(self._keeper.make, height)
        return made or next(iter(self._keeper.offers()), None)

    async def _offers(self, peer: bytes, _body: bytes) -> bytes:
        self._check_rates(self._small_of_one, self._small, peer)
        return encode_offers(self._keeper.offers())

    async def _records(self, peer: bytes, body: bytes) -> bytes:
        (epoch,) = decode_asked(body, 1)
        self._check_rates(self._small_of_one, self._small, peer)
        records = await trio.to_thread.run_sync(self._read_records, epoch)
        return encode_records(records[:RECORDS_MAX])

    def _read_records(self, epoch: int) -> list[bytes]:
        return self._store.epoch_records(epoch, limit_bytes=RECORDS_LIMIT_BYTES)

    async def _manifest(self, peer: bytes, body: bytes) -> bytes:
        (height,) = decode_asked(body, 1)
        self._check_rates(self._small_of_one, self._small, peer)
        return _known(await trio.to_thread.run_sync(self._keeper.manifest, height))

    async def _piece(self, peer: bytes, body: bytes) -> bytes:
        height, number = decode_asked(body, 2)
        self._check_rates(self._pieces_of_one, self._pieces, peer)
        return _known(await trio.to_thread.run_sync(self._keeper.piece, height, number, limiter=self._reads))

    def _check_rates(self, of_one: RateLimiter, of_all: RateLimiter, peer: bytes) -> None:
        now_s = trio.current_time()
        if not of_one.allows(peer, now_s) or not of_all.allows(None, now_s):
            raise ServerBusy


def _known(data: bytes | None) -> bytes:
    if data is None:
        raise SnapshotUnknown
    return data
