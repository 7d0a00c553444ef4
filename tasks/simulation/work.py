"""Computing, as a model: the result of a segment is a hash, a forged one another hash, and honest work has a cost.

A state after a segment is a function of the task, the state before and the step. So everybody who pays for running
a segment finds the same result, and nobody else does. What is published off the chain (states, leaves, results) is
in one object that all agents share. It hands out only what its publisher serves, and never the work digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from state.primitives.hashing import digest
from state.primitives.merkle import MerkleTree
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, ChunkProof, CipherBlob, Custody
from tasks.custody.keys import derive_key, window_key_name
from tasks.custody.layout import PlainChunk, StateLayout
from tasks.programs.divergence import Divergence
from tasks.proofs import SegmentLeaf, work_seal
from tasks.simulation.boxes import Boxes
from tasks.simulation.segments import (
    INIT_ROOT,
    INIT_STATE,
    STORE,
    SegmentModel,
    next_state,
    root_of,
    segment_number,
)
from tasks.spec import JobSpec

__all__ = ["Costs", "Made", "OffChain", "Output", "Use", "make_claim", "make_output", "make_window", "task_key"]

Use = str
"""What a blob is fetched for: ``check``, ``jury``, ``result`` or ``keep``."""
CHECK, JURY, RESULT, KEEP = "check", "jury", "result", "keep"
_STATE_BLOB = b"B" * 32


class Costs(NamedTuple):
    """What computing costs a machine: ``rate`` work units a second, ``per_tera`` for 10^12 of them."""

    rate: int
    per_tera: int

    def time_ms(self, units: int) -> int:
        """Return how long ``units`` take."""
        return -(-units * 1000 // self.rate)

    def cost(self, units: int) -> int:
        """Return what ``units`` cost."""
        return units * self.per_tera // 10**12


class Made(NamedTuple):
    """A window as its worker made it. ``digests`` and ``salts`` are secrets until they are opened."""

    task: bytes
    window: int
    leaves: tuple[SegmentLeaf, ...]
    digests: tuple[bytes, ...]
    salts: tuple[bytes, ...]
    forged: frozenset[int]
    custody: tuple[int, bytes, bytes] | None = None
    """What it commits to for custodians, in a task that has custody."""
    claim: Divergence | None = None
    """What of its last step is claimed to diverge."""

    @property
    def state_root_out(self) -> bytes:
        """The state after the window."""
        return self.leaves[-1].state_root_after


def make_window(
    off: OffChain, job: JobSpec, task: bytes, window: int, root_in: bytes, secret: bytes,
    forged: Iterable[int] = (), torn: Iterable[int] = (),
) -> Made:  # fmt: skip
    """Return a window whose ``forged`` segments were not run: what they lead to is another hash.

    The ``torn`` ones were run, but from a state of the worker's own invention.
    """
    lies, gaps = frozenset(forged), frozenset(torn)
    leaves: list[SegmentLeaf] = []
    digests: list[bytes] = []
    salts: list[bytes] = []
    before = root_in
    for segment in range(job.window_segments(window)):
        step_from, step_to = job.segment_range(window, segment)
        if segment in gaps:
            before = off.invent(segment_number(job, step_from), secret)
        end = off.run(job, task, before, step_from, secret if segment in lies else b"").end
        salt = digest(b"sim-salt", secret + task + step_from.to_bytes(8, "big"))
        seal = work_seal(end.work_digest, salt)
        leaves.append(
            SegmentLeaf(segment, step_from, step_to, before, end.state_root, end.loss_total, seal, _STATE_BLOB)
        )
        digests.append(end.work_digest)
        salts.append(salt)
        before = end.state_root
    return Made(task, window, tuple(leaves), tuple(digests), tuple(salts), lies | gaps)


class Output(NamedTuple):
    """An output as it is handed to custodians: chunks under a window's key, which its requester knows."""

    task: bytes
    window: int
    windows: int
    blob: CipherBlob
    plain: bytes
    is_garbage: bool
    is_other: bool
    """Whether its bytes are no state."""

    @property
    def commitment(self) -> tuple[int, bytes, bytes]:
        """What stands on chain of it."""
        return (*self.blob.commitment,)

    def chunk(self, number: int) -> ChunkProof:
        """Return what answers a demand for a chunk."""
        return Custody(self.blob.commitment, self.blob.chunks, self.blob.plain_hashes).proof(number)

    def plain_chunk(self, number: int) -> PlainChunk:
        """Return a chunk of what its worker says that it is, with its path."""
        parts = [self.plain[at : at + CHUNK_BYTES] for at in range(0, len(self.plain), CHUNK_BYTES)]
        return PlainChunk(number, parts[number], MerkleTree(parts).siblings(number))


def task_key(task: bytes) -> bytes:
    """Return the secret from which the keys of a task's outputs follow."""
    return digest(b"sim-task-key", task)


