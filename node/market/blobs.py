"""Blobs for the gateway: pieces of the node's store, fetches of blobs that tasks name, and requesters' uploads.

A gateway user can trigger only fetches of blobs that a task on chain names, up to the size that its job allows;
these are paid for. Uploads are bounded by ``node.market.uploads``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
import trio

from node.home.options import UploadOptions
from node.market.inputs import inputs_limit
from node.market.uploads import UploadBook, UploadRefused, decode_book
from p2p.base.errors import BlobUnavailable
from p2p.blob.store import BlobStore
from p2p.service import Network
from rpc.protocol.records import BlobStatus, UploadStatus
from state.primitives.bounded_cache import BoundedCache
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.manifests import Manifest
from state.view import Reader
from state.view.accounts import balance_of
from tasks.custody.sealed import sealed_size
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.kinds.container import LOG_BYTES_MAX, ContainerPart
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.custody_queries import input_holders
from tasks.ledger.custody_records import find_custody
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.meter_records import load_meter
from tasks.ledger.queries import tasks_by_requester
from tasks.ledger.records import load_spec, load_task, load_window
from tasks.ledger.registry import NodeRole, candidates
from tasks.ledger.screening import DatasetFacts, read_dataset_facts
from tasks.proofs import LEAVES_LIMIT_BYTES
from tasks.spec import container_of

__all__ = ["GatewayBlobs", "missing_ranges"]

_log = structlog.get_logger("blobs")

FETCHES_MAX: Final = 16
"""Blobs fetched for gateways at the same time."""
QUIET_S_MAX: Final = 45.0
"""A fetch without progress for this long is replaced by another one."""
FETCH_BYTES_MAX: Final = 4 * 1024**3
SOURCES_MAX: Final = 16
FAILED_S: Final = 60.0
"""A failed fetch is not tried again for this long."""
FAILURES_KEPT_MAX: Final = 1_024
SWEEP_S: Final = 60.0
TASK_PAGES_MAX: Final = 100
TASKS_OF_PAGE: Final = 100
FACTS_KEPT_MAX: Final = 1_024
"""Blobs whose data set properties are cached."""
RANGES_MAX: Final = 1_024
"""Gaps of an upload returned at once; the uploader asks again for more."""


class GatewayBlobs:
    """Answers the gateways' requests about blobs (``BlobRequests``). ``run`` removes expired uploads."""

    def __init__(
        self, network: Network, state: Reader, options: UploadOptions, book: Path, address: bytes, *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:  # fmt: skip
        assert network.blobs is not None
        self._network = network
        self._store: BlobStore = network.blobs
        self._state = state
        self._options = options
        self._path = book
        self._address = address
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._book = self._load()
        for upload in self._book.uploads:
            if self._store.manifest(upload.blob) is None:
                self._book.drop(upload)  # half made when the machine stopped, or removed by hand
            else:
                self._store.hold(upload.blob)
        self._facts: BoundedCache[bytes, DatasetFacts] = BoundedCache(FACTS_KEPT_MAX)
        self._reading = threading.Lock()
        self._fetching: dict[bytes, tuple[int, int]] = {}
        self._failed: dict[bytes, tuple[float, str]] = {}
        self._nursery: trio.Nursery | None = None

    def _load(self) -> UploadBook:
        try:
            return decode_book(self._path.read_bytes(), self._options)
        except FileNotFoundError:
            pass
        except (OSError, DecodeError) as error:
            # What was promised to uploaders is a day's keeping at most: not worth a node that does not start.
            _log.warning("the list of uploads is damaged; a new one is started", error=str(error))
        return UploadBook(self._options)

    async def run(self) -> None:
        """Fetch requested blobs and expire uploads, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    await trio.to_thread.run_sync(self.sweep)
                    await trio.sleep(SWEEP_S)
            finally:
                self._nursery = None

    # Fetching

    def blob_fetch(self, name: bytes, task: bytes | None, window: int | None, /) -> BlobStatus:
        """Return the status of a blob; fetch it if a task names it."""
        if self._store.is_complete(name):
            manifest = self._store.manifest(name)
            if manifest is not None:
                return BlobStatus("complete", manifest.encode(), 0, 0)
        if name in self._fetching:
            return BlobStatus("fetching", b"", *self._fetching[name])
        when, why = self._failed.get(name, (0.0, ""))
        if why and trio.current_time() < when:
            raise BlobUnavailable(why)
        if task is None:
            raise BlobUnavailable("the blob is not here; name a task that uses it, so that its holders are known")
        if self._nursery is None or len(self._fetching) >= FETCHES_MAX:
            return BlobStatus("waiting", b"", 0, 0)
        limit_bytes, sources = self._named(name, task, window)
        self._fetching[name] = (0, 0)
        self._nursery.start_soon(self._fetch, name, sources, limit_bytes)
        return BlobStatus("fetching", b"", 0, 0)

    def _named(self, name: bytes, task: bytes, window: int | None) -> tuple[int, list[bytes]]:
        """Return the allowed size of a blob that ``task`` names, and its holders. Raises BlobUnavailable."""
        record, spec = load_task(self._state, task), load_spec(self._state, task)
        makers = [record.worker, record.requester]
        limit_bytes = 0
        if spec.is_metered:
            limit_bytes, sooner = _named_of_container(self._state, task, name, container_of(spec))
            makers[:0] = sooner
            stores = candidates(self._state, NodeRole.STORAGE, task, SOURCES_MAX)
            makers += [node.address for node in stores]  # they may keep it for a requester who is away
        elif name in [given.blob for given in spec.inputs()]:
            limit_bytes = inputs_limit(spec)
            makers.reverse()
            makers += input_holders(self._state, task)
        elif window is not None and window < record.next_window:
            found = load_window(self._state, task, window)
            makers.insert(0, found.worker)
            kept = find_custody(self._state, task, window)
            makers[:0] = [holder.address for holder in kept.holders] if kept is not None else []
            if name == found.proof.output_blob:
                limit_bytes = sealed_size(spec.plan().state_limit_bytes)
            elif name == found.proof.leaves_blob:
                limit_bytes = LEAVES_LIMIT_BYTES
        if not limit_bytes:
            raise BlobUnavailable("the task does not name this blob")
        others = [maker for maker in makers if maker and maker != self._address]
        connected = [peer.address for peer in self._network.peers()]
        # Nodes that certainly had it come first, unknown ones that must be dialled last.
        near = [maker for maker in others if maker in connected]
        return min(limit_bytes, FETCH_BYTES_MAX), list(dict.fromkeys([*near, *connected, *others]))[:SOURCES_MAX]

    async def _fetch(self, name: bytes, sources: list[bytes], limit_bytes: int) -> None:
        why = f"nothing of it came in {QUIET_S_MAX:.0f} s"
        scope = trio.CancelScope(deadline=trio.current_time() + QUIET_S_MAX)

        def note(done: int, every: int) -> None:
            self._fetching[name] = (done, every)
            scope.deadline = trio.current_time() + QUIET_S_MAX

        try:
            with scope:
                await self._network.fetch_blob(name, sources, progress=note, limit_bytes=limit_bytes)
                why = ""
        except DekubeError as error:
            why = str(error) or error.code
        finally:
            self._fetching.pop(name, None)
        if why:
            while len(self._failed) >= FAILURES_KEPT_MAX:
                self._failed.pop(next(iter(self._failed)))
            self._failed[name] = (trio.current_time() + FAILED_S, why)
        else:
            self._failed.pop(name, None)

    # Serving

    def blob_piece(self, name: bytes, index: int, /) -> bytes | None:
        """Return a piece of a blob, None if it is not here."""
        return self._store.read_piece(name, index)

    def dataset_facts(self, name: bytes, /) -> DatasetFacts | None:
        """Return a blob's data set properties; None if it is not complete here."""
        with self._reading:  # one at a time: each takes several times its size for a while
            manifest = self._store.manifest(name) if self._store.is_complete(name) else None
            if manifest is None:
                return None
            facts = self._facts.get(name)
            if facts is None:
                size = manifest.size_bytes
                if size > DATASET_BLOB_BYTES_MAX:
                    facts = DatasetFacts(size, 0, 0, 0, 0, 0, b"", "too large")
                else:
                    try:
                        facts = read_dataset_facts(self._store.read(name))
                    except (DekubeError, OSError):  # damaged on the disk, or evicted meanwhile: not whole here
                        return None
                self._facts.put(name, facts)
        return facts

    # Uploads

    def upload_begin(self, data: bytes, account: bytes, caller: str, /) -> UploadStatus:
        """Begin or continue an upload of the blob with the manifest ``data``."""
        manifest = Manifest.decode(data)  # the gateway has read it too: its name was signed for
        name = manifest.blob_id
        balance = balance_of(self._state, account)
        with self._lock:
            self._book.check_account(name, account, balance)
        with self._lock:
            was_known = self._book.find(name, account) is not None
            is_charged = self._book.begin(name, manifest.size_bytes, account, caller, balance, self._now_ms())
            try:
                self._store.begin(data, name=name)
            except DekubeError:
                if not was_known and (upload := self._book.find(name, account)) is not None:
                    self._book.drop(upload)
                raise
            if not was_known:
                self._store.hold(name)
            if self._store.is_complete(name):
                self._book.came(name, self._now_ms(), is_complete=True)
            if is_charged:
                self._save()
        return UploadStatus(len(manifest.hashes), missing_ranges(self._store.missing(name)))

    def upload_lacks(self, name: bytes, index: int, /) -> bool:
        """Return whether a piece of an upload is missing."""
        manifest = self._uploading(name)
        if not 0 <= index < len(manifest.hashes):
            raise DecodeError(f"the blob has {len(manifest.hashes)} pieces")
        return index in self._store.missing(name)

    def upload_put(self, name: bytes, index: int, data: bytes, /) -> bool:
        """Store a piece of an upload; return whether the blob is complete."""
        self._uploading(name)
        is_complete = self._store.write_piece(name, index, data)
        with self._lock:
            self._book.came(name, self._now_ms(), is_complete=is_complete)
            if is_complete:
                self._save()
        return is_complete

    def _uploading(self, name: bytes) -> Manifest:
        with self._lock:
            is_known = name in self._book
        manifest = self._store.manifest(name) if is_known else None
        if manifest is None:
            raise UploadRefused("upload_unknown", "nobody has begun to upload this blob here, or it has expired")
        return manifest

    def sweep(self) -> None:
        """Remove expired uploads that no task of their account refers to."""
        with self._lock:
            due, now_ms = self._book.due(self._now_ms()), self._now_ms()
        if not due:
            return
        referred = {account: self._inputs(account) for account in {upload.account for upload in due}}
        with self._lock:
            for upload in due:
                if upload.is_complete and upload.blob in referred[upload.account]:
                    self._book.keep(upload, now_ms)
                    continue
                self._book.drop(upload)
                self._store.release(upload.blob)
                if upload.blob not in self._book:
                    self._store.discard(upload.blob)
            self._save()

    def _inputs(self, account: bytes) -> set[bytes]:
        """Return the inputs of the tasks of ``account`` that have not ended."""
        found: set[bytes] = set()
        cursor: bytes | None = None
        for _ in range(TASK_PAGES_MAX):
            page = tasks_by_requester(self._state, account, cursor, TASKS_OF_PAGE)
            for record in page.items:
                if record.phase not in ENDED:
                    with suppress(DekubeError):
                        found.update(given.blob for given in load_spec(self._state, record.id).inputs())
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def _save(self) -> None:
        """Write the list of uploads; called with the lock held.

        If it fails, a restart only forgets the uploads.
        """
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(self._book.encode())
            temporary.replace(self._path)
        except OSError as error:
            _log.warning("the list of uploads cannot be written; check the disk", error=str(error))


def missing_ranges(missing: list[int]) -> list[tuple[int, int]]:
    """Return the runs of ``missing`` as (first, count), at most ``RANGES_MAX`` of them."""
    ranges: list[list[int]] = []
    for index in missing:
        if ranges and index == sum(ranges[-1]):
            ranges[-1][1] += 1
        elif len(ranges) < RANGES_MAX:
            ranges.append([index, 1])
        else:
            break
    return [(first, count) for first, count in ranges]


def _named_of_container(
    state: Reader, task: bytes, name: bytes, part: ContainerPart
) -> tuple[int, list[bytes]]:  # fmt: skip
    """Return the size of a blob that a container names, or that its machine named at its end; and that machine."""
    for mount in part.storage.mounts:
        if name == mount.blob:
            return mount.size_bytes, []
    if name == part.image.blob:
        return part.image.size_bytes, []
    stored = load_checkpoints(state, task)
    for one in (stored.latest, stored.before, stored.base):
        if one is not None and name == one.blob:
            return one.size_bytes, [one.worker]
    end = load_meter(state, task).end
    if end is not None and name == end.output:
        return min(end.output_bytes, part.storage.output_bytes_max), [end.worker]
    if end is not None and name == end.logs:
        return min(end.logs_bytes, LOG_BYTES_MAX), [end.worker]
    return 0, []
