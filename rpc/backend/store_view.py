"""Answers requests of gateways about the chain and the mempool, from the store, the runtime and the mempool."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import trio

from consensus.light import decode_epoch_record
from consensus.wire import decode_certificate
from rpc.protocol.errors import HeightUnknown, Pruned
from rpc.protocol.records import BlockRecord, Description, KindInfo, PooledTransaction, PoolStatus
from rpc.protocol.requests import POOL_MAX
from state.primitives.blocks import decode_header
from state.primitives.genesis import Genesis
from state.primitives.heads import Head
from state.primitives.receipts import encode_receipt
from state.primitives.transactions import CALL_KIND, DYNAMIC_FORM, NATIVE_FORM, Transaction
from state.store import Store
from state.store.errors import HeightUnknown as StoreHeightUnknown
from state.store.errors import Pruned as StorePruned
from state.store.records import TransactionPosition, decode_epoch
from state.transition.calls import split_call
from state.transition.epochs import epoch_of, genesis_committee
from state.transition.errors import InsufficientFunds, UnknownKind
from state.transition.runtime import BlockInput, Checked, Runtime
from state.transition.steady import stood_still_ms
from state.view import Overlay, Reader
from state.view.accounts import credit, nonce_of

__all__ = ["Pool", "StoreView", "describe"]


POOL_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the transactions of one answer, which shows them in more than twice as many."""
HEIGHTS_KEPT: Final = 16
"""Heights whose changed keys are kept for gateways."""


class Pool(Protocol):
    """The mempool, as far as it is shown."""

    @property
    def pending_count(self) -> int:
        """How many could be taken now."""
        ...

    @property
    def queued_count(self) -> int:
        """How many wait for an earlier nonce."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of all."""
        ...

    def get(self, transaction_hash: bytes) -> Checked | None:
        """Return a waiting transaction."""
        ...

    def pending_nonce(self, address: bytes) -> int:
        """Return the nonce after those executed and those that wait."""
        ...

    def take(self, limit: int) -> list[Checked]:
        """Return pending transactions, the best first."""
        ...

    def page(self, before: int | None, limit: int) -> list[tuple[int, Checked]]:
        """Return transactions with the numbers of their arrival, the newest first."""
        ...

    def queued(self, limit: int) -> list[Checked]:
        """Return transactions that wait for an earlier nonce."""
        ...

    def of_sender(self, address: bytes) -> list[Checked]:
        """Return what waits from one sender, in the order of the nonces."""
        ...

    def arrivals(self, since: int, limit: int) -> tuple[int, list[bytes]]:
        """Return where the pool is now, and the hashes of what came in after ``since``."""
        ...


def describe(
    runtime: Runtime,
    *,
    address: bytes,
    roles: Iterable[str],
    version: str,
    parameters: Mapping[str, Any],
) -> Description:
    """Return what does not change; ``parameters`` holds the parameter dataclass of each prefix ("chain", ...)."""
    genesis: Genesis = runtime.genesis
    numbers = {
        f"{prefix}.{field.name}": getattr(group, field.name)
        for prefix, group in parameters.items()
        for field in dataclasses.fields(group)
    }
    return Description(
        chain_id=genesis.chain_id,
        chain_name=genesis.name,
        genesis_hash=runtime.genesis_hash,
        genesis_time_ms=genesis.time_ms,
        testnet=int(genesis.testnet),
        address=address,
        roles=tuple(roles),
        version=version,
        kinds=tuple(KindInfo(rule.kind, rule.name, rule.gas) for _, rule in sorted(runtime.rules.items())),
        parameters=tuple(sorted(numbers.items())),
        validators=tuple((v.address, v.vote_key, v.vrf_key, v.stake) for v in genesis.validators),
    )


