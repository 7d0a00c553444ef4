"""Fetches the inputs of a task: its data set and model, and the states of its windows.

Any node may be the source: a blob's name is its hash, and a state is checked against the root on chain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple

import trio

from node.market.blob_search import BlobSearch
from node.market.task_keys import KeysMissing, TaskKeys
from p2p.base.errors import BlobOverLimit
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
from tasks.engines.input_blobs import check_tensors
from tasks.engines.state import TrainingState
from tasks.kinds.plan import Input
from tasks.ledger.records import WindowRecord
from tasks.programs.program import SourceKind
from tasks.proofs import LEAVES_LIMIT_BYTES, LeavesBroken, SegmentLeaf, check_leaves, decode_leaves
from tasks.spec import ClassifierPart, JobSpec

__all__ = [
    "DATASET_INPUT",
    "DatasetWrong",
    "InputUnavailable",
    "Inputs",
    "JobInputs",
    "OutputFalse",
    "Supply",
    "inputs_limit",
]

DATASET_INPUT: Final = 0
"""The number of the data set among the inputs of a task."""
FETCH_QUIET_S: Final = 60.0
"""A fetch without progress for this long is restarted."""
FETCH_TRIES_MAX: Final = 3
"""Fetches without progress in a row before giving up, where the whole duty is tried again later. Slow progress is
accepted while time remains."""
FETCH_PAUSE_S: Final = 5 / 3
"""Pause between the first two fetches. Each further pause is twice as long as the one before."""
FETCH_PAUSE_GROWTH_MAX: Final = 6
"""No pause is longer than so many times the first one."""
LATE_S: Final = 1.0
"""A fetch that ends so long after its time did not use this time: the process or its machine stood still."""
LATE_TRY_S: Final = 10.0
"""Such a fetch is tried once more, until nothing came for this long."""
QUIET_S: Final = 15.0
"""If peers send no piece of a data set for this long, other holders are searched."""
MANIFEST_SOURCES_MAX: Final = 8
"""Nodes asked for the manifest of a blob that could not be fetched: its size may prove that it is no data set."""
DATASETS_HELD_MAX: Final = 2
"""Data sets kept in memory."""
MODELS_HELD_MAX: Final = 1
"""Models kept in memory."""
CHECKED_MAX: Final = 1_024
"""Blobs whose roots are known: a model is hashed once, and not for each task and window."""


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


class JobInputs(NamedTuple):
    """What a job starts from, checked against its roots. ``model`` is empty for a job without one.

    ``start`` is the state of another task that it goes on from (R133), if it does.
    """

    dataset: bytes
    model: bytes
    start: bytes = b""


class Supply(NamedTuple):
    """The sources of a blob, asked for at each try, and the time (of trio's clock) until which it is useful.

    ``tries``: fetches without progress in a row before giving up; None: as many as the time has room for.
    """

    sources: Callable[[], Sequence[bytes]]
    until: float = inf
    tries: int | None = FETCH_TRIES_MAX

    @property
    def brief(self) -> Supply:
        """The same with few tries, for a caller that others wait for."""
        return self._replace(tries=FETCH_TRIES_MAX)


class _Patience:
    """A scope that ends when nothing arrives for ``quiet_s``."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self.scope = trio.CancelScope()
        self.note()

    def note(self, *_progress: int) -> None:
        """Note that something arrived."""
        self.scope.deadline = trio.current_time() + self._quiet_s


class _Tries:
    """Counts the tries of a fetch and makes pauses between them, longer each time."""

    def __init__(self, most: int | None, until: float) -> None:
        assert most is not None or until < inf, "a fetch without an end"
        self._most, self._until = most, until
        self._failed = 0
        self._is_last = False

    @property
    def deadline(self) -> float:
        """When the next try ends, whatever comes."""
        return inf if self._is_last else self._until

    @property
    def quiet_s(self) -> float:
        """How long nothing may come in the next try."""
        return LATE_TRY_S if self._is_last else FETCH_QUIET_S

    def note(self, *, progress: bool) -> None:
        """Note that a try failed; with ``progress`` only it counts."""
        self._failed = 1 if progress else self._failed + 1

    async def goes_on(self) -> bool:
        """Tell whether there is one more try, after a pause."""
        if not self._failed:
            return True
        late_s = trio.current_time() - self._until
        if late_s >= 0:
            # Whoever stood still must not say of others that they did not answer.
            was_last, self._is_last = self._is_last, True
            return late_s > LATE_S and not was_last
        if self._most is not None and self._failed >= self._most:
            return False
        pause_s = FETCH_PAUSE_S * min(1 << min(self._failed - 1, 16), FETCH_PAUSE_GROWTH_MAX)
        await trio.sleep(min(pause_s, -late_s))
        return True


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
        self.keepers: Callable[[bytes], Sequence[bytes]] = lambda _task: ()
        """Machines that may keep a container for a requester who is away (R128)."""
        self._datasets = _Held(DATASETS_HELD_MAX)
        self._models = _Held(MODELS_HELD_MAX)
        self._checked: dict[_Place, None] = {}
        self._reading = trio.Lock()

    def peers(self, *first: bytes) -> list[bytes]:
        """Return the sources to ask for a blob: the expected holders, then all other peers."""
        connected = [peer.address for peer in self._network.peers()]
        return [address for address in dict.fromkeys([*first, *connected]) if address != self._own]

    def holders(self, window: WindowRecord) -> list[bytes]:
        """Return the sources of a window's blobs: the worker, the verifiers that fetched them, then all other
        peers.
        """
        return self.peers(window.worker, *(seat.address for seat in (*window.verifiers, *window.jurors)))

    async def all_of(self, spec: JobSpec, supply: Supply, task: bytes, *, begins: bool = False) -> JobInputs:
        """Return what a segment reads; with ``begins`` also the state that the job goes on from (R133).

        Only the first window's worker makes the job's first state of that. Raises as ``dataset``.
        """
        dataset = await self.dataset(spec, supply, task)
        found = {SourceKind.STATE: b"", SourceKind.MODEL: b"", SourceKind.ADAPTER: b""}
        for given in spec.inputs()[1:]:
            if begins or given.kind is not SourceKind.STATE:
                found[given.kind] = await self._model(given, supply, task)
        return JobInputs(dataset, found[SourceKind.MODEL] + found[SourceKind.ADAPTER], found[SourceKind.STATE])

    async def obtain_inputs(self, spec: JobSpec, supply: Supply, task: bytes) -> None:
        """Fetch the blobs that a segment reads to this machine's disk. Raises InputUnavailable."""
        await self.obtain_dataset(spec, supply, task)
        for given in spec.inputs()[1:]:
            if given.kind is not SourceKind.STATE:
                await self.obtain(given.blob, supply, given.size_bytes, task)

    async def _model(self, given: Input, supply: Supply, task: bytes) -> bytes:
        """Return the blob of a frozen model. Raises InputUnavailable, also where it is another one.

        Models are public, and no claim is judged about them: whoever finds that one is wrong complains.
        """
        await self.obtain(given.blob, supply, given.size_bytes, task)
        async with self._reading:
            return await self._contents(given, supply, task, self._models, None)

    async def _contents(self, given: Input, supply: Supply, task: bytes, held: _Held, key: bytes | None) -> bytes:
        """Return the tensors of a blob that no claim is judged about. Raises InputUnavailable."""
        place = given.blob, given.root, key or b""
        if (known := held.get(place)) is not None:
            return known
        data = await self.fetch(given.blob, supply.brief, self._limit_of(given, task), task)
        if key is not None:
            data = await trio.to_thread.run_sync(crypt_blob, key, given.root, data[: given.size_bytes])
        if place not in self._checked:
            try:
                check = given.check or partial(check_tensors, given.tensors, given.root)
                await trio.to_thread.run_sync(check, data)
            except DekubeError as error:
                raise InputUnavailable(f"blob {given.blob.hex()}: {error}") from None
            while len(self._checked) >= CHECKED_MAX:
                self._checked.pop(next(iter(self._checked)))
            self._checked[place] = None
        held.put(place, data)
        return data

    async def dataset(self, spec: JobSpec, supply: Supply, task: bytes) -> bytes:
        """Return the encoded data set of a job, checked against its root. Its custodians are asked first.

        Raises InputUnavailable, and DatasetWrong where the blob is another one.
        """
        supply = self._with_custodians(supply, task)
        try:
            await self.obtain_dataset(spec, supply, task)
        except InputUnavailable as error:
            claim = await self._claim_of_size(spec, supply, task) if _is_judged(spec) else None
            if claim is None:
                raise
            raise DatasetWrong(str(error), claim) from None
        key = await self._input_key(task)
        async with self._reading:  # one at a time: each takes several times its size for a while
            if not _is_judged(spec):
                return await self._contents(spec.inputs()[0], supply, task, self._datasets, key)
            place = spec.dataset.blob, spec.dataset.root, key or b""
            if (known := self._datasets.get(place)) is not None:
                return known
            data = await self.fetch(spec.dataset.blob, supply.brief, self._dataset_limit(spec, task), task)
            if key is not None:
                data, claim = await trio.to_thread.run_sync(find_keyed_fault, task, spec, data, key)
            else:
                claim = await trio.to_thread.run_sync(find_fault, task, spec, data)
            if claim is not None:
                raise DatasetWrong(say_fault(spec, claim.fault, claim.place, claim.size), claim)
            self._datasets.put(place, data)
            return data

    async def obtain_dataset(self, spec: JobSpec, supply: Supply, task: bytes) -> None:
        """Fetch the blob of a job's data set to this machine's disk. Raises InputUnavailable."""
        supply = self._with_custodians(supply, task)
        await self.obtain(spec.dataset.blob, supply, self._dataset_limit(spec, task), task)

    def _with_custodians(self, supply: Supply, task: bytes) -> Supply:
        def ask() -> list[bytes]:
            found = [address for address in self.custodians(task) if address != self._own]
            return list(dict.fromkeys([*found, *supply.sources()]))

        return supply._replace(sources=ask)

    def _has_input_keys(self, task: bytes) -> bool:
        terms = None if self.keys is None else self.keys.terms(task)
        return terms is not None and terms.inputs > 0

    def _dataset_limit(self, spec: JobSpec, task: bytes) -> int:
        """Return the size up to which a data set is fetched: a claim about a wrong one may need the blob."""
        if not _is_judged(spec):
            return self._limit_of(spec.inputs()[0], task)
        return sealed_size(DATASET_BLOB_BYTES_MAX) if self._has_input_keys(task) else DATASET_BLOB_BYTES_MAX

    def _limit_of(self, given: Input, task: bytes) -> int:
        is_sealed = given.kind is SourceKind.DATA and self._has_input_keys(task)
        return sealed_size(given.size_bytes) if is_sealed else given.size_bytes

    async def _claim_of_size(self, spec: JobSpec, supply: Supply, task: bytes) -> InputClaim | None:
        """Return the claim against a blob that is too large to be fetched, if somebody shows its manifest."""
        wanted = input_blob_size(spec) if self._has_input_keys(task) else None
        for source in supply.sources()[:MANIFEST_SOURCES_MAX]:
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

    async def unlock(self, task: bytes, window: int, until: float | None = None) -> None:
        """Have the keys of a window of a private task. Raises InputUnavailable.

        Holders are asked again until the time ``until``; without it once. Whoever hears of a draw before the
        worker does is refused at first, because the worker answers those alone whom its own chain has drawn.
        """
        if self.keys is None:
            return
        tries = _Tries(1, inf) if until is None else _Tries(None, until)
        error = KeysMissing("they did not arrive in time")
        while await tries.goes_on():
            with trio.move_on_at(tries.deadline):
                try:
                    await self.keys.unlock(task, window)
                    return
                except KeysMissing as failure:
                    error = failure
            tries.note(progress=False)
        raise InputUnavailable(str(error))

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
        blobs, tries = self._blobs, _Tries(supply.tries, supply.until)
        error = InputUnavailable("it did not arrive in time")
        while not blobs.is_complete(name) and await tries.goes_on():
            here, patience = self.pieces_here(name), _Patience(tries.quiet_s)
            with trio.move_on_at(tries.deadline), patience.scope:
                try:
                    await self._bring(name, supply.sources(), limit_bytes, dataset_of, patience)
                except BlobOverLimit as failure:
                    raise InputUnavailable(f"blob {name.hex()}: {failure}") from None
                except DekubeError as failure:
                    error = InputUnavailable(str(failure))
            if patience.scope.cancelled_caught:
                error = InputUnavailable(f"nothing came for {tries.quiet_s} s")
            tries.note(progress=self.pieces_here(name) > here)
        if not blobs.is_complete(name):
            raise InputUnavailable(f"blob {name.hex()}: {error}")
        manifest = blobs.manifest(name)
        if manifest is not None and manifest.size_bytes > limit_bytes:
            raise InputUnavailable(f"blob {name.hex()}: {manifest.size_bytes} bytes, limit {limit_bytes}")

    async def obtain_all(
        self, names: Collection[bytes], supply: Supply, limit_bytes: int
    ) -> dict[bytes, InputUnavailable]:
        """Fetch blobs beside each other, so that none waits for one that nobody has; return the errors."""
        lacks: dict[bytes, InputUnavailable] = {}
        failure: OSError | None = None

        async def obtain(name: bytes) -> None:
            nonlocal failure
            try:
                await self.obtain(name, supply, limit_bytes)
            except InputUnavailable as error:
                lacks[name] = error
            except OSError as error:  # raised again below: out of the nursery it would come in a group
                failure = error
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for name in dict.fromkeys(names):
                nursery.start_soon(obtain, name)
        if failure is not None:
            raise failure
        return lacks

    def pieces_here(self, name: bytes) -> int:
        """Return how many pieces of a blob are on this machine's disk."""
        manifest = self._blobs.manifest(name)
        if manifest is None:
            return 0
        try:
            return len(manifest.hashes) - len(self._blobs.missing(name))
        except DekubeError:  # evicted meanwhile
            return 0

    async def _bring(
        self, name: bytes, sources: Sequence[bytes], limit_bytes: int, dataset_of: bytes, patience: _Patience
    ) -> None:
        fetch = partial(self._network.fetch_blob, name, sources, limit_bytes=limit_bytes)
        if not dataset_of or self.search is None:
            await fetch(progress=patience.note)
            return
        direct = _Patience(QUIET_S)

        def note(_done: int, _every: int) -> None:
            direct.note()
            patience.note()

        with direct.scope:
            try:
                await fetch(progress=note)
                return
            except BlobOverLimit:
                raise
            except DekubeError:
                pass
        await self.search.fetch(dataset_of, name, limit_bytes)


_Place = tuple[bytes, bytes, bytes]
"""Content address, root, and the key of a cipher; empty for plain bytes.

The key belongs to it: other tasks may name the same cipher, and it decrypts to nothing with their keys.
"""


class _Held:
    """Contents of blobs in memory, the latest ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._contents: dict[_Place, bytes] = {}

    def get(self, place: _Place) -> bytes | None:
        return self._contents.get(place)

    def put(self, place: _Place, content: bytes) -> None:
        while len(self._contents) >= self._most:
            self._contents.pop(next(iter(self._contents)))
        self._contents[place] = content


def inputs_limit(spec: JobSpec) -> int:
    """Return the most bytes that the inputs of a job may take on a disk, private ones too."""
    return sealed_size(DATASET_BLOB_BYTES_MAX if _is_judged(spec) else spec.inputs_bytes())


def _is_judged(spec: JobSpec) -> bool:
    """Tell whether the chain judges claims about the inputs of a job (market.md R32, R57)."""
    return isinstance(spec.part, ClassifierPart)


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
