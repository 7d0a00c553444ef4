"""Unfinalised blocks as a tree over the store: build, check and execute blocks, and commit the branch that became
final.

A block is executed over its parent's state. The result is kept as changes in memory, so the store holds only final
data. A block's header carries the roots of its parent's execution (consensus.md 9.1).

This module does not use an event loop. Any thread may call it. A lock serialises the calls, so that no execution
reads a state while a commit replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import NamedTuple

from state.primitives.blocks import (
    Block,
    Header,
    encode_block,
    encode_header,
    evidence_root,
    header_hash,
    is_body_of,
    transactions_root,
)
from state.primitives.errors import DecodeError, InvalidBlock, InvalidTransaction
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import ZERO_HASH
from state.primitives.receipts import Event
from state.primitives.transactions import Transaction, decode_transaction
from state.primitives.votes import vrf_alpha
from state.primitives.vrf import vrf_verify
from state.store import NO_VIEWS, FinalisedBlock, Store, Tip, ViewCertificates
from state.transition.epochs import EpochInfo, check_voters, load_epoch, load_tally
from state.transition.runtime import BlockInput, Checked, Execution, Runtime
from state.transition.slashing import load_slash
from state.transition.staking import load_committee
from state.trie import NodeLayer, Trie
from state.view import Overlay, Reader
from tasks.ledger.account_changes import named_in, rewarding

__all__ = [
    "BlockTimeWrong",
    "BlockUnknown",
    "Body",
    "BodyInvalid",
    "Chain",
    "Executed",
    "StateDiverged",
    "decode_body",
]


class BlockUnknown(InvalidBlock):
    """The block, or its parent, is neither the tip nor an executed block above it."""

    code = "block_unknown"


class BlockTimeWrong(InvalidBlock):
    """The time of a block is not after its parent's, or too far from this node's clock."""

    code = "block_time_wrong"


class BodyInvalid(InvalidBlock):
    """A transaction of the body is inadmissible; ``reason`` is the error's code, ``index`` the transaction's
    position.
    """

    code = "block_body_invalid"

    def __init__(self, reason: str, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.index = index


class StateDiverged(InvalidBlock):
    """The header's roots differ from this node's execution of the parent.

    On a certified block this is an alarm.
    """

    code = "state_diverged"


class Body:
    """The decoded transactions of a block. Some senders may still have to be recovered."""

    __slots__ = ("_known", "_runtime", "_transactions", "batch")

    def __init__(self, runtime: Runtime, transactions: list[Transaction], known: dict[int, Checked]) -> None:
        self._runtime = runtime
        self._transactions = transactions
        self._known = known
        self.batch: bytes = b"".join(
            [transaction.digest + transaction.signature for transaction in transactions if not transaction.sender]
        )
        """Input of a SignatureVerifier: digest and signature of each transaction that is not known here."""

    def resolve(self, addresses: bytes) -> list[Checked]:
        """Return the checked transactions; ``batch`` has been answered with these addresses.

        Raises BodyInvalid, and InvalidBlock where they weigh more than a block holds.
        """
        at = weights = 0
        known, runtime, limit = self._known, self._runtime, self._runtime.chain.block_gas_limit
        checked: list[Checked] = []
        for index, transaction in enumerate(self._transactions):
            if not transaction.sender:
                transaction.sender = addresses[at : at + 20]
                at += 20
            try:
                # Payloads are read as far as the gas of a block goes: nobody pays for what is beyond.
                weights += runtime.weight_of(transaction)
                if weights > limit:
                    raise InvalidBlock(f"weights of more than {limit} in sum")
                checked.append(known.get(index) or runtime.check(transaction))
            except InvalidTransaction as error:
                raise BodyInvalid(error.code, f"transaction {index}: {error}", index=index) from None
        return checked


def decode_body(
    runtime: Runtime, transactions: Sequence[bytes], known: Callable[[bytes], Checked | None] | None = None
) -> Body:
    """Decode the raw transactions of a block; ``known`` finds those whose signature was checked before.

    Raises BodyInvalid, and InvalidBlock when the body is above the limits of a block, before any is decoded.
    """
    chain = runtime.chain
    if len(transactions) > chain.transactions_max or sum(map(len, transactions)) > chain.body_bytes_max:
        raise InvalidBlock(f"a body of {len(transactions)} transactions, {sum(map(len, transactions))} bytes")
    decoded: list[Transaction] = []
    found: dict[int, Checked] = {}
    for index, raw in enumerate(transactions):
        checked = known(raw) if known is not None else None
        if checked is not None:
            found[index] = checked
            decoded.append(checked.transaction)
            continue
        try:
            decoded.append(decode_transaction(raw))
        except DecodeError as error:
            raise BodyInvalid(error.code, f"transaction {index}: {error}", index=index) from None
    return Body(runtime, decoded, found)


class Executed:
    """A block that was executed here and is not final yet. ``state`` and ``trie`` are those after the block."""

    __slots__ = (
        "block_hash",
        "execution",
        "header",
        "next_nonces",
        "nodes",
        "raw",
        "state",
        "transactions",
        "trie",
    )

    def __init__(
        self, block_hash: bytes, header: Header, raw: bytes, transactions: tuple[Checked, ...],
        execution: Execution, parent_state: Reader, parent_trie: Trie,
    ) -> None:  # fmt: skip
        self.block_hash = block_hash
        self.header = header
        self.raw = raw
        self.transactions = transactions
        self.execution = execution
        self.state = Overlay(parent_state)
        self.state.changes = execution.changes
        update = parent_trie.update(execution.changes)
        self.trie = parent_trie.after(update)
        self.nodes = update.nodes
        self.next_nonces: dict[bytes, int] = {
            checked.transaction.sender: checked.transaction.nonce + 1 for checked in transactions
        }

    @property
    def state_root(self) -> bytes:
        """The root of the state after this block, which the next header carries."""
        return self.trie.root

    @property
    def receipt_root(self) -> bytes:
        """The root over the receipts of this block, which the next header carries."""
        return self.execution.receipt_root

    @property
    def senders(self) -> set[bytes]:
        """The senders of the block's transactions."""
        return set(self.next_nonces)

    def finalised(
        self, certificate: bytes, chain: ChainParameters, views: ViewCertificates = NO_VIEWS
    ) -> FinalisedBlock:
        """Return what the store writes for this block."""
        execution, header = self.execution, self.header
        following = None
        if header.next_committee_hash != ZERO_HASH:
            following = load_epoch(self.state, header.epoch + 1, chain)
            assert following is not None, "the last block of an epoch knows the next committee"
        return FinalisedBlock(
            tip=Tip(
                header.height,
                self.block_hash,
                self.state_root,
                execution.receipt_root,
                execution.next_base_fee,
                header.time_ms,
                encode_header(header),
            ),
            block=self.raw,
            certificate=certificate,
            transaction_hashes=[checked.transaction.hash for checked in self.transactions],
            addresses=[*map(_accounts_of, self.transactions, execution.events), self._own_accounts()],
            receipts=execution.receipts,
            block_receipt=execution.block_receipt,
            changes=execution.changes,
            nodes=self.nodes,
            next_committee=None if following is None else following.committee.encode(),
            views=views,
        )

    def _own_accounts(self) -> tuple[bytes, ...]:
        """Return the accounts whose history lists the block itself: its leader, and the accounts that its own
        events name.
        """
        execution = self.execution
        events = execution.events[-1]
        rewarded = [load_slash(self.state, operator) for operator in rewarding(events)]
        return tuple(
            dict.fromkeys(
                (
                    *((execution.leader,) if execution.tips else ()),
                    *named_in(events),
                    *(slash.reporter for slash in rewarded if slash is not None),
                )
            )
        )