class StoreView:
    """Implements ``rpc.protocol.requests.NodeView``. The node calls ``notify_head`` after each commit."""

    def __init__(self, store: Store, runtime: Runtime, pool: Pool, description: Description) -> None:
        self._store = store
        self._runtime = runtime
        self._pool = pool
        self._description = description
        self._news = trio.Event()
        self._changes: OrderedDict[int, tuple[bytes, ...]] = OrderedDict()

    def notify_head(self, changes: Mapping[int, Iterable[bytes]] | None = None) -> None:
        """Wake the tasks that wait for a new head; ``changes`` are the keys that each committed height changed."""
        for height, keys in (changes or {}).items():
            self._changes[height] = tuple(keys)
        while len(self._changes) > HEIGHTS_KEPT:
            self._changes.popitem(last=False)
        news, self._news = self._news, trio.Event()
        news.set()

    def description(self) -> Description:
        """Return what does not change."""
        return self._description

    def head(self) -> Head:
        """Return the newest finalised block."""
        store = self._store
        tip = store.tip
        base_fee = decode_header(tip.header).base_fee if tip.header else tip.next_base_fee
        return Head(
            height=tip.height,
            hash=tip.block_hash,
            time_ms=tip.time_ms,
            state_root=tip.state_root,
            base_fee=base_fee,
            base_fee_next=tip.next_base_fee,
            oldest_state=store.oldest_state,
            oldest_block=store.oldest_block,
            stood_still_ms=stood_still_ms(store),
        )

    async def wait_head(self, height: int) -> Head:
        """Return the head as soon as it is above ``height``."""
        while self._store.tip.height <= height:
            await self._news.wait()
        return self.head()

    def changed_keys(self, height: int) -> tuple[bytes, ...] | None:
        """Return the keys of the state that the block at ``height`` changed, None if they are no longer known."""
        return self._changes.get(height)

    def read(self, height: int, keys: list[bytes], /) -> list[bytes | None]:
        """Return the values of ``keys`` after ``height``."""
        get = self._reader(height).get
        return [get(key) for key in keys]

    def read_old(self, height: int, keys: list[bytes], /) -> list[bytes | None]:
        """Return the values of ``keys`` after an older height."""
        return self.read(height, keys)

    def scan(self, height: int, start: bytes, stop: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        """Return keys and values from ``start`` to before ``stop`` after ``height``."""
        return self._reader(height).scan(start, stop, limit)

    def _reader(self, height: int) -> Reader:
        with _reported():
            return self._store.at(height)

    def block(self, height: int, /) -> BlockRecord | None:
        """Return the block at ``height``."""
        store = self._store
        with _reported():
            raw, left, tip = store.block(height), store.receipts(height), store.height(height)
        if raw is None or left is None or tip is None:
            return None
        receipts, hooks = left
        return BlockRecord(tip.block_hash, raw, store.certificate(height) or b"", receipts, hooks)

    def block_hash(self, height: int, /) -> bytes | None:
        """Return the hash of the block at ``height``."""
        tip = self._store.height(height)
        return None if tip is None else tip.block_hash

    def height_of(self, block_hash: bytes, /) -> int | None:
        """Return the height of a finalised block."""
        return self._store.height_of(block_hash)

    def locate(self, transactions: list[bytes], /) -> list[tuple[int, int] | None]:
        """Return height and index of each transaction whose block is kept."""
        oldest = self._store.oldest_block
        places = map(self._store.transaction_position, transactions)
        return [None if place is None or place.height < oldest else place for place in places]

    def history(self, address: bytes, before: tuple[int, int] | None, limit: int, /) -> list[tuple[int, int]]:
        """Return places of transactions that touch ``address``, in blocks that are kept."""
        place = None if before is None else TransactionPosition(*before)
        found = self._store.history(address, before=place, limit=limit)
        # Of a time when the node kept more, places outlive their blocks until ``dekube db prune``.
        oldest = self._store.oldest_block
        return [(height, index) for height, index in found if height >= oldest]

    def prove(self, height: int, key: bytes, /) -> bytes:
        """Return the encoded proof of ``key``."""
        with _reported():
            return self._store.prove(key, height).proof

    def header_path(self, height: int, limit: int, to_certificate: bool, /) -> tuple[list[bytes], bytes | None]:
        """Return headers from ``height`` up to the first that a kept certificate names, and that certificate."""
        store, headers = self._store, []
        for above in range(max(height, 1), height + limit):
            tip = store.height(above)
            if tip is None:
                break
            headers.append(tip.header)
            certificate = self._certificate(above) if to_certificate else None
            # The certificate kept with a block may name a later one, which made this one final as an ancestor.
            if certificate is not None and decode_certificate(certificate).block_hash == tip.block_hash:
                return headers, certificate
        return headers, None

    def _certificate(self, height: int) -> bytes | None:
        """Return the certificate kept with a block, or with the record of the epoch that it ends."""
        found = self._store.certificate(height)
        epoch, rest = divmod(height, self._runtime.chain.epoch_blocks)
        if found is None and not rest and (record := self._store.epoch_record(epoch - 1)) is not None:
            _, found, _ = decode_epoch(record)
        return found

    def epoch_records(self, first: int, limit: int, /) -> list[bytes]:
        """Return the records of at most ``limit`` epochs from ``first`` on."""
        records: list[bytes] = []
        for epoch in range(first, first + limit):
            record = self._store.epoch_record(epoch)
            if record is None:
                break
            records.append(record)
        return records

    def pending_nonces(self, addresses: list[bytes], /) -> list[int]:
        """Return the next nonce of each address."""
        return [self._pool.pending_nonce(address) for address in addresses]

    def pool_status(self) -> PoolStatus:
        """Return the mempool in numbers."""
        return PoolStatus(self._pool.pending_count, self._pool.queued_count, self._pool.size_bytes)

    def pool_transactions(self, limit: int, /) -> list[PooledTransaction]:
        """Return transactions of the mempool, the best first."""
        return _first(self._pool.take(limit))

    def pool_page(self, before: int | None, limit: int, /) -> list[tuple[int, PooledTransaction]]:
        """Return transactions of the mempool with the numbers of their arrival, the newest first."""
        return [(number, _waiting(checked)) for number, checked in self._pool.page(before, limit)]

    def pool_queued(self, limit: int, /) -> list[PooledTransaction]:
        """Return transactions that wait for an earlier nonce."""
        return _first(self._pool.queued(limit))

    def pool_of(self, address: bytes, /) -> list[PooledTransaction]:
        """Return what waits from one sender."""
        return _first(self._pool.of_sender(address)[:POOL_MAX])

    def pool_arrivals(self, since: int, limit: int, /) -> tuple[int, list[bytes]]:
        """Return where the pool is now, and the hashes of what came in after ``since``."""
        return self._pool.arrivals(since, limit)

    def pool_get(self, transaction_hash: bytes, /) -> PooledTransaction | None:
        """Return a waiting transaction."""
        found = self._pool.get(transaction_hash)
        return None if found is None else _waiting(found)

    def leaders(self, epoch: int, /) -> list[bytes]:
        """Return the addresses of an epoch's seats: they stand in the record of the epoch before it."""
        if not epoch:
            committee = genesis_committee(self._runtime.genesis, self._runtime.chain.validators_max)
        elif (record := self._store.epoch_record(epoch - 1)) is not None:
            committee = decode_epoch_record(record).committee
        else:
            return []
        return [seat.address for seat in committee.seats]

    def simulate(self, sender: bytes, kind: int, payload: list[Any], price: int | None, /) -> bytes:
        """Return the encoded receipt of a dry run in a block that would follow the newest one."""
        runtime = self._runtime
        if kind == CALL_KIND:
            form, rule = DYNAMIC_FORM, runtime.rule_of_call(*split_call(payload))
        elif kind in runtime.rules:
            form, rule = NATIVE_FORM, runtime.rules[kind]
        else:
            raise UnknownKind(kind)
        tip = self._store.tip
        with _reported():
            state = Overlay(self._store.at(tip.height))
        base_fee = runtime.base_fee(state)
        free = rule.gas * base_fee if price == 0 else 0
        credit(state, sender, free)  # who only asks whether it would work needs no coins for gas
        transaction = Transaction(
            b"", form, runtime.genesis.chain_id, nonce_of(state, sender), 0, price or base_fee, rule.gas, kind,
            payload, (b"", 0, 0, b""), b"",
        )  # fmt: skip
        transaction.sender = sender
        block = BlockInput(
            height=tip.height + 1,
            epoch=epoch_of(tip.height + 1, runtime.chain),
            view=0,
            proposer_seat=0,
            time_ms=tip.time_ms + runtime.chain.block_interval_ms_min,
            base_fee=base_fee,
        )
        try:
            return encode_receipt(runtime.dry_run(state, block, runtime.check(transaction)))
        except InsufficientFunds as error:
            raise InsufficientFunds(balance=error.balance - free, needed=error.needed - free) from None


def _waiting(checked: Checked) -> PooledTransaction:
    return PooledTransaction(checked.transaction.raw, checked.transaction.sender)


def _first(found: list[Checked]) -> list[PooledTransaction]:
    """Return as many of ``found`` as have no more than ``POOL_BYTES_MAX`` bytes together."""
    shown: list[PooledTransaction] = []
    left = POOL_BYTES_MAX
    for checked in found:
        left -= len(checked.transaction.raw)
        if left < 0:
            break
        shown.append(_waiting(checked))
    return shown


@contextmanager
def _reported() -> Iterator[None]:
    """Give the store's answers the fields of the RPC schemas."""
    try:
        yield
    except StorePruned as error:
        raise Pruned(height=error.height, oldest_height=error.oldest) from None
    except StoreHeightUnknown as error:
        raise HeightUnknown(height=error.height, newest_height=error.newest) from None
