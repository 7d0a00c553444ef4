"""The finalised chain on disk: one synced LevelDB batch a block, so that a crash leaves a whole height.

Only ``commit`` writes. Everything else may be called from any thread at any time, also while a commit runs:
each read sees the state before it or after it, never a mixture.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

import plyvel

from state.primitives.genesis import ChainParameters, Genesis, genesis_hash, read_parameters
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.store.cache import Cache
from state.store.database import StoreOptions, check_format, open_database
from state.store.errors import HeightUnknown, Pruned, StoreDamaged, reported, typed
from state.store.nodes import PARTS, SnapshotNodes, StoredNodes, decode_flushed, encode_flushed
from state.store.records import (
    ADDRESS,
    BLOCK,
    BLOCK_HASH,
    BOUNDS,
    CERTIFICATE,
    EPOCH,
    FLUSHED,
    FORMAT,
    HEIGHT,
    INDEX,
    NODE,
    NOTARIZED,
    NOTARIZED_SPAN,
    NULLIFIED,
    RECEIPTS,
    RESTORING,
    STATE,
    TABLES,
    TIP,
    TRANSACTION,
    UNDO,
    Bounds,
    FinalisedBlock,
    Place,
    Span,
    Tip,
    Undo,
    ViewCertificate,
    decode_bounds,
    decode_index,
    decode_place,
    decode_receipts,
    decode_span,
    decode_tip,
    encode_bounds,
    encode_epoch,
    encode_index,
    encode_place,
    encode_receipts,
    encode_span,
    encode_tip,
    height_key,
    view_key,
    view_of_key,
)
from state.trie import RangeInvalid, Trie, entry_of, prove, prove_range, verify_range
from state.trie.trie import key_hash, node_hash

__all__ = ["StateProof", "StateView", "Store", "StoredReader"]

_LIBRARY_ERRORS: Final = (plyvel.Error, RuntimeError)
_T = TypeVar("_T")
_CHUNK_ENTRIES: Final = 50_000
_PROGRESS_ENTRIES: Final = 10_000
_HISTORY_PAGE_MAX: Final = 1_000
_PLACE_BYTES: Final = 12
_PRUNE_HEIGHTS_MAX: Final = 8
"""So many blocks one commit takes away at most: a profile that keeps less takes effect gradually."""
_PRUNE_ENTRIES_MAX: Final = 20_000
_NULLIFIED_MIN: Final = 256
_NOTARIZED_DROPPED_MAX: Final = 64
"""So many NOTARIZE certificates one commit takes away at most."""
_VERIFY_ENTRIES_MAX: Final = 1 << 20
"""Keys that a verification has in memory at once, some 200 bytes each; more are checked in several passes."""


class StateProof(NamedTuple):
    """What ``key`` has at ``height`` with its proof against ``root``, the state root in header ``height + 1``."""

    height: int
    root: bytes
    key: bytes
    value: bytes | None
    proof: bytes


class Store:
    """An open database of one chain. Raises nothing but StoreError, of the kinds in ``state.store.errors``."""

    def __init__(
        self, db: Any, tip: Tip, chain: ChainParameters, options: StoreOptions, chain_hash: bytes
    ) -> None:
        """Use ``Store.open``."""
        self._db = db
        self._options = options
        self._history_heights = history_heights = chain.history_heights
        self.epoch_blocks: int = chain.epoch_blocks
        self._evidence_epochs = chain.evidence_epochs
        self._nullified: tuple[int, int] | None = None
        """The epoch whose kept NULLIFY certificates are counted, and how many they are."""
        self._span = decode_span(db.get(NOTARIZED_SPAN, verify_checksums=True))
        self._bounds = decode_bounds(db.get(BOUNDS, verify_checksums=True))
        self._values = Cache(options.value_cache_entries)
        self._write_lock = Lock()
        self.nodes = StoredNodes(
            db,
            decode_flushed(db.get(FLUSHED)),
            cache_entries=options.node_cache_entries,
            period=min(options.node_period_blocks, history_heights),
            late_max=options.late_nodes_max,
        )
        """The finalised trie's nodes, as a NodeReader."""
        self._undos: OrderedDict[int, Undo] = OrderedDict()
        self._undo_entries = 0
        self._undo_lock = Lock()
        self._proof_versions: OrderedDict[int, Trie] = OrderedDict()
        self._proof_lock = Lock()
        self.tip = tip
        """The newest finalised height."""
        self.genesis_hash = chain_hash

    @classmethod
    def open(
        cls,
        path: Path,
        genesis: Genesis,
        changes: Callable[[], Mapping[bytes, bytes | None]],
        options: StoreOptions | None = None,
    ) -> Store:
        """Open the database in the directory ``path``, or make it from the genesis state ``changes()``.

        Raises StoreLocked, StoreOfAnotherChain, StoreIncompatible, StoreDamaged or StoreUnavailable.
        """
        options = options or StoreOptions()
        return cls.over(open_database(path, options), genesis, changes, options)

    @classmethod
    def over(
        cls,
        db: Any,
        genesis: Genesis,
        changes: Callable[[], Mapping[bytes, bytes | None]],
        options: StoreOptions | None = None,
    ) -> Store:
        """Do what ``open`` does with a database that is open already, or what stands in for one.

        Used of it: ``get``, ``put``, ``iterator``, ``snapshot``, ``write_batch``, ``close`` and ``closed``; for
        people's commands also ``approximate_size`` and ``compact_range``.
        """
        options = options or StoreOptions()
        chain = read_parameters(ChainParameters, "chain", genesis)
        chain_hash = genesis_hash(genesis)
        try:
            with reported():
                tip = cls._check_or_create(db, genesis, chain, chain_hash, changes)
                store = cls(db, tip, chain, options, chain_hash)
                store._catch_up()
        except BaseException:
            db.close()
            raise
        return store

    @staticmethod
    def _check_or_create(
        db: Any,
        genesis: Genesis,
        chain: ChainParameters,
        chain_hash: bytes,
        changes: Callable[[], Mapping[bytes, bytes | None]],
    ) -> Tip:
        check_format(db, chain_hash)
        raw_tip = db.get(TIP, verify_checksums=True)
        if raw_tip is None:
            if db.get(RESTORING) is not None:
                raise StoreDamaged("the database is one that a state sync has not finished")
            return _create(db, genesis, chain, chain_hash, changes())
        tip = decode_tip(raw_tip)
        top: bytes | None = db.get(NODE, verify_checksums=True)
        if (ZERO_HASH if top is None else node_hash(top)) != tip.state_root:
            raise StoreDamaged(f"the trie's root is not that of height {tip.height}")
        if db.get(height_key(HEIGHT, tip.height), verify_checksums=True) != raw_tip:
            raise StoreDamaged(f"the record of height {tip.height} is not the tip's")
        return tip

    def _catch_up(self) -> None:
        def changed_keys(height: int) -> list[bytes]:
            data = self._read(height_key(UNDO, height))
            if data is None:
                raise StoreDamaged(f"the undo record of height {height} is absent")
            return _at(height, Undo.decode, data).keys

        def entry(key: bytes) -> bytes:
            value = self._read(STATE + key)
            return key_hash(key) if value is None else entry_of(key, value)

        self.nodes.catch_up(self.tip.height, changed_keys, key_hash, entry)

    def close(self) -> None:
        """Write what is late and close the files; later reads raise StoreClosed."""
        if self._db.closed:
            return
        flush = self.nodes.plan_all({})
        if flush.writes:
            batch = self._db.write_batch(sync=True)
            _put_nodes(batch, flush.writes)
            batch.put(FLUSHED, self.nodes.flushed_after(flush, self.tip.height))
            with contextlib.suppress(*_LIBRARY_ERRORS):  # the next opening makes it again
                batch.write()
        self._proof_versions.clear()
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The finalised state: a state.view.Reader.

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` in the newest finalised state, or None."""
        cache = self._values
        try:
            return cache.young[key]
        except KeyError:
            pass
        version = cache.version
        value: bytes | None
        try:
            value = cache.old[key]
        except KeyError:
            try:
                value = self._db.get(STATE + key, verify_checksums=True)
            except _LIBRARY_ERRORS as error:
                raise typed(error) from None
        cache.offer(key, value, version)
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of the newest finalised state with ``start <= key < stop``, in order."""
        return _scan(self._db, start, stop, limit)

    @property
    def trie(self) -> Trie:
        """The trie of the newest finalised state."""
        return Trie(self.tip.state_root, self.nodes)

    # Writing.

    def commit(self, block: FinalisedBlock) -> None:
        """Write a finalised block, the child of the tip, wholly or not at all; returns when it is on the disk.

        One caller at a time. Raises StoreUnavailable when the disk refuses; then nothing has changed.
        """
        tip, before = block.tip, self.tip
        height = tip.height
        if height != before.height + 1:
            raise AssertionError(f"height {height} does not follow {before.height}")
        get = self.get
        state: dict[bytes, bytes | None] = {}
        old_values: list[bytes | None] = []
        batch = self._db.write_batch(sync=True)
        put, delete = batch.put, batch.delete
        changes = block.changes
        for key in sorted(changes):
            value, old = changes[key], get(key)
            if value == old:
                continue
            state[key] = value
            old_values.append(old)
            if value is None:
                delete(STATE + key)
            else:
                put(STATE + key, value)
        flush = self.nodes.plan(block.nodes)
        _put_nodes(batch, flush.writes)
        put(FLUSHED, self.nodes.flushed_after(flush, height))
        at_height = height.to_bytes(8, "big")
        for index, transaction_hash in enumerate(block.transaction_hashes):
            put(TRANSACTION + transaction_hash, at_height + index.to_bytes(4, "big"))
        if self._options.index_addresses:
            for index, addresses in enumerate(block.addresses):
                place = at_height + index.to_bytes(4, "big")
                for address in addresses:
                    put(ADDRESS + address + place, b"")
        listed = block.addresses if self._options.index_addresses else ()
        put(INDEX + at_height, encode_index(block.transaction_hashes, listed))
        put(BLOCK + at_height, block.block)
        put(RECEIPTS + at_height, encode_receipts(block.receipts, block.block_receipt))
        put(CERTIFICATE + at_height, block.certificate)
        if block.next_committee is not None:
            epoch = self.epoch_of(height)
            put(height_key(EPOCH, epoch), encode_epoch(tip.header, block.certificate, block.next_committee))
        nullified = self._put_nullified(batch, block.views.nullified)
        span = self._put_notarized(batch, block.views.notarized, self.epoch_of(height))
        if block.next_committee is not None:
            self._drop_nullified(batch, self.epoch_of(height) - self._evidence_epochs)
        put(BLOCK_HASH + tip.block_hash, at_height)
        undo = Undo(list(state), old_values)
        put(UNDO + at_height, undo.encode())
        record = encode_tip(tip)
        put(HEIGHT + at_height, record)
        put(TIP, record)
        if height > self._history_heights:
            delete(height_key(UNDO, height - self._history_heights))
            if not self._options.block_heights:  # for a rollback alone
                delete(height_key(INDEX, height - self._history_heights))
        bounds = self._prune_some(batch, height)
        with self._write_lock:
            try:
                batch.write()
            except _LIBRARY_ERRORS as error:
                raise typed(error) from None
            self._values.replace(state)
            self.nodes.written(block.nodes, flush, height)
            self._keep_undo(height, undo)
            self.tip = tip
            self._bounds = bounds
            self._nullified = nullified
            self._span = span
        for stale in [kept for kept in tuple(self._proof_versions) if kept < self.oldest_state]:
            self._proof_versions.pop(stale, None)

    def _prune_some(self, batch: Any, height: int) -> Bounds:
        """Take the oldest blocks that the options do not keep at ``height`` away, a bounded number of them."""
        kept, bounds = self._options.block_heights, self._bounds
        stop = min(height - kept if kept else 0, bounds.pruned + _PRUNE_HEIGHTS_MAX)
        gone, entries = bounds.pruned, 0
        while gone < stop and entries < _PRUNE_ENTRIES_MAX:
            gone += 1
            entries += self._delete_block(batch, gone)
        if gone == bounds.pruned:
            return bounds
        bounds = bounds._replace(pruned=gone)
        batch.put(BOUNDS, encode_bounds(bounds))
        return bounds

    def _delete_block(self, batch: Any, height: int) -> int:
        """Take body, receipts, certificate and index entries of a height away; return how many entries."""
        record = self._read(height_key(INDEX, height))
        hashes, listed = ([], []) if record is None else _at(height, decode_index, record)
        for transaction_hash in hashes:
            batch.delete(TRANSACTION + transaction_hash)
        for position, addresses in enumerate(listed):
            place = encode_place(height, position)
            for address in addresses:
                batch.delete(ADDRESS + address + place)
        for prefix in (BLOCK, RECEIPTS, CERTIFICATE, INDEX):
            batch.delete(height_key(prefix, height))
        return len(hashes) + sum(map(len, listed))

    def prune(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Take away at once all that the options do not keep, and give the room back; return how many blocks.

        ``progress`` is called with the number of blocks done and in all. For a node that is stopped.
        """
        kept, first = self._options.block_heights, self._bounds.pruned
        stop = self.tip.height - kept if kept else first
        while self._bounds.pruned < stop:
            batch = self._db.write_batch(sync=True)
            bounds = self._prune_some(batch, self.tip.height)
            with reported():
                batch.write()
            self._bounds = bounds
            if progress:
                progress(bounds.pruned - first, stop - first)
        self._sweep_indexes()
        with reported():
            self._db.compact_range()
        return max(0, stop - first)

    def _sweep_indexes(self) -> None:
        """Take the index entries of pruned blocks away that no index record names: of times when all was kept."""
        pruned = self._bounds.pruned

        def stale() -> Iterator[bytes]:
            with self._db.iterator(prefix=TRANSACTION, verify_checksums=True, fill_cache=False) as entries:
                for key, value in entries:
                    if decode_place(value).height <= pruned:
                        yield key
            with self._db.iterator(prefix=ADDRESS, include_value=False, fill_cache=False) as keys:
                for key in keys:
                    if decode_place(key[-_PLACE_BYTES:]).height <= pruned:
                        yield key

        with reported():
            for chunk in _chunks(stale()):
                with self._db.write_batch(sync=True) as batch:
                    for key in chunk:
                        batch.delete(key)

    def rollback(self, height: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Take the blocks above ``height`` back, the newest first; each step leaves a whole height.

        For a node that is stopped; what its vote key has signed stays signed. Raises Pruned below
        ``oldest_state``, HeightUnknown above the tip, StoreDamaged when an undo record does not lead to the root
        on record.
        """
        first = self.tip.height
        if not 0 <= height <= first:
            raise HeightUnknown(height, newest=first)
        if height < self.oldest_state:
            raise Pruned(height, oldest=self.oldest_state)
        states = self.oldest_state
        while self.tip.height > height:
            self._take_back(states)
            if progress:
                progress(first - self.tip.height, first - height)

    def _take_back(self, states: int) -> None:
        """Take the newest block back; undo records below ``states`` are gone for ever."""
        gone = self.tip
        below = self.height(gone.height - 1)
        if below is None:
            raise StoreDamaged(f"the record of height {gone.height - 1} is absent")
        snapshot, _ = self._snapshot()
        undo = self._undos_above(snapshot, gone, below.height)[0]
        back = dict(zip(undo.keys, undo.values, strict=True))
        update = self.trie.update(back)
        if update.root != below.state_root:
            raise StoreDamaged(f"the undo record of height {gone.height} does not lead to the state before it")
        batch = self._db.write_batch(sync=True)
        for key, value in back.items():
            if value is None:
                batch.delete(STATE + key)
            else:
                batch.put(STATE + key, value)
        flush = self.nodes.plan_all(update.nodes)
        _put_nodes(batch, flush.writes)
        batch.put(FLUSHED, self.nodes.flushed_after(flush, below.height))
        self._delete_block(batch, gone.height)
        batch.delete(BLOCK_HASH + gone.block_hash)
        batch.delete(height_key(UNDO, gone.height))
        batch.delete(height_key(HEIGHT, gone.height))
        batch.delete(height_key(EPOCH, self.epoch_of(gone.height)))
        bounds = Bounds(
            self._bounds.base, min(self._bounds.pruned, below.height), max(self._bounds.states, states)
        )
        batch.put(BOUNDS, encode_bounds(bounds))
        batch.put(TIP, encode_tip(below))
        with self._write_lock, reported():
            batch.write()
            self._values.replace(back)
            self.nodes.written(update.nodes, flush, below.height)
            self._undos.pop(gone.height, None)
            self._undo_entries -= len(undo.keys) + 1
            self._proof_versions.clear()
            self._bounds = bounds
            self.tip = below

    # What a fork would be proven with.

    def nullified(self, epoch: int, view: int) -> bytes | None:
        """Return the NULLIFY certificate that let the chain skip a view, for as long as evidence counts."""
        return self._read(view_key(NULLIFIED, epoch, view))

    def notarized(self, epoch: int, view: int) -> bytes | None:
        """Return the NOTARIZE certificate of a view up to a final one, as far as such are kept."""
        return self._read(view_key(NOTARIZED, epoch, view))

    def nullified_views(self, epoch: int, from_view: int, limit: int | None = None) -> list[ViewCertificate]:
        """Return what ``nullified`` knows of an epoch from a view on, in the order of views."""
        return self._views(NULLIFIED, epoch, from_view, limit)

    def notarized_views(self, epoch: int, from_view: int, limit: int | None = None) -> list[ViewCertificate]:
        """Return what ``notarized`` knows of an epoch from a view on, in the order of views."""
        return self._views(NOTARIZED, epoch, from_view, limit)

    def _views(self, prefix: bytes, epoch: int, from_view: int, limit: int | None) -> list[ViewCertificate]:
        start, stop = view_key(prefix, epoch, from_view), view_key(prefix, epoch + 1, 0)
        with (
            reported(),
            self._db.iterator(start=start, stop=stop, verify_checksums=True, fill_cache=False) as entries,
        ):
            return [ViewCertificate(*view_of_key(key), value) for key, value in islice(entries, limit)]

    def _put_notarized(self, batch: Any, found: Sequence[ViewCertificate], epoch_now: int) -> Span:
        """Keep them within bytes and age, at the cost of the oldest; return what is kept then.

        What goes, goes little by little: neither an epoch that grew too old nor a smaller bound stops a validator.
        """
        (size, epoch, view), limit = self._span, self._options.notarized_bytes_max
        for one in found:
            key = view_key(NOTARIZED, one.epoch, one.view)
            size += len(one.certificate) - len(self._read(key) or b"")
            batch.put(key, one.certificate)
            epoch, view = min((epoch, view), (one.epoch, one.view))
        oldest = max(0, epoch_now - self._evidence_epochs)
        if size > limit or epoch < oldest:
            stop = view_key(NOTARIZED, *(found[0][:2] if found else (epoch_now + 1, 0)))
            count, is_kept = 0, False
            with (
                reported(),
                self._db.iterator(start=view_key(NOTARIZED, epoch, view), stop=stop, fill_cache=False) as entries,
            ):
                for key, value in islice(entries, _NOTARIZED_DROPPED_MAX):
                    at = view_of_key(key)
                    is_kept = size <= limit and at[0] >= oldest
                    if is_kept:
                        epoch, view = at
                        break
                    batch.delete(key)
                    size, epoch, view, count = size - len(value), at[0], at[1] + 1, count + 1
            if not is_kept and count < _NOTARIZED_DROPPED_MAX:
                epoch, view = max((epoch, view), (oldest, 0))
        span = Span(size, epoch, view)
        if span != self._span:
            batch.put(NOTARIZED_SPAN, encode_span(span))
        return span

    @property
    def nullified_max(self) -> int:
        """So many views of an epoch are kept: the faulty can nullify half as many as it has blocks."""
        return max(_NULLIFIED_MIN, 2 * self.epoch_blocks)

    def _put_nullified(self, batch: Any, found: Sequence[ViewCertificate]) -> tuple[int, int] | None:
        """Keep them within the bound, at the cost of the oldest; return the epoch and how many it has."""
        if not found:
            return self._nullified
        epoch = found[0].epoch
        first, stop = view_key(NULLIFIED, epoch, 0), view_key(NULLIFIED, epoch + 1, 0)
        if self._nullified is not None and self._nullified[0] == epoch:
            count = self._nullified[1]
        else:
            count = len(self._nullified_keys(first, stop))
        for one in found:
            assert one.epoch == epoch, "a commit is of one epoch"
            key = view_key(NULLIFIED, epoch, one.view)
            count += self._read(key) is None
            batch.put(key, one.certificate)
        if count > self.nullified_max:
            oldest = self._nullified_keys(
                first, view_key(NULLIFIED, epoch, found[0].view), limit=count - self.nullified_max
            )
            for key in oldest:
                batch.delete(key)
            count -= len(oldest)
        return epoch, count

    def _drop_nullified(self, batch: Any, epoch: int) -> None:
        """Take away what is of an epoch before this one: nothing can be proven with it any more."""
        if epoch > 0:
            for key in self._nullified_keys(NULLIFIED, view_key(NULLIFIED, epoch, 0), limit=_PRUNE_ENTRIES_MAX):
                batch.delete(key)

    def _nullified_keys(self, start: bytes, stop: bytes, *, limit: int | None = None) -> list[bytes]:
        with reported(), self._db.iterator(start=start, stop=stop, include_value=False, fill_cache=False) as keys:
            return list(islice(keys, limit))

    # Epochs.

    def epoch_of(self, height: int) -> int:
        """Return the epoch of a height above the genesis."""
        return (height - 1) // self.epoch_blocks

    def epoch_record(self, epoch: int) -> bytes | None:
        """Return what a light client follows of an epoch (see ``records.decode_epoch``).

        None when the epoch is not over, or is from before the checkpoint at which a restored database began.
        """
        return self._read(height_key(EPOCH, epoch)) if epoch >= 0 else None

    def epoch_records(self, from_epoch: int, *, limit_bytes: int) -> list[bytes]:
        """Return the records of ``from_epoch`` and those after it, as many as the limit holds and at least one."""
        found: list[bytes] = []
        size = 0
        while (record := self.epoch_record(from_epoch + len(found))) is not None:
            size += len(record)
            if found and size > limit_bytes:
                break
            found.append(record)
        return found

    # Earlier heights.

    @property
    def oldest_state(self) -> int:
        """The lowest height whose state can be read."""
        return max(self._bounds.states, self.tip.height - self._history_heights)

    @property
    def oldest_block(self) -> int:
        """The lowest height whose body is kept."""
        return self._bounds.pruned + 1

    @property
    def base(self) -> int:
        """The lowest height whose header is kept: 0, or where a restored database began."""
        return self._bounds.base

    def at(self, height: int) -> StoredReader:
        """Return a reader of the state after block ``height``, unmoved by later commits.

        Raises Pruned below ``oldest_state``, HeightUnknown above the tip.
        """
        snapshot, tip = self._snapshot()
        return StoredReader(snapshot, height, self._undos_above(snapshot, tip, height))

    def prove(self, key: bytes, height: int) -> StateProof:
        """Return the value of ``key`` after block ``height`` with its proof, for the heights that ``at`` reads.

        An earlier height's trie is made by taking back the changes since; its root is then checked against
        the one recorded. That costs some 15 us for each key changed since, once a height.
        """
        with self._proof_lock:
            trie = self._proof_versions.get(height)
            if trie is None:
                trie = self.view(height).trie
                self._proof_versions[height] = trie
                while len(self._proof_versions) > self._options.proof_versions_max:
                    self._proof_versions.popitem(last=False)
        reader = self.at(height)
        with reported():
            return StateProof(height, trie.root, key, reader.get(key), prove(trie, key))

    def view(self, height: int) -> StateView:
        """Return the whole state after block ``height`` with its trie, unmoved by later commits.

        It holds a snapshot of the database, and what changed since in memory: drop it soon. Raises as ``at``.
        """
        with self._write_lock:
            snapshot, tip = self._snapshot()
            late = self.nodes.late_nodes()
        undos = self._undos_above(snapshot, tip, height)
        trie = Trie(tip.state_root, SnapshotNodes(snapshot, late))
        back: dict[bytes, bytes | None] = {}
        for undo in reversed(undos):  # the lowest height's values last: they are the ones of ``height``
            back.update(zip(undo.keys, undo.values, strict=True))
        if undos:
            with reported():
                trie = trie.after(trie.update(back))
            record = self.height(height)
            if record is None or record.state_root != trie.root:
                raise StoreDamaged(f"the state of height {height} has another root than its record")
        return StateView(height, trie, snapshot, back, late)

    def _snapshot(self) -> tuple[Any, Tip]:
        with reported():
            snapshot = self._db.snapshot()
            return snapshot, decode_tip(snapshot.get(TIP))

    def _undos_above(self, snapshot: Any, tip: Tip, height: int) -> list[Undo]:
        """Return the undo records of the heights from ``height + 1`` to the tip."""
        if height > tip.height or height < 0:
            raise HeightUnknown(height, newest=tip.height)
        oldest = max(self._bounds.states, tip.height - self._history_heights)
        if height < oldest:
            raise Pruned(height, oldest=oldest)
        undos = []
        for above in range(height + 1, tip.height + 1):
            undo = self._undos.get(above)
            if undo is None:
                with reported():
                    data = snapshot.get(height_key(UNDO, above), verify_checksums=True)
                if data is None:
                    raise StoreDamaged(f"the undo record of height {above} is absent")
                undo = _at(above, Undo.decode, data)
                self._keep_undo(above, undo)
            undos.append(undo)
        return undos

    def _keep_undo(self, height: int, undo: Undo) -> None:
        with self._undo_lock:
            if height in self._undos:
                return
            self._undos[height] = undo
            self._undo_entries += len(undo.keys) + 1
            while self._undo_entries > self._options.undo_cache_entries and len(self._undos) > 1:
                _, dropped = self._undos.popitem(last=False)
                self._undo_entries -= len(dropped.keys) + 1

    # Blocks.

    def height(self, height: int) -> Tip | None:
        """Return the record of a finalised height (its header among it); None above the tip or below ``base``."""
        record = self._read(height_key(HEIGHT, height)) if height >= 0 else None
        return None if record is None else _at(height, decode_tip, record)

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block, or None for an unknown hash."""
        if block_hash == self.genesis_hash:
            return 0
        data = self._read(BLOCK_HASH + block_hash)
        return None if data is None else int.from_bytes(data, "big")

    def block(self, height: int) -> bytes | None:
        """Return the block's bytes as received; None above the tip and at the genesis. Raises Pruned."""
        return self._read_kept(BLOCK, height)

    def receipts(self, height: int) -> tuple[tuple[bytes, ...], bytes | None] | None:
        """Return the block's receipts and that of its hooks, encoded; None as for ``block``. Raises Pruned."""
        data = self._read_kept(RECEIPTS, height)
        return None if data is None else _at(height, decode_receipts, data)

    def certificate(self, height: int) -> bytes | None:
        """Return the FINAL certificate that finalised the block.

        None above the tip, at the genesis and below ``oldest_block``; that of a boundary is in its epoch's record.
        """
        return self._read(height_key(CERTIFICATE, height)) if height > 0 else None

    def transaction_place(self, transaction_hash: bytes) -> Place | None:
        """Return where a finalised transaction stands, or None."""
        data = self._read(TRANSACTION + transaction_hash)
        return None if data is None else decode_place(data)

    def history(self, address: bytes, *, before: Place | None = None, limit: int) -> list[Place]:
        """Return up to ``limit`` places of what touched ``address``, newest first, below the place ``before``.

        The place behind the transactions of a block is that of what the block did by itself. Empty when the node
        does not index addresses.
        """
        prefix = ADDRESS + address
        stop = prefix + (encode_place(*before) if before else b"\xff" * 12)
        found: list[Place] = []
        with reported(), self._db.iterator(start=prefix, stop=stop, reverse=True, include_value=False) as keys:
            for key in keys:
                if len(found) >= min(limit, _HISTORY_PAGE_MAX):
                    break
                found.append(decode_place(key[len(prefix) :]))
        return found

    def _read(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key, verify_checksums=True)
        except _LIBRARY_ERRORS as error:
            raise typed(error) from None
        return found

    def _read_kept(self, prefix: bytes, height: int) -> bytes | None:
        if height <= 0:
            return None
        data = self._read(height_key(prefix, height))
        if data is not None:
            return data
        if height < self.oldest_block:
            raise Pruned(height, oldest=self.oldest_block)
        if height > self.tip.height:
            return None
        # A commit that is writing takes away what it prunes before it says so: wait for its word.
        with self._write_lock:
            if height < self.oldest_block:
                raise Pruned(height, oldest=self.oldest_block)
            data = self._read(height_key(prefix, height))
            if data is None:
                raise StoreDamaged(f"block {height} is absent")
            return data

    # Checking.

    def verify(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Recompute the root from the flat state, check each trie node, and return the number of keys.

        For an operator who doubts a disk: reads everything, in passes of a bounded number of keys. ``progress``
        is called with the number of entries read and in all. Raises StoreDamaged.
        """
        view = self.view(self.tip.height)
        with reported():
            count = view.trie.count
            nibbles = 0
            while count >> 4 * nibbles > _VERIFY_ENTRIES_MAX:
                nibbles += 1
            for number in range(16**nibbles):
                part = b"%0*x" % (nibbles, number) if nibbles else b""
                view.verify_part(part, lambda read, number=number: (  # type: ignore[misc]
                    progress(number * count + read, 16**nibbles * count) if progress else None
                ))  # fmt: skip
        return count

    def sizes(self) -> dict[str, int]:
        """Return how many bytes each table takes on the disk, about."""
        with reported():
            return {
                name: self._db.approximate_size(prefix, bytes([prefix[0] + 1])) for prefix, name in TABLES.items()
            }


class StateView:
    """The whole state after one height and its trie: see ``Store.view``."""

    __slots__ = ("_back", "_late", "_snapshot", "height", "trie")

    def __init__(
        self,
        height: int,
        trie: Trie,
        snapshot: Any,
        back: Mapping[bytes, bytes | None],
        late: Mapping[bytes, bytes | None],
    ) -> None:
        self.height = height
        self.trie = trie
        self._snapshot = snapshot
        self._back = back
        self._late = late

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key with its value, in no order to rely on."""
        back = self._back
        with reported():
            for key, value in _entries(self._snapshot, STATE):
                if key not in back:
                    yield key, value
        for key, earlier in back.items():
            if earlier is not None:
                yield key, earlier

    def verify_part(self, part: bytes, progress: Callable[[int], object]) -> None:
        """Check the newest state's keys whose place begins with the nibbles ``part``. Raises StoreDamaged."""
        assert not self._back, "an earlier height's trie was made from the newest one's"
        start = bytes.fromhex(part.decode().ljust(2 * HASH_BYTES, "0"))
        after = int.from_bytes(start, "big") + (1 << 4 * (2 * HASH_BYTES - len(part)))
        stop = after.to_bytes(HASH_BYTES + 1, "big")[1:] if after < 1 << 8 * HASH_BYTES else None
        entries: list[bytes] = []
        for number, (key, value) in enumerate(self.entries()):
            entry = entry_of(key, value)
            if entry >= start and (stop is None or entry < stop):
                entries.append(entry)
            if number % _PROGRESS_ENTRIES == 0:
                progress(number)
        entries.sort()
        try:
            left = verify_range(self.trie.root, start, stop, entries, prove_range(self.trie, start, stop))
        except RangeInvalid as error:
            raise StoreDamaged(
                f"height {self.height}: the state is not that of root {self.trie.root.hex()}: {error}"
            ) from None
        left = {path: node for path, node in left.items() if path.startswith(part)}
        for path, node in self._stored_nodes(part):
            if left.pop(path, None) != node:
                raise StoreDamaged(f"the trie's node at '{path.decode(errors='replace')}' is not the state's")
        if left:
            raise StoreDamaged(f"{len(left)} nodes of the trie are absent, '{min(left).decode()}' among them")

    def _stored_nodes(self, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        with reported():
            for path, node in _entries(self._snapshot, NODE, part):
                if path not in self._late:
                    yield path, node
        for path, late in self._late.items():
            if late is not None and path.startswith(part):
                yield path, late


class StoredReader:
    """The state after one height: a state.view.Reader that keeps its view until it is dropped."""

    __slots__ = ("_snapshot", "_undos", "height")

    def __init__(self, snapshot: Any, height: int, undos: list[Undo]) -> None:
        self._snapshot = snapshot
        self._undos = undos
        self.height = height

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` at this height, or None."""
        for undo in self._undos:  # from the next height upwards: the first that changed the key knows
            found = undo.find(key)
            if found:
                return found[0]
        try:
            value: bytes | None = self._snapshot.get(STATE + key, verify_checksums=True)
        except _LIBRARY_ERRORS as error:
            raise typed(error) from None
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of this height with ``start <= key < stop``, in order."""
        earlier: dict[bytes, bytes | None] = {}
        for undo in reversed(self._undos):
            earlier.update(undo.between(start, stop))
        merged = dict(_scan(self._snapshot, start, stop, limit + len(earlier)))
        for key, value in earlier.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        return sorted(merged.items())[:limit]


