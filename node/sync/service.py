"""State sync on trio: sends requests to peers, writes pieces to disk, and moves the finished database to its
place.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import trio

from consensus.light import LightOptions, TrustedState, genesis_root, trusting_period_ms
from node.home.config import Checkpoint
from node.sync.core import (
    NOTHING_MS,
    Answered,
    Ask,
    Ban,
    Begin,
    Begun,
    Event,
    Failed,
    Finish,
    KeepRecord,
    NoSnapshots,
    PeersChanged,
    PieceFalse,
    PieceTaken,
    SyncCore,
    SyncProgress,
    TakePiece,
    Tick,
    Unanswered,
)
from node.sync.messages import CHUNK
from p2p.base.errors import PeerUnreachable, RequestFailed, RequestRefused
from state.primitives.errors import DekubeError, ProtocolError
from state.primitives.genesis import ChainParameters, Genesis, genesis_hash, read_parameters
from state.store import (
    Restore,
    StoreDamaged,
    StoreIncompatible,
    StoreOfAnotherChain,
    StoreOptions,
    StoreUnavailable,
    Tip,
    check_free,
    install,
)
from state.transition.epochs import genesis_committee

__all__ = [
    "AskingNetwork",
    "StateSync",
    "is_fresh",
    "move_aside",
    "sync_first",
    "sync_path",
    "trust_root",
]

_log = structlog.get_logger("sync")

TICK_S: Final = 0.5
PROGRESS_LOGGED_S: Final = 10.0
AGAIN_S: Final = 10.0
ASIDE_MAX: Final = 1_000


class PeerSeen(Protocol):
    """The part of ``p2p.session.peer.PeerInfo`` that is used here."""

    @property
    def address(self) -> bytes:
        """The peer's address."""
        ...


class AskingNetwork(Protocol):
    """The part of ``p2p.service.Network`` that is used here."""

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        """Return a peer's answer. Raises PeerUnreachable, RequestFailed."""
        ...

    def peers(self) -> Iterable[PeerSeen]:
        """Return the connections."""
        ...

    def ban(self, address: bytes, reason: str) -> None:
        """Disconnect a peer and ban it."""
        ...

    def credit(self, address: bytes) -> None:
        """Note that a peer was useful."""
        ...


def is_fresh(place: Path) -> bool:
    """Tell whether ``place`` has no database."""
    return not (place.is_dir() and any(place.iterdir()))


def move_aside(place: Path, reason: str) -> Path:
    """Rename a database to make room for another; return its new path.

    Raises StoreLocked while a process uses it, and StoreUnavailable.
    """
    check_free(place)
    for number in range(1, ASIDE_MAX):
        aside = place.with_name(f"{place.name}.{reason}-{number}")
        if not aside.exists():
            try:
                place.rename(aside)
            except OSError as error:
                raise StoreUnavailable(f"{place}: {error.strerror}") from None
            return aside
    raise StoreUnavailable(f"{place}: remove the earlier databases beside it first")


def sync_path(place: Path) -> Path:
    """Return the directory in which the database for ``place`` is built."""
    return place.with_name(place.name + ".sync")


