"""Keeps inputs and outputs as a machine with role storage: fetches, signs, answers demands, receives.

What everybody can read lies as it is. A custodian makes the chunks from it, and holds the roots against those on
chain. What is private lies encrypted, with the hashes of its plain chunks. Its custodian checks both roots and can
read nothing. See market.md 11.5, 11.7 and 11.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.wallet import Wallet
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from state.primitives.errors import DekubeError
from state.view.accounts import balance_of
from tasks.custody.chunks import Custody, chunk_proof_to_value
from tasks.custody.errors import ChunkInvalid
from tasks.custody.sealed import custody_of, is_public, public_input, public_output, sealed_size
from tasks.ledger.custody_queries import CustodyAction, CustodyDuty, inputs_kept, outputs_kept
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyRecord, find_terms, load_custody
from tasks.ledger.custody_transitions import ANSWER_DEMAND, RECEIVE_CUSTODY, TAKE_CUSTODY
from tasks.ledger.records import load_spec, load_window

__all__ = ["Keeper", "NoFundsToKeep", "NoRoomToKeep"]

_log = structlog.get_logger("custody")

FETCH_S: Final = 600.0
"""Time that a fetch of a blob may take before it is tried again."""
PIN: Final = "custody"
ANSWERS_AT_ONCE: Final = 8
"""Answers to demands that the account can pay for beside its bonds; each brings back what it cost."""
CustodyId = tuple[bytes, int]
"""A task, and a window of it or ``INPUT_WINDOW``."""


class NoRoomToKeep(DekubeError):
    """A blob that this machine does not sign for: what it keeps for others is bounded."""

    code = "no_room_to_keep"


class NoFundsToKeep(DekubeError):
    """A blob that this machine does not sign for: the bond would leave too little to answer a demand with.

    Who cannot pay for the answer loses the bond. A requester that pays itself chooses how large a bond is.
    """

    code = "no_funds_to_keep"


class _Kept(NamedTuple):
    """A blob in custody: its name, the bytes that lie under it, and whether everybody can read them."""

    name: bytes
    size: int
    is_public: bool


class Keeper:
    """Does what custody asks of this machine. It keeps ``bytes_max`` for others at most."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore, *, bytes_max: int,
        others: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self._ledger, self._wallet, self._inputs, self._blobs = ledger, wallet, inputs, blobs
        self._bytes_max, self._others = bytes_max, others
        self._pinned: dict[CustodyId, bytes] = {}
        self._taking: dict[CustodyId, _Kept] = {}
        """Blobs that this machine is about to sign for."""
        self._bonds: dict[CustodyId, int] = {}
        """What it is about to lock for them."""
        self.tidy()  # duties wait until the node has caught up; an upload may ask for room before

    @property
    def room_bytes(self) -> int:
        """What this machine may still keep for others."""
        return max(0, self._bytes_max - self.kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """What this machine keeps for others, or is about to: blobs in custody, and what ``others`` counts."""
        pinned = set(self._pinned.values())
        manifests = [self._blobs.manifest(name) for name in pinned]
        taking = {kept.name: kept.size for kept in self._taking.values() if kept.name not in pinned}
        kept = sum(item.size_bytes for item in manifests if item is not None)
        return self._others() + kept + sum(taking.values())

    def tidy(self) -> None:
        """Keep the blobs that this machine has signed for from being evicted; delete those of a custody that is
        over, unless the machine has another use for them.
        """
        state, own = self._ledger.store, self._wallet.address
        kept = {*outputs_kept(state, own), *((task, INPUT_WINDOW) for task in inputs_kept(state, own))}
        for place in kept - self._pinned.keys():
            name = self._pinned[place] = self._blob_of(*place).name
            self._blobs.pin(name, PIN)
        for place in self._pinned.keys() - kept:
            self._let_go(self._pinned.pop(place), deletes=True)

    def _let_go(self, name: bytes, *, deletes: bool) -> None:
        if name in self._pinned.values() or any(kept.name == name for kept in self._taking.values()):
            return
        self._blobs.unpin(name, PIN)
        if deletes:
            self._blobs.discard(name)

    def _blob_of(self, task: bytes, number: int) -> _Kept:
        """Return the blob of an input or an output in custody. Raises CustodyUnknown."""
        state = self._ledger.store
        terms, size = find_terms(state, task), load_custody(state, task, number).blob.size
        if number == INPUT_WINDOW:
            is_plain, name = terms is None or not terms.inputs, load_spec(state, task).dataset.blob
        else:
            is_plain = terms is None or is_public(terms.key_root, terms.inputs, terms.windows)
            name = load_window(state, task, number).proof.output_blob
        return _Kept(name, size if is_plain else sealed_size(size), is_plain)

    async def perform(self, duty: CustodyDuty) -> None:
        """Do one duty.

        Raises InputUnavailable: the blob cannot be fetched, or is not what its author says. Raises NoRoomToKeep,
        NoFundsToKeep.
        """
        place: list[Value] = [duty.task, duty.window]
        if duty.action is CustodyAction.SIGN:
            with self.room_for((duty.task, duty.window)), self._funds_for(duty):
                await self._fetch(duty)
                self._check_funds()
                await self._wallet.send(TAKE_CUSTODY, [*place, duty.bond])
                self.tidy()
        elif duty.action is CustodyAction.ANSWER:
            chunk = (await self._fetch(duty)).proof(duty.chunk)
            await self._wallet.send(ANSWER_DEMAND, [*place, chunk_proof_to_value(chunk)])
        else:
            await self._fetch(duty)
            await self._wallet.send(RECEIVE_CUSTODY, place)
        what = {"input": True} if duty.window == INPUT_WINDOW else {"window": duty.window}
        _log.info("custody duty done", action=duty.action.name.lower(), task=duty.task, **what)

    @contextmanager
    def room_for(self, place: CustodyId) -> Iterator[None]:
        """Have room for a blob, also while others are signed for. Raises NoRoomToKeep."""
        kept = self._blob_of(*place)
        is_here = kept.name in self._pinned.values() or any(kept.name == one.name for one in self._taking.values())
        needed = self.kept_bytes + (0 if is_here else kept.size)
        if needed > self._bytes_max:
            raise NoRoomToKeep(f"{needed} bytes would be kept for others, storage.bytes_kept_max allows fewer")
        self._taking[place] = kept
        self._blobs.pin(kept.name, PIN)  # before it comes: it must be there when the receipt is on chain
        try:
            yield
        finally:
            del self._taking[place]
            self._let_go(kept.name, deletes=False)

    @contextmanager
    def _funds_for(self, duty: CustodyDuty) -> Iterator[None]:
        """Count a bond as locked until it is. Raises NoFundsToKeep."""
        place = duty.task, duty.window
        self._bonds[place] = duty.bond
        try:
            self._check_funds()
            yield
        finally:
            del self._bonds[place]

    def _check_funds(self) -> None:
        bonds, sent = sum(self._bonds.values()), len(self._bonds) * (TAKE_CUSTODY,)
        needed = bonds + self._wallet.cost_of(*sent, *ANSWERS_AT_ONCE * (ANSWER_DEMAND,))
        there = balance_of(self._ledger.store, self._wallet.address)
        if needed > there:
            raise NoFundsToKeep(f"{needed} needed for the bond and for answers to demands, {there} there")

    async def _fetch(self, duty: CustodyDuty) -> Custody:
        """Return a blob as it lies in custody. Raises InputUnavailable."""
        record = load_custody(self._ledger.store, duty.task, duty.window)
        asked = record.demand
        first = (
            [asked.holder]
            if asked is not None and asked.receiver
            else [holder.address for holder in record.holders]
        )
        supply = Supply(partial(self._inputs.peers, *first, record.author), trio.current_time() + FETCH_S)
        kept = self._blob_of(duty.task, duty.window)
        read = self._input if record.is_input else self._output
        try:
            return await read(record, kept, supply)
        except ChunkInvalid as error:
            raise InputUnavailable(f"the blob is not what stands on chain for custody: {error}") from None

    async def _input(self, record: CustodyRecord, kept: _Kept, supply: Supply) -> Custody:
        blob = await self._inputs.fetch(kept.name, supply, kept.size, record.task)
        if not kept.is_public:
            return await trio.to_thread.run_sync(custody_of, record.blob, blob)
        root = load_spec(self._ledger.store, record.task).dataset.root
        plain = await trio.to_thread.run_sync(public_input, root, blob)
        return await trio.to_thread.run_sync(Custody, record.blob, plain.chunks, plain.plain_hashes)

    async def _output(self, record: CustodyRecord, kept: _Kept, supply: Supply) -> Custody:
        if not kept.is_public:
            blob = await self._inputs.fetch(kept.name, supply, kept.size)
            return await trio.to_thread.run_sync(custody_of, record.blob, blob)
        state = self._ledger.store
        window, spec = load_window(state, record.task, record.window), load_spec(state, record.task)
        content = await self._inputs.fetch_state(window, supply, spec)
        plain = await trio.to_thread.run_sync(public_output, record.window, content)
        return await trio.to_thread.run_sync(Custody, record.blob, plain.chunks, plain.plain_hashes)
