"""Transactions of this node's own users, kept over a restart: who handed one in here expects to find it again.

What peers brought is not kept, since they have it; nor what the node itself signed, which it signs again. The file
is written now and then and when the node ends. It is not trusted: what it holds is checked as if it came just now,
and a file that is damaged is set aside.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from node.home import write_whole
from node.ledger import NodeLedger
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.transactions import Transaction, decode_transaction

__all__ = ["Kept", "KeptTransactions", "decode_kept", "encode_kept"]

_log = structlog.get_logger("mempool")

KEPT_MAX: Final = 10_000
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
FILE_LIMIT_BYTES: Final = KEPT_BYTES_MAX + 32 * KEPT_MAX
SAVE_S: Final = 60.0
"""What came in since is lost when the node is killed."""
RECOVERED_AT_ONCE: Final = 256
HEARD_S: Final = 5.0
"""A peer that came just now has said by then what it listens to."""
HEIGHT_LIMIT: Final = 2**63
_KIND: Final = b"kept-mempool"


class Kept(NamedTuple):
    """A transaction and the height since which it waits."""

    since: int
    raw: bytes


Recover = Callable[[bytes], Awaitable[bytes]]
"""Returns the addresses of a batch of digests and signatures, 20 bytes for each."""


def encode_kept(chain_hash: bytes, items: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes of the file that keeps ``items`` of a chain: a checksum, and what it is of."""
    body = encode([chain_hash, [list(item) for item in items]])
    return digest(_KIND, body) + body


def decode_kept(data: bytes, chain_hash: bytes) -> list[Kept]:
    """Return what the file kept, unchecked. Raises DecodeError, for a file of another chain too."""
    if len(data) > FILE_LIMIT_BYTES:
        raise DecodeError(f"more than {FILE_LIMIT_BYTES} bytes")
    body = data[HASH_BYTES:]
    if digest(_KIND, body) != data[:HASH_BYTES]:
        raise DecodeError("the checksum is another one")
    match decode(body, limit_bytes=FILE_LIMIT_BYTES):
        case [bytes(chain), list(items)] if len(items) <= KEPT_MAX and all(map(_is_item, items)):
            if chain != chain_hash:
                raise DecodeError("of another chain")
            return [Kept(since, raw) for since, raw in items]
        case _:
            raise DecodeError("not a file of waiting transactions")


def _is_item(item: Any) -> bool:
    match item:
        case [int(since), bytes()]:
            return 0 <= since < HEIGHT_LIMIT
        case _:
            return False


class KeptTransactions:
    """The file at ``path``, and what it holds brought back into the pool of ``ledger``.

    ``wait_peers`` returns when somebody is there who can be told of it.
    """

    def __init__(
        self, ledger: NodeLedger, path: Path, *, recover: Recover, wait_peers: Callable[[], Awaitable[None]]
    ) -> None:
        self._ledger = ledger
        self._path = path
        self._recover = recover
        self._wait_peers = wait_peers
        self._saved: list[tuple[int, bytes]] | None = None
        """What the file holds; None before it was read, and where it does not hold what it should."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring back what was kept, then keep what waits until cancelled. A disk that refuses ends nothing."""
        returned = await self._restore()
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, returned)
                while True:
                    await trio.sleep(SAVE_S)
                    items = self._waiting()
                    if items != self._saved:
                        await trio.to_thread.run_sync(self._save, items)
        finally:
            items = self._waiting()
            if items != self._saved:
                self._save(items)

    def _waiting(self) -> list[tuple[int, bytes]]:
        return self._ledger.mempool.local(transactions_max=KEPT_MAX, bytes_max=KEPT_BYTES_MAX)

    async def _restore(self) -> list[bytes]:
        """Return the bytes of what was brought back."""
        kept = self._read()
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
            _log.info("transactions kept over the restart", waiting=len(returned), gone=len(kept) - len(returned))
        return returned

    async def _pass_on(self, raws: list[bytes]) -> None:
        """Tell peers of what was brought back: some may have had no restart, others never heard of it."""
        if raws:
            await self._wait_peers()
            await trio.sleep(HEARD_S)
            for raw in raws:
                if self._ledger.mempool.find(raw) is not None:
                    self._ledger.on_admitted(raw)

    # The file

    def _read(self) -> list[Kept]:
        try:
            with self._path.open("rb") as file:
                kept = decode_kept(file.read(FILE_LIMIT_BYTES + 1), self._ledger.runtime.genesis_hash)
        except FileNotFoundError:
            self._saved = []
            return []
        except OSError as error:
            _log.warning("waiting transactions cannot be read", path=str(self._path), error=str(error))
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
            _log.warning("waiting transactions cannot be set aside", path=str(self._path), error=str(refusal))
        _log.warning(
            "the file of waiting transactions is damaged and set aside", path=str(aside), error=str(error)
        )

    def _save(self, items: list[tuple[int, bytes]]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path, encode_kept(self._ledger.runtime.genesis_hash, items))
        except OSError as error:
            _log.warning("waiting transactions cannot be kept", path=str(self._path), error=str(error))
        else:
            self._saved = items
