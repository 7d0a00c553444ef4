"""Keeps this node's own users' transactions across a restart.

Peers' transactions are not kept: the peers have them. The node's own transactions are not kept either: it signs
them again. New transactions are appended to a log twice a second, so a killed node loses less than one second of
them. Once a minute and at the end, a complete file replaces the log.

Both are checked like new transactions when they are read. A damaged file is set aside. Of a log that ends early,
for example after a power failure, the readable beginning is used.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.home.files import write_whole
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.transactions import Transaction, decode_transaction

__all__ = [
    "LocalTransaction",
    "LocalTransactions",
    "decode_local_transactions",
    "decode_log",
    "encode_local_transactions",
    "encode_log_part",
]

_log = structlog.get_logger("mempool")

KEPT_MAX: Final = 10_000
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
FILE_LIMIT_BYTES: Final = KEPT_BYTES_MAX + 32 * KEPT_MAX
APPEND_S: Final = 0.5
"""Transactions of this interval are lost when the node is killed."""
SAVE_S: Final = 60.0
"""Interval of writing and syncing the whole file. Transactions since then may be lost in a power failure."""
SAVE_S_MIN: Final = 5.0
"""Minimum interval, except when the log is full. Transactions removed by hand leave the file then."""
LOG_ITEMS_MAX: Final = 50_000
LOG_LIMIT_BYTES: Final = KEPT_BYTES_MAX + 64 * LOG_ITEMS_MAX
RECOVERED_AT_ONCE: Final = 256
HEARD_S: Final = 5.0
"""A new peer has sent its subscriptions within this time."""
HEIGHT_LIMIT: Final = 2**63
_KIND: Final = b"kept-mempool"
_PART_HEAD: Final = struct.Struct(">I")


class LocalTransaction(NamedTuple):
    """A transaction and the height at which it arrived."""

    since: int
    raw: bytes


Recover = Callable[[bytes], Awaitable[bytes]]
"""Returns the addresses of a batch of digests and signatures, 20 bytes for each."""


def encode_local_transactions(chain_hash: bytes, items: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the file content for ``items`` of a chain: checksum, kind, chain and items."""
    body = encode([chain_hash, [list(item) for item in items]])
    return digest(_KIND, body) + body


def decode_local_transactions(data: bytes, chain_hash: bytes) -> list[LocalTransaction]:
    """Return the file's transactions, unchecked. Raises DecodeError, also for another chain's file."""
    if len(data) > FILE_LIMIT_BYTES:
        raise DecodeError(f"more than {FILE_LIMIT_BYTES} bytes")
    body = data[HASH_BYTES:]
    if digest(_KIND, body) != data[:HASH_BYTES]:
        raise DecodeError("the checksum does not match")
    match decode(body, limit_bytes=FILE_LIMIT_BYTES):
        case [bytes(chain), list(items)] if len(items) <= KEPT_MAX and all(map(_is_item, items)):
            if chain != chain_hash:
                raise DecodeError("the file is of another chain")
            return [LocalTransaction(since, raw) for since, raw in items]
        case _:
            raise DecodeError("not a file of waiting transactions")


