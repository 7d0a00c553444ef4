"""Keeps outputs of windows as a machine with role storage: fetches, signs, answers demands, receives.

The outputs of a task with the public key lie as they are. A custodian makes the chunks from the output itself, and
holds the roots against its worker's. Private ones lie encrypted, with the hashes of their plain chunks. Their
custodian checks both roots and can read nothing. See market.md 11.5 and 11.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.wallet import Wallet
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from state.primitives.errors import DekubeError
from tasks.custody.chunks import BlobCommitment, CipherBlob, Custody, chunk_proof_to_value
from tasks.custody.errors import ChunkInvalid
from tasks.custody.keys import PUBLIC_TASK_KEY, derive_key, window_key_name
from tasks.custody.sealed import custody_of, is_public, sealed_size
from tasks.ledger.custody_queries import CustodyAction, CustodyDuty, outputs_kept
from tasks.ledger.custody_records import INPUT_WINDOW, find_terms, load_custody
from tasks.ledger.custody_transitions import ANSWER_DEMAND, RECEIVE_CUSTODY, TAKE_CUSTODY
from tasks.ledger.records import WindowRecord, load_spec, load_window

__all__ = ["Keeper", "NoRoomToKeep", "public_output"]

_log = structlog.get_logger("custody")

FETCH_S: Final = 600.0
"""Time that a fetch of an output may take before it is tried again."""


class NoRoomToKeep(DekubeError):
    """An output that this machine does not sign for: what it keeps for others is bounded."""

    code = "no_room_to_keep"


def public_output(window: int, content: bytes) -> CipherBlob:
    """Return the output of a window of a task with the public key, ready for custody. Raises ChunkInvalid."""
    return CipherBlob(derive_key(PUBLIC_TASK_KEY, window_key_name(window)), content)


class Keeper:
    """Does what custody asks of this machine. It keeps ``bytes_max`` for others at most."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore, *, bytes_max: int,
        others: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self._ledger, self._wallet, self._inputs, self._blobs = ledger, wallet, inputs, blobs
        self._bytes_max, self._others = bytes_max, others
        self._pinned: dict[tuple[bytes, int], bytes] = {}

    @property
    def room_bytes(self) -> int:
        """What this machine may still keep for others."""
        return max(0, self._bytes_max - self.kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """What this machine keeps for others: outputs, and what ``others`` counts."""
        manifests = [self._blobs.manifest(name) for name in set(self._pinned.values())]
        return self._others() + sum(item.size_bytes for item in manifests if item is not None)

    def tidy(self) -> None:
        """Keep the outputs that this machine has signed for from being evicted, and no others any more."""
        state = self._ledger.store
        kept = set(outputs_kept(state, self._wallet.address))
        for place in kept - self._pinned.keys():
            name = self._pinned[place] = load_window(state, *place).proof.output_blob
            self._blobs.pin(name)
        for place in self._pinned.keys() - kept:
            name = self._pinned.pop(place)
            if name not in self._pinned.values():
                self._blobs.unpin(name)

    async def perform(self, duty: CustodyDuty) -> None:
        """Do one duty.

        Raises InputUnavailable: the output cannot be fetched, or is not what its worker says. Raises NoRoomToKeep.
        """
        if duty.window == INPUT_WINDOW:
            raise InputUnavailable("nodes do not keep inputs yet")
        window = load_window(self._ledger.store, duty.task, duty.window)
        if duty.action is CustodyAction.SIGN:
            needed = self.kept_bytes + sealed_size(BlobCommitment(*window.proof.custody).size)
            if needed > self._bytes_max:
                raise NoRoomToKeep(f"{needed} bytes would be kept for others, storage.bytes_kept_max allows fewer")
        output = await self._output(duty, window)
        place: list[Value] = [duty.task, duty.window]
        match duty.action:
            case CustodyAction.SIGN:
                await self._wallet.send(TAKE_CUSTODY, [*place, duty.bond])
            case CustodyAction.ANSWER:
                await self._wallet.send(ANSWER_DEMAND, [*place, chunk_proof_to_value(output.proof(duty.chunk))])
            case CustodyAction.RECEIVE:
                await self._wallet.send(RECEIVE_CUSTODY, place)
        _log.info("custody duty done", action=duty.action.name.lower(), task=duty.task, window=duty.window)

    async def _output(self, duty: CustodyDuty, window: WindowRecord) -> Custody:
        state = self._ledger.store
        spec, terms = load_spec(state, duty.task), find_terms(state, duty.task)
        record = load_custody(state, duty.task, duty.window)
        asked = record.demand
        first = (
            [asked.holder]
            if asked is not None and asked.receiver
            else [holder.address for holder in record.holders]
        )
        supply = Supply(self._inputs.peers(*first, window.worker), trio.current_time() + FETCH_S)
        commitment = BlobCommitment(*window.proof.custody)
        try:
            if terms is not None and not is_public(terms.key_root, terms.inputs, terms.windows):
                blob = await self._inputs.fetch(window.proof.output_blob, supply, sealed_size(commitment.size))
                return await trio.to_thread.run_sync(custody_of, commitment, blob)
            content = await self._inputs.fetch_state(window, supply, spec)
            output = await trio.to_thread.run_sync(public_output, duty.window, content)
            return await trio.to_thread.run_sync(Custody, commitment, output.chunks, output.plain_hashes)
        except ChunkInvalid as error:
            raise InputUnavailable(f"the output is not what its worker commits to for custody: {error}") from None
