"""What is asked for by a batch: requests, the rows of its job, and the answers that the job's result gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from node.api.errors import ApiError
from node.api.lines import BatchLine
from node.api.prompting import BatchPlan, Results, Text, results_of
from node.api.vectors import VectorPlan, vector_results
from rpc.client.tasks import TaskResult

__all__ = ["Batch", "TextBatch", "VectorBatch"]


class Batch(Protocol):
    """A batch whose requests were read."""

    @property
    def lines(self) -> Sequence[BatchLine]:
        """Its requests."""

    @property
    def rows(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Rows of its job: of which request each is, and its tokens. None: no request can be done."""

    def results(
        self, found: TaskResult | None, *, batch: str, created_s: int, fingerprint: str, unfinished: ApiError
    ) -> Results:
        """Return its files; ``unfinished`` is said of requests that were not done."""


class TextBatch(NamedTuple):
    """Prompts that are continued."""

    plan: BatchPlan
    text: Text
    endpoint: str

    @property
    def lines(self) -> Sequence[BatchLine]:
        """See Batch."""
        return self.plan.lines

    @property
    def rows(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """See Batch."""
        return self.plan.rows

    def results(
        self, found: TaskResult | None, *, batch: str, created_s: int, fingerprint: str, unfinished: ApiError
    ) -> Results:
        """See Batch.

        A task that an earlier version made of fewer of the requests has no row of its own for each: its answers
        would be given to others.
        """
        completions = list[list[int]]()
        part: Any = None if found is None else found.spec.part
        if found is not None and part.dataset.rows == len(self.plan.rows):
            completions = found.completions()
        return results_of(
            self.plan, completions, self.text, ends=self.text.ends, batch=batch, endpoint=self.endpoint,
            created_s=created_s, fingerprint=fingerprint, unfinished=unfinished,
        )  # fmt: skip


class VectorBatch(NamedTuple):
    """Texts that become vectors."""

    plan: VectorPlan

    @property
    def lines(self) -> Sequence[BatchLine]:
        """See Batch."""
        return self.plan.lines

    @property
    def rows(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """See Batch."""
        return self.plan.rows

    def results(
        self, found: TaskResult | None, *, batch: str, created_s: int, fingerprint: str, unfinished: ApiError
    ) -> Results:
        """See Batch."""
        vectors = None if found is None else found.vectors()
        return vector_results(self.plan, vectors, batch=batch, unfinished=unfinished)
