"""What a client may ask for: creating fine-tuning jobs and batches, each read strictly into one record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from node.api.errors import unsupported, wrong
from node.api.reading import Fields

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DPO",
    "EMBEDDINGS",
    "ENDPOINTS",
    "PURPOSES",
    "BatchRequest",
    "Page",
    "TuningRequest",
    "read_batch",
    "read_page",
    "read_tuning",
]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
ENDPOINTS: Final = (CHAT, COMPLETIONS, EMBEDDINGS)
"""Endpoints of batches."""
OTHER_ENDPOINTS: Final = (
    "/v1/responses", "/v1/moderations", "/v1/images/generations", "/v1/images/edits",
    "/v1/videos",
)  # fmt: skip
"""Endpoints of batches in this format for which there is no kind of job."""
PURPOSES: Final = ("fine-tune", "batch")
COMPLETION_WINDOW: Final = "24h"
PAGE_MAX: Final = 100
EPOCHS_MAX: Final = 1_000
BATCH_ROWS_MAX: Final = 256
RATE_FACTOR_MAX: Final = 1_000.0
SEED_MAX: Final = 2**31 - 1
SUPERVISED: Final = "supervised"
DPO: Final = "dpo"
METHODS: Final = (SUPERVISED, DPO)
BETA_MIN: Final = 1e-6
BETA_MAX: Final = 2.0
SUFFIX: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MODEL_CHARACTERS_MAX: Final = 256

_TUNING: Final = (
    "model", "training_file", "validation_file", "hyperparameters", "method", "suffix", "seed", "metadata",
    "integrations",
)  # fmt: skip
_HYPERPARAMETERS: Final = ("n_epochs", "batch_size", "learning_rate_multiplier")
_BATCH: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")


@dataclass(frozen=True)
class TuningRequest:
    """A fine-tuning job that is asked for. None: not said, or auto."""

    model: str
    training_file: str
    validation_file: str | None = None
    epochs: int | None = None
    batch: int | None = None
    rate_factor: float | None = None
    suffix: str | None = None
    seed: int | None = None
    metadata: Mapping[str, str] | None = None
    as_method: bool = False
    """Whether the settings were given within ``method``, in which they are shown again then."""
    method: str = "supervised"
    beta: float | None = None
    """Of the method dpo."""


@dataclass(frozen=True)
class BatchRequest:
    """A batch that is asked for."""

    input_file: str
    endpoint: str
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Page:
    """Which part of a list is asked for; ``after`` is the last object of the part before."""

    after: str | None = None
    limit: int = 20
    descending: bool = True


def read_tuning(body: Mapping[str, Any]) -> TuningRequest:
    """Return the job that a body asks for. Raises ApiError."""
    fields = Fields(body, _TUNING)
    fields.only("integrations", [[]], "jobs report to no other service")
    given = fields.inner("hyperparameters", _HYPERPARAMETERS)
    method, is_dpo = fields.inner("method", ("type", *METHODS, "reinforcement")), False
    if method is not None:
        kind = method.needed("type")
        if kind == "reinforcement":
            raise unsupported(f"There is no method {kind}; there are {' and '.join(METHODS)}.", "method.type")
        if kind not in METHODS:
            raise method.invalid("type", " or ".join(METHODS))
        for other in (*METHODS, "reinforcement"):
            if other != kind:
                method.only(other, (), f"the method is {kind}")
        is_dpo = kind == DPO
        inner = method.inner(kind, ("hyperparameters",))
        known = (*_HYPERPARAMETERS, "beta") if is_dpo else _HYPERPARAMETERS
        within = inner.inner("hyperparameters", known) if inner is not None else None
        if given is not None and within is not None:
            raise wrong("Give hyperparameters once: at the top or within method.", "hyperparameters")
        given = within or given
    given = given or Fields({}, (*_HYPERPARAMETERS, "beta"))
    suffix = fields.text("suffix", most=64)
    if suffix is not None and not SUFFIX.fullmatch(suffix):
        raise fields.invalid("suffix", "lower-case letters, digits and hyphens, at most 64,")
    return TuningRequest(
        model=fields.needed("model", most=MODEL_CHARACTERS_MAX),
        training_file=fields.needed("training_file"),
        validation_file=fields.text("validation_file"),
        epochs=given.whole("n_epochs", 1, EPOCHS_MAX, auto=True),
        batch=given.whole("batch_size", 1, BATCH_ROWS_MAX, auto=True),
        rate_factor=given.number("learning_rate_multiplier", 1e-6, RATE_FACTOR_MAX, auto=True),
        suffix=suffix,
        seed=fields.whole("seed", 0, SEED_MAX),
        metadata=fields.metadata(),
        as_method=method is not None,
        method=DPO if is_dpo else SUPERVISED,
        beta=given.number("beta", BETA_MIN, BETA_MAX, auto=True) if is_dpo else None,
    )


def read_batch(body: Mapping[str, Any]) -> BatchRequest:
    """Return the batch that a body asks for. Raises ApiError."""
    fields = Fields(body, _BATCH)
    endpoint = fields.needed("endpoint")
    served = " or ".join(ENDPOINTS)
    if endpoint in OTHER_ENDPOINTS:
        raise unsupported(f"There is no kind of job for {endpoint}; use {served}.", "endpoint")
    if endpoint not in ENDPOINTS:
        raise fields.invalid("endpoint", served)
    if fields.needed("completion_window") != COMPLETION_WINDOW:
        raise fields.invalid("completion_window", COMPLETION_WINDOW)
    fields.only("output_expires_after", (), "files are kept until they are deleted")
    return BatchRequest(fields.needed("input_file_id"), endpoint, fields.metadata())


def read_page(query: Mapping[str, str], *, most: int = PAGE_MAX, usual: int = 20) -> Page:
    """Return the part of a list that a query asks for. Raises ApiError."""
    limit, order = query.get("limit", str(usual)), query.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= most or len(limit) > 9:
        raise wrong(f"Invalid value for 'limit': a whole number from 1 to {most} expected.", "limit")
    if order not in ("asc", "desc"):
        raise wrong("Invalid value for 'order': asc or desc expected.", "order")
    return Page(query.get("after") or None, int(limit), order == "desc")
