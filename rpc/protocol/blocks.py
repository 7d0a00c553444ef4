"""A finalised block in the gateway's cache: decoded once, its senders recovered on first use."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from rpc.protocol.records import BlockRecord, PooledTransaction
from state.primitives.blocks import Block, decode_block
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak
from state.primitives.keys import recover_addresses
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import Transaction, decode_transaction

__all__ = ["LoadedBlock", "waiting_transaction"]

_NOBODY: Final = bytes(20)


class LoadedBlock:
    """A block with its receipts. Costly values are computed on first use and cached. Immutable for its users."""

    __slots__ = (
        "_before", "_hashes", "_receipts", "_record", "_senders", "_tips", "_tips_paid", "_transactions", "block",
        "bloom", "certificate", "hash", "hooks", "leader", "size_bytes",
    )  # fmt: skip

    def __init__(self, record: BlockRecord) -> None:
        """Decode ``record``. Raises DecodeError."""
        self.block: Block = decode_block(record.raw)
        self.hash = record.hash
        self.certificate = record.certificate
        self.hooks: Receipt | None = None if record.hooks is None else decode_receipt(record.hooks)
        self.size_bytes = len(record.raw)
        self.leader: bytes = _NOBODY
        """Address of the block's leader; zeros if the committee of its epoch is unknown."""
        self._record = record
        self._transactions: list[Transaction | None] = [None] * len(self.block.transactions)
        self._before: list[tuple[int, int]] | None = None
        self._tips: tuple[list[int], list[int]] | None = None
        self._tips_paid: int | None = None
        self.bloom: int | None = None
        """The bloom of its logs, once it was computed."""
        self._receipts: list[Receipt] | None = None
        self._hashes: list[bytes] | None = None
        self._senders = False
        if len(record.receipts) != len(self.block.transactions):
            raise DecodeError("receipts and transactions differ in number")

    @property
    def height(self) -> int:
        """The height."""
        return self.block.header.height

    @property
    def weight_bytes(self) -> int:
        """Approximate memory of this object: decoded objects take several times their bytes."""
        receipts = sum(map(len, self._record.receipts))
        return 2048 + 6 * (self.size_bytes + receipts) + 1024 * len(self.block.transactions)

    @property
    def hashes(self) -> list[bytes]:
        """The hashes of the transactions."""
        if self._hashes is None:
            self._hashes = [keccak(raw) for raw in self.block.transactions]
        return self._hashes

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the transactions."""
        if self._receipts is None:
            self._receipts = [decode_receipt(data) for data in self._record.receipts]
        return self._receipts

    @property
    def receipt_leaves(self) -> tuple[bytes, ...]:
        """The encoded receipts in the order in which the next header's receipt root covers them."""
        hooks = self._record.hooks
        return self._record.receipts if hooks is None else (*self._record.receipts, hooks)

    @property
    def transactions(self) -> list[Transaction]:
        """The transactions; their senders are known once ``recover`` was called."""
        return [self._decoded(index) for index in range(len(self._transactions))]

    def _decoded(self, index: int) -> Transaction:
        found = self._transactions[index]
        if found is None:
            found = self._transactions[index] = decode_transaction(self.block.transactions[index])
        return found

    @property
    def before(self) -> list[tuple[int, int]]:
        """For each transaction the gas used and the events in the block before it; last, those of all."""
        if self._before is None:
            gas, events = 0, 0
            sums = [(0, 0)]
            for receipt in self.receipts:
                gas += receipt.gas_used
                events += len(receipt.events)
                sums.append((gas, events))
            self._before = sums
        return self._before

    @property
    def gas_used(self) -> int:
        """The gas that all transactions used."""
        return self.before[-1][0]

    @property
    def tips(self) -> tuple[list[int], list[int]]:
        """What the transactions paid above the base fee, the least first, and the gas used up to each of them."""
        if self._tips is None:
            base_fee = self.block.header.base_fee
            paid = sorted((receipt.effective_gas_price - base_fee, receipt.gas_used) for receipt in self.receipts)
            self._tips = [tip for tip, _ in paid], list(accumulate(gas for _, gas in paid))
        return self._tips

    @property
    def tips_paid(self) -> int:
        """The priority fees that its leader received."""
        if self._tips_paid is None:
            base_fee = self.block.header.base_fee
            self._tips_paid = sum(
                (receipt.effective_gas_price - base_fee) * receipt.gas_used for receipt in self.receipts
            )
        return self._tips_paid

    @property
    def has_senders(self) -> bool:
        """Whether ``recover`` was called."""
        return self._senders

    def recover(self) -> None:
        """Find every sender: about 55 us a transaction, so large blocks belong in a worker thread."""
        transactions = self.transactions
        found = recover_addresses(b"".join(t.digest + t.signature for t in transactions))
        for index, transaction in enumerate(transactions):
            sender = found[20 * index : 20 * index + 20]
            transaction.sender = sender if sender != _NOBODY else b""
        self._senders = True

    def transaction(self, index: int) -> Transaction:
        """Return one transaction with its sender, without recovering those of the others."""
        transaction = self._decoded(index)
        transaction.recover_sender()
        return transaction


def waiting_transaction(waiting: PooledTransaction) -> Transaction:
    """Return a transaction of the mempool, whose sender the node has recovered. Raises DecodeError."""
    transaction = decode_transaction(waiting.raw)
    transaction.sender = waiting.sender
    return transaction
