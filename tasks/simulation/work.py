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
from tasks.proofs import SegmentLeaf, work_seal
from tasks.spec import JobSpec

__all__ = ["Costs", "Made", "OffChain", "Use", "make_window", "true_digest", "true_state"]

Use = str
"""What a blob is fetched for: ``check``, ``jury`` or ``result``."""
CHECK, JURY, RESULT = "check", "jury", "result"
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

    @property
    def state_root_out(self) -> bytes:
        """The state after the window."""
        return self.leaves[-1].state_root_after


def true_state(task: bytes, before: bytes, step_to: int) -> bytes:
    """Return the root of the state that running from ``before`` up to ``step_to`` leads to."""
    return digest(b"sim-state", task + before + step_to.to_bytes(8, "big"))


def true_digest(task: bytes, before: bytes, step_from: int) -> bytes:
    """Return the work digest that only running the segment from ``before`` gives."""
    return digest(b"sim-work", task + before + step_from.to_bytes(8, "big"))


def make_window(
    job: JobSpec, task: bytes, window: int, root_in: bytes, secret: bytes, forged: Iterable[int] = ()
) -> Made:
    """Return a window whose ``forged`` segments were not run: state and work digest of those are other hashes."""
    lies = frozenset(forged)
    leaves: list[SegmentLeaf] = []
    digests: list[bytes] = []
    salts: list[bytes] = []
    before = root_in
    for segment in range(job.window_segments(window)):
        step_from, step_to = job.segment_range(window, segment)
        after, work = true_state(task, before, step_to), true_digest(task, before, step_from)
        if segment in lies:
            after, work = digest(b"sim-lie-state", secret + after), digest(b"sim-lie-work", secret + work)
        salt = digest(b"sim-salt", secret + task + step_from.to_bytes(8, "big"))
        leaves.append(
            SegmentLeaf(segment, step_from, step_to, before, after, 0, work_seal(work, salt), _STATE_BLOB)
        )
        digests.append(work)
        salts.append(salt)
        before = after
    return Made(task, window, tuple(leaves), tuple(digests), tuple(salts), lies)


Audience = Callable[[bytes, Use], bool]
"""(who asks, what for) -> whether the publisher serves it."""


@dataclass
class OffChain:
    """What machines publish, and to whom."""

    withheld_inputs: set[bytes] = field(default_factory=set)
    """Tasks whose inputs nobody can fetch."""
    windows: dict[tuple[bytes, int], tuple[Made, Audience]] = field(default_factory=dict)
    ever_made: list[Made] = field(default_factory=list)

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
