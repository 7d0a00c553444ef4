"""Shares of a task's key at machines with role storage, for a requester that is offline (market.md 11.10).

The requester's node hands a share to each of some machines, with the hashes of all shares under its signature. A
machine also keeps the encrypted data set where no custodians do, so that a worker finds both. It gives its share
to the worker that the chain has assigned, and to nobody else. Who holds shares is not on chain: machines are asked
in an order that follows from the task.

Of a container a machine holds a share of the key of each run, and keeps copies of what its machines make
(R128). A container without a key is kept in the same way, without a share.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.container_copies import ContainerCopies, copies_of
from node.market.inputs import Inputs, Supply
from node.market.key_files import KeyFiles
from node.market.task_keys import (
    ANSWER_BYTES_MAX,
    ASK_S,
    KeysMissing,
    NotEntitled,
    TaskKeys,
    decode_key_question,
    is_assigned,
)
from node.market.wallet import Wallet
from p2p.blob.store import BlobStore
from p2p.service import Network
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address
from tasks.custody.errors import SharesInvalid
from tasks.custody.keys import KEY_BYTES
from tasks.custody.sealed import sealed_size
from tasks.custody.shares import (
    HOLDERS_MAX,
    Share,
    check_share,
    join_shares,
    share_hash,
    split_key,
    split_randomness_bytes,
)
from tasks.custody.wraps import public_key_of, unwrap_share, wrap_share
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.errors import TaskUnknown
from tasks.kinds.container import RETRIES_MAX
from tasks.ledger.custody_queries import input_holders
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.records import load_spec, load_task
from tasks.ledger.registry import NodeRole, candidates
from tasks.spec import container_of

__all__ = [
    "METHOD_KEEP_SHARE",
    "METHOD_SHARE",
    "KeyShares",
    "ShareBook",
    "SharePending",
    "decode_kept",
    "decode_share",
    "encode_kept",
]

_log = structlog.get_logger("keys")

METHOD_KEEP_SHARE: Final = "keep share"
METHOD_SHARE: Final = "task share"
PIN: Final = "share"
KEEP_BYTES_MAX: Final = 8_192
SHARES_MAX: Final = RETRIES_MAX + 1
"""Shares of one task at a machine: one for each run of a container whose checkpoints are sealed."""
MACHINES_ASKED_MAX: Final = 64
"""Machines that are asked for a share or a blob, or to keep them, of those with role storage."""
AT_ONCE_MAX: Final = 16
FETCH_S: Final = 20.0
"""Part of a request in which a machine fetches the data set; it goes on with the next one."""
KEEP_S: Final = 28.0
KEEP_TRIES_MAX: Final = 30
KEEP_PAUSE_S: Final = 1.0


class SharePending(DekubeError):
    """A machine that is asked to keep a share does not have the data set, or the task, yet: it is asked again."""

    code = "share_pending"


class ShareBook(NamedTuple):
    """What ties shares to a task: how many make the key, the hash of each, and the requester's signature."""

    task: bytes
    threshold: int
    hashes: tuple[bytes, ...]
    signature: bytes

    @property
    def digest(self) -> bytes:
        """What the requester signs."""
        return digest(b"share-book", encode([self.task, self.threshold, list(self.hashes)]))

    def check(self, requester: bytes) -> None:
        """Raise SharesInvalid, or SignatureInvalid, unless ``requester`` has signed it."""
        if recover_address(self.digest, self.signature) != requester:
            raise SharesInvalid("the book of shares is not the requester's")


def _book_from_value(task: bytes, value: list[Value]) -> ShareBook:
    """Return the book of a decoded value. Raises DecodeError."""
    match value:
        case [int(threshold), list(hashes), bytes(signature)] if (
            1 <= threshold <= len(hashes) <= HOLDERS_MAX and len(signature) == SIGNATURE_BYTES
            and all(type(item) is bytes and len(item) == HASH_BYTES for item in hashes)
        ):  # fmt: skip
            return ShareBook(task, threshold, tuple(item for item in hashes if isinstance(item, bytes)), signature)
    raise DecodeError("[threshold, hashes, signature] expected")


def _book_value(book: ShareBook) -> list[Value]:
    return [book.threshold, list(book.hashes), book.signature]


