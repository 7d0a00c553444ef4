"""Shows on chain that a worker put other bytes than its result into custody (market.md R39, R40).

Machines that check a window read its output in any case. What they show proves a lie in one move: a chunk that
does not decrypt to what the worker committed to, or a plain chunk without the bytes that every such state has.
"""

from __future__ import annotations

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.inputs import OutputFalse
from node.market.task_keys import TaskKeys
from node.market.wallet import TransactionFailed, TransactionLost, Wallet
from state.primitives.errors import DekubeError, InvalidTransaction
from state.primitives.merkle import MerkleTree
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, chunk_proof_to_value
from tasks.custody.errors import ChunkInvalid
from tasks.custody.keys import key_proof_to_value
from tasks.custody.layout import PlainChunk, StateLayout, check_mismatch, plain_chunk_to_value
from tasks.ledger.custody_records import CustodyPhase, find_custody
from tasks.ledger.custody_transitions import REVEAL_GARBAGE, REVEAL_MISMATCH
from tasks.ledger.records import WindowRecord, load_spec

__all__ = ["FalseOutputs", "mismatch_in"]

_log = structlog.get_logger("custody")


def mismatch_in(
    layout: StateLayout, state_root: bytes, commitment: BlobCommitment, plain: bytes
) -> PlainChunk | None:
    """Return a chunk of ``plain`` that lacks what is the same in all states of this layout; None if none does.

    ``plain`` is what ``commitment`` commits to. Values of tensors alone cannot be judged so.
    """
    chunks = [plain[at : at + CHUNK_BYTES] for at in range(0, len(plain), CHUNK_BYTES)]
    tree = MerkleTree(chunks)
    for offset, content in layout.fixed:
        first, last = offset // CHUNK_BYTES, (offset + len(content) - 1) // CHUNK_BYTES
        for number in range(first, min(last, len(chunks) - 1) + 1):
            chunk = PlainChunk(number, chunks[number], tree.siblings(number))
            try:
                check_mismatch(layout, state_root, commitment, chunk, None)
            except ChunkInvalid:
                continue
            return chunk
    return None


class FalseOutputs:
    """Shows what a check has found; the chain settles it at the end of the block."""

    def __init__(self, ledger: NodeLedger, wallet: Wallet, keys: TaskKeys) -> None:
        self._ledger, self._wallet, self._keys = ledger, wallet, keys
        self.shown = 0
        """Lies shown since the start."""

    async def show(self, window: WindowRecord, found: OutputFalse) -> None:
        """Show a false output, if the chain still takes that. What cannot be shown is left to the verdict."""
        task, number = window.task, window.number
        record = find_custody(self._ledger.store, task, number)
        if record is None or record.prover or record.phase is CustodyPhase.VOID:
            return
        try:
            if found.chunk is not None:
                keys = await trio.to_thread.run_sync(self._keys.window_keys, task, number)
                path = key_proof_to_value(keys.path)
                chunk = chunk_proof_to_value(found.chunk)
                await self._wallet.send(REVEAL_GARBAGE, [task, number, keys.window, path, chunk])
            elif found.plain is not None:
                plain = await trio.to_thread.run_sync(self._mismatch, window, found.plain)
                if plain is None:
                    return
                await self._wallet.send(REVEAL_MISMATCH, [task, number, plain_chunk_to_value(plain), []])
        except (TransactionFailed, TransactionLost, InvalidTransaction) as error:
            _log.info("a false output was not shown", task=task, window=number, code=error.code)
            return
        except DekubeError as error:
            _log.warning("a false output cannot be shown", task=task, window=number, error=str(error))
            return
        self.shown += 1
        _log.warning("a false output in custody was shown", task=task, window=number, error=str(found))

    def _mismatch(self, window: WindowRecord, plain: bytes) -> PlainChunk | None:
        proof = window.proof
        layout = StateLayout(load_spec(self._ledger.store, window.task).plan(), proof.result_step)
        return mismatch_in(layout, proof.result_root, BlobCommitment(*proof.custody), plain)
