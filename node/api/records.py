"""What is kept of files and jobs, and how the served format shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from state.primitives.amounts import DECIMALS, format_units

__all__ = [
    "BATCH",
    "BATCH_ENDED",
    "EXPIRES_S",
    "LOSS_NAMES",
    "TUNING",
    "TUNING_ENDED",
    "Event",
    "FileRecord",
    "JobRecord",
    "SignedTask",
    "as_list",
    "model_object",
    "price_of",
]

TUNING: Final = "fine_tuning.job"
BATCH: Final = "batch"
TUNING_ENDED: Final = ("succeeded", "failed", "cancelled")
BATCH_ENDED: Final = ("failed", "completed", "expired", "cancelled")
EXPIRES_S: Final = 24 * 3600
"""Time of a batch, from its creation on."""
CHECKPOINTS_SHOWN_MAX: Final = 1_000
LOSS_NAMES: Final = ("valid_loss", "full_valid_loss")
"""Names of a validation loss in the format: of some rows, and of all. Here all rows are evaluated each time."""


@dataclass(frozen=True)
class FileRecord:
    """An uploaded file, or one that a job made; its content is in a file of the same name."""

    id: str
    created_s: int
    size_bytes: int
    name: str
    purpose: str

    def to_json(self) -> dict[str, Any]:
        """Return it as the format shows it."""
        return {
            "id": self.id, "object": "file", "bytes": self.size_bytes, "created_at": self.created_s,
            "filename": self.name, "purpose": self.purpose, "status": "processed", "expires_at": None,
            "status_details": None,
        }  # fmt: skip


@dataclass(frozen=True)
class Event:
    """Something that happened to a fine-tuning job."""

    number: int
    created_s: int
    level: str
    message: str
    data: Mapping[str, Any] | None = None

    def to_json(self, job: str) -> dict[str, Any]:
        """Return it as the format shows it."""
        return {
            "id": f"ftevent-{job.partition('-')[2]}-{self.number}", "object": "fine_tuning.job.event",
            "created_at": self.created_s, "level": self.level, "message": self.message,
            "type": "metrics" if LOSS_NAMES[0] in (self.data or ()) else "message", "data": self.data,
        }  # fmt: skip


@dataclass(frozen=True)
class SignedTask:
    """Signed transactions of a task in hexadecimal digits: kept before anything is submitted."""

    task: str
    create: str
    custody: str | None


@dataclass(frozen=True)
class JobRecord:
    """A fine-tuning job or a batch, and how far it is.

    ``reserved`` is the part of the budget that it may use, in 10^-18 DKB. ``signed`` is written before its task is
    submitted, so one job has one task, whenever the program is ended.
    """

    id: str
    kind: str
    created_s: int
    request: Mapping[str, Any]
    status: str
    model: str
    data_file: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""
    locked: int = 0
    reserved: int = 0
    signed: SignedTask | None = None
    is_posted: bool = False
    """The task is final on chain."""
    phase: str = ""
    started_s: int | None = None
    cancelling_s: int | None = None
    is_cancel_sent: bool = False
    is_late: bool = False
    finalizing_s: int | None = None
    finished_s: int | None = None
    tries: int = 0
    """How often the result could not be fetched."""
    windows: int = 0
    """Windows whose checkpoints are told."""
    checkpoints: Sequence[Sequence[Any]] = ()
    """Step and time of each, and its validation loss where it was evaluated."""
    evaluations: int = 0
    """Validation losses that are told."""
    error: Mapping[str, Any] | None = None
    faults: Sequence[Mapping[str, Any]] = ()
    """What is wrong with the file of a batch."""
    counts: Sequence[int] = (0, 0, 0)
    """Requests of a batch: all, completed, failed."""
    usage: Sequence[int] = (0, 0)
    trained_tokens: int | None = None
    tuned_model: str | None = None
    state_root: str = ""
    """Of the state with the adapters, as the chain has it, in hexadecimal digits."""
    is_model_deleted: bool = False
    output_file: str | None = None
    error_file: str | None = None
    receipt_file: str | None = None
    result_files: Sequence[str] = ()
    paid: int | None = None
    more_fees: int = 0
    """Of transactions beside those in ``signed``: a cancellation, terms of custody that were signed again."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.status in (TUNING_ENDED if self.kind == TUNING else BATCH_ENDED)

    @property
    def validation_file(self) -> str | None:
        """The file of rows for validation of a fine-tuning job."""
        found = self.request.get("validation_file")
        return None if found is None else str(found)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it reads."""
        return (self.data_file,) if self.validation_file is None else (self.data_file, self.validation_file)

    @property
    def task(self) -> bytes | None:
        """The id of its task on chain."""
        return None if self.signed is None else bytes.fromhex(self.signed.task)

    def encode(self) -> str:
        """Return the record as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return a kept record; a field of a later version is dropped."""
        values = json.loads(text)
        known = {item.name for item in fields(cls)}
        signed = values.pop("signed", None)
        kept = {name: value for name, value in values.items() if name in known}
        return cls(**kept, signed=None if signed is None else SignedTask(**signed))

    def extra(self) -> dict[str, Any]:
        """Return what only this server says of a job: its price, its task, its receipt."""
        return {
            "task": None if self.signed is None or not self.is_posted else f"0x{self.signed.task}",
            "phase": self.phase or None,
            "price_limit": price_of(self.locked),
            "reserved": price_of(self.reserved),
            "paid": None if self.paid is None else price_of(self.paid),
            "receipt_file": self.receipt_file,
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as the format shows it."""
        return self._tuning() if self.kind == TUNING else self._batch()

    def _tuning(self) -> dict[str, Any]:
        shown = {
            "n_epochs": self.settings.get("epochs"), "batch_size": self.settings.get("batch"),
            "learning_rate_multiplier": self.settings.get("rate_factor"),
        }  # fmt: skip
        method, within = self.request.get("method") or "supervised", dict(shown)
        if "beta" in self.settings:
            within["beta"] = self.settings["beta"]
        return {
            "id": self.id, "object": TUNING, "created_at": self.created_s, "model": self.model,
            "status": self.status, "error": self.error, "fine_tuned_model": self.tuned_model,
            "finished_at": self.finished_s, "hyperparameters": shown, "organization_id": "dekube",
            "result_files": list(self.result_files), "seed": self.seed, "trained_tokens": self.trained_tokens,
            "training_file": self.data_file, "validation_file": self.validation_file, "estimated_finish": None,
            "integrations": [], "metadata": self.request.get("metadata"),
            "method": {"type": method, method: {"hyperparameters": within}},
            "dekube": self.extra(),
        }  # fmt: skip

    def _batch(self) -> dict[str, Any]:
        total, completed, failed = self.counts
        ends = {f"{name}_at": self.finished_s if self.status == name else None for name in BATCH_ENDED}
        asked, told = self.usage
        return {
            "id": self.id, "object": BATCH, "endpoint": self.request["endpoint"], "model": self.model or None,
            "errors": {"object": "list", "data": list(self.faults)} if self.faults else None,
            "input_file_id": self.data_file, "completion_window": "24h", "status": self.status,
            "output_file_id": self.output_file, "error_file_id": self.error_file, "created_at": self.created_s,
            "in_progress_at": self.started_s, "expires_at": self.created_s + EXPIRES_S,
            "finalizing_at": self.finalizing_s, "cancelling_at": self.cancelling_s, **ends,
            "request_counts": {"total": total, "completed": completed, "failed": failed},
            "metadata": self.request.get("metadata"),
            "usage": {
                "input_tokens": asked, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": told,
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": asked + told,
            },
            "dekube": self.extra(),
        }  # fmt: skip

    def checkpoint_objects(self) -> list[dict[str, Any]]:
        """Return its checkpoints, newest first: a state that is proved after each window."""
        name = self.tuned_model or f"ft:{self.model}"
        return [
            {
                "id": f"ftckpt-{self.id.partition('-')[2]}-{step}", "object": "fine_tuning.job.checkpoint",
                "created_at": created_s, "fine_tuned_model_checkpoint": f"{name}:ckpt-step-{step}",
                "fine_tuning_job_id": self.id, "step_number": step,
                "metrics": {"step": step, **{name: losses[0] for name in LOSS_NAMES if losses}},
            }
            for step, created_s, *losses in reversed(self.checkpoints[-CHECKPOINTS_SHOWN_MAX:])
        ]  # fmt: skip


def price_of(amount: int) -> str:
    """Return an amount as a number of DKB."""
    return format_units(amount, DECIMALS)


def model_object(name: str, created_s: int, owner: str) -> dict[str, Any]:
    """Return a model as the format shows it."""
    return {"id": name, "object": "model", "created": created_s, "owned_by": owner}


def as_list(found: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return part of a list as the format shows it."""
    return {
        "object": "list", "data": list(found), "has_more": has_more,
        "first_id": found[0]["id"] if found else None, "last_id": found[-1]["id"] if found else None,
    }  # fmt: skip
