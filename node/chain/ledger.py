"""What the node knows of the chain, as its parts ask for it: finalised data, the mempool, and waiting for more.

Implements the wallet's ``WalletChain``. All methods run on the event loop, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

import trio

from node.chain.block_tree import Chain, Executed
from node.chain.mempool import AlreadyKnown, Mempool, MempoolOptions
from rpc.protocol.records import Head
from state.primitives.blocks import decode_header
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import Transaction, decode_transaction
from state.store import Store
from state.transition.errors import UnknownKind
from state.transition.runtime import Checked, Runtime
from state.view.accounts import Account, load_account

__all__ = ["NodeLedger", "Room"]

RECENT_MAX: Final = 20_000
"""Transactions of the newest blocks that are remembered, so that no signature is checked a second time."""
GOSSIP_FEE_SHARE: Final = 2
"""Transactions of peers are kept from this part of the base fee up: it may fall to where they can be included."""


class Room(NamedTuple):
    """What a block on a certain parent asks of transactions."""

    base_fee: int
    next_nonces: Mapping[bytes, int]
    """Of the senders that have transactions in blocks that are not final yet."""


class NodeLedger:
    """The finalised chain and the mempool above it."""

    def __init__(self, store: Store, chain: Chain, runtime: Runtime, options: MempoolOptions) -> None:
        self.store = store
        self.chain = chain
        self.runtime = runtime
        self.mempool = Mempool(options, self._account_of, height=store.tip.height)
        self.chain_id: int = runtime.genesis.chain_id
        self.on_admitted: Callable[[bytes], None] = lambda _raw: None
        """Called with the bytes of each transaction that entered the mempool here and should be passed on."""
        self.on_pool_changed: Callable[[], None] = lambda: None
        self._recent: dict[bytes, Checked] = {}
        self._head = self._make_head()
        self._moved = trio.Event()
        self._committed: list[Callable[[Sequence[Executed]], None]] = []

    # Following the chain

    def add_listener(self, listener: Callable[[Sequence[Executed]], None]) -> None:
        """Call ``listener`` with the blocks of each commit, after the ledger shows them."""
        self._committed.append(listener)

    def on_commit(self, blocks: Sequence[Executed]) -> None:
        """Follow blocks that were written to the store."""
        if not blocks:
            return
        self._head = self._make_head()
        for executed in blocks:
            self.mempool.on_block(executed.header.height, executed.senders)
        self._moved.set()
        self._moved = trio.Event()
        self.on_pool_changed()
        for listener in self._committed:
            listener(blocks)

    def head(self) -> Head:
        """Return the newest finalised block."""
        return self._head

    async def wait_head(self, height: int) -> Head:
        """Return the head as soon as it is above ``height``."""
        while self._head.height <= height:
            await self._moved.wait()
        return self._head

    def _make_head(self) -> Head:
        tip = self.store.tip
        base_fee = self.runtime.chain.base_fee_initial
        if tip.header:
            base_fee = decode_header(tip.header).base_fee
        return Head(
            height=tip.height,
            hash=tip.block_hash,
            time_ms=tip.time_ms or self.runtime.genesis.time_ms,
            state_root=tip.state_root,
            base_fee=base_fee,
            base_fee_next=tip.next_base_fee,
            oldest_state=self.store.oldest_state,
            oldest_block=self.store.oldest_block,
        )

    # The mempool

    def find(self, raw: bytes) -> Checked | None:
        """Return the transaction with those bytes if it waits or was lately in a block; from any thread."""
        return self.mempool.find(raw) or self._recent.get(raw)

    def remember(self, transactions: Iterable[Checked]) -> None:
        """Keep the transactions of a block, which peers may still bring or another block may hold."""
        recent = self._recent
        for checked in transactions:
            recent[checked.transaction.raw] = checked
        for raw in list(islice(recent, max(0, len(recent) - RECENT_MAX))):
            del recent[raw]

    def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction."""
        return self.mempool.pending_nonce(address)

    @contextmanager
    def admission(self, *, is_local: bool = True) -> Iterator[Callable[[bytes, bytes], bytes]]:
        """Begin to admit transactions of which the node knows the senders; tells whoever builds blocks at the end.

        What the context gives takes bytes and sender, passes the transaction on and returns its hash, or raises
        InvalidTransaction. The sender is the node itself, or whom its own gateway recovered: a child behind a
        socket that only the node's user opens. He is not recovered again here; every other voter does.
        ``is_local`` says that they are of the gateway's users, who expect to find them after a restart.
        """
        fee_floor = self._head.base_fee_next
        local_since = self._head.height if is_local else None
        check, add, transfer_connection = self.runtime.check, self.mempool.add, self.on_admitted

        def admit(raw: bytes, sender: bytes) -> bytes:
            transaction = decode_transaction(raw)
            transaction.sender = sender
            add(check(transaction), fee_floor=fee_floor, local_since=local_since)
            transfer_connection(raw)
            return transaction.hash

        try:
            yield admit
        finally:
            self.on_pool_changed()

    def admit(self, raw: bytes, sender: bytes, *, is_local: bool = True) -> bytes:
        """Admit one transaction as ``admission`` does."""
        with self.admission(is_local=is_local) as admit:
            return admit(raw, sender)

    async def submit_own(self, raw: bytes, sender: bytes) -> bytes:
        """Admit a transaction that this node signed, or find it waiting, and pass it on; return its hash.

        It is not local: whoever signed it looks at the state when the node starts, and signs what is still to do.
        """
        try:
            return self.admit(raw, sender, is_local=False)
        except AlreadyKnown:
            self.on_admitted(raw)
            return decode_transaction(raw).hash

    def readmit(self, transaction: Transaction, since: int) -> None:
        """Admit what one of this node's users handed in before it started, its sender recovered anew.

        It waits since that height, whatever the base fee is now. Raises InvalidTransaction.
        """
        self.mempool.add(self.runtime.check(transaction), local_since=min(since, self._head.height))

    def admit_gossip(self, transaction: Transaction) -> bool:
        """Admit a transaction of a peer, its sender recovered; tell whether it is new.

        Raises InvalidTransaction.
        """
        return self.admit_checked(self.runtime.check(transaction))

    def admit_checked(self, checked: Checked) -> bool:
        """Do what ``admit_gossip`` does with a transaction that was checked before."""
        try:
            self.mempool.add(checked, fee_floor=self._head.base_fee_next // GOSSIP_FEE_SHARE)
        except AlreadyKnown:
            return False
        return True

    # The wallet

    def base_fee(self) -> int:
        """Return the base fee of the next block."""
        return self._head.base_fee_next

    def gas_of(self, kind: int) -> int:
        """Return the weight of a kind. Raises UnknownKind."""
        rule = self.runtime.rules.get(kind)
        if rule is None:
            raise UnknownKind(kind)
        return rule.gas

    async def wait_receipt(self, transaction_hash: bytes) -> Receipt:
        """Return the receipt as soon as the transaction is final."""
        while (place := self.store.transaction_position(transaction_hash)) is None:
            await self._moved.wait()
        receipts = self.store.receipts(place.height)
        assert receipts is not None
        return decode_receipt(receipts[0][place.position])

    def room_after(self, parent_hash: bytes) -> Room:
        """Return what transactions of a block on ``parent_hash`` must fit; from any thread, for it may wait long.

        Raises BlockUnknown.
        """
        return Room(self.chain.base_fee_after(parent_hash), self.chain.next_nonces(parent_hash))

    def take(self, limit: int, room: Room) -> list[Checked]:
        """Return transactions for a block, best first."""
        return self.mempool.take(limit, base_fee=room.base_fee, next_nonces=room.next_nonces)

    def _account_of(self, address: bytes) -> Account:
        return load_account(self.store, address)