def make_output(job: JobSpec, made: Made, windows: int, *, is_garbage: bool, is_other: bool = False) -> Output:
    """Return the output of a window: bytes that stand for its state, or garbage or other bytes of its size.

    Other bytes lack what all states of that step have in common.
    """
    layout = StateLayout(job.plan(), made.leaves[-1].step_to)
    size = layout.size
    key = derive_key(task_key(made.task), window_key_name(made.window))
    content = (made.state_root_out * (size // 32 + 1))[:size]
    for offset, fixed in () if is_other else layout.fixed:
        content = content[:offset] + fixed + content[offset + len(fixed) :]
    blob = CipherBlob(key, content)
    if is_garbage:
        other = CipherBlob(key, bytes(size))
        blob.commitment = BlobCommitment(size, blob.commitment.plain_root, other.commitment.cipher_root)
        blob.chunks = other.chunks
    return Output(made.task, made.window, windows, blob, content, is_garbage, is_other)


def make_claim(off: OffChain, job: JobSpec, task: bytes, window: int, root_in: bytes, secret: bytes) -> Made:
    """Return a window whose first step is claimed to diverge, which it does not."""
    step_from, _ = job.window_range(window)
    claim = Divergence(step_from, STORE, 0, 0, root_in)
    end = off.run(job, task, root_in, step_from).claimed(claim)
    salt = digest(b"sim-salt", secret + task + step_from.to_bytes(8, "big"))
    leaf = SegmentLeaf(
        0, step_from, step_from + 1, root_in, end.state_root, end.loss_total, work_seal(end.work_digest, salt),
        _STATE_BLOB,
    )  # fmt: skip
    return Made(task, window, (leaf,), (end.work_digest,), (salt,), frozenset({0}), claim=claim)


Audience = Callable[[bytes, Use], bool]
"""(who asks, what for) -> whether the publisher serves it."""


@dataclass
class OffChain:
    """What machines publish, and to whom."""

    withheld_inputs: set[bytes] = field(default_factory=set)
    """Tasks whose inputs nobody can fetch."""
    cut_until_ms: dict[bytes, int] = field(default_factory=dict)
    """Machines whose line is cut until then: they neither see nor say anything."""
    windows: dict[tuple[bytes, int], tuple[Made, Audience]] = field(default_factory=dict)
    outputs: dict[tuple[bytes, int], Output] = field(default_factory=dict)
    """What lies in custody, or should."""
    hands_out: dict[tuple[bytes, bytes, int], bool] = field(default_factory=dict)
    """Whether a machine gives an output that it keeps to who asks: by machine, task and window."""
    received: set[tuple[bytes, int]] = field(default_factory=set)
    """Outputs that a receiver has signed for: it serves the requester."""
    obtained: set[bytes] = field(default_factory=set)
    """Tasks whose requester has the result."""
    lost: set[bytes] = field(default_factory=set)
    """Tasks whose requester has given it up."""
    ever_made: list[Made] = field(default_factory=list)
    boxes: Boxes = field(default_factory=Boxes)
    """What runs in containers."""
    states: dict[bytes, bytes] = field(default_factory=lambda: {INIT_ROOT: INIT_STATE})
    """What stands under the root of a state."""

    def run(self, job: JobSpec, task: bytes, before: bytes, step_from: int, secret: bytes = b"") -> SegmentModel:
        """Return the segment from the state root ``before``; a forged one with a secret."""
        number, state = segment_number(job, step_from), self.states[before]
        after = next_state(task, number, state)
        if secret:
            after = digest(b"sim-lie", secret + after)
        segment = SegmentModel(task, number, state, after)
        self.states[segment.end.state_root] = after
        return segment

    def invent(self, number: int, secret: bytes) -> bytes:
        """Return the root of a state that nobody computed."""
        state = digest(b"sim-gap", secret)
        root = root_of(number, state)
        self.states[root] = state
        return root

    def claimed(self, job: JobSpec, task: bytes, before: bytes, step_from: int, after: bytes) -> SegmentModel:
        """Return the segment between two state roots, as its author claims it."""
        number = segment_number(job, step_from)
        return SegmentModel(task, number, self.states[before], self.states[after])

    def publish(self, made: Made, audience: Audience) -> None:
        """Offer a window to those whom ``audience`` admits; replaces an earlier one of that number."""
        self.windows[made.task, made.window] = made, audience
        self.ever_made.append(made)

    def leaves(self, task: bytes, window: int, who: bytes, use: Use) -> tuple[SegmentLeaf, ...] | None:
        """Return the public leaves of a window, or None where they are not served to ``who``."""
        made, audience = self.windows[task, window]
        return made.leaves if audience(who, use) else None

    def is_forged(self, task: bytes, window: int, root_out: bytes) -> bool:
        """Tell whether the window that ended in ``root_out`` has a forged segment."""
        return any(
            made.forged
            for made in self.ever_made
            if (made.task, made.window, made.state_root_out) == (task, window, root_out)
        )