def _at(height: int, decoder: Callable[[bytes], _T], record: bytes) -> _T:
    """Decode a record; damage is named by its height."""
    try:
        return decoder(record)
    except StoreDamaged as error:
        raise StoreDamaged(f"height {height}: {error}") from None


def _put_nodes(batch: Any, nodes: Mapping[bytes, bytes | None]) -> None:
    put, delete = batch.put, batch.delete
    for path, node in nodes.items():
        if node is None:
            delete(NODE + path)
        else:
            put(NODE + path, node)


def _create(
    db: Any, genesis: Genesis, chain: ChainParameters, chain_hash: bytes, changes: Mapping[bytes, bytes | None]
) -> Tip:
    """Write the genesis state; only the last write, of the tip, makes it count."""
    with db.iterator(include_value=False) as keys:  # what an interrupted creation has left
        for chunk in _chunks(key for key in keys if key != FORMAT):
            with db.write_batch() as batch:
                for key in chunk:
                    batch.delete(key)
    update = Trie().update({key: value for key, value in changes.items() if value is not None})
    for prefix, entries in ((STATE, changes), (NODE, update.nodes)):
        for chunk in _chunks(iter(entries)):
            with db.write_batch() as batch:
                for key in chunk:
                    value = entries[key]
                    if value is not None:
                        batch.put(prefix + key, value)
    tip = Tip(0, chain_hash, update.root, ZERO_HASH, chain.base_fee_initial, genesis.time_ms, b"")
    record = encode_tip(tip)
    with db.write_batch(sync=True) as batch:
        batch.put(height_key(HEIGHT, 0), record)
        batch.put(FLUSHED, encode_flushed(dict.fromkeys(PARTS, 0)))
        batch.put(BOUNDS, encode_bounds(Bounds()))
        batch.put(TIP, record)
    return tip


def _chunks(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    chunk = []
    for key in keys:
        chunk.append(key)
        if len(chunk) == _CHUNK_ENTRIES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _scan(source: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    if limit <= 0 or start >= stop:
        return []
    found = []
    with (
        reported(),
        source.iterator(
            start=STATE + start, stop=STATE + stop, verify_checksums=True, fill_cache=False
        ) as entries,
    ):
        for key, value in entries:
            found.append((key[1:], value))
            if len(found) == limit:
                break
    return found


def _entries(source: Any, prefix: bytes, part: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    with source.iterator(prefix=prefix + part, verify_checksums=True, fill_cache=False) as entries:
        for key, value in entries:
            yield key[1:], value
