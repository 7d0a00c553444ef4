"""What the executor hands on: windows of work with all that their proofs need, and verdicts on segments.

See market.md 7.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from state.primitives.hashing import ZERO_HASH, digest
from tasks.executor.job import SegmentRecord
from tasks.programs.divergence import Divergence
from tasks.proofs import Code, Finding, SegmentLeaf, WindowProof, segment_root, work_seal

__all__ = ["TaskResult", "Verdict", "WindowResult", "make_leaves", "make_window_proof", "segment_salts"]


@dataclass(frozen=True)
class WindowResult:
    """A completed window: whole, or up to a step that diverges.

    ``load_state(n)`` reads the encoded state before segment n, or after the last with their number; it blocks, and
    works until the window counts as handed on. ``accuracy`` is (right, samples) on the test split and stands with
    the last window alone. ``device`` is empty where the work was found done in the journal.
    """

    window: int
    segments: tuple[SegmentRecord, ...]
    load_state: Callable[[int], bytes]
    device: str
    accuracy: tuple[int, int] | None

    @property
    def step_from(self) -> int:
        """First step of the window."""
        return self.segments[0].step_from

    @property
    def step_to(self) -> int:
        """Step after the window's last."""
        return self.segments[-1].step_to

    @property
    def diverged(self) -> Divergence | None:
        """How its last step diverges, or None."""
        return self.segments[-1].diverged

    @property
    def compute_ms(self) -> int:
        """What the window took on this machine; nothing is paid by it."""
        return sum(segment.compute_ms for segment in self.segments)


@dataclass(frozen=True)
class TaskResult:
    """A job that was run to its end; ``compute_ms`` counts what this process of the node saw.

    The end may be a step that diverges: ``steps`` and ``state_root`` are of the state before it, and ``accuracy``
    is None.
    """

    steps: int
    state_root: bytes
    accuracy: tuple[int, int] | None
    compute_ms: int


@dataclass(frozen=True)
class Verdict:
    """The result of re-running a segment; ``mismatches`` lists values that differ in any bit."""

    segment: int
    code: Code
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    mismatches: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that the leaf shows agrees; the work digest is compared when the worker opens it."""
        return self.code is Code.COMPUTED and not self.mismatches

    @property
    def finding(self) -> Finding:
        """The verdict as the chain takes it."""
        code = Code.DIFFERS if self.code is Code.COMPUTED and self.mismatches else self.code
        return Finding(self.segment, code, self.work_digest, self.state_root_after, self.loss_bits)

    @classmethod
    def unavailable(cls, segment: int, why: str) -> Verdict:
        """A verdict that nothing could be computed, because of ``why``."""
        return cls(segment, Code.UNAVAILABLE, ZERO_HASH, ZERO_HASH, 0, (why,))


def segment_salts(secret: bytes, task: bytes, window: int, count: int) -> tuple[bytes, ...]:
    """Return the salts of a window's seals: derived, so that a restarted worker can still open its seals.

    ``secret`` is 32 bytes that only this worker knows.
    """
    return tuple(
        digest(b"work-salt", secret + task + window.to_bytes(8, "big") + segment.to_bytes(8, "big"))
        for segment in range(count)
    )


def make_leaves(
    result: WindowResult, salts: Sequence[bytes], state_blobs: Sequence[bytes]
) -> tuple[SegmentLeaf, ...]:
    """Return the leaves of a window; ``state_blobs`` are the names of the states before its segments."""
    return tuple(
        SegmentLeaf(
            segment=index,
            step_from=segment.step_from,
            step_to=segment.step_to,
            state_root_before=segment.state_root_before,
            state_root_after=segment.state_root_after,
            loss_bits=segment.loss_bits,
            seal=work_seal(segment.work_digest, salt),
            state_blob=blob,
        )
        for index, (segment, salt, blob) in enumerate(zip(result.segments, salts, state_blobs, strict=True))
    )


def make_window_proof(
    task: bytes, result: WindowResult, leaves: Sequence[SegmentLeaf], *, leaves_blob: bytes, output_blob: bytes
) -> WindowProof:
    """Return the claim on a window; the blobs hold ``encode_leaves(leaves)`` and the state after it."""
    return WindowProof(
        task=task,
        window=result.window,
        step_from=result.step_from,
        step_to=result.step_to,
        state_root_in=leaves[0].state_root_before,
        state_root_out=leaves[-1].state_root_after,
        segment_root=segment_root(leaves),
        segments=len(leaves),
        leaves_blob=leaves_blob,
        output_blob=output_blob,
        diverged=result.diverged,
    )