def _accounts_of(checked: Checked, events: tuple[Event, ...]) -> tuple[bytes, ...]:
    """Return the accounts whose history lists a transaction."""
    transaction, rule, payload, _ = checked
    touched = (transaction.sender, *rule.touches(payload))
    return tuple(dict.fromkeys((*touched, *named_in(events)))) if events else touched


class _Parent(NamedTuple):
    """The data of a parent, final or not, that its child needs."""

    height: int
    time_ms: int
    state_root: bytes
    receipt_root: bytes
    state: Reader
    trie: Trie


class Chain:
    """The final chain of ``store`` and the executed blocks above it."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime
        self._interval_ms = max(1, runtime.chain.block_interval_ms_min)
        self._blocks: dict[bytes, Executed] = {}
        self._lock = RLock()

    @property
    def tip(self) -> Tip:
        """The newest final height."""
        return self.store.tip

    def get(self, block_hash: bytes) -> Executed | None:
        """Return a block that was executed and is not final yet."""
        return self._blocks.get(block_hash)

    def is_executed(self, block_hash: bytes) -> bool:
        """Tell whether a child of that block can be built, checked or executed now."""
        return block_hash == self.store.tip.block_hash or block_hash in self._blocks

    def state_after(self, block_hash: bytes) -> Reader:
        """Return the state after the tip or an executed block.

        The state is valid until the next commit. Use ``store.at(height)`` for longer reads. Raises BlockUnknown.
        """
        with self._lock:
            return self._parent(block_hash).state

    def base_fee_after(self, block_hash: bytes) -> int:
        """Return the base fee of a child of that block. Raises BlockUnknown."""
        with self._lock:
            return self.runtime.base_fee(self._parent(block_hash).state)

    def epoch_info(self, epoch: int, block_hash: bytes | None = None) -> EpochInfo | None:
        """Return the record of ``epoch`` in the state after ``block_hash`` (None: the final state), or None if
        there is none.

        The state has the current epoch, epochs within the age of evidence, and the next epoch once its boundary
        block is executed. Raises BlockUnknown.
        """
        with self._lock:
            state = self.store if block_hash is None else self._parent(block_hash).state
            return load_epoch(state, epoch, self.runtime.chain)

    def vrf_input(self, parent_hash: bytes, view: int) -> bytes:
        """Return the input of the VRF proof that the leader of ``view`` makes for a child of that block.

        Raises BlockUnknown, UpgradeRequired.
        """
        with self._lock:
            parent = self._parent(parent_hash)
            return self._vrf_input(self.runtime.epoch_at(parent.state, parent.height + 1), view)

    def _vrf_input(self, epoch: EpochInfo, view: int) -> bytes:
        return vrf_alpha(self.runtime.genesis_hash, epoch.randomness, epoch.epoch, view)

    def next_nonces(self, block_hash: bytes) -> Mapping[bytes, int]:
        """Return the next nonce of each sender in the blocks above the tip up to ``block_hash``."""
        with self._lock:
            branch = self._branch(block_hash)
            if len(branch) == 1:
                return branch[0].next_nonces
            merged: dict[bytes, int] = {}
            for executed in branch:
                merged.update(executed.next_nonces)
            return merged

    def build(
        self, parent_hash: bytes, *, epoch: int, view: int, seat: int, time_ms: int, voters_bitmap: bytes,
        vrf_proof: bytes, transactions: Iterable[Checked], evidence: Iterable[bytes] = (),
    ) -> tuple[Block, list[Checked]]:  # fmt: skip
        """Build a block on an executed parent; return it with its transactions.

        Transactions are taken in the given order while they fit. ``vrf_proof`` is the proof for ``vrf_input``.
        Evidence is included if it still proves something. ``time_ms`` is raised to the earliest time that the
        parent allows.

        Raises BlockUnknown, UpgradeRequired, and InvalidBlock for an epoch that does not follow the parent's.
        """
        with self._lock:
            parent = self._parent(parent_hash)
            height = parent.height + 1
            info = self.runtime.epoch_at(parent.state, height)
            if epoch != info.epoch:
                raise InvalidBlock(f"a block of epoch {epoch}, where epoch {info.epoch} goes on")
            proofs = self.runtime.select_evidence(parent.state, epoch, evidence)
            next_hash = _next_committee_hash(parent.state, info, height)
            base_fee = self.runtime.base_fee(parent.state)
            chosen = self.runtime.select(parent.state, base_fee, transactions)
        raws = tuple([checked.transaction.raw for checked in chosen])
        header = Header(
            version=info.version,
            genesis_hash=self.runtime.genesis_hash,
            height=height,
            epoch=epoch,
            view=view,
            proposer_seat=seat,
            parent_hash=parent_hash,
            time_ms=max(time_ms, parent.time_ms + self._interval_ms),
            tx_root=transactions_root(raws),
            receipt_root=parent.receipt_root,
            state_root=parent.state_root,
            evidence_root=evidence_root(proofs),
            vrf_proof=vrf_proof,
            committee_hash=info.committee.hash,
            next_committee_hash=next_hash,
            voters_bitmap=voters_bitmap,
            base_fee=base_fee,
            tx_bytes=sum(map(len, raws)),
            tx_count=len(raws),
            signal=self.runtime.signal,
        )
        return Block(header, raws, proofs), chosen

    def check(self, block: Block, transactions: Sequence[Checked], *, now_ms: int | None) -> None:
        """Check a block against its executed parent, without executing it. Raises InvalidBlock or a subclass.

        The view is not checked; only consensus knows the current view. ``now_ms`` is this node's clock. None skips
        the check against the clock, for a block that is already final.
        """
        header, chain = block.header, self.runtime.chain
        if header.genesis_hash != self.runtime.genesis_hash:
            raise InvalidBlock("a block of another chain")
        if not is_body_of(block):
            raise InvalidBlock("the body is not the header's")
        with self._lock:
            parent = self._parent(header.parent_hash)
            _check_place(header, parent, self._interval_ms)
            if now_ms is not None and not (
                now_ms - chain.time_behind_ms_max <= header.time_ms <= now_ms + chain.time_ahead_ms_max
            ):
                raise BlockTimeWrong(f"time {header.time_ms}, clock {now_ms}")
            base_fee = self.runtime.base_fee(parent.state)
            if header.base_fee != base_fee:
                raise InvalidBlock(f"base fee {header.base_fee}, expected {base_fee}")
            self._check_epoch(header, parent.state)
            self.runtime.check_evidence(parent.state, header.epoch, block.evidence)
            try:
                self.runtime.check_body(parent.state, base_fee, transactions)
            except InvalidTransaction as error:
                raise BodyInvalid(error.code, str(error)) from None

    def _check_epoch(self, header: Header, state: Reader) -> None:
        """Check a header's epoch fields against the state after its parent."""
        info = self.runtime.epoch_at(state, header.height)
        committee, tally = info.committee, load_tally(state, info.epoch)
        assert tally is not None, "an epoch begins with its tally"
        if header.epoch != info.epoch:
            raise InvalidBlock(f"epoch {header.epoch} at height {header.height}, expected {info.epoch}")
        if header.version != info.version or header.signal < header.version:
            raise InvalidBlock(f"version {header.version}, signal {header.signal}, expected {info.version}")
        if header.committee_hash != committee.hash:
            raise InvalidBlock(f"a committee {header.committee_hash.hex()}, expected {committee.hash.hex()}")
        if header.next_committee_hash != _next_committee_hash(state, info, header.height):
            raise InvalidBlock("the next committee is not the one that was selected")
        if header.view <= tally.view:
            raise InvalidBlock(f"view {header.view} after view {tally.view}")
        if header.proposer_seat != committee.leader(header.view):
            raise InvalidBlock(f"seat {header.proposer_seat} does not lead view {header.view}")
        check_voters(committee, header.voters_bitmap)
        vrf_key = committee.seats[header.proposer_seat].vrf_key
        if vrf_verify(vrf_key, self._vrf_input(info, header.view), header.vrf_proof) is None:
            raise InvalidBlock(f"the VRF proof is not that of seat {header.proposer_seat}")

    def execute(
        self, block: Block, transactions: Sequence[Checked], *, block_hash: bytes | None = None,
        raw: bytes | None = None,
    ) -> Executed:  # fmt: skip
        """Execute a block over its executed parent and keep the result. A second call returns the first result.

        ``transactions`` are the checked and resolved transactions of the block's body. ``raw`` are the block's
        bytes as received. Raises InvalidBlock: BlockUnknown, StateDiverged, or for a body that ``check`` would
        have refused.
        """
        header = block.header
        if block_hash is None:
            block_hash = header_hash(header)
        if len(transactions) != len(block.transactions):
            raise AssertionError("a body without its transactions")
        with self._lock:
            known = self._blocks.get(block_hash)
            if known is not None:
                return known
            parent = self._parent(header.parent_hash)
            _check_place(header, parent, self._interval_ms)
            if header.base_fee != self.runtime.base_fee(parent.state):
                raise InvalidBlock(f"base fee {header.base_fee}, expected {self.runtime.base_fee(parent.state)}")
            execution = self.runtime.execute(
                parent.state,
                BlockInput(
                    height=header.height,
                    epoch=header.epoch,
                    view=header.view,
                    proposer_seat=header.proposer_seat,
                    time_ms=header.time_ms,
                    base_fee=header.base_fee,
                    vrf_proof=header.vrf_proof,
                    voters_bitmap=header.voters_bitmap,
                    signal=header.signal,
                    evidence=block.evidence,
                ),
                transactions,
            )
            executed = Executed(
                block_hash,
                header,
                encode_block(block) if raw is None else raw,
                tuple(transactions),
                execution,
                parent.state,
                parent.trie,
            )
            self._blocks[block_hash] = executed
            return executed

    def commit(self, block_hash: bytes, certificate: bytes, views: ViewCertificates = NO_VIEWS) -> list[Executed]:
        """Write an executed block and its executed ancestors, lowest first, and drop blocks that can no longer be
        final.

        Each block is stored with ``certificate``, which names the last one; the hashes prove the others. ``views``
        are certificates of the views up to the last block; they are written with the first block. Returns the
        written blocks.

        Raises BlockUnknown, and StoreError when a write fails. Blocks before the failed write are then final; the
        rest stays in memory.
        """
        with self._lock:
            branch = self._branch(block_hash)
            for executed in branch:
                self.store.commit(executed.finalised(certificate, self.runtime.chain, views))
                views = NO_VIEWS
                del self._blocks[executed.block_hash]
                self._rebase(executed.block_hash)
            return branch

    def drop(self, block_hashes: Iterable[bytes]) -> None:
        """Drop executed blocks that can no longer become final, with all their descendants."""
        with self._lock:
            for block_hash in block_hashes:
                self._blocks.pop(block_hash, None)
            self._drop_orphans()

    # The parts; all under the lock.

    def _parent(self, block_hash: bytes) -> _Parent:
        tip = self.store.tip
        if block_hash == tip.block_hash:
            store = self.store
            return _Parent(tip.height, tip.time_ms, tip.state_root, tip.receipt_root, store, store.trie)
        executed = self._blocks.get(block_hash)
        if executed is None:
            raise BlockUnknown(f"block {block_hash.hex()} is not executed here")
        header = executed.header
        return _Parent(
            header.height,
            header.time_ms,
            executed.state_root,
            executed.receipt_root,
            executed.state,
            executed.trie,
        )

    def _branch(self, block_hash: bytes) -> list[Executed]:
        """Return the executed blocks from the tip's child to ``block_hash``; none for the tip itself."""
        branch: list[Executed] = []
        while block_hash != self.store.tip.block_hash:
            executed = self._blocks.get(block_hash)
            if executed is None:
                raise BlockUnknown(f"block {block_hash.hex()} does not lead to the tip")
            branch.append(executed)
            block_hash = executed.header.parent_hash
        branch.reverse()
        return branch

    def _rebase(self, parent_hash: bytes) -> None:
        """Let the children of a block that is now in the store read from the store. Drop competing blocks."""
        for executed in self._blocks.values():
            if executed.header.parent_hash == parent_hash:
                executed.state.base = self.store
                if isinstance(executed.trie.nodes, NodeLayer):
                    executed.trie.nodes.rebase(self.store.nodes)
        self._drop_orphans()

    def _drop_orphans(self) -> None:
        """Forget the blocks whose ancestors do not lead to the tip."""
        rooted = {self.store.tip.block_hash}
        for executed in sorted(self._blocks.values(), key=lambda executed: executed.header.height):
            if executed.header.parent_hash in rooted:
                rooted.add(executed.block_hash)
            else:
                del self._blocks[executed.block_hash]


def _next_committee_hash(state: Reader, info: EpochInfo, height: int) -> bytes:
    """Return the next committee's hash for the header at ``height``; empty unless it is the last block of an
    epoch.
    """
    if height != info.last_height:
        return ZERO_HASH
    committee = load_committee(state, info.epoch + 1)
    assert committee is not None, "selected at the boundary before"
    return committee.hash


def _check_place(header: Header, parent: _Parent, interval_ms: int) -> None:
    if header.height != parent.height + 1:
        raise InvalidBlock(f"height {header.height} on a parent of height {parent.height}")
    # With what voters hold because it is ahead of their clocks, this keeps any leader from making time run faster.
    if header.time_ms < parent.time_ms + interval_ms:
        raise BlockTimeWrong(f"time {header.time_ms}, the parent's {parent.time_ms}, interval {interval_ms} ms")
    if (header.state_root, header.receipt_root) != (parent.state_root, parent.receipt_root):
        raise StateDiverged(
            f"height {parent.height}: state root {parent.state_root.hex()} here, {header.state_root.hex()} in the "
            f"next header; receipt root {parent.receipt_root.hex()} here, {header.receipt_root.hex()} there"
        )
