"""Keeps outputs of windows as a machine with role storage: fetches, signs, answers demands, receives.

A task's outputs are public here: they lie under the key that everybody knows. So a custodian makes the chunks from
the output itself, and holds the roots against its worker's. See market.md 11.5.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.wallet import Wallet
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from tasks.custody.chunks import BlobCommitment, CipherBlob, Custody, chunk_proof_to_value
from tasks.custody.keys import PUBLIC_TASK_KEY, derive_key, window_key_name
from tasks.ledger.custody_queries import CustodyAction, CustodyDuty, outputs_kept
from tasks.ledger.custody_records import load_custody
from tasks.ledger.custody_transitions import ANSWER_DEMAND, RECEIVE_CUSTODY, TAKE_CUSTODY
from tasks.ledger.records import load_spec, load_window

__all__ = ["Keeper", "public_output"]

_log = structlog.get_logger("custody")

FETCH_S: Final = 600.0
"""Time that a fetch of an output may take before it is tried again."""


def public_output(window: int, content: bytes) -> CipherBlob:
    """Return the output of a window of a task with the public key, ready for custody. Raises ChunkInvalid."""
    return CipherBlob(derive_key(PUBLIC_TASK_KEY, window_key_name(window)), content)


class Keeper:
    """Does what custody asks of this machine."""

    def __init__(self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore) -> None:
        self._ledger, self._wallet, self._inputs, self._blobs = ledger, wallet, inputs, blobs
        self._pinned: dict[tuple[bytes, int], bytes] = {}

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
        """Do one duty. Raises InputUnavailable: the output cannot be fetched, or is not what its worker says."""
        output = await self._output(duty)
        place: list[Value] = [duty.task, duty.window]
        match duty.action:
            case CustodyAction.SIGN:
                await self._wallet.send(TAKE_CUSTODY, [*place, duty.bond])
            case CustodyAction.ANSWER:
                kept = Custody(output.commitment, output.chunks, output.plain_hashes)
                chunk = chunk_proof_to_value(kept.proof(duty.chunk))
                await self._wallet.send(ANSWER_DEMAND, [*place, chunk])
            case CustodyAction.RECEIVE:
                await self._wallet.send(RECEIVE_CUSTODY, place)
        _log.info("custody duty done", action=duty.action.name.lower(), task=duty.task, window=duty.window)

    async def _output(self, duty: CustodyDuty) -> CipherBlob:
        state = self._ledger.store
        window, spec = load_window(state, duty.task, duty.window), load_spec(state, duty.task)
        record = load_custody(state, duty.task, duty.window)
        asked = record.demand
        first = (
            [asked.holder]
            if asked is not None and asked.receiver
            else [holder.address for holder in record.holders]
        )
        supply = Supply(self._inputs.peers(*first, window.worker), trio.current_time() + FETCH_S)
        content = await self._inputs.fetch_state(window, supply, spec)
        output = await trio.to_thread.run_sync(public_output, duty.window, content)
        if output.commitment != BlobCommitment(*window.proof.custody):
            raise InputUnavailable("the output is not what its worker commits to for custody")
        return output