def encode_log_part(chain_hash: bytes, items: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes that append ``items`` to the log."""
    part = encode_local_transactions(chain_hash, items)
    return _PART_HEAD.pack(len(part)) + part


def decode_log(data: bytes, chain_hash: bytes) -> tuple[list[LocalTransaction], int]:
    """Return the readable beginning of the log, unchecked, and its length in bytes."""
    found: list[LocalTransaction] = []
    at = 0
    while len(found) <= LOG_ITEMS_MAX - KEPT_MAX and at + _PART_HEAD.size <= len(data) <= LOG_LIMIT_BYTES:
        begin = at + _PART_HEAD.size
        end = begin + _PART_HEAD.unpack_from(data, at)[0]
        if end > len(data):
            break
        try:
            found += decode_local_transactions(data[begin:end], chain_hash)
        except DecodeError:
            break
        at = end
    return found, at


def _is_item(item: Any) -> bool:
    match item:
        case [int(since), bytes()]:
            return 0 <= since < HEIGHT_LIMIT
        case _:
            return False


class LocalTransactions:
    """Keeps the file at ``path`` and restores its transactions to the mempool of ``ledger``.

    ``wait_peers`` returns when a peer is connected that can receive them.
    """

    def __init__(
        self, ledger: NodeLedger, path: Path, *, recover: Recover, wait_peers: Callable[[], Awaitable[None]]
    ) -> None:
        self._ledger = ledger
        self._path = path
        self._recover = recover
        self._wait_peers = wait_peers
        self._log_path = path.with_name(path.name + ".log")
        self._saved: list[tuple[int, bytes]] | None = None
        """Content of the file. None before it was read, or if it is incomplete."""
        self._new: list[tuple[int, bytes]] = []
        """Transactions that are not in the log yet."""
        self._new_bytes = 0
        self._log_items = 0
        self._log_bytes = 0
        self._is_short = False
        """The log lacks a waiting transaction. Only the whole file will contain it."""
        self._is_failing = False
        self._removed = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Restore the kept transactions, then keep new ones until cancelled. A disk failure does not end it."""
        returned = await self._restore()
        self._ledger.mempool.on_local = self._note
        self._removed = self._ledger.mempool.local_removed
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, returned)
                # A log that cannot go on is replaced at once.
                saved_s = trio.current_time() - (SAVE_S if self._is_short else 0.0)
                while True:
                    await trio.sleep(APPEND_S)
                    if self._is_due(trio.current_time() - saved_s):
                        saved_s = trio.current_time()
                        items = self._snapshot()
                        if items != self._saved or self._log_bytes:
                            await trio.to_thread.run_sync(self._save, items)
                    elif self._new and not self._is_short:
                        await trio.to_thread.run_sync(self._append, self._taken())
        finally:
            self._ledger.mempool.on_local = None
            items = self._waiting()
            if items != self._saved or self._log_bytes:
                self._save(items)

    def _note(self, since: int, raw: bytes) -> None:
        """Queue a new local transaction for the log."""
        self._new.append((since, raw))
        self._new_bytes += len(raw)
        if len(self._new) > KEPT_MAX or self._new_bytes > KEPT_BYTES_MAX:  # the disk is too slow
            self._taken()
            self._is_short = True

    def _taken(self) -> list[tuple[int, bytes]]:
        items, self._new, self._new_bytes = self._new, [], 0
        return items

    def _is_due(self, since_s: float) -> bool:
        """Return whether to write the whole file; the last one was written ``since_s`` ago."""
        if since_s >= SAVE_S:
            return True
        if self._is_short:
            return since_s >= SAVE_S_MIN and not self._is_failing
        if self._log_items + len(self._new) > LOG_ITEMS_MAX - KEPT_MAX:
            return True
        if self._log_bytes + self._new_bytes > KEPT_BYTES_MAX:
            return True
        return since_s >= SAVE_S_MIN and self._removed != self._ledger.mempool.local_removed

    def _snapshot(self) -> list[tuple[int, bytes]]:
        """Return the content of the whole file. The log is not needed after it is written."""
        self._taken()
        self._is_short = False
        self._removed = self._ledger.mempool.local_removed
        return self._waiting()

    def _waiting(self) -> list[tuple[int, bytes]]:
        return self._ledger.mempool.local(transactions_max=KEPT_MAX, bytes_max=KEPT_BYTES_MAX)

    async def _restore(self) -> list[bytes]:
        """Restore the kept transactions; return their bytes."""
        kept = list({item.raw: item for item in (*self._read(), *self._read_log())}.values())
        transactions: list[tuple[int, Transaction]] = []
        for item in kept:
            try:
                transactions.append((item.since, decode_transaction(item.raw)))
            except DecodeError:
                continue  # of a release that knew more forms
        for first in range(0, len(transactions), RECOVERED_AT_ONCE):
            part = [transaction for _, transaction in transactions[first : first + RECOVERED_AT_ONCE]]
            found = await self._recover(b"".join([each.digest + each.signature for each in part]))
            for at, transaction in enumerate(part):
                transaction.sender = found[20 * at : 20 * at + 20]
        # A replacement has taken the place of another's arrival, and what waits behind it came before.
        transactions.sort(key=lambda item: item[1].nonce)
        returned = []
        for since, transaction in transactions:
            try:
                self._ledger.readmit(transaction, since)
            except InvalidTransaction:
                continue  # final since, or no longer payable
            returned.append(transaction.raw)
        if kept:
            _log.info(
                "transactions kept across the restart", waiting=len(returned), gone=len(kept) - len(returned)
            )
        return returned

    async def _pass_on(self, raws: list[bytes]) -> None:
        """Send restored transactions to peers: some may have restarted, others never received them."""
        if raws:
            await self._wait_peers()
            await trio.sleep(HEARD_S)
            for raw in raws:
                if self._ledger.mempool.find(raw) is not None:
                    self._ledger.on_admitted(raw)

    # The file

    def _read(self) -> list[LocalTransaction]:
        try:
            with self._path.open("rb") as file:
                kept = decode_local_transactions(
                    file.read(FILE_LIMIT_BYTES + 1), self._ledger.runtime.genesis_hash
                )
        except FileNotFoundError:
            self._saved = []
            return []
        except OSError as error:
            _log.warning(
                "the file of waiting transactions cannot be read; it is skipped",
                path=str(self._path),
                error=str(error),
            )
            return []
        except DecodeError as error:
            self._set_aside(error)
            return []
        self._saved = [(item.since, item.raw) for item in kept]
        return kept

    def _set_aside(self, error: DecodeError) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        try:
            os.replace(self._path, aside)
        except OSError as refusal:
            _log.warning(
                "the damaged file of waiting transactions cannot be renamed",
                path=str(self._path),
                error=str(refusal),
            )
        _log.warning(
            "the file of waiting transactions is damaged; it was renamed and its transactions are lost",
            path=str(aside),
            error=str(error),
        )

    def _read_log(self) -> list[LocalTransaction]:
        try:
            with self._log_path.open("rb") as file:
                data = file.read(LOG_LIMIT_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning(
                "the log of waiting transactions cannot be read; it is skipped",
                path=str(self._log_path),
                error=str(error),
            )
            self._is_short = True
            return []
        found, read_bytes = decode_log(data, self._ledger.runtime.genesis_hash)
        if read_bytes < len(data):
            cut = len(data) - read_bytes
            _log.warning(
                "the log of waiting transactions is incomplete; the readable part is used",
                path=str(self._log_path),
                cut_bytes=cut,
            )
            self._is_short = True  # behind what cannot be read nothing may stand
        self._log_bytes, self._log_items = len(data), len(found)
        return found

    def _append(self, items: list[tuple[int, bytes]]) -> None:
        part = encode_log_part(self._ledger.runtime.genesis_hash, items)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(handle, part)
            finally:
                os.close(handle)
        except OSError as error:
            self._fail(error)
            return
        self._log_bytes += written
        self._log_items += len(items)
        self._is_short = written < len(part)

    def _save(self, items: list[tuple[int, bytes]]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path, encode_local_transactions(self._ledger.runtime.genesis_hash, items))
            self._log_path.unlink(missing_ok=True)
        except OSError as error:
            self._fail(error)
        else:
            self._saved = items
            self._log_bytes = self._log_items = 0
            self._is_failing = False

    def _fail(self, error: OSError) -> None:
        """Note a disk failure; the next attempt writes the whole file."""
        self._saved, self._is_short = None, True
        if not self._is_failing:
            self._is_failing = True
            _log.warning(
                "waiting transactions cannot be saved; check the disk", path=str(self._path), error=str(error)
            )
