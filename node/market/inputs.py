"""Fetches the inputs of a task: its data set and the states of its windows.

Any node may be the source: a blob's name is its hash, and a state is checked against the root on chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple

import trio

from node.market.blob_search import BlobSearch
from node.market.task_keys import KeysMissing, TaskKeys
from p2p.blob.transfer import METHOD_MANIFEST
from p2p.service import Network
from state.primitives.errors import DekubeError, ProtocolError
from state.primitives.manifests import MANIFEST_BYTES_MAX, Manifest, pieces_digest
from tasks.claims import InputClaim, claim_of_size, find_fault, say_fault
from tasks.custody.chunks import BlobCommitment, ChunkProof
from tasks.custody.errors import ChunkInvalid
from tasks.custody.inputs import find_keyed_fault
from tasks.custody.sealed import (
    OutputIsGarbage,
    crypt_blob,
    input_blob_size,
    open_output,
    public_output,
    sealed_size,
    state_key,
)
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.engines.state import TrainingState
from tasks.ledger.records import WindowRecord
from tasks.proofs import LEAVES_LIMIT_BYTES, LeavesBroken, SegmentLeaf, check_leaves, decode_leaves
from tasks.spec import JobSpec

__all__ = ["DATASET_INPUT", "DatasetWrong", "InputUnavailable", "Inputs", "OutputFalse", "Supply"]

DATASET_INPUT: Final = 0
"""The number of the data set among the inputs of a task."""
FETCH_QUIET_S: Final = 60.0
"""A fetch without progress for this long is restarted."""
FETCH_TRIES_MAX: Final = 3
"""Fetches without progress in a row before giving up. Slow progress is accepted while time remains."""
FETCH_PAUSE_S: Final = 5 / 3
"""Pause between two of them."""
QUIET_S: Final = 15.0
"""If peers send no piece of a data set for this long, other holders are searched."""
MANIFEST_SOURCES_MAX: Final = 8
"""Nodes asked for the manifest of a blob that could not be fetched: its size may prove that it is no data set."""
DATASETS_HELD_MAX: Final = 2
"""Decoded data sets kept in memory."""


class InputUnavailable(DekubeError):
    """A blob for a duty could not be fetched, or does not match its root."""

    code = "input_unavailable"


class OutputFalse(InputUnavailable):
    """What a worker committed to for custody is not its result; ``chunk`` or ``plain`` shows it."""

    code = "output_false"

    def __init__(self, message: str, *, chunk: ChunkProof | None = None, plain: bytes | None = None) -> None:
        super().__init__(message)
        self.chunk, self.plain = chunk, plain


class DatasetWrong(InputUnavailable):
    """The blob of a data set came, and is not the data set of the job; ``claim`` proves it."""

    code = "dataset_wrong"

    def __init__(self, message: str, claim: InputClaim) -> None:
        super().__init__(message)
        self.claim = claim


class Supply(NamedTuple):
    """The sources of a blob, and the time (of trio's clock) until which it is useful."""

    sources: Sequence[bytes]
    until: float = inf


class _Patience:
    """A scope that ends when nothing arrives for ``quiet_s``."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self.scope = trio.CancelScope()
        self.note()

    def note(self, *_progress: int) -> None:
        """Note that something arrived."""
        self.scope.deadline = trio.current_time() + self._quiet_s


class Inputs:
    """Fetches blobs to this machine and reads them."""

    def __init__(self, network: Network, own: bytes) -> None:
        assert network.blobs is not None
        self._network = network
        self._blobs = network.blobs
        self._own = own
        self.search: BlobSearch | None = None
        """Searches for holders of a data set that no peer has."""
        self.keys: TaskKeys | None = None
        """Keys of private tasks; without them such a task has no readable blob here."""
        self.custodians: Callable[[bytes], Sequence[bytes]] = lambda _task: ()
        """Machines that have signed for the data set of a task."""
        self._datasets: dict[bytes, tuple[bytes, bytes]] = {}
        self._reading_dataset = trio.Lock()

    def peers(self, *first: bytes) -> list[bytes]:
        """Return the sources to ask for a blob: the expected holders, then all other peers."""
        connected = [peer.address for peer in self._network.peers()]
        return [address for address in dict.fromkeys([*first, *connected]) if address != self._own]

    def holders(self, window: WindowRecord) -> list[bytes]:
        """Return the sources of a window's blobs: the worker, the verifiers that fetched them, then all other
        peers.
        """
        return self.peers(window.worker, *(seat.address for seat in (*window.verifiers, *window.jurors)))

    async def dataset(self, spec: JobSpec, supply: Supply, task: bytes) -> bytes:
        """Return the encoded data set of a job, checked against its root. Its custodians are asked first.

        Raises InputUnavailable, and DatasetWrong where the blob is another one.
        """
        supply = self._with_custodians(supply, task)
        try:
            await self.obtain_dataset(spec, supply, task)
        except InputUnavailable as error:
            claim = await self._claim_of_size(spec, supply, task)
            if claim is None:
                raise
            raise DatasetWrong(str(error), claim) from None
        key = await self._input_key(task)
        async with self._reading_dataset:  # one at a time: each takes several times its size for a while
            known = self._datasets.get(spec.dataset.blob)
            if known is not None and known[0] == spec.dataset.root:
                return known[1]
            data = await self.fetch(spec.dataset.blob, supply, self._dataset_limit(task), task)
            if key is not None:
                data, claim = await trio.to_thread.run_sync(find_keyed_fault, task, spec, data, key)
            else:
                claim = await trio.to_thread.run_sync(find_fault, task, spec, data)
            if claim is not None:
                raise DatasetWrong(say_fault(spec, claim.fault, claim.place, claim.size), claim)
            while len(self._datasets) >= DATASETS_HELD_MAX:
                self._datasets.pop(next(iter(self._datasets)))
            self._datasets[spec.dataset.blob] = (spec.dataset.root, data)
            return data

    async def obtain_dataset(self, spec: JobSpec, supply: Supply, task: bytes) -> None:
        """Fetch the blob of a job's data set to this machine's disk. Raises InputUnavailable."""
        supply = self._with_custodians(supply, task)
        await self.obtain(spec.dataset.blob, supply, self._dataset_limit(task), task)

    def _with_custodians(self, supply: Supply, task: bytes) -> Supply:
        found = [address for address in self.custodians(task) if address != self._own]
        return supply._replace(sources=list(dict.fromkeys([*found, *supply.sources])))

    def _has_input_keys(self, task: bytes) -> bool:
        terms = None if self.keys is None else self.keys.terms(task)
        return terms is not None and terms.inputs > 0

    def _dataset_limit(self, task: bytes) -> int:
        return sealed_size(DATASET_BLOB_BYTES_MAX) if self._has_input_keys(task) else DATASET_BLOB_BYTES_MAX

    async def _claim_of_size(self, spec: JobSpec, supply: Supply, task: bytes) -> InputClaim | None:
        """Return the claim against a blob that is too large to be fetched, if somebody shows its manifest."""
        wanted = input_blob_size(spec) if self._has_input_keys(task) else None
        for source in supply.sources[:MANIFEST_SOURCES_MAX]:
            with suppress(DekubeError):
                data = await self._network.request(
                    source, METHOD_MANIFEST, spec.dataset.blob, limit_bytes=MANIFEST_BYTES_MAX
                )
                manifest = Manifest.decode(data)
                if manifest.blob_id == spec.dataset.blob:
                    pieces = pieces_digest(manifest.hashes)
                    return claim_of_size(task, spec, manifest.size_bytes, pieces, blob_bytes=wanted)
        return None

    async def _input_key(self, task: bytes) -> bytes | None:
        """Return the key of a private task's data set; None where it is public. Raises InputUnavailable."""
        if self.keys is None or not self._has_input_keys(task):
            return None
        try:
            return await trio.to_thread.run_sync(self.keys.input_key, task, DATASET_INPUT)
        except KeysMissing as error:
            raise InputUnavailable(str(error)) from None

    async def unlock(self, task: bytes, window: int, until: float = -inf) -> None:
        """Have the keys of a window of a private task. Raises InputUnavailable.

        Holders are asked again until the time ``until``, for FETCH_QUIET_S at most: whoever hears of a draw before
        the worker does is refused at first, because the worker answers those alone whom its own chain has drawn.
        """
        until = min(until, trio.current_time() + FETCH_QUIET_S)
        while self.keys is not None:
            try:
                await self.keys.unlock(task, window)
                return
            except KeysMissing as error:
                if trio.current_time() + FETCH_PAUSE_S >= until:
                    raise InputUnavailable(str(error)) from None
            await trio.sleep(FETCH_PAUSE_S)

    async def _window_key(self, task: bytes, window: int) -> bytes | None:
        """Return the key of a window of a private task; None where it is public. Raises InputUnavailable."""
        if self.keys is None or self.keys.terms(task) is None:
            return None
        try:
            return (await trio.to_thread.run_sync(self.keys.window_keys, task, window)).window
        except KeysMissing as error:
            raise InputUnavailable(str(error)) from None

    async def fetch_state(self, window: WindowRecord, supply: Supply, spec: JobSpec) -> bytes:
        """Return the state after a window, if it matches its worker's proof.

        Raises InputUnavailable; OutputFalse where its worker has committed to these very bytes for custody.
        """
        proof, key = window.proof, await self._window_key(window.task, window.number)
        limit_bytes = sealed_size(spec.plan().state_limit_bytes)
        state = await self.fetch(proof.output_blob, supply, limit_bytes)
        if key is not None:
            try:
                state = await trio.to_thread.run_sync(open_output, BlobCommitment(*proof.custody), key, state)
            except OutputIsGarbage as error:
                raise OutputFalse(str(error), chunk=error.chunk) from None
            except ChunkInvalid as error:
                raise InputUnavailable(f"output: {error}") from None
        try:
            await trio.to_thread.run_sync(_check_state, state, spec, proof.result_step, proof.result_root)
        except InputUnavailable as error:
            if key is None and not await trio.to_thread.run_sync(_is_committed, window, state):
                raise
            raise OutputFalse(str(error), plain=state) from None
        return state

    async def segment_state(
        self, task: bytes, window: int, leaf: SegmentLeaf, supply: Supply, spec: JobSpec
    ) -> bytes:
        """Return the state before a segment, which is not checked yet. Raises InputUnavailable."""
        key = await self._window_key(task, window)
        state = await self.fetch(leaf.state_blob, supply, spec.plan().state_limit_bytes)
        if key is None:
            return state
        return await trio.to_thread.run_sync(
            crypt_blob, state_key(key, leaf.segment), leaf.state_root_before, state
        )

    async def leaves(self, spec: JobSpec, window: WindowRecord, supply: Supply) -> tuple[SegmentLeaf, ...]:
        """Return the leaves of a window, if they match its proof.

        Raises InputUnavailable; LeavesBroken if they are the worker's and do not fit each other.
        """
        data = await self.fetch(window.proof.leaves_blob, supply, LEAVES_LIMIT_BYTES)
        try:
            leaves = decode_leaves(data)
            check_leaves(spec, window.proof, leaves)
        except LeavesBroken:
            raise
        except ProtocolError as error:
            raise InputUnavailable(f"leaves: {error}") from None
        return leaves

    async def fetch(self, name: bytes, supply: Supply, limit_bytes: int, dataset_of: bytes = b"") -> bytes:
        """Return the content of a blob, from here or from peers. Raises InputUnavailable."""
        await self.obtain(name, supply, limit_bytes, dataset_of)
        try:
            return await self._read(name)
        except InputUnavailable:  # a piece turned out damaged on the disk: others have it
            await self.obtain(name, supply, limit_bytes, dataset_of)
            return await self._read(name)

    async def _read(self, name: bytes) -> bytes:
        try:
            return await trio.to_thread.run_sync(self._blobs.read, name)
        except DekubeError as error:  # evicted meanwhile, or damaged
            raise InputUnavailable(f"blob {name.hex()}: {error}") from None

    async def obtain(self, name: bytes, supply: Supply, limit_bytes: int, dataset_of: bytes = b"") -> None:
        """Fetch a blob to this machine's disk. Raises InputUnavailable.

        If no peer has the data set of the task ``dataset_of``, all nodes are asked. The blob's name comes from an
        untrusted party: ``limit_bytes`` bounds its size.
        """
        blobs, tries = self._blobs, 0
        error = InputUnavailable("it did not arrive in time")
        with trio.move_on_at(supply.until):
            while not blobs.is_complete(name) and tries < FETCH_TRIES_MAX:
                if tries:
                    await trio.sleep(FETCH_PAUSE_S)
                here = self._pieces_here(name)
                try:
                    patience = _Patience(FETCH_QUIET_S)
                    with patience.scope:
                        await self._bring(name, supply, limit_bytes, dataset_of, patience)
                    if patience.scope.cancelled_caught:
                        error = InputUnavailable(f"nothing came for {FETCH_QUIET_S} s")
                except DekubeError as failure:
                    error = InputUnavailable(str(failure))
                tries = 1 if self._pieces_here(name) > here else tries + 1
        if not blobs.is_complete(name):
            raise InputUnavailable(f"blob {name.hex()}: {error}")
        manifest = blobs.manifest(name)
        if manifest is not None and manifest.size_bytes > limit_bytes:
            raise InputUnavailable(f"blob {name.hex()}: {manifest.size_bytes} bytes, limit {limit_bytes}")

    def _pieces_here(self, name: bytes) -> int:
        manifest = self._blobs.manifest(name)
        if manifest is None:
            return 0
        try:
            return len(manifest.hashes) - len(self._blobs.missing(name))
        except DekubeError:  # evicted meanwhile
            return 0

    async def _bring(
        self, name: bytes, supply: Supply, limit_bytes: int, dataset_of: bytes, patience: _Patience
    ) -> None:
        fetch = partial(self._network.fetch_blob, name, supply.sources, limit_bytes=limit_bytes)
        if not dataset_of or self.search is None:
            await fetch(progress=patience.note)
            return
        direct = _Patience(QUIET_S)

        def note(_done: int, _every: int) -> None:
            direct.note()
            patience.note()

        with direct.scope, suppress(DekubeError):
            await fetch(progress=note)
            return
        await self.search.fetch(dataset_of, name, limit_bytes)


def _is_committed(window: WindowRecord, content: bytes) -> bool:
    """Tell whether a public output is the one that its worker committed to for custody."""
    if not window.proof.custody:
        return False
    return bool(content) and public_output(window.number, content).commitment == BlobCommitment(
        *window.proof.custody
    )


def _check_state(data: bytes, spec: JobSpec, step: int, root: bytes) -> None:
    """Check that a state published by another worker matches the chain. Raises InputUnavailable."""
    plan = spec.plan()
    try:
        state = TrainingState.decode(data, plan)
    except DekubeError as error:
        raise InputUnavailable(f"state: {error}") from None
    if (state.step, state.root(plan)) != (step, root):
        raise InputUnavailable("the state does not match the chain")
