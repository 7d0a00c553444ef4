"""The finalised chain on disk: one synced LevelDB batch a block, so that a crash leaves a whole height.

Only ``commit`` writes. Everything else may be called from any thread at any time, also while a commit runs:
each read sees the state before it or after it, never a mixture.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import plyvel

from state.primitives.genesis import ChainParameters, Genesis, genesis_hash, read_parameters
from state.primitives.hashing import ZERO_HASH
from state.store.cache import Cache
from state.store.errors import (
    HeightUnknown,
    Pruned,
    StoreDamaged,
    StoreIncompatible,
    StoreOfAnotherChain,
    StoreUnavailable,
    reported,
    typed,
)
from state.store.nodes import PARTS, SnapshotNodes, StoredNodes, decode_flushed, encode_flushed
from state.store.records import (
    ADDRESS,
    BLOCK,
    BLOCK_HASH,
    CERTIFICATE,
    FLUSHED,
    FORMAT,
    FORMAT_VERSION,
    HEIGHT,
    NODE,
    RECEIPTS,
    STATE,
    TIP,
    TRANSACTION,
    UNDO,
    FinalisedBlock,
    Place,
    Tip,
    Undo,
    decode_place,
    decode_receipts,
    decode_tip,
    encode_place,
    encode_receipts,
    encode_tip,
    height_key,
)
from state.trie import Trie, entry_of, prove
from state.trie.trie import key_hash, node_hash

__all__ = ["StateProof", "Store", "StoreOptions", "StoredReader"]

_LIBRARY_ERRORS: Final = (plyvel.Error, RuntimeError)
_CHUNK_ENTRIES: Final = 50_000
_HISTORY_PAGE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What one node chooses for its own database; nothing here changes any root."""

    block_heights: int = 0
    """Bodies and receipts are kept for this many heights; 0 keeps all. Headers and certificates always stay."""
    index_addresses: bool = True
    """Keep the history of each address."""
    value_cache_entries: int = 400_000
    node_cache_entries: int = 160_000
    node_period_blocks: int = 64
    """A changed trie node is written at most so many blocks late; after a crash it is made again."""
    late_nodes_max: int = 150_000
    """With more trie nodes to write than that, they are written faster."""
    undo_cache_entries: int = 200_000
    proof_versions_max: int = 4
    """How many earlier heights whose trie a proof needed are kept at hand."""
    write_buffer_bytes: int = 64 * 1024 * 1024
    block_cache_bytes: int = 32 * 1024 * 1024
    open_files_max: int = 512


class StateProof(NamedTuple):
    """What ``key`` has at ``height`` with its proof against ``root``, the state root in header ``height + 1``."""

    height: int
    root: bytes
    key: bytes
    value: bytes | None
    proof: bytes


