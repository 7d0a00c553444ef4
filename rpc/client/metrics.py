"""The loss of a task, from the leaves of its proofs: a worker's word, under a root that stands on chain."""

from __future__ import annotations

import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rpc.client.api import each
from rpc.client.core import Core, Flow, RunBlocking, gather, hexed
from rpc.client.errors import NoResult, ResultMismatch
from rpc.client.flow_methods import FlowMethod
from rpc.client.results import Machine, Window
from rpc.client.tasks import Places, ask_task, ask_windows, fetch_blob, spec_of, step_of

if TYPE_CHECKING:
    from tasks.evaluations import Evaluation
    from tasks.spec import JobSpec

__all__ = ["LossPoint", "MetricsApi"]


class LossPoint(NamedTuple):
    """The mean loss of the steps of a segment. ``is_final``: its window is, so checks have not refuted it.

    Of fine-tuning it is the mean over the updates that end in the segment; one without has no point.
    """

    window: int
    step_from: int
    step_to: int
    loss: float
    is_final: bool


def _losses(
    core: Core, task: bytes, *, control: Path | None = None, first_window: int = 0
) -> Flow[tuple[LossPoint, ...]]:  # fmt: skip
    """Return the losses of a task's windows, a point for each segment.

    The node at ``control`` fetches them, otherwise the gateway's. They have the root of the window's proof.
    Raises NoResult for an unknown task or if nobody has them any more, ResultMismatch for others.
    """
    found = yield from ask_task(core, task)
    if found is None:
        raise NoResult(f"no task has the id {hexed(task)}")
    spec = spec_of(found)
    windows = yield from gather(ask_windows(core, task))
    sources: list[bytes] = []
    if control is not None:
        machines = yield from gather(each(core, Machine, "dekube_getNodes"))
        sources = [machine.address for machine in machines]
    points: list[LossPoint] = []
    made = yield RunBlocking(partial(tempfile.TemporaryDirectory, prefix="dekube-"))
    try:
        for window in windows:
            if window.number < first_window or window.phase == "void":
                continue
            places = Places(task, control, list(dict.fromkeys([window.worker, *sources])), Path(made.name), None)
            points += yield from _of_window(core, places, window, spec)
    finally:
        made.cleanup()
    return tuple(points)


def _evaluations(core: Core, task: bytes) -> Flow[tuple[Evaluation, ...]]:
    """Return the validation losses of a task that were proved. They stand on chain, under the root of a state.

    Raises NoResult for an unknown task.
    """
    from tasks.evaluations import evaluations_of

    found = yield from ask_task(core, task)
    if found is None:
        raise NoResult(f"no task has the id {hexed(task)}")
    spec = spec_of(found)
    for window in reversed((yield from gather(ask_windows(core, task)))):
        proof = window.proof
        if window.phase != "void" and proof.losses is not None:
            return evaluations_of(spec, step_of(window), proof.losses)
    return ()


def _of_window(core: Core, places: Places, window: Window, spec: JobSpec) -> Flow[list[LossPoint]]:
    from tasks.proofs import LEAVES_LIMIT_BYTES

    document: Any = window.document
    blob = bytes.fromhex(str(document["proof"]["leaves_blob"]).removeprefix("0x"))
    data = yield from fetch_blob(core, places, blob, LEAVES_LIMIT_BYTES, window=window.number)
    points: list[LossPoint] = yield RunBlocking(partial(points_of, window, data, spec))
    return points


def points_of(window: Window, data: bytes, spec: JobSpec) -> list[LossPoint]:
    """Return the points in the leaves of a window. Raises ResultMismatch, DecodeError."""
    from tasks.proofs import decode_leaves, segment_root

    leaves = decode_leaves(data)
    if segment_root(leaves) != window.proof.segment_root:
        raise ResultMismatch(f"the leaves of window {window.number} are not those of its proof")
    counts = [spec.losses_of(leaf.step_from, leaf.step_to) for leaf in leaves]
    return [
        LossPoint(
            window.number, leaf.step_from, leaf.step_to,
            struct.unpack(">d", leaf.loss_bits.to_bytes(8, "big"))[0] / count, window.phase == "final",
        )
        for leaf, count in zip(leaves, counts, strict=True)
        if count
    ]  # fmt: skip


class MetricsApi:
    """Methods of both clients about the course of a task."""

    losses = FlowMethod(_losses)
    evaluations = FlowMethod(_evaluations)