class StateSync:
    """One state sync of a node with its database in ``place``. An old database is renamed at the end.

    ``root`` is the root of trust from the genesis (``consensus.light.genesis_root``). ``checkpoint`` and ``above``
    are as in ``SyncCore``. ``count`` adds to the metric ``statesync_chunks_total`` by result: taken, false, or
    lost (refused or timed out).
    """

    def __init__(
        self,
        place: Path,
        genesis: Genesis,
        network: AskingNetwork,
        root: TrustedState,
        trust: LightOptions,
        *,
        wall_ms: Callable[[], int],
        checkpoint: Checkpoint | None = None,
        above: int = 0,
        options: StoreOptions | None = None,
        nothing_ms: int = NOTHING_MS,
        count: Callable[[str], None] = lambda _result: None,
    ) -> None:
        self._place = place
        self._genesis = genesis
        self._network = network
        self._root = root
        self._trust = trust
        self._wall_ms = wall_ms
        self.checkpoint: Final = checkpoint
        self.above: Final = above
        self._options = options
        self._nothing_ms = nothing_ms
        self._count = count
        self._core: SyncCore | None = None
        self._events: deque[Event] = deque()
        self._wake = trio.Event()
        self._disk = trio.CapacityLimiter(1)
        self._peers: frozenset[bytes] = frozenset()

    def progress(self) -> SyncProgress | None:
        """Return the progress of the sync; None before it begins."""
        return None if self._core is None else self._core.progress()

    async def run(self) -> Tip:
        """Sync; return the block whose state the database in ``place`` then has.

        Raises NoSnapshots if no peer has one, TrustExpired, VersionUnknown, ForkFound, ConfigError for a
        checkpoint that cannot be one, StoreError. After an interruption the next run continues from there.
        """
        path = sync_path(self._place)
        restore = await trio.to_thread.run_sync(self._open, path)
        try:
            target = restore.target if restore.is_whole else await self._fetch(restore)
            assert target is not None
            await trio.to_thread.run_sync(restore.finish)
        finally:
            restore.close()
        await trio.to_thread.run_sync(self._install, path)
        _log.info("state synced", height=target.height, block=target.block_hash)
        return target

    def _install(self, path: Path) -> None:
        if not is_fresh(self._place):
            aside = move_aside(self._place, "old")
            _log.warning("the old database was renamed; remove it to free disk space", path=str(aside))
        install(path, self._place)

    def _open(self, path: Path) -> Restore:
        try:
            return Restore.open(path, self._genesis, self._options)
        except (StoreDamaged, StoreIncompatible, StoreOfAnotherChain) as error:
            _log.warning("an unfinished sync cannot be continued; it starts again", error=str(error))
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}") from None
        return Restore.open(path, self._genesis, self._options)

    async def _fetch(self, restore: Restore) -> Tip:
        self._core = await trio.to_thread.run_sync(self._make_core, restore)
        # A new core knows of no peer, and nothing of what an earlier one has asked.
        self._peers = frozenset()
        self._events.clear()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                nursery.start_soon(self._log_progress)
                target = await self._drive(self._core, restore, nursery)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = _only(group)
            if error is None:
                raise
            raise error from None
        return target

    def _make_core(self, restore: Restore) -> SyncCore:
        return SyncCore(
            self._root,
            self._trust,
            checkpoint=self.checkpoint,
            above=self.above,
            records=restore.records(),
            begun=0 if restore.target is None else restore.target.height,
            nothing_ms=self._nothing_ms,
            now_ms=self._wall_ms(),
        )

    async def _drive(self, core: SyncCore, restore: Restore, nursery: trio.Nursery) -> Tip:
        while True:
            while not self._events:
                self._wake = trio.Event()
                await self._wake.wait()
            event = self._events.popleft()
            # Certificates take their time: they are verified beside the event loop.
            effects = await trio.to_thread.run_sync(core.step, event, self._wall_ms())
            for effect in effects:
                match effect:
                    case Ask():
                        nursery.start_soon(self._ask, effect)
                    case TakePiece():
                        nursery.start_soon(self._take, restore, effect)
                    case KeepRecord(epoch, record):
                        await trio.to_thread.run_sync(restore.keep_record, epoch, record)
                    case Begin(target, ranges):
                        await self._begin(restore, target, ranges)
                    case Ban(peer, reason):
                        _log.warning("a peer sent false sync data; it is banned", peer=peer, reason=reason)
                        self._network.ban(peer, reason)
                    case Finish(target):
                        return target
                    case Failed(error):
                        raise error
                    case _:
                        raise AssertionError(effect)

    async def _begin(self, restore: Restore, target: Tip, ranges: tuple[tuple[bytes, bytes | None], ...]) -> None:
        _log.info("fetching the state", height=target.height, pieces=len(ranges))

        def begin() -> frozenset[int]:
            restore.begin(target)
            return frozenset(number for number, ends in enumerate(ranges) if not restore.has(*ends))

        self._put(Begun(await trio.to_thread.run_sync(begin, limiter=self._disk)))

    async def _ask(self, ask: Ask) -> None:
        try:
            data = await self._network.request(
                ask.peer, ask.method, ask.body, timeout_s=ask.timeout_ms / 1000, limit_bytes=ask.limit_bytes
            )
        except (PeerUnreachable, RequestFailed) as error:
            if ask.method == CHUNK:
                self._count("lost")
            self._put(Unanswered(ask.number, str(error) if isinstance(error, RequestRefused) else None))
        else:
            self._put(Answered(ask.number, data))

    async def _take(self, restore: Restore, take: TakePiece) -> None:
        try:
            await trio.to_thread.run_sync(restore.add, take.start, take.stop, take.data, limiter=self._disk)
        except ProtocolError:
            self._count("false")
            self._put(PieceFalse(take.piece, take.peer))
        else:
            self._count("taken")
            self._network.credit(take.peer)
            self._put(PieceTaken(take.piece))

    async def _tick(self) -> None:
        while True:
            peers = frozenset(peer.address for peer in self._network.peers())
            if peers != self._peers:
                self._peers = peers
                self._put(PeersChanged(peers))
            else:
                self._put(Tick())
            await trio.sleep(TICK_S)

    async def _log_progress(self) -> None:
        while True:
            await trio.sleep(PROGRESS_LOGGED_S)
            progress = self.progress()
            if progress is not None:
                fields: dict[str, Any] = progress._asdict()
                _log.info("syncing the state", **fields)

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()


def _only(group: BaseExceptionGroup[BaseException]) -> DekubeError | None:
    """Return a known error if nothing else ended the sync."""
    known, others = group.split(DekubeError)
    error: BaseException | None = known
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if others is None and isinstance(error, DekubeError) else None


def trust_root(genesis: Genesis, versions: Iterable[int]) -> tuple[TrustedState, LightOptions]:
    """Return the root of trust from the genesis, and how long a committee is trusted."""
    chain = read_parameters(ChainParameters, "chain", genesis)
    root = genesis_root(
        genesis_hash=genesis_hash(genesis),
        time_ms=genesis.time_ms,
        epoch_blocks=chain.epoch_blocks,
        committee=genesis_committee(genesis, chain.validators_max),
    )
    return root, LightOptions(trusting_period_ms(chain.unbonding_ms), versions=tuple(sorted(versions)))


async def sync_first(sync: StateSync, *, may_give_up: bool) -> Tip | None:
    """Run a state sync to its end. Returns None if there is no snapshot and the node may sync the blocks instead.

    Without ``may_give_up`` it waits for peers with a snapshot. Raises what ``StateSync.run`` does.
    """
    while True:
        try:
            return await sync.run()
        except NoSnapshots as error:
            if may_give_up:
                _log.info("no peer has a snapshot; the node syncs the blocks", reason=str(error))
                return None
            _log.warning("no peer has a snapshot yet; waiting for peers that have one", reason=str(error))
        await trio.sleep(AGAIN_S)