def _share_from_value(value: list[Value]) -> Share:
    match value:
        case [int(holder), bytes(content), bytes(salt)] if 0 <= holder < HOLDERS_MAX:
            return Share(holder, content, salt)
    raise DecodeError("[holder, value, salt] expected")


def encode_kept(task: bytes, kept: Sequence[tuple[ShareBook, Share]]) -> bytes:
    """Return a request to keep shares of a task, one for the key of each run; it is also their file.

    Without shares it asks to keep a container that has no key.
    """
    parts: list[Value] = [task]
    for book, share in kept:
        parts += [_book_value(book), [*share]]
    return encode(parts)


def decode_kept(data: bytes) -> tuple[bytes, tuple[tuple[ShareBook, Share], ...]]:
    """Return the task of such a request, or of a file, and its shares. Raises DecodeError, SharesInvalid."""
    match decode(data, limit_bytes=KEEP_BYTES_MAX):
        case [bytes(task), *parts] if len(task) == HASH_BYTES and len(parts) in range(0, 2 * SHARES_MAX + 1, 2):
            return task, tuple(_kept_pair(task, *parts[at : at + 2]) for at in range(0, len(parts), 2))
    raise DecodeError("[task, book, share, ...] expected")


def _kept_pair(task: bytes, book: Value, share: Value) -> tuple[ShareBook, Share]:
    if not isinstance(book, list) or not isinstance(share, list):
        raise DecodeError("[task, book, share, ...] expected")
    found, part = _book_from_value(task, book), _share_from_value(share)
    check_share(task, found.hashes, part)
    return found, part


def decode_share(task: bytes, answer: bytes) -> tuple[ShareBook, bytes]:
    """Return the book of a task and a wrapped share. Raises DecodeError."""
    match decode(answer, limit_bytes=ANSWER_BYTES_MAX):
        case [list(value), bytes(wrap)]:
            return _book_from_value(task, value), wrap
        case _:
            raise DecodeError("[book, wrap] expected")


