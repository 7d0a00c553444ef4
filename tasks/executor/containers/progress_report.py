"""What a container says of its progress at its socket: a counter, and what else is shown (docs/jobs.md).

The bytes are a stranger's program's. Everything is bounded, and what is wrong is said back in one sentence.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

import orjson

from state.primitives.errors import DecodeError
from tasks.executor.containers.progress_pattern import COUNTER_MAX

__all__ = ["METRICS_MAX", "REPORT_BYTES_MAX", "ProgressReport", "decode_report"]

REPORT_BYTES_MAX: Final = 8_192
METRICS_MAX: Final = 32
"""Names of one report, and of all reports of a container."""
NAME_LETTERS_MAX: Final = 48
MESSAGE_LETTERS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_FIELDS: Final = frozenset({"progress", "total", "message", "metrics"})


class ProgressReport(NamedTuple):
    """A counter, what it counts up to (None: unknown), a line for people, and numbers by name."""

    progress: int | None
    total: int | None
    message: str
    metrics: dict[str, float]


def decode_report(body: bytes) -> ProgressReport:
    """Return the report of a JSON object. Raises DecodeError, whose text names the field."""
    if len(body) > REPORT_BYTES_MAX:
        raise DecodeError(f"a report has {REPORT_BYTES_MAX} bytes at most")
    try:
        found = orjson.loads(body)  # its depth is bounded, whatever the interpreter's limit is
    except ValueError:
        raise DecodeError("a report is a JSON object") from None
    if type(found) is not dict or not found:
        raise DecodeError("a report is a JSON object with progress, total, message or metrics")
    if unknown := found.keys() - _FIELDS:
        raise DecodeError(f"unknown field {min(unknown)[:NAME_LETTERS_MAX]!r}")
    return ProgressReport(
        _count(found.get("progress"), "progress"), _count(found.get("total"), "total"),
        _message(found.get("message")), _metrics(found.get("metrics")),
    )  # fmt: skip


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < COUNTER_MAX:
        raise DecodeError(f"{name}: a whole number from 0 to {COUNTER_MAX - 1} expected")
    return value


def _message(value: Any) -> str:
    if value is None:
        return ""
    if type(value) is not str or len(value) > MESSAGE_LETTERS_MAX or not value.isprintable():
        raise DecodeError(f"message: a text of {MESSAGE_LETTERS_MAX} printable letters at most expected")
    return value


def _metrics(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if type(value) is not dict or len(value) > METRICS_MAX:
        raise DecodeError(f"metrics: an object of {METRICS_MAX} names at most expected")
    for name, number in value.items():
        if len(name) > NAME_LETTERS_MAX or not _NAME.fullmatch(name):
            raise DecodeError(f"metrics: {name[:NAME_LETTERS_MAX]!r} is not a name of letters, digits and _./-")
        if type(number) not in (int, float) or not math.isfinite(_float(number)):
            raise DecodeError(f"metrics: {name}: a finite number expected")
    return {name: _float(number) for name, number in value.items()}


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
