"""Files of jobs that have ended: receipts, folders of adapters, and the answers of batches."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from node.api.records import JobRecord
from rpc.client.core import hexed
from rpc.client.metrics import LossPoint
from rpc.client.results import Bill, Task, Window
from rpc.client.tasks import TaskResult, step_of
from tasks.engines.tuning_plan import TuningPlan
from tasks.evaluations import Evaluation, evaluations_of
from tasks.models.adapters import adapter_folder, receipt_of
from tasks.spec import decode_spec

__all__ = ["adapters_of", "evaluated_in", "metrics_file", "receipt_file", "zipped"]

_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The oldest that such a file can name: equal results are equal files."""


def receipt_file(job: JobRecord, task: Task, windows: Sequence[Window], bill: Bill) -> bytes:
    """Return the receipt of a job: its specification, what was proved of it, and who was paid."""
    document = {
        "job": job.id,
        "task": hexed(task.id),
        "phase": task.phase,
        "reason": task.reason,
        "requester": hexed(task.requester),
        "worker": None if task.worker is None else hexed(task.worker),
        "created_height": task.created_height,
        "changed_height": task.changed_height,
        "spec": f"0x{job.spec}",
        "windows": [_plain(window.document) for window in windows],
        "bill": {
            "totals": {
                name: str(getattr(bill.totals, name))
                for name in ("deposited", "locked", "paid", "refunded", "burned")
            },
            "lines": [_plain(line.document) for line in bill.lines],
        },
    }
    return json.dumps(document, indent=1, default=str).encode() + b"\n"


def _plain(document: Any) -> Any:
    return dict(document) if isinstance(document, Mapping) else document


def adapters_of(found: TaskResult, base: str) -> dict[str, bytes]:
    """Return the files of a folder of adapters, as ``dekube task result`` writes it."""
    spec, plan = found.spec, found.spec.plan()
    assert isinstance(plan, TuningPlan)
    receipt = receipt_of(
        plan.shape, found.state, base=base, model_root=spec.model_root(), rows_root=spec.dataset.root,
        task=found.task,
    )  # fmt: skip
    return adapter_folder(receipt, found.state.tensors)


def evaluated_in(job: JobRecord, window: Window) -> tuple[Evaluation, ...]:
    """Return the validation losses that the proof of a window shows: of a job without validation none."""
    proof = window.proof
    if proof.losses is None:
        return ()
    return evaluations_of(decode_spec(bytes.fromhex(job.spec)), step_of(window), proof.losses)


def metrics_file(points: Sequence[LossPoint], evaluations: Sequence[Evaluation] = ()) -> bytes:
    """Return losses as a table that other programs read; those of validation have a column if there are some."""
    rows = {one.step_to: [f"{one.loss:.6g}", ""] for one in points}
    for one in evaluations:
        rows.setdefault(one.step, ["", ""])[1] = f"{one.loss:.6g}"
    columns = 2 if evaluations else 1
    lines = [",".join(("step", "train_loss", "valid_loss")[: 1 + columns])]
    lines += [",".join((str(step), *rows[step][:columns])) for step in sorted(rows)]
    return ("\n".join(lines) + "\n").encode()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return files as one archive, with the same bytes each time."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _DATE), files[name], zipfile.ZIP_DEFLATED)
    return made.getvalue()