class Store:
    """An open database of one chain. Raises nothing but StoreError, of the kinds in ``state.store.errors``."""

    def __init__(self, db: Any, tip: Tip, history_heights: int, options: StoreOptions, chain_hash: bytes) -> None:
        """Use ``Store.open``."""
        self._db = db
        self._options = options
        self._history_heights = history_heights
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
        chain = read_parameters(ChainParameters, "chain", genesis)
        chain_hash = genesis_hash(genesis)
        try:
            path.mkdir(parents=True, exist_ok=True)
            names = os.listdir(path)
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}") from None
        if "CURRENT" not in names and any(name.endswith((".ldb", ".log")) for name in names):
            raise StoreDamaged(f"{path}: the file CURRENT is lost; restore the directory or remove all of it")
        with reported():
            db = plyvel.DB(
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
        try:
            with reported():
                tip = cls._check_or_create(db, genesis, chain, chain_hash, changes)
                store = cls(db, tip, chain.history_heights, options, chain_hash)
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
        form = db.get(FORMAT)
        raw_tip = db.get(TIP)
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
        if raw_tip is None:
            return _create(db, genesis, chain, chain_hash, changes())
        tip = decode_tip(raw_tip)
        top = db.get(NODE, verify_checksums=True)
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
            return Undo.decode(data).keys

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
        put(BLOCK + at_height, block.block)
        put(RECEIPTS + at_height, encode_receipts(block.receipts, block.block_receipt))
        put(CERTIFICATE + at_height, block.certificate)
        put(BLOCK_HASH + tip.block_hash, at_height)
        undo = Undo(list(state), old_values)
        put(UNDO + at_height, undo.encode())
        record = encode_tip(tip)
        put(HEIGHT + at_height, record)
        put(TIP, record)
        if height > self._history_heights:
            delete(height_key(UNDO, height - self._history_heights))
        if 0 < self._options.block_heights < height:
            delete(height_key(BLOCK, height - self._options.block_heights))
            delete(height_key(RECEIPTS, height - self._options.block_heights))
        with self._write_lock:
            try:
                batch.write()
            except _LIBRARY_ERRORS as error:
                raise typed(error) from None
            self._values.replace(state)
            self.nodes.written(block.nodes, flush, height)
            self._keep_undo(height, undo)
            self.tip = tip
        for stale in [kept for kept in tuple(self._proof_versions) if kept < self.oldest_state]:
            self._proof_versions.pop(stale, None)

    # Earlier heights.

    @property
    def oldest_state(self) -> int:
        """The lowest height whose state can be read."""
        return max(0, self.tip.height - self._history_heights)

    @property
    def oldest_block(self) -> int:
        """The lowest height whose body is kept."""
        kept = self._options.block_heights
        return max(1, self.tip.height - kept + 1) if kept else 1

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
                trie = self._trie_at(height)
                self._proof_versions[height] = trie
                while len(self._proof_versions) > self._options.proof_versions_max:
                    self._proof_versions.popitem(last=False)
        reader = self.at(height)
        with reported():
            return StateProof(height, trie.root, key, reader.get(key), prove(trie, key))

    def _trie_at(self, height: int) -> Trie:
        with self._write_lock:
            snapshot, tip = self._snapshot()
            late = self.nodes.late_nodes()
        undos = self._undos_above(snapshot, tip, height)
        trie = Trie(tip.state_root, SnapshotNodes(snapshot, late))
        if not undos:
            return trie
        back: dict[bytes, bytes | None] = {}
        for undo in reversed(undos):  # the lowest height's values last: they are the ones of ``height``
            back.update(zip(undo.keys, undo.values, strict=True))
        with reported():
            trie = trie.after(trie.update(back))
        record = self.height(height)
        if record is None or record.state_root != trie.root:
            raise StoreDamaged(f"the state of height {height} has another root than its record")
        return trie

    def _snapshot(self) -> tuple[Any, Tip]:
        with reported():
            snapshot = self._db.snapshot()
            return snapshot, decode_tip(snapshot.get(TIP))

    def _undos_above(self, snapshot: Any, tip: Tip, height: int) -> list[Undo]:
        """Return the undo records of the heights from ``height + 1`` to the tip."""
        if height > tip.height or height < 0:
            raise HeightUnknown(height, newest=tip.height)
        oldest = max(0, tip.height - self._history_heights)
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
                undo = Undo.decode(data)
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
        """Return the record of a finalised height (its header among it), or None above the tip."""
        record = self._read(height_key(HEIGHT, height)) if height >= 0 else None
        return None if record is None else decode_tip(record)

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
        return None if data is None else decode_receipts(data)

    def certificate(self, height: int) -> bytes | None:
        """Return the FINAL certificate that finalised the block, or None above the tip and at the genesis."""
        return self._read(height_key(CERTIFICATE, height)) if height > 0 else None

    def transaction_place(self, transaction_hash: bytes) -> Place | None:
        """Return where a finalised transaction stands, or None."""
        data = self._read(TRANSACTION + transaction_hash)
        return None if data is None else decode_place(data)

    def history(self, address: bytes, *, before: Place | None = None, limit: int) -> list[Place]:
        """Return up to ``limit`` transactions of ``address``, newest first, below the place ``before``.

        Empty when the node does not index addresses.
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
        if data is None and height < self.oldest_block:
            raise Pruned(height, oldest=self.oldest_block)
        if data is None and height <= self.tip.height:
            raise StoreDamaged(f"block {height} is absent")
        return data

    # Checking.

    def verify(self, progress: Callable[[int], None] | None = None) -> int:
        """Recompute the root from the flat state, check each trie node, and return the number of keys.

        For an operator who doubts a disk: reads everything; takes some 200 bytes of memory for each key.
        ``progress`` is called with the number of entries read. Raises StoreDamaged.
        """
        with self._write_lock:
            snapshot, tip = self._snapshot()
            late = self.nodes.late_nodes()
        entries: list[bytes] = []
        with reported():
            for key, value in _entries(snapshot, STATE):
                entries.append(entry_of(key, value))
                if progress and len(entries) % _CHUNK_ENTRIES == 0:
                    progress(len(entries))
            fresh = Trie().update_entries(sorted(entries))
            if fresh.root != tip.state_root:
                raise StoreDamaged(
                    f"height {tip.height} has root {tip.state_root.hex()}, its state {fresh.root.hex()}"
                )
            left = fresh.nodes
            for path, node in _entries(snapshot, NODE):
                if path not in late:
                    late[path] = node
            for path, late_node in late.items():
                if left.pop(path, None) != late_node:
                    raise StoreDamaged(f"the trie's node at '{path.decode(errors='replace')}' is not the state's")
            if left:
                raise StoreDamaged(f"{len(left)} nodes of the trie are absent")
        return len(entries)


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


def _entries(source: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    with source.iterator(prefix=prefix, verify_checksums=True, fill_cache=False) as entries:
        for key, value in entries:
            yield key[1:], value