class KeyShares:
    """All ends of sharing a key: dividing it, keeping a share, giving it, and joining shares.

    ``room`` says how many bytes this machine may still keep for others; None: it keeps no shares.
    """

    def __init__(
        self, ledger: NodeLedger, network: Network, wallet: Wallet, keys: TaskKeys, inputs: Inputs,
        blobs: BlobStore, files: KeyFiles, room: Callable[[], int] | None,
    ) -> None:  # fmt: skip
        self._ledger, self._network, self._wallet, self._keys = ledger, network, wallet, keys
        self._inputs, self._blobs, self._files, self._room = inputs, blobs, files, room
        self._pinned: set[bytes] = set()
        self._containers: frozenset[bytes] = frozenset()
        """Containers that this machine keeps, ..."""
        self._emptied: set[bytes] = set()
        """... and those that have ended, whose shares are gone."""
        self.copies = ContainerCopies(
            ledger.store, blobs, inputs, lambda: self._containers, lambda: ledger.head().steady_ms,
            purpose="kept container", room=room,
        )  # fmt: skip
        keys.collect = self.collect
        inputs.keepers = self._machines  # each of them may be one that keeps the task

    def serve(self) -> None:
        """Answer requests from now on; called once for a network."""
        self._network.on_request(METHOD_KEEP_SHARE, self._serve_keep)
        self._network.on_request(METHOD_SHARE, self._serve_share)

    @property
    def kept_bytes(self) -> int:
        """Bytes that this machine keeps with shares, or fetches to keep: data sets, and what containers have."""
        kept = self._pinned | self.copies.pinned
        here = {name: found.size_bytes for name in kept if (found := self._blobs.manifest(name)) is not None}
        return sum((self.copies.arriving | here).values())

    def tidy(self) -> None:
        """Keep blobs of tasks with a share here from being evicted; forget those of tasks that have ended.

        Of a container that has left something this machine remembers that it keeps it: nothing else takes room.
        """
        wanted, containers = set[bytes](), set[bytes]()
        for task in self._files.tasks():
            try:
                record = load_task(self._ledger.store, task)
            except TaskUnknown:
                self._files.remove(task)
                continue
            if record.phase not in ENDED:
                containers |= {task} if record.is_metered else set()
                if not input_holders(self._ledger.store, task):
                    wanted.update(name for name, _ in self._blobs_of(task))
            elif copies_of(self._ledger.store, task, self._ledger.head().steady_ms):
                containers.add(task)
                self._drop_shares(task)
            else:
                self._files.remove(task)
        for name in wanted - self._pinned:
            self._blobs.pin(name, PIN)
        for name in self._pinned - wanted:
            self._blobs.unpin(name, PIN)
        self._pinned, self._containers = wanted, frozenset(containers)
        self._emptied &= containers

    def _drop_shares(self, task: bytes) -> None:
        """Keep of a container that has ended that it is kept, and no share of its key."""
        if task not in self._emptied:
            self._files.put(task, encode_kept(task, ()))
            self._emptied.add(task)

    # As a requester

    async def share_out(self, task: bytes, threshold: int, holders: int) -> list[bytes]:
        """Divide the key of an own task, and hand each share to a machine; return those that keep one.

        A container without a key is kept by so many machines all the same. Raises SharesInvalid; and KeysMissing,
        also where fewer machines than ``holders`` keep a share.
        """
        record = load_task(self._ledger.store, task)
        has_key = not record.is_metered or self._keys.is_private(task)
        keys = await trio.to_thread.run_sync(self._keys.run_keys, task) if has_key else []
        if not 1 <= threshold <= holders <= HOLDERS_MAX:
            raise SharesInvalid(f"1 to {HOLDERS_MAX} holders, and no more needed than there are")
        of_holder: list[list[tuple[ShareBook, Share]]] = [[] for _ in range(holders)]
        for key in keys:
            shares = split_key(
                key, threshold, holders, secrets.token_bytes(split_randomness_bytes(threshold, holders))
            )
            book = ShareBook(task, threshold, tuple(share_hash(task, share) for share in shares), b"")
            book = book._replace(signature=self._wallet.sign_digest(book.digest))
            for held, share in zip(of_holder, shares, strict=True):
                held.append((book, share))
        machines, kept = iter(self._machines(task)), dict[int, bytes]()
        async with trio.open_nursery() as nursery:
            for number, held in enumerate(of_holder):
                nursery.start_soon(self._place, number, encode_kept(task, held), machines, kept)
        if len(kept) < holders:
            raise KeysMissing(f"{len(kept)} machines with role storage keep a share, {holders} are wanted")
        _log.info("the key of a task was shared", task=task, holders=holders, threshold=threshold)
        return [kept[number] for number in sorted(kept)]

    async def _place(self, number: int, body: bytes, machines: Iterator[bytes], kept: dict[int, bytes]) -> None:
        """Hand what holder ``number`` keeps to the first machine that takes it."""
        for machine in machines:
            for _ in range(KEEP_TRIES_MAX):
                try:
                    await self._network.request(machine, METHOD_KEEP_SHARE, body, timeout_s=KEEP_S)
                    kept[number] = machine
                    return
                except DekubeError as error:
                    if SharePending.code not in str(error):
                        _log.info("a machine keeps no share", machine=machine, error=str(error))
                        break
                    await trio.sleep(KEEP_PAUSE_S)

    def _machines(self, task: bytes) -> list[bytes]:
        """Return machines with role storage in the order of the task, without this one."""
        found = candidates(self._ledger.store, NodeRole.STORAGE, task, MACHINES_ASKED_MAX)
        return [node.address for node in found if node.address != self._wallet.address]

    # As a holder

    async def _serve_keep(self, peer: bytes, body: bytes) -> bytes:
        self._keys.check_asker(peer)
        task, kept = decode_kept(body)
        store = self._ledger.store
        try:
            record = load_task(store, task)
        except TaskUnknown:  # this node may be a block behind
            raise SharePending("the task is not on this chain yet") from None
        if self._room is None or record.requester != peer or record.phase in ENDED:
            raise NotEntitled("this machine keeps no share of this task for the asker")
        for book, _ in kept:
            book.check(peer)
        if not record.is_metered and not self._keys.is_private(task):
            raise SharePending("the task has no keys yet")
        if len(kept) != self._keys.keys_of(task):
            raise SharesInvalid(
                f"{self._keys.keys_of(task)} shares of the task are kept, one for each of its keys"
            )
        with ExitStack() as room:  # until ``tidy`` counts them
            if not input_holders(store, task):
                for name, limit_bytes in dict(self._blobs_of(task)).items():  # two mounts may have one blob
                    await self._have_input(task, name, limit_bytes, peer, room)
            await trio.to_thread.run_sync(self._files.put, task, body)
            self.tidy()
        _log.info("a share of a key is kept", task=task, requester=peer)
        return b""

    def _blobs_of(self, task: bytes) -> tuple[tuple[bytes, int], ...]:
        """Return the encrypted inputs of a task and their most bytes."""
        spec = load_spec(self._ledger.store, task)
        if spec.is_metered:
            return container_of(spec).blobs
        return ((spec.dataset.blob, sealed_size(DATASET_BLOB_BYTES_MAX)),)

    async def _have_input(
        self, task: bytes, blob: bytes, limit_bytes: int, requester: bytes, room: ExitStack
    ) -> None:
        """Fetch an encrypted input of a task that has no custodians for it, into ``room``.

        Raises SharePending, and InputUnavailable for one that finds no room.
        """
        assert self._room is not None
        arriving, free = self.copies.arriving, self._room()
        if blob in arriving or (arriving and free < limit_bytes):
            raise SharePending("what is on its way takes the room")
        limit_bytes = min(limit_bytes, free)
        room.enter_context(self.copies.room_for(task, blob, limit_bytes))
        with trio.move_on_after(FETCH_S):
            supply = Supply(lambda: [requester], trio.current_time() + FETCH_S)
            await self._inputs.obtain(blob, supply, limit_bytes)
        if not self._blobs.is_complete(blob):
            raise SharePending("the data set is not here yet")

    async def _serve_share(self, peer: bytes, body: bytes) -> bytes:
        self._keys.check_asker(peer)
        task, _, public = decode_key_question(body)
        if not is_assigned(self._ledger, task, peer):
            raise NotEntitled("not the worker of the task")
        data = await trio.to_thread.run_sync(self._files.get, task)
        if data is None:
            raise KeysMissing("no share of the task is here")
        _, kept = decode_kept(data)
        if not kept:
            raise KeysMissing("no share of the task is here")
        book, share = kept[self._keys.run(task)]
        _log.info("a share of a key was handed to its worker", task=task, worker=peer)
        return encode([_book_value(book), wrap_share(share, public, task=task, worker=peer)])

    # As a worker

    async def collect(self, task: bytes) -> bool:
        """Have shares of a task's key from their holders, and keep the key. Return whether they made it."""
        books: dict[ShareBook, dict[int, Share]] = {}
        room, requester = trio.CapacityLimiter(AT_ONCE_MAX), load_task(self._ledger.store, task).requester
        found: list[bytes] = []

        async def ask(machine: bytes) -> None:
            async with room:
                try:
                    book, share = await self._ask_share(machine, task, requester)
                    shares = books.setdefault(book, {})
                    shares[share.holder] = share
                    if len(shares) < book.threshold:
                        return
                    key = join_shares(task, book.hashes, book.threshold, shares)
                    await trio.to_thread.run_sync(self._keys.check, task, key)
                except DekubeError as error:
                    _log.debug("no share", machine=machine, error=str(error))
                    return
            found.append(key)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for machine in self._machines(task):
                nursery.start_soon(ask, machine)
        if found:
            await trio.to_thread.run_sync(self._keys.keep, task, found[0])
        return bool(found)

    async def _ask_share(self, machine: bytes, task: bytes, requester: bytes) -> tuple[ShareBook, Share]:
        one_time = secrets.token_bytes(KEY_BYTES)
        body = encode([task, 0, public_key_of(one_time)])
        answer = await self._network.request(
            machine, METHOD_SHARE, body, timeout_s=ASK_S, limit_bytes=ANSWER_BYTES_MAX
        )
        book, wrap = decode_share(task, answer)
        book.check(requester)
        share = unwrap_share(wrap, one_time, task=task, worker=self._wallet.address)
        check_share(task, book.hashes, share)
        return book, share
