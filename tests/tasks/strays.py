"""Jobs whose data set is a stray file, and the claim against it."""

from __future__ import annotations

from io import BytesIO
from typing import Final

from state.primitives.manifests import manifest_of
from tasks.claims import InputClaim, find_fault
from tasks.engines.datasets import Dataset
from tasks.spec import JobSpec, classifier_of
from tests.tasks.world import spec

__all__ = ["CLAIM", "STRAY", "claim_against", "crooked_job", "stray_job"]

STRAY: Final = b"sepal,petal,kind\n5.1,1.4,0\n" * 100
"""A table that somebody took for a data set."""


def stray_job(content: bytes = STRAY, job: JobSpec | None = None) -> JobSpec:
    """Return a job that names ``content`` as its data set."""
    found = spec() if job is None else job
    return found.changed(dataset=found.dataset._replace(blob=manifest_of(BytesIO(content)).blob_id))


def claim_against(task: bytes, job: JobSpec, content: bytes = STRAY) -> InputClaim:
    """Return the claim of a worker of ``task``."""
    claim = find_fault(task, job, content)
    assert claim is not None
    return claim


def crooked_job(job: JobSpec | None = None) -> tuple[JobSpec, bytes]:
    """Return a job on a data set of the right form that is not under its root, with the data set's bytes."""
    found = spec() if job is None else job
    part = classifier_of(found)
    named, (columns, *_, classes) = part.dataset, part.model.widths
    data = Dataset(
        named.rows, columns, classes, named.shift, named.samples, bytes(named.rows * columns), bytes(named.rows)
    )
    content = data.encode()
    return stray_job(content, found), content


_CROOKED, _CONTENT = crooked_job()
CLAIM: Final = claim_against(b"t" * 32, _CROOKED, _CONTENT)
"""A claim that opens chunks."""
