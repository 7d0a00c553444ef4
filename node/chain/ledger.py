"""The node's view of its chain: final data, the mempool, and waiting for new blocks.

Implements ``node.market.wallet.WalletChain``. All methods run on the event loop unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

import trio

from node.chain.block_tree import Chain, Executed
from node.chain.mempool import AlreadyKnown, Mempool, MempoolOptions
from state.primitives.blocks import decode_header
from state.primitives.heads import Head
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import Transaction, decode_transaction
from state.store import Store
from state.transition.errors import UnknownKind
from state.transition.lane import ticket_of
from state.transition.runtime import Checked, Runtime
from state.transition.steady import stood_still_ms
from state.view.accounts import Account, load_account

__all__ = ["NodeLedger", "Room"]

RECENT_MAX: Final = 20_000
"""Transactions of the newest blocks that are remembered, so that no signature is checked twice."""
SCREENED_GAS_MIN: Final = 5_000_000
"""Weight from which on a payload is read only if the sender could pay for it: specifications, and large proofs."""
GOSSIP_FEE_SHARE: Final = 2
"""Peers' transactions are kept if their fee cap is at least this share of the base fee: the base fee may fall."""


class Room(NamedTuple):
    """Conditions that a block on a certain parent sets for its transactions."""

    base_fee: int
    next_nonces: Mapping[bytes, int]
    """For senders with transactions in blocks that are not final yet."""


class NodeLedger:
    """The finalised chain and the mempool above it."""

    def __init__(self, store: Store, chain: Chain, runtime: Runtime, options: MempoolOptions) -> None:
        self.store = store
        self.chain = chain
        self.runtime = runtime
        self.mempool = Mempool(options, self._account_of, height=store.tip.height)
        self.chain_id: int = runtime.genesis.chain_id
        self.on_admitted: Callable[[bytes], None] = lambda _raw: None
        """Called with the bytes of each transaction that entered the mempool here and should be gossiped."""
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
        """Update after blocks were written to the store."""
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
        """Wait for a head above ``height`` and return it."""
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
            stood_still_ms=stood_still_ms(self.store),
        )

    # The mempool

    def find(self, raw: bytes) -> Checked | None:
        """Return the transaction with those bytes if it waits or was in a recent block; from any thread."""
        return self.mempool.find(raw) or self._recent.get(raw)

    def remember(self, transactions: Iterable[Checked]) -> None:
        """Remember the transactions of a block: peers may still send them, or another block may contain them."""
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
        """Admit transactions with known senders to the mempool; block builders are notified at the end.

        The context's function takes bytes and sender. It forwards the transaction and returns its hash, or raises
        InvalidTransaction. The sender is this node, or was recovered by its own gateway, a child process behind a
        socket that only the node's user can open. It is not recovered again here; all other voters do.
        ``is_local``: the transaction is a gateway user's and is kept across restarts.
        """
        fee_floor = self._head.base_fee_next
        local_since = self._head.height if is_local else None
        check, add, transfer_connection = self._check, self.mempool.add, self.on_admitted

        def admit(raw: bytes, sender: bytes) -> bytes:
            transaction = decode_transaction(raw)
            transaction.sender = sender
            checked = check(transaction, fee_floor)
            add(checked, fee_floor=fee_floor, local_since=local_since, lane=self._lane_of(checked))
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
        """Admit a transaction that this node signed, or find it waiting, and forward it; return its hash.

        It is not kept across restarts: the signing component reads the state at the start and signs what is still
        needed.
        """
        try:
            return self.admit(raw, sender, is_local=False)
        except AlreadyKnown:
            self.on_admitted(raw)
            return decode_transaction(raw).hash

    def readmit(self, transaction: Transaction, since: int) -> None:
        """Admit a gateway user's transaction from before the restart; its sender was recovered again.

        It waits since the given height, regardless of the current base fee. Raises InvalidTransaction.
        """
        checked = self.runtime.check(transaction)
        since = min(since, self._head.height)
        self.mempool.add(checked, local_since=since, lane=self._lane_of(checked))

    def admit_gossip(self, transaction: Transaction) -> bool:
        """Admit a peer's transaction with its recovered sender; return whether it is new.

        Raises InvalidTransaction.
        """
        return self.admit_checked(self._check(transaction, self._head.base_fee_next // GOSSIP_FEE_SHARE))

    def _check(self, transaction: Transaction, fee_floor: int) -> Checked:
        """Check what needs no state, of a heavy transaction only if its sender could pay for it.

        The payload of such a one takes long to read. Whoever has no money for it would have it read for nothing.
        """
        if transaction.sender and self.runtime.weight_of(transaction) >= SCREENED_GAS_MIN:
            self.mempool.screen(transaction, fee_floor=fee_floor)
        return self.runtime.check(transaction)

    def admit_checked(self, checked: Checked) -> bool:
        """Like ``admit_gossip``, for a transaction that was checked before."""
        try:
            floor = self._head.base_fee_next // GOSSIP_FEE_SHARE
            self.mempool.add(checked, fee_floor=floor, lane=self._lane_of(checked))
        except AlreadyKnown:
            return False
        return True

    def _lane_of(self, checked: Checked) -> bytes:
        """Return the subject of a transaction's ticket for the lane, or nothing."""
        ticket = ticket_of(self.store, checked)
        return b"" if ticket is None else ticket.subject

    # The wallet

    def base_fee(self) -> int:
        """Return the base fee of the next block."""
        return self._head.base_fee_next

    def gas_of(self, kind: int) -> int:
        """Return the gas of a transaction kind. Raises UnknownKind."""
        rule = self.runtime.rules.get(kind)
        if rule is None:
            raise UnknownKind(kind)
        return rule.gas

    async def wait_receipt(self, transaction_hash: bytes) -> Receipt:
        """Wait until the transaction is final and return its receipt."""
        while (place := self.store.transaction_position(transaction_hash)) is None:
            await self._moved.wait()
        receipts = self.store.receipts(place.height)
        assert receipts is not None
        return decode_receipt(receipts[0][place.position])

    def room_after(self, parent_hash: bytes) -> Room:
        """Return the conditions for transactions of a block on ``parent_hash``.

        May block for long; call it from any thread. Raises BlockUnknown.
        """
        return Room(self.chain.base_fee_after(parent_hash), self.chain.next_nonces(parent_hash))

    def take(self, limit: int, room: Room) -> list[Checked]:
        """Return transactions for a block, best first."""
        return self.mempool.take(limit, base_fee=room.base_fee, next_nonces=room.next_nonces)

    def _account_of(self, address: bytes) -> Account:
        return load_account(self.store, address)
