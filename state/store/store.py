"""The finalised chain on disk: one synced LevelDB batch a block, so that a crash leaves a whole height.

Only ``commit`` writes. Everything else may be called from any thread at any time, also while a commit runs:
each read sees the state before it or after it, never a mixture.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import plyvel

from state.primitives.genesis import ChainParameters, Genesis, genesis_hash, read_parameters
from state.primitives.hashing import ZERO_HASH
from state.store.blocks import delete_block, put_block, stale_entries
from state.store.cache import Cache
from state.store.database import check_format, open_database
from state.store.errors import HeightUnknown, Pruned, StoreDamaged
from state.store.first_height import chunks, create
from state.store.library_errors import reported, typed
from state.store.nodes import SnapshotNodes, StoredNodes, decode_flushed, put_nodes
from state.store.options import StoreOptions
from state.store.readers import StateView, StoredReader, scan_state
from state.store.records import (
    ADDRESS,
    BLOCK,
    BLOCK_HASH,
    BOUNDS,
    CERTIFICATE,
    EPOCH,
    FLUSHED,
    HEIGHT,
    INDEX,
    NODE,
    RECEIPTS,
    RESTORING,
    STATE,
    TABLES,
    TIP,
    TRANSACTION,
    UNDO,
    Bounds,
    FinalisedBlock,
    Tip,
    TransactionPosition,
    Undo,
    decode_bounds,
    decode_position,
    decode_receipts,
    decode_tip,
    encode_bounds,
    encode_epoch,
    encode_position,
    encode_tip,
    height_key,
    named,
)
from state.store.undo import Undos, read_undo
from state.store.views import StoredViews
from state.trie import Trie, entry_of, prove
from state.trie.trie import key_hash, node_hash

__all__ = ["StateProof", "Store"]

_LIBRARY_ERRORS: Final = (plyvel.Error, RuntimeError)
_HISTORY_PAGE_MAX: Final = 1_000
_PRUNE_HEIGHTS_MAX: Final = 8
"""Maximum number of blocks that one commit deletes; a smaller profile takes effect gradually."""
_PRUNE_ENTRIES_MAX: Final = 20_000
_VERIFY_ENTRIES_MAX: Final = 1 << 20
"""Keys that a verification has in memory at once, some 200 bytes each; more are checked in several passes."""


class StateProof(NamedTuple):
    """The value of ``key`` at ``height``, proven against ``root``, the state root in header ``height + 1``."""

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
        self.views = StoredViews(
            db,
            epoch_blocks=chain.epoch_blocks,
            evidence_epochs=chain.evidence_epochs,
            notarized_bytes_max=options.notarized_bytes_max,
        )
        """Certificates of views, as evidence of forks."""
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
        self._undos = Undos(options.undo_cache_entries)
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
        """Like ``open`` with an open database, or a substitute for one.

        Used methods: ``get``, ``put``, ``iterator``, ``snapshot``, ``write_batch``, ``close`` and ``closed``;
        maintenance commands also use ``approximate_size`` and ``compact_range``.
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
            return create(db, genesis, chain, chain_hash, changes())
        tip = decode_tip(raw_tip)
        top: bytes | None = db.get(NODE, verify_checksums=True)
        if (ZERO_HASH if top is None else node_hash(top)) != tip.state_root:
            raise StoreDamaged(f"the trie's root is not that of height {tip.height}")
        if db.get(height_key(HEIGHT, tip.height), verify_checksums=True) != raw_tip:
            raise StoreDamaged(f"the record of height {tip.height} is not the tip's")
        return tip

    def _catch_up(self) -> None:
        def changed_keys(height: int) -> list[bytes]:
            return read_undo(self._db, height).keys

        def entry(key: bytes) -> bytes:
            value = self._read(STATE + key)
            return key_hash(key) if value is None else entry_of(key, value)

        self.nodes.catch_up(self.tip.height, changed_keys, key_hash, entry)

    def close(self) -> None:
        """Write all late nodes and close the files; later reads raise StoreClosed."""
        if self._db.closed:
            return
        flush = self.nodes.plan_all({})
        if flush.writes:
            batch = self._db.write_batch(sync=True)
            put_nodes(batch, flush.writes)
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
        return scan_state(self._db, start, stop, limit)

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
        put_nodes(batch, flush.writes)
        put(FLUSHED, self.nodes.flushed_after(flush, height))
        at_height = height.to_bytes(8, "big")
        put_block(batch, block, index_addresses=self._options.index_addresses)
        if block.next_committee is not None:
            epoch = self.epoch_of(height)
            put(height_key(EPOCH, epoch), encode_epoch(tip.header, block.certificate, block.next_committee))
        is_last = block.next_committee is not None
        views = self.views.plan(batch, block.views, self.epoch_of(height), is_last=is_last)
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
            self._undos.keep(height, undo)
            self.tip = tip
            self._bounds = bounds
            self.views.written(views)
        for stale in [kept for kept in tuple(self._proof_versions) if kept < self.oldest_state]:
            self._proof_versions.pop(stale, None)

    def _prune_some(self, batch: Any, height: int) -> Bounds:
        """Delete a bounded number of the oldest blocks that the options do not keep at ``height``."""
        kept, bounds = self._options.block_heights, self._bounds
        stop = min(height - kept if kept else 0, bounds.pruned + _PRUNE_HEIGHTS_MAX)
        gone, entries = bounds.pruned, 0
        while gone < stop and entries < _PRUNE_ENTRIES_MAX:
            gone += 1
            entries += delete_block(batch, self._db, gone)
        if gone == bounds.pruned:
            return bounds
        bounds = bounds._replace(pruned=gone)
        batch.put(BOUNDS, encode_bounds(bounds))
        return bounds

    def prune(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Delete everything that the options do not keep and compact the files; return the number of blocks.

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
        with reported():
            for chunk in chunks(stale_entries(self._db, self._bounds.pruned)):
                with self._db.write_batch(sync=True) as batch:
                    for key in chunk:
                        batch.delete(key)
            self._db.compact_range()
        return max(0, stop - first)

    def rollback(self, height: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Roll back the blocks above ``height``, the newest first; each step leaves a consistent database.

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
        """Roll back the newest block. Undo records below ``states`` are deleted already."""
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
        put_nodes(batch, flush.writes)
        batch.put(FLUSHED, self.nodes.flushed_after(flush, below.height))
        delete_block(batch, self._db, gone.height)
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
            self._undos.forget(gone.height)
            self._proof_versions.clear()
            self._bounds = bounds
            self.tip = below

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
        return [self._undos.load(snapshot, above) for above in range(height + 1, tip.height + 1)]

    # Blocks.

    def height(self, height: int) -> Tip | None:
        """Return the record of a finalised height (its header among it); None above the tip or below ``base``."""
        record = self._read(height_key(HEIGHT, height)) if height >= 0 else None
        return None if record is None else named(height, decode_tip, record)

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
        return None if data is None else named(height, decode_receipts, data)

    def certificate(self, height: int) -> bytes | None:
        """Return the FINAL certificate that finalised the block.

        None above the tip, at the genesis and below ``oldest_block``; that of a boundary is in its epoch's record.
        """
        return self._read(height_key(CERTIFICATE, height)) if height > 0 else None

    def transaction_position(self, transaction_hash: bytes) -> TransactionPosition | None:
        """Return the position of a finalised transaction, or None."""
        data = self._read(TRANSACTION + transaction_hash)
        return None if data is None else decode_position(data)

    def history(
        self, address: bytes, *, before: TransactionPosition | None = None, limit: int
    ) -> list[TransactionPosition]:
        """Return up to ``limit`` positions in the history of ``address``, newest first, below ``before``.

        The position after a block's transactions stands for the changes of the block itself. Empty if the node
        does not index addresses.
        """
        prefix = ADDRESS + address
        stop = prefix + (encode_position(*before) if before else b"\xff" * 12)
        found: list[TransactionPosition] = []
        with reported(), self._db.iterator(start=prefix, stop=stop, reverse=True, include_value=False) as keys:
            for key in keys:
                if len(found) >= min(limit, _HISTORY_PAGE_MAX):
                    break
                found.append(decode_position(key[len(prefix) :]))
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

        Reads the whole database, in passes of a bounded number of keys. ``progress``
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
        """Return the approximate size of each table in bytes."""
        with reported():
            return {
                name: self._db.approximate_size(prefix, bytes([prefix[0] + 1])) for prefix, name in TABLES.items()
            }
